//! The member's side of the daemon: the connection, the daemon's answers, and the rules in force while it does not
//! answer.
//!
//! - [`hello`]: the conversation over the socket, with its deadlines
//! - [`session`]: the shared pages from the daemon's welcome, checked; one slot per device; the wake-up bell
//! - [`link`]: the daemon state that launches and allocations read first, in atomics: the slot, and the last memory
//!   limit
//! - [`lease`]: the governor's state of its lease, under its lock; the contents of its report
//! - [`start`]: the first answer, or the terms file of an absent daemon; [`search`]: whether a lost daemon is sought
//!
//! The connection stays open for the life of the process: its end tells the daemon that a member died. Limits once
//! received stay in force, whatever happens to the daemon.

pub mod hello;
pub mod lease;
pub mod link;
pub mod search;
pub mod session;
pub mod start;
#[cfg(test)]
pub mod test_pages;
