//! Notes the devices whose use of time nobody measures, and the policies that follow it.

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

/// Returns a note if deadlines or idle steps follow device time that is not measured.
pub(super) fn note_blind_needs(is_measured: bool, tenants: &[TenantPlan]) -> Option<String> {
    let has_steps = |tenant: &TenantPlan| tenant.usage.idle.as_ref().is_some_and(|idle| !idle.steps.is_empty());
    let needs = |tenant: &&TenantPlan| tenant.usage.deadline.is_some() || has_steps(tenant);
    let first = tenants.iter().find(needs).filter(|_| !is_measured)?;
    Some(format!(
        "record.exact = false or time.arbitrate = false: device time that is not measured counts for no deadline, and its \
         tenant counts as busy, so that no idle step follows (tenant {} and others with these keys)",
        first.name
    ))
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

    #[test]
    fn deadlines_and_idle_steps_that_follow_unmeasured_time_are_noted() {
        let told = |file: &str| notes(file).iter().filter(|note| note.contains("counts for no deadline")).count();
        let plain = "[[tenant]]\nname = \"a\"\n";
        let deadline = "[[tenant]]\nname = \"a\"\ndeadline = \"2036-12-01 09:00\"\ngpu_hours_needed = 1\n";
        let steps = "[[tenant]]\nname = \"a\"\nidle_steps = [\"lower\"]\n";
        for blind in ["[record]\nexact = false\n", "[time]\narbitrate = false\n"] {
            let of = [plain, deadline, steps].map(|tenant| told(&format!("{blind}{tenant}")));
            assert_eq!(of, [0, 1, 1], "{blind}");
        }
        assert_eq!((told(deadline), told(steps)), (0, 0));
    }
}
