//! One function per hooked row, under the row's own name, by subject. Each receives its own real function.
//!
//! All have the same structure. With no limits asked for, the call passes straight through. If limits cannot be kept,
//! it is refused. Otherwise the file of the subject decides. Outputs of a real call are read only after success.

mod arrays;
mod capture;
mod charge;
mod context;
mod copies;
mod copy_descriptors;
mod entry;
mod graph;
mod green;
mod launch;
mod memory;
mod module;
mod nvml;
mod pool;
mod share;
mod sync;
mod view;
mod vmm;
mod waits;

pub use arrays::*;
pub use capture::*;
pub use context::*;
pub use copies::*;
pub use entry::*;
pub use graph::*;
pub use green::*;
pub use launch::*;
pub use memory::*;
pub use module::*;
pub use nvml::*;
pub use pool::*;
pub use share::*;
pub use sync::*;
pub use view::*;
pub use vmm::*;
