//! `libvgpu.so`: preloaded into each process, it sits between the program and the CUDA driver and NVML.
//!
//! A guest in somebody's process: no constructor, no thread, no file and no output before the first CUDA or NVML call;
//! never an exit, a panic that leaves, a changed umask, signal, environment or locale; no lock across a call into the
//! driver or the loader. Reading order:
//!
//! - [`lookup`]: how a program's questions for symbols come to us (`dlsym`, `dlvsym`), and what the answer is
//! - [`driver`]: the real functions, found in the loader's objects; the map from their addresses to our hooks
//! - [`exports`]: the exported hooks, derived from the table; [`door`]: what every one of them passes;
//!   [`doors`]: lookups that find a way around them
//! - [`boot`]: environment to limits to devices, once, at the first `cuInit` or `nvmlInit`; from [`environment`],
//!   [`daemon`], [`tenant`] and [`inventory`] (which devices there are) to [`mode`] and [`device`]
//! - [`enforce`]: what every hook asks first; [`context`]: the current context; [`fork`]: noticing a child
//! - [`charge`]: the shape of allocations and frees; [`ledger`]: the shared charges; [`holdings`]: which pointer holds
//!   which charge; [`slabs`]: how many small requests lie in each of the driver's; [`pools`], [`graphs`], [`departing`]: what pools and graphs hold; [`overhead`]: what a context takes
//! - [`governor`] and [`meter`]: the gate of launches, and the device time it is paid with
//! - [`hooks`]: one function per row, by subject
//! - [`arch`]: what is of one machine, in a file of its own; nothing else knows registers
//! - [`say`]: the one line; [`quiet`], [`lock`], [`clock`], [`uuid`]: small parts that know nothing of the others
//!
//! Policy (quota arithmetic, account, views) is vgpu-core's; C types and the table are shim-sys'.

mod arch;
mod asked;
mod boot;
mod charge;
mod clock;
mod context;
mod counted;
mod credit;
mod daemon;
mod departing;
mod descriptor;
mod device;
mod door;
mod doors;
mod driver;
mod enforce;
mod environment;
mod exports;
mod fork;
mod governor;
mod graphs;
mod holdings;
mod hooks;
mod inventory;
mod ledger;
mod lock;
mod lookup;
mod meter;
mod mode;
mod order;
mod overhead;
mod passage;
mod physical;
mod pools;
mod quiet;
mod say;
mod share;
mod slabs;
mod sorted;
mod tenant;
mod turn;
mod usage;
mod uuid;
mod watcher;
mod words;
