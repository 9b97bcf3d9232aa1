//! Memory without a pointer allocation. Arrays, and memory mapped into them, come from the same slabs, but no
//! pointer lookup finds them. Ranges for modules: their globals have addresses, but no memory of their own.

use super::physical::PhysicalKind;
use super::{AllocationKind, LiveAllocation, OwnerTag, PHYSICAL_GRANULARITY, ProcessMemory};
use shim_sys::cuda::CUresult;

impl ProcessMemory {
    /// Takes `bytes` from the slabs of `device` (CUDA ordinal); returns the content address.
    pub(crate) fn take_slab_range(&self, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        self.take_slabs(&mut t, device, bytes).map(|(at, _)| at)
    }

    /// Frees memory that [`ProcessMemory::take_slab_range`] returned.
    pub(crate) fn give_slab_range(&self, device: i32, at: u64) {
        let mut t = self.lock_tables();
        self.give_slabs(&mut t, device, at, true);
    }

    /// The host pointer to a content address.
    pub(crate) fn content_of(&self, at: u64) -> *mut u8 {
        self.content_place(at)
    }

    /// Keeps `[offset, offset + bytes)` of a physical allocation on `device` alive; returns the content address.
    pub(crate) fn keep_range(&self, handle: u64, offset: u64, bytes: u64, device: i32) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        let p = t.physical_of_handle(handle)?;
        if p.what != PhysicalKind::Memory || p.device != Some(device) {
            return Err(CUresult::INVALID_VALUE);
        }
        if offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        p.maps += 1;
        Ok(p.content + offset)
    }

    /// As [`ProcessMemory::keep_range`], for memory of another API, by its handle.
    pub(crate) fn keep_external(&self, handle: u64, offset: u64, bytes: u64, device: i32) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        let p = t.physical.get_mut(&handle).filter(|p| p.handles > 0 && p.what == PhysicalKind::External);
        let p = p.ok_or(CUresult::INVALID_HANDLE)?;
        if p.device != Some(device) || offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        p.maps += 1;
        Ok(p.content + offset)
    }

    /// Ends the effect of one [`ProcessMemory::keep_range`] on the allocation.
    pub(crate) fn let_go(&self, handle: u64) {
        let mut t = self.lock_tables();
        self.unpin_physical(&mut t, handle);
    }

    /// Reserves whole slabs of addresses with content that count nowhere.
    pub(crate) fn take_range(&self, bytes: u64) -> Option<u64> {
        self.lock_tables().space.take_range(bytes, PHYSICAL_GRANULARITY)
    }

    /// Frees a range of [`ProcessMemory::take_range`].
    pub(crate) fn give_range(&self, at: u64, bytes: u64) {
        self.discard_pages(at, bytes);
        self.lock_tables().space.give_range(at, bytes);
    }

    /// Registers `bytes` at `at`, in a module's range, as a global that pointer lookups find. Its content is zero.
    pub(crate) fn show_global(&self, at: u64, bytes: u64, device: i32, tag: OwnerTag) {
        let mut t = self.lock_tables();
        let number = t.next_number();
        let len = bytes.max(1);
        if len < PHYSICAL_GRANULARITY {
            // SAFETY: inside a range of our own mapping that belongs to the module. A larger global has fresh pages.
            unsafe { self.content_place(at).write_bytes(0, usize::try_from(len).unwrap_or(0)) };
        }
        t.live.insert(
            at,
            LiveAllocation {
                bytes: len,
                len,
                device,
                tag,
                kind: AllocationKind::Global,
                number,
                pool: 0,
                dirty: false,
            },
        );
    }

    /// Removes a module's global from the known addresses.
    pub(crate) fn hide_global(&self, at: u64) {
        self.lock_tables().live.remove(&at);
    }
}
