//! Device memory of modules: their code and globals, which count as overhead in the ground truth.
//!
//! All modules on a device share slabs, so a second small module may need no more memory. A module larger than a
//! slab has slabs of its own.
//! Not here: the contents of an image (`image`), loading (`calls/module.rs`).

use crate::driver::{Driver, hold};
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::collections::HashMap;
use vgpu_sim::memory::{Change, plus};
use vgpu_sim::slab::Extents;

const ALIGN: u64 = 512;

/// Location of a module's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// CUDA ordinal of the device.
    device: i32,
    pub(crate) at: u64,
    len: u64,
}

/// The free ranges of each device's code slabs.
#[derive(Default)]
pub(crate) struct Code(Mutex<HashMap<i32, Extents>>);

impl Code {
    /// Allocates `bytes` for a module on `device`.
    pub(crate) fn take(&self, d: &Driver, device: i32, bytes: u64) -> Result<Place, CUresult> {
        let none = CUresult::OUT_OF_MEMORY;
        let board = d.device(device)?;
        let slab = board.profile.slab_bytes;
        let len = bytes.max(1).checked_next_multiple_of(ALIGN).ok_or(none)?;
        let mut all = hold(&self.0);
        let free = all.entry(device).or_insert_with(|| Extents::new(slab));
        if let Some(at) = free.take(len, ALIGN).filter(|_| len < slab) {
            return Ok(Place { device, at, len });
        }
        let whole = len.checked_next_multiple_of(slab).ok_or(none)?;
        let base = d.memory.take_range(whole).ok_or(none)?;
        if let Err(e) = d.memory.adjust(d, device, &Change { overhead: plus(whole), ..Change::default() }) {
            d.memory.give_range(base, whole);
            return Err(e);
        }
        if len < slab {
            free.give(base, slab);
            free.take_at(base, len);
            return Ok(Place { device, at: base, len });
        }
        Ok(Place { device, at: base, len: whole })
    }

    /// Frees a module's memory.
    pub(crate) fn give(&self, d: &Driver, place: Place) {
        let Ok(board) = d.device(place.device) else { return };
        let slab = board.profile.slab_bytes;
        let mut all = hold(&self.0);
        let free = all.entry(place.device).or_insert_with(|| Extents::new(slab));
        let (base, len) = if place.len < slab { free.give(place.at, place.len) } else { (place.at, place.len) };
        if len < slab {
            return;
        }
        if place.len < slab {
            free.take_at(base, len);
        }
        d.memory.give_range(base, len);
        let _ = d.machine.adjust(board.index, &Change { overhead: -plus(len), ..Change::default() });
    }
}
