//! Keeps the device time that the work for a deadline got, so that the next daemon goes on counting.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tracing::warn;
use vgpu_config::usage::DeadlinePlan;
use vgpu_policy::deadline::DeadlineState;

use crate::state_file::StateFile;

/// Name of the file, in the directory of state.
const FILE_NAME: &str = "deadlines.json";

/// A deadline, and what its work got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptDeadline {
    /// Due time, in seconds since 1970.
    pub due: i64,
    /// Device time that the work needs, in ns.
    pub needed_ns: u64,
    /// Device time that it got, in ns.
    pub received_ns: u64,
    /// True if an event told that its floor is not admissible.
    #[serde(default)]
    pub told_at_risk: bool,
    /// True if an event told its end: the work is done, or cannot be done in time.
    #[serde(default)]
    pub told_end: bool,
}

impl KeptDeadline {
    /// The count for a plan, from the one before. A deadline that was over began a work of its own; otherwise it is the
    /// same work with another time or size.
    pub fn continue_for(before: Option<&Self>, plan: &DeadlinePlan, now: i64) -> Self {
        let DeadlinePlan { due, needed_ns } = *plan;
        let fresh = Self { due, needed_ns, ..Self::default() };
        match before {
            Some(before) if (before.due, before.needed_ns) == (due, needed_ns) => *before,
            Some(before) if before.due > now && before.received_ns < before.needed_ns => {
                Self { received_ns: before.received_ns, ..fresh }
            }
            _ => fresh,
        }
    }

    /// Notes a state; true if it must be told. Work that is on time again forgets that its end was told, so that the
    /// real end is told too.
    pub fn is_news(&mut self, state: DeadlineState) -> bool {
        let told = match state {
            DeadlineState::OnTime => {
                self.told_end = false;
                return false;
            }
            DeadlineState::AtRisk => &mut self.told_at_risk,
            DeadlineState::Missed { .. } | DeadlineState::Met => &mut self.told_end,
        };
        !std::mem::replace(told, true)
    }
}

/// All counts, by the tenant's name.
pub type KeptDeadlines = BTreeMap<String, KeptDeadline>;

/// The file of the counts.
#[derive(Debug)]
pub struct DeadlineStore(StateFile);

impl DeadlineStore {
    /// The store in the directory of state.
    pub fn below(state_dir: &Path) -> Self {
        Self(StateFile::below(state_dir, FILE_NAME))
    }

    /// Reads what the last daemon kept.
    pub fn read_all(&self) -> KeptDeadlines {
        self.0.read_or_put_aside("device times of deadlines cannot be read, and are counted from now on")
    }

    /// Reads the tenants and due times that the last daemon kept, and changes nothing; none if it cannot be read.
    pub fn read_due_times(&self) -> Vec<(String, i64)> {
        let kept: KeptDeadlines = self.0.read().unwrap_or_default();
        kept.into_iter().map(|(tenant, kept)| (tenant, kept.due)).collect()
    }

    /// Writes the counts, for a daemon after this one.
    pub fn save(&self, kept: &KeptDeadlines) {
        if let Err(why) = self.0.save_soon(kept) {
            warn!(%why, "device times of deadlines cannot be stored; the next daemon would count from earlier ones");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_told_once_and_again_after_the_work_was_on_time() {
        let mut kept = KeptDeadline::default();
        let mut told = |state| kept.is_news(state);
        let missed = DeadlineState::Missed { since: 0 };
        assert_eq!([told(DeadlineState::OnTime), told(missed), told(missed)], [false, true, false]);
        assert!(!told(DeadlineState::Met), "late work is still missed");
        assert_eq!(
            [told(DeadlineState::OnTime), told(DeadlineState::Met)],
            [false, true],
            "a new sm_limit let it be met"
        );
        assert_eq!([told(DeadlineState::AtRisk), told(DeadlineState::AtRisk)], [true, false]);
    }

    #[test]
    fn another_time_for_unfinished_work_keeps_its_count_and_new_work_begins_at_nothing() {
        let before = KeptDeadline { due: 100, needed_ns: 50, received_ns: 20, told_at_risk: true, told_end: false };
        let plan = |due, needed_ns| DeadlinePlan { due, needed_ns };
        let next = |plan, now| KeptDeadline::continue_for(Some(&before), &plan, now);
        assert_eq!(next(plan(100, 50), 10), before);
        assert_eq!(next(plan(100, 50), 1_000), before, "the same one, also when it is over");
        let later = next(plan(200, 60), 10);
        assert_eq!((later.due, later.received_ns, later.told_at_risk), (200, 20, false));
        assert_eq!(next(plan(200, 60), 100).received_ns, 0, "the earlier one was over");
        let done = KeptDeadline { received_ns: 50, ..before };
        assert_eq!(KeptDeadline::continue_for(Some(&done), &plan(200, 60), 10).received_ns, 0, "and so was this");
        assert_eq!(KeptDeadline::continue_for(None, &plan(5, 6), 0).needed_ns, 6);
    }
}
