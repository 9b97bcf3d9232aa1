//! Resolves the sections `[[on_event]]`: finds the kinds of events that each word stands for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::action::{ActionPlan, DEFAULT_ACTION_TIMEOUT, DEFAULT_RUNS_AT_ONCE, RawAction};
use crate::problem::{At, ProblemList};
use crate::suggest::nearest_word;

/// Subject of the events about findings.
const PROOF_SUBJECT: &str = "proof";

/// Another word for [`PROOF_SUBJECT`], as `vgpu status` calls them.
const FINDING_WORD: &str = "finding";

/// Returns the actions of a file. `kinds` are the kinds of events that may start a program.
pub(super) fn resolve_actions(
    raw: &[RawAction],
    kinds: &[&'static str],
    problems: &mut ProblemList<'_>,
) -> Vec<ActionPlan> {
    let mut subjects: BTreeSet<&str> = kinds.iter().filter_map(|kind| kind.split('.').next()).collect();
    subjects.extend(subjects.contains(PROOF_SUBJECT).then_some(FINDING_WORD));
    let mut actions = Vec::new();
    for action in raw {
        let Some(events) = &action.events else { continue };
        let found: Vec<_> = events.iter().map(|event| find_kinds(event, kinds, &subjects, problems)).collect();
        let Some(exec) = &action.exec else { continue };
        actions.push(ActionPlan {
            events: values_of(events),
            kinds: found.into_iter().flatten().collect(),
            exec: values_of(exec),
            timeout: action.timeout.as_ref().map_or(DEFAULT_ACTION_TIMEOUT, |at| Duration::from_nanos(at.value)),
            at_once: action.at_once.as_ref().map_or(DEFAULT_RUNS_AT_ONCE, |at| at.value),
        });
    }
    actions
}

/// Returns the kinds that a word of `events` stands for, and reports a word that stands for none.
fn find_kinds(
    event: &At<String>,
    kinds: &[&'static str],
    subjects: &BTreeSet<&str>,
    problems: &mut ProblemList<'_>,
) -> Vec<&'static str> {
    let word = if event.value == FINDING_WORD { PROOF_SUBJECT } else { event.value.as_str() };
    let is_meant = |kind: &&&'static str| **kind == event.value || kind.split('.').next() == Some(word);
    let found: Vec<&'static str> = kinds.iter().filter(is_meant).copied().collect();
    if !found.is_empty() {
        return found;
    }
    let known = || subjects.iter().copied().chain(kinds.iter().copied());
    let meant = if problems.is_full() { None } else { nearest_word(&event.value, known()) };
    let what = match meant {
        _ if event.value.split('.').next() == Some("action") => {
            "is told about actions and starts none, so that no action starts itself".to_owned()
        }
        Some(meant) => format!("is no kind of event that starts an action (did you mean {meant:?}?)"),
        None => "is no kind of event that starts an action".to_owned(),
    };
    let accepted = format!(
        "subjects: {}; or kinds: {}",
        subjects.iter().copied().collect::<Vec<_>>().join(", "),
        kinds.join(", ")
    );
    problems.wrong_value(event.place, "on_event.events", what, accepted);
    Vec::new()
}

fn values_of(list: &[At<String>]) -> Vec<String> {
    list.iter().map(|at| at.value.clone()).collect()
}
