//! One charged pool: how a request begins and ends, and how the charge follows the size that the driver reports.

use super::shrinking::{self, Moment};
use super::{expect_shrinking, give_back};
use crate::clock;
use crate::context;
use crate::device::Device;
use crate::driver::own;
use crate::lock::Lock;
use crate::order::{Place, quietly};
use crate::share::{self, Share};
use crate::sorted::Map;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::memory::ledger::{OUTCOME_WAIT_NS, Reservation};
use vgpu_core::memory::pool::{self, Call, Change, Holes, Reading, Stream};

/// Pool attribute: bytes that the pool keeps when the program synchronises.
const THRESHOLD: u32 = 4;
/// Pool attribute: bytes that the pool holds.
const RESERVED: u32 = 5;
/// Pool attribute: bytes in use.
const USED: u32 = 7;
/// Maximum number of readings that other requests may invalidate; the next one is used in any case.
const READINGS: u32 = 8;

/// The object that the driver is asked about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Source {
    /// A pool's handle.
    Pool(usize),
    /// The graph memory of a device, by CUDA ordinal.
    Graph(CUdevice),
}

impl Source {
    fn numbers(self, used: bool) -> Option<(u64, Option<u64>)> {
        let (mut held, mut busy) = (0u64, 0u64);
        let ask = |attribute: u32, value: &mut u64| {
            let value = core::ptr::from_mut(value).cast();
            // SAFETY: a pool that is not destroyed, or a device; the attribute is 64 bits wide.
            Some(unsafe {
                match self {
                    Source::Pool(pool) => own::cuMemPoolGetAttribute()?(CUmemoryPool(pool as *mut _), attribute, value),
                    Source::Graph(dev) => own::cuDeviceGetGraphMemAttribute()?(dev, attribute, value),
                }
            })
        };
        let (reserved, in_use) = match self {
            Source::Pool(_) => (RESERVED, USED),
            Source::Graph(_) => (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT),
        };
        // In-use bytes first: if the pool shrinks between the two reads, it must not seem to use more than it holds.
        let busy = (used && ask(in_use, &mut busy)?.ok()).then_some(busy);
        ask(reserved, &mut held)?.ok().then_some((held, busy))
    }

    /// Bytes that it keeps when the program synchronises.
    pub(super) fn threshold(self) -> u64 {
        let mut threshold = 0u64;
        let Source::Pool(pool) = self else { return u64::MAX };
        let value = core::ptr::from_mut(&mut threshold).cast();
        quietly(|| {
            // SAFETY: as above.
            own::cuMemPoolGetAttribute().map(|ask| unsafe { ask(CUmemoryPool(pool as *mut _), THRESHOLD, value) })
        });
        threshold
    }

    fn trim(self) {
        // SAFETY: as above.
        let _ = unsafe {
            match self {
                Source::Pool(pool) => own::cuMemPoolTrimTo().map(|trim| trim(CUmemoryPool(pool as *mut _), 0)),
                Source::Graph(dev) => own::cuDeviceGraphMemTrim().map(|trim| trim(dev)),
            }
        };
    }
}

/// A pool that is charged.
pub struct Entry {
    /// The device that the pool's memory is on.
    pub device: &'static Device,
    pub(super) id: usize,
    pub(super) source: Source,
    /// Whether the program created it; the driver's own pools cannot be destroyed.
    pub(super) made: bool,
    pub(super) state: Lock<State>,
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
pub(super) struct Begun {
    pub(super) call: Call,
    pub(super) pledge: Option<Reservation<'static>>,
}

/// Evidence that graph memory still holds the memory of a graph's last launch: the loss count at that launch, and its
/// stream. Later work in the same stream finds the memory free; in another stream the memory may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backing {
    losses: u64,
    stream: Stream,
}

/// The pool's state under its lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) account: pool::Pool,
    pub(super) holes: Holes,
    /// Set when a request that should have fitted inside made the pool grow. The driver assigns room by unknown rules
    /// (a pool's attributes can forbid reuse across streams), so every later request reserves growth.
    pub(super) surprised: bool,
    /// The share that is charged instead of this process's own slot.
    pub(super) share: Option<Share>,
    /// Streams that may not have reached a free yet, with number and epoch of their last free. Only for pools that
    /// can be destroyed.
    pub(super) unreached: Map<Place, (u64, u64)>,
    /// The pool's charge has ended; later readings are ignored.
    pub(super) closed: bool,
}

/// Smallest growth steps observed, by device number; 0: none yet. First pools, then graph memory.
static SEEN: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];

impl Entry {
    /// A pool on a device. `made`: its maximum size in bytes, if the program created it.
    pub(super) fn new(device: &'static Device, id: usize, source: Source, made: Option<u64>, threshold: u64) -> Self {
        Self {
            device,
            id,
            source,
            made: made.is_some(),
            state: Lock::new(State::default()),
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
    pub(super) fn begin(&self, bytes: u64, stream: Stream) -> Result<Begun, CUresult> {
        let inside = || {
            let mut state = self.state.lock();
            let fits = !state.surprised && state.holes.fits(bytes, stream);
            let call = if fits { state.account.begin_inside(bytes) } else { None };
            call.map(|call| Begun { call, pledge: None })
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
        self.begin_pledged(&[bytes])?.ok_or_else(|| self.device.refused())
    }

    /// Begins a launch that takes `parts`, each of which may make graph memory grow: the bytes the graph frees
    /// itself, and those that outlive the launch. Nothing is reserved if the graph frees all of it and `backing` is
    /// still valid.
    pub(super) fn begin_launch(&self, parts: [u64; 2], backing: Option<Backing>) -> Result<Begun, CUresult> {
        if let (Some(backing), [passing, 0]) = (backing, parts) {
            let mut state = self.state.lock();
            let lasts = backing.losses == self.losses.load(SeqCst);
            if let Some(call) = lasts.then(|| state.account.begin_inside(passing)).flatten() {
                return Ok(Begun { call, pledge: None });
            }
        }
        let parts = parts.map(|part| (part > 0).then_some(part));
        let parts: Vec<u64> = parts.into_iter().flatten().collect();
        if let Some(begun) = self.begin_pledged(&parts)? {
            return Ok(begun);
        }
        give_back(self.device);
        self.begin_pledged(&parts)?.ok_or_else(|| self.device.refused())
    }

    /// The backing that a graph launched now in the stream presents at its next launch.
    pub(super) fn backing(&self, stream: Option<Stream>) -> Option<Backing> {
        stream.map(|stream| Backing { losses: self.losses.load(SeqCst), stream })
    }

    /// As [`Entry::backing`], after other graphs may have lost their memory to this launch.
    pub(super) fn others_may_have_lost(&self, stream: Option<Stream>) -> Option<Backing> {
        let losses = self.losses.fetch_add(1, SeqCst) + 1;
        stream.map(|stream| Backing { losses, stream })
    }

    /// Ends a request served at `at` without a reading, if that address was known as free inside the pool and no
    /// pool may have shrunk since `moment`.
    pub(super) fn served_inside(
        &self,
        call: Call,
        pledge: &mut Option<Reservation<'static>>,
        at: u64,
        bytes: u64,
        moment: Moment,
    ) -> bool {
        let (change, share) = {
            let mut state = self.state.lock();
            if state.closed || !moment.lasts() || !state.holes.has(at, bytes) {
                return false;
            }
            state.holes.placed(at, bytes);
            (state.account.end_inside(call), state.share)
        };
        self.settle(pledge.take(), share, &change);
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

    fn begin_pledged(&self, parts: &[u64]) -> Result<Option<Begun>, CUresult> {
        let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        Ok(self.pledge(parts)?.map(|pledge| {
            let call = self.state.lock().account.begin_pledged(bytes, pledge.bytes());
            Begun { call, pledge: Some(pledge) }
        }))
    }

    /// Reserves the growth that a request may cause. `None`: it does not fit.
    fn pledge(&self, parts: &[u64]) -> Result<Option<Reservation<'static>>, CUresult> {
        let seen = self.step();
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
    fn step(&self) -> Option<u64> {
        let of =
            |kind: usize| Some(SEEN[usize::from(self.device.index) % 64][kind].load(Relaxed)).filter(|step| *step > 0);
        match self.source {
            Source::Pool(_) => of(0),
            Source::Graph(_) => of(1).or(of(0)),
        }
    }

    /// Learns the step from growth by `by` for a request of `bytes`, if it was more than the request needs.
    pub(super) fn learn(&self, bytes: u64, by: u64) {
        if pool::least_growth(bytes).is_some_and(|least| least < by) {
            let seen = &SEEN[usize::from(self.device.index) % 64][usize::from(matches!(self.source, Source::Graph(_)))];
            let smaller = |step: u64| (step == 0 || by < step).then_some(by);
            let _ = seen.fetch_update(Relaxed, Relaxed, smaller);
        }
    }

    /// Asks the driver about the pool's handle, unless the pool is destroyed.
    fn ask<T>(&self, question: impl FnOnce(Source) -> T) -> Option<T> {
        // In this order: a destroying thread sets `gone` first and then waits for `asking`.
        self.asking.fetch_add(1, SeqCst);
        let answer = (!self.gone.load(SeqCst)).then(|| quietly(|| question(self.source)));
        self.asking.fetch_sub(1, SeqCst);
        answer
    }

    /// Delays the end of its charge until `more` further streams have reached their frees.
    pub fn awaits(&self, more: u64) {
        self.awaited.fetch_add(more, SeqCst);
    }

    /// Marks the handle as unusable, and returns when no thread uses it.
    pub(super) fn say_gone(&self) {
        self.gone.store(true, SeqCst);
        if self.asking.load(SeqCst) > 0 {
            context::wait_until(|| self.asking.load(SeqCst) == 0);
        }
    }

    /// Reads the pool's size until `apply` accepts a reading, then updates the charge and returns the change to the
    /// ledger. `then` updates the known room (free pieces inside the pool, [`Holes`]) under the same lock. `began`
    /// is the moment at which a request began. If pools may have shrunk since then, the reading may hide the
    /// request's growth. Known room is then reduced: otherwise a later request could rely on room that the pool
    /// gave back and that is no longer charged.
    pub(super) fn follow(
        &self,
        used: bool,
        began: Option<Moment>,
        pledge: Option<Reservation<'static>>,
        apply: impl Fn(&mut pool::Pool, Option<Reading>) -> Option<Change>,
        then: impl Fn(&mut Holes, &Change),
    ) -> Change {
        for attempt in 0..=READINGS {
            let ticket = self.state.lock().account.ticket();
            let ticket = if attempt == READINGS { ticket.insisting() } else { ticket };
            let numbers = self.ask(|source| source.numbers(used)).flatten();
            let reading = numbers.map(|(reserved, used)| Reading { ticket, reserved, used });
            let (change, share) = {
                let mut state = self.state.lock();
                if state.closed {
                    return Change::default();
                }
                let Some(change) = apply(&mut state.account, reading) else { continue };
                if state.account.may_shrink() {
                    expect_shrinking();
                }
                if change.shrank {
                    self.losses.fetch_add(1, SeqCst);
                }
                if change.shrank || began.is_some_and(|began| !began.lasts()) {
                    state.holes.trimmed();
                    // Chunks in use stay. If they are known to be larger than the pool, that knowledge is wrong and
                    // is discarded.
                    if numbers.is_some_and(|(reserved, _)| reserved < state.holes.known()) {
                        state.holes.forget();
                    }
                }
                then(&mut state.holes, &change);
                (change, state.share)
            };
            self.settle(pledge, share, &change);
            return change;
        }
        Change::default()
    }

    /// Applies the change to the ledger.
    fn settle(&self, pledge: Option<Reservation<'static>>, share: Option<Share>, change: &Change) {
        if let Some(mut pledge) = pledge {
            pledge.shrink_to(change.keep);
            self.charge(share, pledge);
        }
        self.release(share, change.release);
    }

    fn charge(&self, share: Option<Share>, reservation: Reservation<'static>) {
        match share.and_then(share::place) {
            None => reservation.commit(),
            Some(share) => reservation.commit_to(share),
        }
    }

    pub(super) fn release(&self, share: Option<Share>, bytes: u64) {
        match share.and_then(share::place) {
            _ if bytes == 0 => {}
            None => self.device.release(bytes),
            Some(share) => share.release(bytes),
        }
    }

    /// Charges growth that was not reserved; returns whether it fits. If it does not, it is charged all the same,
    /// because the device has already given the memory.
    pub(super) fn cover(&self, lack: u64) -> bool {
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
    pub fn measure(&self) -> u64 {
        self.measure_after(|| false)
    }

    /// As [`Entry::measure`]. `may_have_shrunk` is called under the lock when the reading is applied: it returns
    /// whether the pool may have given memory back and taken it again.
    pub(super) fn measure_after(&self, may_have_shrunk: impl Fn() -> bool) -> u64 {
        let measured = |account: &mut pool::Pool, reading| match reading {
            Some(reading) => account.measured(reading),
            None => Some(Change::default()),
        };
        let change = self.follow(true, None, None, measured, |holes, _| {
            if may_have_shrunk() {
                holes.trimmed();
            }
        });
        self.cover(change.lack);
        change.release
    }

    /// Measures, trims the pool, and measures again, unless all its memory is in use. Graph memory counts memory kept
    /// for idle graphs as in use, so there the driver is always asked to trim.
    pub(super) fn trim(&self) -> u64 {
        if self.state.lock().account.held() == 0 {
            return 0;
        }
        let before = self.measure();
        let numbers = self.ask(|source| source.numbers(matches!(source, Source::Pool(_)))).flatten();
        if numbers.is_none_or(|(held, used)| held == 0 || used.is_some_and(|used| used >= held)) {
            return before;
        }
        let _announced = shrinking::begin();
        let _ = self.ask(Source::trim);
        self.losses.fetch_add(1, SeqCst);
        self.state.lock().holes.trimmed();
        before + self.measure()
    }

    /// Bytes that it is charged.
    pub fn held(&self) -> u64 {
        self.state.lock().account.held()
    }
}
