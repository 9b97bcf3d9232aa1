//! One run, with or without a daemon: programs are started on a private device and judged by its record.
//!
//! Not here: the choice of runs (`cases`), the meaning of the record (`figures`).

use super::client::{self, Request};
use crate::host::{self, Usage};
use crate::measure::{Client, Span, sleep_until};
use crate::place::{Place, Room};
use std::time::{Duration, Instant};
use vgpu_sim::Machine;
use vgpu_tests::daemon::{Daemon, Plan};

/// Profile of the simulated device.
pub const PROFILE: &str = "h200";

/// A program and its tenant.
#[derive(Clone, Debug)]
pub struct Program {
    /// Command-line arguments of the program.
    pub words: Vec<String>,
    /// Number of the program's tenant; unused without a daemon.
    pub tenant: usize,
}

impl Program {
    /// A program that launches kernels of these lengths in turn and never waits.
    pub fn busy(tenant: usize, lengths: &[u64]) -> Program {
        let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
        Program { tenant, words: vec!["--work".into(), "async".into(), lengths.join(",")] }
    }

    /// A program that answers requests of `kernels` kernels of `ns`, with a pause in between.
    pub fn serving(tenant: usize, kernels: u64, ns: u64, pause: u64) -> Program {
        let words = ["--serve".into(), kernels.to_string(), ns.to_string(), pause.to_string()];
        Program { tenant, words: words.into() }
    }

    /// A program that queries its memory limit all the time.
    pub fn watching(tenant: usize) -> Program {
        Program { tenant, words: vec!["--watch".into()] }
    }

    fn answers(&self) -> bool {
        self.words.first().is_some_and(|word| client::is(word))
    }
}

/// A device with programs that are ready, and a daemon if there is one. Dropping it ends them.
pub struct World<'a> {
    /// The machine with the simulated device.
    pub machine: Machine,
    /// The daemon, if there is one.
    pub daemon: Option<Daemon>,
    /// The running programs.
    pub clients: Vec<Client>,
    answering: Vec<bool>,
    _room: Room<'a>,
}

/// Name of the tenant with this number.
pub fn tenant_name(number: usize) -> String {
    format!("t{number}")
}

impl World<'_> {
    /// Starts the programs, and a daemon with a tenant for each text of configuration lines in `terms`. With `None`
    /// there is neither daemon nor library.
    ///
    /// # Errors
    /// A program does not start.
    pub fn start<'a>(place: &'a Place, terms: Option<&[String]>, programs: &[Program]) -> Result<World<'a>, String> {
        let room = place.room()?;
        let machine = Machine::open_at(&room.machine(), Some(PROFILE)).map_err(|why| why.to_string())?;
        let device = machine.truth().devices.swap_remove(0).uuid;
        let program = place.daemon()?;
        let daemon = terms.map(|terms| {
            let tenants = terms.iter().enumerate().map(|(at, lines)| (tenant_name(at), lines.clone()));
            let plan = Plan { device, time: "arbitrate = true".into(), tenants: tenants.collect() };
            Daemon::start_as(program.to_owned(), room.dir(), &plan)
        });
        let mut clients = Vec::new();
        for program in programs {
            let words: Vec<&str> = program.words.iter().map(String::as_str).collect();
            let mut command = room.program(PROFILE, &words);
            if let Some(daemon) = &daemon {
                room.limited(&mut command).env("VGPU_SOCKET", daemon.socket(&tenant_name(program.tenant)));
            }
            clients.push(Client::start(command)?);
        }
        let answering = programs.iter().map(Program::answers).collect();
        Ok(World { machine, daemon, clients, answering, _room: room })
    }

    /// Lets all programs begin.
    ///
    /// # Errors
    /// A program does not read its input.
    pub fn begin(&mut self) -> Result<(), String> {
        self.clients.iter_mut().try_for_each(Client::begin)
    }

    /// Device time used so far, ns.
    pub fn busy_ns(&self) -> u64 {
        self.machine.truth().devices.first().map_or(0, |device| device.busy_ns)
    }

    fn usage(&self) -> Vec<Usage> {
        let pids = self.clients.iter().map(Client::pid).chain(self.daemon.as_ref().map(Daemon::pid));
        pids.map(Usage::of).collect()
    }
}

/// Record of a run. Times are ns.
pub struct Ran {
    /// Length of a bucket (period in which device time is added up).
    pub bucket_ns: u64,
    /// Device time of each program in each whole bucket of the window.
    pub busy: Vec<Vec<u64>>,
    /// Wall time of the window.
    pub window_ns: u64,
    /// Time that the device spent on switches between processes.
    pub switch_ns: u64,
    /// Each program's use of the host; the last entry is the daemon's, if there is one.
    pub host: Vec<Usage>,
    /// Time per core that the hypervisor took in the window.
    pub stolen_ns: u64,
    /// Requests of each program that began and ended in the window.
    pub requests: Vec<Vec<Request>>,
}

/// Runs the programs for `warm` and then for `window`, which is recorded.
///
/// # Errors
/// As [`World::start`]; or a program ends by itself.
pub fn run(
    place: &Place,
    terms: Option<&[String]>,
    programs: &[Program],
    warm: Duration,
    window: Duration,
) -> Result<Ran, String> {
    let mut world = World::start(place, terms, programs)?;
    let (started, begun) = (vgpu_sim::now(), Instant::now());
    world.begin()?;
    sleep_until(begun + warm);
    let read = |world: &World| {
        let switch_ns = world.machine.truth().devices.first().map_or(0, |device| device.switch_ns);
        (vgpu_sim::now(), world.usage(), switch_ns, host::stolen_ns())
    };
    let (from, usage, switched, stolen) = read(&world);
    sleep_until(begun + warm + window);
    let (to, usage_after, switched_after, stolen_after) = read(&world);
    let timeline = world.machine.timeline(0, (to - started) / vgpu_sim::layout::BUCKET_NS + 100);
    let span = Span::of(&timeline, started, from, to)?;
    let mut requests = Vec::new();
    for (client, answers) in world.clients.iter_mut().zip(&world.answering) {
        client.is_over().map_or(Ok(()), Err)?;
        let said = if *answers { client.end()? } else { String::new() };
        let all = client::pairs(&said).into_iter().map(|(began, took)| Request { began, took });
        requests.push(all.filter(|one| one.began >= from && one.began + one.took <= to).collect());
    }
    let of = |client: &Client| {
        let buckets = span.buckets(&timeline, client.pid());
        buckets.into_iter().skip(span.warm).map(u64::from).collect()
    };
    Ok(Ran {
        bucket_ns: timeline.bucket_ns,
        busy: world.clients.iter().map(of).collect(),
        window_ns: to - from,
        switch_ns: switched_after.saturating_sub(switched),
        host: usage_after.iter().zip(usage).map(|(after, before)| after.since(before)).collect(),
        stolen_ns: stolen_after.saturating_sub(stolen),
        requests,
    })
}
