//! time

pub mod credit;
pub mod governor;
pub mod launch_costs;
pub mod meter;
pub mod turn;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    credit::reset_after_fork();
}
