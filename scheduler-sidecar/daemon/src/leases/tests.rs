//! Tests of GPU time sharing in virtual time, on pages in ordinary memory: random sequences checked against
//! invariants.
//!
//! Members here are honest: they launch only while their gate lets them, and wake the daemon (ring its bell) in the
//! same cases as the library does.

use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{BoardPage, ContextSharing, MemberReport, ReportPage};
use vgpu_core::time::arbiter::{Class, DeviceQueue, Gate, TenantId as Number, Terms};
use vgpu_core::units::share::Share;

use super::LeaseBook;
use super::view::QueuedWork;
use crate::config::TenantConfig;
use vgpu_config::time::TimeConfig;

const MS: u64 = 1_000_000;
const EPOCH: u64 = 7;
const TENANTS: u32 = 4;

struct Member {
    tenant: Number,
    number: u64,
    device: usize,
    slot: usize,
    said: MemberReport,
    wants: bool,
    /// When its launched work completes, and how much that is, in ns.
    ends: Option<(u64, u64)>,
    /// True if the member launched through an open gate, so that it measured nothing.
    blind: bool,
    runs: u64,
}

struct World {
    leases: LeaseBook<Rc<BoardPage>, Rc<ReportPage>>,
    pages: Vec<(Rc<BoardPage>, Rc<ReportPage>)>,
    members: Vec<Member>,
    paused: Vec<bool>,
    next: u64,
    now: u64,
}

fn name(number: u32) -> String {
    format!("t{number}")
}

fn tenant(number: u32, terms: Terms) -> TenantConfig {
    let mut tenant = TenantConfig::on_all_devices(&name(number), "/s".into(), None, None);
    tenant.on[0].terms = terms;
    tenant
}

impl World {
    fn new(terms: &[Terms]) -> Self {
        let known = ["GPU-0".to_owned(), "GPU-1".to_owned()];
        let mut leases = LeaseBook::new(TimeConfig::default(), true, &known, EPOCH, MS);
        let mut pages = Vec::new();
        for (number, terms) in (0..).zip(terms) {
            leases.put_tenant(Number(number), tenant(number, *terms), MS);
            let board: Rc<BoardPage> = Rc::from(BoardPage::zeroed());
            let report: Rc<ReportPage> = Rc::from(ReportPage::zeroed());
            leases.map_pages(Number(number), board.clone(), report.clone());
            pages.push((board, report));
        }
        Self { leases, pages, members: Vec::new(), paused: vec![false; terms.len()], next: 1, now: MS }
    }

    fn join(&mut self, tenant: u32, device: usize) -> usize {
        let number = self.next;
        self.next += 1;
        let slot = self.leases.join(Number(tenant), number, &format!("gpu-{device}"), self.now).unwrap();
        let (said, ends) = (MemberReport::default(), None);
        let tenant = Number(tenant);
        self.members.push(Member { tenant, number, device, slot, said, wants: false, ends, blind: false, runs: 0 });
        self.members.len() - 1
    }

    fn gate(&self, member: &Member) -> Gate {
        self.pages[member.tenant.0 as usize].0.slots[member.slot].read_grant(EPOCH).unwrap().gate
    }

    fn gate_of(&self, at: usize) -> Gate {
        self.gate(&self.members[at])
    }

    fn ring(&mut self, tenant: Number) {
        // `Leases::rang` ignores rings that come too often. That has its own tests, so this ring skips it.
        self.leases.read_report(tenant, self.now);
        self.leases.tick(self.now);
    }

    fn say_contexts(&self, at: usize, contexts: u32) {
        let member = &self.members[at];
        self.pages[member.tenant.0 as usize].1.slots[member.slot].report_contexts(contexts);
    }

    fn wish(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.wants = true;
        let tenant = member.tenant;
        let rings = self.pages[tenant.0 as usize].1.slots[member.slot].begin_waiting();
        if rings {
            self.ring(tenant);
        }
    }

    /// Each member that may launch launches one kernel of `ns`.
    fn launch(&mut self, ns: u64) {
        for at in 0..self.members.len() {
            let gate = self.gate_of(at);
            let (now, member) = (self.now, &mut self.members[at]);
            let may = match gate {
                Gate::Run { until, .. } => now < until,
                Gate::Open => true,
                Gate::Wait | Gate::Cap { .. } => false,
            };
            if !may || !member.wants || member.ends.is_some() {
                continue;
            }
            let report = &self.pages[member.tenant.0 as usize].1.slots[member.slot];
            member.blind = gate == Gate::Open;
            (member.said.submitted, member.said.launched) = (member.said.submitted + ns, member.said.launched + 1);
            (member.said.last_launch, member.said.since, member.said.in_flight) = (now, now, Some(ns));
            if !member.blind {
                report.report_launch(ns, member.said.submitted, now, now);
            }
            report.stop_waiting();
            (member.wants, member.ends, member.runs) = (false, Some((now + ns, ns)), member.runs + 1);
        }
    }

    /// Completes the work that is due, and rings the bell where another member may wait for that.
    fn complete(&mut self) {
        for at in 0..self.members.len() {
            let shut = matches!(self.gate_of(at), Gate::Wait | Gate::Cap { .. });
            let (now, member) = (self.now, &mut self.members[at]);
            let report = &self.pages[member.tenant.0 as usize].1.slots[member.slot];
            let Some((end, ns)) = member.ends else { continue };
            if now < end {
                if shut && member.blind {
                    member.blind = false;
                    report.report_all(&MemberReport { in_flight: None, ..member.said });
                }
                continue;
            }
            member.ends = None;
            member.said.busy += ns;
            member.said.finished += ns;
            (member.said.in_flight, member.said.since) = (Some(0), now);
            report.report_all(&member.said);
            let tenant = member.tenant;
            if shut {
                self.ring(tenant);
            }
        }
    }

    fn leave(&mut self, at: usize) {
        let member = self.members.remove(at);
        self.leases.leave_devices(member.tenant, member.number, self.now);
    }

    fn lose(&mut self, lost: &[String]) {
        self.leases.lose_devices(lost.iter().map(String::as_str), self.now);
    }

    fn pause(&mut self, tenant: u32, paused: bool) {
        self.paused[tenant as usize] = paused;
        let devices = if paused { BTreeSet::from(["*".to_owned()]) } else { BTreeSet::new() };
        assert!(self.leases.set_pauses(Number(tenant), devices, self.now));
    }

    /// Advances time as the reactor does: ticks run and work completes when due.
    fn run(&mut self, span: u64, kernel: u64) {
        let end = self.now + span;
        for _ in 0..1_000_000 {
            self.launch(kernel);
            let ends = self.members.iter().filter_map(|member| member.ends.map(|(end, _)| end)).min();
            let due = [self.leases.next_deadline(), ends, Some(end)].into_iter().flatten().min().unwrap();
            self.now = self.now.max(due);
            self.complete();
            if self.leases.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                self.leases.tick(self.now);
            }
            self.check();
            if self.now >= end {
                return;
            }
        }
        panic!("time stands still at {}", self.now);
    }

    /// Reads the use of each tenant whose use may have changed. Nobody may launch while the leases rest then.
    fn check_rest(&mut self) {
        for tenant in self.leases.stirred_tenants() {
            self.leases.used_since(tenant, self.now);
        }
        let is_closed = |member: &Member| matches!(self.gate(member), Gate::Wait | Gate::Cap { .. });
        assert!(!self.leases.is_at_rest() || self.members.iter().all(is_closed), "somebody may launch while all rest");
    }

    fn check(&self) {
        for device in 0..2 {
            let gates = self.members.iter().filter(|member| member.device == device);
            let let_in: Vec<(Number, Gate)> = gates
                .map(|member| (member.tenant, self.gate(member)))
                .filter(|(_, gate)| matches!(gate, Gate::Run { .. } | Gate::Open))
                .collect();
            let leases = let_in.iter().filter(|(_, gate)| matches!(gate, Gate::Run { .. })).count();
            let arbitrated = self.leases.devices.is_arbitrated(super::DeviceId(u16::try_from(device).unwrap()));
            assert!(!arbitrated || leases <= 1, "two leases on one device: {let_in:?}");
            assert!(leases == 0 || !arbitrated || let_in.len() == 1, "a lease beside an open gate: {let_in:?}");
            let one = let_in.iter().all(|(tenant, _)| Some(tenant) == let_in.first().map(|(tenant, _)| tenant));
            assert!(!arbitrated || one, "tenants beside each other: {let_in:?}");
        }
        for member in &self.members {
            let paused = self.paused[member.tenant.0 as usize];
            let gate = self.gate(member);
            assert!(!paused || matches!(gate, Gate::Wait | Gate::Cap { .. }), "a paused tenant's gate: {gate:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Join(u32, usize),
    Leave(prop::sample::Index),
    Wish(prop::sample::Index),
    Change(u32, Terms),
    Pause(u32, bool),
    Lose(Vec<String>),
    Pass(u64, u64),
}

fn terms() -> impl Strategy<Value = Terms> {
    let class = prop_oneof![Just(Class::Normal), Just(Class::Latency), Just(Class::Batch)];
    let ceiling = prop::option::of(10..100_u32);
    // Floors (guaranteed shares of time) of all tenants together are at most the whole device.
    let floor = prop::option::of(1..25_u32);
    (class, ceiling, floor, 1..4_u32, prop::option::of(500_000..9_000_000_u64)).prop_map(
        |(class, ceiling, floor, weight, quantum)| {
            let percent = |percent: Option<u32>| percent.and_then(Share::from_percent);
            let floor = floor.map(|floor| floor.min(ceiling.unwrap_or(100)));
            Terms { class, floor: percent(floor), ceiling: percent(ceiling), weight, quantum }
        },
    )
}

fn some_terms() -> impl Strategy<Value = Terms> {
    prop_oneof![Just(Terms::default()), Just(Terms::default()), terms()]
}

fn deed() -> impl Strategy<Value = Deed> {
    let whose = 0..TENANTS;
    let member = any::<prop::sample::Index>;
    prop_oneof![
        2 => (whose.clone(), 0..2_usize).prop_map(|(tenant, device)| Deed::Join(tenant, device)),
        1 => member().prop_map(Deed::Leave),
        6 => member().prop_map(Deed::Wish),
        1 => (whose.clone(), some_terms()).prop_map(|(tenant, terms)| Deed::Change(tenant, terms)),
        1 => (whose, any::<bool>()).prop_map(|(tenant, paused)| Deed::Pause(tenant, paused)),
        1 => prop::sample::subsequence(vec!["GPU-0".to_owned(), "GPU-1".to_owned()], 0..=2).prop_map(Deed::Lose),
        4 => (1..20_000_000_u64, 10_000..30_000_000_u64).prop_map(|(span, kernel)| Deed::Pass(span, kernel)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_one_has_the_device_and_nobody_waits_for_ever(
        start in prop::collection::vec(some_terms(), TENANTS as usize),
        deeds in prop::collection::vec(deed(), 1..80),
    ) {
        let mut world = World::new(&start);
        for deed in deeds {
            match deed {
                Deed::Join(tenant, device) if world.members.len() < 12 => {
                    world.join(tenant, device);
                }
                Deed::Leave(index) if !world.members.is_empty() => {
                    let at = index.index(world.members.len());
                    world.leave(at);
                }
                Deed::Wish(index) if !world.members.is_empty() => {
                    let at = index.index(world.members.len());
                    world.wish(at);
                }
                Deed::Change(number, terms) => {
                    world.leases.put_tenant(Number(number), tenant(number, terms), world.now);
                    world.leases.tick(world.now);
                }
                Deed::Pause(tenant, paused) => world.pause(tenant, paused),
                Deed::Lose(lost) => world.lose(&lost),
                Deed::Pass(span, kernel) => world.run(span, kernel),
                Deed::Join(..) | Deed::Leave(_) | Deed::Wish(_) => {}
            }
            world.check();
            world.check_rest();
        }
        world.lose(&[]);
        for number in 0..TENANTS {
            world.pause(number, false);
        }
        let before: Vec<u64> = world.members.iter().map(|member| member.runs).collect();
        for at in 0..world.members.len() {
            world.wish(at);
        }
        world.run(20_000 * MS, MS);
        for (member, before) in world.members.iter().zip(before) {
            prop_assert!(member.runs > before, "{:?} of {:?} never ran", member.number, member.tenant);
        }
    }
}

fn weight(weight: u32) -> Terms {
    Terms { weight, ..Terms::default() }
}

/// State and holder of the first device in the answer to `vgpu explain` about a tenant.
fn told_state(world: &mut World, number: u32) -> (&'static str, Option<String>) {
    let now = world.now;
    let explained = world.leases.explain_standing(Number(number), now).remove(0);
    (explained.state, explained.holder)
}

#[test]
fn queued_work_that_is_not_known_or_on_a_lost_device_is_told_as_unknown() {
    let mut world = World::new(&[weight(1)]);
    let member = world.join(0, 0);
    let told = |world: &mut World| {
        world.leases.read_report(Number(0), world.now);
        world.leases.queued_work(Number(0))
    };
    let say = |world: &World, in_flight: Option<u64>| {
        let report = MemberReport { in_flight, ..world.members[member].said };
        world.pages[0].1.slots[world.members[member].slot].report_all(&report);
    };
    for (in_flight, is_unknown) in [(Some(0), false), (Some(MS), false), (None, true), (Some(0), false)] {
        say(&world, in_flight);
        let work = QueuedWork { in_flight: in_flight.is_some_and(|ns| ns > 0), waits: false, is_unknown };
        assert_eq!(told(&mut world), work, "{in_flight:?}");
    }
    // A card hangs with work in flight: the tenant cannot be blamed for the missing progress.
    say(&world, Some(MS));
    world.lose(&["GPU-0".into()]);
    assert!(told(&mut world).is_unknown);
    world.lose(&[]);
    assert!(!told(&mut world).is_unknown);
}

#[test]
fn leases_on_a_lost_device_end_at_once_and_are_granted_again_when_it_is_back() {
    let capped = Terms { ceiling: Share::from_percent(50), ..Terms::default() };
    let mut world = World::new(&[capped, weight(1), weight(1)]);
    let (holder, waiting, elsewhere) = (world.join(0, 0), world.join(1, 0), world.join(2, 1));
    [holder, waiting, elsewhere].into_iter().for_each(|at| world.wish(at));
    // An hour of work, which the device never ends.
    world.launch(3_600_000 * MS);
    assert_eq!(
        (told_state(&mut world, 0), told_state(&mut world, 1)),
        (("running", Some(name(0))), ("waiting", Some(name(0))))
    );
    let device_one = world.gate_of(elsewhere);
    world.lose(&["GPU-0".into()]);
    assert_eq!((told_state(&mut world, 0), told_state(&mut world, 1)), (("lost", None), ("lost", None)));
    // Nobody waits: a launch gets the driver's error. The ceiling holds.
    assert!(matches!(world.gate_of(waiting), Gate::Run { ceiling: None, .. }), "{:?}", world.gate_of(waiting));
    assert!(
        matches!(world.gate_of(holder), Gate::Run { ceiling: Some((half, _)), .. } if Some(half) == capped.ceiling)
    );
    assert_eq!(
        (world.gate_of(elsewhere), told_state(&mut world, 2).0),
        (device_one, "running"),
        "the other device goes on"
    );
    let late = world.join(2, 0);
    assert!(matches!(world.gate_of(late), Gate::Run { .. }), "nor does a member that joins wait");
    world.pause(1, true);
    assert!(matches!(world.gate_of(waiting), Gate::Cap { .. } | Gate::Wait), "but for an administrator's pause");
    world.pause(1, false);
    world.leave(late);
    world.leave(holder);
    world.lose(&[]);
    let (first, second) = (world.join(0, 0), world.members.iter().position(|member| member.number == 2).unwrap());
    [first, second].into_iter().for_each(|at| world.wish(at));
    world.check();
    assert!(["running", "waiting"].contains(&told_state(&mut world, 1).0), "{:?}", told_state(&mut world, 1));
    let before: Vec<u64> = [first, second].map(|at| world.members[at].runs).to_vec();
    world.run(100 * MS, MS);
    for (at, before) in [first, second].into_iter().zip(before) {
        assert!(world.members[at].runs > before, "member {at} is served again");
    }
}

/// A device is under MPS only while every member that launches there reports so. A member that reports nothing counts
/// against it, as does one that reports something else later.
#[test]
fn members_under_mps_need_no_leases_unless_one_of_them_is_not() {
    for other in [ContextSharing::TimeSliced as u32, 0, 7] {
        let mut world = World::new(&[weight(1), weight(1), weight(1)]);
        let (a, b, c) = (world.join(0, 0), world.join(1, 0), world.join(2, 0));
        for at in [a, b] {
            world.say_contexts(at, ContextSharing::Mps as u32);
            world.wish(at);
        }
        let runs = |world: &World, at| matches!(world.gate_of(at), Gate::Run { exclusive: true, .. });
        assert!([a, b, c].iter().all(|&at| runs(&world, at)), "at the same time");
        world.say_contexts(a, ContextSharing::TimeSliced as u32);
        world.launch(MS);
        assert!(runs(&world, b), "the first report of each counts");
        world.say_contexts(c, other);
        let rings = world.pages[2].1.slots[world.members[c].slot].begin_waiting();
        assert!(rings);
        world.ring(Number(2));
        let running = [a, b, c].iter().filter(|&&at| matches!(world.gate_of(at), Gate::Run { .. })).count();
        assert_eq!(running, 1, "one at a time, with {other}");
        world.leave(c);
        assert!(runs(&world, a) && runs(&world, b), "without it they are all under MPS again");
    }
}

#[test]
fn a_dead_holders_lease_ends_at_once() {
    let mut world = World::new(&[weight(2), weight(1)]);
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    world.wish(a);
    world.launch(60_000 * MS);
    world.wish(b);
    world.run(8 * MS, MS);
    assert_eq!(world.gate_of(b), Gate::Wait, "a's kernel is long");
    world.leave(a);
    assert!(matches!(world.gate_of(0), Gate::Run { .. }), "in the same tick");
}

#[test]
fn a_program_that_is_killed_again_and_again_stays_below_its_ceiling() {
    let ceiling = Terms { ceiling: Share::from_percent(10), ..Terms::default() };
    let mut world = World::new(&[ceiling]);
    let (begin, mut used) = (world.now, 0);
    while world.now < begin + 5_000 * MS {
        let a = world.join(0, 0);
        world.wish(a);
        let start = world.now;
        while world.members[a].ends.is_none() && world.now < start + 1_000 * MS {
            world.run(MS, 200 * MS);
        }
        // The member is killed before it saw its work complete. If that work were free, the program would get 95 %.
        world.run(20 * MS, MS);
        used += 20 * MS;
        world.leave(a);
    }
    let share = used * 100 / (world.now - begin);
    assert!(share <= 15, "{share} % under a ceiling of 10 %");
}

#[test]
fn a_paused_tenants_work_drains_and_it_goes_on_where_it_was() {
    let mut world = World::new(&[weight(2), weight(1)]);
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    world.wish(a);
    world.launch(3 * MS);
    world.pause(0, true);
    world.wish(b);
    assert!(matches!(world.gate_of(a), Gate::Cap { until: u64::MAX }));
    assert_eq!(world.gate_of(b), Gate::Wait, "what is in flight drains");
    world.run(4 * MS, MS);
    assert_eq!(world.members[b].runs, 1);
    world.wish(a);
    world.run(5_000 * MS, MS);
    assert_eq!(world.members[a].runs, 1);
    world.pause(0, false);
    world.run(10 * MS, MS);
    assert_eq!(world.members[a].runs, 2);
}

#[test]
fn the_leases_rest_while_nobody_works_or_waits_or_may_launch() {
    let mut world = World::new(&[weight(2), weight(1)]);
    let rests = |world: &mut World| {
        for tenant in world.leases.stirred_tenants() {
            world.leases.used_since(tenant, world.now);
        }
        world.leases.is_at_rest()
    };
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    world.ring(Number(0));
    world.ring(Number(1));
    assert!(!world.leases.is_at_rest(), "they joined, and nobody looked at their use yet");
    assert!(rests(&mut world));
    world.wish(a);
    assert!(!rests(&mut world), "it has a lease");
    world.launch(3 * MS);
    world.pause(0, true);
    world.wish(b);
    assert!(!rests(&mut world), "its work drains, and another waits");
    world.run(4 * MS, MS);
    world.pause(1, true);
    world.run(5_000 * MS, MS);
    assert!(rests(&mut world), "all work is done");
    world.leave(b);
    world.leave(a);
    assert!(rests(&mut world), "nobody is left");
}

#[test]
fn a_suspended_tenant_gets_no_lease_and_waits_for_none_and_its_pause_is_its_own() {
    let mut world = World::new(&[weight(1), weight(1)]);
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    world.wish(a);
    world.launch(MS);
    world.wish(b);
    world.run(2 * MS, MS);
    world.wish(a);
    let waits = |world: &mut World| world.leases.used_by_tenant(Number(0), world.now)[0].wait;
    world.leases.set_suspended(Number(0), true, world.now);
    let (runs, waited) = (world.members[a].runs, waits(&mut world));
    world.run(500 * MS, MS);
    assert_eq!((world.members[a].runs, waits(&mut world)), (runs, waited));
    assert!(!world.leases.queued_work(Number(0)).waits && world.leases.is_suspended(Number(0)));
    let queues = world.leases.device_queues(world.now);
    let waiting = |(_, queue): &(String, DeviceQueue)| queue.waiting.iter().any(|one| one.tenant == Number(0));
    assert!(!queues.iter().any(waiting), "{queues:?}");
    assert_eq!(told_state(&mut world, 0).0, "suspended");
    assert!(!world.leases.is_paused(Number(0)));
    world.pause(0, true);
    assert!(world.leases.set_suspended(Number(0), false, world.now));
    assert!(!world.leases.set_suspended(Number(0), false, world.now), "it is known");
    world.run(10 * MS, MS);
    assert_eq!((told_state(&mut world, 0).0, world.members[a].runs), ("paused", runs));
    assert!(world.leases.queued_work(Number(0)).waits, "its member waits for the end of the pause");
    world.pause(0, false);
    world.run(50 * MS, MS);
    assert!(world.members[a].runs > runs);
}

#[test]
fn a_wish_that_was_granted_already_is_no_sign_of_an_empty_account() {
    let ceiling = Terms { ceiling: Share::from_percent(50), ..Terms::default() };
    let mut world = World::new(&[ceiling]);
    let (a, b) = (world.join(0, 0), world.join(0, 0));
    world.wish(a);
    assert!(matches!(world.gate_of(a), Gate::Run { .. }));
    // Another member of the tenant rings the bell before member `a` wakes up.
    world.wish(b);
    world.run(100_000, MS);
    assert!(matches!(world.gate_of(a), Gate::Run { .. }), "{:?}", world.gate_of(a));
    assert_eq!(world.members[a].runs, 1);
}

#[test]
fn the_last_slot_is_given_away_and_one_more_is_refused() {
    let mut world = World::new(&[weight(2)]);
    for _ in 0..vgpu_core::protocol::page::PAGE_SLOTS {
        world.join(0, 0);
    }
    let words = world.leases.join(Number(0), 99_999, "GPU-0", world.now).unwrap_err();
    assert!(words.contains("1024 processes on devices already"), "{words}");
    world.leave(17);
    assert_eq!(world.leases.join(Number(0), 99_999, "GPU-0", world.now), Ok(17));
}

#[test]
fn what_is_used_is_known_after_its_members_are_gone() {
    let mut world = World::new(&[weight(2), weight(1)]);
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    for _ in 0..10 {
        world.wish(a);
        world.wish(b);
        world.run(10 * MS, MS);
    }
    world.leave(b);
    world.leave(a);
    let used = world.leases.used_by_tenant(Number(0), world.now);
    assert_eq!((used.len(), used[0].members, used[0].charged, used[0].launches), (1, 0, 10 * MS, 10));
    let waited = world.leases.used_by_tenant(Number(1), world.now)[0].wait;
    assert!(waited > 0 && waited < 100 * MS, "{waited}");
    world.leases.remove(Number(0), world.now);
    assert!(world.leases.used_by_tenant(Number(0), world.now).is_empty());
}

/// A member that has not launched has no unmeasured use. A tenant that is only observed measures behind any gate.
#[test]
fn what_goes_through_an_open_gate_is_told_as_not_measured_while_it_does_and_ever_after() {
    let mut world = World::new(&[Terms::default(), Terms::default()]);
    world.leases.change_constants(TimeConfig::default(), false, world.now);
    let observed = TenantConfig { mode: Mode::Observe, ..tenant(1, Terms::default()) };
    world.leases.put_tenant(Number(1), observed, world.now);
    let (a, b) = (world.join(0, 0), world.join(1, 0));
    let told = |world: &mut World, number: u32| {
        let used = world.leases.used_by_tenant(Number(number), world.now).remove(0).unmeasured;
        (used.now, used.ever)
    };
    assert_eq!(world.gate_of(a), Gate::Open);
    assert_eq!(told(&mut world, 0), (false, false), "it launched nothing yet");
    for at in [a, b] {
        world.wish(at);
    }
    world.run(10 * MS, MS);
    assert_eq!((told(&mut world, 0), told(&mut world, 1)), ((true, true), (false, false)));
    // The device is shared by leases from now on: gates close, and the unmeasured past stays known.
    world.leases.change_constants(TimeConfig::default(), true, world.now);
    world.leases.tick(world.now);
    assert_ne!(world.gate_of(a), Gate::Open);
    assert_eq!(told(&mut world, 0), (false, true));
    world.leave(a);
    assert_eq!(told(&mut world, 0), (false, true), "nor with its process");
}

/// Found by tests/tests/chaos.rs: fails if sums of reported values can overflow.
#[test]
fn what_members_say_of_their_launches_may_be_any_number() {
    let mut world = World::new(&[weight(2)]);
    let members = [world.join(0, 0), world.join(0, 0), world.join(0, 0)];
    for at in members {
        let member = &world.members[at];
        let said = MemberReport { launched: u64::MAX - 1, ..member.said };
        world.pages[0].1.slots[member.slot].report_all(&said);
    }
    assert_eq!(world.leases.used_by_tenant(Number(0), world.now)[0].launches, u64::MAX);
    for at in members.into_iter().rev() {
        world.leave(at);
    }
    assert_eq!(world.leases.used_by_tenant(Number(0), world.now)[0].launches, u64::MAX);
}

/// After a restart of the daemon, a member's prior usage counts for its tenant. Its queued work is unknown until it
/// reports it.
#[test]
fn who_joins_again_brings_its_past_and_shares_the_device_until_it_says_otherwise() {
    let terms = Terms { weight: 2, ..Terms::default() };
    let mut world = World::new(&[terms; 2]);
    let fresh = world.join(0, 0);
    let past = super::ClaimedPast { process: 7, busy: 3_000 * MS };
    world.now = 10_000 * MS;
    let slot = world.leases.join_again(Number(1), 99, "gpu-0", past, world.now).unwrap();
    let used = |world: &mut World| world.leases.used_by_tenant(Number(1), world.now)[0].clone();
    assert_eq!((used(&mut world).charged, used(&mut world).before), (0, 3_000 * MS));
    world.wish(fresh);
    assert!(matches!(world.gate_of(fresh), Gate::Run { exclusive: false, .. }), "{:?}", world.gate_of(fresh));
    // The member that joined again reports no queued work, so the next lease of the device is exclusive.
    world.pages[1].1.slots[slot].report_all(&MemberReport { in_flight: Some(0), ..MemberReport::default() });
    world.ring(Number(1));
    world.launch(MS);
    world.now += 2 * MS;
    world.complete();
    world.leases.tick(world.now);
    let again = world.leases.join_again(Number(1), 100, "gpu-0", past, world.now).unwrap();
    world.pages[1].1.slots[again].report_all(&MemberReport { in_flight: Some(0), ..MemberReport::default() });
    assert_eq!(used(&mut world).before, 3_000 * MS, "another connection of the same process");
    world.leases.leave_devices(Number(0), world.members[fresh].number, world.now);
    let _ = world.pages[1].1.slots[slot].begin_waiting();
    world.ring(Number(1));
    let gate = world.pages[1].0.slots[slot].read_grant(EPOCH).unwrap().gate;
    assert!(matches!(gate, Gate::Run { exclusive: true, .. }), "{gate:?}");
}

/// Every launch takes a whole lease here, so each one waits for a lease of its own.
#[test]
fn the_histogram_of_waits_counts_each_lease_and_sums_to_the_time_waited() {
    let mut world = World::new(&[Terms::default(), Terms::default()]);
    let members = [world.join(0, 0), world.join(1, 0)];
    let kernel = 5 * MS;
    for _ in 0..400 {
        for at in members {
            if world.members[at].ends.is_none() && !world.members[at].wants {
                world.wish(at);
            }
        }
        world.run(MS, kernel);
    }
    for at in members {
        let (tenant, runs) = (world.members[at].tenant, world.members[at].runs);
        let [used] = &world.leases.used_by_tenant(tenant, world.now)[..] else { panic!("one device") };
        let waits = used.times.waits;
        assert!(runs > 30, "{runs} launches");
        assert!(waits.total() == runs || waits.total() == runs + 1, "{waits:?} of {runs} launches");
        // A wait that is not over is in no histogram yet.
        let slots = &world.leases.houses[&tenant].pages.as_ref().unwrap().slots;
        let standing = slots.iter().flatten().filter_map(|slot| slot.stands).map(|since| world.now - since);
        assert_eq!(waits.sum_ns + standing.sum::<u64>(), used.wait);
        assert!(used.times.gaps.total() + 1 >= waits.total(), "{:?}", used.times);
        // It wanted the device all the time, and had it about half of the time.
        assert!(used.wanting > 100 * MS && used.wanting < 300 * MS, "{} ns", used.wanting);
    }
}
