//! Mapping of physical memory into sparse arrays, and into arrays with deferred mapping, in stream order.
//!
//! A map keeps its physical allocation alive from the call on; an unmap releases it when the stream reaches it.
//! Usage flags of the physical allocation (a tile pool) are not checked.
//! Not here: the tables of tiles (`arrays`).

use crate::arrays::{Backing, Home, Storage, TAIL, Tile};
use crate::door::{Answer, Door};
use crate::driver::{Driver, hold};
use crate::surface::TILE;
use shim_sys::cuda::*;
use std::sync::Arc;
use vgpu_sim::engine::Kind;

/// One checked entry of a map request for a sparse array.
struct Step {
    storage: Arc<Storage>,
    /// The tiles in the order of their memory; empty: the whole of an array with deferred mapping.
    tiles: Vec<Tile>,
    /// Memory to map; `None` unmaps.
    memory: Option<Backing>,
}

impl Step {
    fn put(slot: Option<Backing>, d: &Driver) {
        if let Some(old) = slot {
            d.memory.let_go(d, old.handle);
        }
    }

    /// Maps or unmaps the tiles of this entry of a map request.
    fn run(&self, d: &Driver) {
        match &self.storage.home {
            Home::Deferred(one) => {
                let old = std::mem::replace(&mut *hold(one), self.memory);
                Step::put(old, d);
            }
            Home::Tiles(tiles) => {
                for (i, tile) in (0u64..).zip(&self.tiles) {
                    let part = self.memory.map(|b| Backing { content: b.content + i * TILE, ..b });
                    let old = match part {
                        Some(b) => hold(tiles).insert(*tile, b),
                        None => hold(tiles).remove(tile),
                    };
                    Step::put(old, d);
                }
            }
            Home::Slab(_) | Home::Outside(_) => {}
        }
    }
}

/// The 32-bit half with index `i`.
fn half(words: &[u64; 4], i: usize) -> u64 {
    words[i / 2] >> (32 * (i % 2)) & 0xFFFF_FFFF
}

/// The tiles of an entry.
fn tiles(s: &Storage, e: &CUarrayMapInfo) -> Option<Vec<Tile>> {
    let layers = s.shape.layers();
    let first = s.shape.tail_level(s.levels);
    if e.subresourceType == 1 {
        // Layout of the words: layer, padding, offset, size.
        let (layer, offset, size) = (half(&e.subresource, 0), e.subresource[1], e.subresource[2]);
        let whole = s.tail_bytes(first);
        let fits = offset.checked_add(size).is_some_and(|end| end <= whole);
        if layer >= layers || size == 0 || !offset.is_multiple_of(TILE) || !size.is_multiple_of(TILE) || !fits {
            return None;
        }
        return Some((offset / TILE..(offset + size) / TILE).map(|i| (TAIL, layer, [i, 0, 0])).collect());
    }
    if e.subresourceType != 0 {
        return None;
    }
    let [level, layer, x, y, z, w, h, d] = std::array::from_fn(|i| half(&e.subresource, i));
    let level = u32::try_from(level).ok().filter(|l| *l < first && *l < s.levels)?;
    let shape = s.shape.at_level(level).desc;
    let depth = if layers > 1 { 1 } else { shape.Depth.max(1) as u64 };
    let tile = s.shape.tile()?;
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
fn check(d: &Driver, device: i32, e: &CUarrayMapInfo) -> Result<Step, CUresult> {
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
        Home::Slab(_) | Home::Outside(_) => return Err(invalid),
        Home::Deferred(_) => (Vec::new(), storage.bytes.next_multiple_of(TILE)),
        Home::Tiles(_) => {
            let tiles = tiles(&storage, e).ok_or(invalid)?;
            let bytes = tiles.len() as u64 * TILE;
            (tiles, bytes)
        }
    };
    let memory = match e.memOperationType {
        CU_MEM_OPERATION_TYPE_UNMAP if e.memHandle == 0 => None,
        CU_MEM_OPERATION_TYPE_MAP if e.memHandleType == 0 && e.offset.is_multiple_of(TILE) => {
            let content = d.memory.keep(e.memHandle, e.offset, bytes, device)?;
            // Every tile keeps the allocation alive separately.
            for _ in 1..tiles.len() {
                d.memory.keep(e.memHandle, e.offset, bytes, device)?;
            }
            Some(Backing { handle: e.memHandle, content })
        }
        _ => return Err(invalid),
    };
    Ok(Step { storage, tiles, memory })
}

/// Checks all entries before it carries out any.
pub(crate) unsafe fn cuMemMapArrayAsync(d: &Door, list: *mut CUarrayMapInfo, count: u32, stream: CUstream) -> Answer {
    if list.is_null() || count == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let (c, id) = d.stream(stream)?;
    let driver = d.driver()?;
    let mut steps = Vec::new();
    for i in 0..count as usize {
        match check(driver, c.device, &unsafe { list.add(i).read() }) {
            Ok(step) => steps.push(step),
            Err(code) => {
                // Release the memory that earlier entries keep.
                for s in steps {
                    for _ in 0..s.tiles.len().max(1) {
                        Step::put(s.memory, driver);
                    }
                }
                return Err(code);
            }
        }
    }
    let effect = move || steps.iter().for_each(|s| s.run(driver));
    driver.device(c.device)?.engine.work(id, 0, Kind::Other, Some(effect));
    Ok(())
}
