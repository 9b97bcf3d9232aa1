//! Device memory of modules: their code and globals, which count as overhead in the ground truth.
//!
//! All modules on a device share slabs, so a second small module may need no more memory. A module larger than a
//! slab has slabs of its own.
//! Not here: the contents of an image (`image`), loading (`calls/module.rs`).

use crate::content::ProcessMemory;
use crate::objects::CodePlace;
use parking_lot::Mutex;
use shim_sys::cuda::CUresult;
use std::collections::HashMap;
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::slab::FreeExtents;

const CODE_ALIGN_BYTES: u64 = 512;

/// The free ranges of each device's code slabs.
#[derive(Default)]
pub(crate) struct CodeSlabs(Mutex<HashMap<i32, FreeExtents>>);

impl CodeSlabs {
    /// Allocates `bytes` for a module on `device`.
    pub(crate) fn take_code(&self, memory: &ProcessMemory, device: i32, bytes: u64) -> Result<CodePlace, CUresult> {
        let none = CUresult::OUT_OF_MEMORY;
        let board = memory.devices.device_of_ordinal(device)?;
        let slab = board.profile.slab_bytes;
        let len = bytes.max(1).checked_next_multiple_of(CODE_ALIGN_BYTES).ok_or(none)?;
        let mut all = self.0.lock();
        let free = all.entry(device).or_insert_with(|| FreeExtents::new(slab));
        if let Some(at) = free.take_range(len, CODE_ALIGN_BYTES).filter(|_| len < slab) {
            return Ok(CodePlace { device, at, len });
        }
        let whole = len.checked_next_multiple_of(slab).ok_or(none)?;
        let base = memory.take_range(whole).ok_or(none)?;
        if let Err(e) =
            memory.adjust_record(device, &RecordChange { overhead: signed_bytes(whole), ..RecordChange::default() })
        {
            memory.give_range(base, whole);
            return Err(e);
        }
        if len < slab {
            free.give_range(base, slab);
            free.take_at(base, len);
            return Ok(CodePlace { device, at: base, len });
        }
        Ok(CodePlace { device, at: base, len: whole })
    }

    /// Frees a module's memory.
    pub(crate) fn give_code(&self, memory: &ProcessMemory, place: CodePlace) {
        let Ok(board) = memory.devices.device_of_ordinal(place.device) else { return };
        let slab = board.profile.slab_bytes;
        let mut all = self.0.lock();
        let free = all.entry(place.device).or_insert_with(|| FreeExtents::new(slab));
        let (base, len) = if place.len < slab { free.give_range(place.at, place.len) } else { (place.at, place.len) };
        if len < slab {
            return;
        }
        if place.len < slab {
            free.take_at(base, len);
        }
        memory.give_range(base, len);
        let _ = memory
            .devices
            .machine
            .adjust_device(board.index, &RecordChange { overhead: -signed_bytes(len), ..RecordChange::default() });
    }
}
