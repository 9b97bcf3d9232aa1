//! Memory that is not allocated by pointer: arrays and what is mapped into them, which no pointer finds, though they are
//! taken from the same slabs; ranges for modules, whose globals have addresses and no memory of their own.

use super::physical::What;
use super::{Allocation, GRANULARITY, Kind, Memory, Tag};
use crate::driver::Driver;
use shim_sys::cuda::CUresult;

impl Memory {
    /// Takes `bytes` from the slabs of `device` (CUDA ordinal); returns the place of their content.
    pub(crate) fn take(&self, d: &Driver, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let mut t = self.tables();
        self.take_slabs(d, &mut t, device, bytes).map(|(at, _)| at)
    }

    /// Gives back what [`Memory::take`] returned.
    pub(crate) fn give(&self, d: &Driver, device: i32, at: u64) {
        let mut t = self.tables();
        self.give_slabs(d, &mut t, device, at, true);
    }

    /// Where the host finds the content of a place.
    pub(crate) fn content_of(&self, at: u64) -> *mut u8 {
        self.place(at)
    }

    /// Keeps `[offset, offset + bytes)` of a physical allocation on `device` alive; returns the place of that content.
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

    /// The same of memory of another API, by its handle.
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

    /// Ends one [`Memory::keep`].
    pub(crate) fn let_go(&self, d: &Driver, handle: u64) {
        let mut t = self.tables();
        self.unpin(d, &mut t, handle);
    }

    /// Whole slabs of addresses with content, not counted.
    pub(crate) fn take_range(&self, bytes: u64) -> Option<u64> {
        self.tables().space.take(bytes, GRANULARITY)
    }

    /// Gives back what [`Memory::take_range`] returned.
    pub(crate) fn give_range(&self, at: u64, bytes: u64) {
        self.forget(at, bytes);
        self.tables().space.give(at, bytes);
    }

    /// Makes `bytes` at `at`, inside a module's range, a global that pointers find. It is zero.
    pub(crate) fn show_global(&self, at: u64, bytes: u64, device: i32, tag: Tag) {
        let mut t = self.tables();
        let number = t.fresh();
        let len = bytes.max(1);
        if len < GRANULARITY {
            // SAFETY: inside a range of our own mapping that belongs to the module. A larger one has fresh pages.
            unsafe { self.place(at).write_bytes(0, usize::try_from(len).unwrap_or(0)) };
        }
        t.live
            .insert(at, Allocation { bytes: len, len, device, tag, kind: Kind::Global, number, pool: 0, dirty: false });
    }

    /// Ends a global.
    pub(crate) fn hide_global(&self, at: u64) {
        self.tables().live.remove(&at);
    }
}
