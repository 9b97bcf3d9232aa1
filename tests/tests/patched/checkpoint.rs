//! Processes that are moved off their device and back, as cuda-checkpoint does it by the driver's calls.
//!
//! Calls of: cuda-checkpoint

use vgpu_tests::lab::charged;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, Member, OUT_OF_MEMORY};

const ILLEGAL_STATE: i64 = 401;
const INVALID_VALUE: i64 = 1;
/// States as the driver reports them.
const RUNNING: u64 = 0;
const LOCKED: u64 = 1;
const CHECKPOINTED: u64 = 2;

/// A device of 15 GiB, and a driver that knows these calls.
fn lab(limit: &str) -> Lab {
    Lab::new("t4").with("VGPU_SIM_DRIVER", "580").with("VGPU_MEMORY_LIMIT", limit).with("VGPU_TENANT", "one")
}

/// The driver's code for one step after the other, each with the state that it left.
fn steps(controller: &mut Member, pid: u32, steps: &[&str]) -> Vec<(i64, u64)> {
    let mut take = |step: &&str| {
        let code = controller.code(&format!("suspend {step} {pid}"));
        (code, controller.ok(&format!("suspend state {pid}")).number(0))
    };
    steps.iter().map(&mut take).collect()
}

fn controller(lab: &Lab) -> Member {
    let mut controller = lab.member();
    controller.ok("init");
    controller
}

#[test]
fn every_step_of_a_checkpoint_has_the_drivers_own_code_and_state() {
    let run = |preload: bool| {
        let mut lab = lab("8GiB");
        if !preload {
            lab.preload(&[]);
        }
        let (mut member, mut controller) = (lab.member(), controller(&lab));
        member.begin();
        member.alloc(GIB);
        let pid = member.pid;
        let out_of_turn = ["checkpoint", "restore", "unlock"];
        let mut seen = steps(&mut controller, pid, &out_of_turn);
        seen.extend(steps(&mut controller, pid, &["lock", "lock", "restore", "checkpoint", "checkpoint", "unlock"]));
        seen.extend(steps(&mut controller, pid, &["restore", "restore", "unlock", "unlock"]));
        assert_eq!(controller.ok(&format!("suspend thread {pid}")).number(0), u64::from(pid), "its main thread");
        assert_eq!(controller.code("suspend lock 1"), INVALID_VALUE, "a process that uses no device");
        member.alloc(GIB);
        (seen, controller.errors() + &member.errors())
    };
    let (alone, with) = (run(false), run(true));
    assert_eq!(with, alone);
    let wrong = |state| (ILLEGAL_STATE, state);
    let mut expected = vec![wrong(RUNNING); 3];
    expected.extend([(0, LOCKED), wrong(LOCKED), wrong(LOCKED), (0, CHECKPOINTED), wrong(CHECKPOINTED)]);
    expected.extend([wrong(CHECKPOINTED), (0, LOCKED), wrong(LOCKED), (0, RUNNING), wrong(RUNNING)]);
    assert_eq!(with.0, expected);
}

/// The charges stay: the own tenant cannot give the memory away. The memory itself is free for others.
#[test]
fn a_checkpointed_process_keeps_its_charges_and_others_may_use_its_memory() {
    let lab = lab("10GiB");
    let mut member = lab.member();
    member.begin();
    let pointer = member.alloc(8 * GIB);
    let mut own = lab.member();
    own.begin();
    let before = own.used();
    let program = compile("member", Kind::Program, &[]);
    let mut other = Member::start(lab.command(program).arg("dlsym").env("VGPU_TENANT", "two"));
    other.begin();
    assert_eq!(other.code(&format!("alloc {}", 9 * GIB)), OUT_OF_MEMORY, "the device is full");
    let mut controller = controller(&lab);
    let used = lab.device(0).used;
    steps(&mut controller, member.pid, &["lock", "checkpoint"]);
    assert!(lab.device(0).used < used - 8 * GIB, "control: its memory left the device");
    assert_eq!(own.used(), before, "its charges did not");
    assert_eq!(own.code(&format!("alloc {}", 4 * GIB)), OUT_OF_MEMORY, "they are not given away");
    let taken = other.alloc(9 * GIB);
    for _ in 0..2 {
        let refused = steps(&mut controller, member.pid, &["restore"]);
        assert_eq!(refused, [(OUT_OF_MEMORY, CHECKPOINTED)]);
    }
    let errors = controller.errors();
    let words = format!("vgpu: process {} cannot be restored now: ", member.pid);
    assert!(errors.starts_with(&words) && errors.lines().count() == 1, "{errors}");
    other.ok(&format!("free {taken}"));
    assert_eq!(steps(&mut controller, member.pid, &["restore", "unlock"]), [(0, LOCKED), (0, RUNNING)]);
    member.ok(&format!("free {pointer}"));
    member.alloc(4 * GIB);
    let truth = [member.pid, own.pid].map(|pid| lab.process(0, pid)).map(|p| p.slab_bytes + p.overhead_bytes);
    assert_eq!(own.used(), truth.iter().sum::<u64>(), "the ledger has what the device has");
}

#[test]
fn a_process_that_dies_while_it_is_checkpointed_gives_its_charges_back() {
    let lab = lab("10GiB");
    let (mut member, mut own) = (lab.member(), lab.member());
    member.begin();
    own.begin();
    member.alloc(8 * GIB);
    steps(&mut controller(&lab), member.pid, &["lock", "checkpoint"]);
    assert_eq!(own.code(&format!("alloc {}", 8 * GIB)), OUT_OF_MEMORY);
    member.kill();
    own.alloc(8 * GIB);
    assert_eq!(own.used(), charged(&lab.device(0)));
}
