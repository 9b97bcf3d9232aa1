//! A tenant on a device (a seat) and its members there (slots): their charges, and the effects of a charge.
//!
//! Not here: the choice of the next ([`super::order`]), the lease itself ([`super::device`]).

use super::audit::HeldTime;
use super::decision::{Gate, MemberUsage};
use super::order::SeatKey;
use super::terms::{DeviceId, SlotId, TenantId, Terms, quantum_of};
use crate::time::account::{Account, Admission, TICKS_PER_NS};
use crate::time::config::{BASE, BURST_NS, PROMISED_OVER_NS, TimeConfig, is_longer};
use crate::time::recent_most::RecentMost;
use crate::time::virtual_time::rejoin_time;
use crate::units::share::Share;
use std::collections::VecDeque;

/// Index of a tenant on a device.
pub(super) type SeatIx = u32;

/// The furthest that virtual time runs ahead of the least: excess beyond the weight's part is repaid up to this.
const MAX_ADVANCE_NS: u64 = PROMISED_OVER_NS;

/// State of a tenant on a device, with regard to the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeatPlace {
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
    pub tenant: TenantId,
    pub device: DeviceId,
    pub terms: Terms,
    pub place: SeatPlace,
    /// In ticks ([`TICKS_PER_NS`]) of device time at weight 1.
    pub virtual_time: u64,
    /// When the tenant's floor (guaranteed share) was last served in full.
    pub floor_zero: u64,
    /// The tenant was behind its floor when the last lease began or was renewed, and others waited.
    pub for_floor: bool,
    pub account: Account,
    /// Members that wait at the gate, in turn.
    pub queue: VecDeque<SlotId>,
    pub members: Vec<SlotId>,
    /// The account in the tenant's own member stopped it while it held the device.
    pub tired: bool,
    /// Paused: it gets nothing until it is resumed.
    pub paused: bool,
    /// When the tenant last stopped wanting the device, or was paused while it wanted it.
    pub slept: Option<u64>,
    /// When debts from waits across devices were last forgiven.
    pub forgiven: Option<u64>,
    /// All device time charged to the tenant here, in ns.
    pub charged: u64,
    /// Device time measured here and not charged, because others used the device at the same time, in ns.
    pub excused: u64,
    /// Since when the tenant has waited without the device; `None`: it does not wait.
    pub waits_since: Option<u64>,
    /// Time in which the tenant waited without the device, in ns, up to `waits_since`.
    pub waited: u64,
}

impl Seat {
    pub fn new(tenant: TenantId, device: DeviceId, terms: Terms, now: u64) -> Self {
        let mut account = Account::default();
        account.note_idle(now);
        Self {
            tenant,
            device,
            terms,
            place: SeatPlace::Idle,
            virtual_time: 0,
            floor_zero: now,
            for_floor: false,
            account,
            queue: VecDeque::new(),
            members: Vec::new(),
            tired: false,
            paused: false,
            slept: None,
            forgiven: None,
            charged: 0,
            excused: 0,
            waits_since: None,
            waited: 0,
        }
    }

    fn to_units(&self, ns: u64) -> u64 {
        ns.saturating_mul(TICKS_PER_NS) / u64::from(self.terms.weight.max(1))
    }

    /// Device time that was charged or measured here, in ns: the evidence that a lease or a drain was used.
    pub const fn accounted_ns(&self) -> u64 {
        self.charged.saturating_add(self.excused)
    }

    pub fn order_key(&self) -> SeatKey {
        self.key_at(self.virtual_time, self.floor_zero)
    }

    /// The order key after a charge; the arguments are those of [`Self::serve_floor`].
    pub fn key_after(&self, order: u64, work: u64, floor_clock: u64) -> SeatKey {
        let (floor_zero, beyond) = self.serve_floor(order, work, floor_clock);
        self.key_at(self.time_after(beyond), floor_zero)
    }

    /// Its virtual time after `ns` that count by weight.
    pub fn time_after(&self, ns: u64) -> u64 {
        self.virtual_time.saturating_add(self.to_units(ns))
    }

    fn key_at(&self, virtual_time: u64, floor_zero: u64) -> SeatKey {
        SeatKey { class: self.terms.class, virtual_time, floor: self.terms.floor.map(|_| floor_zero) }
    }

    /// Splits a charge between the tenant's floor and its virtual time. `order`: ns that count in the order of tenants.
    /// `work`: ns of device time, which may be more or less than `order`.
    ///
    /// The floor takes its deficit first, and the rest counts by weight. In a lease for the floor, `work` beyond the
    /// deficit serves the floor ahead. Otherwise the floor would be behind again at once after each launch longer than
    /// the deficit, and the tenant would get more than its floor.
    ///
    /// Returns the new `floor_zero`, and the ns that count by weight.
    fn serve_floor(&self, order: u64, work: u64, floor_clock: u64) -> (u64, u64) {
        let Some(floor) = self.terms.floor else { return (self.floor_zero, order) };
        let ahead = if self.for_floor { wall_time(work, floor.as_permille()).min(BASE.ageing) } else { 0 };
        let all = wall_time(order, floor.as_permille());
        let served = all.min(floor_clock.saturating_add(ahead).saturating_sub(self.floor_zero));
        let beyond = if served == all { 0 } else { order.saturating_sub(floor.part_of(served)) };
        (self.floor_zero.saturating_add(served), beyond)
    }

    /// Notes that the tenant wants the device again after a pause. The length of the pause reduces its
    /// earlier due. After a long pause its credit is at most one quantum, and its floor joins the one furthest behind.
    pub fn wake_seat(&mut self, least: u64, floor: u64, now: u64, config: &TimeConfig) {
        let credit = self.to_units(quantum_of(config, &self.terms));
        let pause = self.slept.map_or(u64::MAX, |slept| now.saturating_sub(slept));
        self.virtual_time = rejoin_time(self.virtual_time, least, credit, self.to_units(pause));
        self.floor_zero = self.floor_zero.max(floor.min(self.floor_zero.saturating_add(pause)));
        self.account.note_idle(now);
    }

    /// Moves its virtual time between these two, or one quantum before.
    pub fn join_between(&mut self, least: u64, most: u64, config: &TimeConfig) {
        let credit = self.to_units(quantum_of(config, &self.terms));
        self.virtual_time = self.virtual_time.min(most).max(least.saturating_sub(credit));
    }

    /// Keeps its lead over others at the same device time when its weight or class changes. `before` is the least
    /// virtual time of the old class, `after` that of the new one.
    pub fn apply_terms(&mut self, terms: &Terms, before: u64, after: u64) {
        let ahead = self.virtual_time.saturating_sub(before);
        let ahead = ahead.saturating_mul(u64::from(self.terms.weight.max(1))) / u64::from(terms.weight.max(1));
        if terms.class != self.terms.class {
            self.virtual_time = after.saturating_add(ahead);
        } else if self.virtual_time > before {
            self.virtual_time = before.saturating_add(ahead);
        }
    }

    /// Charges `ns` of device time; `order` ns count in the order of tenants.
    pub fn spend_time(&mut self, ns: u64, order: u64, least: u64, floor_clock: u64) {
        self.charged = self.charged.saturating_add(ns);
        let (floor_zero, beyond) = self.serve_floor(order, ns, floor_clock);
        let most = least.saturating_add(self.to_units(MAX_ADVANCE_NS));
        self.virtual_time = self.time_after(beyond).min(most.max(self.virtual_time));
        self.floor_zero = floor_zero;
        if let Some(limit) = self.terms.effective_ceiling() {
            self.account.pay_exactly(ns, limit);
        }
    }

    /// True if the tenant may launch without a lease and unmeasured (an open gate) when no other tenant is here.
    pub fn may_be_alone(&self) -> bool {
        self.terms.effective_ceiling().is_none() && !self.paused
    }

    /// True if its ceiling is used up, or it is paused.
    pub fn used_up(&self, now: u64) -> bool {
        self.paused
            || self.terms.effective_ceiling().is_some()
                && (self.tired || self.account.admit_launch(now) != Admission::Admit)
    }

    /// True if it is not paused and owes less than `most` ns of device time under its ceiling.
    pub fn may_owe(&self, most: u64, now: u64) -> bool {
        let owes_less = |limit| self.account.balance_at(limit, now).saturating_add_unsigned(most) > 0;
        !self.paused && self.terms.effective_ceiling().is_some_and(owes_less)
    }

    /// When a tenant whose ceiling is used up may have a lease again: with a balance of one lease, or half of the
    /// burst if that is less. Never while it is paused.
    pub fn refill_time(&self, config: &TimeConfig) -> u64 {
        if self.paused {
            return u64::MAX;
        }
        let Some(limit) = self.terms.effective_ceiling() else { return 0 };
        self.account.when_balance_is(self.enough_for_lease(limit, config), limit)
    }

    fn enough_for_lease(&self, limit: Share, config: &TimeConfig) -> u64 {
        quantum_of(config, &self.terms).min(limit.part_of(BURST_NS) / 2)
    }

    /// Resets its account to a balance of one lease.
    pub fn begin_anew(&mut self, now: u64, config: &TimeConfig) {
        self.tired = false;
        self.account = match self.terms.effective_ceiling() {
            Some(limit) => Account::with_balance(self.enough_for_lease(limit, config), limit, now),
            None => Account::default(),
        };
        self.account.note_idle(now);
    }

    /// How long the balance lasts at full use; `u64::MAX` without a ceiling.
    pub fn balance_lasts(&self, now: u64, config: &TimeConfig) -> u64 {
        let Some(limit) = self.terms.effective_ceiling() else { return u64::MAX };
        let balance = u64::try_from(self.account.balance_at(limit, now)).unwrap_or(0);
        let rest = u64::from(1000 - limit.as_permille());
        (balance.saturating_mul(1000) / rest.max(1)).max(config.quantum / 4)
    }
}

/// Time in which a share of this many thousandths yields `ns`.
fn wall_time(ns: u64, permille: u16) -> u64 {
    ns.saturating_mul(1000) / u64::from(permille)
}

/// A member on a device.
#[derive(Debug)]
pub(super) struct MemberSlot {
    pub seat: SeatIx,
    pub gate: Gate,
    pub joined: u64,
    /// The member's last report.
    pub usage: MemberUsage,
    pub queued: bool,
    /// When the allowance of the member's drain ended, while its work still drains next to others.
    pub overdue: Option<u64>,
    /// The device's total lost time up to which this slot's part is known.
    pub lost_to: u64,
    /// Lost time that was not yet subtracted from its measurements.
    pub lost: u64,
    /// When the member last measured device time or got the device, and the device's total lost time then.
    pub measured_to: (u64, u64),
    /// The member's claim: it reports that its work goes on after its lease.
    pub claim: Option<LateClaim>,
    /// Device time charged in advance for leases next to the member's own overdue work; to be subtracted from the
    /// measurement of that work.
    pub ahead: u64,
    /// When the member last completed work.
    pub moved: u64,
    pub had: HeldTime,
    /// The member needed no lease or was under another arbiter, and has not reported the length of its work in flight
    /// since.
    pub is_unmeasured: bool,
    /// Time held up to the last report.
    pub held_before: u64,
    /// The driver's samples show more work than the member reports: it pays for the time in which it holds the device.
    pub pays_held_time: bool,
    /// The member's drain was given up because its own tenant waited. Its work may have waited for that tenant, so
    /// its length teaches nothing.
    pub is_let_go: bool,
    /// The longest single measurement that far exceeded its estimate: a launch may take that long again.
    pub longest: RecentMost,
}

/// How long a member kept a device after its lease by claiming unfinished work.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateClaim {
    pub from: u64,
    /// When the device was granted to others although the work was not over; `None`: it was not.
    pub to: Option<u64>,
    /// The tenant's accounted time when the claim began.
    pub accounted: u64,
}

impl MemberSlot {
    pub fn new(seat: SeatIx, now: u64) -> Self {
        Self {
            seat,
            gate: Gate::Wait,
            joined: now,
            usage: MemberUsage { in_flight: Some(0), since: now, ..MemberUsage::default() },
            queued: false,
            overdue: None,
            lost_to: 0,
            lost: 0,
            measured_to: (now, 0),
            claim: None,
            ahead: 0,
            moved: 0,
            had: HeldTime::default(),
            is_unmeasured: false,
            held_before: 0,
            pays_held_time: false,
            is_let_go: false,
            longest: RecentMost::default(),
        }
    }

    /// Takes a report. Returns the newly measured time, the newly completed estimates, and those at undisturbed cost.
    /// Sums that shrink or outrun time are clamped to the possible.
    pub fn take_report(&mut self, said: MemberUsage, now: u64) -> (u64, u64, u64) {
        let busy = said.busy.min(now.saturating_sub(self.joined)).max(self.usage.busy);
        let finished = said.finished.max(self.usage.finished);
        let known = said.known.max(self.usage.known);
        let delta = (busy - self.usage.busy, finished - self.usage.finished, known - self.usage.known);
        self.usage = MemberUsage { busy, finished, known, since: said.since.min(now), ..said };
        delta
    }

    /// Counts `ns` in which the member held the device.
    pub fn hold_for(&mut self, ns: u64) {
        self.had = match self.is_unmeasured {
            true => self.had.excused_for(ns),
            false => self.had.plus(HeldTime { held: ns, reported: 0, awaited: ns }),
        };
    }

    /// Notes a report of `busy` ns of device time, for launches expected to take `finished`, in the audit's sums.
    /// Returns the time held since the last report, less the part of it that the member lost to others; `lost` is the
    /// device's total.
    pub fn note_report(&mut self, (busy, finished): (u64, u64), lost: u64) -> u64 {
        let held = self.had.held - self.held_before;
        self.held_before = self.had.held;
        self.had.reported = self.had.reported.saturating_add(busy);
        self.is_unmeasured &= self.usage.in_flight.is_none();
        if busy > 0 || finished > 0 || self.usage.in_flight == Some(0) {
            self.had.awaited = 0;
        }
        held.saturating_sub(lost - self.lost_to)
    }

    /// The most that others had of `busy` ns measured now: their part of the time since the last measurement, in which
    /// the member was perhaps idle for a while. `lost` is the device's total.
    pub fn foreign_part(&self, busy: u64, lost: u64, now: u64) -> u64 {
        let (span, foreign) = (now - self.measured_to.0, lost - self.measured_to.1);
        let part = u128::from(busy) * u128::from(foreign) / u128::from(span.max(1));
        self.lost.min(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// How long its work in flight may still take.
    pub fn work_lasts(&self, now: u64) -> u64 {
        if self.overdue.is_some() {
            self.reported_remaining(now)
        } else {
            self.reported_remaining(now).max(self.longest.get())
        }
    }

    /// How long the work may still take by the member's own report, without the learned length. Overdue work counts
    /// for its learned length while the member completed something within the last twice that length, as work that
    /// shares the device does. Other overdue work counts for nothing: some work never ends.
    pub fn reported_remaining(&self, now: u64) -> u64 {
        match self.overdue {
            None => self.usage.expected_ns(),
            Some(_) if now.saturating_sub(self.moved) < 2 * self.longest.get() => self.longest.get(),
            Some(_) => 0,
        }
    }

    /// True if its work on the device is over or about to end.
    pub fn ends_within(&self, handover: u64) -> bool {
        self.usage.in_flight.is_some_and(|ns| ns < handover)
    }

    /// Learns from `ns` of its work, measured at once and expected to take `expected`. A measurement near the
    /// estimate teaches nothing: it may have been a thousand launches.
    pub fn learn_stretch(&mut self, ns: u64, expected: u64) {
        self.longest.note(if is_longer(ns, expected) { ns.min(BASE.stuck) } else { 0 });
    }

    /// Since when the member has wanted the device or had work in flight; `now`, if it has neither.
    pub fn active_since(&self, now: u64) -> u64 {
        if self.is_idle() { now } else { self.usage.since }
    }

    pub fn is_idle(&self) -> bool {
        !self.usage.wants && self.usage.in_flight == Some(0)
    }

    /// Until when its overdue work keeps its tenant from a lease; `None`: it does not.
    pub fn holds_up(&self, now: u64, config: &TimeConfig) -> Option<u64> {
        self.overdue.map(|since| since.saturating_add(config.stuck)).filter(|&end| end > now)
    }
}
