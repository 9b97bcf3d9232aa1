//! The pages between two processes: a tenant's normal use, its forbidden attempts, and the daemon after the tenant's
//! death.
//!
//! The second process runs this test program again, with a socket as its standard input. Its assertions show as its
//! exit status.

use std::ffi::{CString, c_int};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use shim_sys::memfd::{OwnedPage, WriteAccess, receive_page, receive_read_only};
use shim_sys::{descriptors, futex};
use vgpu_core::limits::Mode;
use vgpu_core::protocol::page::{
    AllowedUse, BeatPage, BoardPage, GONE_EPOCH, MemberReport, ReportHistory, ReportPage, Uncharged, UnreadSlot,
};
use vgpu_core::time::arbiter::{Gate, MemberUsage, Terms};
use vgpu_core::time::gate::loss::OnLoss;

const EPOCH: u64 = 7;
const SLOT: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

struct Daemon {
    board: OwnedPage<BoardPage>,
    report: OwnedPage<ReportPage>,
    beat: OwnedPage<BeatPage>,
}

impl Daemon {
    fn new() -> Self {
        let daemon = Self {
            board: OwnedPage::new(c"vgpu-board", WriteAccess::Maker).unwrap(),
            report: OwnedPage::new(c"vgpu-report", WriteAccess::Everybody).unwrap(),
            beat: OwnedPage::new(c"vgpu-beat", WriteAccess::Maker).unwrap(),
        };
        daemon.board.mapped_page().format_page(EPOCH);
        daemon.report.mapped_page().format_page(EPOCH);
        daemon.beat.mapped_page().format_page(EPOCH);
        daemon.beat.mapped_page().make_beat(EPOCH, 1);
        let (mode, on_loss) = (Mode::Enforce, OnLoss::Local);
        let terms = Terms { quantum: Some(4), ..Terms::default() };
        let (memory, uncharged) = (None, Uncharged::default());
        let allowed = AllowedUse { device: 1, member: 2, memory, uncharged, terms, in_flight: 2, mode, on_loss };
        daemon.board.mapped_page().slots[SLOT].take_slot(&allowed, EPOCH);
        daemon
    }

    /// Passes the pages to the tenant `part` and starts it: a tenant that ends at once finds them sent.
    fn admit(&self, part: &str) -> (Child, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let files = [self.board.file_to_hand_out(), self.report.file_to_hand_out(), self.beat.file_to_hand_out()];
        assert_eq!(descriptors::send(ours.as_fd(), b"p", &files).unwrap(), 1);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", part, "--ignored", "--test-threads=1", "--nocapture"])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        (child, ours)
    }
}

/// The tenant's side: the socket, and the descriptors that came with the first byte.
fn welcome() -> (UnixStream, [OwnedFd; 3]) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).unwrap();
    let (mut byte, mut files) = ([0], Vec::new());
    assert_eq!(descriptors::receive_descriptors(socket.as_fd(), &mut byte, &mut files).unwrap(), 1);
    (socket, files.try_into().unwrap())
}

/// Asserts that the call failed with this error.
#[track_caller]
fn refused(result: impl Into<i64>, errno: c_int) {
    let error = std::io::Error::last_os_error();
    assert_eq!(result.into(), -1, "the kernel let it happen");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

fn truncate(file: BorrowedFd<'_>, size: i64) -> c_int {
    // SAFETY: the descriptor is open.
    unsafe { libc::ftruncate(file.as_raw_fd(), size) }
}

fn seal(file: BorrowedFd<'_>, seals: c_int) -> c_int {
    // SAFETY: the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }
}

fn hole(file: BorrowedFd<'_>, size: usize) -> c_int {
    let size = i64::try_from(size).unwrap();
    // SAFETY: the descriptor is open.
    unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, size) }
}

/// Attempts that would change the size of a page, or its seals.
fn neither_shorter_nor_longer(file: BorrowedFd<'_>, size: usize) {
    let size = i64::try_from(size).unwrap();
    refused(truncate(file, 0), libc::EPERM);
    refused(truncate(file, size - 1), libc::EPERM);
    refused(truncate(file, 2 * size), libc::EPERM);
    refused(seal(file, libc::F_SEAL_WRITE), libc::EPERM);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    assert!(std::fs::File::options().write(true).truncate(true).open(path).is_err());
}

#[test]
#[ignore = "a part of what_a_tenant_tries_with_the_daemons_pages"]
fn tenant_that_tries() {
    let (_socket, [board, report, beat]) = welcome();
    neither_shorter_nor_longer(report.as_fd(), size_of::<ReportPage>());
    for (file, size) in [(&board, size_of::<BoardPage>()), (&beat, size_of::<BeatPage>())] {
        neither_shorter_nor_longer(file.as_fd(), size);
        // A tenant can write neither through the received descriptor nor through one opened again by its path.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let again = std::fs::File::options().read(true).write(true).custom_flags(0).open(path.to_str().unwrap());
        for file in [Some(file.as_fd()), again.as_ref().ok().map(AsFd::as_fd)].into_iter().flatten() {
            let raw = file.as_raw_fd();
            let (both, none) = (libc::PROT_READ | libc::PROT_WRITE, core::ptr::null_mut());
            // SAFETY: new mappings of an open file, of which the first fails; the write calls get our own bytes.
            unsafe {
                refused(libc::mmap(none, size, both, libc::MAP_SHARED, raw, 0) as i64, libc::EPERM);
                let at = libc::mmap(none, size, libc::PROT_READ, libc::MAP_SHARED, raw, 0);
                assert_ne!(at, libc::MAP_FAILED);
                refused(libc::mprotect(at, size, both), libc::EACCES);
                refused(libc::madvise(at, size, libc::MADV_REMOVE), libc::EACCES);
                refused(libc::pwrite(raw, [0xffu8; 8].as_ptr().cast(), 8, 0) as i64, libc::EPERM);
                refused(hole(file, size), libc::EPERM);
                // Debuggers write this way, which bypasses the protection of private mappings.
                let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
                let place = libc::off_t::try_from(at.addr()).unwrap();
                assert_eq!(libc::pwrite(memory.as_raw_fd(), [0xffu8; 8].as_ptr().cast(), 8, place), -1);
                // A private copy may be written, since no other process sees it.
                let copy = libc::mmap(none, size, both, libc::MAP_PRIVATE, raw, 0);
                assert_ne!(copy, libc::MAP_FAILED);
                copy.cast::<u64>().write_volatile(0);
            }
        }
    }
    // Allowed: writing any bytes into the report, and punching holes into it.
    let said = receive_page::<ReportPage>(report.as_fd()).unwrap();
    assert!(said.check(EPOCH).is_ok());
    said.slots[SLOT].report_all(&MemberReport {
        busy: u64::MAX,
        since: u64::MAX,
        in_flight: Some(1),
        ..MemberReport::default()
    });
    assert!(said.slots[SLOT].begin_waiting());
    assert_eq!(hole(report.as_fd(), size_of::<ReportPage>()), 0);
    assert!(said.slots[SLOT].begin_waiting(), "zeroes again");
}

/// Red without F_SEAL_FUTURE_WRITE, or without F_SEAL_SHRINK.
#[test]
fn what_a_tenant_tries_with_the_daemons_pages_fails_and_the_daemon_reads_on() {
    let daemon = Daemon::new();
    let slot = &daemon.report.mapped_page().slots[SLOT];
    slot.report_all(&MemberReport { busy: 5, in_flight: Some(0), ..MemberReport::default() });
    let mut witness = ReportHistory::new(0);
    assert_eq!(witness.read_report(slot, 10).busy, 5);
    let (mut tenant, _socket) = daemon.admit("tenant_that_tries");
    assert!(tenant.wait().unwrap().success());
    assert!(daemon.board.mapped_page().check(EPOCH).is_ok() && daemon.beat.mapped_page().check(EPOCH).is_ok());
    assert_eq!(
        daemon.board.mapped_page().slots[SLOT].read_grant(EPOCH).unwrap().gate,
        Gate::Wait,
        "as the daemon wrote it"
    );
    let usage = witness.read_report(slot, 20);
    assert_eq!(usage, MemberUsage { busy: 5, finished: 0, known: 0, in_flight: Some(0), wants: true, since: 0 });
}

#[test]
#[ignore = "a part of a_member_in_another_process_sleeps_for_its_gate_and_learns_that_the_epoch_ends"]
fn tenant_that_works() {
    let (mut socket, [board, report, beat]) = welcome();
    // SAFETY: nothing below writes to either.
    let (board, beat) = unsafe {
        (receive_read_only::<BoardPage>(board.as_fd()).unwrap(), receive_read_only::<BeatPage>(beat.as_fd()).unwrap())
    };
    let report = receive_page::<ReportPage>(report.as_fd()).unwrap();
    assert_eq!((board.check(EPOCH), report.check(EPOCH), beat.check(EPOCH)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(beat.last_beat().map(|beat| beat.epoch), Some(EPOCH));
    let (slot, said) = (&board.slots[SLOT], &report.slots[SLOT]);
    let begin = Instant::now();
    let sleep = |sequence: u32| {
        assert!(begin.elapsed() < PATIENCE, "never woken");
        // The wait may return early; the loop then checks again.
        futex::wait(slot.futex_word(), sequence, u64::MAX / 2, u32::MAX);
    };
    if said.begin_waiting() {
        socket.write_all(b"r").unwrap();
    }
    let sequence = loop {
        match slot.read_grant(EPOCH) {
            Ok(grant) if matches!(grant.gate, Gate::Run { .. }) => break grant.sequence,
            Ok(grant) => sleep(grant.sequence),
            Err(UnreadSlot::Busy { sequence }) => sleep(sequence),
            Err(why) => panic!("{why}"),
        }
    };
    said.stop_waiting();
    said.report_launch(500, 500, 10, 10);
    assert!(slot.is_unchanged(sequence));
    said.report_all(&MemberReport {
        busy: 400,
        finished: 500,
        known: 300,
        submitted: 500,
        launched: 5,
        in_flight: Some(0),
        last_launch: 10,
        since: 10,
    });
    socket.write_all(b"d").unwrap();
    loop {
        match slot.read_grant(EPOCH) {
            Ok(grant) => sleep(grant.sequence),
            Err(UnreadSlot::Busy { sequence }) => sleep(sequence),
            Err(why) => break assert_eq!(why, UnreadSlot::Ended { epoch: GONE_EPOCH }),
        }
    }
}

#[test]
fn a_member_in_another_process_sleeps_for_its_gate_and_learns_that_the_epoch_ends() {
    let daemon = Daemon::new();
    let (mut tenant, mut socket) = daemon.admit("tenant_that_works");
    let (slot, mut byte) = (&daemon.board.mapped_page().slots[SLOT], [0]);
    let mut witness = ReportHistory::new(0);
    socket.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"r");
    assert!(witness.read_report(&daemon.report.mapped_page().slots[SLOT], 5).wants);
    slot.change_gate(&Gate::Run { lease: 1, until: u64::MAX, exclusive: true, ceiling: None, wide: false });
    futex::wake(slot.futex_word(), u32::MAX);
    socket.read_exact(&mut byte).unwrap();
    let usage = witness.read_report(&daemon.report.mapped_page().slots[SLOT], 1000);
    assert_eq!(
        usage,
        MemberUsage { busy: 400, finished: 500, known: 300, in_flight: Some(0), wants: false, since: 1000 }
    );
    daemon.board.mapped_page().end_epoch_of_all(GONE_EPOCH);
    futex::wake(slot.futex_word(), u32::MAX);
    assert!(tenant.wait().unwrap().success());
}

#[test]
#[ignore = "a part of the_pages_outlive_a_tenant_that_is_killed"]
fn tenant_that_dies() {
    let (mut socket, [_, report, _]) = welcome();
    let report = receive_page::<ReportPage>(report.as_fd()).unwrap();
    socket.write_all(b"x").unwrap();
    let begin = Instant::now();
    for busy in 1.. {
        report.slots[SLOT].report_all(&MemberReport {
            busy,
            finished: busy,
            submitted: busy,
            ..MemberReport::default()
        });
        assert!(begin.elapsed() < PATIENCE, "never killed");
    }
}

#[test]
fn the_pages_outlive_a_tenant_that_is_killed() {
    let daemon = Daemon::new();
    let (mut tenant, mut socket) = daemon.admit("tenant_that_dies");
    socket.read_exact(&mut [0]).unwrap();
    let slot = &daemon.report.mapped_page().slots[SLOT];
    let (mut witness, begin, mut last) = (ReportHistory::new(0), Instant::now(), 0);
    while last < 1000 && begin.elapsed() < PATIENCE {
        let usage = witness.read_report(slot, u64::MAX);
        assert!(usage.busy >= last);
        last = usage.busy;
    }
    tenant.kill().unwrap();
    tenant.wait().unwrap();
    let dead = witness.read_report(slot, u64::MAX);
    assert!(dead.busy >= 1000 && witness.read_report(slot, u64::MAX) == dead);
    assert_eq!(socket.read(&mut [0]).unwrap(), 0, "its death is the end of its socket");
}

#[test]
#[ignore = "a part of sending_to_nobody_is_an_error_and_kills_nobody"]
fn tenant_that_sends_to_nobody() {
    let (here, there) = UnixStream::pair().unwrap();
    drop(there);
    // A program that is not ours gets the default action; this test program's runtime ignores the signal.
    // SAFETY: sets the default action, in a process of its own.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let error = descriptors::send(here.as_fd(), b"x", &[here.as_fd()]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

/// Fails if the message is sent without MSG_NOSIGNAL: the kernel then kills the sender.
#[test]
fn sending_to_nobody_is_an_error_and_kills_nobody() {
    let (mut tenant, _socket) = Daemon::new().admit("tenant_that_sends_to_nobody");
    assert!(tenant.wait().unwrap().success());
}
