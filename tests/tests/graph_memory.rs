//! Memory that graphs allocate. It is reserved before a launch or an upload, charged as the driver's graph memory holds
//! it, and returned by a trim. The judges are the simulated device's record and cuMemGetInfo.
//!
//! Pools: pools.rs. Captured allocations: `sequences/captured_graphs.rs`.

use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY};

/// Smallest growth of the simulated driver's graph memory.
const STEP: u64 = 32 * MIB;

fn member(lab: &Lab) -> Member {
    let mut m = Member::start(&mut lab.command(compile("pooled", Kind::Program, &[])));
    m.ok("begin 0");
    m
}

fn under(limit: &str) -> (Lab, Member) {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", limit);
    let m = member(&lab);
    (lab, m)
}

/// Bytes that the device gave to all processes: contexts, whole pages of plain memory, and pools.
fn given(lab: &Lab) -> u64 {
    lab.device(0).processes.iter().map(|p| p.physical_bytes).sum()
}

/// Bytes shown as used, which must equal the bytes that the device gave. The device's pages are 2 MiB, and these tests
/// hold one plain allocation at a time, so only its last page may be partly used.
#[track_caller]
fn used(lab: &Lab, m: &mut Member) -> u64 {
    let (shown, given) = (m.used(), given(lab));
    assert!(
        (0..2 * MIB).contains(&given.wrapping_sub(shown)),
        "{shown} are shown, given are {given}: {:?}",
        lab.device(0)
    );
    shown
}

#[track_caller]
fn get(m: &mut Member, command: &str) -> u64 {
    m.ok(command).number(0)
}

/// Creates a graph that allocates `bytes`, and frees them if `balanced`. Returns the graph and the address.
fn graph(m: &mut Member, bytes: u64, balanced: bool) -> (u64, u64) {
    let graph = get(m, "graph");
    let [node, address] = m.ok(&format!("add-alloc {graph} {bytes}")).numbers()[..] else { panic!("two numbers") };
    if balanced {
        m.ok(&format!("add-free {graph} {node} {address}"));
    }
    (graph, address)
}

#[test]
fn a_graph_takes_nothing_before_it_is_launched_and_is_charged_afterwards() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let (graph, _) = graph(&mut m, 100 * MIB, true);
    assert_eq!(used(&lab, &mut m), begin, "building takes nothing");
    let exec = get(&mut m, &format!("instantiate {graph} 0"));
    used(&lab, &mut m);
    for _ in 0..5 {
        m.ok(&format!("launch {exec} 0"));
        assert_eq!(used(&lab, &mut m), begin + 100 * MIB);
    }
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin + 100 * MIB, "kept for the next launch");
    assert_eq!(m.ok("graphs-held").number(0), 100 * MIB, "the driver's number");
    m.ok("trim-graphs 0");
    assert_eq!(used(&lab, &mut m), begin, "a trim returns it");
    m.ok(&format!("launch {exec} 0"));
    m.ok(&format!("launch-own {exec} 0"));
    used(&lab, &mut m);
    m.ok("sync-context");
    m.ok(&format!("exec-destroy {exec}"));
    m.ok("trim-graphs 0");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn every_way_to_instantiate_is_seen() {
    let (lab, mut m) = under("1GiB");
    let begin = used(&lab, &mut m);
    let (fits, _) = graph(&mut m, 64 * MIB, true);
    let (too_large, _) = graph(&mut m, GIB, true);
    for way in [0, 1, 3] {
        let exec = get(&mut m, &format!("instantiate {too_large} {way}"));
        assert_eq!(m.code(&format!("launch {exec} 0")), OUT_OF_MEMORY, "way {way}");
        assert_eq!(m.code(&format!("launch-own {exec} 0")), OUT_OF_MEMORY, "way {way}");
        assert_eq!(m.code(&format!("upload {exec} 0")), OUT_OF_MEMORY, "way {way}");
        assert_eq!(used(&lab, &mut m), begin, "a refused launch costs nothing");
        m.ok(&format!("exec-destroy {exec}"));
        let exec = get(&mut m, &format!("instantiate {fits} {way}"));
        m.ok(&format!("upload {exec} 0"));
        m.ok("sync-context");
        assert_eq!(used(&lab, &mut m), begin + 64 * MIB, "way {way}");
        m.ok(&format!("launch {exec} 0"));
        assert_eq!(used(&lab, &mut m), begin + 64 * MIB, "uploaded before");
        m.ok("sync-context");
        m.ok(&format!("exec-destroy {exec}"));
        m.ok("trim-graphs 0");
    }
    assert_eq!(m.code(&format!("instantiate {too_large} 2")), OUT_OF_MEMORY, "with an upload");
    assert_eq!(used(&lab, &mut m), begin);
    let exec = get(&mut m, &format!("instantiate {fits} 2"));
    assert_eq!(used(&lab, &mut m), begin + 64 * MIB);
    m.ok("sync-context");
    m.ok(&format!("exec-destroy {exec}"));
    m.ok("trim-graphs 0");
    assert_eq!(used(&lab, &mut m), begin);
}

#[test]
fn the_last_page_can_be_launched_and_one_more_cannot() {
    let (lab, mut m) = under("1GiB");
    let (free, _) = m.info();
    let most = free / (2 * MIB) * 2 * MIB;
    let (large, _) = graph(&mut m, most + 1, true);
    let exec = get(&mut m, &format!("instantiate {large} 0"));
    assert_eq!(m.code(&format!("launch {exec} 0")), OUT_OF_MEMORY);
    let (fits, _) = graph(&mut m, most, true);
    let exec = get(&mut m, &format!("instantiate {fits} 0"));
    for _ in 0..3 {
        m.ok(&format!("launch {exec} 0"));
        assert_eq!(used(&lab, &mut m), GIB - (free - most), "again and again");
        m.ok("sync-context");
    }
    assert_eq!(m.code(&format!("async {} 0", 2 * MIB)), 0, "what idle graphs keep is given back before a refusal");
    used(&lab, &mut m);
}

#[test]
fn a_graph_that_is_launched_again_takes_nothing_and_nobody_gives_anything_back_for_it() {
    let (lab, mut m) = under("1GiB");
    let pool = get(&mut m, "default-pool 0");
    m.ok(&format!("threshold {pool} {GIB}"));
    let p = get(&mut m, &format!("async {} 0", 128 * MIB));
    m.ok(&format!("free-async {p} 0"));
    let (one, _) = graph(&mut m, MIB, true);
    let (other, _) = graph(&mut m, 100 * MIB, true);
    let execs = [one, other].map(|graph| get(&mut m, &format!("instantiate {graph} 0")));
    for exec in execs {
        m.ok(&format!("launch {exec} 0"));
    }
    m.ok("sync-context");
    let (free, _) = m.info();
    get(&mut m, &format!("alloc {free}"));
    for round in 0..3 {
        for exec in execs {
            m.ok(&format!("launch {exec} 0"));
            assert_eq!(m.ok(&format!("held {pool}")).number(0), 128 * MIB, "round {round}");
            assert_eq!(m.ok("graphs-held").number(0), 132 * MIB, "round {round}");
            assert_eq!(used(&lab, &mut m), GIB);
        }
        if round == 1 {
            m.ok("sync-context");
        }
    }
    // Another graph may take the memory of these graphs, so their next launches must reserve it again.
    let (third, _) = graph(&mut m, 90 * MIB, true);
    let third = get(&mut m, &format!("instantiate {third} 0"));
    m.ok("sync-context");
    m.ok(&format!("launch {third} 0"));
    m.ok(&format!("launch {} 0", execs[1]));
    assert!(used(&lab, &mut m) <= GIB);
}

#[test]
fn a_graph_under_way_that_is_launched_in_another_stream_is_no_way_over_the_limit() {
    let (lab, mut m) = under("1GiB");
    let [one, other] = [(); 2].map(|()| get(&mut m, "stream"));
    m.ok(&format!("spin {one} 1000"));
    m.ok("sync-context");
    let (graph, _) = graph(&mut m, 100 * MIB, true);
    let exec = get(&mut m, &format!("instantiate {graph} 0"));
    m.ok(&format!("launch {exec} {one}"));
    m.ok(&format!("spin {one} 500000000"));
    m.ok(&format!("launch {exec} {one}"));
    let (free, _) = m.info();
    get(&mut m, &format!("alloc {free}"));
    m.ok(&format!("launch {exec} {one}"));
    assert_eq!(used(&lab, &mut m), GIB);
    let _ = m.code(&format!("launch {exec} {other}"));
    assert!(given(&lab) <= GIB, "{} are given", given(&lab));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), GIB);
}

#[test]
fn a_graph_asks_again_after_its_memory_was_trimmed() {
    let (lab, mut m) = under("1GiB");
    let (graph, _) = graph(&mut m, 100 * MIB, true);
    let exec = get(&mut m, &format!("instantiate {graph} 0"));
    for by_itself in [false, true] {
        m.ok(&format!("launch {exec} 0"));
        m.ok("sync-context");
        if !by_itself {
            m.ok("trim-graphs 0");
        }
        let (free, _) = m.info();
        // With `by_itself` the request exceeds the free memory, so the graph's memory must be trimmed for it.
        let p = get(&mut m, &format!("alloc {}", if by_itself { free + 50 * MIB } else { free }));
        assert_eq!(m.code(&format!("launch {exec} 0")), OUT_OF_MEMORY);
        assert!(used(&lab, &mut m) <= GIB);
        m.ok(&format!("free {p}"));
    }
}

#[test]
fn what_outlives_a_launch_is_charged_until_it_is_freed() {
    let (lab, mut m) = under("4GiB");
    let begin = used(&lab, &mut m);
    let (graph, address) = graph(&mut m, 200 * MIB, false);
    let exec = get(&mut m, &format!("instantiate {graph} 0"));
    for free in ["free-async {} 0", "free {}"] {
        m.ok(&format!("launch {exec} 0"));
        m.ok("sync-context");
        m.ok("trim-graphs 0");
        assert_eq!(used(&lab, &mut m), begin + 200 * MIB, "it lives");
        m.ok(&free.replace("{}", &address.to_string()));
        m.ok("sync-context");
        used(&lab, &mut m);
        m.ok("trim-graphs 0");
        assert_eq!(used(&lab, &mut m), begin, "{free}");
    }
}

#[test]
fn before_a_refusal_graph_memory_gives_back_what_it_does_not_use() {
    let (lab, mut m) = under("2GiB");
    let begin = used(&lab, &mut m);
    let (idle, _) = graph(&mut m, GIB, true);
    let exec = get(&mut m, &format!("instantiate {idle} 0"));
    m.ok(&format!("launch {exec} 0"));
    m.ok("sync-context");
    assert_eq!(used(&lab, &mut m), begin + GIB);
    let room = 2 * GIB - begin;
    let p = get(&mut m, &format!("alloc {room}"));
    assert_eq!(used(&lab, &mut m), 2 * GIB);
    assert_eq!(m.code(&format!("launch {exec} 0")), OUT_OF_MEMORY, "and is not there any more");
    m.ok(&format!("free {p}"));
    m.ok(&format!("launch {exec} 0"));
    assert_eq!(used(&lab, &mut m), begin + GIB);
}

#[test]
fn small_graphs_take_whole_steps_and_nobody_is_over() {
    let (lab, mut m) = under("1GiB");
    let (free, _) = m.info();
    let (small, _) = graph(&mut m, MIB, true);
    let exec = get(&mut m, &format!("instantiate {small} 0"));
    let p = get(&mut m, &format!("alloc {}", free - 10 * MIB));
    assert_eq!(m.code(&format!("launch {exec} 0")), OUT_OF_MEMORY, "a step is more than is left");
    assert_eq!(used(&lab, &mut m), GIB - 10 * MIB);
    m.ok(&format!("free {p}"));
    m.ok(&format!("launch {exec} 0"));
    assert_eq!(m.info().0, free - STEP);
    used(&lab, &mut m);
}

#[test]
fn allocations_that_follow_each_other_in_a_graph_share_their_memory() {
    let (lab, mut m) = under("1GiB");
    let begin = used(&lab, &mut m);
    let graph = get(&mut m, "graph");
    let mut after = 0;
    for _ in 0..8 {
        let [node, address] = m.ok(&format!("add-alloc {graph} {} {after}", 256 * MIB)).numbers()[..] else {
            panic!("two numbers")
        };
        after = get(&mut m, &format!("add-free {graph} {node} {address}"));
    }
    let exec = get(&mut m, &format!("instantiate {graph} 0"));
    m.ok(&format!("launch {exec} 0"));
    assert_eq!(used(&lab, &mut m), begin + 256 * MIB, "2 GiB of requests, one after the other, under 1 GiB");
}

#[test]
fn two_processes_have_graph_memory_of_their_own() {
    let (lab, mut a) = under("4GiB");
    let mut b = member(&lab);
    let begin = used(&lab, &mut a);
    let (first, _) = graph(&mut a, 2 * GIB, true);
    let first = get(&mut a, &format!("instantiate {first} 0"));
    let (second, _) = graph(&mut b, 2 * GIB, true);
    let second = get(&mut b, &format!("instantiate {second} 0"));
    a.ok(&format!("launch {first} 0"));
    assert_eq!(used(&lab, &mut b), begin + 2 * GIB);
    assert_eq!(b.code(&format!("launch {second} 0")), OUT_OF_MEMORY, "both do not fit beside two contexts");
    a.ok("sync-context");
    a.ok("trim-graphs 0");
    b.ok(&format!("launch {second} 0"));
    assert_eq!(used(&lab, &mut a), begin + 2 * GIB);
}

#[test]
fn an_update_is_asked_for_what_the_new_graph_takes() {
    let (lab, mut m) = under("1GiB");
    let begin = used(&lab, &mut m);
    let (one, _) = graph(&mut m, 64 * MIB, true);
    let exec = get(&mut m, &format!("instantiate {one} 0"));
    let (two, _) = graph(&mut m, 128 * MIB, true);
    // Drivers refuse to change a graph's allocations. Either way the next launch is charged its own memory.
    let _ = m.code(&format!("update {exec} {two}"));
    m.ok(&format!("launch {exec} 0"));
    assert!(used(&lab, &mut m) >= begin + 64 * MIB);
}

/// The program's kernels would launch such a graph, without a call. The simulated driver does not model it.
#[test]
fn a_graph_for_launches_from_the_device_gets_the_drivers_answer_and_costs_nothing() {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`, and CUDA_ERROR_NOT_SUPPORTED.
    const DEVICE_LAUNCH: u32 = 4;
    const NOT_SUPPORTED: i64 = 801;
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let mut bare = Member::start(&mut lab.bare(compile("pooled", Kind::Program, &[])));
    bare.ok("begin 0");
    for mut m in [member(&lab), bare] {
        let begin = lab.device(0).used;
        let (graph, _) = graph(&mut m, 100 * MIB, true);
        let answer = m.ask(&format!("instantiate {graph} 0 {DEVICE_LAUNCH}"));
        assert_eq!((answer.code, lab.device(0).used, m.errors()), (NOT_SUPPORTED, begin, String::new()));
        let exec = get(&mut m, &format!("instantiate {graph} 0"));
        m.ok(&format!("launch {exec} 0"));
    }
}
