//! libcuda.so.1 of the simulated GPU.
//!
//! `build.rs` makes the exports from the table `shim_sys::cuda_table!`: every name of driver 535.309.01. Each
//! call passes the entry point (`entry_points`) to its body in `calls/`, by subject. The model (vgpu-sim) accounts for
//! device time and device memory; this crate has the objects of one process: contexts, modules, streams, events,
//! content of memory.
//!
//! Kernels compute nothing: a launch takes device time and changes nothing. Three test kernels are known by name
//! (`calls/launch.rs`): one takes as many ns as its parameter says, one waits for a word of memory, one writes a
//! word. Images are read for names and parameters, not checked: PTX of a version that the real driver would refuse
//! is accepted.
//!
//! Not simulated yet, and answered with "not supported" (801): textures, IPC of events, graphics interop, batched
//! copies, stream memory operations, graph nodes for semaphores, words of memory and conditions, launches of graphs
//! from the device.
#![allow(non_snake_case)]

mod arrays;
mod attributes;
mod calls;
mod capture;
mod code;
mod content;
mod context;
mod devices;
mod driver;
mod entry_points;
mod errors;
mod graph;
mod host_time;
mod image;
mod managed;
mod newer;
mod objects;
mod pool_core;
mod stand_in;
mod surface;
mod versions;
mod visible;
mod work;

use core::ffi::{c_char, c_void};
use entry_points::{ExportAddress, ExportTable, answer_absent, enter_call, enter_newer};
use shim_sys::cuda::*;
use stand_in::StandIn;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
