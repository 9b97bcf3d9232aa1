//! Servers with many contexts in one process: instances of TensorRT under Triton, one thread each
//! (triton-inference-server/server, src/backends/tensorrt/plan_backend.cc), and programs with PyCUDA, which create a
//! context for each thread. Then JAX, which takes most of the device at once (openxla/xla, xla/pjrt/gpu/gpu_helpers.cc
//! and xla/tsl/framework/bfc_allocator.cc): three quarters of the total, and a tenth less after each refusal.

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// Threads with a context each.
const INSTANCES: u64 = 12;

/// A server next to a driver that has cuCtxCreate_v4, which returns some time after the context exists.
fn server(limit: &str) -> (Lab, Member) {
    let mut lab = lab("h200", limit).with("VGPU_SIM_DRIVER", "580");
    let ours = lab.lib().to_owned();
    lab.preload(&[&ours, &compile("late", Kind::LinkedLibrary, &["CREATE"])]);
    let mut member = Member::start(&mut lab.command(compile("contexts", Kind::Program, &[])));
    member.begin();
    (lab, member)
}

/// Calls of: TensorRT under Triton, and PyCUDA (a context for each thread)
#[test]
fn contexts_that_many_threads_begin_at_once_are_charged_by_their_size_and_given_back() {
    for round in 0..3 {
        let (lab, mut m) = server("16GiB");
        let begin = agrees(&lab, &mut m);
        for again in 0..3 {
            assert_eq!(m.ok(&format!("instances {INSTANCES} {}", 64 * MIB)).numbers(), [INSTANCES, 0, 0]);
            let held = agrees(&lab, &mut m);
            assert!(held > begin + INSTANCES * 65 * MIB, "memory and contexts: {held}");
            assert_eq!(m.ok(&format!("end-instances {INSTANCES}")).numbers(), [INSTANCES, 0, 0]);
            assert_eq!(agrees(&lab, &mut m), begin, "round {round}, {again}");
        }
    }
}

/// While other threads allocate, the growth by code is known to 2 MiB for each of their requests (docs/limits.md).
///
/// Calls of: TensorRT under Triton, and PyCUDA (a context for each thread)
#[test]
fn contexts_that_load_code_at_once_are_charged_to_a_slab_for_each_request_and_given_back() {
    let (lab, mut m) = server("16GiB");
    let begin = agrees(&lab, &mut m);
    for round in 0..5 {
        let code = 8 * MIB;
        assert_eq!(m.ok(&format!("instances {INSTANCES} {} {code}", 64 * MIB)).numbers(), [INSTANCES, 0, 0]);
        let (shown, there) = (m.used(), lab.device(0).used);
        assert!(there > begin + INSTANCES * (64 * MIB + code), "the positive control: {there}");
        assert!(shown.abs_diff(there) <= 2 * INSTANCES * PAGE, "round {round}: shown {shown}, on the device {there}");
        assert_eq!(m.ok(&format!("end-instances {INSTANCES}")).numbers(), [INSTANCES, 0, 0]);
        assert_eq!(agrees(&lab, &mut m), begin, "round {round}");
    }
}

/// Calls of: TensorRT under Triton, and PyCUDA (a context for each thread)
#[test]
fn contexts_that_do_not_fit_are_refused_and_leave_nothing() {
    let (lab, mut m) = server("3GiB");
    let begin = agrees(&lab, &mut m);
    for round in 0..5 {
        let counts = m.ok(&format!("instances {INSTANCES} {}", 512 * MIB)).numbers();
        assert!(counts[0] > 0 && counts[1] > 0 && counts[2] == 0, "round {round}: {counts:?}");
        assert!(agrees(&lab, &mut m) <= 3 * GIB, "round {round}");
        assert_eq!(m.ok(&format!("end-instances {INSTANCES}")).numbers(), [INSTANCES, 0, 0]);
        assert_eq!(agrees(&lab, &mut m), begin, "round {round}");
    }
}

/// Bytes that the allocator gets, and its refusals before.
#[track_caller]
fn preallocated(m: &mut Member, total: u64) -> (u64, u32) {
    let (mut bytes, mut refused) = (total / 4 * 3, 0);
    loop {
        match m.code(&format!("alloc {bytes}")) {
            0 => return (bytes, refused),
            code => assert_eq!(code, OUT_OF_MEMORY, "{bytes} of {total}"),
        }
        refused += 1;
        bytes = (bytes / 10 * 9).next_multiple_of(256);
    }
}

/// Clients choose their allocator by attributes, such as 102 for virtual memory.
///
/// Calls of: JAX (allocator of XLA)
#[test]
fn every_attribute_of_a_device_is_the_drivers() {
    same_answers("h200", "4GiB", |_, m| {
        assert_eq!(m.ok("attribute 102 0").numbers(), [1]);
        (0..150).map(|number| m.ask(&format!("attribute {number} 0"))).collect::<Vec<_>>()
    });
}

/// Calls of: JAX (allocator of XLA)
#[test]
fn three_quarters_of_the_total_fit_a_quota_of_any_size() {
    for (profile, limit) in
        [("t4", 3 * GIB), ("t4", 12 * GIB), ("h200", 4 * GIB), ("h200", 7 * GIB + PAGE), ("h200", 130 * GIB)]
    {
        let lab = lab(profile, &limit.to_string());
        let mut m = lab.member();
        m.begin();
        let (free, total) = m.info();
        assert_eq!((total, m.ok("total 0").number(0)), (limit, limit));
        assert!(limit - free <= limit / 4, "the context leaves three quarters: {free} of {limit}");
        assert_eq!(preallocated(&mut m, total).1, 0, "{limit} on {profile}: at the first request");
        assert!(agrees(&lab, &mut m) <= limit);
    }
}

/// Calls of: JAX (allocator of XLA)
#[test]
fn a_quota_that_a_context_nearly_fills_gives_its_rest_after_smaller_requests() {
    for limit in [640 * MIB, 768 * MIB, GIB] {
        let lab = lab("h200", &limit.to_string());
        let mut m = lab.member();
        m.begin();
        let (free, total) = m.info();
        let (bytes, refused) = preallocated(&mut m, total);
        assert!(refused > 0 && bytes <= free && bytes * 10 / 9 + 512 > free, "{bytes} of {free} after {refused}");
        assert!(agrees(&lab, &mut m) <= limit);
    }
}
