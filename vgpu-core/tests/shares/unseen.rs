//! The proof audit over random histories: it names a member that works without a lease, and never an honest one.
//!
//! [`Driver`] samples the device's truth as NVML does, [`Proof`] looks as the daemon's thread does, [`Trouble`] is what
//! happens meanwhile. `make audit-histories` runs many; `PROPTEST_CASES` and `VGPU_SEED` say how many and which.

use crate::device::BUCKET;
use crate::measure;
use crate::profile::{A100, Noise, Profile};
use crate::program::{MS, SECOND, US, Work};
use crate::properties::{terms, work_of};
use crate::world::World;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use std::cell::Cell;
use vgpu_core::time::arbiter::audit::{AuditVerdict, HeldTime, LeaseAudit};
use vgpu_core::time::arbiter::{DeviceId, Terms};
use vgpu_core::time::config::BASE;
use vgpu_core::units::share::Share;

/// Pause between two looks of the daemon.
const LOOK: u64 = 400 * MS;
/// Pause before the second look after a finding; only a process that both find is named.
const AGAIN: u64 = 150 * MS;
/// A look is given up if the daemon's loop does not answer for so long.
const PATIENCE: u64 = 2 * SECOND;
/// Length of a history: the audit's first window is full after 3.8 s, and three more follow.
const SPAN: u64 = 10 * SECOND;
/// Three windows of the audit: as long it goes on after a new daemon's first look.
const AFTER_RESTART: u64 = 6 * SECOND;
/// Unreported device time, beyond all time in which a liar held the device, after which it is named in time: the
/// audit's 200 ms, and a quarter more for samples of whole percents.
const SLACK: u64 = 250 * MS;
/// A liar is named no later than this after it took its slack: a sample is up to 0.96 s late, looks are up to 0.47 s
/// apart, and the second one ends up to 0.24 s later.
const NAMED_AFTER_SLACK: u64 = 2 * SECOND;
/// The slack must be taken within so long: later the audit's window has lost its beginning.
const LONGEST_TO_SLACK: u64 = 3 * SECOND / 2;
/// Buckets of the truth in one window of the driver's samples, which is 160 ms.
const WINDOW_BUCKETS: u64 = 16;
const WINDOW: u64 = WINDOW_BUCKETS * BUCKET;
/// Windows of which one sample is the mean, at most: 960 ms.
const MEAN_WINDOWS: u64 = 6;

/// The driver's samples: whole percents, late, absent for a process that did not work.
struct Driver {
    /// Windows between the end of a sample's time and the earliest moment at which the driver shows it.
    late: u64,
    /// End of the newest window whose sample was read.
    newest: u64,
}

impl Driver {
    /// Device time of each process since the last call, as the daemon computes it from the samples.
    fn working(&mut self, world: &World, processes: &[Process]) -> Vec<u64> {
        let to = (world.now / WINDOW).saturating_sub(self.late);
        let (before, from) = (self.newest, self.newest.max(to.saturating_sub(MEAN_WINDOWS)));
        let mut percents = Vec::with_capacity(processes.len());
        for process in processes {
            let busy_in = |window: u64| -> u64 {
                let buckets = usize::try_from(window * WINDOW_BUCKETS).unwrap()..;
                let of = |m: &usize| &world.devices[0].contexts[world.members[*m].context].buckets;
                let sum = |all: &Vec<u64>| all.iter().skip(buckets.start).take(16).sum::<u64>();
                process.members.iter().map(of).map(sum).sum()
            };
            let (mut busy, whole) = (0, (to.saturating_sub(from) * WINDOW).max(1));
            for window in from..to {
                let here = busy_in(window);
                busy += here;
                self.newest = if here > 0 { self.newest.max(window + 1) } else { self.newest };
            }
            percents.push(if busy == 0 { 0 } else { ((busy * 100 + whole / 2) / whole).clamp(1, 100) });
        }
        // The first samples are of a time that nobody knows.
        let span = if before == 0 { 0 } else { ((self.newest - before) * WINDOW).min(SECOND) };
        percents.iter().map(|percent| span / 100 * percent).collect()
    }
}

/// A process on the device: the context of its first member, which has the slot, and any that the library does not see.
struct Process {
    members: Vec<usize>,
    audit: LeaseAudit,
    verdict: AuditVerdict,
}

/// The daemon's thread that looks for work without a lease.
struct Proof {
    driver: Driver,
    processes: Vec<Process>,
    /// How long the host delays readings.
    host: Host,
    noise: Noise,
}

/// How late a host lets the audit's thread read.
#[derive(Clone, Copy, Debug)]
enum Host {
    Quiet,
    /// Any pause and delay up to seconds.
    Busy,
}

impl Proof {
    fn new(late: u64, host: Host, seed: u64) -> Self {
        Self { driver: Driver { late, newest: 0 }, processes: Vec::new(), host, noise: Noise::new(seed + 2) }
    }

    fn watch(&mut self, member: usize) {
        self.processes.push(Process {
            members: vec![member],
            audit: LeaseAudit::default(),
            verdict: AuditVerdict::default(),
        });
    }

    /// Most delays are short; on a busy host one of four is up to `most`.
    fn delay(&mut self, usual: u64, most: u64) -> u64 {
        match self.host {
            Host::Busy if self.noise.below(4) == 0 => self.noise.below(most),
            _ => self.noise.below(usual),
        }
    }

    /// One look, `pause` after the last. Returns the processes that it finds.
    fn look(&mut self, world: &mut World, troubles: &mut Troubles, pause: u64) -> Vec<usize> {
        let late = self.delay(50 * MS, 4 * SECOND);
        troubles.run(world, self, world.now + pause + late);
        if world.now < troubles.settled {
            // No daemon looks now.
            return Vec::new();
        }
        let (sampled, settled, count) = (world.now, troubles.settled, self.processes.len());
        let seen = self.driver.working(world, &self.processes);
        let asked = self.delay(20 * MS, PATIENCE);
        troubles.run(world, self, sampled + asked);
        troubles.run(world, self, world.stalled_until);
        if world.now - sampled > PATIENCE {
            return Vec::new();
        }
        let had: Vec<HeldTime> = self.processes.iter().map(|process| had(world, process.members[0])).collect();
        let answered = self.delay(20 * MS, SECOND);
        troubles.run(world, self, world.now + answered);
        if troubles.settled != settled {
            // The daemon that looked is gone.
            return Vec::new();
        }
        let mut found = Vec::new();
        for at in 0..count {
            let process = &mut self.processes[at];
            let is_there = world.members[process.members[0]].alive;
            process.verdict = process.audit.take_reading(Some(had[at]), seen[at], sampled, world.now);
            if is_there && process.verdict != AuditVerdict::default() {
                found.push(at);
            }
        }
        found
    }
}

/// Returns a process's time on the device, as the daemon counts it.
fn had(world: &mut World, m: usize) -> HeldTime {
    let (now, member) = (world.now, &world.members[m]);
    let (slot, before) = (member.slot.filter(|_| member.alive), member.had_before);
    let usage = member.guest.usage(now);
    let Some(arbiter) = world.arbiter.as_mut() else { return HeldTime::default() };
    let now_held = slot.map_or(HeldTime::default(), |slot| {
        arbiter.apply_report(slot, usage, now);
        arbiter.held_time(slot, now)
    });
    before.plus(now_held).excused_for(arbiter.silent_ns(now))
}

#[derive(Clone, Debug)]
enum Trouble {
    /// A process comes to this tenant.
    Join(u32, Terms, Work),
    /// This process is killed.
    Kill(usize),
    /// The threads of this process do not run.
    Freeze(usize, u64),
    /// A tenant's terms change.
    Set(u32, Terms),
    /// The daemon's loop does not run.
    Stall(u64),
    /// The daemon ends, and another begins after this time.
    Restart(u64),
    /// The spared process begins to launch past the library.
    Lie(Work),
}

/// The events of a history, by time.
struct Troubles {
    next: Vec<(u64, Trouble)>,
    /// When the last daemon began to look.
    settled: u64,
    /// This process is neither killed nor frozen: a liar, whose naming is measured.
    spared: Option<usize>,
}

impl Troubles {
    fn new(mut all: Vec<(u64, Trouble)>) -> Self {
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self { next: all, settled: 0, spared: None }
    }

    /// Runs the world until then, with what happens meanwhile.
    fn run(&mut self, world: &mut World, proof: &mut Proof, until: u64) {
        while let Some((at, trouble)) = self.next.pop_if(|(at, _)| *at <= until) {
            world.run(at.max(world.now));
            self.happen(world, proof, trouble);
        }
        world.run(until.max(world.now));
    }

    fn happen(&mut self, world: &mut World, proof: &mut Proof, trouble: Trouble) {
        let is_one = |at: usize| at < proof.processes.len() && Some(at) != self.spared;
        let alive = |at: usize| is_one(at).then(|| proof.processes[at].members[0]);
        match trouble {
            Trouble::Join(tenant, terms, work) => {
                let member = world.member(tenant, 0, terms, work);
                proof.watch(member);
            }
            Trouble::Kill(at) => {
                if let Some(m) = alive(at).filter(|m| world.members[*m].alive) {
                    world.kill(m);
                }
            }
            Trouble::Freeze(at, ns) => alive(at).into_iter().for_each(|m| world.freeze(m, ns)),
            Trouble::Set(tenant, terms) => world.set(tenant, 0, terms),
            Trouble::Stall(ns) => world.stall(ns),
            Trouble::Lie(work) => {
                let hidden = world.unregistered(LIAR, work);
                self.spared.into_iter().for_each(|at| proof.processes[at].members.push(hidden));
            }
            Trouble::Restart(ns) => {
                world.restart(ns);
                // The next daemon knows nothing of what this one saw, and looks when its members have come back.
                proof.processes.iter_mut().for_each(|process| process.audit = LeaseAudit::default());
                proof.driver.newest = 0;
                self.settled = world.now + ns + BASE.stuck;
            }
        }
    }
}

/// A history costs by its launches: short kernels are rare.
fn kernel() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(50 * US),
        4 => Just(300 * US),
        20 => Just(MS),
        20 => Just(3 * MS),
        20 => Just(8 * MS),
        20 => Just(20 * MS),
    ]
}

fn work() -> impl Strategy<Value = Work> {
    work_of(kernel)
}

/// Troubles of honest processes and of their daemon.
fn troubles() -> impl Strategy<Value = Vec<(u64, Trouble)>> {
    let daemon = prop_oneof![1u64..240, 1u64..1_500].prop_map(|ms| Trouble::Stall(ms * MS));
    let any = prop_oneof![7 => of_tenants(), 2 => daemon];
    let restart = (0..SPAN, 1u64..1_000).prop_map(|(at, ms)| (at, Trouble::Restart(ms * MS)));
    let restart = prop_oneof![4 => Just(None), 1 => restart.prop_map(Some)];
    (prop::collection::vec((0..SPAN, any), 0..7), restart).prop_map(|(mut all, restart)| {
        all.extend(restart);
        all
    })
}

/// Troubles of honest processes alone.
fn of_tenants() -> impl Strategy<Value = Trouble> {
    prop_oneof![
        4 => (0u32..4, terms(), work()).prop_map(|(tenant, terms, work)| Trouble::Join(tenant, terms, work)),
        2 => (0usize..6).prop_map(Trouble::Kill),
        3 => (0usize..6, 1u64..1_500).prop_map(|(at, ms)| Trouble::Freeze(at, ms * MS)),
        1 => (0u32..4, terms()).prop_map(|(tenant, terms)| Trouble::Set(tenant, terms)),
    ]
}

/// How late threads of the members wake, up to five times this.
fn wake() -> impl Strategy<Value = u64> {
    prop_oneof![Just(4 * US), Just(MS), Just(30 * MS)]
}

/// The same histories each time; others by `VGPU_SEED`, and `PROPTEST_CASES` of them.
#[expect(clippy::disallowed_methods, reason = "a test says by its variables which histories it draws")]
fn runner() -> TestRunner {
    let seed = std::env::var("VGPU_SEED").map_or(7, |text| text.parse().expect("VGPU_SEED"));
    let told = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { told.cases } else { 64 };
    TestRunner::new(ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..told })
}

/// Whichever tenants come, launch, freeze, change and die, on a host whose threads and readings are late by up to
/// seconds, and whatever becomes of their daemon.
#[test]
fn no_honest_tenant_is_ever_found_to_work_without_a_lease() {
    let tenants = prop::collection::vec((0u32..4, terms(), work()), 1..5);
    let host = prop_oneof![Just(Host::Quiet), Just(Host::Busy)];
    let history = (tenants, troubles(), 1u64..6, host, wake(), 1u64..1_000_000);
    let (looks, busy) = (Cell::new(0u64), Cell::new(0u64));
    let run = runner().run(&history, |(tenants, troubles, late, host, wake, seed)| {
        let mut world = World::new(Profile { wake, ..A100 }, 1, true, seed);
        let (mut proof, mut troubles) = (Proof::new(late, host, seed), Troubles::new(troubles));
        for (tenant, terms, work) in tenants {
            troubles.happen(&mut world, &mut proof, Trouble::Join(tenant, terms, work));
        }
        while world.now < SPAN.max(troubles.settled + AFTER_RESTART) {
            if world.now < troubles.settled {
                let settled = troubles.settled;
                troubles.run(&mut world, &mut proof, settled);
                continue;
            }
            let found = proof.look(&mut world, &mut troubles, LOOK);
            looks.set(looks.get() + 1);
            prop_assert!(found.is_empty(), "{found:?} at {} ms", world.now / MS);
        }
        busy.set(busy.get() + world.devices[0].contexts.iter().map(|context| context.busy).sum::<u64>());
        Ok(())
    });
    println!("{} looks, {} s of device time", looks.get(), busy.get() / SECOND);
    run.unwrap();
}

/// The liar's tenant.
const LIAR: u32 = 9;

/// A process whose unreported work is of a known size.
#[derive(Clone, Debug)]
struct Lie {
    /// Launches through the library, under leases.
    honest: Option<(Terms, Work)>,
    /// Launches past the library, from `begins` on.
    unreported: Work,
    begins: u64,
}

fn lie() -> impl Strategy<Value = Lie> {
    let kernel = || prop_oneof![Just(300 * US), Just(MS), Just(3 * MS), Just(8 * MS), Just(20 * MS)];
    let unreported = prop_oneof![
        1 => kernel().prop_map(|kernel| Work::Queue { kernel }),
        2 => (kernel(), 1u64..20).prop_map(|(kernel, gap)| Work::Sync { kernel, gap: gap * MS }),
    ];
    let honest = prop_oneof![3 => Just(None), 1 => (terms(), work()).prop_map(Some)];
    (honest, unreported, 2_500 * MS..5 * SECOND).prop_map(|(honest, unreported, begins)| Lie {
        honest,
        unreported,
        begins,
    })
}

/// Device time of a context from one moment to another, to 10 ms.
fn used(world: &World, context: usize, from: u64, to: u64) -> u64 {
    let [from, to] = [from, to].map(|at| usize::try_from(at / BUCKET).unwrap());
    world.devices[0].contexts[context].buckets.iter().take(to).skip(from).sum()
}

/// Next to honest tenants one process works past the library from some moment on: kernels of 0.3 to 20 ms, queued or
/// with pauses of up to 20 ms, with or without leases of its own. Covered is a process that takes 250 ms more than it
/// held the device around that time, within 1.5 s. It is named at most 2 s later: within 3 s of its first kernel if it
/// took that in a second. No other process is named.
#[test]
fn a_liar_among_honest_tenants_is_named_within_three_seconds_and_nobody_else_is() {
    let tenants = prop::collection::vec((0u32..4, terms(), work()), 1..4);
    let happens = prop::collection::vec((0..8 * SECOND, of_tenants()), 0..5);
    let history = (tenants, lie(), happens, 1u64..6, wake(), 1u64..1_000_000);
    let (promised, early, slowest) = (Cell::new(0u64), Cell::new(0u64), Cell::new(0u64));
    let run = runner().run(&history, |(tenants, lie, mut happens, late, wake, seed)| {
        happens.push((lie.begins, Trouble::Lie(lie.unreported)));
        let mut world = World::new(Profile { wake, ..A100 }, 1, true, seed);
        let (mut proof, mut troubles) = (Proof::new(late, Host::Quiet, seed), Troubles::new(happens));
        for (tenant, terms, work) in tenants {
            troubles.happen(&mut world, &mut proof, Trouble::Join(tenant, terms, work));
        }
        let (terms, work) = lie.honest.unwrap_or((Terms::default(), Work::Dependent { times: 0 }));
        troubles.happen(&mut world, &mut proof, Trouble::Join(LIAR, terms, work));
        let liar = proof.processes.len() - 1;
        troubles.spared = Some(liar);
        let (mut named, mut held) = (None, Vec::new());
        let end = lie.begins + LONGEST_TO_SLACK + NAMED_AFTER_SLACK;
        let mut pause = LOOK;
        while world.now < end && named.is_none() {
            let found = proof.look(&mut world, &mut troubles, pause);
            held.push((world.now, had(&mut world, proof.processes[liar].members[0]).held));
            let is_liar = !found.is_empty();
            prop_assert!(found.iter().all(|at| *at == liar), "{found:?}, the liar is {liar}, at {} ms", world.now / MS);
            prop_assert!(!is_liar || world.now > lie.begins, "the liar was honest up to {} ms", world.now / MS);
            named = (is_liar && pause == AGAIN).then_some(world.now);
            pause = if is_liar { AGAIN } else { LOOK };
        }
        let world_end = world.now;
        let before = held.iter().rev().find(|(at, _)| *at + 2 * SECOND <= lie.begins).map(|(_, had)| *had);
        let (Some(before), Some((_, after))) = (before, held.last()) else { return Ok(()) };
        let slack = SLACK + after - before;
        let context = world.members[proof.processes[liar].members[1]].context;
        let is_taken = |at: &u64| used(&world, context, lie.begins, *at) >= slack;
        let last = (lie.begins + LONGEST_TO_SLACK).min(world_end);
        let taken = (lie.begins..last).step_by(10_000_000).find(is_taken);
        let Some(taken) = taken else { return Ok(()) };
        promised.set(promised.get() + 1);
        early.set(early.get() + u64::from(taken <= lie.begins + SECOND));
        let after = named.map(|at| at - lie.begins);
        slowest.set(slowest.get().max(after.unwrap_or(u64::MAX)));
        prop_assert!(
            named.is_some_and(|at| at <= taken + NAMED_AFTER_SLACK),
            "begun at {} ms, {} ms taken at {} ms, named at {:?} ms",
            lie.begins / MS,
            slack / MS,
            taken / MS,
            named.map(|at| at / MS)
        );
        Ok(())
    });
    println!(
        "{} liars named, {} of them within 3 s of their first kernel, the last after {} ms",
        promised.get(),
        early.get(),
        slowest.get() / MS
    );
    run.unwrap();
}

/// Runs a world in which the first tenant's reports show a `part` of its device time, in thousandths, from 2 s on. The
/// audit looks as the daemon does, and tells the arbiter. Returns the percent of 10 s that each tenant had from then
/// on.
fn shares_beside_underreports(part: u64, kernel: u64, others: &[Terms]) -> Vec<f64> {
    const BEGINS: u64 = 2 * SECOND;
    let mut world = World::new(A100, 1, true, 11);
    let (mut proof, mut troubles) = (Proof::new(2, Host::Quiet, 11), Troubles::new(Vec::new()));
    let ceiling = Terms { ceiling: Share::from_percent(30), ..Terms::default() };
    for (tenant, terms) in std::iter::once(&ceiling).chain(others).enumerate() {
        let work = Work::Queue { kernel };
        troubles.happen(&mut world, &mut proof, Trouble::Join(u32::try_from(tenant).unwrap(), *terms, work));
    }
    let tenants = u32::try_from(others.len() + 1).unwrap();
    let used = |world: &World| (0..tenants).map(|tenant| measure::used(world, 0, tenant)).collect::<Vec<_>>();
    world.run(BEGINS);
    let before = used(&world);
    world.members[0].guest.bias = part;
    let mut pause = LOOK;
    while world.now < BEGINS + 10 * SECOND {
        let found = proof.look(&mut world, &mut troubles, pause);
        let is_confirmed = pause == AGAIN || found.is_empty();
        pause = if is_confirmed { LOOK } else { AGAIN };
        if is_confirmed {
            let found = found.into_iter().filter_map(|at| Some((at, proof.processes[at].verdict.unreported?)));
            let slots = found.filter_map(|(at, ns)| Some((world.members[at].slot?, ns))).collect::<Vec<_>>();
            let now = world.now;
            world.arbiter.iter_mut().for_each(|arbiter| arbiter.set_underreporting(DeviceId(0), &slots, now));
            world.tick();
        }
    }
    let spent = (world.now - BEGINS) as f64 / 100.0;
    used(&world).iter().zip(before).map(|(now, before)| (now - before) as f64 / spent).collect()
}

#[test]
fn a_tenant_whose_reports_hide_its_work_gets_its_ceiling_and_ten_points_at_most() {
    let floor = Terms { floor: Share::from_percent(50), ..Terms::default() };
    println!("| kernel | reported | alone | beside one | beside a floor of 50 % |");
    for kernel in [200 * US, MS, 8 * MS] {
        for part in [1_000, 800, 700, 600, 500, 125, 0] {
            let others = [&[][..], &[Terms::default()], &[floor]];
            let all = others.map(|others| shares_beside_underreports(part, kernel, others));
            let cell =
                |shares: &Vec<f64>| shares.iter().map(|share| format!("{share:.1}")).collect::<Vec<_>>().join(" : ");
            println!("| {} us | {} % | {} |", kernel / US, part / 10, all.each_ref().map(cell).join(" | "));
            assert!(all.iter().all(|shares| shares[0] <= 40.0), "more than its ceiling and ten points");
            assert!(all[2][1] >= 45.0, "the neighbour's floor");
            assert!(part < 1_000 || (all[0][0] - 30.0).abs() < 0.5, "an honest one has its ceiling");
        }
    }
}
