//! Tests of `[[on_event]]`: programs that the daemon runs when an event happens.

#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use support::world::World;
use support::{Peer, eventually, vgpud};
use tempfile::TempDir;
use vgpu_control::event::{DaemonEvent, triggering_kinds};
use vgpu_control::{ActionStatus, ControlCommand, ask_daemon};

/// Events that may wait for an action ([`vgpu_daemon::actions::MAX_EVENTS_WAITING`], as the documents say).
const QUEUE: usize = 64;

const TENANTS: &str = "[[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\n[[tenant]]\nname = \"b\"\n";

/// A section `[[on_event]]` that runs `script` by `sh`, with `DIR` as the directory of the test.
fn action(dir: &Path, events: &str, script: &str, more: &str) -> String {
    let script = script.replace("DIR", dir.to_str().unwrap());
    format!("[[on_event]]\nevents = {events}\nexec = [\"/bin/sh\", \"-c\", {script:?}]\n{more}\n")
}

/// A daemon that logs into the file `log`, with this action in its file.
fn world(events: &str, script: &str, more: &str) -> World {
    let dir = TempDir::new().unwrap();
    let text = format!("{TENANTS}{}", action(dir.path(), events, script, more));
    start(vgpud(), dir, &text)
}

fn start(command: Command, dir: TempDir, text: &str) -> World {
    fs::write(dir.path().join("vgpud.toml"), text).unwrap();
    let log = fs::File::create(dir.path().join("log")).unwrap();
    World::start_by(command, dir, "info", log.into())
}

fn path(world: &World, name: &str) -> PathBuf {
    world.dir.path().join(name)
}

/// Contents of a file that an action wrote; empty: there is none.
fn read(world: &World, name: &str) -> String {
    fs::read_to_string(path(world, name)).unwrap_or_default()
}

fn ask(world: &World, ask: &ControlCommand) {
    let answer = ask_daemon(&world.admin(), ask).unwrap();
    assert_eq!(answer.error, None);
}

fn pause(world: &World, tenant: &str) {
    ask(world, &ControlCommand::Pause { tenant: tenant.into(), lasting: Default::default() });
}

fn events(world: &World) -> Vec<DaemonEvent> {
    let mut peer = Peer::connect(&world.admin());
    peer.send(b"{\"hello\":2,\"ask\":\"events\"}\n");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut peer.reader, &mut text).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Results of all runs that ended, in their order.
fn results(world: &World) -> Vec<String> {
    let ended = events(world).into_iter().filter(|event| event.kind == "action.ended");
    ended.map(|event| event.more["result"].as_str().unwrap().to_owned()).collect()
}

fn actions(world: &World) -> Vec<ActionStatus> {
    world.status().actions
}

/// State letter of a process in /proc; `None`: there is none.
fn state(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

fn is_alive(pid: &str) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// Children of the daemon, dead ones too.
fn children(world: &World) -> Vec<String> {
    let own = world.daemon.child.id();
    let tasks = fs::read_dir(format!("/proc/{own}/task")).unwrap();
    let children = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// A signal mask of /proc/PID/status, as the script saved it.
fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn a_program_finds_a_daemon_whose_administrative_socket_is_elsewhere() {
    let dir = TempDir::new().unwrap();
    let admin = dir.path().join("elsewhere.sock");
    let file = format!(
        "[daemon]\nadmin_socket = {admin:?}\n{TENANTS}{}",
        action(dir.path(), "[\"tenant.paused\"]", "echo \"$VGPU_ADMIN_SOCKET\" > DIR/done", "")
    );
    fs::write(dir.path().join("vgpud.toml"), file).unwrap();
    let mut command = vgpud();
    command.arg("--config").arg(dir.path().join("vgpud.toml")).args(["--driver", "none", "--runtime-dir"]);
    let child = command.arg(dir.path().join("run")).stderr(Stdio::null()).spawn().unwrap();
    let _daemon = support::Daemon { child, socket: admin.clone() };
    let command = ControlCommand::Pause { tenant: "a".into(), lasting: Default::default() };
    eventually("the daemon answers", || ask_daemon(&admin, &command).is_ok());
    let told = || fs::read_to_string(dir.path().join("done")).unwrap_or_default();
    eventually("the program ran", || told() == format!("{}\n", admin.display()));
}

#[test]
fn an_event_starts_its_program_with_the_event_on_its_input_and_nothing_inherited() {
    let dir = TempDir::new().unwrap();
    let script = "cat > DIR/input; tr '\\\\0' '\\\\n' < /proc/$$/environ > DIR/environ; pwd > DIR/cwd; \
        ls /proc/self/fd > DIR/fds; cat /proc/$$/stat > DIR/stat; \
        while IFS= read -r line; do echo \"$line\"; done < /proc/$$/status > DIR/status; echo whole > DIR/done";
    let script = script.replace("\\\\", "\\");
    let text = format!("{TENANTS}{}", action(dir.path(), "[\"tenant.paused\"]", &script, ""));
    // The daemon itself has a descriptor and variables that it was not given for its programs.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec 9</dev/null; exec \"$0\" \"$@\""]).arg(vgpud().get_program());
    shell.env("SECRET", "x").env("LD_BIND_NOW", "1").stdin(Stdio::null());
    let world = start(shell, dir, &text);
    pause(&world, "b");
    eventually("the program ran", || read(&world, "done") == "whole\n");
    let told: DaemonEvent = serde_json::from_str(&read(&world, "input")).unwrap();
    let all = events(&world);
    assert_eq!(Some(&told), all.iter().find(|event| event.kind == "tenant.paused"), "{all:?}");
    assert_eq!((told.kind.as_str(), told.tenant.as_deref()), ("tenant.paused", Some("b")));
    assert!(read(&world, "input").ends_with("}\n") && read(&world, "input").lines().count() == 1, "one line");
    let environ = read(&world, "environ");
    let (run, path) = (world.dir.path().join("run"), std::env::var("PATH").unwrap());
    let expected = [
        format!("PATH={path}"),
        format!("VGPU_ADMIN_SOCKET={}", run.join("admin.sock").display()),
        "VGPU_EVENT=tenant.paused".into(),
        "VGPU_EVENT_TENANT=b".into(),
        format!("VGPU_RUNTIME_DIR={}", run.display()),
    ];
    let environ: BTreeSet<&str> = environ.lines().filter(|line| !line.starts_with("PWD=")).collect();
    assert_eq!(environ, expected.iter().map(String::as_str).collect());
    assert_eq!(read(&world, "cwd"), "/\n");
    let fds = read(&world, "fds");
    assert_eq!(fds.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "the last is that of `ls` itself");
    let stat = read(&world, "stat");
    let numbers: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!(numbers[2], stat.split(' ').next().unwrap(), "it leads its own process group: {stat}");
    let status = read(&world, "status");
    let (blocked, ignored) = (mask(&status, "SigBlk:"), mask(&status, "SigIgn:"));
    // The daemon itself ignores SIGPIPE; a program must not. The shell reads its status itself: while a shell waits for
    // its child in vfork it blocks all signals, and the child could read that.
    assert_eq!((blocked, ignored >> 12 & 1), (0, 0), "signals are as programs expect them");
    eventually("its end is told", || results(&world) == ["exit status 0"]);
    let ended = events(&world).into_iter().find(|event| event.kind == "action.ended").unwrap();
    assert_eq!((ended.tenant.as_deref(), ended.level.as_str()), (Some("b"), "info"));
    assert_eq!((ended.more["action"].as_str(), ended.more["event"].as_u64()), (Some("/bin/sh"), Some(told.seq)));
    eventually("no process is left", || children(&world).is_empty());
}

#[test]
fn the_timeout_kills_the_program_and_what_it_started() {
    let script = "sleep 1000 & echo $! > DIR/child; trap '' TERM; echo $$ > DIR/own; while :; do sleep 1000; done";
    let world = world("[\"tenant.paused\"]", script, "timeout = \"1.5s\"");
    pause(&world, "a");
    eventually("it is killed", || results(&world) == ["killed after its timeout of 1500ms"]);
    for name in ["own", "child"] {
        let pid = read(&world, name);
        assert!(!pid.is_empty());
        eventually("the process has ended", || !is_alive(&pid));
    }
    assert_eq!(actions(&world)[0].failed, 1);
}

#[test]
fn a_program_that_ends_takes_its_group_along_and_one_that_kept_its_output_open_is_not_waited_for() {
    let script = "sleep 1000 & echo $! > DIR/in; setsid sleep 1000 & echo $! > DIR/out; exit 3";
    let world = world("[\"tenant.paused\"]", script, "timeout = \"3600s\"");
    pause(&world, "a");
    eventually("it has ended", || results(&world) == ["exit status 3"]);
    let (inside, outside) = (read(&world, "in"), read(&world, "out"));
    eventually("its child in the group has ended", || !is_alive(&inside));
    // A process that left the group is its own master; whoever starts one answers for it.
    let pid = outside.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Runs wait in the script until the file `go` is there, so that the counts do not depend on time.
#[test]
fn at_most_at_once_run_the_others_wait_and_those_beyond_are_dropped_counted_and_told() {
    let script = "echo begun >> DIR/begun; until [ -e DIR/go ]; do sleep 0.05; done; echo ended >> DIR/ended";
    let world = world("[\"tenant.paused\"]", script, "at_once = 2\ntimeout = \"3600s\"");
    let begun = || read(&world, "begun").lines().count();
    pause(&world, "a");
    pause(&world, "b");
    eventually("two run", || begun() == 2);
    for _ in 0..QUEUE + 5 {
        pause(&world, "a");
    }
    let [now] = actions(&world).try_into().unwrap();
    assert_eq!((now.running, now.waiting, now.dropped, now.ended), (2, QUEUE, 5, 0));
    assert_eq!(begun(), 2);
    fs::write(path(&world, "go"), "").unwrap();
    let ended = QUEUE as u64 + 2;
    eventually("all that waited have run", || actions(&world)[0].ended == ended && actions(&world)[0].running == 0);
    assert_eq!(read(&world, "ended").lines().count() as u64, ended);
    eventually("the loss is told", || events(&world).iter().any(|event| event.kind == "action.dropped"));
    let dropped = events(&world).into_iter().filter(|event| event.kind == "action.dropped");
    assert_eq!(dropped.map(|event| event.more["dropped"].as_u64().unwrap()).sum::<u64>(), 5);
    let [now] = actions(&world).try_into().unwrap();
    assert_eq!((now.running, now.waiting, now.dropped, now.failed), (0, 0, 5, 0));
    // Another event starts a program again.
    pause(&world, "b");
    eventually("it ran", || actions(&world)[0].ended == ended + 1);
}

#[test]
fn an_action_for_all_events_does_not_start_itself() {
    let subjects: BTreeSet<&str> = triggering_kinds().iter().map(|kind| kind.split('.').next().unwrap()).collect();
    let world = world(
        &format!("{subjects:?}").replace(['{', '}'], " ").replacen(' ', "[", 1).replace("\" ", "\"]"),
        "read -r line; echo \"$line\" >> DIR/seen",
        "at_once = 1",
    );
    pause(&world, "a");
    ask(&world, &ControlCommand::Resume { tenant: "a".into() });
    let others = || events(&world).into_iter().filter(|event| !event.kind.starts_with("action."));
    eventually("each event ran once", || actions(&world)[0].ended == others().count() as u64);
    // Runs that an end had started would come before the one for this event.
    pause(&world, "b");
    let seen = || read(&world, "seen").lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>();
    eventually("the last one ran", || {
        seen().iter().any(|event: &DaemonEvent| event.tenant.as_deref() == Some("b") && event.kind == "tenant.paused")
    });
    // One at a time: in the order in which they happened.
    assert_eq!(seen(), others().collect::<Vec<_>>());
}

#[test]
fn a_reload_changes_actions_while_a_run_of_a_removed_one_ends_as_it_is() {
    let wait = "echo old >> DIR/begun; until [ -e DIR/go ]; do sleep 0.05; done; echo $VGPU_EVENT_TENANT >> DIR/old";
    let world = world("[\"tenant.paused\"]", wait, "at_once = 1\ntimeout = \"3600s\"");
    for _ in 0..3 {
        pause(&world, "a");
    }
    eventually("it runs", || read(&world, "begun") == "old\n");
    let new = action(world.dir.path(), "[\"tenant.resumed\"]", "echo $VGPU_EVENT_TENANT >> DIR/new", "");
    world.reload(&format!("{TENANTS}{new}"));
    let taken = |world: &World| events(world).iter().filter(|event| event.kind == "config.taken").count();
    eventually("it is in force", || taken(&world) == 1 && actions(&world).len() == 1);
    pause(&world, "b");
    ask(&world, &ControlCommand::Resume { tenant: "b".into() });
    eventually("the new one ran", || read(&world, "new") == "b\n");
    assert_eq!(read(&world, "old"), "", "the old one still runs");
    fs::write(path(&world, "go"), "").unwrap();
    eventually("the old one has ended by itself", || read(&world, "old") == "a\n");
    eventually("both are told", || results(&world) == ["exit status 0", "exit status 0"]);
    let dropped = events(&world).into_iter().find(|event| event.kind == "action.dropped").unwrap();
    assert_eq!(dropped.more["dropped"], 2, "{dropped:?}");
    assert_eq!(read(&world, "begun"), "old\n");
    // A file with the same action keeps its count.
    world.reload(&format!("{TENANTS}{new}\n# the same\n"));
    eventually("it is in force", || taken(&world) == 2);
    assert_eq!(actions(&world)[0].ended, 1);
}

#[test]
fn programs_that_never_end_delay_no_answer_and_no_member() {
    // They read nothing, write without an end, and never exit.
    let world = world("[\"tenant.paused\"]", "exec yes", "at_once = 16\ntimeout = \"3600s\"");
    for _ in 0..QUEUE {
        pause(&world, "a");
    }
    eventually("they run", || actions(&world)[0].running == 16);
    for _ in 0..50 {
        assert_eq!(world.status().tenants.len(), 2);
        let mut peer = Peer::connect(&world.socket("a"));
        assert!(peer.hello().contains("\"tenant\""));
    }
    assert_eq!(actions(&world)[0].ended, 0);
}

#[test]
fn output_is_logged_in_part_and_failures_are_told_with_their_reason() {
    let dir = TempDir::new().unwrap();
    let at = dir.path();
    fs::write(at.join("no_program"), "").unwrap();
    fs::write(at.join("no_shell"), "#!/does/not/exist\n").unwrap();
    fs::set_permissions(at.join("no_shell"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let long =
        "i=0; while [ $i -lt 50 ]; do printf '%01000d\\n' $i; i=$((i+1)); done; printf 'a\\033[31mb' >&2; kill -9 $$";
    let direct = |name: &str| format!("[[on_event]]\nevents = [\"tenant.paused\"]\nexec = [{:?}]\n", at.join(name));
    let text = [
        TENANTS.into(),
        action(at, "[\"tenant.paused\"]", long, ""),
        direct("no_program"),
        direct("none"),
        direct("no_shell"),
    ]
    .concat();
    let world = start(vgpud(), dir, &text);
    pause(&world, "a");
    eventually("all are told", || results(&world).len() == 4);
    let mut results = results(&world);
    results.sort();
    assert_eq!(
        results[..3],
        [
            "cannot be started: No such file or directory (os error 2)".to_owned(),
            "cannot be started: Permission denied (os error 13)".to_owned(),
            "exit status 126".to_owned()
        ]
    );
    assert_eq!(results[3], "killed by signal 9");
    let log = read(&world, "log");
    let printed: Vec<&str> = log.lines().filter(|line| line.contains("00000")).collect();
    assert_eq!(printed.len(), 20, "{log}");
    assert!(printed.iter().all(|line| line.len() < 600 && line.contains("0...")), "{printed:?}");
    assert!(log.lines().any(|line| line.contains("lines=30")), "{log}");
    assert!(log.contains("a\\u{1b}[31mb"), "{log}");
    assert!(log.lines().any(|line| line.contains("no_shell cannot be started: No such file")), "{log}");
    eventually("no process is left, dead or alive", || children(&world).is_empty());
}

#[test]
fn a_program_that_reads_no_input_is_not_waited_for_and_one_that_reads_late_gets_all() {
    let world = world("[\"tenant.changed\"]", "sleep 0.3; cat > DIR/input; echo > DIR/done", "");
    // An event's text comes from the administrator; it is far longer than a pipe holds.
    ask(
        &world,
        &ControlCommand::Set {
            tenant: "a".into(),
            device: None,
            change: Box::new(serde_json::from_str("{\"sm_limit\":\"30\"}").unwrap()),
            lasting: Default::default(),
        },
    );
    eventually("it ran", || read(&world, "done") == "\n");
    let told: DaemonEvent = serde_json::from_str(&read(&world, "input")).unwrap();
    assert_eq!(told.kind, "tenant.changed");
}

#[test]
fn a_daemon_that_stops_tells_it_waits_a_second_and_kills_and_one_that_is_killed_takes_its_programs_along() {
    let script =
        "echo $VGPU_EVENT >> DIR/events; echo $$ >> DIR/pids; [ $VGPU_EVENT = daemon.stopping ] || exec sleep 1000";
    for signal in [Signal::TERM, Signal::KILL] {
        let mut world = world("[\"tenant.paused\", \"daemon.stopping\"]", script, "timeout = \"3600s\"");
        pause(&world, "a");
        eventually("it runs", || read(&world, "events") == "tenant.paused\n");
        world.daemon.signal(signal);
        world.daemon.child.wait().unwrap();
        for pid in read(&world, "pids").lines() {
            eventually("it has ended", || !is_alive(pid));
        }
        if signal == Signal::TERM {
            assert_eq!(read(&world, "events"), "tenant.paused\ndaemon.stopping\n");
            assert!(read(&world, "log").contains("killed, because the daemon ends"), "{}", read(&world, "log"));
        }
    }
}

/// The example, with a command that only writes down its arguments in place of compose.
#[test]
fn the_example_scales_the_service_of_a_paused_tenant_to_zero_and_back() {
    let dir = TempDir::new().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/actions/scale-compose");
    let script = script.canonicalize().unwrap();
    let told = dir.path().join("told");
    let compose = format!("echo \"$@\" >> {}", told.display());
    let text = format!(
        "{TENANTS}[[on_event]]\nevents = [\"tenant\"]\nat_once = 1\nexec = [{script:?}, \"/srv/compose.yaml\", \
         \"/bin/sh\", \"-c\", {compose:?}, \"compose\"]\n"
    );
    let world = start(vgpud(), dir, &text);
    pause(&world, "b");
    ask(&world, &ControlCommand::Resume { tenant: "b".into() });
    // The two that were added are told to it too, and change nothing.
    eventually("both are carried out", || actions(&world)[0].ended == 4);
    let scaled = |replicas| format!("-f /srv/compose.yaml up --detach --no-recreate --scale b={replicas} b\n");
    assert_eq!(read(&world, "told"), scaled(0) + &scaled(1));
    assert_eq!(actions(&world)[0].failed, 0);
    // Row 52: an idle service is ended too.
    for (event, is_scaled) in [("idle.resident", true), ("idle.began", true), ("idle.ended", false)] {
        let mut command = Command::new(&script);
        command.args(["/srv/compose.yaml", "/bin/echo"]).env("VGPU_EVENT", event).env("VGPU_EVENT_TENANT", "b");
        let (out, _) = support::texts(&command.output().unwrap());
        assert_eq!(out, if is_scaled { scaled(0) } else { String::new() }, "{event}");
    }
}

#[test]
fn idle_starved_over_used_and_finding_are_words_for_events() {
    let dir = TempDir::new().unwrap();
    for word in ["idle", "starved", "over-used", "deadline", "finding", "proof"] {
        let file = dir.path().join("f.toml");
        fs::write(&file, format!("[[on_event]]\nevents = [{word:?}]\nexec = [\"/bin/true\"]\n")).unwrap();
        let output = vgpud().args(["--driver", "none", "--json", "--check"]).arg(&file).output().unwrap();
        let (out, err) = support::texts(&output);
        assert_eq!(output.status.code(), Some(0), "{word}: {out}{err}");
    }
}

#[test]
fn a_check_names_programs_that_cannot_be_run() {
    let dir = TempDir::new().unwrap();
    let mut file = fs::File::create(dir.path().join("f.toml")).unwrap();
    write!(file, "[[on_event]]\nevents = [\"tenant\"]\nexec = [\"/does/not/exist\"]\n").unwrap();
    let output = vgpud().args(["--driver", "none", "--check"]).arg(dir.path().join("f.toml")).output().unwrap();
    let (out, err) = support::texts(&output);
    assert!(err.contains("on_event: /does/not/exist cannot be run: No such file or directory"), "{out}{err}");
    assert_eq!(output.status.code(), Some(1));
}
