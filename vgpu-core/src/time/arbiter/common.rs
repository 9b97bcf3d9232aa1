//! Devices without leases, and paused tenants: an administrator's decisions that override the order.
//!
//! A device for which no tenant has terms about time is *common*: every gate is open. When a tenant gets such terms,
//! all gates shut, and a tenant that still has work queued is overdue until that work is done. A *paused* tenant
//! counts as used up for ever: its lease ends, its work drains, and it keeps its position in virtual time.

use super::decision::{Decision, Gate};
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId, TenantId};
use super::{Arbiter, index};

impl Arbiter {
    /// Sets whether this device is common or granted in leases. Takes effect with the next [`Self::tick`].
    pub fn share_out(&mut self, device: DeviceId, common: bool) {
        let device = &mut self.devices[index(device)];
        device.dirty |= device.common != common;
        device.common = common;
    }

    /// Pauses a tenant on a device, or resumes it. Takes effect with the next [`Self::tick`]. A tenant that never had
    /// a member there is not remembered: pause a new tenant after it joined.
    pub fn pause_tenant(&mut self, tenant: TenantId, device: DeviceId, paused: bool, now: u64) {
        let Some(seat) = self.find(tenant, device).filter(|&seat| self.seat_at(seat).paused != paused) else { return };
        let place = self.take_out(seat);
        self.seat_at_mut(seat).paused = paused;
        if matches!(place, SeatPlace::Ready | SeatPlace::Capped(_)) {
            self.place_seat(seat, now);
        }
        if place == SeatPlace::Ready {
            self.runs_without(seat);
        }
        let device = &mut self.devices[index(device)];
        device.dirty = true;
        device.fresh = true;
        device.revoke |= place == SeatPlace::Current;
    }

    pub(super) fn seats_of(&self, d: DeviceId) -> Vec<SeatIx> {
        let here = |(at, seat): (usize, &Option<_>)| match seat {
            Some(super::Seat { device, .. }) if *device == d => SeatIx::try_from(at).ok(),
            _ => None,
        };
        self.seats.iter().enumerate().filter_map(here).collect()
    }

    fn slots_of(&self, seat: SeatIx) -> Vec<SlotId> {
        self.seat_at(seat).members.clone()
    }

    /// Ends all leases, waits, overdue states and claims (work kept on the device after a lease), so that every
    /// member may launch.
    pub(super) fn make_common(&mut self, d: DeviceId) -> bool {
        for seat in self.seats_of(d) {
            if self.take_out(seat) == SeatPlace::Ready {
                self.runs_without(seat);
            }
            self.seat_at_mut(seat).place = SeatPlace::Idle;
            self.seat_at_mut(seat).queue.clear();
            for slot in self.slots_of(seat) {
                let slot = self.slot_at_mut(slot);
                (slot.queued, slot.overdue, slot.trailing) = (false, None, false);
                slot.claim = None;
            }
        }
        if let Some(tenant) = self.devices[index(d)].reserved {
            self.release(tenant);
        }
        let device = &mut self.devices[index(d)];
        device.draining.clear();
        device.overdue.clear();
        (device.phase, device.fresh) = (DevicePhase::Common, true);
        true
    }

    /// Opens the gates of new members, or shuts all gates.
    pub(super) fn in_common(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let stays = self.devices[index(d)].common;
        if stays && !self.devices[index(d)].fresh {
            return false;
        }
        self.devices[index(d)].fresh = false;
        if !stays {
            self.count_device_time(d, now);
            self.devices[index(d)].phase = DevicePhase::Free;
            self.devices[index(d)].shared_at = now;
            // Decide once more, after the pages were read.
            self.devices[index(d)].dirty = true;
        }
        for seat in self.seats_of(d) {
            let open = stays && !self.seat_at(seat).paused;
            for slot in self.slots_of(seat) {
                let was_open = self.slot_at(slot).gate == Gate::Open;
                self.tell_gate(slot, if open { Gate::Open } else { Gate::Wait }, out);
                if !stays && was_open {
                    let this = self.slot_at_mut(slot);
                    (this.overdue, this.usage.in_flight) = (Some(now), None);
                    self.devices[index(d)].is_overdue(slot, now);
                } else if !stays && self.slot_at(slot).usage.wants {
                    self.enqueue_member(slot);
                }
            }
            if !stays {
                self.place_seat(seat, now);
            }
        }
        !stays
    }
}
