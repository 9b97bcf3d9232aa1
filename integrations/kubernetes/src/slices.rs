//! Slices: tenants of vgpud that are offered to the cluster. Pure: the daemon's status in, slices out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vgpu_config::bearer::POD_NAME_LABELS;
use vgpu_control::status::{DaemonStatus, DeviceStatus, TenantStatus};

/// Label of a tenant that names the resource it is a slice of.
pub const RESOURCE_LABEL: &str = "kubernetes";

/// Most bytes of a resource's name.
const MAX_NAME_BYTES: usize = 63;

/// A tenant that one container may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// Name of the tenant, and identifier of the slice.
    pub tenant: String,
    /// Name of the resource, without the domain.
    pub resource: String,
    /// Path of the tenant's socket on the host.
    pub socket: PathBuf,
    /// UUIDs of its devices, as far as they are known.
    pub uuids: Vec<String>,
    /// Number of its processes now.
    pub members: usize,
    /// Labels that tell its owner, as far as commands set them.
    pub labels: BTreeMap<String, String>,
    /// Why no container may get it now; `None`: it is healthy.
    pub fault: Option<String>,
}

/// Returns the slices of a daemon, ordered by resource and tenant, and a sentence for each label that names no
/// resource.
#[must_use]
pub fn slices_of(status: &DaemonStatus) -> (Vec<Slice>, Vec<String>) {
    let (mut slices, mut problems) = (Vec::new(), Vec::new());
    for tenant in status.tenants.iter().filter(|tenant| !tenant.removed) {
        let Some(resource) = tenant.bearer.labels.get(RESOURCE_LABEL) else { continue };
        if is_resource_name(resource) {
            slices.push(slice_of(status, tenant, resource));
        } else {
            problems.push(format!(
                "tenant {:?}: the label {RESOURCE_LABEL} is {resource:?}; accepted: 1 to {MAX_NAME_BYTES} letters, \
                 digits, `-`, `_` and `.`, beginning and ending with a letter or a digit",
                tenant.name
            ));
        }
    }
    slices.sort_by(|one, other| (&one.resource, &one.tenant).cmp(&(&other.resource, &other.tenant)));
    (slices, problems)
}

fn slice_of(status: &DaemonStatus, tenant: &TenantStatus, resource: &str) -> Slice {
    let is_own = |device: &&DeviceStatus| tenant.devices.iter().any(|terms| terms.device == device.name);
    let own: Vec<&DeviceStatus> = status.devices.iter().filter(is_own).collect();
    let lost = own.iter().find_map(|device| {
        let since = device.lost_since.as_ref()?;
        Some(format!("device {} is lost since {since}", device.name))
    });
    Slice {
        tenant: tenant.name.clone(),
        resource: resource.to_owned(),
        socket: tenant.socket.clone(),
        uuids: own.iter().filter_map(|device| device.uuid.clone()).collect(),
        members: tenant.members.len(),
        labels: owner_labels(tenant),
        fault: tenant.unusable.clone().or(lost),
    }
}

/// The labels of a slice that tell its owner. Labels of the file do not: nobody takes them back.
fn owner_labels(tenant: &TenantStatus) -> BTreeMap<String, String> {
    let is_owners = |name: &&String| tenant.labels_live.contains(name) && POD_NAME_LABELS.contains(&name.as_str());
    tenant
        .bearer
        .labels
        .iter()
        .filter(|(name, _)| is_owners(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// True if Kubernetes accepts the text as the name of a resource, after the domain.
fn is_resource_name(text: &str) -> bool {
    let edge = |part: char| part.is_ascii_alphanumeric();
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|part| edge(part) || "-_.".contains(part))
}

/// Where new containers go, if there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Placement {
    /// On the device with the fewest free slices, so that whole devices stay free.
    Pack,
    /// On the device with the most free slices.
    Spread,
}

/// Returns `count` of the available slices, `needed` first.
#[must_use]
pub fn prefer_slices(
    slices: &[Slice],
    available: &[String],
    needed: &[String],
    count: usize,
    placement: Placement,
) -> Vec<String> {
    let device_of = |id: &String| slices.iter().find(|slice| slice.tenant == *id).and_then(|slice| slice.uuids.first());
    let free_beside = |id: &String| available.iter().filter(|other| device_of(other) == device_of(id)).count();
    let mut others: Vec<&String> = available.iter().filter(|id| !needed.contains(id)).collect();
    others.sort_by_key(|id| {
        let free = free_beside(id);
        (if placement == Placement::Pack { free } else { usize::MAX - free }, (*id).clone())
    });
    needed.iter().chain(others).take(count.max(needed.len())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a daemon with two devices, the second one lost.
    pub fn status() -> DaemonStatus {
        let tenant = |name: &str, label: Option<&str>, device: &str| {
            let labels: serde_json::Value =
                label.map_or(serde_json::json!({}), |label| serde_json::json!({"kubernetes": label}));
            serde_json::json!({
                "name": name, "labels": labels, "group": null, "socket": format!("/run/vgpu/tenants/{name}/vgpud.sock"),
                "memory_limit": null, "sm_limit": null, "refused": 0, "members": [],
                "devices": [{
                    "device": device, "memory_limit": null, "sm_limit": null, "sm_request": null, "weight": 1,
                    "class": "normal", "quantum": null, "changed_live": [], "time": null
                }],
            })
        };
        let device = |name: &str, lost: Option<&str>| {
            serde_json::json!({
                "name": name, "uuid": format!("GPU-{name}"), "memory": 1, "overcommit": 1.0, "arbitrated": true,
                "holder": null, "lost_since": lost,
            })
        };
        serde_json::from_value(serde_json::json!({
            "version": "0.1.0", "pid": 1, "uptime_seconds": 1,
            "devices": [device("0", None), device("1", Some("2026-11-27T00:00:00Z"))],
            "tenants": [
                tenant("q-1", Some("quarter"), "0"), tenant("q-0", Some("quarter"), "0"), tenant("other", None, "0"),
                tenant("h-0", Some("half"), "1"), tenant("bad", Some("-x"), "0"),
            ],
        }))
        .unwrap()
    }

    #[test]
    fn labelled_tenants_are_slices_and_those_of_a_lost_device_are_not_healthy() {
        let (slices, problems) = slices_of(&status());
        let told: Vec<_> =
            slices.iter().map(|slice| (&*slice.resource, &*slice.tenant, slice.fault.is_some())).collect();
        assert_eq!(told, [("half", "h-0", true), ("quarter", "q-0", false), ("quarter", "q-1", false)]);
        assert_eq!(slices[1].uuids, ["GPU-0"]);
        assert!(
            problems.len() == 1 && problems[0].contains("\"bad\"") && problems[0].contains("\"-x\""),
            "{problems:?}"
        );
    }

    #[test]
    fn packing_fills_one_device_and_spreading_takes_the_emptier_one() {
        let slice = |tenant: &str, uuid: &str| Slice {
            tenant: tenant.into(),
            resource: "quarter".into(),
            socket: "/s".into(),
            uuids: vec![uuid.into()],
            members: 0,
            labels: BTreeMap::new(),
            fault: None,
        };
        let slices = [slice("a0", "A"), slice("a1", "A"), slice("b0", "B"), slice("b1", "B")];
        let available = ["a0", "b0", "b1"].map(str::to_owned);
        let prefer = |placement| prefer_slices(&slices, &available, &[], 1, placement);
        assert_eq!(prefer(Placement::Pack), ["a0"]);
        assert_eq!(prefer(Placement::Spread), ["b0"]);
        let needed = ["b1".to_owned()];
        assert_eq!(prefer_slices(&slices, &available, &needed, 2, Placement::Pack), ["b1", "a0"]);
    }
}
