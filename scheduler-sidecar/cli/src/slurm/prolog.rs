//! `vgpu slurm prolog`: adds a tenant for the job's part of this node.

use std::process::{Command, ExitCode};
use std::time::Duration;

use vgpu_control::ControlCommand;
use vgpu_engines::request::{DevicePart, JobRequest};
use vgpu_engines::slurm::{JobGres, ShardCounts, SlurmJob, read_job, read_node};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

use super::epilog::remove_ended;
use super::job_file::JobFile;
use super::{JobDirectory, job_id, job_tenant, optional_variable, variable};
use crate::ask::DaemonAddress;
use crate::tenant::EXIT_NO_DAEMON;
use crate::tenant::add::add_in_time;

/// Prolog, as root: adds a tenant for the job.
///
/// A job whose tenant cannot be added does not run: its TaskProlog fails it, with the reason in the job's output. The
/// node is not drained, because Slurm drains a node only where its Prolog fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu slurm prolog
  vgpu slurm prolog --drain-without-daemon --shards-per-gpu 8

The tenant: gpu = shards / shards of its GPU, weight = shards, devices = SLURM_JOB_GPUS,
uid = the job's user, group = account or partition, labels job and user. A job with
--gres=gpu:N has whole GPUs. vgpu_mem sets the memory limit.

Exit codes:
  0  the job may start, or its TaskProlog will fail it
  1  Slurm drains this node: no daemon answers (with --drain-without-daemon), or DIR is not writable
  2  usage: it was not started by Slurm")]
pub struct Args {
    #[command(flatten)]
    jobs: JobDirectory,

    /// Shards of each GPU: a number, or one for each GPU like 0=2,1=6 [default: the node's shards divided by its GPUs].
    #[arg(long, value_name = "N", value_parser = ShardCounts::read)]
    shards_per_gpu: Option<ShardCounts>,

    /// Time to wait for the tenant to fit, and for a daemon that restarts.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    wait: Duration,

    /// Fails, so that Slurm drains the node and queues the job again, if no daemon answers.
    #[arg(long)]
    drain_without_daemon: bool,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Adds the job's tenant, and leaves the job's file.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (job, dir) = (job_id()?, &args.jobs.dir);
    remove_ended(dir, &args.daemon);
    // A Prolog that is killed leaves a refusal behind, never the file of an earlier start of the job.
    let name = job_tenant(job)?;
    let refused = Some("its Prolog did not end".into());
    let begun = JobFile { tenant: Some(name.clone()), refused, ..JobFile::default() };
    let written = |file: &JobFile| {
        file.write(dir, job).map_err(|why| {
            let words = format!("the file of job {job} cannot be written in {}: {why}", dir.display());
            Failure::new(EXIT_FINDINGS, words)
        })
    };
    written(&begun)?;
    match add_job(args, job, &name) {
        Ok(file) => written(&file)?,
        Err(why) => {
            say::print_note(&format!("job {job}: {}", why.words));
            written(&JobFile { refused: Some(why.words.clone()), ..begun })?;
            if why.code == EXIT_NO_DAEMON && args.drain_without_daemon {
                return Err(Failure::new(EXIT_FINDINGS, "this node is drained, because no daemon answers"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add_job(args: &Args, job: u32, name: &str) -> Result<JobFile, Failure> {
    let refuse = |words: String| Failure::new(EXIT_FINDINGS, words);
    // Slurm names no device to a job without GPUs and shards.
    let Some(devices) = optional_variable("SLURM_JOB_GPUS") else { return Ok(JobFile::default()) };
    let node = variable("SLURMD_NODENAME")?;
    let text = run_scontrol(&["-d", "-o", "show", "job", &job.to_string()])?;
    let SlurmJob { account, gres } = read_job(&text, &node).map_err(refuse)?;
    let devices: Vec<String> = devices.split(',').map(str::to_owned).collect();
    let request = JobRequest {
        name: name.to_owned(),
        part: device_part(args, &gres, &devices, &node)?,
        memory_bytes: match gres.memory_bytes {
            0 => None,
            bytes => Some(bytes / u64::try_from(devices.len()).unwrap_or(u64::MAX)),
        },
        devices,
        uid: variable("SLURM_JOB_UID")?.parse().map_err(|_| refuse("SLURM_JOB_UID is no user ID".into()))?,
        group: account.or_else(|| optional_variable("SLURM_JOB_PARTITION")),
        labels: vec![("job", job.to_string()), ("user", optional_variable("SLURM_JOB_USER").unwrap_or_default())],
    };
    let section = Box::new(request.to_section());
    // A tenant of this name is a leftover of this job, whose Epilog did not run.
    let waits = !args.wait.is_zero();
    let ask = ControlCommand::Add { section, pid: None, seconds: None, replace: true, waits };
    let answer = add_in_time(&args.daemon, &ask, Some(args.wait))?;
    let socket = answer.socket.ok_or_else(|| refuse("the daemon names no socket".into()))?;
    Ok(JobFile { tenant: Some(name.to_owned()), since: answer.since, socket: Some(socket), refused: None })
}

fn device_part(args: &Args, gres: &JobGres, devices: &[String], node: &str) -> Result<DevicePart, Failure> {
    let refuse = |words: String| Failure::new(EXIT_FINDINGS, words);
    match (gres.gpus, gres.shards) {
        (0, 0) => Err(refuse("Slurm gives it a GPU and says neither gpu nor shard; ask with --gres=shard:N".into())),
        (_, 0) => Ok(DevicePart::WHOLE),
        (0, _) if devices.len() > 1 => {
            let words = format!("its shards are on the GPUs {}; accepted: shards of one GPU", devices.join(","));
            Err(refuse(words))
        }
        (0, shards) => {
            let gpu = devices.first().map_or("", String::as_str);
            let total = match &args.shards_per_gpu {
                Some(counts) => counts
                    .of_gpu(gpu)
                    .ok_or_else(|| refuse(format!("--shards-per-gpu of node {node} does not name GPU {gpu}")))?,
                None => shards_of_each_gpu(node)?,
            };
            DevicePart::of(u32::try_from(shards).unwrap_or(u32::MAX), total).map_err(refuse)
        }
        _ => Err(refuse("it has whole GPUs and shards; accepted: one of the two".into())),
    }
}

/// Returns the shards of each GPU of the node, if all have the same number.
fn shards_of_each_gpu(node: &str) -> Result<u32, Failure> {
    let refuse = |words: String| Failure::new(EXIT_FINDINGS, words);
    let gres = read_node(&run_scontrol(&["-o", "show", "node", node])?).map_err(refuse)?;
    match gres.shards.checked_div(gres.gpus) {
        Some(each) if each * gres.gpus == gres.shards => u32::try_from(each).map_err(|why| refuse(why.to_string())),
        _ => Err(refuse(format!(
            "node {node} has {} shards for {} GPUs; accepted: the same number for each, or --shards-per-gpu",
            gres.shards, gres.gpus
        ))),
    }
}

/// Runs `scontrol` and returns its output. Slurm's Prolog has no PATH, so the script sets it.
fn run_scontrol(arguments: &[&str]) -> Result<String, Failure> {
    let refuse = |words: String| Failure::new(EXIT_FINDINGS, words);
    let ran = Command::new("scontrol").args(arguments).output();
    let ran = ran.map_err(|why| refuse(format!("scontrol cannot be run: {why}; is its directory in PATH?")))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        return Err(refuse(format!("scontrol {} fails: {}", arguments.join(" "), said.trim())));
    }
    String::from_utf8(ran.stdout).map_err(|_| refuse("scontrol's text is not UTF-8".into()))
}
