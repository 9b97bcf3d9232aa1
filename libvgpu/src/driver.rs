//! The driver and NVML as they are: real functions, and what the driver knows of contexts, streams and addresses.
//!
//! - [`library`]: the real functions of the hooked rows, and the map from their addresses to our hooks
//! - [`own`]: the driver's functions that this library itself calls; [`calls`]: safe calls of them
//! - [`contexts`], [`primary_contexts`], [`green_contexts`]: contexts that end, and those that the program shares
//! - [`streams`]: identity of streams, captures, event markers behind a stream's work; [`launch`]: one launch

pub mod calls;
pub mod contexts;
pub mod green_contexts;
pub mod launch;
pub mod library;
pub mod own;
pub mod primary_contexts;
pub mod streams;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    contexts::reset_after_fork();
    streams::reset_after_fork();
    primary_contexts::reset_after_fork();
    green_contexts::reset_after_fork();
}
