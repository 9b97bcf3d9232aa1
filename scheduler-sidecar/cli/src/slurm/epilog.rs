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
use vgpu_engines::bill::{Bill, Usage, count_bills};
use vgpu_output::say::{self, Failure};

use super::job_file::{EndedJob, JobFile};
use super::{JobDirectory, job_id, job_tenant, optional_variable};
use crate::ask::DaemonAddress;
use crate::tenant::EXIT_NO_DAEMON;
use crate::tenant::remove::{Removal, remove_tenant};
use crate::when;

/// Pause between two requests while no daemon answers.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Longest time that a node waits for the other nodes' bills in the comment, so that none is lost.
const COMMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Epilog, as root: removes the job's tenant, ends its processes, and writes its bill.
///
/// The bill is a line of JSON in the log: GPU-seconds and GiB-hours of this job on this node, from the usage record. It
/// may run twice, and without a Prolog before. While no daemon answers, the tenant is kept for a later Prolog or Epilog
/// of this node, which removes it and writes the bill.
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

    /// Also writes the bill into the job's AdminComment with `sacctmgr`, where slurmdbd keeps the accounting. The nodes
    /// of a job write one after the other, which takes up to 5 s.
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
    let (tenant, since) = match JobFile::read(dir, job) {
        Ok(file) => file.map_or((None, None), |file| (file.tenant, file.since)),
        Err(why) => {
            say::print_note(&format!("the file of job {job} cannot be read: {why}"));
            (Some(job_tenant(job)?), None)
        }
    };
    let ended = tenant.map_or(Ok(()), |tenant| {
        let nodes = optional_variable("SLURM_JOB_NUM_NODES").and_then(|nodes| nodes.parse().ok());
        let (node, user) = (optional_variable("SLURMD_NODENAME"), optional_variable("SLURM_JOB_USER"));
        let (uid, log, sacctmgr) = (optional_variable("SLURM_JOB_UID"), args.log.clone(), args.sacctmgr);
        end_job(args, &EndedJob { job, tenant, since, node, nodes, user, uid, log, sacctmgr })
    });
    // A file that stays fails later tasks of this job, and the next Prolog writes it again.
    if let Err(why) = JobFile::remove(dir, job) {
        say::print_note(&format!("the file of job {job} cannot be removed: {why}"));
    }
    ended.map(|()| ExitCode::SUCCESS)
}

fn end_job(args: &Args, ended: &EndedJob) -> Result<(), Failure> {
    let EndedJob { job, tenant, .. } = ended;
    match remove_in_time(args, ended) {
        Ok(removal) => {
            write_bill(ended, &removal);
            removal.require_end_of_members()
        }
        Err(why) => {
            say::print_note(&format!("job {job}: tenant {tenant} is not removed: {}", why.words));
            ended.keep(&args.jobs.dir).unwrap_or_else(|why| {
                say::print_note(&format!("job {job}: nobody will remove tenant {tenant}: {why}"));
            });
            Ok(())
        }
    }
}

fn write_bill(ended: &EndedJob, removal: &Removal) {
    let EndedJob { job, tenant, since, node, user, uid, log, .. } = ended;
    // The tenant of a job that the Prolog refused was never there.
    if removal.state == TenantState::Unknown && since.is_none() {
        return;
    }
    let usage = serde_json::from_value::<Usage>(removal.usage.clone()).ok();
    let bill = usage.as_ref().map(Usage::to_bill);
    let line = json!({
        "time": when::now(),
        "job": job,
        "tenant": tenant,
        "node": node,
        "user": user,
        "uid": uid,
        "gpu_seconds": bill.as_ref().map(|bill| &bill.gpu_seconds),
        "gib_hours": bill.as_ref().map(|bill| &bill.gib_hours),
        "usage": removal.usage,
        "killed": removal.killed,
    });
    if let Err(why) = append_line(log, &line.to_string()) {
        say::print_note(&format!("job {job}: no line in {}: {why}; the bill: {line}", log.display()));
    }
    if let (true, Some(bill)) = (ended.sacctmgr, bill)
        && let Err(why) = comment_job(ended, &bill)
    {
        say::print_note(&format!("job {job}: no AdminComment: {why}"));
    }
}

fn remove_in_time(args: &Args, ended: &EndedJob) -> Result<Removal, Failure> {
    let begun = Instant::now();
    loop {
        match remove_tenant(&args.daemon, &ended.tenant, Some(args.grace), true, ended.since) {
            Err(why) if why.code == EXIT_NO_DAEMON && begun.elapsed() < args.wait => thread::sleep(RETRY_PAUSE),
            result => return result,
        }
    }
}

/// Removes the tenants of ended jobs that no daemon had removed, and writes their bills.
pub(super) fn remove_ended(dir: &Path, daemon: &DaemonAddress) {
    for (tenant, ended) in EndedJob::read_all(dir) {
        let since = ended.as_ref().and_then(|ended| ended.since);
        match remove_tenant(daemon, &tenant, Some(Duration::ZERO), ended.is_some(), since) {
            Ok(removal) => {
                if let Some(ended) = ended {
                    write_bill(&ended, &removal);
                }
                EndedJob::forget(dir, &tenant);
            }
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

/// Writes the bill into the job's AdminComment, next to those of the job's other nodes.
///
/// The nodes of a job end at the same time, and Slurm replaces the whole comment. So each node adds its bill to the
/// comment that it reads, and looks again until all nodes' bills are there or the time is over.
fn comment_job(ended: &EndedJob, bill: &Bill) -> Result<(), String> {
    let node = ended.node.as_deref().unwrap_or_default();
    let begun = Instant::now();
    let mut comment = String::new();
    loop {
        if ended.nodes != Some(1) {
            comment = read_comment(ended.job)?;
        }
        match bill.add_to_comment(&comment, node) {
            Some(added) => set_comment(ended.job, &added)?,
            None if ended.nodes.is_some_and(|nodes| count_bills(&comment) >= nodes) => return Ok(()),
            None => {}
        }
        if ended.nodes == Some(1) || begun.elapsed() >= COMMENT_TIMEOUT {
            return Ok(());
        }
        thread::sleep(comment_pause(node));
    }
}

/// Pause of a node between two looks at the comment. Nodes of one job have different ones, so that they part.
fn comment_pause(node: &str) -> Duration {
    let mixed = node.bytes().fold(7_u64, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    Duration::from_millis(100 + mixed % 150)
}

fn read_comment(job: u32) -> Result<String, String> {
    let read = run_slurm("sacct", &["-X", "-P", "-n", "-o", "AdminComment", "-j", &job.to_string()])?;
    Ok(read.lines().next().unwrap_or_default().trim().to_owned())
}

fn set_comment(job: u32, comment: &str) -> Result<(), String> {
    let (which, set) = (format!("JobID={job}"), format!("AdminComment={comment}"));
    run_slurm("sacctmgr", &["-i", "modify", "job", "where", &which, "set", &set]).map(drop)
}

fn run_slurm(program: &str, arguments: &[&str]) -> Result<String, String> {
    let ran = Command::new(program).args(arguments).output();
    let ran = ran.map_err(|why| format!("{program} cannot be run: {why}; is its directory in PATH?"))?;
    let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    match ran.status.success() {
        true => Ok(said.into_owned()),
        false => Err(format!("{program} fails: {said}{errors}")),
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
