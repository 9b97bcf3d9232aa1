//! Slots (`replicas`) that the file changes while they have members ([`vgpu_config::slots`]).

use tracing::{info, warn};
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_config::slots::{SettledSlots, settle_slots};

use super::Reactor;
use super::reload::difference_summary;

/// The file's tenants while slots wait for members to leave.
#[derive(Default)]
pub(super) struct WaitingSlots {
    /// Tenants as the file has them; empty: all slots are as the file says.
    wanted: Vec<TenantPlan>,
    /// Notes of the file's plan, without those about slots.
    notes: Vec<String>,
    /// True if a tenant's last member has left since the slots were looked at.
    is_due: bool,
}

impl WaitingSlots {
    /// Notes that a tenant's last member has left.
    pub fn note_emptied(&mut self) {
        self.is_due = true;
    }

    /// Slots as the file wants them, for admission: their room is promised before they take it.
    pub fn wanted_slots(&self) -> impl Iterator<Item = &TenantPlan> {
        self.wanted.iter().filter(|tenant| tenant.replicas.is_some())
    }
}

impl Reactor {
    /// Replaces the slots of a plan that cannot change yet by those in force. `before` is the plan in force.
    ///
    /// # Errors
    /// A message: another tenant of the file does not fit next to the slots that keep their terms.
    pub(super) fn keep_busy_slots(&self, before: &ConfigPlan, plan: &mut ConfigPlan) -> Result<WaitingSlots, String> {
        let busy: Vec<TenantPlan> = self
            .rooms
            .values()
            .filter(|room| room.members > 0)
            .map(|room| {
                let of = if room.is_removed() { &room.tenant } else { &room.base };
                TenantPlan::from(of)
            })
            .collect();
        let settled = settle_slots(&plan.devices, &plan.tenants, &before.tenants, &busy)?;
        let SettledSlots { tenants, notes } = settled;
        if notes.is_empty() {
            plan.tenants = tenants;
            return Ok(WaitingSlots::default());
        }
        let of_file = plan.tenants.iter().filter(|tenant| !self.added.is_stored(&tenant.name)).cloned();
        let waiting = WaitingSlots { wanted: of_file.collect(), notes: plan.notes.clone(), is_due: false };
        plan.tenants = tenants;
        plan.notes.extend(notes);
        Ok(waiting)
    }

    /// Keeps the slots that wait, after the plan that lacks them is in force.
    pub(super) fn wait_for_members(&mut self, waiting: WaitingSlots) {
        self.slots = waiting;
    }

    /// Changes the slots that were waiting for members to leave, as far as there is room now.
    pub(super) fn settle_waiting_slots(&mut self) {
        if !std::mem::take(&mut self.slots.is_due) || self.slots.wanted.is_empty() {
            return;
        }
        let Some(mut loaded) = self.loaded.take() else { return };
        let mut plan = loaded.plan.clone();
        let added = loaded.plan.tenants.iter().filter(|tenant| self.added.is_stored(&tenant.name)).cloned();
        plan.tenants = self.slots.wanted.iter().cloned().chain(added).collect();
        plan.notes = self.slots.notes.clone();
        let done = self.keep_busy_slots(&loaded.plan, &mut plan).and_then(|waiting| {
            let difference = self.apply_plan(&loaded.plan, &plan)?;
            Ok((waiting, difference))
        });
        match done {
            Ok((waiting, difference)) => {
                if loaded.plan.tenants != plan.tenants {
                    let summary = difference_summary(&difference);
                    info!("slots follow the file, since members have left: {summary}");
                }
                loaded.plan = plan;
                self.loaded = Some(loaded);
                self.slots = waiting;
                // Overrides stay, because the file was not read again.
                self.follow_changes(&difference, true);
            }
            Err(why) => {
                warn!(%why, "slots cannot follow the file yet");
                self.loaded = Some(loaded);
            }
        }
    }
}
