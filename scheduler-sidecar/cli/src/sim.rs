//! `vgpu sim`: inspects the simulated GPU: the true use of it, its profiles, its environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use vgpu_core::units::bytes::Bytes;
use vgpu_sim::truth::{DeviceTruth, MachineTruth};
use vgpu_sim::xid::{FaultRefusal, XID_OFF_THE_BUS, XID_UNCONTAINED_ECC};
use vgpu_sim::{DeviceTimeline, MachineView, admin, profile, truth};

use super::library;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_RUN_FAILED, EXIT_USAGE, Failure};

/// Manages the simulated GPU.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu sim stat --json
  vgpu sim reset
  vgpu sim fault illegal-address --pid 4711
  eval \"$(vgpu sim env --profile t4)\" && nvidia-smi

Exit codes:
  0    done
  1    there is no simulated machine, or its state cannot be used, or a fault was refused
  2    usage
  125  the simulated driver was not found")]
pub struct Args {
    #[command(subcommand)]
    verb: SimVerb,
}

#[derive(Debug, Subcommand)]
enum SimVerb {
    /// Shows the memory and device time of each process, as the simulated device counts them.
    #[command(after_help = "\
Examples:
  vgpu sim stat
  vgpu sim stat --json | jq '.devices[0].used'
  vgpu sim stat --timeline 10")]
    Stat {
        #[command(flatten)]
        place: SimulatedMachine,
        /// Also shows which process the device worked for in the last SECONDS, at most 81; as JSON in buckets of 10 ms.
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=81))]
        timeline: Option<u64>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Removes the simulated machine, and its directory if nothing else is in it.
    ///
    /// The next program that needs a machine creates a new one. Containers that mount the directory find no machine
    /// until
    /// they are started again.
    #[command(after_help = "\
Examples:
  vgpu sim reset
  vgpu sim reset --dir /tmp/machine")]
    Reset {
        #[command(flatten)]
        place: SimulatedMachine,
    },
    /// Injects a fault into the simulated device, or resets it.
    ///
    /// `docs/simulated-device.md` says which codes the calls then answer.
    #[command(after_help = "\
Examples:
  vgpu sim fault illegal-address --pid 4711
  vgpu sim fault lost --device 0
  vgpu sim fault reset --device 0")]
    Fault {
        #[command(subcommand)]
        what: InjectedFault,
    },
    /// Shows the devices that can be simulated.
    #[command(after_help = "\
Examples:
  vgpu sim profiles
  vgpu sim profiles --json")]
    Profiles {
        /// Prints JSON.
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
        place: SimulatedMachine,
        /// The devices of a new machine: h200, 2xh200, t4,l4.
        #[arg(long, value_name = "PROFILE")]
        profile: Option<String>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum InjectedFault {
    /// Lets a process touch an illegal address (Xid 31): its calls answer 700 until it ends.
    #[command(after_help = "\
Examples:
  vgpu sim fault illegal-address --pid 4711
  vgpu sim fault illegal-address --pid 4711 --dir /tmp/machine")]
    IllegalAddress {
        #[command(flatten)]
        place: SimulatedMachine,
        /// The process, as `vgpu sim stat` shows it.
        #[arg(long, value_name = "PID")]
        pid: u32,
    },
    /// Loses a device for all processes until it is reset.
    #[command(after_help = "\
Examples:
  vgpu sim fault lost --device 0
  vgpu sim fault lost --device 1 --xid 95")]
    Lost {
        #[command(flatten)]
        place: SimulatedMachine,
        /// Index of the device, as `vgpu sim stat` shows it.
        #[arg(long, value_name = "INDEX")]
        device: usize,
        /// The Xid: 79, off the bus (calls answer 999), or 95, an uncontained ECC error (calls answer 214).
        #[arg(long, value_name = "XID", default_value_t = 79)]
        xid: u32,
    },
    /// Resets a device after the processes on it ended; new processes are served.
    #[command(after_help = "\
Examples:
  vgpu sim fault reset --device 0
  vgpu sim fault reset --device 0 --dir /tmp/machine")]
    Reset {
        #[command(flatten)]
        place: SimulatedMachine,
        /// Index of the device, as `vgpu sim stat` shows it.
        #[arg(long, value_name = "INDEX")]
        device: usize,
    },
}

/// Which machine.
#[derive(Debug, clap::Args)]
struct SimulatedMachine {
    /// Directory of the machine's state [default: $VGPU_SIM_DIR, else /dev/shm/vgpu-sim-<uid>].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl SimulatedMachine {
    fn state_directory(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(vgpu_sim::default_directory)
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure`] with a message.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        SimVerb::Stat { place, timeline, json } => {
            let truth = read(place)?;
            let timelines = timeline.map(|seconds| recent_timelines(place, &truth, seconds)).transpose()?;
            if *json {
                say::print_json(&SimStat { truth: &truth, timelines: timelines.as_deref() })?;
            } else {
                say::print_text(&format_truth(&truth, timelines.as_deref()))?;
            }
        }
        SimVerb::Reset { place } => {
            let dir = place.state_directory();
            let was_there = admin::reset(&dir).map_err(|why| {
                Failure::new(EXIT_FINDINGS, format!("{}: the state cannot be removed: {why}", dir.display()))
            })?;
            let words = if was_there { "removed" } else { "there was no machine" };
            say::print_text(&format!("{}: {words}\n", dir.display()))?;
        }
        SimVerb::Fault { what } => inject_fault(what)?,
        SimVerb::Profiles { json } => list_profiles(*json)?,
        SimVerb::Env { place, profile, json } => print_environment(place, profile.as_deref(), *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(place: &SimulatedMachine) -> Result<MachineTruth, Failure> {
    let dir = place.state_directory();
    truth::read(&dir).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => Failure::new(
            EXIT_FINDINGS,
            format!("{}: there is no simulated machine; a program that uses it makes it", dir.display()),
        ),
        _ => Failure::new(EXIT_FINDINGS, format!("{}: {why}", dir.display())),
    })
}

/// Injects a fault, and says what it did.
fn inject_fault(what: &InjectedFault) -> Result<(), Failure> {
    let (InjectedFault::IllegalAddress { place, .. }
    | InjectedFault::Lost { place, .. }
    | InjectedFault::Reset { place, .. }) = what;
    if let InjectedFault::Lost { xid, .. } = what
        && ![XID_OFF_THE_BUS, XID_UNCONTAINED_ECC].contains(xid)
    {
        return Err(Failure::new(EXIT_USAGE, format!("--xid {xid}: a lost device has Xid 79 or 95")));
    }
    read(place)?;
    let machine = open_machine(place)?;
    let (done, words) = match what {
        InjectedFault::IllegalAddress { pid, .. } => {
            (machine.inject_illegal_address(*pid), format!("process {pid}: illegal address; its calls answer 700\n"))
        }
        InjectedFault::Lost { device, xid, .. } => {
            (machine.inject_loss(*device, *xid), format!("device {device}: lost with Xid {xid}\n"))
        }
        InjectedFault::Reset { device, .. } => (machine.reset_device(*device), format!("device {device}: reset\n")),
    };
    done.map_err(|why| Failure::new(EXIT_FINDINGS, describe_refusal(what, &why)))?;
    say::print_text(&words)
}

/// Says why a fault was refused.
fn describe_refusal(what: &InjectedFault, why: &FaultRefusal) -> String {
    match (what, why) {
        (InjectedFault::IllegalAddress { pid, .. }, _) => {
            format!("--pid {pid}: no such process has a context on the simulated machine; `vgpu sim stat` lists them")
        }
        (InjectedFault::Lost { device, .. } | InjectedFault::Reset { device, .. }, FaultRefusal::InUse(pids)) => {
            let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            format!("--device {device}: in use by process {pids}; end it first")
        }
        (InjectedFault::Lost { device, .. } | InjectedFault::Reset { device, .. }, FaultRefusal::NoSuchDevice(n)) => {
            format!("--device {device}: the machine has {n} devices, the first is 0")
        }
        (InjectedFault::Lost { .. } | InjectedFault::Reset { .. }, FaultRefusal::NoSuchProcess) => {
            "no such process".to_owned()
        }
    }
}

fn open_machine(place: &SimulatedMachine) -> Result<MachineView, Failure> {
    let dir = place.state_directory();
    MachineView::open_at(&dir, None).map_err(|why| Failure::new(EXIT_FINDINGS, format!("{}: {why}", dir.display())))
}

/// Output of `vgpu sim stat --json`.
#[derive(Serialize)]
struct SimStat<'a> {
    #[serde(flatten)]
    truth: &'a MachineTruth,
    /// Recent work of each device, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    timelines: Option<&'a [DeviceTimeline]>,
}

/// Returns the timelines of all devices.
fn recent_timelines(
    place: &SimulatedMachine,
    truth: &MachineTruth,
    seconds: u64,
) -> Result<Vec<DeviceTimeline>, Failure> {
    let machine = open_machine(place)?;
    Ok(truth.devices.iter().map(|device| machine.device_timeline(device.index, seconds * 100)).collect())
}

/// Formats the percent of each second, the latest last.
fn percent_by_second(timeline: &DeviceTimeline) -> String {
    let mut rows = vec![["PID", "PERCENT OF EACH SECOND"].map(str::to_owned).to_vec()];
    rows.extend(timeline.processes.iter().map(|process| {
        let second = |buckets: &[u32]| buckets.iter().map(|ns| u64::from(*ns)).sum::<u64>();
        let each = process.busy_ns.chunks(100).map(|c| {
            let whole = u64::try_from(c.len()).unwrap_or(1) * timeline.bucket_ns;
            format!("{:>3}", (second(c) * 100 + whole / 2) / whole)
        });
        vec![process.pid.to_string(), each.collect::<Vec<_>>().join(" ")]
    }));
    say::lay_out_table(&rows)
}

fn format_truth(truth: &MachineTruth, timelines: Option<&[DeviceTimeline]>) -> String {
    let mut out = String::new();
    for device in &truth.devices {
        let DeviceTruth { index, name, uuid, .. } = device;
        out.push_str(&format!("{}\n", say::in_colour(say::Colour::Bold, &format!("device {index}: {name} {uuid}"))));
        out.push_str(&format!(
            "  {} used of {}, busy {}, {} switches\n",
            format_mib(device.used),
            format_mib(device.capacity),
            format_seconds(device.busy_ns),
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
                format_mib(process.physical_bytes),
                Bytes(process.requested_bytes).to_string(),
                format_mib(process.overhead_bytes),
                format_mib(process.peak_bytes),
                format_seconds(process.busy_ns),
                process.kernels.to_string(),
                process.name.clone(),
            ]);
        }
        out.push_str(&say::lay_out_table(&rows));
        if let Some(timeline) = timelines.and_then(|all| all.get(*index)) {
            out.push_str(&percent_by_second(timeline));
        }
        out.push('\n');
    }
    out
}

/// A profile as listed.
#[derive(Serialize)]
struct ListedProfile {
    profile: String,
    name: String,
    memory_bytes: u64,
    sms: u32,
    compute_capability: String,
    measured: bool,
}

fn list_profiles(json: bool) -> Result<(), Failure> {
    let list: Vec<ListedProfile> = admin::built_in_profiles()
        .iter()
        .map(|profile| ListedProfile {
            profile: profile.profile_key().to_owned(),
            name: profile.name().to_owned(),
            memory_bytes: profile.nvml_total,
            sms: profile.sms,
            compute_capability: format!("{}.{}", profile.cc_major, profile.cc_minor),
            measured: profile.measured != 0,
        })
        .collect();
    if json {
        return say::print_json(&list);
    }
    let mut rows = vec![["PROFILE", "DEVICE", "MEMORY", "SMS", "CC"].map(str::to_owned).to_vec()];
    rows.extend(list.into_iter().map(|listed| {
        vec![
            listed.profile,
            listed.name,
            format_mib(listed.memory_bytes),
            listed.sms.to_string(),
            listed.compute_capability,
        ]
    }));
    say::print_text(&say::lay_out_table(&rows))
}

fn print_environment(place: &SimulatedMachine, profile: Option<&str>, json: bool) -> Result<(), Failure> {
    if let Some(text) = profile {
        profile::parse_list(text).map_err(|why| Failure::new(EXIT_USAGE, format!("--profile {text:?}: {why}")))?;
    }
    let sim = library::find_sim(None).map_err(|why| Failure::new(EXIT_RUN_FAILED, why))?;
    let mut vars = BTreeMap::new();
    vars.insert(
        "LD_LIBRARY_PATH",
        library::searched_first(&sim, std::env::var_os("LD_LIBRARY_PATH")).to_string_lossy().into_owned(),
    );
    if let Some(dir) = &place.dir {
        let dir = std::path::absolute(dir).map_err(|why| Failure::new(EXIT_USAGE, format!("--dir {dir:?}: {why}")))?;
        vars.insert("VGPU_SIM_DIR", dir.to_string_lossy().into_owned());
    }
    if let Some(profile) = profile {
        vars.insert("VGPU_SIM_PROFILE", profile.to_owned());
    }
    if json {
        return say::print_json(&vars);
    }
    say::print_text(
        &vars.iter().map(|(name, value)| format!("export {name}={}\n", say::quote_word(value))).collect::<String>(),
    )
}

fn format_mib(bytes: u64) -> String {
    format!("{:.1} MiB", to_float(bytes) / f64::from(1 << 20))
}

fn format_seconds(ns: u64) -> String {
    format!("{:.3} s", to_float(ns) / 1e9)
}

#[expect(clippy::cast_precision_loss, reason = "shown with one to three decimals")]
fn to_float(number: u64) -> f64 {
    number as f64
}
