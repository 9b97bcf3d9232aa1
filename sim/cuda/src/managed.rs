//! Managed memory of this process: addresses that host and device share, and the advice that the program gave for
//! them.
//!
//! An allocation counts fully as device memory from the call on, on the device of the context that made it,
//! whichever processor touches its pages: the model has no page faults. Advice and prefetches are stored, and
//! affect only queries. Managed memory has its own slabs, because the host reads its pages and so no other memory
//! may share them.
//! Not here: calls (`calls/managed.rs`).

use crate::content::{OwnerTag, PHYSICAL_GRANULARITY, ProcessMemory};
use crate::devices::VisibleDevices;
use parking_lot::Mutex;
use shim_sys::cuda::{CU_MEM_LOCATION_TYPE_DEVICE, CUmemLocation, CUresult};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vgpu_sim::slab::{DeviceHeap, FreeExtents};

/// Granularity of `cuMemAdvise`, bytes.
const MANAGED_PAGE_BYTES: u64 = 4096;

/// Advice for a range of pages.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct PageAdvice {
    pub(crate) read_mostly: bool,
    pub(crate) preferred: Option<CUmemLocation>,
    pub(crate) accessed: BTreeSet<i32>,
    pub(crate) prefetched: Option<CUmemLocation>,
}

/// A live allocation of managed memory.
#[derive(Clone, Debug)]
pub(crate) struct ManagedRange {
    pub(crate) bytes: u64,
    /// CUDA ordinal of the device.
    pub(crate) device: i32,
    pub(crate) tag: OwnerTag,
    pub(crate) number: u64,
    /// Attachment: 1 to all streams, 2 to none, 4 to one.
    pub(crate) attached: u32,
    /// The advice from each address on, up to the next entry.
    spans: BTreeMap<u64, PageAdvice>,
}

impl ManagedRange {
    fn split(&mut self, at: u64) {
        if let Some((_, before)) = self.spans.range(..=at).next_back() {
            let same = before.clone();
            self.spans.entry(at).or_insert(same);
        }
    }
}

struct ManagedTables {
    space: FreeExtents,
    heaps: Vec<DeviceHeap>,
    live: BTreeMap<u64, ManagedRange>,
}

/// The managed memory of this process.
pub(crate) struct ManagedMemory {
    devices: Arc<VisibleDevices>,
    inner: Mutex<ManagedTables>,
    base: u64,
    size: u64,
}

impl ManagedMemory {
    /// Reserves address ranges for the devices.
    pub(crate) fn new(devices: Arc<VisibleDevices>) -> Result<ManagedMemory, CUresult> {
        let reserve = |size: u64| -> Option<u64> {
            // SAFETY: a new private mapping at an address of the kernel's choice.
            let p = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    usize::try_from(size).ok()?,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            (p != libc::MAP_FAILED).then_some(p as u64)
        };
        let found = (34..=42).rev().find_map(|bits| reserve(1 << bits).map(|base| (base, 1u64 << bits)));
        let (base, size) = found.ok_or(CUresult::OUT_OF_MEMORY)?;
        // SAFETY: our own mapping. Core files would otherwise include every page of it.
        unsafe { libc::madvise(base as *mut _, usize::try_from(size).unwrap_or(0), libc::MADV_DONTDUMP) };
        let first = base.next_multiple_of(PHYSICAL_GRANULARITY);
        let mut space = FreeExtents::new(0);
        space.give_range(first, (base + size - first) / PHYSICAL_GRANULARITY * PHYSICAL_GRANULARITY);
        let heaps = devices.all.iter().map(|d| DeviceHeap::new(d.index, d.profile)).collect();
        Ok(ManagedMemory {
            devices,
            inner: Mutex::new(ManagedTables { space, heaps, live: BTreeMap::new() }),
            base,
            size,
        })
    }

    /// True for an address in the managed range.
    pub(crate) fn is_managed(&self, at: u64) -> bool {
        at.wrapping_sub(self.base) < self.size
    }

    /// Allocates `bytes` on `device` (CUDA ordinal).
    pub(crate) fn alloc(
        &self,
        memory: &ProcessMemory,
        device: i32,
        bytes: u64,
        tag: OwnerTag,
        attached: u32,
    ) -> Result<u64, CUresult> {
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        // Takes a lock of `memory`, which must not happen under ours.
        let number = memory.next_number();
        let index = usize::try_from(device).unwrap_or(usize::MAX);
        let attempt = || {
            let mut t = self.inner.lock();
            let ManagedTables { space, heaps, .. } = &mut *t;
            let heap = heaps.get_mut(index).ok_or(CUresult::INVALID_DEVICE)?;
            let at = heap.alloc(&self.devices.machine, space, bytes).map_err(|_| CUresult::OUT_OF_MEMORY)?;
            Ok((t, at))
        };
        let (mut t, at) = match attempt() {
            // Pools return unused memory for the second attempt. The call takes other locks, so ours is not held.
            Err(CUresult::OUT_OF_MEMORY) if memory.give_back(device) => attempt()?,
            other => other?,
        };
        let live = &mut t.live;
        let spans = BTreeMap::from([(at, PageAdvice::default())]);
        live.insert(at, ManagedRange { bytes, device, tag, number, attached, spans });
        Ok(at)
    }

    /// Frees the allocation that starts at `at`; false if there is none.
    pub(crate) fn free(&self, at: u64) -> bool {
        let mut t = self.inner.lock();
        let Some(r) = t.live.remove(&at) else { return false };
        let ManagedTables { space, heaps, .. } = &mut *t;
        let heap = usize::try_from(r.device).ok().and_then(|i| heaps.get_mut(i));
        if let Some((_, Some((base, len)))) = heap.and_then(|h| h.free(&self.devices.machine, space, at)) {
            // SAFETY: whole slabs of our own mapping without a live allocation.
            unsafe { libc::madvise(base as *mut _, usize::try_from(len).unwrap_or(0), libc::MADV_DONTNEED) };
        }
        true
    }

    /// Frees all managed memory of a context.
    pub(crate) fn free_all(&self, tag: OwnerTag) {
        let mine: Vec<u64> = self.inner.lock().live.iter().filter(|(_, r)| r.tag == tag).map(|(at, _)| *at).collect();
        for at in mine {
            self.free(at);
        }
    }

    /// The allocation that includes an address, with its start.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, ManagedRange)> {
        if !self.is_managed(at) {
            return None;
        }
        let t = self.inner.lock();
        let (base, r) = t.live.range(..=at).next_back()?;
        (at < base + r.bytes).then(|| (*base, r.clone()))
    }

    /// The content of `len` bytes at `at`, which is at the same addresses. `INVALID_VALUE` if a byte does not exist.
    pub(crate) fn managed_pieces(&self, at: u64, len: u64) -> Result<Vec<(*mut u8, u64)>, CUresult> {
        let mut t = self.inner.lock();
        allocation_within(&mut t.live, at, len).map(|_| vec![(at as *mut u8, len)])
    }

    /// Changes the advice of the pages of `[at, at + bytes)`, a range inside one allocation.
    pub(crate) fn change_advice(&self, at: u64, bytes: u64, change: impl Fn(&mut PageAdvice)) -> Result<(), CUresult> {
        let mut t = self.inner.lock();
        let (base, r) = allocation_within(&mut t.live, at, bytes)?;
        let end =
            (at + bytes).next_multiple_of(MANAGED_PAGE_BYTES).min(base + r.bytes.next_multiple_of(MANAGED_PAGE_BYTES));
        let from = (at / MANAGED_PAGE_BYTES * MANAGED_PAGE_BYTES).max(base);
        r.split(from);
        if end < base + r.bytes {
            r.split(end);
        }
        r.spans.range_mut(from..end).for_each(|(_, a)| change(a));
        Ok(())
    }

    /// The advice of all pages of `[at, at + bytes)`.
    pub(crate) fn advice_of(&self, at: u64, bytes: u64) -> Result<Vec<PageAdvice>, CUresult> {
        let mut t = self.inner.lock();
        let (_, r) = allocation_within(&mut t.live, at, bytes)?;
        let first = r.spans.range(..=at).next_back().map_or(at, |(k, _)| *k);
        Ok(r.spans.range(first..at + bytes).map(|(_, a)| a.clone()).collect())
    }

    /// Attaches the allocation that includes `at`.
    pub(crate) fn attach_allocation(&self, at: u64, bytes: u64, attached: u32) -> Result<(), CUresult> {
        let mut t = self.inner.lock();
        let (base, r) = allocation_within(&mut t.live, at, 1)?;
        // The caller names the whole allocation, or passes length 0.
        if bytes != 0 && (at != base || bytes != r.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        r.attached = attached;
        Ok(())
    }
}

fn allocation_within(
    live: &mut BTreeMap<u64, ManagedRange>,
    at: u64,
    bytes: u64,
) -> Result<(u64, &mut ManagedRange), CUresult> {
    let found = live.range_mut(..=at).next_back().map(|(base, r)| (*base, r));
    let inside = |base: u64, r: &ManagedRange| at.checked_add(bytes).is_some_and(|end| end <= base + r.bytes);
    found.filter(|(base, r)| bytes > 0 && inside(*base, r)).ok_or(CUresult::INVALID_VALUE)
}

/// A location as older calls name it: the device's ordinal, or -1 for the host.
pub(crate) fn old_name(l: CUmemLocation) -> i32 {
    if l.kind == CU_MEM_LOCATION_TYPE_DEVICE { l.id } else { -1 }
}
