//! `vgpu slurm epilog`: removes the job's tenant, ends its processes, and writes its bill.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use vgpu_control::tenant::TenantState;
use vgpu_engines::bill::Usage;
use vgpu_output::say::{self, Failure};

use super::job_file::{JobFile, ended_tenants, forget_ended, keep_ended};
use super::{JobDirectory, job_id, optional_variable};
use crate::ask::DaemonAddress;
use crate::tenant::EXIT_NO_DAEMON;
use crate::tenant::remove::{Removal, remove_tenant};
use crate::when;

/// Pause between two requests while no daemon answers.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Epilog, as root: removes the job's tenant, ends its processes, and writes its bill.
///
/// The bill is a line of JSON in the log: GPU-seconds and GiB-hours of this job on this node, from the usage record. It
/// may run twice, and without a Prolog before. While no daemon answers, the tenant is kept for a later Prolog or Epilog
/// of this node, which removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu slurm epilog
  vgpu slurm epilog --sacctmgr --grace 2s

Exit codes:
  0  the tenant is removed, or will be when a daemon answers
  1  Slurm drains this node: a process of the job did not end, and holds its GPU memory
  2  usage: it was not started by Slurm")]
pub struct Args {
    #[command(flatten)]
    jobs: JobDirectory,

    /// File that gets a line of JSON for each job that had a tenant.
    #[arg(long, value_name = "FILE", default_value = "/var/log/vgpu-slurm.jsonl")]
    log: PathBuf,

    /// Also writes the bill into the AdminComment of a job of one node with `sacctmgr`, where slurmdbd keeps the
    /// accounting.
    #[arg(long)]
    sacctmgr: bool,

    /// Time between SIGTERM and SIGKILL for processes that the job left behind.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    grace: Duration,

    /// Time to wait for a daemon that restarts.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    wait: Duration,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Removes the job's tenant and writes the bill.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (job, dir) = (job_id()?, &args.jobs.dir);
    remove_ended(dir, &args.daemon);
    let tenant = match JobFile::read(dir, job) {
        Ok(file) => file.and_then(|file| file.tenant),
        Err(why) => {
            say::print_note(&format!("the file of job {job} cannot be read: {why}"));
            Some(format!("slurm-{job}"))
        }
    };
    let ended = tenant.as_deref().map_or(Ok(()), |tenant| end_job(args, job, tenant));
    // A file that stays fails later tasks of this job, and the next Prolog writes it again.
    if let Err(why) = JobFile::remove(dir, job) {
        say::print_note(&format!("the file of job {job} cannot be removed: {why}"));
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn end_job(args: &Args, job: u32, tenant: &str) -> Result<(), Failure> {
    let removal = match remove_in_time(args, tenant) {
        Ok(removal) => removal,
        Err(why) => {
            say::print_note(&format!("job {job}: tenant {tenant} is not removed: {}", why.words));
            keep_ended(&args.jobs.dir, tenant).unwrap_or_else(|why| {
                say::print_note(&format!("job {job}: nobody will remove tenant {tenant}: {why}"));
            });
            return Ok(());
        }
    };
    if removal.state != TenantState::Unknown {
        let usage = serde_json::from_value::<Usage>(removal.usage.clone()).ok();
        let bill = usage.as_ref().map(Usage::to_bill);
        let line = json!({
            "time": when::now(),
            "job": job,
            "tenant": tenant,
            "node": optional_variable("SLURMD_NODENAME"),
            "user": optional_variable("SLURM_JOB_USER"),
            "uid": optional_variable("SLURM_JOB_UID"),
            "gpu_seconds": bill.as_ref().map(|bill| &bill.gpu_seconds),
            "gib_hours": bill.as_ref().map(|bill| &bill.gib_hours),
            "usage": removal.usage,
            "killed": removal.killed,
        });
        if let Err(why) = append_line(&args.log, &line.to_string()) {
            say::print_note(&format!("job {job}: no line in {}: {why}; the bill: {line}", args.log.display()));
        }
        // The nodes of a job end at the same time, and each would replace the others' comment.
        let has_one_node = optional_variable("SLURM_JOB_NUM_NODES").is_some_and(|nodes| nodes == "1");
        if let (true, Some(bill)) = (args.sacctmgr && has_one_node, bill) {
            let node = optional_variable("SLURMD_NODENAME").unwrap_or_default();
            let comment = format!("vgpu {node}: {} GPU-seconds, {} GiB-hours", bill.gpu_seconds, bill.gib_hours);
            if let Err(why) = comment_job(job, &comment) {
                say::print_note(&format!("job {job}: no AdminComment: {why}"));
            }
        }
    }
    removal.require_end_of_members()
}

fn remove_in_time(args: &Args, tenant: &str) -> Result<Removal, Failure> {
    let begun = Instant::now();
    loop {
        match remove_tenant(&args.daemon, tenant, Some(args.grace), true) {
            Err(why) if why.code == EXIT_NO_DAEMON && begun.elapsed() < args.wait => thread::sleep(RETRY_PAUSE),
            result => return result,
        }
    }
}

/// Removes the tenants of ended jobs that no daemon had removed.
pub(super) fn remove_ended(dir: &Path, daemon: &DaemonAddress) {
    for tenant in ended_tenants(dir) {
        match remove_tenant(daemon, &tenant, Some(Duration::ZERO), false) {
            Ok(_) => forget_ended(dir, &tenant),
            Err(why) => {
                say::print_note(&format!("tenant {tenant} of an ended job is not removed: {}", why.words));
                // Without a daemon the others would fail in the same way, each after its time limit.
                if why.code == EXIT_NO_DAEMON {
                    return;
                }
            }
        }
    }
}

/// Appends a line with one write, so that lines of Epilogs that run at the same time stay whole.
fn append_line(path: &Path, line: &str) -> io::Result<()> {
    let mut log = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
    log.write_all(format!("{line}\n").as_bytes())
}

fn comment_job(job: u32, comment: &str) -> Result<(), String> {
    let (which, set) = (format!("JobID={job}"), format!("AdminComment={comment}"));
    let arguments = ["-i", "modify", "job", "where", &which, "set", &set];
    let ran = Command::new("sacctmgr").args(arguments).output();
    let ran = ran.map_err(|why| format!("sacctmgr cannot be run: {why}; is its directory in PATH?"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bill_is_a_whole_line_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        append_line(&log, "{\"job\":7}").unwrap();
        append_line(&log, "{\"job\":8}").unwrap();
        assert_eq!(std::fs::read_to_string(log).unwrap(), "{\"job\":7}\n{\"job\":8}\n");
    }
}
