//! When to record a marker on a stream: after [`MARK_NS`] of estimated work, never by the number of launches.
//!
//! Work between two markers is an interval; it is measured if it has a marker at both ends. Work that is still open
//! (no marker behind it) when its stream is found idle is a tail: it is charged by the learned cost of its launches, as a
//! marker recorded late would measure the program's pause. A program that synchronises after each short launch has
//! nothing but tails; one launch in [`MARK_NS`] of them is measured.
//!
//! A tail that always follows something longer would be believed for ever: the launches before it are measured, it never is.
//! So now and then ([`Marks::sample_tail`]) a marker comes after as many launches as the last tail had,
//! instead of after [`MARK_NS`]. What was measured a few times only ([`Guess::doubt`]) begins at a marker wherever it can, so
//! that it is measured if the gate has to wait for its end ([`Marks::close`]).
//!
//! Not here: the events themselves, and which functions an interval teaches something about.

use crate::account::cost::{Doubt, Guess};

/// Estimated work between two markers.
pub const MARK_NS: u64 = 250_000;

/// Work behind the last marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// By estimate.
    pub estimate: u64,
    /// How little that may be trusted.
    pub doubt: Doubt,
    /// There is a marker before it.
    pub measured: bool,
    /// Launches.
    pub launches: u32,
    /// It is to end where the last tail ended.
    pub tail: bool,
    /// It ends after this launch.
    sample: bool,
}

/// The markers of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    open: Option<Open>,
    /// Intervals that have an end marker and were not seen complete.
    pending: u32,
    /// Estimated work since something was last measured.
    unsampled: u64,
    /// Launches of the last tail, and those of the present one that were sampled.
    tail: u32,
    sampled: u32,
    /// A tail that begins now is to be measured.
    samples: bool,
}

/// What to do before a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// A tail that is over: to be charged by its estimate.
    pub tail: Option<Open>,
    /// Record a begin marker.
    pub begin: bool,
}

impl Marks {
    /// Must the driver be asked whether the stream is busy before a launch?
    #[must_use]
    pub const fn asks(&self) -> bool {
        self.open.is_some()
    }

    /// Before a launch of `cost`. `idle`: the stream was found idle, or has nothing pending and nothing open. `clear`:
    /// whatever other streams have before the device is measured; beside work that is charged by its cost, a measured
    /// interval would contain that work again.
    pub fn before(&mut self, cost: Guess, idle: bool, clear: bool) -> Before {
        if !idle {
            // Goes on; behind the last end marker another interval begins.
            if self.open.is_none() {
                let tail = self.samples && clear && self.sampled == 0;
                self.begin(clear, tail, false);
            }
            return Before::default();
        }
        let over = self.over();
        let sample = cost.is_unknown() || clear && self.unsampled.saturating_add(cost.ns()) >= MARK_NS;
        let tail = self.samples && clear && !sample;
        let begin = sample || tail || clear && !cost.is_sure();
        self.begin(begin, tail, sample);
        Before { tail: over, begin }
    }

    fn begin(&mut self, measured: bool, tail: bool, sample: bool) {
        self.open = Some(Open { measured, tail, sample, ..Open::default() });
    }

    /// Whether a launch of a known cost into a stream that is not idle is one of many between two markers.
    #[inline]
    #[must_use]
    pub const fn goes_on(&self, cost: u64) -> bool {
        match &self.open {
            Some(open) => !open.sample && !open.tail && open.estimate.saturating_add(cost) < MARK_NS,
            None => false,
        }
    }

    /// Counts a launch for which [`Marks::goes_on`] said yes.
    #[inline]
    pub const fn go_on(&mut self, cost: u64) {
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_add(cost);
            open.launches = open.launches.wrapping_add(1);
            self.unsampled = self.unsampled.saturating_add(cost);
        }
    }

    /// How much work may be launched beside the open one without a marker; `None`: the next launch may need one.
    #[must_use]
    pub const fn room(&self) -> Option<u64> {
        match &self.open {
            Some(open) if !open.sample && !open.tail => Some((MARK_NS - 1).saturating_sub(open.estimate)),
            _ => None,
        }
    }

    /// Counts launches of known cost that went without being asked for one by one: where the interval in which they were
    /// allowed has ended, they are in the next one, which then is not measured.
    pub const fn went(&mut self, estimate: u64, launches: u32) {
        match &mut self.open {
            Some(open) => {
                open.estimate = open.estimate.saturating_add(estimate);
                open.launches = open.launches.wrapping_add(launches);
            }
            None => {
                self.open =
                    Some(Open { estimate, doubt: Doubt::NONE, measured: false, launches, tail: false, sample: false });
            }
        }
        self.unsampled = self.unsampled.saturating_add(estimate);
    }

    /// After the launch: the interval that ends here with a marker, if one does.
    pub fn after(&mut self, cost: Guess) -> Option<Open> {
        let open = self.open.get_or_insert_default();
        open.estimate = open.estimate.saturating_add(cost.ns());
        open.doubt = open.doubt.and(cost.doubt());
        self.unsampled = self.unsampled.saturating_add(cost.ns());
        open.launches = open.launches.wrapping_add(1);
        let is_tail = open.tail && open.launches >= self.tail;
        if open.estimate < MARK_NS && !open.sample && !is_tail && !cost.is_unknown() {
            return None;
        }
        self.close()
    }

    /// Ends the open interval behind what is in flight, if there is one: nothing more comes for a while, and others wait to
    /// see it complete.
    pub fn close(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        if open.measured {
            self.unsampled = 0;
        }
        self.sampled = if open.tail { open.launches } else { 0 };
        self.pending += 1;
        Some(open)
    }

    /// Whether a tail that begins with the next launch is to be measured, if there ever was one.
    pub const fn sample_tail(&mut self, samples: bool) {
        self.samples = samples && self.tail > 0;
    }

    /// Whether the open work is a tail that is being measured.
    #[inline]
    #[must_use]
    pub const fn samples_tail(&self) -> bool {
        matches!(self.open, Some(Open { tail: true, .. }))
    }

    /// The stream is idle: what is open was a tail.
    fn over(&mut self) -> Option<Open> {
        let open = self.open.take();
        let launches = self.sampled.saturating_add(open.map_or(0, |open| open.launches));
        if launches > 0 {
            self.tail = launches;
        }
        self.sampled = 0;
        open
    }

    /// The next launch is measured, if it can be, whatever was estimated: a cost that is believed to be next to nothing would
    /// never be measured again.
    pub fn sample(&mut self) {
        match &mut self.open {
            Some(open) => open.sample = true,
            None => self.unsampled = self.unsampled.max(MARK_NS),
        }
    }

    /// The driver refused a launch that [`Marks::after`] was told of; `closed` is the interval that was to end with it, and
    /// has no marker.
    pub fn withdrawn(&mut self, cost: Guess, closed: Option<Open>) {
        if let Some(closed) = closed {
            self.pending = self.pending.saturating_sub(1);
            let rest = self.open.take().unwrap_or_default();
            self.open = Some(Open {
                estimate: closed.estimate.saturating_add(rest.estimate),
                doubt: closed.doubt.and(rest.doubt),
                launches: closed.launches.saturating_add(rest.launches),
                ..closed
            });
        }
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_sub(cost.ns());
            open.doubt = open.doubt.without(cost.doubt());
            open.launches = open.launches.saturating_sub(1);
        }
        self.unsampled = self.unsampled.saturating_sub(cost.ns());
    }

    /// Work behind the last marker cannot be measured: its begin marker is missing, or the stream may have been idle.
    pub fn doubt(&mut self) {
        if let Some(open) = &mut self.open {
            (open.measured, open.tail) = (false, false);
        }
    }

    /// The oldest interval was seen complete.
    pub fn completed(&mut self) {
        self.pending = self.pending.saturating_sub(1);
    }

    /// Intervals that were not seen complete.
    #[must_use]
    pub const fn pending(&self) -> u32 {
        self.pending
    }

    /// Work behind the last marker, taken as over because its time has passed.
    pub fn expire(&mut self) -> Option<Open> {
        if self.pending > 0 { None } else { self.over() }
    }

    /// Work behind the last marker.
    #[must_use]
    pub const fn open(&self) -> Option<Open> {
        self.open
    }
}
