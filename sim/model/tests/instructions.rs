//! A process may be killed at any instruction. These tests single-step a process, kill it there, and check that
//! the others continue with exact figures.

use std::sync::Arc;
use vgpu_sim::MachineView;
use vgpu_sim::engine::{DeviceEngine, WorkKind};
use vgpu_sim::slab::{DeviceHeap, FreeExtents};

/// The work that the victim repeats: everything that changes the shared state.
fn victim(dir: &std::path::Path) {
    let m = Arc::new(MachineView::open_at(dir, None).unwrap());
    let e = DeviceEngine::new(m.clone(), 0);
    let g = e.open_group();
    let (s, ev) = (e.legacy_stream(g).unwrap(), e.open_event(true));
    let mut heap = DeviceHeap::new(0, m.profile_of(0));
    let mut space = FreeExtents::new(0);
    space.give_range(1 << 40, 1 << 40);
    // The first round sets everything up, then the parent takes over.
    for round in 0.. {
        let p = heap.alloc(&m, &mut space, 3 << 20).unwrap();
        let q = heap.alloc(&m, &mut space, 5000).unwrap();
        e.enqueue_work(s, 3_000, WorkKind::Kernel, None::<fn()>);
        e.record_event(s, ev);
        e.event_done(ev);
        heap.free(&m, &mut space, p).unwrap();
        heap.free(&m, &mut space, q).unwrap();
        if round == 0 {
            // SAFETY: asks to be traced by the parent and stops.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
            }
        }
    }
}

/// Single-steps `pid` by `n` instructions; it must still be alive then.
fn step(pid: i32, n: u64) {
    let mut status = 0;
    for _ in 0..n {
        // SAFETY: a stopped child that asked to be traced.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0), 0);
            libc::waitpid(pid, &raw mut status, 0);
        }
        assert!(libc::WIFSTOPPED(status), "{status}");
    }
}

#[test]
fn whoever_is_killed_at_any_instruction_leaves_nothing_and_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let m = Arc::new(MachineView::open_at(dir.path(), Some("h200")).unwrap());
    let e = DeviceEngine::new(m.clone(), 0);
    let g = e.open_group();
    let s = e.legacy_stream(g).unwrap();
    let mut mine = 0;
    let mut held = 0;
    for round in 0..150u64 {
        // SAFETY: the child uses its own copies only and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let _ = std::panic::catch_unwind(|| victim(dir.path()));
            // SAFETY: ends the child without running the harness's handlers.
            unsafe { libc::_exit(101) }
        }
        let mut status = 0;
        // SAFETY: our own child, a live integer.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert!(libc::WIFSTOPPED(status), "the victim did not get ready: {status}");
        // Own work at the same time, so that the victim's steps also serve this process.
        e.enqueue_work(s, 200_000, WorkKind::Kernel, None::<fn()>);
        mine += 200_000;
        step(pid, vgpu_sim::faults::splitmix64(round) % 6_000);
        // SAFETY: our own child.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &raw mut status, 0);
        }
        let slot = m.own_slot();
        let before = std::time::Instant::now();
        let body = m.lock();
        held += u32::from(before.elapsed() > std::time::Duration::from_millis(2));
        assert_eq!(body.journal.open, 0, "a half-made step was completed");
        drop(body);
        let t = m.read_truth();
        let d = &t.devices[0];
        assert_eq!((d.used, d.processes.len()), (0, 1), "round {round}");
        e.stream_wait(s);
        assert_eq!(m.own_use(0).busy, mine, "exactly what was submitted was served");
        let body = m.lock_settled();
        let live: u64 = body.used_with_shares(slot, 0).busy;
        let all = live + body.devices[0].done.busy + body.devices[0].switch_ns;
        assert!(all <= body.devices[0].lanes[0].clock, "no time was given twice");
        assert!(body.live.iter().map(|w| w.count_ones()).sum::<u32>() == 1);
    }
    println!("{held} of 150 died with the lock");
    assert!(held > 0, "the lock was never held at a death: the test steps too little");
}

/// Makes a process that used 5,000 ns and memory, and is dead now.
fn dead_one(dir: &std::path::Path, m: &Arc<MachineView>) {
    let mut status = 0;
    // SAFETY: the child uses its own copies only, says when it is ready by stopping, and is killed.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let m = Arc::new(MachineView::open_at(dir, None).unwrap());
            let e = DeviceEngine::new(m.clone(), 0);
            let g = e.open_group();
            e.enqueue_work(e.legacy_stream(g).unwrap(), 5_000, WorkKind::Kernel, None::<fn()>);
            e.group_wait(g);
            let large = vgpu_sim::memory::RecordChange { large: 2 << 20, ..Default::default() };
            m.adjust_device(0, &large).unwrap();
            m.adjust_device(1, &large).unwrap();
            libc::raise(libc::SIGSTOP);
        }
        libc::waitpid(pid, &raw mut status, libc::WUNTRACED);
        assert!(libc::WIFSTOPPED(status));
        let _ = m;
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &raw mut status, 0);
    }
}

#[test]
fn whoever_is_killed_while_burying_another_buries_once() {
    let dir = tempfile::tempdir().unwrap();
    let m = Arc::new(MachineView::open_at(dir.path(), Some("2xh200")).unwrap());
    let (mut finished, mut left) = (0, 0);
    for round in 0..60u64 {
        // SAFETY: the child uses its own copies only and is killed in the end.
        let burier = unsafe { libc::fork() };
        if burier == 0 {
            let m = MachineView::open_at(dir.path(), None).unwrap();
            // SAFETY: asks to be traced by the parent and stops.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
            }
            loop {
                drop(m.lock_settled());
            }
        }
        let mut status = 0;
        // SAFETY: our own child, a live integer.
        unsafe { libc::waitpid(burier, &raw mut status, 0) };
        assert!(libc::WIFSTOPPED(status));
        dead_one(dir.path(), &m);
        step(burier, vgpu_sim::faults::splitmix64(round) % 12_000);
        // SAFETY: our own child.
        unsafe {
            libc::kill(burier, libc::SIGKILL);
            libc::waitpid(burier, &raw mut status, 0);
        }
        left += u32::from(m.lock().live.iter().map(|w| w.count_ones()).sum::<u32>() > 2);
        let t = m.read_truth();
        finished += 1;
        for (d, busy) in [(0, 5_000 * finished), (1, 0)] {
            let device = &t.devices[d];
            assert_eq!((device.used, device.busy_ns), (0, busy), "round {round}");
            let serials: std::collections::BTreeSet<u64> = device.finished.iter().map(|f| f.serial).collect();
            assert_eq!((device.finished.len() as u64, serials.len() as u64), (finished, finished), "round {round}");
            assert!(device.finished.iter().all(|f| f.physical_bytes == 2 << 20));
        }
    }
    println!("{left} of 60 burials were left to us");
    assert!(left > 0 && left < 60, "the burier must sometimes be killed before the end, and sometimes not");
}

#[test]
fn whoever_is_killed_while_stepping_the_clock_neither_loses_nor_doubles_time() {
    let dir = tempfile::tempdir().unwrap();
    let m = Arc::new(MachineView::open_at(dir.path(), Some("h200")).unwrap());
    let e = DeviceEngine::new(m.clone(), 0);
    let g = e.open_group();
    // Enough work for the whole test: the device is never idle, so every nanosecond counts for a process or a
    // switch.
    let endless = 3_600_000_000_000;
    e.enqueue_work(e.legacy_stream(g).unwrap(), endless, WorkKind::Kernel, None::<fn()>);
    let slot = m.own_slot();
    let sums = |m: &MachineView| {
        let b = m.lock_settled();
        let d = &b.devices[0];
        (d.lanes[0].clock, b.used_with_shares(slot, 0).busy + d.done.busy + d.switch_ns)
    };
    let (clock, sum) = sums(&m);
    let mut torn = 0;
    for round in 0..40u64 {
        // SAFETY: the child uses its own copies only and is killed in the end.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let m = Arc::new(MachineView::open_at(dir.path(), None).unwrap());
            let e = DeviceEngine::new(m.clone(), 0);
            let g = e.open_group();
            e.enqueue_work(e.legacy_stream(g).unwrap(), endless, WorkKind::Kernel, None::<fn()>);
            // SAFETY: asks to be traced by the parent and stops.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::raise(libc::SIGSTOP);
            }
            loop {
                drop(m.at_present(0));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, a live integer.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert!(libc::WIFSTOPPED(status), "{status}");
        // The first step is logged after about 7,000 instructions.
        step(pid, 4_000 + vgpu_sim::faults::splitmix64(round) % 8_000);
        // A step of the clock is open for few instructions, so every other child is stopped inside its next one.
        if round % 2 == 1 {
            (0..100_000).take_while(|_| !left_open(dir.path())).for_each(|_| step(pid, 1));
        }
        // SAFETY: our own child.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &raw mut status, 0);
        }
        torn += u32::from(left_open(dir.path()));
        let (now, got) = sums(&m);
        assert_eq!(got - sum, now - clock, "round {round}: time given and time gone");
    }
    println!("{torn} of 40 died in the middle of a step");
    assert!(torn >= 20, "{torn} torn steps: every other child was to die in one");
}

/// True if the dead process left a step half made in the file.
fn left_open(dir: &std::path::Path) -> bool {
    use std::os::unix::fs::FileExt;
    let at = std::mem::offset_of!(vgpu_sim::layout::StateFile, body)
        + std::mem::offset_of!(vgpu_sim::layout::StateBody, journal)
        + std::mem::offset_of!(vgpu_sim::layout::ClockJournal, open);
    let mut word = [0; 4];
    std::fs::File::open(dir.join("state")).unwrap().read_exact_at(&mut word, at as u64).unwrap();
    word != [0; 4]
}
