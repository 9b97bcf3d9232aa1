//! Tests of physical allocations by file descriptors, and of their lifetime.

use super::*;
use crate::common::on_machine;

#[test]
fn descriptors_carry_physical_memory_to_another_process() {
    let _one = alone();
    let (dir, m) = machine("t4");
    const N: usize = 4 * MIB;
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let h = create(l, N, &prop(1));
        let at = shown(l, h, N);
        fill(l, at, 7, N);
        let fd = export(l, h);
        line.tell_fd(fd.as_raw_fd());
        drop(fd);
        line.number();
        assert_eq!(first(l, at + 9), 8);
        // A second export names the same memory.
        line.tell_fd(export(l, h).as_raw_fd());
        line.number();
        ok!(l, cuMemRelease(h));
        ok!(l, cuMemUnmap(at, N));
        line.tell(0);
        line.listen();
    });
    let fd = a.line.fd();
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let h = import(l, &fd);
        drop(fd);
        let at = shown(l, h, N);
        assert_eq!((first(l, at), first(l, at + N as u64 - 1)), (7, 7));
        fill(l, at + 9, 8, 1);
        let mut p = prop(0);
        ok!(l, cuMemGetAllocationPropertiesFromHandle(&mut p, h));
        assert_eq!((p.location, p.requestedHandleTypes), (prop(0).location, 1));
        line.tell(0);
        // Imports the same memory again: two handles, one copy, and it can be exported again.
        let second = import(l, &line.fd());
        let there = shown(l, second, N);
        assert_eq!(first(l, there + 9), 8);
        line.tell_fd(export(l, second).as_raw_fd());
        line.number();
        for (h, at) in [(h, at), (second, there)] {
            line.tell(0);
            line.number();
            ok!(l, cuMemUnmap(at, N));
            ok!(l, cuMemRelease(h));
        }
        line.tell(0);
        line.listen();
    });
    b.line.number();
    a.line.tell(0);
    let again = a.line.fd();
    b.line.tell_fd(again.as_raw_fd());
    drop(again);
    drop(b.line.fd());
    assert_eq!(truth(&m, &[a.pid, b.pid]), [N as u64, 0]);
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [0, N as u64], "the creator has neither handle nor mapping");
    a.end();
    b.line.tell(0);
    for left in [N as u64, N as u64, 0] {
        b.line.number();
        assert_eq!(truth(&m, &[b.pid]), [left]);
        b.line.tell(0);
    }
    b.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn a_descriptor_keeps_memory_that_nobody_else_holds() {
    let _one = alone();
    let (dir, m) = machine("t4");
    const N: usize = 4 * MIB;
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let h = create(l, N, &prop(1));
        let at = shown(l, h, N);
        fill(l, at, 7, N);
        line.tell_fd(export(l, h).as_raw_fd());
        ok!(l, cuMemUnmap(at, N));
        ok!(l, cuMemRelease(h));
        line.tell(0);
        line.listen();
    });
    let fd = a.line.fd();
    a.line.number();
    assert_eq!(truth(&m, &[a.pid]), [N as u64], "its maker's while that lives");
    a.kill();
    let d = &m.read_truth().devices[0];
    assert_eq!((d.used, d.unclaimed), (N as u64, N as u64), "then nobody's");
    let b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let h = import(l, &fd);
        drop(fd);
        assert_eq!(first(l, shown(l, h, N)), 7);
        line.tell(0);
        line.listen();
    });
    // The parent's copy of the descriptor was moved into the closure, which ended here.
    let mut b = b;
    b.line.number();
    assert_eq!(truth(&m, &[b.pid]), [N as u64]);
    b.kill();
    nothing_left(dir.path(), &m);
}

#[test]
fn host_memory_is_shared_and_counted_nowhere() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let numa =
            CUmemAllocationProp { location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 }, ..prop(1) };
        let h = create(l, 2 * MIB, &numa);
        let at = shown(l, h, 2 * MIB);
        fill(l, at, 9, 100);
        line.tell_fd(export(l, h).as_raw_fd());
        line.listen();
    });
    let fd = a.line.fd();
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let at = shown(l, import(l, &fd), 2 * MIB);
        assert_eq!(first(l, at + 99), 9);
        line.tell(0);
        line.listen();
    });
    b.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [0, 0]);
    a.kill();
    b.kill();
    nothing_left(dir.path(), &m);
}

#[test]
fn wrong_descriptors_are_refused() {
    let _one = alone();
    on_machine("t4", &[], |l, _| {
        ready(l);
        let plain = create(l, 2 * MIB, &prop(0));
        let (mut fd, mut h) = (-1i32, 0u64);
        let out = (&raw mut fd).cast();
        assert_eq!(cu!(l, cuMemExportToShareableHandle(out, plain, 1, 0)), CUresult::INVALID_VALUE, "not asked for");
        let good = create(l, 2 * MIB, &prop(1));
        assert_eq!(cu!(l, cuMemExportToShareableHandle(out, good, 1, 1)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemExportToShareableHandle(out, good, 8, 0)), CUresult::NOT_SUPPORTED);
        assert_eq!(cu!(l, cuMemExportToShareableHandle(out, good, 3, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemExportToShareableHandle(null_mut(), good, 1, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemExportToShareableHandle(out, 0x1234, 1, 0)), CUresult::INVALID_VALUE);
        assert_eq!(fd, -1, "outputs stay");
        assert_eq!(cu!(l, cuMemCreate(&mut h, 2 * MIB, &prop(8), 0)), CUresult::NOT_SUPPORTED);
        assert_eq!(cu!(l, cuMemCreate(&mut h, 2 * MIB, &prop(16), 0)), CUresult::INVALID_VALUE);
        let file = tempfile::tempfile().unwrap();
        for bad in [as_handle(file.as_raw_fd()), as_handle(-1), as_handle(9999)] {
            assert_eq!(cu!(l, cuMemImportFromShareableHandle(&mut h, bad, 1)), CUresult::INVALID_VALUE);
        }
        let fd = export(l, good);
        let mut pool = CUmemoryPool::NULL;
        let as_pool = cu!(l, cuMemPoolImportFromShareableHandle(&mut pool, as_handle(fd.as_raw_fd()), 1, 0));
        assert_eq!(as_pool, CUresult::INVALID_VALUE, "memory is no pool");
        // In the exporting process the descriptor imports as a further handle.
        let twin = import(l, &fd);
        drop(fd);
        let (a, b) = (shown(l, good, 2 * MIB), shown(l, twin, 2 * MIB));
        fill(l, a, 5, 1);
        assert_eq!(first(l, b), 5);
        let mut value = 0;
        for (attribute, wanted) in [(103, 1), (104, 0), (119, 1), (128, 0), (132, 0)] {
            ok!(l, cuDeviceGetAttribute(&mut value, attribute, 0));
            assert_eq!(value, wanted, "{attribute}");
        }
    });
}

#[test]
fn mappings_end_as_they_were_made_and_keep_their_memory() {
    let _one = alone();
    on_machine("t4", &[], |l, dir| {
        ready(l);
        const N: usize = 2 * MIB;
        let physical = || {
            let t = vgpu_sim::truth::read(dir).unwrap();
            t.living_process(0, std::process::id()).unwrap().slab_bytes
        };
        let mut at = 0;
        ok!(l, cuMemAddressReserve(&mut at, 16 * N, 0, 0, 0));
        let at_part = |k: usize| at + (k * N) as u64;
        let (one, two) = (create(l, 4 * N, &prop(0)), create(l, 2 * N, &prop(0)));
        ok!(l, cuMemMap(at, 4 * N, 0, one, 0));
        ok!(l, cuMemMap(at_part(4), 2 * N, 0, two, 0));
        assert_eq!(cu!(l, cuMemMap(at_part(5), N, 0, two, 0)), CUresult::INVALID_VALUE, "taken");
        assert_eq!(cu!(l, cuMemMap(at_part(14), 4 * N, 0, one, 0)), CUresult::INVALID_VALUE, "beyond the addresses");
        assert_eq!(cu!(l, cuMemMap(at_part(8), 4 * N, 0, two, 0)), CUresult::INVALID_VALUE, "beyond the memory");
        assert_eq!(cu!(l, cuMemMap(at_part(8), N, N, one, 0)), CUresult::INVALID_VALUE, "offsets are zero");
        let access = CUmemAccessDesc { location: prop(0).location, flags: 3 };
        assert_eq!(cu!(l, cuMemSetAccess(at, N, &access, 1)), CUresult::INVALID_VALUE, "a part of a mapping");
        ok!(l, cuMemSetAccess(at, 6 * N, &access, 1));
        fill(l, at_part(3), 6, 2 * N);
        for (from, parts) in [(0, 2), (1, 3), (2, 4), (0, 5), (5, 1), (0, 7)] {
            let bad = cu!(l, cuMemUnmap(at_part(from), parts * N));
            assert_eq!(bad, CUresult::INVALID_VALUE, "{parts} from {from}");
        }
        assert_eq!((physical(), first(l, at_part(3))), (6 * SLAB, 6), "a refused end changes nothing");
        assert_eq!(cu!(l, cuMemAddressFree(at, 16 * N)), CUresult::INVALID_VALUE, "in use");
        // A handle that was released while mapped is retained again through the mapping.
        ok!(l, cuMemRelease(one));
        assert_eq!(cu!(l, cuMemRelease(one)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemMap(at_part(8), 4 * N, 0, one, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemGetAllocationPropertiesFromHandle(&mut prop(0), one)), CUresult::INVALID_VALUE);
        let mut again = 0;
        ok!(l, cuMemRetainAllocationHandle(&mut again, at_part(3) as *mut c_void));
        assert_eq!(again, one);
        ok!(l, cuMemMap(at_part(8), 4 * N, 0, one, 0));
        // One call removes several mappings at once.
        ok!(l, cuMemUnmap(at, 6 * N));
        assert_eq!(physical(), 6 * SLAB);
        ok!(l, cuMemRelease(two));
        assert_eq!(physical(), 4 * SLAB);
        ok!(l, cuMemRelease(one));
        assert_eq!(physical(), 4 * SLAB, "the second mapping keeps it");
        ok!(l, cuMemUnmap(at_part(8), 4 * N));
        assert_eq!(physical(), 0);
        ok!(l, cuMemAddressFree(at, 16 * N));
    });
}

/// The only hold of the process ends while another one begins.
#[test]
fn what_a_thread_imports_does_not_end_with_what_another_thread_releases() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let mut h = create(l, 2 * MIB, &prop(1));
        for round in 0..1500 {
            let fd = export(l, h);
            let start = std::sync::Barrier::new(2);
            let next = std::thread::scope(|scope| {
                let release = || {
                    start.wait();
                    (0..round % 300 * 20).for_each(|_| std::hint::spin_loop());
                    ok!(l, cuMemRelease(h));
                };
                scope.spawn(release);
                start.wait();
                import(l, &fd)
            });
            drop(fd);
            h = next;
            // An unheld share ends at the next check, which the end of any share makes.
            let other = create(l, 2 * MIB, &prop(1));
            drop(export(l, other));
            ok!(l, cuMemRelease(other));
        }
        ok!(l, cuMemRelease(h));
        line.tell(0);
        line.listen();
    });
    a.line.number();
    assert_eq!(truth(&m, &[a.pid]), [0]);
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn fabric_handles_are_promised_by_newer_devices_and_refused_without_their_service() {
    let _one = alone();
    let name = [0x5au8; 64];
    for (profile, promised, created, imported) in [
        ("h200", 1, CUresult::NOT_PERMITTED, CUresult::INVALID_DEVICE),
        ("t4", 0, CUresult::NOT_SUPPORTED, CUresult::NOT_SUPPORTED),
    ] {
        on_machine(profile, &[], |l, dir| {
            ready(l);
            let (mut value, mut handle) = (-1, 7);
            ok!(l, cuDeviceGetAttribute(&mut value, 128, 0));
            assert_eq!(value, promised, "{profile}");
            for kinds in [8, 9] {
                assert_eq!(cu!(l, cuMemCreate(&mut handle, 2 * MIB, &prop(kinds), 0)), created, "{profile}");
            }
            let from = name.as_ptr().cast_mut().cast();
            assert_eq!(cu!(l, cuMemImportFromShareableHandle(&mut handle, from, 8)), imported, "{profile}");
            assert_eq!(handle, 7, "untouched");
            let truth = vgpu_sim::truth::read(dir).unwrap();
            assert_eq!(truth.living_process(0, std::process::id()).map(|p| p.allocations), Some(0));
        });
    }
}

#[test]
fn a_descriptor_for_other_devices_names_whole_pages_inside_one_allocation() {
    let _one = alone();
    on_machine("h200", &[], |l, _| {
        ready(l);
        let (p, h) = (alloc(l, 4 * MIB), create(l, 4 * MIB, &prop(0)));
        let at = shown(l, h, 4 * MIB);
        let mut fd = -1i32;
        let to: *mut c_void = (&raw mut fd).cast();
        for (address, bytes) in [(p, 4 * MIB), (p + 4096, 4096), (at, 4 * MIB)] {
            ok!(l, cuMemGetHandleForAddressRange(to, address, bytes, 1, 0));
            // SAFETY: the driver has just made this descriptor for us.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        for (address, bytes, kind) in
            [(p + 1, 4096, 1), (p, 100, 1), (p, 0, 1), (p, 8 * MIB, 1), (4096, 4096, 1), (p, 4096, 2)]
        {
            let code = cu!(l, cuMemGetHandleForAddressRange(to, address, bytes, kind, 0));
            assert_eq!(code, CUresult::INVALID_VALUE, "{address:#x} {bytes} {kind}");
        }
    });
}
