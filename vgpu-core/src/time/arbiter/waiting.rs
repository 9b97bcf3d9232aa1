//! The tenants that wait for a device, in the order of their next leases, and how long each has waited in total.
//! Decides nothing.

use super::device::DevicePhase;
use super::seat::{SeatIx, SeatPlace};
use super::terms::{DeviceId, TenantId, quantum_of};
use super::{Arbiter, index};

/// A tenant that waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingTenant {
    /// The tenant.
    pub tenant: TenantId,
    /// Number of its members that wait.
    pub queued: usize,
    /// Since when it has waited without the device.
    pub since: u64,
    /// Earliest time of its next lease: now, or later if its ceiling is used up. `None`: it is not known, because the
    /// tenant is paused, or its own earlier work must end first.
    pub earliest: Option<u64>,
    /// Length of its leases, in ns.
    pub lease: u64,
}

/// The queue of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceQueue {
    /// The tenant that has the device.
    pub holder: Option<TenantId>,
    /// Time until the holder's lease and its work are expected to end, in ns.
    pub left: u64,
    /// The tenants that wait, the next one first.
    pub waiting: Vec<WaitingTenant>,
}

impl Arbiter {
    /// Begins or ends the waiting time of a seat, after its place or its queue changed.
    pub(super) fn note_wait(&mut self, seat: SeatIx, now: u64) {
        let this = self.seat_at_mut(seat);
        let is_placed = matches!(this.place, SeatPlace::Ready | SeatPlace::Capped(_) | SeatPlace::Overdue);
        if is_placed && !this.queue.is_empty() {
            this.waits_since.get_or_insert(now);
        } else if let Some(since) = this.waits_since.take() {
            this.waited = this.waited.saturating_add(now.saturating_sub(since));
        }
    }

    /// Time in which a tenant waited without the device, in ns: at least one of its members asked, and none had a
    /// lease or work that drained. It never falls while the arbiter remembers the tenant.
    #[must_use]
    pub fn waited_ns(&self, tenant: TenantId, device: DeviceId, now: u64) -> u64 {
        let Some(seat) = self.find(tenant, device) else { return 0 };
        let seat = self.seat_at(seat);
        seat.waited.saturating_add(seat.waits_since.map_or(0, |since| now.saturating_sub(since)))
    }

    /// The queue of a device: the order in which its waiting tenants would get a lease if each got one.
    ///
    /// # Cost
    /// A copy of the device's order, and a choice for each waiting tenant.
    #[must_use]
    pub fn device_queue(&self, d: DeviceId, now: u64) -> DeviceQueue {
        let device = &self.devices[index(d)];
        let mut order = device.order.clone();
        let mut seats = Vec::new();
        while let Some(seat) = order.pick_next(now, &self.config, |_| true) {
            order.remove(seat, self.seat_at(seat).order_key());
            seats.push(seat);
        }
        let mut later: Vec<SeatIx> = self.seats_of(d);
        later.retain(|seat| self.seat_at(*seat).waits_since.is_some() && !seats.contains(seat));
        later.sort_by_key(|&seat| (self.earliest_lease(seat, now).unwrap_or(u64::MAX), self.seat_at(seat).waits_since));
        let waiting = seats.into_iter().chain(later).map(|seat| self.waiting_tenant(seat, now)).collect();
        let holder = device.phase.holding_seat().map(|seat| self.seat_at(seat).tenant);
        let left = match device.phase {
            DevicePhase::Held { slot, until, .. } => {
                // A lease without an end is cut to one quantum as soon as another tenant waits.
                let until = if until == u64::MAX { now } else { until };
                until.saturating_sub(now).saturating_add(self.slot_at(slot).usage.expected_ns())
            }
            DevicePhase::Drain { .. } => {
                let draining = device.draining.iter().map(|&slot| self.slot_at(slot).reported_remaining(now));
                draining.max().unwrap_or(0)
            }
            DevicePhase::Free | DevicePhase::Common | DevicePhase::Open { .. } => 0,
        };
        DeviceQueue { holder, left, waiting }
    }

    fn earliest_lease(&self, seat: SeatIx, now: u64) -> Option<u64> {
        match self.seat_at(seat).place {
            _ if self.seat_at(seat).paused => None,
            SeatPlace::Capped(refill) => Some(refill.max(now)),
            SeatPlace::Overdue => None,
            SeatPlace::Idle | SeatPlace::Ready | SeatPlace::Current => Some(now),
        }
    }

    fn waiting_tenant(&self, seat: SeatIx, now: u64) -> WaitingTenant {
        let this = self.seat_at(seat);
        WaitingTenant {
            tenant: this.tenant,
            queued: this.queue.len(),
            since: this.waits_since.unwrap_or(now),
            earliest: self.earliest_lease(seat, now),
            lease: quantum_of(&self.config, &this.terms),
        }
    }
}
