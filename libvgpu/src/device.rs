//! The devices of this process, each with its limits, its ledger and its launch gate.
//!
//! - [`table`]: registered devices; [`list`]: the devices that CUDA and NVML show; [`current`]: the device of a context
//! - [`reconnect`]: joins all devices at a daemon that came back; [`watch`]: the helper thread's looks at all devices
//! - [`multi_device_launch`]: a launch through the gates of its devices; [`usage`]: recent device time of the tenant

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
