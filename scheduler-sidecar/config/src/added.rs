//! A tenant that a command adds while the daemon serves: its settings as written, and the checked tenant.
//!
//! The settings are keys of a `[[tenant]]` section and are read by the same functions. Templates and defaults come
//! from the file in force. Pure functions; the daemon's reactor opens the socket and stores the section.

use std::collections::BTreeMap;
use std::fmt;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::live::check_tenant_fits;
use crate::plan::{ConfigPlan, TenantPlan};
use crate::problem::{At, ProblemList, TextRange};
use crate::raw::{MAX_LABELS, RawFile, RawPolicy, RawTenant, RawTerms};
use crate::resolve::{self, MAX_TENANTS};
use crate::value::{self, ValueReader, WrittenValue};

/// Settings of a tenant as written on a command line. A missing key has the value of the template or the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSection {
    /// Name of the tenant.
    pub name: String,
    /// Name of a `[template.NAME]` of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Part of a device, 0.01 to 1: gives a memory limit and a floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// A size, a percentage of the device, or `unlimited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<String>,
    /// Ceiling (most device time): 1 to 100 percent, or `unlimited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_limit: Option<String>,
    /// Floor (guaranteed device time): 1 to 100 percent, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_request: Option<String>,
    /// Weight for sharing the time that floors leave: 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Priority class: `latency`, `normal` or `batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Devices by number or UUID; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// User IDs, or ranges of them, whose processes may connect; empty for those of the template.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uids: Vec<String>,
    /// Gang whose tenants get their leases together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// Group that reports charge the tenant's cost to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Date and time of day at which its work must be done, in the time zone of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Hours of device time that the work needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_hours_needed: Option<String>,
    /// Further names and values by which reports group tenants.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Why a tenant cannot be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SectionRefusal {
    /// A value is not accepted, or cannot be kept by any free device.
    BadTerms(String),
    /// It does not fit next to the tenants that are there now.
    DoesNotFit(String),
}

impl fmt::Display for SectionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadTerms(words) | Self::DoesNotFit(words) => f.write_str(words),
        }
    }
}

/// The values of a section in one text, so that messages can quote them.
#[derive(Default)]
struct QuotedValues(String);

impl QuotedValues {
    fn put(&mut self, value: &str) -> At<String> {
        let start = self.0.len();
        self.0.push_str(value);
        At { value: value.to_owned(), place: TextRange { start, end: self.0.len() } }
    }

    fn put_all(&mut self, values: &[String]) -> Vec<At<String>> {
        values.iter().map(|value| self.put(value)).collect()
    }
}

impl TenantSection {
    /// Returns the checked tenant. `plan` is in force, `tenants` are those that hold a promise now, and `zone` is that
    /// of the host. A tenant of the same name is replaced. A deadline may be over.
    ///
    /// # Errors
    /// [`SectionRefusal`], with a message that names the key, its value and what is accepted.
    ///
    /// # Cost
    /// Grows with the number of tenants on the section's devices, and with the number of templates.
    pub fn resolve_tenant(
        &self,
        plan: &ConfigPlan,
        tenants: &[TenantPlan],
        zone: &TimeZone,
    ) -> Result<TenantPlan, SectionRefusal> {
        let tenant = self.resolve_alone(plan, zone).map_err(SectionRefusal::BadTerms)?;
        let others = tenants.iter().filter(|other| other.name != self.name).count();
        if others >= MAX_TENANTS {
            return Err(SectionRefusal::DoesNotFit(format!("there are {MAX_TENANTS} tenants, and no more are served")));
        }
        check_tenant_fits(&plan.devices, &[], &tenant).map_err(SectionRefusal::BadTerms)?;
        check_tenant_fits(&plan.devices, tenants, &tenant).map_err(SectionRefusal::DoesNotFit)?;
        Ok(tenant)
    }

    /// Returns the checked tenant without regard to others, whose promises may leave no room for it.
    ///
    /// # Errors
    /// A message that names the key, its value and what is accepted.
    pub fn resolve_alone(&self, plan: &ConfigPlan, zone: &TimeZone) -> Result<TenantPlan, String> {
        let mut quoted = QuotedValues::default();
        let name = quoted.put(&self.name);
        let mut put = |value: &Option<String>| value.as_ref().map(|value| quoted.put(value));
        let (template, gpu, memory) = (put(&self.template), put(&self.gpu), put(&self.memory_limit));
        let (ceiling, floor, weight) = (put(&self.sm_limit), put(&self.sm_request), put(&self.weight));
        let (class, group, gang) = (put(&self.class), put(&self.group), put(&self.gang));
        let (deadline, needed) = (put(&self.deadline), put(&self.gpu_hours_needed));
        let (devices, uids) = (quoted.put_all(&self.devices), quoted.put_all(&self.uids));
        let labels: Vec<_> = self.labels.iter().map(|(name, label)| (name.clone(), quoted.put(label))).collect();
        let mut problems = ProblemList::new(&quoted.0);
        let mut reader = SectionReader { problems: &mut problems };
        let uids: Vec<_> = uids.iter().filter_map(|at| reader.read_text("uids", at, value::read_uids)).collect();
        let devices: Vec<_> =
            devices.iter().filter_map(|at| reader.read_text("devices", at, value::read_device)).collect();
        let policy = RawPolicy {
            gpu: gpu.and_then(|at| reader.read_number("gpu", &at, value::read_part)),
            terms: RawTerms {
                memory_limit: memory.and_then(|at| reader.read_text("memory_limit", &at, value::read_amount)),
                sm_limit: ceiling.and_then(|at| reader.read_text("sm_limit", &at, value::read_ceiling)),
                sm_request: floor.and_then(|at| reader.read_text("sm_request", &at, value::read_floor)),
                weight: weight.and_then(|at| reader.read_number("weight", &at, value::read_weight)),
                class: class.and_then(|at| reader.read_text("class", &at, value::read_class)),
                quantum: None,
            },
            uids: uids
                .first()
                .map(|first| At { value: uids.iter().map(|at| at.value.clone()).collect(), place: first.place }),
            group: group.and_then(|at| reader.read_text("group", &at, value::read_group)),
            labels: reader.read_labels(&labels),
            ..RawPolicy::default()
        };
        let tenant = RawTenant {
            place: name.place,
            template: template.and_then(|at| reader.read_text("template", &at, value::name)),
            name: reader.read_text("name", &name, value::name),
            devices: (!self.devices.is_empty()).then_some(devices),
            replicas: None,
            gang: gang.and_then(|at| reader.read_text("gang", &at, value::name)),
            deadline: deadline.and_then(|at| reader.read_text("deadline", &at, value::read_date_time)),
            gpu_hours_needed: needed.and_then(|at| reader.read_number("gpu_hours_needed", &at, value::read_gpu_hours)),
            policy,
            overrides: Vec::new(),
        };
        let raw = RawFile {
            defaults: plan.defaults.clone(),
            templates: plan.templates.clone(),
            tenants: vec![tenant],
            ..RawFile::default()
        };
        let resolved = resolve::resolve_tenants(&raw, plan, zone, &mut problems);
        let report = problems.into_report();
        let words: Vec<String> = report.problems.iter().map(crate::problem::ConfigProblem::to_words).collect();
        match resolved.into_iter().next() {
            Some(tenant) if words.is_empty() => Ok(tenant),
            _ => Err(words.join("; and ")),
        }
    }

    /// Returns the keys in which two sections differ.
    #[must_use]
    pub fn differing_keys(&self, other: &Self) -> Vec<&'static str> {
        let keys = [
            ("template", self.template == other.template),
            ("gpu", self.gpu == other.gpu),
            ("memory_limit", self.memory_limit == other.memory_limit),
            ("sm_limit", self.sm_limit == other.sm_limit),
            ("sm_request", self.sm_request == other.sm_request),
            ("weight", self.weight == other.weight),
            ("class", self.class == other.class),
            ("devices", self.devices == other.devices),
            ("uids", self.uids == other.uids),
            ("gang", self.gang == other.gang),
            ("group", self.group == other.group),
            ("deadline", self.deadline == other.deadline),
            ("gpu_hours_needed", self.gpu_hours_needed == other.gpu_hours_needed),
            ("labels", self.labels == other.labels),
        ];
        keys.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }
}

/// Reads the values of a section, and records those that are wrong.
struct SectionReader<'p, 't> {
    problems: &'p mut ProblemList<'t>,
}

impl SectionReader<'_, '_> {
    fn read_text<T>(&mut self, key: &str, at: &At<String>, reading: ValueReader<T>) -> Option<At<T>> {
        self.read_as(key, at, &WrittenValue::Text(&at.value), reading)
    }

    fn read_number<T>(&mut self, key: &str, at: &At<String>, reading: ValueReader<T>) -> Option<At<T>> {
        self.read_as(key, at, &WrittenValue::Number(at.value.clone()), reading)
    }

    fn read_as<T>(
        &mut self,
        key: &str,
        at: &At<String>,
        written: &WrittenValue<'_>,
        reading: ValueReader<T>,
    ) -> Option<At<T>> {
        match reading(written) {
            Ok(value) => Some(At { value, place: at.place }),
            Err(wrong) => {
                self.problems.wrong_value(at.place, format!("tenant.{key}"), wrong.what, wrong.accepted);
                None
            }
        }
    }

    fn read_labels(&mut self, labels: &[(String, At<String>)]) -> Option<BTreeMap<String, String>> {
        if labels.len() > MAX_LABELS {
            let accepted = format!("at most {MAX_LABELS} of them");
            self.problems.wrong_key(TextRange::default(), "tenant.labels", "are too many", accepted);
            return None;
        }
        let mut read = BTreeMap::new();
        for (name, at) in labels {
            if !value::is_label_name(name) {
                let what = format!("{:?} cannot be a label's name", crate::problem::escape_value(name));
                let accepted = "1 to 64 letters, digits, '-', '_', '.' and '/'";
                self.problems.wrong_key(at.place, "tenant.labels", what, accepted);
                continue;
            }
            if let Some(label) = self.read_text(&format!("labels.{name}"), at, value::read_label) {
                read.insert(name.clone(), label.value);
            }
        }
        (!read.is_empty()).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use vgpu_core::units::bytes::Bytes;
    use vgpu_core::units::share::Share;

    use super::*;
    use crate::make_plan;
    use crate::resolve::Surroundings;

    const FILE: &str = "
[defaults]
uids = [1000]
[template.job]
class = \"batch\"
labels = { from = \"slurm\" }
[[device]]
id = 0
memory = \"80GiB\"
[[device]]
id = 1
memory = \"40GiB\"
[[tenant]]
name = \"chat\"
memory_limit = \"30GiB\"
sm_request = 40
";

    fn plan() -> ConfigPlan {
        make_plan(FILE, &Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() }).unwrap()
    }

    fn section(name: &str) -> TenantSection {
        TenantSection { name: name.into(), ..TenantSection::default() }
    }

    fn add(section: &TenantSection) -> Result<TenantPlan, SectionRefusal> {
        section.resolve_tenant(&plan(), &plan().tenants, &TimeZone::UTC)
    }

    #[test]
    fn a_section_gets_the_terms_that_the_same_section_of_the_file_would_get() {
        let mut wanted = section("job-7");
        (wanted.template, wanted.gpu) = (Some("job".into()), Some("0.25".into()));
        (wanted.weight, wanted.group) = (Some("3".into()), Some("research/vision".into()));
        wanted.gang = Some("job".into());
        (wanted.devices, wanted.uids) = (vec!["1".into()], vec!["1001".into(), "2000-2003".into()]);
        wanted.labels.insert("job".into(), "7".into());
        (wanted.deadline, wanted.gpu_hours_needed) = (Some("2036-12-01 09:00".into()), Some("0.5".into()));
        let added = add(&wanted).unwrap();
        let same = format!(
            "{FILE}
[[tenant]]
name = \"job-7\"
template = \"job\"
gpu = 0.25
weight = 3
group = \"research/vision\"
gang = \"job\"
devices = [1]
uids = [1001, \"2000-2003\"]
labels = {{ job = \"7\" }}
deadline = \"2036-12-01 09:00\"
gpu_hours_needed = 0.5
"
        );
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
        assert_eq!(added, make_plan(&same, &around).unwrap().tenants[1]);
        assert_eq!((added.terms.len(), added.terms[0].memory), (1, Some(Bytes(10 << 30))));
        assert_eq!(add(&section("plain")).unwrap_err().to_string().split(' ').next(), Some("memory_limit"));
    }

    #[test]
    fn fractions_are_rounded_down_to_whole_bytes_and_tenths_of_a_percent() {
        let third = TenantSection { gpu: Some("0.333".into()), devices: vec!["0".into()], ..section("third") };
        let added = add(&third).unwrap();
        assert_eq!(added.terms[0].memory, Some(Bytes((80 << 30) * 333 / 1000)));
        assert_eq!(added.terms[0].floor, Share::from_permille(333));
    }

    #[test]
    fn values_that_are_never_accepted_are_told_from_tenants_that_do_not_fit_now() {
        let with = |change: fn(&mut TenantSection)| {
            let mut section = TenantSection { memory_limit: Some("1GiB".into()), ..section("job") };
            change(&mut section);
            add(&section)
        };
        for (change, words) in [
            ((|s| s.weight = Some("x".into())) as fn(&mut TenantSection), "tenant.weight = x"),
            (|s| s.deadline = Some("2036-12-01 09:00".into()), "tenant.deadline needs tenant.gpu_hours_needed"),
            (|s| s.gpu_hours_needed = Some("1".into()), "tenant.gpu_hours_needed needs tenant.deadline"),
            (|s| s.deadline = Some("soon".into()), "tenant.deadline = soon"),
            (|s| s.memory_limit = Some("lots".into()), "tenant.memory_limit = lots"),
            (|s| s.sm_limit = Some("0".into()), "tenant.sm_limit = 0"),
            (|s| s.class = Some("best".into()), "tenant.class = best"),
            (|s| s.devices = vec!["2".into()], "tenant.devices = 2 is not a device of this configuration"),
            (|s| s.devices = vec!["0".into(), "0".into()], "is listed twice"),
            (|s| s.uids = vec!["me".into()], "tenant.uids = me is not a user ID"),
            (|s| s.template = Some("jop".into()), "is not a template (did you mean \"job\"?)"),
            (|s| s.group = Some("a b".into()), "tenant.group = a b cannot be a group"),
            (|s| s.name = "../up".into(), "tenant.name = ../up cannot be a name"),
            (|s| s.gpu = Some("2".into()), "tenant.gpu = 2"),
            (|s| drop(s.labels.insert("a b".into(), "x".into())), "\"a b\" cannot be a label's name"),
            (|s| s.memory_limit = Some("90GiB".into()), "memory_limit is more than device 0 has for tenant job"),
            (
                |s| (s.sm_request, s.sm_limit) = (Some("40".into()), Some("30".into())),
                "is more than the sm_limit of tenant job",
            ),
        ] {
            match with(change) {
                Err(SectionRefusal::BadTerms(said)) => {
                    assert!(said.contains(words) && said.contains("accepted: "), "{words}: {said}");
                }
                other => panic!("{words}: {other:?}"),
            }
        }
        for (change, words) in [
            ((|s| s.memory_limit = Some("51GiB".into())) as fn(&mut TenantSection), "and 80 GiB may be promised"),
            (|s| s.sm_request = Some("61".into()), "brings the requests on device 0 to 101 %"),
        ] {
            match with(|s| s.devices = vec!["0".into()]) {
                Ok(_) => {}
                other => panic!("{other:?}"),
            }
            let mut wanted =
                TenantSection { memory_limit: Some("1GiB".into()), devices: vec!["0".into()], ..section("job") };
            change(&mut wanted);
            match add(&wanted) {
                Err(SectionRefusal::DoesNotFit(said)) => assert!(said.contains(words), "{said}"),
                other => panic!("{words}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_tenant_of_the_same_name_makes_room_for_its_successor() {
        let plan = plan();
        let first = TenantSection { memory_limit: Some("50GiB".into()), devices: vec!["0".into()], ..section("job") };
        let mut there = plan.tenants.clone();
        there.push(first.resolve_tenant(&plan, &there, &TimeZone::UTC).unwrap());
        assert!(first.resolve_tenant(&plan, &there, &TimeZone::UTC).is_ok());
        let other = TenantSection { name: "other".into(), ..first };
        assert!(matches!(other.resolve_tenant(&plan, &there, &TimeZone::UTC), Err(SectionRefusal::DoesNotFit(_))));
    }
}
