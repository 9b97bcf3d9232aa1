//! The ResourceSlice of a node, which the driver offers to the scheduler. Pure: the daemon's status in, an object out.
//!
//! Tenants that the driver did not add keep what they were promised: a device offers the rest. The scheduler itself
//! subtracts what claims consume.

use serde_json::{Value, json};
use vgpu_control::status::{DaemonStatus, DeviceStatus};

use super::claim::{CORES_CAPACITY, DRIVER_LABEL, MEMORY_CAPACITY};
use super::quantity::{MEBIBYTE, format_mebibytes};

/// Version of the interface of the objects.
pub const API_VERSION: &str = "resource.k8s.io/v1";
/// Name of the only device of a companion, which stands for the limits and not for a GPU.
pub const LIMITS_DEVICE: &str = "limits";

/// Least memory of a share.
const MIN_SHARE_BYTES: u64 = 256 * MEBIBYTE;
/// Most devices of a slice.
const MAX_SLICE_DEVICES: usize = 128;
/// Longest text of an attribute, in characters.
const MAX_ATTRIBUTE_CHARS: usize = 64;

/// A device of vgpud that claims may share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedDevice {
    /// Name of the device in the slice.
    pub name: String,
    /// vgpud's name of the device.
    pub daemon_name: String,
    /// UUID of the device; `None`: vgpud does not know it.
    pub uuid: Option<String>,
    /// Model of the device.
    pub model: Option<String>,
    /// Memory for all claims together, in whole mebibytes.
    pub memory: u64,
    /// Percentage of the device's time for all claims together.
    pub cores: u64,
}

/// Returns the devices that claims of this driver may share.
#[must_use]
pub fn offered_devices(status: &DaemonStatus, driver: &str) -> Vec<OfferedDevice> {
    let devices = status.devices.iter().filter(|device| device.lost_since.is_none());
    let offered = devices.filter_map(|device| offer_device(status, device, driver));
    offered.take(MAX_SLICE_DEVICES).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes and percentages, which are small")]
#[expect(clippy::cast_precision_loss, reason = "a device has less than 2^53 bytes")]
fn offer_device(status: &DaemonStatus, device: &DeviceStatus, driver: &str) -> Option<OfferedDevice> {
    let name = device_name(&device.name)?;
    let all = device.memory? as f64 * device.overcommit;
    let others =
        status.tenants.iter().filter(|tenant| tenant.bearer.labels.get(DRIVER_LABEL).is_none_or(|by| by != driver));
    let terms = others.flat_map(|tenant| &tenant.devices).filter(|terms| terms.device == device.name);
    let (mut promised, mut floors) = (0_u64, 0.0);
    for terms in terms {
        promised = promised.saturating_add(terms.memory_limit.unwrap_or(0));
        floors += terms.sm_request.unwrap_or(0.0);
    }
    let memory = (all as u64).saturating_sub(promised) / MEBIBYTE * MEBIBYTE;
    let cores = (100.0 - floors).max(0.0) as u64;
    let (uuid, model) = (device.uuid.clone(), device.model.clone());
    let has_room = memory >= MIN_SHARE_BYTES && cores >= 1;
    has_room.then(|| OfferedDevice { name, daemon_name: device.name.clone(), uuid, model, memory, cores })
}

/// Returns the name in the slice, which is a DNS label: `gpu-0`, or the UUID in small letters; `None`: the device has
/// no name of its own.
fn device_name(name: &str) -> Option<String> {
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let name = if is_number { format!("gpu-{name}") } else { name.to_ascii_lowercase() };
    let is_label = name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.len() <= 63
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    is_label.then_some(name)
}

/// Returns the devices of the slice of a driver of its own.
#[must_use]
pub fn shared_devices(devices: &[OfferedDevice]) -> Value {
    devices.iter().map(shared_device).collect()
}

fn shared_device(device: &OfferedDevice) -> Value {
    let kind = if device.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-")) { "mig" } else { "gpu" };
    let mut attributes = json!({ "type": { "string": kind } });
    for (name, text) in [("uuid", &device.uuid), ("productName", &device.model)] {
        if let Some(text) = text {
            let text: String = text.chars().take(MAX_ATTRIBUTE_CHARS).collect();
            attributes[name] = json!({ "string": text });
        }
    }
    let (all, least) = (format_mebibytes(device.memory), format_mebibytes(MIN_SHARE_BYTES));
    // A request without a size gets the whole device, as it does where devices are not shared.
    json!({
        "name": device.name,
        "allowMultipleAllocations": true,
        "attributes": attributes,
        "capacity": {
            MEMORY_CAPACITY: {
                "value": all,
                "requestPolicy": { "default": all, "validRange": { "min": least, "max": all, "step": "1Mi" } },
            },
            CORES_CAPACITY: {
                "value": device.cores.to_string(),
                "requestPolicy": {
                    "default": device.cores.to_string(),
                    "validRange": { "min": "1", "max": device.cores.to_string(), "step": "1" },
                },
            },
        },
    })
}

/// Returns the device of a companion. Any number of claims may have it, because it has no capacity.
#[must_use]
pub fn limits_device() -> Value {
    json!([{ "name": LIMITS_DEVICE, "allowMultipleAllocations": true, "attributes": { "type": { "string": "limits" } } }])
}

/// Returns the name of a node's slice.
#[must_use]
pub fn slice_name(node: &str, driver: &str) -> String {
    format!("{node}-{driver}")
}

/// Returns the slice of a node. `owner` is the UID of the node, with which the slice goes.
#[must_use]
pub fn resource_slice(node: &str, driver: &str, owner: Option<&str>, devices: &Value) -> Value {
    let mut metadata = json!({ "name": slice_name(node, driver) });
    if let Some(uid) = owner {
        metadata["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": true }]);
    }
    json!({
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            "devices": devices,
        },
    })
}

/// Returns the object that replaces `found`, with the slice's content and the version and owner of `found`; `None`: it
/// has this content already.
#[must_use]
pub fn replace_slice(found: &Value, wanted: &Value) -> Option<Value> {
    let (before, after) = (&found["spec"], &wanted["spec"]);
    let same = |key: &str| before[key] == after[key];
    if same("driver") && same("nodeName") && same("devices") && before["pool"]["name"] == after["pool"]["name"] {
        return None;
    }
    let mut object = wanted.clone();
    for key in ["resourceVersion", "ownerReferences"] {
        if let Some(value) = found["metadata"].get(key) {
            object["metadata"][key] = value.clone();
        }
    }
    // Another content of a pool has another number, so that no scheduler mixes both.
    let generation = before["pool"]["generation"].as_i64().unwrap_or(0);
    object["spec"]["pool"]["generation"] = json!(generation.saturating_add(1));
    Some(object)
}

/// Returns the UUID of a device in the slices of another driver.
///
/// # Errors
/// A message: the device, or its attribute `uuid`, is not there.
pub fn find_uuid(slices: &Value, driver: &str, (pool, device): (&str, &str)) -> Result<String, String> {
    let slices = slices["items"].as_array().into_iter().flatten();
    let of_pool = slices.filter(|slice| slice["spec"]["driver"] == driver && slice["spec"]["pool"]["name"] == pool);
    let mut devices = of_pool.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    let found = devices.find(|found| found["name"] == device);
    let found =
        found.ok_or_else(|| format!("no ResourceSlice of {driver} on this node has the device {pool}/{device}"))?;
    let attributes = &found["attributes"];
    let named = ["uuid".to_owned(), format!("{driver}/uuid")];
    let uuid = named.iter().find_map(|name| attributes[name.as_str()]["string"].as_str());
    uuid.map(str::to_owned).ok_or_else(|| format!("the device {pool}/{device} of {driver} has no attribute uuid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device 0 with a tenant of the file, one of a claim of this driver and one of another driver; device 1 is lost.
    fn status() -> DaemonStatus {
        let tenant = |name: &str, by: Option<&str>| {
            let labels = by.map_or(json!({}), |by| json!({ "dra-driver": by }));
            json!({
                "name": name, "labels": labels, "group": null, "socket": "/s", "memory_limit": null, "sm_limit": null,
                "refused": 0, "members": [],
                "devices": [{
                    "device": "0", "memory_limit": 1_u64 << 30, "sm_limit": null, "sm_request": 10.5, "weight": 1,
                    "class": "normal", "quantum": null, "changed_live": [], "time": null,
                }],
            })
        };
        let device = |name: &str, lost: Option<&str>| {
            json!({
                "name": name, "uuid": format!("GPU-{name}"), "memory": (16_u64 << 30) + 5, "overcommit": 1.0,
                "arbitrated": true, "holder": null, "lost_since": lost, "model": "NVIDIA H200",
            })
        };
        serde_json::from_value(json!({
            "version": "0.1.0", "pid": 1, "uptime_seconds": 1,
            "devices": [device("0", None), device("1", Some("2026-11-27T00:00:00Z")), device("*", None)],
            "tenants": [
                tenant("file", None), tenant("claim-1", Some("vgpu.internal")), tenant("claim-2", Some("other")),
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_device_offers_what_was_not_promised_to_others_than_claims() {
        let devices = offered_devices(&status(), "vgpu.internal");
        assert_eq!(devices.len(), 1, "{devices:?}");
        assert_eq!((&*devices[0].name, &*devices[0].daemon_name), ("gpu-0", "0"));
        assert_eq!((devices[0].memory, devices[0].cores), (14 << 30, 79));
        let slice = resource_slice("node-a", "vgpu.internal", Some("uid"), &shared_devices(&devices));
        let device = &slice["spec"]["devices"][0];
        assert_eq!(device["capacity"]["memory"]["requestPolicy"]["validRange"]["max"], "14336Mi");
        assert_eq!(device["capacity"]["cores"]["value"], "79");
        assert_eq!(device["attributes"]["uuid"]["string"], "GPU-0");
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "uid");
        let mut full = status();
        full.tenants[0].devices[0].memory_limit = Some(15 << 30);
        assert_eq!(offered_devices(&full, "vgpu.internal"), []);
    }

    #[test]
    fn devices_have_names_that_kubernetes_accepts() {
        assert_eq!(device_name("7").as_deref(), Some("gpu-7"));
        let uuid = "MIG-5ae3917e-ab05-4b1e-9dbc-0e4a5c1e3b77";
        assert_eq!(device_name(uuid), Some(uuid.to_ascii_lowercase()));
        assert_eq!(["", "*", "a.b", "-a", "a-"].map(device_name), [const { None }; 5]);
    }

    #[test]
    fn a_slice_is_replaced_only_if_it_differs_and_then_has_another_generation() {
        let wanted = resource_slice("n", "d", None, &limits_device());
        let mut found = wanted.clone();
        found["metadata"]["resourceVersion"] = json!("17");
        found["metadata"]["ownerReferences"] = json!([{ "uid": "node" }]);
        found["spec"]["pool"]["generation"] = json!(4);
        assert_eq!(replace_slice(&found, &wanted), None);
        found["spec"]["devices"] = json!([]);
        let object = replace_slice(&found, &wanted).unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], "17");
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "node");
        assert_eq!(object["spec"]["pool"]["generation"], 5);
        assert_eq!(object["spec"]["devices"], wanted["spec"]["devices"]);
    }

    #[test]
    fn a_device_of_another_driver_is_known_by_its_uuid() {
        let device = |attributes| json!({ "name": "gpu-3", "attributes": attributes });
        let slices = |attributes| {
            json!({ "items": [
                { "spec": { "driver": "gpu.nvidia.com", "pool": { "name": "other" }, "devices": [device(json!({}))] } },
                { "spec": { "driver": "gpu.nvidia.com", "pool": { "name": "node" }, "devices": [device(attributes)] } },
            ] })
        };
        let find = |attributes, device| find_uuid(&slices(attributes), "gpu.nvidia.com", ("node", device));
        assert_eq!(find(json!({ "uuid": { "string": "GPU-3" } }), "gpu-3").unwrap(), "GPU-3");
        assert_eq!(find(json!({ "gpu.nvidia.com/uuid": { "string": "GPU-3" } }), "gpu-3").unwrap(), "GPU-3");
        assert!(find(json!({}), "gpu-3").unwrap_err().contains("no attribute uuid"));
        assert!(find(json!({}), "gpu-4").unwrap_err().contains("node/gpu-4"));
    }
}
