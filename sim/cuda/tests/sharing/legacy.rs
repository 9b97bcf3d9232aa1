//! Tests of legacy IPC handles: memory of `cuMemAlloc` by names of 64 bytes.

use super::*;

/// Exports an allocation of `bytes` filled with 42, sends its handle, and waits.
fn exporter(l: &Library, line: &mut Line, bytes: usize) -> CUdeviceptr {
    ready(l);
    let p = alloc(l, bytes);
    fill(l, p, 42, bytes);
    line.tell_name(&legacy(l, p).reserved);
    p
}

#[test]
fn what_one_process_writes_the_other_reads() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        let p = exporter(l, line, 5 * MIB);
        line.number();
        assert_eq!(first(l, p + 77), 43, "written by the other");
        fill(l, p, 44, MIB);
        line.tell(0);
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let p = opened(l, handle);
        assert_eq!((first(l, p), first(l, p + 5 * (1 << 20) - 1)), (42, 42));
        let (mut base, mut size) = (0, 0);
        ok!(l, cuMemGetAddressRange_v2(&mut base, &mut size, p + 5));
        assert_eq!((base, size), (p, 5 * MIB));
        ok!(l, cuMemcpyDtoD_v2(p + 77, p + 78, 1));
        fill(l, p + 77, 43, 1);
        line.tell(0);
        line.number();
        assert_eq!(first(l, p), 44);
        assert_eq!(cu!(l, cuMemFree_v2(p)), CUresult::INVALID_VALUE, "it is closed, not freed");
        ok!(l, cuIpcCloseMemHandle(p));
        assert_eq!(cu!(l, cuIpcCloseMemHandle(p)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemcpyDtoD_v2(p, p + 1, 1)), CUresult::INVALID_VALUE, "its addresses are gone");
        line.tell(0);
        line.listen();
    });
    b.line.number();
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [6 << 20, 0], "the creator's");
    b.line.tell(0);
    b.line.number();
    b.end();
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn memory_outlives_its_killed_exporter_and_belongs_to_who_holds_it() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        exporter(l, line, 5 * MIB);
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let mut others: Vec<Peer> = (0..2)
        .map(|_| {
            Peer::start(dir.path(), move |l, line| {
                ready(l);
                let p = opened(l, handle);
                line.tell(0);
                line.number();
                assert_eq!(first(l, p), 42, "the exporter is dead");
                assert_eq!(open(l, handle), CUresult::SUCCESS, "what is open here can be opened again");
                ok!(l, cuIpcCloseMemHandle(p));
                ok!(l, cuIpcCloseMemHandle(p));
                assert_eq!(cu!(l, cuIpcCloseMemHandle(p)), CUresult::INVALID_VALUE);
                line.tell(0);
                line.listen();
            })
        })
        .collect();
    for o in &mut others {
        o.line.number();
    }
    let [b, c] = [others[0].pid, others[1].pid];
    assert_eq!(truth(&m, &[a.pid, b, c]), [6 << 20, 0, 0]);
    a.kill();
    let after = truth(&m, &[b, c]);
    assert_eq!(after.iter().sum::<u64>(), 6 << 20, "once");
    assert!(after.contains(&0));
    let late = Peer::start(dir.path(), move |l, _| {
        ready(l);
        assert_eq!(open(l, handle), CUresult::INVALID_HANDLE, "there is nobody to open it from");
    });
    late.end();
    let second = others.pop().unwrap();
    second.kill();
    assert_eq!(truth(&m, &[b]), [6 << 20]);
    others[0].line.tell(0);
    others[0].line.number();
    assert_eq!(truth(&m, &[b]), [0], "closed as often as it was opened");
    others.pop().unwrap().end();
    nothing_left(dir.path(), &m);
}

#[test]
fn a_killed_importer_leaves_the_exporters_memory() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        let p = exporter(l, line, 5 * MIB);
        line.number();
        assert_eq!(first(l, p), 42);
        ok!(l, cuMemFree_v2(p));
        line.tell(0);
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        opened(l, handle);
        line.tell(0);
        line.listen();
    });
    b.line.number();
    b.kill();
    assert_eq!(truth(&m, &[a.pid]), [6 << 20]);
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid]), [0]);
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn an_exporter_that_frees_leaves_it_to_the_importer() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        let p = exporter(l, line, 3 * MIB);
        line.number();
        ok!(l, cuMemFree_v2(p));
        // The exporter reuses the addresses with other content.
        let q = alloc(l, 3 * MIB);
        fill(l, q, 1, 3 * MIB);
        line.tell(0);
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let p = opened(l, handle);
        line.tell(0);
        line.number();
        assert_eq!(first(l, p), 42);
        line.listen();
    });
    b.line.number();
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [4 << 20, 4 << 20]);
    b.line.tell(0);
    b.end();
    assert_eq!(truth(&m, &[a.pid]), [4 << 20]);
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn small_allocations_share_the_slab_they_lie_in() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let (p, q) = (alloc(l, 1000), alloc(l, 3000));
        fill(l, p, 1, 1000);
        fill(l, q, 2, 3000);
        let handles = [legacy(l, p), legacy(l, q + 5), legacy(l, p)];
        assert!(handles[0] != handles[1] && handles[0] == handles[2], "one name for each");
        handles[..2].iter().for_each(|h| line.tell_name(&h.reserved));
        line.number();
        // Allocates more memory in the same slab, and frees all of the slab.
        let r = alloc(l, 5000);
        for x in [p, q, r] {
            ok!(l, cuMemFree_v2(x));
        }
        let again = alloc(l, 1000);
        assert_ne!(legacy(l, again), handles[0], "new memory has a new name");
        ok!(l, cuMemFree_v2(again));
        line.tell(0);
        line.listen();
    });
    let names = [a.line.name(), a.line.name()];
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let [p, q] = names.map(|reserved| opened(l, CUipcMemHandle { reserved }));
        assert_eq!((first(l, p), first(l, p + 999), first(l, q)), (1, 1, 2));
        assert!(p.abs_diff(q) < SLAB, "one slab");
        let (mut base, mut size) = (0, 0);
        ok!(l, cuMemGetAddressRange_v2(&mut base, &mut size, q + 2999));
        assert_eq!((base, size), (q, 3000));
        line.tell(0);
        line.number();
        ok!(l, cuIpcCloseMemHandle(p));
        assert_eq!(first(l, q), 2);
        line.tell(0);
        line.number();
        ok!(l, cuIpcCloseMemHandle(q));
        line.tell(0);
        line.listen();
    });
    b.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [SLAB, 0]);
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [0, SLAB], "its creator has let go of it");
    b.line.tell(0);
    b.line.number();
    assert_eq!(truth(&m, &[b.pid]), [SLAB]);
    b.line.tell(0);
    b.line.number();
    assert_eq!(truth(&m, &[b.pid]), [0]);
    b.end();
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn wrong_handles_are_refused() {
    let _one = alone();
    let (dir, m) = machine("2xt4");
    let mut a = Peer::start(dir.path(), |l, line| {
        let p = exporter(l, line, 3 * MIB);
        let mine = legacy(l, p);
        assert_eq!(open(l, mine), CUresult::INVALID_CONTEXT, "a process cannot open its own");
        let mut h = mine;
        assert_eq!(cu!(l, cuIpcGetMemHandle(&mut h, 0x1234)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuIpcGetMemHandle(null_mut(), p)), CUresult::INVALID_VALUE);
        let mut q = 0;
        ok!(l, cuMemAllocAsync(&mut q, MIB, CUstream::NULL));
        assert_eq!(cu!(l, cuIpcGetMemHandle(&mut h, q)), CUresult::INVALID_VALUE, "a pool's has no such name");
        let mut capable = 9u32;
        for (at, yes) in [(p, 1), (q, 0)] {
            ok!(l, cuPointerGetAttribute((&raw mut capable).cast(), 10, at));
            assert_eq!(capable, yes);
        }
        assert_eq!(cu!(l, cuIpcCloseMemHandle(p)), CUresult::INVALID_VALUE, "it was not opened");
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let b = Peer::start(dir.path(), move |l, _| {
        ok!(l, cuInit(0));
        assert_eq!(open(l, handle), CUresult::INVALID_CONTEXT, "no context");
        ready(l);
        let mut p = 0;
        assert_eq!(cu!(l, cuIpcOpenMemHandle_v2(&mut p, handle, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuIpcOpenMemHandle_v2(null_mut(), handle, 1)), CUresult::INVALID_VALUE);
        let mut broken = handle;
        broken.reserved[20] ^= 1;
        assert_eq!(open(l, broken), CUresult::INVALID_HANDLE);
        let (mut other, mut second) = (CUcontext::NULL, CUcontext::NULL);
        ok!(l, cuDevicePrimaryCtxRetain(&mut other, 1));
        ok!(l, cuCtxSetCurrent(other));
        assert_eq!(open(l, handle).0, 217, "no device reaches another");
        let primary = ready(l);
        let at = opened(l, handle);
        ok!(l, cuCtxCreate_v2(&mut second, 0, 0));
        assert_eq!(open(l, handle), CUresult::INVALID_CONTEXT, "one context of a process may have it");
        ok!(l, cuCtxSetCurrent(primary));
        assert_eq!(opened(l, handle), at);
        assert_eq!(p, 0, "outputs stay");
    });
    b.end();
    a.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn a_context_takes_what_was_opened_in_it_along() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        exporter(l, line, 3 * MIB);
        line.listen();
    });
    let handle = CUipcMemHandle { reserved: a.line.name() };
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        opened(l, handle);
        opened(l, handle);
        line.tell(0);
        line.number();
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        line.tell(0);
        line.listen();
    });
    b.line.number();
    a.kill();
    assert_eq!(truth(&m, &[b.pid]), [4 << 20]);
    b.line.tell(0);
    b.line.number();
    assert_eq!(m.read_truth().devices[0].used, 0);
    b.end();
    nothing_left(dir.path(), &m);
}
