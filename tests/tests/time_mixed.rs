//! Tenants that mix all kinds of work, together and alone, for a while. Afterwards the tenants' own tools, the daemon
//! and its record are compared with the simulated device's record. Bytes agree exactly whenever nothing changes, device
//! time agrees to one percent over the run, and the daemon accuses no process.
//!
//! VGPU_MIXED_SECONDS: length of the run, from 1 to 86400; `make mixed` is ten minutes.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::{LONG_TIMEOUT, MIB, Member};
use world::{World, eventually, tenant};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A latency tenant, a tenant without a ceiling, and one with a ceiling.
const TENANTS: [(&str, &str); 3] = [
    ("chat", "memory_limit = \"8GiB\"\nclass = \"latency\"\nweight = 20"),
    ("train", "memory_limit = \"16GiB\"\nweight = 60"),
    ("batch", "memory_limit = \"8GiB\"\nweight = 20\nsm_limit = 50"),
];

/// A tenant's usage, by the device's record and by its programs' own reports.
#[derive(Debug, Default, Clone, Copy)]
struct Did {
    busy: u64,
    launches: u64,
}

/// A process that works, holds memory and ends.
struct Process {
    tenant: &'static str,
    member: Member,
    held: Vec<u64>,
}

impl Process {
    fn start(world: &mut World, tenant: &'static str) -> Self {
        let mut member = world.plain(tenant);
        member.begin();
        member.ok("nvinit");
        Self { tenant, member, held: Vec::new() }
    }

    /// Launches kernels of `ns` for `ms`, with a wait after every `batch` kernels.
    fn works(&mut self, ns: u64, batch: u64, ms: u64) {
        self.member.tell(&format!("work {ns} {ms} {batch} 0"));
    }

    fn worked(&mut self, did: &mut BTreeMap<&'static str, Did>) {
        let answer = self.member.answer();
        assert_eq!(answer.code, 0, "{}: {answer:?} {}", self.tenant, self.member.errors());
        did.entry(self.tenant).or_default().launches += answer.number(0);
    }

    fn changes_what_it_holds(&mut self, random: &mut fastrand::Rng) {
        if self.held.len() > 3 || !self.held.is_empty() && random.u64(..3) == 0 {
            let at = self.held.swap_remove(usize::try_from(random.u64(..self.held.len() as u64)).unwrap());
            self.member.ok(&format!("free {at}"));
        } else {
            let bytes = 1 + random.u64(..700 * MIB);
            self.held.push(self.member.alloc(bytes));
        }
    }

    /// Busy time in the device's record.
    fn busy(&self, world: &World) -> u64 {
        world.lab.process(0, self.member.pid).busy_ns
    }

    fn ends(mut self, world: &World, did: &mut BTreeMap<&'static str, Did>) {
        did.entry(self.tenant).or_default().busy += self.busy(world);
        self.member.finish();
    }
}

/// Checks that all agree on memory: the device, NVML and CUDA in the tenant, the daemon's status.
fn bytes_agree(world: &World, processes: &mut [&mut Process]) {
    let truth = world.lab.device(0);
    let of =
        |pid: u32| truth.processes.iter().find(|one| one.pid == pid).map_or(0, |p| p.slab_bytes + p.overhead_bytes);
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for process in processes.iter() {
        *sums.entry(process.tenant).or_default() += of(process.member.pid);
    }
    for process in processes {
        let sum = sums[process.tenant];
        assert_eq!(process.member.ok("nvmem 0").number(2), sum, "NVML in {}", process.tenant);
        let (free, total) = process.member.info();
        assert_eq!(total - free, sum, "CUDA in {}", process.tenant);
    }
    eventually("the daemon says the same", || {
        let status: Value = serde_json::from_str(&world.status()).unwrap_or(Value::Null);
        let tenants = status["tenants"].as_array().cloned().unwrap_or_default();
        sums.iter().all(|(name, sum)| {
            tenants.iter().any(|one| one["name"] == *name && one["devices"][0]["memory_used"].as_u64() == Some(*sum))
        })
    });
}

fn everybody<'p>(stays: &'p mut Process, others: &'p mut [Process]) -> Vec<&'p mut Process> {
    std::iter::once(stays).chain(others).collect()
}

/// Value `what` of a tenant in the daemon's usage record.
fn recorded(world: &World, tenant: &str, what: &str) -> u64 {
    let mut usage = Command::new(vgpu());
    usage.args(["usage", "--format", "json", "--state-dir"]).arg(world.lab.path().join("run/state"));
    let all: Value = serde_json::from_slice(&usage.output().unwrap().stdout).unwrap_or(Value::Null);
    let rows = all["rows"].as_array().cloned().unwrap_or_default();
    rows.iter().find(|row| row["tenant"] == tenant).and_then(|row| row[what].as_u64()).unwrap_or(0)
}

/// Within one percent, or within 20 ms for a tenant that used almost nothing.
fn agrees(said: u64, truth: u64) -> bool {
    said.abs_diff(truth) <= (truth / 100).max(20 * MS)
}

/// One round of all kinds of work for the process that stays: alone, next to others, at rest.
fn round(world: &mut World, stays: &mut Process, random: &mut fastrand::Rng, did: &mut BTreeMap<&'static str, Did>) {
    // Alone and without a ceiling, for longer than the daemon takes to stop arbitrating: short kernels, long ones,
    // waits.
    for (ns, batch, ms) in [(50 * US, 64, 700), (MS, 16, 900), (20 * MS, 2, 700), (300 * US, 1, 600)] {
        stays.works(ns, batch, ms);
        stays.worked(did);
    }
    let mut others: Vec<Process> =
        ["batch", "chat", "batch"].into_iter().map(|name| Process::start(world, name)).collect();
    others.iter_mut().for_each(|process| process.changes_what_it_holds(random));
    stays.changes_what_it_holds(random);
    bytes_agree(world, &mut everybody(stays, &mut others));
    // Two tenants, then three, one of them with two processes.
    stays.works(MS, 32, 1_500);
    others[0].works((1 + random.u64(..4)) * MS, 8, 1_500);
    stays.worked(did);
    others[0].worked(did);
    stays.works((100 + random.u64(..900)) * US, 16, 1_500);
    others[0].works(MS, 8, 1_500);
    others[1].works(500 * US, 1, 1_500);
    others[2].works(2 * MS, 8, 1_500);
    stays.worked(did);
    others.iter_mut().for_each(|process| process.worked(did));
    bytes_agree(world, &mut everybody(stays, &mut others));
    others.into_iter().for_each(|process| process.ends(world, did));
}

/// Fails if the daemon has accused any process: all processes here are honest.
fn nobody_was_named(world: &World) {
    let mut events = Command::new(vgpu());
    events.args(["events", "--json", "--kind", "proof", "--socket"]).arg(world.lab.path().join("run/admin.sock"));
    let events = events.output().unwrap();
    assert!(events.status.success(), "{}", String::from_utf8_lossy(&events.stderr));
    assert_eq!(String::from_utf8_lossy(&events.stdout), "", "an honest process was named");
}

/// Length of the run in seconds.
fn length(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.ok_or_else(|| format!("VGPU_MIXED_SECONDS: {text:?}: accepted: whole seconds from 1 to 86400, like 600"))
}

#[test]
fn a_length_that_is_none_is_an_error_that_says_what_is_accepted() {
    assert_eq!((length("1"), length("7200"), length("86400")), (Ok(1), Ok(7200), Ok(86_400)));
    for wrong in ["", "0", "86401", "-1", "1.5", "10m", "ten"] {
        let why = length(wrong).unwrap_err();
        assert!(why.starts_with("VGPU_MIXED_SECONDS: ") && why.contains(&format!("{wrong:?}: accepted")), "{why}");
    }
}

#[test]
fn over_a_mixed_run_tools_and_daemon_agree_to_the_byte_and_to_a_percent_of_device_time() {
    let seconds =
        env::var("VGPU_MIXED_SECONDS").map_or(Ok(8), |text| length(&text)).unwrap_or_else(|why| panic!("{why}"));
    let file: String = TENANTS.iter().map(|(name, terms)| tenant(name, terms)).collect();
    let mut world = World::start(&file);
    let (begin, mut random, mut did) = (Instant::now(), fastrand::Rng::with_seed(1), BTreeMap::new());
    let mut stays = Process::start(&mut world, "train");
    let mut rounds = 0;
    while begin.elapsed() < Duration::from_secs(seconds) {
        round(&mut world, &mut stays, &mut random, &mut did);
        nobody_was_named(&world);
        rounds += 1;
    }
    // The tenant's own tool, in the environment of the process that is still running.
    world.lab.set("VGPU_SOCKET", world.socket("train"));
    let doctor = world.lab.command(vgpu()).arg("doctor").output().unwrap();
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let told = doctor.lines().find_map(|line| line.split_once("busy for ")?.1.strip_suffix(" s")?.parse::<f64>().ok());
    let told = Duration::from_secs_f64(told.unwrap_or_else(|| panic!("{doctor}")));
    let truth = stays.busy(&world);
    assert!(agrees(u64::try_from(told.as_nanos()).unwrap(), truth), "the tenant's tool: {told:?} of {truth} ns");
    stays.ends(&world, &mut did);
    let total: u64 = did.values().map(|did| did.busy).sum();
    assert!(u128::from(total) > begin.elapsed().as_nanos() / 3, "the device worked: {did:?}");
    let end = Instant::now() + LONG_TIMEOUT;
    let all = loop {
        let said = |name: &&str| (recorded(&world, name, "gpu_ns"), recorded(&world, name, "launches"));
        let all: BTreeMap<&str, (u64, u64)> = did.keys().map(|name| (*name, said(name))).collect();
        let is = |(name, (gpu, launches)): (&&str, &(u64, u64))| {
            agrees(*gpu, did[name].busy) && launches.abs_diff(did[name].launches) <= did[name].launches / 1000
        };
        let sum: u64 = all.values().map(|said| said.0).sum();
        if all.iter().all(is) && agrees(sum, total) || Instant::now() > end {
            break all;
        }
        thread::sleep(Duration::from_millis(200));
    };
    for (name, did) in &did {
        let (gpu, launches) = all[name];
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to minutes
        let percent = (gpu as f64 / did.busy as f64 - 1.0) * 100.0;
        eprintln!("{name}: {percent:+.2} % of {:.2} s, {launches} of {} launches", did.busy as f64 / 1e9, did.launches);
        assert!(agrees(gpu, did.busy), "{name}: {gpu} of {did:?}");
        assert!(launches.abs_diff(did.launches) <= did.launches / 1000, "{name}: {launches} of {did:?}");
    }
    eprintln!("{rounds} rounds in {:.0} s", begin.elapsed().as_secs_f64());
}
