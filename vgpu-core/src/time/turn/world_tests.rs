//! Members of one tenant on one device, in virtual time: how much each gets, and that none is left waiting.
//!
//! The device is as without MPS: it works for one process at a time, in slices of 2 ms among those that have work. A
//! member is a program that launches kernels of one length, ahead or one at a time with a pause; a thread at the
//! gate; and a thread that sees completion 60 us late. It may be stopped, or killed.

use proptest::prelude::*;
use std::collections::VecDeque;

use super::*;
use crate::memory::ledger::LedgerPage;
use crate::memory::ledger::fake_kernel::FakeKernel;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const TICK: u64 = 20 * US;
const SLICE: u64 = 2 * MS;
const IN_FLIGHT: u64 = 2 * MS;
const BEGIN: u64 = 1_000 * MS;

#[derive(Clone, Copy, Debug)]
struct Program {
    kernel: u64,
    /// Pause after each kernel; `None`: it launches ahead.
    pause: Option<u64>,
}

struct Launched {
    left: u64,
    stamp: u64,
    /// The device worked for another member meanwhile.
    foreign: bool,
}

struct Agent {
    member: Member<'static>,
    hand: TurnState,
    program: Program,
    queue: VecDeque<Launched>,
    /// Completed, not seen: when, and which launch.
    unseen: VecDeque<(u64, Launched)>,
    rests_until: u64,
    asleep: u64,
    look: u64,
    heard: u32,
    runs: bool,
    lives: bool,
    served: u64,
    /// Since when the member has wanted the device while none of its kernels was on it.
    hungry: Option<u64>,
    /// The longest time that the member was hungry.
    longest: u64,
}

impl Agent {
    fn in_flight(&self) -> u64 {
        self.program.kernel * (self.queue.len() + self.unseen.len()) as u64
    }

    fn wants(&self, now: u64) -> bool {
        let idle = self.queue.is_empty() && self.unseen.is_empty();
        match self.program.pause {
            None => idle || self.in_flight() + self.program.kernel <= IN_FLIGHT,
            Some(_) => idle && now >= self.rests_until,
        }
    }
}

struct World {
    agents: Vec<Agent>,
    kernel: FakeKernel,
    now: u64,
    current: usize,
    slice_end: u64,
    idle_while_wanted: u64,
    longest_idle: u64,
    /// A waiting thread wakes up at most this late, at random.
    late: u64,
    chance: u64,
}

impl World {
    fn of(programs: &[Program]) -> Self {
        let page: &'static LedgerPage = Box::leak(LedgerPage::zeroed());
        let kernel = FakeKernel::default();
        let agent = |program: &Program| Agent {
            member: page.as_ledger().join(7, 0, &kernel).unwrap(),
            hand: TurnState::default(),
            program: *program,
            queue: VecDeque::new(),
            unseen: VecDeque::new(),
            rests_until: 0,
            asleep: 0,
            look: 0,
            heard: u32::MAX,
            runs: true,
            lives: true,
            served: 0,
            hungry: None,
            longest: 0,
        };
        let agents = programs.iter().map(agent).collect();
        let (current, slice_end, idle_while_wanted, longest_idle) = (0, 0, 0, 0);
        let (late, chance) = (0, 0x9e37_79b9_7f4a_7c15);
        World { agents, kernel, now: BEGIN, current, slice_end, idle_while_wanted, longest_idle, late, chance }
    }

    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.device();
            self.now += TICK;
            for at in 0..self.agents.len() {
                if self.agents[at].runs && self.now >= self.agents[at].asleep {
                    self.look(at);
                }
            }
        }
    }

    fn device(&mut self) {
        let count = self.agents.len();
        let has_work = |agent: &Agent| agent.lives && !agent.queue.is_empty();
        if self.now >= self.slice_end || !has_work(&self.agents[self.current]) {
            let next = (1..=count).map(|step| (self.current + step) % count).find(|&at| has_work(&self.agents[at]));
            let Some(next) = next else {
                let wanted = self.agents.iter().any(|agent| agent.runs && agent.hungry.is_some());
                self.idle_while_wanted = if wanted { self.idle_while_wanted + TICK } else { 0 };
                self.longest_idle = self.longest_idle.max(self.idle_while_wanted);
                return;
            };
            (self.current, self.slice_end) = (next, self.now + SLICE);
        }
        self.idle_while_wanted = 0;
        let current = self.current;
        for agent in self.agents.iter_mut().enumerate().filter(|(at, _)| *at != current).map(|(_, agent)| agent) {
            agent.queue.iter_mut().for_each(|launched| launched.foreign = true);
            agent.unseen.iter_mut().filter(|(at, _)| *at > self.now).for_each(|(_, launched)| launched.foreign = true);
        }
        let agent = &mut self.agents[current];
        agent.served += TICK;
        let first = agent.queue.front_mut().unwrap();
        first.left = first.left.saturating_sub(TICK);
        if first.left == 0 {
            let done = agent.queue.pop_front().unwrap();
            agent.unseen.push_back((self.now + TICK, done));
        }
    }

    /// The process's actions at this time: it sees completions, launches, or looks when it is time.
    fn look(&mut self, at: usize) {
        let now = self.now;
        let agent = &mut self.agents[at];
        let turn = agent.member.device_turn();
        while agent.unseen.front().is_some_and(|(done, _)| done + 60 * US <= now) {
            let (done, launched) = agent.unseen.pop_front().unwrap();
            assert!(
                !(turn.is_still_own(&agent.hand, launched.stamp) && launched.foreign),
                "member {at} measured foreign work"
            );
            agent.member.add_busy(agent.program.kernel);
            agent.rests_until = done + agent.program.pause.unwrap_or(0);
            agent.look = 0;
        }
        for _ in 0..100 {
            let wants = agent.wants(now);
            let kept = if wants { turn.keep_turn(&mut agent.hand, now) } else { None };
            let gate = kept.unwrap_or_else(|| {
                let in_flight = agent.in_flight();
                let bell = turn.bell_word().load(Ordering::SeqCst);
                if agent.heard == bell && now < agent.look && !wants {
                    return Gate::Wait;
                }
                let here = LocalWork { now, wants, admitted: 0, in_flight, due: now + in_flight * 3 / 2 };
                let step = turn.step_turn(&mut agent.hand, &here);
                (agent.look, agent.heard) = (step.look, bell);
                if let Some(suspect) = step.suspect {
                    agent.member.reclaim_slot(suspect, &self.kernel);
                }
                step.gate
            });
            if !wants {
                break;
            }
            match gate {
                Gate::Run { until, .. } if now < until => {
                    let stamp = turn.turn_stamp(&agent.hand);
                    // If others have work on the device already, the simulated device marks this kernel as foreign.
                    agent.queue.push_back(Launched { left: agent.program.kernel, stamp, foreign: false });
                    agent.hungry = None;
                }
                _ => {
                    if self.late > 0 {
                        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        agent.asleep = now + (self.chance >> 33) % self.late;
                    }
                    if agent.queue.is_empty() {
                        let since = *agent.hungry.get_or_insert(now);
                        agent.longest = agent.longest.max(now - since);
                    }
                    break;
                }
            }
        }
    }

    fn kill(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        (agent.lives, agent.runs, agent.hungry) = (false, false, None);
        agent.queue.clear();
        self.kernel.kill(at);
    }
}

fn ahead(kernel: u64) -> Program {
    Program { kernel, pause: None }
}

fn percent(agent: &Agent, ns: u64) -> u64 {
    agent.served * 100 / ns
}

#[test]
fn two_that_always_have_work_share_the_device_and_waste_little_of_it() {
    let mut world = World::of(&[ahead(MS), ahead(MS)]);
    world.run(2_000 * MS);
    let parts: Vec<u64> = world.agents.iter().map(|agent| percent(agent, 2_000 * MS)).collect();
    assert!(parts.iter().all(|part| (46..=51).contains(part)), "{parts:?}");
    assert!(parts.iter().sum::<u64>() >= 94, "{parts:?}");
}

#[test]
fn members_whose_kernels_differ_in_length_get_the_same() {
    let mut world = World::of(&[ahead(60 * US), ahead(MS), ahead(40 * MS)]);
    world.run(6_000 * MS);
    let parts: Vec<u64> = world.agents.iter().map(|agent| percent(agent, 6_000 * MS)).collect();
    assert!(parts.iter().all(|part| (30..=35).contains(part)), "{parts:?}");
}

/// A next member may come too late and be passed over; it must not lose that time for good.
#[test]
fn on_a_busy_host_everybody_gets_its_part_too() {
    let mut world = World::of(&[ahead(200 * US), ahead(MS), ahead(5 * MS), ahead(20 * MS)]);
    world.late = 5 * MS;
    world.run(10_000 * MS);
    let parts: Vec<u64> = world.agents.iter().map(|agent| agent.served / MS).collect();
    let (most, least) = (parts.iter().max().unwrap(), parts.iter().min().unwrap());
    assert!(most * 10 <= least * 11, "{parts:?}");
}

#[test]
fn one_that_synchronises_gets_its_part_beside_one_that_queues() {
    let mut world = World::of(&[ahead(MS), Program { kernel: MS, pause: Some(20 * US) }]);
    world.run(2_000 * MS);
    let parts: Vec<u64> = world.agents.iter().map(|agent| percent(agent, 2_000 * MS)).collect();
    assert!(parts.iter().all(|part| (42..=54).contains(part)), "{parts:?}");
}

#[test]
fn one_that_computes_between_launches_leaves_the_device_to_the_other() {
    let mut world = World::of(&[Program { kernel: MS, pause: Some(50 * MS) }, ahead(MS)]);
    world.run(2_000 * MS);
    let parts: Vec<u64> = world.agents.iter().map(|agent| percent(agent, 2_000 * MS)).collect();
    assert!(parts.iter().sum::<u64>() >= 98, "{parts:?}");
    assert!(
        world.agents[0].longest <= BASE.quantum + 3 * MS,
        "it came back to wait for {} us",
        world.agents[0].longest / US
    );
}

#[test]
fn a_stopped_member_costs_the_others_one_drain() {
    let mut world = World::of(&[ahead(MS), ahead(MS), ahead(MS)]);
    world.run(50 * MS);
    world.agents[0].runs = false;
    world.run(1_000 * MS);
    assert!(world.longest_idle <= BASE.drain + BASE.quantum + BASE.in_flight, "{} us", world.longest_idle / US);
    let before = world.agents[0].served;
    world.agents[0].runs = true;
    world.agents[0].look = 0;
    world.run(100 * MS);
    assert!(world.agents[0].served > before + 20 * MS, "it goes on when it may");
}

fn program() -> impl Strategy<Value = Program> {
    let kernel = prop::sample::select(vec![20 * US, 100 * US, MS, 3 * MS, 20 * MS, 90 * MS]);
    let pause = prop::sample::select(vec![None, None, Some(0), Some(100 * US), Some(5 * MS), Some(60 * MS)]);
    (kernel, pause).prop_map(|(kernel, pause)| Program { kernel, pause })
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Kill,
    Stop,
    Go,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![Just(Fate::Kill), Just(Fate::Stop), Just(Fate::Go), Just(Fate::Go)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whichever member is killed or stopped, and whenever: a living member makes progress, and measures only its own
    /// work.
    #[test]
    fn nobody_starves(
        programs in prop::collection::vec(program(), 2..6),
        fates in prop::collection::vec((0usize..6, 1u64..120, fate()), 0..12),
    ) {
        let mut world = World::of(&programs);
        for (who, after, fate) in fates {
            world.run(after * MS);
            let who = who % programs.len();
            match fate {
                _ if !world.agents[who].lives => {}
                Fate::Kill => world.kill(who),
                Fate::Stop => (world.agents[who].runs, world.agents[who].hungry) = (false, None),
                Fate::Go => (world.agents[who].runs, world.agents[who].look) = (true, 0),
            }
        }
        world.agents.iter_mut().for_each(|agent| agent.longest = 0);
        world.run(1_500 * MS);
        // Each other member can be ahead of a waiting one by the work it launched at once, and credit and leases in
        // addition.
        let launch: u64 = programs.iter().map(|program| program.kernel.max(IN_FLIGHT) * 2 + 3 * BASE.quantum + BASE.drain).sum();
        let longest = programs.iter().map(|program| program.kernel).max().unwrap();
        // The same bound counts once more for each change of the members' order, because one was stopped or
        // continued.
        let bound = (launch + longest * programs.len() as u64) * 3;
        for agent in world.agents.iter().filter(|agent| agent.runs) {
            prop_assert!(agent.longest <= bound, "waited for {} of {} us", agent.longest / US, bound / US);
        }
        // A member that is stopped within a long launch is trusted for its estimate and half as much again.
        prop_assert!(world.longest_idle <= 2 * (BASE.drain + BASE.quantum) + 2 * longest, "idle for {} us", world.longest_idle / US);
    }

    /// Members that always have work get the same time, whatever the length of their launches.
    #[test]
    fn everybody_gets_its_part(kernels in prop::collection::vec(prop::sample::select(vec![60 * US, MS, 3 * MS, 20 * MS]), 2..5)) {
        let programs: Vec<Program> = kernels.into_iter().map(ahead).collect();
        let mut world = World::of(&programs);
        world.run(3_000 * MS);
        let served: Vec<u64> = world.agents.iter().map(|agent| agent.served).collect();
        let longest = programs.iter().map(|program| program.kernel).max().unwrap();
        let (most, least) = (served.iter().max().unwrap(), served.iter().min().unwrap());
        prop_assert!(most - least <= 2 * (longest + BASE.quantum + IN_FLIGHT), "{served:?}");
        prop_assert!(served.iter().sum::<u64>() >= 2_700 * MS, "{served:?}");
    }
}
