//! `vgpu-checkpoint` moves tenants off a device and back: memory, contents, refusals, and what a killed program leaves.
//! The simulated device's record judges. Not here: device time meanwhile (time_checkpoint.rs), the driver's own codes
//! (patched/checkpoint.rs).

use std::ffi::OsStr;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use vgpu_tests::artefacts::vgpu_checkpoint;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, Member, OUT_OF_MEMORY, eventually};

/// A device of 15 GiB with a driver that knows checkpoints, and a daemon that promises it more than once.
struct World {
    lab: Lab,
    daemon: Daemon,
}

impl World {
    fn start() -> World {
        let lab = Lab::new("t4").with("VGPU_SIM_DRIVER", "580");
        let terms = "memory_limit = \"12GiB\"".to_owned();
        let tenants = vec![("a".into(), terms.clone()), ("b".into(), terms)];
        let daemon = Daemon::start(lab.path(), &Plan { device: lab.device(0).uuid, time: String::new(), tenants });
        World { lab, daemon }
    }

    /// A daemon that asks the device's driver which processes are there.
    fn start_on_machine() -> World {
        let lab = Lab::new("t4").with("VGPU_SIM_DRIVER", "580");
        let tenants = vec![("a".into(), "memory_limit = \"12GiB\"".to_owned())];
        let daemon = Daemon::start_on_machine(&lab, &Plan { device: lab.device(0).uuid, time: String::new(), tenants });
        World { lab, daemon }
    }

    /// A process of a tenant; it has a context.
    fn member(&mut self, tenant: &str) -> Member {
        self.lab.set("VGPU_SOCKET", self.daemon.socket(tenant));
        let mut member = Member::start(self.lab.command(compile("member", Kind::Program, &[])).arg("dlsym"));
        member.begin();
        member
    }

    /// A process of a tenant that uses no device; it only asks NVML.
    fn watcher(&mut self, tenant: &str) -> Member {
        let before = self.tenant(tenant)["members"].as_array().map_or(0, Vec::len);
        self.lab.set("VGPU_SOCKET", self.daemon.socket(tenant));
        let mut watcher = Member::start(self.lab.command(compile("member", Kind::Program, &[])).arg("dlsym"));
        watcher.ok("nvinit");
        eventually("it is a member", || self.tenant(tenant)["members"].as_array().map_or(0, Vec::len) > before);
        watcher
    }

    /// Lets a member launch one kernel and wait for it; returns when the kernel runs.
    fn start_kernel(&self, member: &mut Member, ns: u64) {
        let before = self.lab.process(0, member.pid).busy_ns;
        member.tell(&format!("launch {ns}"));
        eventually("its kernel runs", || self.lab.process(0, member.pid).busy_ns > before);
    }

    /// The program; a change tells the daemon.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.lab.bare(vgpu_checkpoint());
        command.args(words);
        if words[0] != "state" {
            command.arg("--socket").arg(self.daemon.admin());
        }
        command
    }

    /// The tenant in `vgpu status --json`.
    fn tenant(&self, name: &str) -> Value {
        let status: Value = serde_json::from_str(&self.daemon.tell(&["status", "--json"])).expect("JSON");
        let tenants = status["tenants"].as_array().expect("tenants");
        tenants.iter().find(|tenant| tenant["name"] == name).expect("the tenant").clone()
    }

    /// Kind and process of each event about suspensions.
    fn suspensions(&self) -> Vec<(String, u32)> {
        let text = self.daemon.tell(&["events", "--json", "--kind", "process"]);
        let event = |line: &str| serde_json::from_str::<Value>(line).expect("an event");
        let told = |event: Value| {
            let pid = event["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            (event["kind"].as_str().expect("a kind").to_owned(), pid.expect("a process"))
        };
        text.lines().map(event).map(told).collect()
    }

    /// Resumes a process by the driver's calls alone, as NVIDIA's cuda-checkpoint does.
    fn resume_unseen(&self, pid: u32) {
        let mut controller = self.lab.bare_member();
        controller.ok("init");
        controller.ok(&format!("suspend restore {pid}"));
        controller.ok(&format!("suspend unlock {pid}"));
    }

    fn checkpoint(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the program")
    }

    /// Exit code and message.
    fn said(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = self.checkpoint(words);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn state(&self, pid: u32) -> String {
        let output = self.checkpoint(&["state", "--json", &pid.to_string()]);
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        value[0]["state"].as_str().expect("a state").to_owned()
    }

    /// Starts a change that waits for `busy`, whose kernel runs for seconds.
    fn start_change(&self, words: &[&str], locked: u32) -> Child {
        let child = self.command(words).stderr(Stdio::null()).spawn().expect("the program");
        eventually("the first process is locked", || self.state(locked) == "locked");
        child
    }
}

fn pids(members: &[&Member]) -> Vec<String> {
    members.iter().map(|member| member.pid.to_string()).collect()
}

#[test]
fn a_suspended_tenant_gives_its_memory_to_another_and_finds_its_bytes_again() {
    let mut world = World::start();
    let (mut a, mut b) = (world.member("a"), world.member("b"));
    let pointer = a.alloc(8 * GIB);
    a.ok(&format!("fill {pointer} 7 4096"));
    let (before, used) = (a.used(), world.lab.device(0).used);
    assert_eq!(b.code(&format!("alloc {}", 9 * GIB)), OUT_OF_MEMORY, "the device is full");
    let pid = a.pid.to_string();
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()));
    assert_eq!(world.state(a.pid), "checkpointed");
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()), "it is there already");
    assert!(world.lab.device(0).used < used - 8 * GIB, "its memory left the device");
    let taken = b.alloc(9 * GIB);
    let (code, words) = world.said(&["resume", &pid]);
    assert_eq!(code, Some(1));
    let refused =
        format!("vgpu: process {pid} cannot be moved back to its device: the device has too little free memory");
    assert!(words.starts_with(&refused) && words.contains("every process is as before"), "{words}");
    assert_eq!(world.state(a.pid), "checkpointed");
    // A resume that may wait goes on as soon as the memory is there.
    let waiting = world.command(&["resume", "--wait", "60s", &pid]).spawn().expect("the program");
    thread::sleep(Duration::from_millis(300));
    b.ok(&format!("free {taken}"));
    assert_eq!(waiting.wait_with_output().expect("it ends").status.code(), Some(0));
    assert_eq!(a.ok(&format!("byte {}", pointer + 4095)).number(0), 7, "the contents are the same");
    assert_eq!(a.used(), before);
    let truth = world.lab.process(0, a.pid);
    assert_eq!(before, truth.slab_bytes + truth.overhead_bytes, "its ledger has what the device has");
    a.ok(&format!("free {pointer}"));
    a.alloc(10 * GIB);
    assert_eq!((a.errors(), b.errors()), (String::new(), String::new()));
}

/// The daemon's idle step `suspend` with this program. Programs of the daemon inherit no variables, so `env` names the
/// simulated driver to it.
#[test]
fn an_idle_step_moves_the_memory_of_who_does_nothing_off_the_device() {
    let mut world = World::start();
    let command = world.command(&["suspend"]);
    let text = |word: &OsStr| word.to_str().expect("plain paths").to_owned();
    let mut words = vec!["/usr/bin/env".to_owned()];
    words.extend(command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", text(name), text(value?)))));
    words.push(text(command.get_program()));
    words.extend(command.get_args().map(text));
    let steps = "idle_steps = [\"suspend after 5s\", \"terminate after 15s\"]";
    let terms = format!("memory_limit = \"12GiB\"\nidle_minutes = 0.034\n{steps}\n");
    let tenants = vec![("a".into(), format!("{terms}idle_suspend = {words:?}"))];
    world.daemon.write(&Plan { device: world.lab.device(0).uuid, time: String::new(), tenants });
    world.daemon.reload();
    let _watcher = world.watcher("a");
    let mut a = world.member("a");
    let pointer = a.alloc(8 * GIB);
    a.ok(&format!("fill {pointer} 7 4096"));
    let used = world.lab.device(0).used;
    eventually("the program ended", || world.daemon.tell(&["events", "--kind", "action"]).contains("exit status 0"));
    assert_eq!(world.state(a.pid), "checkpointed");
    let step = world.daemon.tell(&["events", "--kind", "idle.step"]);
    assert!(step.contains(&format!("members=\"{}\"", a.pid)), "not the one that only asks NVML: {step}");
    assert!(world.lab.device(0).used < used - 8 * GIB, "its memory left the device");
    eventually("it counts as suspended and not as idle", || world.tenant("a")["idle"]["state"] == "suspended");
    // The step `terminate` would come ten seconds after the step `suspend`.
    thread::sleep(Duration::from_secs(13));
    assert_eq!(world.daemon.tell(&["events", "--kind", "idle.step"]).lines().count(), 1, "no further step");
    let idle = &world.tenant("a")["idle"];
    assert_eq!((&idle["state"], &idle["hoarded_gib_hours"]), (&"suspended".into(), &0.0.into()));
    assert_eq!(world.said(&["resume", &a.pid.to_string()]), (Some(0), String::new()));
    assert_eq!(a.ok(&format!("byte {}", pointer + 4095)).number(0), 7, "the contents are the same");
    eventually("it is busy again", || world.tenant("a")["idle"]["state"] == "busy");
    assert_eq!(a.errors(), "");
}

#[test]
fn the_daemon_shows_who_is_suspended_and_holds_back_a_tenant_only_if_all_its_processes_are() {
    let mut world = World::start();
    let (mut a, mut other) = (world.member("a"), world.member("a"));
    a.ok("launch 1000000");
    other.ok("launch 1000000");
    let pid = a.pid.to_string();
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()));
    assert_eq!(world.tenant("a")["suspended"], Value::Null, "its other process works");
    let words = world.daemon.tell(&["explain", "a"]);
    assert!(words.contains(&format!("suspended processes (1 of 2): {pid} since ")), "{words}");
    other.ok("launch 1000000");
    assert_eq!(world.said(&["suspend", &other.pid.to_string()]), (Some(0), String::new()));
    let tenant = world.tenant("a");
    assert_eq!((&tenant["suspended"], &tenant["paused"]), (&true.into(), &false.into()));
    assert!(tenant["members"].as_array().expect("members").iter().all(|m| m["suspended_since"].is_i64()), "{tenant}");
    assert_eq!(world.daemon.tell(&["ps"]).matches("  suspended  ").count(), 2);
    let words = world.daemon.tell(&["explain", "a"]);
    assert!(
        words.contains("suspended") && words.contains("waits for none until `vgpu-checkpoint resume PID`"),
        "{words}"
    );
    let top = world.daemon.tell(&["top", "--once"]);
    assert!(top.lines().any(|line| line.starts_with("a ") && line.contains("suspended")), "{top}");
    let words = world.daemon.tell(&["resume", "a"]);
    assert!(words.contains("was not paused") && words.contains("suspended processes (2 of 2)"), "{words}");
    // A pause by an administrator and a suspension end on their own.
    world.daemon.tell(&["pause", "a"]);
    assert_eq!(world.said(&["resume", &pid, &other.pid.to_string()]), (Some(0), String::new()));
    let tenant = world.tenant("a");
    assert_eq!((&tenant["suspended"], &tenant["paused"]), (&Value::Null, &true.into()));
    world.daemon.tell(&["resume", "a"]);
    a.ok("launch 1000000");
    let (pid, other) = (a.pid, other.pid);
    let told = [("suspended", pid), ("suspended", other), ("resumed", pid), ("resumed", other)];
    assert_eq!(world.suspensions(), told.map(|(kind, pid)| (format!("process.{kind}"), pid)));
    // A process that is no member is none of the daemon's.
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    let stranger_pid = stranger.pid.to_string();
    let (code, words) = world.said(&["suspend", &stranger_pid]);
    assert!(code == Some(0) && words.contains("the daemon knows 0 of 1 suspended processes"), "{words}");
    assert_eq!(world.suspensions().len(), told.len(), "{:?}", world.suspensions());
    assert_eq!(world.said(&["resume", &stranger_pid]), (Some(0), String::new()));
    assert_eq!(a.errors(), "");
}

#[test]
fn the_next_daemon_knows_who_is_suspended_until_the_process_ends() {
    let mut world = World::start();
    let (mut a, mut b) = (world.member("a"), world.member("b"));
    a.ok("launch 1000000");
    let pair = pids(&[&a, &b]);
    assert_eq!(world.said(&["suspend", &pair[0], &pair[1]]), (Some(0), String::new()));
    world.daemon.kill();
    world.daemon.again();
    assert_eq!(world.suspensions(), [], "nothing is told again");
    b.kill();
    assert_eq!(world.said(&["resume", &pair[0]]), (Some(0), String::new()));
    assert_eq!(world.suspensions(), [("process.resumed".to_owned(), a.pid)], "it knew that");
    a.ok("launch 1000000");
    eventually("it is a member again", || world.tenant("a")["members"][0]["pid"] == a.pid);
    let stored = std::fs::read_to_string(world.lab.path().join("kept/changes.json")).expect("the daemon's file");
    assert!(stored.contains("\"suspended\":[]"), "{stored}");
    assert_eq!(a.errors(), "");
}

/// A stopped process does not connect again, and nobody but the last daemon knew that it was suspended.
#[test]
fn a_suspended_process_that_cannot_come_back_holds_its_tenant_back_under_the_next_daemon() {
    let mut world = World::start();
    let mut a = world.member("a");
    a.ok("launch 1000000");
    let pid = a.pid.to_string();
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()));
    a.signal(libc::SIGSTOP);
    world.daemon.kill();
    world.daemon.again();
    let tenant = world.tenant("a");
    assert_eq!((&tenant["suspended"], tenant["members"].as_array().map_or(0, Vec::len)), (&true.into(), 0), "{tenant}");
    let words = world.daemon.tell(&["resume", "a"]);
    assert!(words.contains(&format!("suspended processes (1 of 1): {pid} since")), "{words}");
    a.signal(libc::SIGCONT);
    assert_eq!(world.said(&["resume", &pid]), (Some(0), String::new()));
    a.ok("launch 1000000");
    assert_eq!(world.tenant("a")["suspended"], Value::Null);
    assert_eq!(a.errors(), "");
    // A process that ends is forgotten, also while nobody is connected.
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()));
    a.signal(libc::SIGSTOP);
    world.daemon.kill();
    a.kill();
    world.daemon.again();
    assert_eq!(world.tenant("a")["suspended"], Value::Null);
}

#[test]
fn a_process_that_only_asks_nvml_keeps_no_tenant_from_being_suspended() {
    let mut world = World::start();
    let mut watcher = world.watcher("a");
    let mut a = world.member("a");
    a.ok("launch 1000000");
    assert_eq!(world.said(&["suspend", &a.pid.to_string()]), (Some(0), String::new()));
    assert_eq!(world.tenant("a")["suspended"], true, "{}", world.daemon.tell(&["ps"]));
    let words = world.daemon.tell(&["explain", "a"]);
    assert!(words.contains(&format!("suspended processes (1 of 1): {} since ", a.pid)), "{words}");
    watcher.begin();
    watcher.ok("launch 1000000");
    assert_eq!(world.tenant("a")["suspended"], Value::Null, "one of its processes works now");
    assert_eq!((a.errors(), watcher.errors()), (String::new(), String::new()));
}

/// The daemon is away when the process is suspended, and back before the program stops telling.
#[test]
fn a_daemon_that_restarts_learns_who_was_suspended_meanwhile() {
    let mut world = World::start();
    let a = world.member("a");
    let pid = a.pid.to_string();
    world.daemon.kill();
    let suspending = world.command(&["suspend", &pid]).stderr(Stdio::piped()).spawn().expect("the program");
    eventually("it is suspended", || world.state(a.pid) == "checkpointed");
    world.daemon.again();
    let output = suspending.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
    assert_eq!(world.suspensions(), [("process.suspended".to_owned(), a.pid)]);
    eventually("its tenant is held back", || world.tenant("a")["suspended"] == true);
    // The next one answers at once, and knows the process only when it has connected again.
    assert_eq!(world.said(&["resume", &pid]), (Some(0), String::new()));
    world.daemon.kill();
    world.daemon.again();
    assert_eq!(world.said(&["suspend", &pid]), (Some(0), String::new()));
    eventually("its tenant is held back again", || world.tenant("a")["suspended"] == true);
    world.daemon.kill();
    let (code, words) = world.said(&["resume", &pid]);
    assert!(code == Some(0) && words.contains("the daemon does not know which processes are suspended"), "{words}");
}

/// The program tells the daemon under its guard, so no process stays suspended of which the daemon does not know.
#[test]
fn a_program_that_is_killed_before_the_daemon_knows_leaves_the_process_running() {
    let mut world = World::start();
    let mut a = world.member("a");
    world.daemon.kill();
    let mut child = world.command(&["suspend", &a.pid.to_string()]).stderr(Stdio::null()).spawn().expect("the program");
    eventually("it is suspended", || world.state(a.pid) == "checkpointed");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    eventually("the guard leads it back", || world.state(a.pid) == "running");
    world.daemon.again();
    a.ok("launch 1000000");
    assert_eq!(a.errors(), "");
}

/// A daemon that asks no driver sees only that the process works. It can, because its tenant has leases.
#[test]
fn a_process_that_another_program_resumed_counts_as_running_when_it_works() {
    let mut world = World::start();
    let (mut a, mut other) = (world.member("a"), world.member("a"));
    a.ok("launch 1000000");
    other.ok("launch 1000000");
    assert_eq!(world.said(&["suspend", &a.pid.to_string()]), (Some(0), String::new()));
    // Work that was done before may be reported for a second.
    thread::sleep(Duration::from_millis(1_500));
    other.ok("launch 1000000");
    assert_eq!(world.suspensions(), [("process.suspended".to_owned(), a.pid)]);
    world.resume_unseen(a.pid);
    a.ok("launch 5000000");
    eventually("the daemon sees that it works", || world.suspensions().len() == 2);
    assert_eq!(world.suspensions()[1], ("process.resumed".to_owned(), a.pid));
    let words = world.daemon.tell(&["explain", "a"]);
    assert!(!words.contains("suspended"), "{words}");
    assert_eq!((a.errors(), other.errors()), (String::new(), String::new()));
}

/// A process that waits at the gate of the library cannot work. The driver lists it on its device.
#[test]
fn a_process_that_another_program_resumed_counts_as_running_when_the_driver_lists_it() {
    let mut world = World::start_on_machine();
    let mut a = world.member("a");
    a.ok("launch 1000000");
    assert_eq!(world.said(&["suspend", &a.pid.to_string()]), (Some(0), String::new()));
    a.tell("launch 1000000");
    // The daemon asks the driver each second, from its third one on.
    thread::sleep(Duration::from_secs(6));
    assert_eq!(world.tenant("a")["suspended"], true, "control: nobody lists it");
    world.resume_unseen(a.pid);
    assert_eq!(a.answer().code, 0, "it launches again");
    let told = ["suspended", "resumed"].map(|kind| (format!("process.{kind}"), a.pid));
    assert_eq!(world.suspensions(), told);
    assert_eq!(a.errors(), "");
}

/// The driver lists the first process while the second one waits for memory.
#[test]
fn a_slow_resume_is_logged_as_that_of_who_began_it() {
    let mut world = World::start_on_machine();
    let (mut a, mut other) = (world.member("a"), world.member("a"));
    a.ok("launch 1000000");
    other.alloc(8 * GIB);
    let pair = pids(&[&a, &other]);
    assert_eq!(world.said(&["suspend", &pair[0], &pair[1]]), (Some(0), String::new()));
    let mut stranger = world.lab.bare_member();
    stranger.begin();
    let taken = stranger.alloc(9 * GIB);
    let resuming = world.command(&["resume", "--wait", "60s", &pair[0], &pair[1]]).spawn().expect("the program");
    eventually("the daemon sees the first one", || world.suspensions().len() == 3);
    assert_eq!((world.state(a.pid), world.state(other.pid)), ("locked".into(), "checkpointed".into()));
    stranger.ok(&format!("free {taken}"));
    assert!(resuming.wait_with_output().expect("it ends").status.success());
    let events = world.daemon.tell(&["events", "--json", "--kind", "process.resumed"]);
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
    let told: Vec<_> = events.iter().map(|event| (&event["pid"], event["by"]["uid"].is_u64())).collect();
    assert_eq!(told, [(&a.pid.into(), true), (&other.pid.into(), true)], "{events:?}");
    assert!(events.iter().all(|event| event["more"]["why"].is_null()), "{events:?}");
    a.ok("launch 1000000");
    assert_eq!((a.errors(), other.errors()), (String::new(), String::new()));
}

#[test]
fn all_processes_are_suspended_or_none() {
    let mut world = World::start();
    let (a, mut b, own) = (world.member("a"), world.member("b"), std::process::id().to_string());
    let pair = pids(&[&a, &b]);
    let (code, words) = world.said(&["suspend", &pair[0], &own]);
    assert_eq!(code, Some(1));
    assert_eq!(words.trim(), format!("vgpu: process {own} cannot be suspended: it uses no GPU, or has ended"));
    assert_eq!(world.state(a.pid), "running");
    // The second one works for longer than the command waits.
    world.start_kernel(&mut b, 3_000_000_000);
    let (code, words) = world.said(&["suspend", "--timeout", "200ms", &pair[0], &pair[1]]);
    assert_eq!(code, Some(1), "{words}");
    assert!(
        words.contains(&format!("process {} cannot be locked: its work on the device did not end", b.pid)),
        "{words}"
    );
    assert_eq!((world.state(a.pid), world.state(b.pid)), ("running".into(), "running".into()));
    assert_eq!(b.answer().code, 0);
    assert_eq!(world.said(&["suspend", &pair[0], &pair[1], &pair[0]]), (Some(0), String::new()));
    assert_eq!((world.state(a.pid), world.state(b.pid)), ("checkpointed".into(), "checkpointed".into()));
    assert_eq!(world.said(&["resume", &pair[0], &pair[1]]), (Some(0), String::new()));
    b.ok("launch 1000000");
}

#[test]
fn a_program_that_is_killed_in_the_middle_leaves_nobody_locked() {
    let mut world = World::start();
    let (mut a, mut b) = (world.member("a"), world.member("b"));
    let pointer = a.alloc(GIB);
    a.ok(&format!("fill {pointer} 9 16"));
    let pair = pids(&[&a, &b]);
    for _ in 0..2 {
        world.start_kernel(&mut b, 1_500_000_000);
        let mut child = world.start_change(&["suspend", &pair[0], &pair[1]], a.pid);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        eventually("the guard leads both back", || {
            (world.state(a.pid), world.state(b.pid)) == ("running".into(), "running".into())
        });
        assert_eq!(a.ok(&format!("byte {pointer}")).number(0), 9, "its calls are answered");
        assert_eq!(b.answer().code, 0);
    }
    assert_eq!(world.said(&["suspend", &pair[0], &pair[1]]), (Some(0), String::new()), "and it can be done again");
    assert_eq!(world.said(&["resume", &pair[0], &pair[1]]), (Some(0), String::new()));
}

/// If the program and its guard are killed together, nobody leads the processes back. The next resume does.
#[test]
fn a_resume_unlocks_what_a_program_and_its_guard_left_locked() {
    let mut world = World::start();
    let (mut a, mut b) = (world.member("a"), world.member("b"));
    let pair = pids(&[&a, &b]);
    world.start_kernel(&mut b, 1_500_000_000);
    let mut child = world.start_change(&["suspend", &pair[0], &pair[1]], a.pid);
    let tasks = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).expect("its children");
    let guard: i32 = tasks.trim().parse().expect("one child, the guard");
    // SAFETY: a signal for a process of this test.
    unsafe { libc::kill(guard, libc::SIGKILL) };
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    thread::sleep(Duration::from_millis(500));
    assert_eq!((world.state(a.pid), world.state(b.pid)), ("locked".into(), "locked".into()), "control: they stay so");
    let (code, words) = world.said(&["suspend", &pair[0]]);
    assert!(code == Some(1) && words.contains("is locked by another program"), "{words}");
    assert_eq!(world.said(&["resume", &pair[0], &pair[1]]), (Some(0), String::new()));
    assert_eq!(b.answer().code, 0);
    a.ok("launch 1000");
}

#[test]
fn without_a_driver_that_knows_checkpoints_that_is_said() {
    let mut lab = Lab::new("t4").with("VGPU_SIM_DRIVER", "580");
    let stale = lab.driver_without(&["cuCheckpointProcessLock"]);
    let run = |lab: &Lab| {
        let output = lab.bare(vgpu_checkpoint()).args(["state", "1"]).output().expect("the program");
        (output.status.code(), format!("{output:?}"))
    };
    let (code, words) = run(&lab);
    assert!(code == Some(1) && words.contains("none"), "{code:?} {words}");
    lab.with_driver(&stale);
    let (code, words) = run(&lab);
    assert!(code == Some(3) && words.contains("checkpoints need driver 570 or newer"), "{code:?} {words}");
}
