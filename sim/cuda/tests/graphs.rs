//! Tests of graphs built by explicit calls: structure, execution, parameters, updates, user objects. Their
//! memory: `graph_memory.rs`.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;
mod graph_parts;

use common::on_machine;
use graph_parts::*;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const INVALID: CUresult = CUresult::INVALID_VALUE;

fn none(l: &Library) -> (CUgraph, CUgraphNode, CUgraphExec) {
    let (g, n) = (graph(l), CUgraphNode(std::ptr::without_provenance_mut(0x1000)));
    ok!(l, cuGraphDestroy(g));
    (g, n, CUgraphExec(std::ptr::without_provenance_mut(0x1000)))
}

#[test]
fn wrong_arguments_have_the_drivers_codes() {
    on_machine("t4", &[], |l, _| {
        let (mut g, mut n, mut x) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphExec::NULL);
        assert_eq!(cu!(l, cuGraphCreate(&mut g, 0)), CUresult::NOT_INITIALIZED);
        assert_eq!(cu!(l, cuGraphLaunch(x, CUstream::NULL)), CUresult::NOT_INITIALIZED);
        ok!(l, cuInit(0));
        ok!(l, cuGraphCreate(&mut g, 0));
        let p = bytes_of(0, 0, 1);
        let add = |n, g| cu!(l, cuGraphAddMemsetNode(n, g, std::ptr::null(), 0, &p, CUcontext::NULL));
        assert_eq!(add(&mut n, g), CUresult::INVALID_CONTEXT, "no context");
        ready(l);
        assert_eq!(add(&mut n, g), INVALID, "no such memory");
        assert_eq!(cu!(l, cuGraphCreate(&mut g, 1)), INVALID);
        assert_eq!(cu!(l, cuGraphCreate(null_mut(), 0)), INVALID);
        let (no_graph, no_node, no_exec) = none(l);
        for bad in [CUgraph::NULL, no_graph] {
            assert_eq!(cu!(l, cuGraphAddEmptyNode(&mut n, bad, std::ptr::null(), 0)), INVALID);
            assert_eq!(cu!(l, cuGraphDestroy(bad)), INVALID);
            assert_eq!(cu!(l, cuGraphClone(&mut g, bad)), INVALID);
            assert_eq!(cu!(l, cuGraphGetNodes(bad, null_mut(), &mut 0)), INVALID);
            assert_eq!(cu!(l, cuGraphInstantiate_v2(&mut x, bad, null_mut(), null_mut(), 0)), INVALID);
        }
        for bad in [CUgraphNode::NULL, no_node] {
            assert_eq!(cu!(l, cuGraphNodeGetType(bad, &mut 0)), INVALID);
            assert_eq!(cu!(l, cuGraphDestroyNode(bad)), INVALID);
            assert_eq!(cu!(l, cuGraphAddEmptyNode(&mut n, g, &bad, 1)), INVALID);
        }
        for bad in [CUgraphExec::NULL, no_exec] {
            assert_eq!(cu!(l, cuGraphLaunch(bad, CUstream::NULL)), INVALID);
            assert_eq!(cu!(l, cuGraphUpload(bad, CUstream::NULL)), INVALID);
            assert_eq!(cu!(l, cuGraphExecDestroy(bad)), INVALID);
        }
        assert_eq!(cu!(l, cuGraphAddEmptyNode(null_mut(), g, std::ptr::null(), 0)), INVALID);
        assert_eq!(cu!(l, cuGraphAddEmptyNode(&mut n, g, std::ptr::null(), 1)), INVALID);
        assert_eq!(cu!(l, cuGraphAddKernelNode_v2(&mut n, g, std::ptr::null(), 0, std::ptr::null())), INVALID);
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(null_mut(), g, 0)), INVALID);
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 2)), INVALID, "only with parameters");
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 1 | 4)), INVALID);
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 4)), CUresult::NOT_SUPPORTED);
        assert_eq!((n, x), (CUgraphNode::NULL, CUgraphExec::NULL), "outputs stay");
        assert_eq!(
            cu!(l, cuGraphLaunch(instantiate(l, g, 0), CUstream(std::ptr::without_provenance_mut(0x1000)))),
            CUresult::INVALID_HANDLE
        );
        let (mut count, nothing) = (77, null_mut());
        ok!(l, cuGraphGetNodes(g, nothing, &mut count));
        assert_eq!(count, 0, "nothing that failed left a node");
    });
}

fn listed(f: impl Fn(*mut CUgraphNode, *mut usize) -> CUresult) -> Vec<CUgraphNode> {
    let (mut count, mut more) = (0, 0);
    assert!(f(null_mut(), &mut count).ok());
    let mut all = vec![CUgraphNode(std::ptr::without_provenance_mut(8)); count + 1];
    more += all.len();
    assert!(f(all.as_mut_ptr(), &mut more).ok());
    assert_eq!((more, all.pop()), (count, Some(CUgraphNode::NULL)), "what is left of the place is null");
    all
}

#[test]
fn nodes_and_edges_are_listed_connected_and_removed() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let g = graph(l);
        let a = empty(l, g, &[]);
        let b = empty(l, g, &[a]);
        let c = empty(l, g, &[]);
        let d = empty(l, g, &[b, c]);
        assert_eq!(listed(|p, n| cu!(l, cuGraphGetNodes(g, p, n))), [a, b, c, d]);
        assert_eq!(listed(|p, n| cu!(l, cuGraphGetRootNodes(g, p, n))), [a, c]);
        assert_eq!(listed(|p, n| cu!(l, cuGraphNodeGetDependencies(d, p, n))), [b, c]);
        assert_eq!(listed(|p, n| cu!(l, cuGraphNodeGetDependentNodes(a, p, n))), [b]);
        let edges = || {
            let (mut from, mut to, mut n) = ([a; 9], [a; 9], 9);
            ok!(l, cuGraphGetEdges(g, from.as_mut_ptr(), to.as_mut_ptr(), &mut n));
            from.into_iter().zip(to).take(n).collect::<Vec<_>>()
        };
        assert_eq!(edges(), [(a, b), (b, d), (c, d)]);
        let mut n = 1;
        assert_eq!(cu!(l, cuGraphGetEdges(g, [a].as_mut_ptr(), null_mut(), &mut n)), INVALID);
        let link = |from: &[_], to: &[_]| cu!(l, cuGraphAddDependencies(g, from.as_ptr(), to.as_ptr(), from.len()));
        let cut = |from: &[_], to: &[_]| cu!(l, cuGraphRemoveDependencies(g, from.as_ptr(), to.as_ptr(), from.len()));
        assert_eq!(link(&[a, a], &[c, b]), INVALID, "an edge that is there");
        assert_eq!(link(&[a], &[a]), INVALID);
        assert_eq!(link(&[a], &[empty(l, graph(l), &[])]), INVALID, "a node of another graph");
        assert_eq!(cut(&[a, a], &[b, d]), INVALID, "an edge that is not there");
        assert_eq!(edges().len(), 3, "all or nothing");
        assert!(link(&[a], &[c]).ok() && cut(&[c, a], &[d, b]).ok() && link(&[], &[]).ok());
        assert_eq!(edges(), [(a, c), (b, d)]);
        ok!(l, cuGraphDestroyNode(b));
        assert_eq!(edges(), [(a, c)]);
        assert_eq!(listed(|p, n| cu!(l, cuGraphGetRootNodes(g, p, n))), [a, d]);
        let mut few = [d; 1];
        n = 1;
        ok!(l, cuGraphGetNodes(g, few.as_mut_ptr(), &mut n));
        assert_eq!((few, n), ([a], 1));
        let mut again = CUgraphNode::NULL;
        assert_eq!(cu!(l, cuGraphAddEmptyNode(&mut again, g, [a, a].as_ptr(), 2)), INVALID, "twice the same");
    });
}

#[test]
fn a_cycle_is_refused_when_the_graph_is_made_executable() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let g = graph(l);
        let first = empty(l, g, &[]);
        let a = empty(l, g, &[first]);
        let b = empty(l, g, &[a]);
        ok!(l, cuGraphAddDependencies(g, &b, &a, 1));
        let (mut x, mut node, mut log) = (CUgraphExec::NULL, CUgraphNode::NULL, [7 as std::ffi::c_char; 64]);
        assert_eq!(cu!(l, cuGraphInstantiate_v2(&mut x, g, &mut node, log.as_mut_ptr(), 64)), INVALID);
        assert!((node == a || node == b) && log.contains(&0) && log[0] != 7 && x.is_null());
        let mut p = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 0,
            hUploadStream: CUstream::NULL,
            hErrNode_out: CUgraphNode::NULL,
            result_out: 0,
        };
        assert_eq!(cu!(l, cuGraphInstantiateWithParams(&mut x, g, &mut p)), INVALID);
        assert_eq!((p.result_out, p.hErrNode_out), (2, node));
        ok!(l, cuGraphRemoveDependencies(g, &b, &a, 1));
        log = [7; 64];
        ok!(l, cuGraphInstantiate(&mut x, g, &mut node, log.as_mut_ptr(), 64));
        assert_eq!(log, [7; 64], "no log without a failure");
        ok!(l, cuGraphInstantiateWithParams(&mut x, g, &mut p));
        assert_eq!((p.result_out, p.hErrNode_out), (0, CUgraphNode::NULL));
    });
}

#[test]
fn copies_and_fills_do_what_they_say_in_the_order_of_the_edges() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (a, b) = (alloc(l, MIB), alloc(l, MIB));
        let source: Vec<u8> = (0..=255).cycle().take(MIB).collect();
        let mut target = vec![0u8; MIB];
        let g = graph(l);
        // The nodes are made in the wrong order: only the edges define the order.
        let out = copy(l, g, &[], target.as_mut_ptr() as u64, b, MIB);
        let mark = fill(l, g, &[], b + 100, 7, 50);
        let over = copy(l, g, &[], b, a, MIB);
        let into = copy(l, g, &[], a, source.as_ptr() as u64, MIB);
        let (from, to) = ([into, over, mark], [over, mark, out]);
        ok!(l, cuGraphAddDependencies(g, from.as_ptr(), to.as_ptr(), 3));
        run(l, g);
        assert!(target[..100] == source[..100] && target[100..150] == [7; 50] && target[150..] == source[150..]);
        // A memset node fills rows with a pitch, and elements of four bytes.
        let g = graph(l);
        let rows =
            CUDA_MEMSET_NODE_PARAMS { dst: a, pitch: 64, value: 0x0403_0201, elementSize: 4, width: 2, height: 3 };
        let mut n = CUgraphNode::NULL;
        ok!(l, cuGraphAddMemsetNode(&mut n, g, std::ptr::null(), 0, &rows, CUcontext::NULL));
        let mut box3 = line(b, a, 8);
        (box3.srcPitch, box3.dstPitch, box3.Height) = (64, 8, 3);
        let after = n;
        ok!(l, cuGraphAddMemcpyNode(&mut n, g, &after, 1, &box3, CUcontext::NULL));
        run(l, g);
        assert_eq!(read(l, b, 24), [1, 2, 3, 4].repeat(6));
        for bad in [
            CUDA_MEMSET_NODE_PARAMS { elementSize: 3, ..rows },
            CUDA_MEMSET_NODE_PARAMS { width: 0, ..rows },
            CUDA_MEMSET_NODE_PARAMS { pitch: 7, ..rows },
            CUDA_MEMSET_NODE_PARAMS { dst: a + MIB as u64, ..rows },
            CUDA_MEMSET_NODE_PARAMS { dst: a + 1, ..rows },
        ] {
            assert_eq!(cu!(l, cuGraphAddMemsetNode(&mut n, g, std::ptr::null(), 0, &bad, CUcontext::NULL)), INVALID);
        }
        let beyond = line(a, b + 1, MIB);
        assert_eq!(cu!(l, cuGraphAddMemcpyNode(&mut n, g, std::ptr::null(), 0, &beyond, CUcontext::NULL)), INVALID);
    });
}

#[test]
fn a_launch_takes_the_time_of_its_kernels_and_does_not_wait_for_them() {
    on_machine("h200", &[], |l, dir| {
        ready(l);
        let (f, s, g) = (kernel(l, c"vgpu_spin_ns"), stream(l), graph(l));
        let (a, b) = (event(l), event(l));
        let first = spin(l, g, &[], f, 20_000_000);
        spin(l, g, &[first], f, 10_000_000);
        let x = instantiate(l, g, 0);
        // The graph, its nodes and the variables they were made from are no longer needed.
        ok!(l, cuGraphDestroy(g));
        // Another graph runs first in the same stream, so that the measured launch begins when that work ends.
        let busy = graph(l);
        spin(l, busy, &[], f, 30_000_000);
        ok!(l, cuGraphLaunch(instantiate(l, busy, 0), s));
        ok!(l, cuEventRecord(a, s));
        ok!(l, cuGraphLaunch(x, s));
        ok!(l, cuEventRecord(b, s));
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        ok!(l, cuStreamQuery(CUstream::NULL));
        ok!(l, cuEventSynchronize(b));
        let mut ms = 0.0;
        ok!(l, cuEventElapsedTime(&mut ms, a, b));
        assert!((ms - 30.0).abs() < 0.01, "{ms}");
        let t = vgpu_sim::truth::read(dir).unwrap();
        assert_eq!(t.living_process(0, std::process::id()).unwrap().kernels, 3);
    });
}

#[test]
fn launches_of_one_executable_graph_follow_each_other_in_whatever_streams() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (f, s, t, u) = (kernel(l, c"vgpu_spin_ns"), stream(l), stream(l), stream(l));
        let g = graph(l);
        spin(l, g, &[], f, 1000);
        let (x, y) = (instantiate(l, g, 0), instantiate(l, g, 0));
        let mut go = 0u64;
        ok!(l, cuLaunchHostFunc(s, Some(wait), (&raw mut go).cast()));
        ok!(l, cuGraphLaunch(x, s));
        ok!(l, cuGraphLaunch(x, t));
        ok!(l, cuGraphUpload(x, u));
        let other = stream(l);
        ok!(l, cuGraphLaunch(y, other));
        ok!(l, cuStreamSynchronize(other));
        for held in [s, t, u] {
            assert_eq!(cu!(l, cuStreamQuery(held)), CUresult::NOT_READY);
        }
        // SAFETY: the host function reads it atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut go) }.store(1, std::sync::atomic::Ordering::Release);
        for held in [s, t, u] {
            ok!(l, cuStreamSynchronize(held));
        }
    });
}

#[test]
fn a_null_stream_of_the_per_thread_call_is_the_threads_own() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (f, g) = (kernel(l, c"vgpu_spin_ns"), graph(l));
        spin(l, g, &[], f, 50_000_000);
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch_ptsz(x, CUstream::NULL));
        assert_eq!(cu!(l, cuStreamQuery(CU_STREAM_PER_THREAD)), CUresult::NOT_READY);
        ok!(l, cuStreamSynchronize(CU_STREAM_PER_THREAD));
    });
}

#[test]
fn host_nodes_run_in_their_place() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (f, g, mut log) = (kernel(l, c"vgpu_spin_ns"), graph(l), 0u64);
        let mut notes: Vec<Note> = (1..=4).map(|d| Note(d, &raw mut log)).collect();
        let at: Vec<*mut c_void> = notes.iter_mut().map(|n| (&raw mut *n).cast()).collect();
        let p = alloc(l, 8);
        let third = host(l, g, &[], note, at[2]);
        let first = host(l, g, &[], note, at[0]);
        let work = spin(l, g, &[first], f, 5_000_000);
        let second = host(l, g, &[work], note, at[1]);
        // Work that follows a host node changes content only after that node has run.
        let mark = fill(l, g, &[second], p, 9, 8);
        ok!(l, cuGraphAddDependencies(g, &mark, &third, 1));
        let x = instantiate(l, g, 0);
        for _ in 0..2 {
            ok!(l, cuGraphLaunch(x, CUstream::NULL));
        }
        ok!(l, cuLaunchHostFunc(CUstream::NULL, Some(note), at[3]));
        ok!(l, cuCtxSynchronize());
        assert_eq!((log, read(l, p, 8)), (1_231_234, vec![9; 8]));
    });
}

#[test]
fn arguments_are_copied_when_the_node_is_made() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let (g, f) = (graph(l), kernel(l, c"other"));
        let (mut p, mut n, mut node) = (0x1122_3344_5566u64, 77u32, CUgraphNode::NULL);
        let mut params = [(&raw mut p).cast::<c_void>(), (&raw mut n).cast()];
        let mut shape = launch_of(f, params.as_mut_ptr());
        (shape.gridDimY, shape.blockDimX, shape.sharedMemBytes) = (3, 64, 512);
        ok!(l, cuGraphAddKernelNode_v2(&mut node, g, std::ptr::null(), 0, &shape));
        // SAFETY: two live variables.
        unsafe {
            (&raw mut p).write_volatile(0);
            (&raw mut n).write_volatile(0);
        }
        let got = |node| {
            let mut got = launch_of(CUfunction::NULL, null_mut());
            ok!(l, cuGraphKernelNodeGetParams_v2(node, &mut got));
            // SAFETY: two pointers to the driver's copies of the two arguments.
            let words = unsafe { (*(*got.kernelParams).cast::<u64>(), *(*got.kernelParams.add(1)).cast::<u32>()) };
            (got, words)
        };
        let (now, words) = got(node);
        assert_eq!(words, (0x1122_3344_5566, 77));
        assert_eq!((now.func, now.gridDimY, now.blockDimX, now.sharedMemBytes, now.ctx), (f, 3, 64, 512, ctx));
        // The kernel's arguments as one packed list (`extra`).
        let mut packed = [0u8; 12];
        packed[..8].copy_from_slice(&5u64.to_le_bytes());
        packed[8] = 6;
        let mut size = 12usize;
        let key = std::ptr::without_provenance_mut;
        let mut extra: [*mut c_void; 5] =
            [key(1), packed.as_mut_ptr().cast(), key(2), (&raw mut size).cast(), null_mut()];
        let old = CUDA_KERNEL_NODE_PARAMS_v1 {
            func: f,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: null_mut(),
            extra: extra.as_mut_ptr(),
        };
        ok!(l, cuGraphKernelNodeSetParams(node, &old));
        packed = [0; 12];
        let mut back = old;
        ok!(l, cuGraphKernelNodeGetParams(node, &mut back));
        assert!(back.kernelParams.is_null() && back.gridDimY == 1);
        // SAFETY: a list in the form passed above: 1, bytes, 2, their number, 0.
        let (bytes, len) = unsafe { ((*back.extra.add(1)).cast::<u8>(), *(*back.extra.add(3)).cast::<usize>()) };
        // SAFETY: the list states the number of bytes.
        assert_eq!(unsafe { std::slice::from_raw_parts(bytes, len) }, [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(packed, [0; 12]);
        shape.blockDimX = 2048;
        assert_eq!(cu!(l, cuGraphKernelNodeSetParams_v2(node, &shape)), INVALID);
        shape.blockDimX = 64;
        shape.kernelParams = null_mut();
        assert_eq!(cu!(l, cuGraphKernelNodeSetParams_v2(node, &shape)), INVALID, "arguments are missing");
        assert_eq!(cu!(l, cuGraphKernelNodeGetParams_v2(empty(l, g, &[]), &mut shape)), INVALID);
    });
}

#[test]
fn attributes_of_kernel_nodes_are_kept_and_copied() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, f) = (graph(l), kernel(l, c"vgpu_spin_ns"));
        let (a, b) = (spin(l, g, &[], f, 1), spin(l, g, &[], f, 1));
        let (mut value, mut back) = ([0u8; 64], [9u8; 64]);
        ok!(l, cuGraphKernelNodeGetAttribute(a, 8, back.as_mut_ptr().cast()));
        assert_eq!(back, [0; 64]);
        value[0] = 3;
        ok!(l, cuGraphKernelNodeSetAttribute(a, 8, value.as_ptr().cast()));
        ok!(l, cuGraphKernelNodeCopyAttributes(b, a));
        ok!(l, cuGraphKernelNodeGetAttribute(b, 8, back.as_mut_ptr().cast()));
        assert_eq!(back, value);
        assert_eq!(cu!(l, cuGraphKernelNodeSetAttribute(a, 99, value.as_ptr().cast())), INVALID);
        assert_eq!(cu!(l, cuGraphKernelNodeCopyAttributes(a, empty(l, g, &[]))), INVALID);
    });
}

#[test]
fn events_are_recorded_and_waited_for() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (f, g, s) = (kernel(l, c"vgpu_spin_ns"), graph(l), stream(l));
        let (a, b, gate) = (event(l), event(l), event(l));
        let mut go = 0u64;
        let node = |add: &dyn Fn(*mut CUgraphNode) -> CUresult| {
            let mut n = CUgraphNode::NULL;
            assert!(add(&mut n).ok());
            n
        };
        let held = node(&|n| cu!(l, cuGraphAddEventWaitNode(n, g, std::ptr::null(), 0, gate)));
        let from = node(&|n| cu!(l, cuGraphAddEventRecordNode(n, g, &held, 1, a)));
        let work = spin(l, g, &[from], f, 4_000_000);
        let to = node(&|n| cu!(l, cuGraphAddEventRecordNode(n, g, &work, 1, a)));
        let mut e = CUevent::NULL;
        ok!(l, cuGraphEventRecordNodeGetEvent(to, &mut e));
        assert_eq!(e, a);
        ok!(l, cuGraphEventRecordNodeSetEvent(to, b));
        ok!(l, cuGraphEventWaitNodeGetEvent(held, &mut e));
        assert_eq!(e, gate);
        assert_eq!(cu!(l, cuGraphEventWaitNodeSetEvent(to, a)), INVALID);
        assert_eq!(cu!(l, cuGraphEventWaitNodeSetEvent(held, CUevent::NULL)), CUresult::INVALID_HANDLE);
        let blocked = stream(l);
        ok!(l, cuLaunchHostFunc(blocked, Some(wait), (&raw mut go).cast()));
        ok!(l, cuEventRecord(gate, blocked));
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, s));
        assert_eq!(cu!(l, cuEventQuery(b)), CUresult::NOT_READY);
        assert_eq!(cu!(l, cuStreamQuery(s)), CUresult::NOT_READY);
        // SAFETY: the host function reads it atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut go) }.store(1, std::sync::atomic::Ordering::Release);
        ok!(l, cuEventSynchronize(b));
        let mut ms = 0.0;
        ok!(l, cuEventElapsedTime(&mut ms, a, b));
        assert!(ms >= 4.0, "{ms}");
        ok!(l, cuEventDestroy_v2(gate));
        assert_eq!(cu!(l, cuGraphLaunch(x, s)), CUresult::INVALID_HANDLE);
    });
}

#[test]
fn a_node_runs_on_the_device_of_its_context() {
    on_machine("2xt4", &[], |l, dir| {
        let first = ready(l);
        let mut second = CUcontext::NULL;
        ok!(l, cuDevicePrimaryCtxRetain(&mut second, 1));
        ok!(l, cuCtxSetCurrent(second));
        let (far, p) = (kernel(l, c"vgpu_spin_ns"), alloc(l, 64));
        ok!(l, cuCtxSetCurrent(first));
        let (near, g) = (kernel(l, c"vgpu_spin_ns"), graph(l));
        let a = spin(l, g, &[], near, 3_000_000);
        let b = spin(l, g, &[a], far, 5_000_000);
        let mut n = CUgraphNode::NULL;
        ok!(l, cuGraphAddMemsetNode(&mut n, g, &b, 1, &bytes_of(p, 4, 64), second));
        spin(l, g, &[n], near, 2_000_000);
        run(l, g);
        let t = vgpu_sim::truth::read(dir).unwrap();
        let of = |i| t.living_process(i, std::process::id()).unwrap();
        assert_eq!((of(0).kernels, of(0).copies), (2, 0));
        assert_eq!((of(1).kernels, of(1).copies), (1, 1));
        assert!(of(0).busy_ns >= 5_000_000 && of(1).busy_ns >= 5_000_000);
        assert_eq!(read(l, p, 64), [4; 64]);
        // Two launches that alternate between the devices at the same time do not block each other.
        let (s, t) = (stream(l), stream(l));
        let (x, y) = (instantiate(l, g, 0), instantiate(l, g, 0));
        for _ in 0..5 {
            ok!(l, cuGraphLaunch(x, s));
            ok!(l, cuGraphLaunch(y, t));
        }
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while [s, t].iter().any(|s| cu!(l, cuStreamQuery(*s)) == CUresult::NOT_READY) {
            assert!(std::time::Instant::now() < end, "they wait for each other");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
}
