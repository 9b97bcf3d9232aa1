//! ledger

pub mod descriptor_marks;
pub mod file;
pub mod held_shares;
pub mod joined;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    descriptor_marks::reset_after_fork();
    held_shares::reset_after_fork();
}
