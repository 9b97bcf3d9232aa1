//! GPUDirect storage and RDMA: cuFile, UCX and NCCL's registration of memory (NVIDIA/nccl, src/transport/net.cc). They
//! ask for the attributes of a pointer and for a DMA-BUF descriptor of its range.
//!
//! Calls of: cuFile, UCX and NCCL (direct storage and RDMA)

use crate::*;
use vgpu_tests::MIB;

/// Bytes of each allocation.
const PART: u64 = 32 * MIB;

#[test]
fn a_range_for_other_devices_gets_the_drivers_answers_and_costs_nothing() {
    same_answers("h200", "2GiB", |lab, m| {
        let plain = m.alloc(PART);
        let at = number(m, &format!("reserve {PART}"));
        let handle = try_to_map(m, at, PART, DESCRIPTOR).expect("it fits");
        let before = lab.process(0, m.pid);
        let mut answers = Vec::new();
        for address in [plain, at, plain + PART / 2, at + PAGE, 4096] {
            let pointer = m.ask(&format!("pointer {address}"));
            answers.push((pointer.code, pointer.numbers()));
            for bytes in [PAGE, PART, 100] {
                let descriptor = m.ask(&format!("dma-buf {address} {bytes}"));
                answers.push((descriptor.code, Vec::new()));
                if descriptor.code == 0 {
                    m.ok(&format!("close-descriptor {}", descriptor.number(0)));
                }
            }
        }
        assert!(answers.iter().filter(|answer| answer.0 == 0).count() > 10, "{answers:?}");
        assert_eq!(lab.process(0, m.pid), before);
        m.ok(&format!("unmap {at} {PART}"));
        m.ok(&format!("release {handle}"));
        m.ok(&format!("free {plain}"));
        answers
    });
}

#[test]
fn memory_is_given_back_as_charged_while_a_descriptor_of_its_range_is_open() {
    let lab = lab("h200", "2GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    for _ in 0..20 {
        let plain = m.alloc(PART);
        m.ok(&format!("dma-buf {plain} {PART}"));
        m.ok(&format!("pointer {plain}"));
        assert_eq!(agrees(&lab, &mut m), begin + PART);
        m.ok(&format!("free {plain}"));
        assert_eq!(agrees(&lab, &mut m), begin);
    }
}
