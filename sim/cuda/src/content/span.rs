//! Addresses of graph memory: usable while their node exists. The memory behind them is counted elsewhere.

use super::{Allocation, GRANULARITY, Kind, Memory, Tag};
use crate::driver::Driver;
use shim_sys::cuda::CUresult;

impl Memory {
    /// Allocates a chunk for the pool of `device` (CUDA ordinal): it counts as memory, but no lookup finds it.
    pub(crate) fn open_chunk(&self, d: &Driver, device: i32, len: u64) -> Result<u64, CUresult> {
        let mut t = self.tables();
        self.take_chunk(d, &mut t, device, len)
    }

    /// Frees a chunk of [`Memory::open_chunk`].
    pub(crate) fn close_chunk(&self, d: &Driver, device: i32, at: u64, len: u64) {
        self.return_chunk(d, &mut self.tables(), device, at, len);
    }

    /// Reserves addresses for `bytes` of memory of `device`; they do not count as memory.
    pub(crate) fn open_span(&self, device: i32, bytes: u64) -> Result<u64, CUresult> {
        let len = bytes.checked_next_multiple_of(GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let mut t = self.tables();
        let at = t.space.take(len, GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let number = t.fresh();
        // No context has this number, so the span outlives all contexts.
        t.live.insert(
            at,
            Allocation { bytes, len, device, tag: Tag(0), kind: Kind::Graph, number, pool: 0, dirty: false },
        );
        Ok(at)
    }

    /// Frees a span of [`Memory::open_span`].
    pub(crate) fn close_span(&self, at: u64) {
        let mut t = self.tables();
        if let Some(a) = t.live.remove(&at) {
            self.forget(at, a.len);
            t.space.give(at, a.len);
        }
    }
}
