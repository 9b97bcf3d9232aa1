//! Device memory: what is charged for each allocation, and when that ends.
//!
//! - [`reservation`]: bytes for one call; [`allocation_records`]: the charge of each address; [`release`]: its end
//! - [`slabs`]: small requests that share memory of the driver; [`physical`]: the virtual-memory calls
//! - [`pool_entry`], [`pool_registry`], [`pools`], [`graphs`]: memory that pools and graphs hold
//! - [`deferred_frees`]: frees that a stream has not reached; [`in_flight_frees`]: frees that are being made
//! - `shrink_flag`: whether the next call that waits must check the pools
//! - [`shares`], [`open_imports`], [`refcounted_charge`]: memory with several holders
//! - [`overhead`]: memory that the driver takes beyond requests

pub mod allocation_records;
pub mod deferred_frees;
pub mod graphs;
pub mod in_flight_frees;
pub mod open_imports;
pub mod overhead;
pub mod physical;
pub mod pool_entry;
pub mod pool_registry;
pub mod pools;
pub mod refcounted_charge;
pub mod release;
pub mod reservation;
pub mod shares;
mod shrink_flag;
pub mod slabs;

/// Gives up what a forked child inherited: calls the function of the same name of each module that has such state.
pub fn reset_after_fork() {
    allocation_records::reset_after_fork();
    physical::reset_after_fork();
    slabs::reset_after_fork();
    refcounted_charge::reset_after_fork();
    open_imports::reset_after_fork();
    in_flight_frees::reset_after_fork();
    pool_registry::reset_after_fork();
    pools::reset_after_fork();
    deferred_frees::reset_after_fork();
    graphs::reset_after_fork();
    overhead::reset_after_fork();
}
