//! Multicast objects: NVLink SHARP under NCCL, NVSHMEM and PyTorch's symmetric memory (NVIDIA/nccl,
//! src/transport/nvls.cc). The first rank creates the object and sends a descriptor of it. Each rank adds its device
//! and binds its memory. The driver lets a bind wait until all devices were added, so a rank may wait for long.
//!
//! Calls of: NCCL, NVSHMEM and PyTorch (multicast objects)

use crate::*;
use vgpu_tests::MIB;

/// Bytes of the object and of the memory that each rank binds to it.
const PART: u64 = 8 * MIB;

/// Two ranks on two devices, and their object's handle in each.
struct Team {
    lab: Lab,
    ranks: [Member; 2],
    objects: [u64; 2],
}

impl Team {
    /// The second rank has not added its device yet.
    fn new() -> Team {
        let lab = lab("2xh200", "2GiB");
        let mut ranks = [rank(&lab, 0), rank(&lab, 1)];
        let [first, second] = &mut ranks;
        let object = number(first, &format!("multicast 2 {PART}"));
        first.ok(&format!("multicast-device {object} 0"));
        let descriptor = number(first, &format!("export {object}"));
        let received = lab.pass_descriptor(first, descriptor, second);
        let imported = number(second, &format!("import {received}"));
        first.ok(&format!("close-descriptor {descriptor}"));
        second.ok(&format!("close-descriptor {received}"));
        Team { lab, ranks, objects: [object, imported] }
    }

    /// Bytes of both devices, which must be what the ranks are shown.
    #[track_caller]
    fn used(&mut self) -> [u64; 2] {
        [0, 1].map(|device| agrees_on(&self.lab, &mut self.ranks[device], device))
    }
}

/// Calls of every kind that a process makes while another thread binds.
#[track_caller]
fn work(member: &mut Member, device: usize) {
    let plain = member.alloc(100 * MIB);
    let (at, handle) =
        (number(member, &format!("reserve {PAGE}")), number(member, &format!("create {PAGE} {device} 1")));
    member.ok(&format!("map {at} {PAGE} {handle}"));
    member.ok(&format!("allow {at} {PAGE} {device} 1"));
    let descriptor = number(member, &format!("export {handle}"));
    let again = number(member, &format!("import {descriptor}"));
    let retained = number(member, &format!("retain-handle {at}"));
    member.ok(&format!("close-descriptor {descriptor}"));
    [handle, again, retained].iter().for_each(|handle| _ = member.ok(&format!("release {handle}")));
    member.ok(&format!("unmap {at} {PAGE}"));
    member.ok(&format!("unreserve {at} {PAGE}"));
    member.ok(&format!("free {plain}"));
}

#[test]
fn a_bind_that_waits_for_its_team_holds_up_nobody() {
    let mut team = Team::new();
    let begin = team.used();
    let [first, second] = &mut team.ranks;
    let memory = number(first, &format!("create {PART} 0 1"));
    first.tell(&format!("aside bind {} 0 {memory} {PART}", team.objects[0]));
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..20 {
        work(first, 0);
        work(second, 1);
    }
    let mut third = rank(&team.lab, 0);
    work(&mut third, 0);
    third.kill();
    // No answer has come from the bind: each answer so far was that of its own command.
    let other = number(second, &format!("create {PART} 1 1"));
    second.ok(&format!("multicast-device {} 1", team.objects[1]));
    second.ok(&format!("bind {} 0 {other} {PART}", team.objects[1]));
    assert_eq!(first.answer().code, 0, "the bind that waited");
    assert_eq!(team.used(), begin.map(|bytes| bytes + PART), "each rank's memory, and nothing for the object");
}

#[test]
fn memory_bound_to_a_multicast_object_is_charged_to_its_end_and_the_object_is_free() {
    let mut team = Team::new();
    let begin = team.used();
    team.ranks[1].ok(&format!("multicast-device {} 1", team.objects[1]));
    let mut mapped = [0, 0];
    for (device, member) in team.ranks.iter_mut().enumerate() {
        let object = team.objects[device];
        let memory = number(member, &format!("create {PART} {device} 1"));
        member.ok(&format!("bind {object} 0 {memory} {PART}"));
        mapped[device] = number(member, &format!("reserve {PART}"));
        member.ok(&format!("map {} {PART} {object}", mapped[device]));
        member.ok(&format!("allow {} {PART} {device} 1", mapped[device]));
        member.ok(&format!("release {memory}"));
    }
    assert_eq!(team.used(), begin.map(|bytes| bytes + PART), "the bindings keep the memory");
    for (device, member) in team.ranks.iter_mut().enumerate() {
        member.ok(&format!("unbind {} {device} 0 {PART}", team.objects[device]));
    }
    assert_eq!(team.used(), begin, "unbound");
    for (device, member) in team.ranks.iter_mut().enumerate() {
        member.ok(&format!("unmap {} {PART}", mapped[device]));
        member.ok(&format!("release {}", team.objects[device]));
    }
    assert_eq!(team.used(), begin);
}

#[test]
fn a_rank_that_is_killed_while_it_waits_for_its_team_leaves_its_memory_to_the_others() {
    let mut team = Team::new();
    let begin = agrees_on(&team.lab, &mut team.ranks[1], 1);
    let mut watcher = rank(&team.lab, 0);
    let own = team.lab.process(0, watcher.pid).physical_bytes;
    let [first, second] = &mut team.ranks;
    let memory = number(first, &format!("create {} 0 1", 64 * PART));
    first.tell(&format!("aside bind {} 0 {memory} {PART}", team.objects[0]));
    std::thread::sleep(Duration::from_millis(20));
    first.kill();
    assert_eq!(agrees_on(&team.lab, &mut watcher, 0), own, "the watcher's own context");
    work(&mut watcher, 0);
    second.ok(&format!("release {}", team.objects[1]));
    assert_eq!(agrees_on(&team.lab, second, 1), begin);
}
