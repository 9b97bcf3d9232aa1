//! Gangs that wait crosswise: their kernels wait for each other across devices, as the ranks of a collective do, and
//! another such gang works on the same devices.
//!
//! Leases of two such gangs end apart. A kernel of one gang then stays on its device and waits for a launch on another
//! device. There a kernel of the other gang stays, and waits in the same way. So their devices are shared by budgets for a
//! while, as under MPS: all members launch at the same time, and each tenant keeps to its ceiling by its members' own
//! accounts.
//!
//! Two gangs wait crosswise if each waits at the gate of a device on which the other has work, and some of that work
//! takes longer than its estimate and a drain's allowance. No other tenant on a device may lose by that. Time slices, or
//! the ceilings of the others, must leave it what its floor and its weight promise. Otherwise the leases stay.
//!
//! Not here: devices without leases ([`super::common`]), leases on several devices at once ([`super::gang`]).

use super::device::DevicePhase;
use super::gang::GangKey;
use super::seat::{Seat, SeatIx, SeatPlace};
use super::terms::{DeviceId, DeviceSharing};
use super::{Arbiter, index};

/// Devices of gangs that wait crosswise are shared by budgets for this long. Then leases are tried again, in which such
/// gangs do little for up to a tenth of a second.
const SHARED_NS: u64 = 10_000_000_000;

impl Arbiter {
    /// How the tenants of this device share it now.
    pub(super) fn sharing_of(&self, d: DeviceId, now: u64) -> DeviceSharing {
        match self.devices[index(d)].sharing {
            DeviceSharing::Leases if self.crosswise_until(d, now).is_some() => DeviceSharing::Budgets,
            sharing => sharing,
        }
    }

    /// Until when the device is shared by budgets because gangs wait crosswise; `None`: it is not.
    pub(super) fn crosswise_until(&self, d: DeviceId, now: u64) -> Option<u64> {
        let found = &self.gangs.crosswise;
        if found.values().all(|&until| now >= until) {
            return None;
        }
        let is_present = |seat: &SeatIx| !self.seat_at(*seat).members.is_empty() && !self.seat_at(*seat).paused;
        let present: Vec<SeatIx> = self.seats_of(d).into_iter().filter(is_present).collect();
        let until = |gang: GangKey| found.get(&gang).copied().filter(|&until| now < until);
        let mut gangs = self.gangs_of(&present);
        gangs.retain(|&gang| until(gang).is_some());
        let mut ends: Vec<u64> = gangs.iter().filter_map(|&gang| until(gang)).collect();
        ends.sort_unstable();
        let [.., second, _] = ends[..] else { return None };
        let here: Vec<&Seat> = present.iter().map(|&seat| self.seat_at(seat)).collect();
        let mut others = here.iter().filter(|seat| !gangs.contains(&self.gang_of(seat.tenant)));
        others.all(|seat| keeps_its_part(seat, &here)).then_some(second)
    }

    /// The gangs of these seats, each once.
    fn gangs_of(&self, seats: &[SeatIx]) -> Vec<GangKey> {
        let mut gangs: Vec<GangKey> = seats.iter().map(|&seat| self.gang_of(self.seat_at(seat).tenant)).collect();
        gangs.sort_unstable();
        gangs.dedup();
        gangs
    }

    /// Looks for gangs that wait crosswise, if work that drains on this device is late. True: the device is shared by
    /// budgets from now on.
    pub(super) fn find_crosswise(&mut self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        if !matches!(self.devices[index(d)].phase, DevicePhase::Drain { said, .. } if now >= said) {
            return false;
        }
        let late = self.gang_of(self.seat_at(seat).tenant);
        let holds_up = |gang: &GangKey| {
            let mut devices =
                self.gang_seats(gang).filter(|&seat| self.has_work(seat)).map(|seat| self.seat_at(seat).device);
            devices.any(|device| device != d && self.waits_on(late, device))
        };
        let mut gangs = self.gangs_of(&self.seats_of(d));
        gangs.retain(|gang| *gang != late && self.waits_on(*gang, d) && holds_up(gang));
        if gangs.is_empty() {
            return false;
        }
        gangs.push(late);
        self.gangs.crosswise.retain(|_, until| now < *until);
        for gang in gangs {
            self.gangs.crosswise.insert(gang, now.saturating_add(SHARED_NS));
            for seat in self.gang_seats(&gang).collect::<Vec<_>>() {
                let device = index(self.seat_at(seat).device);
                self.devices[device].dirty |= device != index(d);
            }
        }
        self.sharing_of(d, now) != DeviceSharing::Leases
    }

    /// True if the tenant has the device, or work that is overdue there.
    fn has_work(&self, seat: SeatIx) -> bool {
        matches!(self.seat_at(seat).place, SeatPlace::Current | SeatPlace::Overdue)
    }

    /// True if a member of the gang waits at the gate of this device.
    fn waits_on(&self, gang: GangKey, d: DeviceId) -> bool {
        let is_held = matches!(self.devices[index(d)].phase, DevicePhase::Held { .. });
        self.gang_seats(&gang).map(|seat| self.seat_at(seat)).filter(|seat| seat.device == d && !seat.paused).any(
            |seat| {
                let wants = || seat.members.iter().any(|&slot| self.slot_at(slot).usage.wants);
                match seat.place {
                    SeatPlace::Ready | SeatPlace::Capped(_) => true,
                    SeatPlace::Current => !is_held && wants(),
                    SeatPlace::Overdue => wants(),
                    SeatPlace::Idle => false,
                }
            },
        )
    }
}

/// True if time slices, or the others' ceilings, leave this tenant what its floor and its weight promise. A higher class
/// is promised all that it wants.
fn keeps_its_part(seat: &Seat, here: &[&Seat]) -> bool {
    if here.iter().any(|other| other.terms.class > seat.terms.class) {
        return false;
    }
    let floor_of = |seat: &Seat| seat.terms.floor.map_or(0, |floor| u64::from(floor.as_permille()));
    let ceiling_of = |seat: &Seat| seat.terms.effective_ceiling().map_or(1000, |limit| u64::from(limit.as_permille()));
    let weight_of = |seat: &Seat| u64::from(seat.terms.weight.max(1));
    let sum = |of: &dyn Fn(&Seat) -> u64| here.iter().map(|seat| of(seat)).sum::<u64>();
    let rest = 1000u64.saturating_sub(sum(&floor_of));
    let promised = (floor_of(seat) + rest * weight_of(seat) / sum(&weight_of)).min(ceiling_of(seat));
    let by_slices = 1000 * seat.members.len() as u64 / sum(&|seat| seat.members.len() as u64);
    let by_ceilings = 1000u64.saturating_sub(sum(&ceiling_of) - ceiling_of(seat));
    promised <= by_slices.max(by_ceilings)
}
