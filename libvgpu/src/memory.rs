//! memory

pub mod allocation_records;
pub mod deferred_frees;
pub mod graphs;
pub mod in_flight_frees;
pub mod overhead;
pub mod physical;
pub mod pools;
pub mod refcounted_charge;
pub mod release;
pub mod reservation;
pub mod shares;
pub mod slabs;
