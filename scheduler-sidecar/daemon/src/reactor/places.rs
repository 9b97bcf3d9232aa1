//! Names the devices of overrides and bookings by their UUIDs, so that another numbering of the devices changes
//! nothing, and warns of those that match no device.

use std::collections::BTreeSet;

use tracing::warn;
use vgpu_config::plan::{DevicePlan, TenantPlan};
use vgpu_core::units::uuid::is_same_device;
use vgpu_policy::overrides::TermsOverride;

use super::Reactor;
use crate::config::{TenantConfig, device_name};

/// The UUID of a device that a tenant's terms name; the name itself while the UUID is not known.
pub(super) fn lasting_name(devices: &[DevicePlan], name: &str) -> String {
    let named = devices.iter().find(|device| device.name() == name);
    named.and_then(|device| device.uuid.clone()).unwrap_or_else(|| name.to_owned())
}

/// The name of a device in the tenants' terms, for people.
pub(super) fn present_name(devices: &[DevicePlan], stored: &str) -> String {
    let is_it = |device: &&DevicePlan| device.uuid.as_deref().is_some_and(|uuid| is_same_device(uuid, stored));
    devices.iter().find(is_it).map_or_else(|| stored.to_owned(), DevicePlan::name)
}

/// The stored names of a device after the driver named the devices: `*` becomes each device that no term named before.
fn renamed(
    stored: &str,
    devices: &[DevicePlan],
    base: Option<&TenantConfig>,
    plan: Option<&TenantPlan>,
) -> Vec<String> {
    match (stored, base, plan) {
        ("*", Some(base), Some(plan)) if plan.terms.iter().all(|terms| terms.device != "*") => {
            let known: Vec<String> = base.on.iter().map(|on| device_name(&on.device)).collect();
            let fresh = plan.terms.iter().filter(|terms| !known.contains(&terms.device));
            let fresh: Vec<String> = fresh.map(|terms| lasting_name(devices, &terms.device)).collect();
            if fresh.is_empty() { vec![stored.to_owned()] } else { fresh }
        }
        _ => vec![lasting_name(devices, stored)],
    }
}

impl Reactor {
    /// The devices of the file; none without a file.
    pub(super) fn planned_devices(&self) -> &[DevicePlan] {
        self.loaded.as_ref().map_or(&[], |loaded| &loaded.plan.devices)
    }

    /// Renames the devices of overrides and bookings after the driver named them, and stores that.
    pub(super) fn rename_changed_devices(&mut self) {
        let Some(loaded) = &self.loaded else { return };
        let devices = &loaded.plan.devices;
        let names = |tenant: &str, stored: &str| {
            let room = self.rooms.values().find(|room| room.tenant.name == tenant);
            let plan = loaded.plan.tenants.iter().find(|other| other.name == tenant);
            renamed(stored, devices, room.map(|room| &room.base), plan)
        };
        let mut kept = self.policies.kept.clone();
        let one = |change: TermsOverride| match &change.device {
            None => vec![change],
            Some(device) => {
                let all = names(&change.tenant, device).into_iter();
                all.map(|device| TermsOverride { device: Some(device), ..change.clone() }).collect()
            }
        };
        kept.overrides = kept.overrides.into_iter().flat_map(one).collect();
        for booking in &mut kept.bookings {
            let all: BTreeSet<String> =
                booking.devices.iter().flat_map(|device| names(&booking.tenant, device)).collect();
            booking.devices = all.into_iter().collect();
        }
        for cordon in &mut kept.cordons {
            cordon.subject.rename_device(|device| lasting_name(devices, device));
        }
        if kept != self.policies.kept {
            self.policies.kept = kept;
            self.policies.save_or_warn();
        }
    }

    /// Warns once of each override, booking and cordon whose device is none of its tenant's, or none of the host's:
    /// after a restart with a driver that does not answer, another card, or another division by MIG.
    pub(super) fn warn_of_unmatched_devices(&mut self) {
        let devices = self.in_force().0;
        let has = |tenant: &str, device: &String| {
            let room = self.rooms.values().find(|room| !room.is_removed() && room.tenant.name == tenant);
            room.is_none_or(|room| room.base.on.iter().any(|on| on.device.is_named(device)))
        };
        let kept = &self.policies.kept;
        let overrides = kept.overrides.iter().filter_map(|change| {
            let device = change.device.as_ref().filter(|device| !has(&change.tenant, device))?;
            Some((Some(&change.tenant), device, "override", String::new()))
        });
        let bookings = kept.bookings.iter().flat_map(|booking| {
            let missing = booking.devices.iter().filter(|device| !has(&booking.tenant, device));
            missing.map(|device| (Some(&booking.tenant), device, "booking", booking.name.clone()))
        });
        let cordons = kept.cordons.iter().filter_map(|cordon| {
            let known = devices.iter().any(|device| cordon.subject.is_device(&device.name(), device.uuid.as_deref()));
            let device = cordon.subject.device().filter(|_| !known)?;
            Some((None, device, "cordon", String::new()))
        });
        let mut unmatched = BTreeSet::new();
        for (tenant, device, policy, name) in overrides.chain(bookings).chain(cordons) {
            let key = format!("{policy} {name} {} {device}", tenant.map_or("", String::as_str));
            if !self.policies.unmatched.contains(&key) && !unmatched.contains(&key) {
                warn!(kind = "policy.unmatched", policy, %name, tenant = tenant.map(String::as_str), %device, "it matches no device here and has no effect");
            }
            unmatched.insert(key);
        }
        self.policies.unmatched = unmatched;
    }
}
