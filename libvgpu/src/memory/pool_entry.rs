//! One charged pool: what is known of it, and the questions to the driver about it.

use crate::device::table::Device;
use crate::driver::contexts;
use crate::driver::own;
use crate::driver::streams::{StreamLocation, without_captures};
use crate::ffi::lock::{Lock, LockGuard};
use crate::ffi::sorted_map::SortedMap;
use crate::ledger::held_shares::{self, LocalShare};
use crate::memory::shrink_flag::expect_shrinking;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_core::memory::pool::{self, FreeEnds, FreeRanges, FreeSlot, PendingFree, SlottedFrees, StreamKey};
use vgpu_core::mix::slot_of;

/// Pool attribute: bytes that the pool keeps when the program synchronises.
const THRESHOLD_ATTRIBUTE: u32 = 4;
/// Pool attribute: bytes that the pool holds.
const RESERVED_ATTRIBUTE: u32 = 5;
/// Pool attribute: bytes in use.
const USED_ATTRIBUTE: u32 = 7;

/// The object that the driver is asked about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PoolSource {
    /// A pool's handle.
    Pool(usize),
    /// The graph memory of a device, by CUDA ordinal.
    Graph(CUdevice),
}

impl PoolSource {
    pub(super) fn read_numbers(self, used: bool) -> Option<(u64, Option<u64>)> {
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

    pub(super) fn trim_source(self) {
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
    pub(super) id: u32,
    pub(super) source: PoolSource,
    /// Whether the program created it; the driver's own pools cannot be destroyed.
    pub(super) made: bool,
    /// Private, so that every holder of the lock has come by [`PoolEntry::lock_state`] or its twin.
    state: Lock<PoolState>,
    /// Ends of frees that did not take the lock.
    free_ends: FreeEnds,
    /// Bytes that it keeps when the program synchronises.
    pub(super) threshold: AtomicU64,
    /// The pool's maximum size in bytes.
    pub(super) max: u64,
    /// Number of frees that streams have not reached yet, counted once it is destroyed.
    pub(super) awaited: AtomicU64,
    /// Destroyed: the handle must not be used any more.
    pub(super) gone: AtomicBool,
    /// Threads that are asking the driver with the handle; the thread that destroys the pool waits for them.
    asking: AtomicU32,
    /// For graph memory: how often launched graphs may have lost their memory.
    pub(super) losses: AtomicU64,
}

/// A reference to a pool's entry.
#[derive(Clone)]
pub enum PoolRef {
    /// The pool is the driver's own, which is never destroyed: the entry is leaked.
    Lasting(&'static PoolEntry),
    /// The program can destroy the pool.
    Counted(Arc<PoolEntry>),
}

impl PoolRef {
    pub(super) fn new(entry: PoolEntry) -> Self {
        let entry = Arc::new(entry);
        if entry.made { Self::Counted(entry) } else { Self::Lasting(Box::leak(Box::new(entry))) }
    }
}

impl Deref for PoolRef {
    type Target = PoolEntry;
    fn deref(&self) -> &PoolEntry {
        match self {
            Self::Lasting(entry) => entry,
            Self::Counted(entry) => entry,
        }
    }
}

/// Evidence that graph memory still holds the memory of a graph's last launch: the loss count at that launch, and its
/// stream. Later work in the same stream finds the memory free; in another stream the memory may be in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphBacking {
    pub(super) losses: u64,
    pub(super) stream: StreamKey,
}

/// Smallest number of places in a table of blocks.
const MIN_PLACES: usize = 64;

/// The blocks of a pool that the program holds: a table with open addressing. A freed block often returns at the same
/// address soon. So it keeps its place until the table is full and is rebuilt.
#[derive(Default)]
pub(super) struct HeldBlocks {
    /// Address and bytes of each block, in the first unused place from the address's own on. Address 0: unused; bytes
    /// 0: freed. At least one place is unused, unless there are none.
    places: Vec<(u64, u64)>,
    /// Number of places that are not unused.
    used: usize,
    /// Number of blocks that are not freed.
    held: usize,
}

impl HeldBlocks {
    /// Records a block; returns the bytes of the one recorded there before.
    #[inline]
    pub(super) fn insert(&mut self, address: u64, bytes: u64) -> Option<u64> {
        if self.used >= self.places.len() / 4 * 3 {
            self.build_again();
        }
        let (at, before) = core::mem::replace(self.place_of(address)?, (address, bytes));
        self.used += usize::from(at == 0);
        self.held += usize::from(before == 0);
        Some(before).filter(|before| *before > 0)
    }

    /// Removes the block at this address and returns its bytes.
    #[inline]
    pub(super) fn take(&mut self, address: u64) -> Option<u64> {
        let bytes = core::mem::take(&mut self.place_of(address)?.1);
        self.held -= usize::from(bytes > 0);
        Some(bytes).filter(|bytes| *bytes > 0)
    }

    /// Whether a block is held at this address.
    pub(super) fn has(&mut self, address: u64) -> bool {
        self.place_of(address).is_some_and(|place| place.1 > 0)
    }

    /// The place of an address, or the one that it would take. `None`: the table has no places yet.
    #[inline]
    fn place_of(&mut self, address: u64) -> Option<&mut (u64, u64)> {
        let mut index = slot_of(address, self.places.len());
        while self.places.get(index).is_some_and(|(at, _)| *at != address && *at != 0) {
            index = (index + 1) & (self.places.len() - 1);
        }
        self.places.get_mut(index)
    }

    /// Removes freed blocks, and doubles the room if few are freed.
    #[cold]
    #[inline(never)]
    fn build_again(&mut self) {
        let room = (2 * self.held).next_power_of_two().max(MIN_PLACES);
        let old = core::mem::replace(self, Self { places: vec![(0, 0); room], ..Self::default() });
        old.places
            .into_iter()
            .filter(|(_, bytes)| *bytes > 0)
            .for_each(|(address, bytes)| _ = self.insert(address, bytes));
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The pool's state under its lock. The fields that an ordinary request and its free touch lie side by side.
#[derive(Default)]
#[repr(C)]
pub(super) struct PoolState {
    /// Number of frees of its blocks that are in flight.
    pub(super) frees_in_flight: u32,
    /// Number of calls in which pools may shrink that had begun when the last request ended.
    pub(super) last_request: u32,
    /// Number of requests and frees that began.
    pub(super) requests: u64,
    /// Set when a request that should have fitted inside made the pool grow. The driver assigns room by unknown rules
    /// (a pool's attributes can forbid reuse across streams), so every later request reserves growth.
    pub(super) surprised: bool,
    /// The pool's charge has ended; later readings are ignored.
    pub(super) closed: bool,
    /// The share that is charged instead of this process's own slot.
    pub(super) share: Option<LocalShare>,
    pub(super) account: pool::PoolAccount,
    /// The blocks that the program holds.
    pub(super) blocks: HeldBlocks,
    /// Frees that end without the lock.
    pub(super) slotted: SlottedFrees,
    pub(super) holes: FreeRanges,
    /// Streams that may not have reached a free yet, with number and epoch of their last free. Only for pools that
    /// can be destroyed.
    pub(super) unreached: SortedMap<StreamLocation, (u64, u64)>,
}

impl PoolState {
    /// Whether the program holds no block of the pool, and none is being freed.
    pub(super) fn is_unheld(&self) -> bool {
        self.blocks.held == 0 && self.frees_in_flight == 0
    }

    /// Begins the free of a block that the caller has already taken out of `blocks`.
    #[inline]
    pub(super) fn begin_free(&mut self, address: u64, bytes: u64) -> PendingFree {
        self.requests += 1;
        self.frees_in_flight += 1;
        self.holes.begin_free(address, bytes)
    }

    /// The driver has freed the block, in the order of a stream or (`None`) at once.
    #[inline]
    pub(super) fn finish_free(&mut self, free: PendingFree, stream: Option<StreamKey>) {
        self.account.note_freed(free.bytes());
        self.holes.finish_free(free, stream);
        self.frees_in_flight -= 1;
    }

    /// A stream may not have reached this free yet. Frees may be noted in another order than they were made in, and the
    /// last one counts.
    pub(super) fn note_unreached(&mut self, place: StreamLocation, (number, epoch): (u64, u64)) {
        let last = self.unreached.or_default(place);
        *last = (number.max(last.0), epoch.max(last.1));
    }

    /// The free failed, and the block stays held.
    pub(super) fn cancel_free(&mut self, free: PendingFree, slot: Option<FreeSlot>) {
        slot.into_iter().for_each(|slot| self.slotted.return_slot(slot));
        self.holes.cancel_free(free);
        self.blocks.insert(free.address(), free.bytes());
        self.frees_in_flight -= 1;
    }
}

impl PoolEntry {
    /// A pool on a device. `made`: its maximum size in bytes, if the program created it.
    pub(super) fn new(device: &'static Device, id: u32, source: PoolSource, made: Option<u64>, threshold: u64) -> Self {
        Self {
            device,
            id,
            source,
            made: made.is_some(),
            state: Lock::new(PoolState::default()),
            free_ends: FreeEnds::default(),
            threshold: AtomicU64::new(threshold),
            max: made.unwrap_or(u64::MAX),
            awaited: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            asking: AtomicU32::new(0),
            losses: AtomicU64::new(0),
        }
    }

    /// Locks the state.
    #[inline(never)]
    pub(super) fn lock_state(&self) -> LockGuard<'_, PoolState> {
        self.lock_for_request()
    }

    /// As [`PoolEntry::lock_state`], for the calls that have to be fast.
    #[inline(always)]
    pub(super) fn lock_for_request(&self) -> LockGuard<'_, PoolState> {
        let mut state = self.state.lock();
        if !state.slotted.is_empty() {
            self.take_over_ends(&mut state);
        }
        state
    }

    /// Finishes the frees that have ended without the lock. Every holder of the lock does so before anything else.
    #[inline(never)]
    fn take_over_ends(&self, state: &mut PoolState) {
        while let Some((free, stream)) = state.slotted.next_ended(&self.free_ends) {
            state.finish_free(free, Some(stream));
        }
    }

    /// Begins a free in stream order or at once, if a block is held at the address. With a slot the free ends by
    /// [`PoolEntry::record_free`]. Without one its end takes the lock: a free at once has a reading behind it, and the
    /// frees of a pool that can be destroyed are noted in `unreached`.
    #[inline(always)]
    pub(super) fn begin_free(&self, address: u64, in_order: bool) -> Option<(PendingFree, Option<FreeSlot>)> {
        let mut state = self.lock_for_request();
        let bytes = state.blocks.take(address)?;
        let free = state.begin_free(address, bytes);
        if self.made || !in_order {
            return Some((free, None));
        }
        // Under the lock: a synchronising call that has just cleared the flag sees this free in flight, and sets it.
        expect_shrinking();
        Some((free, state.slotted.take_slot(free)))
    }

    /// The driver has freed a block in the order of a stream.
    #[inline]
    pub(super) fn record_free(&self, slot: FreeSlot, stream: StreamKey) {
        self.free_ends.record_end(slot, stream);
    }

    /// Asks the driver about the pool's handle, unless the pool is destroyed.
    pub(super) fn ask_driver<T>(&self, question: impl FnOnce(PoolSource) -> T) -> Option<T> {
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

    pub(super) fn release(&self, share: Option<LocalShare>, bytes: u64) {
        match share.and_then(held_shares::share_slot) {
            _ if bytes == 0 => {}
            None => self.device.release(bytes),
            Some(share) => share.release(bytes),
        }
    }

    /// Bytes that it is charged.
    pub fn held_bytes(&self) -> u64 {
        self.lock_state().account.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_remembers_the_blocks_that_are_held_and_needs_no_more_room_than_for_these() {
        let mut blocks = HeldBlocks::default();
        let mut most = 0;
        for address in 1..=100_000u64 {
            assert_eq!(blocks.insert(address << 12, address), None);
            assert_eq!(blocks.insert(address << 12, 4096), Some(address), "a block that vanished");
            let before = address.saturating_sub(10);
            assert_eq!(blocks.take(before << 12), (before > 0).then_some(4096));
            assert_eq!(blocks.take(before << 12), None, "it is freed");
            most = most.max(blocks.places.len());
        }
        assert_eq!(blocks.held, 10);
        assert!(most <= MIN_PLACES, "{most} places for eleven blocks");
        blocks.clear();
        assert_eq!((blocks.held, blocks.take(100_000 << 12)), (0, None));
    }
}
