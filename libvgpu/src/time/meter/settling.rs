//! Tails: work after the last marker of a stream, charged by the cost of its launches once it is over.
//!
//! Not here: intervals that end at a marker ([`super::reaping`]).

use super::{PaySink, UsageMeter};
use vgpu_core::time::account::cost::CostGuess;

impl UsageMeter {
    /// The stream of a timeline is idle and its intervals are done: charges the tail by the cost of its launches.
    pub(super) fn settle_tail(&mut self, at: usize, now: u64, pay: &impl PaySink) {
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let Some(tail) = chain.marks.expire_open() else { return };
        (chain.keys.len, chain.last, chain.tainted, chain.first) = (0, None, false, false);
        (chain.calls, chain.begun) = ([0; 2], 0);
        let (begin, context, opened) = (chain.begin.take(), chain.place.context, chain.opened);
        self.recount_stream(at, was_busy, was_unmeasured);
        if let Some(event) = begin {
            self.keep_event(context, event);
        }
        self.note_completed(tail.estimate, tail.doubt, now);
        self.revoke_credits_of(self.chains[at].number);
        // The tail is over, so it took at most the time since its launch, whatever the estimate.
        let used = tail.estimate.min(now.saturating_sub(opened));
        let used = self.share_among_streams(0, used);
        pay(self.split_due(used, 0), self.presence.engaged_since());
    }

    /// The tail of a timeline is known to be over: raises the confidence in its functions, although it was not
    /// measured.
    pub(super) fn age_tail_doubt(&mut self, at: usize) {
        let chain = &self.chains[at];
        if chain.marks.open().is_some_and(|open| open.doubt.young > 0) {
            chain.keys.all().iter().for_each(|&(key, cost)| self.ripe.add(key, CostGuess::with_certainty(cost)));
        }
    }

    /// Settles tails whose estimated time has passed: their streams may be gone, and cannot be asked.
    pub fn settle_expired(&mut self, now: u64, pay: impl PaySink) {
        self.charge_strays(&pay);
        self.expire_beside(usize::MAX, now, &pay);
    }

    /// As [`Self::settle_expired`], except for the timeline `but`, whose stream the caller asks instead.
    pub(super) fn expire_beside(&mut self, but: usize, now: u64, pay: &impl PaySink) {
        for at in (0..self.chains.len()).filter(|&at| at != but) {
            let chain = &self.chains[at];
            if chain.marks.must_ask() && chain.marks.pending_intervals() == 0 && now > chain.over_by {
                self.settle_tail(at, now, pay);
            }
        }
    }

    /// Stops measuring other streams' tails over several launches: the measurement would include this timeline's
    /// work.
    #[cold]
    pub(super) fn doubt_tails(&mut self, but: usize) {
        for at in (0..self.chains.len()).filter(|&at| at != but) {
            if self.chains[at].marks.samples_tail() {
                self.doubt_chain(at);
            }
        }
    }

    pub(super) fn doubt_chain(&mut self, at: usize) {
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        chain.marks.doubt_interval();
        self.recount_stream(at, was_busy, was_unmeasured);
    }
}
