//! Tests of pools: their memory, their growth, the source of each allocation, and the return of memory.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const CHUNK: u64 = 32 << 20;
const PTX: &CStr = c".version 7.0\n.target sm_50\n.address_size 64\n\
    .visible .entry vgpu_spin_ns(.param .u64 ns) { ret; }\n";

fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

fn stream(l: &Library) -> CUstream {
    let mut s = CUstream::NULL;
    ok!(l, cuStreamCreate(&mut s, 1));
    s
}

fn default_pool(l: &Library) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    ok!(l, cuDeviceGetDefaultMemPool(&mut pool, 0));
    pool
}

fn props(max: usize) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: 1,
        handleTypes: 0,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        win32SecurityAttributes: null_mut(),
        maxSize: max,
        usage: 0,
        reserved: [0; 54],
    }
}

fn pool_of(l: &Library, max: usize) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    ok!(l, cuMemPoolCreate(&mut pool, &props(max)));
    pool
}

fn from(l: &Library, pool: CUmemoryPool, bytes: usize, s: CUstream) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAllocFromPoolAsync(&mut p, bytes, pool, s));
    p
}

fn spin(l: &Library, s: CUstream, mut ns: u64) {
    let (mut m, mut f) = (CUmodule::NULL, CUfunction::NULL);
    ok!(l, cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
    ok!(l, cuModuleGetFunction(&mut f, m, c"vgpu_spin_ns".as_ptr()));
    let mut params = [(&raw mut ns).cast::<c_void>()];
    ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params.as_mut_ptr(), null_mut()));
}

fn get(l: &Library, pool: CUmemoryPool, attribute: u32) -> u64 {
    let mut v = 0u64;
    ok!(l, cuMemPoolGetAttribute(pool, attribute, (&raw mut v).cast()));
    v
}

fn set(l: &Library, pool: CUmemoryPool, attribute: u32, mut v: u64) {
    ok!(l, cuMemPoolSetAttribute(pool, attribute, (&raw mut v).cast()));
}

/// Reserved and used bytes of the pool.
fn has(l: &Library, pool: CUmemoryPool) -> (u64, u64) {
    (get(l, pool, 5), get(l, pool, 7))
}

/// Physical bytes without contexts, and bytes of live pointers, from the ground truth.
fn truth(dir: &Path) -> (u64, u64) {
    let t = vgpu_sim::truth::read(dir).unwrap();
    let p = t.living_process(0, std::process::id()).unwrap();
    (p.slab_bytes, p.requested_bytes)
}

#[test]
fn a_pool_grows_in_chunks_and_lets_go_of_them_at_a_synchronisation() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool) = (stream(l), default_pool(l));
        let (mut a, mut b) = (0, 0);
        ok!(l, cuMemAllocAsync(&mut a, 3 * MIB - 1, s));
        assert_eq!((truth(dir), has(l, pool)), ((CHUNK, (3 << 20) - 1), (CHUNK, 3 << 20)));
        ok!(l, cuMemAllocAsync(&mut b, 33 * MIB, s));
        assert_eq!(has(l, pool), (CHUNK + (34 << 20), 36 << 20), "the request in whole granules");
        ok!(l, cuMemFreeAsync(b, s));
        assert_eq!((truth(dir).0, has(l, pool).1), (CHUNK + (34 << 20), 3 << 20), "kept until somebody synchronises");
        ok!(l, cuStreamSynchronize(s));
        assert_eq!((truth(dir), has(l, pool)), ((CHUNK, (3 << 20) - 1), (CHUNK, 3 << 20)));
        assert_eq!((get(l, pool, 6), get(l, pool, 8)), (CHUNK + (34 << 20), 36 << 20));
        for attribute in [6, 8] {
            assert_eq!(cu!(l, cuMemPoolSetAttribute(pool, attribute, (&raw mut b).cast())), CUresult::INVALID_VALUE);
            set(l, pool, attribute, 0);
        }
        assert_eq!((get(l, pool, 6), get(l, pool, 8)), (CHUNK, 3 << 20), "put back to the present");
        ok!(l, cuMemFree_v2(a));
        ok!(l, cuCtxSynchronize());
        assert_eq!((truth(dir), has(l, pool)), ((0, 0), (0, 0)));
        assert_eq!(cu!(l, cuMemFreeAsync(a, s)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemAllocAsync(&mut a, 0, s)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn the_threshold_is_kept_at_every_kind_of_synchronisation() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool) = (stream(l), pool_of(l, 0));
        let mut e = CUevent::NULL;
        ok!(l, cuEventCreate(&mut e, 0));
        for way in 0..3 {
            let blocks: Vec<_> = (0..4).map(|_| from(l, pool, 32 * MIB, s)).collect();
            set(l, pool, 4, 2 * CHUNK);
            assert_eq!(get(l, pool, 4), 2 * CHUNK);
            for b in blocks {
                ok!(l, cuMemFreeAsync(b, s));
            }
            ok!(l, cuEventRecord(e, s));
            let synchronise = || match way {
                0 => ok!(l, cuStreamSynchronize(s)),
                1 => ok!(l, cuEventSynchronize(e)),
                _ => ok!(l, cuCtxSynchronize()),
            };
            assert_eq!(truth(dir).0, 4 * CHUNK);
            synchronise();
            assert_eq!((truth(dir).0, has(l, pool)), (2 * CHUNK, (2 * CHUNK, 0)), "way {way}");
            set(l, pool, 4, 0);
            assert_eq!(truth(dir).0, 2 * CHUNK, "not before the next one");
            synchronise();
            assert_eq!(truth(dir).0, 0);
        }
    });
}

#[test]
fn a_trim_keeps_what_it_is_told_to_and_what_is_in_use() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool) = (stream(l), pool_of(l, 0));
        let blocks: Vec<_> = (0..4).map(|_| from(l, pool, 32 * MIB, s)).collect();
        set(l, pool, 4, u64::MAX);
        for b in &blocks[..3] {
            ok!(l, cuMemFreeAsync(*b, s));
        }
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(truth(dir).0, 4 * CHUNK);
        ok!(l, cuMemPoolTrimTo(pool, 3 * 32 * MIB - 1));
        assert_eq!(truth(dir).0, 3 * CHUNK);
        ok!(l, cuMemPoolTrimTo(pool, 0));
        assert_eq!((truth(dir), has(l, pool)), ((CHUNK, CHUNK), (CHUNK, CHUNK)));
        ok!(l, cuMemFreeAsync(blocks[3], s));
        spin(l, s, 0);
        ok!(l, cuMemPoolTrimTo(pool, 0));
        assert_eq!(has(l, pool), (0, 0), "the device has passed the free already");
    });
}

extern "C" fn wait_for(flag: *mut c_void) {
    // SAFETY: the test passes its live flag.
    while !unsafe { &*flag.cast::<std::sync::atomic::AtomicBool>() }.load(std::sync::atomic::Ordering::Acquire) {
        std::thread::yield_now();
    }
}

#[test]
fn a_stream_has_its_own_frees_at_once_and_others_when_the_device_has_passed_them() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, other, pool) = (stream(l), stream(l), pool_of(l, 0));
        let go = std::sync::atomic::AtomicBool::new(false);
        let a = from(l, pool, 32 * MIB, s);
        ok!(l, cuLaunchHostFunc(s, Some(wait_for), go.as_ptr().cast()));
        ok!(l, cuMemFreeAsync(a, s));
        assert_eq!((truth(dir), has(l, pool)), ((CHUNK, CHUNK), (CHUNK, CHUNK)), "the stream has not come to the free");
        assert_eq!(cu!(l, cuMemFreeAsync(a, s)), CUresult::INVALID_VALUE);
        let b = from(l, pool, 32 * MIB, s);
        assert_eq!((b, has(l, pool)), (a, (CHUNK, CHUNK)), "in its own order it may have it");
        ok!(l, cuMemFreeAsync(b, s));
        let c = from(l, pool, 32 * MIB, other);
        assert_eq!((truth(dir).0, has(l, pool).0), (2 * CHUNK, 2 * CHUNK), "another stream may not");
        go.store(true, std::sync::atomic::Ordering::Release);
        ok!(l, cuStreamSynchronize(s));
        assert_eq!((truth(dir), has(l, pool)), ((CHUNK, CHUNK), (CHUNK, CHUNK)));
        // The free follows a kernel that the device has not finished.
        spin(l, other, 30_000_000);
        ok!(l, cuMemFreeAsync(c, other));
        assert_eq!(has(l, pool), (CHUNK, 0));
        ok!(l, cuMemPoolTrimTo(pool, 0));
        assert_eq!(has(l, pool).0, CHUNK, "memory that work uses is not given back");
        let d = from(l, pool, MIB, s);
        assert_eq!(has(l, pool).0, 2 * CHUNK);
        ok!(l, cuStreamSynchronize(other));
        let e = from(l, pool, 31 * MIB, s);
        assert!(e != c && has(l, pool).0 == CHUNK, "after the synchronisation one chunk is left, and serves");
        for p in [d, e] {
            ok!(l, cuMemFreeAsync(p, s));
        }
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn frees_that_are_over_serve_others_unless_that_is_turned_off() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, other, pool) = (stream(l), stream(l), pool_of(l, 0));
        for (on, chunks) in [(1u32, 1), (0, 2)] {
            let mut value = on;
            ok!(l, cuMemPoolSetAttribute(pool, 2, (&raw mut value).cast()));
            let mut back = 7u32;
            ok!(l, cuMemPoolGetAttribute(pool, 2, (&raw mut back).cast()));
            assert_eq!(back, on);
            let a = from(l, pool, 32 * MIB, s);
            ok!(l, cuMemFreeAsync(a, s));
            while cu!(l, cuStreamQuery(s)) != CUresult::SUCCESS {}
            let b = from(l, pool, 32 * MIB, other);
            assert_eq!(has(l, pool).0, chunks * CHUNK, "{on}");
            ok!(l, cuMemFreeAsync(b, other));
            ok!(l, cuCtxSynchronize());
            assert_eq!(has(l, pool), (0, 0));
        }
    });
}

#[test]
fn a_stream_that_waited_for_anothers_free_may_have_it() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, middle, other, pool) = (stream(l), stream(l), stream(l), pool_of(l, 0));
        let event = || {
            let mut e = CUevent::NULL;
            ok!(l, cuEventCreate(&mut e, 2));
            e
        };
        let (early, late, through) = (event(), event(), event());
        for (on, chunks) in [(1u32, 1), (0, 2)] {
            let mut value = on;
            ok!(l, cuMemPoolSetAttribute(pool, 1, (&raw mut value).cast()));
            let a = from(l, pool, 32 * MIB, s);
            spin(l, s, 30_000_000);
            ok!(l, cuEventRecord(early, s));
            ok!(l, cuMemFreeAsync(a, s));
            ok!(l, cuEventRecord(late, s));
            // A stream that waits for an event before the free cannot reuse the freed memory.
            ok!(l, cuStreamWaitEvent(other, early, 0));
            let b = from(l, pool, 32 * MIB, other);
            assert_eq!(has(l, pool).0, 2 * CHUNK, "{on}");
            // A stream that waits for an event after the free can reuse it, through a third stream too.
            ok!(l, cuStreamWaitEvent(middle, late, 0));
            ok!(l, cuEventRecord(through, middle));
            ok!(l, cuStreamWaitEvent(other, through, 0));
            let c = from(l, pool, 32 * MIB, other);
            assert_eq!((has(l, pool).0, c == a), ((1 + chunks) * CHUNK, on == 1), "{on}");
            assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
            for p in [b, c] {
                ok!(l, cuMemFreeAsync(p, other));
            }
            ok!(l, cuCtxSynchronize());
            assert_eq!(has(l, pool), (0, 0));
        }
    });
}

#[test]
fn with_no_more_memory_a_stream_waits_for_anothers_free() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, other, pool) = (stream(l), stream(l), pool_of(l, 64 * MIB));
        let a = from(l, pool, 64 * MIB, s);
        assert_eq!(cu!(l, cuMemAllocFromPoolAsync(&mut 0, 1, pool, other)), CUresult::OUT_OF_MEMORY, "the maximum");
        spin(l, s, 20_000_000);
        ok!(l, cuMemFreeAsync(a, s));
        let mut off = 0u32;
        ok!(l, cuMemPoolSetAttribute(pool, 3, (&raw mut off).cast()));
        assert_eq!(cu!(l, cuMemAllocFromPoolAsync(&mut 0, MIB, pool, other)), CUresult::OUT_OF_MEMORY);
        off = 1;
        ok!(l, cuMemPoolSetAttribute(pool, 3, (&raw mut off).cast()));
        let b = from(l, pool, MIB, other);
        assert_eq!(cu!(l, cuStreamQuery(other)), CUresult::NOT_READY, "it waits for the other's kernel");
        ok!(l, cuStreamSynchronize(other));
        ok!(l, cuStreamQuery(s));
        assert_eq!(truth(dir), (2 * CHUNK, 1 << 20));
        ok!(l, cuMemFreeAsync(b, other));
        ok!(l, cuCtxSynchronize());
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn before_any_refusal_unused_memory_of_pools_goes_back() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool, second) = (stream(l), pool_of(l, 0), pool_of(l, 0));
        let free = || vgpu_sim::truth::read(dir).unwrap().devices[0].free;
        let all = usize::try_from(free()).unwrap();
        let fill = || {
            set(l, pool, 4, u64::MAX);
            let p = from(l, pool, all - 8 * MIB, s);
            ok!(l, cuMemFreeAsync(p, s));
            ok!(l, cuStreamSynchronize(s));
            assert!(free() < (16 << 20));
        };
        // `cuMemAlloc` gets the unused memory of a pool.
        fill();
        let mut p = 0;
        ok!(l, cuMemAlloc_v2(&mut p, 40 * MIB));
        assert_eq!(has(l, pool), (0, 0));
        ok!(l, cuMemFree_v2(p));
        // A physical allocation gets the unused memory of a pool.
        fill();
        let prop = CUmemAllocationProp {
            kind: 1,
            requestedHandleTypes: 0,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            win32HandleMetaData: null_mut(),
            allocFlags: CUmemAllocationFlags::default(),
        };
        let mut h = 0;
        ok!(l, cuMemCreate(&mut h, 40 * MIB, &prop, 0));
        ok!(l, cuMemRelease(h));
        // Another pool gets the unused memory of a pool.
        fill();
        let b = from(l, second, 40 * MIB, s);
        assert_eq!(has(l, pool), (0, 0));
        ok!(l, cuMemFreeAsync(b, s));
        ok!(l, cuStreamSynchronize(s));
        // A new context gets the unused memory of a pool.
        fill();
        let mut ctx = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 0));
        assert_eq!(has(l, pool), (0, 0));
        ok!(l, cuCtxDestroy_v2(ctx));
        // Memory in use is not returned.
        let c = from(l, pool, all - 8 * MIB, s);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut p, 40 * MIB)), CUresult::OUT_OF_MEMORY);
        assert_eq!(cu!(l, cuMemAllocFromPoolAsync(&mut p, 40 * MIB, second, s)), CUresult::OUT_OF_MEMORY);
        ok!(l, cuMemFreeAsync(c, s));
        ok!(l, cuStreamSynchronize(s));
    });
}

#[test]
fn less_than_a_chunk_is_enough_where_there_is_no_more() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool) = (stream(l), pool_of(l, 0));
        let free = || vgpu_sim::truth::read(dir).unwrap().devices[0].free;
        let mut p = 0;
        ok!(l, cuMemAlloc_v2(&mut p, usize::try_from(free()).unwrap() - 6 * MIB));
        let b = from(l, pool, 5 * MIB, s);
        assert_eq!((free(), has(l, pool)), (0, (6 << 20, 5 << 20)));
        ok!(l, cuMemFreeAsync(b, s));
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(free(), 6 << 20);
    });
}

#[test]
fn a_destroyed_pool_lives_as_long_as_its_last_block() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, pool, default) = (stream(l), pool_of(l, 0), default_pool(l));
        let mut current = CUmemoryPool::NULL;
        ok!(l, cuDeviceSetMemPool(0, pool));
        ok!(l, cuDeviceGetMemPool(&mut current, 0));
        assert_eq!(current, pool);
        let (mut a, mut b) = (0, 0);
        ok!(l, cuMemAllocAsync(&mut a, 40 * MIB, s));
        ok!(l, cuMemAllocAsync(&mut b, MIB, s));
        let mut of = CUmemoryPool::NULL;
        ok!(l, cuPointerGetAttribute((&raw mut of).cast(), 17, a));
        assert_eq!(of, pool);
        ok!(l, cuMemPoolDestroy(pool));
        assert_eq!(cu!(l, cuMemPoolDestroy(pool)), CUresult::INVALID_HANDLE);
        assert_eq!(cu!(l, cuMemAllocFromPoolAsync(&mut 0, 1, pool, s)), CUresult::INVALID_HANDLE);
        ok!(l, cuDeviceGetMemPool(&mut current, 0));
        assert_eq!(current, default, "the default pool takes its place");
        assert_eq!(cu!(l, cuMemPoolDestroy(default)), CUresult::INVALID_VALUE);
        assert_eq!(truth(dir).0, (40 << 20) + CHUNK);
        ok!(l, cuMemFree_v2(a));
        assert_eq!(truth(dir).0, CHUNK, "what it no longer needs goes at once");
        ok!(l, cuMemFreeAsync(b, s));
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(truth(dir), (0, 0));
        // A pool whose blocks are freed, but not passed by the device, when it is destroyed.
        let pool = pool_of(l, 0);
        let c = from(l, pool, MIB, s);
        spin(l, s, 10_000_000);
        ok!(l, cuMemFreeAsync(c, s));
        ok!(l, cuMemPoolDestroy(pool));
        assert_eq!(truth(dir).0, CHUNK);
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn a_newer_driver_names_pools_by_location() {
    on_machine("t4", &[("VGPU_SIM_DRIVER", "580")], |l, _| {
        ready(l);
        let (default, pool, mut current) = (default_pool(l), pool_of(l, 0), CUmemoryPool::NULL);
        let (mut here, mut host) = (props(0).location, CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 });
        ok!(l, cuMemSetMemPool(&mut here, 1, pool));
        ok!(l, cuDeviceGetMemPool(&mut current, 0));
        assert_eq!(current, pool);
        ok!(l, cuMemGetDefaultMemPool(&mut current, &mut here, 1));
        assert_eq!(current, default);
        ok!(l, cuMemGetMemPool(&mut current, &mut here, 1));
        assert_eq!(current, pool);
        assert_eq!(cu!(l, cuMemGetMemPool(&mut current, &mut host, 1)), CUresult::NOT_SUPPORTED);
    });
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (mut here, mut current) = (props(0).location, CUmemoryPool::NULL);
        assert_eq!(cu!(l, cuMemGetMemPool(&mut current, &mut here, 1)), CUresult::NOT_SUPPORTED, "not yet in 535");
    });
}

#[test]
fn a_context_takes_its_blocks_along_and_the_pools_shrink() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (mut ctx, mut a, mut b) = (CUcontext::NULL, 0, 0);
        ok!(l, cuMemAllocAsync(&mut a, MIB, CUstream::NULL));
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 0));
        ok!(l, cuMemAllocAsync(&mut b, 40 * MIB, CUstream::NULL));
        assert_eq!(truth(dir), (CHUNK + (40 << 20), 41 << 20));
        ok!(l, cuCtxDestroy_v2(ctx));
        assert_eq!(truth(dir), (CHUNK, 1 << 20));
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn content_in_a_pool_is_what_was_written_and_blocks_do_not_touch() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, pool) = (stream(l), pool_of(l, 0));
        let sizes: Vec<usize> = (0..40).map(|k| 1 + (k * 7919 * 131) % (3 * MIB)).collect();
        let blocks: Vec<u64> = sizes.iter().map(|n| from(l, pool, *n, s)).collect();
        for (k, (b, n)) in (0u8..).zip(blocks.iter().zip(&sizes)) {
            ok!(l, cuMemsetD8Async(*b, k + 1, *n, s));
        }
        for (k, (b, n)) in (0u8..).zip(blocks.iter().zip(&sizes)) {
            let mut back = vec![0u8; *n];
            ok!(l, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), *b, *n, s));
            ok!(l, cuStreamSynchronize(s));
            assert!(back.iter().all(|x| *x == k + 1));
            let beyond = cu!(l, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), *b, *n + 1, s));
            assert_eq!(beyond, CUresult::INVALID_VALUE);
        }
        for b in blocks {
            ok!(l, cuMemFreeAsync(b, s));
        }
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(has(l, pool), (0, 0));
    });
}

#[test]
fn wrong_pools_are_refused() {
    on_machine("2xt4", &[], |l, _| {
        ready(l);
        let mut pool = CUmemoryPool::NULL;
        let host = CUmemPoolProps { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 }, ..props(0) };
        let far = CUmemPoolProps { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 9 }, ..props(0) };
        assert_eq!(cu!(l, cuMemPoolCreate(&mut pool, &host)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemPoolCreate(&mut pool, &far)), CUresult::INVALID_DEVICE);
        let fabric = CUmemPoolProps { handleTypes: CU_MEM_HANDLE_TYPE_FABRIC, ..props(0) };
        assert_eq!(cu!(l, cuMemPoolCreate(&mut pool, &fabric)), CUresult::NOT_SUPPORTED);
        ok!(l, cuMemPoolCreate(&mut pool, &props(0)));
        assert_eq!(cu!(l, cuDeviceSetMemPool(1, pool)), CUresult::INVALID_VALUE, "of another device");
        let desc =
            |id, flags| CUmemAccessDesc { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id }, flags };
        ok!(l, cuMemPoolSetAccess(pool, &desc(0, 3), 1));
        ok!(l, cuMemPoolSetAccess(pool, &desc(1, 0), 1));
        assert_eq!(cu!(l, cuMemPoolSetAccess(pool, &desc(0, 0), 1)), CUresult::INVALID_VALUE);
        assert_eq!(
            cu!(l, cuMemPoolSetAccess(pool, &desc(1, 3), 1)),
            CUresult::INVALID_DEVICE,
            "no device reaches another"
        );
        let (mut flags, mut here) = (9, desc(0, 0).location);
        ok!(l, cuMemPoolGetAccess(&mut flags, pool, &mut here));
        assert_eq!(flags, 3);
        let mut value = 0u64;
        for attribute in [0, 5, 7, 9] {
            let bad = cu!(l, cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()));
            assert_eq!(bad, CUresult::INVALID_VALUE, "{attribute}");
        }
    });
}

#[test]
fn many_threads_share_a_pool_and_nothing_is_lost() {
    on_machine("h200", &[], |l, dir| {
        let ctx = ready(l);
        let pool = pool_of(l, 0);
        std::thread::scope(|scope| {
            for k in 0..6u64 {
                scope.spawn(move || {
                    ok!(l, cuCtxSetCurrent(ctx));
                    let (s, t) = (stream(l), stream(l));
                    for i in 0..200u64 {
                        let bytes = 8 + vgpu_sim::faults::splitmix64(k * 1000 + i) % (40 << 20);
                        let p = from(l, pool, usize::try_from(bytes).unwrap(), s);
                        let (value, mut back) = (k << 32 | i, 0u64);
                        ok!(l, cuMemcpyHtoDAsync_v2(p, (&raw const value).cast(), 8, s));
                        ok!(l, cuMemcpyDtoHAsync_v2((&raw mut back).cast(), p, 8, s));
                        ok!(l, cuMemFreeAsync(p, if i % 3 == 0 { t } else { s }));
                        ok!(l, cuStreamSynchronize(s));
                        assert_eq!(back, value);
                    }
                });
            }
        });
        ok!(l, cuCtxSynchronize());
        assert_eq!((truth(dir), has(l, pool)), ((0, 0), (0, 0)));
    });
}
