//! `vgpu slurm`: Slurm's Prolog, TaskProlog and Epilog. A job's shards become a tenant that vgpud holds to them.
//!
//! The Prolog adds the tenant and leaves a file for the job. The TaskProlog, which runs as the job's user, reads it and
//! puts the job's programs under the library. The Epilog removes the tenant and writes the bill.

mod epilog;
mod job_file;
mod prolog;
mod task;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use vgpu_engines::request::tenant_name;
use vgpu_output::say::{EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Runs as Slurm's Prolog, TaskProlog and Epilog: a job's shards become a tenant that is held to them.
///
/// The scripts in integrations/slurm call these commands; docs/slurm.md has the lines of slurm.conf and gres.conf.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu slurm prolog --drain-without-daemon    # in /etc/slurm/vgpu/prolog
  vgpu slurm task                             # in /etc/slurm/vgpu/task-prolog
  vgpu slurm epilog --sacctmgr                # in /etc/slurm/vgpu/epilog

Exit codes:
  0  done; after prolog, the job's tasks may still be refused
  1  Slurm drains this node (prolog, epilog) or fails the job (task)
  2  usage: it was not started by Slurm")]
pub struct Args {
    #[command(subcommand)]
    verb: SlurmVerb,
}

#[derive(Debug, Subcommand)]
enum SlurmVerb {
    Prolog(prolog::Args),
    Task(task::Args),
    Epilog(epilog::Args),
}

/// Where the three commands leave the state of a job for each other.
#[derive(Debug, Clone, clap::Args)]
struct JobDirectory {
    /// Directory with a file for each job, which the Prolog makes and all users can read.
    #[arg(long, value_name = "DIR", default_value = "/run/vgpu-slurm")]
    dir: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// [`Failure`], with the exit codes of the subcommand's help.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        SlurmVerb::Prolog(args) => prolog::run(args),
        SlurmVerb::Task(args) => task::run(args),
        SlurmVerb::Epilog(args) => epilog::run(args),
    }
}

/// Returns a variable that Slurm sets.
fn variable(name: &str) -> Result<String, Failure> {
    optional_variable(name).ok_or_else(|| {
        Failure::new(EXIT_USAGE, format!("{name} is not set; Slurm sets it where it runs this command as a script"))
    })
}

fn optional_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the name of the job's tenant: each start of a job has one of its own.
fn job_tenant(job: u32) -> Result<String, Failure> {
    let restarts = optional_variable("SLURM_JOB_RESTART_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
    tenant_name("slurm", &job.to_string(), restarts).map_err(|why| Failure::new(EXIT_FINDINGS, why))
}

/// Returns the job's ID, which names its file. Slurm sets it; a number cannot lead out of the directory.
fn job_id() -> Result<u32, Failure> {
    let text = variable("SLURM_JOB_ID")?;
    text.parse().map_err(|_| Failure::new(EXIT_USAGE, format!("SLURM_JOB_ID={text} is not the ID of a job")))
}
