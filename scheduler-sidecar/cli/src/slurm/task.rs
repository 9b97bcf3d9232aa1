//! `vgpu slurm task`: puts a task of the job under the library, or fails it.

use std::path::PathBuf;
use std::process::ExitCode;

use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

use super::job_file::JobFile;
use super::{JobDirectory, job_id};
use crate::library;

/// TaskProlog, as the job's user: puts the task under the library, or fails it with the reason.
///
/// Slurm reads the output: `export NAME=VALUE` changes the task's environment, and `print TEXT` writes to its output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu slurm task

Exit codes:
  0  the task starts
  1  the job must not run here; Slurm fails it
  2  usage: it was not started by Slurm")]
pub struct Args {
    #[command(flatten)]
    jobs: JobDirectory,

    /// The library to preload [default: $VGPU_LIBRARY, else libvgpu.so next to this program or as installed].
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
}

/// Prints the lines that Slurm reads.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    match task_lines(args) {
        Ok(lines) => {
            say::print_exact(&lines)?;
            Ok(ExitCode::SUCCESS)
        }
        // Slurm shows the user only lines of standard output.
        Err(words) => {
            say::print_exact(&format!("print vgpu: this job cannot run here: {}\n", say::escape_line(&words)))?;
            Err(Failure::new(EXIT_FINDINGS, words))
        }
    }
}

fn task_lines(args: &Args) -> Result<String, String> {
    let job = job_id().map_err(|why| why.words)?;
    let file = JobFile::read(&args.jobs.dir, job)
        .map_err(|why| format!("the file of job {job} in {} cannot be read: {why}", args.jobs.dir.display()))?
        .ok_or_else(|| format!("its Prolog left no file in {}; slurm.conf needs Prolog=", args.jobs.dir.display()))?;
    match file {
        JobFile { refused: Some(why), .. } => Err(why),
        JobFile { tenant: Some(_), socket: None, .. } => Err("its Prolog left no socket".into()),
        JobFile { socket: None, .. } => Ok(String::new()),
        JobFile { socket: Some(socket), .. } => {
            let library = library::find(args.library.as_deref())?;
            let preload = library::preloaded_first(&library, std::env::var_os("LD_PRELOAD"));
            let preload = preload.to_str().ok_or("LD_PRELOAD is not UTF-8")?;
            if preload.contains('\n') {
                return Err("LD_PRELOAD has a line break".into());
            }
            Ok(format!("export LD_PRELOAD={preload}\nexport VGPU_SOCKET={}\n", socket.display()))
        }
    }
}
