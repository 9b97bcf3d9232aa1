//! Tests of arrays: their size, their content, and refused calls.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod array_parts;
mod common;

use array_parts::*;
use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ptr::null_mut;

#[test]
fn an_array_takes_the_bytes_of_its_elements_and_gives_them_back() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let layered = 1;
        for (d, bytes) in [
            (desc(1000, 0, 0, F32, 1, 0), 4000),
            (desc(1024, 1024, 0, F32, 4, 0), 16 * MIB),
            (desc(100, 100, 100, U8, 2, 0), 2_000_000),
            (desc(512, 0, 7, U8, 1, layered), 512 * 7),
            (desc(64, 64, 6, 0x10, 4, 4), 64 * 64 * 6 * 8),
            (desc(1024, 1024, 0, 0x91, 4, 0), MIB / 2),
            (desc(1920, 1080, 0, 0xB0, 3, 0), 1920 * 1080 * 3 / 2),
            (desc(1920, 1080, 0, 0x9F, 3, 0), 1920 * 1080 * 3),
            (desc(1920, 1080, 0, 0xA4, 3, 0), 1920 * 1080 * 4),
            (desc(1920, 1080, 0, 0xB3, 3, 0), 1920 * 1080 * 6),
        ] {
            let a = array(l, &d);
            assert_eq!(truth(dir).0, bytes as u64, "{d:?}");
            let slabs = if bytes < MIB { 2 * MIB } else { bytes.next_multiple_of(2 * MIB) };
            assert_eq!(truth(dir).1, slabs as u64);
            let mut back = desc(0, 0, 0, 0, 0, 99);
            ok!(l, cuArray3DGetDescriptor_v2(&mut back, a));
            assert_eq!(format!("{back:?}"), format!("{d:?}"));
            ok!(l, cuArrayDestroy(a));
            assert_eq!(truth(dir), (0, 0));
            assert_eq!(cu!(l, cuArrayDestroy(a)), CUresult::INVALID_HANDLE);
        }
    });
}

#[test]
fn small_arrays_share_slabs_with_everything_small() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (mut p, d) = (0, desc(100, 100, 0, U8, 1, 0));
        ok!(l, cuMemAlloc_v2(&mut p, 1000));
        let all: Vec<CUarray> = (0..20).map(|_| array(l, &d)).collect();
        assert_eq!(truth(dir), (1000 + 20 * 10_000, 2 << 20));
        for a in all {
            ok!(l, cuArrayDestroy(a));
        }
        assert_eq!(truth(dir), (1000, 2 << 20));
    });
}

#[test]
fn the_old_calls_describe_the_same_arrays() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let d = CUDA_ARRAY_DESCRIPTOR_v1 { Width: 30, Height: 20, Format: F32, NumChannels: 2 };
        let mut a = CUarray::NULL;
        ok!(l, cuArrayCreate(&mut a, &d));
        let mut two = CUDA_ARRAY_DESCRIPTOR { Width: 0, Height: 0, Format: 0, NumChannels: 0 };
        let mut old = CUDA_ARRAY_DESCRIPTOR_v1 { Width: 0, Height: 0, Format: 0, NumChannels: 0 };
        let mut three =
            CUDA_ARRAY3D_DESCRIPTOR_v1 { Width: 0, Height: 0, Depth: 9, Format: 0, NumChannels: 0, Flags: 9 };
        ok!(l, cuArrayGetDescriptor_v2(&mut two, a));
        ok!(l, cuArrayGetDescriptor(&mut old, a));
        ok!(l, cuArray3DGetDescriptor(&mut three, a));
        assert_eq!((two.Width, two.Height, two.Format, two.NumChannels), (30, 20, F32, 2));
        assert_eq!((old.Width, old.Height, old.Format, old.NumChannels), (30, 20, F32, 2));
        assert_eq!((three.Width, three.Height, three.Depth, three.Flags), (30, 20, 0, 0));
        ok!(l, cuArrayDestroy(a));
        ok!(l, cuArray3DCreate(&mut a, &CUDA_ARRAY3D_DESCRIPTOR_v1 { Depth: 5, ..three }));
        ok!(l, cuArray3DGetDescriptor(&mut three, a));
        assert_eq!(three.Depth, 5);
        ok!(l, cuArrayCreate_v2(&mut a, &two));
    });
}

#[test]
fn wrong_descriptors_are_invalid_values_and_take_nothing() {
    on_machine("h200", &[], |l, dir| {
        let good = desc(16, 16, 0, U8, 1, 0);
        let mut a = CUarray::NULL;
        assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, &good)), CUresult::NOT_INITIALIZED);
        ok!(l, cuInit(0));
        assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, &good)), CUresult::INVALID_CONTEXT);
        assert_eq!(cu!(l, cuArrayDestroy(CUarray::NULL)), CUresult::INVALID_CONTEXT);
        ready(l);
        let invalid = CUresult::INVALID_VALUE;
        assert_eq!(cu!(l, cuArray3DCreate_v2(null_mut(), &good)), invalid);
        assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, std::ptr::null())), invalid);
        for d in [
            desc(0, 16, 0, U8, 1, 0),
            desc(16, 16, 0, U8, 3, 0),
            desc(16, 16, 0, U8, 0, 0),
            desc(16, 16, 0, 0x55, 1, 0),
            desc(16, 0, 16, U8, 1, 0),
            desc(16, 16, 0, U8, 1, 1),
            desc(131_073, 0, 0, U8, 1, 0),
            desc(16, 65_537, 0, U8, 1, 0),
            desc(16_385, 16, 16, U8, 1, 0),
            desc(16, 16, 0, 0xB0, 1, 0),
            desc(16, 16, 16, 0xB0, 3, 0),
        ] {
            assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, &d)), invalid, "{d:?}");
        }
        assert!(a.is_null());
        let mut m = CUmipmappedArray::NULL;
        assert_eq!(cu!(l, cuMipmappedArrayCreate(&mut m, &good, 0)), invalid);
        assert_eq!(cu!(l, cuArrayDestroy(CUarray::NULL)), CUresult::INVALID_HANDLE);
        assert_eq!(cu!(l, cuMipmappedArrayDestroy(CUmipmappedArray::NULL)), CUresult::INVALID_HANDLE);
        let mut out = good;
        assert_eq!(cu!(l, cuArray3DGetDescriptor_v2(&mut out, CUarray::NULL)), CUresult::INVALID_HANDLE);
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn an_array_that_does_not_fit_is_out_of_memory() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let huge = desc(16_384, 16_384, 16, F32, 1, 0);
        let mut a = CUarray::NULL;
        assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, &huge)), CUresult::OUT_OF_MEMORY);
        assert_eq!(truth(dir), (0, 0));
        let half = desc(16_384, 16_384, 8, F32, 1, 0);
        let first = array(l, &half);
        assert_eq!(cu!(l, cuArray3DCreate_v2(&mut a, &half)), CUresult::OUT_OF_MEMORY);
        ok!(l, cuArrayDestroy(first));
        array(l, &half);
    });
}

#[test]
fn boxes_of_bytes_go_in_and_come_out() {
    on_machine("h200", &[], |l, _| {
        ready(l);
        let a = array(l, &desc(50, 40, 30, F32, 1, 0));
        let mut all = pattern(200 * 40 * 30, 1);
        assert_eq!(boxed(l, a, [0, 0, 0], [200, 40, 30], &mut all, true).0, 0);
        let mut part = vec![0; 8 * 3 * 2];
        assert_eq!(boxed(l, a, [40, 7, 28], [8, 3, 2], &mut part, false).0, 0);
        let at = |x: usize, y: usize, z: usize| all[(z * 40 + y) * 200 + x];
        for (i, b) in part.iter().enumerate() {
            assert_eq!(*b, at(40 + i % 8, 7 + i / 8 % 3, 28 + i / 24));
        }
        // A part beyond an edge, or in the middle of an element, is refused.
        let invalid = CUresult::INVALID_VALUE;
        for (place, size) in
            [([196, 0, 0], [8, 1, 1]), ([0, 39, 0], [8, 2, 1]), ([0, 0, 29], [8, 1, 2]), ([2, 0, 0], [4, 1, 1])]
        {
            let mut few = vec![0; size.iter().product()];
            assert_eq!(boxed(l, a, place, size, &mut few, false), invalid, "{place:?}");
        }
        // Copies from array to array, and to pitched device memory.
        let b = array(l, &desc(100, 40, 30, 0x03, 1, 0));
        let mut c = nothing();
        (c.srcMemoryType, c.srcArray, c.dstMemoryType, c.dstArray) = (3, a, 3, b);
        (c.dstXInBytes, c.WidthInBytes, c.Height, c.Depth) = (200, 200, 40, 30);
        ok!(l, cuMemcpy3DAsync_v2(&c, CUstream::NULL));
        let (mut p, mut pitch) = (0, 0);
        ok!(l, cuMemAllocPitch_v2(&mut p, &mut pitch, 200, 40 * 30, 4));
        let mut c = nothing();
        (c.srcMemoryType, c.srcArray, c.srcXInBytes) = (3, b, 200);
        (c.dstMemoryType, c.dstDevice, c.dstPitch, c.dstHeight) = (2, p, pitch, 40);
        (c.WidthInBytes, c.Height, c.Depth) = (200, 40, 30);
        ok!(l, cuMemcpy3D_v2(&c));
        let mut rows = vec![0u8; pitch * 40 * 30];
        ok!(l, cuMemcpyDtoH_v2(rows.as_mut_ptr().cast(), p, rows.len()));
        assert!(rows.chunks(pitch).zip(all.chunks(200)).all(|(r, a)| &r[..200] == a));
        c.srcLOD = 1;
        assert_eq!(cu!(l, cuMemcpy3D_v2(&c)), invalid);
        (c.srcLOD, c.dstPitch) = (0, 100);
        assert_eq!(cu!(l, cuMemcpy3D_v2(&c)), invalid, "a pitch below the width");
        assert_eq!(cu!(l, cuMemcpy3D_v2(std::ptr::null())), invalid);
        ok!(l, cuArrayDestroy(b));
        (c.dstPitch, c.srcArray) = (pitch, b);
        assert_eq!(cu!(l, cuMemcpy3D_v2(&c)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn rows_of_two_dimensions_and_lines_of_one_go_in_and_come_out() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let a = array(l, &desc(64, 10, 0, U8, 4, 0));
        let data = pattern(256 * 10, 2);
        let mut c = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: 1,
            srcHost: data.as_ptr().cast(),
            srcDevice: 0,
            srcArray: CUarray::NULL,
            srcPitch: 256,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: 3,
            dstHost: null_mut(),
            dstDevice: 0,
            dstArray: a,
            dstPitch: 0,
            WidthInBytes: 256,
            Height: 10,
        };
        ok!(l, cuMemcpy2D_v2(&c));
        let mut back = vec![0u8; 256 * 10];
        (c.srcMemoryType, c.srcArray, c.dstMemoryType, c.dstHost) = (3, a, 1, back.as_mut_ptr().cast());
        (c.srcY, c.Height, c.dstPitch) = (4, 6, 256);
        ok!(l, cuMemcpy2DAsync_v2(&c, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        assert!(back[..256 * 6] == data[256 * 4..] && back[256 * 6..].iter().all(|b| *b == 0));
        let line = array(l, &desc(1000, 0, 0, U8, 4, 0));
        let mut p = 0;
        ok!(l, cuMemAlloc_v2(&mut p, 4000));
        ok!(l, cuMemcpyHtoA_v2(line, 400, data.as_ptr().cast(), 800));
        ok!(l, cuMemcpyAtoD_v2(p, line, 404, 796));
        ok!(l, cuMemcpyDtoA_v2(line, 0, p, 40));
        ok!(l, cuMemcpyAtoA_v2(line, 2000, line, 0, 80));
        let mut out = vec![0u8; 4000];
        ok!(l, cuMemcpyAtoH_v2(out.as_mut_ptr().cast(), line, 0, 4000));
        assert!(out[..40] == data[4..44] && out[2000..2040] == data[4..44] && out[400..1200] == data[..800]);
        let mut s = CUstream::NULL;
        ok!(l, cuStreamCreate(&mut s, 1));
        ok!(l, cuMemcpyHtoAAsync_v2(line, 0, out[400..].as_ptr().cast(), 400, s));
        ok!(l, cuMemcpyAtoHAsync_v2(out.as_mut_ptr().cast(), line, 0, 400, s));
        ok!(l, cuStreamSynchronize(s));
        assert!(out[..400] == data[..400]);
        let invalid = CUresult::INVALID_VALUE;
        assert_eq!(cu!(l, cuMemcpyAtoH_v2(out.as_mut_ptr().cast(), line, 3996, 8)), invalid, "beyond the end");
        assert_eq!(cu!(l, cuMemcpyAtoH_v2(out.as_mut_ptr().cast(), a, 0, 8)), invalid, "it has two dimensions");
        ok!(l, cuMemcpyAtoH_v2(out.as_mut_ptr().cast(), line, 0, 0));
        ok!(l, cuMemcpyHtoA_v2_ptds(line, 0, data.as_ptr().cast(), 4));
    });
}

#[test]
fn planes_are_arrays_that_end_with_the_whole() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let a = array(l, &desc(640, 480, 0, 0xB0, 3, 0));
        let (mut y, mut uv, mut again, mut none) = (CUarray::NULL, CUarray::NULL, CUarray::NULL, CUarray::NULL);
        ok!(l, cuArrayGetPlane(&mut y, a, 0));
        ok!(l, cuArrayGetPlane(&mut uv, a, 1));
        ok!(l, cuArrayGetPlane(&mut again, a, 1));
        assert_eq!(uv, again);
        assert_eq!(cu!(l, cuArrayGetPlane(&mut none, a, 2)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuArrayGetPlane(&mut none, y, 0)), CUresult::INVALID_VALUE);
        let mut d = desc(0, 0, 0, 0, 0, 0);
        ok!(l, cuArray3DGetDescriptor_v2(&mut d, uv));
        assert_eq!((d.Width, d.Height, d.Format, d.NumChannels), (320, 240, U8, 2));
        let (mut one, mut two) = (pattern(640 * 480, 3), pattern(640 * 240, 4));
        assert_eq!(boxed(l, y, [0; 3], [640, 480, 1], &mut one, true).0, 0);
        assert_eq!(boxed(l, uv, [0; 3], [640, 240, 1], &mut two, true).0, 0);
        let mut back = vec![0; 640 * 480];
        assert_eq!(boxed(l, y, [0; 3], [640, 480, 1], &mut back, false).0, 0);
        assert!(back == one);
        assert_eq!(boxed(l, a, [0; 3], [640, 480, 1], &mut back, false), CUresult::INVALID_VALUE);
        assert_eq!(truth(dir).0, 640 * 480 * 3 / 2);
        assert_eq!(cu!(l, cuArrayDestroy(y)), CUresult::INVALID_HANDLE);
        ok!(l, cuArrayDestroy(a));
        assert_eq!(truth(dir), (0, 0));
        assert_eq!(cu!(l, cuArray3DGetDescriptor_v2(&mut d, uv)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn levels_of_a_mipmapped_array_share_its_memory() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let mut m = CUmipmappedArray::NULL;
        ok!(l, cuMipmappedArrayCreate(&mut m, &desc(1024, 512, 0, U8, 4, 0), 99));
        let (mut sum, mut levels, mut end) = (0u64, Vec::new(), 0u64);
        for k in 0..11 {
            let mut a = CUarray::NULL;
            ok!(l, cuMipmappedArrayGetLevel(&mut a, m, k));
            let bytes = (1024usize >> k).max(1) * (512usize >> k).max(1) * 4;
            end = end.next_multiple_of(512) + bytes as u64;
            sum += bytes as u64;
            levels.push(a);
        }
        assert!(truth(dir).0 == end && end - sum < 11 * 512, "{:?} {end} {sum}", truth(dir));
        let mut none = CUarray::NULL;
        assert_eq!(cu!(l, cuMipmappedArrayGetLevel(&mut none, m, 11)), CUresult::INVALID_VALUE);
        let size = |k: usize| [(1024 >> k).max(1) * 4, (512 >> k).max(1), 1];
        for (k, a) in levels.iter().enumerate() {
            let mut data = pattern(size(k).iter().product(), k);
            assert_eq!(boxed(l, *a, [0; 3], size(k), &mut data, true).0, 0);
        }
        for (k, a) in levels.iter().enumerate() {
            let mut back = vec![0; size(k).iter().product()];
            assert_eq!(boxed(l, *a, [0; 3], size(k), &mut back, false).0, 0);
            assert!(back == pattern(back.len(), k), "level {k}");
        }
        assert_eq!(cu!(l, cuArrayDestroy(levels[3])), CUresult::INVALID_HANDLE);
        ok!(l, cuMipmappedArrayDestroy(m));
        assert_eq!(truth(dir), (0, 0));
        let mut d = desc(0, 0, 0, 0, 0, 0);
        assert_eq!(cu!(l, cuArray3DGetDescriptor_v2(&mut d, levels[3])), CUresult::INVALID_HANDLE);
    });
}

/// A live object; [`begin`] also returns the bytes it requested.
enum Thing {
    Array(CUarray),
    Mipmap(CUmipmappedArray),
    Pointer(CUdeviceptr),
}

fn end(l: &Library, thing: &Thing) {
    match *thing {
        Thing::Array(a) => ok!(l, cuArrayDestroy(a)),
        Thing::Mipmap(m) => ok!(l, cuMipmappedArrayDestroy(m)),
        Thing::Pointer(p) => ok!(l, cuMemFree_v2(p)),
    }
}

/// Makes a random object, chosen by `n`.
fn begin(l: &Library, n: u64) -> (Thing, u64) {
    let (w, h) = (1 + (n >> 8) % 700, 1 + (n >> 20) % 500);
    let (wide, high) = (usize::try_from(w).unwrap(), usize::try_from(h).unwrap());
    let (mut m, mut p) = (CUmipmappedArray::NULL, 0);
    let blocks = w.div_ceil(4) * h.div_ceil(4);
    match n % 8 {
        0 => (Thing::Array(array(l, &desc(wide, 0, 0, F32, 2, 0))), w * 8),
        1 => (Thing::Array(array(l, &desc(wide, high, 0, U8, 4, 0))), w * h * 4),
        2 => (Thing::Array(array(l, &desc(wide, high, 3, 0x10, 1, 1))), w * h * 6),
        3 => (Thing::Array(array(l, &desc(wide, high, 0, 0x94, 4, 0))), blocks * 16),
        4 => (Thing::Array(array(l, &desc(wide, high, 0, U8, 4, CUDA_ARRAY3D_DEFERRED_MAPPING))), 0),
        5 => {
            ok!(l, cuMipmappedArrayCreate(&mut m, &desc(wide, high, 0, U8, 1, 0), 2));
            let (first, second) = (w * h, (w / 2).max(1) * (h / 2).max(1));
            let both = if wide.max(high) == 1 { first } else { first.next_multiple_of(512) + second };
            (Thing::Mipmap(m), both)
        }
        6 => {
            ok!(l, cuMemAllocManaged(&mut p, wide * high * 9, 1));
            (Thing::Pointer(p), w * h * 9)
        }
        _ => {
            ok!(l, cuMemAlloc_v2(&mut p, wide * high * 7));
            (Thing::Pointer(p), w * h * 7)
        }
    }
}

#[test]
fn whatever_comes_and_goes_the_truth_is_the_sum_of_what_lives() {
    on_machine("h200", &[], |l, dir| {
        let mut ctx = CUcontext::NULL;
        ready(l);
        ok!(l, cuCtxGetCurrent(&mut ctx));
        let draw = vgpu_sim::faults::splitmix64;
        let mut living: Vec<(Thing, u64)> = Vec::new();
        for i in 0..600 {
            let n = draw(i);
            if living.len() > 40 || (n >> 50).is_multiple_of(3) && !living.is_empty() {
                let (thing, _) = living.swap_remove(usize::try_from(n >> 40).unwrap() % living.len());
                end(l, &thing);
            } else {
                living.push(begin(l, n));
            }
            let (requested, taken) = truth(dir);
            assert_eq!(requested, living.iter().map(|t| t.1).sum::<u64>(), "after act {i}");
            assert!(taken >= requested);
        }
        living.iter().for_each(|t| end(l, &t.0));
        assert_eq!(truth(dir), (0, 0));
        // Creates and destroys arrays and memory from several threads at once; nothing may be left.
        std::thread::scope(|scope| {
            for k in 0..4u64 {
                scope.spawn(move || {
                    ok!(l, cuCtxSetCurrent(ctx));
                    for i in 0..100 {
                        let few: Vec<_> = (0..5).map(|j| begin(l, draw(k << 40 | i << 8 | j))).collect();
                        few.iter().for_each(|t| end(l, &t.0));
                    }
                });
            }
        });
        assert_eq!(truth(dir), (0, 0));
    });
}
