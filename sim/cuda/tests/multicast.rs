//! Tests of multicast objects: a team of devices, memory bound on each, in one process and between processes.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;

use common::on_machine;
use common::peer::{Peer, alone};
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};

const N: usize = 2 << 20;

fn ready(l: &Library) {
    let mut ctx = CUcontext::NULL;
    ok!(l, cuInit(0));
    ok!(l, cuDevicePrimaryCtxRetain(&mut ctx, 0));
    ok!(l, cuCtxSetCurrent(ctx));
}

fn team(devices: u32, kinds: u64) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size: 4 * N, handleTypes: kinds, flags: 0 }
}

fn memory(l: &Library, dev: i32, bytes: usize) -> u64 {
    let prop = CUmemAllocationProp {
        kind: 1,
        requestedHandleTypes: 1,
        location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: dev },
        win32HandleMetaData: null_mut(),
        allocFlags: CUmemAllocationFlags::default(),
    };
    let mut h = 0;
    ok!(l, cuMemCreate(&mut h, bytes, &prop, 0));
    h
}

fn supported(l: &Library, dev: i32) -> i32 {
    let mut v = -1;
    ok!(l, cuDeviceGetAttribute(&mut v, 132, dev));
    v
}

#[test]
fn multicast_is_for_several_devices_with_a_switch() {
    let _one = alone();
    for (profile, yes) in [("h200", 0), ("2xt4", 0), ("2xh100", 1), ("2xh200", 1)] {
        on_machine(profile, &[], |l, _| {
            ready(l);
            let mut mc = 7;
            let code = cu!(l, cuMulticastCreate(&mut mc, &team(1, 0)));
            assert_eq!(supported(l, 0), yes, "{profile}");
            assert_eq!(code, if yes == 1 { CUresult::SUCCESS } else { CUresult::NOT_SUPPORTED }, "{profile}");
            assert!(yes == 1 || mc == 7);
        });
    }
}

#[test]
fn bound_memory_lives_until_it_is_unbound() {
    let _one = alone();
    on_machine("3xh200", &[], |l, dir| {
        ready(l);
        let used = |d: usize| {
            let t = vgpu_sim::truth::read(dir).unwrap();
            t.living_process(d, std::process::id()).map_or(0, |p| p.slab_bytes)
        };
        let (mut mc, mut grain) = (0, 0);
        ok!(l, cuMulticastGetGranularity(&mut grain, &team(2, 0), 0));
        assert_eq!(grain, N);
        for bad in [team(0, 0), team(4, 0), CUmulticastObjectProp { size: N + 1, ..team(2, 0) }] {
            assert_eq!(cu!(l, cuMulticastCreate(&mut mc, &bad)), CUresult::INVALID_VALUE);
        }
        ok!(l, cuMulticastCreate(&mut mc, &team(2, 0)));
        ok!(l, cuMulticastAddDevice(mc, 0));
        assert_eq!(cu!(l, cuMulticastAddDevice(mc, 0)), CUresult::INVALID_VALUE, "once");
        ok!(l, cuMulticastAddDevice(mc, 1));
        assert_eq!(cu!(l, cuMulticastAddDevice(mc, 2)), CUresult::INVALID_VALUE, "the team is full");
        let [a, b, c] = [0, 1, 2].map(|dev| memory(l, dev, 4 * N));
        ok!(l, cuMulticastBindMem(mc, 0, a, 0, 2 * N, 0));
        ok!(l, cuMulticastBindMem(mc, 0, b, N, 2 * N, 0));
        let bind = |offset, m, at, bytes| cu!(l, cuMulticastBindMem(mc, offset, m, at, bytes, 0));
        assert_eq!(bind(N, a, 0, N), CUresult::INVALID_VALUE, "bound there already");
        assert_eq!(bind(2 * N, c, 0, N), CUresult::INVALID_DEVICE, "not of the team");
        for bad in [bind(1, a, 0, N), bind(2 * N, a, 1, N), bind(2 * N, a, 0, N - 1), bind(2 * N, a, 0, 0)] {
            assert_eq!(bad, CUresult::INVALID_VALUE);
        }
        assert_eq!(bind(2 * N, a, 3 * N, 2 * N), CUresult::INVALID_VALUE, "beyond the memory");
        assert_eq!(bind(3 * N, a, 0, 2 * N), CUresult::INVALID_VALUE, "beyond the object");
        assert_eq!(bind(2 * N, mc, 0, N), CUresult::INVALID_VALUE, "an object is no memory");
        for h in [a, b] {
            ok!(l, cuMemRelease(h));
        }
        assert_eq!((used(0), used(1)), (4 * N as u64, 4 * N as u64), "the bindings keep it");
        assert_eq!(cu!(l, cuMulticastUnbind(mc, 0, 0, N)), CUresult::INVALID_VALUE, "as it was bound");
        ok!(l, cuMulticastUnbind(mc, 0, 0, 2 * N));
        assert_eq!(cu!(l, cuMulticastUnbind(mc, 0, 0, 2 * N)), CUresult::INVALID_VALUE);
        assert_eq!((used(0), used(1)), (0, 4 * N as u64));
        // Maps the multicast object, and binds memory by handle and by address.
        let mut at = 0;
        ok!(l, cuMemAddressReserve(&mut at, 8 * N, 0, 0, 0));
        ok!(l, cuMemMap(at, 4 * N, 0, mc, 0));
        let d = memory(l, 0, 2 * N);
        let there = at + 4 * N as u64;
        ok!(l, cuMemMap(there, 2 * N, 0, d, 0));
        ok!(l, cuMemRelease(d));
        ok!(l, cuMulticastBindAddr(mc, N, there + N as u64, N, 0));
        ok!(l, cuMemUnmap(there, 2 * N));
        assert_eq!(used(0), 2 * N as u64, "bound by its address");
        let nothing = cu!(l, cuMulticastBindAddr(mc, 2 * N, there, N, 0));
        assert_eq!(nothing, CUresult::INVALID_VALUE);
        ok!(l, cuMemRelease(mc));
        assert_eq!((used(0), used(1)), (2 * N as u64, 4 * N as u64), "still mapped");
        ok!(l, cuMemUnmap(at, 4 * N));
        assert_eq!((used(0), used(1)), (0, 0), "the object took its bindings along");
        assert_eq!(cu!(l, cuMulticastAddDevice(mc, 0)), CUresult::INVALID_VALUE);
        ok!(l, cuMemRelease(c));
    });
}

#[test]
fn two_processes_make_one_team() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = vgpu_sim::MachineView::open_at(dir.path(), Some("2xh200")).unwrap();
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let (mut mc, mut fd) = (0, -1i32);
        ok!(l, cuMulticastCreate(&mut mc, &team(2, 1)));
        ok!(l, cuMulticastAddDevice(mc, 0));
        ok!(l, cuMemExportToShareableHandle((&raw mut fd).cast(), mc, 1, 0));
        line.tell_fd(fd);
        // The bind waits until the other process adds its device.
        let h = memory(l, 0, N);
        ok!(l, cuMulticastBindMem(mc, 0, h, 0, N, 0));
        line.tell(1);
        line.listen();
    });
    let fd: OwnedFd = a.line.fd();
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let mut mc = 0;
        let number = usize::try_from(fd.as_raw_fd()).unwrap();
        ok!(l, cuMemImportFromShareableHandle(&mut mc, without_provenance_mut(number), 1));
        line.number();
        std::thread::sleep(std::time::Duration::from_millis(20));
        ok!(l, cuMulticastAddDevice(mc, 1));
        assert_eq!(cu!(l, cuMulticastAddDevice(mc, 0)), CUresult::INVALID_VALUE, "the other process has added it");
        let h = memory(l, 1, N);
        ok!(l, cuMulticastBindMem(mc, 0, h, 0, N, 0));
        line.tell(2);
        line.listen();
    });
    // SAFETY: only checks for available bytes; reads nothing.
    let waiting = || unsafe {
        let mut p = libc::pollfd { fd: a.line.raw(), events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut p, 1, 50) == 0
    };
    assert!(waiting(), "it binds only when the team is whole");
    b.line.tell(0);
    assert_eq!((a.line.number(), b.line.number()), (1, 2));
    let t = m.read_truth();
    let of = |d, pid: i32| t.living_process(d, pid.cast_unsigned()).map_or(0, |p| p.slab_bytes);
    assert_eq!((of(0, a.pid), of(1, a.pid), of(0, b.pid), of(1, b.pid)), (N as u64, 0, 0, N as u64));
    a.kill();
    b.kill();
    assert_eq!(m.read_truth().devices.iter().map(|d| d.used).sum::<u64>(), 0);
    // The empty files that tell processes' numbers stay for the next process of the slot.
    let left = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| !name.starts_with("process.")).collect::<Vec<_>>(), ["state"]);
}
