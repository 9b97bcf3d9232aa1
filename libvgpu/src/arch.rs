//! What is of one machine: the exports that must have no frame of ours, how a call is handed on with its arguments
//! untouched, and who this thread is. One file per machine, and nothing of a machine outside it (a test looks).
//!
//! What another machine's file has to say, under the same names:
//!
//! - `dlsym`, `dlvsym`, `dlopen`, `dlmopen`, `cuGetProcAddress`, `cuGetProcAddress_v2`: the exports that are told who asks
//! - `jump_to!`: the body of an export that is nothing but the number of its row and a jump
//! - `shut`, `copy`: where those jump to; what they hand on is judged by `hooks`
//! - `detour`: where exports jump to for which an interposer behind us has the function; `in_place`: hooks that call
//!   none
//! - `distances!`: the table of distances to the hooks, which a static of Rust's cannot hold
//! - `this_thread`: a word that no other living thread has
//!
//! The same of the command line is `scheduler-sidecar/cli/src/arch.rs`, of the build `make/arch.mk`.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("libvgpu has no file for this machine yet: libvgpu/src/arch.rs says what one has to say");

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;
