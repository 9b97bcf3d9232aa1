//! Mapping of physical memory into sparse arrays, and into arrays with deferred mapping, in stream order.
//!
//! A map keeps its physical allocation alive from the call on; an unmap releases it when the stream reaches it.
//! Usage flags of the physical allocation (a tile pool) are not checked.
//! Not here: the tables of tiles (`arrays`).

use crate::arrays::{ArrayBacking, ArrayHome, ArrayStorage, TAIL_LEVEL, TileAddress};
use crate::driver::SimulatedDriver;
use crate::entry_points::CallFrame;
use crate::errors::CallResult;
use crate::surface::TILE_BYTES;
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_sim::engine::WorkKind;

/// One checked entry of a map request for a sparse array.
struct MappingStep {
    storage: Arc<ArrayStorage>,
    /// The tiles in the order of their memory; empty: the whole of an array with deferred mapping.
    tiles: Vec<TileAddress>,
    /// Memory to map; `None` unmaps.
    memory: Option<ArrayBacking>,
}

impl MappingStep {
    fn drop_backing(slot: Option<ArrayBacking>, d: &SimulatedDriver) {
        if let Some(old) = slot {
            d.memory.let_go(old.handle);
        }
    }

    /// Maps or unmaps the tiles of this entry of a map request.
    fn run(&self, d: &SimulatedDriver) {
        match &self.storage.home {
            ArrayHome::Deferred(one) => {
                let old = std::mem::replace(&mut *one.lock(), self.memory);
                MappingStep::drop_backing(old, d);
            }
            ArrayHome::Tiles(tiles) => {
                for (i, tile) in (0u64..).zip(&self.tiles) {
                    let part = self.memory.map(|b| ArrayBacking { content: b.content + i * TILE_BYTES, ..b });
                    let old = match part {
                        Some(b) => tiles.lock().insert(*tile, b),
                        None => tiles.lock().remove(tile),
                    };
                    MappingStep::drop_backing(old, d);
                }
            }
            ArrayHome::Slab(_) | ArrayHome::Outside(_) => {}
        }
    }
}

/// The 32-bit half with index `i`.
fn half_word(words: &[u64; 4], i: usize) -> u64 {
    words[i / 2] >> (32 * (i % 2)) & 0xFFFF_FFFF
}

/// The tiles of an entry.
fn named_tiles(s: &ArrayStorage, e: &CUarrayMapInfo) -> Option<Vec<TileAddress>> {
    let layers = s.shape.layer_count();
    let first = s.shape.tail_level(s.levels);
    if e.subresourceType == 1 {
        // Layout of the words: layer, padding, offset, size.
        let (layer, offset, size) = (half_word(&e.subresource, 0), e.subresource[1], e.subresource[2]);
        let whole = s.tail_bytes(first);
        let fits = offset.checked_add(size).is_some_and(|end| end <= whole);
        if layer >= layers
            || size == 0
            || !offset.is_multiple_of(TILE_BYTES)
            || !size.is_multiple_of(TILE_BYTES)
            || !fits
        {
            return None;
        }
        return Some(
            (offset / TILE_BYTES..(offset + size) / TILE_BYTES).map(|i| (TAIL_LEVEL, layer, [i, 0, 0])).collect(),
        );
    }
    if e.subresourceType != 0 {
        return None;
    }
    let [level, layer, x, y, z, w, h, d] = std::array::from_fn(|i| half_word(&e.subresource, i));
    let level = u32::try_from(level).ok().filter(|l| *l < first && *l < s.levels)?;
    let shape = s.shape.at_level(level).desc;
    let depth = if layers > 1 { 1 } else { shape.Depth.max(1) as u64 };
    let tile = s.shape.tile_extent()?;
    let (at, size) = ([x, y, z], [w, h, d]);
    let most = [shape.Width as u64, shape.Height as u64, depth];
    for i in 0..3 {
        let end = at[i] + size[i];
        // The last tile of a row may extend beyond the array.
        let even = end.is_multiple_of(tile[i]) || end == most[i];
        if size[i] == 0 || !at[i].is_multiple_of(tile[i]) || !even || end > most[i].next_multiple_of(tile[i]) {
            return None;
        }
    }
    if layer >= layers {
        return None;
    }
    let range = |i: usize| at[i] / tile[i]..(at[i] + size[i]).div_ceil(tile[i]);
    let mut all = Vec::new();
    for tz in range(2) {
        for ty in range(1) {
            all.extend(range(0).map(|tx| (level, layer, [tx, ty, tz])));
        }
    }
    Some(all)
}

/// Checks an entry; the memory that the entry maps is kept alive from here on.
fn check(d: &SimulatedDriver, device: i32, e: &CUarrayMapInfo) -> Result<MappingStep, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let storage = match e.resourceType {
        0 => d.arrays.get(e.resource).filter(|a| a.whole).map(|a| a.storage.clone()),
        1 => d.mipmaps.get(e.resource).map(|m| m.storage.clone()),
        _ => None,
    };
    let storage = storage.ok_or(invalid)?;
    let bit = u32::try_from(device).ok().and_then(|n| 1u32.checked_shl(n));
    if Some(e.deviceBitMask) != bit || storage.context.device != device || e.flags != 0 || e.reserved != [0; 2] {
        return Err(invalid);
    }
    let (tiles, bytes) = match &storage.home {
        ArrayHome::Slab(_) | ArrayHome::Outside(_) => return Err(invalid),
        ArrayHome::Deferred(_) => (Vec::new(), storage.bytes.next_multiple_of(TILE_BYTES)),
        ArrayHome::Tiles(_) => {
            let tiles = named_tiles(&storage, e).ok_or(invalid)?;
            let bytes = tiles.len() as u64 * TILE_BYTES;
            (tiles, bytes)
        }
    };
    let memory = match e.memOperationType {
        CU_MEM_OPERATION_TYPE_UNMAP if e.memHandle == 0 => None,
        CU_MEM_OPERATION_TYPE_MAP if e.memHandleType == 0 && e.offset.is_multiple_of(TILE_BYTES) => {
            let content = d.memory.keep_range(e.memHandle, e.offset, bytes, device)?;
            // Every tile keeps the allocation alive separately.
            for _ in 1..tiles.len() {
                d.memory.keep_range(e.memHandle, e.offset, bytes, device)?;
            }
            Some(ArrayBacking { handle: e.memHandle, content })
        }
        _ => return Err(invalid),
    };
    Ok(MappingStep { storage, tiles, memory })
}

/// Checks all entries before it carries out any.
pub(crate) unsafe fn cuMemMapArrayAsync(
    d: &CallFrame,
    list: *mut CUarrayMapInfo,
    count: u32,
    stream: CUstream,
) -> CallResult {
    if list.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (c, id) = d.resolve_stream(stream)?;
    let driver = d.initialised_driver()?;
    let mut steps = Vec::new();
    for i in 0..count as usize {
        match check(driver, c.device, &unsafe { list.add(i).read() }) {
            Ok(step) => steps.push(step),
            Err(code) => {
                // Release the memory that earlier entries keep.
                for s in steps {
                    for _ in 0..s.tiles.len().max(1) {
                        MappingStep::drop_backing(s.memory, driver);
                    }
                }
                return Err(code);
            }
        }
    }
    let effect = move || steps.iter().for_each(|s| s.run(driver));
    driver.device_of_ordinal(c.device)?.engine.enqueue_work(id, 0, WorkKind::Other, Some(effect));
    Ok(())
}
