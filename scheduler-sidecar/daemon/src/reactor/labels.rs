//! Labels of running tenants, which commands set and take back (`vgpu label`).
//!
//! A label belongs to the usage from the moment of the command on ([`super::policies`] hands over the usage until then
//! with the labels that were in force). Labels stay when the file is read again and when the daemon restarts.

use vgpu_config::bearer::LabelChanges;
use vgpu_config::plan::TenantPlan;
use vgpu_control::ChangeResult;

use super::Reactor;
use super::policies::ChangeNote;
use crate::connection::PeerCredentials;

impl Reactor {
    /// Returns the tenant with the labels that commands set.
    pub(super) fn label_tenant(&self, tenant: TenantPlan) -> TenantPlan {
        match self.policies.kept.labels.get(&tenant.name) {
            Some(set) => TenantPlan { bearer: tenant.bearer.with_labels(set), ..tenant },
            None => tenant,
        }
    }

    /// Names of the labels that commands set for a tenant.
    pub(super) fn live_labels(&self, name: &str) -> Vec<String> {
        self.policies.kept.labels.get(name).map(|set| set.keys().cloned().collect()).unwrap_or_default()
    }

    /// Sets labels of a tenant, or takes them back.
    ///
    /// # Errors
    /// A message: there is no such tenant, a label is not accepted, or it cannot be stored; nothing was changed.
    pub(super) fn label(
        &mut self,
        name: &str,
        changes: &LabelChanges,
        who: PeerCredentials,
    ) -> Result<ChangeResult, String> {
        let id = self.known_room(name)?;
        let Some(room) = self.rooms.get(&id) else { return Err(format!("there is no tenant {name:?}")) };
        let before = room.tenant.bearer.labels.clone();
        let mut kept = self.policies.kept.clone();
        let set = kept.labels.entry(name.to_owned()).or_default();
        room.base.bearer.change_labels(set, changes)?;
        kept.labels.retain(|_, set| !set.is_empty());
        if kept.labels != self.policies.kept.labels {
            self.policies.replace_kept(kept)?;
            self.apply_policies(&ChangeNote::about(name, &change_words(changes), who));
        }
        let mut notes = Vec::new();
        if !self.policies.is_stored() && self.policies.kept.labels.contains_key(name) {
            notes.push("the daemon has no state_dir, so a restart of the daemon takes the labels back".to_owned());
        }
        let result = self.change_result(name, Vec::new(), notes)?;
        let changed = changes.keys().filter(|key| result.labels.get(*key) != before.get(*key)).cloned().collect();
        Ok(ChangeResult { changed, ..result })
    }
}

/// The changes as the command writes them.
fn change_words(changes: &LabelChanges) -> String {
    let words = changes.iter().map(|(name, value)| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("{name}-"),
    });
    format!("labels {}", words.collect::<Vec<_>>().join(" "))
}
