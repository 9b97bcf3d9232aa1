//! The command line: one command per file in `cli`. Only the doctor's child process, which calls the driver, needs
//! `unsafe`.
#![deny(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use vgpu_cli::Cli;
use vgpu_cli::doctor::seen::CHILD_ARGUMENT;
use vgpu_output::say;

#[path = "vgpu/child.rs"]
mod child;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == CHILD_ARGUMENT) {
        return child::run(arguments.next().is_some());
    }
    match Cli::parse().run() {
        Ok(code) => code,
        Err(failure) => say::show_failure(&failure),
    }
}
