//! Who holds a device: soft-exclusive leases with weighted virtual time, as pure policy.
//!
//! A lease makes an interval belong to one member of one tenant, so that what events measure in it is that member's own
//! device time; this is what makes shares exact. In reading order: what is asked for ([`terms`](Terms)), what goes in
//! and comes out ([`Decision`], [`Usage`]), who is there (`members`) and asks for something (`wishes`), where it stands
//! (`place`) and who is next (`order`), what is charged (`charge`, `seat`), one device from decision to decision (`device`),
//! the life of a lease (`lease`, `drain`; `alone`: without one), several devices at once (`gang`), what administrators
//! decide (`common`), and whether it is true ([`audit`]).
//!
//! Driven by events: the caller tells what happens ([`Arbiter::wants`], [`Arbiter::reports`], [`Arbiter::leaves`],
//! [`Arbiter::set`]), then calls [`Arbiter::tick`], which returns the gates that changed, and calls it again at
//! [`Arbiter::next_deadline`]. Time is an argument; the members' pages are read through [`Pages`].
//!
//! Where this says more than "class, deficit, virtual time": a class is not passed over for ever ([`Config::ageing`]),
//! a floor far behind goes before classes ([`Config::patience`]); an arrival that is more than half a lease behind in
//! virtual time ends a lease early, so that a program that synchronises gets its part beside one that queues; the gate
//! is open only where nobody else was seen for [`Config::alone`] and no tenant of class latency is registered, since
//! what is queued through an open gate cannot be taken back; and a ceiling forgets unused time only while its tenant
//! wants nothing and has nothing in flight: waiting for a neighbour's long kernel is not idleness.
//!
//! # Cost
//! A decision is a handful of operations on search trees of the device's waiting tenants; members count only in their
//! tenant's own queue. Not here: sockets, pages, doorbells and clocks are the daemon's.

mod alone;
pub mod audit;
mod charge;
mod common;
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
mod wishes;

pub use decision::{Decision, Gate, Pages, Usage};
pub use standing::{Standing, State};
pub use terms::{Class, Config, DeviceId, QUANTUM, SlotId, Tenant, Terms};

use device::Device;
use seat::{Seat, SeatIx, Slot};
use std::collections::BTreeMap;

/// The devices of a host and who waits for them.
#[derive(Debug)]
pub struct Arbiter {
    config: Config,
    devices: Vec<Device>,
    /// Tenants of class latency per device.
    latency: Vec<u32>,
    seats: Vec<Option<Seat>>,
    slots: Vec<Option<Slot>>,
    free_seats: Vec<SeatIx>,
    free_slots: Vec<SlotId>,
    tenants: BTreeMap<Tenant, Vec<SeatIx>>,
    watched: Vec<SlotId>,
}

fn index(d: DeviceId) -> usize {
    usize::from(d.0)
}

impl Arbiter {
    /// For `devices` devices, on a clock that says `now`.
    #[must_use]
    pub fn new(config: Config, devices: u16, now: u64) -> Self {
        Self {
            config,
            devices: (0..devices).map(|_| Device::new(now)).collect(),
            latency: vec![0; usize::from(devices)],
            seats: Vec::new(),
            slots: Vec::new(),
            free_seats: Vec::new(),
            free_slots: Vec::new(),
            tenants: BTreeMap::new(),
            watched: Vec::new(),
        }
    }

    /// One device more, under the next number.
    ///
    /// # Panics
    /// With the 65536th.
    pub fn add_device(&mut self, now: u64) -> DeviceId {
        let device = DeviceId(u16::try_from(self.devices.len()).expect("fewer than 2^16 devices"));
        self.devices.push(Device::new(now));
        self.latency.push(0);
        device
    }

    /// Has no tenant been there that was not forgotten? The number may then stand for another device.
    ///
    /// # Cost
    /// A look at every tenant on every device.
    #[must_use]
    pub fn is_unused(&self, device: DeviceId) -> bool {
        self.seats.iter().flatten().all(|seat| seat.device != device)
    }

    /// Other constants from now on; leases that run keep their end.
    pub fn configure(&mut self, config: Config) {
        self.config = config;
        self.devices.iter_mut().for_each(|device| device.dirty = true);
    }

    /// Decides what is due at `now` and appends the gates that changed to `out`.
    pub fn tick(&mut self, now: u64, pages: &mut impl Pages, out: &mut Vec<Decision>) {
        // A device's decision may free or take another one: the second round is rare, a third rarer.
        for _ in 0..4 {
            let mut quiet = true;
            for at in 0..self.devices.len() {
                if self.devices[at].dirty || self.devices[at].deadline <= now {
                    quiet = false;
                    let d = DeviceId(u16::try_from(at).unwrap_or(u16::MAX));
                    self.decide(d, now, pages, out);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// When [`Self::tick`] must be called although nothing happens; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let due = self.devices.iter().map(|device| if device.dirty { 0 } else { device.deadline }).min();
        due.filter(|&due| due != u64::MAX)
    }

    /// All device time charged to a tenant on a device.
    #[must_use]
    pub fn charged(&self, tenant: Tenant, device: DeviceId) -> u64 {
        self.find(tenant, device).map_or(0, |seat| self.seat(seat).charged)
    }

    fn tell(&mut self, slot: SlotId, gate: Gate, out: &mut Vec<Decision>) {
        let seat = self.slot(slot).seat;
        if self.slot(slot).gate != gate {
            self.slot_mut(slot).gate = gate;
            let (tenant, device) = (self.seat(seat).tenant, self.seat(seat).device);
            out.push(Decision { slot, tenant, device, gate });
        }
    }

    fn seat(&self, seat: SeatIx) -> &Seat {
        self.seats[seat as usize].as_ref().expect("a seat that is taken")
    }

    fn seat_mut(&mut self, seat: SeatIx) -> &mut Seat {
        self.seats[seat as usize].as_mut().expect("a seat that is taken")
    }

    fn slot(&self, slot: SlotId) -> &Slot {
        self.slots[slot.index()].as_ref().expect("a slot that is taken")
    }

    fn slot_mut(&mut self, slot: SlotId) -> &mut Slot {
        self.slots[slot.index()].as_mut().expect("a slot that is taken")
    }
}
