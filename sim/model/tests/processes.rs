//! Tests of the machine between processes: one state, fair time, exact memory, and no leftovers of dead
//! processes.
//!
//! The other processes are forked children of the test; they end with `_exit` and do not use the test harness.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use vgpu_sim::engine::{DeviceEngine, WorkKind};
use vgpu_sim::slab::{DeviceHeap, FreeExtents};
use vgpu_sim::{MachineView, truth};

const GIB: u64 = 1 << 30;
const SLAB: u64 = 2 << 20;

/// Silences panics of forked children: printing takes locks that another thread may have held at the fork.
fn quiet_children() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let (me, usual) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            if std::process::id() == me {
                usual(info);
            }
        }));
    });
}

struct Child {
    pid: i32,
    line: UnixStream,
}

impl Child {
    /// Runs `f` in a forked child, with a socket to the parent.
    fn start(f: impl FnOnce(UnixStream)) -> Child {
        quiet_children();
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

    fn kill(mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.wait();
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child, a live integer.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        status
    }

    fn heard(&mut self) -> u8 {
        let mut b = [0];
        self.line.read_exact(&mut b).unwrap();
        b[0]
    }
}

fn say(line: &mut UnixStream) {
    line.write_all(b".").unwrap();
}

fn listen(line: &mut UnixStream) {
    let _ = line.read_exact(&mut [0]);
}

fn space() -> FreeExtents {
    let mut e = FreeExtents::new(0);
    e.give_range(1 << 40, 1 << 40);
    e
}

#[test]
fn of_many_processes_that_start_at_once_one_makes_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..24)
        .map(|_| {
            let path = dir.path().join("deep/er");
            Child::start(move |_| {
                let m = MachineView::open_at(&path, Some("2xt4")).unwrap();
                assert_eq!(m.device_count(), 2);
            })
        })
        .collect();
    for mut c in children {
        assert_eq!(c.wait(), 0);
    }
    let names: Vec<_> =
        std::fs::read_dir(dir.path().join("deep/er")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["state"], "no temporary file is left");
}

#[test]
fn identities_are_distinct_and_do_not_change_with_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let ids = || {
        let m = MachineView::open_at(dir.path(), Some("2xh200,t4")).unwrap();
        (0..3).map(|i| (m.device_identity(i).uuid_text(), m.device_identity(i).pci_text())).collect::<Vec<_>>()
    };
    let first = ids();
    assert!(vgpu_sim::admin::reset(dir.path()).unwrap());
    assert_eq!(ids(), first);
    for i in 0..3 {
        for j in 0..i {
            assert!(first[i].0 != first[j].0 && first[i].1 != first[j].1);
        }
        assert_eq!(first[i].0.len(), 40);
    }
}

#[test]
fn the_last_byte_can_be_allocated_and_one_more_can_not() {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let mut heap = DeviceHeap::new(0, m.profile_of(0));
    let mut space = space();
    let free = m.device_memory(0).free;
    let all = heap.alloc(&m, &mut space, free).unwrap();
    assert_eq!(m.device_memory(0).free, 0);
    assert_eq!(heap.alloc(&m, &mut space, 1).unwrap_err().free, 0);
    heap.free(&m, &mut space, all).unwrap();
    assert_eq!(heap.alloc(&m, &mut space, free + 1).unwrap_err().free, free);
    assert_eq!(m.device_memory(0).free, free);
}

#[test]
fn small_requests_share_slabs_and_large_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let mut heap = DeviceHeap::new(0, m.profile_of(0));
    let mut space = space();
    let small: Vec<u64> = (0..4096).map(|_| heap.alloc(&m, &mut space, 1).unwrap()).collect();
    let u = m.own_use(0);
    assert_eq!((u.requested, u.live, u.slabs, u.allocations), (4096, 4096 * 512, SLAB, 4096));
    let one_more = heap.alloc(&m, &mut space, 513).unwrap();
    assert_eq!(m.own_use(0).slabs, 2 * SLAB);
    let large = heap.alloc(&m, &mut space, SLAB + 1).unwrap();
    assert_eq!(m.own_use(0).large, 2 * SLAB);
    assert_eq!(heap.find(large + SLAB).unwrap().0, large);
    assert_eq!(heap.find(large + SLAB + 1), None);
    for at in small.into_iter().chain([one_more, large]) {
        heap.free(&m, &mut space, at).unwrap();
    }
    let u = m.own_use(0);
    assert_eq!((u.physical_bytes(), u.requested, u.live, u.allocations), (0, 0, 0, 0));
    assert!(heap.free(&m, &mut space, large).is_none());
    assert_eq!(space.take_range(1 << 40, 1), Some(1 << 40), "all addresses came back as one range");
}

#[test]
fn two_processes_get_equal_time_slice_by_slice() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let mut children: Vec<Child> = (0..2)
        .map(|_| {
            let dir = dir.path().to_owned();
            Child::start(move |mut line| {
                let m = Arc::new(MachineView::open_at(&dir, None).unwrap());
                let e = DeviceEngine::new(m, 0);
                let g = e.open_group();
                let s = e.legacy_stream(g).unwrap();
                for _ in 0..300 {
                    e.enqueue_work(s, 1_000_000, WorkKind::Kernel, None::<fn()>);
                }
                say(&mut line);
                listen(&mut line);
                e.stream_wait(s);
                assert_eq!(e.stream_done(s), Some(true));
            })
        })
        .collect();
    for c in &mut children {
        c.heard();
    }
    let start: Vec<u64> = watcher.read_truth().devices[0].processes.iter().map(|p| p.busy_ns).collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let t = watcher.read_truth();
    let now: Vec<u64> = t.devices[0].processes.iter().map(|p| p.busy_ns).collect();
    let gained: Vec<u64> = now.iter().zip(&start).map(|(n, s)| n - s).collect();
    assert!(gained[0] > 0 && gained[0].abs_diff(gained[1]) <= 2 * 2_000_000, "{gained:?}");
    for mut c in children {
        say(&mut c.line);
        assert_eq!(c.wait(), 0);
    }
    let t = watcher.read_truth();
    let d = &t.devices[0];
    assert_eq!(d.finished.len(), 2);
    for f in &d.finished {
        assert_eq!((f.busy_ns, f.kernels, f.queued_ns), (300_000_000, 300, 0));
    }
    // On a busy host the first process worked alone until the second came.
    let together = 2 * start.iter().map(|busy| 300_000_000 - busy).min().unwrap_or(0);
    assert!(d.switches >= together / 2_000_000 * 9 / 10, "{} switches in {together} ns of 2 ms slices", d.switches);
}

#[test]
fn under_mps_two_processes_work_at_the_same_time_and_nothing_is_switched() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = MachineView::open_at(dir.path(), Some("h200:mps")).unwrap();
    let mut children: Vec<Child> = (0..2)
        .map(|_| {
            let dir = dir.path().to_owned();
            Child::start(move |mut line| {
                let e = DeviceEngine::new(Arc::new(MachineView::open_at(&dir, None).unwrap()), 0);
                let s = e.legacy_stream(e.open_group()).unwrap();
                e.enqueue_work(s, 1_000_000_000, WorkKind::Kernel, None::<fn()>);
                say(&mut line);
                listen(&mut line);
            })
        })
        .collect();
    for c in &mut children {
        c.heard();
    }
    let look = || watcher.read_truth().devices[0].processes.iter().map(|p| p.busy_ns).collect::<Vec<_>>();
    let start = look();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let gained: Vec<u64> = look().iter().zip(&start).map(|(n, s)| n - s).collect();
    assert!(gained[0] > 0 && gained[0].abs_diff(gained[1]) <= 100_000, "one kernel each, side by side: {gained:?}");
    let d = &watcher.read_truth().devices[0];
    assert_eq!((d.switches, d.switch_ns), (0, 0));
    children.into_iter().for_each(Child::kill);
}

/// Compares the buckets of two processes that take turns, and of a dead one, with the time that each was served.
#[test]
fn buckets_tell_for_whom_the_device_worked_and_when() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let run = |ns: u64| {
        let dir = dir.path().to_owned();
        Child::start(move |mut line| {
            let e = DeviceEngine::new(Arc::new(MachineView::open_at(&dir, None).unwrap()), 0);
            let s = e.legacy_stream(e.open_group()).unwrap();
            e.enqueue_work(s, ns, WorkKind::Kernel, None::<fn()>);
            e.stream_wait(s);
            say(&mut line);
            listen(&mut line);
        })
    };
    let begun = vgpu_sim::now();
    let mut first = run(35_000_000);
    first.heard();
    first.kill();
    let alone = vgpu_sim::now();
    let (mut a, mut b) = (run(60_000_000), run(60_000_000));
    a.heard();
    b.heard();
    std::thread::sleep(std::time::Duration::from_millis(15));
    let t = watcher.device_timeline(0, 6_000);
    let of = |i: usize| &t.processes[i];
    assert_eq!(t.processes.len(), 3, "the dead one too");
    let sums: Vec<u64> = (0..3).map(|i| of(i).busy_ns.iter().map(|n| u64::from(*n)).sum()).collect();
    assert_eq!(sums, [35_000_000, 60_000_000, 60_000_000]);
    let full = of(0).busy_ns.iter().filter(|n| **n == 10_000_000).count();
    assert!((2..=3).contains(&full), "an unbroken run fills its buckets: {full}");
    assert!(t.processes.iter().all(|p| p.busy_ns.iter().all(|n| *n <= 10_000_000)));
    let together = (0..t.processes[0].busy_ns.len()).map(|n| (0..3).map(|i| of(i).busy_ns[n]).sum::<u32>());
    assert!(together.max().unwrap() <= 10_000_000, "the device is not in two places");
    let (busy, span) = t.busy_between(of(0).serial, begun, alone + 20_000_000);
    assert!((15_000_000..=35_000_000).contains(&busy) && span >= 30_000_000, "{busy} of {span}");
    assert_eq!(t.busy_between(of(1).serial, 0, begun).0, 0);
    a.kill();
    b.kill();
}

#[test]
fn a_holder_of_the_lock_may_be_killed() {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    for _ in 0..5 {
        let path = dir.path().to_owned();
        let mut c = Child::start(move |mut line| {
            let m = MachineView::open_at(&path, None).unwrap();
            let _held = m.lock();
            say(&mut line);
            listen(&mut line);
        });
        c.heard();
        c.kill();
        assert_eq!(m.device_memory(0).used, 0);
    }
}

#[test]
fn a_storm_of_kills_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("h200")).unwrap();
    let mut seed = 1u64;
    for round in 0..200 {
        let children: Vec<Child> = (0..3)
            .map(|k| {
                let path = dir.path().to_owned();
                Child::start(move |_| {
                    let m = Arc::new(MachineView::open_at(&path, None).unwrap());
                    let mut heap = DeviceHeap::new(0, m.profile_of(0));
                    let e = DeviceEngine::new(m.clone(), 0);
                    let g = e.open_group();
                    let s = e.legacy_stream(g).unwrap();
                    let ev = e.open_event(true);
                    let mut space = space();
                    let mut live = Vec::new();
                    for i in 0.. {
                        let bytes = 1 + vgpu_sim::faults::splitmix64(i + 1000 * k + round) % (8 << 20);
                        live.extend(heap.alloc(&m, &mut space, bytes));
                        e.enqueue_work(s, 20_000, WorkKind::Kernel, None::<fn()>);
                        e.record_event(s, ev);
                        if live.len() > 20 {
                            heap.free(&m, &mut space, live.remove(0));
                        }
                    }
                })
            })
            .collect();
        seed = vgpu_sim::faults::splitmix64(seed);
        std::thread::sleep(std::time::Duration::from_micros(seed % 4000));
        children.into_iter().for_each(Child::kill);
        let t = m.read_truth();
        assert_eq!((t.devices[0].used, t.devices[0].processes.len()), (0, 0), "round {round}");
        assert_eq!(m.device_memory(0).free, m.profile_of(0).capacity_bytes());
    }
    let t = m.read_truth();
    let done: u64 = t.devices[0].finished.iter().map(|f| f.busy_ns).sum();
    assert_eq!(t.devices[0].busy_ns, done, "what the dead had used is kept");
    assert!(done > 0);
}

#[test]
fn memory_of_the_dead_serves_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let m = MachineView::open_at(dir.path(), Some("t4")).unwrap();
    let path = dir.path().to_owned();
    let mut c = Child::start(move |mut line| {
        let m = MachineView::open_at(&path, None).unwrap();
        let mut heap = DeviceHeap::new(0, m.profile_of(0));
        heap.alloc(&m, &mut space(), 14 * GIB).unwrap();
        say(&mut line);
        listen(&mut line);
    });
    c.heard();
    let mut heap = DeviceHeap::new(0, m.profile_of(0));
    let mut space = space();
    assert!(heap.alloc(&m, &mut space, 10 * GIB).is_err());
    c.kill();
    assert!(heap.alloc(&m, &mut space, 10 * GIB).is_ok());
}

#[test]
fn the_truth_is_read_from_outside_and_needs_a_machine() {
    let dir = tempfile::tempdir().unwrap();
    assert!(truth::read(dir.path()).is_err());
    let m = MachineView::open_at(dir.path(), Some("l4,t4")).unwrap();
    let mut heap = DeviceHeap::new(1, m.profile_of(1));
    heap.alloc(&m, &mut space(), 3 * SLAB + 1).unwrap();
    let t = truth::read(dir.path()).unwrap();
    assert_eq!(t.devices.len(), 2);
    let p = t.living_process(1, std::process::id()).unwrap();
    assert_eq!((p.requested_bytes, p.slab_bytes, p.small_slab_bytes), (3 * SLAB + 1, 4 * SLAB, 0));
    assert!(t.living_process(0, std::process::id()).is_none(), "a device that was not touched shows nothing");
}
