//! `vgpu k8s`: runs `vgpu-k8s`, the agent of a Kubernetes node, which is a program and a package of its own.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use vgpu_output::say::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Failure};

/// Name of the agent's program.
const AGENT_PROGRAM: &str = "vgpu-k8s";

/// Runs vgpu-k8s, the agent of a Kubernetes node: tenants as devices, and tenants by annotations of pods.
///
/// All words go to that program: the one next to this program, else the one in PATH. It comes with the package
/// vgpu-kubernetes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu k8s device-plugin --placement spread
  vgpu k8s nri --help

Exit codes:
  those of vgpu-k8s, or
  126  vgpu-k8s cannot be executed
  127  vgpu-k8s is not installed")]
pub struct Args {
    /// Words for vgpu-k8s.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// Becomes the agent.
///
/// # Errors
/// [`Failure`]: the agent is not installed, or cannot be executed.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let program = agent_program();
    let why = Command::new(&program).args(&args.words).exec();
    let at = program.display();
    if why.kind() == io::ErrorKind::NotFound {
        let words = format!(
            "{AGENT_PROGRAM} is not installed: it is neither next to this program nor in PATH; install the package \
             vgpu-kubernetes, or build it with `make kubernetes`"
        );
        return Err(Failure::new(EXIT_NOT_FOUND, words));
    }
    Err(Failure::new(EXIT_NOT_EXECUTABLE, format!("{at}: {why}")))
}

/// The agent next to this program; else its name, for PATH.
fn agent_program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(AGENT_PROGRAM));
    beside.filter(|program| program.exists()).unwrap_or_else(|| PathBuf::from(AGENT_PROGRAM))
}
