//! The bodies of the driver's functions, one module per subject. `build.rs` finds each by its name and exports
//! it.
//!
//! Every body gets the arguments of the C caller through an entry point (`entry_points`). It may rely on the driver
//! API's contract: a pointer is null, or valid for the reads and writes of the function. That is the safety contract of
//! all of them. An unsafe block here without its own comment relies on it: it passes such a pointer on.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, clippy::too_many_arguments)]

pub(crate) mod array;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod copy_array;
pub(crate) mod device;
pub(crate) mod entry;
pub(crate) mod event;
pub(crate) mod external;
pub(crate) mod fill;
pub(crate) mod function;
pub(crate) mod graph;
pub(crate) mod green;
pub(crate) mod host;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod legacy;
pub(crate) mod library;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod mipmap;
pub(crate) mod module;
pub(crate) mod multicast;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod share;
pub(crate) mod sparse;
pub(crate) mod stream;
pub(crate) mod together;
pub(crate) mod vmm;
