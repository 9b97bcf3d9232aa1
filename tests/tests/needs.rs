//! Policies that follow what a tenant needs and does: idle steps and deadlines, with programs on the simulated device.

use std::fs;
use std::time::{Duration, Instant};

use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::member::Member;
use vgpu_tests::timed::timed;
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab};

/// Two seconds until a tenant counts as idle.
const SOON_IDLE: &str = "memory_limit = \"8GiB\"\nidle_minutes = 0.034\n";

fn with_daemon(tenants: &[(&str, &str)]) -> (Lab, Daemon) {
    let lab = Lab::new("h200");
    let tenants = tenants.iter().map(|(name, lines)| ((*name).to_owned(), (*lines).to_owned())).collect();
    let plan = Plan { device: lab.device(0).uuid, time: "arbitrate = true".into(), tenants };
    let daemon = Daemon::start(lab.path(), &plan);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    (lab, daemon)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Events of the tenant `a` of these subjects, each as a line of JSON.
fn events(daemon: &Daemon, subjects: &[&str]) -> Vec<serde_json::Value> {
    let text = daemon.tell(&["events", "--json"]);
    let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an event"));
    let is_asked = |event: &serde_json::Value| {
        let kind = event["kind"].as_str().unwrap_or_default();
        subjects.iter().any(|subject| kind.split('.').next() == Some(subject))
    };
    all.filter(is_asked).collect()
}

fn kinds(daemon: &Daemon, subjects: &[&str]) -> Vec<String> {
    events(daemon, subjects).iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

fn status(daemon: &Daemon) -> serde_json::Value {
    let status: serde_json::Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).expect("a status");
    status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "a").unwrap().clone()
}

fn is_idle_as(daemon: &Daemon, state: &str) -> bool {
    status(daemon)["idle"]["state"] == state
}

/// A member that holds memory and launched once.
fn holding(lab: &Lab) -> Member {
    let mut member = lab.member();
    member.begin();
    member.alloc(GIB);
    member.ok("launch 1000000");
    member
}

/// Rows 47, 49, 91 and 122.
#[test]
fn an_idle_notebook_stands_back_with_its_memory_reclaimable_and_is_itself_again_when_it_launches() {
    let (lab, daemon) = with_daemon(&[("a", &format!("{SOON_IDLE}template = \"notebook\"\nweight = 7"))]);
    let _holding = holding(&lab);
    eventually("it holds memory and launches nothing", || is_idle_as(&daemon, "resident-idle"));
    eventually("its class and weight are lowered", || {
        let tenant = status(&daemon);
        (tenant["devices"][0]["class"].as_str(), tenant["devices"][0]["weight"].as_u64()) == (Some("batch"), Some(1))
    });
    let tenant = status(&daemon);
    assert_eq!(tenant["idle"]["steps"], serde_json::json!(["lower", "reclaimable"]));
    assert!(tenant["idle"]["reclaimable"].as_u64().unwrap() >= GIB, "{tenant}");
    let explained = daemon.tell(&["explain", "a"]);
    assert!(explained.contains("use: resident-idle; steps: lower, reclaimable"), "{explained}");
    assert!(explained.contains("weight 7 (file) -> 1 (idle: \"resident-idle\")"), "{explained}");
    let mut member = timed(&lab);
    member.tell("loop 20000000 20000 0 8 0 0 0");
    eventually("it is busy again", || is_idle_as(&daemon, "busy"));
    eventually("it has its own terms again", || {
        let tenant = status(&daemon);
        (tenant["devices"][0]["class"].as_str(), tenant["devices"][0]["weight"].as_u64()) == (Some("normal"), Some(7))
    });
    let told = events(&daemon, &["idle"]);
    let of = |kind: &str| told.iter().filter(|event| event["kind"] == kind).collect::<Vec<_>>();
    let steps: Vec<_> = of("idle.step").iter().map(|event| event["more"]["step"].clone()).collect();
    assert_eq!((of("idle.resident").len(), steps), (1, vec!["lower".into(), "reclaimable".into()]));
    let ended = &of("idle.ended").last().expect("an end")["more"];
    assert!(ended["gib_hours"].as_f64().is_some() && ended["seconds"].as_u64() >= Some(2), "{ended}");
    assert_eq!(status(&daemon)["idle"]["reclaimable"], 0);
    assert_eq!(member.errors(), "");
}

/// Row 47: work that is queued and makes no progress.
#[test]
fn a_tenant_whose_queued_work_makes_no_progress_is_told_as_stalled_and_one_that_works_is_not() {
    let lines = format!("{SOON_IDLE}stalled_minutes = 0.05\nidle_steps = [\"event\"]");
    let (lab, daemon) = with_daemon(&[("a", &lines)]);
    let mut member = timed(&lab);
    member.tell("loop 5000000 4000 0 8 0 0 0");
    member.answer();
    assert_eq!(kinds(&daemon, &["idle"]), [""; 0], "it worked for four seconds");
    // A kernel of a minute.
    member.tell("loop 30000000000 1 1 1 0 0 0");
    eventually("its work makes no progress", || is_idle_as(&daemon, "stalled"));
    let told = kinds(&daemon, &["idle"]);
    assert_eq!(told.last().map(String::as_str), Some("idle.stalled"), "{told:?}");
    member.kill();
    eventually("without a process it is not stalled", || is_idle_as(&daemon, "busy"));
}

/// Row 48: asked to end, and killed after the grace.
#[test]
fn an_idle_process_is_asked_to_end_and_killed_after_its_grace_and_never_in_a_dry_run() {
    let steps = "idle_steps = [\"terminate after 1s\"]\nidle_grace = \"1s\"\n";
    let (lab, daemon) =
        with_daemon(&[("a", &format!("{SOON_IDLE}{steps}")), ("b", &format!("{SOON_IDLE}{steps}idle_dry_run = true"))]);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("b"));
    let mut spared = holding(&lab);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    let mut polite = holding(&lab);
    eventually("SIGTERM ends it", || polite.has_ended());
    let mut frozen = holding(&lab);
    // A stopped process takes no SIGTERM.
    lab.stop(&frozen);
    eventually("SIGKILL ends it", || frozen.has_ended());
    eventually("the dry run told its step", || {
        events(&daemon, &["idle"]).iter().any(|event| event["tenant"] == "b" && event["kind"] == "idle.step")
    });
    let all = events(&daemon, &["idle"]);
    let of = |tenant: &str| all.iter().filter(|event| event["tenant"] == tenant).cloned().collect::<Vec<_>>();
    let dry = of("b").into_iter().find(|event| event["kind"] == "idle.step").unwrap();
    assert_eq!((&dry["more"]["dry_run"], &dry["more"]["members"]), (&true.into(), &spared.pid.to_string().into()));
    assert!(!spared.has_ended(), "a dry run ends nobody");
    spared.ok("launch 1000000");
}

/// A stopped process does not notice that the daemon was replaced.
#[test]
fn an_idle_tenant_is_idle_under_the_next_daemon_too_and_none_of_its_processes_is_signalled_there() {
    let lines = format!("{SOON_IDLE}weight = 7\nidle_steps = [\"lower\", \"terminate after 1s\"]");
    let (lab, mut daemon) = with_daemon(&[("a", &lines)]);
    let member = holding(&lab);
    eventually("it is listed for the next daemon", || {
        fs::read_to_string(lab.path().join("run/members"))
            .unwrap_or_default()
            .contains(&format!("member {} ", member.pid))
    });
    lab.stop(&member);
    daemon.kill();
    daemon.again();
    let is_last =
        |event: &serde_json::Value| event["more"]["step"].as_str().is_some_and(|step| step.contains("terminate"));
    eventually("its last step is due", || events(&daemon, &["idle"]).iter().any(is_last));
    assert_eq!(status(&daemon)["devices"][0]["weight"], 1, "the harmless step is taken");
    let step = events(&daemon, &["idle"]).into_iter().find(is_last).unwrap();
    assert_eq!(step["more"]["members"], "", "nobody knows what a process does that did not come back");
}

/// The step "suspend" hands the processes to a program.
#[test]
fn an_idle_tenants_processes_are_named_to_the_program_that_suspends_them() {
    let lab = Lab::new("h200");
    let file = lab.path().join("suspended");
    let script = format!("echo \"$@\" > {0}.new; cat >> {0}.new; mv {0}.new {0}", file.display());
    let lines = format!(
        "{SOON_IDLE}idle_steps = [\"suspend after 1s\"]\nidle_suspend = [\"/bin/sh\", \"-c\", {script:?}, \"sh\", \"suspend\"]"
    );
    let plan = Plan { device: lab.device(0).uuid, time: "arbitrate = true".into(), tenants: vec![("a".into(), lines)] };
    let daemon = Daemon::start(lab.path(), &plan);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    let mut member = holding(&lab);
    eventually("the program ran", || file.exists());
    let text = fs::read_to_string(&file).unwrap();
    let (arguments, event) = text.split_once('\n').unwrap();
    assert_eq!(arguments, format!("suspend {}", member.pid));
    let event: serde_json::Value = serde_json::from_str(event).unwrap();
    assert_eq!((&event["kind"], &event["tenant"]), (&"idle.step".into(), &"a".into()));
    eventually("its end is told", || !kinds(&daemon, &["action"]).is_empty());
    member.ok("launch 1000000");
}

/// Rows 50, 51 and 52: nothing without configuration, and events that an autoscaler can consume.
#[test]
fn events_tell_over_use_and_idleness_of_followed_tenants_and_nothing_of_others() {
    let lines = "memory_limit = \"8GiB\"\nidle_minutes = 0.034\nover_minutes = 0.05\nover_threshold = 50\n";
    let (lab, daemon) = with_daemon(&[("a", lines), ("b", "memory_limit = \"8GiB\"")]);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("b"));
    let _quiet = holding(&lab);
    let lab = lab.with("VGPU_SOCKET", daemon.socket("a"));
    let mut member = timed(&lab);
    member.tell("loop 20000000 10000 0 8 0 0 0");
    eventually("it uses all that it may", || kinds(&daemon, &["over-used"]) == ["over-used.began"]);
    member.answer();
    eventually("and then nothing", || kinds(&daemon, &["idle"]).len() == 1);
    eventually("over-use ended", || kinds(&daemon, &["over-used"]) == ["over-used.began", "over-used.ended"]);
    assert!(events(&daemon, &["idle", "over-used", "starved"]).iter().all(|event| event["tenant"] == "a"));
    let text = daemon.tell(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let b = status["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == "b").unwrap();
    assert!(b.get("idle").is_none() && b.get("deadline").is_none(), "{b}");
}

/// The time so many seconds from now, as the file writes it.
fn local_time(seconds: i64) -> String {
    let output = std::process::Command::new("date").args(["-d", &format!("{seconds} seconds"), "+%F %T"]).output();
    String::from_utf8(output.expect("date").stdout).unwrap().trim().to_owned()
}

/// Row 84.
#[test]
fn a_deadline_raises_the_floor_to_what_it_needs_and_its_count_survives_a_kill() {
    let deadline = format!("memory_limit = \"8GiB\"\ndeadline = {:?}\ngpu_hours_needed = 1", local_time(4 * 3_600));
    let (lab, mut daemon) = with_daemon(&[("a", &deadline), ("b", "memory_limit = \"8GiB\"\nsm_request = 40")]);
    let floor = |daemon: &Daemon| status(daemon)["devices"][0]["sm_request"].as_f64();
    eventually("a quarter of the device", || floor(&daemon).is_some_and(|floor| (25.0..27.0).contains(&floor)));
    let explained = daemon.tell(&["explain", "a"]);
    assert!(explained.contains("sm_request none (file) -> ") && explained.contains("(deadline until "), "{explained}");
    assert!(explained.contains("1.000 GPU hours"), "{explained}");
    let mut member = timed(&lab);
    member.tell("loop 10000000 3000 0 8 0 0 0");
    member.answer();
    let received = |daemon: &Daemon| status(daemon)["deadline"]["gpu_hours_received"].as_f64().unwrap_or(0.0);
    eventually("two seconds are counted", || received(&daemon) * 3_600.0 > 1.9);
    let kept = || fs::read_to_string(lab.path().join("kept/deadlines.json")).unwrap_or_default();
    eventually("and stored", || {
        let kept: serde_json::Value = serde_json::from_str(&kept()).unwrap_or_default();
        kept["a"]["received_ns"].as_f64().unwrap_or(0.0) / 1e9 > 1.9
    });
    daemon.kill();
    daemon.again();
    eventually("the next daemon goes on", || received(&daemon) * 3_600.0 > 1.9);
    assert!((25.0..27.0).contains(&floor(&daemon).unwrap_or(0.0)), "the floor is there from the start");
    assert!(kinds(&daemon, &["deadline"]).is_empty());
}

/// Row 84: an event says when a deadline could be met for the last time; a floor never passes what is admissible.
#[test]
fn a_deadline_is_told_at_risk_missed_and_met() {
    let deadline =
        |hours: f64| format!("memory_limit = \"8GiB\"\ndeadline = {:?}\ngpu_hours_needed = {hours}", local_time(3_600));
    let (lab, daemon) = with_daemon(&[("a", &deadline(0.9)), ("b", "memory_limit = \"8GiB\"\nsm_request = 40")]);
    eventually("no more than is admissible", || status(&daemon)["devices"][0]["sm_request"].as_f64() == Some(60.0));
    eventually("the risk is told", || kinds(&daemon, &["deadline"]) == ["deadline.at_risk"]);
    let plan = |lines: String| Plan {
        device: lab.device(0).uuid,
        time: "arbitrate = true".into(),
        tenants: vec![("a".into(), lines), ("b".into(), "memory_limit = \"8GiB\"\nsm_request = 40".into())],
    };
    daemon.write(&plan(deadline(2.0)));
    daemon.reload();
    eventually("it cannot be met", || kinds(&daemon, &["deadline"]).last().unwrap() == "deadline.missed");
    let told = events(&daemon, &["deadline"]);
    assert!(told.last().unwrap()["more"]["since"].as_str().unwrap().starts_with("20"), "{told:?}");
    eventually("and raises no floor", || status(&daemon)["devices"][0]["sm_request"].is_null());
    let short = format!("memory_limit = \"8GiB\"\ndeadline = {:?}\ngpu_hours_needed = 0.001", local_time(3_600));
    daemon.write(&plan(short));
    daemon.reload();
    let mut member = timed(&lab);
    member.tell("loop 10000000 6000 0 8 0 0 0");
    eventually("the work is done", || kinds(&daemon, &["deadline"]).last().unwrap() == "deadline.met");
    eventually("and it has its own terms", || status(&daemon)["devices"][0]["sm_request"].is_null());
    member.answer();
}
