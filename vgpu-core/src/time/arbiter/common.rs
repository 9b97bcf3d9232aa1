//! Devices without leases ([`DeviceSharing`]), and paused tenants.
//!
//! On a device without leases all members launch at the same time: without limits, or each tenant up to its ceiling.
//! When leases begin, all gates shut, and a tenant that still has work queued is overdue until that work is done. A
//! *paused* tenant counts as used up for ever: its lease ends and its work drains. Its pause is a rest, as if it had
//! wanted nothing, so it is not made up for afterwards.

use super::crosswise::SHARED_NS;
use super::decision::{Decision, Gate};
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, DeviceSharing, SlotId, TenantId};
use super::{Arbiter, index};

/// A tenant whose gang waits crosswise may owe this much device time. It is forgiven once in [`SHARED_NS`]. So its
/// members exceed its ceiling by at most a tenth of the device in that time, even if they keep to no account.
const MAX_CROSSWISE_DEBT_NS: u64 = SHARED_NS / 10;

impl Arbiter {
    /// Sets how the tenants of this device share it. Takes effect with the next [`Self::tick`].
    pub fn share_out(&mut self, device: DeviceId, sharing: DeviceSharing) {
        let device = &mut self.devices[index(device)];
        device.dirty |= device.sharing != sharing;
        device.sharing = sharing;
    }

    /// Pauses a tenant on a device, or resumes it. Takes effect with the next [`Self::tick`]. A tenant that never had
    /// a member there is not remembered: pause a new tenant after it joined.
    pub fn pause_tenant(&mut self, tenant: TenantId, device: DeviceId, paused: bool, now: u64) {
        let Some(seat) = self.find(tenant, device).filter(|&seat| self.seat_at(seat).paused != paused) else { return };
        let place = self.take_out(seat);
        let this = self.seat_at_mut(seat);
        this.paused = paused;
        if paused && place != SeatPlace::Idle {
            this.slept = Some(now);
        } else if matches!(place, SeatPlace::Capped(_) | SeatPlace::Overdue) {
            // Others had the device meanwhile. Owed as waiting, a pause of hours would give it the device for hours.
            self.end_rest(seat, now);
        }
        if matches!(place, SeatPlace::Ready | SeatPlace::Capped(_)) {
            self.place_seat(seat, now);
        }
        if place == SeatPlace::Ready {
            self.runs_without(seat);
        }
        let device = &mut self.devices[index(device)];
        device.dirty = true;
        device.revoke |= place == SeatPlace::Current;
    }

    pub(super) fn seats_of(&self, d: DeviceId) -> Vec<SeatIx> {
        let here = |(at, seat): (usize, &Option<_>)| match seat {
            Some(super::Seat { device, .. }) if *device == d => SeatIx::try_from(at).ok(),
            _ => None,
        };
        self.seats.iter().enumerate().filter_map(here).collect()
    }

    pub(super) fn slots_of(&self, seat: SeatIx) -> Vec<SlotId> {
        self.seat_at(seat).members.clone()
    }

    /// Ends all leases, waits, overdue states and claims (work kept on the device after a lease), so that every
    /// member may launch.
    pub(super) fn make_common(&mut self, d: DeviceId, now: u64) -> bool {
        for seat in self.seats_of(d) {
            if self.take_out(seat) == SeatPlace::Ready {
                self.runs_without(seat);
            }
            self.seat_at_mut(seat).place = SeatPlace::Idle;
            self.seat_at_mut(seat).queue.clear();
            self.note_wait(seat, now);
            for slot in self.slots_of(seat) {
                let slot = self.slot_at_mut(slot);
                (slot.queued, slot.overdue) = (false, None);
                slot.claim = None;
            }
        }
        if let Some(gang) = self.devices[index(d)].reserved {
            self.release(gang);
        }
        let device = &mut self.devices[index(d)];
        device.draining.clear();
        device.overdue.clear();
        device.phase = DevicePhase::Common;
        true
    }

    /// Decides the gates of a device without leases, or shuts all of them because leases begin.
    pub(super) fn in_common(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let sharing = self.sharing_of(d, now);
        if sharing == DeviceSharing::Leases {
            self.begin_leases(d, now, out);
            return true;
        }
        for seat in self.seats_of(d) {
            if sharing == DeviceSharing::Budgets {
                self.hold_to_budget(d, seat, now, out);
                continue;
            }
            let gate = if self.seat_at(seat).paused { Gate::Wait } else { Gate::Open };
            self.slots_of(seat).into_iter().for_each(|slot| self.tell_gate(slot, gate, out));
        }
        false
    }

    /// Shuts all gates. Work that is still queued is overdue until it is done.
    fn begin_leases(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) {
        self.count_device_time(d, now);
        let device = &mut self.devices[index(d)];
        (device.phase, device.shared_at) = (DevicePhase::Free, now);
        // Decide once more, after the pages were read.
        device.dirty = true;
        self.end_crosswise(d, now);
        for seat in self.seats_of(d) {
            for slot in self.slots_of(seat) {
                let was_open = self.slot_at(slot).gate == Gate::Open;
                let could_launch = was_open || matches!(self.slot_at(slot).gate, Gate::Run { .. });
                self.tell_gate(slot, Gate::Wait, out);
                let this = self.slot_at_mut(slot);
                if could_launch && (was_open || this.usage.in_flight != Some(0)) {
                    this.overdue = Some(now);
                    this.usage.in_flight = this.usage.in_flight.filter(|_| !was_open);
                    self.devices[index(d)].add_overdue(slot, now);
                } else if this.usage.wants {
                    self.enqueue_member(slot);
                }
            }
            self.place_seat(seat, now);
        }
    }

    /// Levels the tenants of a device on which gangs waited crosswise. It was shared by time slices, so nobody is
    /// owed time for that, nor owes some. The debts of the gangs' tenants under their ceilings are forgiven.
    fn end_crosswise(&mut self, d: DeviceId, now: u64) {
        // The phase also ends if one of the gangs leaves.
        let (gangs, _) = self.crosswise_seats(d, now);
        if gangs.is_empty() {
            return;
        }
        let (config, clock) = (self.config, self.devices[index(d)].order.floor_clock(now));
        let times = gangs.iter().map(|&seat| self.seat_at(seat).virtual_time);
        let (least, most) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
        let class = gangs.first().map(|&seat| self.seat_at(seat).terms.class);
        for seat in self.seats_of(d) {
            let this = self.seat_at_mut(seat);
            if Some(this.terms.class) == class {
                this.join_between(least, most, &config);
            }
            this.floor_zero = this.floor_zero.max(clock);
            let is_due = this.forgiven.is_none_or(|forgiven| now >= forgiven.saturating_add(SHARED_NS));
            if gangs.contains(&seat) && is_due && this.used_up(now) && this.may_owe(MAX_CROSSWISE_DEBT_NS, now) {
                this.begin_anew(now, &config);
                this.forgiven = Some(now);
            }
        }
    }

    /// True if all members launch at the same time, each tenant under its ceiling.
    pub(super) fn has_budgets(&self, d: DeviceId) -> bool {
        let device = &self.devices[index(d)];
        device.phase == DevicePhase::Common && device.sharing != DeviceSharing::Unlimited
    }

    /// Sets the gates of a tenant that is held to its ceiling alone. Each member charges a copy of the account. If the
    /// tenant has several, together they can use up the balance sooner than any of them sees, so that its account goes
    /// into debt. All of them then wait until it is paid.
    ///
    /// Where gangs wait crosswise, a member pays for its kernels' waits in parts, and the tenant's account pays all of
    /// them. So its members keep their copies until it owes more than [`MAX_CROSSWISE_DEBT_NS`].
    fn hold_to_budget(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) {
        let waits_crosswise = self.devices[index(d)].sharing == DeviceSharing::Leases;
        let this = self.seat_at(seat);
        let is_used_up = this.used_up(now) && !(waits_crosswise && this.may_owe(MAX_CROSSWISE_DEBT_NS, now));
        let (refill, is_tired) = (this.refill_time(&self.config), this.tired && !waits_crosswise);
        let limit = this.terms.effective_ceiling();
        let is_wide = limit.is_none() && !waits_crosswise;
        let gate = Gate::Run {
            lease: self.devices[index(d)].lease,
            until: u64::MAX,
            exclusive: true,
            ceiling: limit.map(|limit| (limit, this.account)),
            wide: is_wide,
        };
        for slot in self.slots_of(seat) {
            match self.slot_at(slot).gate {
                before if now < refill && (is_used_up || !matches!(before, Gate::Run { .. })) => {
                    self.tell_gate(slot, Gate::Cap { until: refill }, out);
                }
                // It charges the copy that it has.
                Gate::Run { until: u64::MAX, exclusive: true, ceiling, wide, .. }
                    if wide == is_wide && !is_tired && ceiling.map(|(limit, _)| limit) == limit => {}
                _ => self.tell_gate(slot, gate, out),
            }
        }
        self.seat_at_mut(seat).tired &= now < refill;
    }

    /// When a tenant's budget must be looked at again; `u64::MAX`: only after a report.
    pub(super) fn budget_deadline(&self, d: DeviceId, now: u64) -> u64 {
        if !self.has_budgets(d) {
            return u64::MAX;
        }
        let due = |seat: SeatIx| {
            let this = self.seat_at(seat);
            if this.terms.effective_ceiling().is_none() || this.paused || this.members.is_empty() {
                return u64::MAX;
            }
            let is_capped = |slot: &SlotId| matches!(self.slot_at(*slot).gate, Gate::Cap { .. });
            if this.members.iter().any(is_capped) {
                return this.refill_time(&self.config);
            }
            if this.members.iter().all(|&slot| self.slot_at(slot).is_idle()) {
                // They may launch again without asking, and their copies of the account limit them.
                return now.saturating_add(self.config.alone);
            }
            let together = this.balance_lasts(now, &self.config) / this.members.len() as u64;
            now.saturating_add(together.max(self.config.quantum / 4))
        };
        self.seats_of(d).into_iter().map(due).min().unwrap_or(u64::MAX)
    }
}
