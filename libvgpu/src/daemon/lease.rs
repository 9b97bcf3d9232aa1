//! The governor's memory of its lease of one device, and its report to the daemon. Under the governor's lock.
//!
//! The grant is kept until the slot's counter changes; checking that takes one load a launch. A launch is announced
//! before that load, and the daemon writes a shut gate before it reads the report: one of the two sees the other. The
//! work launched through an open gate is unknown, and the report says so until its streams were seen idle. Once the
//! gate has shut, the member pays for the time in which they were not. In [`open_gate`]: such work; in [`report`]: the
//! report, and when the daemon's bell is rung. Not here: the gate's rules ([`vgpu_core::time::gate`]), the queries of
//! streams ([`crate::time::governor`]), atomics that need no lock ([`DaemonLink`]).

mod open_gate;
mod report;

use super::link::DaemonLink;
use super::session::PagesSlot;
use super::{search, session};
use crate::driver::launch::MeteredLaunch;
use crate::driver::streams;
use shim_sys::cuda::CUevent;
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{LaunchGrant, UnreadSlot};
use vgpu_core::time::account::{Account, Admission};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::config::BASE;
use vgpu_core::time::gate::LaunchGate;
use vgpu_core::units::share::Share;

/// Most streams that are remembered after launches through an open gate, to ask each whether it is idle.
const MAX_OPEN_STREAMS: usize = 256;

/// The gate that applies to a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum LeaseWord {
    /// No daemon decides: only this process and its tenant's members.
    Own,
    /// The daemon: launch, and only count.
    Open,
    /// The daemon decides, and this is its gate.
    Said(Gate),
}

/// The effect of reading a changed grant.
#[derive(Clone, Copy, Default)]
pub struct LeaseChange {
    /// True if the work in flight was launched in another lease.
    pub taints: bool,
}

/// A stream that had launches through an open gate, which were not measured.
#[derive(Clone, Copy)]
pub struct OpenStream {
    /// The stream's key. [`NO_STREAM`](vgpu_core::memory::pool::NO_STREAM): the stream has ended, and its work in
    /// flight precedes the mark.
    pub place: streams::StreamLocation,
    /// The stream's first launch through the gate: names context and stream.
    pub launch: MeteredLaunch,
    /// Recorded after all work that went through that gate, once it had shut.
    pub mark: Option<CUevent>,
}

/// A stream's answer to whether its unmeasured work is complete.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StreamAnswer {
    /// The stream's work that went through the open gate is complete.
    Done,
    /// The stream's work that went through the open gate is not complete.
    Busy,
    /// The work that went through the open gate is not complete; this event, recorded now, follows it.
    Marked(CUevent),
    /// The stream cannot be asked here.
    Unasked,
}

/// A process's lease of one device.
pub struct Lease {
    place: Option<&'static PagesSlot>,
    /// The slot's sequence when it was last read.
    sequence: u32,
    gate: Gate,
    ceiling: Option<(Share, Account)>,
    /// The daemon is gone, or has given the slot to another member.
    lost: bool,
    /// When to check the daemon's heartbeat again.
    check: u64,
    /// Device time measured before the slot was taken.
    base: u64,
    submitted: u64,
    /// Launches since the slot was taken, except those through an open gate.
    launched: u64,
    /// Launches that an open gate admitted before this process had its slot on the board.
    opened: u64,
    finished: u64,
    /// As `finished`, at the cost that those launches have when nothing else slows them.
    known: u64,
    /// The undisturbed cost and the estimate of the launches measured last.
    last_known: (u64, u64),
    since: u64,
    last: u64,
    /// Reported: a thread waits at the gate.
    wants: bool,
    /// When the daemon's bell was last rung because a thread waits at the gate; 0: not.
    rung: u64,
    /// The bell must be rung once the lock is released.
    ring: bool,
    /// When the work in flight at the moment the gate shut must be done.
    closed: u64,
    /// The daemon was told that the work in flight is about to end.
    told: bool,
    /// The daemon was told that the work in flight has ended.
    done: bool,
    /// Since when the helper thread has seen nothing in flight; `None`: it has not.
    idle: Option<u64>,
    /// Launches went through an open gate, so the work in flight is unknown.
    blind: bool,
    /// The streams that had launches through the open gate.
    streams: Vec<OpenStream>,
    /// Some streams with such launches are not in `streams`, or cannot be asked.
    crowded: bool,
    /// A thread asks the streams whether their work is complete.
    asked: bool,
    /// The gate was open again since that thread began, so its answers concern earlier work.
    stale: bool,
    /// Marks that are no longer needed, with their contexts.
    unused: Vec<(usize, CUevent)>,
    /// Contexts that ended while a thread asked.
    gone: Vec<usize>,
    /// When the gate, open before, was found shut; 0: it is open.
    shut: u64,
    /// Up to when the unmeasured work of `streams` was charged; 0: the gate is open.
    paid: u64,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            place: None,
            sequence: 0,
            gate: Gate::Wait,
            ceiling: None,
            lost: false,
            check: 0,
            base: 0,
            submitted: 0,
            launched: 0,
            opened: 0,
            finished: 0,
            known: 0,
            last_known: (0, 0),
            since: 0,
            last: 0,
            wants: false,
            rung: 0,
            ring: false,
            closed: 0,
            told: false,
            done: false,
            idle: None,
            blind: false,
            streams: Vec::new(),
            crowded: false,
            asked: false,
            stale: false,
            unused: Vec::new(),
            gone: Vec::new(),
            shut: 0,
            paid: 0,
        }
    }
}

impl Lease {
    /// True if the daemon's gate applies here.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.place.is_some() && !self.lost
    }

    /// True if the grant last read is still valid.
    ///
    /// # Cost
    /// A load where there is a daemon; else none.
    #[inline]
    pub fn is_current(&self, post: &DaemonLink, now: u64) -> bool {
        match (self.place, post.pages_slot()) {
            (None, None) => true,
            (Some(place), Some(there)) => {
                core::ptr::eq(place, there)
                    && now < self.check
                    && (self.lost || place.board_slot().is_unchanged(self.sequence))
            }
            _ => false,
        }
    }

    /// Reads the daemon's current grant for this slot.
    #[cold]
    pub fn read_grant(&mut self, post: &DaemonLink, keeper: &mut LaunchGate, now: u64) -> LeaseChange {
        let mut changed = LeaseChange::default();
        let there = post.pages_slot();
        if there.map(core::ptr::from_ref) != self.place.map(core::ptr::from_ref) {
            let (blind, crowded, streams) = (self.blind, self.crowded, core::mem::take(&mut self.streams));
            // In another slot the gate is shut.
            (self.shut, self.paid) = if self.shut == 0 && blind { (now, now) } else { (self.shut, self.paid) };
            let (shut, paid, asked, unused) = (self.shut, self.paid, self.asked, core::mem::take(&mut self.unused));
            let (base, stale, gone) = (post.busy_ns(), asked, core::mem::take(&mut self.gone));
            let streams = Self { streams, asked, stale, unused, gone, ..Self::default() };
            *self =
                Self { place: there, base, opened: post.open_gate_launches(), blind, crowded, shut, paid, ..streams };
            // An odd counter, which no read returns.
            (self.sequence, self.since) = (u32::MAX, now);
            if there.is_some() {
                // A thread that still looked at the previous slot may have reported it as gone.
                post.note_regained();
                self.submitted = keeper.in_flight();
                self.write_report(post, keeper, now);
            }
        }
        let Some(place) = self.place else { return changed };
        if now >= self.check {
            self.check = now.saturating_add(BASE.heartbeat);
            if !session::is_present(place.session) {
                // Another daemon runs, and has refused this device or is about to be asked.
                self.lose_lease(post);
                search::is_refused(now);
            } else if !place.session.is_beating(now) {
                self.lose_lease(post);
            } else if self.lost {
                // The daemon was only slow; unless the slot is no longer ours, which shows below.
                (self.lost, self.sequence) = (false, u32::MAX);
                post.note_regained();
            }
        }
        if self.lost || place.board_slot().is_unchanged(self.sequence) {
            return changed;
        }
        let (epoch, member) = (place.session.welcome.epoch, place.session.welcome.member);
        let read = place.board_slot().read_grant(epoch).and_then(|grant| {
            let (sequence, allowed) = place.board_slot().read_allowed(epoch)?;
            if sequence == grant.sequence { Ok((grant, allowed)) } else { Err(UnreadSlot::Busy { sequence }) }
        });
        match read {
            Ok((grant, allowed)) if allowed.member == member => {
                changed = self.apply_grant(place, grant, keeper, now);
                // Resets the count: the daemon knows the time measured so far, or a report will tell it.
                let _ = post.take_unpaid(Share::WHOLE_DEVICE);
                post.note_open_gate((self.gate == Gate::Open).then_some(self.sequence));
                post.note_terms(&allowed);
            }
            Ok(_) | Err(UnreadSlot::Nobody { .. } | UnreadSlot::Ended { .. }) => self.lose_lease(post),
            // The slot was written meanwhile: its current state was not read, so it is no state to sleep on. An odd
            // counter is.
            Err(UnreadSlot::Busy { sequence }) => (self.sequence, self.gate) = (sequence | 1, Gate::Wait),
            Err(UnreadSlot::Unknown { sequence }) => (self.sequence, self.gate) = (sequence, Gate::Wait),
        }
        changed
    }

    fn lose_lease(&mut self, post: &DaemonLink) {
        if !self.lost {
            self.lost = true;
            post.note_lost();
            match self.place {
                Some(place) => search::note_lost(place.session),
                None => search::is_lost(),
            }
        }
    }

    fn apply_grant(&mut self, place: &PagesSlot, grant: LaunchGrant, keeper: &mut LaunchGate, now: u64) -> LeaseChange {
        let was_shut = self.is_shut();
        let before = self.gate;
        self.sequence = grant.sequence;
        keeper.set_limit(grant.in_flight);
        self.gate = match grant.gate {
            _ if grant.mode != Mode::Enforce => Gate::Open,
            Gate::Cap { until } => Gate::Cap { until: place.session.to_our_clock(until) },
            Gate::Run { lease, until, exclusive, ceiling, wide } => {
                self.ceiling = ceiling;
                Gate::Run { lease, until: place.session.to_our_clock(until), exclusive, ceiling: None, wide }
            }
            gate => gate,
        };
        (self.told, self.done, self.idle) = (false, false, None);
        if self.gate == Gate::Open {
            self.note_open();
        } else if self.blind && self.shut == 0 {
            (self.shut, self.paid) = (now, now);
        }
        let mut taints = false;
        if self.is_shut() && !was_shut {
            // Draining work gets its own expected time and half as much again, then the drain's allowance.
            self.closed = BASE.allow_drain(now, keeper.cautious_remaining(now));
        } else if !self.is_shut() {
            self.rung = 0;
            let number = |gate: Gate| if let Gate::Run { lease, .. } = gate { Some(lease) } else { None };
            taints = keeper.in_flight() > 0 && was_shut && number(before) != number(self.gate);
        }
        LeaseChange { taints }
    }

    /// True if nothing may be launched.
    pub fn is_shut(&self) -> bool {
        matches!(self.gate, Gate::Wait | Gate::Cap { .. })
    }

    /// The gate as it was last read.
    #[inline]
    pub fn current_word(&self) -> LeaseWord {
        match (self.is_on(), self.gate) {
            (false, _) => LeaseWord::Own,
            (true, Gate::Open) => LeaseWord::Open,
            (true, gate) => LeaseWord::Said(gate),
        }
    }

    /// True if the daemon decides, and its lease is none or has an end: other members or tenants wait for the device.
    pub fn is_bounded(&self) -> bool {
        self.is_on() && !matches!(self.gate, Gate::Run { until: u64::MAX, .. })
    }

    /// The answer of the grant's account, with the time measured since charged to it, and the work in flight counted
    /// as paid.
    #[inline]
    pub fn account_admission(&mut self, post: &DaemonLink, in_flight: u64, now: u64) -> Admission {
        let (true, Some(place), Some((share, account))) = (self.is_on(), self.place, &mut self.ceiling) else {
            return Admission::Admit;
        };
        let owed = post.take_unpaid(*share);
        if owed > 0 {
            account.pay_exactly(owed, *share);
        }
        match account.admit_beside(in_flight, *share, place.session.to_daemon_clock(now)) {
            Admission::Admit => Admission::Admit,
            Admission::WaitUntil(until) => Admission::WaitUntil(place.session.to_our_clock(until)),
        }
    }

    /// A launch is considered: if nothing is in flight and no thread waits, unused time expires.
    #[inline]
    pub fn note_considered(&mut self, in_flight: u64, now: u64) {
        if in_flight == 0 && !self.wants && self.is_on() {
            self.note_idle(now);
        }
    }

    fn note_idle(&mut self, now: u64) {
        self.since = now;
        if let (Some(place), Some((_, account))) = (self.place, &mut self.ceiling) {
            account.note_idle(place.session.to_daemon_clock(now));
        }
    }
}
