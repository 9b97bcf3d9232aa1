//! Physical allocations: memory that the virtual-memory calls make or import, multicast objects, and memory of
//! other APIs.
//!
//! An allocation lives while it has a handle, a mapping, or another user (a multicast binding, an array's tile).
//! A mapping can only be ended as a whole; one call may end several.
//! Not here: sharing (`common`, `names`).

use super::{MemoryTables, PHYSICAL_GRANULARITY, ProcessMemory};
use shim_sys::cuda::CUresult;
use vgpu_sim::memory::{RecordChange, signed_bytes};

/// Type of a physical allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PhysicalKind {
    /// Made or imported by the virtual-memory calls.
    Memory,
    /// A multicast object: no memory of its own.
    Multicast,
    /// Memory imported from another API.
    External,
}

/// A physical allocation (`cuMemCreate`), which the program maps to addresses itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhysicalRecord {
    pub(crate) what: PhysicalKind,
    pub(crate) bytes: u64,
    /// CUDA ordinal; `None`: host memory, which is not counted.
    pub(crate) device: Option<i32>,
    pub(crate) location: (u32, i32),
    /// Types of handles to which the allocation may be exported.
    pub(crate) handle_types: u32,
    pub(crate) handles: u32,
    pub(crate) maps: u32,
    /// Number of the share that the allocation is part of, 0: private to this process.
    pub(super) share: u64,
    /// Bytes in this process's own record; those of a share are not included.
    pub(super) counted: u64,
    pub(crate) content: u64,
}

/// A range of addresses to which a physical allocation is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressMapping {
    pub(crate) len: u64,
    pub(crate) handle: u64,
    pub(super) offset: u64,
    pub(crate) access: u32,
    /// True for a mapping of the virtual-memory calls, false for memory of another API.
    pub(crate) plain: bool,
}

fn count_physical(bytes: u64, physical: u64) -> RecordChange {
    let n = signed_bytes(bytes);
    RecordChange { allocations: 1, requested: n, live: n, large: signed_bytes(physical), ..RecordChange::default() }
}

impl MemoryTables {
    /// The physical allocation behind a handle of the virtual-memory calls.
    pub(crate) fn physical_of_handle(&mut self, handle: u64) -> Result<&mut PhysicalRecord, CUresult> {
        let found = self.physical.get_mut(&handle).filter(|p| p.handles > 0 && p.what != PhysicalKind::External);
        found.ok_or(CUresult::INVALID_VALUE)
    }

    /// Adds a physical allocation; its handle is an even number that cannot be mistaken for an address.
    pub(super) fn add_physical(&mut self, p: PhysicalRecord) -> u64 {
        let handle = 0x5EED_0000_0000 + self.next_number() * 2;
        self.physical.insert(handle, p);
        handle
    }

    /// The mapping that includes an address, with its start.
    pub(crate) fn mapping_at(&self, at: u64) -> Option<(u64, AddressMapping)> {
        let (base, m) = self.maps.range(..=at).next_back()?;
        (at < base + m.len).then_some((*base, *m))
    }
}

impl ProcessMemory {
    /// Makes a physical allocation.
    pub(crate) fn create_physical(
        &self,
        bytes: u64,
        device: Option<i32>,
        location: (u32, i32),
        handle_types: u32,
    ) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        let content = t.space.take_range(bytes, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        if let Some(dev) = device
            && let Err(e) = self.adjust_with(&mut t, dev, &count_physical(bytes, bytes))
        {
            t.space.give_range(content, bytes);
            return Err(e);
        }
        let counted = if device.is_some() { bytes } else { 0 };
        Ok(t.add_physical(PhysicalRecord {
            what: PhysicalKind::Memory,
            bytes,
            device,
            location,
            handle_types,
            handles: 1,
            maps: 0,
            share: 0,
            counted,
            content,
        }))
    }

    /// Maps `[offset, offset + bytes)` of a physical allocation to `at`, in a reserved range without a mapping.
    pub(crate) fn map(&self, at: u64, bytes: u64, offset: u64, handle: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        let end = at.checked_add(bytes).ok_or(CUresult::INVALID_VALUE)?;
        let reserved = t.reserved.range(..=at).next_back().is_some_and(|(base, len)| end <= base + len);
        let taken = t.maps.range(..end).next_back().is_some_and(|(m, x)| m + x.len > at);
        let p = t.physical_of_handle(handle)?;
        if !reserved || taken || offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        p.maps += 1;
        t.maps.insert(at, AddressMapping { len: bytes, handle, offset, access: 0, plain: true });
        Ok(())
    }

    /// Ends the mappings that together are exactly `[at, at + bytes)`.
    pub(crate) fn unmap_range(&self, at: u64, bytes: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        let inside: Vec<(u64, AddressMapping)> = t.maps.range(at..at + bytes).map(|(k, m)| (*k, *m)).collect();
        let mut next = at;
        for (k, m) in &inside {
            if *k != next || !m.plain {
                return Err(CUresult::INVALID_VALUE);
            }
            next += m.len;
        }
        if inside.is_empty() || next != at + bytes {
            return Err(CUresult::INVALID_VALUE);
        }
        for (k, m) in inside {
            t.maps.remove(&k);
            self.unpin_physical(&mut t, m.handle);
        }
        Ok(())
    }

    /// Releases one handle of a physical allocation.
    pub(crate) fn release(&self, handle: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        t.physical_of_handle(handle)?.handles -= 1;
        self.free_unreferenced(&mut t, handle);
        Ok(())
    }

    /// Ends one mapping of a physical allocation, or another use that counts as one.
    pub(super) fn unpin_physical(&self, t: &mut MemoryTables, handle: u64) {
        if let Some(p) = t.physical.get_mut(&handle) {
            p.maps -= 1;
        }
        self.free_unreferenced(t, handle);
    }

    /// Frees a physical allocation that has neither handles nor mappings.
    pub(super) fn free_unreferenced(&self, t: &mut MemoryTables, handle: u64) {
        let Some(p) = t.physical.get(&handle).copied().filter(|p| p.handles == 0 && p.maps == 0) else { return };
        t.physical.remove(&handle);
        if p.what == PhysicalKind::Multicast {
            self.end_bindings(t, handle);
            return self.let_share_go(t, p.share);
        }
        let room = p.bytes.next_multiple_of(PHYSICAL_GRANULARITY);
        if p.share != 0 || p.what == PhysicalKind::External {
            self.map_private(p.content, room);
        } else {
            self.discard_pages(p.content, room);
        }
        t.space.give_range(p.content, room);
        if let Some(device) =
            p.device.and_then(|dev| self.devices.device_of_ordinal(dev).ok()).filter(|_| p.counted > 0)
        {
            let physical = if p.share == 0 { p.bytes.next_multiple_of(PHYSICAL_GRANULARITY) } else { 0 };
            let _ = self.devices.machine.adjust_device(device.index, &count_physical(p.counted, physical).reversed());
        }
        if p.share != 0 {
            self.let_share_go(t, p.share);
        }
    }
}
