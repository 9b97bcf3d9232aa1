//! Decides which tenant has which device now: connects the arbiter with the tenants' pages.
//!
//! It is told when a member joins, leaves or rings, when a tenant's terms change, and when time passes. It then
//! writes the boards and wakes the members that sleep there. The modules in reading order:
//!
//! - this file: tenants and time
//! - `members`: joining and leaving a device
//! - `former`: prior usage of members that join again
//! - `belief`: limits how long they can claim queued work
//! - `devices`: the known devices, and whether they are shared by leases
//! - `desk`: the arbiter's access to the pages
//! - `view`: data for status and explain
//! - `unseen`: exchange with the enforcement check
//!
//! The time is an argument, and pages are any type that dereferences to one: mappings in the daemon, boxes in the
//! tests. Not here: sockets, descriptors, clocks and bells (`reactor`).

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

use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::bell::{Bell, Heard};
use vgpu_core::protocol::page::{Allowed, BoardPage, GONE, ReportPage, Reports, Uncharged};
use vgpu_core::time::arbiter::{self, Arbiter, Decision, DeviceId, Gate, SlotId, Usage};

use super::config::{Arbitrate, On, Tenant};
use belief::Belief;
use devices::Devices;
use former::Former;
pub use former::Past;
use vgpu_config::time::Time;

/// GPU time sharing in the daemon. `B` and `R`: a tenant's board and report.
pub struct Leases<B, R> {
    epoch: u64,
    time: Time,
    arbitrate: Arbitrate,
    /// True if a tenant that is alone on its device keeps a lease too, so that all its device time is measured.
    measures_all: bool,
    arbiter: Arbiter,
    reports: Reports<R>,
    devices: Devices,
    houses: BTreeMap<arbiter::Tenant, House<B, R>>,
    /// Tenant and page index of each arbiter slot.
    places: Vec<Option<Place>>,
    /// Members that joined again and count as having queued work until they report otherwise.
    claiming: Vec<Place>,
    out: Vec<Decision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    tenant: arbiter::Tenant,
    index: usize,
}

/// State of a tenant, with or without members.
#[derive(Debug)]
struct House<B, R> {
    tenant: Tenant,
    paused: bool,
    pages: Option<Pages<B, R>>,
    bell: Bell,
    /// True if the tenant's sums of usage may have changed since the view last read them.
    stirred: bool,
    /// Wait time and launches of the tenant's members that left, by device.
    gone: BTreeMap<DeviceId, Totals>,
    /// Device time that members used before this daemon started.
    former: BTreeMap<DeviceId, Former>,
    /// Limits how long members that join again may count as having queued work without a measurement, by device.
    belief: BTreeMap<DeviceId, Belief>,
    /// Memory that counts against the tenant's limits although its ledgers (charges in shared memory) do not contain
    /// it.
    uncharged: BTreeMap<DeviceId, Uncharged>,
}

#[derive(Debug)]
struct Pages<B, R> {
    board: B,
    report: R,
    slots: Vec<Option<Slot>>,
    /// Unused indices below `slots.len()`.
    free: Vec<usize>,
    /// Slot indices of each member, one for each device that it joined.
    members: HashMap<u64, Vec<usize>>,
}

/// A member on one device: its place in the tenant's pages and its state.
#[derive(Debug)]
struct Slot {
    id: SlotId,
    device: DeviceId,
    allowed: Allowed,
    past: Past,
    gate: Gate,
    /// Time at which the member's gate (the word that lets launches pass) last opened, in ns.
    granted: u64,
    /// Time since which the member waits at its gate for permission to launch, in ns; `None`: it does not wait.
    stands: Option<u64>,
    waited: u64,
    /// Device time already passed to the record, in ns, including prior usage.
    told: u64,
    /// Measured device time, in ns, that was already credited to the member's claim to have queued work.
    heard: u64,
    /// True if the member launched through an open gate (no lease needed), where device time is not measured.
    unmeasured: bool,
}

impl Slot {
    /// True if the member's launches are not measured: its gate is open. Members of a tenant that is only observed
    /// measure behind any gate.
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
    /// Starts without tenants. `known`: UUIDs of the devices that the driver named.
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

    /// Adds devices that the driver named later.
    pub fn know(&mut self, known: &[String], now: u64) {
        self.devices.know(known, &mut self.arbiter, now);
    }

    /// Epoch of all pages: the time base of their time stamps.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets whether a tenant that is alone keeps a lease too. Then all its device time is measured.
    pub fn measure_all(&mut self, all: bool) {
        self.measures_all = all;
        self.arbiter.configure(self.constants());
    }

    fn constants(&self) -> arbiter::Config {
        arbiter::Config { measures_all: self.measures_all, ..self.time.arbiter() }
    }

    /// Changes the constants of time sharing, and which devices are shared by leases.
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

    /// Adds a tenant, or changes its terms with effect at the next [`Self::tick`]. Returns the number of its members'
    /// slots that changed.
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

    /// Removes a tenant with its members.
    pub fn remove(&mut self, number: arbiter::Tenant, now: u64) {
        self.empty(number, now);
        self.houses.remove(&number);
        self.arbiter.forget(number);
        self.devices.forget(number, &self.arbiter);
        self.devices.stale();
        self.tick(now);
    }

    /// True if pages for this tenant's members exist.
    #[must_use]
    pub fn has_pages(&self, number: arbiter::Tenant) -> bool {
        self.houses.get(&number).is_some_and(|house| house.pages.is_some())
    }

    /// Takes fresh pages for a tenant's first member and formats them. They stay until [`Self::empty`].
    pub fn furnish(&mut self, number: arbiter::Tenant, board: B, report: R) {
        board.format(self.epoch);
        report.format(self.epoch);
        if let Some(house) = self.houses.get_mut(&number) {
            let (slots, free, members) = (Vec::new(), Vec::new(), HashMap::new());
            house.pages = Some(Pages { board, report, slots, free, members });
        }
    }

    /// Removes a tenant's remaining members and its pages.
    pub fn empty(&mut self, number: arbiter::Tenant, now: u64) {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return };
        for member in pages.members.keys().copied().collect::<Vec<_>>() {
            self.leave(number, member, now);
        }
        if let Some(house) = self.houses.get_mut(&number) {
            house.pages = None;
        }
    }

    /// Handles a ring of a tenant's bell. [`Heard::At`]: it rings too often; listen to it again at that time.
    ///
    /// # Cost
    /// About ten loads for each slot of the tenant, and a tick.
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

    /// Reads a tenant's report and passes it to the arbiter.
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
            // A holder that has not launched yet has not woken up: its request is the one already granted.
            let launched = || self.reports.witness(slot.id).is_some_and(|witness| witness.last_launch() > slot.granted);
            if usage.wants && (!holds || launched()) {
                self.arbiter.wants(slot.id, now);
                if !holds {
                    slot.stands.get_or_insert(now);
                }
            }
        }
    }

    /// Makes the decisions that are due, writes the gates and wakes members.
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

    /// When [`Self::tick`] must be called even if no event happens, in ns; `None`: never.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.arbiter.next_deadline()
    }

    /// Pauses a tenant, or ends its pause; false: no such tenant.
    pub fn pause(&mut self, number: arbiter::Tenant, paused: bool, now: u64) -> bool {
        let Some(house) = self.houses.get_mut(&number) else { return false };
        house.paused = paused;
        for device in self.devices.all() {
            self.arbiter.pause(number, device, paused, now);
        }
        self.tick(now);
        true
    }

    /// True if the tenant is paused.
    #[must_use]
    pub fn is_paused(&self, number: arbiter::Tenant) -> bool {
        self.houses.get(&number).is_some_and(|house| house.paused)
    }

    /// Counts memory against a tenant's limits that its ledgers do not contain, by UUID. Replaces the earlier
    /// amounts.
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

    /// Memory on a device that counts against a tenant's limit although its ledger does not contain it.
    #[must_use]
    pub fn uncharged(&self, number: arbiter::Tenant, uuid: &str) -> Uncharged {
        let house = self.houses.get(&number).zip(self.devices.id(uuid));
        house.and_then(|(house, device)| house.uncharged.get(&device)).copied().unwrap_or_default()
    }

    /// Writes a tenant's terms to its members' slots. Returns how many slots changed.
    fn allow(&mut self, number: arbiter::Tenant, now: u64) -> usize {
        let Some(House { tenant, pages: Some(pages), uncharged, .. }) = self.houses.get_mut(&number) else { return 0 };
        let mut concerned = 0;
        for (index, slot) in pages.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            // Case: the device was removed from the tenant's list. Members on it keep their terms.
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

    /// Ends the epoch on all boards and wakes all members, because the daemon ends.
    pub fn end(&mut self) {
        for pages in self.houses.values().filter_map(|house| house.pages.as_ref()) {
            pages.board.end(GONE);
            for (slot, _) in pages.board.slots.iter().zip(&pages.slots) {
                desk::wake(slot);
            }
        }
    }
}

/// The content of a member's slot on the board.
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
