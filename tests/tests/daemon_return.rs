//! The daemon starts again with another file. If it then refuses a process one device, the process keeps its other
//! devices.

use std::fs;
use std::time::{Duration, Instant};

use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, Lab, Member, eventually};

/// A plan with one tenant that has a limit of `gib` GiB on these devices.
fn plan(devices: &[&str], gib: u64) -> Plan {
    let (last, others) = devices.split_last().unwrap();
    let device = |uuid: &&str| format!("[[device]]\nid = {uuid:?}\nmemory = \"16GiB\"\novercommit = 4\n");
    let tenants = vec![("a".into(), format!("memory_limit = \"{gib}GiB\""))];
    Plan { device: (*last).into(), time: others.iter().map(device).collect(), tenants }
}

fn begin(lab: &mut Lab, daemon: &Daemon) -> Member {
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let mut member = lab.member();
    member.begin();
    member
}

fn limit(member: &mut Member, device: u32) -> u64 {
    // `cuMemGetInfo` also makes the library look for the daemon.
    member.info();
    member.ok(&format!("total {device}")).number(0) / GIB
}

/// Number of refusals that the daemon counted.
fn refused(daemon: &Daemon) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
    status["tenants"][0]["refused"].as_u64().unwrap()
}

/// Open descriptors and mapped boards of the process.
fn holds(member: &Member) -> (usize, usize) {
    let maps = fs::read_to_string(format!("/proc/{}/maps", member.pid)).unwrap();
    (fs::read_dir(format!("/proc/{}/fd", member.pid)).unwrap().count(), maps.matches("memfd:vgpu-board").count())
}

#[test]
fn a_device_that_the_next_daemon_refuses_keeps_no_other_one_from_it_and_a_hundred_refusals_leave_nothing_behind() {
    let mut lab = Lab::new("2xt4");
    let uuids = [lab.device(0).uuid, lab.device(1).uuid];
    let [first, second] = [uuids[0].as_str(), uuids[1].as_str()];
    let mut daemon = Daemon::start(lab.path(), &plan(&[first, second], 2));
    let mut members: Vec<Member> = (0..10).map(|_| begin(&mut lab, &daemon)).collect();
    let before: Vec<_> = members.iter_mut().map(|m| ((limit(m, 0), limit(m, 1)), holds(m))).collect();
    assert!(before.iter().all(|(limits, held)| *limits == (2, 2) && held.1 == 1), "{before:?}");
    let (rounds, mut refusals) = (10, 0);
    for round in 0..rounds {
        daemon.kill();
        let gib = 3 + round % 2;
        daemon.write(&plan(&[second], gib));
        daemon.again();
        for m in &mut members {
            eventually("the other device is joined", || limit(m, 1) == gib);
            assert_eq!(limit(m, 0), 2, "what held last");
        }
        refusals += refused(&daemon);
    }
    // The member asks for the refused device again now and then, not at every call.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        members.iter_mut().for_each(|m| assert_eq!((limit(m, 0), limit(m, 1)), (2, 3 + (rounds - 1) % 2)));
        std::thread::sleep(Duration::from_millis(20));
    }
    refusals += refused(&daemon);
    let most = usize::try_from(rounds).unwrap();
    assert!((100..=150).contains(&refusals), "{refusals} refusals of {} members by {rounds} daemons", members.len());
    for (m, (_, before)) in members.iter_mut().zip(before) {
        let (descriptors, boards) = holds(m);
        assert_eq!(descriptors, before.0, "descriptors");
        assert!(boards <= before.1 + most, "{boards} boards are mapped, of {} daemons", most + 1);
        m.ok("launch 1000");
        assert_eq!(m.errors(), "");
    }
}

#[test]
fn a_device_that_was_refused_is_joined_when_it_is_the_tenants_again() {
    let mut lab = Lab::new("2xt4");
    let uuids = [lab.device(0).uuid, lab.device(1).uuid];
    let [first, second] = [uuids[0].as_str(), uuids[1].as_str()];
    let mut daemon = Daemon::start(lab.path(), &plan(&[first, second], 2));
    let mut m = begin(&mut lab, &daemon);
    daemon.kill();
    daemon.write(&plan(&[second], 3));
    daemon.again();
    eventually("the other device is joined", || limit(&mut m, 1) == 3);
    assert_eq!(limit(&mut m, 0), 2);
    daemon.write(&plan(&[first, second], 5));
    daemon.reload();
    eventually("the device is joined again", || (limit(&mut m, 0), limit(&mut m, 1)) == (5, 5));
    m.ok("launch 1000");
    assert_eq!(m.errors(), "");
}

/// A refused device is also joined again by a process that only launches and makes no query, and by one that started
/// while no daemon ran.
#[test]
fn who_only_launches_joins_a_refused_device_too_when_it_is_the_tenants_again() {
    let mut lab = Lab::new("2xt4");
    let uuids = [lab.device(0).uuid, lab.device(1).uuid];
    let [first, second] = [uuids[0].as_str(), uuids[1].as_str()];
    let mut daemon = Daemon::start(lab.path(), &plan(&[first, second], 2));
    let mut there = begin(&mut lab, &daemon);
    there.ok("launch 1000");
    daemon.kill();
    let mut late = begin(&mut lab, &daemon);
    daemon.write(&plan(&[second], 3));
    daemon.again();
    let status = |daemon: &Daemon| {
        let ps: serde_json::Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
        let members = ps["tenants"][0]["members"].as_array().unwrap().clone();
        let on = |m: &serde_json::Value| m["devices"].as_array().map_or(0, Vec::len);
        members.iter().map(on).collect::<Vec<_>>()
    };
    let mut work = |daemon: &Daemon, what: &str, wanted: &[usize]| {
        eventually(what, || {
            there.ok("launch 1000");
            late.ok("launch 1000");
            status(daemon) == wanted
        });
    };
    work(&daemon, "both are on the other device", &[1, 1]);
    daemon.write(&plan(&[first, second], 5));
    daemon.reload();
    work(&daemon, "both are on both", &[2, 2]);
}

/// Process ids of the members that the daemon knows.
fn known(daemon: &Daemon) -> Vec<u64> {
    let status: serde_json::Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
    let members = status["tenants"][0]["members"].as_array().unwrap().clone();
    members.iter().filter_map(|member| member["pid"].as_u64()).collect()
}

/// Longest time until a member is back at a daemon that has just started: one check a second, one attempt every 1.25 s
/// at most, and a margin for a loaded machine.
const BACK: Duration = Duration::from_secs(5);

/// From the daemon's end until the process is back the test makes no call. So no call of the program can look for the
/// daemon.
#[test]
fn who_holds_memory_and_makes_no_call_comes_back_to_the_next_daemon_by_itself() {
    let mut lab = Lab::new("t4");
    let uuid = lab.device(0).uuid;
    let mut daemon = Daemon::start(lab.path(), &plan(&[&uuid], 2));
    let mut there = begin(&mut lab, &daemon);
    there.alloc(GIB);
    for away in [Duration::ZERO, Duration::from_secs(3)] {
        daemon.kill();
        // Starts a second process of the tenant while no daemon runs.
        let mut late = begin(&mut lab, &daemon);
        late.alloc(GIB / 2);
        std::thread::sleep(away);
        daemon.again();
        let begin = Instant::now();
        while known(&daemon).len() < 2 {
            assert!(
                begin.elapsed() < BACK,
                "{:?} of {} and {} came back: {}",
                known(&daemon),
                there.pid,
                late.pid,
                daemon.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon.write(&plan(&[&uuid], 3));
        daemon.reload();
        assert_eq!((limit(&mut there, 0), limit(&mut late, 0)), (3, 3), "by the next daemon's word");
        daemon.write(&plan(&[&uuid], 2));
        daemon.reload();
        assert_eq!((there.errors(), late.errors()), (String::new(), String::new()));
    }
}

/// An idle process keeps its connection to a daemon that does not answer for a while. Otherwise ten thousand idle
/// processes would all connect again.
#[test]
fn who_does_nothing_keeps_its_connection_over_a_stall_of_the_daemon() {
    let mut lab = Lab::new("t4");
    let uuid = lab.device(0).uuid;
    let daemon = Daemon::start(lab.path(), &plan(&[&uuid], 2));
    let mut m = begin(&mut lab, &daemon);
    m.alloc(GIB);
    // The helper thread watches the device for one second before it is idle.
    std::thread::sleep(Duration::from_secs(2));
    let joined = || daemon.log().matches("member.joined").count();
    let before = joined();
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // SAFETY: the process is a child of this test that was not waited for.
        unsafe { libc::kill(libc::pid_t::try_from(daemon.pid()).unwrap(), signal) };
        std::thread::sleep(Duration::from_secs(3));
    }
    assert_eq!(joined(), before, "{}", daemon.log());
    assert_eq!(known(&daemon).len(), 1);
}
