//! `VGPU_MODE`. In mode observe a program runs as if the library were absent, and its usage is measured. In mode off
//! the library touches nothing. Under a daemon a program cannot choose either.

use crate::ledger;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::{libvgpu, sim_dir, vgpud};
use vgpu_tests::lab::charged;
use vgpu_tests::program::{Kind, compile, compile_with};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, optional};

fn observed() -> Lab {
    Lab::new("h200").with("VGPU_MODE", "observe").with("VGPU_MEMORY_LIMIT", "1GiB").with("VGPU_SM_LIMIT", "5")
}

/// Everything that a program sees while it allocates far beyond 1 GiB, without addresses and process ids.
fn seen(m: &mut Member) -> Vec<(String, i64, Vec<u64>)> {
    let mut all = Vec::new();
    let mut see = |m: &mut Member, command: &str, numbers: bool| {
        let answer = m.ask(command);
        let name =
            command.split(' ').take(if command.starts_with("free") { 1 } else { 9 }).collect::<Vec<_>>().join(" ");
        all.push((name, answer.code, if numbers { answer.numbers() } else { Vec::new() }));
        answer
    };
    see(m, "init", true);
    see(m, "count", true);
    see(m, "total 0", true);
    see(m, "retain 0", false);
    see(m, "info", true);
    let first = see(m, &format!("alloc {}", 3 * GIB), false).number(0);
    see(m, "managed 1073741824", false);
    see(m, "async 1073741824", false);
    see(m, "create 2147483648 1 0", false);
    see(m, "array 4096 4096", false);
    see(m, "info", true);
    see(m, &format!("alloc {}", 1u64 << 40), false);
    see(m, &format!("alloc {}", u64::MAX), false);
    see(m, &format!("free {first}"), true);
    see(m, &format!("free {first}"), true);
    see(m, "info", true);
    see(m, "create-context 0", false);
    see(m, "nvinit", true);
    see(m, "nvmem 0", true);
    see(m, "nvmem2 0", true);
    let listed = see(m, "nvprocs 0", false).numbers();
    all.push(("the list".into(), 0, listed.chunks(2).map(|pair| pair[1]).collect()));
    all
}

#[test]
fn an_observed_program_beyond_its_limit_sees_what_it_would_see_without_the_library() {
    let (lab, bare) = (observed(), Lab::new("h200"));
    let (mut m, mut reference) = (lab.member(), bare.bare_member());
    let (here, there) = (seen(&mut m), seen(&mut reference));
    assert_eq!(here, there);
    let code = |command: &str| here.iter().find(|(name, ..)| name == command).unwrap().1;
    assert_eq!(code(&format!("alloc {}", 3 * GIB)), 0, "beyond the limit");
    assert_eq!(code(&format!("alloc {}", 1u64 << 40)), OUT_OF_MEMORY, "beyond the device");
    assert_eq!(m.errors(), "");
}

#[test]
fn what_an_observed_program_holds_is_known() {
    let lab = observed();
    let mut m = lab.member();
    m.begin();
    let first = m.alloc(3 * GIB);
    m.alloc(100 * MIB);
    let near = |what: &str| {
        let (held, truth) = (ledger(&lab).unwrap().members[0].used, charged(&lab.device(0)));
        assert!(held.abs_diff(truth) <= truth / 50, "{what}: {held} charged, {truth} held");
        held
    };
    assert!(near("holding") > 3 * GIB, "above the limit of 1 GiB");
    m.ok(&format!("free {first}"));
    assert!(near("after a free") < GIB);
}

/// Usage is measured without any limit too, so that a user can find the right limit.
#[test]
fn use_is_measured_where_no_limit_is_set() {
    let lab = Lab::new("h200").with("VGPU_MODE", "observe");
    let mut m = lab.member();
    m.begin();
    m.alloc(GIB);
    m.ok("launch 5000000");
    assert!(ledger(&lab).unwrap().members[0].used > GIB);
}

/// Number of launches of 5 ms in a second, eight in flight.
fn launched(m: &mut Member) -> u64 {
    m.ok("work 5000000 1000 8 0").number(0)
}

#[test]
fn no_launch_of_an_observed_program_waits_and_its_device_time_is_known() {
    let (lab, bare) = (observed(), Lab::new("h200"));
    let (mut m, mut reference) = (lab.member(), bare.bare_member());
    let here = launched(m.begin());
    let there = launched(reference.begin());
    // A ceiling of 5 % would leave a twentieth of the launches.
    assert!(here * 2 > there, "{here} launches observed, {there} without the library");
    // The program does not wait for its earlier launches either. If the library kept at most 2 ms of work queued on the
    // device, the launches would take as long as the kernels.
    let ahead = |m: &mut Member| m.ok("ahead 20000000 50").number(0);
    let (here, there) = (ahead(&mut m), ahead(&mut reference));
    assert!(here < 500_000_000, "{here} ns to launch a second of work, {there} ns without the library");
    // The library notices completed work only at the next launch, so this loop launches until the ledger has it.
    let end = Instant::now() + LONG_TIMEOUT;
    loop {
        m.ok("launch 1000");
        let busy = ledger(&lab).unwrap().members[0].busy_ns;
        let truth = lab.process(0, m.pid).busy_ns;
        if busy.abs_diff(truth) <= truth / 20 {
            break eprintln!("{busy} ns measured, {truth} ns worked");
        }
        assert!(Instant::now() < end, "{busy} ns measured, {truth} ns worked");
    }
}

/// An observed member is no hole in the limit of the others: its charges count as the tenant's own.
#[test]
fn beside_an_observed_member_the_others_keep_to_the_limit() {
    let mut lab = observed().with("VGPU_TENANT", "both").with("VGPU_MEMORY_LIMIT", "2GiB");
    let mut watched = lab.member();
    watched.begin();
    let big = watched.alloc(3 * GIB);
    lab.set("VGPU_MODE", "enforce");
    let mut kept = lab.member();
    assert_eq!((kept.code("init"), kept.code("retain 0")), (0, OUT_OF_MEMORY), "nothing is left");
    watched.ok(&format!("free {big}"));
    let mut kept = lab.member();
    kept.begin();
    assert_eq!(kept.info().1, 2 * GIB);
    assert_eq!(kept.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    watched.alloc(3 * GIB);
    assert_eq!(kept.code(&format!("alloc {MIB}")), OUT_OF_MEMORY);
}

/// Loader and lookups behave as without the library. Calls that bypass the hooks this way are not measured.
#[test]
fn no_lookup_of_an_observed_program_is_refused_or_bent() {
    let host = compile_with("host", Kind::Program, &[], &["-rdynamic"]);
    let guest = compile("guest", Kind::LinkedLibrary, &[]);
    let guest = guest.to_str().unwrap();
    let lab = observed().with("VGPU_STRICT", "1").with("VGPU_DEEPBIND", "clear");
    let own = compile("guest", Kind::Library, &["OWN"]);
    let own = own.to_str().unwrap();
    let copy = lab.path().join("libcuda-copy.so.1");
    fs::copy(sim_dir().join("libcuda.so.1"), &copy).unwrap();
    let copy = copy.to_str().unwrap();
    for (words, answer) in [
        (&["deep", guest, "bound"][..], "1"),
        (&["new", guest], ""),
        // The lookups also behave so in an initialised program, and with a second copy of the driver.
        (&["open", own, "alloc", "512", "deep", guest, "bound"], "0\n1"),
        (&["open", "libcuda.so.1", "open", copy, "open", own, "alloc", "512"], "0"),
    ] {
        let (with, without) =
            (lab.command(&host).args(words).output().unwrap(), lab.bare(&host).args(words).output().unwrap());
        assert_eq!(vgpu_tests::text(&with), vgpu_tests::text(&without), "{words:?}");
        assert_eq!(String::from_utf8_lossy(&with.stdout).trim(), answer, "{words:?}");
    }
}

#[test]
fn a_forked_child_of_an_observed_program_is_observed() {
    let lab = observed();
    let mut m = lab.member();
    m.ok("nvinit"); // CUDA itself does not survive a fork
    let child = m.ok("fork").number(0);
    m.begin();
    m.alloc(3 * GIB);
    let members = ledger(&lab).unwrap().members;
    let of_child = members.iter().find(|member| u64::from(member.pid) == child);
    assert!(of_child.is_some_and(|member| member.used > 3 * GIB), "{members:?}");
    assert_eq!(m.errors(), "");
}

#[test]
fn what_cannot_be_kept_is_said_once_and_stops_no_observed_program() {
    for (name, value, says) in [
        ("VGPU_STATE_DIR", "/proc", "the tenant's ledger cannot be kept"),
        ("VGPU_MEMORY_LIMIT_9", "1GiB", "names a device that does not exist"),
        ("VGPU_SM_REQUEST", "3", "asks for guaranteed time"),
    ] {
        let lab = observed().with(name, value);
        let mut m = lab.member();
        m.begin();
        m.alloc(2 * GIB);
        m.ok("launch 1000");
        assert_eq!((m.code("nvinit"), m.code("init")), (0, 0), "{name}");
        let said = m.errors();
        assert_eq!(said.lines().count(), 1, "{name}: {said}");
        assert!(said.contains(says) && said.contains("VGPU_MODE=observe"), "{name}: {said}");
        if name != "VGPU_STATE_DIR" {
            assert!(ledger(&lab).unwrap().members[0].used > 2 * GIB, "{name}: the rest is measured");
        }
    }
}

/// Under a limit a call is refused when the ledger is gone. An observed program continues and reports it once.
#[test]
fn an_observed_program_outlives_its_ledger() {
    let lab = observed();
    let mut m = lab.member();
    m.begin();
    let first = m.alloc(2 * GIB);
    fs::remove_dir_all(lab.state()).unwrap();
    fs::write(lab.state(), "no directory").unwrap();
    // One of 256 reservations checks whether the file still has its name.
    for _ in 0..600 {
        m.alloc(512);
    }
    m.ok("launch 1000");
    m.ok(&format!("free {first}"));
    m.ok("nvinit");
    let said = m.errors();
    assert!(said.lines().count() == 1 && said.contains("nothing is measured any more (VGPU_MODE=observe)"), "{said}");
}

#[test]
fn what_is_not_understood_stops_an_observed_program_too() {
    for (name, value) in [("VGPU_MEMORY_LIMIT", "abc"), ("VGPU_TENANT", "a/b"), ("VGPU_DEEPBIND", "perhaps")] {
        let lab = observed().with(name, value);
        let mut m = lab.member();
        assert_eq!((m.code("init"), m.code("nvinit")), (NOT_PERMITTED, NO_PERMISSION), "{name}");
        assert!(m.errors().starts_with(&format!("vgpu: {name}=\"{value}\"")), "{}", m.errors());
    }
}

/// Files that a member opens while it initialises and allocates, and whether it created a socket.
fn opened(lab: &Lab, preload: &str) -> Option<(BTreeSet<String>, bool)> {
    let input = lab.path().join("commands");
    let mut commands = File::create(&input).unwrap();
    writeln!(commands, "init\nretain 0\nalloc {}\ninfo\nlaunch 1000\nnvinit\nnvmem 0", 2 * GIB).unwrap();
    let member = compile("member", Kind::Program, &[]);
    let mut c = lab.bare(compile("trace", Kind::Program, &[]));
    c.arg(preload).args(["/bin/sh", "-c", &format!("exec {} dlsym > /dev/null", member.display())]);
    let out = c.stdin(Stdio::from(File::open(&input).unwrap())).output().unwrap();
    if out.status.code() == Some(77) {
        optional::skipped("files opened by a program: tracing is refused here");
        return None;
    }
    assert!(out.status.success(), "{}", vgpu_tests::text(&out));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let lines = || text.lines().filter_map(|line| line.split_once(' '));
    let sockets = [libc::SYS_socket, libc::SYS_connect].map(|number| number.to_string());
    // The simulated driver opens a file of its own for each process, by a number that differs from run to run.
    let is_asked = |path: &String| !path.is_empty() && !path.contains("/gpu/process.");
    let files = lines().map(|(_, path)| path.to_owned()).filter(is_asked).collect();
    Some((files, lines().any(|(number, _)| sockets.contains(&number.to_owned()))))
}

#[test]
fn switched_off_the_library_reads_the_environment_and_opens_nothing_else() {
    let library = libvgpu();
    let library = library.to_str().unwrap();
    let limited = || {
        Lab::new("h200")
            .with("VGPU_MEMORY_LIMIT_9", "lots")
            .with("VGPU_MEMORY_LIMIT", "1GiB")
            .with("VGPU_SM_LIMIT", "30")
            .with("VGPU_TENANT", "a/b")
    };
    for (name, value) in [("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "true")] {
        let lab = limited().with(name, value);
        let (Some((with, sockets)), Some((without, _))) = (opened(&lab, library), opened(&lab, "")) else { return };
        let beyond: BTreeSet<&str> = with.difference(&without).map(String::as_str).collect();
        let allowed = |path: &&str| *path == library || *path == "/proc/self/environ" || path.contains("/lib");
        assert!(beyond.iter().all(allowed), "{name}: {beyond:?}");
        assert!(beyond.contains(library) && !sockets, "{name}");
        assert_eq!(fs::read_dir(lab.state()).unwrap().count(), 0, "{name}: no ledger");
    }
    // Control: under a limit the library does open a file.
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "4GiB");
    let Some((with, _)) = opened(&lab, library) else { return };
    assert!(with.iter().any(|path| path.ends_with(".ledger")), "{with:?}");
}

#[test]
fn switched_off_limits_are_as_if_they_had_not_been_asked_for() {
    for (name, value) in [("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "1")] {
        let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB").with(name, value);
        let (mut m, mut reference) = (lab.member(), lab.bare_member());
        m.begin();
        reference.ok("init");
        assert_eq!(m.ok("total 0"), reference.ok("total 0"), "{name}");
        m.alloc(20 * GIB);
        assert_eq!(m.errors(), "", "{name}");
    }
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB").with("CUDA_DISABLE_CONTROL", "1");
    let lab = lab.with("VGPU_MODE", "enforce");
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.info().1, GIB, "our own name wins");
}

/// Invariant 5. The library reports an error instead of a silent "enforce": the author of the variable expects a
/// program without limits.
#[test]
fn beside_a_daemon_no_variable_loosens_anything() {
    let lab = Lab::new("h200");
    let socket = lab.path().join("tenant.sock");
    let mut daemon = Command::new(vgpud());
    daemon.args(["--tenant", "a", "--memory-limit", "2GiB", "--socket"]).arg(&socket);
    let mut daemon = daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + LONG_TIMEOUT;
    while UnixStream::connect(&socket).is_err() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let outcome = std::panic::catch_unwind(|| {
        for (name, value) in [("VGPU_MODE", "observe"), ("VGPU_MODE", "off"), ("CUDA_DISABLE_CONTROL", "true")] {
            for open in ["closed", "open"] {
                let lab = Lab::new("h200").with("VGPU_SOCKET", &socket).with(name, value).with("VGPU_ON_ERROR", open);
                let mut m = lab.member();
                m.begin();
                assert_eq!((m.info().1, m.errors()), (2 * GIB, String::new()), "{name}={value}");
            }
        }
        let lab = Lab::new("h200").with("VGPU_SOCKET", &socket).with("VGPU_MODE", "enforce");
        let mut m = lab.member();
        m.begin();
        assert_eq!(m.info().1, 2 * GIB);
        // A wrong value in addition does not loosen the daemon's limits.
        let lab = Lab::new("h200").with("VGPU_SOCKET", &socket).with("VGPU_MEMORY_LIMIT", "abc");
        let lab = lab.with("VGPU_ON_ERROR", "open");
        assert_eq!(lab.member().code("init"), NOT_PERMITTED);
    });
    let _ = daemon.kill();
    let _ = daemon.wait();
    outcome.unwrap();
}
