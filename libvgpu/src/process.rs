//! process

pub mod copies;
pub mod device_count;
pub mod environment;
pub mod fork;
pub mod helper_thread;
pub mod limit_request;
pub mod message;
pub mod mode;
pub mod strictness;
pub mod tenant;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    message::reset_after_fork();
    helper_thread::reset_after_fork();
}
