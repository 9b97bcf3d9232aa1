//! `vgpu sim`: inspects the simulated GPU: the true use of it, its profiles, its environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use vgpu_core::units::bytes::Bytes;
use vgpu_sim::truth::{DeviceTruth, Truth};
use vgpu_sim::{Machine, Timeline, admin, profile, truth};

use super::library;
use vgpu_output::say::{self, FINDINGS, Failure, RUN_FAILED, USAGE};

/// Looks after the simulated GPU.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu sim stat --json
  vgpu sim reset
  eval \"$(vgpu sim env --profile t4)\" && nvidia-smi

Exit codes:
  0    done
  1    there is no simulated machine, or its state cannot be used
  2    usage
  125  the simulated driver was not found")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows the truth: bytes and device time of each process, as the device knows them.
    #[command(after_help = "\
Examples:
  vgpu sim stat
  vgpu sim stat --json | jq '.devices[0].used'
  vgpu sim stat --timeline 10")]
    Stat {
        #[command(flatten)]
        place: Place,
        /// Also show for whom the device worked in the last SECONDS, at most 81; as JSON in buckets of 10 ms.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=81))]
        timeline: Option<u64>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Removes the simulated machine, and its directory if nothing else is in it.
    ///
    /// The next program that needs a machine makes a new one. Containers to which the directory was given find none until
    /// they are started again.
    #[command(after_help = "\
Examples:
  vgpu sim reset
  vgpu sim reset --dir /tmp/machine")]
    Reset {
        #[command(flatten)]
        place: Place,
    },
    /// Shows the devices that can be simulated.
    #[command(after_help = "\
Examples:
  vgpu sim profiles
  vgpu sim profiles --json")]
    Profiles {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Prints the environment that gives any program the simulated driver, for a shell to evaluate.
    #[command(after_help = "\
Examples:
  eval \"$(vgpu sim env)\"
  eval \"$(vgpu sim env --profile 2xh200 --dir /tmp/machine)\"")]
    Env {
        #[command(flatten)]
        place: Place,
        /// The devices of a new machine: h200, 2xh200, t4,l4.
        #[arg(long, value_name = "PROFILE")]
        profile: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Which machine.
#[derive(Debug, clap::Args)]
struct Place {
    /// Directory of the machine's state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Place {
    fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(vgpu_sim::directory)
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] with a message.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        Verb::Stat { place, timeline, json } => {
            let truth = read(place)?;
            let timelines = timeline.map(|seconds| lately(place, &truth, seconds)).transpose()?;
            if *json {
                say::json(&Stat { truth: &truth, timelines: timelines.as_deref() })?;
            } else {
                say::text(&shown(&truth, timelines.as_deref()))?;
            }
        }
        Verb::Reset { place } => {
            let dir = place.dir();
            let was_there = admin::reset(&dir).map_err(|why| {
                Failure::new(FINDINGS, format!("{}: the state cannot be removed: {why}", dir.display()))
            })?;
            let words = if was_there { "removed" } else { "there was no machine" };
            say::text(&format!("{}: {words}\n", dir.display()))?;
        }
        Verb::Profiles { json } => profiles(*json)?,
        Verb::Env { place, profile, json } => environment(place, profile.as_deref(), *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(place: &Place) -> Result<Truth, Failure> {
    let dir = place.dir();
    truth::read(&dir).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            FINDINGS,
            format!("{}: there is no simulated machine; a program that uses it makes it", dir.display()),
        ),
        _ => Failure::new(FINDINGS, format!("{}: {why}", dir.display())),
    })
}

/// Output of `vgpu sim stat --json`.
#[derive(Serialize)]
struct Stat<'a> {
    #[serde(flatten)]
    truth: &'a Truth,
    /// Recent work of each device, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    timelines: Option<&'a [Timeline]>,
}

/// Returns the timelines of all devices.
fn lately(place: &Place, truth: &Truth, seconds: u64) -> Result<Vec<Timeline>, Failure> {
    let dir = place.dir();
    let machine =
        Machine::open_at(&dir, None).map_err(|why| Failure::new(FINDINGS, format!("{}: {why}", dir.display())))?;
    Ok(truth.devices.iter().map(|device| machine.timeline(device.index, seconds * 100)).collect())
}

/// Formats the percent of each second, the latest last.
fn percent_by_second(timeline: &Timeline) -> String {
    let mut rows = vec![["PID", "PERCENT OF EACH SECOND"].map(str::to_owned).to_vec()];
    rows.extend(timeline.processes.iter().map(|process| {
        let second = |buckets: &[u32]| buckets.iter().map(|ns| u64::from(*ns)).sum::<u64>();
        let each = process.busy_ns.chunks(100).map(|c| {
            let whole = u64::try_from(c.len()).unwrap_or(1) * timeline.bucket_ns;
            format!("{:>3}", (second(c) * 100 + whole / 2) / whole)
        });
        vec![process.pid.to_string(), each.collect::<Vec<_>>().join(" ")]
    }));
    say::table(&rows)
}

fn shown(truth: &Truth, timelines: Option<&[Timeline]>) -> String {
    let mut out = String::new();
    for device in &truth.devices {
        let DeviceTruth { index, name, uuid, .. } = device;
        out.push_str(&format!("{}\n", say::coloured(say::Colour::Bold, &format!("device {index}: {name} {uuid}"))));
        out.push_str(&format!(
            "  {} used of {}, busy {}, {} switches\n",
            mib(device.used),
            mib(device.capacity),
            seconds(device.busy_ns),
            device.switches
        ));
        if device.processes.is_empty() && device.finished.is_empty() {
            out.push('\n');
            continue;
        }
        let heading = ["PID", "STATE", "PHYSICAL", "REQUESTED", "OVERHEAD", "PEAK", "BUSY", "KERNELS", "PROGRAM"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        let finished = device.finished.iter().map(|process| (process, "finished"));
        for (process, state) in device.processes.iter().map(|process| (process, "running")).chain(finished) {
            rows.push(vec![
                process.pid.to_string(),
                state.to_owned(),
                mib(process.physical_bytes),
                Bytes(process.requested_bytes).to_string(),
                mib(process.overhead_bytes),
                mib(process.peak_bytes),
                seconds(process.busy_ns),
                process.kernels.to_string(),
                process.name.clone(),
            ]);
        }
        out.push_str(&say::table(&rows));
        if let Some(timeline) = timelines.and_then(|all| all.get(*index)) {
            out.push_str(&percent_by_second(timeline));
        }
        out.push('\n');
    }
    out
}

/// A profile as listed.
#[derive(Serialize)]
struct Listed {
    profile: String,
    name: String,
    memory_bytes: u64,
    sms: u32,
    compute_capability: String,
    measured: bool,
}

fn profiles(json: bool) -> Result<(), Failure> {
    let list: Vec<Listed> = admin::profiles()
        .iter()
        .map(|profile| Listed {
            profile: profile.key().to_owned(),
            name: profile.name().to_owned(),
            memory_bytes: profile.nvml_total,
            sms: profile.sms,
            compute_capability: format!("{}.{}", profile.cc_major, profile.cc_minor),
            measured: profile.measured != 0,
        })
        .collect();
    if json {
        return say::json(&list);
    }
    let mut rows = vec![["PROFILE", "DEVICE", "MEMORY", "SMS", "CC"].map(str::to_owned).to_vec()];
    rows.extend(list.into_iter().map(|listed| {
        vec![listed.profile, listed.name, mib(listed.memory_bytes), listed.sms.to_string(), listed.compute_capability]
    }));
    say::text(&say::table(&rows))
}

fn environment(place: &Place, profile: Option<&str>, json: bool) -> Result<(), Failure> {
    if let Some(text) = profile {
        profile::parse_list(text).map_err(|why| Failure::new(USAGE, format!("--profile {text:?}: {why}")))?;
    }
    let sim = library::find_sim(None).map_err(|why| Failure::new(RUN_FAILED, why))?;
    let mut vars = BTreeMap::new();
    vars.insert(
        "LD_LIBRARY_PATH",
        library::searched_first(&sim, std::env::var_os("LD_LIBRARY_PATH")).to_string_lossy().into_owned(),
    );
    if let Some(dir) = &place.dir {
        let dir = std::path::absolute(dir).map_err(|why| Failure::new(USAGE, format!("--dir {dir:?}: {why}")))?;
        vars.insert("VGPU_SIM_DIR", dir.to_string_lossy().into_owned());
    }
    if let Some(profile) = profile {
        vars.insert("VGPU_SIM_PROFILE", profile.to_owned());
    }
    if json {
        return say::json(&vars);
    }
    say::text(&vars.iter().map(|(name, value)| format!("export {name}={}\n", say::quoted(value))).collect::<String>())
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", precise(bytes) / f64::from(1 << 20))
}

fn seconds(ns: u64) -> String {
    format!("{:.3} s", precise(ns) / 1e9)
}

#[expect(clippy::cast_precision_loss, reason = "shown with one to three decimals")]
fn precise(number: u64) -> f64 {
    number as f64
}
