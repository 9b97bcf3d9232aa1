//! Contexts and streams that end, and programs that wait for work in flight.

use super::crediting::GrantedCredit;
use super::{PaySink, UsageMeter};
use crate::driver::streams::StreamLocation;
use shim_sys::cuda::CUevent;
use vgpu_core::time::account::cost::CostDoubt;
use vgpu_core::time::config::MARKER_INTERVAL_NS;

impl UsageMeter {
    /// A context is about to end: no marker will report its work. The work counts as in flight until
    /// [`UsageMeter::context_ended`]. Returns the context's events.
    pub fn end_context(&mut self, context: usize) -> Vec<CUevent> {
        let mut events = self.lease.forget_context(context);
        let (mut unpaid, mut doubt) = (0u64, CostDoubt::NO_DOUBT);
        for chain in self.chains.iter_mut().filter(|chain| chain.place.context == context) {
            self.given.iter().filter(|given| given.chain == chain.number).for_each(GrantedCredit::revoke_credit);
            events.extend(chain.begin.take());
            let open = chain.marks.open();
            for part in chain.pending.iter().map(|interval| interval.open).chain(open) {
                (unpaid, doubt) = (unpaid.saturating_add(part.estimate), doubt.add_doubt(part.doubt));
            }
            for interval in chain.pending.drain(..) {
                let second = interval.second.map(|second| second.event);
                events.extend([interval.begin, interval.end, second].into_iter().flatten());
            }
        }
        self.chains.retain(|chain| chain.place.context != context);
        self.check_tally();
        if unpaid > 0 || doubt != CostDoubt::NO_DOUBT {
            self.ending.push((context, unpaid, doubt));
        }
        let (of_it, others) = core::mem::take(&mut self.spare).into_iter().partition(|spare| spare.0 == context);
        let of_it: Vec<(usize, CUevent)> = of_it;
        self.spare = others;
        events.extend(of_it.into_iter().map(|spare| spare.1));
        events.extend(self.axes.iter().filter(|axis| axis.context == context).map(|axis| axis.base));
        self.axes.retain(|axis| axis.context != context);
        if self.reaping {
            self.gone.push(context);
        }
        events
    }

    /// The driver has ended a context, and its work is over: charges it by the estimate. If it counted as over any
    /// sooner, the daemon would let the next tenant in while the driver still waits for that work.
    pub fn context_ended(&mut self, context: usize, now: u64, pay: impl PaySink) {
        while let Some(at) = self.ending.iter().position(|one| one.0 == context) {
            let (_, unpaid, doubt) = self.ending.swap_remove(at);
            self.note_completed(unpaid, doubt, now);
            pay(self.split_due(unpaid, 0), self.presence.engaged_since());
        }
    }

    /// A stream is about to end: a later one with the same handle is another stream.
    pub fn stream_ended(&mut self, key: u64) {
        self.lease.forget_stream(key);
        for chain in self.chains.iter_mut().filter(|chain| chain.place.key == key) {
            self.given.iter().filter(|given| given.chain == chain.number).for_each(GrantedCredit::revoke_credit);
            chain.place = chain.place.without_stream();
        }
    }

    /// Number of launches of a stream, or of all streams; an input to [`UsageMeter::note_drained`].
    pub fn launch_count(&self, stream: Option<StreamLocation>) -> u64 {
        match stream {
            Some(place) => {
                self.chains.iter().find(|chain| chain.place == place).map_or(0, |chain| chain.launches.into())
            }
            None => self.launches,
        }
    }

    /// The program has waited for a stream, or for all of a context, since `launches` were counted. Tails are over if
    /// there were no more launches since.
    pub fn note_drained(
        &mut self,
        context: usize,
        stream: Option<StreamLocation>,
        launches: u64,
        now: u64,
        pay: impl PaySink,
    ) {
        if self.launch_count(stream) != launches {
            return;
        }
        for at in 0..self.chains.len() {
            let place = self.chains[at].place;
            if stream.map_or(place.context == context, |stream| stream == place) {
                self.age_tail_doubt(at);
                self.settle_tail(at, now, &pay);
            }
        }
        // The work left is at most this, however long the finished work was estimated to take.
        let left = self.keeper.in_flight();
        self.due = self.due.min(now.saturating_add(left));
        let over_by = now.saturating_add(left.saturating_mul(2)).saturating_add(MARKER_INTERVAL_NS);
        self.chains.iter_mut().for_each(|chain| chain.over_by = chain.over_by.min(over_by));
    }
}
