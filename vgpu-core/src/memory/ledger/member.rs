//! Operations of a member: join, reserve, commit or roll back, release, leave.
//!
//! This file holds the common case. `contended.rs` handles a request that does not fit at the first attempt,
//! `shares.rs` the memory that several processes hold.

use core::fmt;

use super::shares::HeldCharge;
use super::{Kernel, Ledger, LedgerSlot};
use crate::sync::{AtomicU32, Ordering};
use crate::units::bytes::Bytes;

/// Largest request in bytes: `distance` takes any larger difference for a corrupted page.
const MAX_CHARGE_BYTES: u64 = i64::MAX.unsigned_abs();

/// This process's membership in a ledger. Its threads share it; a forked child does not inherit it.
pub struct Member<'p> {
    pub(crate) ledger: Ledger<'p>,
    pub(super) slot: &'p LedgerSlot,
    index: usize,
    /// 1 while a thread of this process probes locks: file locks do not exclude threads of one process.
    pub(super) probing: AtomicU32,
    /// How often this process holds each share; changed only by the thread that has set `probing`.
    pub(super) holds: Box<[AtomicU32]>,
}

/// One member as views and reports show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Index of the member's slot.
    pub index: usize,
    /// Process id in its own pid namespace.
    pub pid: u32,
    /// The `birth` it passed to [`Ledger::join`].
    pub birth: u64,
    /// Bytes that count against the limit, including the shares it answers for.
    pub used: u64,
    /// Part of `used`: bytes in shares, which other processes may hold too.
    pub shared: u64,
    /// Part of `used`: bytes that the program did not allocate itself.
    pub overhead: u64,
    /// Most bytes it ever held at once.
    pub high: u64,
    /// Device time measured for it, in nanoseconds.
    pub busy_ns: u64,
}

/// Bytes set aside for one driver call. Dropping it without [`Reservation::commit`] gives them back.
#[must_use = "a reservation that is dropped is rolled back"]
pub struct Reservation<'p> {
    slot: &'p LedgerSlot,
    bytes: u64,
}

impl fmt::Debug for Reservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Reasons why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request does not fit next to the bytes that are already committed.
    OverLimit {
        /// Bytes charged when the request was judged.
        used: Bytes,
        /// Bytes requested.
        requested: Bytes,
        /// The limit in bytes.
        limit: Bytes,
    },
    /// The request does not fit next to reservations or claims (requests not granted yet) of other members that
    /// were not decided in time.
    Pending {
        /// Bytes charged or reserved when the request was judged.
        used: Bytes,
        /// Bytes requested.
        requested: Bytes,
        /// The limit in bytes.
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

/// Reasons why a process could not become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinError {
    /// Every slot has a living holder.
    Full {
        /// Number of slots, one for each member.
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
    /// Makes this process a member: takes the first slot whose lock is free and keeps the lock until it leaves or
    /// dies.
    ///
    /// `pid` is the process id in the caller's own namespace, not 0. `birth` is any number that tells the process
    /// from an earlier one with the same pid. Call it at most once per open ledger file of a process.
    ///
    /// # Errors
    /// [`JoinError::Full`].
    ///
    /// # Cost
    /// The turn lock, and one lock probe per living member.
    pub fn join<K: Kernel>(&self, pid: u32, birth: u64, kernel: &K) -> Result<Member<'p>, JoinError> {
        // Under the turn lock: a dead slot that we have locked and not freed yet looks alive. Another member's
        // request would be refused because of charges that nobody has.
        let _turn = super::contended::SlowPathTurn::take_turn(kernel);
        let free = (0..self.slots.len()).find(|index| kernel.try_lock_slot(*index));
        let index = free.ok_or(JoinError::Full { slots: self.slots.len() })?;
        let slot = &self.slots[index];
        self.settle(index);
        // Raise the mark before the first request, so that the sum of every later request includes this slot.
        let mark = u32::try_from(index + 1).unwrap_or(u32::MAX);
        self.header.high_slot.fetch_max(mark, Ordering::SeqCst);
        slot.birth.store(birth, Ordering::SeqCst);
        slot.pid.store(pid, Ordering::SeqCst);
        Ok(Member::from_slot(*self, index))
    }
}

impl<'p> Member<'p> {
    /// A second handle to a joined slot, for another thread of the same process.
    #[cfg(test)]
    #[cfg_attr(not(loom), expect(dead_code, reason = "for the model checker"))]
    pub(super) fn second_handle(ledger: Ledger<'p>, index: usize) -> Self {
        Self::from_slot(ledger, index)
    }

    fn from_slot(ledger: Ledger<'p>, index: usize) -> Self {
        let ledger = Ledger { own: index + 1, ..ledger };
        let holds = ledger.shares.iter().map(|_| AtomicU32::new(0)).collect();
        Self { ledger, slot: &ledger.slots[index], index, probing: AtomicU32::new(0), holds }
    }

    /// Index of this member's slot.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// True while the page is still a formatted ledger and this process still has its slot. If somebody overwrote the
    /// page, its sums are below the bytes that the members hold.
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
    pub fn member_ledger(&self) -> Ledger<'p> {
        self.ledger
    }

    /// Sets `bytes` aside if the tenant then holds at most `limit` bytes.
    ///
    /// `bytes` is already rounded ([`crate::memory::charging`]). The caller then calls the driver and
    /// [`Reservation::commit`]; dropping the reservation rolls it back.
    ///
    /// # Errors
    /// - [`Refusal::OverLimit`]: it does not fit next to settled charges, after the dead were reclaimed.
    /// - [`Refusal::Pending`]: others still decide if it fits. Their driver calls took longer than
    ///   [`super::OUTCOME_WAIT_NS`], or their claims stayed undecided for [`super::STUCK_WAIT_NS`].
    ///
    /// # Cost
    /// Two atomic additions and a scan of the slots ever used; no system call, no allocation. A request that does not
    /// fit at the first attempt takes the turn lock: system calls, and up to the waits named in `contended.rs`.
    #[inline]
    pub fn reserve<K: Kernel>(&self, bytes: u64, limit: u64, kernel: &K) -> Result<Reservation<'p>, Refusal> {
        match self.reserve_at_once(bytes, limit) {
            Some(reservation) => Ok(reservation),
            None if bytes > limit || bytes > MAX_CHARGE_BYTES => Err(self.never_fits(bytes, limit)),
            None => self.reserve_contended(bytes, limit, kernel),
        }
    }

    /// As [`Member::reserve`], if the bytes fit at the first attempt. `None` is not a refusal: the caller tries the
    /// slow path.
    ///
    /// # Cost
    /// Two atomic additions and a scan of the slots ever used; no system call, no allocation.
    #[inline(always)] // hot: it returns in registers
    pub fn reserve_at_once(&self, bytes: u64, limit: u64) -> Option<Reservation<'p>> {
        if bytes > limit || bytes > MAX_CHARGE_BYTES { None } else { self.try_claim(bytes, limit) }
    }

    /// Publishes `bytes` as claimed and grants the request if the sum is within the limit; otherwise withdraws it.
    #[inline(always)]
    pub(super) fn try_claim(&self, bytes: u64, limit: u64) -> Option<Reservation<'p>> {
        let slot = self.slot;
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        let sum = self.ledger.used();
        if sum <= limit {
            slot.granted.fetch_add(bytes, Ordering::SeqCst);
            slot.note_high();
            self.ledger.header.note_peak(sum);
            return Some(Reservation { slot, bytes });
        }
        self.withdraw_claim(bytes);
        None
    }

    #[cold]
    fn withdraw_claim(&self, bytes: u64) {
        let slot = self.slot;
        // `dropped` first: from here on the request blocks nobody. Until the last line other members see too few
        // committed bytes, so they wait instead of refusing.
        slot.dropped.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
    }

    #[cold]
    fn never_fits(&self, bytes: u64, limit: u64) -> Refusal {
        Refusal::OverLimit { used: Bytes(self.ledger.used()), requested: Bytes(bytes), limit: Bytes(limit) }
    }

    /// Charges bytes that the driver has already taken, regardless of the limit: an overhead found afterwards.
    pub fn charge_spent_overhead(&self, bytes: u64) {
        let slot = self.slot;
        slot.overhead.fetch_add(bytes, Ordering::SeqCst);
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        slot.committed.fetch_add(bytes, Ordering::SeqCst);
        slot.note_high();
        self.ledger.header.note_peak(self.ledger.used());
    }

    /// Gives back `bytes` of the committed charge, after the driver freed them.
    #[inline]
    pub fn release(&self, bytes: u64) {
        self.slot.dropped.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Gives back `bytes` of the charge that was committed as overhead.
    pub fn release_overhead(&self, bytes: u64) {
        let fewer = |overhead: u64| Some(overhead.saturating_sub(bytes));
        // The closure always returns `Some`.
        let _ = self.slot.overhead.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
        self.release(bytes);
    }

    /// Bytes this process holds.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.slot.used()
    }

    /// Part of [`Member::used_bytes`] that the program did not allocate itself.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        self.slot.overhead.load(Ordering::SeqCst)
    }

    /// Two numbers that show if this process allocates or frees right now. The first: bytes reserved whose driver
    /// calls have not returned. The second changes with every charge and release.
    #[must_use]
    pub fn pending_and_moved(&self) -> (u64, u64) {
        // `committed` is read before `claimed`, so that a reservation in progress is never missed.
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

    /// Settles the slots of dead members under the turn lock. Returns the bytes this freed.
    ///
    /// For views and reports. A request does this itself before it is refused.
    pub fn reclaim_dead<K: Kernel>(&self, kernel: &K) -> u64 {
        let _turn = super::contended::SlowPathTurn::take_turn(kernel);
        self.reclaim_in_turn(kernel)
    }

    /// Settles slot `index` if its member is dead. Returns true if it was. It never waits: while another thread or
    /// process reclaims the dead, it does nothing and returns false.
    pub fn reclaim_slot<K: Kernel>(&self, index: usize, kernel: &K) -> bool {
        if index == self.index || index >= self.ledger.slots.len() || !kernel.lock_turn(kernel.now()) {
            return false;
        }
        let mut dead = false;
        if self.probing.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let _probing = ProbeRight(&self.probing);
            dead = kernel.try_lock_slot(index);
            if dead {
                self.ledger.settle(index);
                kernel.unlock_slot(index);
            }
        }
        kernel.unlock_turn();
        dead
    }

    /// Reclaims dead slots and shares, in one thread of this process at a time, even without the turn lock. File
    /// locks do not exclude threads of one process. A second thread would settle a slot whose lock the first has
    /// already released, and which a new member may have taken.
    pub(super) fn reclaim_in_turn<K: Kernel>(&self, kernel: &K) -> u64 {
        let Some(_probing) = ProbeRight::take_probe(self, kernel) else { return 0 };
        self.take_over();
        let slots = self.ledger.reclaim_slots(self.index, kernel);
        slots.saturating_add(self.ledger.reclaim_shares(|index| self.holds_share(index), kernel))
    }

    /// Gives back all charges and frees the slot. No thread may have a reservation left.
    pub fn leave_ledger<K: Kernel>(self, kernel: &K) {
        self.let_all_go(kernel);
        self.ledger.settle(self.index);
        kernel.unlock_slot(self.index);
    }
}

/// Least number of tries for the probing flag before a thread gives up, however much time has passed.
const MAX_PROBE_TRIES: u32 = 256;

/// The flag that only one thread of this process at a time probes locks; cleared on drop.
pub(super) struct ProbeRight<'m>(&'m AtomicU32);

impl<'m> ProbeRight<'m> {
    /// Waits for the flag. `None`: the thread that has it makes no progress.
    pub(super) fn take_probe<K: Kernel>(member: &'m Member<'_>, kernel: &K) -> Option<Self> {
        let since = kernel.now();
        let mut round: u32 = 0;
        while member.probing.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            // Time passes while a process is stopped, too. So it counts as waited only after it has looked
            // `MAX_PROBE_TRIES` times.
            if round >= MAX_PROBE_TRIES && kernel.now().saturating_sub(since) >= super::STUCK_WAIT_NS {
                return None;
            }
            kernel.wait(round);
            round = round.saturating_add(1);
        }
        Some(Self(&member.probing))
    }
}

impl Drop for ProbeRight<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl LedgerSlot {
    #[inline]
    fn note_high(&self) {
        let used = self.used();
        if used > self.high.load(Ordering::Relaxed) {
            self.high.fetch_max(used, Ordering::Relaxed);
        }
    }

    /// For a slot of [`Reservation::outside_ledger`]: gives back up to `bytes` of the committed charge. Returns the
    /// bytes it could not give back.
    pub fn take_committed(&self, bytes: u64) -> u64 {
        let mut rest = bytes;
        // An open reservation is in neither counter, one rolled back is in both. A rollback in between repeats this
        // closure.
        let take = |dropped: u64| {
            let held = self.committed.load(Ordering::SeqCst).wrapping_sub(dropped).cast_signed().max(0).cast_unsigned();
            rest = bytes.saturating_sub(held);
            Some(dropped.wrapping_add(bytes - rest))
        };
        // The closure always returns `Some`.
        let _ = self.dropped.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        rest
    }
}

impl<'p> Reservation<'p> {
    /// A reservation in a slot outside any ledger, so no sum includes it. For a call that must proceed although its
    /// ledger is gone, where nothing is enforced.
    pub fn outside_ledger(slot: &'p LedgerSlot, bytes: u64) -> Self {
        slot.claimed.fetch_add(bytes, Ordering::SeqCst);
        slot.granted.fetch_add(bytes, Ordering::SeqCst);
        Self { slot, bytes }
    }

    /// Bytes that the reservation sets aside.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives back the bytes beyond `bytes`, when the driver took less than was set aside.
    pub fn shrink_to(&mut self, bytes: u64) {
        let rest = self.bytes.saturating_sub(bytes);
        self.bytes -= rest;
        drop(Self { slot: self.slot, bytes: rest });
    }

    /// The driver call succeeded: the charge stays until it is released. The sum does not change.
    #[inline]
    pub fn commit(self) {
        self.slot.committed.fetch_add(self.bytes, Ordering::SeqCst);
        core::mem::forget(self);
    }

    /// As [`Reservation::commit`], for bytes that the program did not allocate itself.
    pub fn commit_overhead(self) {
        self.slot.overhead.fetch_add(self.bytes, Ordering::SeqCst);
        self.commit();
    }

    /// As [`Reservation::commit`], into a share of this ledger: an exported pool grew by these bytes.
    ///
    /// If the process is killed between the two steps, both the share and the slot count the bytes. The share is
    /// right; the slot is reclaimed.
    pub fn commit_to(self, share: HeldCharge<'p>) {
        share.0.gained.fetch_add(self.bytes, Ordering::SeqCst);
    }

    /// The driver call failed: the bytes are given back. Dropping does the same.
    pub fn roll_back(self) {}
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.slot.dropped.fetch_add(self.bytes, Ordering::SeqCst);
        self.slot.committed.fetch_add(self.bytes, Ordering::SeqCst);
    }
}
