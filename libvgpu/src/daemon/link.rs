//! The link between a device's governor and the daemon: state that launches and allocations read first, in atomics
//! without a lock.
//!
//! Without a daemon there is no slot, the environment sets the memory limit, and nothing here is ever written.

use super::session::PagesSlot;
use crate::driver::launch::MeteredLaunch;
use crate::ffi::lock::Lock;
use crate::process::mode;
use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{AllowedUse, ContextSharing, Uncharged};
use vgpu_core::time::account::arrears::rest_due;
use vgpu_core::time::gate::loss::{self, AloneMode, OnLoss};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

/// A sequence number that no state of a slot has.
const NO_SEQUENCE: u32 = u32::MAX;

// Rules in force without the daemon: a ceiling in thousandths (1 to 1000), or one of these values.
/// The daemon is present, or there never was one.
const WITH_DAEMON: u32 = 0;
/// Rule without the daemon: launches have no ceiling.
const ALONE_UNLIMITED: u32 = 1001;
/// Rule without the daemon: launches are blocked.
const ALONE_BLOCKED: u32 = 1002;

/// A device's state from the daemon, for its governor and its memory limit.
pub struct DaemonLink {
    /// The slot, leaked; null: none.
    place: AtomicPtr<PagesSlot>,
    /// The memory limit in bytes that the daemon sent last; all ones: no limit.
    memory: AtomicU64,
    /// [`Uncharged`] as the daemon sent it last: bytes, then overhead.
    uncharged: [AtomicU64; 2],
    /// The slot's sequence when `memory` and `uncharged` were last read.
    seen: AtomicU32,
    /// Lets one thread at a time read the slot.
    reading: Lock<()>,
    /// The slot's sequence in which the gate was found open; `NO_SEQUENCE`: it is closed.
    open_at: AtomicU32,
    /// The stream_number whose launches need not check again ([`stream_number`]); 0: none.
    open_for: AtomicU64,
    /// Number of launches through an open gate.
    opened: AtomicU64,
    /// The rule in force while the daemon is away; `WITH_DAEMON`: it is not away.
    alone: AtomicU32,
    /// The rule that will apply if the daemon goes away.
    in_case: AtomicU32,
    /// How the driver runs this process's contexts ([`ContextSharing`]), for the report; 0: not asked yet.
    contexts: AtomicU32,
    /// Device time measured in this process, in ns.
    busy: AtomicU64,
    /// The part of `busy`, in ns, not yet taken off the lease's account.
    owed: AtomicU64,
    /// The part of `owed` that is paid by its length, less what is paid off, in ns.
    deferred: AtomicI64,
}

fn alone_code(alone: AloneMode) -> u32 {
    match alone {
        AloneMode::Ceiling(share) => u32::from(share.as_permille()),
        AloneMode::Unlimited => ALONE_UNLIMITED,
        AloneMode::Blocked => ALONE_BLOCKED,
    }
}

/// A number for the stream of a launch. Two streams may have the same number.
fn stream_number(launch: &MeteredLaunch) -> u64 {
    launch.stream_id().stream_key() ^ (launch.context.0 as u64).rotate_left(32) | 1
}

impl DaemonLink {
    /// The link of a device without a daemon.
    pub const fn without_daemon() -> Self {
        Self {
            place: AtomicPtr::new(core::ptr::null_mut()),
            memory: AtomicU64::new(u64::MAX),
            uncharged: [const { AtomicU64::new(0) }; 2],
            seen: AtomicU32::new(NO_SEQUENCE),
            reading: Lock::new(()),
            open_at: AtomicU32::new(NO_SEQUENCE),
            open_for: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            alone: AtomicU32::new(WITH_DAEMON),
            in_case: AtomicU32::new(WITH_DAEMON),
            contexts: AtomicU32::new(0),
            busy: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            deferred: AtomicI64::new(0),
        }
    }

    /// The link of a device that was joined.
    pub fn with_slot(place: PagesSlot) -> Self {
        let post = Self::without_daemon();
        post.take_slot(place);
        post
    }

    /// The link of a device whose daemon is away, from the terms that the daemon left on disk.
    pub fn with_left_terms(
        memory: Option<Bytes>,
        on_loss: OnLoss,
        floor: Option<Share>,
        ceiling: Option<Share>,
    ) -> Self {
        let post = Self::without_daemon();
        post.memory.store(memory.map_or(u64::MAX, |bytes| bytes.0), Relaxed);
        let alone = alone_code(loss::alone_mode(on_loss, floor, ceiling.filter(|share| !share.is_all())));
        post.alone.store(alone, Relaxed);
        post.in_case.store(alone, Relaxed);
        post
    }

    /// The slot, if a daemon gave one.
    #[inline]
    pub fn pages_slot(&self) -> Option<&'static PagesSlot> {
        // SAFETY: null, or leaked by `take`.
        unsafe { self.place.load(Acquire).as_ref() }
    }

    /// Whether a daemon sets this device's limits, present or away.
    pub fn is_governed(&self) -> bool {
        self.pages_slot().is_some() || self.alone.load(Relaxed) != WITH_DAEMON
    }

    /// Uses this slot from now on.
    pub fn take_slot(&self, place: PagesSlot) {
        let place = Box::leak(Box::new(place));
        {
            let _reading = self.reading.lock();
            self.seen.store(NO_SEQUENCE, Relaxed);
            self.open_at.store(NO_SEQUENCE, Relaxed);
            self.place.store(place, Release);
            self.alone.store(WITH_DAEMON, Relaxed);
        }
        self.read();
    }

    /// Drops the slot in a forked child. Until another slot is taken, the rule for an absent daemon applies.
    pub fn forget_slot(&self) {
        // SAFETY: called by the child's settling thread, before any other thread continues.
        unsafe { self.reading.reset(()) };
        if !self.place.swap(core::ptr::null_mut(), AcqRel).is_null() {
            self.note_lost();
        }
        self.busy.store(0, Relaxed);
        self.owed.store(0, Relaxed);
        self.deferred.store(0, Relaxed);
    }

    /// The daemon's memory limit in bytes; all ones: no limit. A change takes effect at the next call.
    ///
    /// # Cost
    /// Four loads; some thirty after the slot was written.
    #[inline(always)]
    pub fn memory_limit(&self) -> u64 {
        match self.pages_slot() {
            Some(place) if !place.board_slot().is_unchanged(self.seen.load(Acquire)) => self.read(),
            _ => self.memory.load(Relaxed),
        }
    }

    #[cold]
    fn read(&self) -> u64 {
        // One reader at a time, so that the value stored last is the newest one.
        let _reading = self.reading.lock();
        if let Some(place) = self.pages_slot()
            && let Ok((sequence, allowed)) = place.board_slot().read_allowed(place.session.welcome.epoch)
            && allowed.member == place.session.welcome.member
        {
            self.memory.store(allowed.memory.map_or(u64::MAX, |bytes| bytes.0), Relaxed);
            self.uncharged[1].store(allowed.uncharged.overhead, Relaxed);
            self.uncharged[0].store(allowed.uncharged.bytes, Relaxed);
            self.note_terms(&allowed);
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
    pub fn uncharged_bytes(&self, overhead: impl FnOnce() -> u64) -> u64 {
        match self.uncharged[0].load(Relaxed) {
            0 => 0,
            bytes => Uncharged { bytes, overhead: self.uncharged[1].load(Relaxed) }.unexplained_bytes(overhead()),
        }
    }

    /// Records the rule for a loss of the daemon, and whether limits are enforced or use is only measured.
    pub fn note_terms(&self, allowed: &AllowedUse) {
        mode::set_observing(allowed.mode != Mode::Enforce);
        let terms = &allowed.terms;
        let ceiling = terms.ceiling.filter(|share| !share.is_all());
        self.in_case.store(alone_code(loss::alone_mode(allowed.on_loss, terms.floor, ceiling)), Relaxed);
    }

    /// Handles the loss of the daemon: applies the rule it sent in advance.
    pub fn note_lost(&self) {
        self.open_at.store(NO_SEQUENCE, Relaxed);
        // Without the daemon nobody updates this figure, and nobody would lower it again.
        self.uncharged[0].store(0, Relaxed);
        let alone = self.in_case.load(Relaxed);
        self.alone.store(if alone == WITH_DAEMON { ALONE_UNLIMITED } else { alone }, Relaxed);
    }

    /// Handles the daemon's return, or a loss that turned out to be none.
    pub fn note_regained(&self) {
        self.alone.store(WITH_DAEMON, Relaxed);
    }

    /// The rule in force while the daemon is away.
    ///
    /// # Cost
    /// One load.
    #[inline]
    pub fn alone_terms(&self) -> Option<AloneMode> {
        match self.alone.load(Relaxed) {
            WITH_DAEMON => None,
            ALONE_BLOCKED => Some(AloneMode::Blocked),
            permille => Some(Share::from_permille(permille).map_or(AloneMode::Unlimited, AloneMode::Ceiling)),
        }
    }

    /// Counts a launch and returns true if the gate was found open for its stream and nothing has changed since.
    ///
    /// # Cost
    /// Five loads and a store: the whole cost of a launch while no other tenant wants the device.
    #[inline]
    pub fn is_open(&self, launch: &MeteredLaunch) -> bool {
        let Some(place) = self.pages_slot() else { return false };
        if !place.board_slot().is_unchanged(self.open_at.load(Relaxed))
            || self.open_for.load(Relaxed) != stream_number(launch)
        {
            return false;
        }
        // A count lost between two threads does no harm.
        let count = self.opened.load(Relaxed).wrapping_add(1);
        self.opened.store(count, Relaxed);
        !count.is_multiple_of(1024) || place.session.is_beating(crate::ffi::clock::coarse_now())
    }

    /// Launches that [`Self::is_open`] counted since the process began.
    pub fn open_gate_launches(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    /// Whether the gate was open at the last check.
    #[inline]
    pub fn was_open(&self) -> bool {
        self.open_at.load(Relaxed) != NO_SEQUENCE
    }

    /// Records that the gate is open in this state of the slot. `None`: it is closed.
    pub fn note_open_gate(&self, sequence: Option<u32>) {
        self.open_for.store(0, Relaxed);
        self.open_at.store(sequence.unwrap_or(NO_SEQUENCE), Relaxed);
    }

    /// Launches into this stream need not check again while the gate is open.
    pub fn opens_for(&self, launch: &MeteredLaunch) {
        self.open_for.store(stream_number(launch), Relaxed);
    }

    /// Handles the end of a stream: a later stream may have the same handle.
    pub fn forget_stream(&self) {
        self.open_for.store(0, Relaxed);
    }

    /// Notes how the driver runs this process's contexts. The next report tells the daemon.
    pub fn note_contexts(&self, contexts: ContextSharing) {
        self.contexts.store(contexts as u32, Relaxed);
    }

    /// How the driver runs this process's contexts, as the report encodes it; 0: not known.
    pub fn known_contexts(&self) -> u32 {
        self.contexts.load(Relaxed)
    }

    /// Adds measured device time, in ns. `deferred`: the part that is paid by its length now; less than zero while more
    /// of earlier such time is paid off (`vgpu_core::time::account::arrears`).
    pub fn charge(&self, ns: u64, deferred: i64) {
        self.busy.fetch_add(ns, Relaxed);
        self.deferred.fetch_add(deferred, Relaxed);
        self.owed.fetch_add(ns, Relaxed);
    }

    /// Device time measured in this process since it began, in ns.
    pub fn busy_ns(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// Device time measured since the last call of this function, in ns, as an account with the rate `share` pays it.
    #[inline]
    pub fn take_unpaid(&self, share: Share) -> u64 {
        if self.owed.load(Relaxed) == 0 { 0 } else { self.take_owed(share) }
    }

    #[inline(never)] // called in many places, and the library is small
    fn take_owed(&self, share: Share) -> u64 {
        let (owed, deferred) = (self.owed.swap(0, Relaxed), self.deferred.swap(0, Relaxed));
        let rest = rest_due(deferred.unsigned_abs(), share);
        if deferred < 0 { owed.saturating_add(rest) } else { owed.saturating_sub(rest) }
    }

    /// Wakes the daemon. Must not be called under a lock.
    pub fn ring_bell(&self) {
        if let Some(place) = self.pages_slot() {
            place.session.ring_bell();
        }
    }
}
