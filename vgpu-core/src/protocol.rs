//! Messages ([`wire`]) and shared pages ([`page`]) between the daemon and its members.

pub mod page;
pub mod wire;
