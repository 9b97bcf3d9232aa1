//! What the governor remembers of its lease of one device, and what it says of itself in the report. Under its lock.
//!
//! The grant is kept until the slot's counter changes, which is one load a launch. A launch is announced before that load,
//! and a gate that is shut is written before the daemon reads the report: one of the two sees the other. What was launched
//! through an open gate is not known: until its streams were seen idle the report says so, and since the gate has shut it
//! pays for the time in which they were not. In [`opened`]: that; in `said`: what stands in the report, and when the bell is
//! rung. Not here: what the gate makes of a grant ([`vgpu_core::gate`]), who asks the streams ([`crate::governor`]), atomics
//! that need no lock ([`super::Post`]).

mod opened;
mod said;

use super::{Place, Post, renew, session};
use crate::meter::Launch;
use crate::order;
use shim_sys::cuda::CUevent;
use vgpu_core::account::{Account, Admission};
use vgpu_core::arbiter::Gate;
use vgpu_core::gate::{Bounds, Keeper};
use vgpu_core::limits::Mode;
use vgpu_core::page::{Grant, Unread};
use vgpu_core::share::Share;

/// The daemon believes of no launch that it takes longer.
const LONGEST_NS: u64 = 2_000_000_000;
/// The beat is looked at so often.
const BEAT_NS: u64 = 50_000_000;
/// Streams that are remembered of launches through an open gate.
const STREAMS: usize = 256;
/// After the gate has shut, streams that nobody here can ask (those that are too many, and the default streams of other
/// threads) count as busy for so long.
const UNASKED_NS: u64 = 2_000_000_000;
/// A stream that was busy at a look and idle at the next one, so much later at most, worked until then.
const CLOSE_NS: u64 = 2_000_000;

/// What holds for a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Nobody speaks for the device but this process and its tenant's members.
    Own,
    /// The daemon: launch, and only count.
    Open,
    /// The daemon.
    Said(Gate),
}

/// A look at the grant changed it.
#[derive(Clone, Copy, Default)]
pub struct Changed {
    /// What is in flight was launched in another lease.
    pub taints: bool,
}

/// A stream that was launched into through an open gate.
#[derive(Clone, Copy)]
pub struct Stream {
    /// Which one; nobody's: it has ended, and what it had in flight is before the mark.
    pub place: order::Place,
    /// The launch.
    pub launch: Launch,
    /// Recorded behind all that went through that gate, after it had shut.
    pub mark: Option<CUevent>,
}

/// What one of them answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// What went through the open gate is complete.
    Done,
    /// It is not.
    Busy,
    /// It is not, and has this mark behind it now.
    Marked(CUevent),
    /// It cannot be asked here.
    Unasked,
}

/// A process's lease of one device.
pub struct Lease {
    place: Option<&'static Place>,
    /// Of the state that was read.
    sequence: u32,
    gate: Gate,
    ceiling: Option<(Share, Account)>,
    /// The daemon is gone, or has given the slot to somebody else.
    lost: bool,
    /// When to look at the beat again.
    check: u64,
    /// Device time measured before the slot was taken.
    base: u64,
    submitted: u64,
    /// Launches since the slot was taken, less those through an open gate; and of those, what was before.
    launched: u64,
    opened: u64,
    finished: u64,
    /// As `finished`, at what those launches take when nobody slows them.
    known: u64,
    /// Of the launches measured last, that and their estimate.
    last_known: (u64, u64),
    since: u64,
    last: u64,
    /// Said in the report: a thread stands at the gate. And when the bell was last rung for it; 0: not.
    wants: bool,
    rung: u64,
    /// To be rung when the lock is given back.
    ring: bool,
    /// When what was in flight as the gate closed has to be done.
    closed: u64,
    /// The daemon was told that the work is about to end; that it has ended.
    told: bool,
    done: bool,
    /// Since when nothing is in flight.
    idle: Option<u64>,
    /// Launches went through an open gate, into these streams.
    blind: bool,
    streams: Vec<Stream>,
    crowded: bool,
    /// A thread asks them; and the gate was open since, so that its answers are of what went before.
    asked: bool,
    stale: bool,
    /// Marks that say nothing any more, with their contexts; and contexts that ended while a thread asked.
    unused: Vec<(usize, CUevent)>,
    gone: Vec<usize>,
    /// When that gate was found shut; and up to when the work of those streams was paid for. 0: it is open.
    shut: u64,
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
    /// Whether the daemon's word is the one that counts here.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.place.is_some() && !self.lost
    }

    /// Whether what was read last still holds.
    ///
    /// # Cost
    /// A load where there is a daemon; else none.
    #[inline]
    pub fn stands(&self, post: &Post, now: u64) -> bool {
        match (self.place, post.place()) {
            (None, None) => true,
            (Some(place), Some(there)) => {
                core::ptr::eq(place, there) && now < self.check && (self.lost || place.board().stands(self.sequence))
            }
            _ => false,
        }
    }

    /// Reads what holds now.
    #[cold]
    pub fn look(&mut self, post: &Post, keeper: &Keeper, bounds: &mut Bounds, now: u64) -> Changed {
        let mut changed = Changed::default();
        let there = post.place();
        if there.map(core::ptr::from_ref) != self.place.map(core::ptr::from_ref) {
            let (blind, crowded, streams) = (self.blind, self.crowded, core::mem::take(&mut self.streams));
            // Of another slot the gate is shut.
            (self.shut, self.paid) = if self.shut == 0 && blind { (now, now) } else { (self.shut, self.paid) };
            let (shut, paid, asked, unused) = (self.shut, self.paid, self.asked, core::mem::take(&mut self.unused));
            let (base, stale, gone) = (post.busy(), asked, core::mem::take(&mut self.gone));
            let streams = Self { streams, asked, stale, unused, gone, ..Self::default() };
            *self = Self { place: there, base, opened: post.opened(), blind, crowded, shut, paid, ..streams };
            // An odd counter is none that was read.
            (self.sequence, self.since) = (u32::MAX, now);
            if there.is_some() {
                // Whoever still looked at the former slot may have said that it is gone.
                post.regain();
                self.submitted = keeper.in_flight();
                self.say(post, keeper, bounds, now);
            }
        }
        let Some(place) = self.place else { return changed };
        if now >= self.check {
            self.check = now.saturating_add(BEAT_NS);
            if !session::is_present(place.session) {
                // Another daemon is there, and has refused this device or is about to be asked.
                self.lose(post);
                renew::is_refused(now);
            } else if !place.session.lives(now) {
                self.lose(post);
            } else if self.lost {
                // It only was slow; unless the slot is not ours any more, which is found out below.
                (self.lost, self.sequence) = (false, u32::MAX);
                post.regain();
            }
        }
        if self.lost || place.board().stands(self.sequence) {
            return changed;
        }
        let (epoch, member) = (place.session.welcome.epoch, place.session.welcome.member);
        let read = place.board().grant(epoch).and_then(|grant| {
            let (sequence, allowed) = place.board().allowed(epoch)?;
            if sequence == grant.sequence { Ok((grant, allowed)) } else { Err(Unread::Busy { sequence }) }
        });
        match read {
            Ok((grant, allowed)) if allowed.member == member => {
                changed = self.apply(place, grant, keeper, bounds, now);
                // What was measured up to here the daemon knows, or will be told.
                let _ = post.owed();
                post.opens((self.gate == Gate::Open).then_some(self.sequence));
                post.note(&allowed);
            }
            Ok(_) | Err(Unread::Nobody { .. } | Unread::Ended { .. }) => self.lose(post),
            // Written meanwhile: what stands there now was not read, so that it is no state to sleep for. An odd counter is.
            Err(Unread::Busy { sequence }) => (self.sequence, self.gate) = (sequence | 1, Gate::Wait),
            Err(Unread::Unknown { sequence }) => (self.sequence, self.gate) = (sequence, Gate::Wait),
        }
        changed
    }

    fn lose(&mut self, post: &Post) {
        if !self.lost {
            self.lost = true;
            post.lose();
            match self.place {
                Some(place) => renew::lose(place.session),
                None => renew::is_lost(),
            }
        }
    }

    fn apply(&mut self, place: &Place, grant: Grant, keeper: &Keeper, bounds: &mut Bounds, now: u64) -> Changed {
        let was_shut = self.is_shut();
        let before = self.gate;
        self.sequence = grant.sequence;
        *bounds = Bounds { in_flight: grant.in_flight.max(1), ..Bounds::of_quantum(grant.quantum) };
        self.gate = match grant.gate {
            _ if grant.mode != Mode::Enforce => Gate::Open,
            Gate::Cap { until } => Gate::Cap { until: place.session.ours(until) },
            Gate::Run { lease, until, exclusive, ceiling, wide } => {
                self.ceiling = ceiling;
                Gate::Run { lease, until: place.session.ours(until), exclusive, ceiling: None, wide }
            }
            gate => gate,
        };
        (self.told, self.done, self.idle) = (false, false, None);
        if self.gate == Gate::Open {
            self.opens();
        } else if self.blind && self.shut == 0 {
            (self.shut, self.paid) = (now, now);
        }
        let mut taints = false;
        if self.is_shut() && !was_shut {
            // What drains has its own time, and the allowance.
            let left = keeper.lasts(now, bounds).min(LONGEST_NS);
            self.closed = now.saturating_add(left + left / 2 + bounds.drain);
        } else if !self.is_shut() {
            self.rung = 0;
            let number = |gate: Gate| if let Gate::Run { lease, .. } = gate { Some(lease) } else { None };
            taints = keeper.in_flight() > 0 && was_shut && number(before) != number(self.gate);
        }
        Changed { taints }
    }

    /// Whether nothing may be launched.
    pub fn is_shut(&self) -> bool {
        matches!(self.gate, Gate::Wait | Gate::Cap { .. })
    }

    /// What holds, as it was read.
    #[inline]
    pub fn word(&self) -> Word {
        match (self.is_on(), self.gate) {
            (false, _) => Word::Own,
            (true, Gate::Open) => Word::Open,
            (true, gate) => Word::Said(gate),
        }
    }

    /// The account of the grant, with what was measured since as good as paid, and beside what is in flight.
    #[inline]
    pub fn admission(&mut self, post: &Post, in_flight: u64, now: u64) -> Admission {
        let (true, Some(place), Some((share, account))) = (self.is_on(), self.place, &mut self.ceiling) else {
            return Admission::Admit;
        };
        let owed = post.owed();
        if owed > 0 {
            account.spend(owed, *share);
        }
        match account.admit_beside(in_flight, *share, place.session.theirs(now)) {
            Admission::Admit => Admission::Admit,
            Admission::WaitUntil(until) => Admission::WaitUntil(place.session.ours(until)),
        }
    }

    /// A launch is considered: where nothing is in flight and nobody waits, unused time is forgotten.
    #[inline]
    pub fn begins(&mut self, in_flight: u64, now: u64) {
        if in_flight == 0 && !self.wants && self.is_on() {
            self.rest(now);
        }
    }

    fn rest(&mut self, now: u64) {
        self.since = now;
        if let (Some(place), Some((_, account))) = (self.place, &mut self.ceiling) {
            account.rest(place.session.theirs(now));
        }
    }
}
