//! Policies of a tenant that follow its use: idle steps, and a deadline.
//!
//! The crate `vgpu-policy` decides by them. Not here: the syntax of the values ([`crate::value`]).

use std::time::Duration;

use vgpu_core::units::share::Share;

use super::problem::At;

/// Time below the threshold after which a tenant counts as idle, if the file gives none.
pub const DEFAULT_IDLE_AFTER: Duration = Duration::from_secs(2 * 60);

/// Part of what it may use below which a tenant counts as idle, in thousandths, if the file gives none.
pub const DEFAULT_IDLE_PERMILLE: u32 = 200;

/// Time above the threshold after which a tenant counts as over-used, if the file gives none.
pub const DEFAULT_OVER_AFTER: Duration = Duration::from_secs(3 * 60);

/// Part of what it may use from which on a tenant counts as over-used, in thousandths, if the file gives none.
pub const DEFAULT_OVER_PERMILLE: u32 = 800;

/// Time without progress after which a tenant with queued work counts as stalled, if the file gives none.
pub const DEFAULT_STALLED_AFTER: Duration = Duration::from_secs(10 * 60);

/// Time between SIGTERM and SIGKILL, if the file gives none.
pub const DEFAULT_IDLE_GRACE: Duration = Duration::from_secs(30);

/// A step that is taken against a tenant that does not use what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepKind {
    /// Nothing but the event.
    Event,
    /// The least weight, and class `batch`.
    Lower,
    /// The tenant's memory is marked as reclaimable.
    Reclaimable,
    /// A helper program suspends the processes.
    Suspend,
    /// The processes get SIGTERM, and SIGKILL after the grace.
    Terminate,
}

impl StepKind {
    /// All steps, with the words of the file.
    pub const WORDS: [(&str, Self); 5] = [
        ("event", Self::Event),
        ("lower", Self::Lower),
        ("reclaimable", Self::Reclaimable),
        ("suspend", Self::Suspend),
        ("terminate", Self::Terminate),
    ];

    /// Returns the step as the file writes it.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    /// True if a launch would be lost or would fail, so that the step needs a tenant that launches nothing.
    #[must_use]
    pub const fn is_harmful(self) -> bool {
        matches!(self, Self::Suspend | Self::Terminate)
    }
}

/// A step and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleStep {
    /// The step.
    pub kind: StepKind,
    /// Time from the event to the step.
    pub after: Duration,
}

impl IdleStep {
    /// Returns the step as the file writes it.
    #[must_use]
    pub fn to_words(self) -> String {
        let (word, seconds) = (self.kind.word(), self.after.as_secs());
        match seconds {
            0 => word.to_owned(),
            seconds => format!("{word} after {seconds}s"),
        }
    }
}

/// Keys about idle tenants, as written. `None`: the section does not give the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawIdle {
    /// Time below the threshold after which the tenant counts as idle.
    pub idle_minutes: Option<At<Duration>>,
    /// Part of what it may use below which it is idle.
    pub idle_threshold: Option<At<Share>>,
    /// Time above the threshold after which it counts as over-used.
    pub over_minutes: Option<At<Duration>>,
    /// Part of what it may use from which on it is over-used.
    pub over_threshold: Option<At<Share>>,
    /// Time without progress after which it counts as stalled.
    pub stalled_minutes: Option<At<Duration>>,
    /// Steps against it.
    pub idle_steps: Option<At<Vec<At<IdleStep>>>>,
    /// Program of the step `suspend`, with its arguments.
    pub idle_suspend: Option<Vec<At<String>>>,
    /// Time between SIGTERM and SIGKILL.
    pub idle_grace: Option<At<Duration>>,
    /// True if steps beyond the event are only told.
    pub idle_dry_run: Option<At<bool>>,
}

impl RawIdle {
    /// True if the section gives none of the keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// When a tenant counts as idle, stalled or over-used, and the steps that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdlePlan {
    /// Time below the threshold after which it counts as idle.
    pub idle_after: Duration,
    /// Part of what it may use below which it is idle.
    pub idle_below: Share,
    /// Time at or above the threshold after which it counts as over-used.
    pub over_after: Duration,
    /// Part of what it may use from which on it is over-used.
    pub over_from: Share,
    /// Time without progress after which it counts as stalled.
    pub stalled_after: Duration,
    /// Steps against it while it is idle or stalled, the mildest first.
    pub steps: Vec<IdleStep>,
    /// Program of the step `suspend`, with its arguments; empty: none.
    pub suspend: Vec<String>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// True if steps beyond the event are only told.
    pub dry_run: bool,
}

impl Default for IdlePlan {
    fn default() -> Self {
        let share = |permille| Share::from_permille(permille).unwrap_or(Share::WHOLE_DEVICE);
        Self {
            idle_after: DEFAULT_IDLE_AFTER,
            idle_below: share(DEFAULT_IDLE_PERMILLE),
            over_after: DEFAULT_OVER_AFTER,
            over_from: share(DEFAULT_OVER_PERMILLE),
            stalled_after: DEFAULT_STALLED_AFTER,
            steps: Vec::new(),
            suspend: Vec::new(),
            grace: DEFAULT_IDLE_GRACE,
            dry_run: false,
        }
    }
}

/// Work with a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlinePlan {
    /// Due time, in seconds since 1970.
    pub due: i64,
    /// Device time that the work needs, in ns.
    pub needed_ns: u64,
}

/// Policies of a tenant that follow its use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsagePlan {
    /// Idle detection and its steps; `None`: the tenant's use is not followed.
    pub idle: Option<IdlePlan>,
    /// Its deadline.
    pub deadline: Option<DeadlinePlan>,
}
