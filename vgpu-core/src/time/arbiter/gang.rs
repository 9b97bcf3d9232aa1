//! Leases on several devices in one tick: a gang gets all of its devices or none.
//!
//! A gang is a tenant that wants several devices, or several tenants that have the same [`GangId`]. Only seats that
//! wait belong to its lease: of several on one device the first in the device's order, the others get later leases.
//!
//! The gang's turn comes when it is first on each of its devices; until then others pass it there, which brings it
//! nearer. Then all its devices are reserved together, so that no two gangs can wait for each other's. Running leases
//! end at their own time. Freed devices are lent out until the last device is expected. The grant happens in one tick,
//! devices in ascending order.
//!
//! A device that the gang begins to want while it holds others gets a separate lease; from the next turn on they
//! are granted together.

use std::collections::BTreeMap;

use super::decision::Decision;
use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, GangId, QUANTUM_RANGE_NS, SlotId, TenantId, quantum_of};
use super::{Arbiter, index};

/// The tenants that get their leases together: one tenant with all its devices, or all of a named gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GangKey {
    Tenant(TenantId),
    Named(GangId),
}

/// The named gangs and their tenants.
#[derive(Debug, Default)]
pub(super) struct GangTable {
    of: BTreeMap<TenantId, GangId>,
    tenants: BTreeMap<GangId, Vec<TenantId>>,
    /// The gangs that were found to wait crosswise, and when they were last found.
    pub crosswise: BTreeMap<GangKey, u64>,
}

impl GangTable {
    fn key_of(&self, tenant: TenantId) -> GangKey {
        self.of.get(&tenant).map_or(GangKey::Tenant(tenant), |gang| GangKey::Named(*gang))
    }

    fn tenants_of<'k>(&'k self, key: &'k GangKey) -> &'k [TenantId] {
        match key {
            GangKey::Tenant(tenant) => core::slice::from_ref(tenant),
            GangKey::Named(gang) => self.tenants.get(gang).map_or(&[], Vec::as_slice),
        }
    }

    /// Moves a tenant to another gang, or to none.
    fn put(&mut self, tenant: TenantId, gang: Option<GangId>) {
        if let Some(before) = self.of.remove(&tenant)
            && let Some(tenants) = self.tenants.get_mut(&before)
        {
            tenants.retain(|other| *other != tenant);
            if tenants.is_empty() {
                self.tenants.remove(&before);
            }
        }
        if let Some(gang) = gang {
            self.of.insert(tenant, gang);
            self.tenants.entry(gang).or_default().push(tenant);
        }
    }
}

impl Arbiter {
    /// Puts a tenant into a gang, or takes it out of its gang. All tenants of a gang that wait for devices get their
    /// leases in one tick. Takes effect with the next [`Self::tick`].
    pub fn set_gang(&mut self, tenant: TenantId, gang: Option<GangId>) {
        let (before, after) = (self.gangs.of.get(&tenant).copied(), gang);
        if before == after {
            return;
        }
        let touched = [self.gang_of(tenant), gang.map_or(GangKey::Tenant(tenant), GangKey::Named)];
        self.gangs.put(tenant, gang);
        for key in touched {
            self.gangs.crosswise.remove(&key);
            self.release(key);
            self.stir_gang(key);
        }
    }

    /// The gang that a tenant belongs to.
    pub(super) fn gang_of(&self, tenant: TenantId) -> GangKey {
        self.gangs.key_of(tenant)
    }

    /// All seats of a gang.
    pub(super) fn gang_seats<'k>(&'k self, gang: &'k GangKey) -> impl Iterator<Item = SeatIx> + 'k {
        self.gangs.tenants_of(gang).iter().filter_map(|tenant| self.tenants.get(tenant)).flatten().copied()
    }

    /// The gang's seats that wait.
    fn ready_seats<'k>(&'k self, gang: &'k GangKey) -> impl Iterator<Item = SeatIx> + 'k {
        self.gang_seats(gang).filter(|&seat| self.seat_at(seat).place == SeatPlace::Ready)
    }

    /// The devices for which the gang waits, in ascending order.
    fn gang_devices(&self, gang: &GangKey) -> Vec<DeviceId> {
        let mut devices: Vec<DeviceId> = self.ready_seats(gang).map(|seat| self.seat_at(seat).device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// True if the seat's gang waits for several devices.
    pub(super) fn is_gang(&self, seat: SeatIx) -> bool {
        let here = self.seat_at(seat).device;
        self.ready_seats(&self.gang_of(self.seat_at(seat).tenant)).any(|other| self.seat_at(other).device != here)
    }

    /// The next seat on a device: the best one. A gang that waits for several devices counts only if it is its turn.
    pub(super) fn pick_seat(&mut self, d: DeviceId, now: u64, except: Option<GangKey>) -> Option<SeatIx> {
        self.devices[index(d)].order.bound_lag(now);
        self.devices[index(d)].order.pick_next(now, &self.config, |seat| {
            let gang = self.gang_of(self.seat_at(seat).tenant);
            Some(gang) != except && (!self.is_gang(seat) || self.is_its_turn(gang, d, now))
        })
    }

    /// True if the gang is first on each of its other devices, or has reserved them, and no other gang reserves
    /// one. Other gangs that wait for several devices do not count there: two that each lead on one device would wait
    /// for ever.
    fn is_its_turn(&self, gang: GangKey, here: DeviceId, now: u64) -> bool {
        let leads = |seat: SeatIx| {
            let alone = |other| !self.is_gang(other);
            let (at, key) = (index(self.seat_at(seat).device), self.seat_at(seat).order_key());
            self.devices[at].order.would_lead(seat, key, now, &self.config, alone)
        };
        self.gang_devices(&gang).into_iter().all(|d| match self.devices[index(d)].reserved {
            Some(other) => other == gang,
            None => d == here || self.ready_seats(&gang).any(|seat| self.seat_at(seat).device == d && leads(seat)),
        })
    }

    /// Grants all the gang's devices together, or begins to collect them.
    pub(super) fn assemble_gang(&mut self, d: DeviceId, seat: SeatIx, now: u64, out: &mut Vec<Decision>) -> bool {
        let gang = self.gang_of(self.seat_at(seat).tenant);
        let devices = self.gang_devices(&gang);
        // Computed once, when the gang begins to collect. Work on a lent-out device can delay that device. A later
        // time, computed again, would allow the next loan, and the gang would never run.
        let expected = devices.iter().map(|&device| self.expected_free(device, now)).max().unwrap_or(now);
        for device in devices {
            let device = &mut self.devices[index(device)];
            (device.reserved, device.expected, device.dirty) = (Some(gang), expected, true);
        }
        self.collect_gang(d, now, out)
    }

    /// `d` is free and reserved: grants everything if all devices are free, otherwise lends `d` out.
    pub(super) fn collect_gang(&mut self, d: DeviceId, now: u64, out: &mut Vec<Decision>) -> bool {
        let Some(gang) = self.devices[index(d)].reserved else { return false };
        let devices = self.gang_devices(&gang);
        if !devices.contains(&d) {
            // The gang no longer waits for this device, so it stops collecting several devices.
            self.release(gang);
            return true;
        }
        if devices.iter().all(|&device| self.devices[index(device)].phase == DevicePhase::Free) {
            self.release(gang);
            let seats: Vec<SeatIx> = self.ready_seats(&gang).collect();
            for device in devices {
                // Of several seats on a device the first in its order.
                let order = &self.devices[index(device)].order;
                let Some(seat) = order.pick_next(now, &self.config, |seat| seats.contains(&seat)) else { continue };
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
        let Some(seat) = self.pick_seat(d, now, Some(gang)).filter(|&seat| !self.is_gang(seat)) else { return false };
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

    /// Notes that a seat no longer waits. The gang's other seats waited for it to be first too, and may now be
    /// granted.
    pub(super) fn runs_without(&mut self, gone: SeatIx) {
        self.stir_gang(self.gang_of(self.seat_at(gone).tenant));
    }

    /// Has the devices decide again for which the gang waits.
    fn stir_gang(&mut self, gang: GangKey) {
        for device in self.gang_devices(&gang) {
            self.devices[index(device)].dirty = true;
        }
    }

    /// Ends a gang's collection of several devices.
    pub(super) fn release(&mut self, gang: GangKey) {
        for device in &mut self.devices {
            if device.reserved == Some(gang) {
                (device.reserved, device.dirty) = (None, true);
            }
        }
    }
}
