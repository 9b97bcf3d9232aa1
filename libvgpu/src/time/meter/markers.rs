//! Event markers: the driver's events, recorded between the program's launches, and the time axis of their times.
//!
//! The driver reports times as differences between two events, as a float of milliseconds. So each context has a base
//! event with a known position on the axis. After [`BASE`]`.stuck`, before the float becomes coarse, a marker that was
//! reached replaces it. The axis starts at the host's clock and then follows the device's. Every marker seen bounds
//! the difference between the two: it was reached before it was seen.
//!
//! No lock is held here. Every call is made so that it disturbs no capture
//! ([`crate::driver::streams::without_captures`], by the caller).

// SAFETY of every driver call in this file: events are ours, created in a context that the governor has not been told
// the end of; streams are those the program is launching into at this moment; outputs are locals.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::driver::launch::MeteredLaunch;
use crate::driver::own;
use shim_sys::cuda::*;
use vgpu_core::time::config::BASE;

/// Creates an event with timing, in the current context.
pub fn create_event() -> Option<CUevent> {
    let mut event = CUevent::NULL;
    unsafe { own::cuEventCreate()?(&raw mut event, 0) }.ok().then_some(event)
}

/// Destroys an event; the driver keeps what it still needs of it.
pub fn destroy_event(event: CUevent) {
    if let Some(destroy) = own::cuEventDestroy_v2() {
        let _ = unsafe { destroy(event) };
    }
}

/// Records `event`, or a new one, in the stream of `launch`.
pub fn record_event(launch: &MeteredLaunch, event: Option<CUevent>) -> Option<CUevent> {
    let event = match event {
        Some(event) => event,
        None => create_event()?,
    };
    let record = if launch.per_thread { own::cuEventRecord_ptsz() } else { own::cuEventRecord() };
    if record.is_some_and(|record| unsafe { record(event, launch.stream) }.ok()) {
        return Some(event);
    }
    destroy_event(event);
    None
}

/// True if the device has completed all work in the stream of `launch`.
pub fn is_idle(launch: &MeteredLaunch) -> bool {
    let query = if launch.per_thread { own::cuStreamQuery_ptsz() } else { own::cuStreamQuery() };
    query.is_none_or(|query| unsafe { query(launch.stream) } != CUresult::NOT_READY)
}

/// True if a marker was reached; `Err` for an error of the context, or a marker that became part of a capture.
fn is_reached(event: CUevent) -> Result<bool, ()> {
    match own::cuEventQuery().map(|query| unsafe { query(event) }) {
        Some(CUresult::NOT_READY) => Ok(false),
        Some(answer) if answer.ok() => Ok(true),
        _ => Err(()),
    }
}

/// True if a marker was reached, or never will be.
pub fn is_passed(event: CUevent) -> bool {
    is_reached(event) != Ok(false)
}

/// A second marker right behind an end marker. If both were recorded while the work ahead of them ran, the time between
/// them is the device time of a marker.
#[derive(Clone, Copy)]
pub struct SecondMarker {
    /// The driver event that was recorded as the marker.
    pub event: CUevent,
    /// True if the device had still not reached the end marker after this one was recorded.
    is_in_time: bool,
}

impl SecondMarker {
    /// Records `event`, or a new one, behind the end marker `first`.
    pub fn record(launch: &MeteredLaunch, event: Option<CUevent>, first: CUevent) -> Option<Self> {
        let event = record_event(launch, event)?;
        Some(Self { event, is_in_time: is_reached(first) == Ok(false) })
    }

    /// The device time of this marker in ns, as the time since the end marker `first`. `None`: the device may have
    /// been idle between the two, or has not reached this one.
    fn ask(self, first: CUevent) -> Option<u64> {
        self.is_in_time.then(|| elapsed_ns(first, self.event).map(i64::unsigned_abs))?
    }
}

/// Nanoseconds between two markers that were reached; negative if the second came first.
#[allow(clippy::cast_possible_truncation)] // finite, and far below 2^63
fn elapsed_ns(begin: CUevent, end: CUevent) -> Option<i64> {
    let mut ms = 0f32;
    let known = unsafe { own::cuEventElapsedTime()?(&raw mut ms, begin, end) }.ok();
    (known && ms.is_finite()).then(|| (f64::from(ms) * 1e6) as i64)
}

/// When an interval began and ended, on the time axis of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTimes {
    /// The time of its own begin marker, if it has one.
    pub begin: Option<u64>,
    /// The time of its end marker.
    pub end: u64,
    /// The end marker's time by the host's clock.
    pub host: u64,
}

/// The markers of an interval.
#[derive(Clone, Copy)]
pub struct IntervalMarkers {
    /// The interval's own begin marker, if it has one, and when that was reached by the host's clock; 0: unknown.
    pub begin: Option<(CUevent, u64)>,
    /// The interval's end marker.
    pub end: CUevent,
    /// The marker right behind it, if there is one.
    pub second: Option<SecondMarker>,
}

/// The driver's answer about an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerAnswer {
    /// The device has not reached the interval's end marker.
    Pending,
    /// The device has reached the interval's end marker. `kept`: it is the new base of the time axis.
    Reached {
        /// When the interval began and ended.
        times: SampleTimes,
        /// True if the end marker is still needed, as the base.
        kept: bool,
        /// The device time of a marker in ns, if the interval shows it.
        marker: Option<u64>,
    },
    /// The times are unknown for good.
    Lost,
}

/// The time axis of a context.
#[derive(Clone, Copy)]
pub struct ContextAxis {
    /// The context, as an integer.
    pub context: usize,
    /// The marker that times are measured from.
    pub base: CUevent,
    /// The base marker's position on the axis.
    at: u64,
    /// Upper bound of the host's clock minus the context's time axis, in ns.
    ahead: i64,
    /// The same bound as `ahead`, from the markers seen since the last base.
    next: i64,
}

impl ContextAxis {
    /// An axis that begins with a marker reached at `at` by the host's clock.
    fn new(context: usize, base: CUevent, at: u64) -> Self {
        Self { context, base, at, ahead: 0, next: i64::MAX }
    }

    fn place_on_axis(&self, event: CUevent) -> Option<u64> {
        if event == self.base { Some(self.at) } else { self.at.checked_add_signed(elapsed_ns(self.base, event)?) }
    }

    /// Converts a position on the axis to the host's clock. The marker there was seen as reached at `now`, which
    /// tightens the bound between the two clocks.
    fn host_time(&mut self, place: u64, now: u64) -> u64 {
        let seen = now.cast_signed().saturating_sub(place.cast_signed());
        (self.ahead, self.next) = (self.ahead.min(seen), self.next.min(seen));
        place.saturating_add_signed(self.ahead).min(now)
    }
}

/// Queries one interval. Creates the context's axis if there is none; a replaced base is added to `free`.
pub fn ask_interval(
    axes: &mut Vec<ContextAxis>,
    context: usize,
    markers: IntervalMarkers,
    free: &mut Vec<(usize, CUevent)>,
) -> MarkerAnswer {
    let IntervalMarkers { begin, end, second } = markers;
    match is_reached(end) {
        Ok(false) => return MarkerAnswer::Pending,
        Err(()) => return MarkerAnswer::Lost,
        Ok(true) => {}
    }
    let now = crate::ffi::clock::now();
    // Measured against each other: for two close markers that is more exact than by a distant base.
    let length = match begin {
        Some((event, at)) => match elapsed_ns(event, end) {
            Some(length) => Some((length.unsigned_abs(), at)),
            None => return MarkerAnswer::Lost,
        },
        None => None,
    };
    let mut kept = false;
    let at = match axes.iter().position(|axis| axis.context == context) {
        Some(at) => at,
        None => {
            // The marker was seen late; the time of its begin marker shows how late.
            let reached = length.filter(|begin| begin.1 > 0).map_or(now, |(length, at)| (at + length).min(now));
            axes.push(ContextAxis::new(context, end, reached));
            kept = true;
            axes.len() - 1
        }
    };
    let axis = &mut axes[at];
    let Some(place) = axis.place_on_axis(end) else { return MarkerAnswer::Lost };
    let begin = length.map(|(length, _)| place.saturating_sub(length));
    let host = axis.host_time(place, now);
    if place.saturating_sub(axis.at) > BASE.stuck {
        free.push((context, axis.base));
        (axis.base, axis.at, kept) = (end, place, true);
        (axis.ahead, axis.next) = (axis.next, i64::MAX);
    }
    let marker = second.and_then(|second| second.ask(end));
    MarkerAnswer::Reached { times: SampleTimes { begin, end: place, host }, kept, marker }
}
