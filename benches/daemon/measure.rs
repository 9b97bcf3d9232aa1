//! Measurements with ten thousand members, and their figures.

use crate::daemon::{BENCH_DEVICE, BenchDaemon, TenantRules};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vgpu_tests::peer::{Pages, Peer};

/// Longer than any lease takes; only a hang reaches it.
const GRANT_TIMEOUT: Duration = Duration::from_secs(30);
const HANDOVERS_PER_SECOND: u32 = 100;
const GRANT_SAMPLES: usize = 2000;
/// Time from the last join to the rest that the budget is for. The record reads the ledger of a new member again after
/// 1, 2, 4 and 8 s, and every 10 s from then on.
const SETTLED_AFTER: Duration = Duration::from_secs(20);

/// Distribution of measured durations, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GrantTimes {
    /// Median of the durations.
    pub p50: f64,
    /// 99th percentile of the durations.
    pub p99: f64,
    /// Longest duration.
    pub max: f64,
}

impl GrantTimes {
    fn from_samples(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len() - 1)).copied();
        Self { p50: at(50).unwrap_or(f64::NAN), p99: at(99).unwrap_or(f64::NAN), max: at(100).unwrap_or(f64::NAN) }
    }
}

/// All figures that this benchmark measures.
#[derive(Debug, Serialize)]
pub struct DaemonFigures {
    tenants: usize,
    members: usize,
    /// Seconds until the last member was welcomed and had its slot.
    welcomed_s: f64,
    /// Processor time of the daemon per member, in microseconds.
    welcome_cpu_us: f64,
    /// Open descriptors of the daemon, of all kinds.
    descriptors: usize,
    pub descriptors_per_member: f64,
    /// Resident memory in MiB, including the touched parts of the pages.
    memory_mib: f64,
    memory_before_mib: f64,
    /// Time from a member's request to its lease (permission to launch), with a sleeping thread.
    pub asleep: GrantTimes,
    /// Time from a member's request to its lease (permission to launch), with a polling thread.
    watching: GrantTimes,
    /// Time between two threads of this process that sleep on the same kind of word: the host's part.
    host: GrantTimes,
    /// Processor use in percent of a core when no member wants anything.
    idle_percent: f64,
    /// Processor use in percent of a core at [`HANDOVERS_PER_SECOND`].
    pub busy_percent: f64,
    /// Handovers that really happened per second.
    handovers_per_second: f64,
    /// Processor time of the daemon per handover, without the idle part, in microseconds.
    handover_cpu_us: f64,
    /// Processor use of all the daemon's threads in percent of a core, with every policy and one member a tenant, when
    /// no member wants anything.
    pub policies: RestFigures,
    /// Load of the host in the minute before the end. Figures of a busy host are upper bounds.
    load: f64,
}

/// Processor use of the daemon's threads while nothing happens, in percent of a core.
#[derive(Debug, Serialize)]
pub struct RestFigures {
    /// From the last join on. The record reads each new ledger again a few times, ever more rarely.
    at_first: f64,
    /// From [`SETTLED_AFTER`] on.
    pub settled: f64,
}

struct BenchMember {
    _peer: Peer,
    pages: Arc<Pages>,
    slot: usize,
    epoch: u64,
}

/// Makes all measurements of the daemon with `members` connections.
pub fn all(tenants: usize, members: usize, seconds: u64) -> Result<DaemonFigures, String> {
    if tenants == 0 || members < tenants {
        return Err("at least one tenant, and a member for each".into());
    }
    raise_descriptor_limit();
    let policies = policies_rest(tenants, Duration::from_secs(seconds))?;
    let daemon = BenchDaemon::start(tenants, TenantRules::Limits)?;
    let (memory_before, before) = (daemon.resident_kib(), daemon.cpu_ns());
    let begin = Instant::now();
    let everybody =
        welcome_members(&daemon, tenants, members).map_err(|why| format!("a member was not welcomed: {why}"))?;
    let welcomed = begin.elapsed();
    let welcome_cpu = daemon.cpu_ns() - before;

    let idle = cpu_share(&daemon, Duration::from_secs(seconds), || std::thread::sleep(Duration::from_millis(100)))?;
    let mut turns = MemberTurns { everybody: &everybody, at: 1 };
    let asleep = turns.measure_times(GRANT_SAMPLES, false)?;
    let watching = turns.measure_times(GRANT_SAMPLES, true)?;
    let mut handovers = 0u32;
    let began = Instant::now();
    let busy = cpu_share(&daemon, Duration::from_secs(seconds), || {
        // Paced by the clock, because delays of single sleeps would add up.
        let due = began + Duration::from_secs(1) * handovers / HANDOVERS_PER_SECOND;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        handovers += 1;
        turns.take_one_turn(false).map(drop).unwrap_or_else(|why| panic!("{why}"));
    })?;
    let per_second = f64::from(handovers) / began.elapsed().as_secs_f64();
    let descriptors = daemon.open_descriptors();
    Ok(DaemonFigures {
        tenants,
        members,
        welcomed_s: welcomed.as_secs_f64(),
        welcome_cpu_us: to_float(welcome_cpu) / 1e3 / count_to_float(members),
        descriptors,
        descriptors_per_member: count_to_float(descriptors) / count_to_float(members),
        memory_mib: to_float(daemon.resident_kib()) / 1024.0,
        memory_before_mib: to_float(memory_before) / 1024.0,
        asleep,
        watching,
        host: host_wake_times(),
        idle_percent: idle,
        busy_percent: busy,
        handovers_per_second: per_second,
        handover_cpu_us: (busy - idle) * 1e4 / per_second,
        policies,
        load: load(),
    })
}

/// The use of a daemon with every policy while one member of each tenant is there and rests.
fn policies_rest(tenants: usize, time: Duration) -> Result<RestFigures, String> {
    let daemon = BenchDaemon::start(tenants, TenantRules::Policies)?;
    let members =
        welcome_members(&daemon, tenants, tenants).map_err(|why| format!("a member was not welcomed: {why}"))?;
    let joined = Instant::now();
    let use_in = |time| {
        let (begin, before) = (Instant::now(), daemon.whole_cpu_ns());
        std::thread::sleep(time);
        let cpu = daemon.whole_cpu_ns().checked_sub(before).ok_or("the daemon is gone")?;
        Ok::<_, String>(to_float(cpu) / 1e9 / begin.elapsed().as_secs_f64() * 100.0)
    };
    let at_first = use_in(time)?;
    std::thread::sleep(SETTLED_AFTER.saturating_sub(joined.elapsed()));
    let settled = use_in(time)?;
    drop(members);
    Ok(RestFigures { at_first, settled })
}

/// Connects all members. Members of a tenant share the pages of its first one.
fn welcome_members(daemon: &BenchDaemon, tenants: usize, members: usize) -> std::io::Result<Vec<BenchMember>> {
    let mut pages: Vec<Option<Arc<Pages>>> = vec![None; tenants];
    let mut everybody = Vec::with_capacity(members);
    for number in 0..members {
        let tenant = number % tenants;
        let mut peer = Peer::connect(&daemon.tenant_socket(tenant))?;
        let slot = peer.join(BENCH_DEVICE, 0)?;
        let pages = match &pages[tenant] {
            Some(pages) => Arc::clone(pages),
            None => Arc::clone(pages[tenant].insert(peer.pages()?)),
        };
        peer.without_pages();
        let epoch = peer.welcome.epoch;
        everybody.push(BenchMember { _peer: peer, pages, slot, epoch });
    }
    Ok(everybody)
}

/// Members of different tenants, one after the other.
struct MemberTurns<'a> {
    everybody: &'a [BenchMember],
    at: usize,
}

impl MemberTurns<'_> {
    /// One member requests a launch, gets the device and reports that it is done.
    fn take_one_turn(&mut self, spin: bool) -> Result<Duration, String> {
        // A step that reaches every member, and never the same tenant twice in a row.
        self.at = (self.at + 7919) % self.everybody.len();
        let member = &self.everybody[self.at];
        let (grant, took) = member
            .pages
            .enter(member.slot, member.epoch, GRANT_TIMEOUT, spin)
            .map_err(|why| format!("member {}: {why}", self.at))?;
        member.pages.rest(member.slot, &grant, 0).map_err(|why| why.to_string())?;
        Ok(took)
    }

    fn measure_times(&mut self, samples: usize, spin: bool) -> Result<GrantTimes, String> {
        let mut times = Vec::with_capacity(samples);
        for _ in 0..samples {
            times.push(self.take_one_turn(spin)?.as_secs_f64() * 1e6);
            // A longer pause than the daemon's minimum between two wake-ups by a tenant.
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(GrantTimes::from_samples(times))
    }
}

/// Percent of a core that the daemon uses while `step` runs.
fn cpu_share(daemon: &BenchDaemon, time: Duration, mut step: impl FnMut()) -> Result<f64, String> {
    let (begin, before) = (Instant::now(), daemon.cpu_ns());
    while begin.elapsed() < time {
        step();
    }
    let cpu = daemon.cpu_ns().checked_sub(before).ok_or("the daemon is gone")?;
    Ok(to_float(cpu) / 1e9 / begin.elapsed().as_secs_f64() * 100.0)
}

/// The host's time to wake two threads, there and back, without a daemon.
fn host_wake_times() -> GrantTimes {
    use std::os::unix::net::UnixDatagram;
    let (here, there) = UnixDatagram::pair().expect("a pair of sockets");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while there.recv(&mut byte).is_ok_and(|_| byte != [0]) {
                let _ = there.send(&byte);
            }
        });
        let mut times = Vec::with_capacity(GRANT_SAMPLES);
        for _ in 0..GRANT_SAMPLES {
            let begin = Instant::now();
            let _ = here.send(&[1]).and_then(|_| here.recv(&mut [0]));
            times.push(begin.elapsed().as_secs_f64() * 1e6);
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = here.send(&[0]);
        GrantTimes::from_samples(times)
    })
}

fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills a struct on this stack frame and reads it again.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn to_float(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn count_to_float(number: usize) -> f64 {
    number as f64
}

impl fmt::Display for DaemonFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenants, members, .. } = self;
        writeln!(f, "{members} members of {tenants} tenants on one device, load of the host {:.1}", self.load)?;
        writeln!(
            f,
            "welcomed and in their slots      {:>9.2} s, {:.1} us of the daemon's time each",
            self.welcomed_s, self.welcome_cpu_us
        )?;
        writeln!(
            f,
            "descriptors in the daemon        {:>9}, {:.3} per member",
            self.descriptors, self.descriptors_per_member
        )?;
        writeln!(
            f,
            "resident memory                  {:>9.1} MiB, {:.1} before",
            self.memory_mib, self.memory_before_mib
        )?;
        for (name, times) in [
            ("ring to awake, asleep", self.asleep),
            ("ring to awake, watching", self.watching),
            ("the host alone, there and back", self.host),
        ] {
            let GrantTimes { p50, p99, max } = times;
            writeln!(f, "{name:<32} {p50:>9.1} us p50, {p99:.1} p99, {max:.1} max")?;
        }
        writeln!(f, "processor, nobody wants anything {:>9.3} % of a core", self.idle_percent)?;
        writeln!(f, "processor, the same with policies{:>9.3} % of a core, all threads", self.policies.settled)?;
        writeln!(f, "  at first, after the joins       {:>9.3} % of a core, all threads", self.policies.at_first)?;
        writeln!(
            f,
            "processor, {:.1} handovers/s     {:>9.3} % of a core, {:.1} us each",
            self.handovers_per_second, self.busy_percent, self.handover_cpu_us
        )
    }
}
