//! Notes the devices whose use of time nobody measures.

use vgpu_core::limits::Mode;
use vgpu_core::time::arbiter::Terms;

use crate::plan::{DevicePlan, TenantPlan};
use crate::raw::Arbitrate;

/// Most devices that the note lists.
const MAX_UNMEASURED_LISTED: usize = 8;

/// Returns a note that names the devices that are not scheduled by leases: their device time is not measured. Tenants
/// in mode `observe` do not count, since their members measure in any case.
pub(super) fn note_unmeasured(arbitrate: Arbitrate, devices: &[DevicePlan], tenants: &[TenantPlan]) -> Option<String> {
    let is_free = |device: &&DevicePlan| {
        let name = device.name();
        let kept = tenants.iter().filter(|tenant| tenant.mode == Mode::Enforce).flat_map(|tenant| &tenant.terms);
        let mut there = kept.filter(|terms| terms.device == name).peekable();
        there.peek().is_some()
            && match arbitrate {
                Arbitrate::Yes => false,
                Arbitrate::Auto => there.all(|terms| !terms.asks_for_time()),
                Arbitrate::No => there.all(|terms| Terms::from(terms).effective_ceiling().is_none()),
            }
    };
    let names: Vec<String> = devices.iter().filter(is_free).map(DevicePlan::name).collect();
    let few = names.iter().take(MAX_UNMEASURED_LISTED).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > MAX_UNMEASURED_LISTED { ", ..." } else { "" };
    (!names.is_empty()).then(|| {
        format!(
            "device time is not measured where no tenant has a time setting (device {few}{more}): the record and \
             metrics do not have it; time.arbitrate = true shares all devices by leases, which measures it"
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
    fn where_no_tenant_asks_anything_of_time_the_plan_says_that_it_is_not_measured() {
        let tenant = |name: &str, more: &str| format!("[[tenant]]\nname = \"{name}\"\n{more}\n");
        let told = |file: &str| {
            notes(file)
                .iter()
                .any(|note| note.starts_with("device time is not measured") && note.contains("(device *)"))
        };
        let plain = tenant("a", "") + &tenant("b", "");
        assert!(told(&plain), "{:?}", notes(&plain));
        assert!(!told(&(tenant("a", "") + &tenant("b", "weight = 2"))), "one who asks has all of them measured");
        for written in ["weight = 1", "class = \"normal\""] {
            assert!(!told(&(tenant("a", "") + &tenant("b", written))), "{written}: whoever writes it asks for it");
        }
        assert!(told(&format!("{plain}[time]\narbitrate = \"auto\"\n")));
        assert!(!told(&format!("{plain}[time]\narbitrate = true\n")));
        let weighed = tenant("a", "weight = 2") + "[time]\narbitrate = false\n";
        assert!(told(&weighed), "a weight alone gives nothing out then");
        assert!(!told(&(tenant("a", "sm_limit = 50") + "[time]\narbitrate = false\n")));
        assert!(!told(&tenant("a", "mode = \"observe\"")), "whoever is only observed is measured");
    }
}
