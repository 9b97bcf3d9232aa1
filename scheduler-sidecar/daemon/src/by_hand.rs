//! Carries administrators' overrides over when the same file is resolved against devices that the driver named later.
//!
//! Only the names of devices change: a number becomes a device with a UUID, and `*` one or more that the driver
//! named.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{DeviceName, DeviceTermsConfig, TenantConfig, device_name};

/// Keys overridden since the file was read, by tenant and device.
pub(super) type Marks = BTreeMap<(String, String), BTreeSet<&'static str>>;

/// Applies the overrides of `before` to `fresh`, the tenant as the file describes it. Returns them by the new device
/// names.
pub(super) fn carry_overrides(fresh: &mut TenantConfig, before: &TenantConfig, marks: &Marks) -> Marks {
    let mut carried = Marks::new();
    for on in &mut fresh.on {
        let Some(was) = before.on.iter().find(|was| is_same_device(was, on)).or_else(|| any(before)) else { continue };
        let Some(keys) = marks.get(&(before.name.clone(), device_name(&was.device))) else { continue };
        for key in keys {
            match *key {
                "memory_limit" => on.memory = was.memory,
                "sm_limit" => on.terms.ceiling = was.terms.ceiling,
                "sm_request" => on.terms.floor = was.terms.floor,
                "weight" => on.terms.weight = was.terms.weight,
                "class" => on.terms.class = was.terms.class,
                "quantum" => on.terms.quantum = was.terms.quantum,
                "mode" => fresh.mode = before.mode,
                "strict" => fresh.strict = before.strict,
                _ => {}
            }
        }
        carried.insert((fresh.name.clone(), device_name(&on.device)), keys.clone());
    }
    carried
}

/// True if both name the same device, as far as their names tell.
fn is_same_device(was: &DeviceTermsConfig, on: &DeviceTermsConfig) -> bool {
    match (&was.device, &on.device) {
        (DeviceName::Number(was), DeviceName::Uuid(_, Some(number))) => was == number,
        (DeviceName::Uuid(uuid, _), device) => device.is_named(uuid),
        (was, on) => was == on,
    }
}

fn any(tenant: &TenantConfig) -> Option<&DeviceTermsConfig> {
    tenant.on.iter().find(|on| on.device == DeviceName::Any)
}

#[cfg(test)]
mod tests {
    use vgpu_core::limits::Mode;
    use vgpu_core::time::arbiter::Terms;
    use vgpu_core::units::bytes::Bytes;
    use vgpu_core::units::share::Share;

    use super::*;

    fn tenant(devices: Vec<DeviceName>) -> TenantConfig {
        let mut tenant = TenantConfig::on_all_devices("a", "/s".into(), Some(Bytes(100)), Share::from_percent(50));
        let on = tenant.on[0].clone();
        tenant.on = devices.into_iter().map(|device| DeviceTermsConfig { device, ..on.clone() }).collect();
        tenant
    }

    fn marks(device: &str, keys: &[&'static str]) -> Marks {
        [(("a".to_owned(), device.to_owned()), keys.iter().copied().collect())].into()
    }

    #[test]
    fn what_was_changed_of_a_number_is_so_of_the_device_that_it_turns_out_to_be() {
        let mut before = tenant(vec![DeviceName::Number(0), DeviceName::Number(1)]);
        before.on[1].memory = Some(Bytes(7));
        before.on[1].terms = Terms { weight: 9, ..Terms::default() };
        let uuid = |number| DeviceName::Uuid(format!("GPU-{number}"), Some(number));
        let mut fresh = tenant(vec![uuid(0), uuid(1)]);
        let untouched = fresh.on[0].clone();
        let carried = carry_overrides(&mut fresh, &before, &marks("1", &["memory_limit", "weight"]));
        assert_eq!(carried, marks("1", &["memory_limit", "weight"]));
        assert_eq!((fresh.on[1].memory, fresh.on[1].terms.weight), (Some(Bytes(7)), 9));
        assert_eq!(fresh.on[1].terms.ceiling, Share::from_percent(50), "what the file says, since nobody changed it");
        assert_eq!(fresh.on[0], untouched);
    }

    #[test]
    fn what_was_changed_of_every_other_device_is_so_of_each_that_the_driver_names() {
        let mut before = tenant(vec![DeviceName::Number(0), DeviceName::Any]);
        (before.mode, before.on[1].memory) = (Mode::Observe, Some(Bytes(7)));
        let uuid = |number| DeviceName::Uuid(format!("GPU-{number}"), Some(number));
        let mut fresh = tenant(vec![uuid(0), uuid(1), uuid(2)]);
        let carried = carry_overrides(&mut fresh, &before, &marks("*", &["memory_limit", "mode"]));
        let memory: Vec<_> = fresh.on.iter().map(|on| on.memory.unwrap().0).collect();
        assert_eq!((memory, fresh.mode), (vec![100, 7, 7], Mode::Observe));
        assert_eq!(carried.into_keys().map(|(_, device)| device).collect::<Vec<_>>(), ["1", "2"]);
    }
}
