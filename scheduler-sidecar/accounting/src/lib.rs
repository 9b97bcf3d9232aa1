//! Usage records that outlive the daemon, and everything derived from them.
//!
//! [`record`] stores the tenants' usage; its thread reads the ledgers and uses [`clock`]. [`report`] derives hours,
//! money and advice. [`metrics`] renders the daemon's status as OpenMetrics. [`audit_chain`] chains the lines of the
//! audit log. The daemon writes all of it, the command line reads it.
#![forbid(unsafe_code)]

pub mod audit_chain;
pub mod clock;
pub mod metrics;
pub mod record;
pub mod report;
