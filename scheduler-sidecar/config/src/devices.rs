//! Finds the devices that a configuration covers, from the file and from the driver.
//!
//! If the driver answers, the devices are those of the machine. A `[[device]]` entry describes one of them; the entry
//! `*` describes all others. Without the driver, the devices are those that the file names, and `*` is any other
//! device.
//!
//! On a device with MIG enabled, programs compute on the instances and never on the device itself. So the device's
//! number or UUID selects each of its instances.
//!
//! A lost device does not answer the driver. It is left out until it answers, and an entry that may be of it is no
//! error: one with its number, or with a UUID that no other device has.

use vgpu_core::units::uuid;

use super::inventory::{FoundDevice, Inventory};
use super::plan::DevicePlan;
use super::problem::{At, ProblemList};
use super::raw::{DeviceId, RawDevice, RawFile};

/// Most devices accepted; no machine has more.
const MAX_CONFIGURED_DEVICES: usize = 256;

/// Most names that a message lists.
const MAX_DEVICES_LISTED: usize = 20;

/// A device of the configuration or of the driver, as tenants' sections can name it.
#[derive(Debug)]
pub(super) struct DescribedDevice {
    pub plan: DevicePlan,
}

impl DescribedDevice {
    /// Returns true if `id` names this device, or the device that it is a MIG instance of.
    fn is_named(&self, id: &DeviceId) -> bool {
        let DevicePlan { index, uuid, parent, .. } = &self.plan;
        match id {
            DeviceId::Index(number) => *index == Some(*number),
            DeviceId::Uuid(name) => uuid.iter().chain(parent).any(|here| uuid::is_same_device(here, name)),
            DeviceId::Any => index.is_none() && uuid.is_none(),
        }
    }
}

/// Returns the devices ordered by number, then by UUID, `*` last; instances in the driver's order.
pub(super) fn resolve_devices(
    raw: &RawFile,
    inventory: Option<&Inventory>,
    problems: &mut ProblemList<'_>,
) -> Vec<DescribedDevice> {
    let entries = distinct_entries(&raw.devices, problems);
    let mut devices = match inventory.filter(|inventory| !inventory.found.is_empty()) {
        Some(inventory) => known_devices(raw, &entries, inventory, problems),
        None => named_devices(raw, &entries, problems),
    };
    devices.sort_by_key(|device| {
        let DevicePlan { index, uuid, .. } = &device.plan;
        let unnumbered = index.is_none().then(|| (uuid.is_none(), uuid.clone()));
        (index.is_none(), *index, unnumbered)
    });
    devices
}

/// Returns true if both ids name the same device, as far as the ids alone can tell.
fn name_same_device(one: &DeviceId, other: &DeviceId) -> bool {
    match (one, other) {
        (DeviceId::Uuid(one), DeviceId::Uuid(other)) => uuid::is_same_device(one, other),
        _ => one == other,
    }
}

/// Returns true if `id`, which no device has, may name a device that does not answer.
pub(super) fn may_be_silent(inventory: Option<&Inventory>, id: &DeviceId) -> bool {
    let mut silent = inventory.iter().flat_map(|inventory| &inventory.silent);
    match id {
        DeviceId::Index(number) => silent.any(|device| device.index == *number),
        DeviceId::Uuid(_) => silent.next().is_some(),
        DeviceId::Any => false,
    }
}

/// Returns the indices of the devices that `id` selects: one device, or all instances of one.
pub(super) fn find<'d>(devices: &'d [DescribedDevice], id: &'d DeviceId) -> impl Iterator<Item = usize> + 'd {
    (0..).zip(devices).filter(|(_, device)| device.is_named(id)).map(|(at, _)| at)
}

/// Returns the list of device names that a message shows as accepted.
pub(super) fn device_names(devices: &[DescribedDevice]) -> String {
    let name = |device: &DescribedDevice| match (&device.plan.index, &device.plan.uuid) {
        (Some(index), Some(uuid)) if device.plan.parent.is_some() => format!("{uuid} (an instance of {index})"),
        (Some(index), Some(uuid)) => format!("{index} ({uuid})"),
        (Some(index), None) => index.to_string(),
        (None, Some(uuid)) => uuid.clone(),
        (None, None) => "\"*\"".into(),
    };
    let mut names: Vec<String> = devices.iter().take(MAX_DEVICES_LISTED).map(name).collect();
    if devices.len() > MAX_DEVICES_LISTED {
        names.push("...".into());
    }
    names.join(", ")
}

struct DeviceEntry<'r> {
    id: &'r At<DeviceId>,
    raw: &'r RawDevice,
}

/// Returns the entries that have an id, each id once.
fn distinct_entries<'r>(devices: &'r [RawDevice], problems: &mut ProblemList<'_>) -> Vec<DeviceEntry<'r>> {
    let mut entries: Vec<DeviceEntry<'r>> = Vec::new();
    for raw in devices {
        let Some(id) = &raw.id else { continue };
        if entries.len() == MAX_CONFIGURED_DEVICES {
            too_many(id, "device.id", problems);
            break;
        } else if entries.iter().any(|entry| name_same_device(&entry.id.value, &id.value)) {
            problems.wrong_value(id.place, "device.id", "is described twice", "one [[device]] for each device");
        } else {
            entries.push(DeviceEntry { id, raw });
        }
    }
    entries
}

fn plan_device(
    raw: Option<&RawDevice>,
    index: Option<u32>,
    uuid: Option<String>,
    found: Option<&FoundDevice>,
) -> DevicePlan {
    let memory = raw.and_then(|raw| raw.memory.as_ref()).map(|at| at.value);
    let overcommit = raw.and_then(|raw| raw.overcommit.as_ref()).map_or(1000, |at| at.value);
    let model = found.and_then(|found| found.model.clone());
    let parent = found.and_then(|found| found.parent.clone());
    let memory = memory.or(found.and_then(|found| found.memory));
    DevicePlan { index, uuid, parent, memory, overcommit, model, group_limits: Vec::new() }
}

/// Returns whether `*` covers devices without an entry of their own, and its entry. `*` also covers them if the file
/// describes no device.
fn any<'e, 'r>(raw: &RawFile, entries: &'e [DeviceEntry<'r>]) -> (bool, Option<&'e DeviceEntry<'r>>) {
    let entry = entries.iter().find(|entry| entry.id.value == DeviceId::Any);
    // An entry with a wrong id is already reported; it must not leave every tenant without a device.
    let all_wrong = entries.len() < raw.devices.len() && entries.is_empty();
    (entry.is_some() || raw.devices.is_empty() || all_wrong, entry)
}

/// Returns the devices that the driver lists, with the file's entries applied.
fn known_devices(
    raw: &RawFile,
    entries: &[DeviceEntry<'_>],
    inventory: &Inventory,
    problems: &mut ProblemList<'_>,
) -> Vec<DescribedDevice> {
    let (has_any, any) = any(raw, entries);
    let mut used = vec![false; entries.len()];
    let mut devices = Vec::new();
    for found in &inventory.found {
        let described =
            DescribedDevice { plan: plan_device(None, Some(found.index), Some(found.uuid.clone()), Some(found)) };
        let name = described.plan.name();
        let mut own: Option<&DeviceEntry<'_>> = None;
        for (entry, used) in entries.iter().zip(&mut used) {
            if entry.id.value == DeviceId::Any || !described.is_named(&entry.id.value) {
                continue;
            }
            *used = true;
            match own {
                None => own = Some(entry),
                Some(first) => {
                    let what = format!("is device {name}, which is described as {} already", first.id.value);
                    problems.wrong_value(entry.id.place, "device.id", what, "one [[device]] for each device");
                }
            }
        }
        let entry = own.or(any);
        if entry.is_none() && !has_any {
            continue;
        }
        if let Some(memory) = entry.and_then(|entry| entry.raw.memory.as_ref())
            && let Some(there) = found.memory
            && memory.value > there
        {
            let what = format!("is more than device {name} has");
            let accepted = format!("at most {there}; to promise more than the device has, set overcommit");
            problems.wrong_value(memory.place, "device.memory", what, accepted);
        }
        let plan = plan_device(entry.map(|entry| entry.raw), Some(found.index), Some(found.uuid.clone()), Some(found));
        devices.push(DescribedDevice { plan });
    }
    let there = device_names(&devices);
    for (entry, used) in entries.iter().zip(used) {
        if entry.id.value != DeviceId::Any && !used && !may_be_silent(Some(inventory), &entry.id.value) {
            problems.wrong_value(entry.id.place, "device.id", "is not a device of this machine", there.clone());
        }
    }
    devices
}

fn too_many(id: &At<DeviceId>, key: &str, problems: &mut ProblemList<'_>) {
    let what = format!("exceeds the maximum number of devices, {MAX_CONFIGURED_DEVICES}");
    problems.wrong_value(id.place, key, what, "fewer devices");
}

/// Reports devices named partly by number and partly by UUID. Without the driver, both may be one device, whose
/// memory would then be promised twice.
fn refuse_mixed_ids<'a>(ids: impl Iterator<Item = (&'static str, &'a At<DeviceId>)>, problems: &mut ProblemList<'_>) {
    let (mut number, mut uuid) = (None, None);
    for (key, id) in ids {
        let (here, other) = match &id.value {
            DeviceId::Index(_) => (&mut number, &uuid),
            // A MIG UUID can be compared with its device's number only once the driver answers.
            DeviceId::Uuid(text) if text.starts_with("GPU-") => (&mut uuid, &number),
            DeviceId::Uuid(_) | DeviceId::Any => continue,
        };
        if let Some(other) = other {
            let what = format!("may be the same device as {other}; only the driver can tell, and it does not answer");
            problems.wrong_value(id.place, key, what, "all devices by number, or all by UUID");
            return;
        }
        here.get_or_insert_with(|| id.value.clone());
    }
}

/// Returns the devices that the file names, and `*` if it applies.
fn named_devices(raw: &RawFile, entries: &[DeviceEntry<'_>], problems: &mut ProblemList<'_>) -> Vec<DescribedDevice> {
    let (has_any, any) = any(raw, entries);
    let listed = raw.tenants.iter().flat_map(|tenant| tenant.devices.iter().flatten());
    let overridden = raw.tenants.iter().flat_map(|tenant| &tenant.overrides).filter_map(|over| over.id.as_ref());
    let written = entries.iter().map(|entry| ("device.id", entry.id));
    let written = written.chain(listed.map(|id| ("tenant.devices", id)));
    refuse_mixed_ids(written.chain(overridden.map(|id| ("tenant.device.id", id))), problems);
    let describe = |id: &DeviceId, raw: Option<&RawDevice>| {
        let (index, uuid) = match id {
            DeviceId::Index(index) => (Some(*index), None),
            DeviceId::Uuid(uuid) => (None, Some(uuid.clone())),
            DeviceId::Any => (None, None),
        };
        DescribedDevice { plan: plan_device(raw, index, uuid, None) }
    };
    let mut devices: Vec<DescribedDevice> =
        entries.iter().map(|entry| describe(&entry.id.value, Some(entry.raw))).collect();
    if has_any {
        if any.is_none() {
            devices.push(describe(&DeviceId::Any, None));
        }
        let listed = raw.tenants.iter().flat_map(|tenant| tenant.devices.iter().flatten());
        let overridden = raw.tenants.iter().flat_map(|tenant| &tenant.overrides).filter_map(|over| over.id.as_ref());
        for id in listed.chain(overridden) {
            if devices.len() > MAX_CONFIGURED_DEVICES {
                too_many(id, "tenant.devices", problems);
                break;
            }
            if find(&devices, &id.value).next().is_none() {
                devices.push(describe(&id.value, any.map(|entry| entry.raw)));
            }
        }
    }
    devices
}
