//! Tests of memory shared between processes: one content, one physical copy, the right owner in the ground truth,
//! and no leftovers after any death. By legacy handles, descriptors, pools, and as another API's memory.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

#[path = "../common/mod.rs"]
mod common;
mod descriptors;
mod external;
mod legacy;
mod pools;

use common::peer::{Line, Peer, alone};
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use vgpu_sim::MachineView;

const MIB: usize = 1 << 20;
const SLAB: u64 = 2 << 20;
const CHUNK: u64 = 32 << 20;
/// Memory of a context on a T4, bytes.
const CONTEXT: u64 = 104 << 20;

fn ready(l: &Library) -> CUcontext {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
    ctx
}

fn alloc(l: &Library, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAlloc_v2(&mut p, bytes));
    p
}

fn fill(l: &Library, at: CUdeviceptr, value: u8, bytes: usize) {
    ok!(l, cuMemsetD8_v2(at, value, bytes));
}

fn first(l: &Library, at: CUdeviceptr) -> u8 {
    let mut byte = 0u8;
    ok!(l, cuMemcpyDtoH_v2((&raw mut byte).cast(), at, 1));
    byte
}

fn legacy(l: &Library, at: CUdeviceptr) -> CUipcMemHandle {
    let mut h = CUipcMemHandle { reserved: [0; 64] };
    ok!(l, cuIpcGetMemHandle(&mut h, at));
    h
}

fn opened(l: &Library, handle: CUipcMemHandle) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuIpcOpenMemHandle_v2(&mut p, handle, 1));
    p
}

fn open(l: &Library, handle: CUipcMemHandle) -> CUresult {
    cu!(l, cuIpcOpenMemHandle_v2(&mut 0, handle, 1))
}

fn machine(profile: &str) -> (tempfile::TempDir, MachineView) {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some(profile)).unwrap();
    (dir, m)
}

/// Physical bytes of each process without its context, by pid. NVML's list and the sum must agree with the ground
/// truth.
fn truth(m: &MachineView, pids: &[i32]) -> Vec<u64> {
    let t = m.read_truth();
    let d = &t.devices[0];
    assert_eq!(d.used, d.processes.iter().map(|p| p.physical_bytes).sum::<u64>() + d.unclaimed);
    let listed = m.device_processes(0);
    let of = |pid: &i32| {
        let truth = t.living_process(0, pid.cast_unsigned()).map_or(0, |p| p.slab_bytes);
        let list = listed.iter().find(|p| p.pid == pid.cast_unsigned());
        assert!(list.is_none_or(|p| p.bytes == truth + CONTEXT));
        truth
    };
    pids.iter().map(of).collect()
}

fn nothing_left(dir: &Path, m: &MachineView) {
    assert_eq!(m.read_truth().devices[0].used, 0);
    let left = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    // The empty files that tell processes' numbers stay for the next process of the slot.
    let left: Vec<_> = left.filter(|name| !name.starts_with("process.")).collect();
    assert_eq!(left, ["state"]);
}

fn prop(kinds: u32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: 1,
        requestedHandleTypes: kinds,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
        win32HandleMetaData: null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    }
}

fn create(l: &Library, bytes: usize, prop: &CUmemAllocationProp) -> u64 {
    let mut h = 0;
    ok!(l, cuMemCreate(&mut h, bytes, prop, 0));
    h
}

/// Maps the allocation to new addresses, with access.
fn shown(l: &Library, handle: u64, bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(l, cuMemAddressReserve(&mut at, bytes, 0, 0, 0));
    ok!(l, cuMemMap(at, bytes, 0, handle, 0));
    ok!(l, cuMemSetAccess(at, bytes, &CUmemAccessDesc { location: prop(0).location, flags: 3 }, 1));
    at
}

fn export(l: &Library, handle: u64) -> OwnedFd {
    let mut fd = -1i32;
    ok!(l, cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0));
    // SAFETY: the driver has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn as_handle(fd: i32) -> *mut c_void {
    without_provenance_mut(usize::try_from(fd).unwrap_or(usize::MAX))
}

fn import(l: &Library, fd: &OwnedFd) -> u64 {
    let mut h = 0;
    ok!(l, cuMemImportFromShareableHandle(&mut h, as_handle(fd.as_raw_fd()), 1));
    h
}

#[test]
fn processes_killed_at_any_moment_leave_nothing() {
    let _one = alone();
    let (dir, m) = machine("h200");
    let mut seed = 11u64;
    for round in 0..15 {
        let mut a = Peer::start(dir.path(), move |l, line| {
            ready(l);
            for i in 0..u64::MAX {
                let bytes = 1 + usize::try_from(vgpu_sim::faults::splitmix64(i + round * 1000) % (4 << 20)).unwrap();
                let p = alloc(l, bytes);
                fill(l, p, 1, 1);
                line.tell_name(&legacy(l, p).reserved);
                let h = create(l, 2 * MIB, &prop(1));
                line.tell_fd(export(l, h).as_raw_fd());
                if i % 2 == 0 {
                    ok!(l, cuMemFree_v2(p));
                    ok!(l, cuMemRelease(h));
                }
            }
        });
        let mut line = std::mem::replace(&mut a.line, Line::closed());
        let b = Peer::start(dir.path(), move |l, _| {
            ready(l);
            loop {
                let mut p = 0;
                let _ = cu!(l, cuIpcOpenMemHandle_v2(&mut p, CUipcMemHandle { reserved: line.name() }, 1));
                let h = import(l, &line.fd());
                if p % 3 == 0 {
                    let _ = cu!(l, cuMemRelease(h));
                }
            }
        });
        seed = vgpu_sim::faults::splitmix64(seed);
        std::thread::sleep(std::time::Duration::from_micros(20_000 + seed % 30_000));
        let (one, other) = if round % 2 == 0 { (a, b) } else { (b, a) };
        one.kill();
        other.kill();
        nothing_left(dir.path(), &m);
    }
}
