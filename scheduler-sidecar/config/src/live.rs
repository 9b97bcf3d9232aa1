//! Changes one tenant's terms while the daemon serves: returns the changed tenant, or the reason why nothing changes.
//!
//! The check is the same as for a file ([`super::admit`]): a live promise must fit next to all other promises. Pure
//! functions; the daemon's reactor applies the result. [`crate::change`] defines how a change is written.

use vgpu_core::units::uuid;

use super::admit::TenantAsk;
use super::plan::{DevicePlan, GroupLimit, TenantPlan, TermsPlan};
use super::resolve::admission::{RefusalText, find_refusal_texts};
use super::suggest::nearest_word;
use crate::change::TermsChange;

/// Most names that a message lists.
const MAX_NAMES_LISTED: usize = 20;

/// Result of changing a tenant while the daemon runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveChange {
    /// The tenant with the change applied.
    pub tenant: TenantPlan,
    /// Changed keys that belong to the tenant as a whole.
    pub whole: Vec<&'static str>,
    /// Changed keys for each device, in the order of the tenant's devices; unchanged devices are left out.
    pub what: Vec<(String, Vec<&'static str>)>,
}

/// Returns the tenant with that name.
///
/// # Errors
/// A message: no tenant has that name, the closest name if there is one, and the known names.
pub fn find_tenant<'p>(tenants: &'p [TenantPlan], name: &str) -> Result<&'p TenantPlan, String> {
    tenants
        .iter()
        .find(|tenant| tenant.name == name)
        .ok_or_else(|| unknown_name("tenant", name, tenants.iter().map(|tenant| tenant.name.as_str())))
}

/// Words for a name that is not known: the nearest known one, and the known names.
#[must_use]
pub fn unknown_name<'k>(kind: &str, name: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    let meant = nearest_word(name, known.clone()).map_or(String::new(), |meant| format!(" (did you mean {meant:?}?)"));
    let mut all = known.clone().take(MAX_NAMES_LISTED).collect::<Vec<_>>().join(", ");
    if known.count() > MAX_NAMES_LISTED {
        all.push_str(", ...");
    }
    let name = super::problem::escape_value(name);
    format!("there is no {kind} {name:?}{meant}; accepted: {all}")
}

/// Returns the tenant with the change applied, on one of its devices or on all.
///
/// # Errors
/// A message: there is no such tenant or device, or the change would not fit next to the other tenants; with the
/// accepted values.
pub fn apply_change(
    devices: &[DevicePlan],
    tenants: &[TenantPlan],
    name: &str,
    device: Option<&str>,
    change: &TermsChange,
) -> Result<LiveChange, String> {
    let before = find_tenant(tenants, name)?;
    let only = device.map(|device| device_of(devices, before, device)).transpose()?;
    if only.is_some() && (change.mode.is_some() || change.strict.is_some()) {
        return Err("mode and strict are the tenant's, on all its devices; accepted: them without a device".into());
    }
    let mut after = before.clone();
    (after.mode, after.strict) = (change.mode.unwrap_or(before.mode), change.strict.unwrap_or(before.strict));
    let whole = [("mode", after.mode == before.mode), ("strict", after.strict == before.strict)];
    let whole = whole.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect();
    let mut what = Vec::new();
    for (now, was) in after.terms.iter_mut().zip(&before.terms) {
        if only.as_ref().is_some_and(|only| *only != was.device) {
            continue;
        }
        let described = devices.iter().find(|device| device.name() == was.device);
        change_terms(now, described, change)?;
        let keys = differing_keys(was, now);
        if !keys.is_empty() {
            what.push((was.device.clone(), keys));
        }
    }
    for (device, _) in &what {
        let described = devices.iter().find(|described| described.name() == *device);
        check_fit(device, described, tenants, &after)?;
    }
    Ok(LiveChange { tenant: after, whole, what })
}

/// Finds a tenant's device by number or UUID, and returns its name as the tenant's terms use it.
///
/// # Errors
/// A message: the tenant has no such device, with its devices.
pub fn device_of(devices: &[DevicePlan], tenant: &TenantPlan, written: &str) -> Result<String, String> {
    let by_uuid = devices
        .iter()
        .find(|device| device.uuid.as_deref().is_some_and(|here| uuid::is_same_device(here, written)))
        .map(DevicePlan::name);
    let name = by_uuid.unwrap_or_else(|| written.to_owned());
    match tenant.terms.iter().any(|terms| terms.device == name) {
        true => Ok(name),
        false => {
            let is_part = |device: &&DevicePlan| {
                let number = device.index.is_some_and(|index| index.to_string() == written);
                device.parent.as_deref().is_some_and(|parent| number || uuid::is_same_device(parent, written))
            };
            let instances: Vec<String> = devices.iter().filter(is_part).map(DevicePlan::name).collect();
            if !instances.is_empty() {
                return Err(format!(
                    "device {written} has MIG enabled, and each of its instances has its own terms; accepted: one of \
                     {}",
                    instances.join(", ")
                ));
            }
            let kind = format!("device of tenant {}:", tenant.name);
            Err(unknown_name(&kind, written, tenant.terms.iter().map(|terms| terms.device.as_str())))
        }
    }
}

/// Applies the change to a tenant's terms on one device.
///
/// # Errors
/// A message: the memory limit is a part of the device, and the device's size is not known.
pub fn change_terms(terms: &mut TermsPlan, device: Option<&DevicePlan>, change: &TermsChange) -> Result<(), String> {
    if let Some(amount) = change.memory {
        terms.memory = amount.bytes_on(device.and_then(|device| device.memory)).ok_or_else(|| {
            format!(
                "memory_limit is a part of device {}, whose size is not known; accepted: bytes, or a number with a unit \
                 like 1.5GiB, or unlimited",
                terms.device
            )
        })?;
    }
    if let Some(ceiling) = change.ceiling {
        terms.ceiling = ceiling.filter(|ceiling| !ceiling.is_all());
    }
    terms.floor = change.floor.unwrap_or(terms.floor);
    terms.weight = change.weight.unwrap_or(terms.weight);
    terms.class = change.class.unwrap_or(terms.class);
    terms.quantum = change.quantum.unwrap_or(terms.quantum);
    Ok(())
}

/// Returns the keys in which a tenant's terms on a device differ after a change.
#[must_use]
pub fn differing_keys(was: &TermsPlan, now: &TermsPlan) -> Vec<&'static str> {
    let keys = [
        ("memory_limit", was.memory == now.memory),
        ("sm_limit", was.ceiling == now.ceiling),
        ("sm_request", was.floor == now.floor),
        ("weight", was.weight == now.weight),
        ("class", was.class == now.class),
        ("quantum", was.quantum == now.quantum),
    ];
    keys.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
}

/// Checks that all tenants of the device fit on it, with `after` in place of the tenant of that name, or as one more.
/// A misfit in which it has no part, of another group, refuses nothing.
fn check_fit(
    device: &str,
    described: Option<&DevicePlan>,
    tenants: &[TenantPlan],
    after: &TenantPlan,
) -> Result<(), String> {
    let is_new = tenants.iter().all(|tenant| tenant.name != after.name);
    let there = tenants.iter().map(|tenant| if tenant.name == after.name { after } else { tenant });
    let misfits = misfits_on(device, described, there.chain(is_new.then_some(after)));
    let own = misfits.into_iter().filter(|misfit| misfit.is_of(&after.name));
    let told: Vec<String> = own.map(|misfit| misfit.words).collect();
    if told.is_empty() { Ok(()) } else { Err(format!("{}; nothing was changed", told.join("; and "))) }
}

/// True if the tenant asks for more on a device after the change: more memory, a larger floor, or a larger ceiling
/// where its group limits ceilings.
#[must_use]
pub fn asks_for_more(devices: &[DevicePlan], before: &TenantPlan, after: &TenantPlan) -> bool {
    let is_limited = |limit: &GroupLimit| limit.ceilings.is_some() && limit.has_tenant(after);
    let counts_more = |was: &TermsPlan, now: &TermsPlan| {
        let device = devices.iter().find(|device| device.name() == now.device);
        let counted = |terms| TenantAsk::from(terms).counted_ceiling();
        device.is_some_and(|device| device.group_limits.iter().any(is_limited)) && counted(now) > counted(was)
    };
    before.is_raised_by(after) || before.terms.iter().zip(&after.terms).any(|(was, now)| counts_more(was, now))
}

/// Checks that the tenant fits on each of its devices next to `tenants`; one of the same name is replaced by it.
///
/// # Errors
/// A message for each promise that could not be kept, with the accepted values.
pub fn check_tenant_fits(devices: &[DevicePlan], tenants: &[TenantPlan], tenant: &TenantPlan) -> Result<(), String> {
    tenant.terms.iter().try_for_each(|terms| {
        let described = devices.iter().find(|device| device.name() == terms.device);
        check_fit(&terms.device, described, tenants, tenant)
    })
}

/// Returns a message for each promise that the devices cannot keep for these tenants; empty if everything fits.
#[must_use]
pub fn find_misfits(devices: &[DevicePlan], tenants: &[TenantPlan]) -> Vec<String> {
    let misfits = devices.iter().flat_map(|device| find_device_misfits(device, tenants));
    misfits.map(|misfit| misfit.words).collect()
}

/// A promise that a device or a group's limit on it cannot keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Key whose values ask for too much: `memory_limit`, `sm_request` or `sm_limit`.
    pub key: &'static str,
    /// Names of the tenants whose values these are.
    pub tenants: Vec<String>,
    /// Why it cannot be kept, with what would be accepted.
    pub words: String,
}

impl Misfit {
    /// True if a value of the tenant is one of those that ask for too much.
    #[must_use]
    pub fn is_of(&self, tenant: &str) -> bool {
        self.tenants.iter().any(|name| name == tenant)
    }
}

/// Returns every promise to these tenants that the device cannot keep.
#[must_use]
pub fn find_device_misfits(device: &DevicePlan, tenants: &[TenantPlan]) -> Vec<Misfit> {
    misfits_on(&device.name(), Some(device), tenants.iter())
}

fn misfits_on<'p>(
    device: &str,
    described: Option<&DevicePlan>,
    tenants: impl Iterator<Item = &'p TenantPlan>,
) -> Vec<Misfit> {
    let on = |tenant: &'p TenantPlan| Some((tenant, tenant.terms.iter().find(|terms| terms.device == device)?));
    let there: Vec<(&TenantPlan, &TermsPlan)> = tenants.filter_map(on).collect();
    let misfit = |text: RefusalText| Misfit {
        key: text.key,
        tenants: text.tenants.iter().map(|at| there[*at].0.name.clone()).collect(),
        words: format!("{} {}; accepted: {}", text.key, text.what, text.accepted),
    };
    find_refusal_texts(device, described, &there).into_iter().map(misfit).collect()
}

#[cfg(test)]
mod tests {
    use vgpu_core::limits::Mode;
    use vgpu_core::time::arbiter::Class;
    use vgpu_core::units::bytes::Bytes;

    use super::*;
    use crate as config;
    use crate::change::WrittenChange;
    use crate::inventory::{FoundDevice, Inventory};
    use crate::resolve::Surroundings;

    const FILE: &str = "
[[device]]
id = 0
memory = \"80GiB\"
[[device]]
id = 1
memory = \"40GiB\"
overcommit = 1.5
[[tenant]]
name = \"chat\"
memory_limit = \"30GiB\"
sm_request = 40
sm_limit = 60
[[tenant]]
name = \"train\"
memory_limit = \"25%\"
sm_request = 50
";

    fn set(name: &str, device: Option<&str>, words: WrittenChange) -> Result<LiveChange, String> {
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Default::default() };
        let plan = config::make_plan(FILE, &around).unwrap();
        apply_change(&plan.devices, &plan.tenants, name, device, &words.read(str::to_owned).unwrap())
    }

    fn memory(size: &str) -> WrittenChange {
        WrittenChange { memory_limit: Some(size.into()), ..WrittenChange::default() }
    }

    #[test]
    fn a_change_is_made_on_one_device_or_on_all_and_says_what_is_different() {
        let all = set("chat", None, memory("50%")).unwrap();
        let limits: Vec<_> = all.tenant.terms.iter().map(|terms| terms.memory.unwrap().get() >> 30).collect();
        assert_eq!(limits, [40, 20]);
        assert_eq!(all.what, [("0".into(), vec!["memory_limit"]), ("1".into(), vec!["memory_limit"])]);
        let words = WrittenChange { sm_limit: Some("100".into()), class: Some("latency".into()), ..memory("30GiB") };
        let one = set("chat", Some("1"), words).unwrap();
        assert_eq!(one.what, [("1".into(), vec!["sm_limit", "class"])], "the memory limit was so already");
        assert_eq!((one.tenant.terms[1].ceiling, one.tenant.terms[1].class), (None, Class::Latency));
        assert_eq!(one.tenant.terms[0].class, Class::Normal);
    }

    #[test]
    fn what_would_not_fit_beside_the_others_is_refused_with_what_would() {
        for (name, device, words, said) in [
            (
                "chat",
                None,
                memory("61GiB"),
                "brings the memory limits on device 0 to 81 GiB (chat 61 GiB, train 20 GiB), and 80 GiB may be promised; accepted: at most 80 GiB together, or overcommit = 1.013",
            ),
            (
                "chat",
                Some("1"),
                memory("41GiB"),
                "memory_limit is more than device 1 has for tenant chat; accepted: at most 40 GiB",
            ),
            ("train", Some("0"), memory("unlimited"), "the whole device"),
            (
                "chat",
                None,
                WrittenChange { sm_request: Some("51".into()), ..WrittenChange::default() },
                "brings the requests on device 0 to 101 % (chat 51 %, train 50 %); accepted: at most 100 % together",
            ),
            (
                "chat",
                None,
                WrittenChange { sm_limit: Some("39".into()), ..WrittenChange::default() },
                "sm_request is more than the sm_limit of tenant chat on device 0; accepted: at most 39 %",
            ),
        ] {
            let refused = set(name, device, words).unwrap_err();
            assert!(refused.contains(said) && refused.ends_with("nothing was changed"), "{refused}");
        }
        // The other device has a higher overcommit, so the same limit fits there.
        assert!(set("chat", Some("1"), memory("40GiB")).is_ok());
    }

    #[test]
    fn a_device_with_mig_enabled_is_refused_by_number_and_uuid_with_its_instances() {
        let found = |index, parent: Option<&str>, uuid: &str| FoundDevice {
            index,
            parent: parent.map(str::to_owned),
            uuid: uuid.into(),
            memory: Some(Bytes(40 << 30)),
            model: None,
        };
        let all =
            vec![found(0, None, "GPU-0a"), found(1, Some("GPU-1a"), "MIG-2a"), found(1, Some("GPU-1a"), "MIG-3a")];
        let around = Surroundings {
            run_dir: "/run/vgpu".into(),
            inventory: Some(Inventory { found: all, silent: Vec::new() }),
            ..Default::default()
        };
        let plan = config::make_plan("[[tenant]]\nname = \"chat\"\nmemory_limit = \"1GiB\"\n", &around).unwrap();
        let words = memory("2GiB").read(str::to_owned).unwrap();
        let set = |device| apply_change(&plan.devices, &plan.tenants, "chat", Some(device), &words);
        for device in ["1", "GPU-1A"] {
            let refused = set(device).unwrap_err();
            let said = format!("device {device} has MIG enabled, and each of its instances has its own terms; ");
            assert!(refused.contains(&said) && refused.contains("accepted: one of MIG-2a, MIG-3a"), "{refused}");
        }
        assert_eq!(set("MIG-3a").unwrap().what.len(), 1);
        assert!(set("2").unwrap_err().contains("device of tenant chat"), "no such device");
    }

    #[test]
    fn mode_and_strict_are_the_tenants_and_change_on_all_its_devices() {
        let words =
            || WrittenChange { mode: Some("observe".into()), strict: Some("true".into()), ..WrittenChange::default() };
        let changed = set("chat", None, words()).unwrap();
        assert_eq!((changed.tenant.mode, changed.tenant.strict), (Mode::Observe, true));
        assert_eq!((changed.whole, changed.what.len()), (vec!["mode", "strict"], 0));
        let same =
            set("chat", None, WrittenChange { mode: Some("enforce".into()), ..WrittenChange::default() }).unwrap();
        assert!(same.whole.is_empty());
        assert!(set("chat", Some("0"), words()).unwrap_err().contains("without a device"));
    }

    #[test]
    fn a_name_that_is_not_known_is_answered_with_the_one_that_is_near() {
        let words = set("chatt", None, memory("1GiB")).unwrap_err();
        assert_eq!(words, "there is no tenant \"chatt\" (did you mean \"chat\"?); accepted: chat, train");
        let words = set("chat", Some("GPU-1"), memory("1GiB")).unwrap_err();
        assert!(
            words.starts_with("there is no device of tenant chat: \"GPU-1\"") && words.ends_with("accepted: 0, 1"),
            "{words}"
        );
    }
}
