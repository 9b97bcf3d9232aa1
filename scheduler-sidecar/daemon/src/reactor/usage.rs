//! Asks the policies that follow use, once a second.

use std::time::{Duration, Instant};

use vgpu_policy::usage::UsageChange;

use super::Reactor;
use super::policies::ChangeNote;

/// Time between two looks at use. Policies follow minutes and hours, so a second is soon enough.
pub(super) const USAGE_PERIOD: Duration = Duration::from_secs(1);

impl Reactor {
    /// Asks the policies that follow use, if a second has passed since the last time, and puts what changed in force.
    pub(super) fn follow_usage(&mut self) {
        let now = Instant::now();
        if self.policies.next_usage.is_none_or(|next| now < next) {
            return;
        }
        self.policies.next_usage = Some(now + USAGE_PERIOD);
        let (groups, needs) = (self.follows_groups(), self.has_needs());
        if groups {
            self.follow_groups();
        }
        if needs {
            self.follow_needs();
        } else {
            // The last followed tenant lost its keys by the last decision.
            self.policies.needs.forget_use(&self.journal);
        }
        // Usually nothing changes, so the lists are compared without a copy. A decision also stops the looks at use
        // when no policy needs them any more.
        if !(groups || needs) || !self.usage_changes().eq(&self.policies.usage) {
            self.policies.usage = self.usage_changes().cloned().collect();
            self.apply_policies(&ChangeNote::default());
        }
    }

    /// Makes the loop follow use if a policy does, or stop following it. A look that is planned keeps its time: a
    /// decision alone changes no use.
    pub(super) fn follow_usage_if_configured(&mut self) {
        let (groups, needs) = (self.follows_groups(), self.has_needs());
        if !groups {
            self.groups.stop();
        }
        let state = &mut self.policies;
        if !needs {
            state.needs.forget_use(&self.journal);
        }
        if groups || needs {
            state.next_usage.get_or_insert_with(Instant::now);
        } else {
            state.next_usage = None;
            state.usage.clear();
        }
    }

    /// Makes the next look at use due at once, after another file or a new tenant: the file may be about use, and the
    /// tenant may belong to a group that is restricted.
    pub(super) fn follow_usage_at_once(&mut self) {
        if let Some(next) = &mut self.policies.next_usage {
            *next = Instant::now();
        }
    }

    /// The changes of all policies that follow use, groups first.
    fn usage_changes(&self) -> impl Iterator<Item = &UsageChange> {
        let needs = &self.policies.needs;
        self.groups.changes().chain(needs.deadlines.changes()).chain(needs.idle.changes())
    }
}
