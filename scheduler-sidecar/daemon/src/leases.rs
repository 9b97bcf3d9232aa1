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
//! - `lease_times`: how long members waited for leases
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
mod lease_times;
mod members;
#[cfg(test)]
mod tests;
mod unseen;
pub mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;

use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::bell::{Bell, RingOutcome};
use vgpu_core::protocol::page::{AllowedUse, BoardPage, ContextSharing, GONE_EPOCH, ReportPage, Reports, Uncharged};
use vgpu_core::time::arbiter::{self, Arbiter, Decision, DeviceId, GangId, Gate, MemberUsage, SlotId};

use super::config::{DeviceTermsConfig, TenantConfig, device_name};
use belief::ClaimAllowance;
use devices::LeasedDevices;
pub use former::ClaimedPast;
use former::PriorUsage;
pub use lease_times::LeaseTimes;
use vgpu_config::time::TimeConfig;

/// GPU time sharing in the daemon. `B` and `R`: a tenant's board and report.
pub struct LeaseBook<B, R> {
    epoch: u64,
    time: TimeConfig,
    arbitrate: bool,
    arbiter: Arbiter,
    reports: Reports<R>,
    devices: LeasedDevices,
    houses: BTreeMap<arbiter::TenantId, TenantState<B, R>>,
    /// Tenants whose sums of usage may have changed since the view last read them.
    stirred: BTreeSet<arbiter::TenantId>,
    gangs: GangNumbers,
    /// Tenant and page index of each arbiter slot.
    places: Vec<Option<MemberSlot>>,
    /// Members that joined again and count as having queued work until they report otherwise.
    claiming: Vec<MemberSlot>,
    out: Vec<Decision>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MemberSlot {
    tenant: arbiter::TenantId,
    index: usize,
}

/// The arbiter's numbers of the gangs that have tenants.
#[derive(Debug, Default)]
struct GangNumbers {
    numbers: BTreeMap<String, GangId>,
    next: u32,
}

impl GangNumbers {
    fn number_of(&mut self, name: String) -> GangId {
        *self.numbers.entry(name).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            GangId(self.next)
        })
    }
}

/// State of a tenant, with or without members.
#[derive(Debug)]
struct TenantState<B, R> {
    tenant: TenantConfig,
    /// Devices on which the tenant may not launch, as its terms name them.
    paused_on: BTreeSet<String>,
    /// True while all of its processes are suspended: it is paused on all devices, besides [`Self::paused_on`].
    is_suspended: bool,
    pages: Option<TenantPages<B, R>>,
    bell: Bell,
    /// Wait time and launches of the tenant's members that left, by device.
    gone: BTreeMap<DeviceId, TenantTotals>,
    /// Waits for leases, and times between them, by device.
    times: BTreeMap<DeviceId, LeaseTimes>,
    /// Device time that members used before this daemon started.
    former: BTreeMap<DeviceId, PriorUsage>,
    /// Limits how long members that join again may count as having queued work without a measurement, by device.
    belief: BTreeMap<DeviceId, ClaimAllowance>,
    /// Memory that counts against the tenant's limits although its ledgers (charges in shared memory) do not contain
    /// it.
    uncharged: BTreeMap<DeviceId, Uncharged>,
}

impl<B, R> TenantState<B, R> {
    fn is_paused(&self) -> bool {
        !self.paused_on.is_empty() && self.tenant.on.iter().all(|on| self.paused_on.contains(&device_name(&on.device)))
    }

    /// True if the tenant gets no lease on this device. One that was taken from the tenant's list is paused with all.
    fn is_held_on(&self, uuid: &str) -> bool {
        let named = self.tenant.terms_on(uuid).map(|on| device_name(&on.device));
        self.is_suspended || named.map_or_else(|| self.is_paused(), |name| self.paused_on.contains(&name))
    }
}

#[derive(Debug)]
struct TenantPages<B, R> {
    board: B,
    report: R,
    slots: Vec<Option<MemberOfSlot>>,
    /// Unused indices below `slots.len()`.
    free: Vec<usize>,
    /// Slot indices of each member, one for each device that it joined.
    members: HashMap<u64, Vec<usize>>,
}

/// A member on one device: its place in the tenant's pages and its state.
#[derive(Debug)]
struct MemberOfSlot {
    id: SlotId,
    device: DeviceId,
    allowed: AllowedUse,
    past: ClaimedPast,
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
    /// How the driver runs the member's contexts, as it reported first. `None`: it has not launched yet.
    contexts: Option<ContextSharing>,
}

impl MemberOfSlot {
    /// True if the member's launches are not measured: its gate is open. Members of a tenant that is only observed
    /// measure behind any gate.
    fn is_unmeasured<R: Deref<Target = ReportPage>>(&self, reports: &Reports<R>) -> bool {
        self.gate == Gate::Open
            && self.allowed.mode == Mode::Enforce
            && reports.slot_history(self.id).is_some_and(|witness| witness.reported_launches() > 0)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct TenantTotals {
    wait: u64,
    launches: u64,
    unmeasured: bool,
}

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> LeaseBook<B, R> {
    /// Starts without tenants. `known`: UUIDs of the devices that the driver named.
    #[must_use]
    pub fn new(time: TimeConfig, arbitrate: bool, known: &[String], epoch: u64, now: u64) -> Self {
        let mut arbiter = Arbiter::new(time, 0, now);
        let devices = LeasedDevices::new(known, &mut arbiter, now);
        let mut reports = Reports::new();
        reports.set_now(now);
        let (houses, places, claiming, out) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let gangs = GangNumbers::default();
        let stirred = BTreeSet::new();
        Self { epoch, time, arbitrate, arbiter, reports, devices, houses, stirred, gangs, places, claiming, out }
    }

    /// Adds devices that the driver named later.
    pub fn learn_devices(&mut self, known: &[String], now: u64) {
        self.devices.learn_devices(known, &mut self.arbiter, now);
    }

    /// Epoch of all pages: the time base of their time stamps.
    #[must_use]
    pub fn page_epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets whether a tenant that is alone keeps a lease too. Then all its device time is measured.
    pub fn measure_all(&mut self, all: bool) {
        self.arbiter.set_measures_all(all);
    }

    /// Changes the constants of time sharing, and which devices are shared by leases.
    pub fn change_constants(&mut self, time: TimeConfig, arbitrate: bool, now: u64) {
        let other = self.time != time;
        (self.time, self.arbitrate) = (time, arbitrate);
        if other {
            self.arbiter.set_config(time);
        }
        self.devices.mark_stale();
        for number in self.houses.keys().copied().collect::<Vec<_>>() {
            self.write_terms(number, now);
        }
        self.tick(now);
    }

    /// Adds a tenant, or changes its terms with effect at the next [`Self::tick`]. Returns the number of its members'
    /// slots that changed.
    pub fn put_tenant(&mut self, number: arbiter::TenantId, tenant: TenantConfig, now: u64) -> usize {
        self.devices.mark_stale();
        // A tenant that is only observed waits for nobody.
        let gang = tenant.gang.clone().filter(|_| tenant.mode == Mode::Enforce);
        self.arbiter.set_gang(number, gang.map(|gang| self.gangs.number_of(gang)));
        match self.houses.get_mut(&number) {
            Some(house) => house.tenant = tenant,
            None => {
                let (gone, former, belief) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                let (pages, bell, uncharged) = (None, Bell::default(), BTreeMap::new());
                let (paused_on, is_suspended, times) = (BTreeSet::new(), false, BTreeMap::new());
                let house = TenantState {
                    tenant,
                    paused_on,
                    is_suspended,
                    pages,
                    bell,
                    gone,
                    times,
                    former,
                    belief,
                    uncharged,
                };
                self.houses.insert(number, house);
                self.stirred.insert(number);
            }
        }
        self.follow_pauses(number, now);
        self.write_terms(number, now)
    }

    /// Removes a tenant with its members.
    pub fn remove(&mut self, number: arbiter::TenantId, now: u64) {
        self.unmap_pages(number, now);
        self.houses.remove(&number);
        self.stirred.remove(&number);
        let gangs: BTreeSet<&String> = self.houses.values().filter_map(|house| house.tenant.gang.as_ref()).collect();
        self.gangs.numbers.retain(|name, _| gangs.contains(name));
        self.arbiter.forget_tenant(number);
        self.devices.forget_tenant(number, &self.arbiter);
        self.devices.mark_stale();
        self.tick(now);
    }

    /// True if pages for this tenant's members exist.
    #[must_use]
    pub fn has_pages(&self, number: arbiter::TenantId) -> bool {
        self.houses.get(&number).is_some_and(|house| house.pages.is_some())
    }

    /// Takes fresh pages for a tenant's first member and formats them. They stay until [`Self::unmap_pages`].
    pub fn map_pages(&mut self, number: arbiter::TenantId, board: B, report: R) {
        board.format_page(self.epoch);
        report.format_page(self.epoch);
        if let Some(house) = self.houses.get_mut(&number) {
            let (slots, free, members) = (Vec::new(), Vec::new(), HashMap::new());
            house.pages = Some(TenantPages { board, report, slots, free, members });
        }
    }

    /// Removes a tenant's remaining members and its pages.
    pub fn unmap_pages(&mut self, number: arbiter::TenantId, now: u64) {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return };
        for member in pages.members.keys().copied().collect::<Vec<_>>() {
            self.leave_devices(number, member, now);
        }
        if let Some(house) = self.houses.get_mut(&number) {
            house.pages = None;
        }
    }

    /// Handles a ring of a tenant's bell. [`RingOutcome::At`]: it rings too often; listen to it again at that time.
    ///
    /// # Cost
    /// About ten loads for each slot of the tenant, and a tick.
    pub fn hear_bell(&mut self, number: arbiter::TenantId, now: u64) -> RingOutcome {
        let Some(house) = self.houses.get_mut(&number) else { return RingOutcome::Now };
        self.stirred.insert(number);
        let members = house.pages.as_ref().map_or(0, |pages| pages.slots.len() - pages.free.len());
        let heard = house.bell.rings_for(members, now);
        if heard == RingOutcome::Now {
            self.read_report(number, now);
            self.tick(now);
        }
        heard
    }

    /// Reads a tenant's report and passes it to the arbiter.
    fn read_report(&mut self, number: arbiter::TenantId, now: u64) {
        let Some(house) = self.houses.get_mut(&number) else { return };
        let is_suspended = house.is_suspended;
        let Some(pages) = &mut house.pages else { return };
        self.reports.set_now(now);
        for slot in pages.slots.iter_mut().flatten() {
            let usage = arbiter::MemberPages::read_usage(&mut self.reports, slot.id);
            slot.unmeasured |= slot.is_unmeasured(&self.reports);
            if slot.contexts.is_none() {
                let reported = self.reports.reported_contexts(slot.id);
                let history = self.reports.slot_history(slot.id);
                let uses = usage.wants || history.is_some_and(|witness| witness.reported_launches() > 0);
                // The library reports this before its first request.
                slot.contexts = reported.or(uses.then_some(ContextSharing::TimeSliced));
                if slot.contexts.is_some() {
                    self.devices.mark_stale();
                }
            }
            let known = self.arbiter.last_report(slot.id);
            if !usage.wants && (MemberUsage { since: known.since, ..usage }) == known {
                continue;
            }
            self.arbiter.apply_report(slot.id, usage, now);
            let holds = matches!(slot.gate, Gate::Run { .. } | Gate::Open);
            // A holder that has not launched yet has not woken up: its request is the one already granted.
            let launched =
                || self.reports.slot_history(slot.id).is_some_and(|witness| witness.last_launch() > slot.granted);
            if usage.wants && (!holds || launched()) {
                self.arbiter.request_launch(slot.id, now);
                if !holds && !is_suspended {
                    slot.stands.get_or_insert(now);
                }
            }
        }
    }

    /// Makes the decisions that are due, writes the gates and wakes members.
    pub fn tick(&mut self, now: u64) {
        self.reports.set_now(now);
        if !self.claiming.is_empty() {
            self.hear_claims(now);
        }
        self.devices.share_out(&self.houses, self.arbitrate, &mut self.arbiter);
        let Self { reports, houses, stirred, places, .. } = self;
        let mut desk = desk::BoardWriter { reports, houses, stirred, places, now };
        self.out.clear();
        self.arbiter.tick(now, &mut desk, &mut self.out);
    }

    /// When [`Self::tick`] must be called even if no event happens, in ns; `None`: never.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.arbiter.next_deadline()
    }

    /// Pauses a tenant on these devices, as its terms name them, and lets it launch on all others; false: no such
    /// tenant.
    pub fn set_pauses(&mut self, number: arbiter::TenantId, paused_on: BTreeSet<String>, now: u64) -> bool {
        let Some(house) = self.houses.get_mut(&number) else { return false };
        house.paused_on = paused_on;
        self.follow_pauses(number, now);
        self.tick(now);
        true
    }

    /// Notes that all processes of a tenant are suspended, or not all any more. While they are, the tenant gets no
    /// lease and its members wait for none. Returns true if that is new.
    pub fn set_suspended(&mut self, number: arbiter::TenantId, is_suspended: bool, now: u64) -> bool {
        let is_other = |house: &&mut TenantState<B, R>| house.is_suspended != is_suspended;
        let Some(house) = self.houses.get_mut(&number).filter(is_other) else { return false };
        house.is_suspended = is_suspended;
        self.stirred.insert(number);
        if is_suspended {
            for slot in house.pages.iter_mut().flat_map(|pages| pages.slots.iter_mut().flatten()) {
                slot.waited += slot.stands.take().map_or(0, |since| now.saturating_sub(since));
            }
        } else {
            // The members that still wait do so from now on.
            self.read_report(number, now);
        }
        self.follow_pauses(number, now);
        self.tick(now);
        true
    }

    /// True if all processes of the tenant are suspended.
    #[must_use]
    pub fn is_suspended(&self, number: arbiter::TenantId) -> bool {
        self.houses.get(&number).is_some_and(|house| house.is_suspended)
    }

    fn follow_pauses(&mut self, number: arbiter::TenantId, now: u64) {
        let Some(house) = self.houses.get(&number) else { return };
        for device in self.devices.all() {
            self.arbiter.pause_tenant(number, device, house.is_held_on(self.devices.uuid_of(device)), now);
        }
    }

    /// True if the tenant is paused on all its devices.
    #[must_use]
    pub fn is_paused(&self, number: arbiter::TenantId) -> bool {
        self.houses.get(&number).is_some_and(TenantState::is_paused)
    }

    /// Devices on which the tenant may not launch, as its terms name them.
    #[must_use]
    pub fn paused_devices(&self, number: arbiter::TenantId) -> BTreeSet<String> {
        self.houses.get(&number).map(|house| house.paused_on.clone()).unwrap_or_default()
    }

    /// Counts memory against a tenant's limits that its ledgers do not contain, by UUID. Replaces the earlier
    /// amounts.
    pub fn count_uncharged<'u>(
        &mut self,
        number: arbiter::TenantId,
        counted: impl Iterator<Item = (&'u str, Uncharged)>,
        now: u64,
    ) {
        let Some(house) = self.houses.get_mut(&number) else { return };
        let counted = counted.filter_map(|(uuid, bytes)| Some((self.devices.id_of(uuid)?, bytes))).collect();
        if house.uncharged != counted {
            house.uncharged = counted;
            self.write_terms(number, now);
        }
    }

    /// Memory on a device that counts against a tenant's limit although its ledger does not contain it.
    #[must_use]
    pub fn uncharged_bytes(&self, number: arbiter::TenantId, uuid: &str) -> Uncharged {
        let house = self.houses.get(&number).zip(self.devices.id_of(uuid));
        house.and_then(|(house, device)| house.uncharged.get(&device)).copied().unwrap_or_default()
    }

    /// Writes a tenant's terms to its members' slots. Returns how many slots changed.
    fn write_terms(&mut self, number: arbiter::TenantId, now: u64) -> usize {
        let Some(TenantState { tenant, pages: Some(pages), uncharged, .. }) = self.houses.get_mut(&number) else {
            return 0;
        };
        let mut concerned = 0;
        for (index, slot) in pages.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            // Case: the device was removed from the tenant's list. Members on it keep their terms.
            let Ok(on) = tenant.on_device(self.devices.uuid_of(slot.device)) else { continue };
            let beside = uncharged.get(&slot.device).copied().unwrap_or_default();
            let fresh = allowed_use(tenant, on, &self.time, slot.allowed.device, slot.allowed.member, beside);
            if fresh == slot.allowed {
                continue;
            }
            concerned += 1;
            if fresh.terms != slot.allowed.terms {
                self.arbiter.set(number, slot.device, on.terms, now);
            }
            slot.allowed = fresh;
            if let Some(slot) = pages.board.slots.get(index) {
                slot.change_allowed(&fresh);
                desk::wake_sleepers(slot);
            }
        }
        concerned
    }

    /// Ends the epoch on all boards and wakes all members, because the daemon ends.
    pub fn end_epoch(&mut self) {
        for pages in self.houses.values().filter_map(|house| house.pages.as_ref()) {
            pages.board.end_epoch_of_all(GONE_EPOCH);
            for (slot, _) in pages.board.slots.iter().zip(&pages.slots) {
                desk::wake_sleepers(slot);
            }
        }
    }
}

/// The content of a member's slot on the board.
fn allowed_use(
    tenant: &TenantConfig,
    on: &DeviceTermsConfig,
    time: &TimeConfig,
    device: u64,
    member: u64,
    uncharged: Uncharged,
) -> AllowedUse {
    let quantum = arbiter::quantum_of(time, &on.terms);
    AllowedUse {
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
