//! Copies and fills, charged only with `VGPU_CHARGE_COPIES=1`: those that stay on devices then pass the launch gate.
//!
//! Without it each copy jumps straight to the driver, for a compare and two jumps. One stub without a stack frame
//! serves all of them, because a hundred hook functions that almost no program calls would be a twentieth of the
//! library. [`COPY_SHAPES`] describes the arguments of each call. The cost is learned by kind and size class.
//!
//! Copies between host and device are not hooked: separate copy engines do them while kernels run. Where a call's name
//! does not tell the direction, the driver is asked. Not here: copies described by structures (`copy_descriptors`).

use super::copy_descriptors::{self, bytes_of_rows};
use crate::device::current;
use crate::device::multi_device_launch::{self, CallPart};
use crate::driver::calls::is_device;
use crate::driver::launch::MeteredLaunch;
use crate::driver::library::{CUDA, CUDA_CALLED_AT, CUDA_FOUND};
use crate::driver::streams::StreamId;
use crate::ffi::arch::{REGISTER_ARGUMENTS, charged_jump};
use crate::ffi::guard;
use crate::member::enforce;
use crate::process::copies::COPIES_CHARGED;
use crate::process::mode::Denied;
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;
use shim_sys::cuda::*;
use shim_sys::table::CudaHook;

charged_jump!(
    /// The target of every copy, with its row number in eax: jumps to the function that the hook calls, or calls
    /// [`decide_copy`].
    ///
    /// # Safety
    /// Jumped to by the export of a row of copies, as the driver's function was called.
    enter_copy COPIES_CHARGED, CUDA_FOUND, CUDA_CALLED_AT, decide_copy
);

/// Maximum number of arguments of a copy.
const MAX_ARGUMENTS: usize = 9;

/// The common signature of all copies: integers and pointers only. Each function reads as many as it has.
type AnyCopy = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize) -> CUresult;

/// Handles a copy that the stub does not pass straight to the driver.
///
/// # Safety
/// `registers` holds the arguments passed in registers, `stack` points at the further ones.
pub unsafe extern "C" fn decide_copy(
    row: usize,
    registers: &[usize; REGISTER_ARGUMENTS],
    stack: *const usize,
) -> CUresult {
    let mut real = CUDA.call_target(row);
    let is_interposer = real.is_null();
    if is_interposer {
        real = CUDA.interposer(row);
    }
    // SAFETY: null (None), or the row's function. The driver's C interface gives it at most nine arguments, all
    // integers or pointers; in this calling convention a function does not notice surplus arguments.
    let Some(real) = (unsafe { core::mem::transmute::<*mut c_void, Option<AnyCopy>>(real) }) else {
        return CUresult::NOT_SUPPORTED;
    };
    let Some(shape) = row.checked_sub(FIRST_COPY_ROW).and_then(|at| COPY_SHAPES.get(at)) else {
        return CUresult::NOT_SUPPORTED;
    };
    let mut w = [0; MAX_ARGUMENTS];
    let arguments = usize::from(shape.arguments);
    for (at, word) in w.iter_mut().enumerate().take(arguments) {
        *word = match registers.get(at) {
            Some(word) => *word,
            // SAFETY: the program has put `arguments` arguments there.
            None => unsafe { stack.add(at - REGISTER_ARGUMENTS).read() },
        };
    }
    // SAFETY: the program's own arguments, for the function it called.
    let mut call = || unsafe { real(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]) };
    if COPIES_CHARGED.load(Relaxed) == 0 || is_interposer {
        return call();
    }
    // No retry after a panic: the driver may have done the copy already.
    guard::catch_panic(|| charge_copy(shape, &w, &mut call)).unwrap_or(CUresult::NOT_PERMITTED)
}

/// Makes a call that moves bytes on devices, behind the gate of its stream's device.
fn charge_copy(shape: &CopyShape, words: &[usize; MAX_ARGUMENTS], real: &mut dyn FnMut() -> CUresult) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let Some(bytes) = shape.device_bytes(words).filter(|bytes| *bytes > 0) else { return real() };
    let stream = if shape.in_stream { words[usize::from(shape.arguments) - 1] } else { 0 };
    let order = StreamId { stream: CUstream(stream as *mut c_void), per_thread: shape.per_thread };
    let Some((context, device)) = current::of_stream(order.stream) else { return real() };
    let StreamId { stream, per_thread } = order;
    let launch = MeteredLaunch { context, stream, per_thread, key: cost_key(shape.what, bytes), in_parts: false };
    multi_device_launch::pass_gates(&[CallPart { device, launch }], real)
}

/// The key by which the cost is learned: the kind, and the bytes rounded to a quarter of a power of two.
const fn cost_key(what: CopyKind, bytes: u64) -> u64 {
    let power = 63 - (bytes | 4).leading_zeros() as u64;
    let class = power << 2 | (bytes | 4) >> (power - 2) & 3;
    (what as u64) << 16 | class << 1 | 1
}

/// The kind of a copy, and which arguments (words, from 0) give its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum CopyKind {
    /// Fills a range with a value: word 2 is the number of elements.
    Fill = 1,
    /// Fills rows with a value: words 3 and 4 are width and height.
    Rows,
    /// Copies between two device addresses: word 2 is the bytes.
    Line,
    /// Copies between two addresses: word 2 is the bytes. Charged only if both are device memory; either may be on the
    /// host.
    AnyLine,
    /// Copies between contexts: word 4 is the bytes.
    Peer,
    /// Copies between arrays: word 4 is the bytes.
    Arrays,
    /// Copies from or to an array: word 3 is the bytes.
    Array,
    /// Word 0 points to a description of a 2D copy.
    Sheet,
    /// Word 0 points to a description of a 2D copy in the structure of CUDA 2.
    OldSheet,
    /// Word 0 points to a description of a 3D copy.
    Block,
    /// Word 0 points to a description of a 3D copy in the structure of CUDA 2.
    OldBlock,
    /// Word 0 points to a description of one 3D copy, in the structure used for batches.
    Operation,
    /// Words 0 to 3 list addresses and sizes.
    Lines,
    /// Word 0 counts 3D copies, word 1 lists them.
    Operations,
    /// Word 0 counts copies over a fabric of devices, word 1 lists them; the cost is learned by their number.
    Fabric,
    /// Words 0 and 1 list decompressions.
    Unpack,
}

/// The meaning of a call's arguments.
#[derive(Clone, Copy, Debug)]
struct CopyShape {
    what: CopyKind,
    /// Number of the call's arguments.
    arguments: u8,
    /// For fills: bytes per element.
    element: u8,
    /// Whether the last argument is a stream.
    in_stream: bool,
    /// Whether the null stream means the thread's own stream.
    per_thread: bool,
    /// Whether the call's sizes are 32-bit.
    narrow: bool,
}

impl CopyShape {
    /// The bytes moved on devices. `None`: the copy touches the host.
    fn device_bytes(&self, w: &[usize; MAX_ARGUMENTS]) -> Option<u64> {
        let size = |at: usize| if self.narrow { w[at] & 0xffff_ffff } else { w[at] };
        let element = usize::from(self.element);
        let count = |at: usize| bytes_of_rows(size(at), 1, 1);
        match self.what {
            CopyKind::Fill => Some(bytes_of_rows(size(2), element, 1)),
            CopyKind::Rows => Some(bytes_of_rows(size(3), element, size(4))),
            CopyKind::Line => Some(count(2)),
            CopyKind::AnyLine => (is_device(w[0] as u64) && is_device(w[1] as u64)).then(|| count(2)),
            CopyKind::Peer | CopyKind::Arrays => Some(count(4)),
            CopyKind::Array => Some(count(3)),
            CopyKind::Fabric => Some(count(0)),
            // SAFETY: the program's own pointers, for a function that reads them in this way.
            _ => unsafe {
                match self.what {
                    CopyKind::Sheet => copy_descriptors::sheet(w[0] as *const _),
                    CopyKind::OldSheet => copy_descriptors::old_sheet(w[0] as *const _),
                    CopyKind::Block => copy_descriptors::block(w[0] as *const _),
                    CopyKind::OldBlock => copy_descriptors::old_block(w[0] as *const _),
                    CopyKind::Operation => copy_descriptors::bytes_of_operations(w[0] as *const _, 1),
                    CopyKind::Operations => copy_descriptors::bytes_of_operations(w[1] as *const _, w[0]),
                    CopyKind::Lines => {
                        copy_descriptors::bytes_of_lines(w[0] as *const _, w[1] as *const _, w[2] as *const _, w[3])
                    }
                    _ => copy_descriptors::bytes_unpacked(w[0] as *const _, w[1]),
                }
            },
        }
    }
}

/// Row of the first copy; copies are consecutive in the table.
const FIRST_COPY_ROW: usize = CudaHook::cuFabricCpyBatchAsync as usize;
const COPY_ROWS: usize = CudaHook::cuMemsetD8_v2_ptds as usize - FIRST_COPY_ROW + 1;

const fn name_ends(name: &str, with: &str) -> bool {
    let (name, with) = (name.as_bytes(), with.as_bytes());
    match name.split_at_checked(name.len().wrapping_sub(with.len())) {
        Some((_, end)) => matches!((end, with), ([a, b, c, d, e], [f, g, h, i, j])
            if *a == *f && *b == *g && *c == *h && *d == *i && *e == *j),
        None => false,
    }
}

/// Kind, number of arguments, bytes per element, whether the last argument is a stream, whether sizes are 32-bit;
/// then names.
macro_rules! shapes {
    ($($what:ident $arguments:literal $element:literal $in_stream:literal $narrow:literal: $($name:ident)*;)*) => {{
        let mut all: [Option<CopyShape>; COPY_ROWS] = [None; COPY_ROWS];
        $($(
            let per_thread = name_ends(stringify!($name), "_ptsz") || name_ends(stringify!($name), "_ptds");
            all[CudaHook::$name as usize - FIRST_COPY_ROW] = Some(CopyShape {
                what: CopyKind::$what,
                arguments: $arguments,
                element: $element,
                in_stream: $in_stream,
                per_thread,
                narrow: $narrow,
            });
        )*)*
        all
    }};
}

static COPY_SHAPES: [CopyShape; COPY_ROWS] = {
    let given = shapes! {
        Fill 3 1 false false: cuMemsetD8_v2 cuMemsetD8_v2_ptds;
        Fill 3 2 false false: cuMemsetD16_v2 cuMemsetD16_v2_ptds;
        Fill 3 4 false false: cuMemsetD32_v2 cuMemsetD32_v2_ptds;
        Fill 3 1 false true: cuMemsetD8;
        Fill 3 2 false true: cuMemsetD16;
        Fill 3 4 false true: cuMemsetD32;
        Fill 4 1 true false: cuMemsetD8Async cuMemsetD8Async_ptsz;
        Fill 4 2 true false: cuMemsetD16Async cuMemsetD16Async_ptsz;
        Fill 4 4 true false: cuMemsetD32Async cuMemsetD32Async_ptsz;
        Rows 5 1 false false: cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds;
        Rows 5 2 false false: cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds;
        Rows 5 4 false false: cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds;
        Rows 5 1 false true: cuMemsetD2D8;
        Rows 5 2 false true: cuMemsetD2D16;
        Rows 5 4 false true: cuMemsetD2D32;
        Rows 6 1 true false: cuMemsetD2D8Async cuMemsetD2D8Async_ptsz;
        Rows 6 2 true false: cuMemsetD2D16Async cuMemsetD2D16Async_ptsz;
        Rows 6 4 true false: cuMemsetD2D32Async cuMemsetD2D32Async_ptsz;
        AnyLine 3 1 false false: cuMemcpy cuMemcpy_ptds;
        AnyLine 4 1 true false: cuMemcpyAsync cuMemcpyAsync_ptsz;
        AnyLine 5 1 true false: cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz;
        Line 3 1 false false: cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds;
        Line 3 1 false true: cuMemcpyDtoD;
        Line 4 1 true false: cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz;
        Line 4 1 true true: cuMemcpyDtoDAsync;
        Peer 5 1 false false: cuMemcpyPeer cuMemcpyPeer_ptds;
        Peer 6 1 true false: cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz;
        Arrays 5 1 false false: cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds;
        Arrays 5 1 false true: cuMemcpyAtoA;
        Array 4 1 false false: cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds;
        Array 4 1 false true: cuMemcpyAtoD cuMemcpyDtoA;
        Sheet 1 1 false false: cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds;
        Sheet 2 1 true false: cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz;
        OldSheet 1 1 false false: cuMemcpy2D cuMemcpy2DUnaligned;
        OldSheet 2 1 true false: cuMemcpy2DAsync;
        Block 1 1 false false: cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpy3DPeer cuMemcpy3DPeer_ptds;
        Block 2 1 true false: cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz;
        OldBlock 1 1 false false: cuMemcpy3D;
        OldBlock 2 1 true false: cuMemcpy3DAsync;
        Operation 3 1 true false: cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz;
        Operations 5 1 true false: cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz;
        Operations 4 1 true false: cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz;
        Lines 9 1 true false: cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz;
        Lines 8 1 true false: cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz;
        Fabric 4 1 true false: cuFabricCpyBatchAsync cuFabricCpyBatchAsync_ptsz;
        Unpack 5 1 true false: cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz;
    };
    let nothing = CopyShape {
        what: CopyKind::Fill,
        arguments: 0,
        element: 0,
        in_stream: false,
        per_thread: false,
        narrow: false,
    };
    let (mut all, mut at) = ([nothing; COPY_ROWS], 0);
    while at < COPY_ROWS {
        all[at] = match given[at] {
            Some(shape) => shape,
            None => panic!("a row of copies whose words nobody has told"),
        };
        at += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_char;
    use shim_sys::table::{CUDA_HOOK_NAMES, CUDA_ROWS, RowAction};

    #[test]
    fn copies_stand_together_in_the_table_and_their_words_are_those_of_their_signatures() {
        macro_rules! arguments {
            (hooks { $($subject:ident { $($h:ident ( $($a:ident : $t:ty),* $(,)? );)* })* } typed $typed:tt named $named:tt) => {
                &[$($((stringify!($h), &[$((stringify!($a), size_of::<$t>())),*]),)*)*]
            };
        }
        type Arguments = &'static [(&'static str, usize)];
        let table: &[(&str, Arguments)] = shim_sys::cuda_table!(arguments);
        let mut found = 0;
        for (row, (name, arguments)) in CUDA_ROWS.iter().zip(table) {
            if row.action != RowAction::Hook("copy") {
                continue;
            }
            let shape = COPY_SHAPES[found];
            assert_eq!(CUDA_HOOK_NAMES[FIRST_COPY_ROW + found].to_str(), Ok(*name));
            assert_eq!(usize::from(shape.arguments), arguments.len(), "{name}");
            assert_eq!(shape.in_stream, arguments.last().unwrap().0 == "stream", "{name}");
            assert_eq!(shape.per_thread, name.ends_with("_ptsz") || name.ends_with("_ptds"), "{name}");
            // Position and width of the size argument.
            let at = match shape.what {
                CopyKind::Fill | CopyKind::Line | CopyKind::AnyLine => Some((2, ["count", "bytes"])),
                CopyKind::Rows => Some((3, ["width"; 2])),
                CopyKind::Peer | CopyKind::Arrays => Some((4, ["bytes"; 2])),
                CopyKind::Array => Some((3, ["bytes"; 2])),
                CopyKind::Fabric => Some((0, ["count"; 2])),
                CopyKind::Operations => Some((0, ["count"; 2])),
                CopyKind::Unpack => Some((1, ["count"; 2])),
                CopyKind::Lines => Some((3, ["count"; 2])),
                _ => None,
            };
            if let Some((at, names)) = at {
                assert!(names.contains(&arguments[at].0), "{name}");
                assert_eq!(shape.narrow, arguments[at].1 == 4, "{name}");
            }
            if let Some(value) = arguments.iter().find(|argument| argument.0 == "value") {
                assert_eq!(usize::from(shape.element), value.1, "{name}");
            }
            found += 1;
        }
        assert_eq!(found, COPY_ROWS);
    }

    #[test]
    fn copies_of_about_one_size_are_of_one_class_and_of_one_kind() {
        let bytes = [0, 1, 4, 5, 6, 7, 8, 1 << 20, 5 << 18, 3 << 19, 7 << 18, 1 << 21, u64::MAX >> 1];
        let mut seen = std::collections::BTreeSet::new();
        for one in bytes {
            seen.insert(cost_key(CopyKind::Fill, one));
            assert_eq!(cost_key(CopyKind::Fill, one) & 1, 1, "never nothing");
            assert_ne!(cost_key(CopyKind::Fill, one), cost_key(CopyKind::Line, one));
        }
        assert_eq!(seen.len(), bytes.len() - 2, "what is below four bytes is as one of the next");
        assert_eq!(cost_key(CopyKind::Fill, 1 << 20), cost_key(CopyKind::Fill, (1 << 20) + 1000));
        assert_eq!(bytes_of_rows(usize::MAX, 4, 5), u64::MAX);
    }
}
