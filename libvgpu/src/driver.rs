//! driver

pub mod contexts;
pub mod green_contexts;
pub mod launch;
pub mod library;
pub mod own;
pub mod pointers;
pub mod primary_contexts;
pub mod streams;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    contexts::reset_after_fork();
    streams::reset_after_fork();
    primary_contexts::reset_after_fork();
    green_contexts::reset_after_fork();
}
