//! Buffers of collective libraries: NCCL's allocator and its registration of windows (NVIDIA/nccl, src/allocator.cc and
//! src/transport/p2p.cc), and what asks as it does (DeepEP, Mooncake, MoonEP). The library finds each function by
//! cuGetProcAddress. It asks for fabric handles first and falls back to descriptors, which it sends by SCM_RIGHTS.
//! Without the service for fabric handles, creations answer 800 and imports 101 (MoonshotAI/MoonEP pull request 28,
//! NVIDIA/nccl issue 1647).
//!
//! Calls of: NCCL (and DeepEP, Mooncake, MoonEP, which ask alike)

use crate::*;
use vgpu_tests::{GIB, MIB, NOT_PERMITTED, OUT_OF_MEMORY};

/// Bytes of a buffer.
const PART: u64 = 64 * MIB;
/// Handle type for machines of one fabric.
const FABRIC: u64 = 8;
/// Type of a location: a NUMA node of the host.
const HOST_NUMA: u64 = 3;
/// Device attribute: fabric handles.
const FABRIC_SUPPORTED: u64 = 128;
/// `CUDA_ERROR_INVALID_DEVICE`.
const INVALID_DEVICE: i64 = 101;

#[test]
fn a_buffer_on_two_devices_of_two_ranks_is_charged_once_where_it_lies() {
    let lab = lab("2xh200", "2GiB");
    let mut ranks = [rank_by_lookup(&lab, 0), rank_by_lookup(&lab, 1)];
    let begin = [0, 1].map(|device| agrees_on(&lab, &mut ranks[device], device));
    let mut held = Vec::new();
    for owner in 0..2 {
        let [first, second] = &mut ranks;
        let (own, peer) = if owner == 0 { (first, second) } else { (second, first) };
        assert_eq!(own.ok(&format!("attribute {FABRIC_SUPPORTED} {owner}")).numbers(), [1]);
        assert_eq!(own.code(&format!("create {PART} {owner} {}", FABRIC | DESCRIPTOR)), NOT_PERMITTED);
        assert_eq!(number(own, &format!("granularity {owner} {DESCRIPTOR}")), PAGE);
        let handle = number(own, &format!("create {PART} {owner} {DESCRIPTOR}"));
        let descriptor = number(own, &format!("export {handle}"));
        let received = lab.pass_descriptor(own, descriptor, peer);
        let imported = number(peer, &format!("import {received}"));
        own.ok(&format!("close-descriptor {descriptor}"));
        peer.ok(&format!("close-descriptor {received}"));
        for (member, handle) in [(own, handle), (peer, imported)] {
            let at = number(member, &format!("reserve {PART}"));
            member.ok(&format!("map {at} {PART} {handle}"));
            member.ok(&format!("allow {at} {PART} 0 2"));
            held.push((member.pid, at, handle));
        }
    }
    let now = [0, 1].map(|device| agrees_on(&lab, &mut ranks[device], device));
    assert_eq!(now, begin.map(|bytes| bytes + PART), "each buffer once, on its own device");
    for (pid, at, handle) in held {
        let member = ranks.iter_mut().find(|member| member.pid == pid).expect("one of them");
        member.ok(&format!("unmap {at} {PART}"));
        member.ok(&format!("release {handle}"));
        member.ok(&format!("unreserve {at} {PART}"));
    }
    let end = [0, 1].map(|device| agrees_on(&lab, &mut ranks[device], device));
    assert_eq!(end, begin);
}

#[test]
fn memory_of_a_numa_node_is_never_charged() {
    let lab = lab("h200", "1GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    for bytes in [PART, 2 * GIB] {
        let handle = number(&mut m, &format!("create {bytes} 0 {DESCRIPTOR} {HOST_NUMA}"));
        let at = number(&mut m, &format!("reserve {bytes}"));
        m.ok(&format!("map {at} {bytes} {handle}"));
        m.ok(&format!("allow {at} {bytes} 0 1"));
        let descriptor = number(&mut m, &format!("export {handle}"));
        let imported = number(&mut m, &format!("import {descriptor}"));
        assert_eq!(agrees(&lab, &mut m), begin, "{bytes} bytes of the host");
        m.ok(&format!("close-descriptor {descriptor}"));
        m.ok(&format!("unmap {at} {bytes}"));
        [handle, imported].iter().for_each(|handle| _ = m.ok(&format!("release {handle}")));
        assert_eq!(agrees(&lab, &mut m), begin);
    }
}

#[test]
fn a_fabric_handle_without_its_service_gets_the_drivers_code_and_costs_nothing() {
    let name = "5a".repeat(64);
    same_answers("h200", "1GiB", |lab, m| {
        let begin = lab.process(0, m.pid).physical_bytes;
        let mut codes = Vec::new();
        for bytes in [PART, 512 * GIB] {
            for kinds in [FABRIC, FABRIC | DESCRIPTOR] {
                codes.push(m.code(&format!("create {bytes} 0 {kinds}")));
            }
        }
        let imported = m.code(&format!("import-fabric {name}"));
        assert_eq!(lab.process(0, m.pid).physical_bytes, begin);
        (codes.remove(0), codes.remove(0), imported)
    });
    let lab = lab("h200", "1GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    for _ in 0..100 {
        assert_eq!(m.code(&format!("create {PART} 0 {FABRIC}")), NOT_PERMITTED);
        assert_eq!(m.code(&format!("import-fabric {name}")), INVALID_DEVICE);
    }
    assert_eq!(agrees(&lab, &mut m), begin, "nothing is charged");
    assert_eq!(m.errors(), "", "800 is also the library's refusal, and it has refused nothing");
    let handle = number(&mut m, &format!("create {PART} 0 {DESCRIPTOR}"));
    assert_ne!(m.code(&format!("export-fabric {handle}")), 0);
    assert_eq!(agrees(&lab, &mut m), begin + PART, "the fallback is charged");
    m.ok(&format!("release {handle}"));
    assert_eq!(agrees(&lab, &mut m), begin);
}

/// A capture in `mode` with everything that the registration of a window does, and one fill that it captures.
#[track_caller]
fn registration_in_a_capture(m: &mut Member, mode: u32) -> (Vec<i64>, i64, u64) {
    let (to, at) = (m.alloc(MIB), number(m, &format!("reserve {PART}")));
    m.ok(&format!("capture {mode}"));
    m.ok(&format!("fill {to} {MIB}"));
    let handle = number(m, &format!("create {PART} 0 {DESCRIPTOR}"));
    let descriptor = number(m, &format!("export {handle}"));
    let imported = number(m, &format!("import {descriptor}"));
    let codes = [
        format!("map {at} {PART} {imported}"),
        format!("allow {at} {PART} 0 1"),
        format!("pointer {at}"),
        "info".to_owned(),
        format!("close-descriptor {descriptor}"),
        format!("create {} 0 0", 512 * GIB),
        format!("create {PART} 0 16"), // no such kind of handle
        format!("unmap {at} {PAGE}"),  // a part of a mapping
        format!("unmap {at} {PART}"),
        format!("release {handle}"),
        format!("release {imported}"),
        format!("release {imported}"),
    ]
    .map(|command| m.code(&command));
    let end = m.ask("end-capture");
    (codes.to_vec(), end.code, if end.code == 0 { end.number(0) } else { 0 })
}

#[test]
fn a_window_that_is_registered_in_a_capture_gets_only_the_drivers_own_answers() {
    for mode in 0..3 {
        same_answers("h200", "100GiB", |_, m| {
            let (codes, end, nodes) = registration_in_a_capture(m, mode);
            assert_eq!((end, nodes), (0, 1), "the capture holds its one fill: {codes:?}");
            codes
        });
    }
}

/// Before a refusal the library trims pools. A trim is forbidden in a capture, and would invalidate it.
#[test]
fn room_that_is_made_for_a_window_in_a_capture_leaves_the_capture_whole() {
    for mode in 0..3 {
        let lab = lab("h200", "2GiB");
        let mut m = program(&lab);
        let (to, pool) = (m.alloc(MIB), number(&mut m, "pool 0 0"));
        m.ok(&format!("threshold {pool} {GIB}"));
        let kept = number(&mut m, &format!("from-pool {} {pool}", 512 * MIB));
        m.ok(&format!("free-async {kept}"));
        let (free, _) = m.info();
        m.ok(&format!("capture {mode}"));
        m.ok(&format!("fill {to} {MIB}"));
        let bytes = (free + 256 * MIB) / PAGE * PAGE;
        let handle = number(&mut m, &format!("create {bytes} 0 {DESCRIPTOR}"));
        assert_eq!(m.code(&format!("create {GIB} 0 {DESCRIPTOR}")), OUT_OF_MEMORY, "mode {mode}");
        assert_eq!(m.ok("end-capture").numbers(), [1], "mode {mode}: one fill");
        m.ok(&format!("release {handle}"));
        agrees(&lab, &mut m);
    }
}
