//! The built-in templates, one for each usual kind of work.
//!
//! A `[template.NAME]` of the file replaces the built-in one of that name as a whole. Built-in templates set no limit
//! and no floor, since those depend on the device. docs/actions.md has the reasons for the values.

use std::sync::LazyLock;

use vgpu_core::time::arbiter::Class;

use super::problem::{At, TextRange};
use super::raw::{RawPolicy, RawTemplate, RawTerms};

const NS_PER_MS: u64 = 1_000_000;

/// Name, class, weight and length of leases in ns (`None`: that of the class) of each built-in template.
const VALUES: [(&str, Class, u32, Option<u64>); 4] = [
    // Bursts of somebody who waits, and long pauses: like a tenant without a template.
    ("notebook", Class::Normal, 1, None),
    // Many short requests: first in line, and short leases, so that services wait little for each other.
    ("serving", Class::Latency, 1, Some(NS_PER_MS)),
    // Never idle: last in line, with long leases, which change hands rarely. Four times the part of a test run.
    ("training", Class::Batch, 4, Some(20 * NS_PER_MS)),
    // Nobody waits for it: last in line, with the smallest part.
    ("ci", Class::Batch, 1, None),
];

/// The built-in templates, as the file would write them.
pub static BUILT_IN_TEMPLATES: LazyLock<Vec<RawTemplate>> = LazyLock::new(|| {
    let template = |(name, class, weight, quantum): (&str, Class, u32, Option<u64>)| {
        let terms = RawTerms {
            class: Some(built_in(class)),
            weight: Some(built_in(weight)),
            quantum: quantum.map(built_in),
            ..RawTerms::default()
        };
        RawTemplate { name: name.to_owned(), policy: RawPolicy { terms, ..RawPolicy::default() } }
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
