//! Pure policy and vocabulary of vgpu: no unsafe code, no input or output, no clock.
//!
//! The rooms stand in order of dependency; a room uses only rooms above it in this table:
//!
//! | room | holds |
//! |---|---|
//! | [`units`] | amounts of memory, shares of device time, device UUIDs |
//! | [`limits`] | limits as written and as understood, environment variables, the tenant's key |
//! | [`memory`] | the ledger of charges, the charging rule, pools, and the figures a tenant sees |
//! | [`time`] | the account of device time, the scheduler of leases, the launch gate, turns within a tenant |
//! | [`protocol`] | the messages and shared pages between the daemon and its members |
//!
//! [`mix`] finds the index of a key in a small table. Time is always an argument, in nanoseconds. Facts that only a
//! kernel knows come through a trait. Mappings, locks and the C types of the driver are in shim-sys; the hooks are in
//! libvgpu.
#![forbid(unsafe_code)]

pub mod mix;
mod sync;

pub mod limits;
pub mod memory;
pub mod protocol;
pub mod time;
pub mod units;
