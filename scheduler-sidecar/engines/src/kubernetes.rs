//! A container of Kubernetes, as the section of a tenant: annotations of its pod, and variables that schedulers set.
//!
//! One rule for everybody who asks: the NRI plugin that makes tenants, `vgpu doctor`, and the audits of running
//! containers (`vgpu-k8s audit`, and vgpud's of processes at the devices).

use std::collections::BTreeMap;
use std::collections::HashMap;

use vgpu_config::added::TenantSection;
use vgpu_config::bearer::POD_NAME_LABELS;
use vgpu_config::problem::escape_value;
use vgpu_core::limits::RawLimits;

/// Beginning of the annotations of this project; the container's name and a key of [`OWN_KEYS`] follow.
pub const OWN_PREFIX: &str = "vgpu.internal/container.";
/// Beginning of the annotations of NVIDIA's GPU fractioning, which KAI writes.
pub const FRACTIONING_PREFIX: &str = "nvidia.com/container.";
/// Keys of this project's annotations.
pub const OWN_KEYS: [&str; 9] =
    ["class", "devices", "gang", "gpu", "memory-limit", "sm-limit", "sm-request", "template", "weight"];
/// Label with the identifier of the container that a tenant was made for.
pub const CONTAINER_LABEL: &str = "nri";

/// Variables that limit memory, so that `GPU_PORTION` says nothing new.
const LIMIT_VARIABLES: [&str; 4] =
    ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "NVIDIA_GPU_MEMORY_LIMIT", "VGPU_MEMORY_LIMIT"];

/// Variables that limit device time.
const TIME_VARIABLES: [&str; 3] = ["CUDA_DEVICE_SM_LIMIT", "VGPU_SM_LIMIT", "VGPU_SM_REQUEST"];
/// Variable of HAMi that may switch its limit of device time off.
const CEILING_POLICY: &str = "GPU_CORE_UTILIZATION_POLICY";

/// Beginnings of vgpu-manager's variables that limit a container by its own library, and not by this one.
const MANAGER_LIMITS: [&str; 2] = ["CUDA_MEM_LIMIT_", "CUDA_CORE_LIMIT_"];

const BYTES_PER_MIB: u128 = 1 << 20;

/// Use of KAI's `GPU_PORTION` in a container that no variable limits. KAI then sets no limit itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortionRule {
    /// It informs the program only.
    Ignore,
    /// It is a memory limit, in parts of the device.
    Limit,
    /// The container is not started.
    Refuse,
}

/// The library that is preloaded into a running container's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreloadedLibrary {
    /// None: nothing reads the variables.
    Missing,
    /// This project's, or HAMi's: it reads all variables but those of vgpu-manager.
    Ours,
    /// vgpu-manager's: it reads its own variables only.
    Managers,
}

/// A container, as far as it says what it may use.
#[derive(Debug, Clone, Copy)]
pub struct ContainerFacts<'a> {
    /// Name of the container in its pod.
    pub name: &'a str,
    /// Annotations of the pod.
    pub annotations: &'a HashMap<String, String>,
    /// Variables, each as `NAME=VALUE`.
    pub variables: &'a [String],
    /// True if the container has a tenant already: its directory is mounted. A variable alone does not say so, because
    /// anybody can set one.
    pub has_tenant: bool,
}

impl ContainerFacts<'_> {
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().rev().find_map(|variable| variable.strip_prefix(name)?.strip_prefix('='))
    }

    /// True if a variable with this name, or with a device's number behind it, is set.
    fn has_limit_variable(&self, name: &str) -> bool {
        self.variables.iter().any(|variable| {
            let rest = variable.strip_prefix(name);
            let number = |rest: &str| rest.split('=').next().is_some_and(|number| number.parse::<u16>().is_ok());
            rest.is_some_and(|rest| rest.starts_with('=') || rest.strip_prefix('_').is_some_and(number))
        })
    }
}

/// Returns the tenant that a container asks for, without a name. `None`: it asks for none, or it has one.
///
/// # Errors
/// A message: an annotation or a variable is not accepted. The container must not start, since it would have no limit.
pub fn read_container(facts: ContainerFacts<'_>, rule: PortionRule) -> Result<Option<TenantSection>, String> {
    if facts.has_tenant {
        return Ok(None);
    }
    let devices = || read_devices(&facts);
    if let Some(section) = read_own(&facts)? {
        let named = !section.devices.is_empty();
        return Ok(Some(if named { section } else { TenantSection { devices: devices(), ..section } }));
    }
    if let Some(mebibytes) = read_fractioning(&facts)? {
        let memory_limit = Some(format!("{mebibytes}MiB"));
        return Ok(Some(TenantSection { memory_limit, devices: devices(), ..TenantSection::default() }));
    }
    let is_limited = LIMIT_VARIABLES.iter().any(|name| facts.has_limit_variable(name));
    match facts.variable("GPU_PORTION") {
        Some(portion) if !is_limited && rule != PortionRule::Ignore => {
            let Some(percent) = read_portion(portion)? else { return Ok(None) };
            if rule == PortionRule::Refuse {
                return Err(format!(
                    "GPU_PORTION={portion} and no memory limit: KAI found no nvidia.com/gpu.memory on the node; \
                     accepted: CUDA_DEVICE_MEMORY_LIMIT or an annotation beside it, or --gpu-portion limit"
                ));
            }
            let memory_limit = Some(percent);
            Ok(Some(TenantSection { memory_limit, devices: devices(), ..TenantSection::default() }))
        }
        _ => Ok(None),
    }
}

/// Names the limit that a running container asks for and that nothing of this project keeps. `None`: it asks for none,
/// or has it. `rule`: that of the NRI plugin.
#[must_use]
pub fn missing_limit(facts: ContainerFacts<'_>, rule: PortionRule, library: PreloadedLibrary) -> Option<String> {
    match read_container(facts, rule) {
        Ok(Some(section)) => Some(section_words(&section)),
        Ok(None) if facts.has_tenant => None,
        Ok(None) => {
            let asked = facts.variables.iter().filter(|variable| asks_for_limit(&facts, variable));
            let asked: Vec<&String> = asked.collect();
            let is_managers = |variable: &str| is_managers_limit(variable.split('=').next().unwrap_or_default());
            let is_read = |variable: &str| match library {
                PreloadedLibrary::Missing => false,
                PreloadedLibrary::Ours => !is_managers(variable),
                PreloadedLibrary::Managers => is_managers(variable),
            };
            // A limit that the library reads holds next to one of the same quantity that it does not read.
            let is_kept = |variable: &str| {
                let is_same = |other: &&&String| limits_time(other.as_str()) == limits_time(variable);
                asked.iter().filter(is_same).any(|other| is_read(other))
            };
            let unread = asked.iter().filter(|variable| !is_kept(variable));
            let words = unread.map(|variable| escape_value(variable)).collect::<Vec<_>>();
            (!words.is_empty()).then(|| words.join(", "))
        }
        // A variable's value may hold anything.
        Err(why) => Some(why.replace(char::is_control, "?")),
    }
}

/// True if this variable, `NAME=VALUE`, limits device time; false: memory.
fn limits_time(variable: &str) -> bool {
    TIME_VARIABLES.iter().chain(&MANAGER_LIMITS[1..]).any(|begin| variable.starts_with(begin))
}

/// True if this variable of a container, `NAME=VALUE`, sets a limit. A limit variable with an invalid value counts too,
/// and one of vgpu-manager with any value.
fn asks_for_limit(facts: &ContainerFacts<'_>, variable: &str) -> bool {
    let Some((name, value)) = variable.split_once('=') else { return false };
    let general = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches('_');
    let is_limit = |known: &&str| [name, general].contains(known);
    if !LIMIT_VARIABLES.iter().chain(&TIME_VARIABLES).any(is_limit) {
        return is_managers_limit(name);
    }
    // The library's own reader: a value may say that nothing is limited.
    let policy = facts.variable(CEILING_POLICY).map(|word| (CEILING_POLICY, word));
    let limits = RawLimits::from_vars(policy.into_iter().chain([(name, value)]));
    limits.map_or(true, |limits| limits.limits_anything())
}

/// The keys of a section as its annotations have them.
fn section_words(section: &TenantSection) -> String {
    let devices = (!section.devices.is_empty()).then(|| section.devices.join(","));
    let keys = [
        ("gpu", &section.gpu),
        ("memory-limit", &section.memory_limit),
        ("sm-limit", &section.sm_limit),
        ("sm-request", &section.sm_request),
        ("weight", &section.weight),
        ("class", &section.class),
        ("template", &section.template),
        ("gang", &section.gang),
        ("devices", &devices),
    ];
    let set = keys.iter().filter_map(|(key, value)| Some(format!("{key} {}", escape_value(value.as_ref()?))));
    set.collect::<Vec<_>>().join(", ")
}

/// True if the variable is a limit of vgpu-manager, which this project's library does not read.
#[must_use]
pub fn is_managers_limit(name: &str) -> bool {
    MANAGER_LIMITS.iter().any(|begin| name.strip_prefix(begin).is_some_and(|number| number.parse::<u16>().is_ok()))
}

/// Reads this project's annotations for the container.
fn read_own(facts: &ContainerFacts<'_>) -> Result<Option<TenantSection>, String> {
    let prefix = format!("{OWN_PREFIX}{}.", facts.name);
    let mut section = None;
    let mut own: Vec<_> = facts.annotations.iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
    own.sort();
    for (annotation, value) in own {
        let section = section.get_or_insert_with(TenantSection::default);
        let value = value.trim().to_owned();
        let place = match &annotation[prefix.len()..] {
            "gpu" => &mut section.gpu,
            "memory-limit" => &mut section.memory_limit,
            "sm-limit" => &mut section.sm_limit,
            "sm-request" => &mut section.sm_request,
            "weight" => &mut section.weight,
            "class" => &mut section.class,
            "template" => &mut section.template,
            "gang" => &mut section.gang,
            "devices" => {
                section.devices = list_items(&value);
                continue;
            }
            _ => {
                return Err(format!(
                    "{annotation} is no annotation of vgpu; accepted: {prefix}KEY with KEY one of {}",
                    OWN_KEYS.join(", ")
                ));
            }
        };
        *place = Some(value);
    }
    Ok(section)
}

/// Reads the memory in MiB that the annotations of GPU fractioning give the container: the limit, else the request.
fn read_fractioning(facts: &ContainerFacts<'_>) -> Result<Option<u128>, String> {
    for end in ["limit", "request"] {
        let annotation = format!("{FRACTIONING_PREFIX}{}.gpu-memory.{end}", facts.name);
        if let Some(value) = facts.annotations.get(&annotation) {
            let forms = "a quantity of Kubernetes of at least 1Mi, like 4Gi";
            let mebibytes = read_quantity(value.trim()).map(|bytes| bytes.div_ceil(BYTES_PER_MIB));
            return match mebibytes.filter(|_| read_quantity(value.trim()) >= Some(BYTES_PER_MIB)) {
                Some(mebibytes) => Ok(Some(mebibytes)),
                None => Err(format!("{annotation} = {value:?} is not accepted; accepted: {forms}")),
            };
        }
    }
    Ok(None)
}

/// Devices by UUID that the scheduler chose: of the annotation, else of the variable. Empty: it names none.
fn read_devices(facts: &ContainerFacts<'_>) -> Vec<String> {
    let annotation = facts.annotations.get(&format!("{FRACTIONING_PREFIX}{}.gpus.devices", facts.name));
    let text = annotation.map(String::as_str).or_else(|| facts.variable("NVIDIA_VISIBLE_DEVICES")).unwrap_or_default();
    // The variable may hold names of CDI: KIND=UUID.
    let names = list_items(text).into_iter().map(|name| name.rsplit('=').next().unwrap_or_default().to_owned());
    let names: Vec<String> = names.collect();
    let is_uuid = |name: &String| name.starts_with("GPU-") || name.starts_with("MIG-");
    if names.iter().all(is_uuid) { names } else { Vec::new() }
}

fn list_items(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Reads a quantity of Kubernetes as whole bytes, rounded up; `None`: it is none.
fn read_quantity(text: &str) -> Option<u128> {
    let digits = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u128 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u128.pow(2),
        "G" => 1000_u128.pow(3),
        "T" => 1000_u128.pow(4),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() || part.contains('.') || part.len() > 9 || whole.len() > 18 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let read = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u128>().ok() };
    let scaled = read(whole)?.checked_mul(scale)?.checked_add(read(part)?)?;
    Some(scaled.checked_mul(factor)?.div_ceil(scale))
}

/// Reads a part of a device as a percentage, rounded down to thousandths of a percent. `None`: the whole device.
fn read_portion(text: &str) -> Result<Option<String>, String> {
    let refused =
        || format!("GPU_PORTION={text} is no part of a device; accepted: a number above 0, at most 1, like 0.25");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if text.is_empty() || whole.len() > 1 || !is_number(whole) || !is_number(part) {
        return Err(refused());
    }
    let digits: String = part.chars().chain("00000".chars()).take(5).collect();
    let hundred_thousandths = digits.parse::<u32>().map_err(|_| refused())?;
    match (whole, hundred_thousandths) {
        ("1", _) if part.bytes().all(|digit| digit == b'0') => Ok(None),
        ("" | "0", 1..) => Ok(Some(format!("{}.{:03}%", hundred_thousandths / 1000, hundred_thousandths % 1000))),
        _ => Err(refused()),
    }
}

/// Returns the name of a container's tenant: as much of the pod's name as fits, and the beginning of the container's
/// identifier, because a container that starts again is another one.
#[must_use]
pub fn container_tenant_name(pod: &str, container_id: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    let pod: String = pod.chars().map(plain).skip_while(|letter| *letter == '.').take(48).collect();
    let id: String = container_id.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    format!("{pod}_{id}")
}

/// Labels of a container's tenant.
#[must_use]
pub fn container_labels(namespace: &str, pod: &str, container: &str, container_id: &str) -> BTreeMap<String, String> {
    let names = POD_NAME_LABELS.into_iter().zip([namespace, pod, container]);
    let labels = names.chain([(CONTAINER_LABEL, container_id)]).filter(|(_, value)| !value.is_empty());
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        annotations: &[(&str, &str)],
        variables: &[&str],
        rule: PortionRule,
    ) -> Result<Option<TenantSection>, String> {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let variables: Vec<String> = variables.iter().map(|variable| (*variable).to_owned()).collect();
        let has_tenant = false;
        read_container(
            ContainerFacts { name: "main", annotations: &annotations, variables: &variables, has_tenant },
            rule,
        )
    }

    fn memory(annotations: &[(&str, &str)], variables: &[&str]) -> Option<String> {
        read(annotations, variables, PortionRule::Limit).unwrap()?.memory_limit
    }

    const LIMIT: &str = "nvidia.com/container.main.gpu-memory.limit";
    const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";

    #[test]
    fn own_annotations_become_the_keys_of_a_section_and_come_before_the_schedulers() {
        let own = |key: &str| format!("vgpu.internal/container.main.{key}");
        let keys: Vec<String> = OWN_KEYS.iter().map(|key| own(key)).collect();
        let mut all: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "7")).collect();
        all.push((LIMIT, "4Gi"));
        let section = read(&all, &["NVIDIA_VISIBLE_DEVICES=GPU-1"], PortionRule::Limit).unwrap().unwrap();
        let seven = || Some("7".to_owned());
        let expected = TenantSection {
            class: seven(),
            devices: vec!["7".into()],
            gang: seven(),
            gpu: seven(),
            memory_limit: seven(),
            sm_limit: seven(),
            sm_request: seven(),
            template: seven(),
            weight: seven(),
            ..TenantSection::default()
        };
        assert_eq!(section, expected);
        let wrong = read(&[("vgpu.internal/container.main.memory", "1Gi")], &[], PortionRule::Limit).unwrap_err();
        assert!(wrong.contains("accepted: vgpu.internal/container.main.KEY with KEY one of class, "), "{wrong}");
        assert_eq!(read(&[("vgpu.internal/container.other.gpu", "1")], &[], PortionRule::Limit), Ok(None));
    }

    #[test]
    fn memory_of_gpu_fractioning_is_its_limit_or_its_request_in_whole_mebibytes() {
        for (annotations, mebibytes) in [
            (&[(LIMIT, "4Gi"), (REQUEST, "1Gi")][..], "4096MiB"),
            (&[(REQUEST, "1.5Gi")], "1536MiB"),
            (&[(LIMIT, "4096M")], "3907MiB"),
            (&[(LIMIT, "1048577")], "2MiB"),
            (&[(LIMIT, "2097152k")], "2000MiB"),
        ] {
            assert_eq!(memory(annotations, &[]).as_deref(), Some(mebibytes), "{annotations:?}");
        }
        for wrong in ["", "1", "1Ki", "4000m", "-1Gi", "1e9", "4Gb", "1.2.3Gi", "."] {
            let refused = read(&[(LIMIT, wrong)], &[], PortionRule::Ignore).unwrap_err();
            assert!(refused.contains("accepted: a quantity of Kubernetes"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_portion_is_a_limit_or_an_error_only_where_nothing_else_limits() {
        let portion = "GPU_PORTION=0.05";
        assert_eq!(memory(&[], &[portion]).as_deref(), Some("5.000%"));
        assert_eq!(memory(&[], &["GPU_PORTION=.333333"]).as_deref(), Some("33.333%"));
        assert_eq!(memory(&[], &["GPU_PORTION=1.0"]), None);
        assert_eq!(memory(&[(LIMIT, "1Gi")], &[portion]).as_deref(), Some("1024MiB"));
        for limit in [
            "CUDA_DEVICE_MEMORY_LIMIT=7188m",
            "CUDA_DEVICE_MEMORY_LIMIT_0=1g",
            "VGPU_MEMORY_LIMIT=1GiB",
            "NVIDIA_GPU_MEMORY_LIMIT=1024",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G",
        ] {
            assert_eq!(memory(&[], &[portion, limit]), None, "{limit}");
        }
        // A variable that only begins so limits nothing.
        assert!(memory(&[], &[portion, "CUDA_DEVICE_MEMORY_LIMIT_X=1"]).is_some());
        assert_eq!(read(&[], &[portion], PortionRule::Ignore), Ok(None));
        let refused = read(&[], &[portion], PortionRule::Refuse).unwrap_err();
        assert!(refused.contains("GPU_PORTION=0.05 and no memory limit"), "{refused}");
        for wrong in ["0", "0.0", "1.5", "2", "half", "", "-1", "0.000001"] {
            let refused = read(&[], &[&format!("GPU_PORTION={wrong}")], PortionRule::Limit).unwrap_err();
            assert!(refused.contains("accepted: a number above 0"), "{wrong}: {refused}");
        }
    }

    #[test]
    fn a_limit_that_a_container_asks_for_is_missing_unless_a_tenant_or_the_library_keeps_it() {
        use PreloadedLibrary::{Managers, Missing, Ours};
        let missing = |annotations: &[(&str, &str)], variables: &[&str], has_tenant, library| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            let variables: Vec<String> = variables.iter().map(|variable| (*variable).to_owned()).collect();
            let facts = ContainerFacts { name: "main", annotations: &annotations, variables: &variables, has_tenant };
            missing_limit(facts, PortionRule::Limit, library)
        };
        let own = ("vgpu.internal/container.main.sm-request", "30");
        for library in [Missing, Ours, Managers] {
            assert_eq!(missing(&[(LIMIT, "6Gi")], &[], false, library).as_deref(), Some("memory-limit 6144MiB"));
            assert_eq!(missing(&[own], &[], false, library).as_deref(), Some("sm-request 30"));
            assert_eq!(missing(&[(LIMIT, "6Gi")], &[], true, library), None);
            let portion = missing(&[], &["GPU_PORTION=0.05"], false, library);
            assert_eq!(portion.as_deref(), Some("memory-limit 5.000%"));
            assert_eq!(missing(&[], &["PATH=/bin"], false, library), None);
        }
        let variables = ["CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_MEM_LIMIT_0=1g", "CUDA_DEVICE_MEMORY_LIMIT_X=1"];
        let words = "CUDA_DEVICE_MEMORY_LIMIT_0=3000m, CUDA_MEM_LIMIT_0=1g";
        assert_eq!(missing(&[], &variables, false, Missing).as_deref(), Some(words));
        assert_eq!(missing(&[], &variables, false, Ours), None, "the library reads the first one");
        assert_eq!(missing(&[], &variables, true, Missing), None);
        // A limit of device time keeps none of memory, nor the other way.
        for (read, unread) in
            [("VGPU_SM_LIMIT=30", "CUDA_MEM_LIMIT_0=1g"), ("VGPU_MEMORY_LIMIT=1GiB", "CUDA_CORE_LIMIT_0=30")]
        {
            assert_eq!(missing(&[], &[read, unread], false, Ours).as_deref(), Some(unread));
            assert_eq!(missing(&[], &[read, unread], false, Managers).as_deref(), Some(read));
        }
        let managers = ["CUDA_MEM_LIMIT_0=1g"];
        assert_eq!(missing(&[], &managers, false, Ours).as_deref(), Some(managers[0]), "the library does not read it");
        assert_eq!(missing(&[], &managers, false, Managers), None, "vgpu-manager's own library reads it");
        for time in ["VGPU_SM_LIMIT=30", "VGPU_SM_REQUEST_0=20", "CUDA_DEVICE_SM_LIMIT=50"] {
            assert_eq!(missing(&[], &[time], false, Missing).as_deref(), Some(time));
            assert_eq!(missing(&[], &[time], false, Ours), None, "{time}");
            assert_eq!(missing(&[], &[time], false, Managers).as_deref(), Some(time));
        }
        for no_limit in ["CUDA_DEVICE_SM_LIMIT=0", "CUDA_DEVICE_SM_LIMIT=100", "CUDA_DEVICE_MEMORY_LIMIT_0=0"] {
            assert_eq!(missing(&[], &[no_limit], false, Missing), None, "{no_limit}");
        }
        let switched_off = ["CUDA_DEVICE_SM_LIMIT=50", "GPU_CORE_UTILIZATION_POLICY=disable"];
        assert_eq!(missing(&[], &switched_off, false, Missing), None);
        let refused = missing(&[(LIMIT, "much")], &[], false, Ours).unwrap();
        assert!(refused.contains("is not accepted"), "{refused}");
        let hostile = missing(&[], &["GPU_PORTION=\u{1b}[2J"], false, Missing).unwrap();
        assert!(hostile.contains("is no part of a device") && !hostile.contains('\u{1b}'), "{hostile}");
        let escaped = missing(&[], &["VGPU_MEMORY_LIMIT=\u{1b}[2J"], false, Missing).unwrap();
        assert!(!escaped.contains('\u{1b}'), "{escaped}");
    }

    #[test]
    fn a_portion_that_the_plugin_ignores_is_no_missing_limit_and_one_that_it_refuses_is_named_with_its_words() {
        let (annotations, variables) = (HashMap::new(), ["GPU_PORTION=0.05".to_owned()]);
        let facts =
            ContainerFacts { name: "main", annotations: &annotations, variables: &variables, has_tenant: false };
        let missing = |rule| missing_limit(facts, rule, PreloadedLibrary::Missing);
        assert_eq!(missing(PortionRule::Ignore), None);
        assert_eq!(missing(PortionRule::Limit).as_deref(), Some("memory-limit 5.000%"));
        assert!(missing(PortionRule::Refuse).unwrap().contains("GPU_PORTION=0.05 and no memory limit"));
    }

    #[test]
    fn variables_of_vgpu_manager_are_known_by_their_names() {
        assert!(is_managers_limit("CUDA_MEM_LIMIT_0") && is_managers_limit("CUDA_CORE_LIMIT_7"));
        assert!(!is_managers_limit("CUDA_MEM_LIMIT_") && !is_managers_limit("CUDA_CORE_SOFT_LIMIT_0"));
    }

    #[test]
    fn the_tenant_has_the_devices_that_the_scheduler_chose() {
        let devices = |annotations: &[(&str, &str)], variables: &[&str]| {
            let annotations = [annotations, &[(LIMIT, "1Gi")]].concat();
            read(&annotations, variables, PortionRule::Ignore).unwrap().unwrap().devices
        };
        let chosen = ("nvidia.com/container.main.gpus.devices", "GPU-a, GPU-b");
        assert_eq!(devices(&[chosen], &["NVIDIA_VISIBLE_DEVICES=GPU-c"]), ["GPU-a", "GPU-b"]);
        assert_eq!(devices(&[], &["NVIDIA_VISIBLE_DEVICES=k8s.device-plugin.nvidia.com/gpu=GPU-c"]), ["GPU-c"]);
        for other in
            ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=0,GPU-c", "A=1"]
        {
            assert!(devices(&[], &[other]).is_empty(), "{other}");
        }
    }

    #[test]
    fn a_container_with_a_tenant_gets_no_other_and_names_are_accepted_by_the_daemon() {
        let annotations = HashMap::from([(LIMIT.to_owned(), "1Gi".to_owned())]);
        let facts = ContainerFacts { name: "main", annotations: &annotations, variables: &[], has_tenant: true };
        assert_eq!(read_container(facts, PortionRule::Limit), Ok(None));
        // The variable alone gets nobody out of the tenant that the annotations ask for.
        assert!(memory(&[(LIMIT, "1Gi")], &["VGPU_SOCKET=/x"]).is_some());
        for pod in ["train", "", "...", "a b/c", &"p".repeat(253)] {
            let name = container_tenant_name(pod, &"0123456789abcdef".repeat(4));
            assert!(vgpu_config::value::is_name(&name) && name.ends_with("_0123456789ab"), "{name}");
        }
        let labels = container_labels("lab", "train", "main", "id");
        assert_eq!((labels.len(), labels[CONTAINER_LABEL].as_str()), (4, "id"));
    }
}
