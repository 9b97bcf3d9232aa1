//! A simulated kernel for tests in one process: locks, time, and events that happen while somebody waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::*;
use crate::units::bytes::Bytes;

/// Locks as a kernel keeps them, and a clock that only waiting advances.
#[derive(Default)]
pub(crate) struct FakeKernel {
    pub(super) locked: RefCell<Vec<usize>>,
    pub(crate) now: Cell<u64>,
    pub(super) turn_blocked: Cell<bool>,
    pub(super) turn: Cell<bool>,
    pub(super) rounds: Cell<u32>,
    /// Number of the calling process. Only the locks of shares tell processes apart.
    pub(super) process: Cell<u32>,
    /// Lock holders of each share's two bytes.
    pub(super) shares: RefCell<BTreeMap<(usize, Byte), Holders>>,
    /// Keeper, descriptor and identity for which [`Kernel::is_closed`] returns true.
    pub(super) closed: RefCell<Vec<(u32, Watched, u64)>>,
}

/// Processes that hold a lock, and true if the lock is a write lock.
type Holders = (Vec<u32>, bool);

/// The two lockable bytes of a share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Byte {
    Held,
    Kept,
}

impl FakeKernel {
    /// Releases the share locks of a process, as the kernel does at its death.
    pub(super) fn kill_process(&self, process: u32) {
        for (holders, _) in self.shares.borrow_mut().values_mut() {
            holders.retain(|holder| *holder != process);
        }
    }

    fn lock_share(&self, index: (usize, Byte), write: bool) -> bool {
        let mut shares = self.shares.borrow_mut();
        let (holders, writes) = shares.entry(index).or_default();
        let me = self.process.get();
        let others = holders.iter().any(|holder| *holder != me);
        if others && (write || *writes) {
            return false;
        }
        if !holders.contains(&me) {
            holders.push(me);
        }
        *writes = write;
        true
    }

    fn unlock(&self, index: (usize, Byte)) {
        let mut shares = self.shares.borrow_mut();
        let (holders, _) = shares.get_mut(&index).expect("unlocked without holding");
        assert!(holders.contains(&self.process.get()), "unlocked without holding");
        holders.retain(|holder| *holder != self.process.get());
    }

    /// Releases the lock of a slot, as the kernel does at its holder's death.
    pub(crate) fn kill(&self, index: usize) {
        self.locked.borrow_mut().retain(|locked| *locked != index);
    }
}

impl Kernel for FakeKernel {
    fn try_lock_slot(&self, index: usize) -> bool {
        let mut locked = self.locked.borrow_mut();
        let free = !locked.contains(&index);
        if free {
            locked.push(index);
        }
        free
    }
    fn unlock_slot(&self, index: usize) {
        assert!(self.locked.borrow().contains(&index), "unlocked without holding");
        self.kill(index);
    }
    fn try_lock_share(&self, index: usize) -> bool {
        self.lock_share((index, Byte::Held), true)
    }
    fn try_hold_share(&self, index: usize) -> bool {
        self.lock_share((index, Byte::Held), false)
    }
    fn unlock_share(&self, index: usize) {
        self.unlock((index, Byte::Held));
    }
    fn try_lock_kept(&self, index: usize) -> bool {
        self.lock_share((index, Byte::Kept), true)
    }
    fn try_keep_share(&self, index: usize) -> bool {
        self.lock_share((index, Byte::Kept), false)
    }
    fn unlock_kept(&self, index: usize) {
        self.unlock((index, Byte::Kept));
    }
    fn is_closed(&self, keeper: u32, watched: Watched, identity: u64) -> bool {
        self.closed.borrow().contains(&(keeper, watched, identity))
    }
    fn lock_turn(&self, deadline: u64) -> bool {
        if self.turn_blocked.get() {
            self.now.set(self.now.get().max(deadline));
            return false;
        }
        assert!(!self.turn.replace(true), "the turn was taken twice");
        true
    }
    fn unlock_turn(&self) {
        assert!(self.turn.replace(false), "the turn was given back twice");
    }
    fn now(&self) -> u64 {
        self.now.get()
    }
    fn wait(&self, _round: u32) {
        self.rounds.set(self.rounds.get() + 1);
        self.now.set(self.now.get() + 50_000);
    }
}

/// A kernel that runs a callback each time somebody waits.
pub(super) struct Eventful<'k, F: Fn(u32)>(pub(super) &'k FakeKernel, pub(super) F);

impl<F: Fn(u32)> Kernel for Eventful<'_, F> {
    fn try_lock_slot(&self, index: usize) -> bool {
        self.0.try_lock_slot(index)
    }
    fn unlock_slot(&self, index: usize) {
        self.0.unlock_slot(index);
    }
    fn try_lock_share(&self, index: usize) -> bool {
        self.0.try_lock_share(index)
    }
    fn try_hold_share(&self, index: usize) -> bool {
        self.0.try_hold_share(index)
    }
    fn unlock_share(&self, index: usize) {
        self.0.unlock_share(index);
    }
    fn try_lock_kept(&self, index: usize) -> bool {
        self.0.try_lock_kept(index)
    }
    fn try_keep_share(&self, index: usize) -> bool {
        self.0.try_keep_share(index)
    }
    fn unlock_kept(&self, index: usize) {
        self.0.unlock_kept(index);
    }
    fn is_closed(&self, keeper: u32, watched: Watched, identity: u64) -> bool {
        self.0.is_closed(keeper, watched, identity)
    }
    fn lock_turn(&self, deadline: u64) -> bool {
        self.0.lock_turn(deadline)
    }
    fn unlock_turn(&self) {
        self.0.unlock_turn();
    }
    fn now(&self) -> u64 {
        self.0.now()
    }
    fn wait(&self, round: u32) {
        self.0.wait(round);
        self.1(round);
    }
}

pub(super) const LIMIT: u64 = 10_000;

/// The refusal of a request that does not fit next to `used` bytes.
pub(super) fn over(used: u64, requested: u64) -> Refusal {
    Refusal::OverLimit { used: Bytes(used), requested: Bytes(requested), limit: Bytes(LIMIT) }
}
