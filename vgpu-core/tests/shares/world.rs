//! Devices, members and the daemon in virtual time: one queue of events, no thread, no clock.
//!
//! Costs and delays come from the [`Profile`], jitter from a seeded generator. The daemon consists of the arbiter
//! alone. It reads pages as the members wrote them, and their wake-up calls arrive late.

use crate::device::{Device, Done, Kind, Op};
use crate::guest::{Guest, reached};
use crate::profile::{Noise, Profile};
use crate::program::{MS, Program, Step, Work};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use vgpu_core::time::account::Account;
use vgpu_core::time::arbiter::audit::HeldTime;
use vgpu_core::time::arbiter::{Arbiter, Decision, DeviceId, Gate, SlotId, TenantId, Terms};
use vgpu_core::time::config::{BASE, TimeConfig};
use vgpu_core::time::gate::GateVerdict;
use vgpu_core::time::gate::loss::{self, AloneMode, OnLoss};

/// Launches that the driver queues before it makes the program wait.
const DEPTH: usize = 1024;
pub const LINGER: u64 = 100_000;
/// How long a launch that is to be measured waits for an idle stream.
const MAX_IDLE_WAIT: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Device(usize, u64),
    Host(usize, u64),
    /// The work of the member's oldest unfinished call becomes visible to the device.
    Visible(usize),
    Look(usize, u64),
    Ring(usize),
    /// A kernel of the other rank signals this member's kernel, which may end.
    Signal(usize),
    Daemon(u64),
    /// The member looks for its daemon again.
    Back(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Gated,
    Draining,
    Full,
    Stopped,
}

pub struct Member {
    pub tenant: u32,
    pub device: usize,
    pub context: usize,
    pub slot: Option<SlotId>,
    pub guest: Guest,
    pub program: Program,
    pub terms: Terms,
    pub state: State,
    pub turn: u64,
    pub held: Option<Step>,
    /// The part of a call in thousandths after which the device sees its work. The library does not know it.
    pub part: u64,
    /// When the current wait of a launch for an idle stream began; `None`: it does not wait.
    pub idle_wait: Option<u64>,
    /// Work of calls that the device does not see yet.
    pub coming: VecDeque<Op>,
    pub look: u64,
    pub looking: bool,
    pub idle_since: Option<u64>,
    pub told: bool,
    /// True if the member woke the daemon since its last launch or grant.
    pub rung: bool,
    pub blind_marker: Option<usize>,
    pub answers: Vec<u64>,
    pub launched: u64,
    pub alive: bool,
    /// The other rank of its collectives.
    pub partner: Option<usize>,
    /// Its threads run again at this moment.
    pub frozen_until: u64,
    /// It goes on by itself: its daemon is gone, or did not beat for long.
    pub is_lost: bool,
    /// The heartbeat that it found too old, and when.
    pub old_beat: (u64, u64),
    /// The gate that the daemon wrote last.
    pub board: Gate,
    /// How long its former slots held the device, in ns.
    pub had_before: HeldTime,
}

pub struct World {
    pub now: u64,
    pub profile: Profile,
    pub devices: Vec<Device>,
    pub members: Vec<Member>,
    pub arbiter: Option<Arbiter>,
    pub daemon_alive: bool,
    pub beat: u64,
    /// The daemon's loop runs again at this moment.
    pub stalled_until: u64,
    stalled_since: Option<u64>,
    pub events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub count: u64,
    pub daemon_turn: u64,
    pub scheduled: Vec<u64>,
    pub noise: Noise,
    pub out: Vec<Decision>,
    /// Operations that a device completed; empty between uses.
    done: Vec<Done>,
    /// The member of each context of each device.
    by_context: Vec<Vec<usize>>,
    /// Log of all decisions, if the test keeps one.
    pub log: Option<Vec<(u64, Decision)>>,
    pub ticks: u64,
    pub stuck: u32,
}

impl World {
    pub fn new(profile: Profile, devices: usize, daemon: bool, seed: u64) -> Self {
        let config = TimeConfig::default();
        let count = u16::try_from(devices).unwrap();
        Self {
            now: 0,
            profile,
            devices: (0..devices).map(|_| Device::new(profile.slice, profile.switch)).collect(),
            members: Vec::new(),
            arbiter: daemon.then(|| Arbiter::new(config, count, 0)),
            daemon_alive: daemon,
            beat: 0,
            stalled_until: 0,
            stalled_since: None,
            events: BinaryHeap::new(),
            count: 0,
            daemon_turn: 0,
            scheduled: vec![u64::MAX; devices],
            noise: Noise::new(seed + 1),
            out: Vec::new(),
            done: Vec::new(),
            by_context: vec![Vec::new(); devices],
            log: None,
            ticks: 0,
            stuck: 0,
        }
    }

    /// Adds a member of a tenant on a device. Without a daemon only the ceiling of `terms` counts.
    pub fn member(&mut self, tenant: u32, device: usize, terms: Terms, work: Work) -> usize {
        let at = self.members.len();
        let context = self.devices[device].context();
        self.by_context[device].push(at);
        let slot = self
            .arbiter
            .as_mut()
            .map(|arbiter| arbiter.join(TenantId(tenant), DeviceId(u16::try_from(device).unwrap()), terms, self.now));
        let gate = match (slot, terms.effective_ceiling()) {
            (Some(_), _) => Gate::Wait,
            (None, None) => Gate::Open,
            (None, Some(_)) => Gate::Run { lease: 0, until: u64::MAX, exclusive: true, ceiling: None, wide: false },
        };
        let seed = at as u64 * 7919 + 13;
        let ceiling = if slot.is_none() { terms.effective_ceiling() } else { None };
        let mut guest = Guest::new(gate, ceiling);
        guest.account.note_idle(self.now);
        self.members.push(Member {
            tenant,
            device,
            context,
            slot,
            guest,
            program: Program::new(work, seed),
            terms,
            state: State::Running,
            turn: 0,
            held: None,
            part: 500 + self.noise.below(501),
            idle_wait: None,
            coming: VecDeque::new(),
            look: 0,
            looking: false,
            idle_since: None,
            told: false,
            rung: false,
            blind_marker: None,
            answers: Vec::new(),
            launched: 0,
            alive: true,
            partner: None,
            frozen_until: 0,
            is_lost: false,
            old_beat: (u64::MAX, 0),
            board: gate,
            had_before: HeldTime::default(),
        });
        self.host_at(at, self.now + 1_000 * (at as u64 + 1));
        at
    }

    /// Adds a context that works past the library: it has no slot, and its gate is open.
    pub fn unregistered(&mut self, tenant: u32, work: Work) -> usize {
        let m = self.member(tenant, 0, Terms::default(), work);
        if let (Some(arbiter), Some(slot)) = (&mut self.arbiter, self.members[m].slot.take()) {
            arbiter.leave_device(slot, self.now);
        }
        self.members[m].guest.gate = Gate::Open;
        m
    }

    /// Kills the member's process.
    pub fn kill(&mut self, m: usize) {
        let (device, context) = (self.members[m].device, self.members[m].context);
        self.members[m].alive = false;
        self.members[m].state = State::Stopped;
        self.members[m].turn += 1;
        self.members[m].look += 1;
        self.members[m].coming.clear();
        self.on_device(device, |device, _, _| device.kill(context));
        if let (Some(arbiter), Some(slot)) = (&mut self.arbiter, self.members[m].slot)
            && self.daemon_alive
        {
            arbiter.leave_device(slot, self.now);
            self.tick();
        }
    }

    /// The member's threads do not run for so long; its work on the device does.
    pub fn freeze(&mut self, m: usize, ns: u64) {
        self.members[m].frozen_until = self.now + ns;
    }

    /// The daemon's loop does not run for so long.
    pub fn stall(&mut self, ns: u64) {
        self.stalled_since = self.stalled_since.or(Some(self.now));
        self.stalled_until = self.now + ns;
        self.at(self.stalled_until, Event::Daemon(self.daemon_turn));
    }

    /// Another daemon begins after `ns` without any.
    pub fn restart(&mut self, ns: u64) {
        self.daemon_turn += 1;
        self.stall(ns);
        let devices = u16::try_from(self.devices.len()).unwrap();
        self.arbiter = Some(Arbiter::new(TimeConfig::default(), devices, self.now));
        for m in 0..self.members.len() {
            let member = &mut self.members[m];
            if member.alive && member.slot.take().is_some() {
                (member.is_lost, member.had_before) = (true, HeldTime::default());
                let later = self.now + self.noise.below(1_250 * MS);
                self.at(later, Event::Back(m));
            }
        }
    }

    /// When this event's thread runs again, if it does not run now.
    fn sleeps_until(&self, event: Event) -> Option<u64> {
        let until = match event {
            Event::Host(m, _) | Event::Look(m, _) | Event::Back(m) => self.members[m].frozen_until,
            Event::Ring(_) | Event::Daemon(_) => self.stalled_until,
            Event::Device(..) | Event::Signal(_) | Event::Visible(_) => 0,
        };
        (until > self.now).then_some(until)
    }

    /// A lost member says hello again: by a new slot, and with work that may be in flight.
    fn look_for_daemon(&mut self, m: usize) {
        let now = self.now;
        let member = &self.members[m];
        if !member.alive {
            return;
        }
        if now < self.stalled_until || !self.daemon_alive {
            let later = now + 1_000 * MS + self.noise.below(250 * MS);
            return self.at(later, Event::Back(m));
        }
        let (tenant, device, terms) = (member.tenant, member.device, member.terms);
        let Some(arbiter) = &mut self.arbiter else { return };
        if let Some(slot) = self.members[m].slot {
            let had = arbiter.leave_device(slot, now);
            self.members[m].had_before = self.members[m].had_before.plus(had);
        }
        let slot = arbiter.join(TenantId(tenant), DeviceId(u16::try_from(device).unwrap()), terms, now);
        arbiter.comes_back(slot, now);
        let member = &mut self.members[m];
        // A slot is told what its member measured since it took the slot.
        (member.slot, member.guest.busy, member.guest.finished) = (Some(slot), 0, 0);
        self.apply(m, Gate::Wait);
        self.tick();
        self.ring(m);
    }

    pub fn set(&mut self, tenant: u32, device: usize, terms: Terms) {
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.set(TenantId(tenant), DeviceId(u16::try_from(device).unwrap()), terms, self.now);
        }
        self.members.iter_mut().filter(|m| m.tenant == tenant).for_each(|m| m.terms = terms);
        self.tick();
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time.max(self.now), self.count, event)));
    }

    pub fn host_at(&mut self, m: usize, time: u64) {
        self.members[m].turn += 1;
        let turn = self.members[m].turn;
        self.at(time, Event::Host(m, turn));
    }

    pub fn look_at(&mut self, m: usize, time: u64) {
        self.members[m].look += 1;
        self.members[m].looking = true;
        let look = self.members[m].look;
        self.at(time, Event::Look(m, look));
    }

    pub fn run(&mut self, until: u64) {
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if time > until {
                break;
            }
            self.events.pop();
            self.stuck = if time > self.now { 0 } else { self.stuck + 1 };
            assert!(self.stuck < 100_000, "time stands still at {time}: {event:?}");
            self.now = self.now.max(time);
            if self.daemon_alive && self.now >= self.stalled_until {
                if let Some(since) = self.stalled_since.take()
                    && loss::is_gone(since, self.now)
                    && let Some(arbiter) = &mut self.arbiter
                {
                    arbiter.was_silent(since, self.now);
                }
                self.beat = self.now;
            }
            if let Some(later) = self.sleeps_until(event) {
                self.at(later, event);
                continue;
            }
            match event {
                Event::Device(d, generation) if self.devices[d].generation == generation => {
                    self.on_device(d, |_, _, _| ());
                }
                Event::Host(m, turn) if self.members[m].turn == turn => self.host(m),
                Event::Visible(m) => {
                    if let Some(op) = self.members[m].coming.pop_front() {
                        let (d, context) = (self.members[m].device, self.members[m].context);
                        self.on_device(d, |device, now, done| device.submit(context, op, now, done));
                    }
                }
                Event::Look(m, look) if self.members[m].look == look => self.look(m),
                Event::Ring(m) => self.ring(m),
                Event::Signal(m) => {
                    let (there, context) = (self.members[m].device, self.members[m].context);
                    self.on_device(there, |device, now, done| device.grant(context, now, done));
                }
                Event::Daemon(turn) if self.daemon_turn == turn => self.tick(),
                Event::Back(m) => self.look_for_daemon(m),
                _ => {}
            }
        }
        self.now = until;
        for d in 0..self.devices.len() {
            self.on_device(d, |_, _, _| ());
        }
    }

    /// Acts on a device and handles the operations that this completed.
    fn on_device(&mut self, d: usize, act: impl FnOnce(&mut Device, u64, &mut Vec<Done>)) {
        let mut done = std::mem::take(&mut self.done);
        self.devices[d].advance(self.now, &mut done);
        act(&mut self.devices[d], self.now, &mut done);
        self.devices[d].advance(self.now, &mut done);
        let mut signals = Vec::new();
        for Done { context, kind, at } in done.drain(..) {
            let m = self.by_context[d][context];
            if kind == Kind::Signal {
                signals.extend(self.members[m].partner);
            }
            reached(&mut self.members[m].guest, kind, at);
            if let Kind::Marker(marker) = kind
                && self.members[m].blind_marker == Some(marker)
            {
                self.members[m].blind_marker = None;
                self.members[m].guest.sees(at);
                if self.members[m].guest.gate == Gate::Wait && self.daemon_alive {
                    let ring = self.profile.ring;
                    self.at(self.now + ring, Event::Ring(m));
                }
            }
            let left = self.devices[d].contexts[context].queue.len();
            let wake = match self.members[m].state {
                State::Draining => left == 0,
                State::Full => left < DEPTH - 8,
                _ => false,
            };
            if wake {
                self.members[m].state = State::Running;
                let late = self.noise.late(self.profile.wake);
                self.host_at(m, self.now + late);
            }
        }
        self.done = done;
        let next = self.devices[d].next().unwrap_or(u64::MAX);
        if next != self.scheduled[d] || next <= self.now {
            self.scheduled[d] = next;
            self.devices[d].generation += 1;
            let generation = self.devices[d].generation;
            if next != u64::MAX {
                self.at(next, Event::Device(d, generation));
            }
        }
        for partner in signals {
            self.at(self.now, Event::Signal(partner));
        }
    }

    fn host(&mut self, m: usize) {
        self.members[m].state = State::Running;
        if self.members[m].guest.gate != Gate::Open {
            self.members[m].guest.reap();
        }
        loop {
            let step = match self.members[m].held.take() {
                Some(step) => step,
                None => self.members[m].program.next(),
            };
            match step {
                Step::Host(ns) => return self.host_at(m, self.now + ns),
                Step::Until(time) if time > self.now => {
                    let late = self.noise.late(self.profile.wake);
                    return self.host_at(m, time + late);
                }
                Step::Until(_) => {}
                Step::Answered => {
                    let due = self.members[m].program.due();
                    self.members[m].answers.push(self.now - due);
                }
                Step::Stop => {
                    self.members[m].state = State::Stopped;
                    return;
                }
                Step::Wait => {
                    let member = &self.members[m];
                    if !self.devices[member.device].contexts[member.context].queue.is_empty() {
                        self.members[m].state = State::Draining;
                        return;
                    }
                    return self.host_at(m, self.now + 1_500);
                }
                Step::Launch { .. } => return self.launch(m, step),
            }
        }
    }

    /// Without the daemon a member continues by its own account.
    fn notice_loss(&mut self, m: usize) {
        let mut is_gone = loss::is_gone(self.beat, self.now);
        let member = &mut self.members[m];
        if is_gone && member.old_beat.0 != self.beat {
            member.old_beat = (self.beat, self.now);
        }
        is_gone &= loss::stays_gone(member.old_beat.1, self.now);
        if member.is_lost && member.slot.is_some() && !is_gone {
            // The daemon only was slow.
            member.is_lost = false;
            member.guest.set_gate(member.board, self.now);
        }
        let member = &mut self.members[m];
        if !member.is_lost && (member.slot.is_none() || !is_gone) {
            return;
        }
        if !member.is_lost {
            member.is_lost = true;
            self.at(self.now + 300 * MS, Event::Back(m));
        }
        let member = &mut self.members[m];
        let gate = |ceiling| Gate::Run { lease: u64::MAX, until: u64::MAX, exclusive: false, ceiling, wide: false };
        let next = match loss::alone_mode(OnLoss::Local, member.terms.floor, member.terms.effective_ceiling()) {
            AloneMode::Unlimited => Gate::Open,
            AloneMode::Blocked => Gate::Wait,
            AloneMode::Ceiling(share) => {
                let mut account = Account::default();
                account.note_idle(self.now);
                gate(Some((share, account)))
            }
        };
        if !matches!(member.guest.gate, Gate::Run { lease: u64::MAX, .. } | Gate::Open) {
            member.guest.set_gate(next, self.now);
        }
    }

    fn launch(&mut self, m: usize, step: Step) {
        let Step::Launch { stream, ns, key, spin, release, signal } = step else { return };
        self.notice_loss(m);
        let now = self.now;
        let (d, context) = (self.members[m].device, self.members[m].context);
        if self.devices[d].contexts[context].queue.len() >= DEPTH {
            self.members[m].held = Some(step);
            self.members[m].state = State::Full;
            return;
        }
        let kind = if spin {
            Kind::Spin
        } else if release {
            Kind::Release
        } else if signal {
            Kind::Signal
        } else {
            Kind::Kernel
        };
        let op = Op { stream, kind, left: self.profile.kernel(ns) };
        if self.members[m].guest.gate == Gate::Open {
            let member = &mut self.members[m];
            (member.guest.blind, member.launched, member.guest.wants) = (true, member.launched + 1, false);
            // A marker of a former open gate stands before this launch.
            member.blind_marker = None;
            let launch = self.noise.call(self.profile.launch);
            let end = self.call(m, op, now, launch);
            return self.host_at(m, end);
        }
        self.unblind(m, stream);
        let guest = &mut self.members[m].guest;
        let cost = guest.cost(key);
        if guest.wants_idle(stream, cost) && !self.devices[d].contexts[context].idle(stream) {
            let since = *self.members[m].idle_wait.get_or_insert(now);
            if now < since + MAX_IDLE_WAIT {
                self.members[m].held = Some(step);
                let query = self.noise.call(self.profile.record);
                return self.host_at(m, now + query);
            }
        }
        self.members[m].idle_wait = None;
        let guest = &mut self.members[m].guest;
        let beside = guest.beside(stream, key);
        let admission = guest.admission(cost, beside, now);
        let aside = if vgpu_core::time::gate::goes_beside(cost, guest.keeper.in_flight(), beside) {
            guest.long(stream)
        } else {
            0
        };
        let ask = vgpu_core::time::gate::LaunchRequest { cost, gate: guest.gate, admission, beside, aside, now };
        let forced = match guest.keeper.ask_gate(&ask) {
            GateVerdict::Go => false,
            GateVerdict::Forced => true,
            GateVerdict::Wait(until) => {
                if cost.is_unknown() && beside {
                    guest.crosses();
                }
                if guest.keeper.is_in_doubt(&ask)
                    && !self.devices[d].contexts[context].idle(stream)
                    && let Some(marker) = self.members[m].guest.close(stream)
                {
                    self.mark(m, stream, marker);
                }
                return self.wait(m, step, until);
            }
        };
        self.members[m].rung = false;
        self.members[m].launched += 1;
        self.members[m].idle_since = None;
        let calls = [self.profile.record, self.profile.launch].map(|ns| self.noise.call(ns));
        let guest = &mut self.members[m].guest;
        let marker = |marker| Op { stream, kind: Kind::Marker(marker), left: 0 };
        let begin = guest.before(stream, cost, &self.devices[d].contexts[context], calls, now);
        let mut at = now;
        if let Some(begin) = begin {
            at = self.call(m, marker(begin), at, calls[0]);
        }
        at = self.call(m, op, at, calls[1]);
        if let Some(end) = self.members[m].guest.after(stream, key, cost, forced, now) {
            let record = self.noise.call(self.profile.record);
            at = self.call(m, marker(end), at, record);
            self.members[m].guest.was_recorded(stream, at);
        }
        self.host_at(m, at);
        if !self.members[m].looking && self.watched(m) {
            let look = self.members[m].guest.keeper.next_look(now);
            self.look_at(m, look);
        }
    }

    /// Starts a driver call of `ns`; after `part` of it the device sees `op`. Returns the call's end.
    fn call(&mut self, m: usize, op: Op, at: u64, ns: u64) -> u64 {
        self.members[m].coming.push_back(op);
        self.at(at + ns * self.members[m].part / 1000, Event::Visible(m));
        at + ns
    }

    /// After launches through an open gate, records an event marker that shows when they are complete.
    fn unblind(&mut self, m: usize, stream: usize) {
        let member = &self.members[m];
        if !member.guest.blind || member.blind_marker.is_some() {
            return;
        }
        if self.devices[member.device].contexts[member.context].queue.is_empty() {
            self.members[m].guest.blind = false;
            return;
        }
        let marker = self.members[m].guest.markers.len();
        self.members[m].guest.markers.push(u64::MAX);
        self.members[m].blind_marker = Some(marker);
        self.mark(m, stream, marker);
    }

    fn mark(&mut self, m: usize, stream: usize, marker: usize) {
        let (d, context) = (self.members[m].device, self.members[m].context);
        let op = Op { stream, kind: Kind::Marker(marker), left: 0 };
        self.on_device(d, |device, now, done| device.submit(context, op, now, done));
    }

    fn wait(&mut self, m: usize, step: Step, until: u64) {
        let now = self.now;
        let member = &mut self.members[m];
        member.held = Some(step);
        member.state = State::Gated;
        let allowed = matches!(member.guest.gate, Gate::Run { until, .. } if now < until);
        // While work is in flight the final balance is not known yet.
        let admitted = member.guest.keeper.in_flight() > 0
            || member.guest.admission(vgpu_core::time::account::cost::CostGuess::NEVER_MEASURED, false, now)
                == vgpu_core::time::account::Admission::Admit;
        if !member.guest.wants && member.guest.keeper.in_flight() == 0 {
            member.guest.since = now;
        }
        member.guest.wants = true;
        let held_back = !allowed || !admitted;
        if held_back && !member.rung {
            member.rung = true;
            if member.slot.is_some() {
                let ring = now + self.profile.ring;
                self.at(ring, Event::Ring(m));
            }
        }
        let late = self.noise.late(self.profile.wake);
        self.host_at(m, until + late);
    }

    /// True if another member waits for the device that this member holds or drains.
    pub fn watched(&self, m: usize) -> bool {
        match self.members[m].guest.gate {
            Gate::Open => false,
            Gate::Run { until, .. } => until != u64::MAX,
            Gate::Wait | Gate::Cap { .. } => true,
        }
    }

    /// The helper thread checks whether the work is done, and tells the daemon.
    fn look(&mut self, m: usize) {
        self.members[m].looking = false;
        if !self.watched(m) || !self.members[m].alive {
            return;
        }
        let now = self.now;
        let ring = now + self.profile.ring;
        let member = &mut self.members[m];
        member.guest.reap();
        member.guest.expire(now);
        let running = matches!(member.guest.gate, Gate::Run { .. });
        if member.guest.keeper.in_flight() == 0 {
            if member.state == State::Gated && running {
                // The program was waiting for room in the driver's queue.
                return self.host_at(m, now + 2_000);
            }
            if running {
                let since = *member.idle_since.get_or_insert(now);
                if now < since + LINGER {
                    self.look_at(m, since + LINGER);
                } else if !member.guest.wants {
                    self.at(ring, Event::Ring(m));
                }
            } else {
                self.at(ring, Event::Ring(m));
            }
            return;
        }
        let left = member.guest.keeper.reported_remaining(now);
        if !running && !member.told && left < BASE.handover {
            member.told = true;
            member.guest.taint();
            self.at(ring, Event::Ring(m));
        }
        let late = self.noise.below(2 * self.profile.wake);
        let next = self.members[m].guest.keeper.next_look(now);
        self.look_at(m, next + late);
    }
}
