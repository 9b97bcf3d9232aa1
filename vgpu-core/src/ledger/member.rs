//! A member's acts: join, reserve, commit or roll back, release, leave. The common case only;
//! what happens when a request does not fit at first sight is `contended.rs`, what is held with others `shares.rs`.

use core::fmt;

use super::shares::Shared;
use super::{Kernel, Ledger, Slot};
use crate::bytes::Bytes;
use crate::sync::{AtomicU32, Ordering};

/// More is no amount of memory, and `distance` could not tell it from corruption.
const MOST: u64 = i64::MAX.unsigned_abs();

/// This process's place in a ledger. Shared by its threads; not inherited by a forked child.
pub struct Member<'p> {
    pub(super) ledger: Ledger<'p>,
    pub(super) slot: &'p Slot,
    index: usize,
    /// 1 while a thread of this process probes locks: they do not exclude our own threads.
    pub(super) probing: AtomicU32,
    /// How often this process holds each share; written while probing.
    pub(super) holds: Box<[AtomicU32]>,
}

/// One member as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its slot.
    pub index: usize,
    /// In its own pid namespace.
    pub pid: u32,
    /// What it gave to [`Ledger::join`].
    pub birth: u64,
    /// Bytes that count against the limit, with the shares it answers for.
    pub used: u64,
    /// Of it: what others may hold too.
    pub shared: u64,
    /// Of it: not the program's own.
    pub overhead: u64,
    /// The most it ever used at once.
    pub high: u64,
    /// Device time measured for it.
    pub busy_ns: u64,
}

/// Bytes that are set aside for one driver call. Dropped without [`Reservation::commit`], they go back.
#[must_use = "a reservation that is dropped is rolled back"]
pub struct Reservation<'p> {
    slot: &'p Slot,
    bytes: u64,
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not fit beside what is charged for good.
    OverLimit {
        /// Charged when the request was judged.
        used: Bytes,
        /// Asked for.
        requested: Bytes,
        /// Not to be exceeded.
        limit: Bytes,
    },
    /// It does not fit beside reservations whose driver calls did not end in time.
    Pending {
        /// Charged or reserved when the request was judged.
        used: Bytes,
        /// Asked for.
        requested: Bytes,
        /// Not to be exceeded.
        limit: Bytes,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OverLimit { used, requested, limit } => {
                write!(f, "{requested} do not fit: {used} of {limit} are in use")
            }
            Self::Pending { used, requested, limit } => {
                write!(f, "{requested} do not fit: {used} of {limit} are in use or about to be")
            }
        }
    }
}

impl core::error::Error for Refusal {}

/// Why a process could not become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// Every slot has a living holder.
    Full {
        /// How many slots there are.
        slots: usize,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Full { slots } = self;
        write!(f, "all {slots} places of the tenant are taken by living processes")
    }
}

impl core::error::Error for JoinError {}

impl<'p> Ledger<'p> {
    /// Makes this process a member: takes the first slot whose lock is free, and keeps that lock.
    ///
    /// `pid` is not 0 and in the process's own namespace; `birth` is anything that tells it from an
    /// earlier process with the same pid. At most once per open ledger file of a process.
    ///
    /// # Errors
    /// [`JoinError::Full`].
    ///
    /// # Cost
    /// The turn, and one lock probe per living member.
    pub fn join<K: Kernel>(&self, pid: u32, birth: u64, kernel: &K) -> Result<Member<'p>, JoinError> {
        // In turn: a dead slot whose lock we hold and which is not settled yet looks like a living one, and
        // somebody else's request would be refused for charges that nobody has.
        let _turn = super::contended::Turn::take(kernel);
        let free = (0..self.slots.len()).find(|index| kernel.try_lock_slot(*index));
        let index = free.ok_or(JoinError::Full { slots: self.slots.len() })?;
        let slot = &self.slots[index];
        self.settle(index);
        // Before the first claim: who claims later, and looks, sees this slot.
        let mark = u32::try_from(index + 1).unwrap_or(u32::MAX);
        self.header.high_slot.fetch_max(mark, Ordering::SeqCst);
        slot.birth.store(birth, Ordering::SeqCst);
        slot.pid.store(pid, Ordering::SeqCst);
        Ok(Member::at(*self, index))
    }
}

impl<'p> Member<'p> {
    /// A second handle to a slot that is joined already: what a thread of the same process works with.
    #[cfg(test)]
    #[cfg_attr(not(loom), expect(dead_code, reason = "for the model checker"))]
    pub(super) fn adopt(ledger: Ledger<'p>, index: usize) -> Self {
        Self::at(ledger, index)
    }

    fn at(ledger: Ledger<'p>, index: usize) -> Self {
        let ledger = Ledger { own: index + 1, ..ledger };
        let holds = ledger.shares.iter().map(|_| AtomicU32::new(0)).collect();
        Self { ledger, slot: &ledger.slots[index], index, probing: AtomicU32::new(0), holds }
    }

    /// The slot's number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the page is a formatted ledger still in which this process has its slot. Someone may have written over the
    /// page: its sums then say less than the members hold.
    ///
    /// # Cost
    /// Two loads.
    #[inline(always)]
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.ledger.header.is_formatted() && self.slot.pid.load(Ordering::Relaxed) != 0
    }

    /// The ledger this is a member of.
    #[must_use]
    pub fn ledger(&self) -> Ledger<'p> {
        self.ledger
    }

    /// Sets `bytes` aside if the tenant then holds at most `limit`; equal is allowed.
    ///
    /// `bytes` is rounded already ([`crate::charging`]). Afterwards call the driver, then
    /// [`Reservation::commit`]; dropping the reservation rolls it back.
    ///
    /// # Errors
    /// - [`Refusal::OverLimit`]: it does not fit beside settled charges, the dead reclaimed.
    /// - [`Refusal::Pending`]: others' driver calls decide, and took longer than [`super::OUTCOME_WAIT_NS`].
    ///
    /// # Cost
    /// Two atomic additions and a scan of the slots ever used; no system call, no allocation. What does
    /// not fit at first sight takes the turn: system calls, and up to the waits named in `contended.rs`.
    #[inline]
    pub fn reserve<K: Kernel>(&self, bytes: u64, limit: u64, kernel: &K) -> Result<Reservation<'p>, Refusal> {
        match self.reserve_at_once(bytes, limit) {
            Some(reservation) => Ok(reservation),
            None if bytes > limit || bytes > MOST => Err(self.never_fits(bytes, limit)),
            None => self.reserve_contended(bytes, limit, kernel),
        }
    }

    /// As [`Member::reserve`], if the bytes fit at first sight; `None` is no refusal.
    ///
    /// # Cost
    /// Two atomic additions and a scan of the slots ever used; no system call, no allocation.
    #[inline(always)] // hot: it returns in registers
    pub fn reserve_at_once(&self, bytes: u64, limit: u64) -> Option<Reservation<'p>> {
        if bytes > limit || bytes > MOST { None } else { self.claim(bytes, limit) }
    }

    /// Puts `bytes` on the table and grants them if the sum allows; otherwise takes them off again.
    #[inline(always)]
    pub(super) fn claim(&self, bytes: u64, limit: u64) -> Option<Reservation<'p>> {
        let slot = self.slot;
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        let sum = self.ledger.used();
        if sum <= limit {
            slot.granted.fetch_add(bytes, Ordering::SeqCst);
            slot.note_high();
            self.ledger.header.note_peak(sum);
            return Some(Reservation { slot, bytes });
        }
        self.withdraw(bytes);
        None
    }

    #[cold]
    fn withdraw(&self, bytes: u64) {
        let slot = self.slot;
        // The space first: from here on the claim stands in nobody's way. Until the last line others
        // see too little settled, which makes them wait, not refuse.
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
    }

    #[cold]
    fn never_fits(&self, bytes: u64, limit: u64) -> Refusal {
        Refusal::OverLimit { used: Bytes(self.ledger.used()), requested: Bytes(bytes), limit: Bytes(limit) }
    }

    /// Charges what the driver has already spent, whatever the limit: an overhead found afterwards.
    pub fn charge_spent_overhead(&self, bytes: u64) {
        let slot = self.slot;
        slot.overhead.fetch_add(bytes, Ordering::SeqCst);
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
        slot.note_high();
        self.ledger.header.note_peak(self.ledger.used());
    }

    /// Gives back `bytes` that were committed, after the driver freed them.
    #[inline]
    pub fn release(&self, bytes: u64) {
        self.slot.dropped.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Gives back `bytes` that were committed as overhead.
    pub fn release_overhead(&self, bytes: u64) {
        let fewer = |overhead: u64| Some(overhead.saturating_sub(bytes));
        // The closure never declines.
        let _ = self.slot.overhead.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        self.release(bytes);
    }

    /// Bytes this process holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.slot.used()
    }

    /// Of [`Member::used`]: not the program's own.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.slot.overhead.load(Ordering::SeqCst)
    }

    /// What tells a quiet moment of this process: bytes reserved whose driver calls have not ended, and a number that
    /// moves with every charge and release.
    #[must_use]
    pub fn activity(&self) -> (u64, u64) {
        // The later counter first: what is on its way is never missed.
        let committed = self.slot.committed.load(Ordering::SeqCst);
        let dropped = self.slot.dropped.load(Ordering::SeqCst);
        let claimed = self.slot.claimed.load(Ordering::SeqCst);
        (claimed.wrapping_sub(committed), claimed.wrapping_add(dropped))
    }

    /// Adds device time that was measured for this process.
    #[inline]
    pub fn add_busy(&self, ns: u64) {
        self.slot.busy.fetch_add(ns, Ordering::Relaxed);
    }

    /// The tenant's ceiling on device time, in this ledger's header.
    #[must_use]
    pub fn account(&self) -> crate::account::SharedAccount<'p> {
        self.ledger.account()
    }

    /// Settles the slots of dead members, in turn, and says how many bytes that freed.
    ///
    /// Nothing needs to call this: whoever would be refused does. It is for views and reports.
    pub fn reclaim_dead<K: Kernel>(&self, kernel: &K) -> u64 {
        let _turn = super::contended::Turn::take(kernel);
        self.reclaim_in_turn(kernel)
    }

    /// Settles slot `index` if its member is dead, and says whether it was. It does not wait: where somebody else looks
    /// for the dead at this moment, nothing is done.
    pub fn bury<K: Kernel>(&self, index: usize, kernel: &K) -> bool {
        if index == self.index || index >= self.ledger.slots.len() || !kernel.lock_turn(kernel.now()) {
            return false;
        }
        let mut dead = false;
        if self.probing.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let _probing = Probing(&self.probing);
            dead = kernel.try_lock_slot(index);
            if dead {
                self.ledger.settle(index);
                kernel.unlock_slot(index);
            }
        }
        kernel.unlock_turn();
        dead
    }

    /// One thread of a process at a time, even where the turn could not be had: locks do not exclude our own
    /// threads, and a second one would settle what the first has already given back.
    pub(super) fn reclaim_in_turn<K: Kernel>(&self, kernel: &K) -> u64 {
        let Some(_probing) = Probing::take(self, kernel) else { return 0 };
        self.take_over();
        let slots = self.ledger.reclaim_slots(self.index, kernel);
        slots.saturating_add(self.ledger.reclaim_shares(|index| self.holds_share(index), kernel))
    }

    /// Gives everything back and frees the slot. No reservation of any thread may be alive.
    pub fn leave<K: Kernel>(self, kernel: &K) {
        self.let_all_go(kernel);
        self.ledger.settle(self.index);
        kernel.unlock_slot(self.index);
    }
}

/// How often a thread looks whether it may probe before it gives up, however much time has passed.
const PROBES: u32 = 256;

/// The right to probe locks, among the threads of this process.
pub(super) struct Probing<'m>(&'m AtomicU32);

impl<'m> Probing<'m> {
    /// Waits for it; `None` if the thread that has it does not go on.
    pub(super) fn take<K: Kernel>(member: &'m Member<'_>, kernel: &K) -> Option<Self> {
        let since = kernel.now();
        let mut round: u32 = 0;
        while member.probing.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // Time passes for a process that is stopped, too: it has waited only if it looked again and again.
            if round >= PROBES && kernel.now().saturating_sub(since) >= super::STUCK_WAIT_NS {
                return None;
            }
            kernel.wait(round);
            round = round.saturating_add(1);
        }
        Some(Self(&member.probing))
    }
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl Slot {
    #[inline]
    fn note_high(&self) {
        let used = self.used();
        if used > self.high.load(Ordering::Relaxed) {
            self.high.fetch_max(used, Ordering::Relaxed);
        }
    }

    /// Of a slot for [`Reservation::apart`]: gives back up to `bytes` of what was committed; how many it had not.
    pub fn take_committed(&self, bytes: u64) -> u64 {
        let mut rest = bytes;
        // What is reserved or rolled back is in neither counter, or in both: a roll-back in between repeats this.
        let take = |dropped: u64| {
            let held = self.committed.load(Ordering::SeqCst).wrapping_sub(dropped).cast_signed().max(0).cast_unsigned();
            rest = bytes.saturating_sub(held);
            Some(dropped.wrapping_add(bytes - rest))
        };
        // The closure never declines.
        let _ = self.dropped.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        rest
    }
}

impl<'p> Reservation<'p> {
    /// Bytes in a slot that belongs to no ledger: nobody sums them. For a call that must go on although its ledger is
    /// gone, where nothing is enforced.
    pub fn apart(slot: &'p Slot, bytes: u64) -> Self {
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        Self { slot, bytes }
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back what is beyond `bytes`: more was set aside than the driver took.
    pub fn shrink_to(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        drop(Self { slot: self.slot, bytes: rest });
    }

    /// The driver said yes: the charge stays until it is released. The sum does not change.
    #[inline]
    pub fn commit(self) {
        self.slot.committed.fetch_add(self.bytes, Ordering::SeqCst);
        core::mem::forget(self);
    }

    /// As [`Reservation::commit`], for bytes that are not the program's own.
    pub fn commit_overhead(self) {
        self.slot.overhead.fetch_add(self.bytes, Ordering::SeqCst);
        self.commit();
    }

    /// As [`Reservation::commit`], to a share of this ledger: what an exported pool grew by.
    ///
    /// Killed in between, the bytes stand in the share, where they belong, and in a slot that is reclaimed.
    pub fn commit_to(self, share: Shared<'p>) {
        share.0.gained.fetch_add(self.bytes, Ordering::SeqCst);
    }

    /// The driver said no: the bytes go back. Dropping does the same.
    pub fn rollback(self) {}
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.slot.dropped.fetch_add(self.bytes, Ordering::SeqCst);
        self.slot.committed.fetch_add(self.bytes, Ordering::SeqCst);
    }
}
