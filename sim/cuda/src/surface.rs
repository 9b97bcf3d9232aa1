//! Shapes of arrays and the layout of their bytes: formats, planes, levels, tiles. Arithmetic only.
//!
//! Rows follow each other without padding; each level or plane starts at a multiple of 512 bytes. A real device
//! pads more, but no request covers that padding. Formats of newer drivers (video in 16 bits, 4:2:2, 4:4:4) are
//! accepted for every simulated version. A row of a block-compressed array is a row of blocks, for copies too.
//! Not here: memory (`content`), handles and error codes of the calls (`calls/array.rs`, `calls/mipmap.rs`).

use shim_sys::cuda::{CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_SPARSE, CUresult};

/// Bytes of a tile of a sparse array; also the alignment of memory mapped into arrays.
pub(crate) const TILE_BYTES: u64 = 64 << 10;
/// Alignment of levels and planes, bytes.
const SURFACE_ALIGN_BYTES: u64 = 512;

const LAYERED_FLAG: u32 = 0x01;
const SURFACE_LDST: u32 = 0x02;
const CUBEMAP_FLAG: u32 = 0x04;
const TEXTURE_GATHER: u32 = 0x08;
const ALL_FLAGS: u32 = 0x1FF;

/// A plane of a multi-planar format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormatPlane {
    /// Bytes of one channel in this plane.
    pub(crate) bytes: u32,
    pub(crate) channels: u32,
    /// Number of times the columns are halved.
    half_x: u32,
    /// Number of times the rows are halved.
    half_y: u32,
}

/// Size of an array element, by the kind of format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementSize {
    /// Bytes per channel; 1, 2 or 4 channels.
    Channel(u64),
    /// Bytes of the element, and the exact number of channels.
    Whole(u64, u32),
    /// Bytes of a block of four by four elements, and the exact number of channels.
    Block(u64, u32),
    /// A multi-planar format: its planes, three channels in all.
    Planes(&'static [FormatPlane]),
}

const fn format_plane(bytes: u32, channels: u32, half_x: u32, half_y: u32) -> FormatPlane {
    FormatPlane { bytes, channels, half_x, half_y }
}

/// The element of a `CUarray_format`.
fn element_of_format(format: u32) -> Option<ElementSize> {
    use ElementSize::{Block, Channel, Planes, Whole};
    const P420: [&[FormatPlane]; 2] =
        [&[format_plane(1, 1, 0, 0), format_plane(1, 2, 1, 1)], &[format_plane(2, 1, 0, 0), format_plane(2, 2, 1, 1)]];
    const P422: [&[FormatPlane]; 2] =
        [&[format_plane(1, 1, 0, 0), format_plane(1, 2, 1, 0)], &[format_plane(2, 1, 0, 0), format_plane(2, 2, 1, 0)]];
    const P444: [&[FormatPlane]; 2] = [
        &[format_plane(1, 1, 0, 0), format_plane(1, 1, 0, 0), format_plane(1, 1, 0, 0)],
        &[format_plane(2, 1, 0, 0), format_plane(2, 1, 0, 0), format_plane(2, 1, 0, 0)],
    ];
    const SEMI444: [&[FormatPlane]; 2] =
        [&[format_plane(1, 1, 0, 0), format_plane(1, 2, 0, 0)], &[format_plane(2, 1, 0, 0), format_plane(2, 2, 0, 0)]];
    Some(match format {
        0x01 | 0x08 => Channel(1),
        0x02 | 0x09 | 0x10 => Channel(2),
        0x03 | 0x0A | 0x20 => Channel(4),
        0x50 => Whole(4, 4),
        0x91 | 0x92 => Block(8, 4),
        0x93..=0x96 => Block(16, 4),
        0x97 | 0x98 => Block(8, 1),
        0x99 | 0x9A => Block(16, 2),
        0x9B | 0x9C => Block(16, 3),
        0x9D | 0x9E => Block(16, 4),
        0x9F | 0xA1 => Planes(P420[1]),
        0xA2 => Planes(P422[0]),
        0xA3 | 0xA4 => Planes(P422[1]),
        0xA5 => Whole(2, 2),
        0xA6 | 0xA7 => Whole(4, 2),
        0xA8 | 0xA9 => Whole(4, 4),
        0xB0 => Planes(P420[0]),
        0xB1 => Whole(8, 4),
        0xB2 => Planes(P444[0]),
        0xB3 => Planes(P444[1]),
        0xB4 => Planes(SEMI444[0]),
        0xB5 => Planes(SEMI444[1]),
        0xC0 | 0xC6 => Whole(1, 1),
        0xC1 | 0xC7 => Whole(2, 2),
        0xC2 | 0xC8 => Whole(4, 4),
        0xC3 | 0xC9 => Whole(2, 1),
        0xC4 | 0xCA => Whole(4, 2),
        0xC5 | 0xCB => Whole(8, 4),
        _ => return None,
    })
}

/// Layout of one level or plane: `rows` rows of `row` bytes in each of `slices` slices, from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SurfaceBytes {
    pub(crate) offset: u64,
    pub(crate) row: u64,
    pub(crate) rows: u64,
    pub(crate) slices: u64,
    /// Smallest copy unit, bytes: an element, or a block of them.
    pub(crate) unit: u64,
}

impl SurfaceBytes {
    fn surface_bytes(&self) -> Option<u64> {
        self.row.checked_mul(self.rows)?.checked_mul(self.slices)
    }
}

/// A checked array descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayShapeChecked {
    pub(crate) desc: CUDA_ARRAY3D_DESCRIPTOR,
    element: ElementSize,
}

impl ArrayShapeChecked {
    /// Checks a descriptor as `cuArray3DCreate` does; `attribute` returns device attributes by number.
    pub(crate) fn new(
        desc: CUDA_ARRAY3D_DESCRIPTOR,
        mip: bool,
        attribute: impl Fn(u32) -> u64,
    ) -> Result<ArrayShapeChecked, CUresult> {
        let invalid = Err(CUresult::INVALID_VALUE);
        let Some(element) = element_of_format(desc.Format) else { return invalid };
        let channels = match element {
            ElementSize::Channel(_) => [1, 2, 4].contains(&desc.NumChannels),
            ElementSize::Whole(_, n) | ElementSize::Block(_, n) => desc.NumChannels == n,
            ElementSize::Planes(_) => desc.NumChannels == 3,
        };
        let has = |flag: u32| desc.Flags & flag != 0;
        let (w, h, d) = (desc.Width as u64, desc.Height as u64, desc.Depth as u64);
        if !channels || desc.Flags & !ALL_FLAGS != 0 || w == 0 {
            return invalid;
        }
        let form = match (h, d) {
            (_, 0) if has(LAYERED_FLAG) || has(CUBEMAP_FLAG) => false,
            (0, 0) => true,
            (_, 0) => true,
            (0, _) => has(LAYERED_FLAG) && !has(CUBEMAP_FLAG),
            (_, n) if has(CUBEMAP_FLAG) => w == h && if has(LAYERED_FLAG) { n % 6 == 0 } else { n == 6 },
            _ => true,
        };
        let flat = h > 0 && d == 0;
        let mapped = desc.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
        let planes = matches!(element, ElementSize::Planes(_));
        if !form
            || (has(TEXTURE_GATHER) && !flat)
            || (planes && (!flat || mip || has(TEXTURE_GATHER) || has(CUDA_ARRAY3D_SPARSE)))
            || mapped == CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING
            || (mapped != 0 && h == 0)
        {
            return invalid;
        }
        // Numbers of the device attributes that limit width, height and depth of a texture, and of a texture that is a
        // surface.
        let (texture, surface): (&[u32], &[u32]) = match (h, d) {
            _ if has(CUBEMAP_FLAG) && has(LAYERED_FLAG) => (&[53, 53, 54], &[67, 67, 68]),
            _ if has(CUBEMAP_FLAG) => (&[52, 52], &[66, 66]),
            (0, _) if has(LAYERED_FLAG) => (&[42, 0, 43], &[61, 0, 62]),
            _ if has(LAYERED_FLAG) => (&[27, 28, 29], &[63, 64, 65]),
            (0, _) => (if mip { &[77] } else { &[21] }, &[55]),
            (_, 0) if has(TEXTURE_GATHER) => (&[45, 46], &[56, 57]),
            (_, 0) => (if mip { &[73, 74] } else { &[22, 23] }, &[56, 57]),
            _ => (&[24, 25, 26], &[58, 59, 60]),
        };
        let within =
            |bounds: &[u32]| [w, h, d].iter().zip(bounds).all(|(n, a)| *n <= if *a == 0 { 0 } else { attribute(*a) });
        let other = h > 0 && d > 0 && desc.Flags & (LAYERED_FLAG | CUBEMAP_FLAG) == 0 && within(&[47, 48, 49]);
        if !(within(texture) || other) || (has(SURFACE_LDST) && !within(surface)) {
            return invalid;
        }
        Ok(ArrayShapeChecked { desc, element })
    }

    pub(crate) fn has_flag(&self, flag: u32) -> bool {
        self.desc.Flags & flag != 0
    }

    /// The planes of a multi-planar format.
    pub(crate) fn format_planes(&self) -> Option<&'static [FormatPlane]> {
        if let ElementSize::Planes(p) = self.element { Some(p) } else { None }
    }

    fn is_layered(&self) -> bool {
        self.has_flag(LAYERED_FLAG | CUBEMAP_FLAG)
    }

    /// Layers or faces that are mapped separately; 1 for an array without any.
    pub(crate) fn layer_count(&self) -> u64 {
        if self.is_layered() { self.desc.Depth as u64 } else { 1 }
    }

    /// Number of levels of a mipmapped array of this shape when the program asks for `asked`.
    pub(crate) fn level_count(&self, asked: u32) -> u32 {
        let depth = if self.is_layered() { 1 } else { self.desc.Depth };
        let largest = self.desc.Width.max(self.desc.Height).max(depth).max(1);
        asked.clamp(1, usize::BITS - largest.leading_zeros())
    }

    /// The shape of level `level`: every dimension but the layers is halved `level` times.
    pub(crate) fn at_level(&self, level: u32) -> ArrayShapeChecked {
        let half = |n: usize| if n == 0 { 0 } else { (n >> level).max(1) };
        let mut shape = *self;
        shape.desc.Width = half(self.desc.Width);
        shape.desc.Height = half(self.desc.Height);
        if !self.is_layered() {
            shape.desc.Depth = half(self.desc.Depth);
        }
        shape
    }

    /// The shape of plane `index`, an array with its own format.
    pub(crate) fn at_plane(&self, index: u32) -> Option<ArrayShapeChecked> {
        let p = self.format_planes()?.get(index as usize)?;
        let mut shape = *self;
        shape.desc.Width = self.desc.Width.div_ceil(1 << p.half_x);
        shape.desc.Height = self.desc.Height.div_ceil(1 << p.half_y);
        shape.desc.Format = p.bytes; // 1 and 2: unsigned integers of 8 and 16 bits
        shape.desc.NumChannels = p.channels;
        shape.element = ElementSize::Channel(u64::from(p.bytes));
        Some(shape)
    }

    /// The layout of an array of this shape; `None` for a multi-planar one.
    pub(crate) fn single_surface(&self) -> Option<SurfaceBytes> {
        let (w, h) = (self.desc.Width as u64, self.desc.Height.max(1) as u64);
        let slices = self.desc.Depth.max(1) as u64;
        let (unit, columns, rows) = match self.element {
            ElementSize::Channel(bytes) => (bytes * u64::from(self.desc.NumChannels), w, h),
            ElementSize::Whole(bytes, _) => (bytes, w, h),
            ElementSize::Block(bytes, _) => (bytes, w.div_ceil(4), h.div_ceil(4)),
            ElementSize::Planes(_) => return None,
        };
        Some(SurfaceBytes { offset: 0, row: unit * columns, rows, slices, unit })
    }

    /// Layout of all levels, or of all planes, and their total bytes.
    pub(crate) fn surface_layout(&self, levels: u32) -> Option<(Vec<SurfaceBytes>, u64)> {
        let parts: Vec<ArrayShapeChecked> = match self.format_planes() {
            Some(p) => (0..u32::try_from(p.len()).ok()?).filter_map(|i| self.at_plane(i)).collect(),
            None => (0..levels).map(|l| self.at_level(l)).collect(),
        };
        let (mut surfaces, mut end) = (Vec::new(), 0u64);
        for part in parts {
            let surface =
                SurfaceBytes { offset: end.checked_next_multiple_of(SURFACE_ALIGN_BYTES)?, ..part.single_surface()? };
            end = surface.offset.checked_add(surface.surface_bytes()?)?;
            surfaces.push(surface);
        }
        Some((surfaces, end))
    }

    /// Size of the tiles of a sparse array of this shape, in elements; a tile always has [`TILE_BYTES`] bytes.
    pub(crate) fn tile_extent(&self) -> Option<[u64; 3]> {
        let unit = self.single_surface()?.unit;
        let solid = self.desc.Depth > 0 && !self.is_layered();
        let step = unit.next_power_of_two().trailing_zeros().min(4) as usize;
        let [w, h, d] = if solid {
            [[64, 32, 32], [32, 32, 32], [32, 32, 16], [32, 16, 16], [16, 16, 16]][step]
        } else {
            [[256, 256, 1], [256, 128, 1], [128, 128, 1], [128, 64, 1], [64, 64, 1]][step]
        };
        let block = if matches!(self.element, ElementSize::Block(..)) { 4 } else { 1 };
        Some([w * block, h * block, d])
    }

    /// The first level that is smaller than a tile in some dimension; `levels` if there is none.
    pub(crate) fn tail_level(&self, levels: u32) -> u32 {
        let Some([w, h, d]) = self.tile_extent() else { return 0 };
        (0..levels)
            .find(|l| {
                let s = self.at_level(*l).desc;
                let depth = if self.is_layered() { 1 } else { s.Depth.max(1) as u64 };
                (s.Width as u64) < w || (s.Height as u64) < h || depth < d
            })
            .unwrap_or(levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(
        w: usize,
        h: usize,
        d: usize,
        format: u32,
        channels: u32,
        flags: u32,
    ) -> Result<ArrayShapeChecked, CUresult> {
        let desc = CUDA_ARRAY3D_DESCRIPTOR {
            Width: w,
            Height: h,
            Depth: d,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        };
        ArrayShapeChecked::new(desc, false, |_| 16_384)
    }

    fn bytes(w: usize, h: usize, format: u32, channels: u32) -> u64 {
        shape(w, h, 0, format, channels, 0).unwrap().surface_layout(1).unwrap().1
    }

    #[test]
    fn every_format_takes_its_true_bytes() {
        let texels = 1024 * 1024;
        // Bits per element, by format.
        for (format, channels, bits) in [
            (0x01, 1, 8),
            (0x09, 2, 32),
            (0x20, 4, 128),
            (0x10, 4, 64),
            (0x50, 4, 32),
            (0x91, 4, 4),
            (0x94, 4, 8),
            (0x98, 1, 4),
            (0x9A, 2, 8),
            (0x9B, 3, 8),
            (0x9E, 4, 8),
            (0x9F, 3, 24),
            (0xA1, 3, 24),
            (0xA2, 3, 16),
            (0xA3, 3, 32),
            (0xA4, 3, 32),
            (0xA5, 2, 16),
            (0xA6, 2, 32),
            (0xA7, 2, 32),
            (0xA8, 4, 32),
            (0xA9, 4, 32),
            (0xB0, 3, 12),
            (0xB1, 4, 64),
            (0xB2, 3, 24),
            (0xB3, 3, 48),
            (0xB4, 3, 24),
            (0xB5, 3, 48),
            (0xC0, 1, 8),
            (0xC2, 4, 32),
            (0xC4, 2, 32),
            (0xC9, 1, 16),
            (0xCB, 4, 64),
        ] {
            assert_eq!(bytes(1024, 1024, format, channels) * 8, texels * bits, "{format:#x}");
        }
    }

    #[test]
    fn a_tile_is_always_64_kib() {
        for (format, channels) in [(0x01, 1), (0x02, 1), (0x20, 1), (0x20, 2), (0x20, 4), (0x91, 4), (0x9E, 4)] {
            for depth in [0, 64] {
                let s = shape(2048, 2048, depth, format, channels, CUDA_ARRAY3D_SPARSE).unwrap();
                let [w, h, d] = s.tile_extent().unwrap();
                let block = if format > 0x90 { 16 } else { 1 };
                assert_eq!(w * h * d / block * s.single_surface().unwrap().unit, TILE_BYTES, "{format:#x} {depth}");
            }
        }
    }

    #[test]
    fn what_is_no_array_is_refused() {
        for (w, h, d, format, channels, flags) in [
            (0, 1, 0, 1, 1, 0),
            (1, 1, 0, 1, 3, 0),
            (1, 1, 0, 1, 0, 0),
            (1, 1, 0, 0, 1, 0),
            (1, 1, 0, 0xB0, 1, 0),
            (1, 0, 1, 1, 1, 0),
            (1, 1, 0, 1, 1, LAYERED_FLAG),
            (8, 8, 5, 1, 1, CUBEMAP_FLAG),
            (8, 4, 6, 1, 1, CUBEMAP_FLAG),
            (8, 8, 7, 1, 1, CUBEMAP_FLAG | LAYERED_FLAG),
            (8, 8, 8, 1, 1, TEXTURE_GATHER),
            (8, 8, 0, 1, 1, 0x4000),
            (8, 8, 0, 1, 1, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING),
            (8, 0, 0, 1, 1, CUDA_ARRAY3D_SPARSE),
            (20_000, 1, 0, 1, 1, 0),
        ] {
            assert!(shape(w, h, d, format, channels, flags).is_err(), "{w} {h} {d} {format:#x} {channels} {flags}");
        }
        assert!(shape(8, 8, 6, 1, 1, CUBEMAP_FLAG).is_ok() && shape(8, 0, 6, 1, 1, LAYERED_FLAG).is_ok());
    }

    #[test]
    fn levels_halve_everything_but_layers() {
        let s = shape(100, 50, 6, 0x20, 1, LAYERED_FLAG).unwrap();
        assert_eq!(s.level_count(99), 7);
        let d = s.at_level(3).desc;
        assert_eq!((d.Width, d.Height, d.Depth), (12, 6, 6));
        let s = shape(100, 50, 200, 0x20, 1, 0).unwrap();
        assert_eq!((s.level_count(99), s.at_level(3).desc.Depth), (8, 25));
    }
}
