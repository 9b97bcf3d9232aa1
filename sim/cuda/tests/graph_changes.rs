//! Tests of changes of graphs: clones, child graphs, parameters, updates, disabled nodes, user objects, nodes of
//! any type.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;
mod graph_parts;

use common::on_machine;
use graph_parts::*;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

const INVALID: CUresult = CUresult::INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::NOT_SUPPORTED;

fn count(l: &Library, g: CUgraph) -> usize {
    let mut n = 0;
    ok!(l, cuGraphGetNodes(g, null_mut(), &mut n));
    n
}

fn child(l: &Library, g: CUgraph, after: &[CUgraphNode], inner: CUgraph) -> (CUgraphNode, CUgraph) {
    let (mut n, mut own) = (CUgraphNode::NULL, CUgraph::NULL);
    ok!(l, cuGraphAddChildGraphNode(&mut n, g, after.as_ptr(), after.len(), inner));
    ok!(l, cuGraphChildGraphNodeGetGraph(n, &mut own));
    (n, own)
}

/// Launches, waits, and reads the first byte of `p`.
fn byte_after(l: &Library, x: CUgraphExec, p: CUdeviceptr) -> u8 {
    ok!(l, cuGraphLaunch(x, CUstream::NULL));
    ok!(l, cuCtxSynchronize());
    read(l, p, 1)[0]
}

#[test]
fn a_clone_is_a_graph_of_its_own() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, p) = (graph(l), alloc(l, 16));
        let a = fill(l, g, &[], p, 1, 16);
        let b = fill(l, g, &[a], p, 2, 8);
        let (mut copy, mut x, mut y) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
        ok!(l, cuGraphClone(&mut copy, g));
        ok!(l, cuGraphNodeFindInClone(&mut x, a, copy));
        ok!(l, cuGraphNodeFindInClone(&mut y, b, copy));
        assert!(x != a && y != b && x != y);
        let (mut after, mut n) = (CUgraphNode::NULL, 1);
        ok!(l, cuGraphNodeGetDependencies(y, &mut after, &mut n));
        assert_eq!((after, n), (x, 1));
        ok!(l, cuGraphMemsetNodeSetParams(y, &bytes_of(p, 3, 4)));
        ok!(l, cuGraphDestroy(g));
        assert_eq!(cu!(l, cuGraphNodeGetType(a, &mut 0)), INVALID, "nodes go with their graph");
        run(l, copy);
        assert_eq!(read(l, p, 16), [[3; 4], [1; 4], [1; 4], [1; 4]].concat());
        assert_eq!(cu!(l, cuGraphNodeFindInClone(&mut x, x, copy)), INVALID, "not cloned from this node");
    });
}

#[test]
fn a_child_graph_is_a_copy_that_belongs_to_its_node() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (outer, inner, p) = (graph(l), graph(l), alloc(l, 16));
        let before = fill(l, outer, &[], p, 1, 16);
        let inside = fill(l, inner, &[], p, 2, 8);
        let (node, own) = child(l, outer, &[before], inner);
        fill(l, outer, &[node], p, 3, 4);
        fill(l, inner, &[], p, 9, 16);
        assert_eq!((count(l, inner), count(l, own)), (2, 1), "later changes do not reach the copy");
        ok!(l, cuGraphDestroy(inner));
        assert_eq!(cu!(l, cuGraphDestroy(own)), INVALID, "it goes with its node");
        let x = instantiate(l, outer, 0);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        assert_eq!(read(l, p, 16), [[3; 4], [2; 4], [1; 4], [1; 4]].concat());
        // Changes a node of the child graph in the executable graph only.
        assert_eq!(cu!(l, cuGraphNodeGetType(inside, &mut 0)), INVALID);
        let (mut deep, mut n) = (CUgraphNode::NULL, 1);
        ok!(l, cuGraphGetNodes(own, &mut deep, &mut n));
        ok!(l, cuGraphExecMemsetNodeSetParams(x, deep, &bytes_of(p + 4, 5, 4), CUcontext::NULL));
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        assert_eq!(read(l, p, 16), [[3; 4], [5; 4], [1; 4], [1; 4]].concat());
        // Replaces the whole child graph by a graph of the same shape.
        let other = graph(l);
        fill(l, other, &[], p + 8, 6, 8);
        ok!(l, cuGraphExecChildGraphNodeSetParams(x, node, other));
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        assert_eq!(read(l, p, 16), [[3; 4], [1; 4], [6; 4], [6; 4]].concat());
        fill(l, other, &[], p, 6, 8);
        assert_eq!(cu!(l, cuGraphExecChildGraphNodeSetParams(x, node, other)), INVALID, "another shape");
        ok!(l, cuGraphDestroyNode(node));
        assert_eq!(cu!(l, cuGraphGetNodes(own, null_mut(), &mut n)), INVALID);
    });
}

#[test]
fn an_executable_graph_changes_by_its_own_calls_only() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, p, q) = (graph(l), alloc(l, 16), alloc(l, 16));
        let n = fill(l, g, &[], p, 1, 16);
        let c = copy(l, g, &[n], q, p, 16);
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphMemsetNodeSetParams(n, &bytes_of(p, 2, 16)));
        assert_eq!(byte_after(l, x, q), 1, "the graph changed, the executable one did not");
        ok!(l, cuGraphExecMemsetNodeSetParams(x, n, &bytes_of(p, 3, 16), CUcontext::NULL));
        assert_eq!(byte_after(l, x, q), 3);
        let mut params = bytes_of(0, 0, 0);
        ok!(l, cuGraphMemsetNodeGetParams(n, &mut params));
        assert_eq!(params.value, 2);
        ok!(l, cuMemsetD8_v2(q + 8, 8, 8));
        ok!(l, cuGraphExecMemcpyNodeSetParams(x, c, &line(q, q + 8, 8), CUcontext::NULL));
        assert_eq!(byte_after(l, x, q), 8);
        let mut rows = line(q, p, 4);
        (rows.Height, rows.srcPitch, rows.dstPitch) = (2, 4, 4);
        let set = |node, c| cu!(l, cuGraphExecMemcpyNodeSetParams(x, node, c, CUcontext::NULL));
        assert_eq!(set(c, &rows), INVALID, "one dimension only");
        let typed = CUDA_MEMCPY3D { srcMemoryType: 2, ..line(q, p, 8) };
        assert_eq!(set(c, &typed), INVALID, "another kind of memory");
        assert_eq!(set(n, &line(q, p, 8)), INVALID, "another kind of node");
        assert_eq!(set(empty(l, g, &[]), &line(q, p, 8)), INVALID, "a node that came later");
        assert_eq!(byte_after(l, x, q), 8, "what was refused changed nothing");
        ok!(l, cuGraphDestroyNode(c));
        assert_eq!(set(c, &line(q, p, 8)), INVALID, "a node that is gone");
        assert_eq!(byte_after(l, x, q), 8, "the executable graph still has it");
    });
}

#[test]
fn kernels_and_host_functions_of_an_executable_graph_can_be_replaced() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, f, mut log) = (graph(l), kernel(l, c"vgpu_spin_ns"), 0u64);
        let mut notes: Vec<Note> = (1..=2).map(|d| Note(d, &raw mut log)).collect();
        let at: Vec<*mut c_void> = notes.iter_mut().map(|n| (&raw mut *n).cast()).collect();
        let k = spin(l, g, &[], f, 1_000_000);
        let h = host(l, g, &[k], note, at[0]);
        let x = instantiate(l, g, 0);
        let (a, b, mut ms, mut ns) = (event(l), event(l), 0.0, 6_000_000u64);
        let mut args = [(&raw mut ns).cast::<c_void>()];
        ok!(l, cuGraphExecKernelNodeSetParams_v2(x, k, &launch_of(f, args.as_mut_ptr())));
        ok!(l, cuGraphExecHostNodeSetParams(x, h, &CUDA_HOST_NODE_PARAMS { f: Some(note), userData: at[1] }));
        ok!(l, cuEventRecord(a, CUstream::NULL));
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        ok!(l, cuEventRecord(b, CUstream::NULL));
        ok!(l, cuCtxSynchronize());
        ok!(l, cuEventElapsedTime(&mut ms, a, b));
        assert!((6.0..).contains(&ms) && log == 2, "{ms} {log}");
        let mut p = CUDA_HOST_NODE_PARAMS { f: None, userData: null_mut() };
        assert_eq!(cu!(l, cuGraphExecHostNodeSetParams(x, h, &p)), INVALID);
        ok!(l, cuGraphHostNodeGetParams(h, &mut p));
        assert_eq!(p.userData, at[0], "the graph's own node stays");
    });
}

#[test]
fn an_update_takes_parameters_and_says_what_else_differs() {
    on_machine("2xt4", &[], |l, _| {
        let first = ready(l);
        let (p, q) = (alloc(l, 16), alloc(l, 16));
        let make = |value, edge: bool, wide: usize| {
            let g = graph(l);
            let a = fill(l, g, &[], p, value, wide);
            let before = [a];
            let b = copy(l, g, if edge { &before } else { &[] }, q, p, wide);
            (g, a, b)
        };
        let (g, ..) = make(1, true, 16);
        let x = instantiate(l, g, 0);
        assert_eq!(byte_after(l, x, q), 1);
        let update = |g| {
            let mut info = CUgraphExecUpdateResultInfo {
                result: 99,
                errorNode: CUgraphNode(std::ptr::without_provenance_mut(8)),
                errorFromNode: CUgraphNode(std::ptr::without_provenance_mut(8)),
            };
            let code = cu!(l, cuGraphExecUpdate_v2(x, g, &mut info));
            (code.0, info.result, info.errorNode, info.errorFromNode)
        };
        let none = CUgraphNode::NULL;
        assert_eq!(update(make(2, true, 8).0), (0, 0, none, none));
        assert_eq!(byte_after(l, x, q), 2);
        let (h, _, b) = make(3, false, 16);
        assert_eq!(update(h), (910, 2, b, none), "an edge is missing");
        let (h, a, b) = make(3, false, 16);
        ok!(l, cuGraphAddDependencies(h, &b, &a, 1));
        assert_eq!(update(h), (910, 2, a, none), "an edge the other way");
        ok!(l, cuGraphAddDependencies(h, &a, &b, 1));
        assert_eq!((update(h).0, update(h).1), (1, 99), "a cycle is an error of another kind");
        let (h, ..) = make(3, true, 16);
        let third = empty(l, h, &[]);
        assert_eq!(update(h), (910, 2, none, none), "a node more");
        ok!(l, cuGraphDestroyNode(third));
        let h = graph(l);
        let a = empty(l, h, &[]);
        copy(l, h, &[a], q, p, 16);
        assert_eq!(update(h), (910, 3, a, none), "another kind");
        let (mut node, mut why) = (none, 99);
        assert_eq!(cu!(l, cuGraphExecUpdate(x, h, &mut node, &mut why)).0, 910);
        assert_eq!((node, why), (a, 3));
        let (h, a, _) = make(3, true, 16);
        let rows = CUDA_MEMSET_NODE_PARAMS { pitch: 8, height: 2, ..bytes_of(p, 3, 8) };
        ok!(l, cuGraphMemsetNodeSetParams(a, &rows));
        assert_eq!(update(h), (910, 5, a, none), "rows where there was a line");
        assert_eq!(byte_after(l, x, q), 2, "what was refused changed nothing");
        // An update is refused if a node has as many edges, but from another node.
        let three = |from: usize| {
            let g = graph(l);
            let two = [empty(l, g, &[]), empty(l, g, &[])];
            (g, empty(l, g, &two[from..=from]), two[from])
        };
        let z = instantiate(l, three(0).0, 0);
        let (h, last, odd) = three(1);
        let mut info = CUgraphExecUpdateResultInfo { result: 99, errorNode: none, errorFromNode: none };
        assert_eq!(cu!(l, cuGraphExecUpdate_v2(z, h, &mut info)).0, 910);
        assert_eq!((info.result, info.errorNode, info.errorFromNode), (2, last, odd));
        // A kernel may change, its context may not.
        let mut second = CUcontext::NULL;
        let (f, k) = (kernel(l, c"vgpu_spin_ns"), graph(l));
        spin(l, k, &[], f, 1000);
        ok!(l, cuDevicePrimaryCtxRetain(&mut second, 1));
        ok!(l, cuCtxSetCurrent(second));
        let (far, m) = (kernel(l, c"vgpu_spin_ns"), graph(l));
        let foreign = spin(l, m, &[], far, 1000);
        ok!(l, cuCtxSetCurrent(first));
        let y = instantiate(l, k, 0);
        let same = graph(l);
        spin(l, same, &[], kernel(l, c"vgpu_spin_ns"), 2000);
        ok!(l, cuGraphExecUpdate_v2(y, same, null_mut()));
        assert_eq!(cu!(l, cuGraphExecUpdate(y, m, &mut node, &mut why)).0, 910);
        assert_eq!((node, why), (foreign, 7));
    });
}

#[test]
fn a_node_can_be_switched_off_and_on() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, p) = (graph(l), alloc(l, 16));
        let a = fill(l, g, &[], p, 1, 16);
        let b = fill(l, g, &[a], p, 2, 16);
        let x = instantiate(l, g, 0);
        let mut on = 9;
        ok!(l, cuGraphNodeSetEnabled(x, b, 0));
        ok!(l, cuGraphNodeGetEnabled(x, b, &mut on));
        assert_eq!((on, byte_after(l, x, p)), (0, 1));
        ok!(l, cuGraphNodeSetEnabled(x, b, 1));
        assert_eq!(byte_after(l, x, p), 2);
        let e = empty(l, g, &[]);
        let y = instantiate(l, g, 0);
        assert_eq!(cu!(l, cuGraphNodeSetEnabled(y, e, 0)), INVALID, "not a node of this kind");
        assert_eq!(cu!(l, cuGraphNodeGetEnabled(x, e, &mut on)), INVALID, "not a node of this graph");
    });
}

/// A node of any type, from its number and the parameters of that type.
fn any<T>(kind: u32, inside: T) -> CUgraphNodeParams {
    let mut p = CUgraphNodeParams { kind, reserved0: [0; 3], params: [0; 29], reserved2: 0 };
    assert!(size_of::<T>() <= size_of_val(&p.params));
    // SAFETY: the size is checked just above; the destination is aligned to eight bytes, as is every parameter.
    unsafe { (&raw mut p.params).cast::<T>().write(inside) };
    p
}

#[test]
fn nodes_of_any_kind_by_one_structure() {
    on_machine("t4", &[], |l, _| {
        let ctx = ready(l);
        let (g, p, f) = (graph(l), alloc(l, 16), kernel(l, c"vgpu_spin_ns"));
        let (mut ns, mut log) = (1000u64, 0u64);
        let mut args = [(&raw mut ns).cast::<c_void>()];
        let mut last = CUgraphNode::NULL;
        let mut add = |mut params: CUgraphNodeParams| {
            let (mut n, before) = (CUgraphNode::NULL, last);
            ok!(l, cuGraphAddNode(&mut n, g, &before, usize::from(!before.is_null()), &mut params));
            let mut kind = 99;
            ok!(l, cuGraphNodeGetType(n, &mut kind));
            assert_eq!(kind, params.kind);
            last = n;
            (n, params)
        };
        add(any(0, launch_of(f, args.as_mut_ptr())));
        let (node, _) = add(any(2, (bytes_of(p, 5, 8), ctx)));
        #[repr(C)]
        struct Copy(i32, i32, CUcontext, CUDA_MEMCPY3D);
        add(any(1, Copy(0, 0, ctx, line(p + 8, p, 8))));
        let mut digit = Note(7, &raw mut log);
        let call = CUDA_HOST_NODE_PARAMS { f: Some(note), userData: (&raw mut digit).cast() };
        add(any(3, call));
        let inner = graph(l);
        empty(l, inner, &[]);
        let (c, params) = add(any(4, inner));
        let mut own = CUgraph::NULL;
        ok!(l, cuGraphChildGraphNodeGetGraph(c, &mut own));
        assert_eq!(params.params[0], own.0 as u64, "the copy comes back");
        let e = event(l);
        add(any(5, ()));
        add(any(7, e));
        add(any(6, e));
        let x = instantiate(l, g, 0);
        assert_eq!((byte_after(l, x, p + 8), log), (5, 7));
        ok!(l, cuEventQuery(e));
        ok!(l, cuGraphExecNodeSetParams(x, node, &mut any(2, (bytes_of(p, 6, 8), ctx))));
        assert_eq!(byte_after(l, x, p + 8), 6);
        ok!(l, cuGraphNodeSetParams(node, &mut any(2, (bytes_of(p, 8, 8), ctx))));
        let mut now = bytes_of(0, 0, 0);
        ok!(l, cuGraphMemsetNodeGetParams(node, &mut now));
        assert_eq!(now.value, 8);
        assert_eq!(cu!(l, cuGraphNodeSetParams(node, &mut any(5, ()))), INVALID);
        // Memory, in a graph of its own; node types that are not simulated report that.
        let (m, mut n) = (graph(l), CUgraphNode::NULL);
        let mut taken = any(10, wanted(MIB));
        ok!(l, cuGraphAddNode(&mut n, m, null(), 0, &mut taken));
        // SAFETY: the parameters of this kind, as they were written.
        let at = unsafe { (*(&raw const taken.params).cast::<CUDA_MEM_ALLOC_NODE_PARAMS>()).dptr };
        let before = n;
        ok!(l, cuGraphAddNode(&mut n, m, &before, 1, &mut any(11, at)));
        run(l, m);
        for kind in [8, 9, 12, 13] {
            assert_eq!(cu!(l, cuGraphAddNode(&mut n, g, null(), 0, &mut any(kind, ()))), CUresult::NOT_SUPPORTED);
        }
        assert_eq!(cu!(l, cuGraphAddNode(&mut n, g, null(), 0, &mut any(77, ()))), INVALID);
    });
}

unsafe extern "C" fn count_up(data: *mut c_void) {
    // SAFETY: the test passes a live number of its own.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(data.cast()) }.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
}

#[test]
fn an_object_lives_as_long_as_somebody_holds_it() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let mut gone = 0u64;
        let data: *mut c_void = (&raw mut gone).cast();
        let destroyed = || {
            // SAFETY: a live number, which the destructor counts up atomically.
            let count = unsafe { std::sync::atomic::AtomicU64::from_ptr(data.cast()) };
            count.load(std::sync::atomic::Ordering::Acquire)
        };
        let object = |n, flags| {
            let mut o = CUuserObject::NULL;
            let code = cu!(l, cuUserObjectCreate(&mut o, data, Some(count_up), n, flags));
            (code, o)
        };
        assert_eq!(object(1, 0).0, INVALID);
        assert_eq!(object(0, 1).0, INVALID);
        let (code, o) = object(2, 1);
        assert!(code.ok());
        ok!(l, cuUserObjectRetain(o, 1));
        ok!(l, cuUserObjectRelease(o, 2));
        let g = graph(l);
        assert_eq!(cu!(l, cuGraphRetainUserObject(g, o, 1, 2)), INVALID);
        ok!(l, cuGraphRetainUserObject(g, o, 2, 0));
        ok!(l, cuUserObjectRelease(o, 1));
        assert_eq!(cu!(l, cuGraphReleaseUserObject(g, o, 3)), INVALID);
        ok!(l, cuGraphReleaseUserObject(g, o, 1));
        let mut copy = CUgraph::NULL;
        ok!(l, cuGraphClone(&mut copy, g));
        ok!(l, cuGraphDestroy(g));
        assert_eq!(destroyed(), 0, "the clone holds it");
        ok!(l, cuGraphDestroy(copy));
        assert_eq!(destroyed(), 1);
        // A user object that was transferred to the graph is held by outstanding launches too.
        let (g, (_, o)) = (graph(l), object(1, 1));
        ok!(l, cuGraphRetainUserObject(g, o, 1, 1));
        let (s, mut go) = (stream(l), 0u64);
        host(l, g, &[], wait, (&raw mut go).cast());
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphDestroy(g));
        ok!(l, cuGraphLaunch(x, s));
        ok!(l, cuGraphExecDestroy(x));
        assert_eq!(cu!(l, cuGraphLaunch(x, s)), INVALID);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(destroyed(), 1, "the launch still runs");
        // SAFETY: the host function reads it atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut go) }.store(1, std::sync::atomic::Ordering::Release);
        ok!(l, cuStreamSynchronize(s));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while destroyed() < 2 && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(destroyed(), 2);
    });
}

#[test]
fn flags_come_back_and_an_upload_leaves_none() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, mut flags, mut x) = (graph(l), 99, CUgraphExec::NULL);
        ok!(l, cuGraphExecGetFlags(instantiate(l, g, 1 | 8), &mut flags));
        assert_eq!(flags, 9);
        let mut p = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 1 | 2,
            hUploadStream: stream(l),
            hErrNode_out: CUgraphNode::NULL,
            result_out: 9,
        };
        ok!(l, cuGraphInstantiateWithParams(&mut x, g, &mut p));
        ok!(l, cuGraphExecGetFlags(x, &mut flags));
        assert_eq!((flags, p.result_out), (1, 0));
        p.flags = 16;
        assert_eq!(cu!(l, cuGraphInstantiateWithParams(&mut x, g, &mut p)), INVALID);
    });
}

#[test]
fn newer_calls_know_plain_edges() {
    on_machine("t4", &[("VGPU_SIM_DRIVER", "580")], |l, _| {
        ready(l);
        let (g, plain) = (graph(l), CUgraphEdgeData::default());
        let (a, b) = (empty(l, g, &[]), empty(l, g, &[]));
        let mut c = CUgraphNode::NULL;
        ok!(l, cuGraphAddNode_v2(&mut c, g, &a, &plain, 1, &mut any(5, ())));
        ok!(l, cuGraphAddDependencies_v2(g, &a, &b, null(), 1));
        let port = CUgraphEdgeData { from_port: 1, kind: 1, ..plain };
        assert_eq!(cu!(l, cuGraphAddDependencies_v2(g, &b, &c, &port, 1)), NOT_SUPPORTED);
        let (mut from, mut to, mut data, mut n) = ([a; 4], [a; 4], [port; 4], 4);
        ok!(l, cuGraphGetEdges_v2(g, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut n));
        assert_eq!((n, &from[..2], &to[..2], &data[..2]), (2, &[a, a][..], &[b, c][..], &[plain, plain][..]));
        (n, data) = (1, [port; 4]);
        ok!(l, cuGraphNodeGetDependencies_v2(c, from.as_mut_ptr(), data.as_mut_ptr(), &mut n));
        assert_eq!((n, from[0], data[0]), (1, a, plain));
        n = 4;
        ok!(l, cuGraphNodeGetDependentNodes_v2(a, to.as_mut_ptr(), null_mut(), &mut n));
        assert_eq!((n, &to[..2]), (2, &[b, c][..]));
        ok!(l, cuGraphRemoveDependencies_v2(g, &a, &b, &plain, 1));
        assert_eq!(cu!(l, cuGraphRemoveDependencies_v2(g, &a, &b, &plain, 1)), INVALID);
    });
}

#[test]
fn a_graph_can_be_drawn() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (g, inner, p) = (graph(l), graph(l), alloc(l, 16));
        fill(l, inner, &[], p, 1, 16);
        let a = spin(l, g, &[], kernel(l, c"vgpu_spin_ns"), 1);
        child(l, g, &[a], inner);
        let file = dir.join("graph.dot");
        let path = CString::new(file.to_str().unwrap()).unwrap();
        ok!(l, cuGraphDebugDotPrint(g, path.as_ptr(), 1));
        let text = std::fs::read_to_string(&file).unwrap();
        for part in ["digraph", "kernel vgpu_spin_ns", "fill 16 x 1", "->", "subgraph"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(cu!(l, cuGraphDebugDotPrint(g, c"/nowhere/x".as_ptr(), 0)).0, 304);
        assert_eq!(cu!(l, cuGraphDebugDotPrint(g, null(), 0)), INVALID);
    });
}
