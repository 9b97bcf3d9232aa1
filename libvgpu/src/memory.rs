//! memory

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
