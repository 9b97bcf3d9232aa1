//! Who has which device now: the arbiter, the tenants' pages and what happens between them.
//!
//! Told what happens (a member joins, leaves, rings; a tenant's terms change; time passes), it writes boards and wakes
//! whoever sleeps there. In reading order: this file (tenants, time), `members` (who comes to a device and leaves it),
//! `former` and `belief` (who comes back: what it used, whether it has work), `devices` (which there are, and whether they are
//! given out in leases), `desk` (what the arbiter reads and writes), `view` (what status and explain say).
//!
//! Time is an argument, pages are whatever dereferences to one: mappings in the daemon, boxes in the tests. Not here:
//! sockets, descriptors, clocks and bells, which are the reactor's.

mod belief;
mod desk;
mod devices;
mod former;
#[cfg(test)]
mod hostile;
mod members;
#[cfg(test)]
mod tests;
mod unseen;
pub mod view;

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;

use vgpu_core::arbiter::{self, Arbiter, Decision, DeviceId, Gate, SlotId, Usage};
use vgpu_core::limits::Mode;
use vgpu_core::page::bell::{Bell, Heard};
use vgpu_core::page::{Allowed, BoardPage, GONE, ReportPage, Reports, Uncharged};

use super::config::{Arbitrate, On, Tenant};
use belief::Belief;
use devices::Devices;
use former::Former;
pub use former::Past;
use vgpu_config::time::Time;

/// The daemon's part of device time. `B` and `R`: a tenant's board and report.
pub struct Leases<B, R> {
    epoch: u64,
    time: Time,
    arbitrate: Arbitrate,
    /// As [`Self::measure_all`] says.
    measures_all: bool,
    arbiter: Arbiter,
    reports: Reports<R>,
    devices: Devices,
    houses: BTreeMap<arbiter::Tenant, House<B, R>>,
    /// By the arbiter's slots: whose, and where on its pages.
    places: Vec<Option<Place>>,
    /// Members that came back and are believed to have work before their device.
    claiming: Vec<Place>,
    out: Vec<Decision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    tenant: arbiter::Tenant,
    index: usize,
}

/// A tenant, with or without members.
#[derive(Debug)]
struct House<B, R> {
    tenant: Tenant,
    paused: bool,
    pages: Option<Pages<B, R>>,
    bell: Bell,
    /// Something may have changed since its sums were last looked at.
    stirred: bool,
    /// Of members that are gone.
    gone: BTreeMap<DeviceId, Totals>,
    /// What members used before this daemon came.
    former: BTreeMap<DeviceId, Former>,
    /// In members that come back with work.
    belief: BTreeMap<DeviceId, Belief>,
    /// Memory that counts against its limits beside its ledgers.
    uncharged: BTreeMap<DeviceId, Uncharged>,
}

#[derive(Debug)]
struct Pages<B, R> {
    board: B,
    report: R,
    slots: Vec<Option<Slot>>,
    /// Those below `slots.len()` that are nobody's.
    free: Vec<usize>,
    /// By the number of the member.
    members: HashMap<u64, Vec<usize>>,
}

/// One member on one device.
#[derive(Debug)]
struct Slot {
    id: SlotId,
    device: DeviceId,
    allowed: Allowed,
    past: Past,
    gate: Gate,
    /// When its gate last opened.
    granted: u64,
    /// Since when it has stood at the gate.
    stands: Option<u64>,
    waited: u64,
    /// Device time that the record was told, with what it had before.
    told: u64,
    /// Of what it measured, what was weighed against the belief in its claim.
    heard: u64,
    /// It launched through an open gate, which nobody measures.
    unmeasured: bool,
}

impl Slot {
    /// Does it launch what nobody measures? Whoever is only observed measures behind any gate.
    fn is_unmeasured<R: Deref<Target = ReportPage>>(&self, reports: &Reports<R>) -> bool {
        self.gate == Gate::Open
            && self.allowed.mode == Mode::Enforce
            && reports.witness(self.id).is_some_and(|witness| witness.launched() > 0)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    wait: u64,
    launches: u64,
    unmeasured: bool,
}

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> Leases<B, R> {
    /// Of nobody yet. `known`: the UUIDs of the devices that the driver named.
    #[must_use]
    pub fn new(time: Time, arbitrate: Arbitrate, known: &[String], epoch: u64, now: u64) -> Self {
        let mut arbiter = Arbiter::new(time.arbiter(), 0, now);
        let devices = Devices::new(known, &mut arbiter, now);
        let mut reports = Reports::new();
        reports.at(now);
        let (houses, places, claiming, out) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let measures_all = false;
        Self { epoch, time, arbitrate, measures_all, arbiter, reports, devices, houses, places, claiming, out }
    }

    /// The driver named devices that it had not named.
    pub fn know(&mut self, known: &[String], now: u64) {
        self.devices.know(known, &mut self.arbiter, now);
    }

    /// The epoch of all pages.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a tenant that is alone keeps a lease too, so that all its device time is measured.
    pub fn measure_all(&mut self, all: bool) {
        self.measures_all = all;
        self.arbiter.configure(self.constants());
    }

    fn constants(&self) -> arbiter::Config {
        arbiter::Config { measures_all: self.measures_all, ..self.time.arbiter() }
    }

    /// Other constants from now on.
    pub fn settle(&mut self, time: Time, arbitrate: Arbitrate, now: u64) {
        let other = self.time != time;
        (self.time, self.arbitrate) = (time, arbitrate);
        if other {
            self.arbiter.configure(self.constants());
        }
        self.devices.stale();
        for number in self.houses.keys().copied().collect::<Vec<_>>() {
            self.allow(number, now);
        }
        self.tick(now);
    }

    /// A tenant is served from now on, or has other terms, in force with the next [`Self::tick`]; returns how many slots of
    /// members it concerned.
    pub fn put(&mut self, number: arbiter::Tenant, tenant: Tenant, now: u64) -> usize {
        self.devices.stale();
        match self.houses.get_mut(&number) {
            Some(house) => house.tenant = tenant,
            None => {
                let (gone, former, belief) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                let (pages, bell, uncharged) = (None, Bell::default(), BTreeMap::new());
                let house =
                    House { tenant, paused: false, pages, bell, stirred: true, gone, former, belief, uncharged };
                self.houses.insert(number, house);
            }
        }
        self.allow(number, now)
    }

    /// A tenant is gone, with its members.
    pub fn remove(&mut self, number: arbiter::Tenant, now: u64) {
        self.empty(number, now);
        self.houses.remove(&number);
        self.arbiter.forget(number);
        self.devices.forget(number, &self.arbiter);
        self.devices.stale();
        self.tick(now);
    }

    /// Are there pages for this tenant's members?
    #[must_use]
    pub fn has_pages(&self, number: arbiter::Tenant) -> bool {
        self.houses.get(&number).is_some_and(|house| house.pages.is_some())
    }

    /// Its first member comes: fresh pages, which are formatted here. They stay until [`Self::empty`].
    pub fn furnish(&mut self, number: arbiter::Tenant, board: B, report: R) {
        board.format(self.epoch);
        report.format(self.epoch);
        if let Some(house) = self.houses.get_mut(&number) {
            let (slots, free, members) = (Vec::new(), Vec::new(), HashMap::new());
            house.pages = Some(Pages { board, report, slots, free, members });
        }
    }

    /// Its last member has left: the pages are given up.
    pub fn empty(&mut self, number: arbiter::Tenant, now: u64) {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return };
        for member in pages.members.keys().copied().collect::<Vec<_>>() {
            self.leave(number, member, now);
        }
        if let Some(house) = self.houses.get_mut(&number) {
            house.pages = None;
        }
    }

    /// A tenant's bell rings. [`Heard::At`]: it rings too often; to be heard at that moment and not before.
    ///
    /// # Cost
    /// Some ten loads for each slot of the tenant, and a tick.
    pub fn rang(&mut self, number: arbiter::Tenant, now: u64) -> Heard {
        let Some(house) = self.houses.get_mut(&number) else { return Heard::Now };
        house.stirred = true;
        let members = house.pages.as_ref().map_or(0, |pages| pages.slots.len() - pages.free.len());
        let heard = house.bell.rings_for(members, now);
        if heard == Heard::Now {
            self.look(number, now);
            self.tick(now);
        }
        heard
    }

    /// Reads a tenant's report and tells the arbiter.
    fn look(&mut self, number: arbiter::Tenant, now: u64) {
        let Some(pages) = self.houses.get_mut(&number).and_then(|house| house.pages.as_mut()) else { return };
        self.reports.at(now);
        for slot in pages.slots.iter_mut().flatten() {
            let usage = arbiter::Pages::usage(&mut self.reports, slot.id);
            slot.unmeasured |= slot.is_unmeasured(&self.reports);
            let known = self.arbiter.said(slot.id);
            if !usage.wants && (Usage { since: known.since, ..usage }) == known {
                continue;
            }
            self.arbiter.reports(slot.id, usage, now);
            let holds = matches!(slot.gate, Gate::Run { .. } | Gate::Open);
            // A holder that did not launch yet has not woken up; its wish is the one that was granted.
            let launched = || self.reports.witness(slot.id).is_some_and(|witness| witness.last_launch() > slot.granted);
            if usage.wants && (!holds || launched()) {
                self.arbiter.wants(slot.id, now);
                if !holds {
                    slot.stands.get_or_insert(now);
                }
            }
        }
    }

    /// Decides what is due, writes gates and wakes.
    pub fn tick(&mut self, now: u64) {
        self.reports.at(now);
        if !self.claiming.is_empty() {
            self.hear_claims(now);
        }
        self.devices.share_out(&self.houses, self.arbitrate, &mut self.arbiter);
        let mut desk = desk::Desk { reports: &mut self.reports, houses: &mut self.houses, places: &self.places, now };
        self.out.clear();
        self.arbiter.tick(now, &mut desk, &mut self.out);
    }

    /// When [`Self::tick`] must be called although nothing happens; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.arbiter.next_deadline()
    }

    /// Holds a tenant, or lets it go; false: there is none.
    pub fn pause(&mut self, number: arbiter::Tenant, paused: bool, now: u64) -> bool {
        let Some(house) = self.houses.get_mut(&number) else { return false };
        house.paused = paused;
        for device in self.devices.all() {
            self.arbiter.pause(number, device, paused, now);
        }
        self.tick(now);
        true
    }

    /// Is this tenant held?
    #[must_use]
    pub fn is_paused(&self, number: arbiter::Tenant) -> bool {
        self.houses.get(&number).is_some_and(|house| house.paused)
    }

    /// Counts memory against a tenant's limits beside its ledgers, by UUIDs, in place of what counted before.
    pub fn count_uncharged<'u>(
        &mut self,
        number: arbiter::Tenant,
        counted: impl Iterator<Item = (&'u str, Uncharged)>,
        now: u64,
    ) {
        let Some(house) = self.houses.get_mut(&number) else { return };
        let counted = counted.filter_map(|(uuid, bytes)| Some((self.devices.id(uuid)?, bytes))).collect();
        if house.uncharged != counted {
            house.uncharged = counted;
            self.allow(number, now);
        }
    }

    /// Memory that counts against a tenant's limit on a device beside its ledger.
    #[must_use]
    pub fn uncharged(&self, number: arbiter::Tenant, uuid: &str) -> Uncharged {
        let house = self.houses.get(&number).zip(self.devices.id(uuid));
        house.and_then(|(house, device)| house.uncharged.get(&device)).copied().unwrap_or_default()
    }

    /// Writes a tenant's terms to its members; says how many of them have other ones now.
    fn allow(&mut self, number: arbiter::Tenant, now: u64) -> usize {
        let Some(House { tenant, pages: Some(pages), uncharged, .. }) = self.houses.get_mut(&number) else { return 0 };
        let mut concerned = 0;
        for (index, slot) in pages.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            // A device that was taken off the tenant's list: who works there goes on as it was.
            let Ok(on) = tenant.on_device(self.devices.uuid(slot.device)) else { continue };
            let beside = uncharged.get(&slot.device).copied().unwrap_or_default();
            let fresh = allowed(tenant, on, &self.time, slot.allowed.device, slot.allowed.member, beside);
            if fresh == slot.allowed {
                continue;
            }
            concerned += 1;
            if fresh.terms != slot.allowed.terms {
                self.arbiter.set(number, slot.device, on.terms, now);
            }
            slot.allowed = fresh;
            if let Some(slot) = pages.board.slots.get(index) {
                slot.allow(&fresh);
                desk::wake(slot);
            }
        }
        concerned
    }

    /// Ends the epoch on all boards and wakes everybody: the daemon leaves.
    pub fn end(&mut self) {
        for pages in self.houses.values().filter_map(|house| house.pages.as_ref()) {
            pages.board.end(GONE);
            for (slot, _) in pages.board.slots.iter().zip(&pages.slots) {
                desk::wake(slot);
            }
        }
    }
}

/// What stands in the slot of a member.
fn allowed(tenant: &Tenant, on: &On, time: &Time, device: u64, member: u64, uncharged: Uncharged) -> Allowed {
    let quantum = time.arbiter().quantum_of(&on.terms);
    Allowed {
        device,
        member,
        memory: on.memory,
        uncharged,
        terms: arbiter::Terms { quantum: Some(quantum), ..on.terms },
        in_flight: time.in_flight.min(quantum / 2),
        mode: tenant.mode,
        on_loss: tenant.on_loss,
    }
}
