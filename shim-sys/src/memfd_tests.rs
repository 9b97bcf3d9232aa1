//! Memory files within one process. tests/pages.rs covers attempts by a tenant in another process.

use core::sync::atomic::{AtomicU64, Ordering::*};
use std::os::fd::AsFd;

use super::*;

#[repr(C)]
struct Words {
    words: [AtomicU64; 512],
}
// SAFETY: atomics only.
unsafe impl Page for Words {}

#[repr(C)]
struct Twice {
    _words: [AtomicU64; 1024],
}
// SAFETY: atomics only.
unsafe impl Page for Twice {}

/// For tests that make only relaxed loads.
fn read_only<T: Page>(file: BorrowedFd<'_>) -> std::io::Result<MappedPage<T>> {
    // SAFETY: see above; the tests make only relaxed loads.
    unsafe { receive_read_only(file) }
}

fn words(result: std::io::Result<impl Sized>) -> String {
    let error = result.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    error.to_string()
}

#[test]
fn a_page_that_is_received_is_the_makers() {
    for reach in [WriteAccess::Maker, WriteAccess::Everybody] {
        let made = OwnedPage::<Words>::new(c"vgpu-test", reach).unwrap();
        let theirs = match reach {
            WriteAccess::Maker => read_only::<Words>(made.file_to_hand_out()),
            WriteAccess::Everybody => receive_page::<Words>(made.file_to_hand_out()),
        };
        let theirs = theirs.unwrap();
        let ours = made.mapped_page().clone();
        // SAFETY: asks for the flags of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(made.file_to_hand_out().as_raw_fd(), libc::F_GETFD) }, libc::FD_CLOEXEC);
        drop(made);
        ours.words[3].store(42, SeqCst);
        assert_eq!(theirs.words[3].load(Relaxed), 42, "pages outlive the descriptor");
    }
}

#[test]
fn a_page_is_unmapped_with_its_last_owner() {
    let made = OwnedPage::<Words>::new(c"vgpu-test-unmap", WriteAccess::Maker).unwrap();
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains("vgpu-test-unmap")).count()
    };
    let page = made.mapped_page().clone();
    let (first, second) = (read_only::<Words>(made.file_to_hand_out()).unwrap(), page.clone());
    assert_eq!(maps(), 2);
    drop((first, made));
    assert_eq!(maps(), 1);
    drop(page);
    assert_eq!(second.words[0].load(Relaxed), 0);
    drop(second);
    assert_eq!(maps(), 0);
}

#[test]
fn a_file_that_is_not_what_it_should_be_is_refused_with_the_reason() {
    let (null, program) =
        (std::fs::File::open("/dev/null").unwrap(), std::fs::File::open(std::env::current_exe().unwrap()).unwrap());
    assert_eq!(words(receive_page::<Words>(null.as_fd())), "is no memory file");
    assert_eq!(words(read_only::<Words>(program.as_fd())), "is no memory file");

    let (board, report) = (
        OwnedPage::<Words>::new(c"b", WriteAccess::Maker).unwrap(),
        OwnedPage::<Words>::new(c"r", WriteAccess::Everybody).unwrap(),
    );
    assert_eq!(words(receive_page::<Words>(board.file_to_hand_out())), "is sealed against writing");
    assert_eq!(words(read_only::<Words>(report.file_to_hand_out())), "is not sealed: future-write missing");
    let other = words(receive_page::<Twice>(report.file_to_hand_out()));
    assert_eq!(other, "has 4096 bytes, not 8192: made by another version?");

    // A file that could become shorter while it is read is refused; the error names each missing seal.
    let bare = create_memfd(c"bare").unwrap();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::ftruncate(bare.as_raw_fd(), 4096) }, 0);
    assert_eq!(words(receive_page::<Words>(bare.as_fd())), "is not sealed: shrink, grow, seal missing");
    add_seals(bare.as_fd(), libc::F_SEAL_GROW | libc::F_SEAL_SHRINK).unwrap();
    assert_eq!(words(receive_page::<Words>(bare.as_fd())), "is not sealed: seal missing");
    add_seals(bare.as_fd(), libc::F_SEAL_SEAL).unwrap();
    assert!(receive_page::<Words>(bare.as_fd()).is_ok());
}

#[test]
fn a_kernel_that_cannot_seal_against_writing_is_named_with_what_it_needs() {
    let invalid = || Error::from_raw_os_error(libc::EINVAL);
    let error = seal_error(invalid(), WriteAccess::Maker.required_seals());
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("Linux 5.1 or later is needed"), "{error}");
    assert_eq!(seal_error(invalid(), WriteAccess::Everybody.required_seals()).raw_os_error(), Some(libc::EINVAL));
}
