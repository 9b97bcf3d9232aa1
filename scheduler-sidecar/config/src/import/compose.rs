//! The block `x-internal-integrations.multiTenantGpu` of a compose file.

use super::yaml::Node;
use super::{DeviceRef, ImportError, Imported, MAX_REPLICAS, Slots, profile_of, read_profile, select_devices};
use crate::inventory::Inventory;

/// Returns the block, from the top of the file or from a service.
pub fn find_block<'a>(root: &Node<'a>) -> Option<Result<Node<'a>, ImportError>> {
    let services = root.get("services").into_iter().flat_map(|services| {
        let all: Vec<_> = services.entries().map(|(_, service)| service).collect();
        all
    });
    let mut blocks = std::iter::once(root.clone())
        .chain(services)
        .filter_map(|place| place.get("x-internal-integrations")?.get("multiTenantGpu"));
    let first = blocks.next()?;
    Some(match blocks.next() {
        None => Ok(first),
        Some(second) => Err(second.wrong(&format!("one block in a file; there is another at line {}", first.line()))),
    })
}

/// Reads the block.
pub fn import(block: &Node<'_>, inventory: Option<&Inventory>, imported: &mut Imported) -> Result<(), ImportError> {
    if !block.is_table() {
        return Err(block.wrong("a table with timeSlicingReplicas, migProfile, or both"));
    }
    const MINUTES: std::ops::RangeInclusive<u32> = 1..=1440;
    const PERCENT: std::ops::RangeInclusive<u32> = 1..=100;
    let set = |imported: &mut Imported, key: &str, number: u32| imported.settings.push(format!("{key} = {number}"));
    let (mut replicas, mut profile) = (None, None);
    for (key, value) in block.entries() {
        match key {
            "timeSlicingReplicas" => replicas = Some((value.number(1..=MAX_REPLICAS)?, value.line())),
            "idleMinutesBeforeScalingDown" => set(imported, "idle_minutes", value.number(MINUTES)?),
            "idleThreshold" => set(imported, "idle_threshold", value.number(PERCENT)?),
            "overUtilizedMinutesBeforeScalingUp" => set(imported, "over_minutes", value.number(MINUTES)?),
            "overUtilizedThreshold" => set(imported, "over_threshold", value.number(PERCENT)?),
            "enableAutoStop" => imported.note(
                value.line(),
                format!(
                    "{} = {}: an [[on_event]] for idle.began stops it, see docs/actions.md",
                    value.path(),
                    value.shown()
                ),
            ),
            "migProfile" => profile = Some((read_profile(&value)?, value)),
            _ => imported.note(value.line(), format!("{} = {} has no counterpart", value.path(), value.shown())),
        }
    }
    if replicas.is_none() && profile.is_none() {
        return Err(block.wrong("timeSlicingReplicas, migProfile, or both"));
    }
    let (count, line) = replicas.unwrap_or((1, block.line()));
    let Some(inventory) = inventory else {
        if let Some((_, value)) = &profile {
            return Err(value.wrong("this on a machine whose driver answers, which knows the MIG instances"));
        }
        imported.note(line, "the driver did not answer, so these are slots of device 0; repeat them for each device");
        imported.slots.push(Slots { name: "gpu-0".into(), device: DeviceRef::Number(0), replicas: count, line });
        return Ok(());
    };
    let found = select_devices(inventory, profile.as_ref().map(|(profile, _)| profile.as_str()));
    if let (true, Some((_, value))) = (found.is_empty(), &profile) {
        let mut there: Vec<&str> = inventory.found.iter().filter_map(profile_of).collect();
        there.dedup();
        let there = if there.is_empty() { "there is no MIG instance here".to_owned() } else { there.join(", ") };
        return Err(value.wrong(&format!("the profile of an instance of this machine: {there}")));
    }
    for device in found {
        let device = DeviceRef::of(device);
        imported.slots.push(Slots { name: format!("gpu-{}", device.suffix()), device, replicas: count, line });
    }
    Ok(())
}
