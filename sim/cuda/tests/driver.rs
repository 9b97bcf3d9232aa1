//! Tests of the simulated driver through its C interface: the behaviour on which a program, or an interposed
//! library, may rely.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::on_machine;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const PTX: &CStr = c".version 7.0\n.target sm_50\n.address_size 64\n\
    .visible .global .align 8 .b8 table[4096];\n\
    .visible .entry vgpu_spin_ns(.param .u64 ns) { ret; }\n\
    .visible .entry other(.param .u64 p, .param .u32 n) { ret; }\n";

/// Initialises the driver and makes the primary context of device 0 current.
fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

fn info(l: &Library) -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
    (free, total)
}

fn alloc(l: &Library, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAlloc_v2(&mut p, bytes));
    p
}

fn kernel(l: &Library, name: &CStr) -> CUfunction {
    let (mut m, mut f) = (CUmodule::NULL, CUfunction::NULL);
    ok!(l, cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
    ok!(l, cuModuleGetFunction(&mut f, m, name.as_ptr()));
    f
}

fn spin(l: &Library, f: CUfunction, stream: CUstream, mut ns: u64) {
    let mut params = [(&raw mut ns).cast::<c_void>()];
    ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params.as_mut_ptr(), null_mut()));
}

fn stream(l: &Library, flags: u32) -> CUstream {
    let mut s = CUstream::NULL;
    ok!(l, cuStreamCreate(&mut s, flags));
    s
}

fn event(l: &Library) -> CUevent {
    let mut e = CUevent::NULL;
    ok!(l, cuEventCreate(&mut e, 0));
    e
}

#[test]
fn before_init_nothing_answers_and_outputs_stay() {
    on_machine("t4", &[], |l, _| {
        let (mut count, mut p, mut version) = (77, 77u64, 0);
        assert_eq!(cu!(l, cuDeviceGetCount(&mut count)), CUresult::NOT_INITIALIZED);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut p, 1)), CUresult::NOT_INITIALIZED);
        assert_eq!((count, p), (77, 77));
        ok!(l, cuDriverGetVersion(&mut version));
        assert_eq!(version, 12020);
        assert_eq!(cu!(l, cuInit(1)), CUresult::INVALID_VALUE);
        ok!(l, cuInit(0));
        ok!(l, cuDeviceGetCount(&mut count));
        assert_eq!(count, 1);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut p, 1)), CUresult::INVALID_CONTEXT);
    });
}

#[test]
fn a_machine_without_devices_says_so_every_time() {
    on_machine("none", &[], |l, _| {
        assert_eq!(cu!(l, cuInit(0)), CUresult::NO_DEVICE);
        assert_eq!(cu!(l, cuInit(0)), CUresult::NO_DEVICE);
        assert_eq!(cu!(l, cuDeviceGetCount(&mut 0)), CUresult::NOT_INITIALIZED);
    });
}

#[test]
fn the_last_byte_can_be_allocated() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (free, total) = info(l);
        let device = &vgpu_sim::truth::read(dir).unwrap().devices[0];
        assert_eq!((total as u64, free as u64), (device.cuda_total, device.capacity - (104 << 20)));
        let all = alloc(l, free);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut 0, 1)), CUresult::OUT_OF_MEMORY);
        assert_eq!(info(l).0, 0);
        ok!(l, cuMemFree_v2(all));
        assert_eq!(cu!(l, cuMemFree_v2(all)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut 0, free + 1)), CUresult::OUT_OF_MEMORY);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut 0, 0)), CUresult::INVALID_VALUE);
        assert_eq!(info(l).0, free);
    });
}

#[test]
fn content_is_what_was_written() {
    on_machine("h200", &[], |l, _| {
        ready(l);
        let n = 3 * MIB + 17;
        let data: Vec<u8> = (0u8..251).cycle().step_by(31).take(n).collect();
        let (a, b) = (alloc(l, n), alloc(l, n));
        ok!(l, cuMemcpyHtoD_v2(a, data.as_ptr().cast(), n));
        ok!(l, cuMemcpyDtoD_v2(b + 5, a, n - 5));
        ok!(l, cuMemsetD8_v2(b, 9, 5));
        let mut back = vec![0u8; n];
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), b, n));
        assert!(back[..5] == [9; 5] && back[5..] == data[..n - 5]);
        ok!(l, cuMemsetD32_v2(a + 4, 0xA1B2_C3D4, 3));
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), a, 20));
        assert_eq!(back[4..16], [0xD4, 0xC3, 0xB2, 0xA1].repeat(3));
        assert!(back[..4] == data[..4] && back[16..20] == data[16..20]);
        ok!(l, cuMemsetD8_v2(a, 0, n));
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), a, n));
        assert!(back.iter().all(|b| *b == 0));
        let out = back.as_mut_ptr().cast();
        assert_eq!(cu!(l, cuMemcpyDtoH_v2(out, a, n + 512)), CUresult::INVALID_VALUE, "beyond the end");
        assert_eq!(cu!(l, cuMemcpyHtoD_v2(0x1000, data.as_ptr().cast(), 8)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn rows_are_copied_and_filled_with_their_pitch() {
    on_machine("h200", &[], |l, _| {
        ready(l);
        let (mut p, mut pitch) = (0, 0);
        ok!(l, cuMemAllocPitch_v2(&mut p, &mut pitch, 100, 10, 4));
        assert_eq!(pitch, 512);
        ok!(l, cuMemsetD8_v2(p, 1, 512 * 10));
        ok!(l, cuMemsetD2D16_v2(p, pitch, 0x0302, 50, 10));
        let mut host = [0u8; 1100];
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: 2,
            srcHost: null(),
            srcDevice: p,
            srcArray: CUarray::NULL,
            srcPitch: pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: 1,
            dstHost: host.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: CUarray::NULL,
            dstPitch: 110,
            WidthInBytes: 104,
            Height: 10,
        };
        ok!(l, cuMemcpy2D_v2(&copy));
        for row in host.chunks(110) {
            assert!(row[..100] == [2, 3].repeat(50) && row[100..104] == [1; 4] && row[104..] == [0; 6]);
        }
    });
}

#[test]
fn a_device_pointer_is_not_for_the_host() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let p = alloc(l, 4096) as *const u8;
        // SAFETY: the child reads an address that it may not read, and is meant to die of it.
        let status = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::_exit(i32::from(p.read_volatile()));
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            status
        };
        assert_eq!(status & 0x7F, libc::SIGSEGV);
    });
}

fn physical(dir: &std::path::Path) -> (u64, u64) {
    let t = vgpu_sim::truth::read(dir).unwrap();
    let p = t.living_process(0, std::process::id()).unwrap();
    (p.slab_bytes, p.requested_bytes)
}

#[test]
fn physical_memory_lives_until_it_is_released_and_unmapped() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let prop = CUmemAllocationProp {
            kind: 1,
            requestedHandleTypes: 0,
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
            win32HandleMetaData: null_mut(),
            allocFlags: CUmemAllocationFlags::default(),
        };
        let access = CUmemAccessDesc { location: prop.location, flags: 3 };
        let (mut grain, mut at, mut handle) = (0, 0, 0);
        ok!(l, cuMemGetAllocationGranularity(&mut grain, &prop, 0));
        assert_eq!(grain, 2 * MIB);
        ok!(l, cuMemAddressReserve(&mut at, 32 * GIB, 0, 0, 0));
        assert_eq!(physical(dir).0, 0, "addresses cost nothing");
        assert_eq!(cu!(l, cuMemCreate(&mut handle, grain + 1, &prop, 0)), CUresult::INVALID_VALUE);
        let n = 4 * grain;
        for released_first in [true, false] {
            ok!(l, cuMemCreate(&mut handle, n, &prop, 0));
            assert_eq!(physical(dir), (n as u64, n as u64));
            // Maps the same memory at two addresses.
            for k in 0..2 {
                ok!(l, cuMemMap(at + (k * n) as u64, n, 0, handle, 0));
            }
            let mut byte = 0u8;
            let out = (&raw mut byte).cast();
            assert_eq!(cu!(l, cuMemcpyDtoH_v2(out, at, 1)), CUresult::INVALID_VALUE, "no access yet");
            ok!(l, cuMemSetAccess(at, 2 * n, &access, 1));
            ok!(l, cuMemsetD8_v2(at + 123, 42, 1));
            ok!(l, cuMemcpyDtoH_v2(out, at + n as u64 + 123, 1));
            assert_eq!(byte, 42);
            // A copy across both mappings.
            let mut back = vec![0u8; 2 * n];
            ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at, 2 * n));
            assert!(back[123] == 42 && back[n + 123] == 42);
            if released_first {
                ok!(l, cuMemRelease(handle));
                assert_eq!(physical(dir).0, n as u64, "still mapped");
                ok!(l, cuMemUnmap(at, n));
                assert_eq!(physical(dir).0, n as u64, "still mapped once");
                ok!(l, cuMemUnmap(at + n as u64, n));
            } else {
                ok!(l, cuMemUnmap(at, 2 * n));
                let mut again = 0;
                let nothing = cu!(l, cuMemRetainAllocationHandle(&mut again, at as *mut c_void));
                assert_eq!(nothing, CUresult::INVALID_VALUE);
                assert_eq!(physical(dir).0, n as u64, "still held");
                ok!(l, cuMemRelease(handle));
            }
            assert_eq!(physical(dir), (0, 0));
            assert_eq!(cu!(l, cuMemRelease(handle)), CUresult::INVALID_VALUE);
        }
        // Host memory does not count as device memory.
        let host = CUmemAllocationProp { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 }, ..prop };
        ok!(l, cuMemCreate(&mut handle, n, &host, 0));
        assert_eq!(physical(dir), (0, 0));
        ok!(l, cuMemRelease(handle));
        ok!(l, cuMemAddressFree(at, 32 * GIB));
        assert_eq!(cu!(l, cuMemAddressFree(at, 32 * GIB)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn contexts_take_memory_and_give_everything_back() {
    on_machine("h200", &[], |l, dir| {
        ok!(l, cuInit(0));
        let free = || {
            let m = vgpu_sim::truth::read(dir).unwrap();
            (m.devices[0].capacity - m.devices[0].free) >> 20
        };
        let (mut a, mut b) = (CUcontext::NULL, CUcontext::NULL);
        ok!(l, cuCtxCreate_v2(&mut a, 0, 0));
        assert_eq!(free(), 526);
        ok!(l, cuDevicePrimaryCtxRetain(&mut b, 0));
        ok!(l, cuDevicePrimaryCtxRetain(&mut b, 0));
        assert_eq!(free(), 526 + 64);
        let p = alloc(l, 10 * MIB);
        ok!(l, cuCtxPushCurrent_v2(b));
        alloc(l, 20 * MIB);
        let (mut top, mut dev) = (CUcontext::NULL, -1);
        ok!(l, cuCtxGetCurrent(&mut top));
        ok!(l, cuCtxGetDevice(&mut dev));
        assert_eq!((top, dev), (b, 0));
        ok!(l, cuCtxPopCurrent_v2(&mut top));
        assert_eq!(top, b);
        ok!(l, cuCtxGetCurrent(&mut top));
        assert_eq!(top, a);
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(free(), 526 + 64 + 30);
        ok!(l, cuDevicePrimaryCtxRelease_v2(0));
        assert_eq!(free(), 526 + 10, "the primary context took its memory along");
        assert_eq!(cu!(l, cuDevicePrimaryCtxRelease_v2(0)), CUresult::INVALID_CONTEXT);
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuCtxDestroy_v2(a));
        assert_eq!(free(), 0);
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut 0, 1)), CUresult::INVALID_CONTEXT);
        assert_eq!(cu!(l, cuCtxSetCurrent(a)), CUresult::INVALID_CONTEXT);
    });
}

#[test]
fn a_context_that_does_not_fit_is_out_of_memory() {
    on_machine("t4", &[], |l, dir| {
        // Another process uses all but 100 MiB.
        let m = vgpu_sim::MachineView::open_at(dir, None).unwrap();
        let large = (m.device_memory(0).free - (100 << 20)).cast_signed();
        m.adjust_device(0, &vgpu_sim::memory::RecordChange { large, ..Default::default() }).unwrap();
        let mut ctx = CUcontext::NULL;
        ok!(l, cuInit(0));
        assert_eq!(cu!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0)), CUresult::OUT_OF_MEMORY);
        drop(m);
        ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    });
}

fn asked(l: &Library) -> [u32; 3] {
    [cu!(l, cuDeviceGetCount(&mut 0)).0, cu!(l, cuInit(0)).0, cu!(l, cuMemFree_v2(0)).0]
}

#[test]
fn a_forked_child_is_not_initialised_and_does_not_keep_its_parent_alive() {
    on_machine("t4", &[], |l, dir| {
        let mut line = [0; 2];
        // SAFETY: two live descriptors; parent and child use their own ends and leave by _exit.
        unsafe {
            libc::pipe(line.as_mut_ptr());
            let parent = libc::fork();
            if parent == 0 {
                ready(l);
                alloc(l, GIB);
                if libc::fork() == 0 {
                    let codes = asked(l);
                    libc::write(line[1], codes.as_ptr().cast(), 12);
                    libc::pause();
                    libc::_exit(0);
                }
                libc::pause();
                libc::_exit(0);
            }
            let mut codes = [0u32; 3];
            libc::read(line[0], codes.as_mut_ptr().cast(), 12);
            assert_eq!(codes, [3, 3, 3]);
            let before = vgpu_sim::truth::read(dir).unwrap();
            assert_eq!(before.devices[0].processes.len(), 1);
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
            libc::kill(parent, libc::SIGKILL);
            libc::waitpid(parent, null_mut(), 0);
            let after = vgpu_sim::truth::read(dir).unwrap();
            assert_eq!((after.devices[0].processes.len(), after.devices[0].used), (0, 0));
            // The orphaned grandchild is a child of this process now.
            for child in std::fs::read_to_string("/proc/thread-self/children").unwrap().split_whitespace() {
                libc::kill(child.parse().unwrap(), libc::SIGKILL);
            }
            while libc::wait(null_mut()) > 0 {}
        }
    });
}

#[test]
fn visible_devices_are_the_ones_named() {
    let dir = tempfile::tempdir().unwrap();
    let uuid = vgpu_sim::MachineView::open_at(dir.path(), Some("t4,h200,l4")).unwrap().device_identity(2);
    let name = |l: &Library, dev| {
        let mut text = [0i8; 100];
        ok!(l, cuDeviceGetName(text.as_mut_ptr(), 100, dev));
        // SAFETY: the driver terminates its text with a zero.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned()
    };
    let place = ("VGPU_SIM_DIR", dir.path().to_str().unwrap());
    let first = common::in_child(&[place], |l| {
        ok!(l, cuInit(0));
        vec![name(l, 0), name(l, 1), name(l, 2)]
    });
    assert_eq!(first, ["NVIDIA H200", "NVIDIA L4", "Tesla T4"], "the fastest first");
    let text = uuid.uuid_text();
    let mask = [place, ("CUDA_VISIBLE_DEVICES", &text[..12]), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
    common::in_child(&mask, |l| {
        let (mut count, mut bytes, mut dev) = (0, CUuuid::default(), -1);
        ok!(l, cuInit(0));
        ok!(l, cuDeviceGetCount(&mut count));
        ok!(l, cuDeviceGetUuid_v2(&mut bytes, 0));
        assert_eq!((count, bytes.bytes, name(l, 0).as_str()), (1, uuid.uuid, "NVIDIA L4"));
        let pci = std::ffi::CString::new(uuid.pci_text()).unwrap();
        ok!(l, cuDeviceGetByPCIBusId(&mut dev, pci.as_ptr()));
        assert_eq!(dev, 0);
        assert_eq!(cu!(l, cuDeviceGetAttribute(&mut 0, 9999, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuDeviceGetAttribute(&mut 0, 1, 1)), CUresult::INVALID_DEVICE);
        Vec::new()
    });
}

#[test]
fn failures_come_when_they_are_asked_for() {
    on_machine("t4", &[("VGPU_SIM_FAULTS", "cuMemAlloc_v2:every=3:code=2,cuStreamCreate:p=1:code=999")], |l, dir| {
        ready(l);
        let (mut p, mut s) = (0, CUstream::NULL);
        let codes: Vec<u32> = (0..6).map(|_| cu!(l, cuMemAlloc_v2(&mut p, 512)).0).collect();
        assert_eq!(codes, [0, 0, 2, 0, 0, 2]);
        assert_eq!(physical(dir).1, 4 * 512, "an injected failure takes nothing");
        assert_eq!(cu!(l, cuStreamCreate(&mut s, 0)), CUresult::UNKNOWN);
    });
}

#[test]
fn a_launch_takes_the_time_it_says_and_events_see_it() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let (f, s) = (kernel(l, c"vgpu_spin_ns"), stream(l, 1));
        let (a, b) = (event(l), event(l));
        spin(l, f, s, 2_000_000);
        ok!(l, cuEventRecord(a, s));
        spin(l, f, s, 30_000_000);
        ok!(l, cuEventRecord(b, s));
        let mut ms = 0.0;
        assert_eq!(cu!(l, cuEventQuery(b)), CUresult::NOT_READY);
        assert_eq!(cu!(l, cuEventElapsedTime(&mut ms, a, b)), CUresult::NOT_READY);
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        ok!(l, cuStreamQuery(CUstream::NULL));
        ok!(l, cuStreamSynchronize(s));
        ok!(l, cuEventQuery(b));
        ok!(l, cuEventElapsedTime(&mut ms, a, b));
        assert!((ms - 30.0005).abs() < 0.0001, "{ms}");
        assert_eq!(cu!(l, cuEventElapsedTime(&mut ms, a, event(l))), CUresult::INVALID_HANDLE);
        let t = vgpu_sim::truth::read(dir).unwrap();
        let p = t.living_process(0, std::process::id()).unwrap();
        assert_eq!((p.busy_ns, p.kernels, p.queued_ns), (32_000_000 + 2 * 500, 2, 0));
    });
}

#[test]
fn a_wrong_launch_is_refused() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let f = kernel(l, c"other");
        let mut words = [0u64; 2];
        let at: *mut c_void = words.as_mut_ptr().cast();
        let mut params = [at, at];
        let p = params.as_mut_ptr();
        let go =
            |gx, gy, bx, bz, shared, s, p| cu!(l, cuLaunchKernel(f, gx, gy, 1, bx, 1, bz, shared, s, p, null_mut()));
        let none = CUstream::NULL;
        assert_eq!(go(1, 1, 1, 1, 0, none, p).0, 0);
        for bad in [
            go(0, 1, 1, 1, 0, none, p),
            go(1, 65_536, 1, 1, 0, none, p),
            go(1, 1, 1025, 1, 0, none, p),
            go(1, 1, 1, 65, 0, none, p),
            go(1, 1, 1, 1, 49 << 10, none, p),
            go(1, 1, 1, 1, 0, none, null_mut()),
        ] {
            assert_eq!(bad, CUresult::INVALID_VALUE);
        }
        assert_eq!(go(1, 1, 1, 1, 0, CUstream(at), p), CUresult::INVALID_HANDLE);
        let wrong = CUfunction(at);
        let bad = cu!(l, cuLaunchKernel(wrong, 1, 1, 1, 1, 1, 1, 0, none, p, null_mut()));
        assert_eq!(bad, CUresult::INVALID_HANDLE);
        ok!(l, cuFuncSetAttribute(f, 8, 60 << 10));
        assert_eq!(go(1, 1, 1, 1, 49 << 10, none, p).0, 0);
        // A launch also accepts the packed form of arguments.
        let (size, end) = (std::cell::Cell::new(12usize), null_mut());
        let mut extra =
            [std::ptr::without_provenance_mut(1), at, std::ptr::without_provenance_mut(2), size.as_ptr().cast(), end];
        ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, none, null_mut(), extra.as_mut_ptr()));
        size.set(11);
        let bad = cu!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, none, null_mut(), extra.as_mut_ptr()));
        assert_eq!(bad, CUresult::INVALID_VALUE);
    });
}

#[test]
fn modules_and_libraries_have_their_functions_and_globals() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (mut m, mut f, mut p, mut n) = (CUmodule::NULL, CUfunction::NULL, 0, 0);
        ok!(l, cuModuleLoadData(&mut m, PTX.as_ptr().cast()));
        assert_eq!(cu!(l, cuModuleGetFunction(&mut f, m, c"nothing".as_ptr())), CUresult::NOT_FOUND);
        ok!(l, cuModuleGetGlobal_v2(&mut p, &mut n, m, c"table".as_ptr()));
        assert_eq!((n, physical(dir)), (4096, (0, 0)), "a module is overhead");
        assert_eq!(cu!(l, cuMemFree_v2(p)), CUresult::INVALID_VALUE, "a global is the module's");
        ok!(l, cuModuleUnload(m));
        assert_eq!(physical(dir), (0, 0));
        assert_eq!(cu!(l, cuModuleGetFunction(&mut f, m, c"other".as_ptr())), CUresult::INVALID_HANDLE);
        let (mut library, mut k, mut ns) = (CUlibrary::NULL, CUkernel::NULL, 5_000_000u64);
        let none = null_mut();
        ok!(l, cuLibraryLoadData(&mut library, PTX.as_ptr().cast(), none, null_mut(), 0, null_mut(), null_mut(), 0));
        ok!(l, cuLibraryGetKernel(&mut k, library, c"vgpu_spin_ns".as_ptr()));
        ok!(l, cuKernelGetFunction(&mut f, k));
        // A kernel handle is valid in place of a function handle.
        let mut params = [(&raw mut ns).cast::<c_void>()];
        for f in [f, CUfunction(k.0)] {
            ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()));
        }
        ok!(l, cuCtxSynchronize());
        let t = vgpu_sim::truth::read(dir).unwrap();
        assert_eq!(t.living_process(0, std::process::id()).unwrap().busy_ns, 10_000_000);
        ok!(l, cuLibraryUnload(library));
        assert_eq!(cu!(l, cuKernelGetFunction(&mut f, k)), CUresult::INVALID_HANDLE);
        let broken = c".entry without version".as_ptr().cast();
        assert_eq!(cu!(l, cuModuleLoadData(&mut m, broken)), CUresult::INVALID_PTX);
    });
}

extern "C" fn fill(data: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_millis(20));
    // SAFETY: the test passes its buffer of eight bytes.
    unsafe { data.cast::<u64>().write(4711) };
}

#[test]
fn a_copy_behind_a_host_function_sees_what_it_wrote() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, p) = (stream(l, 1), alloc(l, 8));
        let (mut value, mut back) = (1u64, 0u64);
        ok!(l, cuLaunchHostFunc(s, Some(fill), (&raw mut value).cast()));
        ok!(l, cuMemcpyHtoDAsync_v2(p, (&raw const value).cast(), 8, s));
        ok!(l, cuMemcpyDtoHAsync_v2((&raw mut back).cast(), p, 8, s));
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(back, 4711);
        // Destroying a stream does not drop its queued operations.
        back = 0;
        value = 2;
        ok!(l, cuLaunchHostFunc(s, Some(fill), (&raw mut value).cast()));
        ok!(l, cuMemcpyHtoDAsync_v2(p, (&raw const value).cast(), 8, s));
        ok!(l, cuStreamDestroy_v2(s));
        ok!(l, cuCtxSynchronize());
        ok!(l, cuMemcpyDtoH_v2((&raw mut back).cast(), p, 8));
        assert_eq!(back, 4711);
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn each_thread_has_its_own_default_stream() {
    on_machine("h200", &[], |l, _| {
        let ctx = ready(l);
        let f = kernel(l, c"vgpu_spin_ns");
        let own = CU_STREAM_PER_THREAD;
        spin(l, f, own, 40_000_000);
        assert_eq!(cu!(l, cuStreamQuery_ptsz(CUstream::NULL)), CUresult::NOT_READY);
        assert_eq!(cu!(l, cuStreamQuery(CUstream::NULL)), CUresult::NOT_READY, "the legacy stream waits for it");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ok!(l, cuCtxSetCurrent(ctx));
                ok!(l, cuStreamQuery_ptsz(CUstream::NULL));
                ok!(l, cuStreamQuery(own));
            });
        });
        ok!(l, cuStreamSynchronize_ptsz(CUstream::NULL));
        ok!(l, cuStreamQuery(CUstream::NULL));
    });
}

#[test]
fn many_threads_share_a_context_and_nothing_is_lost() {
    on_machine("h200", &[], |l, dir| {
        let ctx = ready(l);
        let f = kernel(l, c"vgpu_spin_ns");
        std::thread::scope(|scope| {
            for k in 0..6u64 {
                scope.spawn(move || {
                    ok!(l, cuCtxSetCurrent(ctx));
                    let (s, e) = (stream(l, 1), event(l));
                    for i in 0..300u64 {
                        let bytes = 1 + vgpu_sim::faults::splitmix64(k * 1000 + i) % (3 << 20);
                        let p = alloc(l, usize::try_from(bytes).unwrap());
                        let (value, mut back) = (k << 32 | i, 0u64);
                        spin(l, f, s, 1000);
                        if bytes >= 8 {
                            ok!(l, cuMemcpyHtoDAsync_v2(p, (&raw const value).cast(), 8, s));
                            ok!(l, cuMemcpyDtoHAsync_v2((&raw mut back).cast(), p, 8, s));
                        }
                        ok!(l, cuEventRecord(e, s));
                        ok!(l, cuEventSynchronize(e));
                        assert!(bytes < 8 || back == value);
                        ok!(l, cuMemFree_v2(p));
                    }
                    ok!(l, cuStreamDestroy_v2(s));
                    ok!(l, cuEventDestroy_v2(e));
                });
            }
        });
        let t = vgpu_sim::truth::read(dir).unwrap();
        let p = t.living_process(0, std::process::id()).unwrap();
        assert_eq!((p.kernels, p.allocations, p.requested_bytes, p.slab_bytes), (1800, 0, 0, 0));
        assert!(p.queued_ns == 0 && p.busy_ns >= 1_800_000);
    });
}

#[test]
fn processes_that_fill_the_device_exactly_are_never_refused() {
    let dir = tempfile::tempdir().unwrap();
    let m = vgpu_sim::MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let place = dir.path().to_str().unwrap().to_owned();
    // Eight contexts, and the rest of the device in equal parts; then a ninth process.
    let slab = 2u64 << 20;
    let (capacity, context) = (m.profile_of(0).capacity_bytes(), m.profile_of(0).context_bytes);
    let part = (capacity - 8 * context) / 8 / slab * slab;
    let gate = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                gate.wait();
                common::in_child(&[("VGPU_SIM_DIR", &place)], |l| {
                    ready(l);
                    for _ in 0..500 {
                        let p = alloc(l, usize::try_from(part).unwrap());
                        ok!(l, cuMemFree_v2(p));
                    }
                    Vec::new()
                });
            });
        }
    });
    let t = m.read_truth();
    assert_eq!((t.devices[0].used, t.devices[0].finished.len()), (0, 8));
    assert!(t.devices[0].finished.iter().all(|f| f.peak_bytes == part + context && f.physical_bytes == context));
}

#[test]
fn stream_ordered_memory_is_taken_and_given_back() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, mut p, mut pool, mut used) = (stream(l, 1), 0, CUmemoryPool::NULL, 0u64);
        ok!(l, cuDeviceGetDefaultMemPool(&mut pool, 0));
        ok!(l, cuMemAllocAsync(&mut p, 3 * MIB, s));
        assert_eq!(physical(dir), (32 << 20, 3 << 20), "a pool grows in chunks");
        ok!(l, cuMemPoolGetAttribute(pool, 7, (&raw mut used).cast()));
        assert_eq!(used, 3 << 20);
        let mut value = 0u64;
        ok!(l, cuLaunchHostFunc(s, Some(fill), (&raw mut value).cast()));
        ok!(l, cuMemFreeAsync(p, s));
        assert_eq!(physical(dir).1, 3 << 20, "the stream has not come to the free");
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(physical(dir), (0, 0));
        assert_eq!(cu!(l, cuMemFreeAsync(p, s)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn pointers_are_known_by_what_they_point_into() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let (p, mut host) = (alloc(l, 1000), null_mut());
        ok!(l, cuMemAllocHost_v2(&mut host, 100));
        let (mut kind, mut owner, mut base, mut size, mut dev) = (0u32, CUcontext::NULL, 0u64, 0usize, -1i32);
        ok!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, p + 10));
        assert_eq!(kind, 2);
        ok!(l, cuPointerGetAttribute((&raw mut owner).cast(), 1, p + 10));
        ok!(l, cuPointerGetAttribute((&raw mut dev).cast(), 9, p));
        ok!(l, cuMemGetAddressRange_v2(&mut base, &mut size, p + 999));
        assert_eq!((owner, base, size, dev), (ctx, p, 1000, 0));
        ok!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, host as u64));
        assert_eq!(kind, 1);
        let local = 0u64;
        let stranger = (&raw const local) as u64;
        let bad = cu!(l, cuPointerGetAttribute((&raw mut kind).cast(), 2, stranger));
        assert_eq!(bad, CUresult::INVALID_VALUE);
        let (mut which, mut to) = ([2u32], [(&raw mut kind).cast::<c_void>()]);
        ok!(l, cuPointerGetAttributes(1, which.as_mut_ptr(), to.as_mut_ptr(), stranger));
        assert_eq!(kind, 0);
        ok!(l, cuMemFreeHost(host));
        assert_eq!(cu!(l, cuMemFreeHost(host)), CUresult::INVALID_VALUE);
    });
}

#[test]
fn what_is_not_simulated_says_so() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let mut table = null();
        let id = CUuuid::default();
        assert_eq!(cu!(l, cuGetExportTable(&mut table, &id)), CUresult::NOT_FOUND);
        let mut status = 9;
        ok!(l, cuStreamIsCapturing(CUstream::NULL, &mut status));
        assert_eq!(status, 0);
    });
}

#[test]
fn a_preloaded_library_does_not_change_what_the_driver_calls() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("before.c", "int cuMemAlloc_v2(void *p, unsigned long n) { (void)p; (void)n; return 4711; }\n");
    write(
        "main.c",
        "#include <dlfcn.h>\n#include <stdio.h>\n\
         int main(void) {\n  void *h = dlopen(\"libcuda.so.1\", RTLD_NOW), *p = 0; unsigned s = 9;\n\
         if (!h) { puts(dlerror()); return 1; }\n\
         int (*get)(const char *, void **, int, unsigned long long, unsigned *) = dlsym(h, \"cuGetProcAddress_v2\");\n\
         get(\"cuMemAlloc\", &p, 12000, 0, &s);\n\
         printf(\"%d %d %d\\n\", p == dlsym(h, \"cuMemAlloc_v2\"), p == dlsym(RTLD_DEFAULT, \"cuMemAlloc_v2\"), s);\n  return 0;\n}\n",
    );
    let cc = |args: &[&str]| {
        let status = std::process::Command::new("cc").current_dir(dir.path()).args(args).status().unwrap();
        assert!(status.success());
    };
    cc(&["-shared", "-fPIC", "-o", "before.so", "before.c"]);
    cc(&["-o", "main", "main.c", "-ldl"]);
    let out = std::process::Command::new(dir.path().join("main"))
        .env("LD_LIBRARY_PATH", common::folder())
        .env("LD_PRELOAD", dir.path().join("before.so"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "1 0 0", "{}", String::from_utf8_lossy(&out.stderr));
}
