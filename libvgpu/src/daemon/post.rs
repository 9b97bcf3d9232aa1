//! Where a device's governor meets the daemon: what launches and allocations ask first, in atomics and without a lock.
//!
//! Without a daemon there is no slot, the memory limit is what the environment says, and nothing here is ever written.

use super::{Place, renew};
use crate::lock::Lock;
use crate::meter::Launch;
use crate::mode;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use vgpu_core::bytes::Bytes;
use vgpu_core::gate::loss::{self, Alone, OnLoss};
use vgpu_core::limits::Mode;
use vgpu_core::page::{Allowed, Uncharged};
use vgpu_core::share::Share;

/// No state of a slot has this counter.
const NEVER: u32 = u32::MAX;

// What holds without the daemon: thousandths of a ceiling, or one of these.
const WITH: u32 = 0;
const UNLIMITED: u32 = 1001;
const BLOCKED: u32 = 1002;

/// What a device's governor and its memory limit know of the daemon.
pub struct Post {
    place: AtomicPtr<Place>,
    /// Most bytes, as the daemon said last, and at which state of the slot. All ones: no limit.
    memory: AtomicU64,
    /// [`Uncharged`], as the daemon said last: bytes and overhead.
    uncharged: [AtomicU64; 2],
    seen: AtomicU32,
    reading: Lock<()>,
    /// The state of the slot in which the gate was found open, for launches of this stream ([`stream`]).
    open_at: AtomicU32,
    open_for: AtomicU64,
    /// Launches through an open gate.
    opened: AtomicU64,
    /// What holds now because the daemon is away; `WITH`: it is not.
    alone: AtomicU32,
    /// What would hold.
    in_case: AtomicU32,
    /// Device time measured here.
    busy: AtomicU64,
    /// Of it: not yet taken off the lease's account.
    owed: AtomicU64,
}

fn code(alone: Alone) -> u32 {
    match alone {
        Alone::Ceiling(share) => u32::from(share.permille()),
        Alone::Unlimited => UNLIMITED,
        Alone::Blocked => BLOCKED,
    }
}

/// A number for the stream of a launch; two streams may have the same one.
fn stream(launch: &Launch) -> u64 {
    launch.order().key() ^ (launch.context.0 as u64).rotate_left(32) | 1
}

impl Post {
    /// Of a device without a daemon.
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

    /// Of a device that was joined.
    pub fn joined(place: Place) -> Self {
        let post = Self::none();
        post.take(place);
        post
    }

    /// Of a device whose daemon is away: what it left in writing.
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

    /// Whether a daemon speaks for this device, present or away.
    pub fn is_governed(&self) -> bool {
        self.place().is_some() || self.alone.load(Relaxed) != WITH
    }

    /// From now on this slot.
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

    /// None any more, in a forked child; what holds without the daemon holds until another is taken.
    pub fn forget(&self) {
        // SAFETY: the child's thread that settles it, before any other goes on.
        unsafe { self.reading.reset(()) };
        if !self.place.swap(core::ptr::null_mut(), AcqRel).is_null() {
            self.lose();
        }
        self.busy.store(0, Relaxed);
        self.owed.store(0, Relaxed);
    }

    /// Most bytes that the daemon allows; all ones: no limit. A change is in force at the next call.
    ///
    /// # Cost
    /// Four loads; some thirty when the slot was written since.
    #[inline(always)]
    pub fn memory(&self) -> u64 {
        match self.place() {
            Some(place) if !place.board().stands(self.seen.load(Acquire)) => self.read(),
            _ => self.memory.load(Relaxed),
        }
    }

    #[cold]
    fn read(&self) -> u64 {
        // One at a time, so that what was read last is what was read latest.
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
        // Else the daemon writes, or is gone: what it said last holds.
        self.memory.load(Relaxed)
    }

    /// Bytes that count against the limit beside the ledger, as the daemon said with [`Self::memory`] last. `overhead`: that
    /// of the ledger now.
    ///
    /// # Cost
    /// One load where there are none.
    #[inline(always)]
    pub fn uncharged(&self, overhead: impl FnOnce() -> u64) -> u64 {
        match self.uncharged[0].load(Relaxed) {
            0 => 0,
            bytes => Uncharged { bytes, overhead: self.uncharged[1].load(Relaxed) }.beside(overhead()),
        }
    }

    /// Notes what holds if the daemon goes away, and whether anything is to be kept at all.
    pub fn note(&self, allowed: &Allowed) {
        mode::observe(allowed.mode != Mode::Enforce);
        let terms = &allowed.terms;
        let ceiling = terms.ceiling.filter(|share| !share.is_all());
        self.in_case.store(code(loss::alone(allowed.on_loss, terms.floor, ceiling)), Relaxed);
    }

    /// The daemon is away: what it said in advance holds.
    pub fn lose(&self) {
        self.open_at.store(NEVER, Relaxed);
        // Nobody looks at the driver's figure any more, and nobody would take it back.
        self.uncharged[0].store(0, Relaxed);
        let alone = self.in_case.load(Relaxed);
        self.alone.store(if alone == WITH { UNLIMITED } else { alone }, Relaxed);
    }

    /// It is back, or it never was away.
    pub fn regain(&self) {
        self.alone.store(WITH, Relaxed);
    }

    /// What holds because the daemon is away.
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

    /// Counts a launch, if the gate was found open for its stream and nothing has changed since.
    ///
    /// # Cost
    /// Five loads and a store: all that a launch costs while nobody else wants the device.
    #[inline]
    pub fn is_open(&self, launch: &Launch) -> bool {
        let Some(place) = self.place() else { return false };
        if !place.board().stands(self.open_at.load(Relaxed)) || self.open_for.load(Relaxed) != stream(launch) {
            return false;
        }
        // One lost between two threads is no loss.
        let count = self.opened.load(Relaxed).wrapping_add(1);
        self.opened.store(count, Relaxed);
        !count.is_multiple_of(1024) || place.session.lives(crate::clock::coarse())
    }

    /// Launches that [`Self::is_open`] counted since the process began.
    pub fn opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Whether the gate was open when it was last looked at.
    #[inline]
    pub fn was_open(&self) -> bool {
        self.open_at.load(Relaxed) != NEVER
    }

    /// The gate is open in this state of the slot; `None`: it is not.
    pub fn opens(&self, sequence: Option<u32>) {
        self.open_for.store(0, Relaxed);
        self.open_at.store(sequence.unwrap_or(NEVER), Relaxed);
    }

    /// Launches into this stream need not look again while it is.
    pub fn opens_for(&self, launch: &Launch) {
        self.open_for.store(stream(launch), Relaxed);
    }

    /// A stream ends: a later one with its handle is another.
    pub fn forget_stream(&self) {
        self.open_for.store(0, Relaxed);
    }

    /// Device time was measured.
    pub fn charge(&self, ns: u64) {
        self.busy.fetch_add(ns, Relaxed);
        self.owed.fetch_add(ns, Relaxed);
    }

    /// Device time measured here since the process began.
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// What was measured since the last time.
    #[inline]
    pub fn owed(&self) -> u64 {
        if self.owed.load(Relaxed) == 0 { 0 } else { self.owed.swap(0, Relaxed) }
    }

    /// Rings the daemon's bell. Not under a lock.
    pub fn ring(&self) {
        if let Some(place) = self.place() {
            place.session.ring();
        }
    }

    /// Looks whether the daemon lives, where something is about to be refused or shown.
    #[cold]
    pub fn look(&self) {
        if self.is_governed() {
            renew::look();
        }
    }
}
