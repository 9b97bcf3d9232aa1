//! Tests of `vgpu` commands that change, pause and query tenants while members run.

#[path = "../../support/commands.rs"]
mod commands;
#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::process::Stdio;

use member::{Member, On};
use rustix::process::Signal;
use serde_json::Value;
use support::world::World;
use support::{Daemon, Peer, eventually, texts, vgpu, vgpud};
use tempfile::TempDir;
use vgpu_control::{self as control, ChangeResult, ControlCommand, DeviceExplanation, ProcessStatus, TermsStatus};
use vgpu_core::protocol::wire::terms_file::TermsFile;
use vgpu_core::time::arbiter::{Class, Gate};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";
const MS: u64 = 1_000_000;
const GIB: u64 = 1 << 30;

const FILE: &str = "
[[device]]
id = \"GPU-00000000-0000-0000-0000-000000000001\"
memory = \"80GiB\"

[[tenant]]
name = \"chat\"
memory_limit = \"30GiB\"
sm_request = 40
class = \"latency\"

[[tenant]]
name = \"train\"
memory_limit = \"40GiB\"
sm_request = 50
sm_limit = 80
";

/// Serves [`FILE`] with a log.
fn serve() -> World {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), FILE).unwrap();
    serve_in(dir)
}

/// Serves the file in this directory.
fn serve_in(dir: TempDir) -> World {
    World::start_by(vgpud(), dir, "info", Stdio::piped())
}

impl World {
    fn member(&self, tenant: &str) -> On {
        Member::hello(&self.socket(tenant)).join(GPU)
    }

    fn file(&self, tenant: &str) -> TermsFile {
        let path = self.socket(tenant).with_file_name("terms.json");
        TermsFile::decode(&fs::read(path).unwrap()).unwrap()
    }

    /// Makes the daemon read its file again, and waits until it has.
    fn again(&self) {
        let before = self.status().configuration.unwrap().reloads;
        self.daemon.signal(Signal::HUP);
        eventually("the file is read again", || self.status().configuration.unwrap().reloads == before + 1);
    }
}

#[test]
fn a_live_change_is_in_force_for_who_runs_and_for_who_comes_and_is_in_the_terms_file() {
    let world = serve();
    let member = world.member("train");
    let before = member.allowed();
    assert_eq!((before.memory, before.terms.ceiling), (Some(Bytes(40 * GIB)), Share::from_percent(80)));
    let done: ChangeResult = world.json(&[
        "set",
        "train",
        "--device",
        GPU,
        "--memory-limit",
        "25%",
        "--sm-limit",
        "unlimited",
        "--sm-request",
        "12.5",
        "--weight",
        "7",
        "--class",
        "batch",
        "--quantum",
        "2ms",
    ]);
    let mut changed = done.changed.clone();
    changed.sort();
    assert_eq!(changed, ["class", "memory_limit", "quantum", "sm_limit", "sm_request", "weight"]);
    assert!(done.notes[0].contains("until the configuration is read again"), "{done:?}");
    for member in [member, world.member("train")] {
        let now = member.allowed();
        assert_eq!((now.memory, now.terms.ceiling), (Some(Bytes(20 * GIB)), None));
        assert_eq!((now.terms.floor, now.terms.weight), (Share::from_permille(125), 7));
        assert_eq!((now.terms.class, now.terms.quantum), (Class::Batch, Some(2 * MS)));
    }
    let file = world.file("train");
    let here = file.terms_of_device(GPU).unwrap();
    assert_eq!(
        (here.memory_limit, here.sm_limit, here.sm_request),
        (Some(Bytes(20 * GIB)), None, Share::from_permille(125))
    );
    let shown = world.says(&["status"]);
    assert!(shown.contains("train: changed live on device GPU-"), "{shown}");
    // Setting the same value again is no change.
    let again: ChangeResult = world.json(&["set", "train", "--weight", "7"]);
    assert!(again.changed.is_empty() && again.notes.is_empty(), "{again:?}");
    assert!(world.says(&["set", "train", "--weight", "7"]).contains("it was so already"));
}

#[test]
fn a_reading_of_the_file_takes_the_files_values_though_the_file_is_the_same() {
    let world = serve();
    let member = world.member("train");
    world.says(&["set", "train", "--sm-limit", "60", "--memory-limit", "1GiB"]);
    assert_eq!(world.terms("train").changed_live, ["memory_limit", "sm_limit"]);
    assert_eq!(member.allowed().memory, Some(Bytes(GIB)));
    world.again();
    let terms = world.terms("train");
    assert!(terms.changed_live.is_empty(), "{terms:?}");
    assert_eq!((terms.memory_limit, terms.sm_limit), (Some(40 * GIB), Some(80.0)));
    assert_eq!(
        (member.allowed().memory, member.allowed().terms.ceiling),
        (Some(Bytes(40 * GIB)), Share::from_percent(80))
    );
    assert_eq!(world.file("train").terms_of_device(GPU).unwrap().memory_limit, Some(Bytes(40 * GIB)));
}

#[test]
fn what_is_refused_changes_nothing_and_says_what_would_be_accepted() {
    let world = serve();
    let member = world.member("train");
    let now = || {
        let terms = |tenant| TermsStatus { time: None, ..world.terms(tenant) };
        (terms("train"), terms("chat"), member.allowed(), world.file("train"))
    };
    eventually("the ledger is read", || world.terms("train").memory_used.is_some());
    let before = now();
    let words = |args: &[&str], code| world.refused(&[&["set"], args].concat(), code);
    for (args, code, said) in [
        (&["train", "--memory-limit", "51GiB"][..], 1, "brings the memory limits on device GPU-"),
        (&["train", "--memory-limit", "unlimited"], 1, "the whole device"),
        (&["train", "--memory-limit", "81GiB"], 1, "at most 80 GiB"),
        (&["train", "--sm-request", "61"], 1, "brings the requests on device GPU-"),
        (&["train", "--sm-limit", "49"], 1, "sm_request is more than the sm_limit of tenant train"),
        (
            &["trian", "--weight", "2"],
            1,
            "there is no tenant \"trian\" (did you mean \"train\"?); accepted: chat, train",
        ),
        (&["train", "--device", "1", "--weight", "2"], 1, "there is no device of tenant train: \"1\""),
        (&["train", "--memory-limit", "lots"], 2, "--memory-limit \"lots\" is not a size; accepted: "),
        (&["train", "--weight", "0"], 2, "--weight \"0\" is out of range; accepted: "),
        (&["train", "--class", "latncy"], 2, "did you mean \"latency\"?"),
        (&["train", "--quantum", "1h"], 2, "--quantum \"1h\" is not a duration"),
        (&["train"], 2, "nothing to set; accepted: "),
        // Only half of the change would fit.
        (&["train", "--weight", "3", "--sm-request", "61"], 1, "at most 100 % together; nothing was changed"),
    ] {
        let err = words(args, code);
        assert!(err.starts_with("vgpu: ") && err.contains(said), "{args:?}: {err}");
    }
    for line in [
        &br#"{"hello":2,"ask":"set","tenant":"train","change":{"weight":"3","wieght":"4"}}"#[..],
        br#"{"hello":2,"ask":"set","tenant":"train","change":{"weight":3}}"#,
        br#"{"hello":1,"ask":"set","tenant":"train","change":{"weight":"3"}}"#,
        br#"{"hello":2,"ask":"stop"}"#,
    ] {
        let mut peer = Peer::connect(&world.admin());
        let line = peer.send(&[line, b"\n"].concat()).line();
        assert!(line.contains("\"error\""), "{line}");
    }
    assert_eq!(now(), before);
}

#[test]
fn a_paused_tenant_gets_no_lease_until_it_is_resumed_and_others_do() {
    let world = serve();
    let (mut train, mut chat) = (world.member("train"), world.member("chat"));
    assert!(world.says(&["pause", "train"]).starts_with("train paused\nnote: it lasts until `vgpu resume`"));
    assert!(world.says(&["pause", "train"]).starts_with("train is paused already"));
    train.wish();
    // Another tenant's work begins and ends: the device is free again, and the paused tenant still receives nothing.
    for _ in 0..3 {
        chat.runs(MS);
        chat.done(MS);
    }
    assert!(matches!(train.gate(), Gate::Wait | Gate::Cap { .. }), "{:?}", train.gate());
    let explained: Vec<DeviceExplanation> = world.json(&["explain", "train"]);
    assert_eq!(explained[0].state, "paused");
    assert!(world.says(&["status"]).contains("train: paused; it launches nothing until `vgpu resume train`"));
    world.again();
    assert!(world.status().tenants[1].paused, "a reading of the file does not end it");
    assert!(matches!(train.gate(), Gate::Wait | Gate::Cap { .. }));
    assert!(world.says(&["resume", "train"]).starts_with("train resumed\n"));
    train.runs(MS);
    train.done(MS);
    assert!(world.says(&["resume", "train"]).starts_with("train was not paused\n"));
    assert!(world.refused(&["pause", "chta"], 1).contains("did you mean \"chat\"?"));
}

#[test]
fn who_waits_is_told_behind_whom_and_who_is_nowhere_how_to_come() {
    let world = serve();
    let absent: Vec<DeviceExplanation> = world.json(&["explain", "train"]);
    assert_eq!((absent.len(), absent[0].state.as_str()), (1, "absent"));
    assert!(absent[0].sentences[0].contains("VGPU_SOCKET"), "{absent:?}");
    let (mut chat, train) = (world.member("chat"), world.member("train"));
    chat.runs(3600 * 1000 * MS);
    train.wish();
    eventually("the wish is seen", || {
        world.json::<Vec<DeviceExplanation>>(&["explain", "train"])[0].state == "waiting"
    });
    let shown = world.says(&["explain", "train"]);
    assert!(shown.contains("It waits behind chat of class latency, which comes before normal"), "{shown}");
    assert!(shown.contains("class normal, a floor of 50 %, a ceiling of 80 %"), "{shown}");
    let holder: Vec<DeviceExplanation> = world.json(&["explain", "chat"]);
    assert!(["running", "draining", "overdue"].contains(&holder[0].state.as_str()), "{holder:?}");
    chat.done(MS);
    assert!(world.refused(&["explain", "trian"], 1).contains("did you mean \"train\"?"));
}

#[test]
fn ps_and_status_tell_what_each_process_and_each_tenant_got() {
    let world = serve();
    let mut train = world.member("train");
    let mut idle = Peer::connect(&world.socket("train"));
    idle.hello();
    for _ in 0..3 {
        train.runs(2 * MS);
        std::thread::sleep(std::time::Duration::from_millis(4));
        train.done(2 * MS);
    }
    let gpu = |process: &ProcessStatus| process.member.devices.first().map(|device| device.gpu_seconds.unwrap());
    eventually("the time is told", || {
        world.json::<Vec<ProcessStatus>>(&["ps"]).iter().any(|process| gpu(process).is_some_and(|gpu| gpu >= 0.006))
    });
    let processes: Vec<ProcessStatus> = world.json(&["ps"]);
    assert_eq!(processes.len(), 2);
    let (works, idle) = match processes.as_slice() {
        [a, b] if b.member.devices.is_empty() => (a, b),
        [a, b] => (b, a),
        _ => panic!("{processes:?}"),
    };
    assert_eq!(
        (works.tenant.as_str(), works.member.pid, works.member.pid_inside),
        ("train", Some(std::process::id()), std::process::id())
    );
    assert_eq!((works.member.uid, works.member.devices[0].device.as_str()), (rustix::process::getuid().as_raw(), GPU));
    assert_eq!(idle.member.devices, []);
    let shown = world.says(&["ps"]);
    assert!(shown.contains("  none ") && shown.contains(GPU), "{shown}");

    let time = world.terms("train").time.unwrap();
    assert!(time.gpu_seconds >= Some(0.006) && time.members == 1, "{time:?}");
    assert_eq!(world.terms("chat").time, None, "nobody of it was there");
    let status = world.status();
    assert_eq!(
        (status.devices.len(), status.devices[0].uuid.as_deref(), status.devices[0].arbitrated),
        (1, Some(GPU), true)
    );
    assert_eq!(status.devices[0].memory, Some(80 * GIB));
    eventually("the last seconds are told", || world.terms("train").time.unwrap().over_seconds > 0.0);
}

#[test]
fn a_client_of_another_protocol_is_refused_with_words_and_watching_shows_the_status_again() {
    let world = serve();
    let mut peer = Peer::connect(&world.admin());
    let line = peer.send(b"{\"hello\":3,\"ask\":\"status\"}\n").line();
    let answer: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(answer["hello"], 2);
    assert_eq!(answer["error"], "administrative protocol 3 is not spoken here; this daemon speaks 2");

    let shell = format!(
        "{} status --watch 0.1 --json --socket '{}' | head -n 3",
        env!("CARGO_BIN_EXE_vgpu"),
        world.admin().display()
    );
    let output = std::process::Command::new("bash").args(["-c", &shell]).output().unwrap();
    let (out, err) = texts(&output);
    assert_eq!((out.lines().count(), err.as_str()), (3, ""));
    for line in out.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap()["tenants"][1]["name"], "train");
    }
}

#[test]
fn who_watches_sees_the_next_daemon_too() {
    use std::io::{BufRead as _, BufReader};
    let world = serve();
    let mut watch = vgpu();
    watch.args(["status", "--watch", "0.1", "--json", "--socket"]).arg(world.admin());
    let mut watch = support::Guard(watch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut pid = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap()["pid"].clone();
    let first = pid();
    let World { daemon, dir } = world;
    daemon.kill();
    let world = serve_in(dir);
    eventually("the next one is seen", || pid() != first);
    assert_eq!(pid(), world.daemon.child.id());
}

#[test]
fn without_a_daemon_every_verb_says_where_it_looked_and_how_to_start_one() {
    let dir = TempDir::new().unwrap();
    for words in
        [&["status"][..], &["ps"], &["set", "a", "--weight", "2"], &["pause", "a"], &["resume", "a"], &["explain", "a"]]
    {
        let output = vgpu().args(words).env("VGPU_RUNTIME_DIR", dir.path()).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let place = dir.path().join("admin.sock").display().to_string();
        assert!(err.contains(&place) && err.contains("vgpud --config") && err.contains("--socket"), "{words:?}: {err}");
    }
}

#[test]
fn a_daemon_of_the_next_version_is_told_to_need_its_own_vgpu() {
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("admin.sock");
    let listener = std::os::unix::net::UnixListener::bind(&place).unwrap();
    let answers = [
        r#"{"hello":3,"error":"administrative protocol 2 is not spoken here; this daemon speaks 3"}"#,
        r#"{"hello":3,"done":{"another":"shape"}}"#,
        r#"{"hello":3}"#,
    ];
    let next = std::thread::spawn(move || {
        use std::io::{BufRead as _, BufReader, Write as _};
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    for _ in answers {
        let words =
            control::ask_daemon(&place, &ControlCommand::Pause { tenant: "a".into(), lasting: Default::default() })
                .unwrap_err()
                .to_string();
        assert!(words.contains("speaks") && words.contains('2') && words.contains('3'), "{words}");
    }
    next.join().unwrap();
}

#[test]
fn the_terms_file_comes_with_the_tenant_stays_at_the_end_and_goes_when_it_is_removed() {
    let world = serve();
    let file = world.file("chat");
    assert_eq!(
        (file.tenant.as_str(), file.terms_of_device(GPU).unwrap().memory_limit),
        ("chat", Some(Bytes(30 * GIB)))
    );
    let path = world.socket("train").with_file_name("terms.json");
    let without = FILE.split("\n[[tenant]]\nname = \"train\"").next().unwrap();
    fs::write(world.dir.path().join("vgpud.toml"), without).unwrap();
    let member = world.member("train");
    world.again();
    assert!(!path.exists(), "nobody new comes in, with or without a daemon");
    fs::write(world.dir.path().join("vgpud.toml"), FILE).unwrap();
    world.again();
    assert!(path.exists());
    drop(member);
    let chat = world.socket("chat").with_file_name("terms.json");
    let World { daemon, dir } = world;
    assert_eq!(daemon.stop().0, Some(0));
    assert!(chat.exists() && path.exists(), "for who starts while no daemon runs");
    // The tenant was removed from the file while no daemon ran.
    fs::write(dir.path().join("vgpud.toml"), without).unwrap();
    let world = serve_in(dir);
    assert!(!path.parent().unwrap().exists(), "it is removed by the next one");
    assert_eq!(world.file("chat").tenant, "chat");
}

#[test]
fn tenants_that_share_a_directory_have_no_terms_file() {
    let dir = TempDir::new().unwrap();
    let socket = |name: &str| dir.path().join(name);
    let tenant = |name: &str| format!("{name}:socket={}", socket(name).display());
    let child =
        vgpud().args(["--tenant", &tenant("a"), "--tenant", &tenant("b")]).stderr(Stdio::piped()).spawn().unwrap();
    let daemon = Daemon { child, socket: socket("b") };
    eventually("the daemon answers", || Peer::try_hello(&daemon.socket).is_some());
    assert!(!dir.path().join("terms.json").exists());
    let (_, log) = daemon.stop();
    assert!(log.contains("in one directory"), "{log}");
}
