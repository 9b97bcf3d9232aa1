//! `libvgpu.so`: preloaded into each process, it sits between the program and the CUDA driver and NVML.
//!
//! It is a guest in another program's process. Before the first CUDA or NVML call it runs no constructor, starts no
//! thread, opens no file but /proc/self/environ ([`asked`]), and prints nothing but a report of a bypass ([`doors`]).
//! It never exits the process, lets a panic escape, or changes umask, signals, environment or locale. It holds no
//! lock across a call into the driver or the loader. Reading order:
//!
//! - [`lookup`]: the program's symbol lookups (`dlsym`, `dlvsym`) and their answers
//! - [`driver`]: the real functions, found in the loader's objects; the map from their addresses to our hooks
//! - [`exports`]: the exported hooks, derived from the table; [`door`]: the panic guard around each of them;
//!   [`doors`]: lookups that bypass the hooks
//! - [`boot`]: from environment to limits to devices, once, at the first `cuInit` or `nvmlInit`. It uses
//!   [`environment`], [`daemon`], [`tenant`] and [`inventory`] (the devices there are), and sets [`mode`] and
//!   [`device`]
//! - [`enforce`]: the check at the start of every hook; [`context`]: the current context; [`fork`]: detects a forked
//!   child
//! - [`charge`]: the common path of allocations and frees; [`ledger`]: the shared charges; [`holdings`]: the charge
//!   of each pointer; [`slabs`]: how many small requests share each of the driver's slabs; [`pools`], [`graphs`],
//!   [`departing`]: memory held by pools and graphs, and deferred frees; [`overhead`]: memory that a context takes
//! - [`governor`] and [`meter`]: the launch gate, and the device time that launches are charged
//! - [`hooks`]: one function per row, by subject
//! - [`arch`]: machine-specific code, one file per machine; no other module knows registers
//! - [`say`]: the one line on stderr; [`quiet`], [`lock`], [`clock`], [`uuid`]: small parts that depend on none of
//!   the others
//!
//! Policy (quota arithmetic, account, views) is in vgpu-core; C types and the table are in shim-sys.

mod daemon;
mod device;
mod driver;
mod exports;
mod ffi;
mod hooks;
mod ledger;
mod lookup;
mod member;
mod memory;
mod process;
mod time;
