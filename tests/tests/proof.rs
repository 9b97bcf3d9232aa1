//! Bypasses of the library, used by real programs, and the daemon's finding for each; docs/threats.md names these
//! tests. The rules for findings among members, services and containers are tested in
//! scheduler-sidecar/daemon/tests/proof.rs.

#[path = "leases/world.rs"]
mod world;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};
use vgpu_core::memory::ledger::{LEDGER_BYTES, LEDGER_HEADER_BYTES};
use vgpu_tests::artefacts::{checkout, vgpu};
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::{GIB, LONG_TIMEOUT, MIB, Member};
use world::{World, eventually, members_of, tenant};

/// A world with a tenant of 2 GiB, whose processes may be 64 MiB off.
fn watched() -> World {
    World::start(&format!(
        "[proof]\ninterval = \"100ms\"\nslack = \"64MiB\"\n{}",
        tenant("a", "memory_limit = \"2GiB\"")
    ))
}

/// The finding about a process in `vgpu status`.
fn found(world: &World, pid: u32) -> Option<Value> {
    let status: Value = serde_json::from_str(&world.status()).unwrap_or(Value::Null);
    status["findings"].as_array()?.iter().find(|finding| finding["pid"] == pid).cloned()
}

/// Number of the daemon's members. Findings name processes too and are not counted.
fn registered(world: &World) -> usize {
    let status: Value = serde_json::from_str(&world.status()).unwrap_or(Value::Null);
    let tenants = status["tenants"].as_array().into_iter().flatten();
    tenants.map(|tenant| tenant["members"].as_array().map_or(0, Vec::len)).sum()
}

#[track_caller]
fn is_found(world: &World, pid: u32, what: &str, tenant: Option<&str>) -> Value {
    let begin = Instant::now();
    while found(world, pid).is_none_or(|finding| finding["what"] != what) {
        assert!(begin.elapsed() < LONG_TIMEOUT, "no finding {what} of process {pid}: {}", world.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    let finding = found(world, pid).expect("it is found for as long as it lasts");
    assert_eq!(finding["tenant"].as_str(), tenant, "{finding}");
    finding
}

/// A member of tenant `a` with a context that can bypass the library.
fn escaping(world: &mut World) -> Member {
    world.lab.set("VGPU_SOCKET", world.socket("a"));
    let mut m = Member::start(&mut world.lab.command(compile("escape", Kind::Program, &[])));
    m.ok("begin");
    m.ok(&format!("alloc {}", 4 * MIB));
    m
}

#[test]
fn a_program_without_the_library_is_found_by_the_drivers_own_list() {
    let world = watched();
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    stranger.alloc(GIB);
    let finding = is_found(&world, stranger.pid, "uncontrolled", None);
    assert_eq!(finding["device"], world.lab.device(0).uuid, "{finding}");
    stranger.kill();
    eventually("it is forgotten", || found(&world, stranger.pid).is_none());
}

/// The daemon reads the new member's ledger a second later.
#[test]
fn a_member_that_comes_and_takes_memory_is_at_no_moment_a_finding() {
    let mut world = watched();
    let mut grown: Vec<Member> = Vec::new();
    for _ in 0..2 {
        let mut m = world.plain("a");
        m.begin();
        for _ in 0..4 {
            m.alloc(100 * MIB);
            let end = std::time::Instant::now() + std::time::Duration::from_millis(250);
            while std::time::Instant::now() < end {
                assert_eq!(found(&world, m.pid), None);
            }
        }
        grown.push(m);
    }
    assert_eq!(members_of(&world), 2);
    assert!(grown.iter().all(|m| found(&world, m.pid).is_none()));
}

/// The program reads the address of the driver's function from the driver's file, so its call meets no hook.
#[test]
fn memory_that_is_allocated_past_the_library_is_found_and_what_goes_through_it_is_not() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    let honest = {
        let mut honest = world.plain("a");
        honest.begin();
        honest.alloc(100 * MIB);
        honest
    };
    assert_ne!(m.code(&format!("alloc {}", 2 * GIB)), 0, "the limit holds on the way through the library");
    // The daemon reads the ledger before it judges.
    eventually("both are members", || members_of(&world) == 2);
    m.ok(&format!("read {}", 2 * GIB));
    let finding = is_found(&world, m.pid, "over", Some("a"));
    assert!(finding["words"].as_str().is_some_and(|words| words.contains("past the library")), "{finding}");
    assert_eq!(found(&world, honest.pid), None);
}

#[test]
fn a_library_whose_code_was_written_over_is_found_by_the_memory_that_it_does_not_see() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    m.ok("over cuMemAlloc_v2");
    m.ok(&format!("alloc {}", 2 * GIB));
    assert!(world.lab.process(0, m.pid).live_bytes > 2 * GIB, "the limit does not hold");
    is_found(&world, m.pid, "over", Some("a"));
}

/// The process that said hello may keep its socket and run another program.
#[test]
fn a_member_that_runs_another_program_without_the_library_is_a_member_no_more_and_found() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    eventually("it is a member", || registered(&world) == 1);
    assert_eq!(m.ok("become bare").number(0), u64::from(m.pid), "the process is the same");
    m.ok("begin");
    m.ok(&format!("alloc {}", 60 * GIB));
    is_found(&world, m.pid, "uncontrolled", None);
    eventually("its connection ends", || registered(&world) == 0);
    assert!(found(&world, m.pid).is_some(), "it stays found");
}

#[test]
fn a_member_that_runs_its_program_again_with_the_library_is_a_member_again() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    m.ok("become same");
    m.ok("begin");
    m.ok(&format!("alloc {}", 4 * MIB));
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(found(&world, m.pid), None);
    }
    assert_ne!(m.code(&format!("alloc {}", 2 * GIB)), 0, "it is held to the limit");
    eventually("its first connection ends", || registered(&world) == 1);
}

#[test]
fn a_process_that_says_hello_and_has_no_library_is_found_with_its_tenants_name() {
    let world = watched();
    let mut m = Member::start(&mut world.lab.bare(compile("escape", Kind::Program, &[])));
    m.ok(&format!("hello {}", world.socket("a").display()));
    m.ok("begin");
    m.ok(&format!("alloc {GIB}"));
    let finding = is_found(&world, m.pid, "uncontrolled", Some("a"));
    assert!(finding["words"].as_str().is_some_and(|words| words.contains("is connected to the daemon")), "{finding}");
    let explained = world.explain("a");
    assert!(explained.contains(&format!("Found (proof.uncontrolled) of process {}", m.pid)), "{explained}");
}

/// While a process uses a device, the daemon checks the connections.
#[test]
fn a_forked_child_that_keeps_its_dead_parents_connection_is_no_member() {
    let mut world = watched();
    let mut at_work = world.plain("a");
    at_work.begin();
    let mut m = escaping(&mut world);
    let child = Orphan(m.ok("fork").number(0));
    eventually("both are members", || registered(&world) == 2);
    m.kill();
    eventually("the connection ends", || registered(&world) == 1);
    drop(child);
}

/// A process that the test did not start itself. Dropping it kills the process.
struct Orphan(u64);

impl Drop for Orphan {
    fn drop(&mut self) {
        // SAFETY: the process is a child of a process of this test and waits for ever, so its pid is not reused.
        unsafe { libc::kill(i32::try_from(self.0).expect("a pid"), libc::SIGKILL) };
    }
}

/// Bytes that the first tenant holds by its ledger at the daemon's last reading; 0 before the first one.
fn memory_used(world: &World) -> u64 {
    let status: Value = serde_json::from_str(&world.status()).unwrap_or(Value::Null);
    status["tenants"][0]["devices"][0]["memory_used"].as_u64().unwrap_or(0)
}

/// The one ledger of tenant `a`, to be written by a test.
fn ledger(world: &World) -> fs::File {
    let mut all = fs::read_dir(world.socket("a").with_file_name("vgpud.sock.ledgers"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let path = all.find(|path| path.metadata().is_ok_and(|meta| meta.len() == LEDGER_BYTES as u64)).expect("a ledger");
    fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn zeros_over_the_first_page_of_a_ledger_lift_no_limit_and_are_found() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    eventually("its ledger is read", || memory_used(&world) > 0);
    ledger(&world).write_all_at(&[0; LEDGER_HEADER_BYTES], 0).unwrap();
    let granted = (0..40).filter(|_| m.code(&format!("alloc {GIB}")) == 0).count();
    assert_eq!(granted, 0, "allocations of 1 GiB, of 40");
    let finding = is_found(&world, m.pid, "over", Some("a"));
    assert!(finding["words"].as_str().is_some_and(|words| words.contains("ledger cannot be read")), "{finding}");
}

#[test]
fn a_ledger_that_says_more_than_its_limit_is_found_and_allows_nothing_more() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    eventually("its ledger is read", || memory_used(&world) > 0);
    let claimed = LEDGER_HEADER_BYTES as u64;
    ledger(&world).write_all_at(&129_000_000_000u64.to_le_bytes(), claimed).unwrap();
    let finding = is_found(&world, m.pid, "over", Some("a"));
    assert!(finding["words"].as_str().is_some_and(|words| words.contains("its limit")), "{finding}");
    m.ok(&format!("read {}", 40 * GIB));
    eventually("the driver's word is told", || {
        found(&world, m.pid)
            .is_some_and(|finding| finding["words"].as_str().unwrap().contains("according to the driver"))
    });
}

#[test]
fn a_ledger_that_became_shorter_is_found() {
    let mut world = watched();
    let m = escaping(&mut world);
    eventually("its ledger is read", || memory_used(&world) > 0);
    // All pages stay mapped, so that no process dies of SIGBUS.
    ledger(&world).set_len(LEDGER_BYTES as u64 - 1).unwrap();
    is_found(&world, m.pid, "over", Some("a"));
}

#[test]
fn what_a_tenant_holds_above_a_limit_that_was_lowered_or_not_enforced_is_no_finding() {
    let mut world = watched();
    world.lab.set("VGPU_SOCKET", world.socket("a"));
    let set = |world: &World, words: &[&str]| {
        let mut command = Command::new(vgpu());
        command.args(["set", "a"]).args(words).arg("--socket").arg(world.lab.path().join("run/admin.sock"));
        vgpu_tests::run(&mut command);
    };
    let calm = |world: &World, pid: u32| {
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end {
            assert_eq!(found(world, pid), None);
        }
    };
    let mut m = world.lab.member();
    m.begin();
    // The limit is raised, used and lowered before the daemon's next check.
    set(&world, &["--memory-limit", "8GiB"]);
    let first = m.alloc(6 * GIB);
    set(&world, &["--memory-limit", "2GiB"]);
    calm(&world, m.pid);
    m.ok(&format!("free {first}"));
    set(&world, &["--mode", "observe"]);
    eventually("nothing is refused", || m.code(&format!("alloc {}", 5 * GIB)) == 0);
    calm(&world, m.pid);
    set(&world, &["--mode", "enforce"]);
    calm(&world, m.pid);
    // A stranger is found, which proves that the daemon has checked in the meantime.
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    is_found(&world, stranger.pid, "uncontrolled", None);
    assert_eq!(found(&world, m.pid), None);
}

/// An idle member does not return to the next daemon, and a stopped member cannot.
#[test]
fn members_of_a_former_daemon_that_merely_sit_there_are_no_finding_of_the_next() {
    let mut world = watched();
    let mut idle = world.plain("a");
    idle.begin();
    idle.alloc(100 * MIB);
    let mut frozen = world.plain("a");
    frozen.begin();
    frozen.alloc(100 * MIB);
    let mut liar = escaping(&mut world);
    eventually("all are members", || registered(&world) == 3);
    world.lab.stop(&frozen);
    world.kill();
    liar.ok("become bare");
    liar.ok("begin");
    world.restart();
    is_found(&world, liar.pid, "uncontrolled", None);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert_eq!((found(&world, idle.pid), found(&world, frozen.pid)), (None, None));
    }
    // They are no finding either if they hold more than a limit that was lowered meanwhile.
    world.kill();
    let file = world.lab.path().join("vgpud.toml");
    let lower = fs::read_to_string(&file).unwrap().replace("2GiB", "128MiB");
    fs::write(&file, lower).unwrap();
    world.restart();
    is_found(&world, liar.pid, "uncontrolled", None);
    frozen.signal(libc::SIGCONT);
    eventually("they come back", || {
        for member in [&mut idle, &mut frozen] {
            member.code("launch 1000");
        }
        registered(&world) == 2
    });
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert_eq!((found(&world, idle.pid), found(&world, frozen.pid)), (None, None));
    }
}

#[test]
fn in_its_first_seconds_a_daemon_finds_nobody() {
    let mut world = watched();
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    is_found(&world, stranger.pid, "uncontrolled", None);
    world.kill();
    let begun = Instant::now();
    world.restart();
    is_found(&world, stranger.pid, "uncontrolled", None);
    assert!(begun.elapsed() >= Duration::from_secs(3), "found after {:?}", begun.elapsed());
}

/// Files that match the pattern stand for device files. Nobody can see a program's ioctl calls, but an open device file
/// is visible.
#[test]
fn who_speaks_to_a_devices_file_without_a_library_is_found_and_a_member_is_not() {
    let devices = tempfile::tempdir().unwrap();
    let file = devices.path().join("nvidia0");
    fs::write(&file, "").unwrap();
    let proof = format!("[proof]\ninterval = \"100ms\"\ndevices = [\"{}/nvidia[0-9]*\"]\n", devices.path().display());
    let mut world = World::start(&(proof + &tenant("a", "memory_limit = \"2GiB\"")));
    let open = format!("open {}", file.display());
    let mut member = escaping(&mut world);
    member.ok(&open);
    let mut raw = Member::start(&mut world.lab.bare(compile("escape", Kind::Program, &[])));
    raw.ok(&open);
    let mut fixed = compile_with("hold", Kind::Program, &[], &["-static"]).into_os_string();
    let mut fixed = Member::start(world.lab.command(std::mem::take(&mut fixed)).arg(&file));
    for one in [&raw, &fixed] {
        let finding = is_found(&world, one.pid, "uncontrolled", None);
        assert!(finding["device"].as_str().is_some_and(|device| device.ends_with("/nvidia0")), "{finding}");
    }
    assert_eq!(found(&world, member.pid), None, "what it holds is on its ledger");
    [&mut raw, &mut fixed].into_iter().for_each(Member::kill);
    eventually("they are forgotten", || found(&world, raw.pid).is_none() && found(&world, fixed.pid).is_none());
}

/// On the host the doctor shows the findings of all tenants; in a tenant's environment only that tenant's.
#[test]
fn the_doctor_tells_what_the_daemon_found_and_the_tenant_its_own_alone() {
    let mut world = watched();
    let mut m = escaping(&mut world);
    m.ok(&format!("read {}", 2 * GIB));
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    is_found(&world, m.pid, "over", Some("a"));
    is_found(&world, stranger.pid, "uncontrolled", None);
    let visit = |world: &World, runtime: &str| {
        let mut doctor = world.lab.command(vgpu());
        doctor.args(["doctor", "--json"]).env("VGPU_RUNTIME_DIR", world.lab.path().join(runtime));
        let out = doctor.output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{}", vgpu_tests::text(&out));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        let lines = report["lines"].as_array().unwrap();
        let found = lines.iter().filter(|line| line["subject"] == "proof" && line["ok"] == false);
        found.map(|line| line["words"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = visit(&world, "run");
    assert!(all.iter().any(|words| words.starts_with(&format!("over: process {} ", m.pid))), "{all:?}");
    assert!(all.iter().any(|words| words.starts_with(&format!("uncontrolled: process {} ", stranger.pid))), "{all:?}");
    let own = visit(&world, "none");
    assert!(own.len() == 1 && own[0].contains(" of a on GPU-") && own[0].contains("strict = true"), "{own:?}");
}

/// Names of all tests in the directories with tests.
fn tests() -> BTreeSet<String> {
    let mut list = Command::new("grep");
    list.args(["-rhA4", "--include=*.rs", "#\\[test\\]"]).current_dir(checkout());
    list.args(["vgpu-core", "libvgpu/src", "sim", "scheduler-sidecar", "tests/tests", "shim-sys", "fuzz/src"]);
    let text = String::from_utf8(list.output().unwrap().stdout).unwrap();
    let names = text.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.split_once('(').map(|(name, _)| name));
    names.map(str::to_owned).collect()
}

#[test]
fn the_page_of_threats_names_tests_that_exist_and_one_for_each_row() {
    let page = fs::read_to_string(checkout().join("docs/threats.md")).unwrap();
    let there = tests();
    assert!(there.len() > 500, "{} tests", there.len());
    // In the text a long name in code type is a test's.
    let is_long = |name: &&str| name.matches('_').count() >= 5 && !name.contains([' ', '/', '.']);
    for name in page.split('`').skip(1).step_by(2).filter(is_long) {
        assert!(there.contains(name), "docs/threats.md: there is no test {name}");
    }
    let (_, section) = page.split_once("## Ways around").expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() >= 14, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [way, _, _, shown] = cells[..] else { panic!("four columns: {row}") };
        let names: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{way}: no test shows this row");
        for name in names {
            assert!(there.contains(name), "{way}: there is no test {name}");
        }
    }
}
