//! Members under the daemon. The daemon's limits are in force, and the environment can only tighten them. If the daemon
//! dies, running members keep their limits; without a daemon no program can start.

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vgpu_tests::artefacts::vgpud;
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY};

/// A running daemon. Dropping it kills the daemon.
struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Daemon {
    fn start(dir: &Path, options: &[&str]) -> Daemon {
        let socket = dir.join("tenant.sock");
        let mut c = Command::new(vgpud());
        c.args(["--tenant", "a", "--socket"]).arg(&socket).args(options);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("VGPU_")) {
            c.env_remove(name);
        }
        let child = c.env_remove("LD_PRELOAD").stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Daemon { child, socket };
        let begin = Instant::now();
        while UnixStream::connect(&daemon.socket).is_err() {
            assert!(begin.elapsed() < LONG_TIMEOUT, "the daemon does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_daemon(options: &[&str]) -> (Lab, Daemon) {
    let lab = Lab::new("h200");
    let daemon = Daemon::start(lab.path(), options);
    let lab = lab.with("VGPU_SOCKET", &daemon.socket);
    (lab, daemon)
}

#[test]
fn the_daemons_memory_limit_is_in_force() {
    let (lab, _daemon) = with_daemon(&["--memory-limit", "2GiB"]);
    let mut m = lab.member();
    m.begin();
    assert_eq!(m.info().1, 2 * GIB);
    assert_eq!(m.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    m.alloc(GIB);
    let mut monitor = lab.member();
    monitor.ok("nvinit");
    assert_eq!(monitor.ok("nvmem 0").number(0), 2 * GIB, "for NVML programs too");
    assert_eq!(m.errors(), "");
}

#[test]
fn a_daemon_without_limits_limits_nothing() {
    let (lab, _daemon) = with_daemon(&[]);
    let mut m = lab.member();
    m.begin();
    m.alloc(20 * GIB);
}

#[test]
fn the_environment_can_only_tighten() {
    let (mut lab, _daemon) = with_daemon(&["--memory-limit", "2GiB"]);
    for (variable, value, expected) in [
        ("VGPU_MEMORY_LIMIT", "1GiB", GIB),
        ("VGPU_MEMORY_LIMIT", "8GiB", 2 * GIB),
        ("VGPU_MEMORY_LIMIT", "unlimited", 2 * GIB),
        ("VGPU_MEMORY_LIMIT_0", "3GiB", 2 * GIB),
        ("CUDA_DEVICE_MEMORY_LIMIT", "0", 2 * GIB),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1g", GIB),
    ] {
        lab.set(variable, value);
        let mut m = lab.member();
        m.ok("init");
        assert_eq!(m.ok("total 0").number(0), expected, "{variable}={value}");
        lab.unset(variable);
    }
}

#[test]
fn members_of_the_daemons_tenant_share_its_limit() {
    let (lab, _daemon) = with_daemon(&["--memory-limit", "3GiB"]);
    let (mut a, mut b) = (lab.member(), lab.member());
    a.begin();
    b.begin();
    a.alloc(GIB);
    assert_eq!(a.info(), b.info());
    assert_eq!(b.code(&format!("alloc {GIB}")), OUT_OF_MEMORY);
}

#[test]
fn after_the_daemons_death_the_limits_stay() {
    let (lab, mut daemon) = with_daemon(&["--memory-limit", "2GiB", "--sm-limit", "50"]);
    let mut m = lab.member();
    m.begin();
    let p = m.alloc(GIB);
    daemon.kill();
    assert_eq!(m.info().1, 2 * GIB);
    assert_eq!(m.code(&format!("alloc {GIB}")), OUT_OF_MEMORY);
    m.ok(&format!("free {p}"));
    m.alloc(GIB + 100 * MIB);
    m.ok("launch 1000000");
    m.ok("nvinit");
    assert_eq!(m.ok("nvmem 0").number(0), 2 * GIB);
    assert_eq!(m.errors(), "");
}

#[test]
fn the_daemons_ceiling_on_time_is_in_force() {
    let (lab, _daemon) = with_daemon(&["--sm-limit", "20"]);
    let mut m = lab.member();
    m.begin();
    let (begin, before) = (Instant::now(), lab.device(0).busy_ns);
    let a = m.ok("work 1000000 4000 1");
    let percent = (lab.device(0).busy_ns - before) * 100 / u64::try_from(begin.elapsed().as_nanos()).unwrap();
    // An emulated program next to busy ones gets too little of the processor for its ceiling: the lower bound only
    // shows that it goes on.
    assert!((4..=26).contains(&percent), "{percent} %: {a:?}");
}

/// Initialisation must fail within two seconds with a message about the socket.
#[track_caller]
fn nobody_starts(lab: &Lab, words: &str) {
    for init in ["init", "nvinit"] {
        let mut m: Member = lab.member();
        let begin = Instant::now();
        let code = m.code(init);
        let took = begin.elapsed();
        assert_eq!(code, if init == "init" { NOT_PERMITTED } else { NO_PERMISSION }, "{}", m.errors());
        // The promise is 2 s; the rest allows for a busy machine.
        assert!(took < Duration::from_secs(8), "{took:?}");
        let said = m.errors();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("vgpu: VGPU_SOCKET=\"") && said.contains(words), "{words:?} in {said}");
    }
    assert_eq!(lab.device(0).used, 0);
}

#[test]
fn without_a_daemon_nobody_starts() {
    let lab = Lab::new("h200");
    let gone = lab.path().join("gone.sock");
    let mut lab = lab.with("VGPU_SOCKET", &gone);
    nobody_starts(&lab, "cannot be reached");
    // A limit in the environment does not replace the daemon's limit.
    lab.set("VGPU_MEMORY_LIMIT", "1GiB");
    nobody_starts(&lab, "cannot be reached");
    fs::write(&gone, b"").unwrap();
    nobody_starts(&lab, "cannot be reached");
}

#[test]
fn a_dead_daemons_socket_is_an_error_with_words() {
    let (lab, mut daemon) = with_daemon(&["--memory-limit", "2GiB"]);
    daemon.kill();
    // Removes the file in which the daemon left the tenant's limits (terms); it would otherwise replace the daemon.
    let _ = fs::remove_file(daemon.socket.with_file_name("terms.json"));
    nobody_starts(&lab, "cannot be reached");
}

#[test]
fn a_daemon_that_says_nothing_is_given_two_seconds() {
    let lab = Lab::new("h200");
    let path = lab.path().join("mute.sock");
    let _mute = UnixListener::bind(&path).unwrap();
    nobody_starts(&lab.with("VGPU_SOCKET", &path), "within 2 s");
}

#[test]
fn signals_do_not_disturb_the_question_to_the_daemon() {
    let (lab, _daemon) = with_daemon(&["--memory-limit", "2GiB"]);
    for _ in 0..5 {
        let mut m = lab.member();
        m.ok("alarms 100");
        m.ok("init");
        assert_eq!(m.ok("total 0").number(0), 2 * GIB);
    }
}

#[test]
fn what_a_daemon_may_not_say_is_not_obeyed() {
    use std::io::{Read, Write};
    for (answer, words) in [
        ("hello\n", "not understood"),
        ("{\"hello\":2,\"tenant\":\"a\"}\n", "not understood"),
        ("{\"error\":\"no such tenant\"}\n", "no such tenant"),
        ("", "hung up"),
    ] {
        let lab = Lab::new("h200");
        let path = lab.path().join("odd.sock");
        let odd = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            for stream in odd.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        nobody_starts(&lab.with("VGPU_SOCKET", &path), words);
    }
}
