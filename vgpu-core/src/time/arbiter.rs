//! The scheduler: grants each device to one member at a time. Pure policy: soft-exclusive leases with weighted
//! virtual time.
//!
//! A lease makes an interval belong to one member of one tenant. Its events then measure that member's own device
//! time; this makes shares exact. In reading order: the inputs ([`Terms`]), the interface ([`Decision`],
//! [`MemberUsage`]), joining and leaving (`members`), requests (`wishes`), a tenant's position (`place`), the choice
//! of the next (`order`), charges (`charge`, `seat`), one device from decision to decision (`device`), the life of a
//! lease (`lease`, `drain`; `alone`: without one), several devices at once (`gang`), gangs that wait for each other
//! (`crosswise`), devices without leases and pauses (`common`), the tenants that wait (`waiting`), and checks of the
//! members' reports ([`audit`]).
//!
//! Driven by events: the caller reports each event ([`Arbiter::request_launch`], [`Arbiter::apply_report`],
//! [`Arbiter::leave_device`], [`Arbiter::set`]). Then it calls [`Arbiter::tick`], which returns the gates that
//! changed, and calls it again at [`Arbiter::next_deadline`]. Time is an argument; the members' pages are read
//! through [`MemberPages`].
//!
//! Refinements of "class, deficit, virtual time":
//! - A class is not passed over for ever ([`TimeConfig::ageing`]).
//! - A tenant far behind its floor goes before all classes ([`BURST_NS`](crate::time::config::BURST_NS)).
//! - An arrival that is more than half a lease behind in virtual time ends a lease early, so that a program that
//!   synchronises gets its part next to one that queues.
//! - A gate is open only where no other tenant was seen for [`TimeConfig::alone`] and no tenant of class latency is
//!   registered, because work queued through an open gate cannot be withdrawn.
//! - A ceiling expires unused time only while its tenant wants nothing and has nothing in flight: waiting for a
//!   neighbour's long kernel is not idleness.
//!
//! # Cost
//! A decision is a handful of operations on search trees of the device's waiting tenants; members matter only in
//! their tenant's own queue. Not here: sockets, pages, doorbells and clocks, which are the daemon's.

mod alone;
pub mod audit;
mod charge;
mod common;
mod crosswise;
mod decision;
mod device;
mod drain;
mod gang;
mod lease;
mod members;
mod order;
mod place;
mod seat;
mod standing;
mod terms;
#[cfg(all(test, not(loom)))]
mod tests;
mod waiting;
mod wishes;

pub use crate::limits::Class;
pub use decision::{Decision, Gate, MemberPages, MemberUsage};
pub use standing::{Standing, StandingState};
pub use terms::{DeviceId, DeviceSharing, GangId, QUANTUM_RANGE_NS, SlotId, TenantId, Terms, quantum_of};
pub use waiting::{DeviceQueue, WaitingTenant};

use device::ArbiterDevice;
use seat::{MemberSlot, Seat, SeatIx};
use std::collections::BTreeMap;

use crate::time::config::TimeConfig;

/// The devices of a host and the tenants that wait for them.
#[derive(Debug)]
pub struct Arbiter {
    config: TimeConfig,
    /// True: a tenant that was alone for long still gets a lease, a wide one (more may be in flight), because its
    /// device time is measured only under a lease.
    measures_all: bool,
    devices: Vec<ArbiterDevice>,
    /// Number of tenants of class latency, per device.
    latency: Vec<u32>,
    seats: Vec<Option<Seat>>,
    slots: Vec<Option<MemberSlot>>,
    free_seats: Vec<SeatIx>,
    free_slots: Vec<SlotId>,
    tenants: BTreeMap<TenantId, Vec<SeatIx>>,
    gangs: gang::GangTable,
    watched: Vec<SlotId>,
    silent: audit::SilentTime,
}

fn index(d: DeviceId) -> usize {
    usize::from(d.0)
}

impl Arbiter {
    /// Creates an arbiter for `devices` devices, on a clock that shows `now`.
    #[must_use]
    pub fn new(config: TimeConfig, devices: u16, now: u64) -> Self {
        Self {
            config,
            measures_all: false,
            devices: (0..devices).map(|_| ArbiterDevice::new(now)).collect(),
            latency: vec![0; usize::from(devices)],
            seats: Vec::new(),
            slots: Vec::new(),
            free_seats: Vec::new(),
            free_slots: Vec::new(),
            tenants: BTreeMap::new(),
            gangs: gang::GangTable::default(),
            watched: Vec::new(),
            silent: audit::SilentTime::default(),
        }
    }

    /// Adds a device under the next number.
    ///
    /// # Panics
    /// For the 65536th device.
    pub fn add_device(&mut self, now: u64) -> DeviceId {
        let device = DeviceId(u16::try_from(self.devices.len()).expect("fewer than 2^16 devices"));
        self.devices.push(ArbiterDevice::new(now));
        self.latency.push(0);
        device
    }

    /// True if no tenant that is still remembered has used the device. Its number may then be given to another
    /// device.
    ///
    /// # Cost
    /// A look at every tenant on every device.
    #[must_use]
    pub fn is_unused(&self, device: DeviceId) -> bool {
        self.seats.iter().flatten().all(|seat| seat.device != device)
    }

    /// Uses other constants from now on; running leases keep their end.
    pub fn set_config(&mut self, config: TimeConfig) {
        self.config = config;
        self.devices.iter_mut().for_each(|device| device.dirty = true);
    }

    /// Sets whether a tenant that was alone for long keeps a lease, so that all device time is measured. If not, its
    /// gate opens.
    pub fn set_measures_all(&mut self, measures_all: bool) {
        self.measures_all = measures_all;
        self.devices.iter_mut().for_each(|device| device.dirty = true);
    }

    /// Makes the decisions that are due at `now` and appends the gates that changed to `out`.
    pub fn tick(&mut self, now: u64, pages: &mut impl MemberPages, out: &mut Vec<Decision>) {
        // One device's decision may free or take another device: a second round is rare, a third rarer.
        for _ in 0..4 {
            let mut quiet = true;
            for at in 0..self.devices.len() {
                if self.devices[at].dirty || self.devices[at].deadline <= now {
                    quiet = false;
                    let d = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
                    self.decide_device(d, now, pages, out);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// When [`Self::tick`] must be called even if nothing happens; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let due = self.devices.iter().map(|device| if device.dirty { 0 } else { device.deadline }).min();
        due.filter(|&due| due != u64::MAX)
    }

    /// All device time charged to a tenant on a device.
    #[must_use]
    pub fn charged_ns(&self, tenant: TenantId, device: DeviceId) -> u64 {
        self.find(tenant, device).map_or(0, |seat| self.seat_at(seat).charged)
    }

    fn tell_gate(&mut self, slot: SlotId, gate: Gate, out: &mut Vec<Decision>) {
        let seat = self.slot_at(slot).seat;
        if self.slot_at(slot).gate != gate {
            self.slot_at_mut(slot).gate = gate;
            let (tenant, device) = (self.seat_at(seat).tenant, self.seat_at(seat).device);
            out.push(Decision { slot, tenant, device, gate });
        }
    }

    fn seat_at(&self, seat: SeatIx) -> &Seat {
        self.seats[seat as usize].as_ref().expect("a seat that is taken")
    }

    fn seat_at_mut(&mut self, seat: SeatIx) -> &mut Seat {
        self.seats[seat as usize].as_mut().expect("a seat that is taken")
    }

    fn slot_at(&self, slot: SlotId) -> &MemberSlot {
        self.slots[slot.index()].as_ref().expect("a slot that is taken")
    }

    fn slot_at_mut(&mut self, slot: SlotId) -> &mut MemberSlot {
        self.slots[slot.index()].as_mut().expect("a slot that is taken")
    }
}
