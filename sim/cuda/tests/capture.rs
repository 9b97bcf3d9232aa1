//! Tests of stream capture: which operations become nodes with which dependencies, and which calls a capture
//! forbids, by mode and thread.
//!
//! The expectations come from the CUDA driver API (the functions named in each test), and from the CUDA
//! programming guide, chapter on CUDA graphs, sections "Cross-stream Dependencies and Events", "Prohibited and
//! Unhandled Operations" and "Invalidation". Where those are silent, the test names its source.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;
mod graph_parts;

use common::on_machine;
use graph_parts::*;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;
const UNSUPPORTED: CUresult = CUresult(900);
const INVALIDATED: CUresult = CUresult(901);
const MERGE: CUresult = CUresult(902);
const UNMATCHED: CUresult = CUresult(903);
const UNJOINED: CUresult = CUresult(904);
const ISOLATION: CUresult = CUresult(905);
const IMPLICIT: CUresult = CUresult(906);
const CAPTURED_EVENT: CUresult = CUresult(907);
const WRONG_THREAD: CUresult = CUresult(908);

fn begin(l: &Library, s: CUstream, mode: u32) {
    ok!(l, cuStreamBeginCapture_v2(s, mode));
}

/// Ends a capture; returns the code, and the graph that was written.
fn end(l: &Library, s: CUstream) -> (CUresult, CUgraph) {
    let mut g = CUgraph(std::ptr::without_provenance_mut(0x1000));
    let code = cu!(l, cuStreamEndCapture(s, &mut g));
    (code, g)
}

fn ended(l: &Library, s: CUstream) -> CUgraph {
    let (code, g) = end(l, s);
    assert_eq!(code.0, 0, "the capture ends well");
    assert!(!g.is_null());
    g
}

/// Capture status: 0 none, 1 active, 2 invalidated.
fn status(l: &Library, s: CUstream) -> u32 {
    let mut status = 7;
    ok!(l, cuStreamIsCapturing(s, &mut status));
    status
}

fn blocking(l: &Library) -> CUstream {
    let mut s = CUstream::NULL;
    ok!(l, cuStreamCreate(&mut s, 0));
    s
}

fn launch(l: &Library, f: CUfunction, s: CUstream, mut ns: u64) -> CUresult {
    let mut params = [(&raw mut ns).cast::<c_void>()];
    cu!(l, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, params.as_mut_ptr(), null_mut()))
}

/// The node types of a graph by the driver's numbers, in order of creation, and its edges as node indices.
fn shape(l: &Library, g: CUgraph) -> (Vec<u32>, Vec<(usize, usize)>) {
    let (mut nodes, mut n) = (vec![CUgraphNode::NULL; 64], 64);
    ok!(l, cuGraphGetNodes(g, nodes.as_mut_ptr(), &mut n));
    nodes.truncate(n);
    let kind = |n: &CUgraphNode| {
        let mut k = 99;
        ok!(l, cuGraphNodeGetType(*n, &mut k));
        k
    };
    let (mut from, mut to, mut m) = (vec![CUgraphNode::NULL; 64], vec![CUgraphNode::NULL; 64], 64);
    ok!(l, cuGraphGetEdges(g, from.as_mut_ptr(), to.as_mut_ptr(), &mut m));
    let place = |n: &CUgraphNode| nodes.iter().position(|x| x == n).unwrap();
    let edges = from.iter().zip(&to).take(m).map(|(a, b)| (place(a), place(b))).collect();
    (nodes.iter().map(kind).collect(), edges)
}

/// Calls that do not use a stream. cuThreadExchangeStreamCaptureMode names an allocation; many programs report
/// that queries of events are forbidden in global mode.
fn potentially_unsafe(l: &Library, e: CUevent) -> [(&'static str, CUresult); 4] {
    let (mut p, mut h, other) = (0, null_mut(), stream(l));
    [
        ("cuStreamQuery", cu!(l, cuStreamQuery(other))),
        ("cuMemAlloc", cu!(l, cuMemAlloc_v2(&mut p, 512))),
        ("cuMemHostAlloc", cu!(l, cuMemHostAlloc(&mut h, 512, 0))),
        ("cuEventQuery", cu!(l, cuEventQuery(e))),
    ]
}

fn all(l: &Library, e: CUevent, code: CUresult) -> bool {
    potentially_unsafe(l, e).iter().all(|(_, c)| *c == code)
}

/// Runs `f` on another thread in the same context.
fn elsewhere<R: Send>(l: &Library, ctx: CUcontext, f: impl FnOnce(&Library) -> R + Send) -> R {
    struct Shared<'a>(&'a Library, CUcontext);
    // SAFETY: all threads may call a driver.
    unsafe impl Send for Shared<'_> {}
    let both = Shared(l, ctx);
    std::thread::scope(|s| {
        let run = move || {
            let both = both;
            ok!(both.0, cuCtxSetCurrent(both.1));
            f(both.0)
        };
        s.spawn(run).join().unwrap()
    })
}

#[derive(Clone, Copy)]
struct Handles(CUstream, CUevent);
// SAFETY: handles of a driver that all threads may use.
unsafe impl Send for Handles {}
// SAFETY: as above.
unsafe impl Sync for Handles {}

#[test]
fn what_is_put_into_a_capturing_stream_becomes_nodes_and_runs_when_the_graph_is_launched() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, f) = (stream(l), kernel(l, c"vgpu_spin_ns"));
        let (a, b) = (alloc(l, 4096), alloc(l, 4096));
        ok!(l, cuMemsetD8_v2(a, 1, 4096));
        ok!(l, cuMemsetD8_v2(b, 2, 4096));
        let mut log = 0u64;
        let mut first = Note(7, &raw mut log);
        let mut back = [0u8; 16];
        begin(l, s, GLOBAL);
        assert_eq!(status(l, s), 1);
        ok!(l, cuMemsetD8Async(a, 9, 4096, s));
        ok!(l, cuMemcpyDtoDAsync_v2(b, a, 4096, s));
        assert_eq!(launch(l, f, s, 1000).0, 0);
        ok!(l, cuLaunchHostFunc(s, Some(note), (&raw mut first).cast()));
        ok!(l, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), b, 16, s));
        let g = ended(l, s);
        assert_eq!(status(l, s), 0);
        assert_eq!(shape(l, g), (vec![2, 1, 0, 3, 1], vec![(0, 1), (1, 2), (2, 3), (3, 4)]));
        assert_eq!((read(l, b, 1), log, back[0]), (vec![2], 0, 0), "nothing has run");
        for _ in 0..2 {
            run(l, g);
        }
        assert_eq!((read(l, b, 4096), log, back), (vec![9; 4096], 77, [9; 16]));
        ok!(l, cuStreamSynchronize(s));
        assert_eq!(launch(l, f, s, 10).0, 0, "the stream carries out again");
    });
}

#[test]
fn two_dimensional_and_array_copies_and_wide_fills_are_captured_with_their_geometry() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, a, b) = (stream(l), alloc(l, 4096), alloc(l, 4096));
        ok!(l, cuMemsetD8_v2(b, 0, 4096));
        let desc = CUDA_ARRAY_DESCRIPTOR { Width: 64, Height: 0, Format: 1, NumChannels: 1 };
        let mut array = CUarray::NULL;
        ok!(l, cuArrayCreate_v2(&mut array, &desc));
        let host = [5u8; 64];
        let mut rows = [0u8; 8];
        begin(l, s, GLOBAL);
        ok!(l, cuMemsetD2D16Async(a, 64, 0x0403, 2, 4, s));
        // SAFETY: a structure of integers and pointers, for which zero is a value.
        let zero: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
        let sheet = CUDA_MEMCPY2D {
            srcMemoryType: 2,
            srcDevice: a,
            srcPitch: 64,
            dstMemoryType: 2,
            dstDevice: b,
            dstPitch: 2,
            WidthInBytes: 2,
            Height: 4,
            ..zero
        };
        ok!(l, cuMemcpy2DAsync_v2(&sheet, s));
        ok!(l, cuMemcpyHtoAAsync_v2(array, 8, host.as_ptr().cast(), 16, s));
        ok!(l, cuMemcpyDtoHAsync_v2(rows.as_mut_ptr().cast(), b, 8, s));
        let g = ended(l, s);
        assert_eq!(shape(l, g).0, [2, 1, 1, 1]);
        run(l, g);
        assert_eq!(rows, [3, 4, 3, 4, 3, 4, 3, 4]);
        let mut out = [0u8; 32];
        ok!(l, cuMemcpyAtoH_v2(out.as_mut_ptr().cast(), array, 0, 32));
        assert_eq!((&out[..8], &out[8..24], &out[24..]), (&[0u8; 8][..], &[5u8; 16][..], &[0u8; 8][..]));
    });
}

#[test]
fn a_captured_kernel_takes_its_device_time_at_each_launch() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, f) = (stream(l), kernel(l, c"vgpu_spin_ns"));
        begin(l, s, GLOBAL);
        assert_eq!(launch(l, f, s, 3_000_000).0, 0);
        let g = ended(l, s);
        let busy = || {
            let t = vgpu_sim::truth::read(dir).unwrap();
            t.living_process(0, std::process::id()).unwrap().busy_ns
        };
        assert!(busy() < 3_000_000, "a capture takes no device time");
        let before = busy();
        run(l, g);
        assert_eq!(busy() - before, 3_000_000);
    });
}

#[test]
fn a_stream_that_waits_for_a_captured_event_joins_the_capture_and_must_come_back() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t, f) = (stream(l), stream(l), kernel(l, c"vgpu_spin_ns"));
        let (fork, join) = (event(l), event(l));
        begin(l, s, GLOBAL);
        assert_eq!(launch(l, f, s, 1).0, 0);
        ok!(l, cuEventRecord(fork, s));
        assert_eq!(status(l, t), 0);
        ok!(l, cuStreamWaitEvent(t, fork, 0));
        assert_eq!(status(l, t), 1, "the fork");
        assert_eq!(launch(l, f, s, 1).0, 0);
        assert_eq!(launch(l, f, t, 1).0, 0);
        ok!(l, cuEventRecord(join, t));
        ok!(l, cuStreamWaitEvent(s, join, 0));
        assert_eq!(launch(l, f, s, 1).0, 0);
        let ids = [s, t].map(|x| {
            let (mut status, mut id) = (0, 0);
            ok!(l, cuStreamGetCaptureInfo(x, &mut status, &mut id));
            (status, id)
        });
        assert!(ids[0] == ids[1] && ids[0].0 == 1 && ids[0].1 != 0, "one capture, one id: {ids:?}");
        let g = ended(l, s);
        assert_eq!((status(l, s), status(l, t)), (0, 0), "all streams leave the capture together");
        assert_eq!(shape(l, g), (vec![0; 4], vec![(0, 1), (0, 2), (1, 3), (2, 3)]));
        // If the forked stream does not rejoin, the capture ends with an error.
        begin(l, s, GLOBAL);
        ok!(l, cuEventRecord(fork, s));
        ok!(l, cuStreamWaitEvent(t, fork, 0));
        assert_eq!(launch(l, f, t, 1).0, 0);
        assert_eq!(end(l, s), (UNJOINED, CUgraph::NULL));
        assert_eq!((status(l, s), status(l, t)), (0, 0));
        ok!(l, cuStreamSynchronize(t));
    });
}

#[test]
fn work_after_the_way_back_is_not_joined() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t, f) = (stream(l), stream(l), kernel(l, c"vgpu_spin_ns"));
        let (fork, join) = (event(l), event(l));
        begin(l, s, GLOBAL);
        ok!(l, cuEventRecord(fork, s));
        ok!(l, cuStreamWaitEvent(t, fork, 0));
        assert_eq!(launch(l, f, t, 1).0, 0);
        ok!(l, cuEventRecord(join, t));
        ok!(l, cuStreamWaitEvent(s, join, 0));
        assert_eq!(launch(l, f, t, 1).0, 0);
        assert_eq!(end(l, s), (UNJOINED, CUgraph::NULL));
    });
}

/// cuStreamBeginCapture: not in the legacy stream, not twice. cuStreamEndCapture: in the stream where it began.
#[test]
fn a_capture_begins_once_in_a_stream_of_its_own_and_ends_there() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t) = (stream(l), stream(l));
        for legacy in [CUstream::NULL, CU_STREAM_LEGACY] {
            assert_eq!(cu!(l, cuStreamBeginCapture_v2(legacy, GLOBAL)), UNSUPPORTED);
        }
        assert_eq!(cu!(l, cuStreamBeginCapture_v2(s, 3)), CUresult::INVALID_VALUE);
        assert_eq!(end(l, s).0, CUresult::ILLEGAL_STATE, "nothing was begun");
        begin(l, s, GLOBAL);
        assert_eq!(cu!(l, cuStreamBeginCapture_v2(s, GLOBAL)), CUresult::ILLEGAL_STATE);
        assert_eq!(cu!(l, cuStreamEndCapture(s, null_mut())), CUresult::INVALID_VALUE);
        let e = event(l);
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuStreamWaitEvent(t, e, 0));
        assert_eq!(end(l, t).0, UNMATCHED);
        ended(l, s);
        begin(l, CU_STREAM_PER_THREAD, GLOBAL);
        assert_eq!(status(l, CU_STREAM_PER_THREAD), 1);
        ended(l, CU_STREAM_PER_THREAD);
        // The first form of `cuStreamBeginCapture` always uses global mode.
        ok!(l, cuStreamBeginCapture(s));
        let p = potentially_unsafe(l, e);
        assert_eq!(p[1], ("cuMemAlloc", UNSUPPORTED));
        assert_eq!(end(l, s).0, INVALIDATED);
    });
}

/// cuStreamEndCapture: "if mode is not relaxed, must be called from the same thread".
#[test]
fn only_a_relaxed_capture_is_ended_by_another_thread() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let h = Handles(stream(l), event(l));
        for mode in [GLOBAL, THREAD_LOCAL] {
            begin(l, h.0, mode);
            let code = elsewhere(l, ctx, move |l| {
                let h = h;
                end(l, h.0).0
            });
            assert_eq!(code, WRONG_THREAD);
            ended(l, h.0);
        }
        begin(l, h.0, RELAXED);
        let code = elsewhere(l, ctx, move |l| {
            let h = h;
            end(l, h.0).0
        });
        assert_eq!(code.0, 0);
    });
}

/// cuThreadExchangeStreamCaptureMode, every case: three modes of the capture, three of the thread, own and other
/// thread.
#[test]
fn unsafe_calls_are_forbidden_by_the_modes_of_capture_and_thread() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let h = Handles(stream(l), event(l));
        let mut allowed = Vec::new();
        for capture in [GLOBAL, THREAD_LOCAL, RELAXED] {
            for thread in [GLOBAL, THREAD_LOCAL, RELAXED] {
                for own in [true, false] {
                    begin(l, h.0, capture);
                    let attempt = move |l: &Library| {
                        let h = h;
                        let mut mode = thread;
                        ok!(l, cuThreadExchangeStreamCaptureMode(&mut mode));
                        assert_eq!(mode, GLOBAL, "the default");
                        let free = all(l, h.1, CUresult::SUCCESS);
                        assert!(free || all(l, h.1, UNSUPPORTED));
                        ok!(l, cuThreadExchangeStreamCaptureMode(&mut mode));
                        assert_eq!(mode, thread, "what was set is given back");
                        free
                    };
                    let free = if own { attempt(l) } else { elsewhere(l, ctx, attempt) };
                    assert_eq!(status(l, h.0), if free { 1 } else { 2 });
                    let (code, g) = end(l, h.0);
                    assert_eq!(
                        (code, g.is_null()),
                        if free { (CUresult::SUCCESS, false) } else { (INVALIDATED, true) }
                    );
                    if free {
                        allowed.push((capture, thread, own));
                    }
                }
            }
        }
        let (g, t, r) = (GLOBAL, THREAD_LOCAL, RELAXED);
        let expected = [
            // A global capture forbids the calls in its own thread and in all other threads in global mode.
            (g, t, false),
            (g, r, true),
            (g, r, false),
            // A thread-local capture forbids these calls only in its own thread.
            (t, g, false),
            (t, t, false),
            (t, r, true),
            (t, r, false),
            // A relaxed capture forbids none of these calls.
            (r, g, true),
            (r, g, false),
            (r, t, true),
            (r, t, false),
            (r, r, true),
            (r, r, false),
        ];
        assert_eq!(allowed, expected);
        let mut wrong = 3;
        assert_eq!(cu!(l, cuThreadExchangeStreamCaptureMode(&mut wrong)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuThreadExchangeStreamCaptureMode(null_mut())), CUresult::INVALID_VALUE);
    });
}

/// Guide: "It is invalid to synchronize or query the execution status of a stream which is being captured or a captured
/// event", in every mode, by every thread.
#[test]
fn neither_a_capturing_stream_nor_a_captured_event_is_asked_or_waited_for() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, e, other) = (stream(l), event(l), event(l));
        ok!(l, cuEventRecord(other, s));
        type Ask<'a> = &'a dyn Fn() -> CUresult;
        let (mut ms, mut relaxed) = (0.0, RELAXED);
        let elapsed = std::cell::RefCell::new(&mut ms);
        let asks: [(Ask, CUresult); 5] = [
            (&|| cu!(l, cuStreamQuery(s)), UNSUPPORTED),
            (&|| cu!(l, cuStreamSynchronize(s)), UNSUPPORTED),
            (&|| cu!(l, cuEventQuery(e)), CAPTURED_EVENT),
            (&|| cu!(l, cuEventSynchronize(e)), CAPTURED_EVENT),
            (&|| cu!(l, cuEventElapsedTime(&raw mut **elapsed.borrow_mut(), other, e)), CAPTURED_EVENT),
        ];
        for exchanged in [false, true] {
            for (ask, code) in asks {
                for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
                    begin(l, s, mode);
                    ok!(l, cuEventRecord(e, s));
                    assert_eq!(ask(), code, "mode {mode}, thread relaxed: {exchanged}");
                    assert_eq!(status(l, s), 2);
                    assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
                }
            }
            ok!(l, cuThreadExchangeStreamCaptureMode(&mut relaxed));
        }
        // The event keeps the state of its last record until it is recorded again.
        assert_eq!(cu!(l, cuEventQuery(e)), CAPTURED_EVENT);
        assert_eq!(cu!(l, cuStreamWaitEvent(s, e, 0)), CAPTURED_EVENT);
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuEventSynchronize(e));
        ok!(l, cuStreamWaitEvent(s, e, 0));
    });
}

/// Guide: "nor a broader handle which encompasses an active stream capture, such as a device or context handle".
#[test]
fn a_context_in_which_a_stream_captures_is_not_waited_for() {
    on_machine("2xt4", &[], |l, _| {
        let first = ready(l);
        let s = stream(l);
        let mut second = CUcontext::NULL;
        ok!(l, cuDevicePrimaryCtxRetain(&mut second, 1));
        for mode in [GLOBAL, RELAXED] {
            begin(l, s, mode);
            ok!(l, cuCtxSetCurrent(second));
            ok!(l, cuCtxSynchronize());
            assert_eq!(status(l, s), 1, "another context is none of its business");
            ok!(l, cuCtxSetCurrent(first));
            assert_eq!(cu!(l, cuCtxSynchronize()), UNSUPPORTED);
            assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
        }
    });
}

/// Guide: "When any stream in the same context is being captured, and it was not created with
/// cudaStreamNonBlocking, any attempted use of the legacy stream is invalid", synchronous calls included.
/// cuStreamIsCapturing: a query does not count as use.
#[test]
fn the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, free, f, p) = (blocking(l), stream(l), kernel(l, c"vgpu_spin_ns"), alloc(l, 512));
        let (e, mut host) = (event(l), [0u8; 4]);
        type Use<'a> = &'a mut dyn FnMut() -> CUresult;
        let mut uses: [Use; 7] = [
            &mut || launch(l, f, CUstream::NULL, 1),
            &mut || cu!(l, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), p, 4)),
            &mut || cu!(l, cuMemsetD8_v2(p, 0, 4)),
            &mut || cu!(l, cuEventRecord(e, CU_STREAM_LEGACY)),
            &mut || cu!(l, cuStreamQuery(CUstream::NULL)),
            &mut || cu!(l, cuStreamSynchronize(CUstream::NULL)),
            &mut || cu!(l, cuStreamWaitEvent(CUstream::NULL, e, 0)),
        ];
        for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
            for attempt in &mut uses {
                begin(l, s, mode);
                let mut status_now = 7;
                assert_eq!(cu!(l, cuStreamIsCapturing(CUstream::NULL, &mut status_now)), IMPLICIT);
                let mut id = 0;
                assert_eq!(cu!(l, cuStreamGetCaptureInfo(CUstream::NULL, &mut status_now, &mut id)), IMPLICIT);
                assert_eq!(status(l, s), 1, "asking spoils nothing");
                assert_eq!(launch(l, f, free, 1).0, 0, "other streams are free");
                assert_eq!(attempt(), IMPLICIT);
                assert_eq!(status(l, s), 2);
                assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
            }
        }
        begin(l, free, RELAXED);
        assert_eq!(launch(l, f, CUstream::NULL, 1).0, 0, "a stream that does not wait for the legacy one");
        ok!(l, cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), p, 4));
        assert_eq!(status(l, CUstream::NULL), 0);
        ended(l, free);
    });
}

/// Guide: merging two captures; a wait in a capture for an event that was not captured.
#[test]
fn dependencies_do_not_cross_the_border_of_a_capture() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t, e, outside) = (stream(l), stream(l), event(l), event(l));
        ok!(l, cuEventRecord(outside, s));
        begin(l, s, RELAXED);
        begin(l, t, RELAXED);
        ok!(l, cuEventRecord(e, s));
        assert_eq!(cu!(l, cuStreamWaitEvent(t, e, 0)), MERGE);
        assert_eq!((end(l, s).0, end(l, t).0), (INVALIDATED, INVALIDATED), "both");
        begin(l, s, RELAXED);
        assert_eq!(cu!(l, cuStreamWaitEvent(s, outside, 0)), ISOLATION);
        assert_eq!(end(l, s).0, INVALIDATED);
        begin(l, s, RELAXED);
        ok!(l, cuEventRecord(e, s));
        ended(l, s);
        begin(l, t, RELAXED);
        assert_eq!(cu!(l, cuStreamWaitEvent(t, e, 0)), ISOLATION, "captured by what is over");
        assert_eq!(end(l, t).0, INVALIDATED);
        // Earlier work in the stream does not become a dependency of the capture.
        let f = kernel(l, c"vgpu_spin_ns");
        assert_eq!(launch(l, f, s, 20_000_000).0, 0);
        begin(l, s, GLOBAL);
        assert_eq!(shape(l, ended(l, s)), (vec![], vec![]));
    });
}

/// CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL: nodes instead of dependencies; invalid outside of captures.
#[test]
fn external_records_and_waits_become_nodes() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, a, b) = (stream(l), event(l), event(l));
        assert_eq!(cu!(l, cuEventRecordWithFlags(a, s, 1)), CUresult::INVALID_VALUE);
        assert_eq!(cu!(l, cuStreamWaitEvent(s, a, 1)), CUresult::INVALID_VALUE);
        begin(l, s, RELAXED);
        ok!(l, cuStreamWaitEvent(s, a, 1));
        ok!(l, cuEventRecordWithFlags(b, s, 1));
        ok!(l, cuEventQuery(b));
        let g = ended(l, s);
        assert_eq!(shape(l, g), (vec![6, 7], vec![(0, 1)]));
        run(l, g);
        ok!(l, cuEventSynchronize(b));
    });
}

/// Guide, "Invalidation": further use of the streams and events is an error until the end, which returns no
/// graph.
#[test]
fn an_invalid_capture_refuses_everything_until_its_end() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t, u, f, p) = (stream(l), stream(l), stream(l), kernel(l, c"vgpu_spin_ns"), alloc(l, 512));
        let e = event(l);
        begin(l, s, RELAXED);
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuStreamWaitEvent(t, e, 0));
        assert_eq!(cu!(l, cuStreamQuery(t)), UNSUPPORTED);
        for x in [s, t] {
            assert_eq!(launch(l, f, x, 1), INVALIDATED);
            assert_eq!(cu!(l, cuMemsetD8Async(p, 0, 4, x)), INVALIDATED);
            assert_eq!(cu!(l, cuEventRecord(e, x)), INVALIDATED);
            assert_eq!(cu!(l, cuStreamQuery(x)), INVALIDATED);
            let (mut status, mut id) = (0, 55);
            ok!(l, cuStreamGetCaptureInfo(x, &mut status, &mut id));
            assert_eq!((status, id), (2, 55), "no valid data");
        }
        assert_eq!(cu!(l, cuStreamWaitEvent(u, e, 0)), INVALIDATED);
        assert_eq!(status(l, u), 0);
        assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
        assert_eq!((launch(l, f, s, 1).0, launch(l, f, t, 1).0), (0, 0));
    });
}

/// cuStreamAddCallback: "not supported with cuStreamBeginCapture"; the guide on cudaStreamAttachMemAsync. For
/// launches of graphs into a capture the texts are silent; 900 was measured on an H200 with driver 580.
#[test]
fn what_cannot_be_captured_is_refused_and_spoils_the_capture() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let s = stream(l);
        let g = graph(l);
        empty(l, g, &[]);
        let (x, mut managed) = (instantiate(l, g, 0), 0);
        ok!(l, cuMemAllocManaged(&mut managed, 4096, 1));
        unsafe extern "C" fn never(_: CUstream, _: CUresult, _: *mut c_void) {
            unreachable!("it was refused")
        }
        type Use<'a> = &'a dyn Fn() -> CUresult;
        let uses: [Use; 4] = [
            &|| cu!(l, cuStreamAddCallback(s, Some(never), null_mut(), 0)),
            &|| cu!(l, cuStreamAttachMemAsync(s, managed, 0, 1)),
            &|| cu!(l, cuMemPrefetchAsync(managed, 4096, 0, s)),
            &|| cu!(l, cuGraphLaunch(x, s)),
        ];
        for attempt in uses {
            begin(l, s, RELAXED);
            assert_eq!(attempt(), UNSUPPORTED);
            assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
        }
    });
}

/// cuMemAllocAsync, cuMemFreeAsync: "during stream capture … an allocation node", which "is owned by the graph"; a free
/// "must be passed the address of a graph allocation".
#[test]
fn stream_ordered_memory_becomes_memory_of_the_graph() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let s = stream(l);
        let (mut plain, mut p, mut q) = (alloc(l, 512), 0, 0);
        begin(l, s, GLOBAL);
        ok!(l, cuMemAllocAsync(&mut p, MIB, s));
        ok!(l, cuMemsetD8Async(p, 3, MIB, s));
        ok!(l, cuMemFreeAsync(p, s));
        ok!(l, cuMemAllocAsync(&mut q, MIB, s));
        assert_eq!(cu!(l, cuMemFreeAsync(plain, s)), CUresult::INVALID_VALUE);
        let g = ended(l, s);
        assert_eq!(shape(l, g), (vec![10, 2, 11, 10], vec![(0, 1), (1, 2), (2, 3)]));
        assert!(p != 0 && p == q, "behind its free the addresses are there again");
        let reserved = || {
            let mut bytes = 7u64;
            ok!(l, cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, (&raw mut bytes).cast()));
            bytes
        };
        assert_eq!(reserved(), 0, "nothing before a launch");
        run(l, g);
        assert!(reserved() >= MIB as u64);
        ok!(l, cuMemFreeAsync(q, s));
        ok!(l, cuStreamSynchronize(s));
        ok!(l, cuMemFree_v2(std::mem::take(&mut plain)));
    });
}

/// Tests `cuStreamGetCaptureInfo` and `cuStreamUpdateCaptureDependencies`.
#[test]
fn the_program_sees_and_changes_what_comes_next() {
    on_machine("t4", &[("VGPU_SIM_DRIVER", "580")], |l, _| {
        ready(l);
        let (s, t, f) = (stream(l), stream(l), kernel(l, c"vgpu_spin_ns"));
        let e = event(l);
        let look = |x: CUstream| {
            let (mut status, mut id, mut g, mut deps, mut n) = (0, 0, CUgraph::NULL, null(), 0);
            ok!(l, cuStreamGetCaptureInfo_v2(x, &mut status, &mut id, &mut g, &mut deps, &mut n));
            // SAFETY: `n` handles, valid until the next call on the stream.
            let list: Vec<CUgraphNode> = (0..n).map(|i| unsafe { deps.cast::<CUgraphNode>().add(i).read() }).collect();
            (status, g, list)
        };
        let update = |x, mut nodes: Vec<CUgraphNode>, flags| {
            cu!(l, cuStreamUpdateCaptureDependencies(x, nodes.as_mut_ptr(), nodes.len(), flags))
        };
        assert_eq!(look(s), (0, CUgraph::NULL, vec![]));
        assert_eq!(update(s, vec![], 1), CUresult::ILLEGAL_STATE, "it does not capture");
        begin(l, s, GLOBAL);
        assert_eq!(launch(l, f, s, 1).0, 0);
        let (_, g, first) = look(s);
        assert_eq!((first.len(), shape(l, g).0), (1, vec![0]));
        let mine = empty(l, g, &first);
        assert_eq!(update(s, vec![mine], 0).0, 0);
        assert_eq!(look(s).2, [first[0], mine], "added");
        assert_eq!(update(s, vec![mine], 1).0, 0);
        assert_eq!(look(s).2, [mine], "in its place");
        assert_eq!(update(s, vec![mine], 2), CUresult::INVALID_VALUE);
        let other = empty(l, graph(l), &[]);
        assert_eq!(update(s, vec![other], 0), CUresult::INVALID_VALUE, "of another graph");
        assert_eq!(launch(l, f, s, 1).0, 0);
        assert_eq!(shape(l, g), (vec![0, 5, 0], vec![(0, 1), (1, 2)]));
        // The graph must not be destroyed or shrunk during the capture, nor can it be instantiated yet.
        assert_ne!(cu!(l, cuGraphDestroy(g)).0, 0);
        assert_ne!(cu!(l, cuGraphDestroyNode(mine)).0, 0);
        let mut x = CUgraphExec::NULL;
        assert_ne!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 0)).0, 0);
        // A fork whose work the program removes from the dependencies need not rejoin.
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuStreamWaitEvent(t, e, 0));
        assert_eq!(launch(l, f, t, 1).0, 0);
        let (mut status, mut id, mut edges, mut deps, mut n) = (0, 0, null(), null(), 0);
        let mut same = CUgraph::NULL;
        ok!(l, cuStreamGetCaptureInfo_v3(t, &mut status, &mut id, &mut same, &mut deps, &mut edges, &mut n));
        assert!(status == 1 && same == g && n == 1 && !edges.is_null());
        let mut none = CUgraphNode::NULL;
        ok!(l, cuStreamUpdateCaptureDependencies_v2(t, &mut none, null(), 0, 1));
        assert_eq!(ended(l, s), g);
        run(l, g);
        ok!(l, cuGraphDestroy(g));
        // A fork that rejoined may also be removed from the dependencies.
        begin(l, s, GLOBAL);
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuStreamWaitEvent(t, e, 0));
        assert_eq!(launch(l, f, t, 1).0, 0);
        ok!(l, cuEventRecord(e, t));
        ok!(l, cuStreamWaitEvent(s, e, 0));
        assert_eq!(update(s, vec![], 1).0, 0);
        ended(l, s);
    });
}

/// Tests `cuStreamBeginCaptureToGraph`.
#[test]
fn a_capture_can_go_on_in_a_graph_that_is_there() {
    on_machine("t4", &[("VGPU_SIM_DRIVER", "580")], |l, _| {
        ready(l);
        let (s, f, g) = (stream(l), kernel(l, c"vgpu_spin_ns"), graph(l));
        let (a, b) = (empty(l, g, &[]), empty(l, g, &[]));
        let into = |deps: &[CUgraphNode], g| {
            cu!(l, cuStreamBeginCaptureToGraph(s, g, deps.as_ptr(), null(), deps.len(), GLOBAL))
        };
        let foreign = empty(l, graph(l), &[]);
        assert_eq!(into(&[foreign], g), CUresult::INVALID_VALUE);
        assert_eq!(into(&[], CUgraph::NULL), CUresult::INVALID_VALUE);
        assert_eq!(into(&[b], g).0, 0);
        assert_eq!(launch(l, f, s, 1).0, 0);
        assert_eq!(ended(l, s), g);
        assert_eq!(shape(l, g), (vec![5, 5, 0], vec![(1, 2)]));
        // A failed capture does not destroy the program's graph.
        assert_eq!(into(&[a], g).0, 0);
        assert_eq!(cu!(l, cuStreamQuery(s)), UNSUPPORTED);
        assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
        run(l, g);
    });
}

#[test]
fn a_stream_or_context_that_ends_takes_its_capture_along() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (s, t, e) = (stream(l), stream(l), event(l));
        begin(l, s, GLOBAL);
        ok!(l, cuEventRecord(e, s));
        ok!(l, cuStreamWaitEvent(t, e, 0));
        ok!(l, cuStreamDestroy_v2(t));
        assert_eq!(end(l, s), (INVALIDATED, CUgraph::NULL));
        begin(l, s, GLOBAL);
        ok!(l, cuStreamDestroy_v2(s));
        alloc(l, 512);
        let mut own = CUcontext::NULL;
        ok!(l, cuCtxCreate_v2(&mut own, 0, 0));
        begin(l, stream(l), GLOBAL);
        ok!(l, cuCtxDestroy_v2(own));
        ready(l);
        alloc(l, 512);
    });
}
