//! This process: what its environment asks for, the mode that follows, its tenant, and its one thread.
//!
//! - [`environment`], [`limit_request`], [`strictness`], [`copies`]: variables, and whether they ask for limits, for
//!   refused bypasses, for charged copies
//! - [`mode`]: what every hook reads first; [`device_count`]: how many devices are registered
//! - [`tenant`]: whose process this is, and where its ledgers are
//! - [`fork`]: detects a forked child; [`helper_thread`]: the one thread; [`message`]: the one line on stderr

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
