//! FFI ground of vgpu: C types, THE TABLE of functions, the loader's objects, shared mappings and kernel locks.
//!
//! Everything here is mechanism without policy. Reading order: [`cuda`] and [`nvml`] (types), [`table`] (the
//! functions), [`elf`] (finding symbols without asking `dlsym`), [`lock`] (locks the kernel drops at death),
//! [`shared_file`] (a page shared through a file), [`memfd`] (one shared through a sealed memory file), [`descriptors`]
//! (how that file travels), [`futex`] (waiting on a word of a page). What a hook does with all this is libvgpu's affair;
//! quota arithmetic is vgpu-core's.

pub mod cuda;
pub mod descriptors;
pub mod elf;
pub mod futex;

pub mod lock;
pub mod memfd;
pub mod nvml;
pub mod shared_file;
pub mod table;
