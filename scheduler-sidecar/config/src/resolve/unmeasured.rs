//! Notes the devices whose use of time nobody measures.

use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Terms;

use crate::plan::{DevicePlan, TenantPlan};

/// Most devices that the note lists.
const MAX_UNMEASURED_LISTED: usize = 8;

/// Returns a note that names the devices that are not scheduled by leases: their device time is not measured. Tenants
/// in mode `observe` do not count, since their members measure in any case.
pub(super) fn note_unmeasured(arbitrate: bool, devices: &[DevicePlan], tenants: &[TenantPlan]) -> Option<String> {
    let is_free = |device: &&DevicePlan| {
        let name = device.name();
        let kept = tenants.iter().filter(|tenant| tenant.mode == Mode::Enforce).flat_map(|tenant| &tenant.terms);
        let mut there = kept.filter(|terms| terms.device == name).peekable();
        let is_used = there.peek().is_some();
        !arbitrate && is_used && there.all(|terms| Terms::from(terms).effective_ceiling().is_none())
    };
    let names: Vec<String> = devices.iter().filter(is_free).map(DevicePlan::name).collect();
    let few = names.iter().take(MAX_UNMEASURED_LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > MAX_UNMEASURED_LISTED { ", ..." } else { "" };
    (!names.is_empty()).then(|| {
        format!(
            "time.arbitrate = false: device time is not measured where no tenant has an sm_limit (device {few}{more}), \
             and the record and metrics do not have it"
        )
    })
}

#[cfg(test)]
mod tests {
    use crate::make_plan;
    use crate::resolve::Surroundings;

    fn notes(file: &str) -> Vec<String> {
        make_plan(file, &Surroundings::default()).unwrap().notes
    }

    #[test]
    fn without_leases_the_plan_names_the_devices_whose_time_is_not_measured() {
        let tenant = |name: &str, more: &str| format!("[[tenant]]\nname = \"{name}\"\n{more}\n");
        let told = |file: &str| {
            let is_it = |note: &String| note.contains("time is not measured") && note.contains("(device *)");
            notes(file).iter().any(is_it)
        };
        let plain = tenant("a", "") + &tenant("b", "");
        assert!(!told(&plain), "leases measure it: {:?}", notes(&plain));
        let off = "[time]\narbitrate = false\n";
        assert!(told(&(tenant("a", "") + &tenant("b", "weight = 2") + off)), "a weight alone gives nothing out then");
        assert!(!told(&(tenant("a", "sm_limit = 50") + off)));
        assert!(!told(&(tenant("a", "mode = \"observe\"") + off)), "an observed tenant is measured");
    }
}
