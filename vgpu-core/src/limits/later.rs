//! What a program changes in its own environment after its start: that can tighten its limits and never loosen them.

use super::RawLimits;

impl RawLimits {
    /// True if a process that was started with these variables is held, measured, or a daemon's. Then the start decides,
    /// and later changes only tighten.
    #[must_use]
    pub fn decides(&self) -> bool {
        self.daemon_named || self.asked_for_anything()
    }

    /// These limits of the start, beside those of the changed environment: for each device the lower limit holds, and the
    /// stricter mode.
    #[must_use]
    pub fn tightened(mut self, later: Self) -> Self {
        self.later = Some(Box::new(later));
        self
    }

    /// True if these are the limits of a start and of what the program changed later.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.later.is_some()
    }
}
