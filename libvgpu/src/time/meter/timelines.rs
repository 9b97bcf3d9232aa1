//! The timelines of launches, one per stream, found without a search.

use super::UsageMeter;
use super::markers::SecondMarker;
use crate::driver::streams::StreamLocation;
use shim_sys::cuda::CUevent;
use std::collections::VecDeque;
use vgpu_core::time::account::cost::CostGuess;
use vgpu_core::time::gate::marks::{OpenInterval, StreamMarkers};

/// Timelines kept; beyond that idle ones are dropped, and if there is none, launches are not measured.
const MAX_CHAINS: usize = 256;
/// Functions of one interval whose costs are learned.
const MAX_KEYS: usize = 16;

/// A set of different functions, with the estimated cost of a launch of each.
#[derive(Clone, Copy, Default)]
pub(super) struct LearnedFunctions {
    list: [(u64, u64); MAX_KEYS],
    pub len: usize,
}

impl LearnedFunctions {
    /// Adds a function. A low-confidence one replaces another if the set is full, because its launches are held back
    /// until it is measured.
    #[inline]
    pub fn add(&mut self, key: u64, cost: CostGuess) {
        let known = &self.list[..self.len];
        let is = |one: &(u64, u64)| one.0 == key;
        if !known.last().is_some_and(is) && !known.iter().any(is) && (self.len < MAX_KEYS || !cost.is_sure()) {
            let at = self.len.min(MAX_KEYS - 1);
            self.list[at] = (key, cost.as_ns());
            self.len = at + 1;
        }
    }

    pub fn all(&self) -> &[(u64, u64)] {
        &self.list[..self.len]
    }

    /// One word that identifies the set.
    pub fn id_of_keys(&self) -> u64 {
        self.all().iter().fold(0, |id, one| id.rotate_left(7) ^ one.0)
    }
}

/// Launches that end at a marker.
pub(super) struct Interval {
    pub serial: u64,
    /// The interval's own begin marker; `None`: the interval begins at the end marker before it.
    pub begin: Option<CUevent>,
    /// Host time in ns of two calls: the record of its begin marker, and its first launch. Zeros: the stream was busy.
    pub calls: [u64; 2],
    /// When the interval's begin marker was reached, by the host's clock; 0: unknown.
    pub begun: u64,
    /// The interval's end marker; `None`: not recorded yet.
    pub end: Option<CUevent>,
    /// Host clock when the call returned that recorded the end marker.
    pub recorded: u64,
    /// The marker right behind the end marker, if there is one.
    pub second: Option<SecondMarker>,
    pub open: OpenInterval,
    /// Estimated work launched into all streams between its markers; it shares the interval's time.
    pub all: u64,
    pub keys: LearnedFunctions,
    /// True: no costs are learned from the interval, because its time may be disturbed.
    pub tainted: bool,
    /// False if other work is known to lie between its markers. Either other streams had work without an end marker
    /// at its begin, or other threads launched before its end marker was recorded. Only for one with a begin marker.
    pub is_apart: bool,
    /// True if the end marker was recorded late, so that the stream may have been idle before it.
    pub is_late: bool,
    /// Device time in it that another member pays for.
    pub beside: u64,
    /// True if the interval begins with the first launch of a turn, so that it includes the device's context
    /// switch: see [`crate::time::launch_costs::LaunchCosts`].
    pub first: bool,
}

/// The timeline of one stream.
pub(super) struct StreamTimeline {
    pub number: u64,
    pub place: StreamLocation,
    pub marks: StreamMarkers,
    /// The begin marker of the open work.
    pub begin: Option<CUevent>,
    /// See [`Interval::calls`]; for the open work.
    pub calls: [u64; 2],
    /// See [`Interval::begun`]; for the open work.
    pub begun: u64,
    /// See [`Interval::is_apart`]; for the open work.
    pub is_apart: bool,
    /// When the first launch of the open work (after the last marker) was made, by the host's clock.
    pub opened: u64,
    /// Total work launched into all streams when its begin marker was recorded: [`UsageMeter::given_out`].
    pub from: u64,
    /// When a launch of this stream was last measured, by the host's clock.
    pub measured: u64,
    pub keys: LearnedFunctions,
    pub tainted: bool,
    pub first: bool,
    /// Intervals that were not yet seen complete, the oldest first.
    pub pending: VecDeque<Interval>,
    /// Number of intervals in `pending` that are not measured, but charged by their estimate.
    pub unmeasured: u32,
    /// When the device reached the stream's last end marker, on the context's time axis; `None`: unknown.
    pub last: Option<u64>,
    pub launches: u32,
    /// The stream need not be asked before this time whether it is busy.
    pub ask_at: u64,
    /// When the open work (after the last marker) counts as over, if the stream is not asked.
    pub over_by: u64,
    /// When a tail (open work of a stream that turned out idle) was last measured.
    pub tailed: u64,
    /// Further tails to measure before `tailed` is set.
    pub again: u64,
}

impl StreamTimeline {
    /// Estimated work of the stream that is in flight, in ns.
    pub fn in_flight(&self) -> u64 {
        let parts = self.pending.iter().map(|interval| interval.open).chain(self.marks.open());
        parts.fold(0, |all, part| all.saturating_add(part.estimate))
    }

    pub fn is_busy(&self) -> bool {
        self.marks.pending_intervals() > 0 || self.marks.must_ask()
    }

    /// True if the stream has work in flight that is charged by its estimate.
    pub fn is_unmeasured(&self) -> bool {
        self.unmeasured > 0 || self.marks.open().is_some_and(|open| !open.measured)
    }
}

impl UsageMeter {
    /// The index of a stream's timeline, which is created if there is none. `None`: there are too many.
    #[inline]
    pub fn find(&mut self, place: StreamLocation) -> Option<usize> {
        let hint = usize::from(self.hints[hint_slot(place)]);
        if self.chains.get(hint).is_some_and(|chain| chain.place == place) {
            return Some(hint);
        }
        self.look_up(place)
    }

    #[cold]
    fn look_up(&mut self, place: StreamLocation) -> Option<usize> {
        let known = self.chains.iter().position(|chain| chain.place == place);
        let at = match known {
            Some(at) => at,
            None => self.find_chain(place)?,
        };
        self.hints[hint_slot(place)] = u8::try_from(at).unwrap_or(0);
        Some(at)
    }

    fn find_chain(&mut self, place: StreamLocation) -> Option<usize> {
        if self.chains.len() >= MAX_CHAINS {
            self.chains.retain(StreamTimeline::is_busy);
            if self.chains.len() >= MAX_CHAINS {
                return None;
            }
        }
        self.numbers += 1;
        self.chains.push(StreamTimeline {
            number: self.numbers,
            place,
            marks: StreamMarkers::default(),
            begin: None,
            calls: [0; 2],
            begun: 0,
            is_apart: false,
            opened: 0,
            from: 0,
            measured: 0,
            keys: LearnedFunctions::default(),
            tainted: false,
            first: false,
            pending: VecDeque::new(),
            unmeasured: 0,
            last: None,
            launches: 0,
            ask_at: 0,
            over_by: 0,
            tailed: 0,
            again: 0,
        });
        Some(self.chains.len() - 1)
    }

    pub fn chain_of_number(&self, number: u64) -> Option<usize> {
        self.chains.iter().position(|chain| chain.number == number)
    }
}

#[inline]
pub(super) fn hint_slot(place: StreamLocation) -> usize {
    vgpu_core::mix::slot_of(place.key ^ (place.context as u64).rotate_left(20), super::HINT_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::time::account::cost::CostTable;

    #[test]
    fn of_more_functions_than_there_is_room_for_what_is_in_doubt_is_learned_from() {
        let costs = CostTable::<1>::new();
        costs.learn_cost(99, 7);
        let mut keys = LearnedFunctions::default();
        (1..=40).for_each(|key| keys.add(key, CostGuess::with_certainty(5)));
        assert_eq!(keys.all().len(), MAX_KEYS);
        keys.add(99, costs.guess_cost(99));
        keys.add(50, CostGuess::with_certainty(5));
        assert_eq!((keys.all().len(), keys.all()[MAX_KEYS - 1]), (MAX_KEYS, (99, 7)));
    }
}
