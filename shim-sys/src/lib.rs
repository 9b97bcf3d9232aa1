//! The FFI layer of vgpu: C types, the table of functions, the loader's objects, shared mappings and kernel locks.
//!
//! It provides mechanisms and decides no policy. Reading order:
//! - [`cuda`] and [`nvml`]: types; [`table`]: the functions;
//! - [`elf`]: finds symbols without `dlsym`;
//! - [`lock`]: locks that the kernel releases when their holder dies;
//! - [`shared_file`]: a page shared through a file; [`memfd`]: a page shared through a sealed memory file;
//! - [`descriptors`]: passes that file to another process;
//! - [`futex`]: waits on a word of a page.
//!
//! Not here: hooks (libvgpu) and quota arithmetic (vgpu-core).

pub mod cuda;
pub mod descriptors;
pub mod elf;
pub mod futex;

pub mod lock;
pub mod memfd;
pub mod nvml;
pub mod shared_file;
pub mod table;
