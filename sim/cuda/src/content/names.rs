//! Names of memory between processes: legacy IPC handles, descriptors, pointers of pools, memory of other APIs.
//! Also the memory that this process opened by such names.
//!
//! A legacy handle and a pool pointer have 64 bytes: a share, a range in it, the machine, and a checksum. A small
//! allocation shares its slab with others, so opening it opens the whole slab, as on a real device.
//! Not here: multicast bindings (`multicast`), the C functions.

use super::common::{ordinal_of_share, trouble_code};
use super::physical::{AddressMapping, PhysicalKind, PhysicalRecord};
use super::{AllocationKind, LiveAllocation, MemoryTables, OwnerTag, PHYSICAL_GRANULARITY, ProcessMemory};
use shim_sys::cuda::{CU_MEM_LOCATION_TYPE_DEVICE, CUresult};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use vgpu_sim::faults::splitmix64;
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::share;

const LEGACY_NAME: u64 = u64::from_le_bytes(*b"sim-ipc1");
const POINTER_NAME: u64 = u64::from_le_bytes(*b"sim-ptr1");

/// Contents of the 64-byte handle by which one process exports memory to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExportedName {
    kind: u64,
    boot: u64,
    share: u64,
    offset: u64,
    bytes: u64,
    number: u64,
    /// For a legacy handle the process that made it; for a pool pointer the pool's share.
    from: u64,
}

impl ExportedName {
    fn as_words(&self) -> [u64; 7] {
        [self.kind, self.boot, self.share, self.offset, self.bytes, self.number, self.from]
    }

    fn to_bytes(self) -> [u8; 64] {
        let words = self.as_words();
        let sum = words.iter().fold(0, |s, w| splitmix64(s ^ w));
        let mut out = [0; 64];
        for (to, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words.iter().chain([&sum])) {
            *to = word.to_ne_bytes();
        }
        out
    }

    fn from_bytes(bytes: &[u8; 64]) -> Option<ExportedName> {
        let mut w = [0u64; 8];
        for (word, from) in w.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*from);
        }
        let [kind, boot, share, offset, bytes, number, from, sum] = w;
        let name = ExportedName { kind, boot, share, offset, bytes, number, from };
        (name.as_words().iter().fold(0, |s, w| splitmix64(s ^ w)) == sum).then_some(name)
    }
}

/// An allocation of another process that this one has opened.
#[derive(Clone, Copy, Debug)]
struct OpenedAllocation {
    share: u64,
    /// Number of opens minus number of closes.
    count: u32,
}

/// Memory that this process has opened by names.
#[derive(Default)]
pub(super) struct ForeignNames {
    /// Opened allocations of other processes, by address.
    opened: BTreeMap<u64, OpenedAllocation>,
    /// Mapped shares, by number: address, length, and how many of `opened` are in each.
    shown: HashMap<u64, (u64, u64, u32)>,
    /// Ranges mapped to memory of another API: start and length of the addresses.
    buffers: BTreeMap<u64, u64>,
    /// Handles of such memory, with the context of each import, which also ends it.
    external: BTreeMap<u64, OwnerTag>,
    pub(super) bindings: Vec<super::multicast::MulticastMember>,
}

impl ProcessMemory {
    /// The legacy handle of the allocation that includes `at`. No work of its device may run.
    pub(crate) fn legacy_handle(&self, at: u64) -> Result<[u8; 64], CUresult> {
        let mut t = self.lock_tables();
        let (base, a) = t.live.range(..=at).next_back().map(|(k, a)| (*k, *a)).ok_or(CUresult::INVALID_VALUE)?;
        if at >= base + a.bytes || a.kind != AllocationKind::Plain {
            return Err(CUresult::INVALID_VALUE);
        }
        let index = usize::try_from(a.device).unwrap_or(0);
        let slabs = t.heaps[index].slabs_of(base).ok_or(CUresult::INVALID_VALUE)?;
        let share = match t.heaps[index].share_of_slab(slabs.0) {
            Some(share) => share,
            None => {
                let share = self.make_common(&mut t, Some(a.device), slabs)?;
                t.heaps[index].make_common(slabs.0, share);
                share
            }
        };
        let (boot, me) = self.devices.machine.name_numbers();
        let offset = base - slabs.0;
        Ok(ExportedName { kind: LEGACY_NAME, boot, share, offset, bytes: a.bytes, number: a.number, from: me }
            .to_bytes())
    }

    /// Opens another process's allocation in the context `tag` on `device`; a second open of the same one only counts
    /// up.
    pub(crate) fn open_legacy(&self, handle: &[u8; 64], tag: OwnerTag, device: i32) -> Result<u64, CUresult> {
        let gone = CUresult::INVALID_HANDLE;
        let (boot, me) = self.devices.machine.name_numbers();
        let name = ExportedName::from_bytes(handle).filter(|n| n.kind == LEGACY_NAME && n.boot == boot).ok_or(gone)?;
        if name.from == me {
            return Err(CUresult::INVALID_CONTEXT);
        }
        let mut t = self.lock_tables();
        if let Some((base, _, _)) = t.names.shown.get(&name.share).copied() {
            let at = base + name.offset;
            let other = t.live.get(&at).is_some_and(|a| a.tag != tag);
            if let Some(o) = t.names.opened.get_mut(&at) {
                if other {
                    // Only one context of a process may open an exported allocation.
                    return Err(CUresult::INVALID_CONTEXT);
                }
                o.count += 1;
                return Ok(at);
            }
        }
        let info = self.devices.machine.share_info(name.share).filter(|i| i.held_by_creator).ok_or(gone)?;
        if ordinal_of_share(&self.devices, &info)? != Some(device) {
            return Err(CUresult(217));
        }
        self.open(&mut t, &name, (AllocationKind::Opened, tag, device))
    }

    /// Ends one open of a legacy IPC handle.
    pub(crate) fn close_legacy(&self, at: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        if t.live.get(&at).is_none_or(|a| a.kind != AllocationKind::Opened) {
            return Err(CUresult::INVALID_VALUE);
        }
        let o = t.names.opened.get_mut(&at).ok_or(CUresult::INVALID_VALUE)?;
        o.count -= 1;
        if o.count == 0 {
            t.live.remove(&at);
            self.forget_name(&mut t, at);
        }
        Ok(())
    }

    /// Opens the memory that an exported name describes; `meant`: kind, context and device of the new allocation.
    fn open(
        &self,
        t: &mut MemoryTables,
        name: &ExportedName,
        meant: (AllocationKind, OwnerTag, i32),
    ) -> Result<u64, CUresult> {
        let (kind, tag, device) = meant;
        let gone = if kind == AllocationKind::Opened { CUresult::INVALID_HANDLE } else { CUresult::INVALID_VALUE };
        let base = match t.names.shown.get_mut(&name.share) {
            Some((base, _, users)) => {
                *users += 1;
                *base
            }
            None => {
                let (info, file) = self.devices.machine.hold_share(name.share).map_err(|e| trouble_code(&e, gone))?;
                ProcessMemory::hold_again(t, &info);
                let base = self.map_share(t, &info, &file)?;
                t.names.shown.insert(info.id, (base, info.bytes, 1));
                base
            }
        };
        let at = base + name.offset;
        let number = t.next_number();
        let (bytes, len) = (name.bytes, name.bytes);
        t.live.insert(at, LiveAllocation { bytes, len, device, tag, kind, number, pool: 0, dirty: false });
        t.names.opened.insert(at, OpenedAllocation { share: name.share, count: 1 });
        Ok(at)
    }

    /// Maps the content of a share that this process holds already.
    fn map_share(&self, t: &mut MemoryTables, info: &share::ShareInfo, file: &File) -> Result<u64, CUresult> {
        let len = info.bytes.next_multiple_of(PHYSICAL_GRANULARITY);
        let shown = t.space.take_range(len, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY);
        let shown = shown.and_then(|at| match self.map_file(at, info.bytes, file) {
            Ok(()) => Ok(at),
            Err(e) => {
                t.space.give_range(at, len);
                Err(e)
            }
        });
        if shown.is_err() {
            self.let_share_go(t, info.id);
        }
        shown
    }

    /// Ends the range opened at `at`, whose allocation is no longer in the tables.
    pub(super) fn forget_name(&self, t: &mut MemoryTables, at: u64) {
        let Some(o) = t.names.opened.remove(&at) else { return };
        let Some((base, bytes, users)) = t.names.shown.get_mut(&o.share) else { return };
        *users -= 1;
        if *users == 0 {
            let (base, bytes) = (*base, *bytes);
            t.names.shown.remove(&o.share);
            let len = bytes.next_multiple_of(PHYSICAL_GRANULARITY);
            self.map_private(base, len);
            t.space.give_range(base, len);
            self.let_share_go(t, o.share);
        }
    }

    /// Makes a descriptor of a physical allocation. No work of its device may run.
    pub(crate) fn export_descriptor(&self, handle: u64, kind: u32) -> Result<OwnedFd, CUresult> {
        let mut t = self.lock_tables();
        let p = *t.physical_of_handle(handle)?;
        if p.handle_types & kind == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let share = match p.share {
            0 => self.make_common(&mut t, p.device, (p.content, p.bytes, false))?,
            share => share,
        };
        t.physical_of_handle(handle)?.share = share;
        self.devices
            .machine
            .share_descriptor(share)
            .map_err(|e| trouble_code(&share::ShareError::File(e), CUresult::UNKNOWN))
    }

    /// Imports the physical allocation or multicast object of a descriptor.
    pub(crate) fn import_descriptor(&self, fd: i32) -> Result<u64, CUresult> {
        let invalid = CUresult::INVALID_VALUE;
        // Lock the tables first: a thread that ends this process's last hold at the same time would end this hold too.
        let mut t = self.lock_tables();
        let (info, file) = self.devices.machine.hold_descriptor(fd).map_err(|_| invalid)?;
        ProcessMemory::hold_again(&mut t, &info);
        let multicast = info.is_kind(share::ShareKind::Multicast);
        if !multicast && !info.is_kind(share::ShareKind::Memory) {
            self.let_share_go(&mut t, info.id);
            return Err(invalid);
        }
        let device = ordinal_of_share(&self.devices, &info).inspect_err(|_| self.let_share_go(&mut t, info.id))?;
        let content = if multicast { 0 } else { self.map_share(&mut t, &info, &file)? };
        let location = device.map_or((2, 0), |dev| (CU_MEM_LOCATION_TYPE_DEVICE, dev));
        Ok(t.add_physical(PhysicalRecord {
            what: if multicast { PhysicalKind::Multicast } else { PhysicalKind::Memory },
            bytes: info.bytes,
            device,
            location,
            handle_types: 1,
            handles: 1,
            maps: 0,
            share: info.id,
            counted: 0,
            content,
        }))
    }

    /// Imports memory of another API by its descriptor, which a program exported. Any other file stands for memory
    /// that a graphics API allocated in this process, and counts as such.
    pub(crate) fn import_external(&self, fd: i32, bytes: u64, device: i32, tag: OwnerTag) -> Result<u64, CUresult> {
        let handle = self.adopt_descriptor(fd, bytes, device)?;
        self.lock_tables().names.external.insert(handle, tag);
        Ok(handle)
    }

    fn adopt_descriptor(&self, fd: i32, bytes: u64, device: i32) -> Result<u64, CUresult> {
        let bad = CUresult::INVALID_HANDLE;
        let mut physical = PhysicalRecord {
            what: PhysicalKind::External,
            bytes,
            device: Some(device),
            location: (CU_MEM_LOCATION_TYPE_DEVICE, device),
            handle_types: 0,
            handles: 1,
            maps: 0,
            share: 0,
            counted: 0,
            content: 0,
        };
        // Lock the tables first, as in `import`.
        let mut t = self.lock_tables();
        match self.devices.machine.hold_descriptor(fd) {
            Ok((info, file)) => {
                ProcessMemory::hold_again(&mut t, &info);
                let fits = info.is_kind(share::ShareKind::Memory)
                    && bytes <= info.bytes
                    && ordinal_of_share(&self.devices, &info) == Ok(Some(device));
                if !fits {
                    self.let_share_go(&mut t, info.id);
                    return Err(CUresult::INVALID_VALUE);
                }
                physical.content = self.map_share(&mut t, &info, &file)?;
                (physical.share, physical.bytes) = (info.id, info.bytes);
                Ok(t.add_physical(physical))
            }
            Err(share::ShareError::Unknown) => {
                drop(t);
                // SAFETY: the program hands the descriptor over with this call. It is not closed here, because on an
                // error it stays the program's.
                let file = unsafe { File::from_raw_fd(fd) };
                let answer = self.import_file(&file, physical);
                std::mem::forget(file);
                answer
            }
            Err(_) => Err(bad),
        }
    }

    fn import_file(&self, file: &File, physical: PhysicalRecord) -> Result<u64, CUresult> {
        let (bytes, device) = (physical.bytes, physical.device.unwrap_or(0));
        let known = file.metadata().is_ok_and(|m| m.is_file() && m.len() >= bytes);
        if !known {
            return Err(CUresult::INVALID_HANDLE);
        }
        let mut t = self.lock_tables();
        let len = bytes.next_multiple_of(PHYSICAL_GRANULARITY);
        let at = t.space.take_range(len, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let n = signed_bytes(bytes);
        let change =
            RecordChange { allocations: 1, requested: n, live: n, large: signed_bytes(len), ..RecordChange::default() };
        let taken = self.adjust_with(&mut t, device, &change);
        if let Err(e) = taken.and_then(|()| self.map_file(at, bytes.next_multiple_of(4096), file)) {
            if taken.is_ok() {
                let _ = self.adjust_with(&mut t, device, &change.reversed());
            }
            t.space.give_range(at, len);
            return Err(e);
        }
        Ok(t.add_physical(PhysicalRecord { content: at, counted: bytes, ..physical }))
    }

    /// Releases a handle of memory of another API; ranges mapped to the memory keep it.
    pub(crate) fn release_external(&self, handle: u64) -> Result<(), CUresult> {
        let mut t = self.lock_tables();
        external_memory(&mut t, handle)?.handles -= 1;
        self.free_unreferenced(&mut t, handle);
        Ok(())
    }

    /// Ends the memory of other APIs that was imported in a context, and the ranges mapped to it.
    pub(super) fn forget_external(&self, t: &mut MemoryTables, tag: OwnerTag) {
        let mine: Vec<u64> = t.names.external.iter().filter(|(_, of)| **of == tag).map(|(h, _)| *h).collect();
        for handle in mine {
            t.names.external.remove(&handle);
            let shows = |at: &u64| t.maps.get(at).is_some_and(|m| m.handle == handle);
            let ranges: Vec<u64> = t.names.buffers.keys().copied().filter(shows).collect();
            for at in ranges {
                self.unmap_buffer(t, at);
            }
            if let Ok(p) = external_memory(t, handle) {
                p.handles = 0;
            }
            self.free_unreferenced(t, handle);
        }
    }

    /// Maps a part of memory of another API to a new range.
    pub(crate) fn map_external(&self, handle: u64, offset: u64, bytes: u64) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        let p = *external_memory(&mut t, handle)?;
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        let len = bytes.next_multiple_of(PHYSICAL_GRANULARITY);
        let at = t.space.take_range(len, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        external_memory(&mut t, handle)?.maps += 1;
        t.maps.insert(at, AddressMapping { len: bytes, handle, offset, access: 3, plain: false });
        t.names.buffers.insert(at, len);
        Ok(at)
    }

    /// Ends a range mapped to memory of another API; false if none starts there.
    pub(crate) fn unmap_external(&self, at: u64) -> bool {
        self.unmap_buffer(&mut self.lock_tables(), at)
    }

    fn unmap_buffer(&self, t: &mut MemoryTables, at: u64) -> bool {
        let Some(len) = t.names.buffers.remove(&at) else { return false };
        if let Some(m) = t.maps.remove(&at) {
            t.space.give_range(at, len);
            self.unpin_physical(t, m.handle);
        }
        true
    }

    /// The 64-byte name of a block of an exported pool.
    pub(crate) fn pool_pointer(&self, at: u64) -> Result<[u8; 64], CUresult> {
        let t = self.lock_tables();
        let invalid = CUresult::INVALID_VALUE;
        let a = t.live.get(&at).copied().filter(|a| a.kind == AllocationKind::Async).ok_or(invalid)?;
        let (pool, base, share) = t.exported_chunk(a.pool, at).ok_or(invalid)?;
        let (boot, _) = self.devices.machine.name_numbers();
        let offset = at - base;
        Ok(ExportedName { kind: POINTER_NAME, boot, share, offset, bytes: a.bytes, number: a.number, from: pool }
            .to_bytes())
    }

    /// Opens a block of the pool that was imported as the share `pool`.
    pub(crate) fn open_pool_pointer(&self, pool: u64, data: &[u8; 64], tag: OwnerTag) -> Result<u64, CUresult> {
        let invalid = CUresult::INVALID_VALUE;
        let (boot, _) = self.devices.machine.name_numbers();
        let of_pool = |n: &ExportedName| n.kind == POINTER_NAME && n.boot == boot && n.from == pool;
        let name = ExportedName::from_bytes(data).filter(of_pool).ok_or(invalid)?;
        let info = self.devices.machine.share_info(name.share).ok_or(invalid)?;
        let device = ordinal_of_share(&self.devices, &info)?.ok_or(invalid)?;
        let mut t = self.lock_tables();
        let shown = t.names.shown.get(&name.share).map(|(base, _, _)| base + name.offset);
        if shown.is_some_and(|at| t.names.opened.contains_key(&at)) {
            return Err(CUresult::ALREADY_MAPPED);
        }
        self.open(&mut t, &name, (AllocationKind::Imported, tag, device))
    }

    /// Removes an imported block from the tables; [`ProcessMemory::end_imported`] then ends it.
    pub(crate) fn begin_end_of_imported(&self, at: u64) -> bool {
        let mut t = self.lock_tables();
        let imported = t.live.get(&at).is_some_and(|a| a.kind == AllocationKind::Imported);
        imported && t.live.remove(&at).is_some()
    }

    /// Ends an imported block that was removed from the tables.
    pub(crate) fn end_imported(&self, at: u64) {
        self.forget_name(&mut self.lock_tables(), at);
    }
}

fn external_memory(t: &mut MemoryTables, handle: u64) -> Result<&mut PhysicalRecord, CUresult> {
    let found = t.physical.get_mut(&handle).filter(|p| p.handles > 0 && p.what == PhysicalKind::External);
    found.ok_or(CUresult::INVALID_HANDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_and_a_changed_one_is_none() {
        let name = ExportedName { kind: LEGACY_NAME, boot: 1, share: 2, offset: 3, bytes: 4, number: 5, from: 6 };
        let mut bytes = name.to_bytes();
        assert_eq!(ExportedName::from_bytes(&bytes), Some(name));
        for i in 0..64 {
            bytes[i] ^= 1;
            assert_eq!(ExportedName::from_bytes(&bytes), None);
            bytes[i] ^= 1;
        }
        assert_eq!(ExportedName::from_bytes(&[0; 64]), None);
    }
}
