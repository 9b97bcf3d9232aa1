//! Programs that reach into the driver's functions by other means than a call: they overwrite code, answer lookups
//! themselves, or move a process off its device.
//!
//! [`code`]: first instructions overwritten by a jump, of our exports and of the driver's own functions. [`rejecting`]:
//! another preloaded library that accepts only addresses in the driver. [`wrapper`]: a driver that is a thin library in
//! front of another one. [`starts`]: many threads, subinterpreters and forks of one program. [`checkpoint`]: processes
//! that another process checkpoints and restores. Not here: one patched function, step by step (doors_more.rs); a
//! program that checkpoints itself (clients.rs).

mod checkpoint;
mod code;
mod rejecting;
mod starts;
mod wrapper;
