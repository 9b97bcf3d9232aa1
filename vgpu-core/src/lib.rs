//! Policy and shared data layouts of vgpu: no `unsafe`, no IO, no clock.
//!
//! In reading order:
//! - amounts and fractions: [`bytes`], [`share`];
//! - the limits of a container ([`limits`]) and the environment variables that set them ([`variables`]);
//! - the bytes that a call is charged ([`charging`]), the ledger that holds the charges ([`ledger`]), the key of its
//!   tenant ([`tenant`]);
//! - device time: budget of a tenant ([`account`]), order among tenants ([`arbiter`]) and among the members of one
//!   tenant ([`turn`]), and the decision about one launch ([`gate`]);
//! - the files and messages between daemon and members: [`page`], [`wire`];
//! - the memory numbers that a tenant sees: [`view`].
//!
//! [`mix`] hashes a key to its index in a small table. Time is always an argument, in nanoseconds. A trait supplies
//! everything that only the kernel knows.
//!
//! Not here: mappings, locks and the driver's C types (shim-sys); hooks (libvgpu).
#![forbid(unsafe_code)]

mod decimal;
pub mod mix;
mod sync;

pub mod bytes;
pub mod share;

pub mod limits;
pub mod variables;

pub mod charging;
pub mod ledger;
pub mod pool;
pub mod tenant;

pub mod account;
pub mod arbiter;
pub mod gate;
pub mod page;
pub mod turn;
pub mod uuid;

pub mod view;

pub mod wire;
