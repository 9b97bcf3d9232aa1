//! vgpud, the daemon, and vgpu, the command line.
//!
//! Reading order: [`daemon`] (sockets, one loop, answers), [`control`] (what `vgpu status` asks the
//! daemon), [`metrics`] (the same as OpenMetrics), [`record`] (what outlives it: usage), [`report`] (what that means in hours and money), [`validate`] (what sharing costs), [`cli`] (one verb per file). Quotas and the members' protocol are vgpu-core's; nothing here
//! loads a driver or exports one of its names: that is for the doctor's child, in the program `vgpu` itself.
#![forbid(unsafe_code)]

pub mod audit_chain;
pub mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub mod metrics;
pub mod proof;
pub mod record;
pub mod report;
pub mod shelf;
pub mod validate;

pub mod cli;
