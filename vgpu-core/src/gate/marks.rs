//! When to record a marker on a stream: after [`MARK_NS`] of estimated work, never by the number of launches.
//!
//! Work between two markers is an interval; it is measured if it has a marker at both ends. Work that is still open
//! (no marker behind it) when its stream is found idle is a tail: it is charged by the learned cost of its launches, as a
//! marker recorded late would measure the program's pause. A program that synchronises after each short launch has
//! nothing but tails; one launch in [`MARK_NS`] of them is measured.
//!
//! Not here: the events themselves, and which functions an interval teaches something about.

/// Estimated work between two markers.
pub const MARK_NS: u64 = 250_000;

/// Work behind the last marker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// By estimate.
    pub estimate: u64,
    /// Launches of unknown cost among it.
    pub unknown: u32,
    /// There is a marker before it.
    pub measured: bool,
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
    pub fn before(&mut self, cost: Option<u64>, idle: bool, clear: bool) -> Before {
        if !idle {
            // Goes on; behind the last end marker another interval begins.
            if self.open.is_none() {
                self.open = Some(Open { measured: clear, ..Open::default() });
            }
            return Before::default();
        }
        let tail = self.open.take();
        let begin = cost.is_none_or(|cost| clear && self.unsampled.saturating_add(cost) >= MARK_NS);
        self.open = Some(Open { measured: begin, sample: begin, ..Open::default() });
        Before { tail, begin }
    }

    /// Whether a launch of a known cost into a stream that is not idle is one of many between two markers.
    #[inline]
    #[must_use]
    pub const fn goes_on(&self, cost: u64) -> bool {
        match &self.open {
            Some(open) => !open.sample && open.estimate.saturating_add(cost) < MARK_NS,
            None => false,
        }
    }

    /// Counts a launch for which [`Marks::goes_on`] said yes.
    #[inline]
    pub const fn go_on(&mut self, cost: u64) {
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_add(cost);
            self.unsampled = self.unsampled.saturating_add(cost);
        }
    }

    /// How much work may be launched beside the open one without a marker; `None`: the next launch may need one.
    #[must_use]
    pub const fn room(&self) -> Option<u64> {
        match &self.open {
            Some(open) if !open.sample => Some((MARK_NS - 1).saturating_sub(open.estimate)),
            _ => None,
        }
    }

    /// Counts launches of known cost that went without being asked for one by one: where the interval in which they were
    /// allowed has ended, they are in the next one, which then is not measured.
    pub const fn went(&mut self, estimate: u64) {
        match &mut self.open {
            Some(open) => open.estimate = open.estimate.saturating_add(estimate),
            None => self.open = Some(Open { estimate, unknown: 0, measured: false, sample: false }),
        }
        self.unsampled = self.unsampled.saturating_add(estimate);
    }

    /// After the launch: the interval that ends here with a marker, if one does.
    pub fn after(&mut self, cost: Option<u64>, estimate: u64) -> Option<Open> {
        let open = self.open.get_or_insert_default();
        open.estimate = open.estimate.saturating_add(estimate);
        open.unknown += u32::from(cost.is_none());
        self.unsampled = self.unsampled.saturating_add(estimate);
        if open.estimate < MARK_NS && !open.sample && cost.is_some() {
            return None;
        }
        if open.measured {
            self.unsampled = 0;
        }
        self.pending += 1;
        self.open.take()
    }

    /// Ends the open interval behind what is in flight, if there is one: nothing more comes for a while, and others wait to
    /// see it complete.
    pub fn close(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        if open.measured {
            self.unsampled = 0;
        }
        self.pending += 1;
        Some(open)
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
    pub fn withdrawn(&mut self, cost: Option<u64>, estimate: u64, closed: Option<Open>) {
        if let Some(closed) = closed {
            self.pending = self.pending.saturating_sub(1);
            let rest = self.open.take().unwrap_or_default();
            self.open = Some(Open {
                estimate: closed.estimate.saturating_add(rest.estimate),
                unknown: closed.unknown.saturating_add(rest.unknown),
                ..closed
            });
        }
        if let Some(open) = &mut self.open {
            open.estimate = open.estimate.saturating_sub(estimate);
            open.unknown = open.unknown.saturating_sub(u32::from(cost.is_none()));
        }
        self.unsampled = self.unsampled.saturating_sub(estimate);
    }

    /// Work behind the last marker cannot be measured: its begin marker is missing, or the stream may have been idle.
    pub fn doubt(&mut self) {
        if let Some(open) = &mut self.open {
            open.measured = false;
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
        if self.pending > 0 { None } else { self.open.take() }
    }

    /// Work behind the last marker.
    #[must_use]
    pub const fn open(&self) -> Option<Open> {
        self.open
    }
}
