//! Resolves the policies that follow use: idle steps of the nearest sections, and deadlines.

use std::collections::HashMap;

use jiff::tz::TimeZone;

use super::Surroundings;
use super::layers::TenantLayers;
use crate::problem::{At, ProblemList, TextRange};
use crate::raw::RawFile;
use crate::usage::{DeadlinePlan, IdlePlan, RawIdle, StepKind};

impl TenantLayers<'_> {
    /// Returns the idle detection of the most specific sections; `None`: none of them gives a key about it.
    pub fn resolve_idle(&self, problems: &mut ProblemList<'_>) -> Option<IdlePlan> {
        if self.sections().all(|(_, policy)| policy.idle.is_empty()) {
            return None;
        }
        fn nearest<'r, T>(
            layers: &'r TenantLayers<'_>,
            get: impl Fn(&'r RawIdle) -> Option<&'r T>,
        ) -> Option<(&'static str, &'r T)> {
            layers.sections().find_map(|(section, policy)| Some((section, get(&policy.idle)?)))
        }
        let usual = IdlePlan::default();
        let steps = nearest(self, |idle| idle.idle_steps.as_ref());
        let suspend = nearest(self, |idle| idle.idle_suspend.as_ref());
        if let Some((section, list)) = steps
            && let Some(at) = list.value.iter().find(|at| at.value.kind == StepKind::Suspend)
            && suspend.is_none()
        {
            let accepted = "a section with idle_suspend = [\"/PROGRAM\", ...]";
            problems.wrong_value(at.place, format!("{section}.idle_steps"), "has no program that suspends", accepted);
        }
        let mut steps: Vec<_> = steps.into_iter().flat_map(|(_, list)| &list.value).map(|at| at.value).collect();
        steps.sort_by_key(|step| (step.after, step.kind));
        Some(IdlePlan {
            idle_after: nearest(self, |idle| idle.idle_minutes.as_ref()).map_or(usual.idle_after, |(_, at)| at.value),
            idle_below: nearest(self, |idle| idle.idle_threshold.as_ref()).map_or(usual.idle_below, |(_, at)| at.value),
            over_after: nearest(self, |idle| idle.over_minutes.as_ref()).map_or(usual.over_after, |(_, at)| at.value),
            over_from: nearest(self, |idle| idle.over_threshold.as_ref()).map_or(usual.over_from, |(_, at)| at.value),
            stalled_after: nearest(self, |idle| idle.stalled_minutes.as_ref())
                .map_or(usual.stalled_after, |(_, at)| at.value),
            steps,
            suspend: suspend.into_iter().flat_map(|(_, words)| words).map(|at| at.value.clone()).collect(),
            grace: nearest(self, |idle| idle.idle_grace.as_ref()).map_or(usual.grace, |(_, at)| at.value),
            dry_run: nearest(self, |idle| idle.idle_dry_run.as_ref()).is_some_and(|(_, at)| at.value),
        })
    }
}

/// Returns the deadlines, by the place of the tenant's name. One that is over is an error unless
/// [`Surroundings::kept_deadlines`] has it: a daemon that starts again must not refuse a file that it served before.
pub(super) fn resolve_deadlines(
    raw: &RawFile,
    around: &Surroundings,
    problems: &mut ProblemList<'_>,
    notes: &mut Vec<String>,
) -> HashMap<TextRange, DeadlinePlan> {
    let mut deadlines = HashMap::new();
    for tenant in &raw.tenants {
        let needs = |key: &str, at: TextRange, other: &str, problems: &mut ProblemList<'_>| {
            problems.wrong_key(at, format!("tenant.{key}"), format!("needs tenant.{other}"), "both, or neither");
        };
        let (due, needed_ns) = match (&tenant.deadline, &tenant.gpu_hours_needed) {
            (Some(due), Some(needed)) => (due, needed.value),
            (Some(due), None) => {
                needs("deadline", due.place, "gpu_hours_needed", problems);
                continue;
            }
            (None, Some(needed)) => {
                needs("gpu_hours_needed", needed.place, "deadline", problems);
                continue;
            }
            (None, None) => continue,
        };
        let Some(name) = &tenant.name else { continue };
        let zone = around.zone.clone().unwrap_or(TimeZone::UTC);
        let Ok(at) = zone.to_timestamp(due.value) else {
            problems.wrong_value(due.place, "tenant.deadline", "is out of range", "a date of this century");
            continue;
        };
        let at = at.as_second();
        if around.now.is_some_and(|now| at <= now) {
            let slots = super::slot_names(name, tenant.replicas.as_ref());
            let is_kept = |slot: &At<String>| around.kept_deadlines.contains(&(slot.value.clone(), at));
            if slots.iter().all(is_kept) {
                notes.push(format!("tenant {}: its deadline is over and has no effect", name.value));
            } else {
                problems.wrong_value(due.place, "tenant.deadline", "is in the past", "a time to come");
                continue;
            }
        }
        deadlines.insert(name.place, DeadlinePlan { due: at, needed_ns });
    }
    deadlines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::make_plan;
    use crate::plan::ConfigPlan;

    fn plan_at(now: Option<i64>, kept: &[(&str, i64)], text: &str) -> Result<ConfigPlan, String> {
        let kept_deadlines = kept.iter().map(|(name, due)| ((*name).to_owned(), *due)).collect();
        let around = Surroundings { run_dir: "/run/vgpu".into(), now, kept_deadlines, ..Surroundings::default() };
        make_plan(text, &around).map_err(|report| report.to_lines("f"))
    }

    fn plan(text: &str) -> Result<ConfigPlan, String> {
        plan_at(None, &[], text)
    }

    /// Row 84: a deadline in the past is an error with its place.
    #[test]
    fn a_deadline_in_the_past_is_refused_with_its_place_unless_it_is_known() {
        let text = "[[tenant]]\nname = \"a\"\ndeadline = \"2026-12-01 09:00\"\ngpu_hours_needed = 1.5\n";
        let due = 1_796_115_600;
        let known = DeadlinePlan { due, needed_ns: 5_400_000_000_000 };
        assert_eq!(plan_at(Some(due - 1), &[], text).unwrap().tenants[0].usage.deadline, Some(known));
        let told = plan_at(Some(due), &[], text).unwrap_err();
        assert_eq!(told, "f:3:12: tenant.deadline = \"2026-12-01 09:00\" is in the past; accepted: a time to come\n");
        assert!(plan_at(Some(due), &[("a", due - 1), ("b", due)], text).is_err(), "another deadline is not this one");
        let kept = plan_at(Some(due), &[("a", due)], text).unwrap();
        assert!(kept.notes.iter().any(|note| note == "tenant a: its deadline is over and has no effect"));
    }

    #[test]
    fn a_deadline_needs_its_hours_and_hours_need_their_deadline() {
        let told = plan("[[tenant]]\nname = \"a\"\ndeadline = \"2026-12-01 09:00\"\n").unwrap_err();
        assert!(told.contains("f:3:12: tenant.deadline needs tenant.gpu_hours_needed"), "{told}");
        let told = plan("[[tenant]]\nname = \"a\"\ngpu_hours_needed = 3\n").unwrap_err();
        assert!(told.contains("f:3:20: tenant.gpu_hours_needed needs tenant.deadline"), "{told}");
    }

    /// Rows 50 and 51: the documents' keys with the documents' defaults.
    #[test]
    fn idle_minutes_are_2_below_20_percent_and_over_minutes_3_from_80_percent_on() {
        let idle = |text: &str| plan(text).unwrap().tenants[0].usage.idle.clone();
        assert_eq!(idle("[[tenant]]\nname = \"a\"\n"), None, "never without configuration");
        let usual = idle("[[tenant]]\nname = \"a\"\nidle_steps = [\"event\"]\n").unwrap();
        assert_eq!((usual.idle_after.as_secs(), usual.idle_below.as_permille()), (120, 200));
        assert_eq!((usual.over_after.as_secs(), usual.over_from.as_permille()), (180, 800));
        assert_eq!((usual.stalled_after.as_secs(), usual.dry_run), (600, false));
        let nearest = idle(
            "[defaults]\nidle_minutes = 5\nidle_threshold = 10\n[template.t]\nidle_minutes = 4\nidle_dry_run = true\n\
             [[tenant]]\nname = \"a\"\ntemplate = \"t\"\nidle_minutes = 0.5\n",
        );
        let nearest = nearest.unwrap();
        assert_eq!((nearest.idle_after, nearest.idle_below.as_permille()), (Duration::from_secs(30), 100));
        assert!(nearest.dry_run);
    }

    #[test]
    fn a_suspend_step_needs_its_program() {
        let told = plan("[[tenant]]\nname = \"a\"\nidle_steps = [\"lower\", \"suspend after 1h\"]\n").unwrap_err();
        assert!(told.contains("f:3:24: tenant.idle_steps = \"suspend after 1h\" has no program"), "{told}");
        let with = "[defaults]\nidle_suspend = [\"/bin/true\", \"x\"]\n\
                    [[tenant]]\nname = \"a\"\nidle_steps = [\"suspend after 1h\", \"lower\"]\n";
        let idle = plan(with).unwrap().tenants[0].usage.idle.clone().unwrap();
        assert_eq!(idle.suspend, ["/bin/true", "x"]);
        assert_eq!(idle.steps.iter().map(|step| step.to_words()).collect::<Vec<_>>(), ["lower", "suspend after 3600s"]);
    }
}
