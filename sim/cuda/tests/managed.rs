//! Tests of managed memory: one address for host and device, counted in full, advice and queries.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const GLOBAL: u32 = 1;
const CPU: i32 = -1;
const NOBODY: i32 = -2;

/// Initialises the driver and makes the primary context of device 0 current.
fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

fn managed(l: &Library, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAllocManaged(&mut p, bytes, GLOBAL));
    p
}

/// Requested bytes, and bytes of device memory in allocations.
fn truth(dir: &Path, device: usize) -> (u64, u64) {
    let t = vgpu_sim::truth::read(dir).unwrap();
    t.living_process(device, std::process::id()).map_or((0, 0), |p| (p.requested_bytes, p.slab_bytes))
}

/// A range attribute that is a single number.
fn asked(l: &Library, attribute: u32, p: CUdeviceptr, bytes: usize) -> i32 {
    let mut value = 77i32;
    ok!(l, cuMemRangeGetAttribute((&raw mut value).cast(), 4, attribute, p, bytes));
    value
}

#[test]
fn host_and_device_see_the_same_bytes_at_the_same_address() {
    on_machine("h200", &[], |l, _| {
        ready(l);
        let (p, n) = (managed(l, 3 * MIB + 5), 3 * MIB + 5);
        // SAFETY: the host may use managed memory; nothing else uses it now.
        let host = unsafe { std::slice::from_raw_parts_mut(p as *mut u8, n) };
        host.iter_mut().enumerate().for_each(|(i, b)| *b = u8::try_from(i % 251).unwrap());
        let mut back = vec![0u8; n];
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, n));
        assert!(back == host);
        ok!(l, cuMemsetD32_v2(p + 4, 0x0102_0304, 2));
        ok!(l, cuCtxSynchronize());
        assert!(host[4..12] == [4, 3, 2, 1, 4, 3, 2, 1] && host[12] == 12);
        let mut d = 0;
        ok!(l, cuMemAlloc_v2(&mut d, n));
        ok!(l, cuMemcpyDtoD_v2(d, p, n));
        ok!(l, cuMemsetD8_v2(p, 0, n));
        ok!(l, cuMemcpyDtoD_v2(p, d, 16));
        ok!(l, cuCtxSynchronize());
        assert!(host[..4] == [0, 1, 2, 3] && host[16..].iter().all(|b| *b == 0));
        let invalid = CUresult::INVALID_VALUE;
        assert_eq!(cu!(l, cuMemsetD8_v2(p, 0, n + 1)), invalid, "beyond the end");
        ok!(l, cuMemFree_v2(p));
        assert_eq!(cu!(l, cuMemcpyDtoD_v2(d, p, 16)), invalid, "freed");
    });
}

#[test]
fn managed_memory_counts_in_full_until_it_is_freed() {
    on_machine("2xh200", &[], |l, dir| {
        ready(l);
        let small: Vec<CUdeviceptr> = (0..10).map(|_| managed(l, 1000)).collect();
        assert_eq!(truth(dir, 0), (10_000, 2 << 20));
        let mut plain = 0;
        ok!(l, cuMemAlloc_v2(&mut plain, 1000));
        assert_eq!(truth(dir, 0), (11_000, 4 << 20), "its pages are not the device's alone");
        let large = managed(l, 100 * MIB);
        assert_eq!(truth(dir, 0).0, 11_000 + (100 << 20));
        let mut ctx = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 1));
        let other = managed(l, 3 * MIB);
        assert_eq!(truth(dir, 1), (3 << 20, 4 << 20));
        ok!(l, cuMemFree_v2(large));
        assert_eq!(cu!(l, cuMemFree_v2(large)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemFree_v2(other + 512)), CUresult::INVALID_VALUE);
        for p in small {
            ok!(l, cuMemFree_v2(p));
        }
        assert_eq!(truth(dir, 0), (1000, 2 << 20));
        ok!(l, cuCtxDestroy_v2(ctx));
        assert_eq!(truth(dir, 1), (0, 0), "the context took its managed memory along");
        let mut kind = 0u32;
        let gone = cu!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, other));
        assert_ne!(gone, CUresult::SUCCESS);
    });
}

#[test]
fn what_cannot_be_is_refused_and_takes_nothing() {
    on_machine("t4", &[], |l, dir| {
        let mut p = 7;
        assert_eq!(cu!(l, cuMemAllocManaged(&mut p, 4096, GLOBAL)), CUresult::NOT_INITIALIZED);
        ok!(l, cuInit(0));
        assert_eq!(cu!(l, cuMemAllocManaged(&mut p, 4096, GLOBAL)), CUresult::INVALID_CONTEXT);
        ready(l);
        for (bytes, flags) in [(0, 1), (4096, 0), (4096, 3), (4096, 4)] {
            assert_eq!(cu!(l, cuMemAllocManaged(&mut p, bytes, flags)), CUresult::INVALID_VALUE);
        }
        assert_eq!(cu!(l, cuMemAllocManaged(null_mut(), 4096, 1)), CUresult::INVALID_VALUE);
        let (mut free, mut total) = (0, 0);
        ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!(cu!(l, cuMemAllocManaged(&mut p, free + 1, 1)), CUresult::OUT_OF_MEMORY);
        assert_eq!((p, truth(dir, 0)), (7, (0, 0)));
        p = managed(l, free);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut 0, 1)), CUresult::OUT_OF_MEMORY);
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuMemAllocManaged(&mut p, 4096, 2));
    });
}

#[test]
fn a_managed_pointer_is_known_for_what_it_is() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let p = managed(l, 10_000);
        let (mut kind, mut is, mut owner, mut host, mut dev) = (0u32, 0u32, CUcontext::NULL, 0u64, -9i32);
        ok!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, p + 9));
        ok!(l, cuPointerGetAttribute((&raw mut is).cast(), 8, p + 9));
        ok!(l, cuPointerGetAttribute((&raw mut owner).cast(), 1, p));
        ok!(l, cuPointerGetAttribute((&raw mut host).cast(), 4, p + 9));
        ok!(l, cuPointerGetAttribute((&raw mut dev).cast(), 9, p));
        assert_eq!((kind, is, owner, host, dev), (2, 1, ctx, p + 9, 0));
        let (mut base, mut size) = (0, 0);
        ok!(l, cuMemGetAddressRange_v2(&mut base, &mut size, p + 9999));
        assert_eq!((base, size), (p, 10_000));
        let mut q = 0;
        ok!(l, cuMemAlloc_v2(&mut q, 10));
        ok!(l, cuPointerGetAttribute((&raw mut is).cast(), 8, q));
        assert_eq!(is, 0);
        let mut yes = 0;
        for attribute in [83, 89] {
            ok!(l, cuDeviceGetAttribute(&mut yes, attribute, 0));
            assert_eq!(yes, 1);
        }
    });
}

#[test]
fn advice_is_remembered_page_by_page() {
    on_machine("2xh200", &[], |l, _| {
        ready(l);
        let (p, n) = (managed(l, MIB), MIB);
        assert_eq!([1, 2, 4].map(|a| asked(l, a, p, n)), [0, NOBODY, NOBODY]);
        ok!(l, cuMemAdvise(p, n, 1, 0));
        ok!(l, cuMemAdvise(p, n, 3, CPU));
        assert_eq!([1, 2].map(|a| asked(l, a, p, n)), [1, CPU]);
        // The middle differs, so the whole range has no common location.
        let device = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 1 };
        ok!(l, cuMemAdvise_v2(p + 8192, 4096, 3, device));
        ok!(l, cuMemAdvise(p + 8192, 4096, 2, 0));
        assert_eq!([1, 2].map(|a| asked(l, a, p, n)), [0, NOBODY]);
        assert_eq!([1, 2, 5, 6].map(|a| asked(l, a, p + 8192, 4096)), [0, 1, 1, 1]);
        assert_eq!([1, 2, 5].map(|a| asked(l, a, p + 12_288, n - 12_288)), [1, CPU, 2]);
        assert_eq!(asked(l, 2, p, 8192), CPU);
        ok!(l, cuMemAdvise(p, n, 4, 0));
        assert_eq!(asked(l, 2, p, n), NOBODY);
        // Devices with the accessed-by advice.
        for d in [CPU, 1] {
            ok!(l, cuMemAdvise(p, n, 5, d));
        }
        ok!(l, cuMemAdvise(p, 4096, 5, 0));
        ok!(l, cuMemAdvise(p, n, 6, CPU));
        let mut who = [7i32; 3];
        ok!(l, cuMemRangeGetAttribute(who.as_mut_ptr().cast(), 12, 3, p, n));
        assert_eq!(who, [1, NOBODY, NOBODY]);
        ok!(l, cuMemRangeGetAttribute(who.as_mut_ptr().cast(), 12, 3, p, 4096));
        assert_eq!(who, [0, 1, NOBODY]);
        let (mut a, mut b) = (0i32, [0i32; 2]);
        let mut out = [(&raw mut a).cast::<c_void>(), b.as_mut_ptr().cast()];
        let (mut sizes, mut names) = ([4, 8], [1, 3]);
        ok!(l, cuMemRangeGetAttributes(out.as_mut_ptr(), sizes.as_mut_ptr(), names.as_mut_ptr(), 2, p, n));
        assert_eq!((a, b), (0, [1, NOBODY]));
    });
}

#[test]
fn prefetches_say_where_the_pages_went_and_take_time() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let (p, n) = (managed(l, 64 * MIB), 64 * MIB);
        let mut s = CUstream::NULL;
        ok!(l, cuStreamCreate(&mut s, 1));
        ok!(l, cuMemPrefetchAsync(p, n, 0, s));
        assert_eq!([4, 7, 8].map(|a| asked(l, a, p, n)), [0, 1, 0]);
        ok!(l, cuStreamSynchronize(s));
        let busy = vgpu_sim::truth::read(dir).unwrap().living_process(0, std::process::id()).unwrap().busy_ns;
        assert!(busy > 100_000, "{busy}");
        ok!(l, cuMemPrefetchAsync(p, n, 0, s));
        ok!(l, cuStreamSynchronize(s));
        let again = vgpu_sim::truth::read(dir).unwrap().living_process(0, std::process::id()).unwrap().busy_ns;
        assert_eq!(again, busy, "it was there already");
        let numa = CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 3 };
        ok!(l, cuMemPrefetchAsync_v2(p, 4096, numa, 0, s));
        assert_eq!([4, 7, 8].map(|a| asked(l, a, p, 4096)), [CPU, 3, 3]);
        assert_eq!(asked(l, 4, p, n), NOBODY);
        assert_eq!(truth(dir, 0).1, 64 << 20, "counted wherever it is");
        ok!(l, cuMemPrefetchAsync_ptsz(p, n, CPU, CUstream::NULL));
    });
}

#[test]
fn wrong_ranges_places_and_sizes_are_errors() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (p, invalid) = (managed(l, 10_000), CUresult::INVALID_VALUE);
        let mut q = 0;
        ok!(l, cuMemAlloc_v2(&mut q, 10_000));
        assert_eq!(cu!(l, cuMemAdvise(q, 10, 1, 0)), invalid, "not managed");
        assert_eq!(cu!(l, cuMemAdvise(p, 10_001, 1, 0)), invalid);
        assert_eq!(cu!(l, cuMemAdvise(p, 0, 1, 0)), invalid);
        assert_eq!(cu!(l, cuMemAdvise(p, 10, 0, 0)), invalid);
        assert_eq!(cu!(l, cuMemAdvise(p, 10, 7, 0)), invalid);
        assert_eq!(cu!(l, cuMemAdvise(p, 10, 3, 5)), CUresult::INVALID_DEVICE);
        ok!(l, cuMemAdvise(p, 10, 1, 5));
        assert_eq!(cu!(l, cuMemPrefetchAsync(q, 10, 0, CUstream::NULL)), invalid);
        assert_eq!(cu!(l, cuMemPrefetchAsync(p, 10, 9, CUstream::NULL)), CUresult::INVALID_DEVICE);
        assert_eq!(cu!(l, cuMemPrefetchAsync(p, 10, 0, CUstream(99 as *mut _))), CUresult::INVALID_HANDLE);
        let nowhere = CUmemLocation { kind: 0, id: 0 };
        assert_eq!(cu!(l, cuMemPrefetchAsync_v2(p, 10, nowhere, 0, CUstream::NULL)), invalid);
        let mut v = 0i32;
        let out = (&raw mut v).cast();
        assert_eq!(cu!(l, cuMemRangeGetAttribute(out, 8, 1, p, 10)), invalid);
        assert_eq!(cu!(l, cuMemRangeGetAttribute(out, 4, 0, p, 10)), invalid);
        assert_eq!(cu!(l, cuMemRangeGetAttribute(out, 4, 1, q, 10)), invalid);
        assert_eq!(cu!(l, cuMemRangeGetAttribute(out, 3, 3, p, 10)), invalid);
        assert_eq!(cu!(l, cuMemRangeGetAttribute(null_mut(), 4, 1, p, 10)), invalid);
        // Attaching: to all streams, to none, to one created stream.
        let mut s = CUstream::NULL;
        ok!(l, cuStreamCreate(&mut s, 0));
        for flags in [1, 2, 4] {
            ok!(l, cuStreamAttachMemAsync(s, p, 0, flags));
        }
        ok!(l, cuStreamAttachMemAsync(s, p, 10_000, 4));
        assert_eq!(cu!(l, cuStreamAttachMemAsync(s, p, 5000, 4)), invalid);
        assert_eq!(cu!(l, cuStreamAttachMemAsync(s, p, 0, 3)), invalid);
        assert_eq!(cu!(l, cuStreamAttachMemAsync(CUstream::NULL, p, 0, 4)), invalid);
        assert_eq!(cu!(l, cuStreamAttachMemAsync(s, q, 0, 1)), invalid);
    });
}
