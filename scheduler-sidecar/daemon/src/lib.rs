//! The daemon: gives each tenant's members their terms over the tenant's socket and keeps their connections.
//!
//! [`options`] is what was written on the command line, [`config`] what it means, or what the plan of a file means
//! ([`vgpu_config`]), which [`source`] reads and [`check`] shows; [`door`] owns a listening socket and its place in the
//! file system; [`connection`] the bytes of one peer; `room` a tenant at work; [`answer`] what is said to a line,
//! without any IO; [`reactor`] the one thread that owns it all (`reactor/reload.rs`: how it gets from one plan to the
//! next), `asking` the driver that does not answer yet; [`scribe`] writes the log, [`journal`] makes events of it,
//! [`audit`] keeps the grave ones, [`rotate`] is the file of either; [`notify`] tells systemd, [`activation`] takes its
//! socket, [`metrics`] answers over HTTP, [`proof`] looks for who is at a device and not registered; `asked` is how
//! those two ask the loop.
//!
//! Device time: [`leases`] is who has which device, [`pages`] what members share with the daemon. Administrators:
//! `reactor/admin.rs` answers their verbs, `reactor/change.rs` is what those come down to, `by_hand` what outlives it
//! that devices become known, `recent` what tenants wanted and got in the last seconds, `reactor/terms_file.rs` what
//! members go by that start while no daemon runs, `roster` which members the next daemon will know.
//!
//! A member lives as long as its connection, and as long as its process runs the program that said hello: the proof ends the
//! connection of a process that is gone or runs another program, whoever keeps the other end open.
#![forbid(unsafe_code)]

pub mod activation;
pub mod answer;
mod asked;
mod asking;
pub mod audit;
mod by_hand;
pub mod check;
pub mod config;
pub mod connection;
pub mod door;
pub mod journal;
mod kept_ledger;
pub mod leases;
mod log;
pub mod metrics;
pub mod notify;
pub mod pages;
pub mod proof;
pub mod reactor;
mod recent;
mod room;
mod roster;
pub mod rotate;
pub mod scribe;
pub mod source;
