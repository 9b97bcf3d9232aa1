//! Addresses of graph memory: usable while their node exists. The memory behind them is counted elsewhere.

use super::{AllocationKind, LiveAllocation, OwnerTag, PHYSICAL_GRANULARITY, ProcessMemory};
use shim_sys::cuda::CUresult;

impl ProcessMemory {
    /// Allocates a chunk for the pool of `device` (CUDA ordinal): it counts as memory, but no lookup finds it.
    pub(crate) fn open_chunk(&self, device: i32, len: u64) -> Result<u64, CUresult> {
        let mut t = self.lock_tables();
        self.take_chunk(&mut t, device, len)
    }

    /// Frees a chunk of [`ProcessMemory::open_chunk`].
    pub(crate) fn close_chunk(&self, device: i32, at: u64, len: u64) {
        self.return_chunk(&mut self.lock_tables(), device, at, len);
    }

    /// Reserves addresses for `bytes` of memory of `device`; they do not count as memory.
    pub(crate) fn open_span(&self, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let len = bytes.checked_next_multiple_of(PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let mut t = self.lock_tables();
        let at = t.space.take_range(len, PHYSICAL_GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let number = t.next_number();
        // No context has this number, so the span outlives all contexts.
        t.live.insert(
            at,
            LiveAllocation {
                bytes,
                len,
                device,
                tag: OwnerTag(0),
                kind: AllocationKind::Graph,
                number,
                pool: 0,
                dirty: false,
            },
        );
        Ok(at)
    }

    /// Frees a span of [`ProcessMemory::open_span`].
    pub(crate) fn close_span(&self, at: u64) {
        let mut t = self.lock_tables();
        if let Some(a) = t.live.remove(&at) {
            self.discard_pages(at, a.len);
            t.space.give_range(at, a.len);
        }
    }
}
