//! What outlives the daemon, and what follows from it.
//!
//! [`record`] keeps what tenants used (its thread reads the ledgers, whose files lie in [`shelf`]; [`clock`] is its
//! time), [`report`] makes hours, money and advice of it, [`metrics`] the daemon's status as OpenMetrics,
//! [`audit_chain`] chains the lines of the audit log. The daemon writes all of it, the command line reads it.
#![forbid(unsafe_code)]

pub mod audit_chain;
pub mod clock;
pub mod metrics;
pub mod record;
pub mod report;
pub mod shelf;
