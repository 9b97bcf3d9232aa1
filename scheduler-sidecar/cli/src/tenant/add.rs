//! `vgpu tenant add`: adds a tenant and prints its socket.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use vgpu_config::added::TenantSection;
use vgpu_control::ControlCommand;
use vgpu_control::tenant::TenantAnswer;
use vgpu_output::say::{self, EXIT_USAGE, Failure};

use super::{EXIT_DOES_NOT_FIT, EXIT_NO_DAEMON, request_tenant};
use crate::ask::{DaemonAddress, no_answer};
use crate::terms::TermsOptions;

/// Pause between two requests while the tenant does not fit.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Adds a tenant: prints the path of its socket when programs can connect there.
///
/// The values are those of the configuration file, and so is the arithmetic that admits the tenant. The same command
/// again changes nothing. Fractions of memory are rounded down to bytes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu tenant add job-7 --gpu 0.25 --template training
  vgpu tenant add job-7 --memory-limit 8GiB --sm-limit 50 --devices 0 --uid 1000 --label user=ada
  vgpu tenant add shell --gpu 0.5 --pid 4711 --wait 30s    # until process 4711 ends

Exit codes:
  0  its socket listens; or it was there already with these values
  1  a tenant of this name has other values, or is one of the file, or the daemon cannot add it
  2  usage: a value is not accepted, or more than a device has
  3  it does not fit next to the other tenants now
  4  no daemon answers, or too many administrators are connected")]
pub struct Args {
    /// Name of the tenant: 1 to 64 letters, digits, '-', '_' and '.'.
    name: String,

    /// Part of a device, from 0.01 to 1: gives a memory limit and a floor.
    #[arg(long, value_name = "PART", conflicts_with_all = ["memory_limit", "sm_request"])]
    gpu: Option<String>,

    #[command(flatten)]
    terms: TermsOptions,

    /// Template for the values that are not given: one of the configuration file, or notebook, serving, training, ci.
    #[arg(long, value_name = "NAME")]
    template: Option<String>,

    /// Devices by number or UUID [default: all].
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    devices: Vec<String>,

    /// User whose processes may connect, a number or a range; may be repeated [default: as the file says, else all].
    #[arg(long = "uid", value_name = "UID")]
    uids: Vec<String>,

    /// Gang whose tenants get their leases on all devices together, or none of them gets one.
    #[arg(long, value_name = "NAME")]
    gang: Option<String>,

    /// Group that reports charge the cost to.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,

    /// Date and time of day at which its work must be done, like "2036-12-01 09:00".
    #[arg(long, value_name = "TIME", requires = "gpu_hours_needed")]
    deadline: Option<String>,

    /// Hours of device time that the work needs until the deadline, like 12 or 0.5.
    #[arg(long, value_name = "HOURS", requires = "deadline")]
    gpu_hours_needed: Option<String>,

    /// Label for reports; may be repeated.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,

    /// Removes the tenant when this process ends.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Removes the tenant after this time: 30m, 8h, 2d. The same command again starts the time again.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,

    /// Waits this long for the tenant to fit, and for a daemon that restarts: 30s, 5m.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,

    /// Replaces the values of a tenant that was added before.
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    daemon: DaemonAddress,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("accepted: KEY=VALUE".to_owned()),
    }
}

/// Adds the tenant, and prints its socket.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut labels = BTreeMap::new();
    for (name, value) in &args.labels {
        if labels.insert(name.clone(), value.clone()).is_some() {
            let words = format!("--label {name}=... is given twice; accepted: each label once");
            return Err(Failure::new(EXIT_USAGE, words));
        }
    }
    let section = TenantSection {
        name: args.name.clone(),
        template: args.template.clone(),
        gpu: args.gpu.clone(),
        memory_limit: args.terms.memory_limit.clone(),
        sm_limit: args.terms.sm_limit.clone(),
        sm_request: args.terms.sm_request.clone(),
        weight: args.terms.weight.clone(),
        class: args.terms.class.clone(),
        devices: args.devices.clone(),
        uids: args.uids.clone(),
        gang: args.gang.clone(),
        group: args.group.clone(),
        deadline: args.deadline.clone(),
        gpu_hours_needed: args.gpu_hours_needed.clone(),
        labels,
    };
    let seconds = match args.lasts {
        Some(time) if time < Duration::from_secs(1) => {
            return Err(Failure::new(EXIT_USAGE, "--for is less than a second; accepted: 1s or more, like 30m or 8h"));
        }
        lasts => lasts.map(|time| time.as_secs()),
    };
    let waits = args.wait.is_some();
    let ask = ControlCommand::Add { section: Box::new(section), pid: args.pid, seconds, replace: args.replace, waits };
    let answer = add_in_time(&args.daemon, &ask, args.wait)?;
    if args.daemon.json {
        say::print_json(&answer)?;
    } else {
        say::print_text(&format!("{}\n", answer.socket.ok_or_else(no_answer)?.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Repeats the request until it succeeds, fails for good, or the time is over. A process that `--pid` names and that
/// ends meanwhile makes it fail for good.
///
/// # Errors
/// [`Failure`], with the exit codes of the help.
pub(crate) fn add_in_time(
    daemon: &DaemonAddress,
    ask: &ControlCommand,
    wait: Option<Duration>,
) -> Result<TenantAnswer, Failure> {
    let until = wait.and_then(|wait| Instant::now().checked_add(wait));
    loop {
        match request_tenant(daemon, ask) {
            Err(why) if matches!(why.code, EXIT_DOES_NOT_FIT | EXIT_NO_DAEMON) => {
                let Some(left) = until.map(|until| until.saturating_duration_since(Instant::now())) else {
                    return Err(why);
                };
                if left.is_zero() {
                    let words =
                        format!("{}; waited {}", why.words, humantime::format_duration(wait.unwrap_or_default()));
                    return Err(Failure::new(why.code, words));
                }
                thread::sleep(left.min(RETRY_PAUSE));
            }
            other => return other,
        }
    }
}
