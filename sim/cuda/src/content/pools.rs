//! Stream-ordered memory pools: allocation, growth, and the return of memory.
//!
//! A request is served from these sources, in this order:
//! 1. Blocks that its own stream freed.
//! 2. Blocks freed by another stream for which it waited, by an event of the same device.
//! 3. Blocks whose free the device has passed.
//! 4. More device memory.
//! 5. If there is none left, blocks that another stream is about to free; the stream then waits for them.
//!
//! Policies can switch off all but the first and the fourth. Memory above the release threshold is returned at
//! the next synchronisation. The chunks of an exported pool are shares. Lock order: engine, then tables; so the
//! engine is queried outside the tables' lock.
//!
//! Not here: the arithmetic (`pool_core`), handles of pools (`calls::pool`), graph memory.

use super::common::trouble_code;
use super::{AllocationKind, LiveAllocation, MemoryTables, OwnerTag, ProcessMemory};
use crate::devices::VisibleDevices;
use crate::pool_core::{FreeMark, FreeSource, FreeTicket, PoolCore, PoolNumbers};
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use vgpu_sim::engine::{self, StreamId};
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::share;

/// A memory pool that this process made.
pub(super) struct PoolOfProcess {
    core: PoolCore,
    /// CUDA ordinal of the device.
    device: i32,
    threshold: u64,
    /// Reuse policies: follow event dependencies, opportunistic, internal dependencies.
    reuse: [bool; 3],
    handle_types: u32,
    /// True after the program destroyed the pool; the pool ends with its last block.
    destroyed: bool,
    /// Number of the share that identifies the exported pool to other processes, 0: not exported.
    share: u64,
    /// Numbers of the shares that the chunks are, by start address of the chunk.
    common: BTreeMap<u64, u64>,
}

/// A stream and its device.
#[derive(Clone, Copy)]
pub(crate) struct StreamPosition {
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) stream: StreamId,
}

/// A setting of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolSetting {
    Threshold(u64),
    /// Index of the reuse policy (of three), and its value.
    Reuse(usize, bool),
    ResetReserved,
    ResetUsed,
}

impl MemoryTables {
    /// The share of an exported pool, with the chunk that includes `at` and the chunk's share.
    pub(super) fn exported_chunk(&self, pool: u64, at: u64) -> Option<(u64, u64, u64)> {
        let p = self.pools.get(&pool).filter(|p| p.share != 0)?;
        let (base, _) = p.core.chunk_of(at)?;
        Some((p.share, base, *p.common.get(&base)?))
    }
}

fn count_block(bytes: u64) -> Option<RecordChange> {
    let live = PoolCore::block_bytes(bytes)?;
    Some(RecordChange {
        allocations: 1,
        requested: signed_bytes(bytes),
        live: signed_bytes(live),
        ..RecordChange::default()
    })
}

impl ProcessMemory {
    /// Makes a pool that may hold `max` bytes (0: unlimited); returns its number.
    pub(crate) fn new_pool(&self, device: i32, max: u64, handle_types: u32) -> u64 {
        let mut t = self.lock_tables();
        let number = t.next_number();
        let pool = PoolOfProcess {
            core: PoolCore::new(max),
            device,
            threshold: 0,
            reuse: [true; 3],
            handle_types,
            destroyed: false,
            share: 0,
            common: BTreeMap::new(),
        };
        t.pools.insert(number, pool);
        self.any_pools.store(true, Ordering::Relaxed);
        number
    }

    /// Destroys a pool for the program: it ends now, or with its last block.
    pub(crate) fn destroy_pool(&self, number: u64) {
        self.settle_pool(number);
        let mut t = self.lock_tables();
        if let Some(p) = t.pools.get_mut(&number) {
            p.destroyed = true;
        }
        self.return_surplus(&mut t, number, 0, 0);
    }

    /// Allocates from a pool in the order of a stream.
    pub(crate) fn alloc_from_pool(
        &self,
        number: u64,
        bytes: u64,
        tag: OwnerTag,
        place: StreamPosition,
    ) -> Result<u64, CUresult> {
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let count = count_block(bytes).ok_or(CUresult::OUT_OF_MEMORY)?;
        let [follow_events, opportunistic, _] = self.pool_state(number).map(|s| s.2).unwrap_or_default();
        if opportunistic {
            self.settle_pool(number);
        }
        let behind = if follow_events { self.frees_before(number, place) } else { HashSet::new() };
        let mut t = self.lock_tables();
        let p = t.pools.get_mut(&number).ok_or(CUresult::INVALID_VALUE)?;
        let (device, own) = (p.device, FreeSource::Stream(place.stream));
        let mut found = p.core.take_behind(bytes, own, &behind);
        if found.is_none() && self.grow_pool(&mut t, number, bytes) {
            found = t.pools.get_mut(&number).and_then(|p| p.core.take_block(bytes, own));
        }
        if found.is_none() {
            let p = t.pools.get_mut(&number).filter(|p| p.reuse[2]);
            found = p.and_then(|p| p.core.take_block(bytes, FreeSource::AnyMarked));
        }
        let (at, wait) = found.ok_or(CUresult::OUT_OF_MEMORY)?;
        self.devices
            .machine
            .adjust_device(self.devices.device_of_ordinal(device)?.index, &count)
            .map_err(|_| CUresult::UNKNOWN)?;
        let fresh = t.next_number();
        let len = PoolCore::block_bytes(bytes).unwrap_or(bytes);
        let kind = AllocationKind::Async;
        t.live.insert(at, LiveAllocation { bytes, len, device, tag, kind, number: fresh, pool: number, dirty: false });
        drop(t);
        if let Some(mark) = wait {
            wait_for_mark(&self.devices, place, mark);
        }
        Ok(at)
    }

    /// Frees of other streams that the stream follows, through events it waited for.
    fn frees_before(&self, number: u64, place: StreamPosition) -> HashSet<FreeTicket> {
        let late =
            self.lock_tables().pools.get(&number).map(|p| p.core.frees_elsewhere(place.stream)).unwrap_or_default();
        let Ok(device) = self.devices.device_of_ordinal(place.device) else { return HashSet::new() };
        late.into_iter().filter(|(_, s, n)| device.engine.is_behind(place.stream, *s, *n)).map(|(t, ..)| t).collect()
    }

    /// Adds a chunk to a pool: the usual size, or the least that the request needs.
    fn grow_pool(&self, t: &mut MemoryTables, number: u64, bytes: u64) -> bool {
        let Some((p, (usual, least))) = t.pools.get(&number).and_then(|p| Some((p, p.core.growth_for(bytes)?))) else {
            return false;
        };
        let (device, exported) = (p.device, p.share != 0);
        // The usual chunk is optional: nothing is returned to the device to make room for it.
        let wish = |t: &mut MemoryTables| {
            let at = t.space.take_range(usual, super::PHYSICAL_GRANULARITY)?;
            let change = RecordChange { large: signed_bytes(usual), ..RecordChange::default() };
            let done = self
                .devices
                .device_of_ordinal(device)
                .is_ok_and(|x| self.devices.machine.adjust_device(x.index, &change).is_ok());
            if !done {
                t.space.give_range(at, usual);
            }
            done.then_some((at, usual))
        };
        let got = wish(t).or_else(|| Some((self.take_chunk(t, device, least).ok()?, least)));
        let Some((at, len)) = got else { return false };
        if exported {
            // The chunk is not in use yet, so no effect can write to it.
            let Ok(share) = self.make_common(t, Some(device), (at, len, false)) else {
                self.return_chunk(t, device, at, len);
                return false;
            };
            t.pools.get_mut(&number).map(|p| p.common.insert(at, share));
        }
        t.pools.get_mut(&number).map(|p| p.core.add_chunk(at, len)).is_some()
    }

    /// Frees a block, own or imported, in the order of a stream. `None`: `at` is no such block.
    pub(crate) fn free_async(&'static self, at: u64, place: StreamPosition) -> Option<()> {
        let engine = &self.devices.device_of_ordinal(place.device).ok()?.engine;
        if self.begin_end_of_imported(at) {
            let end = move || self.end_imported(at);
            engine.enqueue_work(place.stream, 0, engine::WorkKind::Other, Some(end));
            return Some(());
        }
        let (a, ticket) = {
            let mut t = self.lock_tables();
            let a = t.live.get(&at).copied().filter(|a| a.kind == AllocationKind::Async)?;
            t.live.remove(&at);
            (a, t.pools.get_mut(&a.pool)?.core.give_late(at, place.stream)?)
        };
        let arrive = move || self.arrive_at_free(&a, ticket);
        engine.enqueue_work(place.stream, 0, engine::WorkKind::Other, Some(arrive));
        let behind = engine.operations_queued(place.stream);
        let event = engine.open_event(false);
        engine.record_event(place.stream, event);
        if let Some(p) = self.lock_tables().pools.get_mut(&a.pool) {
            p.core.set_place(ticket, behind);
            p.core.set_mark(ticket, FreeMark { device: place.device, event });
        }
        Some(())
    }

    /// A stream's order has reached a free.
    fn arrive_at_free(&self, a: &LiveAllocation, ticket: FreeTicket) {
        let mut t = self.lock_tables();
        if let Some(p) = t.pools.get_mut(&a.pool) {
            p.core.arrive_at_free(ticket);
        }
        uncount_block(&self.devices, a);
    }

    /// Frees a block of a pool at once, because its users are done.
    pub(super) fn to_pool(&self, t: &mut MemoryTables, at: u64, a: &LiveAllocation) {
        if let Some(p) = t.pools.get_mut(&a.pool)
            && p.core.free_block(at)
        {
            uncount_block(&self.devices, a);
        }
        if t.pools.get(&a.pool).is_some_and(|p| p.destroyed) {
            self.return_surplus(t, a.pool, 0, 0);
        }
    }

    /// Completes the pending frees whose events are done: their streams have reached them, so the blocks can be reused.
    fn settle_pool(&self, number: u64) {
        let waiting = self.lock_tables().pools.get(&number).map(|p| p.core.waiting_frees()).unwrap_or_default();
        for (ticket, mark) in waiting {
            let Ok(device) = self.devices.device_of_ordinal(mark.device) else { continue };
            if !device.engine.event_done(mark.event) {
                continue;
            }
            // If several threads see that the event was reached, only one of them ends the pending free.
            let mine = self.lock_tables().pools.get_mut(&number).is_some_and(|p| p.core.finish_free(ticket));
            if mine {
                device.engine.close_event(mark.event);
            }
        }
    }

    /// After a synchronisation by the program: returns memory of all pools above their thresholds.
    pub(crate) fn trim_after_wait(&self) {
        if !self.any_pools.load(Ordering::Relaxed) {
            return;
        }
        let all: Vec<u64> = self.lock_tables().pools.keys().copied().collect();
        for number in all {
            self.settle_pool(number);
            let mut t = self.lock_tables();
            let Some(threshold) = t.pools.get(&number).map(|p| if p.destroyed { 0 } else { p.threshold }) else {
                continue;
            };
            self.return_surplus(&mut t, number, threshold, 0);
        }
    }

    /// Returns unused memory of a pool as long as `keep` bytes remain.
    pub(crate) fn trim_pool(&self, number: u64, keep: u64) {
        self.settle_pool(number);
        let mut t = self.lock_tables();
        self.return_surplus(&mut t, number, keep, keep);
    }

    /// Returns unused memory of the pools of `device`, before a request for other memory fails; false if there was
    /// none.
    pub(crate) fn give_back(&self, device: i32) -> bool {
        self.give_back_unused(&mut self.lock_tables(), device)
    }

    /// Returns unused memory of the pools of `device`; false if there was none.
    pub(super) fn give_back_unused(&self, t: &mut MemoryTables, device: i32) -> bool {
        let all: Vec<u64> = t.pools.iter().filter(|(_, p)| p.device == device).map(|(n, _)| *n).collect();
        let mut any = false;
        for number in all {
            any |= self.return_surplus(t, number, 0, 0);
        }
        any
    }

    fn return_surplus(&self, t: &mut MemoryTables, number: u64, above: u64, keep: u64) -> bool {
        let Some(p) = t.pools.get_mut(&number) else { return false };
        let device = p.device;
        let gone = p.core.take_surplus(above, keep);
        let shares: Vec<Option<u64>> = gone.iter().map(|(at, _)| p.common.remove(at)).collect();
        let ended = (p.destroyed && p.core.is_idle()).then_some(p.share);
        for ((at, len), share) in gone.iter().zip(shares) {
            match share {
                Some(share) => {
                    self.map_private(*at, *len);
                    t.space.give_range(*at, *len);
                    self.let_share_go(t, share);
                }
                None => self.return_chunk(t, device, *at, *len),
            }
        }
        if let Some(share) = ended {
            t.pools.remove(&number);
            if share != 0 {
                self.let_share_go(t, share);
            }
        }
        !gone.is_empty()
    }

    /// Makes a descriptor of a pool; its chunks are shares from then on. No work of its device may run.
    pub(crate) fn export_pool(&self, number: u64, kind: u32) -> Result<OwnedFd, CUresult> {
        let mut t = self.lock_tables();
        let p = t.pools.get(&number).filter(|p| p.handle_types & kind != 0).ok_or(CUresult::INVALID_VALUE)?;
        let (device, mut identity) = (p.device, p.share);
        if identity == 0 {
            let index = Some(self.devices.device_of_ordinal(device)?.index);
            let new =
                share::NewShare { kind: share::ShareKind::Pool, device: index, bytes: 0, small: false, words: [0; 4] };
            let (info, _) = self.devices.machine.make_share(&new).map_err(|e| trouble_code(&e, CUresult::UNKNOWN))?;
            ProcessMemory::hold_again(&mut t, &info);
            identity = info.id;
            if let Some(p) = t.pools.get_mut(&number) {
                p.share = identity;
            }
        }
        let chunks = t.pools.get(&number).map(|p| p.core.all_chunks()).unwrap_or_default();
        for (at, len) in chunks {
            if t.pools.get(&number).is_some_and(|p| p.common.contains_key(&at)) {
                continue;
            }
            let share = self.make_common(&mut t, Some(device), (at, len, false))?;
            t.pools.get_mut(&number).map(|p| p.common.insert(at, share));
        }
        self.devices
            .machine
            .share_descriptor(identity)
            .map_err(|e| trouble_code(&share::ShareError::File(e), CUresult::UNKNOWN))
    }

    /// Adds a hold on the pool that a descriptor refers to: returns its share, and its device in this process.
    pub(crate) fn import_pool(&self, fd: i32) -> Result<(u64, i32), CUresult> {
        let invalid = CUresult::INVALID_VALUE;
        // Lock the tables first: a thread that ends this process's last hold at the same time would end this hold too.
        let mut t = self.lock_tables();
        let (info, _) = self.devices.machine.hold_descriptor(fd).map_err(|_| invalid)?;
        ProcessMemory::hold_again(&mut t, &info);
        let device = super::common::ordinal_of_share(&self.devices, &info).and_then(|dev| dev.ok_or(invalid));
        if !info.is_kind(share::ShareKind::Pool) || device.is_err() {
            self.let_share_go(&mut t, info.id);
            return Err(device.err().unwrap_or(invalid));
        }
        Ok((info.id, device?))
    }

    /// Ends an import of [`ProcessMemory::import_pool`]; opened blocks remain.
    pub(crate) fn forget_imported_pool(&self, share: u64) {
        self.let_share_go(&mut self.lock_tables(), share);
    }

    /// A pool's figures, release threshold and policies.
    pub(crate) fn pool_state(&self, number: u64) -> Option<(PoolNumbers, u64, [bool; 3])> {
        self.lock_tables().pools.get(&number).map(|p| (p.core.pool_numbers(), p.threshold, p.reuse))
    }

    /// Changes a setting of a pool.
    pub(crate) fn set_pool(&self, number: u64, setting: PoolSetting) {
        let mut t = self.lock_tables();
        let Some(p) = t.pools.get_mut(&number) else { return };
        match setting {
            PoolSetting::Threshold(bytes) => p.threshold = bytes,
            PoolSetting::Reuse(which, on) => p.reuse[which] = on,
            PoolSetting::ResetReserved => p.core.reset_reserved_high(),
            PoolSetting::ResetUsed => p.core.reset_used_high(),
        }
    }
}

fn uncount_block(devices: &VisibleDevices, a: &LiveAllocation) {
    if let (Ok(device), Some(count)) = (devices.device_of_ordinal(a.device), count_block(a.bytes)) {
        let _ = devices.machine.adjust_device(device.index, &count.reversed());
    }
}

/// Lets a stream wait for an event of any device.
fn wait_for_mark(devices: &VisibleDevices, place: StreamPosition, mark: FreeMark) {
    let (Ok(here), Ok(there)) = (devices.device_of_ordinal(place.device), devices.device_of_ordinal(mark.device))
    else {
        return;
    };
    if place.device == mark.device {
        here.engine.wait_event(place.stream, mark.event);
    } else {
        let other = there.engine.clone();
        here.engine.enqueue_gate(place.stream, move || other.event_done(mark.event));
    }
}
