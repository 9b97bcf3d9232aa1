//! The built-in templates, one for each usual kind of work.
//!
//! A `[template.NAME]` of the file replaces the built-in one of that name as a whole. Built-in templates set no limit
//! and no floor, since those depend on the device. docs/actions.md has the reasons for the values.

use std::sync::LazyLock;
use std::time::Duration;

use vgpu_core::time::arbiter::Class;

use super::problem::{At, TextRange};
use super::raw::{RawPolicy, RawTemplate, RawTerms};
use super::usage::{IdleStep, RawIdle, StepKind};

const NS_PER_MS: u64 = 1_000_000;

/// Values of a built-in template.
struct TemplateValues {
    name: &'static str,
    class: Class,
    weight: u32,
    /// Length of leases in ns; `None`: that of the class.
    quantum: Option<u64>,
    /// Minutes below the idle threshold after which a tenant counts as idle.
    idle_minutes: u64,
    /// Steps against it. None of them ends or delays a launch of a tenant that is busy.
    idle_steps: &'static [StepKind],
}

const VALUES: [TemplateValues; 4] = [
    // Bursts of somebody who waits, and long pauses, in which it stands back.
    TemplateValues {
        name: "notebook",
        class: Class::Normal,
        weight: 1,
        quantum: None,
        idle_minutes: 10,
        idle_steps: &[StepKind::Lower, StepKind::Reclaimable],
    },
    // Many short requests: first in line, and short leases, so that services wait little for each other. A quiet
    // service must answer its next request at once.
    TemplateValues {
        name: "serving",
        class: Class::Latency,
        weight: 1,
        quantum: Some(NS_PER_MS),
        idle_minutes: 30,
        idle_steps: &[StepKind::Event],
    },
    // Never idle: last in line, with long leases, which change hands rarely. Four times the part of a test run.
    TemplateValues {
        name: "training",
        class: Class::Batch,
        weight: 4,
        quantum: Some(20 * NS_PER_MS),
        idle_minutes: 10,
        idle_steps: &[StepKind::Event],
    },
    // Nobody waits for it: last in line, with the smallest part.
    TemplateValues {
        name: "ci",
        class: Class::Batch,
        weight: 1,
        quantum: None,
        idle_minutes: 10,
        idle_steps: &[StepKind::Reclaimable],
    },
];

/// The built-in templates, as the file would write them.
pub static BUILT_IN_TEMPLATES: LazyLock<Vec<RawTemplate>> = LazyLock::new(|| {
    let template = |values: TemplateValues| {
        let terms = RawTerms {
            class: Some(built_in(values.class)),
            weight: Some(built_in(values.weight)),
            quantum: values.quantum.map(built_in),
            ..RawTerms::default()
        };
        let step = |kind: &StepKind| built_in(IdleStep { kind: *kind, after: Duration::ZERO });
        let idle = RawIdle {
            idle_minutes: Some(built_in(Duration::from_secs(60 * values.idle_minutes))),
            idle_steps: Some(built_in(values.idle_steps.iter().map(step).collect())),
            ..RawIdle::default()
        };
        RawTemplate { name: values.name.to_owned(), policy: RawPolicy { terms, idle, ..RawPolicy::default() } }
    };
    VALUES.into_iter().map(template).collect()
});

/// Returns all templates in force, those of the file first.
pub fn all_templates(file: &[RawTemplate]) -> impl Iterator<Item = &RawTemplate> {
    let is_replaced = |built_in: &&RawTemplate| file.iter().any(|template| template.name == built_in.name);
    file.iter().chain(BUILT_IN_TEMPLATES.iter().filter(move |built_in| !is_replaced(built_in)))
}

/// A value that no file contains.
fn built_in<T>(value: T) -> At<T> {
    At { value, place: TextRange::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make_plan;
    use crate::resolve::Surroundings;

    #[test]
    fn a_tenant_of_a_built_in_template_has_the_terms_and_the_idle_steps_of_its_kind_of_work() {
        for (name, terms, minutes, steps) in [
            ("notebook", (Class::Normal, 1, None), 10, "lower, reclaimable"),
            ("serving", (Class::Latency, 1, Some(1_000_000)), 30, "event"),
            ("training", (Class::Batch, 4, Some(20_000_000)), 10, "event"),
            ("ci", (Class::Batch, 1, None), 10, "reclaimable"),
        ] {
            let file = format!("[[tenant]]\nname = \"a\"\ntemplate = {name:?}\n");
            let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
            let plan = make_plan(&file, &around).unwrap_or_else(|report| panic!("{}", report.to_lines("f")));
            let own = &plan.tenants[0].terms[0];
            assert_eq!((own.class, own.weight, own.quantum), terms, "{name}");
            assert_eq!((own.memory, own.ceiling, own.floor), (None, None, None), "{name}: those depend on the device");
            let idle = plan.tenants[0].usage.idle.as_ref().unwrap();
            let words: Vec<_> = idle.steps.iter().map(|step| step.to_words()).collect();
            assert_eq!((idle.idle_after.as_secs() / 60, words.join(", ").as_str()), (minutes, steps), "{name}");
        }
    }
}
