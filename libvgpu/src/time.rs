//! Device time: whether a launch may go, and what it is charged.
//!
//! - [`governor`]: the launch gate of a device; [`meter`]: the work in flight, measured by event markers
//! - [`launch_costs`]: the learned time of launches; [`credit`]: launches that a thread counts without a lock
//! - [`turn`]: turns among the members of a tenant

pub mod credit;
pub mod governor;
pub mod launch_costs;
pub mod meter;
pub mod turn;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    credit::reset_after_fork();
}
