//! `vgpu top` on a terminal, next to a daemon with two tenants on the simulated device. The view shows the truth, keys
//! take effect, and the terminal is restored however the view ends.

use std::process::Command;
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::terminal::Terminal;
use vgpu_tests::timed::timed;
use vgpu_tests::{Lab, Member, eventually_seen};

/// A machine, its daemon, and a busy process of each of its two tenants.
struct World {
    lab: Lab,
    daemon: Daemon,
    members: Vec<Member>,
}

const TENANTS: [&str; 2] = ["chat", "train"];

fn plan(lab: &Lab) -> Plan {
    let tenant = |name: &str| (name.to_owned(), "memory_limit = \"8GiB\"\nsm_limit = 50".to_owned());
    Plan { device: lab.device(0).uuid, time: String::new(), tenants: TENANTS.map(tenant).into() }
}

impl World {
    fn start() -> World {
        let mut lab = Lab::new("h200");
        let daemon = Daemon::start(lab.path(), &plan(&lab));
        let mut members = Vec::new();
        for tenant in TENANTS {
            lab.set("VGPU_SOCKET", daemon.socket(tenant));
            let mut member = timed(&lab);
            // Kernels of 1 ms for as long as the test takes.
            member.tell("loop 1000000 600000 0 4 0 0 0");
            members.push(member);
        }
        World { lab, daemon, members }
    }

    fn top(&self, options: &[&str], rows: u16, columns: u16) -> Terminal {
        let mut command = Command::new(vgpu());
        command.args(["top", "--interval", "0.1", "--socket"]).arg(self.daemon.admin()).args(options);
        for name in ["NO_COLOR", "LC_ALL", "LC_CTYPE", "LD_PRELOAD", "VGPU_LIB_DIR"] {
            command.env_remove(name);
        }
        Terminal::start(command.env("TERM", "xterm-256color").env("LANG", "C.UTF-8"), rows, columns)
    }

    /// A tenant's entry in the daemon's status.
    fn tenant(&self, name: &str) -> serde_json::Value {
        let all: serde_json::Value = serde_json::from_str(&self.daemon.tell(&["status", "--json"])).unwrap();
        let tenants = all["tenants"].as_array().unwrap();
        tenants.iter().find(|tenant| tenant["name"] == name).unwrap().clone()
    }

    #[track_caller]
    fn eventually(&self, what: &str, is: impl Fn() -> bool) {
        eventually_seen(what, || self.tenant("train").to_string(), is);
    }
}

/// Line number of each tenant's row, from the top.
fn places(screen: &str) -> [Option<usize>; 2] {
    TENANTS.map(|name| screen.lines().position(|line| line.starts_with(name)))
}

#[track_caller]
fn is_given_back(top: &Terminal) {
    assert!(top.is_as_before(), "keys do what they did");
    assert!(!top.is_alternate() && !top.hides_cursor(), "the screen is the shell's: {}", top.screen());
}

#[test]
fn both_tenants_are_seen_keys_are_obeyed_by_the_daemon_and_the_terminal_is_given_back() {
    let mut world = World::start();
    let mut top = world.top(&[], 24, 110);
    let both = |screen: &str| places(screen).iter().all(Option::is_some);
    top.until("both tenants have device time", |screen| {
        both(screen) && screen.lines().filter(|line| line.contains("50%") && !line.contains(" 0.0%")).count() == 2
    });
    assert!(top.is_alternate() && !top.is_as_before() && top.is_coloured());
    let seen = top.screen();
    assert!(seen.contains("2 tenants, 2 processes") && seen.contains("GOT▼"), "{seen}");

    // Sorted by name, then in reverse.
    for _ in 0..7 {
        top.press("<");
    }
    top.until("by name", |screen| screen.contains("TENANT▼") && places(screen)[0] < places(screen)[1]);
    top.press("r");
    top.until("from z to a", |screen| screen.contains("TENANT▲") && places(screen)[0] > places(screen)[1]);

    // Keys act on the rows that the filter leaves.
    top.press("/TRA\r");
    top.until("one tenant", |screen| places(screen)[0].is_none() && places(screen)[1].is_some());

    // Pausing asks for confirmation; "n" changes nothing.
    top.press("p");
    top.until("the question", |screen| screen.contains("pause train?") && screen.contains("y/n"));
    top.press("n");
    top.until("the answer", |screen| screen.contains("nothing was changed"));
    assert_eq!(world.tenant("train")["paused"], false);
    top.press("p");
    top.until("the question", |screen| screen.contains("pause train?"));
    top.press("y");
    top.until("it is paused", |screen| screen.contains("train: paused") && screen.contains(" paused "));
    assert_eq!((&world.tenant("train")["paused"], &world.tenant("chat")["paused"]), (&true.into(), &false.into()));
    top.press("p");
    top.until("it goes on", |screen| screen.contains("train: resumed"));
    assert_eq!(world.tenant("train")["paused"], false);

    // Changes the tenant's limits. A value that the view or the daemon rejects is reported.
    top.press("s");
    top.until("the prompt", |screen| screen.contains("set train:"));
    top.press("sm=400\r");
    top.until("the words", |screen| screen.contains("sm \"400\" is more than 100%"));
    top.press("\u{15}sm=40 memory=6GiB\r");
    top.until("the daemon's answer", |screen| screen.contains("train: changed") && screen.contains(" 40% "));
    let terms = &world.tenant("train")["devices"][0];
    assert_eq!((&terms["sm_limit"], &terms["memory_limit"]), (&40.0.into(), &(6_u64 << 30).into()), "{terms}");
    top.press("s");
    top.until("the prompt", |screen| screen.contains("set train:"));
    top.press("memory=2000GiB\r");
    top.until("the daemon's words", |screen| screen.contains("at most") && !screen.contains("set train:"));

    // The details page, with both process ids of the tenant's process.
    let pid = world.members[1].pid.to_string();
    top.press("\r");
    let details = top.until("the details", |screen| screen.contains("why") && screen.contains("Its terms there"));
    assert!(details.contains(&format!("  {pid}  {pid}")) && details.contains("train on device"), "{details}");
    top.until("the record's hour", |screen| {
        screen.lines().any(|line| line.starts_with("  last hour ")) && !screen.contains("last hour:")
    });
    top.press("\u{1b}");
    top.until("the table", |screen| screen.contains("TENANT"));

    // The view adapts to windows of every size.
    top.resize(8, 40);
    top.until("a small one", |screen| screen.contains("train") && !screen.contains("HISTORY"));
    top.resize(3, 12);
    top.until("a tiny one", |screen| screen.lines().count() <= 3);
    top.resize(30, 160);
    top.until("a large one", |screen| screen.contains("WEIGHT") && screen.contains("HISTORY"));

    // A key pressed while the window changes is not lost.
    for round in 0_u16..10 {
        top.resize(24 + round % 2, 110);
        top.press("r");
        let mark = if round % 2 == 0 { "TENANT▼" } else { "TENANT▲" };
        top.until("the other way round", |screen| screen.contains(mark));
    }

    top.press("q");
    assert_eq!(top.ended().code(), Some(0));
    is_given_back(&top);
    world.daemon.stop();
    drop(world.lab);
}

#[test]
fn a_daemon_that_goes_is_said_and_one_that_comes_back_is_seen_and_any_end_gives_the_terminal_back() {
    let mut world = World::start();
    let mut top = world.top(&[], 24, 80);
    let mut others: Vec<Terminal> = (0..3).map(|_| world.top(&["--read-only"], 24, 80)).collect();
    for top in others.iter_mut().chain([&mut top]) {
        top.until("the tenants", |screen| screen.contains("train"));
    }
    world.daemon.kill();
    top.until("that it is gone", |screen| {
        screen.contains("outdated, asking again: no daemon") && screen.contains("train")
    });
    world.daemon.again();
    top.until("it is back", |screen| !screen.contains("outdated") && screen.contains("train"));
    world.eventually("the members are back", || world.tenant("train")["members"].as_array().unwrap().len() == 1);

    // A read-only view changes nothing.
    let wall = &mut others[0];
    wall.until("the tenants", |screen| screen.contains("train"));
    wall.press("p");
    wall.until("why not", |screen| screen.contains("nothing can be changed: this view was started with --read-only"));
    assert_eq!(world.tenant("train")["paused"], false);

    for (top, signal) in others.iter_mut().zip([libc::SIGTERM, libc::SIGINT, libc::SIGHUP]) {
        top.until("the tenants", |screen| screen.contains("train"));
        top.signal(signal);
        assert_eq!(top.ended().code(), Some(128 + signal), "{}", top.screen());
        is_given_back(top);
    }
    // The terminal is in raw mode, so the key causes no signal.
    top.press("\u{3}");
    assert_eq!(top.ended().code(), Some(0));
    is_given_back(&top);
}

#[test]
fn a_shell_has_its_terminal_while_the_view_is_stopped_and_gives_it_back_by_fg() {
    let world = World::start();
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("TERM", "xterm").env("PS1", "prompt> ").env_remove("LD_PRELOAD");
    let mut shell = Terminal::start(&shell, 24, 100);
    shell.until("the shell", |screen| screen.contains("prompt> "));
    shell.press(&format!("{} top --socket {}\r", vgpu().display(), world.daemon.admin().display()));
    shell.until("the view", |screen| screen.contains("train") && screen.contains("q quit"));
    shell.press("\u{1a}");
    shell.until("the shell again", |screen| screen.contains("Stopped") && !screen.contains("q quit"));
    assert!(!shell.is_alternate());
    shell.press("echo it is $((40 + 2))\r");
    shell.until("that it works", |screen| screen.contains("it is 42"));
    shell.press("fg\r");
    shell.until("the view again", |screen| screen.contains("train") && screen.contains("q quit"));
    shell.press("q");
    shell.until("the shell at last", |screen| screen.contains("it is 42") && !screen.contains("q quit"));
    shell.press("exit\r");
    assert_eq!(shell.ended().code(), Some(0));
}

#[test]
fn colours_and_letters_follow_the_environment_and_without_a_terminal_there_is_text() {
    let world = World::start();
    let mut command = Command::new(vgpu());
    command.args(["top", "--socket"]).arg(world.daemon.admin());
    command.env("TERM", "xterm").env("LC_ALL", "C").env("NO_COLOR", "1").env_remove("LD_PRELOAD");
    let mut top = Terminal::start(&command, 24, 100);
    let screen = top.until("the tenants", |screen| screen.contains("train") && screen.contains("q quit"));
    assert!(screen.is_ascii() && !top.is_coloured(), "{screen}");
    top.press("q");
    assert_eq!(top.ended().code(), Some(0));
    is_given_back(&top);

    let text = world.daemon.tell(&["top", "--once"]);
    assert!(text.starts_with("vgpud ") && text.contains("\nchat ") && text.contains("\ntrain "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let text = world.daemon.tell(&["top", "--batch", "2", "--interval", "0.1", "--filter", "chat", "--sort", "tenant"]);
    assert_eq!((text.matches("vgpud ").count(), text.contains("\ntrain ")), (2, false), "{text}");
    let lines = world.daemon.tell(&["top", "--json", "--batch", "2", "--interval", "0.1"]);
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["tenants"][0]["name"]), (2, &"chat".into()));
    let out = world.daemon.vgpu(&["top"]);
    assert_eq!(out.status.code(), Some(2), "{}", vgpu_tests::text(&out));
    assert!(String::from_utf8_lossy(&out.stderr).contains("accepted there: --once, --batch N, or --json"));
    let nobody = world.daemon.vgpu(&["top", "--once", "--device", "none"]);
    assert_eq!(nobody.status.code(), Some(2), "{}", vgpu_tests::text(&nobody));
}
