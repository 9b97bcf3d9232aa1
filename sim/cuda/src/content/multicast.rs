//! Multicast objects: a team of devices, and memory that is bound on each. All processes with the object share
//! the team; each process has its own bindings.
//!
//! An object has no memory of its own here. A range mapped to one is for kernels, which compute nothing; copies
//! cannot access it.

use super::physical::{AddressMapping, PhysicalKind, PhysicalRecord};
use super::{MemoryTables, PHYSICAL_GRANULARITY, ProcessMemory};
use crate::devices::VisibleDevices;
use shim_sys::cuda::CUresult;
use vgpu_sim::share;

/// Memory bound to a multicast object.
#[derive(Clone, Copy, Debug)]
pub(super) struct MulticastMember {
    object: u64,
    /// CUDA ordinal of the device.
    device: i32,
    offset: u64,
    bytes: u64,
    memory: u64,
}

/// A range of a physical allocation.
#[derive(Clone, Copy)]
pub(crate) struct PhysicalPart {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Index of the share's word with the number of devices in the full team.
const WANTED_WORD: usize = 0;
/// Index of the share's word with the devices that joined, one bit each by machine index.
const TEAM_WORD: usize = 1;

fn multicast_object(t: &mut MemoryTables, handle: u64) -> Result<PhysicalRecord, CUresult> {
    let p = *t.physical_of_handle(handle)?;
    if p.what == PhysicalKind::Multicast { Ok(p) } else { Err(CUresult::INVALID_VALUE) }
}

fn bind(
    devices: &VisibleDevices,
    t: &mut MemoryTables,
    handle: u64,
    offset: u64,
    part: PhysicalPart,
) -> Result<(), CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let (memory, memory_offset, bytes) = (part.handle, part.offset, part.bytes);
    let o = multicast_object(t, handle)?;
    let p = *t.physical.get(&memory).ok_or(invalid)?;
    let device = p.device.filter(|_| p.what == PhysicalKind::Memory).ok_or(invalid)?;
    let whole = |n: u64| n.is_multiple_of(PHYSICAL_GRANULARITY);
    let inside = |at: u64, of: u64| at.checked_add(bytes).is_some_and(|end| end <= of);
    let fits = inside(offset, o.bytes) && inside(memory_offset, p.bytes);
    if bytes == 0 || !whole(offset) || !whole(memory_offset) || !whole(bytes) || !fits {
        return Err(invalid);
    }
    let words = devices.machine.share_info(o.share).ok_or(invalid)?.words;
    if words[TEAM_WORD] & 1 << devices.device_of_ordinal(device)?.index == 0 {
        return Err(CUresult::INVALID_DEVICE);
    }
    let taken = |b: &MulticastMember| {
        b.object == handle && b.device == device && b.offset < offset + bytes && offset < b.offset + b.bytes
    };
    if t.names.bindings.iter().any(taken) {
        return Err(invalid);
    }
    t.physical.get_mut(&memory).ok_or(invalid)?.maps += 1;
    t.names.bindings.push(MulticastMember { object: handle, device, offset, bytes, memory });
    Ok(())
}

impl ProcessMemory {
    /// Makes a multicast object for `devices` devices.
    pub(crate) fn make_multicast(&self, devices: u32, bytes: u64, handle_types: u32) -> Result<u64, CUresult> {
        let words = [u64::from(devices), 0, 0, 0];
        let new = share::NewShare { kind: share::ShareKind::Multicast, device: None, bytes, small: false, words };
        let (info, _) =
            self.devices.machine.make_share(&new).map_err(|e| super::common::trouble_code(&e, CUresult::UNKNOWN))?;
        let mut t = self.lock_tables();
        ProcessMemory::hold_again(&mut t, &info);
        Ok(t.add_physical(PhysicalRecord {
            what: PhysicalKind::Multicast,
            bytes,
            device: None,
            location: (0, 0),
            handle_types,
            handles: 1,
            maps: 0,
            share: info.id,
            counted: 0,
            content: 0,
        }))
    }

    /// Adds a device to the team of the multicast object.
    pub(crate) fn multicast_add(&self, handle: u64, device: i32) -> Result<(), CUresult> {
        let share = multicast_object(&mut self.lock_tables(), handle)?.share;
        let bit = 1u64 << self.devices.device_of_ordinal(device)?.index;
        let mut added = false;
        self.devices.machine.with_share_words(share, |w| {
            added = w[TEAM_WORD] & bit == 0 && u64::from(w[TEAM_WORD].count_ones()) < w[WANTED_WORD];
            if added {
                w[TEAM_WORD] |= bit;
            }
        });
        if added { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Waits until the object's team is complete, as binding and mapping require. Returns at once for other
    /// allocations.
    pub(crate) fn multicast_wait(&self, handle: u64) -> Result<(), CUresult> {
        loop {
            let p = *self.lock_tables().physical_of_handle(handle)?;
            if p.what != PhysicalKind::Multicast {
                return Ok(());
            }
            let words = self.devices.machine.share_info(p.share).ok_or(CUresult::INVALID_VALUE)?.words;
            if u64::from(words[TEAM_WORD].count_ones()) >= words[WANTED_WORD] {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Binds a part of a physical allocation at `offset` of the object, on the device of that allocation.
    pub(crate) fn multicast_bind(&self, handle: u64, offset: u64, part: PhysicalPart) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        t.physical_of_handle(part.handle)?;
        bind(&self.devices, &mut t, handle, offset, part)
    }

    /// As [`ProcessMemory::multicast_bind`], for the memory that is mapped at `at`; its handle may have been released
    /// already.
    pub(crate) fn multicast_bind_address(&self, handle: u64, offset: u64, at: u64, bytes: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        let end = at.checked_add(bytes);
        let inside = |(base, m): &(u64, AddressMapping)| m.plain && end.is_some_and(|end| end <= base + m.len);
        let (base, m) = t.mapping_at(at).filter(inside).ok_or(CUresult::INVALID_VALUE)?;
        let part = PhysicalPart { handle: m.handle, offset: m.offset + (at - base), bytes };
        bind(&self.devices, &mut t, handle, offset, part)
    }

    /// Removes the binding of exactly this range on this device.
    pub(crate) fn multicast_unbind(&self, handle: u64, device: i32, offset: u64, bytes: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        multicast_object(&mut t, handle)?;
        let meant = |b: &MulticastMember| (b.object, b.device, b.offset, b.bytes) == (handle, device, offset, bytes);
        let i = t.names.bindings.iter().position(meant).ok_or(CUresult::INVALID_VALUE)?;
        let b = t.names.bindings.swap_remove(i);
        self.unpin_physical(&mut t, b.memory);
        Ok(())
    }

    /// Removes the bindings of an object that ended, so that it keeps no memory.
    pub(super) fn end_bindings(&self, t: &mut MemoryTables, handle: u64) {
        let (gone, left) = std::mem::take(&mut t.names.bindings).into_iter().partition(|b| b.object == handle);
        t.names.bindings = left;
        let gone: Vec<MulticastMember> = gone;
        for b in gone {
            self.unpin_physical(t, b.memory);
        }
    }
}
