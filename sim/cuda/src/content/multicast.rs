//! Multicast objects: a team of devices, and memory that is bound on each. All processes with the object share
//! the team; each process has its own bindings.
//!
//! An object has no memory of its own here. A range mapped to one is for kernels, which compute nothing; copies
//! cannot access it.

use super::physical::{Mapping, Physical, What};
use super::{GRANULARITY, Inner, Memory};
use crate::driver::Driver;
use shim_sys::cuda::CUresult;
use vgpu_sim::share;

/// Memory bound to a multicast object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    object: u64,
    /// CUDA ordinal of the device.
    device: i32,
    offset: u64,
    bytes: u64,
    memory: u64,
}

/// A range of a physical allocation.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Index of the share's word with the number of devices in the full team.
const WANTED: usize = 0;
/// Index of the share's word with the devices that joined, one bit each by machine index.
const TEAM: usize = 1;

fn object(t: &mut Inner, handle: u64) -> Result<Physical, CUresult> {
    let p = *t.handle(handle)?;
    if p.what == What::Multicast { Ok(p) } else { Err(CUresult::INVALID_VALUE) }
}

fn bind(d: &Driver, t: &mut Inner, handle: u64, offset: u64, part: Part) -> Result<(), CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let (memory, memory_offset, bytes) = (part.handle, part.offset, part.bytes);
    let o = object(t, handle)?;
    let p = *t.physical.get(&memory).ok_or(invalid)?;
    let device = p.device.filter(|_| p.what == What::Memory).ok_or(invalid)?;
    let whole = |n: u64| n.is_multiple_of(GRANULARITY);
    let inside = |at: u64, of: u64| at.checked_add(bytes).is_some_and(|end| end <= of);
    let fits = inside(offset, o.bytes) && inside(memory_offset, p.bytes);
    if bytes == 0 || !whole(offset) || !whole(memory_offset) || !whole(bytes) || !fits {
        return Err(invalid);
    }
    let words = d.machine.share_info(o.share).ok_or(invalid)?.words;
    if words[TEAM] & 1 << d.device(device)?.index == 0 {
        return Err(CUresult::INVALID_DEVICE);
    }
    let taken = |b: &Binding| {
        b.object == handle && b.device == device && b.offset < offset + bytes && offset < b.offset + b.bytes
    };
    if t.names.bindings.iter().any(taken) {
        return Err(invalid);
    }
    t.physical.get_mut(&memory).ok_or(invalid)?.maps += 1;
    t.names.bindings.push(Binding { object: handle, device, offset, bytes, memory });
    Ok(())
}

impl Memory {
    /// Makes a multicast object for `devices` devices.
    pub(crate) fn multicast(&self, d: &Driver, devices: u32, bytes: u64, handle_types: u32) -> Result<u64, CUresult> {
        let words = [u64::from(devices), 0, 0, 0];
        let new = share::New { kind: share::Kind::Multicast, device: None, bytes, small: false, words };
        let (info, _) = d.machine.share(&new).map_err(|e| super::common::code(&e, CUresult::UNKNOWN))?;
        let mut t = self.tables();
        Memory::hold_again(&mut t, &info);
        Ok(t.add_physical(Physical {
            what: What::Multicast,
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
    pub(crate) fn multicast_add(&self, d: &Driver, handle: u64, device: i32) -> Result<(), CUresult> {
        let share = object(&mut self.tables(), handle)?.share;
        let bit = 1u64 << d.device(device)?.index;
        let mut added = false;
        d.machine.with_share_words(share, |w| {
            added = w[TEAM] & bit == 0 && u64::from(w[TEAM].count_ones()) < w[WANTED];
            if added {
                w[TEAM] |= bit;
            }
        });
        if added { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// Waits until the object's team is complete, as binding and mapping require. Returns at once for other
    /// allocations.
    pub(crate) fn multicast_wait(&self, d: &Driver, handle: u64) -> Result<(), CUresult> {
        loop {
            let p = *self.tables().handle(handle)?;
            if p.what != What::Multicast {
                return Ok(());
            }
            let words = d.machine.share_info(p.share).ok_or(CUresult::INVALID_VALUE)?.words;
            if u64::from(words[TEAM].count_ones()) >= words[WANTED] {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Binds a part of a physical allocation at `offset` of the object, on the device of that allocation.
    pub(crate) fn multicast_bind(&self, d: &Driver, handle: u64, offset: u64, part: Part) -> Result<(), CUresult> {
        let mut t = self.tables();
        t.handle(part.handle)?;
        bind(d, &mut t, handle, offset, part)
    }

    /// As [`Memory::multicast_bind`], for the memory that is mapped at `at`; its handle may have been released already.
    pub(crate) fn multicast_bind_address(
        &self,
        d: &Driver,
        handle: u64,
        offset: u64,
        at: u64,
        bytes: u64,
    ) -> Result<(), CUresult> {
        let mut t = self.tables();
        let end = at.checked_add(bytes);
        let inside = |(base, m): &(u64, Mapping)| m.plain && end.is_some_and(|end| end <= base + m.len);
        let (base, m) = t.mapping(at).filter(inside).ok_or(CUresult::INVALID_VALUE)?;
        let part = Part { handle: m.handle, offset: m.offset + (at - base), bytes };
        bind(d, &mut t, handle, offset, part)
    }

    /// Removes the binding of exactly this range on this device.
    pub(crate) fn multicast_unbind(
        &self,
        d: &Driver,
        handle: u64,
        device: i32,
        offset: u64,
        bytes: u64,
    ) -> Result<(), CUresult> {
        let mut t = self.tables();
        object(&mut t, handle)?;
        let meant = |b: &Binding| (b.object, b.device, b.offset, b.bytes) == (handle, device, offset, bytes);
        let i = t.names.bindings.iter().position(meant).ok_or(CUresult::INVALID_VALUE)?;
        let b = t.names.bindings.swap_remove(i);
        self.unpin(d, &mut t, b.memory);
        Ok(())
    }

    /// Removes the bindings of an object that ended, so that it keeps no memory.
    pub(super) fn end_bindings(&self, d: &Driver, t: &mut Inner, handle: u64) {
        let (gone, left) = std::mem::take(&mut t.names.bindings).into_iter().partition(|b| b.object == handle);
        t.names.bindings = left;
        let gone: Vec<Binding> = gone;
        for b in gone {
            self.unpin(d, t, b.memory);
        }
    }
}
