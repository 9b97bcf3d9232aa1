//! One charged pool: how a request begins and ends, and how the charge follows the size that the driver reports.

use super::shrinking::{self, QuietEpoch};
use super::{expect_shrinking, give_back};
use crate::device::table::Device;
use crate::driver::contexts;
use crate::driver::own;
use crate::driver::streams::{StreamLocation, without_captures};
use crate::ffi::clock;
use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::ledger::held_shares;
use crate::ledger::held_shares::LocalShare;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::ledger::{OUTCOME_WAIT_NS, Reservation};
use vgpu_core::memory::pool::{self, ChargeChange, FreeRanges, PoolReading, PoolRequest, StreamKey};

/// Pool attribute: bytes that the pool keeps when the program synchronises.
const THRESHOLD_ATTRIBUTE: u32 = 4;
/// Pool attribute: bytes that the pool holds.
const RESERVED_ATTRIBUTE: u32 = 5;
/// Pool attribute: bytes in use.
const USED_ATTRIBUTE: u32 = 7;
/// Maximum number of readings that other requests may invalidate; the next one is used in any case.
const MAX_DOUBTFUL_READINGS: u32 = 8;

/// The object that the driver is asked about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PoolSource {
    /// A pool's handle.
    Pool(usize),
    /// The graph memory of a device, by CUDA ordinal.
    Graph(CUdevice),
}

impl PoolSource {
    fn read_numbers(self, used: bool) -> Option<(u64, Option<u64>)> {
        let (mut held, mut busy) = (0u64, 0u64);
        let ask = |attribute: u32, value: &mut u64| {
            let value = core::ptr::from_mut(value).cast();
            // SAFETY: a pool that is not destroyed, or a device; the attribute is 64 bits wide.
            Some(unsafe {
                match self {
                    PoolSource::Pool(pool) => {
                        own::cuMemPoolGetAttribute()?(CUmemoryPool(pool as *mut _), attribute, value)
                    }
                    PoolSource::Graph(dev) => own::cuDeviceGetGraphMemAttribute()?(dev, attribute, value),
                }
            })
        };
        let (reserved, in_use) = match self {
            PoolSource::Pool(_) => (RESERVED_ATTRIBUTE, USED_ATTRIBUTE),
            PoolSource::Graph(_) => (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT),
        };
        // In-use bytes first: if the pool shrinks between the two reads, it must not seem to use more than it holds.
        let busy = (used && ask(in_use, &mut busy)?.ok()).then_some(busy);
        ask(reserved, &mut held)?.ok().then_some((held, busy))
    }

    /// Bytes that it keeps when the program synchronises.
    pub(super) fn read_threshold(self) -> u64 {
        let mut threshold = 0u64;
        let PoolSource::Pool(pool) = self else { return u64::MAX };
        let value = core::ptr::from_mut(&mut threshold).cast();
        without_captures(|| {
            // SAFETY: as above.
            own::cuMemPoolGetAttribute()
                .map(|ask| unsafe { ask(CUmemoryPool(pool as *mut _), THRESHOLD_ATTRIBUTE, value) })
        });
        threshold
    }

    fn trim_source(self) {
        // SAFETY: as above.
        let _ = unsafe {
            match self {
                PoolSource::Pool(pool) => own::cuMemPoolTrimTo().map(|trim| trim(CUmemoryPool(pool as *mut _), 0)),
                PoolSource::Graph(dev) => own::cuDeviceGraphMemTrim().map(|trim| trim(dev)),
            }
        };
    }
}

/// A pool that is charged.
pub struct PoolEntry {
    /// The device that the pool's memory is on.
    pub device: &'static Device,
    pub(super) id: usize,
    pub(super) source: PoolSource,
    /// Whether the program created it; the driver's own pools cannot be destroyed.
    pub(super) made: bool,
    pub(super) state: Lock<PoolState>,
    /// Bytes that it keeps when the program synchronises.
    pub(super) threshold: AtomicU64,
    /// The pool's maximum size in bytes.
    pub(super) max: u64,
    /// Number of its allocations that the program holds.
    pub(super) outstanding: AtomicU64,
    /// Number of frees that streams have not reached yet, counted once it is destroyed.
    pub(super) awaited: AtomicU64,
    /// Destroyed: the handle must not be used any more.
    pub(super) gone: AtomicBool,
    /// Threads that are asking the driver with the handle; the thread that destroys the pool waits for them.
    asking: AtomicU32,
    /// For graph memory: how often launched graphs may have lost their memory.
    losses: AtomicU64,
}

/// A request in flight: its account entry and its reservation.
pub(super) struct PoolAllocation {
    pub(super) call: PoolRequest,
    pub(super) pledge: Option<Reservation<'static>>,
}

/// Evidence that graph memory still holds the memory of a graph's last launch: the loss count at that launch, and its
/// stream. Later work in the same stream finds the memory free; in another stream the memory may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphBacking {
    losses: u64,
    stream: StreamKey,
}

/// The pool's state under its lock.
#[derive(Default)]
pub(super) struct PoolState {
    pub(super) account: pool::PoolAccount,
    pub(super) holes: FreeRanges,
    /// Set when a request that should have fitted inside made the pool grow. The driver assigns room by unknown rules
    /// (a pool's attributes can forbid reuse across streams), so every later request reserves growth.
    pub(super) surprised: bool,
    /// The share that is charged instead of this process's own slot.
    pub(super) share: Option<LocalShare>,
    /// Streams that may not have reached a free yet, with number and epoch of their last free. Only for pools that
    /// can be destroyed.
    pub(super) unreached: SortedMap<StreamLocation, (u64, u64)>,
    /// The pool's charge has ended; later readings are ignored.
    pub(super) closed: bool,
}

/// Smallest growth steps observed, by device number; 0: none yet. First pools, then graph memory.
static SEEN_STEPS: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];

impl PoolEntry {
    /// A pool on a device. `made`: its maximum size in bytes, if the program created it.
    pub(super) fn new(
        device: &'static Device,
        id: usize,
        source: PoolSource,
        made: Option<u64>,
        threshold: u64,
    ) -> Self {
        Self {
            device,
            id,
            source,
            made: made.is_some(),
            state: Lock::new(PoolState::default()),
            threshold: AtomicU64::new(threshold),
            max: made.unwrap_or(u64::MAX),
            outstanding: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            asking: AtomicU32::new(0),
            losses: AtomicU64::new(0),
        }
    }

    /// Begins an allocation: either room inside that can serve its stream, or a reservation for the expected growth.
    pub(super) fn begin_allocation(&self, bytes: u64, stream: StreamKey) -> Result<PoolAllocation, CUresult> {
        let inside = || {
            let mut state = self.state.lock();
            let fits = !state.surprised && state.holes.fits_request(bytes, stream);
            let call = if fits { state.account.begin_inside(bytes) } else { None };
            call.map(|call| PoolAllocation { call, pledge: None })
        };
        if let Some(begun) = inside() {
            return Ok(begun);
        }
        if let Some(begun) = self.begin_pledged(&[bytes])? {
            return Ok(begun);
        }
        self.wait_for_others();
        if let Some(begun) = inside() {
            return Ok(begun);
        }
        give_back(self.device);
        if let Some(begun) = inside() {
            return Ok(begun);
        }
        self.begin_pledged(&[bytes])?.ok_or_else(|| self.device.refuse_request())
    }

    /// Begins a launch that takes `parts`, each of which may make graph memory grow: the bytes the graph frees
    /// itself, and those that outlive the launch. Nothing is reserved if the graph frees all of it and `backing` is
    /// still valid.
    pub(super) fn begin_launch(
        &self,
        parts: [u64; 2],
        backing: Option<GraphBacking>,
    ) -> Result<PoolAllocation, CUresult> {
        if let (Some(backing), [passing, 0]) = (backing, parts) {
            let mut state = self.state.lock();
            let lasts = backing.losses == self.losses.load(SeqCst);
            if let Some(call) = lasts.then(|| state.account.begin_inside(passing)).flatten() {
                return Ok(PoolAllocation { call, pledge: None });
            }
        }
        let parts = parts.map(|part| (part > 0).then_some(part));
        let parts: Vec<u64> = parts.into_iter().flatten().collect();
        if let Some(begun) = self.begin_pledged(&parts)? {
            return Ok(begun);
        }
        give_back(self.device);
        self.begin_pledged(&parts)?.ok_or_else(|| self.device.refuse_request())
    }

    /// The backing that a graph launched now in the stream presents at its next launch.
    pub(super) fn graph_backing(&self, stream: Option<StreamKey>) -> Option<GraphBacking> {
        stream.map(|stream| GraphBacking { losses: self.losses.load(SeqCst), stream })
    }

    /// As [`PoolEntry::graph_backing`], after other graphs may have lost their memory to this launch.
    pub(super) fn others_may_have_lost(&self, stream: Option<StreamKey>) -> Option<GraphBacking> {
        let losses = self.losses.fetch_add(1, SeqCst) + 1;
        stream.map(|stream| GraphBacking { losses, stream })
    }

    /// Ends a request served at `at` without a reading, if that address was known as free inside the pool and no
    /// pool may have shrunk since `moment`.
    pub(super) fn served_inside(
        &self,
        call: PoolRequest,
        pledge: &mut Option<Reservation<'static>>,
        at: u64,
        bytes: u64,
        moment: QuietEpoch,
    ) -> bool {
        let (change, share) = {
            let mut state = self.state.lock();
            if state.closed || !moment.is_still_quiet() || !state.holes.is_free(at, bytes) {
                return false;
            }
            state.holes.note_placed(at, bytes);
            (state.account.end_inside(call), state.share)
        };
        self.settle_ledger(pledge.take(), share, &change);
        true
    }

    /// Waits for other threads' requests that are in the driver, as long as the ledger waits for reservations.
    #[cold]
    fn wait_for_others(&self) {
        let since = clock::now();
        while self.state.lock().account.is_busy() && clock::now().saturating_sub(since) < OUTCOME_WAIT_NS {
            clock::sleep(20_000);
        }
    }

    fn begin_pledged(&self, parts: &[u64]) -> Result<Option<PoolAllocation>, CUresult> {
        let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        Ok(self.reserve_growth(parts)?.map(|pledge| {
            let call = self.state.lock().account.begin_pledged(bytes, pledge.reserved_bytes());
            PoolAllocation { call, pledge: Some(pledge) }
        }))
    }

    /// Reserves the growth that a request may cause. `None`: it does not fit.
    fn reserve_growth(&self, parts: &[u64]) -> Result<Option<Reservation<'static>>, CUresult> {
        let seen = self.growth_step();
        let size = |part: u64| Some(pool::growth(part, seen)?.min(self.max.max(pool::least_growth(part)?)));
        let Some(sum) = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(size(*part)?)) else { return Ok(None) };
        let sum = sum.max(self.state.lock().account.least_pledge());
        match self.device.try_reserve(sum) {
            Ok(pledge) => Ok(Some(pledge)),
            Err(CUresult::OUT_OF_MEMORY) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The growth step observed for pools of this kind on this device. Graph memory falls back to the step of pools.
    fn growth_step(&self) -> Option<u64> {
        let of = |kind: usize| {
            Some(SEEN_STEPS[usize::from(self.device.index) % 64][kind].load(Relaxed)).filter(|step| *step > 0)
        };
        match self.source {
            PoolSource::Pool(_) => of(0),
            PoolSource::Graph(_) => of(1).or(of(0)),
        }
    }

    /// Learns the step from growth by `by` for a request of `bytes`, if it was more than the request needs.
    pub(super) fn learn_step(&self, bytes: u64, by: u64) {
        if pool::least_growth(bytes).is_some_and(|least| least < by) {
            let seen = &SEEN_STEPS[usize::from(self.device.index) % 64]
                [usize::from(matches!(self.source, PoolSource::Graph(_)))];
            let smaller = |step: u64| (step == 0 || by < step).then_some(by);
            let _ = seen.fetch_update(Relaxed, Relaxed, smaller);
        }
    }

    /// Asks the driver about the pool's handle, unless the pool is destroyed.
    fn ask_driver<T>(&self, question: impl FnOnce(PoolSource) -> T) -> Option<T> {
        // In this order: a destroying thread sets `gone` first and then waits for `asking`.
        self.asking.fetch_add(1, SeqCst);
        let answer = (!self.gone.load(SeqCst)).then(|| without_captures(|| question(self.source)));
        self.asking.fetch_sub(1, SeqCst);
        answer
    }

    /// Delays the end of its charge until `more` further streams have reached their frees.
    pub fn await_streams(&self, more: u64) {
        self.awaited.fetch_add(more, SeqCst);
    }

    /// Marks the handle as unusable, and returns when no thread uses it.
    pub(super) fn say_gone(&self) {
        self.gone.store(true, SeqCst);
        if self.asking.load(SeqCst) > 0 {
            contexts::wait_until(|| self.asking.load(SeqCst) == 0);
        }
    }

    /// Reads the pool's size until `apply` accepts a reading, then updates the charge and returns the change to the
    /// ledger. `then` updates the known room (free pieces inside the pool, [`FreeRanges`]) under the same lock. `began`
    /// is the moment at which a request began. If pools may have shrunk since then, the reading may hide the
    /// request's growth. Known room is then reduced: otherwise a later request could rely on room that the pool
    /// gave back and that is no longer charged.
    pub(super) fn follow_reading(
        &self,
        used: bool,
        began: Option<QuietEpoch>,
        pledge: Option<Reservation<'static>>,
        apply: impl Fn(&mut pool::PoolAccount, Option<PoolReading>) -> Option<ChargeChange>,
        then: impl Fn(&mut FreeRanges, &ChargeChange),
    ) -> ChargeChange {
        for attempt in 0..=MAX_DOUBTFUL_READINGS {
            let ticket = self.state.lock().account.ticket();
            let ticket = if attempt == MAX_DOUBTFUL_READINGS { ticket.insisting() } else { ticket };
            let numbers = self.ask_driver(|source| source.read_numbers(used)).flatten();
            let reading = numbers.map(|(reserved, used)| PoolReading { ticket, reserved, used });
            let (change, share) = {
                let mut state = self.state.lock();
                if state.closed {
                    return ChargeChange::default();
                }
                let Some(change) = apply(&mut state.account, reading) else { continue };
                if state.account.may_shrink() {
                    expect_shrinking();
                }
                if change.shrank {
                    self.losses.fetch_add(1, SeqCst);
                }
                if change.shrank || began.is_some_and(|began| !began.is_still_quiet()) {
                    state.holes.note_trim();
                    // Chunks in use stay. If they are known to be larger than the pool, that knowledge is wrong and
                    // is discarded.
                    if numbers.is_some_and(|(reserved, _)| reserved < state.holes.known_bytes()) {
                        state.holes.forget_all();
                    }
                }
                then(&mut state.holes, &change);
                (change, state.share)
            };
            self.settle_ledger(pledge, share, &change);
            return change;
        }
        ChargeChange::default()
    }

    /// Applies the change to the ledger.
    fn settle_ledger(&self, pledge: Option<Reservation<'static>>, share: Option<LocalShare>, change: &ChargeChange) {
        if let Some(mut pledge) = pledge {
            pledge.shrink_to(change.keep);
            self.charge(share, pledge);
        }
        self.release(share, change.release);
    }

    fn charge(&self, share: Option<LocalShare>, reservation: Reservation<'static>) {
        match share.and_then(held_shares::share_slot) {
            None => reservation.commit(),
            Some(share) => reservation.commit_to(share),
        }
    }

    pub(super) fn release(&self, share: Option<LocalShare>, bytes: u64) {
        match share.and_then(held_shares::share_slot) {
            _ if bytes == 0 => {}
            None => self.device.release(bytes),
            Some(share) => share.release(bytes),
        }
    }

    /// Charges growth that was not reserved; returns whether it fits. If it does not, it is charged all the same,
    /// because the device has already given the memory.
    pub(super) fn charge_growth(&self, lack: u64) -> bool {
        if lack == 0 {
            return true;
        }
        let share = self.state.lock().share;
        if let Ok(reservation) = self.device.try_reserve(lack) {
            self.charge(share, reservation);
            return true;
        }
        if let Ok(reservation) = self.device.reserve_spent(lack) {
            self.charge(share, reservation);
        }
        give_back(self.device);
        self.device.fits_in_the_end()
    }

    /// Reads the pool's size and updates the charge. Returns the number of bytes released.
    pub fn measure_held(&self) -> u64 {
        self.measure_after(|| false)
    }

    /// As [`PoolEntry::measure_held`]. `may_have_shrunk` is called under the lock when the reading is applied: it
    /// returns whether the pool may have given memory back and taken it again.
    pub(super) fn measure_after(&self, may_have_shrunk: impl Fn() -> bool) -> u64 {
        let measured = |account: &mut pool::PoolAccount, reading| match reading {
            Some(reading) => account.apply_measurement(reading),
            None => Some(ChargeChange::default()),
        };
        let change = self.follow_reading(true, None, None, measured, |holes, _| {
            if may_have_shrunk() {
                holes.note_trim();
            }
        });
        self.charge_growth(change.lack);
        change.release
    }

    /// Measures, trims the pool, and measures again, unless all its memory is in use. Graph memory counts memory kept
    /// for idle graphs as in use, so there the driver is always asked to trim.
    pub(super) fn trim_and_measure(&self) -> u64 {
        if self.state.lock().account.held() == 0 {
            return 0;
        }
        let before = self.measure_held();
        let numbers = self.ask_driver(|source| source.read_numbers(matches!(source, PoolSource::Pool(_)))).flatten();
        if numbers.is_none_or(|(held, used)| held == 0 || used.is_some_and(|used| used >= held)) {
            return before;
        }
        let _announced = shrinking::begin_shrinking();
        let _ = self.ask_driver(PoolSource::trim_source);
        self.losses.fetch_add(1, SeqCst);
        self.state.lock().holes.note_trim();
        before + self.measure_held()
    }

    /// Bytes that it is charged.
    pub fn held_bytes(&self) -> u64 {
        self.state.lock().account.held()
    }
}
