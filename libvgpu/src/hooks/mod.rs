//! One function per hooked row, under the row's own name, by subject. Each is handed its own real function.
//!
//! The shape of all of them: nothing asked for, straight through; limits that cannot be kept, refused; otherwise what
//! the subject's file says. Outputs of a real call are read only if it succeeded.

mod arrays;
mod capture;
mod context;
mod copies;
mod described;
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
