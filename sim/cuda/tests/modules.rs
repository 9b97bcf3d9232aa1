//! Tests of device memory of contexts, their limits and their modules, and of its return.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

/// PTX text with a kernel, a global of `global` bytes, and `filler` bytes of functions, which count as code.
fn ptx(global: usize, filler: usize) -> CString {
    let line = ".visible .entry k(.param .u64 ns) { ret; }\n";
    let many: String =
        (0..filler / 64).map(|i| format!(".func f{i:08}() {{ /* */ ret; ret; ret; ret; ret; ret; }}\n")).collect();
    CString::new(format!(
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .global .align 8 .b8 table[{global}];\n{line}{many}"
    ))
    .unwrap()
}

fn module(l: &Library, text: &CString) -> CUmodule {
    let mut m = CUmodule::NULL;
    ok!(l, cuModuleLoadData(&mut m, text.as_ptr().cast()));
    m
}

/// Physical bytes of contexts and modules, and bytes in allocations.
fn truth(dir: &Path) -> (u64, u64) {
    let t = vgpu_sim::truth::read(dir).unwrap();
    t.living_process(0, std::process::id()).map_or((0, 0), |p| (p.overhead_bytes, p.slab_bytes))
}

fn primary(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

#[test]
fn code_and_globals_are_overhead_until_they_are_unloaded() {
    on_machine("h200", &[], |l, dir| {
        primary(l);
        let base = truth(dir).0;
        let (small, large) = (ptx(4096, 0), ptx(10 << 20, 3 << 20));
        let a = module(l, &small);
        assert_eq!(truth(dir), (base + 2 * MIB, 0));
        let b = module(l, &small);
        assert_eq!(truth(dir).0, base + 2 * MIB, "two small ones share a slab");
        let c = module(l, &large);
        // The module has a global of 10 MiB and more than 2 MiB of code, in whole slabs.
        let taken = truth(dir).0 - base - 2 * MIB;
        assert!((12 * MIB..=14 * MIB).contains(&taken) && taken.is_multiple_of(2 * MIB), "{taken}");
        ok!(l, cuModuleUnload(a));
        assert_eq!(truth(dir).0, base + 2 * MIB + taken, "the other one is still there");
        ok!(l, cuModuleUnload(c));
        ok!(l, cuModuleUnload(b));
        assert_eq!(truth(dir), (base, 0));
        assert_eq!(cu!(l, cuModuleUnload(b)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn a_global_has_an_address_and_content_and_begins_at_zero() {
    on_machine("t4", &[], |l, _| {
        primary(l);
        let text = ptx(4096, 0);
        // Keeps the slab in use, so that the second module gets the first one's memory.
        let keeper = module(l, &text);
        for _ in 0..2 {
            let m = module(l, &text);
            let (mut p, mut n, mut back) = (0, 0, [9u8; 4096]);
            ok!(l, cuModuleGetGlobal_v2(&mut p, &mut n, m, c"table".as_ptr()));
            ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, n));
            assert_eq!((n, back), (4096, [0; 4096]));
            ok!(l, cuMemsetD8_v2(p, 7, n));
            ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, n));
            assert_eq!(back, [7; 4096]);
            assert_eq!(cu!(l, cuMemFree_v2(p)), CUresult::INVALID_VALUE);
            let mut kind = 0u32;
            ok!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, p + 100));
            assert_eq!(kind, 2);
            ok!(l, cuModuleUnload(m));
            assert_eq!(cu!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, n)), CUresult::INVALID_VALUE);
        }
        ok!(l, cuModuleUnload(keeper));
    });
}

#[test]
fn a_module_that_does_not_fit_is_out_of_memory_and_leaves_nothing() {
    on_machine("t4", &[], |l, dir| {
        primary(l);
        let (mut free, mut total, mut p) = (0, 0, 0);
        ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
        ok!(l, cuMemAlloc_v2(&mut p, free));
        let (before, mut m, mut library) = (truth(dir), CUmodule::NULL, CUlibrary::NULL);
        let text = ptx(4096, 0);
        assert_eq!(cu!(l, cuModuleLoadData(&mut m, text.as_ptr().cast())), CUresult::OUT_OF_MEMORY);
        let none = null_mut();
        ok!(l, cuLibraryLoadData(&mut library, text.as_ptr().cast(), none, null_mut(), 0, null_mut(), null_mut(), 0));
        assert_eq!(cu!(l, cuLibraryGetModule(&mut m, library)), CUresult::OUT_OF_MEMORY);
        assert_eq!(truth(dir), before);
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuLibraryGetModule(&mut m, library));
    });
}

#[test]
fn a_library_takes_memory_in_each_context_that_uses_it() {
    on_machine("h200", &[], |l, dir| {
        let first = primary(l);
        let base = truth(dir).0;
        let (text, mut library, mut k) = (ptx(3 << 20, 0), CUlibrary::NULL, CUkernel::NULL);
        let none = null_mut();
        ok!(l, cuLibraryLoadData(&mut library, text.as_ptr().cast(), none, null_mut(), 0, null_mut(), null_mut(), 0));
        ok!(l, cuLibraryGetKernel(&mut k, library, c"k".as_ptr()));
        assert_eq!(truth(dir).0, base, "code without a context");
        // A launch loads the library's kernel into the context.
        let mut ns = 0u64;
        let mut params = [(&raw mut ns).cast::<c_void>()];
        let f = CUfunction(k.0);
        ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()));
        assert_eq!(truth(dir).0, base + 4 * MIB);
        ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()));
        assert_eq!(truth(dir).0, base + 4 * MIB);
        let (mut second, mut p, mut n) = (CUcontext::NULL, 0, 0);
        ok!(l, cuCtxCreate_v2(&mut second, 0, 0));
        let with = truth(dir).0;
        ok!(l, cuLibraryGetGlobal(&mut p, &mut n, library, c"table".as_ptr()));
        assert_eq!((n, truth(dir).0), (3 << 20, with + 4 * MIB));
        ok!(l, cuCtxDestroy_v2(second));
        assert_eq!(truth(dir).0, base + 4 * MIB, "the context took its own copy along");
        ok!(l, cuCtxSetCurrent(first));
        ok!(l, cuLibraryUnload(library));
        assert_eq!(truth(dir), (base, 0));
    });
}

#[test]
fn limits_take_memory_and_give_it_back() {
    on_machine("h200", &[], |l, dir| {
        let ctx = primary(l);
        let (base, mut value) = (truth(dir).0, 0);
        let threads = 132 * 2048;
        for (limit, bytes, more) in [
            (0, 2048, 1024 * threads),
            (1, 33 << 20, 32 * MIB),
            (2, 6 << 30, (6 << 30) - 8 * MIB),
            (2, 100, 0),
            (3, 4, 0),
            (5, 64, 0),
        ] {
            ok!(l, cuCtxSetLimit(limit, bytes));
            ok!(l, cuCtxGetLimit(&mut value, limit));
            assert_eq!((value, truth(dir).0), (bytes, base + more), "{limit}");
            ok!(l, cuCtxSetLimit(limit, [1024, 1 << 20, 8 << 20, 2, 2048, 128][limit as usize]));
            assert_eq!(truth(dir).0, base);
        }
        // A limit that does not fit changes nothing.
        assert_eq!(cu!(l, cuCtxSetLimit(2, 200 << 30)), CUresult::OUT_OF_MEMORY);
        assert_eq!(cu!(l, cuCtxSetLimit(2, usize::MAX)), CUresult::OUT_OF_MEMORY);
        ok!(l, cuCtxGetLimit(&mut value, 2));
        assert_eq!((value, truth(dir).0), (8 << 20, base));
        assert_eq!(cu!(l, cuCtxSetLimit(0, 1 << 20)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuCtxSetLimit(7, 1)).0, 215);
        // A destroyed context returns the memory of its limits.
        let mut other = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut other, 0, 0));
        ok!(l, cuCtxSetLimit(2, 1 << 30));
        ok!(l, cuCtxDestroy_v2(other));
        assert_eq!(truth(dir).0, base);
        ok!(l, cuCtxSetCurrent(ctx));
        ok!(l, cuCtxSetLimit(1, 64 << 20));
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(truth(dir), (0, 0));
    });
}

#[test]
fn a_context_that_is_destroyed_leaves_nothing_behind() {
    on_machine("h200", &[], |l, dir| {
        ok!(l, cuInit(0));
        let (mut ctx, text) = (CUcontext::NULL, ptx(3 << 20, 0));
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 0));
        let m = module(l, &text);
        let (mut f, mut p, mut s, mut e) = (CUfunction::NULL, 0, CUstream::NULL, CUevent::NULL);
        ok!(l, cuModuleGetFunction(&mut f, m, c"k".as_ptr()));
        ok!(l, cuMemAllocManaged(&mut p, 1000, 1));
        ok!(l, cuMemAlloc_v2(&mut p, 1000));
        ok!(l, cuStreamCreate(&mut s, 0));
        ok!(l, cuEventCreate(&mut e, 0));
        ok!(l, cuCtxDestroy_v2(ctx));
        assert_eq!(truth(dir), (0, 0));
        primary(l);
        let dead = CUresult::INVALID_HANDLE;
        assert_eq!(cu!(l, cuModuleUnload(m)), dead);
        assert_eq!(cu!(l, cuModuleGetFunction(&mut f, m, c"k".as_ptr())), dead);
        let mut params = [null_mut::<c_void>(); 1];
        let launched = cu!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()));
        assert_eq!((launched, cu!(l, cuStreamQuery(s)), cu!(l, cuEventQuery(e))), (dead, dead, dead));
        assert_eq!(cu!(l, cuMemFree_v2(p)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuCtxDestroy_v2(ctx)), CUresult::INVALID_CONTEXT);
    });
}

#[test]
fn a_primary_context_that_is_reset_is_still_held() {
    on_machine("h200", &[], |l, dir| {
        let ctx = primary(l);
        let mut again = CUcontext::NULL;
        ok!(l, cuDevicePrimaryCtxRetain(&mut again, 0));
        assert_eq!(again, ctx);
        ok!(l, cuDevicePrimaryCtxSetFlags_v2(0, 4));
        let m = module(l, &ptx(4096, 0));
        let (mut p, mut flags, mut active) = (0, 0, -1);
        ok!(l, cuMemAlloc_v2(&mut p, 100 << 20));
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(truth(dir), (0, 0), "a reset returns everything, however many hold");
        ok!(l, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((flags, active), (4, 0));
        // The thread's context is destroyed with everything in it.
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut p, 1)), CUresult::CONTEXT_IS_DESTROYED);
        assert_eq!(cu!(l, cuCtxSetCurrent(ctx)), CUresult::INVALID_CONTEXT);
        assert_eq!(cu!(l, cuModuleUnload(m)), CUresult::INVALID_HANDLE);
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        // Two retains remain. A third one makes the context again, and it lives until the last release.
        ok!(l, cuDevicePrimaryCtxRetain(&mut again, 0));
        ok!(l, cuCtxSetCurrent(again));
        ok!(l, cuMemAlloc_v2(&mut p, 1));
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        ok!(l, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!(active, 1);
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        ok!(l, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
        assert_eq!((active, truth(dir)), (0, (0, 0)));
        assert_eq!(cu!(l, cuDevicePrimaryCtxRelease_v2(0)), CUresult::INVALID_CONTEXT);
        // After a reset, a release has nothing to destroy and is no error.
        ok!(l, cuDevicePrimaryCtxRetain(&mut again, 0));
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(cu!(l, cuDevicePrimaryCtxReset_v2(9)), CUresult::INVALID_DEVICE);
    });
}
