//! Charges that several members hold: an exported allocation or pool is charged once, in a [`SharedCharge`] of its own.
//!
//! The exporter and every importer of the same tenant hold a read lock on the share's byte. The share lives as long
//! as one of these locks. When a holder dies, the bytes stay charged for the others. After the last one, any process
//! that gets the write lock settles the share. An importer charges nothing; it finds the share by its identity.
//!
//! # Descriptors
//! A descriptor of an allocation keeps the memory while it is open anywhere, even inside a socket. Only a process
//! that had the descriptor can find out if it is still open. So the last holder, if it knows of an open descriptor,
//! *keeps* the share: it swaps its lock on the share's byte for a read lock on the following byte. A kept share
//! counts like a held one, with one difference: after the last descriptor is closed, any process may end it. There
//! are two ways:
//! - Another process of the tenant takes the share up meanwhile. It ends the share when it is the last to release it.
//! - A process that reclaims the dead sees through a descriptor of the keeper ([`Watched`]) that none is open.
//!
//! # A share
//! Two counters that only grow, `gained` and `lost`; the share holds their difference. A share has no pending state:
//! its exporter may be killed at any instruction, and undecided bytes would then block the living forever. Undecided
//! bytes are counted in the exporter's own slot and end with it.
//!
//! # Moving bytes from a slot to a share
//! ```text
//! slot.claimed += b    slot.granted += b    a second time, as a reservation
//! slot.dropped += b                         now only the reservation counts
//! share.gained += b                         the share holds them; the reservation counts them again
//! slot.dropped += b    slot.committed += b  the reservation is rolled back
//! ```
//! At every step at least `b` counts, and bytes counted twice are pending: a request that meets them waits and is not
//! refused. Sums read slots before shares, and bytes never move from a share to a slot, so no reader misses them. (No
//! step needs the way back: an allocation that was exported once can be imported until it is freed.)
//!
//! # A share created by an importer
//! An importer may find no share for some memory: it belongs to another tenant, or its exporter died while a
//! descriptor was under way. The first importer then creates the share ([`Member::hold_or_begin`]), empty. It is
//! filled once an importer knows the size ([`Reservation::commit_up_to`]). Importers at the same time or later pay
//! nothing.
//!
//! # The mark of the highest share
//! Sums end at this mark, so it is lowered when the last shares are free. A process that begins a share takes its
//! write lock before it raises the mark. A process that lowers the mark has the write lock of the share that drops
//! out. So a share with bytes is always below the mark. A stable reading compares the mark too, because the counters
//! of a dropped share leave its sums.
//!
//! Not here: the identity of an allocation, and how an importer learns it (libvgpu).

use super::member::ProbeRight;
use super::sum::counter_distance;
use super::{Kernel, Ledger, Member, Reservation, SharedCharge, Watched};
use crate::sync::Ordering;

/// Index of a share that this process holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedChargeId(usize);

/// A share that this process holds, as a target for charges.
#[derive(Clone, Copy)]
pub struct HeldCharge<'p>(pub(super) &'p SharedCharge);

/// Result of releasing one hold on a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// The share lives on: other processes hold it, or this process has another hold on it.
    ToOthers,
    /// This process keeps it for a descriptor.
    Kept,
    /// The share ended: its bytes are free.
    Ended,
}

/// In [`Member::holds`], instead of a number of holds: this process keeps the share for a descriptor.
const KEPT_FOR_DESCRIPTOR: u32 = u32::MAX;

/// Least number of tries for a lock before giving up: elapsed time alone says nothing, since it passes while a
/// process is stopped.
const MAX_LOCK_TRIES: u32 = 64;

/// Retries `attempt` until it succeeds or its time is over; returns true if it succeeded. The time,
/// [`super::TURN_WAIT_NS`], lets a process that is about to release a lock get the CPU.
fn retry_lock<K: Kernel>(kernel: &K, attempt: impl Fn() -> bool) -> bool {
    let since = kernel.now();
    let mut round: u32 = 0;
    while !attempt() {
        if round >= MAX_LOCK_TRIES && kernel.now().saturating_sub(since) >= super::TURN_WAIT_NS {
            return false;
        }
        kernel.wait(round);
        round = round.saturating_add(1);
    }
    true
}

impl SharedCharge {
    /// Bytes that count against the limit; too large while the share changes, never too small.
    #[inline]
    pub(super) fn used_bytes(&self) -> u64 {
        let lost = self.lost.load(Ordering::SeqCst);
        counter_distance(self.gained.load(Ordering::SeqCst), lost)
    }

    pub(super) fn is_nobodys(&self) -> bool {
        self.identity.load(Ordering::SeqCst) == 0 && self.used_bytes() == 0
    }

    /// Frees the share's bytes and clears its fields. Only for the holder of its write lock; safe to repeat after the
    /// caller died midway.
    pub(super) fn settle_shared(&self) {
        self.lost.store(self.gained.load(Ordering::SeqCst), Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
        self.pid.store(0, Ordering::SeqCst);
        self.birth.store(0, Ordering::SeqCst);
        self.keeper.store(0, Ordering::SeqCst);
        self.identity.store(0, Ordering::SeqCst);
    }
}

impl SharedCharge {
    /// Ends a share that is kept for a descriptor, if that descriptor is closed by now. Returns the bytes this freed.
    pub(super) fn end_if_closed<K: Kernel>(&self, index: usize, kernel: &K) -> u64 {
        let identity = self.identity.load(Ordering::SeqCst);
        let node = (self.node[0].load(Ordering::SeqCst), self.node[1].load(Ordering::SeqCst));
        let watched = Watched { descriptor: self.watch.load(Ordering::SeqCst), node };
        let keeper = self.keeper.load(Ordering::SeqCst);
        if keeper == 0 || !kernel.is_closed(keeper, watched, identity) || !kernel.try_lock_share(index) {
            return 0;
        }
        // A descriptor closed everywhere never opens again, so nobody can take up this identity any more.
        let freed = if self.identity.load(Ordering::SeqCst) == identity { self.used_bytes() } else { 0 };
        if freed > 0 {
            self.settle_shared();
        }
        kernel.unlock_share(index);
        freed
    }
}

impl HeldCharge<'_> {
    /// Bytes the share holds.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }

    /// Gives `bytes` of the share back: an exported pool shrank.
    pub fn release(&self, bytes: u64) {
        self.0.lost.fetch_add(bytes, Ordering::SeqCst);
    }
}

impl Ledger<'_> {
    /// Bytes of the shares that the member in slot `index` answers for in views.
    pub(super) fn answered_for(&self, index: usize, birth: u64) -> u64 {
        let own = |share: &&SharedCharge| {
            share.owner.load(Ordering::SeqCst) as usize == index
                && share.birth.load(Ordering::SeqCst) == birth
                && share.pid.load(Ordering::SeqCst) != 0
        };
        self.shares_in_use().iter().filter(own).fold(0, |sum: u64, share| sum.saturating_add(share.used_bytes()))
    }
}

impl Ledger<'_> {
    /// True if the member that answered for the share has released it, or is gone.
    fn is_nobody_answering(&self, share: &SharedCharge) -> bool {
        let owner = share.owner.load(Ordering::SeqCst) as usize;
        let birth = share.birth.load(Ordering::SeqCst);
        let lives = |slot: &super::LedgerSlot| {
            slot.birth.load(Ordering::SeqCst) == birth && slot.pid.load(Ordering::SeqCst) != 0
        };
        share.pid.load(Ordering::SeqCst) == 0 || !self.slots.get(owner).is_some_and(lives)
    }

    /// Bytes that are held and that no member answers for: until one of their holders reclaims the dead.
    pub(super) fn unanswered_bytes(&self) -> u64 {
        let nobodys = |share: &&SharedCharge| self.is_nobody_answering(share);
        self.shares_in_use().iter().filter(nobodys).fold(0, |sum: u64, share| sum.saturating_add(share.used_bytes()))
    }
}

impl Ledger<'_> {
    /// Lowers the mark past free shares at its end. `own` names the shares that this process holds: its own locks do
    /// not exclude it.
    ///
    /// # Cost
    /// Two loads; two system calls for locks per share that drops out.
    pub(super) fn lower_mark<K: Kernel>(&self, own: impl Fn(usize) -> bool, kernel: &K) {
        loop {
            let mark = self.header.high_share.load(Ordering::SeqCst);
            let last = usize::try_from(mark).unwrap_or(usize::MAX).wrapping_sub(1);
            let Some(share) = self.shares.get(last) else { return };
            if own(last) || !share.is_nobodys() || !kernel.try_lock_share(last) {
                return;
            }
            // Check again, now that nobody can begin this share. A mark that was raised meanwhile stays.
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
    /// As [`Reservation::commit_to`], but adds only the bytes that the share lacks of `whole`. Another importer may
    /// have paid at the same time; its payment counts for all.
    pub fn commit_up_to(self, share: HeldCharge<'p>, whole: u64) {
        let mut gained = share.0.gained.load(Ordering::SeqCst);
        loop {
            let held = counter_distance(gained, share.0.lost.load(Ordering::SeqCst));
            let lack = whole.saturating_sub(held).min(self.reserved_bytes());
            let then = gained.wrapping_add(lack);
            match share.0.gained.compare_exchange(gained, then, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return, // the drop rolls the reservation back
                Err(now) => gained = now,
            }
        }
    }
}

impl<'p> Member<'p> {
    /// Takes a hold on the share with this identity, or creates it, empty. `None`: all shares have living holders, or
    /// a lock was not obtained.
    ///
    /// # Cost
    /// The turn lock, and the cost of [`Member::hold_again`] and [`Member::begin_shared`].
    pub fn hold_or_begin<K: Kernel>(&self, identity: u64, kernel: &K) -> Option<SharedChargeId> {
        // Under the turn lock: of two importers that find none, the second finds the share that the first has begun.
        let _turn = super::contended::SlowPathTurn::take_turn(kernel);
        self.hold_again(identity, kernel).or_else(|| self.begin_shared(identity, 0, kernel))
    }

    /// Moves `bytes` that this member holds to a new share, which importers find by `identity` (not 0).
    ///
    /// `None`: all shares have living holders, or a lock was not obtained. The charge then stays in the slot.
    ///
    /// # Cost
    /// Three locks; one or two more per share that another process probes or keeps.
    pub fn begin_shared<K: Kernel>(&self, identity: u64, bytes: u64, kernel: &K) -> Option<SharedChargeId> {
        let _probing = ProbeRight::take_probe(self, kernel)?;
        let index = match self.free_share(kernel) {
            Some(index) => index,
            None => {
                self.ledger.reclaim_shares(|index| self.holds_share(index), kernel);
                self.free_share(kernel)?
            }
        };
        let share = &self.ledger.shares[index];
        share.settle_shared();
        // Raise the mark before the bytes, so that the sum of every later request includes this share.
        let mark = u32::try_from(index + 1).unwrap_or(u32::MAX);
        self.ledger.header.high_share.fetch_max(mark, Ordering::SeqCst);
        self.answer_for(share);
        share.identity.store(identity, Ordering::SeqCst);
        if !kernel.try_hold_share(index) {
            share.settle_shared();
            kernel.unlock_share(index);
            return None;
        }
        self.holds[index].store(1, Ordering::SeqCst);
        self.hand_over(HeldCharge(share), bytes);
        Some(SharedChargeId(index))
    }

    /// Moves `bytes` that this member holds to a share that it also holds.
    ///
    /// # Cost
    /// Six atomic additions; no system call.
    pub fn hand_over(&self, share: HeldCharge<'_>, bytes: u64) {
        let slot = self.slot;
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        share.0.gained.fetch_add(bytes, Ordering::SeqCst);
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Finds a free share and takes its write lock.
    fn free_share<K: Kernel>(&self, kernel: &K) -> Option<usize> {
        let free = |index: &usize| self.ledger.shares[*index].is_nobodys() && !self.holds_share(*index);
        (0..self.ledger.shares.len()).filter(free).find(|index| {
            if !kernel.try_lock_share(*index) {
                return false;
            }
            // A process may still keep the previous share here, unaware that it has ended. It would also keep the
            // next one.
            let unkept = kernel.try_lock_kept(*index);
            if unkept {
                kernel.unlock_kept(*index);
            } else {
                kernel.unlock_share(*index);
            }
            unkept
        })
    }

    /// Takes one more hold on the share with this identity. `None`: there is none, or it has ended.
    ///
    /// # Cost
    /// A scan of the shares in use, and one lock the first time this process holds the share.
    pub fn hold_again<K: Kernel>(&self, identity: u64, kernel: &K) -> Option<SharedChargeId> {
        let _probing = ProbeRight::take_probe(self, kernel)?;
        let is_it = |share: &SharedCharge| identity != 0 && share.identity.load(Ordering::SeqCst) == identity;
        let shares = self.ledger.shares_in_use().iter().enumerate().filter(|(_, share)| is_it(share));
        for (index, share) in shares {
            if !matches!(self.holds[index].load(Ordering::SeqCst), 0 | KEPT_FOR_DESCRIPTOR) {
                self.holds[index].fetch_add(1, Ordering::SeqCst);
                return Some(SharedChargeId(index));
            }
            // A process that reclaims the dead has the lock for a moment, so retry. If it settles the share, it
            // clears the identity.
            let held = core::cell::Cell::new(false);
            retry_lock(kernel, || {
                held.set(is_it(share) && kernel.try_hold_share(index));
                held.get() || !is_it(share)
            });
            if !held.get() {
                continue;
            }
            // The share may have ended and begun again with another identity before we got the lock.
            if !is_it(share) {
                kernel.unlock_share(index);
                continue;
            }
            // A share whose holders died before anybody settled it still counts: this process takes it over as it is,
            // since a descriptor under way outlives its holders. A share that this process kept becomes a held one.
            if self.holds[index].swap(1, Ordering::SeqCst) == KEPT_FOR_DESCRIPTOR {
                kernel.unlock_kept(index);
            }
            return Some(SharedChargeId(index));
        }
        None
    }

    /// Releases one hold. `open` is given if a descriptor of the share is still open somewhere, and names the
    /// descriptor through which others can check that. The last holder then keeps the share.
    ///
    /// # Cost
    /// Two locks, three if others hold the share.
    pub fn let_go<K: Kernel>(&self, share: SharedChargeId, open: Option<Watched>, kernel: &K) -> Release {
        match ProbeRight::take_probe(self, kernel) {
            Some(_probing) => self.let_go_once(share.0, open, kernel),
            None => Release::ToOthers,
        }
    }

    fn let_go_once<K: Kernel>(&self, index: usize, open: Option<Watched>, kernel: &K) -> Release {
        match self.holds[index].load(Ordering::SeqCst) {
            0 | KEPT_FOR_DESCRIPTOR => return Release::ToOthers,
            1 => {}
            more => {
                self.holds[index].store(more - 1, Ordering::SeqCst);
                return Release::ToOthers;
            }
        }
        let share = &self.ledger.shares[index];
        if !kernel.try_lock_share(index) {
            // Others hold it: one of them answers for it in views from now on.
            if self.answers_for(share) {
                share.pid.store(0, Ordering::SeqCst);
            }
            self.holds[index].store(0, Ordering::SeqCst);
            kernel.unlock_share(index);
            // If several holders release at once, each may have seen another's lock. So try again after unlocking:
            // the last one finds no lock.
            if !kernel.try_lock_share(index) {
                return Release::ToOthers;
            }
        }
        if let Some(watched) = open
            && !share.is_nobodys()
            && self.can_keep(share, index, watched, kernel)
        {
            self.holds[index].store(KEPT_FOR_DESCRIPTOR, Ordering::SeqCst);
            kernel.unlock_share(index);
            return Release::Kept;
        }
        self.holds[index].store(0, Ordering::SeqCst);
        // Another process that released it at the same time may have settled it already.
        let ended = !share.is_nobodys();
        share.settle_shared();
        kernel.unlock_share(index);
        self.ledger.lower_mark(|index| self.holds_share(index), kernel);
        if ended { Release::Ended } else { Release::ToOthers }
    }

    /// Turns a share on which this process has the write lock, as its only holder, into one that it keeps.
    fn can_keep<K: Kernel>(&self, share: &SharedCharge, index: usize, watched: Watched, kernel: &K) -> bool {
        share.keeper.store(0, Ordering::SeqCst);
        share.watch.store(watched.descriptor, Ordering::SeqCst);
        share.node[0].store(watched.node.0, Ordering::SeqCst);
        share.node[1].store(watched.node.1, Ordering::SeqCst);
        share.keeper.store(self.slot.pid.load(Ordering::SeqCst), Ordering::SeqCst);
        retry_lock(kernel, || kernel.try_keep_share(index))
    }

    /// Stops keeping a share because no descriptor of it is open any more. The share ends unless another process
    /// holds it. `identity` detects a share that began in the same place since.
    pub fn keep_no_longer<K: Kernel>(&self, share: SharedChargeId, identity: u64, kernel: &K) -> Release {
        let index = share.0;
        let Some(_probing) = ProbeRight::take_probe(self, kernel) else { return Release::Kept };
        if self.holds[index].load(Ordering::SeqCst) != KEPT_FOR_DESCRIPTOR {
            return Release::ToOthers;
        }
        let share = &self.ledger.shares[index];
        let mut left = Release::ToOthers;
        if share.identity.load(Ordering::SeqCst) == identity && kernel.try_lock_share(index) {
            if share.identity.load(Ordering::SeqCst) == identity {
                share.settle_shared();
                left = Release::Ended;
            }
            kernel.unlock_share(index);
        }
        self.holds[index].store(0, Ordering::SeqCst);
        kernel.unlock_kept(index);
        self.ledger.lower_mark(|index| self.holds_share(index), kernel);
        left
    }

    pub(super) fn let_all_go<K: Kernel>(&self, kernel: &K) {
        let Some(_probing) = ProbeRight::take_probe(self, kernel) else { return };
        for (index, holds) in self.holds.iter().enumerate() {
            match holds.load(Ordering::SeqCst) {
                0 => {}
                KEPT_FOR_DESCRIPTOR => kernel.unlock_kept(index),
                _ => {
                    holds.store(1, Ordering::SeqCst);
                    self.let_go_once(index, None, kernel);
                }
            }
        }
    }

    /// The share as a target for charges, while this process holds it.
    #[must_use]
    pub fn held_charge(&self, share: SharedChargeId) -> HeldCharge<'p> {
        HeldCharge(&self.ledger.shares[share.0])
    }

    /// Bytes of this process, including the shares it answers for or would answer for after a search for the dead.
    #[must_use]
    pub fn used_and_shared(&self) -> u64 {
        let mine = |(index, share): &(usize, &SharedCharge)| {
            self.holds_share(*index) && (self.answers_for(share) || self.ledger.is_nobody_answering(share))
        };
        let shares = self.ledger.shares_in_use().iter().enumerate().filter(mine);
        shares.fold(self.used_bytes(), |sum, (_, share)| sum.saturating_add(share.used_bytes()))
    }

    pub(super) fn holds_share(&self, index: usize) -> bool {
        self.holds[index].load(Ordering::SeqCst) > 0
    }

    fn answers_for(&self, share: &SharedCharge) -> bool {
        share.owner.load(Ordering::SeqCst) as usize == self.index()
            && share.birth.load(Ordering::SeqCst) == self.slot.birth.load(Ordering::SeqCst)
    }

    fn answer_for(&self, share: &SharedCharge) {
        share.owner.store(u32::try_from(self.index()).unwrap_or(u32::MAX), Ordering::SeqCst);
        share.birth.store(self.slot.birth.load(Ordering::SeqCst), Ordering::SeqCst);
        share.pid.store(self.slot.pid.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Answers from now on for shares that this process holds and whose member is gone. This affects views, not
    /// charges.
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
