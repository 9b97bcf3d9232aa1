//! Gangs that wait crosswise: each waits for a launch on a device on which the other one's kernel waits too. Their
//! kernels wait for each other across devices, as the ranks of a collective do.
//!
//! Leases of two such gangs end apart. A kernel of one gang then stays on its device and waits for a launch on
//! another device. There a kernel of the other gang stays, and waits in the same way. So their devices are shared by
//! budgets for a while, as under MPS: all members launch at the same time, and each tenant keeps to its ceiling by
//! its members' own accounts.
//!
//! A gang is found if it waits at the gate of a device on which another gang has work. That gang must wait at the
//! gate of a device where work of the first gang is late: a drain is not over when its estimate and its allowance
//! have passed. Long kernels that wait for nobody can look the same once. So both gangs must be found. No other
//! tenant on a device may lose by that: time slices, or the gangs' ceilings, must leave it what its floor and its
//! weight promise. Otherwise the leases stay.
//!
//! Not here: devices without leases ([`super::common`]), leases on several devices at once ([`super::gang`]).

use super::device::DevicePhase;
use super::gang::GangKey;
use super::seat::{Seat, SeatIx, SeatPlace};
use super::terms::{DeviceId, DeviceSharing};
use super::{Arbiter, index};
use crate::time::config::PROMISED_OVER_NS;

/// A device is shared by budgets for this long after the last of two gangs was found. Then leases are tried again, in
/// which such gangs do little for up to a tenth of a second.
pub(super) const SHARED_NS: u64 = PROMISED_OVER_NS;
/// A gang counts as found for this long, as one of two. When leases are tried again, only one of them is found at
/// first.
const REMEMBERED_NS: u64 = 6 * SHARED_NS;

impl Arbiter {
    /// How the tenants of this device share it now.
    pub(super) fn sharing_of(&self, d: DeviceId, now: u64) -> DeviceSharing {
        match self.devices[index(d)].sharing {
            DeviceSharing::Leases if self.crosswise_until(d, now).is_some() => DeviceSharing::Budgets,
            sharing => sharing,
        }
    }

    fn is_present(&self, seat: SeatIx) -> bool {
        !self.seat_at(seat).members.is_empty() && !self.seat_at(seat).paused
    }

    /// The seats on this device of gangs that were found to wait crosswise, and when each gang was found.
    pub(super) fn crosswise_seats(&self, d: DeviceId, now: u64) -> (Vec<SeatIx>, Vec<u64>) {
        let (mut seats, mut moments) = (Vec::new(), Vec::new());
        for (gang, &found) in &self.gangs.crosswise {
            let before = seats.len();
            seats.extend(self.gang_seats(gang).filter(|&seat| self.seat_at(seat).device == d && self.is_present(seat)));
            if seats.len() > before && now < found.saturating_add(REMEMBERED_NS) {
                moments.push(found);
            } else {
                seats.truncate(before);
            }
        }
        (seats, moments)
    }

    /// Until when the device is shared by budgets because gangs wait crosswise; `None`: it is not.
    pub(super) fn crosswise_until(&self, d: DeviceId, now: u64) -> Option<u64> {
        if self.gangs.crosswise.len() < 2 {
            return None;
        }
        let (gangs, mut moments) = self.crosswise_seats(d, now);
        moments.sort_unstable();
        let [.., before, last] = moments[..] else { return None };
        let until = last.saturating_add(SHARED_NS).min(before.saturating_add(REMEMBERED_NS));
        if now >= until {
            return None;
        }
        let here = self.seats_of(d).into_iter().filter(|&seat| self.is_present(seat));
        let others: Vec<&Seat> = here.filter(|seat| !gangs.contains(seat)).map(|seat| self.seat_at(seat)).collect();
        let gangs: Vec<&Seat> = gangs.into_iter().map(|seat| self.seat_at(seat)).collect();
        may_share(&gangs, &others).then_some(until)
    }

    /// Finds a gang that waits crosswise, if its work that drains on this device is late. True: the device is shared by
    /// budgets from now on, and the gang's other devices decide again.
    pub(super) fn find_crosswise(&mut self, d: DeviceId, seat: SeatIx, now: u64) -> bool {
        if !matches!(self.devices[index(d)].phase, DevicePhase::Drain { said, .. } if now >= said) {
            return false;
        }
        let late = self.gang_of(self.seat_at(seat).tenant);
        let holds_up = |gang: GangKey| {
            let mut seats =
                self.gang_seats(&gang).filter(|&seat| self.has_work(seat)).map(|seat| self.seat_at(seat).device);
            seats.any(|device| device != d && self.waits_on(late, device))
        };
        let mut gangs = self.seats_of(d).into_iter().map(|seat| self.gang_of(self.seat_at(seat).tenant));
        if !gangs.any(|gang| gang != late && self.waits_on(gang, d) && holds_up(gang)) {
            return false;
        }
        self.gangs.crosswise.retain(|_, found| now < found.saturating_add(REMEMBERED_NS));
        self.gangs.crosswise.insert(late, now);
        let is_shared = self.sharing_of(d, now) != DeviceSharing::Leases;
        for seat in self.gang_seats(&late).collect::<Vec<_>>() {
            let device = index(self.seat_at(seat).device);
            self.devices[device].dirty |= is_shared && device != index(d);
        }
        is_shared
    }

    /// True if the tenant has the device (its kernels may run), or overdue work there.
    fn has_work(&self, seat: SeatIx) -> bool {
        matches!(self.seat_at(seat).place, SeatPlace::Current | SeatPlace::Overdue)
    }

    /// True if a member of the gang waits to launch on this device, for a lease or for its ceiling.
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

/// True if nobody loses by sharing the device by time slices and the gangs' ceilings. Each gang keeps its floor and its
/// class. Every other tenant keeps what its weight promises next to the gangs too.
fn may_share(gangs: &[&Seat], others: &[&Seat]) -> bool {
    let floor_of = |seat: &Seat| seat.terms.floor.map_or(0, |floor| u64::from(floor.as_permille()));
    let ceiling_of = |seat: &Seat| seat.terms.effective_ceiling().map_or(1000, |limit| u64::from(limit.as_permille()));
    let weight_of = |seat: &Seat| u64::from(seat.terms.weight.max(1));
    let sum = |of: &dyn Fn(&Seat) -> u64| gangs.iter().map(|seat| of(seat)).sum::<u64>();
    let (floors, ceilings, weights) = (sum(&floor_of), sum(&ceiling_of), sum(&weight_of));
    let members = gangs.iter().chain(others).map(|seat| seat.members.len() as u64).sum::<u64>().max(1);
    let by_slices = |seat: &Seat| 1000 * seat.members.len() as u64 / members;
    let class = gangs.first().map(|seat| seat.terms.class);
    let keeps_floor = |seat: &&Seat| Some(seat.terms.class) == class && floor_of(seat) <= by_slices(seat);
    let keeps_part = |seat: &&Seat| {
        let rest = 1000u64.saturating_sub(floors + floor_of(seat));
        let promised = floor_of(seat) + rest * weight_of(seat) / (weights + weight_of(seat));
        let by_ceilings = if others.len() == 1 { 1000u64.saturating_sub(ceilings) } else { 0 };
        // Under a ceiling it would pay for the time slices of others.
        seat.terms.effective_ceiling().is_none()
            && Some(seat.terms.class) >= class
            && promised <= by_slices(seat).max(by_ceilings)
    };
    gangs.iter().all(keeps_floor) && others.iter().all(keeps_part)
}
