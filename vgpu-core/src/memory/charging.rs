//! The charging rule: the bytes that an allocation is charged, one function per kind of allocation.
//!
//! All charges use these functions, so that the rule is in one file and can be checked against the device. A charge
//! is the memory that the device takes for the request: the driver serves plain memory in slabs of 2 MiB and frees a
//! slab only as a whole. Memory that the driver takes beyond that (contexts, modules) is *overhead*, and not charged
//! here. `None` always means that the size does not fit into 64 bits. No device can hold it, so the caller refuses
//! the request without calling the driver.
//!
//! Next: [`crate::memory::ledger`] stores the charges.

/// Rounding unit in bytes for plain requests below half a slab, for stream-ordered allocations and for graph memory.
pub const CHARGE_GRANULARITY: u64 = 512;

/// Bytes of a slab. The driver takes device memory for plain requests in slabs, aligned to their size.
///
/// `gpu-probe` measures it on a device (`slab_bytes`), and the daemon compares it with the driver's own figure.
pub const SLAB_BYTES: u64 = 2 << 20;

/// True if a plain request may share a slab with others. It is then charged by its address: the first
/// allocation in a slab is charged a whole slab, and the last one freed there ends that charge.
#[inline]
#[must_use]
pub const fn may_share_a_slab(bytes: u64) -> bool {
    bytes < SLAB_BYTES
}

/// Plain memory without an address (arrays, memory of other APIs), and plain memory of one slab or more. Requests of
/// at least half a slab are rounded up to whole slabs, since two of them do not share one; smaller ones to
/// [`CHARGE_GRANULARITY`].
///
/// # Cost
/// Five instructions.
#[inline]
#[must_use]
pub const fn charge_plain(bytes: u64) -> Option<u64> {
    round_up(bytes, if bytes < SLAB_BYTES / 2 { CHARGE_GRANULARITY } else { SLAB_BYTES })
}

/// Stream-ordered allocations and graph memory, rounded up to [`CHARGE_GRANULARITY`]; the charge is that of their
/// pools.
///
/// # Cost
/// Three instructions.
#[inline]
#[must_use]
pub const fn charge_linear(bytes: u64) -> Option<u64> {
    round_up(bytes, CHARGE_GRANULARITY)
}

/// `cuMemAllocPitch`: the pitch the driver returned, times the rows, rounded like [`charge_plain`].
///
/// Before the driver has returned the pitch, [`expected_pitch`] replaces it.
#[must_use]
pub const fn charge_pitched(pitch: u64, rows: u64) -> Option<u64> {
    match pitch.checked_mul(rows) {
        Some(bytes) => charge_plain(bytes),
        None => None,
    }
}

/// The pitch to expect for rows of `width` bytes. The reservation is corrected once the driver returns the real one.
#[must_use]
pub const fn expected_pitch(width: u64) -> Option<u64> {
    round_up(width, CHARGE_GRANULARITY)
}

/// `cuMemCreate`: rounded up to the granularity of its location. A granularity of 0 counts as [`CHARGE_GRANULARITY`].
#[must_use]
pub const fn charge_physical(bytes: u64, granularity: u64) -> Option<u64> {
    round_up(bytes, if granularity == 0 { CHARGE_GRANULARITY } else { granularity })
}

/// Size of one element of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texel {
    /// This number of *bits* in each channel of the array.
    PerChannel {
        /// Bits of a channel: 8, 16 or 32.
        bits: u32,
    },
    /// This number of *bits* in total, whatever the number of channels.
    Whole {
        /// For example 32 for components of 10, 10, 10 and 2 bits.
        bits: u32,
    },
    /// Video: a plane of brightness, and two colour values (in one plane or two) per group of elements.
    Video {
        /// *Bytes* of a value; values of ten and twelve bits take two.
        bytes: u32,
        /// Horizontally adjacent elements that share their colour: 1 or 2.
        across: u32,
        /// Vertically adjacent elements that share their colour: 1 or 2.
        down: u32,
    },
    /// This number of *bytes* per block of four by four elements, whatever the number of channels.
    Block {
        /// Bytes of a block: 8 or 16.
        bytes: u32,
    },
}

impl Texel {
    /// The largest element of any format: four channels of 32 bits.
    pub const WIDEST: Self = Self::Whole { bits: 128 };

    /// The element of a `CUarray_format`; `None` for an unknown format.
    ///
    /// An unknown format must not be charged as nothing: the caller then charges the widest element
    /// ([`Texel::WIDEST`]).
    ///
    /// Source: CUDA driver API, `CUarray_format` up to 13.4: the numbers, and the widths and sampling described
    /// there. For ten and twelve bits: the memory layouts of the formats of the same names (P010, Y210, Y410, Y416,
    /// ...).
    #[must_use]
    pub const fn of_format(format: u32) -> Option<Self> {
        Some(match format {
            // 8-bit integers. Normalised formats carry their number of channels in the name and in the descriptor.
            0x01 | 0x08 | 0xc0..=0xc2 | 0xc6..=0xc8 => Self::PerChannel { bits: 8 },
            // 16-bit integers, halves, 16-bit normalised formats.
            0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => Self::PerChannel { bits: 16 },
            // 32-bit integers, floats.
            0x03 | 0x0a | 0x20 => Self::PerChannel { bits: 32 },
            // BC1 and BC4.
            0x91 | 0x92 | 0x97 | 0x98 => Self::Block { bytes: 8 },
            // BC2, BC3, BC5, BC6H, BC7.
            0x93..=0x96 | 0x99..=0x9e => Self::Block { bytes: 16 },
            // UNORM_INT_101010_2; Y410; AYUV and UINT8_PACKED_444, which have four values of 8 bits.
            0x50 | 0x52 | 0xa8 | 0xa9 => Self::Whole { bits: 32 },
            // UINT8_PACKED_422: four channels in one element. If an element is one pixel instead, this charges twice
            // the size.
            0x51 => Self::Whole { bits: 32 },
            // YUY2: 8 bits of brightness and 8 of one colour. Y210 and Y216: 16 bits of each.
            0xa5 => Self::Whole { bits: 16 },
            0xa6 | 0xa7 => Self::Whole { bits: 32 },
            // Y416: four values of 16 bits.
            0xb1 => Self::Whole { bits: 64 },
            // 4:2:0 with 8 bits: NV12, semi-planar, planar; with 16 bits: P010, P016 and the like.
            0xb0 | 0x53 | 0x59 => Self::Video { bytes: 1, across: 2, down: 2 },
            0x9f | 0xa1 | 0x54 | 0x5a => Self::Video { bytes: 2, across: 2, down: 2 },
            // 4:2:2: NV16; P210 and P216.
            0xa2 | 0x55 | 0x5b => Self::Video { bytes: 1, across: 2, down: 1 },
            0xa3 | 0xa4 | 0x56 | 0x5c => Self::Video { bytes: 2, across: 2, down: 1 },
            // 4:4:4, planar and semi-planar.
            0xb2 | 0xb4 | 0x57 | 0x5d => Self::Video { bytes: 1, across: 1, down: 1 },
            0xb3 | 0xb5 | 0x58 | 0x5e => Self::Video { bytes: 2, across: 1, down: 1 },
            _ => return None,
        })
    }
}

/// The shape of an array in its descriptor. A height of 0 means one dimension, a depth of 0 at most two.
///
/// As in the driver's descriptor, `depth` also holds layers and cube faces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayShape {
    /// Elements in a row.
    pub width: u64,
    /// Rows; 0 for one dimension.
    pub height: u64,
    /// Slices, layers or faces; 0 for none.
    pub depth: u64,
    /// Channels per element: 1, 2 or 4.
    pub channels: u32,
    /// Format of an element, which gives its size.
    pub texel: Texel,
    /// True if `depth` counts layers or faces, which mip levels do not shrink.
    pub layered: bool,
}

/// `cuArrayCreate` and `cuArray3DCreate`: elements times their size in bytes, rounded like [`charge_plain`].
#[must_use]
pub fn charge_array(shape: &ArrayShape) -> Option<u64> {
    charge_plain(level_bytes(shape, 0)?)
}

/// `cuMipmappedArrayCreate`: all levels summed, then rounded like [`charge_plain`].
///
/// Each level halves every dimension down to 1; further levels add nothing.
#[must_use]
pub fn charge_mipmapped(shape: &ArrayShape, levels: u32) -> Option<u64> {
    let depth = if shape.layered { 1 } else { shape.depth };
    let largest = shape.width.max(shape.height).max(depth).max(1);
    let levels = levels.clamp(1, u64::BITS - largest.leading_zeros());
    let sum = (0..levels).try_fold(0u64, |sum, level| sum.checked_add(level_bytes(shape, level)?))?;
    charge_plain(sum)
}

fn level_bytes(shape: &ArrayShape, level: u32) -> Option<u64> {
    let shrink = |size: u64| size.checked_shr(level).unwrap_or(0).max(1);
    let (width, height) = (shrink(shape.width), shrink(shape.height));
    let depth = if shape.layered { shape.depth.max(1) } else { shrink(shape.depth) };
    match shape.texel {
        Texel::PerChannel { bits } => {
            let row = width.checked_mul(u64::from(shape.channels.max(1)) * u64::from(bits / 8))?;
            row.checked_mul(height)?.checked_mul(depth)
        }
        Texel::Whole { bits } => {
            let texels = u128::from(width.checked_mul(height)?.checked_mul(depth)?);
            u64::try_from((texels * u128::from(bits)).div_ceil(8)).ok()
        }
        Texel::Video { bytes, across, down } => {
            let colour = width.div_ceil(u64::from(across)).checked_mul(height.div_ceil(u64::from(down)))?;
            let values = width.checked_mul(height)?.checked_add(colour.checked_mul(2)?)?;
            values.checked_mul(u64::from(bytes))?.checked_mul(depth)
        }
        Texel::Block { bytes } => {
            let blocks = width.div_ceil(4).checked_mul(height.div_ceil(4))?.checked_mul(depth)?;
            blocks.checked_mul(u64::from(bytes))
        }
    }
}

const fn round_up(bytes: u64, grain: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(grain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::bytes::{GIB, MIB};

    const RGBA8: ArrayShape = ArrayShape {
        width: 1024,
        height: 1024,
        depth: 0,
        channels: 4,
        texel: Texel::PerChannel { bits: 8 },
        layered: false,
    };

    #[test]
    fn linear_memory_is_rounded_to_512_bytes() {
        for (request, charge) in
            [(0, 0), (1, 512), (511, 512), (512, 512), (513, 1024), (GIB, GIB), (GIB + 1, GIB + 512)]
        {
            assert_eq!(charge_linear(request), Some(charge), "{request}");
        }
        assert_eq!(charge_linear(u64::MAX - 511), Some(u64::MAX - 511), "the largest multiple");
        assert_eq!(charge_linear(u64::MAX - 510), None);
        assert_eq!(charge_linear(u64::MAX), None);
    }

    #[test]
    fn plain_memory_is_rounded_to_slabs_from_half_a_slab_on() {
        for (request, charge) in [
            (0, 0),
            (1, 512),
            (MIB - 1, MIB),
            (MIB, SLAB_BYTES),
            (SLAB_BYTES, SLAB_BYTES),
            (SLAB_BYTES + 1, 2 * SLAB_BYTES),
            (GIB, GIB),
        ] {
            assert_eq!(charge_plain(request), Some(charge), "{request}");
        }
        assert_eq!(charge_plain(u64::MAX), None);
        assert!(may_share_a_slab(SLAB_BYTES - 1) && !may_share_a_slab(SLAB_BYTES));
    }

    #[test]
    fn pitched_memory_is_pitch_times_rows() {
        assert_eq!(expected_pitch(1), Some(512));
        assert_eq!(expected_pitch(1000), Some(1024));
        assert_eq!(charge_pitched(1024, 3), Some(3072));
        assert_eq!(charge_pitched(100, 3), Some(512), "whatever pitch a driver returns");
        assert_eq!(charge_pitched(1 << 40, 1 << 24), None);
    }

    #[test]
    fn physical_memory_is_rounded_to_its_granularity() {
        assert_eq!(charge_physical(1, 2 * MIB), Some(2 * MIB));
        assert_eq!(charge_physical(2 * MIB, 2 * MIB), Some(2 * MIB));
        assert_eq!(charge_physical(2 * MIB + 1, 2 * MIB), Some(4 * MIB));
        assert_eq!(charge_physical(3, 0), Some(512));
        assert_eq!(charge_physical(u64::MAX, 2 * MIB), None);
    }

    #[test]
    fn arrays_count_bytes_never_bits() {
        assert_eq!(charge_array(&RGBA8), Some(4 * MIB));
        let float = ArrayShape { channels: 1, texel: Texel::of_format(0x20).unwrap(), ..RGBA8 };
        assert_eq!(charge_array(&float), Some(4 * MIB));
        let half4 = ArrayShape { texel: Texel::of_format(0x10).unwrap(), ..RGBA8 };
        assert_eq!(charge_array(&half4), Some(8 * MIB));
        let bc1 = ArrayShape { texel: Texel::of_format(0x91).unwrap(), ..RGBA8 };
        assert_eq!(charge_array(&bc1), Some(MIB / 2));
        let bc7 = ArrayShape { texel: Texel::of_format(0x9d).unwrap(), ..RGBA8 };
        assert_eq!(charge_array(&bc7), Some(SLAB_BYTES), "half a slab takes one");
        let nv12 = ArrayShape { texel: Texel::of_format(0xb0).unwrap(), channels: 3, ..RGBA8 };
        assert_eq!(charge_array(&nv12), charge_plain(3 * MIB / 2));
    }

    #[test]
    fn missing_dimensions_mean_fewer_dimensions() {
        let line = ArrayShape { height: 0, ..RGBA8 };
        assert_eq!(charge_array(&line), Some(4096));
        let volume = ArrayShape { depth: 8, ..RGBA8 };
        assert_eq!(charge_array(&volume), Some(32 * MIB));
        let layers_of_lines = ArrayShape { height: 0, depth: 8, layered: true, ..RGBA8 };
        assert_eq!(charge_array(&layers_of_lines), Some(8 * 4096));
        let tiny = ArrayShape { width: 1, height: 0, channels: 1, ..RGBA8 };
        assert_eq!(charge_array(&tiny), Some(512));
    }

    #[test]
    fn mipmaps_are_the_sum_of_their_levels() {
        assert_eq!(charge_mipmapped(&RGBA8, 1), charge_array(&RGBA8));
        assert_eq!(charge_mipmapped(&RGBA8, 0), charge_array(&RGBA8));
        // 4 MiB x (1 + 1/4 + ... + 1/4^10) = 5592404 bytes, rounded.
        assert_eq!(charge_mipmapped(&RGBA8, 11), Some(6 * MIB));
        let small = ArrayShape { width: 256, height: 256, ..RGBA8 };
        assert_eq!(charge_mipmapped(&small, 9), charge_linear(349_524), "256 KiB x (1 + 1/4 + ... + 1/4^8)");
        assert_eq!(charge_mipmapped(&small, 200), charge_mipmapped(&small, 9), "levels below one element do not exist");
        let layers = ArrayShape { depth: 6, layered: true, ..RGBA8 };
        assert_eq!(charge_mipmapped(&layers, 2), Some(6 * 4 * MIB + 6 * MIB));
        let volume = ArrayShape { depth: 6, ..RGBA8 };
        assert_eq!(charge_mipmapped(&volume, 2), charge_plain(6 * 4 * MIB + 3 * MIB));
    }

    #[test]
    fn an_unknown_format_is_not_guessed() {
        for format in [0x00, 0x04, 0x11, 0x4f, 0x5f, 0x90, 0xa0, 0xaa, 0xaf, 0xb6, 0xcc, 0x7fff_ffff, u32::MAX] {
            assert_eq!(Texel::of_format(format), None, "{format:#x}");
        }
    }

    /// Every format of CUDA 11.4 to 13.4: name, number, channels of its descriptor, bits of 2 by 2 elements.
    const FORMATS: &[(&str, u32, u32, u64)] = &[
        ("UNSIGNED_INT8", 1, 1, 4 * 8),
        ("UNSIGNED_INT16", 2, 2, 4 * 32),
        ("UNSIGNED_INT32", 3, 4, 4 * 128),
        ("SIGNED_INT8", 8, 4, 4 * 32),
        ("SIGNED_INT16", 9, 1, 4 * 16),
        ("SIGNED_INT32", 10, 1, 4 * 32),
        ("HALF", 16, 4, 4 * 64),
        ("FLOAT", 32, 4, 4 * 128),
        ("UNORM_INT_101010_2", 80, 4, 4 * 32),
        ("UINT8_PACKED_422", 81, 4, 4 * 32),
        ("UINT8_PACKED_444", 82, 4, 4 * 32),
        ("UINT8_SEMIPLANAR_420", 83, 3, 4 * 12),
        ("UINT16_SEMIPLANAR_420", 84, 3, 4 * 24),
        ("UINT8_SEMIPLANAR_422", 85, 3, 4 * 16),
        ("UINT16_SEMIPLANAR_422", 86, 3, 4 * 32),
        ("UINT8_SEMIPLANAR_444", 87, 3, 4 * 24),
        ("UINT16_SEMIPLANAR_444", 88, 3, 4 * 48),
        ("UINT8_PLANAR_420", 89, 3, 4 * 12),
        ("UINT16_PLANAR_420", 90, 3, 4 * 24),
        ("UINT8_PLANAR_422", 91, 3, 4 * 16),
        ("UINT16_PLANAR_422", 92, 3, 4 * 32),
        ("UINT8_PLANAR_444", 93, 3, 4 * 24),
        ("UINT16_PLANAR_444", 94, 3, 4 * 48),
        ("P010", 159, 3, 4 * 24),
        ("P016", 161, 3, 4 * 24),
        ("NV16", 162, 3, 4 * 16),
        ("P210", 163, 3, 4 * 32),
        ("P216", 164, 3, 4 * 32),
        ("YUY2", 165, 2, 4 * 16),
        ("Y210", 166, 2, 4 * 32),
        ("Y216", 167, 2, 4 * 32),
        ("AYUV", 168, 4, 4 * 32),
        ("Y410", 169, 4, 4 * 32),
        ("NV12", 176, 3, 4 * 12),
        ("Y416", 177, 4, 4 * 64),
        ("Y444_PLANAR8", 178, 3, 4 * 24),
        ("Y444_PLANAR10", 179, 3, 4 * 48),
        ("YUV444_8bit_SemiPlanar", 180, 3, 4 * 24),
        ("YUV444_16bit_SemiPlanar", 181, 3, 4 * 48),
        ("UNORM_INT8X1", 192, 1, 4 * 8),
        ("UNORM_INT8X2", 193, 2, 4 * 16),
        ("UNORM_INT8X4", 194, 4, 4 * 32),
        ("UNORM_INT16X1", 195, 1, 4 * 16),
        ("UNORM_INT16X2", 196, 2, 4 * 32),
        ("UNORM_INT16X4", 197, 4, 4 * 64),
        ("SNORM_INT8X1", 198, 1, 4 * 8),
        ("SNORM_INT8X2", 199, 2, 4 * 16),
        ("SNORM_INT8X4", 200, 4, 4 * 32),
        ("SNORM_INT16X1", 201, 1, 4 * 16),
        ("SNORM_INT16X2", 202, 2, 4 * 32),
        ("SNORM_INT16X4", 203, 4, 4 * 64),
        ("BC1_UNORM", 145, 4, 4 * 4),
        ("BC1_UNORM_SRGB", 146, 4, 4 * 4),
        ("BC2_UNORM", 147, 4, 4 * 8),
        ("BC2_UNORM_SRGB", 148, 4, 4 * 8),
        ("BC3_UNORM", 149, 4, 4 * 8),
        ("BC3_UNORM_SRGB", 150, 4, 4 * 8),
        ("BC4_UNORM", 151, 1, 4 * 4),
        ("BC4_SNORM", 152, 1, 4 * 4),
        ("BC5_UNORM", 153, 2, 4 * 8),
        ("BC5_SNORM", 154, 2, 4 * 8),
        ("BC6H_UF16", 155, 3, 4 * 8),
        ("BC6H_SF16", 156, 3, 4 * 8),
        ("BC7_UNORM", 157, 4, 4 * 8),
        ("BC7_UNORM_SRGB", 158, 4, 4 * 8),
    ];

    #[test]
    fn every_format_there_is_has_its_width() {
        for &(name, format, channels, bits) in FORMATS {
            let texel = Texel::of_format(format).unwrap_or_else(|| panic!("{name} is not known"));
            let shape = ArrayShape { channels, texel, ..RGBA8 };
            assert_eq!(charge_array(&shape), charge_plain(1024 * 1024 / 4 * bits / 8), "{name}");
            assert!(
                charge_array(&shape) <= charge_array(&ArrayShape { texel: Texel::WIDEST, ..shape }),
                "{name} is not the widest"
            );
        }
        let known = (0..=u32::from(u16::MAX)).filter(|format| Texel::of_format(*format).is_some()).count();
        assert_eq!(known, FORMATS.len(), "and no other number is known");
    }

    #[test]
    fn colour_planes_of_odd_pictures_are_rounded_up() {
        let nv12 = Texel::of_format(0xb0).unwrap();
        let odd = ArrayShape { width: 1001, height: 701, channels: 3, texel: nv12, ..RGBA8 };
        assert_eq!(charge_array(&odd), charge_plain(1001 * 701 + 2 * 501 * 351));
        let layers = ArrayShape { depth: 3, layered: true, ..odd };
        assert_eq!(charge_array(&layers), charge_plain(3 * (1001 * 701 + 2 * 501 * 351)));
    }

    proptest! {
        #[test]
        fn a_charge_is_the_least_multiple_that_holds_the_request(bytes: u64, grain in 1u64..=1 << 30) {
            match charge_physical(bytes, grain) {
                Some(charge) => {
                    prop_assert!(charge >= bytes && charge - bytes < grain && charge % grain == 0);
                }
                None => prop_assert!(u128::from(bytes).next_multiple_of(u128::from(grain)) > u128::from(u64::MAX)),
            }
        }

        #[test]
        fn arrays_agree_with_wide_arithmetic(
            width: u64, height: u64, depth: u64, channels in 1u32..=4, bits in prop::sample::select(vec![8u32, 16, 32]),
            narrow in 0u32..64,
        ) {
            let shape = ArrayShape {
                width: width >> narrow, height: height >> narrow, depth: depth >> narrow,
                channels, texel: Texel::PerChannel { bits }, layered: false,
            };
            let wide = [shape.width.max(1), shape.height.max(1), shape.depth.max(1), u64::from(channels * bits / 8)]
                .iter()
                .try_fold(1u128, |product, factor| product.checked_mul(u128::from(*factor)))
                .and_then(|bytes| bytes.checked_next_multiple_of(if bytes < 1 << 20 { 512 } else { 2 << 20 }))
                .and_then(|bytes| u64::try_from(bytes).ok());
            prop_assert_eq!(charge_array(&shape), wide);
            // The sum of all levels is at least the first level, and less than twice its size plus a slab.
            if let (Some(one), Some(all)) = (charge_array(&shape), charge_mipmapped(&shape, 64)) {
                prop_assert!(all >= one && u128::from(all) <= 2 * u128::from(one) + u128::from(SLAB_BYTES));
            }
        }
    }
}
