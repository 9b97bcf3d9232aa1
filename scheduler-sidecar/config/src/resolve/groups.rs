//! Resolves groups: every subgroup has its parent, every tenant's group is known, and quotas fit the tree.

use crate::devices::DescribedDevice;
use crate::groups::{GroupPlan, QuotaEffect, QuotaPlan, is_within, owner_of, parent_of};
use crate::plan::{DaemonPlan, GroupLimit};
use crate::problem::{At, ProblemList, TextRange};
use crate::raw::{Amount, RawFile, RawGroup, RawQuota};
use crate::suggest::nearest_word;
use jiff::tz::TimeZone;
use vgpu_core::units::bytes::{Bytes, Size};

/// Most groups of a file, and most quotas: each look at use goes through all of them.
const MAX_GROUPS: usize = 256;

/// A limit that is larger than that of a group above: its words, those of the group above, and ` on device 0`.
type LargerLimit = (String, String, String);

/// Most names that a message lists.
const MAX_GROUPS_LISTED: usize = 20;

/// Returns the limits that groups have on each device, in the order of the file.
pub(super) fn group_limits(raw: &RawFile) -> Vec<GroupLimit> {
    let limit = |raw: &RawGroup| {
        let memory = raw.memory_limit.as_ref().map(|at| at.value);
        let memory = memory.filter(|amount| *amount != Amount::Size(Size::Unlimited));
        let ceilings = raw.sm_limit.as_ref().and_then(|at| at.value);
        let group = raw.name.as_ref()?.value.clone();
        (memory.is_some() || ceilings.is_some()).then_some(GroupLimit { group, memory, ceilings })
    };
    raw.groups.iter().filter_map(limit).collect()
}

/// Inputs of the checks of groups, and the list of problems.
pub(super) struct GroupResolver<'a, 't> {
    /// Time zone of the host.
    pub zone: TimeZone,
    pub daemon: &'a DaemonPlan,
    pub devices: &'a [DescribedDevice],
    pub arbitrate: bool,
    pub problems: &'a mut ProblemList<'t>,
    pub notes: &'a mut Vec<String>,
}

impl GroupResolver<'_, '_> {
    /// Returns the groups in the order of the file. They are valid only if there is no problem.
    pub fn resolve_groups(mut self, raw: &RawFile) -> Vec<GroupPlan> {
        self.refuse_too_many(raw);
        let groups: Vec<GroupPlan> = raw.groups.iter().filter_map(|group| self.resolve_group(group)).collect();
        self.refuse_repeated(&groups);
        self.refuse_orphans(&groups);
        self.refuse_unknown_groups(raw, &groups);
        self.refuse_larger_than_parents(&groups);
        self.refuse_limits_above_parents(raw);
        self.refuse_forgotten_periods(raw, &groups);
        self.note_uncounted_use(&groups);
        groups
    }

    fn refuse_too_many(&mut self, raw: &RawFile) {
        let quotas = raw.groups.iter().flat_map(|group| &group.quotas).map(|quota| quota.place).nth(MAX_GROUPS);
        let groups = raw.groups.iter().map(|group| group.place).nth(MAX_GROUPS);
        for (place, key) in groups.map(|place| (place, "group")).into_iter().chain(quotas.map(|it| (it, "group.quota")))
        {
            self.problems.wrong_key(place, key, "is one too many", format!("at most {MAX_GROUPS} [[{key}]]"));
        }
    }

    fn resolve_group(&mut self, raw: &RawGroup) -> Option<GroupPlan> {
        let quotas = raw.quotas.iter().filter_map(|quota| self.resolve_quota(quota)).collect();
        let name = raw.name.as_ref()?;
        let weight = raw.weight.as_ref().map(|at| at.value);
        Some(GroupPlan { name: name.value.clone(), weight, quotas, place: name.place })
    }

    fn resolve_quota(&mut self, raw: &RawQuota) -> Option<QuotaPlan> {
        let hours = |written: &Option<At<u32>>| written.as_ref().map(|at| at.value);
        let (gpu_hours, gib_hours) = (hours(&raw.gpu_hours), hours(&raw.gib_hours));
        if gpu_hours.is_none() && gib_hours.is_none() {
            self.problems.wrong_key(raw.place, "group.quota", "limits nothing", "gpu_hours, gib_hours, or both");
        }
        Some(QuotaPlan {
            period: raw.period.as_ref()?.value,
            zone: raw.zone.as_ref().map_or_else(|| self.zone.clone(), |at| at.value.clone()),
            gpu_hours,
            gib_hours,
            effect: raw.effect.as_ref().map_or(QuotaEffect::Batch, |at| at.value),
            place: raw.place,
        })
    }

    fn refuse_repeated(&mut self, groups: &[GroupPlan]) {
        for (index, later) in groups.iter().enumerate() {
            let Some(earlier) = groups[..index].iter().find(|earlier| earlier.name == later.name) else { continue };
            let accepted = "one [[group]] for each name";
            for (here, there) in [(later, earlier), (earlier, later)] {
                let what = format!("is the name of another group too, in line {}", self.problems.line_of(there.place));
                self.problems.wrong_value(here.place, "group.name", what, accepted);
            }
        }
    }

    /// Refuses a subgroup whose parent has no section.
    fn refuse_orphans(&mut self, groups: &[GroupPlan]) {
        for group in groups {
            let Some(parent) = parent_of(&group.name).filter(|name| groups.iter().all(|it| it.name != **name)) else {
                continue;
            };
            let meant = self.describe_nearest(parent, groups);
            let what = format!("is below group {parent:?}, which has no [[group]]{meant}");
            let accepted = format!("a [[group]] named {parent:?} in this file, or a name below a group that has one");
            self.problems.wrong_value(group.place, "group.name", what, accepted);
        }
    }

    /// Names the group that a misspelt name may have meant, with its line.
    fn describe_nearest(&self, written: &str, groups: &[GroupPlan]) -> String {
        let meant = nearest_word(written, groups.iter().map(|group| group.name.as_str()));
        let plan = meant.and_then(|name| groups.iter().find(|group| group.name == name));
        plan.map_or(String::new(), |plan| {
            format!(" (did you mean {:?}, line {}?)", plan.name, self.problems.line_of(plan.place))
        })
    }

    /// Refuses groups of tenants that lie below no group of a file that has groups: a misspelt name would escape all
    /// quotas.
    fn refuse_unknown_groups(&mut self, raw: &RawFile, groups: &[GroupPlan]) {
        let Some(first) = groups.first() else { return };
        let tenants = raw.tenants.iter().map(|tenant| ("tenant.group", &tenant.policy));
        let templates = raw.templates.iter().map(|template| ("template.group", &template.policy));
        let defaults = std::iter::once(("defaults.group", &raw.defaults));
        for (key, policy) in tenants.chain(templates).chain(defaults) {
            let Some(at) = &policy.group else { continue };
            if owner_of(groups, Some(&at.value)).is_some() {
                continue;
            }
            let meant = self.describe_nearest(&at.value, groups);
            let line = self.problems.line_of(first.place);
            let what = format!("has no [[group]]; this file describes its groups from line {line} on{meant}");
            let names = groups.iter().take(MAX_GROUPS_LISTED).map(|group| group.name.as_str());
            let more = if groups.len() > MAX_GROUPS_LISTED { ", ..." } else { "" };
            let accepted = format!("{}{more}, or a subgroup of one", names.collect::<Vec<_>>().join(", "));
            self.problems.wrong_value(at.place, key, what, accepted);
        }
    }

    /// Refuses a quota that a quota of a group above never lets its group reach. Notes subgroups whose quotas together
    /// are larger than the one above.
    fn refuse_larger_than_parents(&mut self, groups: &[GroupPlan]) {
        type QuotaLimit = (&'static str, fn(&QuotaPlan) -> Option<u32>);
        const LIMITS: [QuotaLimit; 2] =
            [("gpu_hours", |quota| quota.gpu_hours), ("gib_hours", |quota| quota.gib_hours)];
        for above in groups {
            for (quota, (key, limit)) in above.quotas.iter().flat_map(|quota| LIMITS.map(|limit| (quota, limit))) {
                let Some(most) = limit(quota) else { continue };
                let is_below = |group: &&GroupPlan| group.name != above.name && is_within(&group.name, &above.name);
                let mut sum = 0;
                for below in groups.iter().filter(is_below) {
                    let same = below.quotas.iter().filter(|own| own.period == quota.period);
                    let Some((own, hours)) = same.filter_map(|own| Some((own, limit(own)?))).min_by_key(|it| it.1)
                    else {
                        continue;
                    };
                    if parent_of(&below.name) == Some(&above.name) {
                        sum += u64::from(hours);
                    }
                    if hours <= most {
                        continue;
                    }
                    let (most, hours, per) = (format_hours(most), format_hours(hours), quota.period.word());
                    let (here, there) = (self.problems.line_of(own.place), self.problems.line_of(quota.place));
                    let what = format!(
                        "is {hours} per {per}, more than the {most} of group {:?} above it, in line {there}",
                        above.name
                    );
                    let accepted = format!("at most {most}");
                    self.problems.wrong_key(own.place, format!("group.quota.{key}"), what, &accepted);
                    let what = format!(
                        "is {most} per {per}, less than the {hours} of its subgroup {:?}, in line {here}",
                        below.name
                    );
                    self.problems.wrong_key(
                        quota.place,
                        format!("group.quota.{key}"),
                        what,
                        format!("at least {hours}"),
                    );
                }
                if sum > u64::from(most) {
                    self.notes.push(format!(
                        "group {:?}: the quotas of its subgroups per {} add up to more {key} than its own; the first to \
                         use it up take it from the others",
                        above.name, quota.period.word()
                    ));
                }
            }
        }
    }

    /// Refuses a limit of a subgroup that is larger than the same limit of a group above it.
    fn refuse_limits_above_parents(&mut self, raw: &RawFile) {
        let named = || raw.groups.iter().filter_map(|group| Some((group, group.name.as_ref()?)));
        for ((group, name), (above, other)) in named().flat_map(|below| named().map(move |above| (below, above))) {
            if name.value == other.value || !is_within(&name.value, &other.value) {
                continue;
            }
            let mut refuse = |key: &str, own: TextRange, most: TextRange, (own_words, most_words, on): LargerLimit| {
                let (here, there) = (self.problems.line_of(own), self.problems.line_of(most));
                let key = format!("group.{key}");
                let what =
                    format!("is more than the {most_words} of group {:?} above it{on}, in line {there}", other.value);
                self.problems.wrong_value(own, &key, what, format!("at most {most_words}"));
                let what = format!("is less than the {own_words} of its subgroup {:?}{on}, in line {here}", name.value);
                self.problems.wrong_value(most, &key, what, format!("at least {own_words}"));
            };
            if let (Some(own), Some(most)) = (&group.memory_limit, &above.memory_limit)
                && let Some(larger) =
                    self.devices.iter().find_map(|device| larger_memory(device, own.value, most.value))
            {
                refuse("memory_limit", own.place, most.place, larger);
            }
            if let (Some(own), Some(most)) = (&group.sm_limit, &above.sm_limit)
                && let (Some(share), Some(limit)) = (own.value, most.value)
                && share > limit
            {
                refuse("sm_limit", own.place, most.place, (share.to_string(), limit.to_string(), String::new()));
            }
        }
    }

    /// Refuses quotas about a longer time than the record keeps: a restart would forget a part of the use.
    fn refuse_forgotten_periods(&mut self, raw: &RawFile, groups: &[GroupPlan]) {
        let kept = self.daemon.keep.all;
        for quota in groups.iter().flat_map(|group| &group.quotas).filter(|quota| quota.period.max_seconds() > kept) {
            let days = quota.period.max_seconds().div_ceil(86_400);
            let keep = raw.record.keep.as_ref();
            let line = keep.map_or(String::new(), |at| format!(" in line {}", self.problems.line_of(at.place)));
            let (per, hours) = (quota.period.word(), kept / 3_600);
            let what = format!("= {per:?} is longer than the record keeps use, {hours}h{line}");
            self.problems.wrong_key(quota.place, "group.quota.per", what, format!("a keep of at least \"{days}d\""));
            if let Some(at) = keep {
                let what =
                    format!("is shorter than the quota per {per} in line {}", self.problems.line_of(quota.place));
                self.problems.wrong_value(at.place, "record.keep", what, format!("at least \"{days}d\""));
            }
        }
    }

    fn note_uncounted_use(&mut self, groups: &[GroupPlan]) {
        let counts = groups.iter().any(|group| group.weight.is_some() || !group.quotas.is_empty());
        if counts && self.daemon.state_dir.is_none() {
            let words = "daemon.state_dir is \"none\": shares and quotas of groups begin from 0 when the daemon starts";
            self.notes.push(words.to_owned());
        }
        if counts && !(self.daemon.exact && self.arbitrate) {
            let words = "record.exact = false or time.arbitrate = false: device time that is not measured counts \
                         neither for shares nor for quotas of groups";
            self.notes.push(words.to_owned());
        }
    }
}

/// Returns both limits in words if a group's memory limit on the device is larger than that of the group above.
fn larger_memory(device: &DescribedDevice, own: Amount, most: Amount) -> Option<LargerLimit> {
    let bytes = |amount: Amount| amount.bytes_on(device.plan.memory).flatten();
    let (own, most): (Bytes, Bytes) = bytes(own).zip(bytes(most))?;
    (own > most).then(|| (own.to_string(), most.to_string(), format!(" on device {}", device.plan.name())))
}

/// Formats thousandths as hours.
fn format_hours(thousandths: u32) -> String {
    super::admission::format_thousandths(u128::from(thousandths))
}

#[cfg(test)]
mod tests {
    use crate::make_plan;
    use crate::resolve::Surroundings;

    fn told(file: &str) -> String {
        let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
        make_plan(file, &around).map_or_else(|report| report.to_lines("f"), |plan| plan.notes.join("\n"))
    }

    #[test]
    fn what_is_wrong_with_groups_is_told_with_both_places_and_what_is_accepted() {
        let lab = "[[group]]\nname = \"lab\"\n";
        for (file, expected) in [
            (
                format!("{lab}{lab}"),
                vec![
                    "f:2:8: group.name = \"lab\" is the name of another group too, in line 4; accepted: one [[group]]",
                    "f:4:8: group.name = \"lab\" is the name of another group too, in line 2; accepted: one [[group]]",
                ],
            ),
            (
                format!("{lab}[[group]]\nname = \"lap/vision\"\n"),
                vec![
                    "f:4:8: group.name = \"lap/vision\" is below group \"lap\", which has no [[group]] (did you mean \
                     \"lab\", line 2?); accepted: a [[group]] named \"lap\"",
                ],
            ),
            (
                format!("[[tenant]]\nname = \"t\"\ngroup = \"lba/vision\"\n[defaults]\ngroup = \"lab/x\"\n{lab}"),
                vec![
                    "f:3:9: tenant.group = \"lba/vision\" has no [[group]]; this file describes its groups from line 7 on; \
                     accepted: lab, or a subgroup of one",
                ],
            ),
            (
                format!(
                    "{lab}[[group.quota]]\nper = \"day\"\ngpu_hours = 5\n[[group]]\nname = \"lab/v\"\n\
                     [[group.quota]]\nper = \"day\"\ngpu_hours = 5.5\n"
                ),
                vec![
                    "f:3:1: group.quota.gpu_hours is 5 per day, less than the 5.5 of its subgroup \"lab/v\", in line 8; \
                     accepted: at least 5.5",
                    "f:8:1: group.quota.gpu_hours is 5.5 per day, more than the 5 of group \"lab\" above it, in line 3; \
                     accepted: at most 5",
                ],
            ),
            (
                format!(
                    "[record]\nkeep = \"5d\"\nkeep_fine = \"1d\"\n{lab}[[group.quota]]\nper = \"week\"\ngib_hours = 5\n"
                ),
                vec![
                    "f:2:8: record.keep = \"5d\" is shorter than the quota per week in line 6; accepted: at least \"8d\"",
                    "f:6:1: group.quota.per = \"week\" is longer than the record keeps use, 120h in line 2; accepted: a \
                     keep of at least \"8d\"",
                ],
            ),
            (
                format!("{lab}[[group.quota]]\nper = \"day\"\n"),
                vec!["f:3:1: group.quota limits nothing; accepted: gpu_hours, gib_hours, or both"],
            ),
            (
                "[[group.quota]]\nper = \"day\"\ngpu_hours = 5\n".to_owned(),
                vec!["group is not a list of tables; accepted: [[group]], once for each"],
            ),
        ] {
            let told = told(&file);
            assert_eq!(told.lines().count(), expected.len(), "{told}{file}");
            for (line, expected) in told.lines().zip(expected) {
                assert!(line.contains(expected), "{line}\n{expected}");
            }
        }
    }

    #[test]
    fn use_that_cannot_be_counted_and_quotas_that_take_from_each_other_are_noted() {
        let group = |name: &str, hours: u32| {
            format!("[[group]]\nname = \"{name}\"\n[[group.quota]]\nper = \"day\"\ngpu_hours = {hours}\n")
        };
        let tree = group("lab", 5) + &group("lab/a", 3) + &group("lab/b", 2);
        assert_eq!(told(&tree), "");
        let more = told(&(tree.clone() + &group("lab/c", 1)));
        assert!(more.contains("the quotas of its subgroups per day add up to more gpu_hours than its own"), "{more}");
        let blind = told(&format!("[daemon]\nstate_dir = \"none\"\n[record]\nexact = false\n{tree}"));
        assert!(blind.contains("begin from 0 when the daemon starts") && blind.contains("counts neither"), "{blind}");
    }

    const DEVICES: &str = "[[device]]\nid = 0\nmemory = \"80GiB\"\n[[device]]\nid = 1\nmemory = \"40GiB\"\n";

    fn limited(rest: &str) -> String {
        format!("{DEVICES}[[group]]\nname = \"lab\"\n{rest}")
    }

    fn tenant(name: &str, group: &str, rest: &str) -> String {
        format!("[[tenant]]\nname = \"{name}\"\ngroup = \"{group}\"\n{rest}\n")
    }

    /// Checks the lines that a file is refused with; none: it is accepted without a note.
    fn assert_told(file: &str, expected: &[&str]) {
        let told = told(file);
        assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{file}");
    }

    #[test]
    fn a_group_that_is_promised_more_memory_than_its_limit_is_refused_with_both_places() {
        let limit = limited("memory_limit = \"50GiB\"\n[[group]]\nname = \"lab/vision\"\n");
        let at_home = |gib: u32| format!("memory_limit = \"{gib}GiB\"\ndevices = [0]");
        let with = |gib| {
            let asr = tenant("asr", "lab/speech", "memory_limit = \"20GiB\"\ndevices = [0, 1]");
            let others = tenant("web", "labs", &at_home(9)) + "[[group]]\nname = \"labs\"\n";
            format!("{limit}{asr}{}{others}", tenant("ocr", "lab/vision", &at_home(gib)))
        };
        assert_told(&with(30), &[]);
        assert_told(
            &with(31),
            &[
                "f:9:16: group.memory_limit = \"50GiB\" is less than the 51 GiB of the group's tenants on device 0 \
                 (asr 20 GiB, ocr 31 GiB), in line 20; accepted: at least 51 GiB, or less for the tenants",
                "f:20:16: tenant.memory_limit = \"31GiB\" brings the memory limits of group \"lab\" on device 0 to 51 GiB \
                 (asr 20 GiB, ocr 31 GiB), and the group's memory_limit is 50 GiB, in line 9; accepted: at most 50 GiB \
                 together, or a larger memory_limit of the group",
            ],
        );
    }

    #[test]
    fn a_tenant_of_a_group_with_a_memory_limit_needs_one_of_its_own() {
        let limit = limited("memory_limit = \"50GiB\"\n");
        let free = tenant("web", "lab", "devices = [1]");
        assert_told(
            &format!("{limit}{free}"),
            &[
                "f:9:16: group.memory_limit = \"50GiB\" needs a memory limit of each tenant, and web has none on device 1, in \
                 line 11; accepted: a memory_limit of tenant web, or \"unlimited\"",
                "f:11:8: tenant.name = \"web\" leaves tenant web without a memory limit on device 1, and the memory_limit \
                 of its group \"lab\" is 50 GiB, in line 9; accepted: a memory_limit of the tenant; those of the \
                 group may add up to 50 GiB",
            ],
        );
        assert_told(&format!("{}{free}", limited("memory_limit = \"unlimited\"\nsm_limit = \"unlimited\"\n")), &[]);
        assert_told(&format!("{}{free}", limited("sm_limit = 100\n")), &[]);
    }

    #[test]
    fn a_group_whose_ceilings_add_up_to_more_than_its_limit_is_refused_and_no_ceiling_counts_as_100() {
        let with = |rest: &str| {
            let half = tenant("asr", "lab", "memory_limit = \"1GiB\"\nsm_limit = 50\ndevices = [0]");
            format!("{}{half}{}", limited("sm_limit = 90\n"), tenant("ocr", "lab", rest))
        };
        assert_told(&with("memory_limit = \"1GiB\"\nsm_limit = 40"), &[]);
        let most = "and the group's sm_limit is 90 %, in line 9; accepted: at most 90 % together, or a larger sm_limit of the group";
        assert_told(
            &with("memory_limit = \"1GiB\"\nsm_limit = 40.5"),
            &[
                "f:9:12: group.sm_limit = 90 is less than the 90.5 % of the group's tenants on device 0 (asr 50 %, ocr \
                 40.5 %), in line 20; accepted: at least 90.5 %, or less for the tenants",
                &format!(
                    "f:20:12: tenant.sm_limit = 40.5 brings the sm_limits of group \"lab\" on device 0 to 90.5 % (asr 50 %, \
                     ocr 40.5 %), {most}"
                ),
            ],
        );
        assert_told(
            &with("memory_limit = \"1GiB\"\ndevices = [0]"),
            &[
                "f:9:12: group.sm_limit = 90 is less than the 150 % of the group's tenants on device 0 (asr 50 %, ocr \
                 100 % without a limit), in line 17; accepted: \"unlimited\", or less for the tenants",
                &format!(
                    "f:17:8: tenant.name = \"ocr\" brings the sm_limits of group \"lab\" on device 0 to 150 % (asr 50 %, ocr \
                     100 % without a limit), {most}"
                ),
            ],
        );
    }

    #[test]
    fn a_percentage_of_a_group_is_of_each_device_and_needs_its_size() {
        let with = |percent: u32| {
            let both = tenant("ocr", "lab", "memory_limit = \"20GiB\"");
            format!("{}{both}", limited(&format!("memory_limit = \"{percent}%\"\n")))
        };
        assert_told(&with(50), &[]);
        let told = told(&with(49));
        assert!(told.lines().count() == 2 && told.contains("on device 1 (ocr 20 GiB)"), "{told}");
        let unknown = "[[group]]\nname = \"lab\"\nmemory_limit = \"50%\"\n";
        assert_told(
            &(unknown.to_owned() + &tenant("ocr", "lab", "memory_limit = \"1GiB\"\ndevices = [0]")),
            &[
                "f:3:16: group.memory_limit = \"50%\" is a part of device 0, whose size is not known; accepted: bytes or a \
                 number with a unit, or [[device]] with its memory",
            ],
        );
        assert_told(unknown, &[]);
    }

    #[test]
    fn a_limit_of_a_subgroup_above_that_of_its_parent_is_refused_at_both() {
        let child = |rest: &str| {
            let limits = "memory_limit = \"30GiB\"\nsm_limit = 60\n";
            format!("{}[[group]]\nname = \"lab/v\"\n{rest}", limited(limits))
        };
        assert_told(&child("memory_limit = \"30GiB\"\nsm_limit = 60\n"), &[]);
        assert_told(
            &child("memory_limit = \"40%\"\nsm_limit = 61\n"),
            &[
                "f:9:16: group.memory_limit = \"30GiB\" is less than the 32 GiB of its subgroup \"lab/v\" on device 0, in line \
                 13; accepted: at least 32 GiB",
                "f:10:12: group.sm_limit = 60 is less than the 61 % of its subgroup \"lab/v\", in line 14; accepted: at \
                 least 61 %",
                "f:13:16: group.memory_limit = \"40%\" is more than the 30 GiB of group \"lab\" above it on device 0, in line \
                 9; accepted: at most 30 GiB",
                "f:14:12: group.sm_limit = 61 is more than the 60 % of group \"lab\" above it, in line 10; accepted: at most \
                 60 %",
            ],
        );
    }
}
