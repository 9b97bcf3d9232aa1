//! Sleep and wake: vLLM's sleep mode (vllm-project/vllm, csrc/cumem_allocator.cpp). Sleep unmaps and releases the
//! memory and keeps its addresses. A buffer that is freed while it sleeps is unmapped and released a second time.
//!
//! Calls of: vLLM (sleep mode)

use crate::*;
use vgpu_tests::{GIB, MIB, OUT_OF_MEMORY};

/// A buffer with addresses of its own.
struct Buffer {
    at: u64,
    bytes: u64,
}

impl Buffer {
    #[track_caller]
    fn new(member: &mut Member, bytes: u64) -> Buffer {
        Buffer { at: number(member, &format!("reserve {bytes}")), bytes }
    }

    #[track_caller]
    fn wake(&self, member: &mut Member) -> Result<u64, i64> {
        try_to_map(member, self.at, self.bytes, DESCRIPTOR)
    }

    #[track_caller]
    fn sleep(&self, member: &mut Member, handle: u64) {
        member.ok(&format!("unmap {} {}", self.at, self.bytes));
        member.ok(&format!("release {handle}"));
    }
}

#[test]
fn a_buffer_that_is_released_twice_is_given_back_once() {
    let lab = lab("h200", "4GiB");
    let mut m = program(&lab);
    let begin = agrees(&lab, &mut m);
    let (one, other) = (Buffer::new(&mut m, GIB), Buffer::new(&mut m, GIB));
    let handle = one.wake(&mut m).expect("it fits");
    other.wake(&mut m).expect("it fits");
    one.sleep(&mut m, handle);
    for _ in 0..3 {
        assert_ne!(m.code(&format!("unmap {} {GIB}", one.at)), 0);
        assert_ne!(m.code(&format!("release {handle}")), 0);
        assert_eq!(agrees(&lab, &mut m), begin + GIB, "the other buffer");
    }
    // Released while it is mapped, and again.
    let handle = one.wake(&mut m).expect("it fits");
    m.ok(&format!("release {handle}"));
    assert_ne!(m.code(&format!("release {handle}")), 0);
    assert_eq!(agrees(&lab, &mut m), begin + 2 * GIB, "it is mapped");
    m.ok(&format!("unmap {} {GIB}", one.at));
    assert_eq!(agrees(&lab, &mut m), begin + GIB);
    m.ok(&format!("unreserve {} {GIB}", one.at));
    assert_eq!(agrees(&lab, &mut m), begin + GIB);
}

#[test]
fn a_buffer_that_is_released_twice_gets_the_drivers_answers() {
    same_answers("h200", "4GiB", |_, m| {
        let buffer = Buffer::new(m, GIB);
        let handle = buffer.wake(m).expect("it fits");
        buffer.sleep(m, handle);
        let twice = [m.code(&format!("unmap {} {GIB}", buffer.at)), m.code(&format!("release {handle}"))];
        let handle = buffer.wake(m).expect("it fits");
        m.ok(&format!("release {handle}"));
        (twice, m.code(&format!("release {handle}")), m.code(&format!("unmap {} {GIB}", buffer.at)))
    });
}

/// One process sleeps while the other is awake, a thousand times in turn. A process that wakes too early is refused.
#[track_caller]
fn thousand_rounds(lab: &Lab, processes: [&mut Member; 2], bytes: u64) {
    let [one, other] = processes;
    let begin = [one.used(), other.used()];
    let buffers = [Buffer::new(one, bytes), Buffer::new(other, bytes)];
    let on_device = lab.device(0).used;
    for round in 0..1000 {
        let first = buffers[0].wake(one).unwrap_or_else(|code| panic!("round {round}: {code}"));
        if round % 10 == 0 {
            assert_eq!(buffers[1].wake(other), Err(OUT_OF_MEMORY), "round {round}: the other one is awake");
            assert_eq!(lab.device(0).used, on_device + bytes);
        }
        buffers[0].sleep(one, first);
        let second = buffers[1].wake(other).unwrap_or_else(|code| panic!("round {round}: {code}"));
        buffers[1].sleep(other, second);
    }
    assert_eq!([one.used(), other.used()], begin, "no residue");
    assert_eq!(lab.device(0).used, on_device);
    for (member, buffer) in [one, other].into_iter().zip(&buffers) {
        member.ok(&format!("unreserve {} {bytes}", buffer.at));
    }
}

#[test]
fn a_thousand_rounds_of_sleep_and_wake_of_two_tenants_end_with_equal_residue() {
    let mut lab = lab("t4", "12GiB");
    let mut one = program(&lab);
    lab.set("VGPU_TENANT", "two");
    let mut other = program(&lab);
    thousand_rounds(&lab, [&mut one, &mut other], 10 * GIB);
    assert_eq!(one.used(), other.used(), "a context each");
}

#[test]
fn what_one_process_of_a_tenant_puts_to_sleep_another_gets_a_thousand_times() {
    let lab = lab("h200", "4GiB");
    let (mut one, mut other) = (program(&lab), program(&lab));
    let bytes = (4 * GIB - other.used()) / PAGE * PAGE;
    thousand_rounds(&lab, [&mut one, &mut other], bytes);
    assert_eq!(agrees(&lab, &mut one), agrees(&lab, &mut other));
}

#[test]
fn a_process_that_is_killed_while_it_wakes_leaves_its_memory_to_the_others() {
    let lab = lab("h200", "2GiB");
    let mut other = program(&lab);
    let begin = agrees(&lab, &mut other);
    for round in 0..5_u64 {
        let mut one = program(&lab);
        let buffer = Buffer::new(&mut one, 256 * MIB);
        one.tell(&format!("create {} 0 0", buffer.bytes));
        std::thread::sleep(Duration::from_micros(200 * round));
        one.kill();
        assert_eq!(agrees(&lab, &mut other), begin, "round {round}");
    }
}
