//! Tenants that `vgpu tenant` adds and removes while the daemon serves, with real processes on the simulated device.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::lab::charged;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, Lab, MIB, Member, eventually};

/// A process that ends when its test ends.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("sleep runs"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// A daemon with one device of 140 GiB, which may be promised four times, and one tenant of the file.
fn serve(lab: &Lab) -> Daemon {
    let device = lab.device(0).uuid;
    let tenants = vec![("fixed".into(), "memory_limit = \"100GiB\"\nsm_request = 40".into())];
    Daemon::start(lab.path(), &Plan { device, time: String::new(), tenants })
}

fn member(lab: &mut Lab, daemon: &Daemon, tenant: &str) -> Member {
    lab.set("VGPU_SOCKET", daemon.socket(tenant));
    let mut member = lab.member();
    member.begin();
    member
}

/// Runs `vgpu` and returns its exit code and its output on both streams.
fn ask(daemon: &Daemon, words: &[&str]) -> (Option<i32>, String) {
    let out = daemon.vgpu(words);
    (out.status.code(), vgpu_tests::text(&out))
}

fn json(daemon: &Daemon, words: &[&str]) -> Value {
    serde_json::from_str(&daemon.tell(&[words, &["--json"]].concat())).expect("JSON")
}

/// Names of the tenants that are served.
fn served(daemon: &Daemon) -> BTreeSet<String> {
    let status = json(daemon, &["status"]);
    let tenants = status["tenants"].as_array().expect("a list").iter();
    tenants
        .filter(|tenant| tenant["removed"] != true)
        .map(|tenant| tenant["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Sends a line to the administrative socket and returns the answer, which describes a tenant.
fn request(daemon: &Daemon, line: &str) -> String {
    let mut stream = UnixStream::connect(daemon.admin()).expect("the daemon listens");
    stream.write_all(line.as_bytes()).expect("the daemon reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the daemon answers");
    assert!(answer.contains("\"tenant\":{"), "{answer}");
    answer
}

#[test]
fn an_added_tenant_is_held_to_its_terms_by_the_devices_own_record_until_its_last_process_ends() {
    let mut lab = Lab::new("h200");
    let daemon = serve(&lab);
    let socket = daemon.tell(&["tenant", "add", "job", "--memory-limit", "2GiB", "--sm-request", "60"]);
    assert_eq!(socket.trim_end(), daemon.socket("job").display().to_string());
    let mut inside = member(&mut lab, &daemon, "job");
    let (before, (free, total)) = (charged(&lab.device(0)), inside.info());
    assert_eq!(total, 2 * GIB);
    inside.alloc(GIB);
    assert_eq!(inside.code(&format!("alloc {}", free - GIB + MIB)), 2, "more than the limit");
    assert_eq!(charged(&lab.device(0)) - before, GIB);
    // All time is promised: 40 % to the tenant of the file, 60 % to the job.
    let more = ["tenant", "add", "more", "--memory-limit", "1GiB", "--sm-request", "10"];
    let (code, words) = ask(&daemon, &more);
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("sm_request brings the requests on device") && words.contains("110 %"), "{words}");
    assert!(daemon.tell(&["tenant", "remove", "job"]).contains("1 of its processes run on"));
    assert!(!daemon.socket("job").exists());
    assert_eq!(ask(&daemon, &more).0, Some(3), "its promise holds while its process runs");
    assert_eq!(inside.code(&format!("alloc {GIB}")), 2, "the process keeps its last terms");
    let waits = thread::scope(|scope| {
        let waits = scope.spawn(|| ask(&daemon, &[&more[..], &["--wait", "30s"]].concat()));
        thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished(), "it waits");
        inside.finish();
        waits.join().expect("no panic")
    });
    assert_eq!(waits.0, Some(0), "{}", waits.1);
    let mut next = member(&mut lab, &daemon, "more");
    next.ok("launch 1000");
    assert_eq!(next.errors(), "");
}

#[test]
fn added_tenants_outlive_a_reload_a_kill_of_the_daemon_and_changes_of_others() {
    let mut lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "2GiB", "--group", "lab/vision", "--label", "user=ada"]);
    daemon.tell(&["set", "fixed", "--weight", "7"]);
    daemon.tell(&["tenant", "add", "other", "--memory-limit", "1GiB"]);
    let weight = |daemon: &Daemon| {
        let status = json(daemon, &["status"]);
        let tenants = status["tenants"].as_array().unwrap();
        tenants.iter().find(|tenant| tenant["name"] == "fixed").unwrap()["devices"][0]["weight"].as_u64()
    };
    assert_eq!(weight(&daemon), Some(7), "the change by hand stays when a tenant is added");
    daemon.tell(&["tenant", "remove", "other"]);
    assert_eq!(weight(&daemon), Some(7), "and when one is removed");
    let mut inside = member(&mut lab, &daemon, "job");
    inside.alloc(GIB);
    daemon.reload();
    assert_eq!(inside.info().1, 2 * GIB);
    daemon.kill();
    daemon.again();
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned(), "job".to_owned()]));
    eventually("the process is a member again", || {
        inside.info();
        json(&daemon, &["ps"]).as_array().unwrap().len() == 1
    });
    let status = json(&daemon, &["status"]);
    let job = status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "job").unwrap();
    assert_eq!((job["group"].as_str(), job["labels"]["user"].as_str()), (Some("lab/vision"), Some("ada")));
    assert_eq!(job["memory_limit"].as_u64(), Some(2 * GIB));
    assert_eq!(inside.code(&format!("alloc {}", 2 * GIB)), 2);
}

#[test]
fn the_same_command_again_changes_nothing_and_other_values_need_replace() {
    let lab = Lab::new("h200");
    let daemon = serve(&lab);
    let add = ["tenant", "add", "job", "--gpu", "0.25", "--uid", "1000"];
    assert_eq!(json(&daemon, &add)["state"], "added");
    assert_eq!(json(&daemon, &add)["state"], "unchanged");
    let other = ["tenant", "add", "job", "--gpu", "0.5", "--uid", "1000"];
    let (code, words) = ask(&daemon, &other);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("tenant job is there with another gpu; accepted: the same, or --replace"), "{words}");
    assert_eq!(json(&daemon, &[&other[..], &["--replace"]].concat())["state"], "replaced");
    let status = json(&daemon, &["status"]);
    let job = status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "job").unwrap();
    assert_eq!(job["memory_limit"].as_u64(), Some(70 * GIB));
    // Another daemon of the same directory says the same.
    assert_eq!(json(&daemon, &other)["state"], "unchanged");
}

#[test]
fn exit_codes_tell_bad_terms_from_what_does_not_fit_and_from_no_daemon() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    for (words, code, said) in [
        (&["tenant", "add", "x", "--gpu", "2"][..], 2, "tenant.gpu = 2"),
        (&["tenant", "add", "x", "--memory-limit", "lots"], 2, "tenant.memory_limit = lots"),
        (&["tenant", "add", "x", "--memory-limit", "141GiB"], 2, "is more than device"),
        (&["tenant", "add", "../x", "--gpu", "0.1"], 2, "tenant.name = ../x cannot be a name"),
        (&["tenant", "add", "x", "--template", "no", "--gpu", "0.1"], 2, "is not a template"),
        (&["tenant", "add", "x", "--gpu", "0.1", "--pid", "999999999"], 2, "--pid 999999999 is no process here"),
        (&["tenant", "add", "x", "--gpu", "0.1", "--for", "10ms"], 2, "--for is less than a second"),
        (&["tenant", "add", "x", "--gpu", "0.1", "--label", "a"], 2, "KEY=VALUE"),
        (&["tenant", "add", "x", "--gpu", "0.1", "--label", "a=1", "--label", "a=2"], 2, "given twice"),
        (&["tenant", "add", "x", "--gpu", "0.1", "--memory-limit", "1GiB"], 2, "cannot be used with"),
        (&["tenant", "add", "x", "--sm-request", "61", "--memory-limit", "1GiB"], 3, "101 %"),
        (&["tenant", "add", "fixed", "--gpu", "0.1"], 1, "tenant fixed is in"),
        (&["tenant", "remove", "fixed"], 1, "remove it there and reload"),
    ] {
        let (got, text) = ask(&daemon, words);
        assert_eq!(got, Some(code), "{words:?}: {text}");
        assert!(text.contains(said), "{words:?}: {text}");
    }
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]));
    let (code, words) = ask(&daemon, &["tenant", "remove", "ghost"]);
    assert!(code == Some(0) && words.contains("there is no tenant \"ghost\""), "{words}");
    let quiet = daemon.vgpu(&["tenant", "remove", "ghost", "--if-exists"]);
    assert!(quiet.status.success() && quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{quiet:?}");
    daemon.stop();
    assert_eq!(ask(&daemon, &["tenant", "add", "x", "--gpu", "0.1"]).0, Some(4));
    assert_eq!(ask(&daemon, &["tenant", "remove", "x"]).0, Some(4));
}

#[test]
fn the_longest_labels_that_are_accepted_can_be_sent_and_stored() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    let label = |number: usize| format!("{}{number:02}={}", "n".repeat(62), "\u{1f600}".repeat(128));
    let labels: Vec<String> = (0..16).map(label).collect();
    let mut words = vec!["tenant", "add", "job", "--gpu", "0.25"];
    words.extend(labels.iter().flat_map(|label| ["--label", label.as_str()]));
    daemon.tell(&words);
    daemon.kill();
    daemon.again();
    let status = json(&daemon, &["status"]);
    let job = status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "job").unwrap();
    assert_eq!(job["labels"].as_object().unwrap().len(), 16);
    let endless = "u".repeat(64 << 10);
    let (code, said) = ask(&daemon, &["tenant", "add", "job", "--gpu", "0.25", "--group", &endless]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("bytes; accepted: at most 65536"), "{said}");
    let mut stream = UnixStream::connect(daemon.admin()).unwrap();
    stream.write_all(&vec![b'x'; 64 << 10]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("the line is longer than 65536 bytes"), "{answer}");
}

#[test]
fn a_daemon_that_is_busy_with_other_administrators_says_so_and_a_command_that_waits_asks_again() {
    let lab = Lab::new("h200");
    let daemon = serve(&lab);
    // Connections that say nothing are closed after 2 s, so a slow host may need several tries.
    eventually("one more administrator is refused", || {
        let connect = || UnixStream::connect(daemon.admin()).unwrap();
        let _others: Vec<UnixStream> = (0..16).map(|_| connect()).collect();
        let mut answer = String::new();
        connect().read_to_string(&mut answer).is_ok()
            && answer.contains("16 administrators are connected already")
            && answer.contains("\"refusal\":\"busy\"")
    });
    let path = lab.path().join("busy.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let busy = "{\"hello\":2,\"error\":\"16 administrators are connected already\",\"refusal\":\"busy\"}\n";
    let added = "{\"hello\":2,\"tenant\":{\"name\":\"job\",\"state\":\"added\",\"socket\":\"/s\",\"since\":1,\
                 \"members\":[],\"unseen_members\":0,\"is_recorded\":true}}\n";
    let answers = thread::spawn(move || {
        for answer in [busy, busy, added] {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let add = |wait: &[&str]| {
        let words = [&["tenant", "add", "job", "--gpu", "0.25"][..], wait].concat();
        Command::new(vgpu()).args(words).arg("--socket").arg(&path).output().unwrap()
    };
    let (at_once, waits) = (add(&[]), add(&["--wait", "60s"]));
    assert_eq!(at_once.status.code(), Some(4), "{at_once:?}");
    assert_eq!(String::from_utf8_lossy(&waits.stdout), "/s\n", "{waits:?}");
    answers.join().unwrap();
}

#[test]
fn a_removal_waits_until_the_last_usage_is_in_the_record() {
    let lab = Lab::new("h200");
    let path = lab.path().join("slow.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = |is_recorded: bool| {
        format!(
            "{{\"hello\":2,\"tenant\":{{\"name\":\"job\",\"state\":\"removed\",\"socket\":null,\"since\":1,\"members\":[],\
             \"unseen_members\":0,\"is_recorded\":{is_recorded}}}}}\n"
        )
    };
    // A record that is written only at the third look.
    let answers = thread::spawn(move || {
        let mut looks = 0;
        while looks < 3 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            looks += usize::from(line.contains("\"only_look\":true"));
            if line.is_empty() {
                break;
            }
            stream.write_all(answer(looks == 3).as_bytes()).unwrap();
        }
        looks
    });
    let words = ["tenant", "remove", "job", "--json", "--socket"];
    let out = Command::new(vgpu()).args(words).arg(&path).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    drop(UnixStream::connect(&path));
    assert_eq!(answers.join().unwrap(), 3);
}

#[test]
fn a_tenant_ends_with_its_process_or_its_time_also_across_a_restart_of_the_daemon() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    let (mut first, mut second, mut third) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    for (name, sleeper) in [("one", &first), ("two", &second), ("three", &third)] {
        daemon.tell(&["tenant", "add", name, "--gpu", "0.01", "--pid", &sleeper.pid()]);
    }
    daemon.tell(&["tenant", "add", "brief", "--gpu", "0.01", "--for", "1s"]);
    daemon.tell(&["tenant", "add", "long", "--gpu", "0.01", "--for", "1h"]);
    let list = daemon.tell(&["tenant", "list"]);
    assert!(list.contains(&format!("with process {}", first.pid())) && list.contains("in 1h"), "{list}");
    let is_served = |daemon: &Daemon, name: &str| served(daemon).contains(name);
    first.end();
    eventually("it ends with its process", || !is_served(&daemon, "one"));
    eventually("it ends with its time", || !is_served(&daemon, "brief"));
    assert!(is_served(&daemon, "two") && is_served(&daemon, "long"));
    daemon.kill();
    second.end();
    daemon.again();
    assert!(!is_served(&daemon, "two"), "its process ended while no daemon ran");
    assert!(is_served(&daemon, "three") && is_served(&daemon, "long"));
    third.end();
    eventually("the next daemon sees the end too", || !is_served(&daemon, "three"));
    assert!(!daemon.socket("three").exists() && daemon.socket("long").exists());
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_and_the_final_usage_is_that_of_the_record() {
    let mut lab = Lab::new("h200");
    let daemon = serve(&lab);
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "4GiB", "--sm-limit", "50"]);
    lab.set("VGPU_SOCKET", daemon.socket("job"));
    // A disposition of "ignore" is kept across exec.
    let program = compile("member", Kind::Program, &[]);
    let mut deaf = lab.command("sh");
    deaf.arg("-c").arg("trap '' TERM; exec \"$0\" dlsym").arg(program);
    let mut deaf = Member::start(&mut deaf);
    deaf.begin();
    deaf.alloc(GIB);
    for _ in 0..20 {
        deaf.ok("launch 10000000");
    }
    let mut tame = member(&mut lab, &daemon, "job");
    tame.ok("launch 1000");
    let removed = json(&daemon, &["tenant", "remove", "job", "--kill", "--grace", "300ms"]);
    assert!(deaf.has_ended() && tame.has_ended());
    assert_eq!((&removed["state"], &removed["killed"], &removed["members"]), (&"removed".into(), &2.into(), &0.into()));
    let usage = &removed["usage"];
    assert_eq!(usage["is_final"], true, "{removed}");
    let kept = daemon.tell(&["usage", "job", "--json", "--state-dir", &lab.path().join("kept").display().to_string()]);
    let kept: Value = serde_json::from_str(&kept).unwrap();
    for key in ["gpu_ns", "memory_byte_seconds", "peak_bytes", "launches"] {
        assert_eq!(usage[key], kept["total"][key], "{key}");
    }
    // When a kernel on an idle stream began is known to within a launch's host time: less than 10 us.
    assert!(usage["gpu_ns"].as_u64().unwrap() >= 20 * 9_990_000, "20 launches of 10 ms: {removed}");
    assert!(usage["peak_bytes"].as_u64().unwrap() >= GIB, "{removed}");
    let again = json(&daemon, &["tenant", "remove", "job", "--kill"]);
    assert_eq!((&again["state"], &again["usage"]), (&"unknown".into(), &Value::Null));
}

#[test]
fn a_file_that_leaves_no_room_for_an_added_tenant_or_takes_its_name_is_refused_with_both_named() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "1GiB", "--sm-request", "60"]);
    let plan = |tenants: Vec<(String, String)>| Plan { device: lab.device(0).uuid, time: String::new(), tenants };
    let refused = |daemon: &Daemon, said: &str| {
        let pid = i32::try_from(daemon.pid()).unwrap();
        // SAFETY: the daemon is a running child of this test.
        unsafe { libc::kill(pid, libc::SIGHUP) };
        eventually("the file is refused", || daemon.log().contains(said));
    };
    daemon.write(&plan(vec![("fixed".into(), "memory_limit = \"1GiB\"\nsm_request = 41".into())]));
    refused(&daemon, "with the tenants that `vgpu tenant add` added: sm_request brings the requests on device");
    daemon.write(&plan(vec![("job".into(), "memory_limit = \"1GiB\"".into())]));
    refused(&daemon, "tenant job, which `vgpu tenant add` added: the file has a tenant of this name");
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned(), "job".to_owned()]), "nothing was changed");
    // The next daemon serves the file, and says which tenant it cannot serve. The tenant is not lost.
    daemon.write(&plan(vec![("fixed".into(), "memory_limit = \"1GiB\"\nsm_request = 41".into())]));
    daemon.kill();
    daemon.again();
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]));
    assert!(daemon.log().contains("a tenant that a command added is not served"), "{}", daemon.log());
    daemon.write(&plan(vec![("fixed".into(), "memory_limit = \"1GiB\"\nsm_request = 40".into())]));
    // A reading that is accepted is followed by another try.
    let pid = i32::try_from(daemon.pid()).unwrap();
    // SAFETY: the daemon is a running child of this test.
    unsafe { libc::kill(pid, libc::SIGHUP) };
    let both = BTreeSet::from(["fixed".to_owned(), "job".to_owned()]);
    eventually("it is served", || served(&daemon) == both);
}

#[test]
fn a_stored_tenant_whose_device_only_the_driver_knows_is_served_when_the_driver_answers() {
    let mut lab = Lab::new("h200");
    let plan = Plan { device: "*".into(), time: String::new(), tenants: Vec::new() };
    let mut daemon = Daemon::start_on_machine(&lab, &plan);
    daemon.tell(&["tenant", "add", "job", "--gpu", "0.25"]);
    daemon.kill();
    let (driver, away) = (lab.path().join("driver"), lab.path().join("away"));
    fs::create_dir(&away).unwrap();
    // The loader remembers a directory that was not there, so it stays, without its files.
    let move_driver = |from: &Path, to: &Path| {
        for name in ["libnvidia-ml.so.1", "libnvidia-ml.so"] {
            fs::rename(from.join(name), to.join(name)).unwrap();
        }
    };
    move_driver(&driver, &away);
    daemon.again();
    assert!(served(&daemon).is_empty(), "no part of an unknown memory can be promised: {}", daemon.log());
    // So is a tenant that a command asks for meanwhile.
    assert_eq!(ask(&daemon, &["tenant", "add", "late", "--gpu", "0.25"]).0, Some(2));
    move_driver(&away, &driver);
    eventually("it is served", || served(&daemon) == BTreeSet::from(["job".to_owned()]));
    daemon.tell(&["tenant", "add", "late", "--gpu", "0.25"]);
    assert_eq!(member(&mut lab, &daemon, "job").info().1, lab.device(0).cuda_total / 4);
}

#[test]
fn the_promise_of_a_removed_tenant_holds_under_the_next_daemon_until_its_last_process_ends() {
    let mut lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "2GiB", "--sm-request", "60"]);
    let mut inside = member(&mut lab, &daemon, "job");
    daemon.tell(&["tenant", "remove", "job"]);
    let more = ["tenant", "add", "more", "--memory-limit", "1GiB", "--sm-request", "10"];
    for restart in ["a kill", "a second one"] {
        daemon.kill();
        daemon.again();
        assert_eq!(ask(&daemon, &more).0, Some(3), "its process still runs after {restart}");
        assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]));
        let list = daemon.tell(&["tenant", "list"]);
        assert!(list.contains("job     removed  with its last process"), "{list}");
        assert!(!daemon.socket("job").exists(), "no process can join it");
    }
    assert_eq!(inside.code(&format!("alloc {}", 2 * GIB)), 2, "the process keeps its last terms");
    inside.finish();
    daemon.tell(&more);
    assert!(!daemon.room("job").exists() && !lab.path().join("run/added/job.json").exists());
    // Members that did not come back to a new daemon before the removal count too, and a removal ends them.
    daemon.tell(&["tenant", "remove", "more"]);
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "2GiB", "--sm-request", "60"]);
    let mut inside = member(&mut lab, &daemon, "job");
    inside.signal(libc::SIGSTOP);
    daemon.kill();
    daemon.again();
    daemon.tell(&["tenant", "remove", "job"]);
    assert_eq!(ask(&daemon, &more).0, Some(3), "a stopped process holds its promise");
    let removed = json(&daemon, &["tenant", "remove", "job", "--kill", "--grace", "100ms"]);
    assert_eq!((&removed["state"], &removed["killed"]), (&"ending".into(), &1.into()));
    assert!(inside.has_ended());
    daemon.tell(&more);
}

#[test]
fn a_stored_tenant_that_this_daemon_cannot_serve_is_removed_for_good_and_a_look_removes_nothing() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    let plan = |floor: u32| Plan {
        device: lab.device(0).uuid,
        time: String::new(),
        tenants: vec![("fixed".into(), format!("memory_limit = \"1GiB\"\nsm_request = {floor}"))],
    };
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "1GiB", "--sm-request", "60"]);
    daemon.write(&plan(41));
    daemon.kill();
    daemon.again();
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]));
    assert_eq!(daemon.tell(&["tenant", "remove", "job"]), "job removed\n");
    daemon.write(&plan(40));
    daemon.kill();
    daemon.again();
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]), "it was removed");
    daemon.tell(&["tenant", "add", "job", "--memory-limit", "1GiB"]);
    let look = "{\"hello\":2,\"ask\":\"remove\",\"tenant\":\"job\",\"only_look\":true}\n";
    assert!(request(&daemon, look).contains("\"state\":\"added\""), "its name is in use again");
    assert!(served(&daemon).contains("job"));
}

/// The daemon is killed at random instants between additions and removals.
#[test]
fn no_confirmed_addition_or_removal_is_lost_when_the_daemon_is_killed_at_random() {
    let lab = Lab::new("h200");
    let mut daemon = serve(&lab);
    let mut random = fastrand::Rng::with_seed(7);
    let mut there: BTreeSet<String> = BTreeSet::new();
    for round in 0..40 {
        // Tenants whose last request was not confirmed: they may be there or not.
        let mut open: BTreeSet<String> = BTreeSet::new();
        let wait = Duration::from_micros(random.u64(0..20_000));
        thread::scope(|scope| {
            let pid = i32::try_from(daemon.pid()).unwrap();
            let killer = scope.spawn(move || {
                thread::sleep(wait);
                // SAFETY: the daemon is a child of this test that is not waited for before this thread ends.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            });
            for number in 0.. {
                let name = format!("t{}", random.u32(0..12));
                let remove = there.contains(&name);
                let words: &[&str] =
                    if remove { &["tenant", "remove", &name] } else { &["tenant", "add", &name, "--gpu", "0.01"] };
                if ask(&daemon, words).0 != Some(0) {
                    open.insert(name);
                    break;
                }
                if remove {
                    there.remove(&name)
                } else {
                    there.insert(name)
                };
                assert!(number < 10_000, "the daemon is not killed");
            }
            killer.join().expect("no panic");
        });
        daemon.kill();
        daemon.again();
        let mut now = served(&daemon);
        now.remove("fixed");
        let differ: BTreeSet<String> = now.symmetric_difference(&there).cloned().collect();
        assert!(differ.is_subset(&open), "round {round}: {differ:?} differ, open is {open:?}");
        there = now;
    }
}

/// Ten thousand tenants come and go. Requests go straight to the socket, because a process for each would be slow.
#[test]
fn ten_thousand_additions_and_removals_leave_nothing_behind() {
    let lab = Lab::new("h200");
    let daemon = serve(&lab);
    let churn = |from: u32, to: u32| {
        for number in from..to {
            request(
                &daemon,
                &format!("{{\"hello\":2,\"ask\":\"add\",\"section\":{{\"name\":\"t{number}\",\"gpu\":\"0.01\"}}}}\n"),
            );
            request(&daemon, &format!("{{\"hello\":2,\"ask\":\"remove\",\"tenant\":\"t{number}\"}}\n"));
        }
    };
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let cpu_ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
        let words: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().filter_map(|w| w.parse().ok()).collect();
        // After the state, which is no number: utime and stime are the 11th and 12th.
        words[10] + words[11]
    };
    churn(0, 1_000);
    let (descriptors, memory, ticks, begun) = (daemon.descriptors(), resident(), cpu_ticks(), Instant::now());
    churn(1_000, 10_000);
    let each_us = (cpu_ticks() - ticks) * 10_000 / 18_000;
    println!(
        "{each_us} us of the daemon's processor for each request, {:.1} s for 18,000",
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(daemon.descriptors(), descriptors);
    let grown = resident().saturating_sub(memory);
    assert!(grown < 4 * MIB, "{grown} bytes for 9,000 tenants");
    let left = |dir: &str| fs::read_dir(lab.path().join(dir)).map_or(0, Iterator::count);
    assert_eq!((left("run/tenants"), left("run/added")), (1, 0), "the tenant of the file");
    assert_eq!(served(&daemon), BTreeSet::from(["fixed".to_owned()]));
}
