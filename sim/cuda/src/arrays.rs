//! The objects behind array handles, and where their bytes are: in slabs, in memory that is mapped later, or in
//! tiles.
//!
//! An array, its planes and the levels of a mipmapped array are views of one [`ArrayStorage`].
//! Not here: shapes (`surface`), calls (`calls/array.rs`, `calls/mipmap.rs`, `calls/sparse.rs`).

use crate::content::ProcessMemory;
use crate::context::CudaContext;
use crate::errors::CallResult;
use crate::surface::{ArrayShapeChecked, SurfaceBytes, TILE_BYTES};
use parking_lot::Mutex;
use shim_sys::cuda::{CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_SPARSE, CUresult};
use std::collections::HashMap;
use std::sync::Arc;

/// A part of a physical allocation that is mapped into an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayBacking {
    pub(crate) handle: u64,
    /// Content address of the part's first byte.
    pub(crate) content: u64,
}

/// A tile: level, layer, and its index in x, y, z. A tile of the mip tail has level [`TAIL_LEVEL`] and only an index in
/// x.
pub(crate) type TileAddress = (u32, u64, [u64; 3]);

/// Stands for the level in tiles of the mip tail.
pub(crate) const TAIL_LEVEL: u32 = u32::MAX;

/// Where the bytes of a storage are.
pub(crate) enum ArrayHome {
    /// In the device's slabs, at this address.
    Slab(u64),
    /// In memory imported from another API.
    Outside(ArrayBacking),
    /// In one piece of memory that is mapped later.
    Deferred(Mutex<Option<ArrayBacking>>),
    /// In tiles of [`TILE_BYTES`] bytes, each mapped or not.
    Tiles(Mutex<HashMap<TileAddress, ArrayBacking>>),
}

/// The memory of an array, or of all levels of a mipmapped array.
pub(crate) struct ArrayStorage {
    pub(crate) context: Arc<CudaContext>,
    /// Shape of the whole; of level 0 for a mipmapped array.
    pub(crate) shape: ArrayShapeChecked,
    pub(crate) levels: u32,
    /// One per level, or one per plane.
    surfaces: Vec<SurfaceBytes>,
    pub(crate) bytes: u64,
    pub(crate) home: ArrayHome,
    /// Arrays behind the handles of levels and planes, once requested; they end with the whole.
    pub(crate) views: Mutex<HashMap<u32, Arc<ArrayView>>>,
}

impl ArrayStorage {
    /// Allocates the memory of an array. A sparse array, or one that is mapped later, takes none here.
    pub(crate) fn new(
        memory: &ProcessMemory,
        context: Arc<CudaContext>,
        shape: ArrayShapeChecked,
        levels: u32,
    ) -> Result<Arc<ArrayStorage>, CUresult> {
        let (surfaces, bytes) = shape.surface_layout(levels).ok_or(CUresult::OUT_OF_MEMORY)?;
        let home = if shape.has_flag(CUDA_ARRAY3D_SPARSE) {
            ArrayHome::Tiles(Mutex::default())
        } else if shape.has_flag(CUDA_ARRAY3D_DEFERRED_MAPPING) {
            ArrayHome::Deferred(Mutex::default())
        } else {
            ArrayHome::Slab(memory.take_slab_range(context.device, bytes)?)
        };
        Ok(Arc::new(ArrayStorage { context, shape, levels, surfaces, bytes, home, views: Mutex::default() }))
    }

    /// An array in memory of another API, from `offset` on.
    pub(crate) fn over_external(
        memory: &ProcessMemory,
        context: Arc<CudaContext>,
        shape: ArrayShapeChecked,
        levels: u32,
        (handle, offset): (u64, u64),
    ) -> Result<Arc<ArrayStorage>, CUresult> {
        let (surfaces, bytes) = shape.surface_layout(levels).ok_or(CUresult::INVALID_VALUE)?;
        let content = memory.keep_external(handle, offset, bytes, context.device)?;
        let home = ArrayHome::Outside(ArrayBacking { handle, content });
        Ok(Arc::new(ArrayStorage { context, shape, levels, surfaces, bytes, home, views: Mutex::default() }))
    }

    /// Frees the memory. The caller has ended all handles.
    pub(crate) fn free(&self, memory: &ProcessMemory) {
        match &self.home {
            ArrayHome::Slab(at) => memory.give_slab_range(self.context.device, *at),
            ArrayHome::Outside(b) => memory.let_go(b.handle),
            ArrayHome::Deferred(one) => {
                if let Some(b) = one.lock().take() {
                    memory.let_go(b.handle);
                }
            }
            ArrayHome::Tiles(tiles) => {
                for (_, b) in tiles.lock().drain() {
                    memory.let_go(b.handle);
                }
            }
        }
    }

    /// Bytes of the mip tail of one layer: the levels from `first` on.
    pub(crate) fn tail_bytes(&self, first: u32) -> u64 {
        let levels = self.surfaces.get(first as usize..).unwrap_or(&[]);
        let each = |s: &SurfaceBytes| (s.row * s.rows * s.slices / self.shape.layer_count()).next_multiple_of(512);
        levels.iter().map(each).sum::<u64>().next_multiple_of(TILE_BYTES)
    }

    /// The host pieces of `len` bytes of a row of a surface, from byte `x` on.
    fn surface_row(
        &self,
        memory: &ProcessMemory,
        surface: usize,
        x: u64,
        y: u64,
        z: u64,
        len: u64,
    ) -> Vec<(*mut u8, u64)> {
        let Some(s) = self.surfaces.get(surface) else { return Vec::new() };
        let inside = (z * s.rows + y) * s.row + x;
        match &self.home {
            ArrayHome::Slab(at) => vec![(memory.content_of(at + s.offset + inside), len)],
            ArrayHome::Outside(b) => vec![(memory.content_of(b.content + s.offset + inside), len)],
            ArrayHome::Deferred(one) => {
                let place = one.lock().map(|b| memory.content_of(b.content + s.offset + inside));
                vec![(place.unwrap_or(std::ptr::null_mut()), len)]
            }
            ArrayHome::Tiles(tiles) => {
                let level = u32::try_from(surface).unwrap_or(0);
                let tiles = tiles.lock();
                let find = |(tile, at): (TileAddress, u64)| {
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

    /// The tile that includes byte `x` of a row, the byte's offset in it, and how many bytes of the row follow in
    /// that tile.
    fn tile_of(&self, level: u32, s: &SurfaceBytes, x: u64, y: u64, z: u64) -> (TileAddress, u64, u64) {
        let layered = self.shape.layer_count() > 1;
        let (layer, z) = if layered { (z, 0) } else { (0, z) };
        let first = self.shape.tail_level(self.levels);
        if level >= first {
            let before = self.surfaces.get(first as usize..level as usize).unwrap_or(&[]);
            let layers = self.shape.layer_count();
            let skip: u64 = before.iter().map(|b| (b.row * b.rows * b.slices / layers).next_multiple_of(512)).sum();
            let at = skip + (z * s.rows + y) * s.row + x;
            return ((TAIL_LEVEL, layer, [at / TILE_BYTES, 0, 0]), at % TILE_BYTES, TILE_BYTES - at % TILE_BYTES);
        }
        let [w, h, d] = self.tile_units();
        let row = w * s.unit;
        let at = ((z % d * h) + y % h) * row + x % row;
        ((level, layer, [x / row, y / h, z / d]), at, row - x % row)
    }

    /// Size of a tile in units: elements, or blocks of them.
    pub(crate) fn tile_units(&self) -> [u64; 3] {
        let [w, h, d] = self.shape.tile_extent().unwrap_or([1, 1, 1]);
        let blocks = self.shape.single_surface().is_some_and(|s| w * h * d * s.unit > TILE_BYTES);
        if blocks { [w / 4, h / 4, d] } else { [w, h, d] }
    }
}

/// The array behind an array handle.
pub(crate) struct ArrayView {
    pub(crate) storage: Arc<ArrayStorage>,
    pub(crate) shape: ArrayShapeChecked,
    /// Level or plane in the storage.
    pub(crate) index: u32,
    /// True if an array-creating call made the array and it must be destroyed; false for a level or plane.
    pub(crate) whole: bool,
}

impl ArrayView {
    /// Checks that a box of bytes, rows and slices is inside the array and consists of whole elements.
    pub(crate) fn check_box(&self, place: [u64; 3], extent: [u64; 3]) -> CallResult {
        let s = self.shape.single_surface().ok_or(CUresult::INVALID_VALUE)?;
        let most = [s.row, s.rows, s.slices];
        let inside = (0..3).all(|i| place[i].checked_add(extent[i]).is_some_and(|end| end <= most[i]));
        let even = place[0].is_multiple_of(s.unit) && extent[0].is_multiple_of(s.unit);
        if inside && even { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// The host pieces of `len` bytes of row `y` in slice `z`, from byte `x` on.
    pub(crate) fn array_row(&self, memory: &ProcessMemory, x: u64, y: u64, z: u64, len: u64) -> Vec<(*mut u8, u64)> {
        self.storage.surface_row(memory, self.index as usize, x, y, z, len)
    }
}

/// The object behind a mipmapped array's handle.
pub(crate) struct MipmappedArray {
    pub(crate) storage: Arc<ArrayStorage>,
}
