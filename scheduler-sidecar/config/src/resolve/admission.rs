//! Words each refusal and finds its place in the file; [`super::super::admit`] computes the refusals.

use super::PlacedTenant;
use super::layers::WrittenPlace;
use crate::admit::{AdmissionRefusal, DeviceCapacity, TenantAsk, find_refusals};
use crate::devices::DescribedDevice;
use crate::plan::TermsPlan;
use crate::problem::ProblemList;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

/// Most tenants that a message lists.
const MAX_ASKS_LISTED: usize = 8;

/// Checks that all tenants of each device fit on it.
pub(super) fn check(
    devices: &[DescribedDevice],
    tenants: &[PlacedTenant],
    problems: &mut ProblemList<'_>,
    notes: &mut Vec<String>,
) {
    for (index, device) in devices.iter().enumerate() {
        let there: Vec<(&PlacedTenant, usize)> = tenants
            .iter()
            .filter_map(|tenant| {
                Some((tenant, tenant.origins.binary_search_by_key(&index, |origin| origin.device).ok()?))
            })
            .collect();
        let terms = |at: usize| -> &TermsPlan { &there[at].0.plan.terms[there[at].1] };
        let asks: Vec<TenantAsk> = (0..there.len()).map(|at| ask_of_terms(terms(at))).collect();
        let capacity = DeviceCapacity { memory: device.plan.memory, overcommit: device.plan.overcommit };
        let name = device.plan.name();
        for refusal in find_refusals(&capacity, &asks) {
            report_refusal(&refusal, &name, &capacity, &there, problems);
        }
        match capacity.memory {
            None if asks.iter().any(|ask| ask.memory.is_some()) => notes.push(format!(
                "the size of device {name} is not known, so its memory limits were not added up; give its [[device]] a \
                 memory, or check where the driver answers"
            )),
            Some(total) if device.plan.overcommit > 1000 => {
                let asked: u128 = asks.iter().map(|ask| u128::from(ask.memory.unwrap_or(total).get())).sum();
                if asked > u128::from(total.get()) {
                    notes.push(format!(
                        "device {name}: {} are promised, and it has {total}; the device itself may refuse a tenant that \
                         allocates late",
                        size(asked)
                    ));
                }
            }
            _ => {}
        }
    }
}

/// Returns the limits that a tenant asks for on the device.
pub(crate) fn ask_of_terms(terms: &TermsPlan) -> TenantAsk {
    TenantAsk { memory: terms.memory, floor: terms.floor, ceiling: terms.ceiling }
}

/// A refusal of a configuration that promises too much, in the words of a problem.
pub(crate) struct RefusalText {
    /// Index of the tenant whose limits no longer fit.
    pub at: usize,
    /// Key that asks for too much: `memory_limit` or `sm_request`.
    pub key: &'static str,
    /// The error, as a predicate: `is more than device 0 has`.
    pub what: String,
    /// Values that would be accepted, in words.
    pub accepted: String,
}

/// Puts a refusal into words, given the tenants with terms on the device.
pub(crate) fn refusal_text(
    refusal: &AdmissionRefusal,
    device: &str,
    capacity: &DeviceCapacity,
    there: &[(&str, &TermsPlan)],
) -> RefusalText {
    match *refusal {
        AdmissionRefusal::Alone { at } => {
            let total = capacity.memory.unwrap_or_default();
            let what = format!("is more than device {device} has for tenant {}", there[at].0);
            RefusalText { at, key: "memory_limit", what, accepted: format!("at most {total}") }
        }
        AdmissionRefusal::FloorAboveCeiling { at } => {
            let (tenant, terms) = there[at];
            let ceiling = terms.ceiling.unwrap_or(Share::WHOLE_DEVICE);
            let what = format!("is more than the sm_limit of tenant {tenant} on device {device}");
            RefusalText { at, key: "sm_request", what, accepted: format!("at most {ceiling}") }
        }
        AdmissionRefusal::Memory { at, asked, promised } => {
            let all =
                list_asks(there, |terms| terms.memory.map_or("the whole device".to_owned(), |limit| limit.to_string()));
            let ratio = format_thousandths(capacity.ratio_for(asked).unwrap_or(0));
            let (asked, promised) = (size(asked), size(promised));
            let what = format!(
                "brings the memory limits on device {device} to {asked} ({all}), and {promised} may be promised"
            );
            let accepted = format!("at most {promised} together, or overcommit = {ratio} or more for the device");
            RefusalText { at, key: "memory_limit", what, accepted }
        }
        AdmissionRefusal::Floors { at, asked } => {
            let all = list_asks(there, |terms| terms.floor.map_or("none".to_owned(), |floor| floor.to_string()));
            let what = format!("brings the requests on device {device} to {} % ({all})", format_tenths(asked));
            RefusalText { at, key: "sm_request", what, accepted: "at most 100 % together".into() }
        }
    }
}

/// Reports a refusal at its place in the file.
fn report_refusal(
    refusal: &AdmissionRefusal,
    device: &str,
    capacity: &DeviceCapacity,
    there: &[(&PlacedTenant, usize)],
    problems: &mut ProblemList<'_>,
) {
    let named: Vec<(&str, &TermsPlan)> =
        there.iter().map(|(tenant, index)| (tenant.plan.name.as_str(), &tenant.plan.terms[*index])).collect();
    let RefusalText { at, key, what, accepted } = refusal_text(refusal, device, capacity, &named);
    let (tenant, index) = there[at];
    let origin = &tenant.origins[index];
    let word = if key == "memory_limit" { &origin.memory } else { &origin.floor };
    // If the value is not written anywhere, report it at the tenant's name.
    let (place, key) = match word {
        Some(WrittenPlace { place, key }) => (*place, key.clone()),
        None => (tenant.place, "tenant.name".to_owned()),
    };
    problems.wrong_value(place, key, what, accepted);
}

/// Lists the tenants of a device, each with its own amount.
fn list_asks(there: &[(&str, &TermsPlan)], of: impl Fn(&TermsPlan) -> String) -> String {
    let each = |(tenant, terms): &(&str, &TermsPlan)| format!("{tenant} {}", of(terms));
    let mut all: Vec<String> = there.iter().take(MAX_ASKS_LISTED).map(each).collect();
    if there.len() > MAX_ASKS_LISTED {
        all.push(format!("and {} more", there.len() - MAX_ASKS_LISTED));
    }
    all.join(", ")
}

fn size(bytes: u128) -> String {
    u64::try_from(bytes).map_or_else(|_| format!("{bytes} bytes"), |bytes| Bytes(bytes).to_string())
}

/// Formats thousandths: `1500` as `1.5`.
pub(crate) fn format_thousandths(value: u128) -> String {
    let text = format!("{}.{:03}", value / 1000, value % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats tenths: `1205` as `120.5`.
fn format_tenths(value: u64) -> String {
    format_thousandths(u128::from(value) * 100)
}
