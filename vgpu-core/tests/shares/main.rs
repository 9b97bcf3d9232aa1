//! Shares of device time in virtual time: the arbiter, the account and the gate against a model of devices and
//! programs.
//!
//! All results are the model's, not real hardware's. [`device`]: contexts in turn, no work withdrawn, true usage;
//! [`program`]: scripts; [`guest`]: event markers, usage meter and gate in a member; [`world`]: events, the daemon;
//! [`measure`]: errors against the true usage. No clock and no thread: each run is the same.
//!
//! `cargo test -p vgpu-core --test shares table -- --nocapture` prints the table in docs/gpu-time-model.md.

mod daemon;
mod device;
mod guest;
mod measure;
mod profile;
mod program;
mod world;

mod behaviour;
mod ceilings;
mod collective;
mod gangs;
mod properties;
mod short;
mod strangers;
mod table;
mod tenants;
mod unseen;
