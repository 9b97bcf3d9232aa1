//! `libvgpu.so`: preloaded into each process, it sits between the program and the CUDA driver and NVML.
//!
//! It is a guest in another program's process. Before the first CUDA or NVML call it runs no constructor, starts no
//! thread, opens no file but /proc/self/environ ([`process::limit_request`]), and prints nothing but a report of a
//! bypass ([`lookup::bypasses`]). It never exits the process, lets a panic escape, or changes umask, signals,
//! environment or locale. It holds no lock across a call into the driver or the loader.
//!
//! Its rooms, the lowest first. A room uses only rooms before it (a test checks this):
//!
//! - [`ffi`]: machine code, panic guard, the loader's functions, small parts
//! - [`driver`]: the real functions, contexts, streams
//! - [`process`]: environment, mode, tenant, fork, the helper thread
//! - [`ledger`]: the tenant's shared charges
//! - [`daemon`]: the connection to vgpud, its pages, its lease
//! - [`time`]: the launch gate, and the device time that launches are charged
//! - [`device`]: devices with their limits, ledger and gate
//! - [`memory`]: charges of allocations, pools, graphs, imports, overhead
//! - [`lookup`]: the program's symbol lookups and their answers; bypasses
//! - [`member`]: start, registration, the check of every hook
//! - [`hooks`]: one function per row of the table, by subject
//! - [`exports`]: the exported C functions, derived from the table
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
