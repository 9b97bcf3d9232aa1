//! A daemon that answers for one device and not for the next: failed attempts leave no mappings and no descriptors.

use std::fs;

use vgpu_tests::between::Between;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, Lab, Member, eventually};

/// A plan with one tenant that has a limit of `gib` GiB on two devices.
fn plan(uuids: [&str; 2], gib: u64) -> Plan {
    let other = format!("[[device]]\nid = {:?}\nmemory = \"16GiB\"\novercommit = 4\n", uuids[0]);
    let tenants = vec![("a".into(), format!("memory_limit = \"{gib}GiB\""))];
    Plan { device: uuids[1].into(), time: other, tenants }
}

/// Mapped pages of the daemon and open descriptors of the process.
fn holds(member: &Member) -> (usize, usize) {
    let maps = fs::read_to_string(format!("/proc/{}/maps", member.pid)).unwrap();
    (maps.matches("memfd:vgpu").count(), fs::read_dir(format!("/proc/{}/fd", member.pid)).unwrap().count())
}

#[test]
fn a_daemon_that_answers_for_one_device_and_not_for_the_next_leaves_nothing_behind_and_is_joined_when_it_answers() {
    let mut lab = Lab::new("2xt4");
    let uuids = [lab.device(0).uuid, lab.device(1).uuid];
    let uuids = uuids.each_ref().map(String::as_str);
    let mut daemon = Daemon::start(lab.path(), &plan(uuids, 2));
    let between = Between::start(&lab.path().join("between"), &daemon.socket("a"));
    lab.set("VGPU_SOCKET", between.socket());
    let mut member = lab.member();
    member.begin();
    let limit = |member: &mut Member, device: u32| {
        // `cuMemGetInfo` also makes the library look for the daemon.
        member.info();
        member.ok(&format!("total {device}")).number(0) / GIB
    };
    assert_eq!((limit(&mut member, 0), limit(&mut member, 1)), (2, 2));
    let before = holds(&member);
    daemon.kill();
    // Two lines pass: the welcome and one slot.
    between.passes(2);
    daemon.write(&plan(uuids, 3));
    daemon.again();
    let tried = between.connections();
    eventually("it is tried five times", || {
        assert_eq!((limit(&mut member, 0), limit(&mut member, 1)), (2, 2), "what held last");
        between.connections() >= tried + 5
    });
    // The member may still hold pages and descriptors of its last attempt to join.
    let now = holds(&member);
    assert!(now.0 <= 2 * before.0 && now.1 <= before.1 + 3, "pages and descriptors: {before:?}, then {now:?}");
    between.passes_all();
    eventually("it is joined when it answers", || (limit(&mut member, 0), limit(&mut member, 1)) == (3, 3));
    let then = holds(&member);
    assert!(then.0 <= 2 * before.0 && then.1 == before.1, "pages and descriptors: {before:?}, then {then:?}");
    member.ok("launch 1000");
    assert_eq!(member.errors(), "");
}
