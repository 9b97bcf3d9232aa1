//! Machine-specific code: exports that must have no stack frame, jumps that leave a call's arguments unchanged, and
//! the identity of this thread. There is one file per machine, and no machine-specific code elsewhere (a test checks
//! this).
//!
//! The file of another machine must provide, under the same names:
//!
//! - `loader_functions!`, `driver_lookups!`: exports that need the caller's address: `dlsym`, `dlvsym`, `dlopen`,
//!   `dlmopen`, `cuGetProcAddress`, `cuGetProcAddress_v2`
//! - `jump_to!`: the body of an export that only loads its row number and jumps
//! - `judged_jump!`, `charged_jump!`: the targets of those jumps, which ask a function and pass the call on
//! - `in_place_table!`: entries that load their row number and jump
//! - `relocatable_entry!`: first instructions of every export, which a program may move and overwrite
//! - `distances!`: the table of distances to the hooks, which a Rust static cannot hold
//! - `this_thread`: an integer that no other living thread has
//!
//! The counterparts are `scheduler-sidecar/cli/src/arch.rs` for the command line and `make/arch.mk` for the build.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("libvgpu has no file for this machine yet: libvgpu/src/ffi/arch.rs says what one has to say");

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
