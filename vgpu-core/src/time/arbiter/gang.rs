//! Leases on several devices in one tick: a tenant that wants several gets all of them or none.
//!
//! The tenant's turn comes when it is first on each of its devices; until then others pass it there, which brings it
//! nearer. Then all its devices are reserved together, so that no two tenants can wait for each other's. Running leases
//! end at their own time. Freed devices are lent out until the last device is expected. The grant happens in one tick,
//! devices in ascending order.
//!
//! A device that the tenant begins to want while it holds others gets a separate lease; from the next turn on they
//! are granted together.

use super::decision::Decision;
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, QUANTUM_RANGE_NS, SlotId, TenantId, quantum_of};
use super::{Arbiter, index};

impl Arbiter {
    /// The tenant's seats that are to run together: those that wait.
    fn gang_seats(&self, tenant: TenantId) -> impl Iterator<Item = SeatIx> + '_ {
        let seats = self.tenants.get(&tenant).into_iter().flatten().copied();
        seats.filter(|&seat| self.seat_at(seat).place == SeatPlace::Ready)
    }

    pub(super) fn is_gang(&self, seat: SeatIx) -> bool {
        self.gang_seats(self.seat_at(seat).tenant).nth(1).is_some()
    }

    /// The next seat on a device: the best one. A tenant that wants several devices counts only if it is its turn.
    pub(super) fn pick_seat(&mut self, d: DeviceId, now: u64, except: Option<TenantId>) -> Option<SeatIx> {
        let mut order = core::mem::take(&mut self.devices[index(d)].order);
        let best = order.pick_next(now, &self.config, |seat| {
            let tenant = self.seat_at(seat).tenant;
            Some(tenant) != except && (!self.is_gang(seat) || self.is_its_turn(tenant, d, now))
        });
        self.devices[index(d)].order = order;
        best
    }

    /// True if the tenant is first on each of its other devices, or has reserved them, and no other tenant reserves
    /// one. Other tenants that want several devices do not count there: two that each lead on one device would wait
    /// for ever.
    fn is_its_turn(&self, tenant: TenantId, here: DeviceId, now: u64) -> bool {
        self.gang_seats(tenant).all(|seat| {
            let device = &self.devices[index(self.seat_at(seat).device)];
            match device.reserved {
                Some(other) => other == tenant,
                None => {
                    let alone = |other| !self.is_gang(other);
                    let key = self.seat_at(seat).order_key();
                    self.seat_at(seat).device == here || device.order.would_lead(seat, key, now, &self.config, alone)
                }
            }
        })
    }

    /// Grants all the tenant's devices together, or begins to collect them.
    pub(super) fn assemble_gang(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) -> bool {
        let tenant = self.seat_at(seat).tenant;
        let seats: Vec<SeatIx> = self.gang_seats(tenant).collect();
        // Computed once: a loan that moved it would be answered by another loan, for ever.
        let expected =
            seats.iter().map(|&seat| self.expected_free(self.seat_at(seat).device, now)).max().unwrap_or(now);
        for &seat in &seats {
            let at = index(self.seat_at(seat).device);
            self.devices[at].reserved = Some(tenant);
            self.devices[at].expected = expected;
            self.devices[at].dirty = true;
        }
        self.collect_gang(d, now, out)
    }

    /// `d` is free and reserved: grants everything if all devices are free, otherwise lends `d` out.
    pub(super) fn collect_gang(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let Some(tenant) = self.devices[index(d)].reserved else { return false };
        let mut seats: Vec<SeatIx> = self.gang_seats(tenant).collect();
        seats.sort_unstable_by_key(|&seat| self.seat_at(seat).device);
        if !seats.iter().any(|&seat| self.seat_at(seat).device == d) {
            // The tenant no longer wants this device, so it stops collecting several devices.
            self.release(tenant);
            return true;
        }
        let busy = |seat: &SeatIx| self.devices[index(self.seat_at(*seat).device)].phase != DevicePhase::Free;
        if !seats.iter().any(busy) {
            self.release(tenant);
            for seat in seats {
                let device = self.seat_at(seat).device;
                self.grant_lease(device, seat, u64::MAX, now, out);
                self.devices[index(device)].dirty = true;
            }
            return true;
        }
        let expected = self.devices[index(d)].expected;
        // A device is not lent out for less than the shortest lease.
        if expected < now.saturating_add(*QUANTUM_RANGE_NS.start()) {
            return false;
        }
        let Some(seat) = self.pick_seat(d, now, Some(tenant)).filter(|&seat| !self.is_gang(seat)) else { return false };
        self.grant_lease(d, seat, expected, now, out);
        true
    }

    /// When a device is expected to be free: at the end of its lease, or of its work in flight.
    fn expected_free(&self, d: DeviceId, now: u64) -> u64 {
        let device = &self.devices[index(d)];
        let flight = |slot: SlotId| now.saturating_add(self.slot_at(slot).work_lasts(now));
        match device.phase {
            DevicePhase::Held { seat, slot, since, until } => {
                let quantum = since.saturating_add(quantum_of(&self.config, &self.seat_at(seat).terms));
                until.min(quantum).max(flight(slot))
            }
            DevicePhase::Drain { .. } => device.draining.iter().map(|&slot| flight(slot)).max().unwrap_or(now),
            DevicePhase::Free | DevicePhase::Common | DevicePhase::Open { .. } => now,
        }
    }

    /// Notes that a seat no longer waits. The tenant's other seats waited for it to be first too, and may now be
    /// granted.
    pub(super) fn runs_without(&mut self, gone: SeatIx) {
        let Some(seats) = self.tenants.get(&self.seat_at(gone).tenant) else { return };
        for &seat in seats.iter().filter(|&&seat| seat != gone) {
            let Some(Some(seat)) = self.seats.get(seat as usize) else { continue };
            if seat.place == SeatPlace::Ready {
                self.devices[index(seat.device)].dirty = true;
            }
        }
    }

    /// Ends a tenant's collection of several devices at once.
    pub(super) fn release(&mut self, tenant: TenantId) {
        for device in &mut self.devices {
            if device.reserved == Some(tenant) {
                device.reserved = None;
                device.dirty = true;
            }
        }
    }
}
