//! The objects behind array handles, and where their bytes are: in slabs, in memory that is mapped later, in tiles.
//!
//! An array, its planes and the levels of a mipmapped array are views of one [`Storage`]. Not here: shapes (`surface`),
//! calls (`calls/array.rs`, `calls/mipmap.rs`, `calls/sparse.rs`).

use crate::content::Memory;
use crate::context::Context;
use crate::door::Answer;
use crate::driver::{Driver, hold};
use crate::surface::{Shape, Surface, TILE};
use parking_lot::Mutex;
use shim_sys::cuda::{CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_SPARSE, CUresult};
use std::collections::HashMap;
use std::sync::Arc;

/// A part of a physical allocation that is mapped into an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backing {
    pub(crate) handle: u64,
    /// Place of its first byte.
    pub(crate) content: u64,
}

/// A tile: level, layer, and its number in x, y, z. The tail's have no level, and their number in x.
pub(crate) type Tile = (u32, u64, [u64; 3]);

/// The level of the tail's tiles.
pub(crate) const TAIL: u32 = u32::MAX;

/// How the bytes are held.
pub(crate) enum Home {
    /// In the device's slabs, at this place.
    Slab(u64),
    /// In memory of another API.
    Outside(Backing),
    /// All of them in one piece of memory that is mapped later.
    Deferred(Mutex<Option<Backing>>),
    /// In tiles of [`TILE`] bytes, each mapped or not.
    Tiles(Mutex<HashMap<Tile, Backing>>),
}

/// The memory of an array or of all levels of a mipmapped one.
pub(crate) struct Storage {
    pub(crate) context: Arc<Context>,
    /// Of the whole; level 0 of a mipmapped array.
    pub(crate) shape: Shape,
    pub(crate) levels: u32,
    /// Of each level, or of each plane.
    surfaces: Vec<Surface>,
    pub(crate) bytes: u64,
    pub(crate) home: Home,
    /// What the handles of levels and planes stand for, once asked for; they end with the whole.
    pub(crate) views: Mutex<HashMap<u32, Arc<Array>>>,
}

impl Storage {
    /// Takes the memory of an array; sparse ones and ones that are mapped later take none.
    pub(crate) fn new(d: &Driver, context: Arc<Context>, shape: Shape, levels: u32) -> Result<Arc<Storage>, CUresult> {
        let (surfaces, bytes) = shape.layout(levels).ok_or(CUresult::OUT_OF_MEMORY)?;
        let home = if shape.flag(CUDA_ARRAY3D_SPARSE) {
            Home::Tiles(Mutex::default())
        } else if shape.flag(CUDA_ARRAY3D_DEFERRED_MAPPING) {
            Home::Deferred(Mutex::default())
        } else {
            Home::Slab(d.memory.take(d, context.device, bytes)?)
        };
        Ok(Arc::new(Storage { context, shape, levels, surfaces, bytes, home, views: Mutex::default() }))
    }

    /// An array that shows memory of another API from `offset` on.
    pub(crate) fn outside(
        d: &Driver,
        context: Arc<Context>,
        shape: Shape,
        levels: u32,
        (handle, offset): (u64, u64),
    ) -> Result<Arc<Storage>, CUresult> {
        let (surfaces, bytes) = shape.layout(levels).ok_or(CUresult::INVALID_VALUE)?;
        let content = d.memory.keep_external(handle, offset, bytes, context.device)?;
        let home = Home::Outside(Backing { handle, content });
        Ok(Arc::new(Storage { context, shape, levels, surfaces, bytes, home, views: Mutex::default() }))
    }

    /// Gives the memory back. The caller has ended all handles.
    pub(crate) fn free(&self, d: &Driver) {
        match &self.home {
            Home::Slab(at) => d.memory.give(d, self.context.device, *at),
            Home::Outside(b) => d.memory.let_go(d, b.handle),
            Home::Deferred(one) => {
                if let Some(b) = hold(one).take() {
                    d.memory.let_go(d, b.handle);
                }
            }
            Home::Tiles(tiles) => {
                for (_, b) in hold(tiles).drain() {
                    d.memory.let_go(d, b.handle);
                }
            }
        }
    }

    /// Bytes of the tail of one layer: the levels from `first` on.
    pub(crate) fn tail_bytes(&self, first: u32) -> u64 {
        let levels = self.surfaces.get(first as usize..).unwrap_or(&[]);
        let each = |s: &Surface| (s.row * s.rows * s.slices / self.shape.layers()).next_multiple_of(512);
        levels.iter().map(each).sum::<u64>().next_multiple_of(TILE)
    }

    /// The pieces of `len` bytes of a row of a surface, from byte `x` on.
    fn row(&self, memory: &Memory, surface: usize, x: u64, y: u64, z: u64, len: u64) -> Vec<(*mut u8, u64)> {
        let Some(s) = self.surfaces.get(surface) else { return Vec::new() };
        let inside = (z * s.rows + y) * s.row + x;
        match &self.home {
            Home::Slab(at) => vec![(memory.content_of(at + s.offset + inside), len)],
            Home::Outside(b) => vec![(memory.content_of(b.content + s.offset + inside), len)],
            Home::Deferred(one) => {
                let place = hold(one).map(|b| memory.content_of(b.content + s.offset + inside));
                vec![(place.unwrap_or(std::ptr::null_mut()), len)]
            }
            Home::Tiles(tiles) => {
                let level = u32::try_from(surface).unwrap_or(0);
                let tiles = hold(tiles);
                let find = |(tile, at): (Tile, u64)| {
                    tiles.get(&tile).map_or(std::ptr::null_mut(), |b| memory.content_of(b.content + at))
                };
                let (mut pieces, mut x, end) = (Vec::new(), x, x + len);
                while x < end {
                    let (tile, at, left) = self.tile_of(level, s, x, y, z);
                    let part = left.min(end - x);
                    pieces.push((find((tile, at)), part));
                    x += part;
                }
                pieces
            }
        }
    }

    /// The tile that holds byte `x` of a row, the byte's place in it, and how many bytes of the row follow there.
    fn tile_of(&self, level: u32, s: &Surface, x: u64, y: u64, z: u64) -> (Tile, u64, u64) {
        let layered = self.shape.layers() > 1;
        let (layer, z) = if layered { (z, 0) } else { (0, z) };
        let first = self.shape.tail_level(self.levels);
        if level >= first {
            let before = self.surfaces.get(first as usize..level as usize).unwrap_or(&[]);
            let layers = self.shape.layers();
            let skip: u64 = before.iter().map(|b| (b.row * b.rows * b.slices / layers).next_multiple_of(512)).sum();
            let at = skip + (z * s.rows + y) * s.row + x;
            return ((TAIL, layer, [at / TILE, 0, 0]), at % TILE, TILE - at % TILE);
        }
        let [w, h, d] = self.tile_units();
        let row = w * s.unit;
        let at = ((z % d * h) + y % h) * row + x % row;
        ((level, layer, [x / row, y / h, z / d]), at, row - x % row)
    }

    /// A tile in units: elements, or blocks of them.
    pub(crate) fn tile_units(&self) -> [u64; 3] {
        let [w, h, d] = self.shape.tile().unwrap_or([1, 1, 1]);
        let blocks = self.shape.surface().is_some_and(|s| w * h * d * s.unit > TILE);
        if blocks { [w / 4, h / 4, d] } else { [w, h, d] }
    }
}

/// What an array handle stands for.
pub(crate) struct Array {
    pub(crate) storage: Arc<Storage>,
    pub(crate) shape: Shape,
    /// Level or plane in the storage.
    pub(crate) index: u32,
    /// Made by a call that makes arrays, and to be destroyed: not a level, not a plane.
    pub(crate) whole: bool,
}

impl Array {
    /// Whether a box of bytes, rows and slices lies inside, in whole elements.
    pub(crate) fn holds(&self, place: [u64; 3], extent: [u64; 3]) -> Answer {
        let s = self.shape.surface().ok_or(CUresult::INVALID_VALUE)?;
        let most = [s.row, s.rows, s.slices];
        let inside = (0..3).all(|i| place[i].checked_add(extent[i]).is_some_and(|end| end <= most[i]));
        let even = place[0].is_multiple_of(s.unit) && extent[0].is_multiple_of(s.unit);
        if inside && even { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// The pieces of `len` bytes of row `y` in slice `z`, from byte `x` on.
    pub(crate) fn row(&self, memory: &Memory, x: u64, y: u64, z: u64, len: u64) -> Vec<(*mut u8, u64)> {
        self.storage.row(memory, self.index as usize, x, y, z, len)
    }
}

/// What a mipmapped array's handle stands for.
pub(crate) struct Mipmap {
    pub(crate) storage: Arc<Storage>,
}

/// Ends all arrays of a context; its work is done.
pub(crate) fn end_all(d: &Driver, mine: impl Fn(&Arc<Context>) -> bool) {
    for a in d.arrays.remove_where(|a| mine(&a.storage.context)) {
        // The circle of references between a storage and its views.
        hold(&a.storage.views).clear();
        if a.whole {
            a.storage.free(d);
        }
    }
    for m in d.mipmaps.remove_where(|m| mine(&m.storage.context)) {
        hold(&m.storage.views).clear();
        m.storage.free(d);
    }
}
