//! What status and explain say of device time.

use std::collections::BTreeMap;
use std::ops::Deref;

use vgpu_core::arbiter::{self, DeviceId, Gate, State, Tenant};
use vgpu_core::page::{BoardPage, ReportPage};

use super::{Former, Leases, Totals};

/// What a tenant used of a device since it was taken in, or since the daemon started, and before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    /// The device's UUID.
    pub device: String,
    /// Members that have a slot there.
    pub members: usize,
    /// Device time charged, in ns.
    pub charged: u64,
    /// Device time that those of its processes that live used before this daemon came, in ns, by their own word.
    pub before: u64,
    /// Time that its members stood at the gate, in ns, summed over members.
    pub wait: u64,
    /// Launches that its members counted, by their own word.
    pub launches: u64,
    /// Is some of its device time not measured, by anybody?
    pub unmeasured: Unmeasured,
}

/// What a tenant launched through an open gate is in no sum of device time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unmeasured {
    /// Processes that did so are there, and their gates are open still.
    pub now: bool,
    /// Now, or at any time before.
    pub ever: bool,
}

/// A member on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnDevice {
    /// The number of its welcome.
    pub member: u64,
    /// The device's UUID.
    pub device: String,
    /// `open`, `run`, `wait`, `cap`.
    pub gate: &'static str,
    /// Does it stand at the gate without a lease?
    pub stands: bool,
    /// Device time that it measured, in ns, as far as that is possible.
    pub busy: u64,
    /// Time that it stood at the gate, in ns.
    pub waited: u64,
    /// Did it launch through an open gate, so that not all is measured?
    pub unmeasured: bool,
}

/// Where a tenant stands on a device, for whoever asks why it does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The device's UUID.
    pub device: String,
    /// Are there leases on this device at all?
    pub arbitrated: bool,
    /// In one word: `open`, `running`, `draining`, `waiting`, `capped`, `overdue`, `idle`, `paused`.
    pub state: &'static str,
    /// The same in a sentence, with names and numbers.
    pub words: String,
    /// Whose lease it is now: a tenant's name.
    pub holder: Option<String>,
    /// What is left of its account under its ceiling, in ns of device time; negative is debt.
    pub balance: Option<i64>,
    /// When the account allows the next lease, in ns from now.
    pub refill: Option<u64>,
}

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> Leases<B, R> {
    /// What a tenant used so far, device by device, by what its members say at `now`.
    pub fn used(&mut self, number: Tenant, now: u64) -> Vec<Used> {
        self.look(number, now);
        self.used_so_far(number, now)
    }

    /// As [`Self::used`], if anything can have changed since this was last asked: who holds no gate, stands at none, has
    /// nothing before the device and did not ring uses nothing.
    pub fn used_since(&mut self, number: Tenant, now: u64) -> Option<Vec<Used>> {
        self.houses.get(&number).filter(|house| house.stirred)?;
        let used = self.used(number, now);
        let house = self.houses.get_mut(&number)?;
        let mut slots = house.pages.iter().flat_map(|pages| pages.slots.iter().flatten());
        house.stirred = slots.any(|slot| {
            let has_gate = matches!(slot.gate, Gate::Open | Gate::Run { .. });
            slot.stands.is_some() || has_gate || self.arbiter.said(slot.id).in_flight != Some(0)
        });
        Some(used)
    }

    /// The name of a device that a member joined, as it is told everywhere.
    #[must_use]
    pub fn name_of(&self, uuid: &str) -> String {
        self.devices.name_of(uuid).unwrap_or(uuid).to_owned()
    }

    /// The UUIDs of the devices that are known.
    pub fn device_names(&self) -> impl Iterator<Item = &str> {
        self.devices.all().map(|device| self.devices.uuid(device))
    }

    /// How far a tenant's processes have come on their devices since this was last asked: those that came further, with
    /// their device time in ns since they began.
    pub fn progress(&mut self, number: Tenant) -> Vec<(String, u32, u64)> {
        let Some(house) = self.houses.get_mut(&number) else { return Vec::new() };
        let mut further = Vec::new();
        for slot in house.pages.iter_mut().flat_map(|pages| pages.slots.iter_mut().flatten()) {
            let busy = slot.past.busy.saturating_add(self.arbiter.said(slot.id).busy);
            if busy > slot.told && slot.past.process != 0 {
                slot.told = busy;
                further.push((self.devices.uuid(slot.device).to_owned(), slot.past.process, busy));
            }
        }
        further
    }

    /// What a tenant used, where it stands on each device, and its members there, by one reading of what they say.
    pub fn seen(&mut self, number: Tenant, now: u64) -> (Vec<Used>, Vec<Explained>, Vec<OnDevice>) {
        self.look(number, now);
        self.tick(now);
        (self.used_so_far(number, now), self.explained(number, now), self.members(number, now))
    }

    fn used_so_far(&self, number: Tenant, now: u64) -> Vec<Used> {
        let Some(house) = self.houses.get(&number) else { return Vec::new() };
        let mut sums: BTreeMap<DeviceId, (usize, Totals, bool)> =
            house.gone.iter().map(|(device, totals)| (*device, (0, *totals, false))).collect();
        for slot in house.pages.iter().flat_map(|pages| pages.slots.iter().flatten()) {
            let (members, totals, now_too) = sums.entry(slot.device).or_default();
            *members += 1;
            totals.wait += slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since));
            let launches = self.reports.witness(slot.id).map_or(0, |witness| witness.launched());
            totals.launches = totals.launches.saturating_add(launches);
            totals.unmeasured |= slot.unmeasured;
            *now_too |= slot.is_unmeasured(&self.reports);
        }
        let used = |(device, (members, Totals { wait, launches, unmeasured }, now))| Used {
            device: self.devices.uuid(device).to_owned(),
            members,
            charged: self.arbiter.charged(number, device),
            before: house.former.get(&device).map_or(0, Former::busy),
            wait,
            launches,
            unmeasured: Unmeasured { now, ever: now || unmeasured },
        };
        sums.into_iter().map(used).collect()
    }

    /// A tenant's members on devices, by what was read last.
    fn members(&self, number: Tenant, now: u64) -> Vec<OnDevice> {
        let Some(pages) = self.houses.get(&number).and_then(|house| house.pages.as_ref()) else { return Vec::new() };
        let on = |slot: &super::Slot| OnDevice {
            member: slot.allowed.member,
            device: self.devices.uuid(slot.device).to_owned(),
            gate: match slot.gate {
                Gate::Open => "open",
                Gate::Run { .. } => "run",
                Gate::Wait => "wait",
                Gate::Cap { .. } => "cap",
            },
            stands: slot.stands.is_some(),
            busy: slot.past.busy.saturating_add(self.arbiter.said(slot.id).busy),
            waited: slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since)),
            unmeasured: slot.unmeasured,
        };
        pages.slots.iter().flatten().map(on).collect()
    }

    /// The devices that members joined or that were known from the start, by UUID, and whether leases are given for them.
    #[must_use]
    pub fn devices(&self) -> Vec<(String, bool)> {
        let all = self.devices.all().filter(|device| !self.devices.uuid(*device).is_empty());
        all.map(|device| (self.devices.uuid(device).to_owned(), self.devices.is_arbitrated(device))).collect()
    }

    /// Where a tenant stands on each device on which it has members.
    pub fn explain(&mut self, number: Tenant, now: u64) -> Vec<Explained> {
        self.look(number, now);
        self.tick(now);
        self.explained(number, now)
    }

    fn explained(&self, number: Tenant, now: u64) -> Vec<Explained> {
        let name = |tenant: Tenant| self.houses.get(&tenant).map(|house| house.tenant.name.clone());
        let there = self.devices.all().filter_map(|device| {
            let standing = self.arbiter.standing(number, device, now)?;
            (standing.members > 0).then_some((device, standing))
        });
        let explain = |(device, standing): (_, arbiter::Standing)| {
            let holder = standing.holder.and_then(name);
            let other = holder.as_deref().unwrap_or("nobody").to_owned();
            let (state, words) = match standing.state {
                State::Common => ("open", "nobody asks anything about this device's time: there are no leases, and it is not measured (arbitrate = true in \
                     [time] changes both)"
                        .into()),
                State::Paused => ("paused", "an administrator holds it; its members wait until it is let go".into()),
                State::Open => ("open", "it was alone for long and needs no lease".into()),
                State::Holds { until: u64::MAX } => ("running", "it has the device and nobody else wants it".into()),
                State::Holds { until } => {
                    ("running", format!("it has the device for {} us more", until.saturating_sub(now) / 1000))
                }
                State::Drains => ("draining", "its lease is over, and its work is not".into()),
                State::Overdue => (
                    "overdue",
                    "its work took longer than its lease allowed and runs beside others; it gets no lease before that \
                     is done"
                        .into(),
                ),
                State::Waits => {
                    ("waiting", format!("{} of its members wait; the device is {other}'s", standing.queued))
                }
                State::Capped => (
                    "capped",
                    format!(
                        "its sm_limit is used up; it may have a lease in {} us",
                        standing.refill.unwrap_or(now).saturating_sub(now) / 1000
                    ),
                ),
                State::Idle => ("idle", "none of its members wants the device".into()),
            };
            Explained {
                device: self.devices.uuid(device).to_owned(),
                arbitrated: self.devices.is_arbitrated(device),
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
