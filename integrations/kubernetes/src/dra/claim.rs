//! From an allocated claim to the tenant that holds its devices' share. Pure.
//!
//! A claim is one tenant, also if it has several requests: a container connects to one tenant only. So every device of
//! a claim has the same size, and requests for the same device are added up.

use std::collections::BTreeMap;

use serde::Deserialize;
use vgpu_config::added::TenantSection;

use super::quantity::parse_quantity;
use crate::api::dra::Device;

/// Label of a tenant with the UID of its claim.
pub const CLAIM_LABEL: &str = "dra-claim";
/// Label of a tenant with the driver that added it.
pub const DRIVER_LABEL: &str = "dra-driver";
/// Capacity of a device in bytes of its memory.
pub const MEMORY_CAPACITY: &str = "memory";
/// Capacity of a device in percent of its time.
pub const CORES_CAPACITY: &str = "cores";

/// Longest value of a label, in characters.
const MAX_LABEL_CHARS: usize = 128;

/// A claim, as far as a driver reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceClaim {
    /// Name and UID.
    pub metadata: ObjectName,
    /// The scheduler's decision.
    pub status: ClaimStatus,
}

/// Name and UID of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ObjectName {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object.
    pub uid: String,
}

/// The scheduler's decision about a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    /// The devices; `None`: it is not allocated.
    pub allocation: Option<Allocation>,
    /// Users of the claim.
    pub reserved_for: Vec<Consumer>,
}

/// The devices of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Allocation {
    /// The devices.
    pub devices: AllocatedDevices,
}

/// The devices of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    /// One entry for each device of each request.
    pub results: Vec<AllocatedDevice>,
}

/// A device, or a share of one, for one request of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocatedDevice {
    /// The request; with a subrequest, `request/subrequest`.
    pub request: String,
    /// Driver of the device.
    pub driver: String,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device in its pool.
    pub device: String,
    /// The share of the device, if it is shared between claims.
    #[serde(rename = "shareID")]
    pub share_id: Option<String>,
    /// Quantities by the name of the capacity.
    pub consumed_capacity: BTreeMap<String, String>,
    /// True for administrative access next to the users of the device.
    pub admin_access: Option<bool>,
}

/// A user of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Consumer {
    /// `pods` for a pod.
    pub resource: String,
    /// Name of the user.
    pub name: String,
}

/// Where the floor and the ceiling of a tenant come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum CoresMeaning {
    /// The consumed percentage is guaranteed; more is used while others do not need it.
    Floor,
    /// The consumed percentage is guaranteed and is the most that may be used.
    Both,
}

/// A device of vgpud with the shares of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedDevice {
    /// Pool and name of the device, as the claim has them.
    pub place: (String, String),
    /// Memory in bytes.
    pub memory: u64,
    /// Percentage of the device's time; `None`: the driver has no such capacity.
    pub cores: Option<u64>,
}

/// Returns the devices that a driver gave to a claim, with the sums of their shares.
///
/// # Errors
/// A message: the claim is not allocated, has no device of the driver, or has one without a size.
pub fn claimed_devices(claim: &ResourceClaim, driver: &str) -> Result<Vec<ClaimedDevice>, String> {
    let allocation = claim.status.allocation.as_ref().ok_or("the claim is not allocated")?;
    let mut devices: Vec<ClaimedDevice> = Vec::new();
    for share in allocation.devices.results.iter().filter(|share| share.driver == driver) {
        let refused = |why: &str| Err(format!("device {} of request {}: {why}", share.device, share.request));
        if share.admin_access == Some(true) {
            return refused("adminAccess is not offered");
        }
        let (memory, cores) = (read_consumed(share, MEMORY_CAPACITY)?, read_consumed(share, CORES_CAPACITY)?);
        let Some(memory) = memory else {
            return refused("the claim has no consumedCapacity of memory, so it has the whole device and no limit");
        };
        let place = (share.pool.clone(), share.device.clone());
        match devices.iter_mut().find(|device| device.place == place) {
            Some(device) => {
                device.memory = device.memory.saturating_add(memory);
                device.cores = device.cores.zip(cores).map(|(one, other)| one.saturating_add(other));
            }
            None => devices.push(ClaimedDevice { place, memory, cores }),
        }
    }
    let first = devices.first().ok_or_else(|| format!("the claim has no device of the driver {driver}"))?;
    if devices.iter().any(|device| (device.memory, device.cores) != (first.memory, first.cores)) {
        return Err(
            "the claim has shares of different sizes; accepted: the same memory and cores on each device".into()
        );
    }
    Ok(devices)
}

/// Returns a quantity of a share; `None`: the driver has no such capacity.
fn read_consumed(share: &AllocatedDevice, capacity: &str) -> Result<Option<u64>, String> {
    let qualified = format!("{}/{capacity}", share.driver);
    let Some(text) = share.consumed_capacity.get(capacity).or_else(|| share.consumed_capacity.get(&qualified)) else {
        return Ok(None);
    };
    let bad = || format!("device {}: consumedCapacity {capacity} is {text:?}; accepted: a quantity", share.device);
    parse_quantity(text).map(Some).ok_or_else(bad)
}

/// Returns the name of a claim's tenant.
#[must_use]
pub fn tenant_name(uid: &str) -> String {
    format!("claim-{uid}")
}

/// Returns the tenant of a claim. `names` are vgpud's names of its devices, which have the same size.
#[must_use]
pub fn tenant_section(
    claim: &ResourceClaim,
    driver: &str,
    device: &ClaimedDevice,
    names: Vec<String>,
    cores: CoresMeaning,
) -> TenantSection {
    let percent = device.cores.map(|percent| percent.to_string());
    let mut labels = BTreeMap::from([
        (CLAIM_LABEL, &claim.metadata.uid),
        (DRIVER_LABEL, &driver.to_owned()),
        ("claim", &claim.metadata.name),
        ("namespace", &claim.metadata.namespace),
    ])
    .into_iter()
    .map(|(name, value)| (name.to_owned(), label_value(value)))
    .collect::<BTreeMap<_, _>>();
    // A claim of several pods has no pod of its own.
    if let [Consumer { resource, name }] = &*claim.status.reserved_for
        && resource == "pods"
    {
        labels.insert("pod".to_owned(), label_value(name));
    }
    TenantSection {
        name: tenant_name(&claim.metadata.uid),
        memory_limit: Some(device.memory.to_string()),
        sm_limit: percent.clone().filter(|_| cores == CoresMeaning::Both),
        sm_request: percent,
        devices: names,
        labels,
        ..TenantSection::default()
    }
}

fn label_value(text: &str) -> String {
    text.chars().take(MAX_LABEL_CHARS).collect()
}

/// Returns the answer to the kubelet: the devices that the scheduler allocated to the claim from `driver`. Each has all
/// CDI devices of the claim.
#[must_use]
pub fn prepared_devices(claim: &ResourceClaim, driver: &str, cdi: &[String]) -> Vec<Device> {
    let shares = claim.status.allocation.iter().flat_map(|allocation| &allocation.devices.results);
    let own = shares.filter(|share| share.driver == driver);
    own.map(|share| Device {
        // Containers name requests, not subrequests.
        request_names: vec![share.request.split('/').next().unwrap_or_default().to_owned()],
        pool_name: share.pool.clone(),
        device_name: share.device.clone(),
        cdi_device_ids: cdi.to_vec(),
        share_id: share.share_id.clone(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "3f7b2a91-4c5d-4e6f-8a9b-0c1d2e3f4a5b";

    fn claim(results: Value) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "train-gpu", "namespace": "lab", "uid": UID, "labels": {} },
            "spec": { "devices": { "requests": [] } },
            "status": {
                "allocation": { "devices": { "results": results, "config": [] } },
                "reservedFor": [{ "resource": "pods", "name": "train-0", "uid": "u" }],
            },
        }))
        .unwrap()
    }

    fn share(device: &str, capacity: Value) -> Value {
        json!({
            "request": "gpu", "driver": "vgpu.internal", "pool": "node", "device": device,
            "shareID": "a671734a-e8e5-11e4-8fde-42010af09327", "consumedCapacity": capacity,
        })
    }

    #[test]
    fn consumed_capacity_becomes_the_terms_and_the_labels_of_a_tenant() {
        let claim = claim(json!([share("gpu-0", json!({ "memory": "5Gi", "cores": "25" }))]));
        let devices = claimed_devices(&claim, "vgpu.internal").unwrap();
        let section = |cores| tenant_section(&claim, "vgpu.internal", &devices[0], vec!["0".into()], cores);
        let tenant = section(CoresMeaning::Floor);
        assert_eq!(tenant.name, format!("claim-{UID}"));
        assert!(vgpu_config::value::is_name(&tenant.name));
        assert_eq!(tenant.memory_limit.as_deref(), Some("5368709120"));
        assert_eq!((tenant.sm_request.as_deref(), tenant.sm_limit.as_deref()), (Some("25"), None));
        assert_eq!(tenant.devices, ["0"]);
        for (name, value) in
            [("dra-claim", UID), ("dra-driver", "vgpu.internal"), ("namespace", "lab"), ("pod", "train-0")]
        {
            assert_eq!(tenant.labels[name], value);
        }
        assert_eq!(section(CoresMeaning::Both).sm_limit.as_deref(), Some("25"));
        let answer = prepared_devices(&claim, "vgpu.internal", &["vgpu.internal/claim=x".into()]);
        assert_eq!((&*answer[0].pool_name, &*answer[0].device_name), ("node", "gpu-0"));
        assert_eq!(answer[0].share_id.as_deref(), Some("a671734a-e8e5-11e4-8fde-42010af09327"));
        assert_eq!(answer[0].cdi_device_ids, ["vgpu.internal/claim=x"]);
    }

    #[test]
    fn shares_of_one_device_are_added_and_others_drivers_are_not_looked_at() {
        let mut other = share("gpu-0", json!({ "memory": "70Gi" }));
        other["driver"] = json!("gpu.nvidia.com");
        let mut part = share("gpu-0", json!({ "vgpu.internal/memory": "1Gi", "cores": "5" }));
        part["request"] = json!("gpu/small");
        let claim = claim(json!([share("gpu-0", json!({ "memory": "2Gi", "cores": "10" })), other, part]));
        let device = ClaimedDevice { place: ("node".into(), "gpu-0".into()), memory: 3 << 30, cores: Some(15) };
        assert_eq!(claimed_devices(&claim, "vgpu.internal").unwrap(), [device]);
        let theirs = claimed_devices(&claim, "gpu.nvidia.com").unwrap();
        assert_eq!((theirs[0].memory, theirs[0].cores), (70 << 30, None));
        assert_eq!(prepared_devices(&claim, "vgpu.internal", &[])[1].request_names, ["gpu"]);
    }

    #[test]
    fn a_claim_that_would_have_no_limit_or_two_sizes_is_refused_with_words() {
        let refused = |results| claimed_devices(&claim(results), "vgpu.internal").unwrap_err();
        assert!(refused(json!([share("gpu-0", json!({ "cores": "25" }))])).contains("no consumedCapacity of memory"));
        assert!(refused(json!([share("gpu-0", json!({ "memory": "-1" }))])).contains("\"-1\""));
        assert!(refused(json!([])).contains("no device of the driver vgpu.internal"));
        let two = json!([share("gpu-0", json!({ "memory": "2Gi" })), share("gpu-1", json!({ "memory": "3Gi" }))]);
        assert!(refused(two).contains("different sizes"));
        let mut admin = share("gpu-0", json!({ "memory": "2Gi" }));
        admin["adminAccess"] = json!(true);
        assert!(refused(json!([admin])).contains("adminAccess"));
        let waiting: ResourceClaim = serde_json::from_value(json!({ "metadata": {}, "status": {} })).unwrap();
        assert!(claimed_devices(&waiting, "vgpu.internal").unwrap_err().contains("not allocated"));
    }
}
