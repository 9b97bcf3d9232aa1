//! A tenant on a device (a seat) and its members there (slots): their charges, and the effects of a charge.
//!
//! Not here: the choice of the next ([`super::order`]), the lease itself ([`super::device`]).

use super::decision::{Gate, Usage};
use super::order::Key;
use super::terms::{Config, DeviceId, SlotId, Tenant, Terms};
use crate::time::account::{Account, Admission, BURST_NS};
use crate::units::share::Share;
use std::collections::VecDeque;

/// Index of a tenant on a device.
pub(super) type SeatIx = u32;

/// Virtual time is kept in sixteenths of a nanosecond of device time at weight 1.
const UNITS: u64 = 16;
/// The furthest that virtual time runs ahead of the least: excess beyond the weight's part is repaid up to this.
const LEAD_NS: u64 = 10_000_000_000;
/// Each measurement lowers the remembered longest launch by one part in this many.
const FORGETS: u64 = 256;
/// A remembered launch counts for at most this: others wait for the next one that long, and half as long again.
const LONGEST_NS: u64 = 2_000_000_000;
/// The furthest that a floor is served ahead.
const AHEAD_NS: u64 = 50_000_000;

/// State of a tenant on a device, with regard to the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The tenant does not want the device.
    Idle,
    /// The tenant waits for a lease.
    Ready,
    /// The tenant's ceiling is used up until this time.
    Capped(u64),
    /// The tenant holds the device, or its work drains.
    Current,
    /// The tenant's work is overdue and drains next to others' work.
    Overdue,
}

#[derive(Debug)]
pub(super) struct Seat {
    pub tenant: Tenant,
    pub device: DeviceId,
    pub terms: Terms,
    pub place: Place,
    pub virtual_time: u64,
    /// When the tenant's floor (guaranteed share) was last served in full.
    pub floor_zero: u64,
    pub account: Account,
    /// Members that wait at the gate, in turn.
    pub queue: VecDeque<SlotId>,
    pub members: Vec<SlotId>,
    /// The account in the tenant's own member stopped it while it held the device.
    pub tired: bool,
    /// Paused: it gets nothing until it is resumed.
    pub paused: bool,
    /// When the tenant last stopped wanting the device.
    pub slept: Option<u64>,
    /// All device time charged to the tenant here, in ns.
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

    /// The key that it will have after a charge of `ns`.
    pub fn key_after(&self, ns: u64) -> Key {
        let floor = self.terms.floor.map(|floor| self.floor_zero.saturating_add(wall(ns, floor.permille())));
        Key { class: self.terms.class, virtual_time: self.virtual_time.saturating_add(self.units(ns)), floor }
    }

    /// Notes that the tenant wants the device again after a pause. The length of the pause reduces its
    /// earlier due. After a long pause its credit is at most one quantum, and its floor joins the one furthest behind.
    pub fn wake(&mut self, least: u64, floor: u64, now: u64, config: &Config) {
        let credit = self.units(config.quantum_of(&self.terms));
        let pause = self.slept.map_or(u64::MAX, |slept| now.saturating_sub(slept));
        let missed = self.virtual_time.saturating_add(self.units(pause));
        self.virtual_time = self.virtual_time.max(least.saturating_sub(credit).min(missed));
        self.floor_zero = self.floor_zero.max(floor.min(self.floor_zero.saturating_add(pause)));
        self.account.rest(now);
    }

    /// Keeps its lead over others at the same device time when its weight or class changes. `before` is the least
    /// virtual time of the old class, `after` that of the new one.
    pub fn regard(&mut self, terms: &Terms, before: u64, after: u64) {
        let ahead = self.virtual_time.saturating_sub(before);
        let ahead = ahead.saturating_mul(u64::from(self.terms.weight.max(1))) / u64::from(terms.weight.max(1));
        if terms.class != self.terms.class {
            self.virtual_time = after.saturating_add(ahead);
        } else if self.virtual_time > before {
            self.virtual_time = before.saturating_add(ahead);
        }
    }

    /// Charges `ns` of device time, of which `order` counts in the order.
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

    /// True if the tenant may launch without a lease and unmeasured (an open gate) when no other tenant is here.
    pub fn may_be_alone(&self) -> bool {
        self.terms.limit().is_none() && !self.paused
    }

    /// True if its ceiling is used up, or it is paused.
    pub fn used_up(&self, now: u64) -> bool {
        self.paused || self.terms.limit().is_some() && (self.tired || self.account.admit(now) != Admission::Admit)
    }

    /// When a tenant whose ceiling is used up may have a lease again: with a balance of one lease, or half of the
    /// burst if that is less. Never while it is paused.
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

    /// Resets its account to a balance of one lease.
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

/// Time in which a share of this many thousandths yields `ns`.
fn wall(ns: u64, permille: u16) -> u64 {
    ns.saturating_mul(1000) / u64::from(permille)
}

/// A member on a device.
#[derive(Debug)]
pub(super) struct Slot {
    pub seat: SeatIx,
    pub gate: Gate,
    pub joined: u64,
    /// The member's last report.
    pub usage: Usage,
    pub queued: bool,
    /// When the allowance of the member's drain ended, while its work still drains next to others.
    pub overdue: Option<u64>,
    /// The device's total lost time up to which this slot's part is known.
    pub lost_to: u64,
    /// Lost time that was not yet subtracted from its measurements.
    pub lost: u64,
    /// The device passed to the next member while its last work was about to end.
    pub trailing: bool,
    /// The member's claim: it reports that its work goes on after its lease.
    pub claim: Option<Claim>,
    /// Device time charged in advance for leases next to the member's own overdue work; to be subtracted from the
    /// measurement of that work.
    pub ahead: u64,
    /// Device time by which it already moved back in the order, for work that is about to end.
    pub behind: u64,
    /// When the member last completed work.
    pub moved: u64,
    /// How long the member has held the device, drained or been overdue.
    pub had: u64,
    /// The member's drain was given up because its own tenant waited. Its work may have waited for that tenant, so
    /// its length teaches nothing.
    pub is_let_go: bool,
    /// The longest single measurement that far exceeded its estimate: a launch may take that long again. It decays
    /// slowly.
    pub longest: u64,
}

/// How long a member kept a device after its lease by claiming unfinished work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub from: u64,
    /// When the device was granted to others although the work was not over; `None`: it was not.
    pub to: Option<u64>,
    /// The tenant's total charge when the claim began.
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

    /// Takes a report. Returns the newly measured time, the newly completed estimates, and those at undisturbed cost.
    /// Sums that shrink or outrun time are clamped to the possible.
    pub fn take(&mut self, said: Usage, now: u64) -> (u64, u64, u64) {
        let busy = said.busy.min(now.saturating_sub(self.joined)).max(self.usage.busy);
        let finished = said.finished.max(self.usage.finished);
        let known = said.known.max(self.usage.known);
        let delta = (busy - self.usage.busy, finished - self.usage.finished, known - self.usage.known);
        self.usage = Usage { busy, finished, known, since: said.since.min(now), ..said };
        delta
    }

    /// How long its work in flight may still take.
    pub fn lasts(&self, now: u64) -> u64 {
        if self.overdue.is_some() { self.says(now) } else { self.says(now).max(self.longest) }
    }

    /// How long the work may still take by the member's own report, without the learned length. Overdue work counts
    /// for its learned length while the member completed something within the last twice that length, as work that
    /// shares the device does. Other overdue work counts for nothing: some work never ends.
    pub fn says(&self, now: u64) -> u64 {
        match self.overdue {
            None => self.usage.expected(),
            Some(_) if now.saturating_sub(self.moved) < 2 * self.longest => self.longest,
            Some(_) => 0,
        }
    }

    /// True if its work on the device is over or about to end. For a member that had launches longer than `long` an
    /// end cannot be predicted: this may be another one.
    pub fn ends_within(&self, overlap: u64, long: u64) -> bool {
        let told = if self.longest > long { 1 } else { overlap };
        self.usage.in_flight.is_some_and(|ns| ns < told)
    }

    /// Learns from `ns` of its work, measured at once and expected to take `expected`. A measurement near the
    /// estimate teaches nothing: it may have been a thousand launches.
    pub fn took(&mut self, ns: u64, expected: u64) {
        let launch = if ns > expected.saturating_add(expected / 4) { ns.min(LONGEST_NS) } else { 0 };
        self.longest = launch.max(self.longest - self.longest.div_ceil(FORGETS));
    }

    pub fn idle(&self) -> bool {
        !self.usage.wants && self.usage.in_flight == Some(0)
    }

    /// Until when its overdue work keeps its tenant from a lease; `None`: it does not.
    pub fn holds_up(&self, now: u64, config: &Config) -> Option<u64> {
        self.overdue.map(|since| since.saturating_add(config.stuck)).filter(|&end| end > now)
    }
}
