//! Resolves groups: every subgroup has its parent, every tenant's group is known, and quotas fit the tree.

use crate::groups::{GroupPlan, QuotaEffect, QuotaPlan, is_within, owner_of, parent_of};
use crate::plan::DaemonPlan;
use crate::problem::{At, ProblemList};
use crate::raw::{RawFile, RawGroup, RawQuota};
use crate::suggest::nearest_word;
use jiff::tz::TimeZone;

/// Most groups of a file, and most quotas: each look at use goes through all of them.
const MAX_GROUPS: usize = 256;

/// Most names that a message lists.
const MAX_GROUPS_LISTED: usize = 20;

/// Inputs of the checks of groups, and the list of problems.
pub(super) struct GroupResolver<'a, 't> {
    /// Time zone of the host.
    pub zone: TimeZone,
    pub daemon: &'a DaemonPlan,
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
}
