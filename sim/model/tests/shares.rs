//! Tests of memory that several processes hold: one copy, one owner in the ground truth, and an end with its last
//! holder.
//!
//! The other processes are forked children, as in `processes.rs`.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use vgpu_sim::MachineView;
use vgpu_sim::memory::{RecordChange, signed_bytes};
use vgpu_sim::share::{NewShare, ShareError, ShareKind};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 6 * MIB;

/// Keeps other tests waiting: a child that another test forks at the same time would inherit this test's
/// descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Child {
    pid: i32,
    line: UnixStream,
}

impl Child {
    /// Runs `f` in a forked child, with a socket to the parent.
    fn start(f: impl FnOnce(UnixStream)) -> Child {
        let (mine, theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child uses its own copies only and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop(mine);
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(theirs))).is_ok();
            // SAFETY: ends the child without running the harness's handlers.
            unsafe { libc::_exit(if ok { 0 } else { 101 }) }
        }
        Child { pid, line: mine }
    }

    fn end(mut self, signal: i32) {
        let mut status = 0;
        // SAFETY: our own child, a live integer.
        unsafe {
            if signal != 0 {
                libc::kill(self.pid, signal);
            } else {
                let _ = self.line.write_all(b".");
            }
            libc::waitpid(self.pid, &raw mut status, 0);
        }
        assert!(signal != 0 || status == 0, "the child failed");
    }

    fn number(&mut self) -> u64 {
        let mut b = [0; 8];
        self.line.read_exact(&mut b).unwrap();
        u64::from_ne_bytes(b)
    }
}

fn tell(line: &mut UnixStream, number: u64) {
    line.write_all(&number.to_ne_bytes()).unwrap();
}

fn listen(line: &mut UnixStream) {
    let _ = line.read_exact(&mut [0]);
}

/// Allocates memory and makes it a share.
fn shared(m: &MachineView) -> (u64, File) {
    let change = RecordChange {
        allocations: 1,
        requested: signed_bytes(SIZE),
        live: signed_bytes(SIZE),
        large: signed_bytes(SIZE),
        ..RecordChange::default()
    };
    m.adjust_device(0, &change).unwrap();
    let new = NewShare { kind: ShareKind::Memory, device: Some(0), bytes: SIZE, small: false, words: [0; 4] };
    let (info, file) = m.make_share(&new).unwrap();
    (info.id, file)
}

fn exporter(dir: &Path) -> Child {
    let dir = dir.to_owned();
    Child::start(move |mut line| {
        let m = MachineView::open_at(&dir, None).unwrap();
        let (id, file) = shared(&m);
        file.write_all_at(b"written by the exporter", 4096).unwrap();
        tell(&mut line, id);
        listen(&mut line);
    })
}

fn importer(dir: &Path, id: u64) -> Child {
    let dir = dir.to_owned();
    Child::start(move |mut line| {
        let m = MachineView::open_at(&dir, None).unwrap();
        let (info, file) = m.hold_share(id).unwrap();
        assert_eq!((info.bytes, info.device), (SIZE, Some(0)));
        let mut words = [0; 23];
        file.read_exact_at(&mut words, 4096).unwrap();
        assert_eq!(&words, b"written by the exporter");
        tell(&mut line, 0);
        listen(&mut line);
    })
}

/// Physical bytes of each process in `pids`, then the shared, the unowned and the used bytes.
fn truth(m: &MachineView, pids: &[i32]) -> (Vec<u64>, [u64; 3]) {
    let t = m.read_truth();
    let of = |pid: &i32| t.living_process(0, pid.cast_unsigned()).map_or(0, |p| p.physical_bytes);
    let d = &t.devices[0];
    assert_eq!(d.used, d.processes.iter().map(|p| p.physical_bytes).sum::<u64>() + d.unclaimed);
    assert_eq!(d.used, m.device_memory(0).used);
    (pids.iter().map(of).collect(), [d.shared, d.unclaimed, d.used])
}

/// Number of content files; 0 if the directory is gone.
fn contents(dir: &Path) -> usize {
    let Ok(all) = std::fs::read_dir(dir) else { return 0 };
    all.filter(|e| e.as_ref().unwrap().file_name().to_str().unwrap().starts_with("share.")).count()
}

#[test]
fn shared_memory_counts_once_and_passes_from_the_dead_to_the_lowest_living() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let mut first = exporter(dir.path());
    let id = first.number();
    let (mut a, mut b) = (importer(dir.path(), id), importer(dir.path(), id));
    a.number();
    b.number();
    let pids = [first.pid, a.pid, b.pid];
    assert_eq!(truth(&m, &pids), (vec![SIZE, 0, 0], [SIZE, 0, SIZE]));
    first.end(libc::SIGKILL);
    let (by, rest) = truth(&m, &pids);
    assert_eq!(rest, [SIZE, 0, SIZE], "the content lives, once");
    let slot = |pid: i32| {
        let body = m.lock();
        vgpu_sim::layout::set_bits(&body.live).find(|s| body.slots[*s].pid == pid.cast_unsigned()).unwrap()
    };
    let expected = if slot(pids[1]) < slot(pids[2]) { vec![0, SIZE, 0] } else { vec![0, 0, SIZE] };
    assert_eq!(by, expected, "of the living the lowest slot");
    let lowest_first = expected[1] == SIZE;
    let (low, high) = if lowest_first { (a, b) } else { (b, a) };
    let last = high.pid;
    low.end(0);
    assert_eq!(truth(&m, &[last]), (vec![SIZE], [SIZE, 0, SIZE]));
    assert_eq!(contents(dir.path()), 1);
    high.end(libc::SIGKILL);
    assert_eq!(truth(&m, &[]), (vec![], [0, 0, 0]));
    assert_eq!(contents(dir.path()), 0, "and its file goes with it");
    assert!(matches!(m.hold_share(id), Err(ShareError::Unknown)));
}

#[test]
fn a_creator_that_lets_go_leaves_it_to_who_holds_it() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let (id, _) = shared(&m);
    let mut a = importer_without_content(dir.path(), id);
    a.number();
    let me = std::process::id().cast_signed();
    assert_eq!(truth(&m, &[me, a.pid]).0, [SIZE, 0]);
    m.drop_share(id);
    assert_eq!(truth(&m, &[me, a.pid]).0, [0, SIZE]);
    a.end(0);
    assert_eq!(truth(&m, &[me]), (vec![0], [0, 0, 0]));
}

fn importer_without_content(dir: &Path, id: u64) -> Child {
    let dir = dir.to_owned();
    Child::start(move |mut line| {
        let m = MachineView::open_at(&dir, None).unwrap();
        m.hold_share(id).unwrap();
        tell(&mut line, 0);
        listen(&mut line);
    })
}

#[test]
fn a_descriptor_under_way_keeps_the_memory() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let path = dir.path().to_owned();
    // The descriptor is in transit in the socket when its maker is killed.
    let (mine, theirs) = UnixStream::pair().unwrap();
    let mut maker = Child::start(move |mut line| {
        let m = MachineView::open_at(&path, None).unwrap();
        let (id, file) = shared(&m);
        file.write_all_at(b"x", SIZE - 1).unwrap();
        let fd = m.share_descriptor(id).unwrap();
        send(&theirs, fd.as_raw_fd());
        drop(fd);
        m.drop_share(id);
        tell(&mut line, id);
        listen(&mut line);
    });
    let id = maker.number();
    assert_eq!(truth(&m, &[maker.pid]), (vec![SIZE], [SIZE, 0, SIZE]), "its maker's while that lives");
    maker.end(libc::SIGKILL);
    assert_eq!(truth(&m, &[]), (vec![], [SIZE, SIZE, SIZE]), "nobody's");
    let fd = receive(&mine);
    let (info, file) = m.hold_descriptor(fd.as_raw_fd()).unwrap();
    drop(fd);
    assert_eq!((info.id, info.held_by_creator), (id, false));
    let mut byte = [0];
    file.read_exact_at(&mut byte, SIZE - 1).unwrap();
    assert_eq!(&byte, b"x");
    assert_eq!(truth(&m, &[std::process::id().cast_signed()]), (vec![SIZE], [SIZE, 0, SIZE]));
    m.drop_share(id);
    assert_eq!(truth(&m, &[]), (vec![], [0, 0, 0]));
    // A descriptor that is closed without ever having been imported.
    let (id, _) = shared(&m);
    let fd = m.share_descriptor(id).unwrap();
    m.drop_share(id);
    assert_eq!(m.device_memory(0).used, SIZE);
    drop(fd);
    assert_eq!(truth(&m, &[]).1, [0, 0, 0]);
    assert_eq!(contents(dir.path()), 0);
    let other = tempfile::tempfile().unwrap();
    assert!(
        matches!(m.hold_descriptor(other.as_raw_fd()), Err(ShareError::Unknown)),
        "a file is no descriptor of ours"
    );
    assert!(matches!(m.hold_descriptor(-1), Err(ShareError::File(_))));
}

#[test]
fn memory_that_is_shared_leaves_no_room_for_another() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let mut first = exporter(dir.path());
    first.number();
    let free = m.device_memory(0).free;
    assert_eq!(free, m.profile_of(0).capacity_bytes() - SIZE);
    assert!(m.adjust_device(0, &RecordChange { large: signed_bytes(free + 1), ..RecordChange::default() }).is_err());
    first.end(libc::SIGKILL);
    m.adjust_device(0, &RecordChange { large: signed_bytes(free + SIZE), ..RecordChange::default() }).unwrap();
}

#[test]
fn makers_and_holders_killed_at_any_moment_leave_nothing() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let mut seed = 7u64;
    for round in 0..60 {
        let children: Vec<Child> = (0..3)
            .map(|_| {
                let path = dir.path().to_owned();
                Child::start(move |_| {
                    let m = MachineView::open_at(&path, None).unwrap();
                    let mut mine = Vec::new();
                    for i in 0u64.. {
                        mine.push(shared(&m).0);
                        let last = m.lock().shares_made;
                        let held = (last.saturating_sub(8)..=last).filter(|id| m.hold_share(*id).is_ok()).max();
                        if i % 3 == 0 {
                            let _ = m.share_descriptor(mine[mine.len() - 1]);
                        }
                        held.into_iter().for_each(|id| m.drop_share(id));
                        if mine.len() > 5 {
                            m.drop_share(mine.remove(0));
                        }
                    }
                })
            })
            .collect();
        seed = vgpu_sim::faults::splitmix64(seed);
        std::thread::sleep(std::time::Duration::from_micros(seed % 5000));
        children.into_iter().for_each(|c| c.end(libc::SIGKILL));
        assert_eq!(truth(&m, &[]), (vec![], [0, 0, 0]), "round {round}");
        assert_eq!(contents(dir.path()), 0, "round {round}");
    }
    assert!(m.lock().shares_made > 100);
}

#[test]
fn a_reset_takes_the_contents_along() {
    let _one = alone();
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    shared(&m);
    assert_eq!(contents(dir.path()), 1);
    assert!(vgpu_sim::admin::reset(dir.path()).unwrap());
    assert_eq!(contents(dir.path()), 0);
}

/// Room for one descriptor, aligned as the kernel requires.
#[repr(align(8))]
struct Ancillary([u8; 24]);

fn message(bytes: &mut libc::iovec, room: &mut Ancillary) -> libc::msghdr {
    // SAFETY: an all-zero header is a valid value of this plain structure.
    let mut m: libc::msghdr = unsafe { std::mem::zeroed() };
    m.msg_iov = bytes;
    m.msg_iovlen = 1;
    m.msg_control = room.0.as_mut_ptr().cast();
    m.msg_controllen = 24;
    m
}

fn send(line: &UnixStream, fd: i32) {
    let (mut byte, mut room) = ([1u8], Ancillary([0; 24]));
    let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let m = message(&mut io, &mut room);
    // SAFETY: the header points to live buffers of the stated sizes.
    unsafe {
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        (*c).cmsg_level = libc::SOL_SOCKET;
        (*c).cmsg_type = libc::SCM_RIGHTS;
        (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(c).cast::<i32>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(line.as_raw_fd(), &raw const m, 0), 1);
    }
}

fn receive(line: &UnixStream) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    let (mut byte, mut room) = ([0u8], Ancillary([0; 24]));
    let mut io = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut m = message(&mut io, &mut room);
    // SAFETY: the header points to live buffers of the stated sizes; the received descriptor is ours.
    unsafe {
        assert_eq!(libc::recvmsg(line.as_raw_fd(), &raw mut m, libc::MSG_CMSG_CLOEXEC), 1);
        let c = libc::CMSG_FIRSTHDR(&raw const m);
        assert!(!c.is_null(), "no descriptor came");
        std::os::fd::OwnedFd::from_raw_fd(libc::CMSG_DATA(c).cast::<i32>().read_unaligned())
    }
}
