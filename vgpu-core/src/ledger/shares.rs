//! Charges that several members hold: an exported allocation or pool is charged once, in a place of its own.
//!
//! A [`Share`] lives while anybody holds a read lock on its byte: the exporter, and every importer of the same tenant.
//! When one of them dies the bytes stay with the others; when the last is gone, whoever can take the write lock settles
//! the share. An importer charges nothing; it finds the share by its identity.
//!
//! # Descriptors
//! A descriptor for an allocation keeps the memory as long as it is open anywhere, in a socket too. Only a process that had
//! it can tell. So a last holder that knows of an open one *keeps* the share: instead of the share's own byte it has a
//! read lock on the byte behind it. That counts like holding it, with one difference: once no descriptor is open any more,
//! anybody may end it, the keeper or not. Another process of the tenant that takes the share up meanwhile does when it is
//! the last to let it go; whoever looks for the dead does who can see, through a descriptor of the keeper's ([`Watched`]),
//! that none is open.
//!
//! # A share
//! Two counters that only grow, `gained` and `lost`; it holds the difference. There is no pending state in a share: its
//! exporter may be killed at any instruction, and what it left undecided would stand in the way of the living for ever.
//! Whatever is undecided stands in the exporter's own slot and dies with it.
//!
//! # Moving bytes from a slot to a share
//! ```text
//! slot.claimed += b    slot.granted += b    a second time, as a reservation
//! slot.dropped += b                         now it is the reservation alone that counts
//! share.gained += b                         the share holds them; the reservation counts them again
//! slot.dropped += b    slot.committed += b  the reservation is rolled back
//! ```
//! At every step at least `b` counts, and what counts twice is pending: a request that meets it waits, and is not
//! refused. Sums read slots before shares, and bytes never move from a share to a slot, so that no reader misses them in
//! between. (Nothing needs the way back: an allocation that was exported once can be imported until it is freed.)
//!
//! # A share that importers found
//! Memory whose share nobody finds, of another tenant or of one that died with descriptors under way, gets one from the
//! first who imports it ([`Member::found`]): empty at first, filled when somebody knows how large it is
//! ([`Reservation::commit_up_to`]), so that whoever imports it beside or after has it for nothing.
//!
//! # The mark of the highest share
//! Sums end at it, so it is lowered when the last shares are nobody's. Who begins a share has its write lock before it
//! raises the mark, and who lowers the mark has the write lock of the share that falls out: a share with bytes is always
//! below it. The mark is part of what a stable reading compares, since the counters of what falls out leave its sums.
//!
//! What lives elsewhere: which allocation has which identity, and how an importer learns it (libvgpu).

use super::member::Probing;
use super::sum::distance;
use super::{Kernel, Ledger, Member, Reservation, Share, Watched};
use crate::sync::Ordering;

/// The number of a share that this process holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShareId(usize);

/// A share that this process holds, as a place for bytes.
#[derive(Clone, Copy)]
pub struct Shared<'p>(pub(super) &'p Share);

/// What became of a share that a process let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Others hold it, or this process does so under another name.
    ToOthers,
    /// This process keeps it for a descriptor.
    Kept,
    /// It ended: its bytes are free.
    Ended,
}

/// In place of a number of holds: kept for a descriptor.
const KEPT: u32 = u32::MAX;

/// How often a lock is tried before it is given up, however much time has passed: it passes for who is stopped, too.
const ATTEMPTS: u32 = 64;

/// Tries for as long as a process that is about to give a lock back may not run; says whether it came about.
fn patiently<K: Kernel>(kernel: &K, attempt: impl Fn() -> bool) -> bool {
    let since = kernel.now();
    let mut round: u32 = 0;
    while !attempt() {
        if round >= ATTEMPTS && kernel.now().saturating_sub(since) >= super::TURN_WAIT_NS {
            return false;
        }
        kernel.wait(round);
        round = round.saturating_add(1);
    }
    true
}

impl Share {
    /// Bytes that count against the limit; too large while the share moves, never too small.
    #[inline]
    pub(super) fn used(&self) -> u64 {
        let lost = self.lost.load(Ordering::SeqCst);
        distance(self.gained.load(Ordering::SeqCst), lost)
    }

    pub(super) fn is_nobodys(&self) -> bool {
        self.identity.load(Ordering::SeqCst) == 0 && self.used() == 0
    }

    /// Frees what the share holds. Only for the holder of its write lock; may be repeated by the next.
    pub(super) fn settle(&self) {
        self.lost.store(self.gained.load(Ordering::SeqCst), Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
        self.pid.store(0, Ordering::SeqCst);
        self.birth.store(0, Ordering::SeqCst);
        self.keeper.store(0, Ordering::SeqCst);
        self.identity.store(0, Ordering::SeqCst);
    }
}

impl Share {
    /// Ends a share that is kept for a descriptor which is closed by now; how many bytes that freed.
    pub(super) fn end_if_closed<K: Kernel>(&self, index: usize, kernel: &K) -> u64 {
        let identity = self.identity.load(Ordering::SeqCst);
        let node = (self.node[0].load(Ordering::SeqCst), self.node[1].load(Ordering::SeqCst));
        let watched = Watched { descriptor: self.watch.load(Ordering::SeqCst), node };
        let keeper = self.keeper.load(Ordering::SeqCst);
        if keeper == 0 || !kernel.is_closed(keeper, watched, identity) || !kernel.try_lock_share(index) {
            return 0;
        }
        // What is closed everywhere is never open again: of this identity nobody can take it up any more.
        let freed = if self.identity.load(Ordering::SeqCst) == identity { self.used() } else { 0 };
        if freed > 0 {
            self.settle();
        }
        kernel.unlock_share(index);
        freed
    }
}

impl Shared<'_> {
    /// Bytes it holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used()
    }

    /// Gives `bytes` of it back: what an exported pool shrank by.
    pub fn release(&self, bytes: u64) {
        self.0.lost.fetch_add(bytes, Ordering::SeqCst);
    }
}

impl Ledger<'_> {
    /// Bytes of the shares that the member in slot `index` answers for.
    pub(super) fn answered_for(&self, index: usize, birth: u64) -> u64 {
        let own = |share: &&Share| {
            share.owner.load(Ordering::SeqCst) as usize == index
                && share.birth.load(Ordering::SeqCst) == birth
                && share.pid.load(Ordering::SeqCst) != 0
        };
        self.shares_in_use().iter().filter(own).fold(0, |sum: u64, share| sum.saturating_add(share.used()))
    }
}

impl Ledger<'_> {
    /// Whether the member that answered for it has let it go, or is gone.
    fn is_nobody_answering(&self, share: &Share) -> bool {
        let owner = share.owner.load(Ordering::SeqCst) as usize;
        let birth = share.birth.load(Ordering::SeqCst);
        let lives =
            |slot: &super::Slot| slot.birth.load(Ordering::SeqCst) == birth && slot.pid.load(Ordering::SeqCst) != 0;
        share.pid.load(Ordering::SeqCst) == 0 || !self.slots.get(owner).is_some_and(lives)
    }

    /// Bytes that somebody holds and nobody answers for yet: until whoever holds them looks for the dead.
    pub(super) fn unanswered(&self) -> u64 {
        let nobodys = |share: &&Share| self.is_nobody_answering(share);
        self.shares_in_use().iter().filter(nobodys).fold(0, |sum: u64, share| sum.saturating_add(share.used()))
    }
}

impl Ledger<'_> {
    /// Lowers the mark of the highest share past what is nobody's. `own`: what this process holds, whose locks do not
    /// keep it out.
    ///
    /// # Cost
    /// Two loads; two locks for each share that falls out.
    pub(super) fn lower_mark<K: Kernel>(&self, own: impl Fn(usize) -> bool, kernel: &K) {
        loop {
            let mark = self.header.high_share.load(Ordering::SeqCst);
            let last = usize::try_from(mark).unwrap_or(usize::MAX).wrapping_sub(1);
            let Some(share) = self.shares.get(last) else { return };
            if own(last) || !share.is_nobodys() || !kernel.try_lock_share(last) {
                return;
            }
            // Again, now that nobody can begin it. A mark that was raised meanwhile stays.
            let lowered = share.is_nobodys()
                && self.header.high_share.compare_exchange(mark, mark - 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            kernel.unlock_share(last);
            if !lowered {
                return;
            }
        }
    }
}

impl<'p> Reservation<'p> {
    /// As [`Reservation::commit_to`], of what the share lacks of `whole`: who paid for it beside us has paid for us too.
    pub fn commit_up_to(self, share: Shared<'p>, whole: u64) {
        let mut gained = share.0.gained.load(Ordering::SeqCst);
        loop {
            let held = distance(gained, share.0.lost.load(Ordering::SeqCst));
            let lack = whole.saturating_sub(held).min(self.bytes());
            let then = gained.wrapping_add(lack);
            match share.0.gained.compare_exchange(gained, then, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return, // and the reservation is rolled back
                Err(now) => gained = now,
            }
        }
    }
}

impl<'p> Member<'p> {
    /// Holds the share of that identity, or begins it, empty; `None`: all shares have living holders, or the locks cannot
    /// be had.
    ///
    /// # Cost
    /// The turn, and what [`Member::hold`] and [`Member::share`] cost.
    pub fn found<K: Kernel>(&self, identity: u64, kernel: &K) -> Option<ShareId> {
        // Of two that find none the second finds what the first has begun.
        let _turn = super::contended::Turn::take(kernel);
        self.hold(identity, kernel).or_else(|| self.share(identity, 0, kernel))
    }

    /// Moves `bytes` that this member holds to a new share, which importers find by `identity`, which is not 0.
    ///
    /// `None`: all shares have living holders, or the locks cannot be had. The charge is then where it was.
    ///
    /// # Cost
    /// Three locks; one or two more per share that others are looking at or keep.
    pub fn share<K: Kernel>(&self, identity: u64, bytes: u64, kernel: &K) -> Option<ShareId> {
        let _probing = Probing::take(self, kernel)?;
        let index = match self.free_share(kernel) {
            Some(index) => index,
            None => {
                self.ledger.reclaim_shares(|index| self.holds_share(index), kernel);
                self.free_share(kernel)?
            }
        };
        let share = &self.ledger.shares[index];
        share.settle();
        // Before the bytes: who claims later, and looks, sees this share.
        let mark = u32::try_from(index + 1).unwrap_or(u32::MAX);
        self.ledger.header.high_share.fetch_max(mark, Ordering::SeqCst);
        self.answer_for(share);
        share.identity.store(identity, Ordering::SeqCst);
        if !kernel.try_hold_share(index) {
            share.settle();
            kernel.unlock_share(index);
            return None;
        }
        self.holds[index].store(1, Ordering::SeqCst);
        self.hand_over(Shared(share), bytes);
        Some(ShareId(index))
    }

    /// Moves `bytes` that this member holds to a share that it holds too.
    ///
    /// # Cost
    /// Six additions; no system call.
    pub fn hand_over(&self, share: Shared<'_>, bytes: u64) {
        let slot = self.slot;
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        share.0.gained.fetch_add(bytes, Ordering::SeqCst);
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
    }

    /// A share that nobody has, with its write lock.
    fn free_share<K: Kernel>(&self, kernel: &K) -> Option<usize> {
        let free = |index: &usize| self.ledger.shares[*index].is_nobodys() && !self.holds_share(*index);
        (0..self.ledger.shares.len()).filter(free).find(|index| {
            if !kernel.try_lock_share(*index) {
                return false;
            }
            // Whoever keeps what was here, and has not seen its end, would keep what comes.
            let unkept = kernel.try_lock_kept(*index);
            if unkept {
                kernel.unlock_kept(*index);
            } else {
                kernel.unlock_share(*index);
            }
            unkept
        })
    }

    /// Holds the share of that identity once more; `None`: there is none, or it has ended.
    ///
    /// # Cost
    /// A scan of the shares in use, and one lock the first time this process holds it.
    pub fn hold<K: Kernel>(&self, identity: u64, kernel: &K) -> Option<ShareId> {
        let _probing = Probing::take(self, kernel)?;
        let is_it = |share: &Share| identity != 0 && share.identity.load(Ordering::SeqCst) == identity;
        let shares = self.ledger.shares_in_use().iter().enumerate().filter(|(_, share)| is_it(share));
        for (index, share) in shares {
            if !matches!(self.holds[index].load(Ordering::SeqCst), 0 | KEPT) {
                self.holds[index].fetch_add(1, Ordering::SeqCst);
                return Some(ShareId(index));
            }
            // Whoever looks for the dead has it for a moment; whoever settles it takes its identity away.
            let held = core::cell::Cell::new(false);
            patiently(kernel, || {
                held.set(is_it(share) && kernel.try_hold_share(index));
                held.get() || !is_it(share)
            });
            if !held.get() {
                continue;
            }
            // It may have ended, and begun again as another, before the lock was ours.
            if !is_it(share) {
                kernel.unlock_share(index);
                continue;
            }
            // One whose holders are dead and that nobody has settled counts still: it is taken over as it is (a descriptor
            // on its way outlives them). One that was kept here is held again.
            if self.holds[index].swap(1, Ordering::SeqCst) == KEPT {
                kernel.unlock_kept(index);
            }
            return Some(ShareId(index));
        }
        None
    }

    /// Gives one hold back. `open`: a descriptor of it is open somewhere, so that its last holder keeps it; and how others
    /// can see whether it is.
    ///
    /// # Cost
    /// Two locks, three if others hold it.
    pub fn let_go<K: Kernel>(&self, share: ShareId, open: Option<Watched>, kernel: &K) -> Left {
        match Probing::take(self, kernel) {
            Some(_probing) => self.let_go_once(share.0, open, kernel),
            None => Left::ToOthers,
        }
    }

    fn let_go_once<K: Kernel>(&self, index: usize, open: Option<Watched>, kernel: &K) -> Left {
        match self.holds[index].load(Ordering::SeqCst) {
            0 | KEPT => return Left::ToOthers,
            1 => {}
            more => {
                self.holds[index].store(more - 1, Ordering::SeqCst);
                return Left::ToOthers;
            }
        }
        let share = &self.ledger.shares[index];
        if !kernel.try_lock_share(index) {
            // Others hold it: one of them answers for it from now on.
            if self.answers_for(share) {
                share.pid.store(0, Ordering::SeqCst);
            }
            self.holds[index].store(0, Ordering::SeqCst);
            kernel.unlock_share(index);
            // Of several that let go at once each may have seen another's lock: the last one finds none.
            if !kernel.try_lock_share(index) {
                return Left::ToOthers;
            }
        }
        if let Some(watched) = open
            && !share.is_nobodys()
            && self.can_keep(share, index, watched, kernel)
        {
            self.holds[index].store(KEPT, Ordering::SeqCst);
            kernel.unlock_share(index);
            return Left::Kept;
        }
        self.holds[index].store(0, Ordering::SeqCst);
        // Whoever let go beside us may have settled it already.
        let ended = !share.is_nobodys();
        share.settle();
        kernel.unlock_share(index);
        self.ledger.lower_mark(|index| self.holds_share(index), kernel);
        if ended { Left::Ended } else { Left::ToOthers }
    }

    /// Changes a share that this process alone holds, to write, into one that it keeps.
    fn can_keep<K: Kernel>(&self, share: &Share, index: usize, watched: Watched, kernel: &K) -> bool {
        share.keeper.store(0, Ordering::SeqCst);
        share.watch.store(watched.descriptor, Ordering::SeqCst);
        share.node[0].store(watched.node.0, Ordering::SeqCst);
        share.node[1].store(watched.node.1, Ordering::SeqCst);
        share.keeper.store(self.slot.pid.load(Ordering::SeqCst), Ordering::SeqCst);
        patiently(kernel, || kernel.try_keep_share(index))
    }

    /// No descriptor is open any more of a share that this process keeps: it ends, unless somebody holds it. `identity`
    /// tells whether it is still the same.
    pub fn keep_no_longer<K: Kernel>(&self, share: ShareId, identity: u64, kernel: &K) -> Left {
        let index = share.0;
        let Some(_probing) = Probing::take(self, kernel) else { return Left::Kept };
        if self.holds[index].load(Ordering::SeqCst) != KEPT {
            return Left::ToOthers;
        }
        let share = &self.ledger.shares[index];
        let mut left = Left::ToOthers;
        if share.identity.load(Ordering::SeqCst) == identity && kernel.try_lock_share(index) {
            if share.identity.load(Ordering::SeqCst) == identity {
                share.settle();
                left = Left::Ended;
            }
            kernel.unlock_share(index);
        }
        self.holds[index].store(0, Ordering::SeqCst);
        kernel.unlock_kept(index);
        self.ledger.lower_mark(|index| self.holds_share(index), kernel);
        left
    }

    pub(super) fn let_all_go<K: Kernel>(&self, kernel: &K) {
        let Some(_probing) = Probing::take(self, kernel) else { return };
        for (index, holds) in self.holds.iter().enumerate() {
            match holds.load(Ordering::SeqCst) {
                0 => {}
                KEPT => kernel.unlock_kept(index),
                _ => {
                    holds.store(1, Ordering::SeqCst);
                    self.let_go_once(index, None, kernel);
                }
            }
        }
    }

    /// The share as a place for bytes, while this process holds it.
    #[must_use]
    pub fn shared(&self, share: ShareId) -> Shared<'p> {
        Shared(&self.ledger.shares[share.0])
    }

    /// Bytes of this process, and of the shares it answers for or would if somebody looked for the dead now.
    #[must_use]
    pub fn used_and_shared(&self) -> u64 {
        let mine = |(index, share): &(usize, &Share)| {
            self.holds_share(*index) && (self.answers_for(share) || self.ledger.is_nobody_answering(share))
        };
        let shares = self.ledger.shares_in_use().iter().enumerate().filter(mine);
        shares.fold(self.used(), |sum, (_, share)| sum.saturating_add(share.used()))
    }

    pub(super) fn holds_share(&self, index: usize) -> bool {
        self.holds[index].load(Ordering::SeqCst) > 0
    }

    fn answers_for(&self, share: &Share) -> bool {
        share.owner.load(Ordering::SeqCst) as usize == self.index()
            && share.birth.load(Ordering::SeqCst) == self.slot.birth.load(Ordering::SeqCst)
    }

    fn answer_for(&self, share: &Share) {
        share.owner.store(u32::try_from(self.index()).unwrap_or(u32::MAX), Ordering::SeqCst);
        share.birth.store(self.slot.birth.load(Ordering::SeqCst), Ordering::SeqCst);
        share.pid.store(self.slot.pid.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Answers for the shares that this process holds and whose member is gone: a matter of views, not of charges.
    pub(super) fn take_over(&self) {
        for (index, share) in self.ledger.shares_in_use().iter().enumerate() {
            if !self.holds_share(index) {
                continue;
            }
            if self.ledger.is_nobody_answering(share) {
                self.answer_for(share);
            }
        }
    }
}
