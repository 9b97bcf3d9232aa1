//! Members that join and leave, and their tenants' terms.
//!
//! A tenant stays when its last member leaves, with its debts and dues, until it is forgotten. Not here: the charge
//! for a death ([`super::charge`]), and members' requests ([`super::wishes`]).

use super::audit::HeldTime;
use super::device::DevicePhase;
use super::gang::GangKey;
use super::seat::{MemberSlot, Seat, SeatIx, SeatPlace};
use super::terms::{DeviceId, SlotId, TenantId, Terms};
use super::{Arbiter, index};
use crate::limits::Class;

impl Arbiter {
    /// Adds a member to a device, with the gate [`Gate::Wait`](crate::time::arbiter::Gate::Wait). `terms` apply if the
    /// tenant has no member there yet; a tenant that was here before returns with the account and virtual time that
    /// it left.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn join(&mut self, tenant: TenantId, device: DeviceId, terms: Terms, now: u64) -> SlotId {
        let known = self.find(tenant, device);
        let seat = known.unwrap_or_else(|| self.take_seat(tenant, device, now));
        if self.seat_at(seat).members.is_empty() {
            match known {
                Some(_) => self.other_terms(seat, terms, now),
                None => self.seat_at_mut(seat).terms = terms,
            }
            self.devices[index(device)].dirty = true;
            self.latency[index(device)] += u32::from(terms.class == Class::Latency);
        }
        self.devices[index(device)].dirty |= self.devices[index(device)].phase == DevicePhase::Common;
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                SlotId(u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 members"))
            }
        };
        let lost_to = self.devices[index(device)].lost;
        self.slots[slot.index()] =
            Some(MemberSlot { lost_to, measured_to: (now, lost_to), ..MemberSlot::new(seat, now) });
        self.seat_at_mut(seat).members.push(slot);
        slot
    }

    /// Notes that a member that just joined was here under another arbiter, and may have work queued. Until it
    /// reports that it has none it is overdue, and no tenant has the device to itself.
    pub fn comes_back(&mut self, slot: SlotId, now: u64) {
        let seat = self.slot_at(slot).seat;
        let d = self.seat_at(seat).device;
        if self.devices[index(d)].phase == DevicePhase::Common || self.slot_at(slot).overdue.is_some() {
            return;
        }
        self.count_device_time(d, now);
        let lost = self.devices[index(d)].lost;
        let this = self.slot_at_mut(slot);
        (this.overdue, this.usage.in_flight) = (Some(now), None);
        (this.lost_to, this.measured_to) = (lost, (now, lost));
        this.is_unmeasured = true;
        let device = &mut self.devices[index(d)];
        device.add_overdue(slot, now);
        device.dirty = true;
        self.place_seat(seat, now);
    }

    /// Removes a member, with all it had in flight. Its slot may be given to another. Returns the slot's
    /// time on the device: a process that joins again keeps that time.
    pub fn leave_device(&mut self, slot: SlotId, now: u64) -> HeldTime {
        let seat = self.slot_at(slot).seat;
        let d = self.seat_at(seat).device;
        self.count_device_time(d, now);
        let had = self.slot_at(slot).had;
        let had = HeldTime { reported: had.reported.saturating_add(had.awaited), awaited: 0, ..had };
        self.settle_death(slot, now);
        self.devices[index(d)].overdue.retain(|&member| member != slot);
        self.devices[index(d)].accused.retain(|&member| member != slot);
        self.slot_at_mut(slot).overdue = None;
        self.seat_at_mut(seat).members.retain(|&member| member != slot);
        self.seat_at_mut(seat).queue.retain(|&member| member != slot);
        let device = &mut self.devices[index(d)];
        device.dirty = true;
        device.draining.retain(|&member| member != slot);
        if matches!(device.phase, DevicePhase::Held { slot: holder, .. } if holder == slot) {
            self.begin_drain(d, seat, now);
        }
        self.slots[slot.index()] = None;
        self.free_slots.push(slot);
        let last = self.seat_at(seat).members.is_empty();
        if last && self.devices[index(d)].phase.holding_seat() == Some(seat) {
            self.devices[index(d)].phase = DevicePhase::Free;
            self.seat_at_mut(seat).place = SeatPlace::Idle;
        }
        if self.seat_at(seat).queue.is_empty() || self.seat_at(seat).place == SeatPlace::Overdue {
            self.place_seat(seat, now);
        }
        if last {
            // The tenant keeps its debts and what it is due: a program that is started again and again is one tenant.
            self.release(self.gang_of(self.seat_at(seat).tenant));
            self.latency[index(d)] -= u32::from(self.seat_at(seat).terms.class == Class::Latency);
        }
        had
    }

    /// Sets which processes work on a device without holding it: a number of processes that are no members, and these
    /// members. Until the next call all others on the device share it with them, and pay the known cost of their
    /// launches.
    pub fn works_unseen(&mut self, device: DeviceId, strangers: u64, accused: &[SlotId], now: u64) {
        self.count_device_time(device, now);
        let device = &mut self.devices[index(device)];
        if (device.strangers, &device.accused[..]) != (strangers, accused) {
            (device.strangers, device.accused) = (strangers, accused.to_vec());
            device.dirty = true;
        }
    }

    /// Sets which members of the device report less work than the driver's samples show, each with the held time that
    /// it did not report, in ns. A new one is charged that time. Until the next call each pays for the time in which
    /// it holds the device, or for its reports if they say more.
    pub fn set_underreporting(&mut self, device: DeviceId, members: &[(SlotId, u64)], now: u64) {
        for slot in self.seats_of(device).into_iter().flat_map(|seat| self.slots_of(seat)).collect::<Vec<_>>() {
            let unreported = members.iter().find(|(member, _)| *member == slot).map(|(_, ns)| *ns);
            let paid_before = core::mem::replace(&mut self.slot_at_mut(slot).pays_held_time, unreported.is_some());
            if let Some(ns) = unreported.filter(|_| !paid_before) {
                self.count_device_time(device, now);
                self.slot_at_mut(slot).ahead += ns;
                self.pay_for_seat(self.slot_at(slot).seat, ns);
                self.devices[index(device)].dirty = true;
            }
        }
    }

    /// Notes that the daemon wrote no heartbeat from `since` to `now`, longer than
    /// [`DAEMON_GONE_NS`](crate::time::config::DAEMON_GONE_NS). Members worked without leases meanwhile. That work may
    /// still be queued on the device for as long as a launch is trusted, and some members have not joined again.
    pub const fn was_silent(&mut self, since: u64, now: u64) {
        self.silent.add(since, now.saturating_add(self.config.stuck));
    }

    /// Time in which members may have worked without leases, because the daemon was [silent](Self::was_silent), in ns.
    /// It never falls.
    #[must_use]
    pub const fn silent_ns(&self, now: u64) -> u64 {
        self.silent.up_to(now)
    }

    /// A member's time on its device. Its use is at most the held time and [`Self::silent_ns`].
    pub fn held_time(&mut self, slot: SlotId, now: u64) -> HeldTime {
        self.count_device_time(self.seat_at(self.slot_at(slot).seat).device, now);
        self.slot_at(slot).had
    }

    /// Forgets a tenant that is gone for good, with its debts. A tenant that has members stays.
    pub fn forget_tenant(&mut self, tenant: TenantId) {
        let Some(seats) = self.tenants.get_mut(&tenant) else { return };
        let table = &mut self.seats;
        let free_seats = &mut self.free_seats;
        seats.retain(|&seat| {
            let place = &mut table[seat as usize];
            let stays = place.as_ref().is_some_and(|seat| !seat.members.is_empty());
            if !stays {
                *place = None;
                free_seats.push(seat);
            }
            stays
        });
        if seats.is_empty() {
            self.tenants.remove(&tenant);
            self.set_gang(tenant, None);
            self.gangs.crosswise.remove(&GangKey::Tenant(tenant));
        }
    }

    /// Changes a tenant's terms. Takes effect with the next [`Self::tick`].
    pub fn set(&mut self, tenant: TenantId, device: DeviceId, terms: Terms, now: u64) {
        let Some(seat) = self.find(tenant, device).filter(|&seat| !self.seat_at(seat).members.is_empty()) else {
            return;
        };
        let place = self.seat_at(seat).place;
        self.take_out(seat);
        let class = self.seat_at(seat).terms.class;
        self.latency[index(device)] += u32::from(terms.class == Class::Latency);
        self.latency[index(device)] -= u32::from(class == Class::Latency);
        self.other_terms(seat, terms, now);
        if matches!(place, SeatPlace::Ready | SeatPlace::Capped(_)) {
            self.place_seat(seat, now);
        }
        if place == SeatPlace::Ready {
            self.runs_without(seat);
        }
        self.devices[index(device)].dirty = true;
        self.devices[index(device)].revoke |= place == SeatPlace::Current;
    }

    /// Changes terms so that neither debts nor dues from the old terms persist. A debt of 100 ms at 5 % would be
    /// two seconds without a lease at 90 %. An hour without a floor would be an hour for which all other floors
    /// wait.
    fn other_terms(&mut self, seat: SeatIx, terms: Terms, now: u64) {
        let config = self.config;
        let order = &self.devices[index(self.seat_at(seat).device)].order;
        let (clock, before, after) = (
            order.floor_clock(now),
            order.least_time(self.seat_at(seat).terms.class),
            order.least_waiting(terms.class),
        );
        let seat = self.seat_at_mut(seat);
        seat.apply_terms(&terms, before, after);
        if seat.terms.floor.is_none() {
            seat.floor_zero = clock;
        }
        if core::mem::replace(&mut seat.terms, terms).ceiling != terms.ceiling {
            seat.begin_anew(now, &config);
        }
    }

    pub(super) fn find(&self, tenant: TenantId, device: DeviceId) -> Option<SeatIx> {
        self.tenants.get(&tenant)?.iter().copied().find(|&seat| self.seat_at(seat).device == device)
    }

    fn take_seat(&mut self, tenant: TenantId, device: DeviceId, now: u64) -> SeatIx {
        let seat = self.free_seats.pop().unwrap_or_else(|| {
            self.seats.push(None);
            u32::try_from(self.seats.len() - 1).expect("fewer than 2^32 tenants")
        });
        self.seats[seat as usize] = Some(Seat::new(tenant, device, Terms::default(), now));
        self.tenants.entry(tenant).or_default().push(seat);
        seat
    }
}
