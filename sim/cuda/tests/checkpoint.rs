//! Tests of checkpoint and restore, and of the switch to the newer driver, which has them.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::{in_child, on_machine};
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CStr, c_void};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

const NEWER: (&str, &str) = ("VGPU_SIM_DRIVER", "580");
const MIB: usize = 1 << 20;
const RUNNING: u32 = 0;
const LOCKED: u32 = 1;
const CHECKPOINTED: u32 = 2;

fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

fn me() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn state(l: &Library, pid: i32) -> u32 {
    let mut s = 99;
    ok!(l, cuCheckpointProcessGetState(pid, &mut s));
    s
}

/// Bytes in use on device 0, all processes added.
fn used(dir: &Path) -> u64 {
    vgpu_sim::truth::read(dir).unwrap().devices[0].used
}

fn lookup(l: &Library, name: &CStr, version: i32, flags: u64) -> (*mut c_void, u32) {
    let (mut p, mut status) = (null_mut(), 9);
    ok!(l, cuGetProcAddress_v2(name.as_ptr(), &mut p, version, flags, &mut status));
    (p, status)
}

fn address(l: &Library, name: &CStr) -> *mut c_void {
    // SAFETY: the symbol's address only.
    unsafe { l.get::<*mut c_void>(name.to_bytes()) }.unwrap().into_raw()
}

#[test]
fn the_newer_driver_knows_newer_names_and_the_older_one_does_not() {
    for newer in [false, true] {
        let variables = if newer { vec![NEWER] } else { vec![] };
        on_machine("t4", &variables, |l, _| {
            let mut version = 0;
            ok!(l, cuDriverGetVersion(&mut version));
            assert_eq!(version, if newer { 13_000 } else { 12_020 });
            let name = c"cuCheckpointProcessLock";
            assert_eq!(lookup(l, name, 13_000, 0).1, u32::from(!newer), "found, or unknown");
            if newer {
                assert_eq!(lookup(l, name, 12_080, 2).0, address(l, name));
                assert_eq!(lookup(l, name, 12_079, 0).1, 2, "too new");
            }
            // The newest variant at or before the version; the per-thread variant if there is one.
            for (name, version, flags, old, new) in [
                (c"cuCtxCreate", 12_049, 0, c"cuCtxCreate_v3", c"cuCtxCreate_v3"),
                (c"cuCtxCreate", 12_050, 0, c"cuCtxCreate_v3", c"cuCtxCreate_v4"),
                (c"cuCtxCreate", 3020, 0, c"cuCtxCreate_v2", c"cuCtxCreate_v2"),
                (c"cuMemAlloc", 13_000, 0, c"cuMemAlloc_v2", c"cuMemAlloc_v2"),
                (c"cuMemPrefetchAsync", 13_000, 0, c"cuMemPrefetchAsync", c"cuMemPrefetchAsync"),
                (
                    c"cuStreamGetCaptureInfo",
                    12_030,
                    2,
                    c"cuStreamGetCaptureInfo_v2_ptsz",
                    c"cuStreamGetCaptureInfo_v3_ptsz",
                ),
                (c"cuCtxSynchronize", -1, 0, c"cuCtxSynchronize", c"cuCtxSynchronize_v2"),
            ] {
                let wanted = if newer { new } else { old };
                let p = lookup(l, name, version, flags).0;
                let default = lookup(l, name, 12_020, flags).0;
                if name == c"cuMemPrefetchAsync" {
                    assert_eq!(p, default, "nothing newer came");
                } else {
                    assert_eq!(p, address(l, wanted), "{name:?} {version}");
                }
            }
            ready(l);
            let mut s = 9;
            let code = cu!(l, cuCheckpointProcessGetState(me(), &mut s));
            assert_eq!(code, if newer { CUresult::SUCCESS } else { CUresult::NOT_SUPPORTED });
        });
    }
}

#[test]
fn newer_questions_about_kernels_are_answered() {
    on_machine("t4", &[NEWER], |l, dir| {
        ready(l);
        let text = c".version 7.0\n.target sm_50\n.address_size 64\n.global .align 8 .b8 t[64];\n\
            .visible .entry one(.param .u32 a, .param .u64 b) { ret; }\n.visible .entry two() { ret; }\n";
        let (mut library, none) = (CUlibrary::NULL, null_mut());
        ok!(l, cuLibraryLoadData(&mut library, text.as_ptr().cast(), none, null_mut(), 0, null_mut(), null_mut(), 0));
        let (mut n, mut all, mut name, mut back) = (0, [CUkernel::NULL; 4], std::ptr::null(), CUlibrary::NULL);
        ok!(l, cuLibraryGetKernelCount(&mut n, library));
        ok!(l, cuLibraryEnumerateKernels(all.as_mut_ptr(), 4, library));
        ok!(l, cuKernelGetName(&mut name, all[0]));
        ok!(l, cuKernelGetLibrary(&mut back, all[1]));
        // SAFETY: the driver's own text, zero-terminated.
        assert_eq!((n, unsafe { CStr::from_ptr(name) }, back, all[2].is_null()), (2, c"one", library, true));
        let (mut at, mut size, mut loaded) = (0, 0, 9);
        ok!(l, cuKernelGetParamInfo(all[0], 1, &mut at, &mut size));
        assert_eq!((at, size), (8, 8));
        assert_eq!(cu!(l, cuKernelGetParamInfo(all[0], 2, &mut at, &mut size)), CUresult::INVALID_VALUE);
        // A kernel is loaded, and takes memory, only on request.
        let base = used(dir);
        let f = CUfunction(all[0].0);
        ok!(l, cuFuncIsLoaded(&mut loaded, f));
        assert_eq!(loaded, 0);
        ok!(l, cuFuncLoad(f));
        ok!(l, cuFuncIsLoaded(&mut loaded, f));
        assert_eq!((loaded, used(dir)), (1, base + (2 << 20)));
        let (mut m, mut fs) = (CUmodule::NULL, [CUfunction::NULL; 2]);
        ok!(l, cuLibraryGetModule(&mut m, library));
        ok!(l, cuModuleGetFunctionCount(&mut n, m));
        ok!(l, cuModuleEnumerateFunctions(fs.as_mut_ptr(), 2, m));
        ok!(l, cuFuncGetName(&mut name, fs[1]));
        ok!(l, cuFuncGetParamInfo(fs[0], 0, &mut at, &mut size));
        // SAFETY: as above.
        assert_eq!((n, unsafe { CStr::from_ptr(name) }, at, size), (2, c"two", 0, 4));
        let mut ctx = CUcontext::NULL;
        ok!(l, cuCtxCreate_v4(&mut ctx, null_mut(), 0, 0));
        ok!(l, cuCtxSynchronize_v2(ctx));
        ok!(l, cuCtxSynchronize_v2(CUcontext::NULL));
    });
}

#[test]
fn memory_leaves_the_device_and_comes_back_with_its_content() {
    on_machine("h200", &[NEWER], |l, dir| {
        ready(l);
        let (mut p, mut m) = (0, 0);
        ok!(l, cuMemAlloc_v2(&mut p, 100 * MIB));
        ok!(l, cuMemAllocManaged(&mut m, 10 * MIB, 1));
        ok!(l, cuMemsetD8_v2(p, 42, 100 * MIB));
        let before = used(dir);
        assert!(before > 110 << 20);
        assert_eq!(state(l, me()), RUNNING);
        ok!(l, cuCheckpointProcessLock(me(), null_mut()));
        assert_eq!((state(l, me()), used(dir)), (LOCKED, before));
        ok!(l, cuCheckpointProcessCheckpoint(me(), null_mut()));
        assert_eq!((state(l, me()), used(dir)), (CHECKPOINTED, 0));
        let t = vgpu_sim::truth::read(dir).unwrap();
        let gone = t.living_process(0, std::process::id()).unwrap();
        assert_eq!((gone.contexts, gone.requested_bytes, gone.physical_bytes), (0, 0, 0));
        ok!(l, cuCheckpointProcessRestore(me(), null_mut()));
        assert_eq!((state(l, me()), used(dir)), (LOCKED, before));
        ok!(l, cuCheckpointProcessUnlock(me(), null_mut()));
        assert_eq!(state(l, me()), RUNNING);
        let mut back = vec![0u8; 100 * MIB];
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, back.len()));
        assert!(back.iter().all(|b| *b == 42));
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuMemFree_v2(m));
    });
}

#[test]
fn a_step_out_of_turn_is_an_illegal_state_and_a_strangers_pid_no_value() {
    on_machine("h200", &[NEWER], |l, _| {
        let mut s = 9;
        assert_eq!(cu!(l, cuCheckpointProcessGetState(me(), &mut s)), CUresult::NOT_INITIALIZED);
        ready(l);
        let (wrong, invalid) = (CUresult::ILLEGAL_STATE, CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuCheckpointProcessCheckpoint(me(), null_mut())), wrong);
        assert_eq!(cu!(l, cuCheckpointProcessRestore(me(), null_mut())), wrong);
        assert_eq!(cu!(l, cuCheckpointProcessUnlock(me(), null_mut())), wrong);
        for pid in [0, -1, 1, i32::MAX] {
            assert_eq!(cu!(l, cuCheckpointProcessLock(pid, null_mut())), invalid);
            assert_eq!(cu!(l, cuCheckpointProcessGetState(pid, &mut s)), invalid);
            assert_eq!(cu!(l, cuCheckpointProcessGetRestoreThreadId(pid, &mut 0)), invalid);
        }
        assert_eq!(cu!(l, cuCheckpointProcessGetState(me(), null_mut())), invalid);
        let mut args = CUcheckpointLockArgs::default();
        args.words[3] = 1;
        assert_eq!(cu!(l, cuCheckpointProcessLock(me(), &mut args)), invalid);
        args.words = [1000 | 1 << 32, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(cu!(l, cuCheckpointProcessLock(me(), &mut args)), invalid);
        assert_eq!(state(l, me()), RUNNING);
        args.words[0] = 1000;
        ok!(l, cuCheckpointProcessLock(me(), &mut args));
        assert_eq!(cu!(l, cuCheckpointProcessLock(me(), null_mut())), wrong);
        assert_eq!(cu!(l, cuCheckpointProcessRestore(me(), null_mut())), wrong);
        ok!(l, cuCheckpointProcessCheckpoint(me(), null_mut()));
        assert_eq!(cu!(l, cuCheckpointProcessUnlock(me(), null_mut())), wrong);
        let mut pairs = CUcheckpointRestoreArgs { words: [1; 8] };
        assert_eq!(cu!(l, cuCheckpointProcessRestore(me(), &mut pairs)), CUresult::NOT_SUPPORTED);
        ok!(l, cuCheckpointProcessRestore(me(), null_mut()));
        ok!(l, cuCheckpointProcessUnlock(me(), null_mut()));
        let mut tid = 0;
        ok!(l, cuCheckpointProcessGetRestoreThreadId(me(), &mut tid));
        assert_eq!(tid, me());
    });
}

#[test]
fn calls_of_a_locked_process_wait_until_it_is_unlocked() {
    on_machine("h200", &[NEWER], |l, dir| {
        let ctx = ready(l);
        ok!(l, cuCheckpointProcessLock(me(), null_mut()));
        let before = used(dir);
        let done = AtomicBool::new(false);
        let mut seen = Vec::new();
        // No call may fail here before the unlock, because the scope waits for the blocked thread.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut p = 0;
                ok!(l, cuCtxSetCurrent(ctx));
                ok!(l, cuMemAlloc_v2(&mut p, 50 * MIB));
                done.store(true, Ordering::Release);
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            seen.push(u64::from(cu!(l, cuCheckpointProcessCheckpoint(me(), null_mut())).0));
            // Calls that need no device are answered.
            let (mut version, mut text) = (0, std::ptr::null());
            seen.push(u64::from(cu!(l, cuDriverGetVersion(&mut version)).0));
            seen.push(u64::from(cu!(l, cuGetErrorName(CUresult::UNKNOWN, &mut text)).0));
            seen.extend([u64::from(done.load(Ordering::Acquire)), used(dir)]);
            seen.push(u64::from(cu!(l, cuCheckpointProcessRestore(me(), null_mut())).0));
            seen.extend([u64::from(done.load(Ordering::Acquire)), used(dir)]);
            seen.push(u64::from(cu!(l, cuCheckpointProcessUnlock(me(), null_mut())).0));
        });
        assert_eq!(seen, [0, 0, 0, 0, 0, 0, 0, before, 0]);
        assert!(done.load(Ordering::Acquire));
        assert_eq!(used(dir), before + (50 << 20));
    });
}

#[test]
fn a_lock_waits_for_the_work_and_gives_up_in_time() {
    on_machine("h200", &[NEWER], |l, _| {
        ready(l);
        let text =
            c".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry vgpu_spin_ns(.param .u64 n) { ret; }\n";
        let (mut m, mut f) = (CUmodule::NULL, CUfunction::NULL);
        ok!(l, cuModuleLoadData(&mut m, text.as_ptr().cast()));
        ok!(l, cuModuleGetFunction(&mut f, m, c"vgpu_spin_ns".as_ptr()));
        let spin = |mut ns: u64| {
            let mut params = [(&raw mut ns).cast::<c_void>()];
            ok!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, params.as_mut_ptr(), null_mut()));
        };
        spin(400_000_000);
        let mut args = CUcheckpointLockArgs::default();
        args.words[0] = 20;
        assert_eq!(cu!(l, cuCheckpointProcessLock(me(), &mut args)), CUresult::NOT_READY);
        assert_eq!(state(l, me()), RUNNING, "who gave up has changed nothing");
        ok!(l, cuCheckpointProcessLock(me(), null_mut()));
        ok!(l, cuCheckpointProcessUnlock(me(), null_mut()));
        ok!(l, cuStreamQuery(CUstream::NULL));
    });
}

/// Another process; dropping this value ends the process, whatever it waits for.
struct Other(libc::pid_t);

impl Other {
    fn end(&mut self, signal: i32) -> i32 {
        let (pid, mut status) = (std::mem::take(&mut self.0), 0);
        // SAFETY: our own child, a live integer.
        unsafe {
            if signal != 0 {
                libc::kill(pid, signal);
            }
            libc::waitpid(pid, &raw mut status, 0);
        }
        status
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if self.0 != 0 {
            self.end(libc::SIGKILL);
        }
    }
}

/// A second process on the machine in `dir`; it runs `f`, with a socket to this process.
fn beside(dir: &Path, f: impl FnOnce(&Library, &mut UnixStream)) -> (Other, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let path = common::library();
    // SAFETY: the child uses its own copies only and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(ours);
        let run = std::panic::AssertUnwindSafe(|| {
            for (name, value) in [("VGPU_SIM_DIR", dir.to_str().unwrap()), NEWER] {
                // SAFETY: the child has one thread.
                #[allow(clippy::disallowed_methods)]
                unsafe {
                    std::env::set_var(name, value)
                };
            }
            f(&common::open(path), &mut theirs);
        });
        let code = i32::from(std::panic::catch_unwind(run).is_err());
        // SAFETY: ends the child without the harness's handlers.
        unsafe { libc::_exit(code) }
    }
    (Other(pid), ours)
}

fn hear(s: &mut UnixStream) -> u8 {
    let mut b = [0];
    s.read_exact(&mut b).unwrap();
    b[0]
}

#[test]
fn another_process_is_moved_off_the_device_and_back_by_its_pid() {
    let dir = tempfile::tempdir().unwrap();
    drop(vgpu_sim::MachineView::open_at(dir.path(), Some("t4")).unwrap());
    let (mut other, mut line) = beside(dir.path(), |l, line| {
        ready(l);
        let mut p = 0;
        ok!(l, cuMemAlloc_v2(&mut p, 8 << 30));
        ok!(l, cuMemsetD8_v2(p, 7, 4096));
        ok!(l, cuCtxSynchronize());
        line.write_all(b"a").unwrap();
        hear(line);
        // Blocks until the process is unlocked.
        let mut back = [0u8; 4096];
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, 4096));
        assert_eq!(back, [7; 4096]);
        line.write_all(b"b").unwrap();
        hear(line);
    });
    hear(&mut line);
    let pid = other.0;
    let place = dir.path().to_str().unwrap();
    in_child(&[("VGPU_SIM_DIR", place), NEWER], |l| {
        ready(l);
        let (mut p, mut free, mut total) = (0, 0, 0);
        ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!(cu!(l, cuMemAlloc_v2(&mut p, 10 << 30)), CUresult::OUT_OF_MEMORY, "the other has 8 GiB of 16");
        ok!(l, cuCheckpointProcessLock(pid, null_mut()));
        ok!(l, cuCheckpointProcessCheckpoint(pid, null_mut()));
        let mut line = line.try_clone().unwrap();
        line.write_all(b"g").unwrap();
        ok!(l, cuMemAlloc_v2(&mut p, 10 << 30));
        // There is no room for a restore now, and the process stays checkpointed.
        assert_eq!(cu!(l, cuCheckpointProcessRestore(pid, null_mut())), CUresult::OUT_OF_MEMORY);
        assert_eq!(state(l, pid), CHECKPOINTED);
        ok!(l, cuMemFree_v2(p));
        ok!(l, cuCheckpointProcessRestore(pid, null_mut()));
        let mut now = 0;
        ok!(l, cuMemGetInfo_v2(&mut now, &mut total));
        assert_eq!(now, free);
        line.set_nonblocking(true).unwrap();
        assert!(line.read(&mut [0]).is_err(), "locked still");
        line.set_nonblocking(false).unwrap();
        ok!(l, cuCheckpointProcessUnlock(pid, null_mut()));
        assert_eq!(hear(&mut line), b'b');
        Vec::new()
    });
    line.write_all(b"e").unwrap();
    assert_eq!(other.end(0), 0);
}

#[test]
fn a_process_that_dies_while_it_is_checkpointed_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    drop(vgpu_sim::MachineView::open_at(dir.path(), Some("t4")).unwrap());
    let (mut other, mut line) = beside(dir.path(), |l, line| {
        ready(l);
        ok!(l, cuMemAlloc_v2(&mut 0, 1 << 30));
        line.write_all(b"a").unwrap();
        hear(line);
    });
    hear(&mut line);
    let pid = other.0;
    in_child(&[("VGPU_SIM_DIR", dir.path().to_str().unwrap()), NEWER], |l| {
        ready(l);
        ok!(l, cuCheckpointProcessLock(pid, null_mut()));
        ok!(l, cuCheckpointProcessCheckpoint(pid, null_mut()));
        Vec::new()
    });
    other.end(libc::SIGKILL);
    assert_eq!(used(dir.path()), 0);
    // A running process takes the slot of the killed one.
    in_child(&[("VGPU_SIM_DIR", dir.path().to_str().unwrap()), NEWER], |l| {
        ready(l);
        assert_eq!(state(l, me()), RUNNING);
        let mut s = 0;
        assert_eq!(cu!(l, cuCheckpointProcessGetState(pid, &mut s)), CUresult::INVALID_VALUE);
        Vec::new()
    });
}
