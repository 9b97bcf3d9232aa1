//! Device time: the account that a ceiling refills ([`account`]), the scheduler of leases between tenants
//! ([`arbiter`]), turns between the members of one tenant ([`turn`]), and the decision about one launch ([`gate`]).
//! Rules that several of them share: [`virtual_time`], [`recent_most`], [`config`].

pub mod account;
pub mod arbiter;
pub mod config;
pub mod gate;
pub mod recent_most;
pub mod turn;
pub mod virtual_time;
