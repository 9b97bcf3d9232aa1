//! Usage and state of tenants on devices, for status and explain.

use std::collections::BTreeMap;
use std::ops::Deref;

use vgpu_core::protocol::page::{BoardPage, ReportPage};
use vgpu_core::time::arbiter::{self, DeviceId, Gate, StandingState, TenantId};

use super::{LeaseBook, LeaseTimes, PriorUsage, TenantTotals};

/// Usage of a device by a tenant, since the tenant was added or the daemon started. `before` is earlier usage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// The device's UUID.
    pub device: String,
    /// Number of the tenant's members that joined the device.
    pub members: usize,
    /// Device time charged to the tenant, in ns.
    pub charged: u64,
    /// Device time of the tenant's living processes before this daemon started, in ns, as they report it.
    pub before: u64,
    /// Time that the tenant's members waited for permission to launch, in ns, summed over members.
    pub wait: u64,
    /// Time that the tenant waited without the device, in ns: some member asked, and none had it.
    pub wanting: u64,
    /// True if the device is shared by leases, so that its tenants are promised time.
    pub leased: bool,
    /// Waits for leases, and times between them.
    pub times: LeaseTimes,
    /// Launches, as its members report them.
    pub launches: u64,
    /// Tells if some of the tenant's device time on this device is missing from the sums.
    pub unmeasured: Unmeasured,
}

/// Tells of launches through an open gate (no lease needed), whose device time is in no sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unmeasured {
    /// True if a connected process launched through an open gate, and that gate is still open.
    pub now: bool,
    /// True if a process of the tenant launched through an open gate, now or earlier.
    pub ever: bool,
}

/// Work of a tenant that is not done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueuedWork {
    /// True if work of it is queued on a device.
    pub in_flight: bool,
    /// True if a member waits for permission to launch.
    pub waits: bool,
    /// True if a member's queued work is not known, or its device is lost, where no work ends.
    pub is_unknown: bool,
}

/// State and usage of one member on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDevice {
    /// Number that the member got in its welcome.
    pub member: u64,
    /// The device's UUID.
    pub device: String,
    /// State of the member's gate: `open` (needs no lease), `run` (has a lease), `wait`, or `cap` (waits for the
    /// ceiling).
    pub gate: &'static str,
    /// True if the member waits to launch and has no lease.
    pub stands: bool,
    /// Device time that the member measured, in ns, as far as that is plausible.
    pub busy: u64,
    /// Time that the member waited at the gate for permission to launch, in ns.
    pub waited: u64,
    /// True if the member launched through an open gate (no lease needed), so that not all of its device time is
    /// measured.
    pub unmeasured: bool,
}

/// Measured device time of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredProgress {
    /// The device's UUID.
    pub device: String,
    /// The process.
    pub process: u32,
    /// Device time since the process started, in ns.
    pub busy: u64,
    /// True if it worked since it joined the device; false: the time is from under a daemon before this one.
    pub is_recent: bool,
}

/// State of a tenant on a device, which explains why it runs or waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The device's UUID.
    pub device: String,
    /// State in one word: `open`, `running`, `draining`, `waiting`, `capped`, `overdue`, `idle`, `paused`, `shared`,
    /// `free`, `lost`, `suspended`.
    pub state: &'static str,
    /// The state in a sentence, with names and numbers.
    pub words: String,
    /// Name of the tenant that holds the device.
    pub holder: Option<String>,
    /// Device time that the tenant's ceiling leaves now, in ns; negative is debt.
    pub balance: Option<i64>,
    /// Time in ns until the ceiling allows the next lease.
    pub refill: Option<u64>,
}

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> LeaseBook<B, R> {
    /// Usage of a tenant, one entry for each device, from its members' reports at `now`.
    pub fn used_by_tenant(&mut self, number: TenantId, now: u64) -> Vec<Used> {
        self.read_report(number, now);
        self.used_so_far(number, now)
    }

    /// As [`Self::used_by_tenant`], or `None` if nothing can have changed since the last call. A member uses nothing
    /// if it has no open gate, does not wait at one, has no queued work and did not ring.
    pub fn used_since(&mut self, number: TenantId, now: u64) -> Option<Vec<Used>> {
        self.stirred.get(&number)?;
        let used = self.used_by_tenant(number, now);
        let house = self.houses.get(&number)?;
        let mut slots = house.pages.iter().flat_map(|pages| pages.slots.iter().flatten());
        let works = slots.any(|slot| {
            let has_gate = matches!(slot.gate, Gate::Open | Gate::Run { .. });
            slot.stands.is_some() || has_gate || self.arbiter.last_report(slot.id).in_flight != Some(0)
        });
        if !works {
            self.stirred.remove(&number);
        }
        Some(used)
    }

    /// True if [`Self::used_since`] would return the usage: it may have changed since the last call.
    #[must_use]
    pub fn is_stirred(&self, number: TenantId) -> bool {
        self.stirred.contains(&number)
    }

    /// The tenants for which [`Self::used_since`] would return the usage.
    #[must_use]
    pub fn stirred_tenants(&self) -> Vec<TenantId> {
        self.stirred.iter().copied().collect()
    }

    /// True if no tenant's usage can have changed since it was last read: nobody has a lease or an open gate, and
    /// nobody waits. A decision that opens a gate ends the rest.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.stirred.is_empty()
    }

    /// The name of a device that a member joined, as it is used everywhere.
    #[must_use]
    pub fn name_of(&self, uuid: &str) -> String {
        self.devices.name_of(uuid).unwrap_or(uuid).to_owned()
    }

    /// The UUIDs of the devices that the driver named.
    pub fn device_names(&self) -> impl Iterator<Item = &str> {
        self.devices.of_driver()
    }

    /// Processes of a tenant whose measured device time grew since the last call.
    pub fn take_progress(&mut self, number: TenantId) -> Vec<MeasuredProgress> {
        let Some(house) = self.houses.get_mut(&number) else { return Vec::new() };
        let mut further = Vec::new();
        for slot in house.pages.iter_mut().flat_map(|pages| pages.slots.iter_mut().flatten()) {
            let busy = slot.past.busy.saturating_add(self.arbiter.last_report(slot.id).busy);
            if busy > slot.told && slot.past.process != 0 {
                let (device, process) = (self.devices.uuid_of(slot.device).to_owned(), slot.past.process);
                let is_recent = busy > slot.told.max(slot.past.busy);
                slot.told = busy;
                further.push(MeasuredProgress { device, process, busy, is_recent });
            }
        }
        further
    }

    /// Usage of a tenant, its state on each device, and its members there, from one reading of the reports.
    pub fn read_tenant(&mut self, number: TenantId, now: u64) -> (Vec<Used>, Vec<Explained>, Vec<OnDevice>) {
        self.read_report(number, now);
        self.tick(now);
        (self.used_so_far(number, now), self.standing_as_read(number, now), self.members_on_devices(number, now))
    }

    fn used_so_far(&self, number: TenantId, now: u64) -> Vec<Used> {
        let Some(house) = self.houses.get(&number) else { return Vec::new() };
        let mut sums: BTreeMap<DeviceId, (usize, TenantTotals, bool)> =
            house.gone.iter().map(|(device, totals)| (*device, (0, *totals, false))).collect();
        for slot in house.pages.iter().flat_map(|pages| pages.slots.iter().flatten()) {
            let (members, totals, now_too) = sums.entry(slot.device).or_default();
            *members += 1;
            totals.wait += slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since));
            let launches = self.reports.slot_history(slot.id).map_or(0, |witness| witness.reported_launches());
            totals.launches = totals.launches.saturating_add(launches);
            totals.unmeasured |= slot.unmeasured;
            *now_too |= slot.is_unmeasured(&self.reports);
        }
        let used = |(device, (members, TenantTotals { wait, launches, unmeasured }, is_unmeasured))| Used {
            device: self.devices.uuid_of(device).to_owned(),
            members,
            charged: self.arbiter.charged_ns(number, device),
            before: house.former.get(&device).map_or(0, PriorUsage::busy_ns),
            wait,
            wanting: self.arbiter.waited_ns(number, device, now),
            leased: self.devices.is_arbitrated(device),
            times: house.times.get(&device).copied().unwrap_or_default(),
            launches,
            unmeasured: Unmeasured { now: is_unmeasured, ever: is_unmeasured || unmeasured },
        };
        sums.into_iter().map(used).collect()
    }

    /// The work of a tenant that is queued or waits, from the last reading of the reports.
    pub fn queued_work(&self, number: TenantId) -> QueuedWork {
        let pages = self.houses.get(&number).and_then(|house| house.pages.as_ref());
        let mut work = QueuedWork::default();
        for slot in pages.iter().flat_map(|pages| pages.slots.iter().flatten()) {
            let in_flight = self.arbiter.last_report(slot.id).in_flight;
            work.in_flight |= in_flight.is_some_and(|ns| ns > 0);
            work.is_unknown |= in_flight.is_none() || self.devices.is_lost(slot.device);
            work.waits |= slot.stands.is_some();
        }
        work
    }

    /// A tenant's members on devices, from the last reading of their reports.
    fn members_on_devices(&self, number: TenantId, now: u64) -> Vec<OnDevice> {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return Vec::new() };
        let on = |slot: &super::MemberOfSlot| OnDevice {
            member: slot.allowed.member,
            device: self.devices.uuid_of(slot.device).to_owned(),
            gate: match slot.gate {
                Gate::Open => "open",
                Gate::Run { .. } => "run",
                Gate::Wait => "wait",
                Gate::Cap { .. } => "cap",
            },
            stands: slot.stands.is_some(),
            busy: slot.past.busy.saturating_add(self.arbiter.last_report(slot.id).busy),
            waited: slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since)),
            unmeasured: slot.unmeasured,
        };
        pages.slots.iter().flatten().map(on).collect()
    }

    /// Devices by UUID that members joined or that were known at the start, and whether they are shared by leases.
    #[must_use]
    pub fn known_devices(&self) -> Vec<(String, bool)> {
        let all = self.devices.all().filter(|device| !self.devices.uuid_of(*device).is_empty());
        all.map(|device| (self.devices.uuid_of(device).to_owned(), self.devices.is_arbitrated(device))).collect()
    }

    /// The queue of each device for which somebody waits, by its UUID.
    pub fn device_queues(&mut self, now: u64) -> Vec<(String, arbiter::DeviceQueue)> {
        self.tick(now);
        let queues = self.devices.all().map(|device| (device, self.arbiter.device_queue(device, now)));
        let without_suspended = queues.map(|(device, mut queue)| {
            // The requests of suspended members stay in their pages.
            queue.waiting.retain(|waiting| !self.is_suspended(waiting.tenant));
            (device, queue)
        });
        let waiting = without_suspended.filter(|(_, queue)| !queue.waiting.is_empty());
        waiting.map(|(device, queue)| (self.devices.uuid_of(device).to_owned(), queue)).collect()
    }

    /// State of a tenant on each device on which it has members.
    pub fn explain_standing(&mut self, number: TenantId, now: u64) -> Vec<Explained> {
        self.read_report(number, now);
        self.tick(now);
        self.standing_as_read(number, now)
    }

    fn standing_as_read(&self, number: TenantId, now: u64) -> Vec<Explained> {
        let name = |tenant: TenantId| self.houses.get(&tenant).map(|house| house.tenant.name.clone());
        let is_suspended = self.is_suspended(number);
        let there = self.devices.all().filter_map(|device| {
            let standing = self.arbiter.tenant_standing(number, device, now)?;
            (standing.members > 0).then_some((device, standing))
        });
        let explain = |(device, standing): (_, arbiter::Standing)| {
            let holder = standing.holder.and_then(name);
            let other = holder.as_deref().unwrap_or("nobody").to_owned();
            let (state, words) = match standing.state {
                StandingState::Paused if is_suspended => {
                    ("suspended", "all of its processes are suspended, and it waits for nothing".into())
                }
                StandingState::Paused => {
                    ("paused", "an administrator or a policy paused it here; its members wait until that ends".into())
                }
                _ if self.devices.is_lost(device) => {
                    ("lost", "the driver has lost the device, and nobody has a lease on it until it is back".into())
                }
                StandingState::Budget => ("shared", "the device is under MPS, and it launches without leases".into()),
                StandingState::Crosswise => (
                    "shared",
                    "kernels of two tenants or gangs here wait for each other across devices, so all launch without \
                     leases for ten seconds at a time, each up to its ceiling"
                        .into(),
                ),
                StandingState::Unlimited => ("free", "there are no limits of time on the device".into()),
                StandingState::Open => ("open", "it was alone for long and needs no lease".into()),
                StandingState::Holds { until: u64::MAX } => (
                    "running",
                    "it has the device and no other tenant wants \
                     it"
                    .into(),
                ),
                StandingState::Holds { until } => {
                    ("running", format!("it has the device for {} us more", until.saturating_sub(now) / 1000))
                }
                StandingState::Drains => ("draining", "its lease is over, and its work in flight is not done".into()),
                StandingState::Overdue => (
                    "overdue",
                    "its work took longer than its lease allowed and runs at the same time as others; it gets no \
                     lease before that work \
                     is done"
                        .into(),
                ),
                StandingState::Waits => {
                    ("waiting", format!("{} of its members wait; {other} has the device", standing.queued))
                }
                StandingState::Capped => (
                    "capped",
                    format!(
                        "its sm_limit is used up; it may launch again in {} us",
                        standing.refill.unwrap_or(now).saturating_sub(now) / 1000
                    ),
                ),
                StandingState::Idle => ("idle", "none of its members wants the device".into()),
            };
            Explained {
                device: self.devices.uuid_of(device).to_owned(),
                state,
                words,
                holder,
                balance: standing.balance,
                refill: standing.refill.map(|refill| refill.saturating_sub(now)),
            }
        };
        there.map(explain).collect()
    }
}
