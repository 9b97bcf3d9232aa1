//! Library of `vgpud`, the daemon that hands out quotas of GPU memory and shares of GPU time.
//!
//! Each tenant has a Unix socket. Its members (processes) connect there, receive the tenant's terms, and stay
//! connected. A member exists until its connection closes, or until its process ends or runs another program than the
//! one that said hello. The enforcement check ([`proof`]) closes such connections, even if another process keeps the
//! other end open.
//!
//! A member says *hello* and gets a *welcome* with four descriptors:
//! - the heartbeat page
//! - the *board*, where the daemon writes terms and gates
//! - the *report*, where members write usage and launch requests
//! - the *bell*, an eventfd that a member rings after a request
//!
//! Configuration: [`config`] is what the daemon serves, from the command line or from the plan of a file
//! ([`vgpu_config`]). [`source`] reads that file, [`check`] prints its plan, and [`import`] makes one from another
//! program's.
//!
//! Connections: [`door`] owns a listening socket and its path, [`connection`] the bytes of one peer, `room` the state
//! of one tenant. [`answer`] builds replies without IO. [`reactor`] is the single thread that owns all of them;
//! `reactor/reload.rs` replaces one plan by the next. `asking` retries a driver that does not answer yet.
//!
//! Resources: [`leases`] decides which tenant has which device, [`pages`] makes the memory shared with members.
//! `descriptor_pool` holds the descriptors of that memory outside of the daemon's descriptor table. `kept_ledger` makes
//! each tenant's ledgers of memory.
//!
//! Administrators: `reactor/admin.rs` answers their requests. `reactor/policies.rs` puts their decisions, windows and
//! bookings in force as [`vgpu_policy`] computes them, and `kept_changes` stores them. `recent` computes how much time
//! tenants wanted and got in the last seconds, `promises` how much they were promised. `additions` has the commands
//! that wait for room.
//!
//! Restarts: `reactor/terms_file.rs` writes the terms for members that start while no daemon runs. `roster` lists the
//! members for the next daemon.
//!
//! Output: [`scribe`] writes the log, [`journal`] turns log lines into events, [`audit`] writes the audited ones to a
//! file, and [`rotate`] rotates both files. [`notify`] reports to systemd, [`activation`] takes the socket that
//! systemd opened, [`metrics`] serves HTTP. [`proof`] looks for processes that use a device without being registered.
//! [`actions`] runs the programs that
//! events start. `asked` is how the threads of [`metrics`] and [`proof`] send requests to the reactor.
#![forbid(unsafe_code)]

pub mod actions;
pub mod activation;
pub mod added;
mod additions;
pub mod answer;
mod asked;
mod asking;
pub mod audit;
pub mod check;
pub mod config;
pub mod connection;
mod descriptor_pool;
pub mod door;
pub mod import;
pub mod journal;
mod kept_changes;
mod kept_deadlines;
mod kept_ledger;
pub mod leases;
mod log;
pub mod metrics;
pub mod notify;
pub mod pages;
mod promises;
pub mod proof;
pub mod reactor;
mod recent;
mod room;
mod roster;
pub mod rotate;
pub mod scribe;
pub mod source;
mod state_file;
mod suspended;
