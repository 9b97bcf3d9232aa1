//! When to record an event marker on a stream: after [`MARKER_INTERVAL_NS`] of estimated work, never by the number of
//! launches.
//!
//! Work between two markers is an interval; it is measured if it has a marker at both ends. Open work (no marker
//! after it yet) on a stream that turns out idle is a *tail*. A tail is charged by the learned cost of its launches,
//! because a marker recorded late would measure the program's pause. A program that synchronises after each short
//! launch produces only tails; one launch in each [`MARKER_INTERVAL_NS`] of them is measured.
//!
//! A tail that always follows a longer interval would never be measured, and its estimate never corrected. So
//! [`StreamMarkers::sample_tail`] occasionally places a marker after as many launches as the last tail had, instead
//! of after [`MARKER_INTERVAL_NS`]. Launches that were measured only a few times ([`CostGuess::doubt_of`]) begin at a
//! marker where possible, so that they are measured if the gate must wait for their end ([`StreamMarkers::close`]).
//!
//! If kernels are shorter than their launch calls, the device is idle between launches, and an interval's length is
//! host time. Such an interval ends with a marker that the device reaches right after its record ([`has_kept_up`]). It
//! is charged by its estimate. The next launch to measure waits for an idle stream ([`StreamMarkers::wants_idle`]).
//!
//! Not here: the events themselves, and which functions an interval teaches something about.

use crate::time::account::cost::{CostDoubt, CostGuess, is_far};
use crate::time::config::{BASE, MARKER_INTERVAL_NS, SHORT_LAUNCH_NS, small_part};

/// True if the device was nearly done when the end marker of an interval of several launches was recorded. It may then
/// have been idle between launches, so the interval's length is not device time. `after`: ns from the end of the
/// record's call until the device reached the marker. `length`: the interval, in ns. A program that launches less often
/// than every [`SHORT_LAUNCH_NS`] leaves its stream idle between launches, which are then measured one by one.
#[must_use]
pub const fn has_kept_up(launches: u32, after: u64, length: u64) -> bool {
    launches > 1 && after < small_part(length) && length < (launches as u64).saturating_mul(2 * SHORT_LAUNCH_NS)
}

/// Work after the last marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenInterval {
    /// Estimated device time of the work, in ns.
    pub estimate: u64,
    /// The confidence of that estimate.
    pub doubt: CostDoubt,
    /// True if a marker precedes it.
    pub measured: bool,
    /// Number of launches in the work.
    pub launches: u32,
    /// True if the work is to end after as many launches as the last tail had, so that a tail is measured.
    pub tail: bool,
    /// True if the work ends after this launch, with a marker.
    sample: bool,
}

impl OpenInterval {
    /// The device time of the interval's own launches, in ns. `length`: the interval's length; `spent`: the part of it
    /// that was not counted for another interval before; `all`: the estimate of the work that was launched into all
    /// streams in this interval. `has_begin`: the interval has its own begin marker; `is_apart`: no other work
    /// is known to lie between its markers.
    ///
    /// Streams that ran at the same time share it in proportion to their estimates. Otherwise the first interval
    /// counted would be charged the others' time as well. The others would be charged next to nothing, except for
    /// their work that is charged by its cost, which would be paid twice. The proportion is meaningless if the
    /// others' work has unknown cost, or did not run at the same time because it waits. The result is then `spent`,
    /// moved no further from the estimate than the proportion is. An interval with its own begin marker holds one
    /// launch, and the work on the device at that moment is not known to the microsecond. Its result is `spent`,
    /// unless another interval was counted for it, or other work is known to lie behind the marker.
    #[must_use]
    pub fn own_part(&self, has_begin: bool, is_apart: bool, all: u64, length: u64, spent: u64) -> u64 {
        let estimate = self.estimate;
        let is_told_apart = has_begin && is_apart && spent >= estimate / 2;
        if self.doubt.unknown > 0 || all <= estimate || is_told_apart {
            return spent;
        }
        let part = u128::from(length) * u128::from(estimate) / u128::from(all);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        if !has_begin && part >= estimate / 2 && part / 2 <= estimate {
            part
        } else if spent > estimate {
            spent.min(part.max(estimate))
        } else {
            spent.max(part.min(estimate))
        }
    }

    /// The device time that the interval shows as the cost of its launches. `part`: the result of [`Self::own_part`];
    /// `spent`: as there; `late`: the part of `spent`, in ns, in which other members were admitted as well. `bound`:
    /// the interval's length, if other work is known to lie behind its own begin marker.
    ///
    /// A bound is an upper limit, and teaches only what is far off. If each lower limit were learned, but no higher
    /// one, costs would drift below the truth.
    ///
    /// The launches had at least half of the device while others were admitted. Launches that took far longer than
    /// estimated cost at least the rest. Otherwise their estimate would stay too small, and they would run next to
    /// others every time.
    #[must_use]
    pub const fn shown_cost(&self, part: u64, spent: u64, late: u64, bound: Option<u64>) -> ShownCost {
        // Next to other work the proportion says little: the others' estimates may be far too high.
        let most = if bound.is_some() && spent > BASE.quantum && spent > part { spent } else { part };
        let is_far_off = self.doubt.unknown == 0 && is_far(most.saturating_sub(late / 2), self.estimate);
        if let (Some(length), false, 0) = (bound, is_far_off, self.doubt.unknown) {
            return ShownCost { ns: length, is_disturbed: late > 0 || !is_far(self.estimate, length) };
        }
        let ns = match (is_far_off, late) {
            (true, _) => spent.saturating_sub(late / 2),
            (false, 0) => part,
            (false, _) => spent,
        };
        ShownCost { ns, is_disturbed: late > 0 && !is_far_off }
    }
}

/// The cost of the launches of a measured interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownCost {
    /// Device time, in ns.
    pub ns: u64,
    /// True if it may be other work's: of the process itself, or of other members that were admitted meanwhile, of
    /// which several may have run, or have started sooner.
    pub is_disturbed: bool,
}

/// The markers of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMarkers {
    open: Option<OpenInterval>,
    /// Intervals with an end marker that were not yet seen complete.
    pending: u32,
    /// Estimated work since something was last measured.
    unsampled: u64,
    /// Launches of the last tail.
    tail: u32,
    /// Launches of the current tail that were sampled.
    sampled: u32,
    /// True if a tail that begins now is to be measured.
    samples: bool,
    /// True if the device had kept up with the host at the end of the last interval of several launches.
    keeps_up: bool,
}

/// Actions before a launch: work to charge, and a marker to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeforeLaunch {
    /// A tail that is over and must be charged by its estimate.
    pub tail: Option<OpenInterval>,
    /// True: record a begin marker.
    pub begin: bool,
}

impl StreamMarkers {
    /// True if the caller must ask the driver, before a launch, whether the stream is busy.
    #[must_use]
    pub const fn must_ask(&self) -> bool {
        self.open.is_some()
    }

    /// Decides about markers before a launch of `cost`.
    ///
    /// `idle`: the stream was found idle, or has nothing pending and nothing open. `clear`: all work of other streams
    /// on the device is measured. Work that is charged by its estimate must not also lie inside a measured interval,
    /// which would charge it twice.
    pub fn before_launch(&mut self, cost: CostGuess, idle: bool, clear: bool) -> BeforeLaunch {
        if !idle {
            // The stream was still busy after the caller's wait: do not ask for an idle stream again until the next
            // interval shows that the device keeps up.
            self.keeps_up &= self.open.is_none() || !self.wants_idle(cost.as_ns());
            // The stream is busy: its next interval begins at the last end marker.
            if self.open.is_none() {
                let tail = self.samples && clear && self.sampled == 0;
                self.begin_interval(clear, tail, false);
            }
            return BeforeLaunch::default();
        }
        let over = self.close_tail();
        let sample = cost.is_unknown() || clear && self.unsampled.saturating_add(cost.as_ns()) >= MARKER_INTERVAL_NS;
        let tail = self.samples && clear && !sample;
        let begin = sample || tail || clear && !cost.is_sure();
        self.begin_interval(begin, tail, sample);
        BeforeLaunch { tail: over, begin }
    }

    fn begin_interval(&mut self, measured: bool, tail: bool, sample: bool) {
        self.open = Some(OpenInterval { measured, tail, sample, ..OpenInterval::default() });
    }

    /// True if a launch of known cost, into a stream that is not idle, needs no marker.
    #[inline]
    #[must_use]
    pub const fn goes_on(&self, cost: u64) -> bool {
        match &self.open {
            Some(open) => {
                let is_marked = open.sample || open.tail || open.estimate.saturating_add(cost) >= MARKER_INTERVAL_NS;
                !is_marked && !self.wants_idle(cost)
            }
            None => false,
        }
    }

    /// Counts a launch for which [`StreamMarkers::goes_on`] returned true.
    #[inline]
    pub const fn go_on(&mut self, cost: u64) {
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_add(cost);
            open.launches = open.launches.wrapping_add(1);
            self.unsampled = self.unsampled.saturating_add(cost);
        }
    }

    /// How much work may be launched in addition to the open work without a marker; `None`: the next launch may need
    /// one.
    #[must_use]
    pub const fn unmarked_room(&self) -> Option<u64> {
        match &self.open {
            Some(open) if !open.sample && !open.tail && !self.wants_idle(0) => {
                Some((MARKER_INTERVAL_NS - 1).saturating_sub(open.estimate))
            }
            _ => None,
        }
    }

    /// Counts launches of known cost that were made without asking for each. If the interval in which they were
    /// allowed has ended, they belong to the next one, which then is not measured.
    pub const fn count_unasked(&mut self, estimate: u64, launches: u32) {
        match &mut self.open {
            Some(open) => {
                open.estimate = open.estimate.saturating_add(estimate);
                open.launches = open.launches.wrapping_add(launches);
            }
            None => {
                self.open = Some(OpenInterval {
                    estimate,
                    doubt: CostDoubt::NO_DOUBT,
                    measured: false,
                    launches,
                    tail: false,
                    sample: false,
                });
            }
        }
        self.unsampled = self.unsampled.saturating_add(estimate);
    }

    /// Counts a launch after it was made. Returns the interval that ends here with a marker, if one does.
    pub fn after_launch(&mut self, cost: CostGuess) -> Option<OpenInterval> {
        let open = self.open.get_or_insert_default();
        open.estimate = open.estimate.saturating_add(cost.as_ns());
        open.doubt = open.doubt.add_doubt(cost.doubt_of());
        self.unsampled = self.unsampled.saturating_add(cost.as_ns());
        open.launches = open.launches.wrapping_add(1);
        let is_tail = open.tail && open.launches >= self.tail;
        if open.estimate < MARKER_INTERVAL_NS && !open.sample && !is_tail && !cost.is_unknown() {
            return None;
        }
        self.close()
    }

    /// Ends the open interval after the work in flight, if there is one. For a stream that gets no more work for a
    /// while, when others wait to see the work complete.
    pub fn close(&mut self) -> Option<OpenInterval> {
        let open = self.open.take()?;
        if open.measured {
            self.unsampled = 0;
        }
        self.sampled = if open.tail { open.launches } else { 0 };
        self.pending += 1;
        Some(open)
    }

    /// Sets whether a tail that begins with the next launch is to be measured. Without effect while no tail has been
    /// seen.
    pub const fn sample_tail(&mut self, samples: bool) {
        self.samples = samples && self.tail > 0;
    }

    /// True if the open work is a tail that is being measured.
    #[inline]
    #[must_use]
    pub const fn samples_tail(&self) -> bool {
        matches!(self.open, Some(OpenInterval { tail: true, .. }))
    }

    /// The stream is idle: the open work was a tail.
    fn close_tail(&mut self) -> Option<OpenInterval> {
        let open = self.open.take();
        let launches = self.sampled.saturating_add(open.map_or(0, |open| open.launches));
        if launches > 0 {
            self.tail = launches;
        }
        self.sampled = 0;
        open
    }

    /// Measures the next launch, if possible, whatever the estimates say. An estimate near zero would otherwise never
    /// be measured again.
    pub fn sample_next(&mut self) {
        match &mut self.open {
            Some(open) => open.sample = true,
            None => self.unsampled = self.unsampled.max(MARKER_INTERVAL_NS),
        }
    }

    /// Takes back a launch that [`StreamMarkers::after_launch`] counted and the driver refused. `closed` is the
    /// interval that was to end with it, and has no marker.
    pub fn undo_launch(&mut self, cost: CostGuess, closed: Option<OpenInterval>) {
        if let Some(closed) = closed {
            self.pending = self.pending.saturating_sub(1);
            let rest = self.open.take().unwrap_or_default();
            self.open = Some(OpenInterval {
                estimate: closed.estimate.saturating_add(rest.estimate),
                doubt: closed.doubt.add_doubt(rest.doubt),
                launches: closed.launches.saturating_add(rest.launches),
                ..closed
            });
        }
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_sub(cost.as_ns());
            open.doubt = open.doubt.subtract_doubt(cost.doubt_of());
            open.launches = open.launches.saturating_sub(1);
        }
        self.unsampled = self.unsampled.saturating_sub(cost.as_ns());
    }

    /// Marks the open work as not measurable: its begin marker is missing, or the stream may have been idle.
    pub fn doubt_interval(&mut self) {
        if let Some(open) = &mut self.open {
            (open.measured, open.tail) = (false, false);
        }
    }

    /// True if the next launch, of `cost` ns, should wait for an idle stream, so that it can be measured.
    #[inline]
    #[must_use]
    pub const fn wants_idle(&self, cost: u64) -> bool {
        self.keeps_up && self.unsampled.saturating_add(cost) >= MARKER_INTERVAL_NS
    }

    /// The oldest interval, of `launches`, was seen complete. `kept_up`: see [`has_kept_up`].
    pub fn complete_oldest(&mut self, launches: u32, kept_up: bool) {
        self.pending = self.pending.saturating_sub(1);
        if launches > 1 {
            self.keeps_up = kept_up;
        }
        if kept_up {
            self.unsampled = self.unsampled.max(MARKER_INTERVAL_NS);
        }
    }

    /// Intervals that were not yet seen complete.
    #[must_use]
    pub const fn pending_intervals(&self) -> u32 {
        self.pending
    }

    /// Returns the open work as over, because its estimated time has passed.
    pub fn expire_open(&mut self) -> Option<OpenInterval> {
        if self.pending > 0 { None } else { self.close_tail() }
    }

    /// The work after the last marker.
    #[must_use]
    pub const fn open(&self) -> Option<OpenInterval> {
        self.open
    }
}
