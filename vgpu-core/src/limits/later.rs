//! Changes that a program makes to its own environment after its start: they can tighten its limits, never loosen
//! them.

use super::RawLimits;

impl RawLimits {
    /// True if the variables at the start limit or measure the process, or name a daemon. Then the start decides, and
    /// later changes only tighten.
    #[must_use]
    pub fn asks_for_enforcement(&self) -> bool {
        self.daemon_named || self.asked_for_anything()
    }

    /// Adds the changed environment to these limits of the start: for each device the lower limit holds, and the
    /// stricter mode.
    #[must_use]
    pub fn tightened_by(mut self, later: Self) -> Self {
        self.later = Some(Box::new(later));
        self
    }

    /// True if the program has changed its environment after its start.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.later.is_some()
    }
}
