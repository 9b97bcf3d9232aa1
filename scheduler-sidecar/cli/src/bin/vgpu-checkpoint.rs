//! `vgpu-checkpoint`: the driver's checkpoint calls. Everything else is in `vgpu_cli::checkpoint`, without `unsafe`.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use vgpu_cli::checkpoint::CheckpointOptions;
use vgpu_output::say;

#[path = "vgpu-checkpoint/driver.rs"]
mod driver;

fn main() -> ExitCode {
    match CheckpointOptions::parse().run(driver::LoadedDriver::load) {
        Ok(code) => code,
        Err(failure) => say::show_failure(&failure),
    }
}
