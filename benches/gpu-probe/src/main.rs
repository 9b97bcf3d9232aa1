//! `gpu-probe`: measures a GPU and its driver and writes the results as JSON.
//!
//! The probe shares no code with libvgpu. So it can show the driver's behaviour without any library in between, and
//! measure the cost of a preloaded libvgpu. Each step runs in its own process with a time limit ([`isolate`]). A step
//! that fails, hangs or crashes is reported, and the others continue.
//!
//! Reading order: [`args`], [`steps`] (the table of steps), [`isolate`], [`report`] (the document), then [`driver`],
//! [`nvml`] and [`gpu`] (the libraries), [`kernels`] (the device code). docs/gpu-probe.md describes the document.

mod args;
mod bench;
mod driver;
mod gpu;
mod isolate;
mod kernels;
mod nvml;
#[cfg(test)]
mod ptx_run;
mod report;
mod sink;
mod stats;
mod steps;
mod worker;

use std::process::ExitCode;

use args::ProbeCommand;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match args::parse(&arguments) {
        Ok(ProbeCommand::Help) => {
            print!("{}", args::help_text());
            ExitCode::SUCCESS
        }
        Ok(ProbeCommand::List) => {
            for step in steps::ALL_STEPS {
                println!("{:<18} {}", step.name, step.about);
            }
            ExitCode::SUCCESS
        }
        Ok(ProbeCommand::Probe(options)) => report::run(&options),
        Ok(ProbeCommand::Step { name, options }) => steps::run_here(&name, &options),
        Ok(ProbeCommand::Worker { role, rest, options }) => steps::work_here(&role, &rest, &options),
        Ok(ProbeCommand::Bench(bench)) => bench::run(&bench),
        Err(message) => {
            eprintln!("gpu-probe: {message} (--help says what there is)");
            ExitCode::from(2)
        }
    }
}
