//! Graphs that are captured with their allocations: torch.compile and CUDA graph trees (pytorch/pytorch,
//! torch/_inductor/cudagraph_trees.py; aten/src/ATen/cuda/CUDAGraph.cpp), here with the stream-ordered allocator. The
//! graph is charged by what the driver holds for it. Conditional nodes contain no allocations (API, conditional nodes).
//!
//! Calls of: PyTorch (torch.compile, CUDA graph trees)

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// Bytes that a captured step allocates and frees.
const STEP: u64 = 100 * MIB;

fn trainer(lab: &Lab, with_library: bool) -> Member {
    let program = compile("pooled", Kind::Program, &[]);
    let mut member = Member::start(&mut if with_library { lab.command(program) } else { lab.bare(program) });
    member.ok("begin 0");
    member
}

/// Captures a step that allocates `bytes`, computes for `ns` and frees. Returns the graph.
#[track_caller]
fn captured(m: &mut Member, stream: u64, mode: u32, bytes: u64, ns: u64) -> u64 {
    m.ok(&format!("capture {stream} {mode}"));
    let at = number(m, &format!("async {bytes} {stream}"));
    m.ok(&format!("spin {stream} {ns}"));
    m.ok(&format!("free-async {at} {stream}"));
    number(m, &format!("end-capture {stream}"))
}

#[test]
fn a_captured_step_is_charged_by_what_its_graph_holds() {
    let lab = lab("h200", "2GiB");
    let mut m = trainer(&lab, true);
    let stream = number(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000")); // loads the code
    m.ok("sync-context");
    let begin = agrees(&lab, &mut m);
    for mode in 0..3 {
        let graph = captured(&mut m, stream, mode, STEP, 20_000);
        assert_eq!(agrees(&lab, &mut m), begin, "a capture takes nothing");
        let exec = number(&mut m, &format!("instantiate {graph} 1"));
        m.ok(&format!("upload {exec} {stream}"));
        m.ok("sync-context");
        assert_eq!(agrees(&lab, &mut m), begin + STEP, "uploaded");
        let other = captured(&mut m, stream, mode, STEP, 40_000);
        for round in 0..10 {
            m.ok(&format!("launch {exec} {stream}"));
            assert_eq!(agrees(&lab, &mut m), begin + STEP, "launch {round}");
        }
        m.ok("sync-context");
        // A graph that allocates is not updated by drivers; either way the next launch is charged its own memory.
        let _ = m.code(&format!("update {exec} {other}"));
        m.ok(&format!("launch {exec} {stream}"));
        m.ok("sync-context");
        assert_eq!(agrees(&lab, &mut m), begin + STEP);
        m.ok(&format!("exec-destroy {exec}"));
        [graph, other].iter().for_each(|graph| _ = m.ok(&format!("graph-destroy {graph}")));
        m.ok("trim-graphs 0");
        assert_eq!(agrees(&lab, &mut m), begin, "mode {mode}");
    }
}

#[test]
fn a_captured_step_that_does_not_fit_is_refused_when_it_is_uploaded_or_launched() {
    let lab = lab("h200", "2GiB");
    let mut m = trainer(&lab, true);
    let stream = number(&mut m, "stream");
    m.ok(&format!("spin {stream} 1000"));
    m.ok("sync-context");
    let begin = agrees(&lab, &mut m);
    let graph = captured(&mut m, stream, 1, 2 * GIB, 20_000);
    assert_eq!(m.code(&format!("instantiate {graph} 2")), OUT_OF_MEMORY, "with an upload");
    let exec = number(&mut m, &format!("instantiate {graph} 1"));
    for call in ["upload", "launch"] {
        assert_eq!(m.code(&format!("{call} {exec} {stream}")), OUT_OF_MEMORY);
        assert_eq!(agrees(&lab, &mut m), begin, "{call}");
    }
    let fits = captured(&mut m, stream, 1, STEP, 20_000);
    let exec = number(&mut m, &format!("instantiate {fits} 2"));
    m.ok(&format!("launch {exec} {stream}"));
    assert_eq!(agrees(&lab, &mut m), begin + STEP);
}

#[test]
fn a_conditional_node_gets_the_drivers_answer_and_costs_nothing() {
    let answers = [true, false].map(|with_library| {
        let lab = lab("h200", "1GiB").with("VGPU_SIM_DRIVER", "580");
        let mut m = trainer(&lab, with_library);
        let before = lab.device(0).used;
        let graph = number(&mut m, "graph");
        let answer = m.ask(&format!("conditional {graph}"));
        assert_eq!((m.errors(), lab.device(0).used), (String::new(), before));
        answer
    });
    assert_eq!(answers[0], answers[1]);
}
