//! Tells from samples of a tenant's use whether it is idle, stalled, hoarding or over-used, and which idle steps are
//! due.
//!
//! ```text
//! sample ──► IdleWatch ──► state: busy, idle, resident, stalled, starved, over-used, suspended
//!                     └──► steps that are due while it is idle, resident or stalled
//! ```
//!
//! Times are monotonic nanoseconds of the caller. An unknown use counts as busy, so that no step follows from it.
//!
//! A tenant whose samples differ in time alone rests: [`IdleWatch::rests_until`] is the moment at which time alone
//! changes something. The caller leaves out samples until then, and [`IdleWatch::pass_rest`] makes up for them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use vgpu_config::usage::{IdlePlan, IdleStep, StepKind};

use crate::usage::Restriction;

/// Points of the time over which over-use is averaged.
const WINDOW_POINTS: u64 = 60;

/// Sums and state of a tenant at one moment, over all its devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UseSample {
    /// Time of the sample, in ns.
    pub at: u64,
    /// Number of its processes, with those that have not come back to this daemon yet.
    pub members: usize,
    /// Number of processes that joined so far.
    pub joins: u64,
    /// Device time charged so far, in ns.
    pub charged_ns: u64,
    /// Device time charged so far, of each device in parts of its ceiling there, in ns; the largest of all devices.
    /// A tenant that uses all it may gains a second in each second.
    pub scaled_ns: u64,
    /// Time that its processes waited for permission to launch so far, in ns.
    pub waited_ns: u64,
    /// Number of launches so far.
    pub launches: u64,
    /// True if work of it is queued on a device.
    pub in_flight: bool,
    /// True if a process of it waits for permission to launch.
    pub waits: bool,
    /// Device memory that it holds, in bytes.
    pub memory: u64,
    /// Floor that it is promised, in thousandths of a device; 0: none.
    pub floor_permille: u32,
    /// True if it may not launch.
    pub is_paused: bool,
    /// True if all of its processes are suspended: their memory is off their devices, and their calls wait.
    pub is_suspended: bool,
    /// True if part of its use is not measured.
    pub is_unmeasured: bool,
}

/// Adds up device time in parts of what the tenant may use, for [`UseSample::scaled_ns`].
#[derive(Debug, Clone, Default)]
pub struct ScaledUse {
    last: BTreeMap<String, u64>,
    sum: u64,
}

impl ScaledUse {
    /// Takes the sums of the devices: name, device time charged so far in ns, and ceiling in thousandths. Of what they
    /// gained since the last call, the largest part of a ceiling counts.
    pub fn add_sums<'a>(&mut self, devices: impl Iterator<Item = (&'a str, u64, u32)>) -> u64 {
        let mut most = 0;
        for (device, charged, ceiling) in devices {
            let before = self.last.insert(device.to_owned(), charged).unwrap_or(charged);
            most = most.max(charged.saturating_sub(before).saturating_mul(1000) / u64::from(ceiling.max(1)));
        }
        self.sum = self.sum.saturating_add(most);
        self.sum
    }
}

/// State of a tenant's use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UseState {
    /// It uses its device, has no process, or its use is not known.
    #[default]
    Busy,
    /// It uses less than its threshold.
    Idle,
    /// It holds memory and launches nothing.
    Resident,
    /// Its work is queued on a device and makes no progress.
    Stalled,
    /// It waits for a device, and gets less than its floor or nothing.
    Starved,
    /// It uses all that it may.
    OverUsed,
    /// All of its processes are suspended.
    Suspended,
}

impl UseState {
    /// True if idle steps follow from the state.
    #[must_use]
    pub const fn has_steps(self) -> bool {
        matches!(self, Self::Idle | Self::Resident | Self::Stalled)
    }

    /// Returns the state in a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Idle => "idle",
            Self::Resident => "resident-idle",
            Self::Stalled => "stalled",
            Self::Starved => "starved",
            Self::OverUsed => "over-used",
            Self::Suspended => "suspended",
        }
    }
}

/// A time of idleness that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleEnd {
    /// Its length in seconds.
    pub seconds: u64,
    /// Bytes held multiplied by seconds since it was told.
    pub byte_seconds: u128,
}

/// Changes that a sample caused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseNews {
    /// The new state, with the state before; `None`: it is the same.
    pub change: Option<(UseState, UseState)>,
    /// The time of idleness that this sample ended.
    pub ended: Option<IdleEnd>,
    /// Steps that became due, the mildest first.
    pub steps: Vec<IdleStep>,
    /// True if processes that were asked to end are to be killed now.
    pub is_kill_due: bool,
}

/// Follows one tenant.
#[derive(Debug, Clone, Default)]
pub struct IdleWatch {
    last: Option<UseSample>,
    /// Time since which its use is below the threshold.
    low_since: Option<u64>,
    /// Time since which it launches nothing, nothing of it is queued, and no process joined.
    still_since: Option<u64>,
    /// Time since which its queued work makes no progress, and no process joined.
    stuck_since: Option<u64>,
    /// Time since which it waits and gets less than its floor.
    starved_since: Option<u64>,
    /// Points of the last minutes: time, and [`UseSample::scaled_ns`].
    window: VecDeque<(u64, u64)>,
    state: UseState,
    /// Time at which the first of the states with steps began, in ns.
    began: u64,
    taken: Vec<StepKind>,
    /// True if the last sample was taken in a dry run.
    was_dry_run: bool,
    /// End of the last dry run, in ns. Harmful steps count no time before it.
    dry_run_ended: u64,
    /// Time at which processes were asked to end, and whether they were killed.
    asked: Option<(u64, bool)>,
    /// Bytes held multiplied by seconds, in this time of idleness.
    hoarded: u128,
    /// True if the last sample differed from the one before in time alone, and caused nothing.
    is_steady: bool,
}

impl IdleWatch {
    /// State at the last sample.
    #[must_use]
    pub const fn state(&self) -> UseState {
        self.state
    }

    /// Steps that were taken and still hold.
    #[must_use]
    pub fn taken_steps(&self) -> &[StepKind] {
        &self.taken
    }

    /// True if the step was taken and still holds.
    #[must_use]
    pub fn has_taken(&self, kind: StepKind) -> bool {
        self.taken.contains(&kind)
    }

    /// Bytes held multiplied by seconds, since the tenant became idle.
    #[must_use]
    pub const fn hoarded_byte_seconds(&self) -> u128 {
        self.hoarded
    }

    /// Time for which the tenant has been idle, in seconds.
    #[must_use]
    pub fn idle_seconds(&self) -> u64 {
        let last = self.last.map_or(0, |last| last.at);
        let since = [self.low_since, self.still_since, self.stuck_since].into_iter().flatten().min();
        if self.state.has_steps() { last.saturating_sub(since.unwrap_or(last)) / 1_000_000_000 } else { 0 }
    }

    /// Bounds of the tenant's terms that its steps set; `None`: none.
    #[must_use]
    pub fn restriction(&self, plan: &IdlePlan) -> Option<Restriction> {
        let is_lowered = self.taken.contains(&StepKind::Lower) && !plan.dry_run;
        is_lowered.then_some(Restriction { weight: Some(1), is_batch: true, ..Restriction::default() })
    }

    /// True if the tenant's memory is marked as reclaimable.
    #[must_use]
    pub fn is_reclaimable(&self, plan: &IdlePlan) -> bool {
        self.taken.contains(&StepKind::Reclaimable) && !plan.dry_run
    }

    /// Time until which samples can be left out while they would differ from the last one in time alone, in ns;
    /// `None`: the next sample is needed.
    #[must_use]
    pub fn rests_until(&self, plan: &IdlePlan) -> Option<u64> {
        let last = self.last.filter(|_| self.is_steady)?;
        let end = |since: Option<u64>, span: Duration| since.map(|since| since.saturating_add(to_ns(span)));
        let harmless = self.harmless_since();
        let states = [
            end(self.stuck_since, plan.stalled_after),
            end(self.still_since, plan.idle_after),
            end(self.low_since, plan.idle_after),
            end(self.starved_since, plan.over_after),
            end(self.asked.filter(|(_, is_killed)| !is_killed).map(|(asked, _)| asked), plan.grace),
        ];
        let steps = plan.steps.iter().map(|step| match step.kind.is_harmful() {
            true => end(harmless, plan.idle_after.saturating_add(step.after)),
            false => end(Some(self.began), step.after),
        });
        let to_come = states.into_iter().chain(steps).flatten().filter(|at| *at > last.at);
        Some(to_come.min().unwrap_or(u64::MAX))
    }

    /// Makes up for samples that were left out, the last of them at `until`: they differed in time alone.
    pub fn pass_rest(&mut self, plan: &IdlePlan, until: u64) {
        let Some(last) = self.last.filter(|last| last.at < until) else { return };
        // The average is about the points of the last minutes, also of those without a sample.
        let (step, back) =
            ((to_ns(plan.over_after) / WINDOW_POINTS).max(1), self.window.back().map_or(until, |back| back.0));
        let passed = until.saturating_sub(back) / step;
        let points = passed.saturating_sub(WINDOW_POINTS) + 1..=passed;
        self.window.extend(points.map(|point| (back + point * step, last.scaled_ns)));
        self.take_sample(plan, UseSample { at: until, ..last });
    }

    /// Takes the next sample.
    pub fn take_sample(&mut self, plan: &IdlePlan, sample: UseSample) -> UseNews {
        let is_same = self.last.is_some_and(|last| UseSample { at: sample.at, ..last } == sample);
        if std::mem::replace(&mut self.was_dry_run, plan.dry_run) && !plan.dry_run {
            // Nobody expects a signal in the second after a dry run, so no step that was told is taken at once.
            self.taken.retain(|kind| !kind.is_harmful());
            self.dry_run_ended = sample.at;
        }
        let news = self.judge_sample(plan, sample);
        // Use within the last minutes changes their average as time passes.
        let is_level = self.window.front().is_none_or(|(_, sum)| *sum == sample.scaled_ns)
            && self.state != UseState::OverUsed
            && plan.over_from.part_of(to_ns(plan.over_after)) > 0;
        self.is_steady = is_same && is_level && !sample.waits && news == UseNews::default();
        news
    }

    fn judge_sample(&mut self, plan: &IdlePlan, sample: UseSample) -> UseNews {
        let before = self.state;
        let idle = IdleEnd { seconds: self.idle_seconds(), byte_seconds: self.hoarded };
        match self.last.filter(|last| last.at <= sample.at && last.charged_ns <= sample.charged_ns) {
            Some(last) if sample.members > 0 && !sample.is_unmeasured && !sample.is_paused && !sample.is_suspended => {
                self.note_use(plan, &last, &sample);
            }
            // The timers begin again: nothing is known about the time before.
            _ => self.forget_times(&sample),
        }
        self.last = Some(sample);
        self.state = self.judge_state(plan, &sample);
        let mut news = UseNews::default();
        if self.state != before {
            news.change = Some((before, self.state));
        }
        if !self.state.has_steps() {
            news.ended = before.has_steps().then_some(idle);
            (self.taken, self.asked, self.hoarded) = (Vec::new(), None, 0);
            return news;
        }
        if !before.has_steps() {
            self.began = sample.at;
        }
        self.collect_steps(plan, &sample, &mut news);
        news
    }

    fn forget_times(&mut self, sample: &UseSample) {
        (self.low_since, self.still_since) = (None, None);
        (self.stuck_since, self.starved_since) = (None, None);
        self.window = VecDeque::from([(sample.at, sample.scaled_ns)]);
    }

    fn note_use(&mut self, plan: &IdlePlan, last: &UseSample, now: &UseSample) {
        let passed = now.at - last.at;
        let has_progress = now.charged_ns > last.charged_ns || now.launches != last.launches;
        let is_stuck = now.in_flight && !has_progress;
        // Work that was queued for all of the time used the device, also if its time is measured at its end only.
        let wanted = now.scaled_ns.saturating_sub(last.scaled_ns) + now.waited_ns.saturating_sub(last.waited_ns);
        let is_low = !is_stuck && wanted < plan.idle_below.part_of(passed);
        let is_still = !has_progress && !now.in_flight && now.waited_ns == last.waited_ns;
        let promised = u64::from(now.floor_permille).saturating_mul(passed) / 1000;
        let got = now.charged_ns - last.charged_ns;
        let is_starved = now.waits && !now.in_flight && (got < promised || !has_progress);
        if now.joins != last.joins {
            // A process that just started has not been still. A step that would end it becomes due again later.
            (self.still_since, self.stuck_since) = (is_still.then_some(now.at), is_stuck.then_some(now.at));
            self.taken.retain(|kind| !kind.is_harmful());
        }
        let follow = |since: &mut Option<u64>, holds: bool| {
            *since = holds.then(|| since.unwrap_or(last.at));
        };
        follow(&mut self.low_since, is_low);
        follow(&mut self.still_since, is_still);
        follow(&mut self.stuck_since, is_stuck);
        follow(&mut self.starved_since, is_starved);
        if self.state.has_steps() {
            self.hoarded += u128::from(now.memory) * u128::from(passed) / 1_000_000_000;
        }
        let span = to_ns(plan.over_after);
        if self.window.back().is_none_or(|(at, _)| now.at - at >= span / WINDOW_POINTS) {
            self.window.push_back((now.at, now.scaled_ns));
        }
        while self.window.get(1).is_some_and(|(at, _)| now.at - at >= span) {
            self.window.pop_front();
        }
    }

    fn judge_state(&self, plan: &IdlePlan, now: &UseSample) -> UseState {
        let for_long =
            |since: Option<u64>, span: Duration| since.is_some_and(|since| now.at.saturating_sub(since) >= to_ns(span));
        if now.is_suspended {
            UseState::Suspended
        } else if for_long(self.stuck_since, plan.stalled_after) {
            UseState::Stalled
        } else if now.memory > 0 && for_long(self.still_since, plan.idle_after) {
            UseState::Resident
        } else if for_long(self.low_since, plan.idle_after) {
            UseState::Idle
        } else if for_long(self.starved_since, plan.over_after) {
            UseState::Starved
        } else if self.is_over(plan, now) {
            UseState::OverUsed
        } else {
            UseState::Busy
        }
    }

    /// True if the tenant used its threshold on average of the last minutes.
    fn is_over(&self, plan: &IdlePlan, now: &UseSample) -> bool {
        let Some((at, sum)) = self.window.front() else { return false };
        let passed = now.at.saturating_sub(*at);
        passed >= to_ns(plan.over_after) && now.scaled_ns.saturating_sub(*sum) >= plan.over_from.part_of(passed)
    }

    /// Time from which harmful steps count, in ns; `None`: one would lose a launch.
    fn harmless_since(&self) -> Option<u64> {
        let since = [self.still_since, self.stuck_since].into_iter().flatten().min();
        since.map(|since| since.max(self.dry_run_ended))
    }

    fn collect_steps(&mut self, plan: &IdlePlan, now: &UseSample, news: &mut UseNews) {
        // A reload dropped these steps, so they do not hold any longer.
        self.taken.retain(|kind| plan.steps.iter().any(|step| step.kind == *kind));
        let harmless = self.harmless_since();
        let needed = |after: Duration| to_ns(plan.idle_after.saturating_add(after));
        for step in &plan.steps {
            let is_due = if step.kind.is_harmful() {
                harmless.is_some_and(|since| now.at.saturating_sub(since) >= needed(step.after))
            } else {
                now.at.saturating_sub(self.began) >= to_ns(step.after)
            };
            let is_apt = step.kind != StepKind::Reclaimable || now.memory > 0;
            if is_due && is_apt && step.kind != StepKind::Event && !self.taken.contains(&step.kind) {
                self.taken.push(step.kind);
                news.steps.push(*step);
                if step.kind == StepKind::Terminate && !plan.dry_run {
                    self.asked = Some((now.at, false));
                }
            }
        }
        if plan.dry_run || !plan.steps.iter().any(|step| step.kind == StepKind::Terminate) {
            // The plan changed within the grace. A step that is only told, or is gone, kills nothing.
            self.asked = None;
        }
        if harmless.is_none() {
            // It launches again, below its threshold: what would lose a launch does not hold any longer.
            self.taken.retain(|kind| !kind.is_harmful());
            self.asked = None;
        }
        if let Some((asked, is_killed @ false)) = &mut self.asked
            && now.at.saturating_sub(*asked) >= to_ns(plan.grace)
        {
            *is_killed = true;
            news.is_kill_due = true;
        }
    }
}

fn to_ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
