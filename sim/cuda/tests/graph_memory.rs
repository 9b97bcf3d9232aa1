//! Tests of graph memory: when it is taken and returned, who may free it, which allocations share it, and how it
//! counts.
#![allow(clippy::macro_metavars_in_unsafe)] // the unsafe part of `cu!` is the call, its arguments included

mod common;
mod graph_parts;

use common::on_machine;
use graph_parts::*;
use libloading::os::unix::Library;
use shim_sys::cuda::*;
use std::path::Path;
use std::ptr::{null, null_mut};

const INVALID: CUresult = CUresult::INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::NOT_SUPPORTED;
const AUTO_FREE: u64 = 1;
/// Usual growth of the simulated pool, bytes.
const CHUNK: usize = 32 * MIB;

fn attribute(l: &Library, which: u32) -> usize {
    let mut value = 0usize;
    ok!(l, cuDeviceGetGraphMemAttribute(0, which, (&raw mut value).cast()));
    value
}

fn used(l: &Library) -> usize {
    attribute(l, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
}

fn reserved(l: &Library) -> usize {
    attribute(l, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
}

/// Physical bytes of this process's allocations on device 0, from the ground truth.
fn physical(dir: &Path) -> usize {
    let t = vgpu_sim::truth::read(dir).unwrap();
    usize::try_from(t.living_process(0, std::process::id()).unwrap().slab_bytes).unwrap()
}

fn launch(l: &Library, x: CUgraphExec) -> CUresult {
    cu!(l, cuGraphLaunch(x, CUstream::NULL))
}

fn finish(l: &Library) {
    ok!(l, cuCtxSynchronize());
}

/// A graph that allocates `bytes` and does not free them.
fn leaving(l: &Library, bytes: usize) -> (CUgraph, CUgraphNode, CUdeviceptr) {
    let g = graph(l);
    let (n, at) = take(l, g, &[], bytes);
    (g, n, at)
}

/// A graph that allocates `bytes`, writes `value` to the last byte, copies that to `out`, and frees the memory.
fn passing(l: &Library, bytes: usize, value: u32, out: CUdeviceptr) -> (CUgraph, CUdeviceptr) {
    let g = graph(l);
    let (n, at) = take(l, g, &[], bytes);
    let last = at + bytes as u64 - 1;
    let f = fill(l, g, &[n], last, value, 1);
    let c = copy(l, g, &[f], out, last, 1);
    give(l, g, &[c], at);
    (g, at)
}

#[test]
fn memory_is_taken_at_the_launch_and_kept_until_it_is_trimmed() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let out = alloc(l, 1);
        let before = physical(dir);
        let (g, at) = passing(l, 100 * MIB, 7, out);
        let x = instantiate(l, g, 0);
        assert_eq!((physical(dir), reserved(l), used(l)), (before, 0, 0), "addresses cost nothing");
        for _ in 0..3 {
            ok!(l, cuGraphLaunch(x, CUstream::NULL));
            finish(l);
            assert_eq!((physical(dir), reserved(l), used(l)), (before + 100 * MIB, 100 * MIB, 100 * MIB));
        }
        assert_eq!(read(l, out, 1), [7]);
        assert_eq!(cu!(l, cuMemFree_v2(at)), INVALID, "the graph frees it");
        ok!(l, cuGraphExecDestroy(x));
        assert_eq!((reserved(l), used(l)), (100 * MIB, 0), "kept, and mapped for nobody");
        ok!(l, cuDeviceGraphMemTrim(0));
        assert_eq!((physical(dir), reserved(l), used(l)), (before, 0, 0));
        run(l, g);
        assert_eq!(reserved(l), 100 * MIB, "taken again where it is needed again");
    });
}

#[test]
fn a_trim_leaves_what_is_allocated_or_on_its_way() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (s, mut go) = (stream(l), 0u64);
        let (g, _, at) = leaving(l, 40 * MIB);
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, s));
        ok!(l, cuStreamSynchronize(s));
        ok!(l, cuDeviceGraphMemTrim(0));
        assert_eq!((reserved(l), physical(dir)), (40 * MIB, 40 * MIB), "allocated");
        ok!(l, cuLaunchHostFunc(s, Some(wait), (&raw mut go).cast()));
        ok!(l, cuMemFreeAsync(at, s));
        ok!(l, cuDeviceGraphMemTrim(0));
        assert_eq!(reserved(l), 40 * MIB, "the free is on its way");
        // SAFETY: the host function reads it atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut go) }.store(1, std::sync::atomic::Ordering::Release);
        ok!(l, cuStreamSynchronize(s));
        ok!(l, cuDeviceGraphMemTrim(0));
        assert_eq!((reserved(l), used(l), physical(dir)), (0, 0, 0));
    });
}

#[test]
fn an_address_is_fixed_when_its_node_is_made() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, n, at) = leaving(l, MIB);
        let f = fill(l, g, &[n], at, 5, MIB);
        let mut p = wanted(0);
        ok!(l, cuGraphMemAllocNodeGetParams(n, &mut p));
        assert_eq!((p.dptr, p.bytesize, p.poolProps.allocType), (at, MIB, 1));
        for value in [5u8, 6] {
            ok!(l, cuGraphMemsetNodeSetParams(f, &bytes_of(at, u32::from(value), MIB)));
            let x = instantiate(l, g, 0);
            ok!(l, cuGraphLaunch(x, CUstream::NULL));
            assert_eq!(read(l, at + MIB as u64 - 1, 1), [value]);
            let (mut base, mut len) = (0, 0);
            ok!(l, cuMemGetAddressRange_v2(&mut base, &mut len, at + 100));
            assert_eq!((base, len), (at, MIB));
            ok!(l, cuMemFree_v2(at));
            ok!(l, cuGraphExecDestroy(x));
        }
    });
}

#[test]
fn what_a_launch_left_must_be_freed_before_the_next() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, _, at) = leaving(l, MIB);
        assert_eq!(cu!(l, cuMemFree_v2(at)), INVALID, "not allocated yet");
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        assert_eq!(launch(l, x), INVALID);
        ok!(l, cuGraphUpload(x, CUstream::NULL));
        ok!(l, cuMemFree_v2(at));
        assert_eq!(cu!(l, cuMemFree_v2(at)), INVALID, "twice");
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        ok!(l, cuMemFreeAsync(at, CUstream::NULL));
        assert_eq!(cu!(l, cuMemFreeAsync(at, CUstream::NULL)), INVALID);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        // The memory outlives the executable graph.
        ok!(l, cuGraphExecDestroy(x));
        finish(l);
        assert_eq!(used(l), MIB);
        let x = instantiate(l, g, AUTO_FREE);
        for _ in 0..3 {
            ok!(l, cuGraphLaunch(x, CUstream::NULL));
        }
        finish(l);
        assert_eq!((used(l), reserved(l)), (MIB, CHUNK), "each launch frees what the last one left");
        ok!(l, cuMemFree_v2(at));
    });
}

#[test]
fn another_graph_may_free_and_only_one_way_is_allowed() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, n, at) = leaving(l, MIB);
        let other = graph(l);
        let add = |g, at| {
            let mut n = CUgraphNode::NULL;
            cu!(l, cuGraphAddMemFreeNode(&mut n, g, null(), 0, at))
        };
        assert_eq!((add(other, at + 512), add(other, alloc(l, 64)), add(other, 0)), (INVALID, INVALID, INVALID));
        let node = give(l, other, &[], at);
        let mut back = 0;
        ok!(l, cuGraphMemFreeNodeGetParams(node, &mut back));
        assert_eq!(back, at);
        assert_eq!(add(other, at), INVALID, "twice in a graph");
        assert_eq!(add(g, at), INVALID, "its own graph cannot any more");
        let (x, y) = (instantiate(l, g, 0), instantiate(l, other, 0));
        assert_eq!(launch(l, y), INVALID, "nothing is allocated");
        for _ in 0..2 {
            ok!(l, cuGraphLaunch(x, CUstream::NULL));
            assert_eq!(launch(l, x), INVALID);
            ok!(l, cuGraphLaunch(y, CUstream::NULL));
            assert_eq!(launch(l, y), INVALID);
        }
        assert_eq!(cu!(l, cuMemFree_v2(at)), INVALID);
        // Memory that its own graph frees cannot be freed by another graph.
        let (h, m, at) = leaving(l, MIB);
        give(l, h, &[m], at);
        assert_eq!((add(graph(l), at), add(h, at)), (INVALID, INVALID));
        let mut kind = 0;
        ok!(l, cuGraphNodeGetType(n, &mut kind));
        assert_eq!(kind, 10);
    });
}

#[test]
fn a_graph_with_memory_is_not_copied_shrunk_or_instantiated_twice() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, n, at) = leaving(l, MIB);
        let free = give(l, g, &[n], at);
        let (mut copy, mut x, mut node) = (CUgraph::NULL, CUgraphExec::NULL, CUgraphNode::NULL);
        assert_eq!(cu!(l, cuGraphClone(&mut copy, g)), NOT_SUPPORTED);
        assert_eq!(cu!(l, cuGraphAddChildGraphNode(&mut node, graph(l), null(), 0, g)), NOT_SUPPORTED);
        assert_eq!(cu!(l, cuGraphRemoveDependencies(g, &n, &free, 1)), NOT_SUPPORTED);
        assert_eq!(cu!(l, cuGraphDestroyNode(free)), NOT_SUPPORTED);
        let only = instantiate(l, g, 0);
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 0)), NOT_SUPPORTED);
        let mut why = 99;
        assert_eq!(cu!(l, cuGraphExecUpdate(only, g, null_mut(), &mut why)).0, 910);
        assert_eq!(why, 6);
        ok!(l, cuGraphExecDestroy(only));
        let again = instantiate(l, g, 0);
        ok!(l, cuGraphDestroy(g));
        ok!(l, cuGraphLaunch(again, CUstream::NULL));
        finish(l);
        ok!(l, cuGraphExecDestroy(again));
    });
}

#[test]
fn a_free_that_is_not_behind_its_allocation_is_refused() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, _, at) = leaving(l, MIB);
        give(l, g, &[], at);
        let mut x = CUgraphExec::NULL;
        assert_eq!(cu!(l, cuGraphInstantiateWithFlags(&mut x, g, 0)), INVALID);
    });
}

#[test]
fn allocations_whose_lives_do_not_overlap_share_memory() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let n = 64 * MIB;
        // Allocations that edges order one after the other get the same memory and the same address.
        let g = graph(l);
        let (a, first) = take(l, g, &[], n);
        let f = give(l, g, &[a], first);
        let (b, second) = take(l, g, &[f], n / 2);
        give(l, g, &[b], second);
        assert_eq!(second, first);
        run(l, g);
        assert_eq!((reserved(l), physical(dir)), (n, n));
        ok!(l, cuDeviceGraphMemTrim(0));
        // Without edges between them: the order in which they happen to run does not count.
        let h = graph(l);
        for _ in 0..2 {
            let (a, at) = take(l, h, &[], n);
            give(l, h, &[a], at);
        }
        run(l, h);
        assert_eq!((reserved(l), physical(dir)), (2 * n, 2 * n));
        // A gap between two live allocations is reused.
        ok!(l, cuDeviceGraphMemTrim(0));
        let k = graph(l);
        let (a, p) = take(l, k, &[], n);
        let (b, _q) = take(l, k, &[a], n);
        let f = give(l, k, &[b], p);
        let (c, r) = take(l, k, &[f], n);
        assert_eq!(r, p);
        assert_ne!(take(l, graph(l), &[], n).1, p, "another graph's addresses are its own");
        let (e, beside) = take(l, k, &[f], n);
        assert_ne!(beside, r, "who shares the address may still live");
        give(l, k, &[e], beside);
        give(l, k, &[c], r);
        run(l, k);
        assert_eq!(reserved(l), 3 * n, "two side by side, one that stays");
    });
}

#[test]
fn graphs_in_one_stream_share_memory_and_graphs_in_two_do_not() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (n, out, mut go) = (64 * MIB, alloc(l, 1), 0u64);
        let (s, t) = (stream(l), stream(l));
        let x: Vec<CUgraphExec> = (0..3).map(|v| instantiate(l, passing(l, n, v, out).0, 0)).collect();
        ok!(l, cuLaunchHostFunc(s, Some(wait), (&raw mut go).cast()));
        ok!(l, cuGraphLaunch(x[0], s));
        ok!(l, cuGraphLaunch(x[1], s));
        assert_eq!((reserved(l), used(l)), (n, n), "mapped for two graphs, and there once");
        ok!(l, cuGraphLaunch(x[2], t));
        assert_eq!((reserved(l), used(l)), (2 * n, 2 * n));
        // SAFETY: the host function reads it atomically.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(&raw mut go) }.store(1, std::sync::atomic::Ordering::Release);
        finish(l);
        ok!(l, cuGraphLaunch(x[0], t));
        finish(l);
        assert_eq!(reserved(l), 2 * n);
    });
}

#[test]
fn an_upload_takes_the_memory_and_runs_nothing() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let out = alloc(l, 1);
        ok!(l, cuMemsetD8_v2(out, 1, 1));
        let (g, _) = passing(l, 50 * MIB, 9, out);
        let mut p = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 2,
            hUploadStream: stream(l),
            hErrNode_out: CUgraphNode::NULL,
            result_out: 9,
        };
        let (mut x, before) = (CUgraphExec::NULL, physical(dir));
        ok!(l, cuGraphInstantiateWithParams(&mut x, g, &mut p));
        finish(l);
        assert_eq!((reserved(l), physical(dir)), (50 * MIB, before + 50 * MIB));
        assert_eq!(read(l, out, 1), [1]);
        ok!(l, cuGraphLaunch(x, p.hUploadStream));
        ok!(l, cuGraphUpload(x, CUstream::NULL));
        finish(l);
        assert_eq!((reserved(l), read(l, out, 1)), (50 * MIB, vec![9]));
    });
}

#[test]
fn a_launch_that_finds_no_memory_changes_nothing() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (mut free, mut total) = (0, 0);
        ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
        let rest = alloc(l, free - 80 * MIB);
        let g = graph(l);
        let (a, stays) = take(l, g, &[], 60 * MIB);
        let (b, goes) = take(l, g, &[a], 60 * MIB);
        give(l, g, &[b], goes);
        let x = instantiate(l, g, 0);
        for _ in 0..2 {
            assert_eq!(launch(l, x), CUresult::OUT_OF_MEMORY);
            assert_eq!(cu!(l, cuGraphUpload(x, CUstream::NULL)), CUresult::OUT_OF_MEMORY);
        }
        assert_eq!(cu!(l, cuMemFree_v2(stays)), INVALID, "nothing was allocated");
        finish(l);
        ok!(l, cuDeviceGraphMemTrim(0));
        assert_eq!((reserved(l), physical(dir)), (0, free - 80 * MIB));
        ok!(l, cuMemFree_v2(rest));
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        finish(l);
        assert_eq!((reserved(l), physical(dir)), (120 * MIB, 120 * MIB));
        ok!(l, cuMemFree_v2(stays));
    });
}

#[test]
fn idle_graph_memory_is_no_reason_to_refuse_a_graph() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (mut free, mut total, out) = (0, 0, alloc(l, 1));
        ok!(l, cuMemGetInfo_v2(&mut free, &mut total));
        let small: Vec<CUgraph> = (0..4).map(|v| passing(l, 100 * MIB, v, out).0).collect();
        for g in &small {
            let s = stream(l);
            let x = instantiate(l, *g, 0);
            ok!(l, cuGraphLaunch(x, s));
        }
        finish(l);
        assert!(reserved(l) >= 100 * MIB);
        let big = passing(l, free / (2 * MIB) * (2 * MIB), 3, out).0;
        run(l, big);
        assert_eq!((reserved(l), read(l, out, 1)), (free / (2 * MIB) * (2 * MIB), vec![3]));
    });
}

#[test]
fn highest_values_are_put_back_by_writing_zero() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, _, at) = leaving(l, 40 * MIB);
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        ok!(l, cuMemFree_v2(at));
        ok!(l, cuGraphExecDestroy(x));
        ok!(l, cuDeviceGraphMemTrim(0));
        let set = |which, mut value: u64| cu!(l, cuDeviceSetGraphMemAttribute(0, which, (&raw mut value).cast()));
        for (high, now) in [(1, 0), (3, 2)] {
            assert_eq!((attribute(l, high), attribute(l, now)), (40 * MIB, 0));
            assert_eq!((set(high, 1), set(now, 0)), (INVALID, INVALID));
            assert!(set(high, 0).ok());
            assert_eq!(attribute(l, high), 0);
        }
        let mut value = 7u64;
        let out = (&raw mut value).cast();
        assert_eq!(cu!(l, cuDeviceGetGraphMemAttribute(0, 9, out)), INVALID);
        assert_eq!(cu!(l, cuDeviceGetGraphMemAttribute(0, 0, null_mut())), INVALID);
        assert_eq!(cu!(l, cuDeviceGetGraphMemAttribute(3, 0, out)), CUresult::INVALID_DEVICE);
        assert_eq!(cu!(l, cuDeviceGraphMemTrim(-1)), CUresult::INVALID_DEVICE);
        assert_eq!(value, 7);
    });
}

#[test]
fn wrong_allocations_are_refused() {
    on_machine("t4", &[], |l, _| {
        ready(l);
        let (g, mut n) = (graph(l), CUgraphNode::NULL);
        let mut add = |change: fn(&mut CUDA_MEM_ALLOC_NODE_PARAMS)| {
            let mut p = wanted(MIB);
            change(&mut p);
            let code = cu!(l, cuGraphAddMemAllocNode(&mut n, g, null(), 0, &mut p));
            assert_eq!(p.dptr, 0, "outputs stay");
            code
        };
        assert_eq!(add(|p| p.bytesize = 0), INVALID);
        assert_eq!(add(|p| p.poolProps.allocType = 0), INVALID);
        assert_eq!(add(|p| p.poolProps.handleTypes = 1), INVALID);
        assert_eq!(add(|p| p.poolProps.location.kind = CU_MEM_LOCATION_TYPE_HOST), INVALID);
        assert_eq!(add(|p| p.poolProps.location.id = 5), CUresult::INVALID_DEVICE);
        assert_eq!(add(|p| p.accessDescCount = 1), INVALID);
        assert_eq!(cu!(l, cuGraphAddMemAllocNode(&mut n, g, null(), 0, null_mut())), INVALID);
        let access = CUmemAccessDesc { location: wanted(1).poolProps.location, flags: 3 };
        let mut p = CUDA_MEM_ALLOC_NODE_PARAMS { accessDescs: &access, accessDescCount: 1, ..wanted(MIB) };
        ok!(l, cuGraphAddMemAllocNode(&mut n, g, null(), 0, &mut p));
        let mut back = wanted(0);
        ok!(l, cuGraphMemAllocNodeGetParams(n, &mut back));
        // SAFETY: one description, the driver's own copy.
        assert_eq!((back.accessDescCount, unsafe { (*back.accessDescs).flags }), (1, 3));
    });
}

#[test]
fn the_last_context_takes_graph_memory_with_it() {
    on_machine("t4", &[], |l, dir| {
        ready(l);
        let (g, _, at) = leaving(l, 40 * MIB);
        let x = instantiate(l, g, 0);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        finish(l);
        assert_eq!(physical(dir), 40 * MIB);
        ok!(l, cuDevicePrimaryCtxReset_v2(0));
        assert_eq!(physical(dir), 0);
        assert_eq!((reserved(l), used(l)), (0, 0));
        ready(l);
        assert_eq!(cu!(l, cuMemFree_v2(at)), INVALID);
        ok!(l, cuGraphLaunch(x, CUstream::NULL));
        finish(l);
        assert_eq!(physical(dir), 40 * MIB);
    });
}
