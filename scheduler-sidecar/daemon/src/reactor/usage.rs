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
        let changes = self.usage_changes();
        if changes != self.policies.usage {
            self.policies.usage = changes;
            self.apply_policies(&ChangeNote::default());
        }
    }

    /// Makes the loop look at use at once if a policy follows it, or stops following it.
    pub(super) fn follow_usage_if_configured(&mut self) {
        let (groups, needs) = (self.follows_groups(), self.has_needs());
        if !groups {
            self.groups.stop();
        }
        let state = &mut self.policies;
        if !needs {
            state.needs.forget_use();
        }
        if groups || needs {
            // The change may be about use, and a new tenant may belong to a group that is restricted.
            state.next_usage = Some(Instant::now());
        } else {
            state.next_usage = None;
            state.usage.clear();
        }
    }

    /// Collects the changes of all policies that follow use, groups first.
    fn usage_changes(&mut self) -> Vec<UsageChange> {
        let mut changes = if self.follows_groups() { self.group_changes() } else { Vec::new() };
        if self.has_needs() {
            changes.extend(self.need_changes());
        }
        changes
    }
}
