//! Tests of arrays whose memory is mapped into them, or belongs to another API.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod array_parts;
mod common;

use array_parts::*;
use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;

fn physical(l: &Library, bytes: usize) -> CUmemGenericAllocationHandle {
    let prop = CUmemAllocationProp {
        kind: 1,
        requestedHandleTypes: 0,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        win32HandleMetaData: null_mut(),
        // Usage flag 1: a pool of tiles.
        allocFlags: CUmemAllocationFlags { usage: 1, ..CUmemAllocationFlags::default() },
    };
    let mut h = 0;
    ok!(l, cuMemCreate(&mut h, bytes, &prop, 0));
    h
}

/// Words for a box of tiles: level, layer, offset, extent.
fn tiles(level: u32, layer: u32, at: [u32; 3], size: [u32; 3]) -> [u64; 4] {
    let w = [level, layer, at[0], at[1], at[2], size[0], size[1], size[2]].map(u64::from);
    [w[0] | w[1] << 32, w[2] | w[3] << 32, w[4] | w[5] << 32, w[6] | w[7] << 32]
}

fn entry(resource: *mut c_void, subresource: [u64; 4], handle: u64, offset: u64) -> CUarrayMapInfo {
    CUarrayMapInfo {
        resourceType: 0,
        resource,
        subresourceType: 0,
        subresource,
        memOperationType: if handle == 0 { CU_MEM_OPERATION_TYPE_UNMAP } else { CU_MEM_OPERATION_TYPE_MAP },
        memHandleType: 0,
        memHandle: handle,
        offset,
        deviceBitMask: 1,
        flags: 0,
        reserved: [0; 2],
    }
}

#[test]
fn tiles_of_a_sparse_array_hold_content_while_they_are_mapped() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let d = desc(512, 256, 0, U8, 4, CUDA_ARRAY3D_SPARSE);
        let a = array(l, &d);
        assert_eq!(truth(dir), (0, 0), "a sparse array takes nothing");
        let mut p = CUDA_ARRAY_SPARSE_PROPERTIES::default();
        ok!(l, cuArrayGetSparseProperties(&mut p, a));
        assert_eq!((p.tileWidth, p.tileHeight, p.tileDepth, p.miptailFirstLevel, p.miptailSize), (128, 128, 1, 0, 0));
        let mut data = pattern(2048 * 256, 5);
        let mut back = vec![9; 2048 * 256];
        assert_eq!(boxed(l, a, [0; 3], [2048, 256, 1], &mut data, true).0, 0);
        assert_eq!(boxed(l, a, [0; 3], [2048, 256, 1], &mut back, false).0, 0);
        assert!(back.iter().all(|b| *b == 0), "nothing is there");
        // The middle two columns of tiles, four tiles in all; from the second tile of the memory on.
        let h = physical(l, 2 * MIB);
        let mut list = [entry(a.0, tiles(0, 0, [128, 0, 0], [256, 256, 1]), h, 64 << 10)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuMemRelease(h));
        assert_eq!(truth(dir).1, 2 << 20, "what is mapped keeps the memory");
        assert_eq!(boxed(l, a, [0; 3], [2048, 256, 1], &mut data, true).0, 0);
        assert_eq!(boxed(l, a, [0; 3], [2048, 256, 1], &mut back, false).0, 0);
        for (i, (b, w)) in back.iter().zip(&data).enumerate() {
            let there = (512..1536).contains(&(i % 2048));
            assert_eq!(*b, if there { *w } else { 0 }, "{i}");
        }
        // Unmaps one of the four tiles, then the others.
        let mut list = [entry(a.0, tiles(0, 0, [256, 128, 0], [128, 128, 1]), 0, 0)];
        ok!(l, cuMemMapArrayAsync_ptsz(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        assert_eq!(boxed(l, a, [0; 3], [2048, 256, 1], &mut back, false).0, 0);
        assert!(back[200 * 2048 + 1024] == 0 && back[200 * 2048 + 1020] == data[200 * 2048 + 1020]);
        assert_eq!(truth(dir).1, 2 << 20);
        let mut list = [entry(a.0, tiles(0, 0, [0, 0, 0], [512, 256, 1]), 0, 0)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        assert_eq!(truth(dir), (0, 0));
        // Destroying the array unmaps its tiles.
        let h = physical(l, 2 * MIB);
        let mut list = [entry(a.0, tiles(0, 0, [0; 3], [512, 256, 1]), h, 0)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuMemRelease(h));
        ok!(l, cuArrayDestroy(a));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn a_wrong_entry_maps_nothing_of_its_list() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let a = array(l, &desc(512, 256, 0, U8, 4, CUDA_ARRAY3D_SPARSE));
        let dense = array(l, &desc(512, 256, 0, U8, 4, 0));
        let base = truth(dir).1;
        let h = physical(l, 2 * MIB);
        let good = entry(a.0, tiles(0, 0, [0; 3], [128, 128, 1]), h, 0);
        let whole = tiles(0, 0, [0; 3], [512, 256, 1]);
        for bad in [
            CUarrayMapInfo { resource: dense.0, ..good },
            CUarrayMapInfo { resource: null_mut(), ..good },
            CUarrayMapInfo { resourceType: 1, ..good },
            CUarrayMapInfo { subresource: tiles(0, 0, [64, 0, 0], [128, 128, 1]), ..good },
            CUarrayMapInfo { subresource: tiles(0, 0, [0; 3], [100, 128, 1]), ..good },
            CUarrayMapInfo { subresource: tiles(0, 1, [0; 3], [128, 128, 1]), ..good },
            CUarrayMapInfo { subresource: tiles(1, 0, [0; 3], [128, 128, 1]), ..good },
            CUarrayMapInfo { subresource: tiles(0, 0, [512, 0, 0], [128, 128, 1]), ..good },
            CUarrayMapInfo { subresource: whole, offset: 31 << 16, ..good },
            CUarrayMapInfo { offset: 4096, ..good },
            CUarrayMapInfo { memHandle: 12_345, ..good },
            CUarrayMapInfo { memOperationType: CU_MEM_OPERATION_TYPE_UNMAP, ..good },
            CUarrayMapInfo { memOperationType: 3, ..good },
            CUarrayMapInfo { deviceBitMask: 2, ..good },
            CUarrayMapInfo { deviceBitMask: 3, ..good },
            CUarrayMapInfo { flags: 1, ..good },
            CUarrayMapInfo { reserved: [0, 1], ..good },
        ] {
            let mut list = [CUarrayMapInfo { subresource: whole, ..good }, bad];
            let code = cu!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 2, CUstream::NULL));
            assert_eq!(code, CUresult::INVALID_VALUE, "{bad:?}");
        }
        assert_eq!(cu!(l, cuMemMapArrayAsync(null_mut(), 1, CUstream::NULL)), CUresult::INVALID_VALUE);
        ok!(l, cuMemRelease(h));
        assert_eq!(truth(dir).1, base, "nobody kept the memory");
        let mut p = CUDA_ARRAY_SPARSE_PROPERTIES::default();
        assert_eq!(cu!(l, cuArrayGetSparseProperties(&mut p, dense)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn the_tail_of_a_sparse_mipmap_is_mapped_by_its_bytes() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let mut m = CUmipmappedArray::NULL;
        ok!(l, cuMipmappedArrayCreate(&mut m, &desc(512, 512, 3, U8, 4, CUDA_ARRAY3D_SPARSE | 1), 10));
        let mut p = CUDA_ARRAY_SPARSE_PROPERTIES::default();
        ok!(l, cuMipmappedArrayGetSparseProperties(&mut p, m));
        // Levels of 512, 256 and 128 span tiles of 128; 64 and less are the mip tail: 16 KiB + 4 KiB + ..., one tile
        // per layer.
        assert_eq!((p.tileWidth, p.miptailFirstLevel, p.miptailSize, p.flags), (128, 3, 64 << 10, 0));
        let h = physical(l, 4 * MIB);
        let mip = |e: CUarrayMapInfo| CUarrayMapInfo { resourceType: 1, ..e };
        let tail = |layer: u64| CUarrayMapInfo {
            subresourceType: 1,
            ..mip(entry(m.0, [layer, 0, 64 << 10, 0], h, layer << 16))
        };
        let mut list = [tail(0), tail(2), mip(entry(m.0, tiles(2, 1, [0; 3], [128, 128, 1]), h, 3 << 16))];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 3, CUstream::NULL));
        // All levels are written before any is read, because the levels of a mip tail are adjacent.
        let levels = [(2, vec![1]), (3, vec![0, 2]), (4, vec![0, 2]), (5, vec![0, 2]), (9, vec![0, 2])];
        for write in [true, false] {
            for (level, layers) in &levels {
                let mut a = CUarray::NULL;
                ok!(l, cuMipmappedArrayGetLevel(&mut a, m, *level));
                let n = 512usize >> level;
                let size = [n * 4, n, 3];
                let mut data = pattern(n * n * 12, *level as usize);
                if write {
                    assert_eq!(boxed(l, a, [0; 3], size, &mut data, true).0, 0);
                    continue;
                }
                let mut back = vec![1; n * n * 12];
                assert_eq!(boxed(l, a, [0; 3], size, &mut back, false).0, 0);
                for z in 0..3 {
                    let (b, w) = (&back[z * n * n * 4..][..n * n * 4], &data[z * n * n * 4..][..n * n * 4]);
                    assert!(if layers.contains(&z) { b == w } else { b.iter().all(|x| *x == 0) }, "{level} {z}");
                }
            }
        }
        let mut list = [CUarrayMapInfo { subresource: [3, 0, 64 << 10, 0], ..tail(0) }];
        assert_eq!(cu!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL)), CUresult::INVALID_VALUE);
        ok!(l, cuMemRelease(h));
        ok!(l, cuMipmappedArrayDestroy(m));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn an_array_that_is_mapped_later_is_mapped_as_a_whole() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let a = array(l, &desc(700, 300, 0, F32, 1, CUDA_ARRAY3D_DEFERRED_MAPPING));
        let plain = array(l, &desc(16, 16, 0, F32, 1, 0));
        let base = truth(dir).1;
        let mut r = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
        ok!(l, cuArrayGetMemoryRequirements(&mut r, a, 0));
        assert_eq!((r.size, r.alignment), ((700 * 300 * 4usize).next_multiple_of(64 * KIB), 64 * KIB));
        assert_eq!(cu!(l, cuArrayGetMemoryRequirements(&mut r, plain, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuArrayGetMemoryRequirements(&mut r, a, 7)), CUresult::INVALID_DEVICE);
        let h = physical(l, 2 * MIB);
        let mut list = [entry(a.0, [u64::MAX; 4], h, 128 << 10)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuMemRelease(h));
        let mut data = pattern(2800 * 300, 8);
        assert_eq!(boxed(l, a, [0; 3], [2800, 300, 1], &mut data, true).0, 0);
        let mut back = vec![0; data.len()];
        assert_eq!(boxed(l, a, [0; 3], [2800, 300, 1], &mut back, false).0, 0);
        assert!(back == data);
        assert_eq!(truth(dir).1, base + (2 << 20));
        let mut list = [entry(a.0, [0; 4], 0, 0)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        assert_eq!(truth(dir).1, base);
        assert_eq!(boxed(l, a, [0; 3], [2800, 300, 1], &mut back, false).0, 0);
        assert!(back.iter().all(|b| *b == 0));
    });
}

#[test]
fn mapping_happens_when_the_stream_comes_to_it() {
    extern "C" fn wait(gate: *mut c_void) {
        // SAFETY: the test's own atomic, which outlives the stream's work.
        let gate = unsafe { &*gate.cast::<std::sync::atomic::AtomicBool>() };
        while !gate.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let gate = std::sync::atomic::AtomicBool::new(false);
        let a = array(l, &desc(256, 256, 0, U8, 4, CUDA_ARRAY3D_SPARSE));
        let mut s = CUstream::NULL;
        ok!(l, cuStreamCreate(&mut s, 1));
        let h = physical(l, 2 * MIB);
        let mut list = [entry(a.0, tiles(0, 0, [0; 3], [256, 256, 1]), h, 0)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, s));
        ok!(l, cuMemRelease(h));
        ok!(l, cuStreamSynchronize(s));
        ok!(l, cuLaunchHostFunc(s, Some(wait), (&raw const gate).cast_mut().cast()));
        list[0] = entry(a.0, tiles(0, 0, [0; 3], [256, 256, 1]), 0, 0);
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, s));
        assert_eq!(truth(dir).1, 2 << 20, "the stream has not come to the unmapping");
        gate.store(true, std::sync::atomic::Ordering::Release);
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(truth(dir).1, 0);
    });
}

#[test]
fn a_context_takes_its_arrays_along() {
    on_machine("h200", &[], |l, dir| {
        ok!(l, cuInit(0));
        let mut ctx = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 0));
        let a = array(l, &desc(640, 480, 0, 0xB0, 3, 0));
        let (mut plane, mut m, mut level) = (CUarray::NULL, CUmipmappedArray::NULL, CUarray::NULL);
        ok!(l, cuArrayGetPlane(&mut plane, a, 0));
        ok!(l, cuMipmappedArrayCreate(&mut m, &desc(1024, 1024, 0, F32, 4, 0), 5));
        ok!(l, cuMipmappedArrayGetLevel(&mut level, m, 2));
        let sparse = array(l, &desc(256, 256, 0, U8, 4, CUDA_ARRAY3D_SPARSE));
        let h = physical(l, 2 * MIB);
        let mut list = [entry(sparse.0, tiles(0, 0, [0; 3], [256, 256, 1]), h, 0)];
        ok!(l, cuMemMapArrayAsync(list.as_mut_ptr(), 1, CUstream::NULL));
        ok!(l, cuMemRelease(h));
        ok!(l, cuCtxDestroy_v2(ctx));
        let t = vgpu_sim::truth::read(dir).unwrap();
        assert_eq!(t.devices[0].used, 0);
        ready(l);
        let mut d = desc(0, 0, 0, 0, 0, 0);
        for dead in [a, plane, level, sparse] {
            assert_eq!(cu!(l, cuArray3DGetDescriptor_v2(&mut d, dead)), CUresult::INVALID_HANDLE);
        }
        assert_eq!(cu!(l, cuMipmappedArrayDestroy(m)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn memory_of_another_api_is_shown_as_levels() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        // SAFETY: a new file without a name, of this size.
        let fd = unsafe {
            let fd = libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(fd, 4 << 20), 0);
            fd
        };
        let handle = [u64::from(fd.cast_unsigned()), 0];
        let outside = CUDA_EXTERNAL_MEMORY_HANDLE_DESC { kind: 1, handle, size: 4 << 20, flags: 0, reserved: [0; 16] };
        let mut memory = CUexternalMemory::NULL;
        ok!(l, cuImportExternalMemory(&mut memory, &outside));
        let base = truth(dir);
        let shown = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
            offset: 1 << 20,
            arrayDesc: desc(512, 512, 0, U8, 4, 0),
            numLevels: 3,
            reserved: [0; 16],
        };
        let (mut m, mut a, mut p) = (CUmipmappedArray::NULL, CUarray::NULL, 0);
        ok!(l, cuExternalMemoryGetMappedMipmappedArray(&mut m, memory, &shown));
        assert_eq!(truth(dir), base, "another name for memory that is there");
        ok!(l, cuMipmappedArrayGetLevel(&mut a, m, 1));
        let mut data = pattern(1024 * 256, 9);
        assert_eq!(boxed(l, a, [0; 3], [1024, 256, 1], &mut data, true).0, 0);
        let part = CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset: 2 << 20, size: 1024 * 256, flags: 0, reserved: [0; 16] };
        ok!(l, cuExternalMemoryGetMappedBuffer(&mut p, memory, &part));
        let mut back = vec![0; data.len()];
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, back.len()));
        assert!(back == data, "level 1 begins behind level 0");
        let invalid = CUresult::INVALID_VALUE;
        let mut other = CUmipmappedArray::NULL;
        let beyond = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC { offset: 3 << 20, ..shown };
        assert_eq!(cu!(l, cuExternalMemoryGetMappedMipmappedArray(&mut other, memory, &beyond)), invalid);
        let none = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC { numLevels: 0, ..shown };
        assert_eq!(cu!(l, cuExternalMemoryGetMappedMipmappedArray(&mut other, memory, &none)), invalid);
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuDestroyExternalMemory(memory));
        assert_eq!(truth(dir), base, "what is shown is kept");
        ok!(l, cuMipmappedArrayDestroy(m));
        assert_eq!(truth(dir), (0, 0));
    });
}
