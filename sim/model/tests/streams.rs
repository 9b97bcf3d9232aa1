//! Tests of streams and events inside one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_sim::MachineView;
use vgpu_sim::engine::{DeviceEngine, WorkKind};

const MS: u64 = 1_000_000;

fn engine() -> (tempfile::TempDir, Arc<DeviceEngine>) {
    let dir = tempfile::tempdir().unwrap();
    let m = Arc::new(MachineView::open_at(dir.path(), Some("h200")).unwrap());
    (dir, DeviceEngine::new(m, 0))
}

fn kernel(e: &DeviceEngine, s: vgpu_sim::engine::StreamId, ns: u64) {
    assert!(e.enqueue_work(s, ns, WorkKind::Kernel, None::<fn()>));
}

/// Holds a stream until the returned sender is dropped, so that the host's own time is not between the later
/// operations.
fn held(e: &DeviceEngine, s: vgpu_sim::engine::StreamId) -> std::sync::mpsc::Sender<()> {
    let (tx, rx) = std::sync::mpsc::channel();
    assert!(e.enqueue_host(s, move || _ = rx.recv()));
    tx
}

#[test]
fn events_around_a_kernel_measure_it_to_the_nanosecond() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let s = e.open_stream(g, true);
    let (a, b) = (e.open_event(true), e.open_event(true));
    let go = held(&e, s);
    kernel(&e, s, MS);
    assert!(e.record_event(s, a));
    kernel(&e, s, 7 * MS);
    assert!(e.record_event(s, b));
    assert!(!e.event_done(b));
    assert_eq!(e.event_time(b), None);
    drop(go);
    e.event_wait(b);
    assert!(e.event_done(a) && e.event_done(b));
    // 7 ms of kernel and 0.5 us for the record itself.
    assert_eq!(e.event_time(b).unwrap() - e.event_time(a).unwrap(), 7 * MS + 500);
}

/// Times of 300 short kernels behind one host function. Time of release counts, although the thread that
/// submits them is delayed by every lock it takes.
#[test]
fn what_was_held_is_dated_as_of_one_moment() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let s = e.open_stream(g, true);
    let go = held(&e, s);
    let events: Vec<_> = (0..300).map(|_| e.open_event(true)).collect();
    for ev in &events {
        kernel(&e, s, 10_000);
        assert!(e.record_event(s, *ev));
    }
    drop(go);
    e.stream_wait(s);
    let times: Vec<u64> = events.iter().map(|ev| e.event_time(*ev).unwrap()).collect();
    assert!(times.windows(2).all(|w| w[1] - w[0] == 10_500), "{times:?}");
}

#[test]
fn a_copy_runs_beside_a_kernel_and_what_follows_it_waits_for_it() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t, u) = (e.open_stream(g, false), e.open_stream(g, false), e.open_stream(g, false));
    let [begin, copied, computed, both] = [0; 4].map(|_| e.open_event(true));
    let go = held(&e, s);
    let (first, second) = (e.open_event(false), e.open_event(false));
    e.record_event(s, first);
    for x in [t, u] {
        e.wait_event(x, first);
    }
    e.record_event(t, begin);
    assert!(e.enqueue_work(t, 30 * MS, WorkKind::FromHost, None::<fn()>));
    e.record_event(t, copied);
    kernel(&e, u, 40 * MS);
    e.record_event(u, computed);
    e.record_event(u, second);
    e.wait_event(t, second);
    assert!(e.enqueue_work(t, 5 * MS, WorkKind::ToHost, None::<fn()>));
    e.record_event(t, both);
    drop(go);
    e.stream_wait(t);
    let at = |ev| e.event_time(ev).unwrap() - e.event_time(begin).unwrap();
    assert_eq!([at(copied), at(computed), at(both)], [30 * MS + 500, 40 * MS + 500, 45 * MS + 1_000]);
    let t = e.stream_done(u);
    assert_eq!(t, Some(true));
}

#[test]
fn an_event_behind_two_engines_is_reached_when_both_are_done() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t) = (e.open_stream(g, false), e.open_stream(g, false));
    let [copied, computed, both] = [0; 3].map(|_| e.open_event(false));
    kernel(&e, s, 400 * MS);
    e.record_event(s, computed);
    e.enqueue_work(t, MS, WorkKind::FromHost, None::<fn()>);
    e.record_event(t, copied);
    e.wait_event(t, computed);
    e.record_event(t, both);
    e.event_wait(copied);
    assert!(!e.event_done(both) && e.stream_done(t) == Some(false));
    e.event_wait(both);
    assert!(e.event_done(computed));
}

#[test]
fn copies_of_one_stream_and_kernels_of_it_come_one_after_another() {
    let (dir, e) = engine();
    let g = e.open_group();
    let s = e.legacy_stream(g).unwrap();
    let (a, b) = (e.open_event(true), e.open_event(true));
    let go = held(&e, s);
    kernel(&e, s, MS);
    e.record_event(s, a);
    for _ in 0..100 {
        e.enqueue_work(s, 100_000, WorkKind::FromHost, None::<fn()>);
        kernel(&e, s, 50_000);
        e.enqueue_work(s, 30_000, WorkKind::ToHost, None::<fn()>);
    }
    e.record_event(s, b);
    drop(go);
    e.group_wait(g);
    assert_eq!(e.event_time(b).unwrap() - e.event_time(a).unwrap(), 18 * MS + 500);
    let t = vgpu_sim::truth::read(dir.path()).unwrap();
    let p = t.living_process(0, std::process::id()).unwrap();
    assert_eq!((p.busy_ns, p.copying_ns, p.kernels, p.copies), (6 * MS + 500, 13 * MS + 500, 101, 200));
}

#[test]
fn more_waits_between_engines_than_a_line_holds_only_take_longer_to_enqueue() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let s = e.open_stream(g, true);
    for _ in 0..700 {
        e.enqueue_work(s, 20_000, WorkKind::FromHost, None::<fn()>);
        kernel(&e, s, 20_000);
    }
    e.stream_wait(s);
    assert_eq!(e.stream_done(s), Some(true));
}

#[test]
fn an_event_on_an_idle_stream_is_reached_while_another_stream_works() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t) = (e.open_stream(g, false), e.open_stream(g, false));
    kernel(&e, s, 300 * MS);
    let ev = e.open_event(true);
    e.record_event(t, ev);
    assert!(e.event_done(ev));
    assert_eq!((e.stream_done(s), e.stream_done(t)), (Some(false), Some(true)));
}

#[test]
fn the_legacy_stream_and_blocking_streams_wait_for_each_other() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let legacy = e.legacy_stream(g).unwrap();
    let (blocking, free) = (e.open_stream(g, true), e.open_stream(g, false));
    kernel(&e, blocking, 30 * MS);
    let ev = e.open_event(false);
    e.record_event(legacy, ev);
    assert!(!e.event_done(ev), "a record in the legacy stream is behind the blocking stream");
    assert_eq!(e.stream_done(legacy), Some(false));
    e.stream_wait(legacy);
    assert!(e.event_done(ev));
    kernel(&e, legacy, 30 * MS);
    assert_eq!((e.stream_done(blocking), e.stream_done(free)), (Some(false), Some(true)));
    e.group_wait(g);
    assert_eq!(e.stream_done(blocking), Some(true));
}

#[test]
fn a_stream_waits_for_another_streams_event() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t) = (e.open_stream(g, false), e.open_stream(g, false));
    let ev = e.open_event(false);
    kernel(&e, s, 40 * MS);
    e.record_event(s, ev);
    assert_eq!(e.stream_done(t), Some(true));
    e.wait_event(t, ev);
    assert_eq!(e.stream_done(t), Some(false));
    e.stream_wait(t);
    assert_eq!(e.stream_done(s), Some(true));
}

#[test]
fn what_is_behind_a_host_function_waits_for_it() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t) = (e.open_stream(g, false), e.open_stream(g, false));
    let order = Arc::new(AtomicU32::new(0));
    let step = |from: u32| {
        let order = order.clone();
        move || assert!(order.compare_exchange(from, from + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    };
    let gate = Arc::new(std::sync::Barrier::new(2));
    let g2 = gate.clone();
    let first = step(0);
    e.enqueue_host(s, move || {
        g2.wait();
        first();
    });
    let ev = e.open_event(true);
    assert!(e.enqueue_work(s, MS, WorkKind::Copy, Some(step(1))));
    e.record_event(s, ev);
    e.wait_event(t, ev);
    assert!(e.enqueue_work(t, MS, WorkKind::Copy, Some(step(2))));
    assert_eq!(order.load(Ordering::SeqCst), 0, "nothing behind the host function has happened");
    assert!(!e.event_done(ev));
    assert_eq!((e.stream_done(s), e.stream_done(t)), (Some(false), Some(false)));
    gate.wait();
    e.stream_wait(t);
    assert_eq!(order.load(Ordering::SeqCst), 3);
    assert!(e.event_done(ev));
}

#[test]
fn a_host_function_runs_after_the_work_before_it() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let s = e.open_stream(g, true);
    let ev = e.open_event(true);
    kernel(&e, s, 20 * MS);
    e.record_event(s, ev);
    let e2 = e.clone();
    let (tx, rx) = std::sync::mpsc::channel();
    e.enqueue_host(s, move || tx.send(e2.event_done(ev)).unwrap());
    e.stream_wait(s);
    assert!(rx.recv().unwrap());
}

#[test]
fn the_work_of_a_destroyed_stream_is_waited_for_and_what_it_holds_is_done() {
    let (_dir, e) = engine();
    let g = e.open_group();
    let (s, t) = (e.open_stream(g, false), e.open_stream(g, false));
    let ev = e.open_event(false);
    kernel(&e, s, 20 * MS);
    e.record_event(s, ev);
    e.close_stream(s);
    assert!(!e.enqueue_work(s, 1, WorkKind::Other, None::<fn()>) && e.stream_done(s).is_none());
    assert!(!e.event_done(ev));
    e.group_wait(g);
    assert!(e.event_done(ev));
    let gate = Arc::new(std::sync::Barrier::new(2));
    let (inside, done) = (gate.clone(), Arc::new(AtomicU32::new(0)));
    e.enqueue_host(t, move || {
        inside.wait();
    });
    let seen = done.clone();
    e.enqueue_work(t, MS, WorkKind::Copy, Some(move || seen.store(1, Ordering::SeqCst)));
    // Does not block, although the stream has held operations.
    e.close_stream(t);
    assert_eq!(done.load(Ordering::SeqCst), 0);
    gate.wait();
    e.group_wait(g);
    assert_eq!(done.load(Ordering::SeqCst), 1);
}

#[test]
fn a_full_launch_queue_blocks_the_launch_and_loses_nothing() {
    let (dir, e) = engine();
    let g = e.open_group();
    let s = e.open_stream(g, true);
    for _ in 0..3000 {
        kernel(&e, s, 10_000);
    }
    let t = vgpu_sim::truth::read(dir.path()).unwrap();
    let p = t.living_process(0, std::process::id()).unwrap();
    assert!(p.queued_ns <= 1024 * 10_000, "{} ns are queued", p.queued_ns);
    assert_eq!(p.kernels, 3000);
    e.stream_wait(s);
    let t = vgpu_sim::truth::read(dir.path()).unwrap();
    assert_eq!(t.living_process(0, std::process::id()).unwrap().busy_ns, 30_000_000);
}

#[test]
fn an_event_that_was_never_recorded_is_done_and_has_no_time() {
    let (_dir, e) = engine();
    let ev = e.open_event(true);
    assert!(e.event_done(ev));
    assert_eq!(e.event_time(ev), None);
    e.event_wait(ev);
    e.close_event(ev);
}

#[test]
fn utilisation_is_seen_after_the_window_and_vanishes_when_idle() {
    let (dir, e) = engine();
    let m = MachineView::open_at(dir.path(), None).unwrap();
    assert!(m.utilisation_samples(0, 0).is_empty(), "no work, no sample");
    let g = e.open_group();
    let s = e.open_stream(g, true);
    kernel(&e, s, 500 * MS);
    e.stream_wait(s);
    std::thread::sleep(std::time::Duration::from_millis(170));
    let samples = m.utilisation_samples(0, 0);
    assert!(samples.iter().any(|x| x.sm == 100 && x.pid == std::process::id()), "{samples:?}");
    let last = samples.last().unwrap().at_us;
    assert!(m.utilisation_samples(0, last).is_empty());
}
