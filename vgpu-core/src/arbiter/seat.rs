//! A tenant on a device (a seat) and its members there (slots): what they are charged and what follows from it.
//!
//! Not here: who is next ([`super::order`]), the lease itself ([`super::device`]).

use super::decision::{Gate, Usage};
use super::order::Key;
use super::terms::{Config, DeviceId, SlotId, Tenant, Terms};
use crate::account::{Account, Admission, BURST_NS};
use crate::share::Share;
use std::collections::VecDeque;

/// A tenant on a device.
pub(super) type SeatIx = u32;

/// Virtual time is kept in sixteenths of a nanosecond of device time at weight 1.
const UNITS: u64 = 16;
/// Furthest that virtual time runs ahead of the least: what was given beyond the weight's part is repaid up to here.
const LEAD_NS: u64 = 10_000_000_000;
/// Each measurement forgets such a part of the longest one that is remembered.
const FORGETS: u64 = 256;
/// What is remembered of a launch is at most this: others wait for the next one that long, and half as long again.
const LONGEST_NS: u64 = 2_000_000_000;
/// Furthest that a floor is served ahead.
const AHEAD_NS: u64 = 50_000_000;

/// Where a seat is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Wants nothing.
    Idle,
    /// In the order.
    Ready,
    /// Used up until then.
    Capped(u64),
    /// Holds the device, or drains.
    Current,
    /// Drains beside others.
    Overdue,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub tenant: Tenant,
    pub device: DeviceId,
    pub terms: Terms,
    pub place: Place,
    pub virtual_time: u64,
    /// The moment at which the floor was last served in full.
    pub floor_zero: u64,
    pub account: Account,
    /// Members that stand at the gate, in turn.
    pub queue: VecDeque<SlotId>,
    pub members: Vec<SlotId>,
    /// Its member stopped by its own account while it held the device.
    pub tired: bool,
    /// It is granted nothing until this ends.
    pub paused: bool,
    /// When it last stopped wanting.
    pub slept: Option<u64>,
    /// All that was charged.
    pub charged: u64,
}

impl Seat {
    pub fn new(tenant: Tenant, device: DeviceId, terms: Terms, now: u64) -> Self {
        let mut account = Account::default();
        account.rest(now);
        Self {
            tenant,
            device,
            terms,
            place: Place::Idle,
            virtual_time: 0,
            floor_zero: now,
            account,
            queue: VecDeque::new(),
            members: Vec::new(),
            tired: false,
            paused: false,
            slept: None,
            charged: 0,
        }
    }

    fn units(&self, ns: u64) -> u64 {
        ns.saturating_mul(UNITS) / u64::from(self.terms.weight.max(1))
    }

    pub fn key(&self) -> Key {
        Key {
            class: self.terms.class,
            virtual_time: self.virtual_time,
            floor: self.terms.floor.map(|_| self.floor_zero),
        }
    }

    /// The key it will have when `ns` more are charged.
    pub fn key_after(&self, ns: u64) -> Key {
        let floor = self.terms.floor.map(|floor| self.floor_zero.saturating_add(wall(ns, floor.permille())));
        Key { class: self.terms.class, virtual_time: self.virtual_time.saturating_add(self.units(ns)), floor }
    }

    /// Something is wanted after a pause. What it was owed before is kept, less the length of the pause; after a long
    /// one sleeper credit is at most one quantum, and floors join the furthest behind.
    pub fn wake(&mut self, least: u64, floor: u64, now: u64, config: &Config) {
        let credit = self.units(config.quantum_of(&self.terms));
        let pause = self.slept.map_or(u64::MAX, |slept| now.saturating_sub(slept));
        let missed = self.virtual_time.saturating_add(self.units(pause));
        self.virtual_time = self.virtual_time.max(least.saturating_sub(credit).min(missed));
        self.floor_zero = self.floor_zero.max(floor.min(self.floor_zero.saturating_add(pause)));
        self.account.rest(now);
    }

    /// What it is ahead of others stays the same device time under another weight, and in another class, of which the least
    /// has been `before` in the one and is `after` in the other.
    pub fn regard(&mut self, terms: &Terms, before: u64, after: u64) {
        let ahead = self.virtual_time.saturating_sub(before);
        let ahead = ahead.saturating_mul(u64::from(self.terms.weight.max(1))) / u64::from(terms.weight.max(1));
        if terms.class != self.terms.class {
            self.virtual_time = after.saturating_add(ahead);
        } else if self.virtual_time > before {
            self.virtual_time = before.saturating_add(ahead);
        }
    }

    /// Pays for `ns` of device time, of which `order` moves it in the order.
    pub fn spend(&mut self, ns: u64, order: u64, least: u64, floor_clock: u64) {
        self.charged = self.charged.saturating_add(ns);
        let lead = least.saturating_add(self.units(LEAD_NS));
        self.virtual_time = self.virtual_time.saturating_add(self.units(order)).min(lead.max(self.virtual_time));
        if let Some(floor) = self.terms.floor {
            let ahead = floor_clock.saturating_add(AHEAD_NS).saturating_add(wall(order, floor.permille()));
            let zero = self.floor_zero.saturating_add(wall(order, floor.permille()));
            self.floor_zero = zero.min(ahead.max(self.floor_zero));
        }
        if let Some(limit) = self.terms.limit() {
            self.account.spend(ns, limit);
        }
    }

    /// May it have an open gate if nobody else is there?
    pub fn may_be_alone(&self) -> bool {
        self.terms.limit().is_none() && !self.paused
    }

    /// Has it nothing left under its ceiling, or is it paused?
    pub fn used_up(&self, now: u64) -> bool {
        self.paused || self.terms.limit().is_some() && (self.tired || self.account.admit(now) != Admission::Admit)
    }

    /// When a used-up tenant is worth a lease again: a lease of work, or half of the bucket if that is less. Never while it
    /// is paused.
    pub fn refill(&self, config: &Config) -> u64 {
        if self.paused {
            return u64::MAX;
        }
        let Some(limit) = self.terms.limit() else { return 0 };
        self.account.when(self.enough(limit, config), limit)
    }

    fn enough(&self, limit: Share, config: &Config) -> u64 {
        config.quantum_of(&self.terms).min(limit.of(BURST_NS) / 2)
    }

    /// Forgets what it used, and is worth one lease.
    pub fn begin_anew(&mut self, now: u64, config: &Config) {
        self.tired = false;
        self.account = match self.terms.limit() {
            Some(limit) => Account::holding(self.enough(limit, config), limit, now),
            None => Account::default(),
        };
        self.account.rest(now);
    }

    /// How long the balance lasts at full use; `u64::MAX` without a ceiling.
    pub fn lasts(&self, now: u64, config: &Config) -> u64 {
        let Some(limit) = self.terms.limit() else { return u64::MAX };
        let balance = u64::try_from(self.account.balance(limit, now)).unwrap_or(0);
        let rest = u64::from(1000 - limit.permille());
        (balance.saturating_mul(1000) / rest.max(1)).max(config.quantum / 4)
    }
}

/// Time in which a share of so many thousandths gives `ns`.
fn wall(ns: u64, permille: u16) -> u64 {
    ns.saturating_mul(1000) / u64::from(permille)
}

/// A member on a device.
#[derive(Debug)]
pub(super) struct Slot {
    pub seat: SeatIx,
    pub gate: Gate,
    pub joined: u64,
    /// What it said last.
    pub usage: Usage,
    pub queued: bool,
    /// Its work drains beside others since its allowance ended, then.
    pub overdue: Option<u64>,
    /// The device's sum of lost time up to which this slot's part is known, and that part as far as it was not yet
    /// taken off what was measured.
    pub lost_to: u64,
    pub lost: u64,
    /// The device was given on while its last work was about to end.
    pub trailing: bool,
    /// Its lease is over and its work is not, as it says.
    pub claim: Option<Claim>,
    /// Paid for leases beside its own overdue work, to be taken off what is measured of that.
    pub ahead: u64,
    /// As much as it was already moved back in the order for what is about to end.
    pub behind: u64,
    /// When it last had finished something.
    pub moved: u64,
    /// How long it has held the device, drained or been overdue.
    pub had: u64,
    /// It was given up because its own tenant waited: its work may have waited for just that, so that its length says nothing.
    pub is_let_go: bool,
    /// The most that was measured at once where that was expected to take far less: a launch may take it again. Forgotten
    /// slowly.
    pub longest: u64,
}

/// How long a member kept a device after its lease by saying that its work was not over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub from: u64,
    /// When the device was given on all the same; `None`: it was not.
    pub to: Option<u64>,
    /// What its tenant had been charged when it began.
    pub charged: u64,
}

impl Slot {
    pub fn new(seat: SeatIx, now: u64) -> Self {
        Self {
            seat,
            gate: Gate::Wait,
            joined: now,
            usage: Usage { in_flight: Some(0), since: now, ..Usage::default() },
            queued: false,
            overdue: None,
            lost_to: 0,
            lost: 0,
            trailing: false,
            claim: None,
            ahead: 0,
            behind: 0,
            moved: 0,
            had: 0,
            is_let_go: false,
            longest: 0,
        }
    }

    /// Takes a report; returns what was newly measured, newly estimated, and that at its undisturbed cost. Sums that shrink or outrun time count
    /// as what is possible.
    pub fn take(&mut self, said: Usage, now: u64) -> (u64, u64, u64) {
        let busy = said.busy.min(now.saturating_sub(self.joined)).max(self.usage.busy);
        let finished = said.finished.max(self.usage.finished);
        let known = said.known.max(self.usage.known);
        let delta = (busy - self.usage.busy, finished - self.usage.finished, known - self.usage.known);
        self.usage = Usage { busy, finished, known, since: said.since.min(now), ..said };
        delta
    }

    /// How long what it has before the device may go on.
    pub fn lasts(&self, now: u64) -> u64 {
        if self.overdue.is_some() { self.says(now) } else { self.says(now).max(self.longest) }
    }

    /// That, without what was learned. What was waited for in vain is waited for again if it has moved on since twice as long
    /// as a launch may take, which it does when it shares the device: some work never ends.
    pub fn says(&self, now: u64) -> u64 {
        match self.overdue {
            None => self.usage.expected(),
            Some(_) if now.saturating_sub(self.moved) < 2 * self.longest => self.longest,
            Some(_) => 0,
        }
    }

    /// What it has before the device is over or about to end. Of whoever had launches longer than `long` that cannot be told:
    /// it may be another one.
    pub fn ends_within(&self, overlap: u64, long: u64) -> bool {
        let told = if self.longest > long { 1 } else { overlap };
        self.usage.in_flight.is_some_and(|ns| ns < told)
    }

    /// So much of its work was measured at once, which was expected to take `expected`. Where that is about right there is
    /// nothing to be learned: it may have been a thousand launches.
    pub fn took(&mut self, ns: u64, expected: u64) {
        let launch = if ns > expected.saturating_add(expected / 4) { ns.min(LONGEST_NS) } else { 0 };
        self.longest = launch.max(self.longest - self.longest.div_ceil(FORGETS));
    }

    pub fn idle(&self) -> bool {
        !self.usage.wants && self.usage.in_flight == Some(0)
    }

    /// Until when its tenant gets nothing for what it has before the device; `None`: it holds nobody up.
    pub fn holds_up(&self, now: u64, config: &Config) -> Option<u64> {
        self.overdue.map(|since| since.saturating_add(config.stuck)).filter(|&end| end > now)
    }
}
