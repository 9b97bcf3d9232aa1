//! Tails: work after the last marker of a stream, charged by the cost of its launches once it is over.
//!
//! Not here: intervals that end at a marker ([`super::reaping`]).

use super::{Meter, Pay};
use vgpu_core::time::account::cost::Guess;

impl Meter {
    /// The stream of a timeline is idle and its intervals are done: charges the tail by the cost of its launches.
    pub(super) fn settle(&mut self, at: usize, now: u64, pay: &impl Pay) {
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        let Some(tail) = chain.marks.expire() else { return };
        (chain.keys.len, chain.last, chain.tainted, chain.first, chain.lead) = (0, None, false, false, 0);
        let (begin, context, opened) = (chain.begin.take(), chain.place.context, chain.opened);
        self.recount(at, was_busy, was_unmeasured);
        if let Some(event) = begin {
            self.recycle(context, event);
        }
        self.completed(tail.estimate, tail.doubt, now);
        self.revoke(self.chains[at].number);
        // The tail is over, so it took at most the time since its launch, whatever the estimate.
        let used = tail.estimate.min(now.saturating_sub(opened));
        let used = self.balance(0, used);
        pay(self.due(used, 0), self.presence.since());
    }

    /// The tail of a timeline is known to be over: raises the confidence in its functions, although it was not
    /// measured.
    pub(super) fn ripens(&mut self, at: usize) {
        let chain = &self.chains[at];
        if chain.marks.open().is_some_and(|open| open.doubt.young > 0) {
            chain.keys.all().iter().for_each(|&(key, cost)| self.ripe.add(key, Guess::sure(cost)));
        }
    }

    /// Settles tails whose estimated time has passed: their streams may be gone, and cannot be asked.
    pub fn expire(&mut self, now: u64, pay: impl Pay) {
        self.charge_strays(&pay);
        self.expire_beside(usize::MAX, now, &pay);
    }

    /// As [`Self::expire`], except for the timeline `but`, whose stream the caller asks instead.
    pub(super) fn expire_beside(&mut self, but: usize, now: u64, pay: &impl Pay) {
        for at in (0..self.chains.len()).filter(|&at| at != but) {
            let chain = &self.chains[at];
            if chain.marks.asks() && chain.marks.pending() == 0 && now > chain.over_by {
                self.settle(at, now, pay);
            }
        }
    }

    /// Stops measuring other streams' tails over several launches: the measurement would include this timeline's
    /// work.
    #[cold]
    pub(super) fn doubt_tails(&mut self, but: usize) {
        for at in (0..self.chains.len()).filter(|&at| at != but) {
            if self.chains[at].marks.samples_tail() {
                self.doubt(at);
            }
        }
    }

    pub(super) fn doubt(&mut self, at: usize) {
        let chain = &mut self.chains[at];
        let (was_busy, was_unmeasured) = (chain.is_busy(), chain.is_unmeasured());
        chain.marks.doubt();
        self.recount(at, was_busy, was_unmeasured);
    }
}
