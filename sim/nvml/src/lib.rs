//! `libnvidia-ml.so.1` of the simulated GPU: answers the queries of monitors, schedulers and `nvidia-smi` from
//! the model.
//!
//! Reading order: [`arguments`] (converts raw C arguments into safe ones), [`export`] (one exported symbol per row of
//! the table), [`entry`] (init and shutdown), [`machine`] (devices and processes in the model), then one module
//! per subject. A function of driver 535 without a body here is exported as a stub that returns "not supported".
//!
//! Not here: the device itself (the crate vgpu-sim), limits (libvgpu; it meets this library only through the
//! loader).

#![allow(non_snake_case)] // bodies carry the C names

mod arguments;
mod entry;
mod error;
mod export;
mod machine;

mod accounting;
mod device;
mod event;
mod field;
mod identity;
mod memory;
mod mode;
mod private_table;
mod process;
mod system;
mod telemetry;
mod topology;
mod utilization;
