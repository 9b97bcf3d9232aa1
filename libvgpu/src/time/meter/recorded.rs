//! A launch after its driver call: its markers were recorded or not, or the driver refused it.
//!
//! Not here: the choice of its markers ([`super::stepping`]), the driver calls ([`super::markers`]).

use super::{BeginMarker, EndMarker, MarkerPlan, PaySink, UsageMeter};
use crate::time::launch_costs::LaunchCosts;
use shim_sys::cuda::CUevent;
use vgpu_core::time::account::cost::CostGuess;

impl UsageMeter {
    /// The launch was made, and its markers were recorded, or not (`None`). Returns events to destroy.
    pub fn note_recorded(
        &mut self,
        plan: &MarkerPlan,
        begin: Option<BeginMarker>,
        end: Option<EndMarker>,
        costs: &LaunchCosts,
        pay: impl PaySink,
    ) -> [Option<CUevent>; 3] {
        let unused_second = end.map_or(plan.events[2], |end| end.second.map(|second| second.event));
        let Some(at) = self.chain_of_number(plan.chain) else {
            return [begin.map(|begin| begin.event), end.map(|end| end.event), unused_second];
        };
        // The stream may have been idle before the marker was recorded.
        let is_late = end.is_some_and(|end| end.is_late && self.keeper.remaining_ns(end.recorded) == 0);
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let is_crowded = self.launches != plan.launches;
        let closed = plan.end.and_then(|serial| chain.pending.iter().position(|interval| interval.serial == serial));
        let (mut lost, mut is_next_cheap) = (None, false);
        match closed {
            Some(place) => {
                let interval = &mut chain.pending[place];
                if plan.begin {
                    (interval.begin, interval.calls, interval.begun) = split_begin(begin);
                    interval.is_apart &= !is_crowded;
                    is_next_cheap = is_crowded;
                }
                // The stream may have been idle before a late end marker. The interval's time then teaches no
                // undisturbed cost, and known launches are charged by their estimate. Launches that were never
                // measured are charged by that time all the same: their estimate may be a second too short.
                interval.is_late = is_late;
                let is_vague = (is_late && interval.open.doubt.unknown == 0)
                    || (plan.begin && begin.and_then(|begin| begin.calls).is_none());
                if is_vague && interval.open.measured {
                    interval.open.measured = false;
                    chain.unmeasured += 1;
                }
                interval.second = end.and_then(|end| end.second);
                (interval.end, interval.recorded) = end.map_or((None, 0), |end| (Some(end.event), end.recorded));
                if end.is_none() {
                    lost = chain.pending.remove(place);
                }
            }
            None if plan.begin => {
                (chain.begin, chain.calls, chain.begun) = split_begin(begin);
                chain.is_apart &= !is_crowded;
                if begin.and_then(|begin| begin.calls).is_none() {
                    chain.marks.doubt_interval();
                }
            }
            None => {}
        }
        if let (true, Some(place)) = (is_next_cheap, closed) {
            // Other threads' launches into this stream may have run before this end marker. By our count they are in
            // the intervals behind it, which look too cheap.
            chain.tainted |= chain.marks.open().is_some();
            for later in place + 1..chain.pending.len() {
                chain.pending[later].tainted = true;
            }
        }
        self.recount_stream(at, was_busy, was_unmeasured);
        match lost {
            // Without a marker there is no measurement: the estimate is all there is.
            Some(interval) => {
                let begin = interval.begin;
                self.finish_interval(at, &interval, None, self.time, &pay, costs);
                [begin, None, None]
            }
            None if closed.is_none() => [None, end.map(|end| end.event), unused_second],
            None => [None; 3],
        }
    }

    /// The driver refused the launch.
    pub fn undo_refused(
        &mut self,
        plan: &MarkerPlan,
        cost: CostGuess,
        begin: Option<BeginMarker>,
    ) -> [Option<CUevent>; 3] {
        self.keeper.undo_launch(cost);
        self.revoke_credits_of(plan.chain);
        self.lease.withdraw_launch(cost.as_ns());
        let Some(at) = self.chain_of_number(plan.chain) else { return [begin.map(|begin| begin.event), None, None] };
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let place = plan.end.and_then(|serial| chain.pending.iter().position(|interval| interval.serial == serial));
        let closed = place.and_then(|place| chain.pending.remove(place));
        let open = closed.as_ref().map(|interval| interval.open);
        chain.marks.undo_launch(cost, open);
        if let Some(interval) = closed {
            chain.unmeasured -= u32::from(!interval.open.measured);
            (chain.begin, chain.calls, chain.begun) = (interval.begin, interval.calls, interval.begun);
            chain.keys = interval.keys;
            chain.tainted |= interval.tainted;
            chain.first |= interval.first;
        }
        let mut unused = plan.events;
        if plan.begin {
            // The launch was refused after its begin marker: the next interval would begin at a marker that is too
            // early.
            (chain.begin, chain.calls, chain.begun) = split_begin(begin);
            chain.marks.doubt_interval();
            unused[0] = None;
        }
        self.recount_stream(at, was_busy, was_unmeasured);
        unused
    }
}

fn split_begin(begin: Option<BeginMarker>) -> (Option<CUevent>, [u64; 2], u64) {
    begin.map_or((None, [0; 2], 0), |begin| (Some(begin.event), begin.calls.unwrap_or_default(), begin.at))
}
