//! Tests of blocks from another process's pool.

use super::*;
use crate::common::on_machine;

fn pool_of(l: &Library, kinds: u32) -> CUmemoryPool {
    let mut pool = CUmemoryPool::NULL;
    let props = CUmemPoolProps {
        allocType: 1,
        handleTypes: kinds,
        location: prop(0).location,
        win32SecurityAttributes: null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    ok!(l, cuMemPoolCreate(&mut pool, &props));
    pool
}

fn from(l: &Library, pool: CUmemoryPool, bytes: usize) -> CUdeviceptr {
    let mut p = 0;
    ok!(l, cuMemAllocFromPoolAsync(&mut p, bytes, pool, CUstream::NULL));
    p
}

fn export_pool(l: &Library, pool: CUmemoryPool) -> OwnedFd {
    let mut fd = -1i32;
    ok!(l, cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, 1, 0));
    // SAFETY: the driver has just made this descriptor for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn pointer(l: &Library, at: CUdeviceptr) -> [u8; 64] {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    ok!(l, cuMemPoolExportPointer(&mut data, at));
    data.reserved
}

#[test]
fn blocks_of_a_pool_are_opened_by_another_process() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let pool = pool_of(l, 1);
        // The pool gets one chunk before the export, one after it.
        let p = from(l, pool, 20 * MIB);
        fill(l, p, 1, 20 * MIB);
        line.tell_fd(export_pool(l, pool).as_raw_fd());
        let q = from(l, pool, 20 * MIB);
        fill(l, q, 2, 20 * MIB);
        line.tell_name(&pointer(l, p));
        line.tell_name(&pointer(l, q));
        line.number();
        ok!(l, cuStreamSynchronize(CUstream::NULL));
        assert_eq!(first(l, p + 5), 3);
        ok!(l, cuMemFreeAsync(p, CUstream::NULL));
        ok!(l, cuStreamSynchronize(CUstream::NULL));
        line.tell(0);
        line.listen();
    });
    let fd = a.line.fd();
    let names = [a.line.name(), a.line.name()];
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let mut pool = CUmemoryPool::NULL;
        ok!(l, cuMemPoolImportFromShareableHandle(&mut pool, as_handle(fd.as_raw_fd()), 1, 0));
        drop(fd);
        let import = |reserved: [u8; 64]| {
            let (mut at, mut data) = (0, CUmemPoolPtrExportData { reserved });
            let code = cu!(l, cuMemPoolImportPointer(&mut at, pool, &mut data));
            (code, at)
        };
        let [p, q] = names.map(|n| import(n).1);
        assert_eq!((first(l, p + (20 << 20) - 1), first(l, q)), (1, 2));
        assert_eq!(import(names[0]).0, CUresult::ALREADY_MAPPED);
        assert_eq!(import([7; 64]).0, CUresult::INVALID_VALUE);
        let refused = CUresult::INVALID_VALUE;
        assert_eq!(cu!(l, cuMemAllocFromPoolAsync(&mut 0, MIB, pool, CUstream::NULL)), refused, "it allocates nothing");
        assert_eq!(cu!(l, cuDeviceSetMemPool(0, pool)), refused);
        fill(l, p + 5, 3, 1);
        let (mut base, mut size) = (0, 0);
        ok!(l, cuMemGetAddressRange_v2(&mut base, &mut size, p + 1));
        assert_eq!((base, size), (p, 20 * MIB));
        line.tell(0);
        line.number();
        ok!(l, cuMemFreeAsync(p, CUstream::NULL));
        ok!(l, cuStreamSynchronize(CUstream::NULL));
        line.tell(0);
        line.number();
        ok!(l, cuMemPoolDestroy(pool));
        ok!(l, cuMemFree_v2(q));
        assert_eq!(cu!(l, cuMemFree_v2(q)), CUresult::INVALID_VALUE);
        line.tell(0);
        line.listen();
    });
    b.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [2 * CHUNK, 0]);
    a.line.tell(0);
    a.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [CHUNK, CHUNK], "the pool let go of a chunk that the other still shows");
    b.line.tell(0);
    b.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [CHUNK, 0]);
    a.kill();
    assert_eq!(truth(&m, &[b.pid]), [CHUNK]);
    b.line.tell(0);
    b.line.number();
    assert_eq!(truth(&m, &[b.pid]), [0]);
    b.end();
    nothing_left(dir.path(), &m);
}

#[test]
fn a_pool_that_was_not_exported_names_nothing() {
    let _one = alone();
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (plain, pool) = (pool_of(l, 0), pool_of(l, 1));
        let mut fd = -1i32;
        let out = (&raw mut fd).cast();
        assert_eq!(cu!(l, cuMemPoolExportToShareableHandle(out, plain, 1, 0)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuMemPoolExportToShareableHandle(out, pool, 8, 0)), CUresult::NOT_SUPPORTED);
        let p = from(l, pool, MIB);
        let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
        assert_eq!(cu!(l, cuMemPoolExportPointer(&mut data, p)), CUresult::INVALID_VALUE);
        drop(export_pool(l, pool));
        ok!(l, cuMemPoolExportPointer(&mut data, p));
        assert_eq!(cu!(l, cuMemPoolExportPointer(&mut data, p + 512)), CUresult::INVALID_VALUE, "not its beginning");
        assert_eq!(
            cu!(l, cuMemPoolImportPointer(&mut 0, pool, &mut data)),
            CUresult::INVALID_VALUE,
            "not an imported one"
        );
    });
}
