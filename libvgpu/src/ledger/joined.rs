//! A ledger that this process has joined: its member's slot, and the kernel's locks on the file.

use super::descriptor_marks;
use crate::ffi::clock::{now, sleep};
use crate::ffi::thread::thread_stripe;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use shim_sys::lock;
use shim_sys::shared_file::{Page, SharedFile};
use vgpu_core::memory::ledger::{
    Kernel, LedgerPage, Member, MemberView, Release, SharedChargeId, TURN_LOCK_OFFSET, Watched, kept_lock_offset,
    share_lock_offset, slot_lock_offset,
};

/// vgpu-core's [`LedgerPage`] as a type that a file shared between processes may map.
#[repr(transparent)]
pub struct SharedLedger(pub LedgerPage);

// SAFETY: LedgerPage promises to hold atomics only; any bytes are valid and are judged by Header::check.
unsafe impl Page for SharedLedger {}

/// A joined ledger. Leaked: pointers to it stay valid in threads that hold one across a fork.
pub struct JoinedLedger {
    pub(super) file: SharedFile<SharedLedger>,
    pub(super) member: Member<'static>,
    pub(super) kernel: ProcessTurn,
    /// Time of the last search for dead members, in ns of the coarse clock.
    pub(super) swept: AtomicU64,
    /// Count reservations; the caller's stack selects the counter. Every [`NAME_CHECK_INTERVAL`]th reservation checks
    /// the file's name. A count lost between two threads does no harm, so plain loads and stores suffice.
    pub(super) calls: [CallCounter; 8],
}

/// A counter on a cache line of its own, because every call reads the fields next to it.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct CallCounter(AtomicU32);

/// Excludes other threads of this process from the turn. The file's lock excludes only other processes.
pub struct ProcessTurn {
    /// 1 while a thread of this process has the turn.
    pub taken: AtomicU32,
}

/// The ledger's locks: the file's, and this process's own for the turn.
pub struct LedgerLocks<'a> {
    /// The ledger's file.
    pub file: &'a SharedFile<SharedLedger>,
    /// Excludes this process's other threads.
    pub turn: &'a ProcessTurn,
}

impl Kernel for LedgerLocks<'_> {
    fn try_lock_slot(&self, index: usize) -> bool {
        self.file.lock_file().is_some_and(|file| lock::try_lock(file, slot_lock_offset(index)).unwrap_or(false))
    }

    fn unlock_slot(&self, index: usize) {
        // If unlocking fails, the kernel drops the lock when the process ends.
        let _ = self.file.lock_file().map(|file| lock::unlock(file, slot_lock_offset(index)));
    }

    fn try_lock_share(&self, index: usize) -> bool {
        self.file.lock_file().is_some_and(|file| lock::try_lock(file, share_lock_offset(index)).unwrap_or(false))
    }

    fn try_hold_share(&self, index: usize) -> bool {
        self.file.lock_file().is_some_and(|file| lock::try_hold(file, share_lock_offset(index)).unwrap_or(false))
    }

    fn unlock_share(&self, index: usize) {
        let _ = self.file.lock_file().map(|file| lock::unlock(file, share_lock_offset(index)));
    }

    fn try_lock_kept(&self, index: usize) -> bool {
        self.file.lock_file().is_some_and(|file| lock::try_lock(file, kept_lock_offset(index)).unwrap_or(false))
    }

    fn try_keep_share(&self, index: usize) -> bool {
        self.file.lock_file().is_some_and(|file| lock::try_hold(file, kept_lock_offset(index)).unwrap_or(false))
    }

    fn unlock_kept(&self, index: usize) {
        let _ = self.file.lock_file().map(|file| lock::unlock(file, kept_lock_offset(index)));
    }

    fn is_closed(&self, keeper: u32, watched: Watched, identity: u64) -> bool {
        descriptor_marks::is_closed(keeper, watched, identity)
    }

    fn lock_turn(&self, deadline: u64) -> bool {
        let mut round = 0;
        loop {
            if self.turn.taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                if self.file.lock_file().is_some_and(|file| lock::try_lock(file, TURN_LOCK_OFFSET).unwrap_or(false)) {
                    return true;
                }
                self.turn.taken.store(0, Release);
            }
            if self.now() >= deadline {
                return false;
            }
            // Many processes may wait when they start at the same time. From the fifth round they sleep 50 to 500 us,
            // so that they leave the processor to the process that has the turn.
            if round < 4 {
                self.wait(round)
            } else {
                sleep(50_000 * u64::from((round - 3).min(10)))
            }
            round += 1;
        }
    }

    fn unlock_turn(&self) {
        let _ = self.file.lock_file().map(|file| lock::unlock(file, TURN_LOCK_OFFSET));
        self.turn.taken.store(0, Release);
    }

    fn now(&self) -> u64 {
        now()
    }

    fn wait(&self, round: u32) {
        if round < 4 {
            for _ in 0..64 << round {
                core::hint::spin_loop();
            }
        } else {
            sleep(50_000);
        }
    }
}

/// Reservations between two checks that the file still has its name.
const NAME_CHECK_INTERVAL: u32 = 256;

/// Reason for refusing every request after a process overwrote the ledger.
const DESTROYED_LEDGER: &str = "the tenant's ledger was overwritten by a process of this container; nothing is granted before all are started again";

impl JoinedLedger {
    /// True if this reservation must check the file's name.
    #[inline(always)]
    pub(super) fn is_time_to_look(&self) -> bool {
        let calls = &self.calls[thread_stripe(self.calls.len())].0;
        let count = calls.load(Relaxed);
        calls.store(count.wrapping_add(1), Relaxed);
        count.is_multiple_of(NAME_CHECK_INTERVAL)
    }

    /// Returns an error if the charges were overwritten, because then no sum of them can decide a request.
    pub(super) fn check_intact(&self) -> Result<(), &'static str> {
        if self.member.is_intact() { Ok(()) } else { Err(DESTROYED_LEDGER) }
    }

    pub(super) fn file_locks(&self) -> LedgerLocks<'_> {
        LedgerLocks { file: &self.file, turn: &self.kernel }
    }

    /// Moves `bytes` of this process's charge to a new share; see [`Member::begin_shared`].
    pub fn begin_shared(&self, identity: u64, bytes: u64) -> Option<SharedChargeId> {
        self.member.begin_shared(identity, bytes, &self.file_locks())
    }

    /// Adds a hold on the share with that identity; see [`Member::hold_again`].
    pub fn hold_again(&self, identity: u64) -> Option<SharedChargeId> {
        self.member.hold_again(identity, &self.file_locks())
    }

    /// Adds a hold on the share with that identity, or creates the share; see [`Member::hold_or_begin`].
    pub fn hold_or_begin(&self, identity: u64) -> Option<SharedChargeId> {
        self.member.hold_or_begin(identity, &self.file_locks())
    }

    /// Releases a hold; see [`Member::let_go`].
    pub fn let_go(&self, share: SharedChargeId, open: Option<Watched>) -> Release {
        self.member.let_go(share, open, &self.file_locks())
    }

    /// See [`Member::keep_no_longer`].
    pub fn keep_no_longer(&self, share: SharedChargeId, identity: u64) -> Release {
        self.member.keep_no_longer(share, identity, &self.file_locks())
    }

    /// Charges `bytes` that the driver already spent, without a limit.
    pub fn charge_spent(&self, bytes: u64) {
        if let Ok(held) = self.member.reserve(bytes, u64::MAX, &self.file_locks()) {
            held.commit();
        }
    }

    /// Returns this process's member.
    pub fn joined_member(&self) -> &Member<'static> {
        &self.member
    }

    /// Settles the charges of dead members.
    pub fn reclaim_dead(&self) {
        self.member.reclaim_dead(&self.file_locks());
    }

    /// Settles slot `index` if its member is dead; see [`Member::reclaim_slot`].
    pub fn reclaim_slot(&self, index: usize) -> bool {
        self.member.reclaim_slot(index, &self.file_locks())
    }

    /// Reclaims the charges of dead members and returns the living ones.
    pub fn living_members(&self) -> Vec<MemberView> {
        self.reclaim_dead();
        self.member.member_ledger().members().collect()
    }
}
