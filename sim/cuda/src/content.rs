//! Addresses and content of device memory in this process.
//!
//! A device address cannot be read by the host: its range is mapped without access. The content is in a second
//! range at a fixed distance. Its pages exist once written, so an allocation of 100 GiB costs nothing until then.
//! An address outside the device range is a host address. Fresh device memory is zero only where it takes whole
//! new slabs.
//!
//! By subject: allocations and access to them here; physical allocations with any number of addresses in
//! `physical`; content shared with other processes in `common`, names for it in `names`; `multicast`; pools in
//! `pools`.
//! Not here: accounting of memory (vgpu-sim's `slab`, `memory`).

mod common;
mod multicast;
mod names;
pub(crate) mod physical;
pub(crate) mod pools;

mod apart;
mod span;

use crate::devices::VisibleDevices;
pub(crate) use multicast::PhysicalPart;
use parking_lot::Mutex;
use physical::{AddressMapping, PhysicalKind, PhysicalRecord};
use shim_sys::cuda::CUresult;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::slab::{DeviceHeap, FreeExtents};

/// Physical granularity of the virtual-memory calls.
pub(crate) const PHYSICAL_GRANULARITY: u64 = 2 << 20;
/// A fill with zero of at least this many bytes returns pages to the kernel instead of writing them.
const LAZY_ZERO_BYTES: u64 = 1 << 20;

/// Owner of an allocation: a context's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnerTag(pub(crate) u64);

/// Origin of an allocation: the kind of call that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocationKind {
    Plain,
    /// Memory from a pool of this process.
    Async,
    Global,
    /// Another process's allocation, opened by its legacy IPC handle.
    Opened,
    /// A block of another process's pool, imported.
    Imported,
    /// Addresses of graph memory: their pool counts and frees the memory.
    Graph,
}

/// A live allocation of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveAllocation {
    pub(crate) bytes: u64,
    pub(crate) len: u64,
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) tag: OwnerTag,
    pub(crate) kind: AllocationKind,
    pub(crate) number: u64,
    /// Number of the pool that the allocation comes from, 0: none.
    pub(crate) pool: u64,
    dirty: bool,
}

/// Host memory that the driver knows, allocated or registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    pub(crate) len: u64,
    pub(crate) flags: u32,
    pub(crate) registered: bool,
    pub(crate) tag: OwnerTag,
}

pub(crate) struct MemoryTables {
    space: FreeExtents,
    heaps: Vec<DeviceHeap>,
    pub(crate) live: BTreeMap<u64, LiveAllocation>,
    dirty_slabs: HashSet<u64>,
    pub(crate) physical: HashMap<u64, PhysicalRecord>,
    pub(crate) maps: BTreeMap<u64, AddressMapping>,
    pub(crate) reserved: BTreeMap<u64, u64>,
    pub(crate) host: BTreeMap<u64, HostRange>,
    /// Holds of this process on each share, by the share's number.
    held: HashMap<u64, u32>,
    names: names::ForeignNames,
    pools: BTreeMap<u64, pools::PoolOfProcess>,
    next: u64,
}

impl MemoryTables {
    /// A number that was not used before.
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The device memory of this process.
pub(crate) struct ProcessMemory {
    pub(crate) devices: Arc<VisibleDevices>,
    inner: Mutex<MemoryTables>,
    /// Set with the first pool, so that a synchronisation without pools costs nothing.
    any_pools: AtomicBool,
    base: u64,
    size: u64,
    content: u64,
}

impl ProcessMemory {
    /// Reserves address ranges for the devices.
    pub(crate) fn new(devices: Arc<VisibleDevices>) -> Result<ProcessMemory, CUresult> {
        let reserve = |size: u64, access: i32| -> Option<u64> {
            // SAFETY: a new private mapping at an address of the kernel's choice.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    usize::try_from(size).ok()?,
                    access,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            (p != libc::MAP_FAILED).then_some(p as u64)
        };
        let found = (34..=44).rev().find_map(|bits| {
            let size = 1u64 << bits;
            let base = reserve(size, libc::PROT_NONE)?;
            match reserve(size, libc::PROT_READ | libc::PROT_WRITE) {
                Some(content) => Some((size, base, content)),
                None => {
                    // SAFETY: mapped just above with this size; nothing uses it yet.
                    unsafe { libc::munmap(base as *mut _, usize::try_from(size).unwrap_or(0)) };
                    None
                }
            }
        });
        let (size, base, content) = found.ok_or(CUresult::OUT_OF_MEMORY)?;
        // SAFETY: our own mapping. Core files would otherwise include every page of device memory.
        unsafe { libc::madvise(content as *mut _, usize::try_from(size).unwrap_or(0), libc::MADV_DONTDUMP) };
        let first = base.next_multiple_of(PHYSICAL_GRANULARITY);
        let mut space = FreeExtents::new(0);
        space.give_range(first, (base + size - first) / PHYSICAL_GRANULARITY * PHYSICAL_GRANULARITY);
        Ok(ProcessMemory {
            inner: Mutex::new(MemoryTables {
                space,
                heaps: devices.all.iter().map(|d| DeviceHeap::new(d.index, d.profile)).collect(),
                live: BTreeMap::new(),
                dirty_slabs: HashSet::new(),
                physical: HashMap::new(),
                maps: BTreeMap::new(),
                reserved: BTreeMap::new(),
                host: BTreeMap::new(),
                held: HashMap::new(),
                names: names::ForeignNames::default(),
                pools: BTreeMap::new(),
                next: 1,
            }),
            devices,
            any_pools: AtomicBool::new(false),
            base,
            size,
            content,
        })
    }

    /// A number that no allocation of this process had.
    pub(crate) fn next_number(&self) -> u64 {
        self.lock_tables().next_number()
    }

    /// Locks the tables of allocations.
    pub(crate) fn lock_tables(&self) -> parking_lot::MutexGuard<'_, MemoryTables> {
        self.inner.lock()
    }

    /// True for an address in the device range.
    pub(crate) fn is_device(&self, at: u64) -> bool {
        at.wrapping_sub(self.base) < self.size
    }

    /// True for host memory that the driver knows, which the device may access.
    pub(crate) fn is_pinned(&self, at: u64) -> bool {
        self.lock_tables().host.range(..=at).next_back().is_some_and(|(base, h)| at < base + h.len)
    }

    fn content_place(&self, at: u64) -> *mut u8 {
        at.wrapping_sub(self.base).wrapping_add(self.content) as *mut u8
    }

    /// Allocates `bytes` on `device` (CUDA ordinal).
    pub(crate) fn alloc(&self, device: i32, bytes: u64, tag: OwnerTag, kind: AllocationKind) -> Result<u64, CUresult> {
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut t = self.lock_tables();
        let (at, len) = self.take_slabs(&mut t, device, bytes)?;
        let number = t.next_number();
        t.live.insert(at, LiveAllocation { bytes, len, device, tag, kind, number, pool: 0, dirty: false });
        Ok(at)
    }

    /// Allocates `bytes` from the slabs of `device`: returns the address and the length. Before it fails, pools
    /// return unused memory.
    fn take_slabs(&self, t: &mut MemoryTables, device: i32, bytes: u64) -> Result<(u64, u64), CUresult> {
        let mut give_back = true;
        loop {
            let MemoryTables { heaps, space, .. } = &mut *t;
            let heap = usize::try_from(device).ok().and_then(|i| heaps.get_mut(i)).ok_or(CUresult::INVALID_DEVICE)?;
            if let Ok(at) = heap.alloc(&self.devices.machine, space, bytes) {
                return Ok((at, heap.find(at).map_or(bytes, |(_, b)| b.len)));
            }
            if !std::mem::take(&mut give_back) || !self.give_back_unused(t, device) {
                return Err(CUresult::OUT_OF_MEMORY);
            }
        }
    }

    /// Returns memory of [`ProcessMemory::take_slabs`]; `dirty`: it was written.
    fn give_slabs(&self, t: &mut MemoryTables, device: i32, at: u64, dirty: bool) {
        if dirty {
            t.dirty_slabs.insert(at / PHYSICAL_GRANULARITY);
        }
        let MemoryTables { heaps, space, dirty_slabs, .. } = &mut *t;
        let Some(heap) = usize::try_from(device).ok().and_then(|i| heaps.get_mut(i)) else { return };
        let Some((_, Some((base, len)))) = heap.free(&self.devices.machine, space, at) else { return };
        let dirty = dirty_slabs.remove(&(base / PHYSICAL_GRANULARITY));
        if let Some(share) = heap.no_longer_common(base) {
            self.map_private(base, len);
            self.let_share_go(t, share);
        } else if dirty {
            self.discard_pages(base, len);
        }
    }

    /// Applies a change of this process's record on `device` that needs room. Before it fails, pools return unused
    /// memory. For everything that uses device memory other than slabs.
    pub(crate) fn adjust_record(&self, device: i32, change: &RecordChange) -> Result<(), CUresult> {
        self.adjust_with(&mut self.lock_tables(), device, change)
    }

    fn adjust_with(&self, t: &mut MemoryTables, device: i32, change: &RecordChange) -> Result<(), CUresult> {
        let index = self.devices.device_of_ordinal(device)?.index;
        if self.devices.machine.adjust_device(index, change).is_ok()
            || (self.give_back_unused(t, device) && self.devices.machine.adjust_device(index, change).is_ok())
        {
            return Ok(());
        }
        Err(CUresult::OUT_OF_MEMORY)
    }

    /// Allocates a range of addresses with its own device memory, `len` bytes in whole granules.
    fn take_chunk(&self, t: &mut MemoryTables, device: i32, len: u64) -> Result<u64, CUresult> {
        let at = t.space.take_range(len, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let change = RecordChange { large: signed_bytes(len), ..RecordChange::default() };
        if let Err(e) = self.adjust_with(t, device, &change) {
            t.space.give_range(at, len);
            return Err(e);
        }
        Ok(at)
    }

    /// Returns a range of [`ProcessMemory::take_chunk`]; nothing in it may be in use.
    fn return_chunk(&self, t: &mut MemoryTables, device: i32, at: u64, len: u64) {
        self.discard_pages(at, len);
        t.space.give_range(at, len);
        if let Ok(device) = self.devices.device_of_ordinal(device) {
            let _ = self
                .devices
                .machine
                .adjust_device(device.index, &RecordChange { large: -signed_bytes(len), ..RecordChange::default() });
        }
    }

    /// Frees the allocation that starts at `at`, if its kind is one of `kinds`.
    pub(crate) fn free(&self, at: u64, kinds: &[AllocationKind]) -> Result<LiveAllocation, CUresult> {
        let mut t = self.lock_tables();
        let a = t.live.get(&at).copied().filter(|a| kinds.contains(&a.kind)).ok_or(CUresult::INVALID_VALUE)?;
        self.drop_one(&mut t, at, a);
        Ok(a)
    }

    /// Frees all allocations of a context, of any kind.
    pub(crate) fn free_all(&self, tag: OwnerTag) {
        let mut t = self.lock_tables();
        let all: Vec<(u64, LiveAllocation)> =
            t.live.iter().filter(|(_, a)| a.tag == tag).map(|(k, a)| (*k, *a)).collect();
        for (at, a) in all {
            self.drop_one(&mut t, at, a);
        }
        self.forget_external(&mut t, tag);
        drop(t);
        self.trim_after_wait();
    }

    /// True if a plain allocation starts at `at`.
    pub(crate) fn is_plain(&self, at: u64) -> bool {
        self.lock_tables().live.get(&at).is_some_and(|a| a.kind == AllocationKind::Plain)
    }

    fn drop_one(&self, t: &mut MemoryTables, at: u64, a: LiveAllocation) {
        t.live.remove(&at);
        match a.kind {
            AllocationKind::Plain => self.give_slabs(t, a.device, at, a.dirty),
            // The memory belongs to the module, or to the graph memory pool.
            AllocationKind::Global | AllocationKind::Graph => {}
            AllocationKind::Async => self.to_pool(t, at, &a),
            AllocationKind::Opened | AllocationKind::Imported => self.forget_name(t, at),
        }
    }

    /// Returns the pages of a range of content to the kernel.
    fn discard_pages(&self, at: u64, len: u64) {
        // SAFETY: inside our own content mapping; no allocation holds the range, or it is to read as zero.
        unsafe { libc::madvise(self.content_place(at).cast(), usize::try_from(len).unwrap_or(0), libc::MADV_DONTNEED) };
    }

    /// The content of `len` bytes at `at`, as pieces of host memory. `INVALID_VALUE` if a byte does not exist.
    pub(crate) fn content_pieces(&self, at: u64, len: u64, write: bool) -> Result<Vec<(*mut u8, u64)>, CUresult> {
        if len == 0 {
            return Ok(Vec::new());
        }
        if !self.is_device(at) {
            return if at == 0 { Err(CUresult::INVALID_VALUE) } else { Ok(vec![(at as *mut u8, len)]) };
        }
        let mut t = self.lock_tables();
        if let Some((base, a)) = t.live.range_mut(..=at).next_back()
            && at < base + a.bytes
        {
            if len > base + a.bytes - at {
                return Err(CUresult::INVALID_VALUE);
            }
            a.dirty |= write;
            return Ok(vec![(self.content_place(at), len)]);
        }
        let mut pieces = Vec::new();
        let (mut from, end) = (at, at.checked_add(len).ok_or(CUresult::INVALID_VALUE)?);
        while from < end {
            let (start, m) = t.maps.range(..=from).next_back().ok_or(CUresult::INVALID_VALUE)?;
            let needed = if write { 3 } else { 1 };
            if from >= start + m.len || m.access & needed != needed {
                return Err(CUresult::INVALID_VALUE);
            }
            let p = t
                .physical
                .get(&m.handle)
                .filter(|p| p.what != PhysicalKind::Multicast)
                .ok_or(CUresult::INVALID_VALUE)?;
            let part = (start + m.len).min(end) - from;
            pieces.push((self.content_place(p.content + m.offset + (from - start)), part));
            from += part;
        }
        Ok(pieces)
    }

    /// Fills pieces with a pattern that repeats from the start of the first.
    pub(crate) fn fill_pieces(&self, pieces: &[(*mut u8, u64)], pattern: &[u8]) {
        for &(p, len) in pieces {
            let len_us = usize::try_from(len).unwrap_or(0);
            let offset = (p as u64).wrapping_sub(self.content);
            if pattern.iter().all(|b| *b == 0) && len >= LAZY_ZERO_BYTES && offset < self.size {
                let first = (p as u64).next_multiple_of(4096);
                let last = (p as u64 + len) / 4096 * 4096;
                // SAFETY: `reach` returned this range; whole pages of our mapping read as zero afterwards.
                unsafe {
                    std::ptr::write_bytes(p, 0, usize::try_from(first - p as u64).unwrap_or(0));
                    libc::madvise(first as *mut _, usize::try_from(last - first).unwrap_or(0), libc::MADV_DONTNEED);
                    std::ptr::write_bytes(last as *mut u8, 0, usize::try_from(p as u64 + len - last).unwrap_or(0));
                }
            } else if let [one] = pattern {
                // SAFETY: a range that `reach` returned.
                unsafe { std::ptr::write_bytes(p, *one, len_us) };
            } else {
                for i in 0..len_us {
                    // SAFETY: as above, byte by byte. Mappings are multiples of every pattern's size.
                    unsafe { p.add(i).write(pattern[i % pattern.len()]) };
                }
            }
        }
    }

    /// Reserves a range of addresses for `cuMemAddressReserve`: at `wish` if that is free.
    pub(crate) fn reserve(&self, bytes: u64, align: u64, wish: u64) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        let at = if wish != 0 && wish.is_multiple_of(align) && self.is_device(wish) && t.space.take_at(wish, bytes) {
            wish
        } else {
            t.space.take_range(bytes, align).ok_or(CUresult::OUT_OF_MEMORY)?
        };
        t.reserved.insert(at, bytes);
        Ok(at)
    }

    /// Ends a reservation that has no mapping left.
    pub(crate) fn end_reservation(&self, at: u64, bytes: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        if t.reserved.get(&at) != Some(&bytes) || t.maps.range(at..at + bytes).next().is_some() {
            return Err(CUresult::INVALID_VALUE);
        }
        t.reserved.remove(&at);
        t.space.give_range(at, bytes);
        Ok(())
    }
}
