//! Memory without a pointer allocation. Arrays, and memory mapped into them, come from the same slabs, but no
//! pointer lookup finds them. Ranges for modules: their globals have addresses, but no memory of their own.

use super::physical::What;
use super::{Allocation, GRANULARITY, Kind, Memory, Tag};
use crate::driver::Driver;
use shim_sys::cuda::CUresult;

impl Memory {
    /// Takes `bytes` from the slabs of `device` (CUDA ordinal); returns the content address.
    pub(crate) fn take(&self, d: &Driver, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let mut t = self.tables();
        self.take_slabs(d, &mut t, device, bytes).map(|(at, _)| at)
    }

    /// Frees memory that [`Memory::take`] returned.
    pub(crate) fn give(&self, d: &Driver, device: i32, at: u64) {
        let mut t = self.tables();
        self.give_slabs(d, &mut t, device, at, true);
    }

    /// The host pointer to a content address.
    pub(crate) fn content_of(&self, at: u64) -> *mut u8 {
        self.place(at)
    }

    /// Keeps `[offset, offset + bytes)` of a physical allocation on `device` alive; returns the content address.
    pub(crate) fn keep(&self, handle: u64, offset: u64, bytes: u64, device: i32) -> Result<u64, CUresult> {
        let mut t = self.tables();
        let p = t.handle(handle)?;
        if p.what != What::Memory || p.device != Some(device) {
            return Err(CUresult::INVALID_VALUE);
        }
        if offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        p.maps += 1;
        Ok(p.content + offset)
    }

    /// As [`Memory::keep`], for memory of another API, by its handle.
    pub(crate) fn keep_external(&self, handle: u64, offset: u64, bytes: u64, device: i32) -> Result<u64, CUresult> {
        let mut t = self.tables();
        let p = t.physical.get_mut(&handle).filter(|p| p.handles > 0 && p.what == What::External);
        let p = p.ok_or(CUresult::INVALID_HANDLE)?;
        if p.device != Some(device) || offset.checked_add(bytes).is_none_or(|end| end > p.bytes) {
            return Err(CUresult::INVALID_VALUE);
        }
        p.maps += 1;
        Ok(p.content + offset)
    }

    /// Ends the effect of one [`Memory::keep`] on the allocation.
    pub(crate) fn let_go(&self, d: &Driver, handle: u64) {
        let mut t = self.tables();
        self.unpin(d, &mut t, handle);
    }

    /// Reserves whole slabs of addresses with content that count nowhere.
    pub(crate) fn take_range(&self, bytes: u64) -> Option<u64> {
        self.tables().space.take(bytes, GRANULARITY)
    }

    /// Frees a range of [`Memory::take_range`].
    pub(crate) fn give_range(&self, at: u64, bytes: u64) {
        self.forget(at, bytes);
        self.tables().space.give(at, bytes);
    }

    /// Registers `bytes` at `at`, in a module's range, as a global that pointer lookups find. Its content is zero.
    pub(crate) fn show_global(&self, at: u64, bytes: u64, device: i32, tag: Tag) {
        let mut t = self.tables();
        let number = t.fresh();
        let len = bytes.max(1);
        if len < GRANULARITY {
            // SAFETY: inside a range of our own mapping that belongs to the module. A larger global has fresh pages.
            unsafe { self.place(at).write_bytes(0, usize::try_from(len).unwrap_or(0)) };
        }
        t.live
            .insert(at, Allocation { bytes: len, len, device, tag, kind: Kind::Global, number, pool: 0, dirty: false });
    }

    /// Removes a module's global from the known addresses.
    pub(crate) fn hide_global(&self, at: u64) {
        self.tables().live.remove(&at);
    }
}
