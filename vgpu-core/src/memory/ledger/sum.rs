//! Reads the ledger: the quick sum for the fast path, the stable reading for refusals, and the settling of dead
//! members.

use super::member::MemberView;
use super::{Kernel, LedgerHeader, LedgerSlot, SharedCharge};
use crate::sync::{Ordering, total_order};

/// A tenant's ledger of one device: a view of a [`super::LedgerPage`].
#[derive(Clone, Copy)]
pub struct Ledger<'p> {
    pub(crate) header: &'p LedgerHeader,
    pub(super) slots: &'p [LedgerSlot],
    pub(super) shares: &'p [SharedCharge],
    /// Slots `0..own` are summed even if the header's mark is lower. A member's own slot is the last of them; 0 for
    /// observers.
    pub(super) own: usize,
}

/// Sums over all slots and shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that count against a limit.
    pub used: u64,
    /// Part of `used`: claimed by requests that their members have neither granted nor withdrawn yet.
    pub tentative: u64,
    /// Part of `used`: reserved, and the driver call has not returned.
    pub pending: u64,
    /// Part of `used`: charged after the driver's success (committed).
    pub settled: u64,
}

/// Sums of every counter, and the number of shares summed. Two equal fingerprints in a row: nothing changed between
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint([u64; 7]);

/// `later - earlier` of two growing counters; 0 if the page is corrupted (a negative difference).
pub(super) fn counter_distance(later: u64, earlier: u64) -> u64 {
    let distance = later.wrapping_sub(earlier);
    if distance > i64::MAX.unsigned_abs() { 0 } else { distance }
}

impl LedgerSlot {
    /// Bytes that count against the limit; too large while the slot changes, never too small.
    #[inline]
    pub(super) fn used(&self) -> u64 {
        let dropped = self.dropped.load(Ordering::SeqCst);
        counter_distance(self.claimed.load(Ordering::SeqCst), dropped)
    }

    /// Frees all charges of the slot. Only for the holder of its lock; safe to repeat after the caller died midway.
    pub(super) fn settle_slot(&self) {
        let claimed = self.claimed.load(Ordering::SeqCst);
        self.dropped.store(claimed, Ordering::SeqCst);
        self.granted.store(claimed, Ordering::SeqCst);
        self.committed.store(claimed, Ordering::SeqCst);
        self.overhead.store(0, Ordering::SeqCst);
        self.high.store(0, Ordering::SeqCst);
        self.busy.store(0, Ordering::SeqCst);
        self.settle_turn();
        self.birth.store(0, Ordering::SeqCst);
        self.pid.store(0, Ordering::SeqCst);
    }
}

impl<'p> Ledger<'p> {
    pub(crate) fn new(header: &'p LedgerHeader, slots: &'p [LedgerSlot], shares: &'p [SharedCharge]) -> Self {
        Self { header, slots, shares, own: 0 }
    }

    /// Fields that members share apart from their charges: overhead figures, bypasses of the hooks.
    #[must_use]
    pub fn header(&self) -> &'p LedgerHeader {
        self.header
    }

    /// The slot with this index.
    pub(crate) fn slot(&self, index: usize) -> &'p LedgerSlot {
        &self.slots[index]
    }

    /// The slots that were ever used.
    #[inline]
    pub(crate) fn in_use(&self) -> &'p [LedgerSlot] {
        let high = usize::try_from(self.header.high_slot.load(Ordering::SeqCst)).unwrap_or(usize::MAX);
        // A corrupted mark must neither become an index nor hide the member's own charges.
        &self.slots[..high.max(self.own).min(self.slots.len())]
    }

    /// The shares up to the last one ever in use.
    #[inline]
    pub(super) fn shares_in_use(&self) -> &'p [SharedCharge] {
        let high = usize::try_from(self.header.high_share.load(Ordering::SeqCst)).unwrap_or(usize::MAX);
        &self.shares[..high.min(self.shares.len())]
    }

    /// Bytes of all members that count against the limit; too large while a counter changes, never too small.
    ///
    /// # Cost
    /// Two loads per slot up to the highest ever used, and two per share up to the last in use; no system call.
    #[inline]
    #[must_use]
    pub fn used(&self) -> u64 {
        total_order();
        let slots = self.in_use().iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.used()));
        // Shares are summed after slots. Bytes move only from a slot to a share, so a reader that misses them in the
        // slot sees them in the share.
        if self.header.high_share.load(Ordering::SeqCst) == 0 { slots } else { self.with_shares(slots) }
    }

    #[cold]
    fn with_shares(&self, slots: u64) -> u64 {
        self.shares_in_use().iter().fold(slots, |sum, share| sum.saturating_add(share.used_bytes()))
    }

    /// Part of [`Ledger::used`] that the programs did not allocate themselves.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.in_use().iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.overhead.load(Ordering::SeqCst)))
    }

    /// The sums of one instant, or `None` if the counters kept changing for `tries` readings.
    #[must_use]
    pub fn stable(&self, tries: u32) -> Option<Totals> {
        let (_, mut before) = self.read();
        for _ in 0..tries {
            let (totals, after) = self.read();
            if after == before {
                return Some(totals);
            }
            before = after;
        }
        None
    }

    pub(super) fn read(&self) -> (Totals, Fingerprint) {
        total_order();
        let mut totals = Totals::default();
        let mut fingerprint = Fingerprint::default();
        for slot in self.in_use() {
            let dropped = slot.dropped.load(Ordering::SeqCst);
            let committed = slot.committed.load(Ordering::SeqCst);
            let granted = slot.granted.load(Ordering::SeqCst);
            let claimed = slot.claimed.load(Ordering::SeqCst);
            for (sum, counter) in fingerprint.0.iter_mut().zip([dropped, committed, granted, claimed]) {
                *sum = sum.wrapping_add(counter);
            }
            let used = counter_distance(claimed, dropped);
            let tentative = counter_distance(claimed, granted).min(used);
            let unresolved = counter_distance(claimed, committed).clamp(tentative, used);
            totals.used = totals.used.saturating_add(used);
            totals.tentative = totals.tentative.saturating_add(tentative);
            totals.pending = totals.pending.saturating_add(unresolved - tentative);
            totals.settled = totals.settled.saturating_add(used - unresolved);
        }
        let shares = self.shares_in_use();
        fingerprint.0[6] = shares.len() as u64;
        for share in shares {
            let lost = share.lost.load(Ordering::SeqCst);
            let gained = share.gained.load(Ordering::SeqCst);
            fingerprint.0[4] = fingerprint.0[4].wrapping_add(lost);
            fingerprint.0[5] = fingerprint.0[5].wrapping_add(gained);
            let used = counter_distance(gained, lost);
            totals.used = totals.used.saturating_add(used);
            totals.settled = totals.settled.saturating_add(used);
        }
        (totals, fingerprint)
    }

    /// The members in the order of their slots, including dead ones that are not reclaimed yet.
    ///
    /// The first member also shows the bytes that no member answers for yet, so that the members add up to `used`.
    pub fn members(&self) -> impl Iterator<Item = MemberView> + 'p {
        let ledger = *self;
        let mut unanswered = self.unanswered_bytes();
        self.in_use().iter().enumerate().filter_map(move |(index, slot)| {
            let pid = slot.pid.load(Ordering::SeqCst);
            let birth = slot.birth.load(Ordering::SeqCst);
            (pid != 0).then(|| {
                let shared = ledger.answered_for(index, birth).saturating_add(core::mem::take(&mut unanswered));
                MemberView {
                    index,
                    pid,
                    birth,
                    used: slot.used().saturating_add(shared),
                    shared,
                    overhead: slot.overhead.load(Ordering::SeqCst),
                    high: slot.high.load(Ordering::SeqCst),
                    busy_ns: slot.busy.load(Ordering::SeqCst),
                }
            })
        })
    }

    /// Settles the slots and shares whose lock nobody holds, under the turn lock. Returns the bytes this freed.
    ///
    /// For observers that are not members; they call it from one thread at a time. A member uses
    /// [`super::Member::reclaim_dead`], which skips its own slot.
    pub fn reclaim_dead<K: Kernel>(&self, kernel: &K) -> u64 {
        let _turn = super::contended::SlowPathTurn::take_turn(kernel);
        self.reclaim_slots(usize::MAX, kernel).saturating_add(self.reclaim_shares(|_| false, kernel))
    }

    /// Frees all charges of slot `index` and its turn at the device. Only for the holder of the slot's lock.
    pub(crate) fn settle(&self, index: usize) {
        self.slots[index].settle_slot();
        self.free_turn_of(index);
    }

    pub(super) fn reclaim_slots<K: Kernel>(&self, own: usize, kernel: &K) -> u64 {
        let mut freed: u64 = 0;
        for (index, slot) in self.in_use().iter().enumerate() {
            let nobody = slot.pid.load(Ordering::SeqCst) == 0 && slot.used() == 0;
            if index == own || nobody || !kernel.try_lock_slot(index) {
                continue;
            }
            freed = freed.saturating_add(slot.used());
            self.settle(index);
            kernel.unlock_slot(index);
        }
        freed
    }

    pub(super) fn reclaim_shares<K: Kernel>(&self, own: impl Fn(usize) -> bool, kernel: &K) -> u64 {
        let mut freed: u64 = 0;
        for (index, share) in self.shares_in_use().iter().enumerate() {
            // The second byte's lock first: it fails while a process keeps the share for a descriptor. The share's
            // own byte then stays unlocked, so that an importer does not find it locked.
            if own(index) || share.is_nobodys() {
                continue;
            }
            if !kernel.try_lock_kept(index) {
                freed = freed.saturating_add(share.end_if_closed(index, kernel));
                continue;
            }
            if kernel.try_lock_share(index) {
                freed = freed.saturating_add(share.used_bytes());
                share.settle_shared();
                kernel.unlock_share(index);
            }
            kernel.unlock_kept(index);
        }
        self.lower_mark(own, kernel);
        freed
    }
}
