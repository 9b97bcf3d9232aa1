//! Tests of events and the audit log: every follower gets each event once and in order, and the audit log names what
//! happened and who did it.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use support::{Daemon, Guard, Peer, clean, eventually, texts, vgpu, vgpud};
use tempfile::TempDir;
use vgpu_control::event::DaemonEvent;

const TENANTS: &str = "[[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\n[[tenant]]\nname = \"b\"\nsm_limit = 30\n";

/// A daemon whose file contains `more` in addition to two tenants.
struct World {
    dir: TempDir,
    daemon: Daemon,
}

impl World {
    fn start(more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let more = more.replace("DIR", dir.path().to_str().unwrap());
        fs::write(dir.path().join("vgpud.toml"), format!("{more}\n{TENANTS}")).unwrap();
        Self { daemon: daemon(dir.path()), dir }
    }

    /// Output of `vgpu VERB --socket ...`, and whether it succeeded.
    fn vgpu(&self, args: &[&str]) -> (String, String, bool) {
        let output = self.command(args).output().unwrap();
        let (out, err) = texts(&output);
        (out, err, output.status.success())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = vgpu();
        command.args(args).arg("--socket").arg(self.dir.path().join("run/admin.sock"));
        command
    }

    fn events(&self, args: &[&str]) -> Vec<DaemonEvent> {
        let (out, err, ok) = self.vgpu(&[&["events", "--json"], args].concat());
        assert!(ok, "{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn set(&self, args: &[&str]) {
        let (_, err, ok) = self.vgpu(args);
        assert!(ok, "{err}");
    }

    fn join(&self, tenant: &str) -> Peer {
        let mut peer = Peer::connect(&self.dir.path().join("run/tenants").join(tenant).join("vgpud.sock"));
        assert!(peer.hello().contains("\"tenant\""));
        peer
    }
}

fn daemon(dir: &Path) -> Daemon {
    let child = vgpud()
        .arg("--config")
        .arg(dir.join("vgpud.toml"))
        .args(["--driver", "none", "--runtime-dir"])
        .arg(dir.join("run"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let admin = dir.join("run/admin.sock");
    let daemon = Daemon { child, socket: dir.join("run/tenants/a/vgpud.sock") };
    eventually("it serves", || vgpu_control::ask_status(&admin).is_ok());
    daemon
}

fn kinds(events: &[DaemonEvent]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

#[test]
fn what_happens_is_told_in_order_with_who_did_it() {
    let world = World::start("");
    let peer = world.join("a");
    world.set(&["set", "b", "--sm-limit", "40", "--weight", "3"]);
    world.set(&["pause", "a"]);
    world.set(&["resume", "a"]);
    drop(peer);
    eventually("it is seen", || kinds(&world.events(&[])).contains(&"member.left"));
    let all = world.events(&[]);
    assert_eq!(
        kinds(&all),
        [
            "tenant.added",
            "tenant.added",
            "daemon.started",
            "member.joined",
            "tenant.changed",
            "tenant.paused",
            "tenant.resumed",
            "member.left"
        ]
    );
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    let changed = &all[4];
    assert_eq!((changed.tenant.as_deref(), changed.more["what"].as_str()), (Some("b"), Some("sm_limit=40 weight=3")));
    assert_eq!(changed.by.map(|by| by.uid), Some(rustix::process::geteuid().as_raw()));
    assert_eq!(all[3].pid, Some(u64::from(std::process::id())));
    assert_eq!(kinds(&world.events(&["--tenant", "b", "--kind", "tenant.changed"])), ["tenant.changed"]);
    assert_eq!(world.events(&["--since", "7"]).len(), 2);
    let (out, _, _) = world.vgpu(&["events", "--kind", "member"]);
    assert!(out.lines().count() == 2 && out.contains("member.joined      tenant=a pid="), "{out}");
    let (_, err, ok) = world.vgpu(&["events", "--kind", "nothing"]);
    assert!(!ok && err.contains("accepted: ") && err.contains("tenant.paused"), "{err}");
}

/// A follower gets each event after a restart of the daemon too, and while another follower reads nothing.
#[test]
fn who_follows_is_told_each_event_once_over_a_restart_of_the_daemon_too() {
    let mut world = World::start("");
    let mut lazy = Peer::connect(&world.dir.path().join("run/admin.sock"));
    lazy.send(b"{\"hello\":2,\"ask\":\"events\",\"follow\":true}\n");
    let follower = world.command(&["events", "--follow", "--json", "--kind", "tenant"]).stdout(Stdio::piped()).spawn();
    let mut follower = Guard(follower.unwrap());
    let mut lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    let mut next = || -> DaemonEvent { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!([next().kind, next().kind], ["tenant.added", "tenant.added"]);
    for _ in 0..2000 {
        // The second pause changes nothing, but is still an event.
        let admin = world.dir.path().join("run/admin.sock");
        let ask = vgpu_control::ControlCommand::Pause { tenant: "a".into(), lasting: Default::default() };
        vgpu_control::ask_daemon(&admin, &ask).unwrap();
    }
    let first = next().seq;
    for more in 1..2000 {
        let event = next();
        assert_eq!((event.kind.as_str(), event.seq), ("tenant.paused", first + more));
    }
    world.daemon.signal(Signal::TERM);
    world.daemon.child.wait().unwrap();
    world.daemon = daemon(world.dir.path());
    assert_eq!([next().seq, next().seq], [1, 2], "another numbering");
    world.set(&["pause", "b"]);
    let event = next();
    assert_eq!((event.kind.as_str(), event.tenant.as_deref()), ("tenant.paused", Some("b")));
}

#[test]
fn the_audit_log_outlives_the_daemon_names_who_changed_what_and_shows_what_was_tampered_with() {
    let mut world = World::start("[log]\naudit = \"DIR/audit/audit.log\"\nmax_size = \"64KiB\"");
    let peer = world.join("b");
    world.set(&["set", "a", "--memory-limit", "2GiB"]);
    drop(peer);
    world.daemon.signal(Signal::TERM);
    world.daemon.child.wait().unwrap();
    world.daemon = daemon(world.dir.path());
    world.set(&["pause", "b"]);
    let file = world.dir.path().join("audit/audit.log");
    let read = || -> Vec<DaemonEvent> {
        let text = fs::read_to_string(&file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    eventually("it is written", || kinds(&read()).contains(&"tenant.paused"));
    let all = read();
    let found = kinds(&all);
    assert_eq!(found.iter().filter(|kind| **kind == "daemon.started").count(), 2, "{found:?}");
    for kind in ["tenant.added", "member.joined", "member.left", "tenant.changed", "daemon.stopping"] {
        assert!(found.contains(&kind), "{kind} is missing: {found:?}");
    }
    let changed = all.iter().find(|event| event.kind == "tenant.changed").unwrap();
    assert_eq!((changed.by.map(|by| by.uid), changed.more["what"].as_str()), (Some(0), Some("memory_limit=2GiB")));
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let verify = || {
        let output = vgpu().args(["audit", "--verify"]).arg(&file).output().unwrap();
        (texts(&output), output.status.code())
    };
    let ((out, _), code) = verify();
    assert!(code == Some(0) && out.contains("no line was changed"), "{out}");
    assert!(out.contains("is not known"), "nobody was asked: {out}");
    let text = fs::read_to_string(&file).unwrap();
    // The daemon knows the hash of the last line, and another hash may be kept elsewhere.
    let admin = world.dir.path().join("run/admin.sock");
    let asked = |more: &[&str]| {
        let output = vgpu().args(["audit", "--verify", "--socket"]).arg(&admin).args(more).arg(&file).output().unwrap();
        (texts(&output), output.status.code())
    };
    let ((out, err), code) = asked(&[]);
    assert!(code == Some(0) && out.contains("the daemon's last line is there"), "{out}{err}");
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&file, &text[..last]).unwrap();
    let ((_, err), code) = asked(&[]);
    assert!(code == Some(1) && err.contains("lines were cut off"), "{err}");
    assert_eq!(verify().1, Some(0), "what is left is whole, and nobody is asked");
    fs::write(&file, &text).unwrap();
    let ((_, err), code) = asked(&["--head", &"0".repeat(64)]);
    assert!(code == Some(1) && err.contains("--head knows a later line"), "{err}");
    assert_eq!(asked(&["--head", "00"]).1, Some(2));
    // A changed last line, garbage, and an empty file.
    fs::write(&file, format!("{}{}", &text[..last], text[last..].replace("paused", "resumed"))).unwrap();
    let ((_, err), code) = verify();
    assert!(code == Some(1) && err.contains("this line was changed"), "{err}");
    for garbage in ["", "garbage\n", "{\"prev\":\"\"}\n"] {
        fs::write(&file, garbage).unwrap();
        let ((out, err), code) = verify();
        assert!(code == Some(1) && out.is_empty() && err.contains("line of an audit log"), "{garbage:?}: {out}{err}");
    }
    fs::write(&file, &text).unwrap();
    let (out, _) = texts(&vgpu().arg("audit").arg(&file).output().unwrap());
    assert_eq!(out.lines().count(), all.len());
    fs::write(&file, text.replace("2GiB", "1GiB")).unwrap();
    let ((_, err), code) = verify();
    assert!(code == Some(1) && err.contains("audit.log:") && err.contains("was changed"), "{err}");
    let without: String =
        text.lines().filter(|line| !line.contains("tenant.changed")).map(|line| line.to_owned() + "\n").collect();
    fs::write(&file, without).unwrap();
    assert_eq!(verify().1, Some(1));
}

#[test]
fn an_audit_log_that_cannot_be_written_is_said_and_stops_nothing() {
    let world = World::start("[log]\naudit = \"DIR/audit.log\"");
    let status = || vgpu_control::ask_status(&world.dir.path().join("run/admin.sock")).unwrap();
    assert_eq!(status().faults, []);
    let file = world.dir.path().join("audit.log");
    fs::remove_file(&file).unwrap();
    // A directory, which even root cannot open as a file.
    fs::create_dir(&file).unwrap();
    eventually("it is said", || {
        world.set(&["pause", "a"]);
        status().faults.iter().any(|fault| fault.what == "audit" && fault.words.contains("audit.log"))
    });
    drop(world.join("b"));
    fs::remove_dir(&file).unwrap();
    eventually("it is written again", || {
        world.set(&["resume", "a"]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        status().faults.is_empty()
    });
    assert!(fs::read_to_string(&file).unwrap().contains("tenant.resumed"));
}

#[test]
fn a_fifo_or_a_full_device_as_audit_log_is_said_and_the_daemon_serves() {
    for made in [["mkfifo", "DIR/audit.log"].as_slice(), &["ln", "-s", "/dev/full", "DIR/audit.log"]] {
        let dir = TempDir::new().unwrap();
        let at = |text: &str| text.replace("DIR", dir.path().to_str().unwrap());
        let (command, args) = made.split_first().unwrap();
        assert!(Command::new(command).args(args.iter().map(|arg| at(arg))).status().unwrap().success());
        fs::write(dir.path().join("vgpud.toml"), at(&format!("[log]\naudit = \"DIR/audit.log\"\n{TENANTS}"))).unwrap();
        let _daemon = daemon(dir.path());
        let faults = vgpu_control::ask_status(&dir.path().join("run/admin.sock")).unwrap().faults;
        assert!(
            faults.iter().any(|fault| fault.what == "audit" && fault.words.contains("no regular file")),
            "{made:?} {faults:?}"
        );
    }
}

#[test]
fn a_daemon_whose_files_may_not_grow_serves_and_says_so() {
    for kilobytes in ["8", "40"] {
        let dir = TempDir::new().unwrap();
        let config = "[log]\naudit = \"DIR/audit.log\"\n".replace("DIR", dir.path().to_str().unwrap());
        fs::write(dir.path().join("vgpud.toml"), format!("{config}{TENANTS}")).unwrap();
        let vgpud = vgpud();
        let mut command = clean(Command::new("bash"));
        command.arg("-c").arg(format!("ulimit -f {kilobytes}; exec \"$0\" \"$@\"")).arg(vgpud.get_program());
        command.arg("--config").arg(dir.path().join("vgpud.toml"));
        command.args(["--driver", "none", "--runtime-dir"]).arg(dir.path().join("run")).stderr(Stdio::null());
        let daemon = Daemon { child: command.spawn().unwrap(), socket: dir.path().join("run/tenants/a/vgpud.sock") };
        let admin = dir.path().join("run/admin.sock");
        eventually("it serves", || vgpu_control::ask_status(&admin).is_ok());
        eventually("it says so", || {
            let faults = vgpu_control::ask_status(&admin).unwrap().faults;
            faults.iter().any(|fault| fault.what == "record")
        });
        drop(daemon);
    }
}

#[test]
fn who_follows_and_cannot_write_ends_with_1() {
    let world = World::start("");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut follower =
        Guard(world.command(&["events", "--follow"]).stdout(full).stderr(Stdio::null()).spawn().unwrap());
    let mut code = None;
    eventually("it ends", || {
        code = follower.0.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(1));
}

#[test]
fn a_daemon_whose_logs_have_no_place_serves_and_says_so() {
    let world = World::start("[log]\naudit = \"/proc/none/audit.log\"\nfile = \"/proc/none/log\"");
    drop(world.join("a"));
    let status = vgpu_control::ask_status(&world.dir.path().join("run/admin.sock")).unwrap();
    assert!(
        status.faults.iter().any(|fault| fault.what == "audit" && fault.words.contains("/proc/none")),
        "{status:?}"
    );
}

#[test]
fn the_log_goes_to_a_file_as_json_where_the_configuration_says_so() {
    let world = World::start("[log]\nfile = \"DIR/log/vgpud.log\"\nformat = \"json\"\nmax_size = \"64KiB\"\nkeep = 2");
    for _ in 0..1000 {
        let ask = vgpu_control::ControlCommand::Pause { tenant: "a".into(), lasting: Default::default() };
        vgpu_control::ask_daemon(&world.dir.path().join("run/admin.sock"), &ask).unwrap();
    }
    let file = world.dir.path().join("log/vgpud.log");
    eventually("it is rotated", || file.with_extension("log.1").exists());
    let text = fs::read_to_string(file.with_extension("log.1")).unwrap();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    assert!(fs::metadata(&file).unwrap().len() <= 64 << 10);
}
