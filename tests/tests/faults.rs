//! Faults found in other libraries of this kind, and the tests that keep them out of this one.
//!
//! The table is `docs/faults-of-others.md`: fault, test, and the change by which `tests/mutants` breaks the library to
//! see that test fail. A test here checks the table's names. Most of the named tests are in the file of their subject;
//! the rest are here.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use vgpu_tests::artefacts::checkout;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::lab::charged;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, NOT_PERMITTED, OUT_OF_MEMORY, eventually, optional, run};

/// HAMi-core 2: each process checked, saw room, and took it.
#[test]
fn four_processes_that_ask_at_once_get_no_more_than_the_limit() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "6GiB");
    let mut members: Vec<Member> = (0..4).map(|_| lab.member()).collect();
    for m in &mut members {
        m.begin();
    }
    let free = members[0].info().0;
    let each = free / 2 / 512 * 512;
    for round in 0..200 {
        members.iter_mut().for_each(|m| m.tell(&format!("alloc {each}")));
        let answers: Vec<_> = members.iter_mut().map(Member::answer).collect();
        let granted: Vec<usize> = (0..4).filter(|&i| answers[i].code == 0).collect();
        assert_eq!(granted.len(), 2, "round {round}: two fit, no more and no fewer: {answers:?}");
        assert!(answers.iter().all(|a| [0, OUT_OF_MEMORY].contains(&a.code)), "{answers:?}");
        assert!(charged(&lab.device(0)) <= 6 * GIB, "round {round}");
        for i in granted {
            let p = answers[i].number(0);
            members[i].ok(&format!("free {p}"));
        }
    }
}

/// Bytes of each member in NVML's process list.
fn listed(observer: &mut Member) -> BTreeMap<u64, u64> {
    observer.ok("nvprocs 0").numbers().chunks(2).map(|entry| (entry[0], entry[1])).collect()
}

/// HAMi-core 5: the last slot was moved into a dead member's place while its owner still wrote to the old one.
#[test]
fn when_a_member_in_the_middle_dies_nobody_elses_place_moves() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "8GiB");
    let mut observer = lab.member();
    observer.ok("nvinit");
    let mut members: Vec<(Member, Vec<u64>)> = Vec::new();
    for round in 0..12 {
        while members.len() < 5 {
            let mut m = lab.member();
            m.begin();
            let held = vec![m.alloc(100 * MIB), m.alloc(50 * MIB)];
            members.push((m, held));
        }
        // A member in the middle dies; the others keep their own slots.
        members[1 + round % 3].0.kill();
        members.remove(1 + round % 3);
        std::thread::sleep(std::time::Duration::from_millis(100));
        for (m, held) in &mut members {
            m.ok(&format!("free {}", held.remove(0)));
            held.push(m.alloc(100 * MIB + round as u64 * 512));
        }
        let truth = lab.device(0);
        let expected: BTreeMap<u64, u64> =
            truth.processes.iter().map(|p| (u64::from(p.pid), p.slab_bytes + p.overhead_bytes)).collect();
        assert_eq!(listed(&mut observer), expected, "round {round}");
        assert_eq!(members[0].0.used(), charged(&truth), "round {round}");
        members.rotate_left(1);
    }
    let (free, _) = members[0].0.info();
    assert_eq!(members[0].0.code(&format!("alloc {}", free + 1)), OUT_OF_MEMORY);
    members[0].0.alloc(free);
}

/// System calls of `pairs COUNT 0`, with or without the library; `None` if tracing is not permitted.
fn calls_of_pairs(lab: &Lab, preloaded: bool, count: u64) -> Option<BTreeMap<u64, u64>> {
    let mut c = lab.bare(compile("trace", Kind::Program, &[]));
    c.arg(if preloaded { lab.lib().to_str().unwrap() } else { "" });
    let out = c.arg(compile("pairs", Kind::Linked, &[])).arg(count.to_string()).arg("0").output().unwrap();
    if out.status.code() == Some(77) {
        optional::skipped("system calls of a pair: tracing is refused here");
        return None;
    }
    assert!(out.status.success(), "{}", vgpu_tests::text(&out));
    let mut calls = BTreeMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        if let Some(number) = line.split(' ').next().and_then(|word| word.parse().ok()) {
            *calls.entry(number).or_insert(0) += 1;
        }
    }
    Some(calls)
}

/// HAMi-core 15: four getpid calls per pair. 5,000 more pairs must add the same number of system calls with and without
/// the library.
#[test]
fn a_pair_of_allocation_and_free_makes_no_system_call() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB");
    let mut added = Vec::new();
    for preloaded in [false, true] {
        let (Some(few), Some(many)) = (calls_of_pairs(&lab, preloaded, 10), calls_of_pairs(&lab, preloaded, 1010))
        else {
            return;
        };
        assert!(few.values().sum::<u64>() > 20, "something was traced: {few:?}");
        let more = |number: &u64| many[number].saturating_sub(*few.get(number).unwrap_or(&0));
        added.push(many.keys().map(|number| (*number, more(number))).collect::<BTreeMap<u64, u64>>());
    }
    for (number, with) in &added[1] {
        let bare = added[0].get(number).copied().unwrap_or(0);
        // The library looks for dead members from time to time, by the clock. A system call in each pair would add
        // 5,000.
        assert!(*with <= bare + 250, "system call {number}: {with} for 5000 pairs, {bare} without the library");
    }
}

/// HAMi-core 15: a free searched a list of everything alive. The bound is far above noise and far below the cost of a
/// search.
#[test]
fn a_free_costs_the_same_beside_a_hundred_thousand_living() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "64GiB");
    let pair = |live: u64| -> u64 {
        let mut c = lab.command(compile("pairs", Kind::Linked, &[]));
        run(c.args(["2000", &live.to_string()])).trim().parse().unwrap()
    };
    let (none, many) = (pair(0), pair(100_000));
    eprintln!("a pair: {none} ns alone, {many} ns beside 100,000");
    assert!(many < none * 10 + 5_000, "{many} ns beside 100,000 living, {none} ns beside none");
}

/// Ledger files in the lab's state directory.
fn ledgers(lab: &Lab) -> Vec<PathBuf> {
    fs::read_dir(lab.state()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect()
}

/// HAMi-core 16, vgpu.rs: limits were in a file that every user could write, with the values of the first process.
#[test]
fn the_ledger_is_its_owners_alone_and_holds_no_limit() {
    let (wide, narrow) = (4 * GIB + 12_345 * 512, 2 * GIB + 54_321 * 512);
    let mut lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", format!("{wide}B"));
    let mut first = lab.member();
    first.begin();
    lab.set("VGPU_MEMORY_LIMIT", format!("{narrow}B"));
    let mut second = lab.member();
    second.begin();
    assert_eq!((first.info().1, second.info().1), (wide, narrow), "each has its own");
    let files = ledgers(&lab);
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let content = fs::read(&files[0]).unwrap();
    for limit in [wide, narrow] {
        let word = limit.to_le_bytes();
        assert!(!content.windows(8).any(|bytes| bytes == word), "the limit {limit} stands in the file");
    }
}

/// vgpu.rs: shared memory had no version. A ledger with another layout is refused with a message and stays unchanged.
#[test]
fn a_ledger_of_another_version_is_refused_in_words() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let mut m = lab.member();
    m.begin();
    m.kill();
    let file = ledgers(&lab).pop().unwrap();
    let mut content = fs::read(&file).unwrap();
    let version = u32::from_le_bytes(content[8..12].try_into().unwrap());
    assert!((1..1000).contains(&version), "the second word is the version: {version}");
    content[8..12].copy_from_slice(&(version + 1).to_le_bytes());
    fs::write(&file, &content).unwrap();
    let mut m = lab.member();
    assert_eq!(m.code("init"), NOT_PERMITTED);
    let said = m.errors();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("ledger") && said.contains("version"), "{said}");
    assert_eq!(fs::read(&file).unwrap(), content, "it is left as it is");
}

/// vgpu.rs and two others: bits of a format were counted as bytes.
#[test]
fn an_array_counts_bytes_and_never_bits() {
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let mut m = lab.member();
    m.begin();
    let before = m.used();
    let array = m.ok("array 1024 1024").number(0);
    assert_eq!(m.used() - before, 4 * MIB, "a million floats");
    let truth = lab.process(0, m.pid);
    assert!(truth.live_bytes >= 4 * MIB && truth.live_bytes < 6 * MIB, "the device agrees: {truth:?}");
    m.ok(&format!("array-destroy {array}"));
    assert_eq!(m.used(), before);
}

/// HAMi-core 14: limits were silently off where a process could not find its own pid in the host's list.
#[test]
fn in_a_pid_namespace_of_its_own_a_program_is_limited_and_its_context_measured() {
    let unshare = ["--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        return optional::skipped("a pid namespace: unshare is refused here");
    }
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let member = compile("member", Kind::Program, &[]);
    let mut m = Member::start(lab.command("unshare").args(unshare).arg(member).arg("dlsym"));
    assert_eq!(m.pid, 1);
    m.begin();
    let (free, total) = m.info();
    assert_eq!((total, total - free), (4 * GIB, charged(&lab.device(0))), "with its context");
    m.alloc(free);
    assert_eq!(m.code("alloc 1"), OUT_OF_MEMORY);
    assert!(m.finish().success());
}

/// Rows of the table: fault, test program, test, and the change that breaks the library.
fn rows() -> Vec<[String; 4]> {
    let page = fs::read_to_string(checkout().join("docs/faults-of-others.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<String> = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        cells.try_into().ok()
    };
    page.lines().filter(|line| line.starts_with("| ")).filter_map(row).skip(1).collect()
}

#[test]
fn the_table_of_faults_names_tests_and_mutants_that_exist() {
    let mutants = fs::read_to_string(checkout().join("tests/mutants")).unwrap();
    let rows = rows();
    assert!(rows.len() > 30, "{} rows", rows.len());
    for [fault, program, test, mutant] in rows {
        if program == "-" {
            assert!(!test.is_empty(), "{fault}: why there is none");
            continue;
        }
        let file = checkout().join(program.trim_matches('`'));
        let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{fault}: {}: {e}", file.display()));
        let name = test.trim_matches('`');
        assert!(text.contains(&format!("fn {name}(")), "{fault}: {program} has no test {name}");
        if mutant != "-" {
            let known = mutants.contains(&format!("(\"{mutant}\"")) && mutants.contains(name);
            assert!(known, "{fault}: tests/mutants has no {mutant:?} that {name} sees");
        }
    }
    // A rename in the source leaves a fault without its text, and the fault then breaks nothing.
    run(Command::new(checkout().join("tests/mutants")).arg("--check"));
}

/// Truncates the ledger of a joined member through the member's own descriptor. `None` if the file cannot be shortened.
fn truncate_ledger(member: &Member) -> Option<()> {
    let open = fs::read_dir(format!("/proc/{}/fd", member.pid)).unwrap().map(|entry| entry.unwrap().path());
    let size = vgpu_core::memory::ledger::LEDGER_BYTES as u64;
    let ledger =
        open.into_iter().find(|file| fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.len() == size));
    let ledger = fs::File::options().write(true).open(ledger.expect("its ledger")).ok()?;
    ledger.set_len(0).ok()
}

/// An access to a truncated page raises SIGBUS. The daemon only reads ledgers as files, and other tenants have their
/// own.
#[test]
fn a_tenant_that_truncates_its_ledger_harms_its_own_members_and_nobody_else() {
    let mut lab = Lab::new("h200");
    let tenants = ["a", "b"].map(|name| (name.to_owned(), "memory_limit = \"4GiB\"".to_owned()));
    let plan = Plan { device: lab.device(0).uuid, time: "arbitrate = true".into(), tenants: tenants.to_vec() };
    let daemon = Daemon::start(lab.path(), &plan);
    let mut begin = |tenant: &str| {
        lab.set("VGPU_SOCKET", daemon.socket(tenant));
        let mut member = lab.member();
        member.begin();
        member.alloc(GIB);
        member
    };
    let (mut ours, mut theirs) = (begin("a"), begin("b"));
    let used = |tenant: usize| {
        let status: serde_json::Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).unwrap();
        status["tenants"][tenant]["devices"][0]["memory_used"].as_u64()
    };
    eventually("the daemon has read both", || (0..2).all(|tenant| used(tenant).is_some_and(|used| used >= GIB)));
    let pid = daemon.pid();
    if truncate_ledger(&ours).is_none() {
        return; // the file is sealed
    }
    // Runs for longer than the daemon waits before it reads a ledger again.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        let p = theirs.alloc(MIB);
        theirs.ok("launch 100000");
        theirs.ok(&format!("free {p}"));
        assert!(used(1).is_some_and(|used| used >= GIB));
    }
    assert_eq!(daemon.pid(), pid);
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
    // The tenant's own members die at their next access to the page, which their helper thread may have made already.
    // Later members create a new ledger.
    if !ours.has_ended() {
        ours.tell(&format!("alloc {MIB}"));
    }
    assert_eq!(ours.finish().signal(), Some(libc::SIGBUS));
    let mut later = begin("a");
    later.alloc(2 * GIB);
    assert_eq!(later.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
}
