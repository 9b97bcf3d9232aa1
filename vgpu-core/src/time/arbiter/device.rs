//! One device: its holder, and its way from one holder to the next, decision by decision.
//!
//! ```text
//! Free ──pick──► Held ──over, yielded, used up, revoked──► Drain ──nothing in flight──► Free
//!   └──alone, no ceiling──► Open ──another tenant wants─────┘  └──longer than R──► overdue, Free
//! ```
//!
//! Not here: leases ([`super::lease`]), open gates ([`super::alone`]), drains and their charges ([`super::drain`]),
//! the choice of the next ([`super::order`]).

use super::audit::ClaimDoubt;
use super::decision::{Decision, Gate, MemberPages};
use super::gang::GangKey;
use super::order::SeatOrder;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, DeviceSharing, SlotId};
use super::{Arbiter, index};
use crate::time::account::cost::MAX_STRETCH;

/// State of the device: free, used without leases, or held by one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DevicePhase {
    Free,
    /// No leases: all members launch at the same time ([`super::common`]).
    Common,
    Open {
        seat: SeatIx,
    },
    Held {
        seat: SeatIx,
        slot: SlotId,
        since: u64,
        until: u64,
    },
    /// `until`: when the drain's allowance ends; `said`: when it would end by its members' reports alone.
    Drain {
        seat: SeatIx,
        since: u64,
        until: u64,
        said: u64,
    },
}

impl DevicePhase {
    pub fn holding_seat(self) -> Option<SeatIx> {
        match self {
            Self::Free | Self::Common => None,
            Self::Open { seat } | Self::Held { seat, .. } | Self::Drain { seat, .. } => Some(seat),
        }
    }
}

#[derive(Debug)]
pub(super) struct ArbiterDevice {
    pub phase: DevicePhase,
    pub order: SeatOrder,
    /// Slots whose work the drain waits for.
    pub draining: Vec<SlotId>,
    /// Slots of members whose work was not over when their drain's allowance ended.
    pub overdue: Vec<SlotId>,
    /// Evidence for and against claims: reports of overdue members that their work still runs on the device.
    pub doubt: ClaimDoubt,
    /// Processes that are no members and were seen working here.
    pub strangers: u64,
    /// Members that were seen working here for longer than they held the device.
    pub accused: Vec<SlotId>,
    pub lease: u64,
    pub deadline: u64,
    pub dirty: bool,
    /// The gang that reserves this device while it collects several.
    pub reserved: Option<GangKey>,
    /// When the last of the devices that `reserved` collects is expected to be free.
    pub expected: u64,
    /// An arrival is entitled to the device: the lease ends now.
    pub revoke: bool,
    /// The holder's total charge when it got the device.
    pub charged_before: u64,
    /// When the holder (the tenant with the lease) got the device.
    pub granted: u64,
    /// The value of `lost` when the holder got the device.
    pub lost_before: u64,
    /// Up to when the holder's floor (guaranteed share) had been served when it got the device.
    pub floor_before: u64,
    /// Since when others have waited for the holder to give the device up, and its accounted time then.
    pub contended: Option<(u64, u64)>,
    /// How the tenants share the device.
    pub sharing: DeviceSharing,
    /// When the device last passed from one tenant to another, or another tenant wanted it.
    pub shared_at: u64,
    pub last: Option<SeatIx>,
    /// Total time that each member on the device lost to the others.
    pub lost: u64,
    /// When `lost` was last updated.
    pub counted_to: u64,
}

impl ArbiterDevice {
    pub fn new(now: u64) -> Self {
        Self {
            phase: DevicePhase::Free,
            order: SeatOrder::default(),
            draining: Vec::new(),
            overdue: Vec::new(),
            doubt: ClaimDoubt::default(),
            strangers: 0,
            accused: Vec::new(),
            lease: 0,
            deadline: u64::MAX,
            dirty: false,
            reserved: None,
            expected: 0,
            revoke: false,
            shared_at: now,
            charged_before: 0,
            granted: now,
            lost_before: 0,
            floor_before: 0,
            contended: None,
            sharing: DeviceSharing::Leases,
            last: None,
            lost: 0,
            counted_to: now,
        }
    }

    /// True if members' overdue work is trusted to share the device.
    pub fn has_overdue(&self, now: u64) -> bool {
        !self.overdue.is_empty() && !self.doubt.is_doubted(now)
    }

    /// True if work of others is trusted to run at the same time as this slot's.
    pub fn is_shared_by(&self, slot: SlotId, now: u64) -> bool {
        self.unseen_processes() > 0 || self.overdue.iter().any(|&other| other != slot) && !self.doubt.is_doubted(now)
    }

    /// Number of processes that work here without holding the device.
    pub fn unseen_processes(&self) -> u64 {
        let is_before = |slot: &SlotId| {
            let holds = matches!(self.phase, DevicePhase::Held { slot: holder, .. } if holder == *slot);
            holds || self.draining.contains(slot) || self.overdue.contains(slot)
        };
        self.strangers + self.accused.iter().filter(|slot| !is_before(slot)).count() as u64
    }

    /// Adds a slot to `overdue`: its work may still run while others have the device. This is a new claim.
    pub fn add_overdue(&mut self, slot: SlotId, now: u64) {
        self.doubt.note_claim(now);
        self.overdue.push(slot);
    }

    /// The number of members trusted to share the device; 0: the device is free.
    pub fn sharer_count(&self, now: u64) -> u64 {
        let overdue = if self.has_overdue(now) { self.overdue.len() as u64 } else { 0 };
        // A member that runs again next to its own overdue work counts once.
        let is_another = |slot: &SlotId| overdue == 0 || !self.overdue.contains(slot);
        let holds = match self.phase {
            DevicePhase::Free => false,
            DevicePhase::Common | DevicePhase::Open { .. } => true,
            DevicePhase::Held { slot, .. } => is_another(&slot),
            DevicePhase::Drain { .. } => self.draining.iter().any(is_another),
        };
        overdue + MAX_STRETCH * self.unseen_processes() + u64::from(holds)
    }

    /// Updates the lost time to `now`.
    fn count_time(&mut self, now: u64) {
        let sharing = self.sharer_count(now);
        let span = now.saturating_sub(self.counted_to);
        self.lost = self.lost.saturating_add(span - span / sharing.max(1));
        self.counted_to = now;
    }
}

impl Arbiter {
    /// Updates the lost and held times to `now`. Call before every change of who is on the device.
    pub(super) fn count_device_time(&mut self, d: DeviceId, now: u64) {
        let device = &mut self.devices[index(d)];
        let span = now.saturating_sub(device.counted_to);
        if span == 0 {
            return;
        }
        device.count_time(now);
        match device.phase {
            DevicePhase::Open { seat } => self.count_as_held(seat, span),
            DevicePhase::Common => self.seats_of(d).into_iter().for_each(|seat| self.count_as_held(seat, span)),
            _ => {}
        }
        let device = &self.devices[index(d)];
        let holder = if let DevicePhase::Held { slot, .. } = device.phase { Some(slot) } else { None };
        let once = device.draining.iter().copied().chain(holder).filter(|slot| !device.overdue.contains(slot));
        for slot in device.overdue.iter().copied().chain(once) {
            if let Some(slot) = self.slots.get_mut(slot.index()).and_then(Option::as_mut) {
                slot.hold_for(span);
            }
        }
    }

    fn count_as_held(&mut self, seat: SeatIx, span: u64) {
        for at in 0..self.seat_at(seat).members.len() {
            let slot = self.seat_at(seat).members[at];
            let this = self.slot_at_mut(slot);
            this.is_unmeasured = true;
            this.hold_for(span);
        }
    }

    /// Makes one device's decisions that are due at `now`.
    pub(super) fn decide_device(
        &mut self,
        d: DeviceId,
        now: u64,
        pages: &mut impl MemberPages,
        out: &mut Vec<Decision>,
    ) {
        self.devices[index(d)].dirty = false;
        self.count_device_time(d, now);
        let mut told = out.len();
        self.read_pages(d, now, pages);
        self.settle_overdue(d, now);
        self.refill_seats(d, now);
        let holder = self.devices[index(d)].phase.holding_seat();
        let key = holder.map(|seat| self.seat_at(seat).order_key());
        self.devices[index(d)].order.advance_clocks(key);
        while self.step_phase(d, now, out) {
            // First the gates, then the pages: a launch that a member announced before it saw its gate shut is seen
            // here.
            pages.tell_decisions(&out[told..]);
            told = out.len();
            self.read_pages(d, now, pages);
        }
        pages.tell_decisions(&out[told..]);
        self.devices[index(d)].revoke = false;
        self.devices[index(d)].deadline = self.device_deadline(d, now);
    }

    /// Reads the pages of the members on the device.
    fn read_pages(&mut self, d: DeviceId, now: u64, pages: &mut impl MemberPages) {
        let mut watched = core::mem::take(&mut self.watched);
        let device = &self.devices[index(d)];
        watched.extend(&device.overdue);
        watched.extend(&device.draining);
        if let DevicePhase::Held { slot, .. } = device.phase {
            watched.push(slot);
        }
        if self.has_budgets(d) {
            watched.extend(self.seats_of(d).into_iter().flat_map(|seat| self.slots_of(seat)));
        }
        for slot in watched.drain(..) {
            let usage = pages.read_usage(slot);
            self.absorb_usage(slot, usage, now);
        }
        self.watched = watched;
    }

    /// Makes tenants whose ceiling was used up ready again, once their balance of device time is sufficient.
    fn refill_seats(&mut self, d: DeviceId, now: u64) {
        while let Some((refill, seat)) = self.devices[index(d)].order.next_refill() {
            if refill > now {
                break;
            }
            self.devices[index(d)].order.uncap_seat(seat, refill);
            self.seat_at_mut(seat).place = SeatPlace::Idle;
            self.seat_at_mut(seat).tired = false;
            self.place_seat(seat, now);
        }
    }

    /// Makes one change of phase; false when nothing is to be done before the deadline.
    fn step_phase(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        match self.devices[index(d)].phase {
            DevicePhase::Common => self.in_common(d, now, out),
            _ if self.sharing_of(d, now) != DeviceSharing::Leases => self.make_common(d, now),
            DevicePhase::Free => self.grant_next(d, now, out),
            DevicePhase::Open { seat } => {
                let is_alone = !self.wanted_by_others(d, now) && self.devices[index(d)].unseen_processes() == 0;
                if !self.measures_all && is_alone && self.seat_at(seat).may_be_alone() {
                    // A member may have joined since.
                    self.open(d, seat, out);
                    return false;
                }
                self.close(d, seat, now, out);
                true
            }
            DevicePhase::Held { seat, slot, .. } => {
                if self.end_or_renew(d, now, out) {
                    let gate = match self.seat_at(seat).used_up(now) {
                        true => Gate::Cap { until: self.seat_at(seat).refill_time(&self.config) },
                        false => Gate::Wait,
                    };
                    self.tell_gate(slot, gate, out);
                    let device = &mut self.devices[index(d)];
                    device.draining.clear();
                    device.draining.push(slot);
                    self.begin_drain(d, seat, now);
                    return true;
                }
                // No other tenant was here for long: the holder needs no lease, or gets a wide one (more may be in
                // flight).
                let DevicePhase::Held { until, .. } = self.devices[index(d)].phase else { return false };
                let is_endless = until == u64::MAX;
                // A tenant that arrived may have ended the wide lease; its holder must be told.
                let is_wide = matches!(self.slot_at(slot).gate, Gate::Run { wide: true, .. });
                if is_endless && self.may_open(d, seat, now) {
                    self.open(d, seat, out);
                } else if is_wide || is_endless && self.measures_all && self.seat_at(seat).may_be_alone() {
                    self.run(d, seat, slot, until, now, out);
                }
                false
            }
            DevicePhase::Drain { seat, .. } => {
                let over = |slot: &SlotId| self.slot_at(*slot).ends_within(self.config.handover);
                let drained = self.devices[index(d)].draining.iter().all(over);
                if !drained && self.find_crosswise(d, seat, now) {
                    return true;
                }
                let end = self.drain_deadline(d);
                let waited_for = self.devices[index(d)].order.any_ready() || self.devices[index(d)].reserved.is_some();
                let stuck = now >= self.stuck_at(d) && self.waits_for_itself(d, seat);
                if !(drained || now >= end && waited_for || stuck) {
                    return false;
                }
                if !(drained || now >= end && waited_for) {
                    for at in 0..self.devices[index(d)].draining.len() {
                        let slot = self.devices[index(d)].draining[at];
                        self.slot_at_mut(slot).is_let_go = true;
                    }
                }
                self.finish_drain(d, seat, now, (!drained).then_some(end));
                true
            }
        }
    }

    /// When this device must be looked at again even if no member reports anything.
    fn device_deadline(&self, d: DeviceId, now: u64) -> u64 {
        let device = &self.devices[index(d)];
        let refill = device.order.next_refill().map_or(u64::MAX, |(refill, _)| refill);
        // When a holder that nobody else waits for needs no lease: its gate opens (launches are not measured), or
        // its lease becomes wide (more in flight).
        let opens = |until: u64| {
            let is_alone = until == u64::MAX && !device.order.any();
            let opens = if is_alone { device.shared_at.saturating_add(self.config.alone) } else { u64::MAX };
            if opens > now { opens } else { u64::MAX }
        };
        let phase = match device.phase {
            DevicePhase::Common => self.budget_deadline(d, now).min(self.crosswise_until(d, now).unwrap_or(u64::MAX)),
            DevicePhase::Free | DevicePhase::Open { .. } => u64::MAX,
            DevicePhase::Held { seat, slot, until: u64::MAX, .. } if self.slot_at(slot).is_idle() => {
                // The holder may launch again without asking. Its own account limits it, so an occasional check is
                // enough.
                let limited = self.seat_at(seat).terms.effective_ceiling().is_some();
                if limited { now.saturating_add(self.config.alone) } else { opens(u64::MAX) }
            }
            DevicePhase::Held { seat, until, .. } => {
                let seat = self.seat_at(seat);
                let opens = if seat.terms.effective_ceiling().is_none() { opens(until) } else { u64::MAX };
                until.min(now.saturating_add(seat.balance_lasts(now, &self.config))).min(opens)
            }
            DevicePhase::Drain { said, .. } => {
                // Afterwards only the member's report or a request matters.
                let moments = [said, self.drain_deadline(d), self.stuck_at(d)];
                moments.into_iter().filter(|&moment| moment > now).min().unwrap_or(u64::MAX)
            }
        };
        let back = device.overdue.iter().filter_map(|&slot| self.slot_at(slot).holds_up(now, &self.config)).min();
        phase.min(refill).min(back.unwrap_or(u64::MAX))
    }
}
