//! The driver's allocator in one process: addresses, shared slabs for small requests, whole slabs for large ones.
//!
//! Requests below `small_limit` share slabs of 2 MiB: sizes are rounded to 512 bytes, placed by best fit, and
//! freed neighbours are joined. An empty slab is returned. Larger requests get whole slabs of their own. The
//! machine counts the memory in use; nothing here is shared between processes.
//! Not here: content, virtual memory management.

use crate::machine::MachineView;
use crate::memory::{NotEnoughMemory, RecordChange, signed_bytes};
use crate::profile::DeviceProfile;
use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of addresses. Allocation is by best fit; neighbours join inside windows of `window` bytes.
#[derive(Debug, Default)]
pub struct FreeExtents {
    by_address: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    window: u64,
}

impl FreeExtents {
    /// Makes an empty set. Ranges join only within aligned windows of `window` bytes (0: everywhere).
    pub fn new(window: u64) -> FreeExtents {
        FreeExtents { window, ..FreeExtents::default() }
    }

    fn add(&mut self, at: u64, len: u64) {
        self.by_address.insert(at, len);
        self.by_size.insert((len, at));
    }

    fn remove(&mut self, at: u64, len: u64) {
        self.by_address.remove(&at);
        self.by_size.remove(&(len, at));
    }

    /// Takes `len` bytes aligned to `align` (a power of two) from the smallest range that fits them.
    pub fn take_range(&mut self, len: u64, align: u64) -> Option<u64> {
        let (at, size, start) = self.by_size.range((len, 0)..).find_map(|&(size, at)| {
            let start = at.checked_add(align - 1)? & !(align - 1);
            (start + len <= at + size).then_some((at, size, start))
        })?;
        self.cut(at, size, start, len);
        Some(start)
    }

    /// Takes exactly `[at, at + len)` if it is free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&base, &size)) = self.by_address.range(..=at).next_back() else { return false };
        let fits = at.checked_add(len).is_some_and(|end| end <= base + size);
        if fits {
            self.cut(base, size, at, len);
        }
        fits
    }

    fn cut(&mut self, base: u64, size: u64, start: u64, len: u64) {
        self.remove(base, size);
        if start > base {
            self.add(base, start - base);
        }
        if start + len < base + size {
            self.add(start + len, base + size - start - len);
        }
    }

    /// Returns a range; the result is the joined range that now includes it.
    pub fn give_range(&mut self, mut at: u64, mut len: u64) -> (u64, u64) {
        let same = |a: u64, b: u64| self.window == 0 || a / self.window == b / self.window;
        let before = self.by_address.range(..at).next_back().map(|(a, l)| (*a, *l));
        let after = self.by_address.get(&(at + len)).map(|l| (at + len, *l));
        if let Some((a, l)) = after.filter(|(a, _)| same(at, *a)) {
            self.remove(a, l);
            len += l;
        }
        if let Some((a, l)) =
            before.filter(|(a, l)| a + l == at && (self.window == 0 || a / self.window == at / self.window))
        {
            self.remove(a, l);
            at = a;
            len += l;
        }
        self.add(at, len);
        (at, len)
    }
}

/// A live allocation on the heap of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapBlock {
    /// Size the program requested, bytes.
    pub requested: u64,
    /// Size that the allocation occupies, bytes: a multiple of 512 in a slab, whole slabs otherwise.
    pub len: u64,
    /// True if the allocation has slabs of its own.
    pub large: bool,
}

/// The allocations of one process on one device.
#[derive(Debug)]
pub struct DeviceHeap {
    device: usize,
    profile: DeviceProfile,
    small: FreeExtents,
    live: BTreeMap<u64, HeapBlock>,
    /// Slabs that are shares, by start address. This process's record does not count their bytes.
    common: BTreeMap<u64, u64>,
}

impl DeviceHeap {
    /// A heap without allocations for `device`.
    pub fn new(device: usize, profile: DeviceProfile) -> DeviceHeap {
        DeviceHeap {
            device,
            profile,
            small: FreeExtents::new(profile.slab_bytes),
            live: BTreeMap::new(),
            common: BTreeMap::new(),
        }
    }

    /// Allocates `bytes` (not 0). Addresses come from `space`, whose ranges are whole slabs.
    ///
    /// # Errors
    /// [`NotEnoughMemory`]: the device has no room, or the process has no addresses left (then `free` is 0).
    pub fn alloc(
        &mut self,
        machine: &MachineView,
        space: &mut FreeExtents,
        bytes: u64,
    ) -> Result<u64, NotEnoughMemory> {
        let p = &self.profile;
        let slab = p.slab_bytes;
        let no_room = NotEnoughMemory { needed: bytes, free: 0 };
        let live = bytes.checked_next_multiple_of(p.small_align).ok_or(no_room)?;
        let count = RecordChange {
            allocations: 1,
            requested: signed_bytes(bytes),
            live: signed_bytes(live),
            ..RecordChange::default()
        };
        if bytes >= p.small_limit {
            let len = bytes.checked_next_multiple_of(slab).filter(|l| *l < 1 << 62).ok_or(no_room)?;
            let at = space.take_range(len, slab).ok_or(no_room);
            let room = machine.adjust_device(self.device, &RecordChange { large: signed_bytes(len), ..count });
            let at = match (at, room) {
                (Ok(at), Ok(())) => at,
                (Ok(at), Err(full)) => {
                    space.give_range(at, len);
                    return Err(full);
                }
                (Err(none), Ok(())) => {
                    let _ = machine
                        .adjust_device(self.device, &RecordChange { large: signed_bytes(len), ..count }.reversed());
                    return Err(none);
                }
                (Err(_), Err(full)) => return Err(full),
            };
            self.live.insert(at, HeapBlock { requested: bytes, len, large: true });
            return Ok(at);
        }
        let at = match self.small.take_range(live, p.small_align) {
            Some(at) => {
                machine.adjust_device(self.device, &count)?;
                at
            }
            None => {
                let base = space.take_range(slab, slab).ok_or(no_room)?;
                if let Err(full) =
                    machine.adjust_device(self.device, &RecordChange { slabs: signed_bytes(slab), ..count })
                {
                    space.give_range(base, slab);
                    return Err(full);
                }
                self.small.give_range(base, slab);
                if !self.small.take_at(base, live) {
                    return Err(no_room);
                }
                base
            }
        };
        self.live.insert(at, HeapBlock { requested: bytes, len: live, large: false });
        Ok(at)
    }

    /// The whole slabs that include an allocation: start, length, and whether small requests share them.
    pub fn slabs_of(&self, at: u64) -> Option<(u64, u64, bool)> {
        let block = self.live.get(&at)?;
        let slab = self.profile.slab_bytes;
        Some(if block.large { (at, block.len, false) } else { (at / slab * slab, slab, true) })
    }

    /// The share that the slabs at `base` belong to.
    pub fn share_of_slab(&self, base: u64) -> Option<u64> {
        self.common.get(&base).copied()
    }

    /// Notes that the slabs at `base` are a share now: their bytes have left this process's record.
    pub fn make_common(&mut self, base: u64, share: u64) {
        self.common.insert(base, share);
    }

    /// Notes that the slabs at `base` were returned; the result is the share that they were.
    pub fn no_longer_common(&mut self, base: u64) -> Option<u64> {
        self.common.remove(&base)
    }

    /// Frees the allocation that starts at `at`. Returns it, with the range that was returned to `space`, if any.
    pub fn free(
        &mut self,
        machine: &MachineView,
        space: &mut FreeExtents,
        at: u64,
    ) -> Option<(HeapBlock, Option<(u64, u64)>)> {
        let block = self.live.remove(&at)?;
        let p = &self.profile;
        let live = block.requested.next_multiple_of(p.small_align);
        let mut change = RecordChange {
            allocations: -1,
            requested: -signed_bytes(block.requested),
            live: -signed_bytes(live),
            ..RecordChange::default()
        };
        let mut returned = None;
        if block.large {
            change.large = if self.common.contains_key(&at) { 0 } else { -signed_bytes(block.len) };
            returned = Some((at, block.len));
        } else {
            let (base, len) = self.small.give_range(at, block.len);
            if len == p.slab_bytes {
                self.small.take_at(base, len);
                change.slabs = if self.common.contains_key(&base) { 0 } else { -signed_bytes(len) };
                returned = Some((base, len));
            }
        }
        if let Some((base, len)) = returned {
            space.give_range(base, len);
        }
        let _ = machine.adjust_device(self.device, &change);
        Some((block, returned))
    }

    /// The allocation that includes `address`, with its start.
    pub fn find(&self, address: u64) -> Option<(u64, HeapBlock)> {
        let (at, block) = self.live.range(..=address).next_back()?;
        (address < at + block.requested.max(1)).then_some((*at, *block))
    }

    /// Start addresses of all live allocations.
    pub fn live_addresses(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }

    /// Number of live allocations on the heap.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// True when nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_inside_their_window_only() {
        let mut e = FreeExtents::new(100);
        e.give_range(0, 100);
        e.give_range(100, 100);
        assert_eq!(e.take_range(150, 1), None);
        let a = e.take_range(40, 1).unwrap();
        let b = e.take_range(60, 1).unwrap();
        assert_eq!((a, b), (0, 40));
        e.give_range(b, 60);
        assert_eq!(e.give_range(a, 40), (0, 100));
    }

    #[test]
    fn an_aligned_piece_is_cut_out_of_the_middle() {
        let mut e = FreeExtents::new(0);
        e.give_range(1, 1000);
        assert_eq!(e.take_range(64, 256), Some(256));
        assert!(e.take_at(1, 255) && !e.take_at(256, 1) && e.take_at(320, 681));
        assert_eq!(e.give_range(256, 64), (256, 64));
    }
}
