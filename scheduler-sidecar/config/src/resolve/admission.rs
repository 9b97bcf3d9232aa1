//! Words each refusal and finds its place in the file; [`super::super::admit`] computes the refusals.

use super::PlacedTenant;
use super::layers::TermsPlaces;
use crate::admit::{AdmissionRefusal, DeviceCapacity, GroupRefusal, TenantAsk, find_group_refusals, find_refusals};
use crate::devices::DescribedDevice;
use crate::plan::{DevicePlan, GroupLimit, TenantPlan, TermsPlan};
use crate::problem::{ProblemList, TextRange};
use crate::raw::RawFile;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

/// Most tenants that a message lists.
const MAX_ASKS_LISTED: usize = 8;

/// Checks that all tenants of each device fit on it, and those of each group into the group's limits there.
pub(super) fn check(
    raw: &RawFile,
    devices: &[DescribedDevice],
    tenants: &[PlacedTenant],
    problems: &mut ProblemList<'_>,
    notes: &mut Vec<String>,
) {
    for (index, device) in devices.iter().enumerate() {
        let placed: Vec<(&PlacedTenant, usize)> = tenants
            .iter()
            .filter_map(|tenant| {
                Some((tenant, tenant.origins.binary_search_by_key(&index, |origin| origin.device).ok()?))
            })
            .collect();
        let there: Vec<(&TenantPlan, &TermsPlan)> =
            placed.iter().map(|(tenant, index)| (&tenant.plan, &tenant.plan.terms[*index])).collect();
        let name = device.plan.name();
        for text in find_refusal_texts(&name, Some(&device.plan), &there) {
            report_refusal(raw, &text, &placed, problems);
        }
        let asks: Vec<TenantAsk> = there.iter().map(|(_, terms)| TenantAsk::from(*terms)).collect();
        match device.plan.memory {
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

/// A refusal of a configuration that promises too much, in the words of a problem.
pub(crate) struct RefusalText {
    /// Index of the tenant whose limits no longer fit; `None`: the limit of the group cannot be computed.
    pub at: Option<usize>,
    /// Key that asks for too much: `memory_limit`, `sm_request` or `sm_limit`.
    pub key: &'static str,
    /// The error, as a predicate: `is more than device 0 has`.
    pub what: String,
    /// Values that would be accepted, in words.
    pub accepted: String,
    /// Indexes of the tenants that the refusal is about.
    pub tenants: Vec<usize>,
    /// The group whose limit is the reason; `None`: the device is.
    group: Option<GroupText>,
}

/// A group's refusal as it is reported at the section `[[group]]`. [`RefusalText`] is the report at the tenant.
struct GroupText {
    group: String,
    what: String,
    accepted: String,
}

/// Returns every reason why the tenants with terms on a device do not fit there, in words.
pub(crate) fn find_refusal_texts(
    device: &str,
    described: Option<&DevicePlan>,
    there: &[(&TenantPlan, &TermsPlan)],
) -> Vec<RefusalText> {
    let capacity = DeviceCapacity {
        memory: described.and_then(|described| described.memory),
        overcommit: described.map_or(1000, |described| described.overcommit),
    };
    let asks: Vec<TenantAsk> = there.iter().map(|(_, terms)| TenantAsk::from(*terms)).collect();
    let refusals = find_refusals(&capacity, &asks);
    let mut texts: Vec<RefusalText> =
        refusals.iter().map(|refusal| refusal_text(refusal, device, &capacity, there)).collect();
    for limit in described.iter().flat_map(|described| &described.group_limits) {
        let own: Vec<usize> = (0..there.len()).filter(|at| limit.has_tenant(there[*at].0)).collect();
        let own_asks: Vec<TenantAsk> = own.iter().map(|at| asks[*at]).collect();
        let refusals = find_group_refusals(limit, capacity.memory, &own_asks);
        texts.extend(refusals.iter().map(|refusal| group_refusal_text(refusal, device, limit, there, &own)));
    }
    texts
}

/// Puts a refusal into words, given the tenants with terms on the device.
fn refusal_text(
    refusal: &AdmissionRefusal,
    device: &str,
    capacity: &DeviceCapacity,
    there: &[(&TenantPlan, &TermsPlan)],
) -> RefusalText {
    let tenants = (0..there.len()).collect();
    match *refusal {
        AdmissionRefusal::Alone { at } => {
            let total = capacity.memory.unwrap_or_default();
            let what = format!("is more than device {device} has for tenant {}", there[at].0.name);
            let accepted = format!("at most {total}");
            RefusalText { at: Some(at), key: "memory_limit", what, accepted, tenants: vec![at], group: None }
        }
        AdmissionRefusal::FloorAboveCeiling { at } => {
            let (tenant, terms) = there[at];
            let ceiling = terms.ceiling.unwrap_or(Share::WHOLE_DEVICE);
            let what = format!("is more than the sm_limit of tenant {} on device {device}", tenant.name);
            let accepted = format!("at most {ceiling}");
            RefusalText { at: Some(at), key: "sm_request", what, accepted, tenants: vec![at], group: None }
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
            RefusalText { at: Some(at), key: "memory_limit", what, accepted, tenants, group: None }
        }
        AdmissionRefusal::Floors { at, asked } => {
            let all = list_asks(there, |terms| terms.floor.map_or("none".to_owned(), |floor| floor.to_string()));
            let what = format!("brings the requests on device {device} to {} % ({all})", format_tenths(asked));
            let accepted = "at most 100 % together".into();
            RefusalText { at: Some(at), key: "sm_request", what, accepted, tenants, group: None }
        }
    }
}

/// Puts a refusal of a group's limit into words. `own` are the indexes of the group's tenants on the device.
fn group_refusal_text(
    refusal: &GroupRefusal,
    device: &str,
    limit: &GroupLimit,
    there: &[(&TenantPlan, &TermsPlan)],
    own: &[usize],
) -> RefusalText {
    let group = &limit.group;
    let members: Vec<(&TenantPlan, &TermsPlan)> = own.iter().map(|at| there[*at]).collect();
    let text = |at: usize, key, what, accepted, of_group: (String, String)| RefusalText {
        at: Some(own[at]),
        key,
        what,
        accepted,
        tenants: own.to_vec(),
        group: Some(GroupText { group: group.clone(), what: of_group.0, accepted: of_group.1 }),
    };
    match *refusal {
        GroupRefusal::UnknownSize => {
            let what = format!("is a part of device {device}, whose size is not known");
            let accepted = "bytes or a number with a unit, or [[device]] with its memory";
            let of_group = GroupText { group: group.clone(), what: what.clone(), accepted: accepted.to_owned() };
            let (what, accepted) = (format!("of group {group:?} {what}"), accepted.to_owned());
            RefusalText { at: None, key: "memory_limit", what, accepted, tenants: own.to_vec(), group: Some(of_group) }
        }
        GroupRefusal::Unlimited { at, most } => {
            let tenant = &members[at].0.name;
            let what = format!(
                "leaves tenant {tenant} without a memory limit on device {device}, and the memory_limit of its group \
                 {group:?} is {most}"
            );
            let accepted = format!("a memory_limit of the tenant; those of the group may add up to {most}");
            let of_group = format!("needs a memory limit of each tenant, and {tenant} has none on device {device}");
            let change = format!("a memory_limit of tenant {tenant}, or \"unlimited\"");
            RefusalText { tenants: vec![own[at]], ..text(at, "memory_limit", what, accepted, (of_group, change)) }
        }
        GroupRefusal::Memory { at, asked, most } => {
            let all = list_asks(&members, |terms| terms.memory.map_or("none".to_owned(), |limit| limit.to_string()));
            let asked = size(asked);
            let what = format!(
                "brings the memory limits of group {group:?} on device {device} to {asked} ({all}), and the group's \
                 memory_limit is {most}"
            );
            let accepted = format!("at most {most} together, or a larger memory_limit of the group");
            let of_group = format!("is less than the {asked} of the group's tenants on device {device} ({all})");
            text(at, "memory_limit", what, accepted, (of_group, format!("at least {asked}, or less for the tenants")))
        }
        GroupRefusal::Ceilings { at, asked, most } => {
            let all = list_asks(&members, |terms| {
                let counted = TenantAsk::from(terms).counted_ceiling();
                if terms.ceiling.is_none() { format!("{counted} without a limit") } else { counted.to_string() }
            });
            let total = format_tenths(asked);
            let what = format!(
                "brings the sm_limits of group {group:?} on device {device} to {total} % ({all}), and the group's \
                 sm_limit is {most}"
            );
            let larger = if most.is_all() { "sm_limit = \"unlimited\" for" } else { "a larger sm_limit of" };
            let accepted = format!("at most {most} together, or {larger} the group");
            let of_group = format!("is less than the {total} % of the group's tenants on device {device} ({all})");
            let is_share = asked <= Share::WHOLE_DEVICE.as_permille().into();
            let larger = if is_share { format!("at least {total} %") } else { "\"unlimited\"".to_owned() };
            text(at, "sm_limit", what, accepted, (of_group, format!("{larger}, or less for the tenants")))
        }
    }
}

/// Reports a refusal at the tenant's place in the file, and at the group's if the group's limit is the reason.
fn report_refusal(raw: &RawFile, text: &RefusalText, there: &[(&PlacedTenant, usize)], problems: &mut ProblemList<'_>) {
    let own = text.at.map(|at| {
        let (tenant, index) = there[at];
        let TermsPlaces { memory, floor, ceiling } = &tenant.origins[index].places;
        let word = match text.key {
            "memory_limit" => memory,
            "sm_limit" => ceiling,
            _ => floor,
        };
        // If the value is not written anywhere, report it at the tenant's name.
        word.as_ref().map_or((tenant.place, "tenant.name".to_owned()), |word| (word.place, word.key.clone()))
    });
    let group = text.group.as_ref().and_then(|of_group| {
        let group = raw.groups.iter().find(|it| it.name.as_ref().is_some_and(|name| name.value == of_group.group))?;
        let memory = group.memory_limit.as_ref().map(|at| at.place);
        let place = if text.key == "sm_limit" { group.sm_limit.as_ref().map(|at| at.place) } else { memory };
        Some((place?, of_group))
    });
    if let Some((place, of_group)) = group {
        let line = |(place, _): &(TextRange, String)| format!(", in line {}", problems.line_of(*place));
        let line = own.as_ref().map_or_else(String::new, line);
        let (key, what) = (format!("group.{}", text.key), format!("{}{line}", of_group.what));
        problems.wrong_value(place, key, what, &of_group.accepted);
    }
    if let Some((place, key)) = own {
        let line = group.map_or_else(String::new, |(place, _)| format!(", in line {}", problems.line_of(place)));
        problems.wrong_value(place, key, format!("{}{line}", text.what), &text.accepted);
    }
}

/// Lists the tenants of a device, each with its own amount.
fn list_asks(there: &[(&TenantPlan, &TermsPlan)], of: impl Fn(&TermsPlan) -> String) -> String {
    let each = |(tenant, terms): &(&TenantPlan, &TermsPlan)| format!("{} {}", tenant.name, of(terms));
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
