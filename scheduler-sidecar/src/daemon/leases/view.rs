//! What status and explain say of device time.

use std::ops::Deref;

use vgpu_core::arbiter::{self, Gate, State, Tenant};
use vgpu_core::page::{BoardPage, ReportPage};

use super::{Leases, Totals};
use crate::daemon::change::{Explained, OnDevice, Used};

impl<B: Deref<Target = BoardPage>, R: Deref<Target = ReportPage> + Clone> Leases<B, R> {
    /// What a tenant used so far, device by device, by what its members say at `now`.
    pub fn used(&mut self, number: Tenant, now: u64) -> Vec<Used> {
        self.look(number, now);
        let Some(house) = self.houses.get(&number) else { return Vec::new() };
        let mut used = Vec::new();
        for device in self.devices.all() {
            let Totals { mut wait, mut launches } = house.gone.get(&device).copied().unwrap_or_default();
            let here = house.pages.iter().flat_map(|pages| pages.slots.iter().flatten());
            let mut members = 0;
            for slot in here.filter(|slot| slot.device == device) {
                members += 1;
                wait += slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since));
                // A tenant's own word, of any size.
                let said = self.reports.witness(slot.id).map_or(0, |witness| witness.submitted());
                launches = launches.saturating_add(said);
            }
            if members > 0 || house.gone.contains_key(&device) {
                let charged = self.arbiter.charged(number, device);
                let device = self.devices.uuid(device).to_owned();
                used.push(Used { device, members, charged, wait, launches });
            }
        }
        used
    }

    /// A tenant's members on devices, by what they say at `now`.
    pub fn members(&mut self, number: Tenant, now: u64) -> Vec<OnDevice> {
        self.look(number, now);
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
            busy: self.arbiter.said(slot.id).busy,
            waited: slot.waited + slot.stands.map_or(0, |since| now.saturating_sub(since)),
        };
        pages.slots.iter().flatten().map(on).collect()
    }

    /// The devices that members joined or that were known from the start, by UUID, and whether leases are given for them.
    #[must_use]
    pub fn devices(&self) -> Vec<(String, bool)> {
        let all = self.devices.all();
        all.map(|device| (self.devices.uuid(device).to_owned(), self.devices.is_arbitrated(device))).collect()
    }

    /// Where a tenant stands on each device on which it has members.
    pub fn explain(&mut self, number: Tenant, now: u64) -> Vec<Explained> {
        self.look(number, now);
        self.tick(now);
        let name = |tenant: Tenant| self.houses.get(&tenant).map(|house| house.tenant.name.clone());
        let there = self.devices.all().filter_map(|device| {
            let standing = self.arbiter.standing(number, device, now)?;
            (standing.members > 0).then_some((device, standing))
        });
        let explain = |(device, standing): (_, arbiter::Standing)| {
            let holder = standing.holder.and_then(name);
            let other = holder.as_deref().unwrap_or("nobody").to_owned();
            let (state, words) = match standing.state {
                State::Common => ("open", "nobody asks anything about this device's time: there are no leases".into()),
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
