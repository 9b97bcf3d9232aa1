//! The link between a device's governor and the daemon: state that launches and allocations read first, in atomics
//! without a lock.
//!
//! Without a daemon there is no slot, the environment sets the memory limit, and nothing here is ever written.

use super::{Place, renew};
use crate::lock::Lock;
use crate::meter::Launch;
use crate::mode;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{Allowed, Uncharged};
use vgpu_core::time::gate::loss::{self, Alone, OnLoss};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

/// A sequence number that no state of a slot has.
const NEVER: u32 = u32::MAX;

// Rules in force without the daemon: a ceiling in thousandths (1 to 1000), or one of these values.
/// The daemon is present, or there never was one.
const WITH: u32 = 0;
/// Rule without the daemon: launches have no ceiling.
const UNLIMITED: u32 = 1001;
/// Rule without the daemon: launches are blocked.
const BLOCKED: u32 = 1002;

/// A device's state from the daemon, for its governor and its memory limit.
pub struct Post {
    /// The slot, leaked; null: none.
    place: AtomicPtr<Place>,
    /// The memory limit in bytes that the daemon sent last; all ones: no limit.
    memory: AtomicU64,
    /// [`Uncharged`] as the daemon sent it last: bytes, then overhead.
    uncharged: [AtomicU64; 2],
    /// The slot's sequence when `memory` and `uncharged` were last read.
    seen: AtomicU32,
    /// Lets one thread at a time read the slot.
    reading: Lock<()>,
    /// The slot's sequence in which the gate was found open; `NEVER`: it is closed.
    open_at: AtomicU32,
    /// The stream whose launches need not check again ([`stream`]); 0: none.
    open_for: AtomicU64,
    /// Number of launches through an open gate.
    opened: AtomicU64,
    /// The rule in force while the daemon is away; `WITH`: it is not away.
    alone: AtomicU32,
    /// The rule that will apply if the daemon goes away.
    in_case: AtomicU32,
    /// Device time measured in this process, in ns.
    busy: AtomicU64,
    /// The part of `busy`, in ns, not yet taken off the lease's account.
    owed: AtomicU64,
}

fn code(alone: Alone) -> u32 {
    match alone {
        Alone::Ceiling(share) => u32::from(share.permille()),
        Alone::Unlimited => UNLIMITED,
        Alone::Blocked => BLOCKED,
    }
}

/// A number for the stream of a launch. Two streams may have the same number.
fn stream(launch: &Launch) -> u64 {
    launch.order().key() ^ (launch.context.0 as u64).rotate_left(32) | 1
}

impl Post {
    /// The link of a device without a daemon.
    pub const fn none() -> Self {
        Self {
            place: AtomicPtr::new(core::ptr::null_mut()),
            memory: AtomicU64::new(u64::MAX),
            uncharged: [const { AtomicU64::new(0) }; 2],
            seen: AtomicU32::new(NEVER),
            reading: Lock::new(()),
            open_at: AtomicU32::new(NEVER),
            open_for: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            alone: AtomicU32::new(WITH),
            in_case: AtomicU32::new(WITH),
            busy: AtomicU64::new(0),
            owed: AtomicU64::new(0),
        }
    }

    /// The link of a device that was joined.
    pub fn joined(place: Place) -> Self {
        let post = Self::none();
        post.take(place);
        post
    }

    /// The link of a device whose daemon is away, from the terms that the daemon left on disk.
    pub fn left(memory: Option<Bytes>, on_loss: OnLoss, floor: Option<Share>, ceiling: Option<Share>) -> Self {
        let post = Self::none();
        post.memory.store(memory.map_or(u64::MAX, |bytes| bytes.0), Relaxed);
        let alone = code(loss::alone(on_loss, floor, ceiling.filter(|share| !share.is_all())));
        post.alone.store(alone, Relaxed);
        post.in_case.store(alone, Relaxed);
        post
    }

    /// The slot, if a daemon gave one.
    #[inline]
    pub fn place(&self) -> Option<&'static Place> {
        // SAFETY: null, or leaked by `take`.
        unsafe { self.place.load(Acquire).as_ref() }
    }

    /// Whether a daemon sets this device's limits, present or away.
    pub fn is_governed(&self) -> bool {
        self.place().is_some() || self.alone.load(Relaxed) != WITH
    }

    /// Uses this slot from now on.
    pub fn take(&self, place: Place) {
        let place = Box::leak(Box::new(place));
        {
            let _reading = self.reading.lock();
            self.seen.store(NEVER, Relaxed);
            self.open_at.store(NEVER, Relaxed);
            self.place.store(place, Release);
            self.alone.store(WITH, Relaxed);
        }
        self.read();
    }

    /// Drops the slot in a forked child. Until another slot is taken, the rule for an absent daemon applies.
    pub fn forget(&self) {
        // SAFETY: called by the child's settling thread, before any other thread continues.
        unsafe { self.reading.reset(()) };
        if !self.place.swap(core::ptr::null_mut(), AcqRel).is_null() {
            self.lose();
        }
        self.busy.store(0, Relaxed);
        self.owed.store(0, Relaxed);
    }

    /// The daemon's memory limit in bytes; all ones: no limit. A change takes effect at the next call.
    ///
    /// # Cost
    /// Four loads; some thirty after the slot was written.
    #[inline(always)]
    pub fn memory(&self) -> u64 {
        match self.place() {
            Some(place) if !place.board().stands(self.seen.load(Acquire)) => self.read(),
            _ => self.memory.load(Relaxed),
        }
    }

    #[cold]
    fn read(&self) -> u64 {
        // One reader at a time, so that the value stored last is the newest one.
        let _reading = self.reading.lock();
        if let Some(place) = self.place()
            && let Ok((sequence, allowed)) = place.board().allowed(place.session.welcome.epoch)
            && allowed.member == place.session.welcome.member
        {
            self.memory.store(allowed.memory.map_or(u64::MAX, |bytes| bytes.0), Relaxed);
            self.uncharged[1].store(allowed.uncharged.overhead, Relaxed);
            self.uncharged[0].store(allowed.uncharged.bytes, Relaxed);
            self.note(&allowed);
            self.seen.store(sequence, Release);
        }
        // Otherwise the daemon is writing or gone: its last value stays in force.
        self.memory.load(Relaxed)
    }

    /// Bytes that count against the limit in addition to the ledger, as of the last [`Self::memory`]. `overhead`
    /// returns the ledger's current overhead.
    ///
    /// # Cost
    /// One load where there are no such bytes.
    #[inline(always)]
    pub fn uncharged(&self, overhead: impl FnOnce() -> u64) -> u64 {
        match self.uncharged[0].load(Relaxed) {
            0 => 0,
            bytes => Uncharged { bytes, overhead: self.uncharged[1].load(Relaxed) }.beside(overhead()),
        }
    }

    /// Records the rule for a loss of the daemon, and whether limits are enforced or use is only measured.
    pub fn note(&self, allowed: &Allowed) {
        mode::observe(allowed.mode != Mode::Enforce);
        let terms = &allowed.terms;
        let ceiling = terms.ceiling.filter(|share| !share.is_all());
        self.in_case.store(code(loss::alone(allowed.on_loss, terms.floor, ceiling)), Relaxed);
    }

    /// Handles the loss of the daemon: applies the rule it sent in advance.
    pub fn lose(&self) {
        self.open_at.store(NEVER, Relaxed);
        // Without the daemon nobody updates this figure, and nobody would lower it again.
        self.uncharged[0].store(0, Relaxed);
        let alone = self.in_case.load(Relaxed);
        self.alone.store(if alone == WITH { UNLIMITED } else { alone }, Relaxed);
    }

    /// Handles the daemon's return, or a loss that turned out to be none.
    pub fn regain(&self) {
        self.alone.store(WITH, Relaxed);
    }

    /// The rule in force while the daemon is away.
    ///
    /// # Cost
    /// One load.
    #[inline]
    pub fn alone(&self) -> Option<Alone> {
        match self.alone.load(Relaxed) {
            WITH => None,
            BLOCKED => Some(Alone::Blocked),
            permille => Some(Share::from_permille(permille).map_or(Alone::Unlimited, Alone::Ceiling)),
        }
    }

    /// Counts a launch and returns true if the gate was found open for its stream and nothing has changed since.
    ///
    /// # Cost
    /// Five loads and a store: the whole cost of a launch while no other tenant wants the device.
    #[inline]
    pub fn is_open(&self, launch: &Launch) -> bool {
        let Some(place) = self.place() else { return false };
        if !place.board().stands(self.open_at.load(Relaxed)) || self.open_for.load(Relaxed) != stream(launch) {
            return false;
        }
        // A count lost between two threads does no harm.
        let count = self.opened.load(Relaxed).wrapping_add(1);
        self.opened.store(count, Relaxed);
        !count.is_multiple_of(1024) || place.session.lives(crate::clock::coarse())
    }

    /// Launches that [`Self::is_open`] counted since the process began.
    pub fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Whether the gate was open at the last check.
    #[inline]
    pub fn was_open(&self) -> bool {
        self.open_at.load(Relaxed) != NEVER
    }

    /// Records that the gate is open in this state of the slot. `None`: it is closed.
    pub fn opens(&self, sequence: Option<u32>) {
        self.open_for.store(0, Relaxed);
        self.open_at.store(sequence.unwrap_or(NEVER), Relaxed);
    }

    /// Launches into this stream need not check again while the gate is open.
    pub fn opens_for(&self, launch: &Launch) {
        self.open_for.store(stream(launch), Relaxed);
    }

    /// Handles the end of a stream: a later stream may have the same handle.
    pub fn forget_stream(&self) {
        self.open_for.store(0, Relaxed);
    }

    /// Adds measured device time, in ns.
    pub fn charge(&self, ns: u64) {
        self.busy.fetch_add(ns, Relaxed);
        self.owed.fetch_add(ns, Relaxed);
    }

    /// Device time measured in this process since it began, in ns.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// Device time measured since the last call of this function, in ns.
    #[inline]
    pub fn owed(&self) -> u64 {
        if self.owed.load(Relaxed) == 0 { 0 } else { self.owed.swap(0, Relaxed) }
    }

    /// Wakes the daemon. Must not be called under a lock.
    pub fn ring(&self) {
        if let Some(place) = self.place() {
            place.session.ring();
        }
    }

    /// Checks whether the daemon is alive, before a request is refused or a number is shown.
    #[cold]
    pub fn look(&self) {
        if self.is_governed() {
            renew::look();
        }
    }
}
