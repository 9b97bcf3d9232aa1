//! Tests of memory of another API.

use super::*;
use crate::common::on_machine;
use std::os::fd::IntoRawFd;

fn external(fd: i32, size: u64) -> CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    let handle = [u64::from(fd.cast_unsigned()), 0];
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC { kind: 1, handle, size, flags: 0, reserved: [0; 16] }
}

fn buffer(offset: u64, size: u64) -> CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC { offset, size, flags: 0, reserved: [0; 16] }
}

#[test]
fn another_apis_memory_is_shown_and_counted_while_it_is_held() {
    let _one = alone();
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let physical = || {
            let t = vgpu_sim::truth::read(dir).unwrap();
            let p = t.living_process(0, std::process::id()).unwrap();
            (p.slab_bytes, p.requested_bytes)
        };
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"graphics", 1 << 20).unwrap();
        let mut m = CUexternalMemory::NULL;
        let keep = file.try_clone().unwrap();
        let fd = file.into_raw_fd();
        let bad = cu!(l, cuImportExternalMemory(&mut m, &external(fd, (3 << 20) + 1)));
        assert_eq!((bad, physical()), (CUresult::INVALID_HANDLE, (0, 0)), "the file is shorter");
        ok!(l, cuImportExternalMemory(&mut m, &external(fd, 3 << 20)));
        // SAFETY: only queries a descriptor number.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, -1, "the driver has taken it over");
        assert_eq!(physical(), (2 * SLAB, 3 << 20));
        let (mut p, mut back) = (0, [0u8; 8]);
        assert_eq!(
            cu!(l, cuExternalMemoryGetMappedBuffer(&mut p, m, &buffer(2 << 20, (1 << 20) + 1))),
            CUresult::INVALID_VALUE
        );
        ok!(l, cuExternalMemoryGetMappedBuffer(&mut p, m, &buffer(1 << 20, 1 << 20)));
        ok!(l, cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), p, 8));
        assert_eq!(&back, b"graphics");
        fill(l, p, b'G', 1);
        std::os::unix::fs::FileExt::read_exact_at(&keep, &mut back, 1 << 20).unwrap();
        assert_eq!(&back, b"Graphics", "the other API sees what is written");
        assert_eq!(cu!(l, cuMemUnmap(p, MIB)), CUresult::INVALID_VALUE, "it is freed, not unmapped");
        ok!(l, cuDestroyExternalMemory(m));
        assert_eq!(cu!(l, cuDestroyExternalMemory(m)), CUresult::INVALID_HANDLE);
        assert_eq!(physical(), (2 * SLAB, 3 << 20), "its range keeps it");
        ok!(l, cuMemFree_v2(p));
        assert_eq!(physical(), (0, 0));
        // A context ends the imports that were made in it.
        let mut ctx = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut ctx, 0, 0));
        ok!(l, cuImportExternalMemory(&mut m, &external(keep.into_raw_fd(), 3 << 20)));
        ok!(l, cuExternalMemoryGetMappedBuffer(&mut p, m, &buffer(0, 1 << 20)));
        assert_eq!(physical(), (2 * SLAB, 3 << 20));
        ok!(l, cuCtxDestroy_v2(ctx));
        assert_eq!(physical(), (0, 0));
        ready(l);
        assert_eq!(cu!(l, cuMemFree_v2(p)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuDestroyExternalMemory(m)), CUresult::INVALID_HANDLE);
        assert_eq!(cu!(l, cuImportExternalMemory(&mut m, &external(-1, 4096))), CUresult::INVALID_HANDLE);
        let dx = CUDA_EXTERNAL_MEMORY_HANDLE_DESC { kind: 4, ..external(3, 4096) };
        assert_eq!(cu!(l, cuImportExternalMemory(&mut m, &dx)), CUresult::NOT_SUPPORTED);
    });
}

#[test]
fn a_descriptor_of_ours_is_another_apis_memory_too() {
    let _one = alone();
    let (dir, m) = machine("t4");
    let mut a = Peer::start(dir.path(), |l, line| {
        ready(l);
        let h = create(l, 4 * MIB, &prop(1));
        fill(l, shown(l, h, 4 * MIB), 7, 4 * MIB);
        line.tell_fd(export(l, h).as_raw_fd());
        line.listen();
    });
    let fd = a.line.fd();
    let mut b = Peer::start(dir.path(), move |l, line| {
        ready(l);
        let (mut m, mut p) = (CUexternalMemory::NULL, 0);
        ok!(l, cuImportExternalMemory(&mut m, &external(fd.into_raw_fd(), 4 << 20)));
        ok!(l, cuExternalMemoryGetMappedBuffer(&mut p, m, &buffer(MIB as u64, 1 << 20)));
        assert_eq!(first(l, p), 7);
        line.tell(0);
        line.number();
        ok!(l, cuDestroyExternalMemory(m));
        ok!(l, cuMemFree_v2(p));
        line.tell(0);
        line.listen();
    });
    b.line.number();
    assert_eq!(truth(&m, &[a.pid, b.pid]), [4 << 20, 0]);
    a.kill();
    assert_eq!(truth(&m, &[b.pid]), [4 << 20]);
    b.line.tell(0);
    b.line.number();
    assert_eq!(truth(&m, &[b.pid]), [0]);
    b.end();
    nothing_left(dir.path(), &m);
}
