//! One run, with or without a daemon: programs are started on a private device and judged by its record.
//!
//! Not here: the choice of runs (`cases`), the meaning of the record (`figures`).

use super::client::{self, ServedRequest};
use crate::host::{self, HostUsage};
use crate::measure::{BucketSpan, RunningWorkload, sleep_until};
use crate::place::{MeasuringPlace, RunRoom};
use std::time::{Duration, Instant};
use vgpu_sim::MachineView;
use vgpu_tests::daemon::{Daemon, Plan};

/// Profile of the simulated device.
pub const TENANTS_PROFILE: &str = "h200";

/// A program and its tenant.
#[derive(Clone, Debug)]
pub struct TenantProgramSpec {
    /// Command-line arguments of the program.
    pub words: Vec<String>,
    /// Number of the program's tenant; unused without a daemon.
    pub tenant: usize,
}

impl TenantProgramSpec {
    /// A program that launches kernels of these lengths in turn and never waits.
    pub fn busy_program(tenant: usize, lengths: &[u64]) -> TenantProgramSpec {
        let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
        TenantProgramSpec { tenant, words: vec!["--work".into(), "async".into(), lengths.join(",")] }
    }

    /// A program that answers requests of `kernels` kernels of `ns`, with a pause in between.
    pub fn serving_program(tenant: usize, kernels: u64, ns: u64, pause: u64) -> TenantProgramSpec {
        let words = ["--serve".into(), kernels.to_string(), ns.to_string(), pause.to_string()];
        TenantProgramSpec { tenant, words: words.into() }
    }

    /// A program that queries its memory limit all the time.
    pub fn watching_program(tenant: usize) -> TenantProgramSpec {
        TenantProgramSpec { tenant, words: vec!["--watch".into()] }
    }

    fn is_serving(&self) -> bool {
        self.words.first().is_some_and(|word| client::is_program(word))
    }
}

/// A device with programs that are ready, and a daemon if there is one. Dropping it ends them.
pub struct TenantsWorld<'a> {
    /// The machine with the simulated device.
    pub machine: MachineView,
    /// The daemon, if there is one.
    pub daemon: Option<Daemon>,
    /// The running programs.
    pub clients: Vec<RunningWorkload>,
    answering: Vec<bool>,
    _room: RunRoom<'a>,
}

/// Name of the tenant with this number.
pub fn tenant_name(number: usize) -> String {
    format!("t{number}")
}

impl TenantsWorld<'_> {
    /// Starts the programs, and a daemon with a tenant for each text of configuration lines in `terms`. With `None`
    /// there is neither daemon nor library.
    ///
    /// # Errors
    /// A program does not start.
    pub fn start<'a>(
        place: &'a MeasuringPlace,
        terms: Option<&[String]>,
        programs: &[TenantProgramSpec],
    ) -> Result<TenantsWorld<'a>, String> {
        let room = place.make_room()?;
        let machine =
            MachineView::open_at(&room.machine_path(), Some(TENANTS_PROFILE)).map_err(|why| why.to_string())?;
        let device = machine.read_truth().devices.swap_remove(0).uuid;
        let program = place.daemon_path()?;
        let daemon = terms.map(|terms| {
            let tenants = terms.iter().enumerate().map(|(at, lines)| (tenant_name(at), lines.clone()));
            let plan = Plan { device, time: "arbitrate = true".into(), tenants: tenants.collect() };
            Daemon::start_as(program.to_owned(), room.room_path(), &plan)
        });
        let mut clients = Vec::new();
        for program in programs {
            let words: Vec<&str> = program.words.iter().map(String::as_str).collect();
            let mut command = room.program_command(TENANTS_PROFILE, &words);
            if let Some(daemon) = &daemon {
                room.with_library(&mut command).env("VGPU_SOCKET", daemon.socket(&tenant_name(program.tenant)));
            }
            clients.push(RunningWorkload::start(command)?);
        }
        let answering = programs.iter().map(TenantProgramSpec::is_serving).collect();
        Ok(TenantsWorld { machine, daemon, clients, answering, _room: room })
    }

    /// Lets all programs begin.
    ///
    /// # Errors
    /// A program does not read its input.
    pub fn begin_all(&mut self) -> Result<(), String> {
        self.clients.iter_mut().try_for_each(RunningWorkload::begin_work)
    }

    /// Device time used so far, ns.
    pub fn busy_ns(&self) -> u64 {
        self.machine.read_truth().devices.first().map_or(0, |device| device.busy_ns)
    }

    fn host_usage(&self) -> Vec<HostUsage> {
        let pids = self.clients.iter().map(RunningWorkload::process_id).chain(self.daemon.as_ref().map(Daemon::pid));
        pids.map(HostUsage::of_process).collect()
    }
}

/// Record of a run. Times are ns.
pub struct TenantsRun {
    /// Length of a bucket (period in which device time is added up).
    pub bucket_ns: u64,
    /// Device time of each program in each whole bucket of the window.
    pub busy: Vec<Vec<u64>>,
    /// Wall time of the window.
    pub window_ns: u64,
    /// Time that the device spent on switches between processes.
    pub switch_ns: u64,
    /// Each program's use of the host; the last entry is the daemon's, if there is one.
    pub host: Vec<HostUsage>,
    /// Time per core that the hypervisor took in the window.
    pub stolen_ns: u64,
    /// Requests of each program that began and ended in the window.
    pub requests: Vec<Vec<ServedRequest>>,
}

/// Runs the programs for `warm` and then for `window`, which is recorded.
///
/// # Errors
/// As [`TenantsWorld::start`]; or a program ends by itself.
pub fn run(
    place: &MeasuringPlace,
    terms: Option<&[String]>,
    programs: &[TenantProgramSpec],
    warm: Duration,
    window: Duration,
) -> Result<TenantsRun, String> {
    let mut world = TenantsWorld::start(place, terms, programs)?;
    let (started, begun) = (vgpu_sim::now(), Instant::now());
    world.begin_all()?;
    sleep_until(begun + warm);
    let read = |world: &TenantsWorld| {
        let switch_ns = world.machine.read_truth().devices.first().map_or(0, |device| device.switch_ns);
        (vgpu_sim::now(), world.host_usage(), switch_ns, host::stolen_ns())
    };
    let (from, usage, switched, stolen) = read(&world);
    sleep_until(begun + warm + window);
    let (to, usage_after, switched_after, stolen_after) = read(&world);
    let timeline = world.machine.device_timeline(0, (to - started) / vgpu_sim::layout::BUCKET_NS + 100);
    let span = BucketSpan::span_of_run(&timeline, started, from, to)?;
    let mut requests = Vec::new();
    for (client, answers) in world.clients.iter_mut().zip(&world.answering) {
        client.is_over().map_or(Ok(()), Err)?;
        let said = if *answers { client.end_work()? } else { String::new() };
        let all = client::parse_pairs(&said).into_iter().map(|(began, took)| ServedRequest { began, took });
        requests.push(all.filter(|one| one.began >= from && one.began + one.took <= to).collect());
    }
    let of = |client: &RunningWorkload| {
        let buckets = span.busy_of_process(&timeline, client.process_id());
        buckets.into_iter().skip(span.warm).map(u64::from).collect()
    };
    Ok(TenantsRun {
        bucket_ns: timeline.bucket_ns,
        busy: world.clients.iter().map(of).collect(),
        window_ns: to - from,
        switch_ns: switched_after.saturating_sub(switched),
        host: usage_after.iter().zip(usage).map(|(after, before)| after.since_reading(before)).collect(),
        stolen_ns: stolen_after.saturating_sub(stolen),
        requests,
    })
}
