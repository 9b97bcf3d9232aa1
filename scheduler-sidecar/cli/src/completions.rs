//! `vgpu completions`: prints completion scripts for shells. `make install` and the package install its output.

use std::process::ExitCode;

use clap::{Command, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

use crate::checkpoint::CheckpointOptions;
use vgpu_config::options::Options;
use vgpu_output::say::{self, Failure};

/// Prints the completions of vgpu, vgpud or vgpu-checkpoint for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu completions bash > /etc/bash_completion.d/vgpu
  vgpu completions zsh > \"${fpath[1]}/_vgpu\"
  vgpu completions --of vgpud fish > ~/.config/fish/completions/vgpud.fish

Exit codes:
  0  printed
  2  usage")]
pub struct Args {
    /// The program to complete.
    #[arg(long, value_name = "PROGRAM", default_value = "vgpu")]
    of: CompletedProgram,

    /// The shell.
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompletedProgram {
    Vgpu,
    Vgpud,
    VgpuCheckpoint,
}

/// Prints the script; `vgpu` is the whole command line to complete.
///
/// # Errors
/// Stdout is closed.
pub fn run(args: &Args, vgpu: Command) -> Result<ExitCode, Failure> {
    let (mut command, name) = match args.of {
        CompletedProgram::Vgpu => (vgpu, "vgpu"),
        CompletedProgram::Vgpud => (Options::command(), "vgpud"),
        CompletedProgram::VgpuCheckpoint => (CheckpointOptions::command(), "vgpu-checkpoint"),
    };
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut out);
    say::print_exact(&String::from_utf8_lossy(&out))?;
    Ok(ExitCode::SUCCESS)
}
