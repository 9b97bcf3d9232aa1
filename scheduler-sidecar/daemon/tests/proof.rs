//! Tests of the enforcement check: it finds and reports each process that uses a device without limits, and no other.
//! The policy stops only processes in containers. The device is an ordinary file.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::{Daemon, Guard, eventually, texts, vgpu, vgpud};
use tempfile::TempDir;
use vgpu_control::event::DaemonEvent;
use vgpu_control::finding::FindingKind;
use vgpu_control::{self as control, DaemonStatus};

struct World {
    dir: TempDir,
    _daemon: Daemon,
}

impl World {
    fn start(more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("gpu0"), "").unwrap();
        let here = dir.path().to_str().unwrap();
        let file = format!(
            "[daemon]\nstate_dir = \"{here}/state\"\n[proof]\ndevices = [\"{here}/gpu[0-9]*\"]\ninterval = \"100ms\"\n{more}\n\
             [[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\n"
        );
        fs::write(dir.path().join("vgpud.toml"), file).unwrap();
        let child = vgpud()
            .arg("--config")
            .arg(dir.path().join("vgpud.toml"))
            .args(["--driver", "none", "--runtime-dir"])
            .arg(dir.path().join("run"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let socket = dir.path().join("run/tenants/a/vgpud.sock");
        let world = Self { _daemon: Daemon { child, socket }, dir };
        eventually("it serves", || control::ask_status(&world.admin()).is_ok());
        world
    }

    fn admin(&self) -> PathBuf {
        self.dir.path().join("run/admin.sock")
    }

    fn status(&self) -> DaemonStatus {
        control::ask_status(&self.admin()).unwrap()
    }

    fn found(&self, what: FindingKind, pid: u32) -> bool {
        self.status().findings.iter().any(|finding| finding.what == what && finding.process.pid == pid)
    }

    fn events(&self) -> Vec<DaemonEvent> {
        let output =
            vgpu().args(["events", "--json", "--kind", "proof", "--socket"]).arg(self.admin()).output().unwrap();
        texts(&output).0.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Starts a program that holds the device, under a command such as `unshare`. Returns once it holds it.
    fn holder(&self, under: &[&str], script: &str) -> Holder {
        let script = format!("exec 9<\"$0/gpu0\"; {script} echo \"$$\"; read _");
        let mut words: Vec<&str> = under.to_vec();
        // Under a shell the first argument is `$0`.
        words.extend((under.last() != Some(&"env")).then_some("sh"));
        words.extend(["sh", "-c", &script, self.dir.path().to_str().unwrap()]);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The program and its children form a process group of their own.
        command.process_group(0);
        // Guarded at once: a program that prints no number must not outlive the failed test.
        let mut child = Guard(command.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let pid = lines.next().unwrap().unwrap().parse().unwrap();
        Holder { child, pid, _lines: lines }
    }
}

struct Holder {
    child: Guard,
    pid: u32,
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn end(&mut self) {
        let child: &mut Child = &mut self.child.0;
        let _ = child.stdin.take().unwrap().write_all(b"\n");
        child.wait().unwrap();
    }

    fn ended(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_some()
    }
}

#[test]
fn a_process_at_a_device_that_nobody_holds_is_seen_said_and_forgotten_when_it_ends() {
    let world = World::start("");
    let mut holder = world.holder(&["env"], "");
    eventually("it is found", || world.found(FindingKind::Uncontrolled, holder.pid));
    let finding = world.status().findings[0].clone();
    assert!(finding.device.as_ref().is_some_and(|device| device.ends_with("/gpu0")), "{finding:?}");
    assert!(!finding.contained && finding.words.contains("vgpu run"), "{finding:?}");
    let (out, _) = texts(&vgpu().args(["status", "--socket"]).arg(world.admin()).output().unwrap());
    assert!(out.contains(&format!("uncontrolled: process {} (\"sh\")", holder.pid)), "{out}");
    let (out, _) = texts(&vgpu().args(["metrics", "--socket"]).arg(world.admin()).output().unwrap());
    assert!(out.contains("vgpu_findings{kind=\"uncontrolled\"} 1.0"), "{out}");
    holder.end();
    eventually("it is forgotten", || world.status().findings.is_empty());
    let kinds: Vec<String> = world.events().into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["proof.uncontrolled", "proof.ended"]);
}

#[test]
fn a_member_is_no_finding_and_neither_is_a_program_that_is_allowed() {
    let sleep = fs::canonicalize("/bin/sleep").unwrap();
    let world = World::start(&format!("allow = [\"{}\"]", sleep.display()));
    let python = "import os,socket,sys\n\
        s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]+'/run/tenants/a/vgpud.sock')\n\
        s.sendall(b'{\"hello\":2,\"pid\":%d,\"version\":\"0\",\"pages\":1,\"clock\":0}\\n'%os.getpid());s.recv(4096)\n\
        import mmap;l=open(sys.argv[1]+'/libvgpu.so','r+b')\n\
        m=mmap.mmap(l.fileno(),4096,mmap.MAP_PRIVATE,mmap.PROT_READ|mmap.PROT_EXEC)\n\
        f=open(sys.argv[1]+'/gpu0');print(os.getpid(),flush=True);sys.stdin.read()";
    // A file with that name replaces the library.
    fs::write(world.dir.path().join("libvgpu.so"), [0; 4096]).unwrap();
    let mut member = Command::new("python3")
        .args(["-c", python])
        .arg(world.dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(Guard)
        .unwrap();
    let mut lines = BufReader::new(member.0.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().is_ok());
    let _allowed = Guard(
        Command::new("sleep").arg("600").stdin(fs::File::open(world.dir.path().join("gpu0")).unwrap()).spawn().unwrap(),
    );
    // When this process is found, a round of the check has happened, and it has not found the others.
    let holder = world.holder(&["env"], "");
    eventually("the third is found", || world.found(FindingKind::Uncontrolled, holder.pid));
    let found: Vec<u32> = world.status().findings.iter().map(|finding| finding.process.pid).collect();
    assert_eq!(found, [holder.pid]);
}

/// A container: its own root directory and mount namespace, with the test's directory at the same path.
const CONTAINER: [&str; 7] = [
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    "d=$(mktemp -d -p \"$4\") && mount -t tmpfs none $d && mkdir -p $d/usr $d/proc $d/old \"$d$4\" && mount --bind /usr $d/usr && \
     for l in bin lib lib64; do ln -s usr/$l $d/$l; done && mount --bind \"$4\" \"$d$4\" && cd $d && pivot_root . old && \
     exec \"$@\"",
];

#[test]
fn a_container_with_a_tenants_socket_that_never_said_hello_is_that_tenants() {
    let world = World::start("");
    // A service without access to parts of the file system is no container.
    let mut service = world.holder(&["unshare", "--mount", "--propagation", "private", "env"], "");
    eventually("it is found", || world.found(FindingKind::Uncontrolled, service.pid));
    assert!(!world.status().findings[0].contained);
    service.end();
    eventually("it is gone", || world.status().findings.is_empty());
    let given = "mkdir -p \"$0/given\"; mount --bind \"$0/run/tenants/a\" \"$0/given\";";
    let mut holder = world.holder(&CONTAINER, given);
    eventually("it is found", || world.found(FindingKind::Unregistered, holder.pid));
    let finding = world.status().findings[0].clone();
    assert_eq!(finding.tenant.as_deref(), Some("a"), "{finding:?}");
    assert!(finding.contained, "{finding:?}");
    holder.end();
}

/// Milliseconds of a day.
const DAY: u64 = 86_400_000;

/// Milliseconds since midnight of a time in RFC 3339.
fn milliseconds(at: &str) -> u64 {
    let parts: Vec<u64> = at
        .split('T')
        .nth(1)
        .unwrap()
        .trim_end_matches('Z')
        .split([':', '.'])
        .map(|part| part.parse().unwrap())
        .collect();
    ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1000 + parts[3]
}

#[test]
fn what_is_to_be_stopped_is_in_a_container_and_a_dry_run_says_so_and_stops_nothing() {
    let dry = World::start("action = \"stop\"\ngrace = \"5s\"\ndry_run = true");
    let mut spared = dry.holder(&CONTAINER, "");
    let world = World::start("action = \"stop\"\ngrace = \"5s\"");
    let mut outside = world.holder(&["env"], "");
    let mut inside = world.holder(&CONTAINER, "");
    let mut stubborn = world.holder(&CONTAINER, "trap '' TERM;");
    eventually("it is stopped", || inside.ended());
    eventually("who does not end is killed", || stubborn.ended());
    let events = world.events();
    let stopped: Vec<Option<u64>> =
        events.iter().filter(|event| event.kind == "proof.stopped").map(|event| event.pid).collect();
    let when = |kind: &str| {
        let event = events.iter().find(|event| event.kind == kind && event.pid == Some(u64::from(inside.pid))).unwrap();
        milliseconds(&event.at)
    };
    let grace = (when("proof.stopped") + DAY - when("proof.uncontrolled")) % DAY;
    assert!((5_000..DAY / 2).contains(&grace), "it is stopped {grace} ms after it was found");
    assert!(stopped.contains(&Some(u64::from(inside.pid))) && stopped.contains(&Some(u64::from(stubborn.pid))));
    assert!(world.found(FindingKind::Uncontrolled, outside.pid) && !outside.ended(), "nobody outside is touched");
    outside.end();

    // Without the dry run it would have been killed by now.
    eventually("it is said", || dry.events().iter().any(|event| event.kind == "proof.stopped"));
    let said: Vec<DaemonEvent> = dry.events().into_iter().filter(|event| event.kind == "proof.stopped").collect();
    assert_eq!((said.len(), said[0].pid), (1, Some(u64::from(spared.pid))), "{said:?}");
    assert_eq!(said[0].more["dry_run"].as_bool(), Some(true));
    assert!(!spared.ended());
    spared.end();
}
