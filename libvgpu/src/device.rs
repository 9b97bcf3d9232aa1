//! device

pub mod current;
pub mod list;
pub mod multi_device_launch;
pub mod reconnect;
pub mod table;
pub mod usage;
pub mod watch;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    table::reset_after_fork();
    current::reset_after_fork();
    usage::reset_after_fork();
}
