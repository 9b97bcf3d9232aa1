//! Pure policy and vocabulary of vgpu: no unsafe, no IO, no clock.
//!
//! In reading order: amounts and shares ([`bytes`], [`share`]), what was asked for ([`limits`]) by which variables
//! ([`variables`]), how many bytes a call is charged ([`charging`]), who holds how much ([`ledger`]) under which key
//! ([`tenant`]), who may use the device now ([`account`]), who holds it when several want it ([`arbiter`]: tenants,
//! [`turn`]: members of one tenant) and what that means for a launch ([`gate`]), where the daemon and its members write it
//! down for each other ([`page`], [`wire`]), and what a tenant is shown ([`view`]).
//! [`mix`] finds a key's place in a small table. Time is always an argument, in nanoseconds; whatever only a kernel can say comes through a trait.
//! What lives elsewhere: mappings, locks and the C types of the driver are shim-sys; hooks are libvgpu.
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
