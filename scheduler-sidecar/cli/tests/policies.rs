//! Tests of windows, bookings and overrides with an end, against a running daemon and its restart.

#[path = "../../support/commands.rs"]
mod commands;
#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _, Zoned};
use member::Member;
use rustix::process::Signal;
use support::world::World;
use support::{Guard, eventually, texts, vgpud};
use tempfile::TempDir;
use vgpu_control::BookingStatus;
use vgpu_control::event::DaemonEvent;
use vgpu_core::time::arbiter::Gate;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

const DEVICE: &str = "[[device]]\nid = \"GPU-00000000-0000-0000-0000-000000000001\"\nmemory = \"80GiB\"\n";

const TENANTS: &str = "\
[[tenant]]\nname = \"chat\"\nmemory_limit = \"30GiB\"\nsm_request = 40\nsm_limit = 60\ngroup = \"lab/chat\"\n
[[tenant]]\nname = \"train\"\nmemory_limit = \"40GiB\"\nsm_request = 30\nsm_limit = 80\n";

fn serve(sections: &str) -> World {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), format!("{DEVICE}{TENANTS}{sections}")).unwrap();
    World::start_by(vgpud(), dir, "info", Stdio::null())
}

/// A window of this length in minutes around the present moment, in UTC.
fn window_now(name: &str, rest: &str) -> String {
    let now = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let clock = |at: Zoned| at.strftime("%H:%M").to_string();
    let (from, to) = (clock(&now - 2.hours()), clock(&now + 2.hours()));
    format!("[[window]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\ntime_zone = \"UTC\"\n{rest}\n")
}

impl World {
    fn reload_and_wait(&self, sections: &str) {
        let before = self.status().configuration.unwrap().reloads;
        self.reload(&format!("{DEVICE}{TENANTS}{sections}"));
        eventually("the file is read again", || self.status().configuration.unwrap().reloads > before);
    }

    fn state_file(&self) -> PathBuf {
        self.dir.path().join("run/state/changes.json")
    }
}

#[test]
fn an_override_with_an_end_survives_a_reload_and_a_killed_daemon_and_ends_by_itself() {
    let world = serve("");
    let member = Member::hello(&world.socket("chat")).join(GPU);
    let said = world.says(&["set", "chat", "--sm-limit", "50", "--for", "20s", "--reason", "a demo"]);
    assert!(said.contains("changed sm_limit") && said.contains("note: it lasts until "), "{said}");
    assert!(world.chain("chat").contains("sm_limit 60 % (file) -> 50 % (override until "), "{}", world.chain("chat"));
    assert!(world.chain("chat").contains(": \"a demo\")"));
    assert_eq!(world.terms("chat").changed_live, ["sm_limit"]);
    world.reload_and_wait("");
    assert_eq!(world.terms("chat").sm_limit, Some(50.0), "a reading of the file does not end it");
    drop(member);
    let world = world.killed_and_restarted();
    assert_eq!(world.terms("chat").sm_limit, Some(50.0), "nor does the end of the daemon");
    let member = Member::hello(&world.socket("chat")).join(GPU);
    let ceiling = || member.allowed().terms.ceiling.map(|share| share.as_permille());
    assert_eq!(ceiling(), Some(500));
    eventually("the end comes by itself", || ceiling() == Some(600));
    assert!(world.terms("chat").changed_live.is_empty());
    world.says(&["set", "chat", "--weight", "2", "--for", "1h"]);
    let text = fs::read_to_string(world.state_file()).unwrap();
    assert!(!text.contains("a demo"), "the next command forgets what is over: {text}");
}

#[test]
fn labels_by_command_survive_a_reload_and_a_killed_daemon_and_give_the_files_back() {
    let file = "[[tenant]]\nname = \"slot\"\nmemory_limit = \"1GiB\"\nlabels = { namespace = \"idle\" }\n";
    let world = serve(file);
    let labels = |world: &World| {
        let tenant = world.status().tenants.into_iter().find(|tenant| tenant.name == "slot").unwrap();
        (tenant.bearer.labels_column(), tenant.labels_live)
    };
    let said = world.says(&["label", "slot", "namespace=lab", "pod=train"]);
    assert_eq!(said, "slot: labelled: namespace=lab pod=train\n");
    let event = world.last_event("tenant.changed").unwrap();
    assert_eq!((event.tenant.as_deref(), event.by.is_some()), (Some("slot"), true));
    assert_eq!(event.more["what"], "labels namespace=lab pod=train");
    let again = world.says(&["label", "slot", "pod=train"]);
    assert_eq!(again, "slot: it was so already: namespace=lab pod=train\n");
    let set = (r#"{"namespace":"lab","pod":"train"}"#.to_owned(), vec!["namespace".to_owned(), "pod".to_owned()]);
    assert_eq!(labels(&world), set);
    world.reload_and_wait(file);
    assert_eq!(labels(&world), set, "a reading of the file does not end them");
    world.says(&["unset", "slot"]);
    let world = world.killed_and_restarted();
    assert_eq!(labels(&world), set, "nor does the end of the daemon");
    let said = world.says(&["label", "slot", "namespace-", "pod-"]);
    assert_eq!(said, "slot: labelled: namespace=idle\n");
    world.says(&["label", "slot", "pod=other"]);
    world.reload_and_wait("");
    world.reload_and_wait(file);
    assert_eq!(labels(&world), (r#"{"namespace":"idle"}"#.to_owned(), Vec::new()), "they end with the tenant");
    let refused = world.refused(&["label", "none", "pod=x"], 1);
    assert!(refused.contains("there is no tenant \"none\""), "{refused}");
}

#[test]
fn an_override_without_an_end_is_over_when_the_file_is_read_or_when_it_is_unset() {
    let world = serve("");
    world.says(&["set", "chat", "--sm-limit", "50"]);
    world.says(&["set", "chat", "--weight", "7", "--for", "1h"]);
    world.reload_and_wait("");
    let terms = world.terms("chat");
    assert_eq!((terms.sm_limit, terms.weight), (Some(60.0), 7), "only the one with an end stays");
    world.says(&["pause", "chat"]);
    let said = world.says(&["unset", "chat"]);
    assert!(said.contains("chat: changed paused, weight"), "{said}");
    assert_eq!((world.terms("chat").weight, world.is_paused("chat")), (1, false));
    assert!(world.says(&["unset", "chat"]).contains("it was so already"));
}

#[test]
fn who_changed_what_and_why_is_an_event() {
    let world = serve("");
    world.says(&["set", "chat", "--sm-limit", "50", "--for", "1h", "--reason", "a demo"]);
    world.says(&["pause", "train", "--for", "1h", "--reason", "too loud"]);
    let of = |kind: &str| world.last_event(kind).unwrap();
    let changed = of("tenant.changed");
    assert_eq!((changed.more["what"].as_str(), changed.more["reason"].as_str()), (Some("sm_limit=50"), Some("a demo")));
    assert_eq!(changed.by.unwrap().uid, rustix::process::getuid().as_raw());
    assert_eq!(of("tenant.paused").more["reason"].as_str(), Some("too loud"));
}

#[test]
fn a_window_holds_for_its_group_and_a_person_may_do_otherwise() {
    let window = window_now("busy", "groups = [\"lab\"]\nsm_limit = 45\npaused = true");
    let world = serve(&window);
    let (chat, train) = (world.terms("chat"), world.terms("train"));
    assert_eq!((chat.sm_limit, train.sm_limit), (Some(45.0), Some(80.0)));
    assert!(chat.changed_live.is_empty(), "no administrator did that");
    assert!(world.is_paused("chat") && !world.is_paused("train"));
    assert!(world.chain("chat").contains("sm_limit 60 % (file) -> 45 % (window \"busy\" until "));
    let said = world.says(&["resume", "chat"]);
    assert!(said.contains("it was paused: window \"busy\" until ") && !world.is_paused("chat"), "{said}");
    world.says(&["set", "chat", "--sm-limit", "70", "--for", "1h"]);
    assert_eq!(world.terms("chat").sm_limit, Some(70.0));
    world.says(&["unset", "chat"]);
    assert!(world.is_paused("chat"), "the window holds again");
    world.reload_and_wait("");
    assert_eq!(world.terms("chat").sm_limit, Some(60.0), "without the window the terms are exactly those of the file");
    assert!(!world.is_paused("chat"));
}

#[test]
fn an_exclusive_tenant_has_the_device_alone_until_that_ends() {
    let world = serve("");
    let said = world.says(&["exclusive", "chat", "--for", "1h"]);
    assert!(said.starts_with("chat is exclusive\n") && said.contains("memory kept: train"), "{said}");
    assert!(world.is_paused("train") && !world.is_paused("chat"));
    assert!(world.chain("train").contains("override that makes tenant chat exclusive until "));
    let world = world.killed_and_restarted();
    assert!(world.is_paused("train"), "the next daemon knows");
    world.says(&["unset", "chat"]);
    assert!(!world.is_paused("train"));
}

#[test]
fn a_booking_is_kept_against_everything_that_would_break_it() {
    let world = serve("");
    let tomorrow = (Zoned::now() + 1.day()).strftime("%Y-%m-%d 09:00").to_string();
    let book = |tenant: &'static str, share: &'static str| {
        vec!["book", tenant, "--from", tomorrow.as_str(), "--for", "2h", "--sm-request", share]
    };
    assert!(world.says(&book("chat", "60")).contains("to come"));
    let told = world.refused(&book("train", "50"), 1);
    assert!(told.contains("\"train-1\" would not fit beside booking chat-1 from") && told.contains("110 %"), "{told}");
    let told = world.refused(&["set", "train", "--sm-request", "50"], 1);
    assert!(told.contains("booking \"chat-1\" would not fit from"), "{told}");
    let late = world.run(&["tenant", "add", "late", "--sm-request", "20", "--memory-limit", "1GiB"]);
    let (_, told) = texts(&late);
    assert!(late.status.code() == Some(3) && told.contains("booking \"chat-1\" would not fit"), "{told}");
    world.says(&["tenant", "add", "late", "--sm-request", "10", "--memory-limit", "1GiB"]);
    world.says(&["set", "train", "--sm-request", "50", "--for", "10s"]);
    world.says(&["book", "late", "--from", &tomorrow, "--for", "2h", "--memory-limit", "2GiB", "--name", "of-late"]);
    world.says(&["tenant", "add", "late", "--sm-request", "5", "--memory-limit", "1GiB", "--replace"]);
    assert!(world.says(&["bookings"]).contains("of-late"), "other terms of the tenant end no booking");
    world.says(&["tenant", "remove", "late"]);
    assert!(!world.says(&["bookings"]).contains("of-late"), "its end does");
    let world = world.killed_and_restarted();
    let all: Vec<BookingStatus> = world.json(&["bookings"]);
    assert_eq!(
        all.iter().map(|status| (status.booking.name.as_str(), status.holds)).collect::<Vec<_>>(),
        [("chat-1", false)]
    );
    assert!(world.refused(&["bookings", "--cancel", "chat-2"], 1).contains("did you mean \"chat-1\"?"));
    assert_eq!(world.says(&["bookings", "--cancel", "chat-1"]), "chat-1 cancelled\n");
    assert!(world.says(&["bookings"]).contains("there is no booking"));
}

#[test]
fn a_file_that_would_break_a_booking_is_refused() {
    let world = serve("");
    let tomorrow = (Zoned::now() + 1.day()).strftime("%Y-%m-%d 09:00").to_string();
    world.says(&["book", "chat", "--from", &tomorrow, "--for", "2h", "--sm-request", "60"]);
    world.reload(&format!("{DEVICE}{}", TENANTS.replace("sm_request = 30", "sm_request = 50")));
    let refused = || world.status().configuration.unwrap().refused.unwrap_or_default();
    eventually("the file is refused", || refused().contains("booking \"chat-1\" would not fit"));
    assert_eq!(world.terms("train").sm_request, Some(30.0));
}

#[test]
fn a_paused_tenant_that_is_removed_may_finish_its_work() {
    let world = serve("");
    let mut train = Member::hello(&world.socket("train")).join(GPU);
    world.says(&["pause", "train"]);
    let chat = TENANTS.split("[[tenant]]").nth(1).unwrap();
    world.reload(&format!("{DEVICE}[[tenant]]{chat}"));
    eventually("train is removed", || world.status().tenants.iter().any(|tenant| tenant.removed));
    train.runs(1_000_000);
    train.done(1_000_000);
}

#[test]
fn an_exclusive_tenant_is_not_paused_by_a_second_one() {
    let world = serve("");
    world.says(&["exclusive", "chat"]);
    let told = world.refused(&["exclusive", "train"], 1);
    assert!(told.contains("tenant train is paused itself: override that makes tenant chat exclusive"), "{told}");
    let told = world.refused(&["resume", "train"], 1);
    assert!(told.contains("`vgpu unset chat` ends that"), "{told}");
    assert!(!world.is_paused("chat") && world.is_paused("train"));
}

#[test]
fn an_exclusive_tenant_pauses_others_on_its_own_devices_and_they_go_on_elsewhere() {
    let other = "GPU-00000000-0000-0000-0000-000000000002";
    let file = format!(
        "{DEVICE}[[device]]\nid = \"{other}\"\n[[tenant]]\nname = \"one\"\nmemory_limit = \"1GiB\"\ndevices = [\"{GPU}\"]\n[[tenant]]\nname = \"both\"\nmemory_limit = \"1GiB\"\n"
    );
    let world = World::start(&file);
    let (here, mut there) =
        (Member::hello(&world.socket("both")).join(GPU), Member::hello(&world.socket("both")).join(other));
    let said = world.says(&["exclusive", "one", "--for", "1h", "--reason", "a rollback"]);
    assert!(said.contains(&format!("memory kept: both on device {GPU}")), "{said}");
    there.runs(1_000_000);
    there.done(1_000_000);
    here.wish();
    let status = world.status().tenants.into_iter().find(|tenant| tenant.name == "both").unwrap();
    assert!(!status.paused, "the tenant as a whole is not paused");
    let paused: Vec<bool> = status.devices.iter().map(|device| device.paused).collect();
    assert_eq!(paused, [true, false]);
    let text = world.says(&["explain", "both"]);
    assert!(
        text.contains("paused on this device") && text.contains("override that makes tenant one exclusive until"),
        "{text}"
    );
    assert!(world.says(&["status"]).contains(&format!("both: paused on device {GPU}; `vgpu explain both`")));
    let told = world.refused(&["resume", "both"], 1);
    assert!(told.contains("`vgpu unset one` ends that"), "{told}");
    world.says(&["unset", "one"]);
    here.until("a lease", |gate| matches!(gate, Gate::Run { .. } | Gate::Open));
}

#[test]
fn ranks_of_one_gang_in_several_containers_start_together() {
    let other = "GPU-00000000-0000-0000-0000-000000000002";
    let device = |id: &str| format!("[[device]]\nid = \"{id}\"\nmemory = \"80GiB\"\n");
    let tenant = |name: &str, id: &str, rest: &str| {
        format!("[[tenant]]\nname = \"{name}\"\ndevices = [\"{id}\"]\nmemory_limit = \"1GiB\"\n{rest}")
    };
    let tenants = [tenant("zero", GPU, "gang = \"job-7\"\n"), tenant("neighbour", other, "")].concat();
    let world = World::start(&format!("{}{}{tenants}", device(GPU), device(other)));
    world.says(&["tenant", "add", "one", "--devices", other, "--memory-limit", "1GiB", "--gang", "job-7"]);
    let on = |tenant: &str, id: &str| Member::hello(&world.socket(tenant)).join(id);
    let (zero, one, mut neighbour) = (on("zero", GPU), on("one", other), on("neighbour", other));
    neighbour.runs(5_000_000_000);
    let waits = |tenant: &str| {
        let time = world.terms(tenant).time.unwrap();
        (time.waiting, time.state.as_str()) == (1, "waiting")
    };
    one.wish();
    eventually("rank one waits for its neighbour", || waits("one"));
    zero.wish();
    eventually("rank zero waits for rank one, although its device is free", || waits("zero"));
    assert!(world.chain("zero").contains("Gang \"job-7\": it gets its leases together with one"));
    assert!(world.says(&["status"]).contains("zero: gang job-7:"));
    neighbour.done(1_000_000);
    for rank in [&zero, &one] {
        rank.until("a lease", |gate| matches!(gate, Gate::Run { .. } | Gate::Open));
    }
}

#[test]
fn a_booking_is_noted_to_end_with_a_daemon_that_stores_nothing() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), format!("[daemon]\nstate_dir = \"none\"\n{DEVICE}{TENANTS}")).unwrap();
    let world = World::start_by(vgpud(), dir, "info", Stdio::null());
    let book = ["book", "chat", "--from", "now", "--for", "1h", "--sm-request", "50"];
    assert!(world.says(&book).ends_with("note: the daemon has no state_dir, so the booking ends with the daemon\n"));
    assert!(!serve("").says(&book).contains("note:"));
}

#[test]
fn a_booking_of_the_file_with_the_name_of_a_command_is_refused_with_both_places() {
    let world = serve("");
    world.says(&["book", "chat", "--from", "now", "--for", "1h", "--sm-request", "50", "--name", "exam"]);
    let day = (Zoned::now() + 2.days()).strftime("%Y-%m-%d").to_string();
    let section = format!(
        "[[booking]]\nname = \"exam\"\ntenant = \"chat\"\nfrom = \"{day} 09:00\"\nfor = \"2h\"\nsm_request = 45\n"
    );
    world.reload(&format!("{DEVICE}{TENANTS}{section}"));
    let refused = || world.status().configuration.unwrap().refused.unwrap_or_default();
    eventually("the file is refused", || refused().contains("`vgpu bookings --cancel exam` before"));
    assert!(refused().contains("booking.name = \"exam\" is the name of a booking that `vgpu book` made too"));
    world.says(&["bookings", "--cancel", "exam"]);
    world.reload_and_wait(&section);
    assert!(world.says(&["bookings"]).contains("to come (file)"));
}

#[test]
fn what_was_decided_about_a_device_is_stored_by_its_uuid_and_told_when_it_matches_none() {
    let file = |id: &str| format!("[[device]]\nid = \"{id}\"\nmemory = \"80GiB\"\n{TENANTS}");
    let world = serve("");
    world.says(&["set", "chat", "--device", GPU, "--sm-limit", "50", "--for", "1h"]);
    world.says(&[
        "book",
        "train",
        "--device",
        GPU,
        "--from",
        "now",
        "--for",
        "1h",
        "--sm-request",
        "40",
        "--name",
        "exam",
    ]);
    world.says(&["cordon", GPU]);
    assert_eq!(world.last_event("policy.unmatched"), None);
    fs::write(world.dir.path().join("vgpud.toml"), file("GPU-00000000-0000-0000-0000-000000000009")).unwrap();
    let world = world.killed_and_restarted();
    let events = world.says(&["events", "--json"]);
    let about: Vec<DaemonEvent> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about = about.iter().filter(|event| event.kind == "policy.unmatched");
    let about: Vec<_> = about.map(|event| (event.more["policy"].as_str(), event.device.as_deref())).collect();
    assert_eq!(about, [(Some("override"), Some(GPU)), (Some("booking"), Some(GPU)), (Some("cordon"), Some(GPU))]);
    assert_eq!(world.terms("chat").sm_limit, Some(60.0));
    fs::write(world.dir.path().join("vgpud.toml"), file(GPU)).unwrap();
    let world = world.killed_and_restarted();
    assert_eq!(world.terms("chat").sm_limit, Some(50.0), "with the device the decision is back");
    assert_eq!(world.last_event("policy.unmatched"), None);
}

#[test]
fn a_cordoned_device_gets_nobody_new_and_those_who_are_there_go_on() {
    let world = serve("");
    let mut there = Member::hello(&world.socket("chat")).join(GPU);
    let said = world.says(&["cordon", GPU, "--reason", "a new card"]);
    assert!(
        said.contains(&format!("device {GPU} is cordoned: no new process joins; 1 process is left: chat ")),
        "{said}"
    );
    assert!(said.contains(&format!("note: it lasts until `vgpu uncordon {GPU}`")), "{said}");
    let begun = world.last_event("cordon.begun").unwrap();
    assert_eq!((begun.device.as_deref(), begun.more["reason"].as_str()), (Some(GPU), Some("a new card")));
    assert_eq!(begun.by.unwrap().uid, rustix::process::getuid().as_raw());
    there.runs(1_000_000);
    there.done(1_000_000);
    let late = world.run(&["tenant", "add", "late", "--memory-limit", "1GiB"]);
    let (_, told) = texts(&late);
    assert!(late.status.code() == Some(3) && told.contains("is cordoned: \"a new card\""), "{told}");
    let extra = "[[tenant]]\nname = \"extra\"\nmemory_limit = \"1GiB\"\n";
    world.reload(&format!("{DEVICE}{TENANTS}{extra}"));
    let refused = || world.status().configuration.unwrap().refused.unwrap_or_default();
    eventually("the file is refused", || refused().contains("tenant extra is new: device "));
    assert!(world.chain("train").contains("is cordoned: \"a new card\"."));
    assert!(world.says(&["status"]).contains("cordoned: \"a new card\"; 1 process is left: chat"));
    // Another process is new, also after a restart; this one was there.
    let stranger = || {
        let script = format!(
            "import socket, sys, os\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
            f = s.makefile('rw')\nf.write('{{\"hello\":2,\"pid\":%d,\"version\":\"x\",\"pages\":1,\"clock\":0}}\\n' % os.getpid())\n\
            f.flush()\nf.readline()\nf.write('{{\"join\":\"{GPU}\",\"busy\":0}}\\n')\nf.flush()\nprint(f.readline())"
        );
        let output = Command::new("python3").args(["-c", &script]).arg(world.socket("train")).output().unwrap();
        texts(&output).0
    };
    assert!(stranger().contains("no new process is let in"), "{}", stranger());
    drop(there);
    let world = world.killed_and_restarted();
    drop(Member::hello(&world.socket("chat")).join(GPU));
    let said = world.says(&["uncordon", GPU]);
    assert!(said.contains("new processes may join again"), "{said}");
    assert!(world.last_event("cordon.ended").is_some() && world.status().cordons.is_empty());
    world.says(&["tenant", "add", "late", "--memory-limit", "1GiB"]);
    assert!(world.refused(&["uncordon", GPU], 1).contains("there is no cordon of"));
}

#[test]
fn an_evacuated_tenant_is_asked_to_end_and_its_end_is_waited_for() {
    let world = serve("");
    let there = Member::hello(&world.socket("chat")).join(GPU);
    let said = world.says(&["evacuate", "chat", "--reason", "maintenance", "--for", "1h"]);
    assert!(said.starts_with("tenant chat is evacuated: 1 process is left: chat "), "{said}");
    eventually("the member is asked", || world.last_event("evacuation.asked").is_some());
    let asked = world.last_event("evacuation.asked").unwrap();
    assert_eq!((asked.tenant.as_deref(), asked.pid), (Some("chat"), Some(u64::from(std::process::id()))));
    assert!(asked.more["why"].as_str().unwrap().contains("\"maintenance\""));
    let late = world.run(&["evacuate", "chat", "--wait", "1s"]);
    let (out, _) = texts(&late);
    assert!(late.status.code() == Some(1) && out.contains("tenant chat: 1 process is left"), "{out}");
    assert_eq!(world.last_event("evacuation.terminated"), None, "nobody gets a signal without an explicit option");
    let world = world.killed_and_restarted();
    drop(there);
    let there = Member::hello(&world.socket("chat")).join(GPU);
    eventually("the next daemon asks too", || world.last_event("evacuation.asked").is_some());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("it is waited for", || world.status().cordons.iter().any(|cordon| cordon.members.len() == 1));
            drop(there);
        });
        let said = world.says(&["evacuate", "chat", "--wait"]);
        assert!(said.ends_with("tenant chat: nobody is left\n"), "{said}");
    });
    eventually("the end is told", || world.last_event("evacuation.done").is_some());
    world.says(&["uncordon", "chat"]);
}

/// Starts a process that joins the device, and then sleeps: it does not notice the end of the daemon.
fn join_and_sleep(world: &World, tenant: &str) -> Guard {
    let script = format!(
        "import socket, sys, os, time\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
        f = s.makefile('rw')\nf.write('{{\"hello\":2,\"pid\":%d,\"version\":\"x\",\"pages\":1,\"clock\":0}}\\n' % os.getpid())\n\
        f.flush()\nf.readline()\nf.write('{{\"join\":\"{GPU}\",\"busy\":0}}\\n')\nf.flush()\nf.readline()\ntime.sleep(600)"
    );
    let child = Guard(Command::new("python3").args(["-c", &script]).arg(world.socket(tenant)).spawn().unwrap());
    let members = || {
        let tenants = world.status().tenants;
        tenants.iter().flat_map(|tenant| &tenant.members).filter(|member| !member.devices.is_empty()).count()
    };
    eventually("it is there", || members() == 1);
    child
}

#[test]
fn an_evacuation_after_a_restart_ends_processes_that_do_not_connect_again() {
    let world = serve("");
    let mut child = join_and_sleep(&world, "train");
    world.says(&["evacuate", GPU]);
    let world = world.killed_and_restarted();
    let left: Vec<Option<u32>> = world.status().cordons[0].members.iter().map(|member| member.pid).collect();
    assert_eq!(left, [Some(child.0.id())]);
    let said = world.says(&["evacuate", GPU, "--terminate-after", "0s", "--wait", "60s"]);
    assert!(said.ends_with(": nobody is left\n"), "{said}");
    let ended = child.0.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_cordon_after_a_restart_lets_processes_of_before_connect_again() {
    let world = serve("");
    let there = Member::hello(&world.socket("chat")).join(GPU);
    let world = world.killed_and_restarted();
    world.says(&["cordon", GPU]);
    world.says(&["evacuate", "chat"]);
    drop(there);
    Member::hello(&world.socket("chat")).join(GPU);
}

#[test]
fn an_evacuation_goes_on_when_its_tenant_is_removed_and_ends_with_the_last_member() {
    let world = serve("");
    world.says(&["tenant", "add", "late", "--memory-limit", "1GiB"]);
    let there = Member::hello(&world.socket("late")).join(GPU);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| world.says(&["evacuate", "late", "--wait"]));
        eventually("it is asked", || world.last_event("evacuation.asked").is_some());
        world.says(&["tenant", "remove", "late"]);
        assert_eq!(world.status().cordons.len(), 1, "a member is left");
        drop(there);
        let said = waiting.join().unwrap();
        assert!(said.ends_with("tenant late: nobody is left\n"), "{said}");
    });
    // The daemon looks once a second; the command saw before that nobody is left.
    eventually("its end is told", || world.last_event("evacuation.done").is_some());
    eventually("its cordon ends too", || world.status().cordons.is_empty());
}

#[test]
fn the_cordon_of_a_removed_tenant_lasts_as_long_as_a_process_that_does_not_connect_again() {
    let world = serve("");
    world.says(&["tenant", "add", "late", "--memory-limit", "1GiB"]);
    let mut child = join_and_sleep(&world, "late");
    world.says(&["evacuate", "late"]);
    let world = world.killed_and_restarted();
    world.says(&["tenant", "remove", "late"]);
    // A daemon that has just started waits three seconds for members of the last one, and looks once a second.
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(world.status().cordons.len(), 1, "its process is left");
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    eventually("its cordon ends", || world.status().cordons.is_empty());
}

/// The time of the last event of a kind.
fn at(world: &World, kind: &str) -> Timestamp {
    world.last_event(kind).unwrap().at.parse().unwrap()
}

/// Without the enforcement check the daemon does not know the members of the last one.
#[test]
fn a_new_daemon_reports_no_end_of_an_evacuation_at_once_and_asks_members_that_join_late() {
    let world = serve("[proof]\nenabled = false\n");
    let there = Member::hello(&world.socket("chat")).join(GPU);
    world.says(&["evacuate", GPU]);
    let world = world.killed_and_restarted();
    drop(there);
    let member = Member::hello(&world.socket("chat"));
    eventually("nobody is on the device", || world.last_event("evacuation.done").is_some());
    let [started, done] = ["daemon.started", "evacuation.done"].map(|kind| at(&world, kind));
    assert!(done.duration_since(started).as_secs() >= 1, "{started} {done}");
    assert_eq!(world.last_event("evacuation.asked"), None);
    let _there = member.join(GPU);
    eventually("it is asked", || world.last_event("evacuation.asked").is_some());
}

#[test]
fn an_evacuation_sends_sigterm_after_its_grace_and_only_if_told_so() {
    let world = serve("");
    let mut child = join_and_sleep(&world, "train");
    let said = world.says(&["evacuate", GPU, "--terminate-after", "1s", "--wait"]);
    assert!(said.ends_with(": nobody is left\n"), "{said}");
    let ended = child.0.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(Signal::TERM.as_raw()));
    let told = world.last_event("evacuation.terminated").unwrap();
    assert_eq!((told.tenant.as_deref(), told.pid), (Some("train"), Some(u64::from(child.0.id()))));
}

#[test]
fn a_booking_that_holds_gives_the_tenant_what_was_booked() {
    let world = serve("");
    let member = Member::hello(&world.socket("chat")).join(GPU);
    let said = world.says(&["book", "chat", "--from", "now", "--for", "1m", "--sm", "70", "--memory", "35GiB"]);
    assert!(said.contains("holds"), "{said}");
    let allowed = member.allowed();
    assert_eq!(allowed.terms.floor.map(|share| share.as_permille()), Some(700));
    assert_eq!(allowed.memory.map(|bytes| bytes.get()), Some(35 << 30));
    world.says(&["bookings", "--cancel", "chat-1"]);
    assert_eq!(member.allowed().memory.map(|bytes| bytes.get()), Some(30 << 30));
}

#[test]
fn bad_values_name_the_option_and_what_is_accepted() {
    let world = serve("");
    for (words, code, told) in [
        (&["book", "chat", "--from", "noon", "--for", "1h", "--sm", "5"][..], 2, "--from \"noon\" is not a date"),
        (&["book", "chat", "--from", "now", "--for", "1", "--sm", "5"], 2, "--for \"1\" is not a length of time"),
        (&["book", "chat", "--from", "now", "--for", "1h"], 2, "--sm-request, --memory-limit, or both"),
        (&["book", "chat", "--from", "now", "--for", "1h", "--sm", "x"], 2, "--sm-request \"x\""),
        (&["book", "chta", "--from", "now", "--for", "1h", "--sm", "5"], 1, "did you mean \"chat\"?"),
        (&["book", "chat", "--device", "7", "--from", "now", "--for", "1h", "--sm", "5"], 1, "device of tenant chat"),
        (&["set", "chat", "--weight", "2", "--for", "9999d"], 1, "accepted: 1s to 365d"),
        (&["unset", "chta"], 1, "did you mean \"chat\"?"),
        (&["cordon", "7"], 1, "there is no device or tenant \"7\""),
        (&["evacuate", "chta"], 1, "did you mean \"chat\"?"),
        (&["evacuate", "chat", "--terminate-after", "soon"], 2, "--terminate-after"),
    ] {
        let output = world.run(words);
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {err}");
        assert!(err.contains(told), "{words:?}: {err}");
    }
}

#[test]
fn the_check_refuses_what_will_not_fit_and_shows_what_will_hold() {
    let check = |sections: &str| {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("vgpud.toml");
        fs::write(&file, format!("{DEVICE}{TENANTS}{sections}")).unwrap();
        let output = vgpud().args(["--driver", "none", "--check"]).arg(&file).output().unwrap();
        let (out, err) = texts(&output);
        (output.status.code(), out, err)
    };
    let (code, out, err) = check(&window_now("night", "tenants = [\"train\"]\nsm_limit = 90"));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("changes within the next seven days:") && out.contains("window \"night\" until"), "{out}");
    let (code, _, err) = check(&window_now("night", "tenants = [\"train\"]\nsm_request = 70"));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("window.name = \"night\" does not fit from") && err.contains("110 %"), "{err}");
    let day = (Zoned::now() + 2.days()).strftime("%Y-%m-%d").to_string();
    let booking = |name: &str, tenant: &str| {
        format!(
            "[[booking]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nfrom = \"{day} 09:00\"\nfor = \"2h\"\nsm_request = 60\n"
        )
    };
    let (code, _, err) = check(&format!("{}{}", booking("one", "chat"), booking("two", "train")));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("booking.name = \"two\" does not fit beside booking one from"), "{err}");
}

#[test]
fn an_override_is_refused_for_the_time_after_a_window_that_gives_the_same_now() {
    let window = |name: &str, tenant: &str, floor: u32| {
        window_now(name, &format!("tenants = [\"{tenant}\"]\nsm_request = {floor}"))
    };
    let world = serve(&format!("{}{}", window("up", "train", 65), window("down", "chat", 10)));
    assert_eq!(world.terms("train").sm_request, Some(65.0));
    let told = world.refused(&["set", "train", "--sm-request", "65", "--for", "24h"], 1);
    assert!(told.contains("from ") && told.contains("105 %"), "{told}");
    world.says(&["set", "train", "--sm-request", "65", "--for", "1h"]);
}

#[test]
fn a_pause_with_an_end_leaves_a_pause_without_one_in_force() {
    let world = serve("");
    world.says(&["pause", "train"]);
    let said = world.says(&["pause", "train", "--for", "1s"]);
    assert!(said.contains("note: an earlier command without an end stays in force after that"), "{said}");
    let said = world.says(&["exclusive", "chat", "--for", "1s"]);
    assert!(!said.contains("an earlier command"), "{said}");
    std::thread::sleep(Duration::from_millis(2100));
    assert!(world.is_paused("train"), "the first command has no end");
    world.says(&["resume", "train"]);
    assert!(!world.is_paused("train"));
}

#[test]
fn nobody_resumes_a_tenant_beside_an_exclusive_one() {
    let world = serve(&window_now("office", "tenants = [\"train\"]\npaused = true"));
    world.says(&["exclusive", "chat", "--for", "1h"]);
    let told = world.refused(&["resume", "train"], 1);
    assert!(told.contains("`vgpu unset chat` ends that"), "{told}");
    assert!(world.is_paused("train"));
    world.says(&["unset", "chat"]);
    world.says(&["resume", "train"]);
    assert!(!world.is_paused("train"));
    world.says(&["exclusive", "chat", "--for", "1h"]);
    assert!(world.is_paused("train"), "also if it was resumed before");
}

#[test]
fn a_booking_that_only_an_override_without_an_end_makes_room_for_is_refused() {
    let world = serve("");
    let tomorrow = (Zoned::now() + 1.day()).strftime("%Y-%m-%d 09:00").to_string();
    let book = ["book", "chat", "--from", &tomorrow, "--for", "2h", "--sm-request", "80"];
    world.says(&["set", "train", "--sm-request", "20"]);
    let told = world.refused(&book, 1);
    assert!(told.contains("110 %") && told.contains("changes by `vgpu set` without --for end with a reload"), "{told}");
    world.says(&["set", "train", "--sm-request", "20", "--for", "3d"]);
    world.says(&book);
    world.reload_and_wait("");
}

#[test]
fn a_change_that_takes_a_booking_its_device_is_refused_and_an_end_of_its_tenant_is_told() {
    let second = "[[device]]\nid = \"GPU-00000000-0000-0000-0000-000000000002\"\nmemory = \"80GiB\"\n";
    let world = serve(second);
    let tomorrow = (Zoned::now() + 1.day()).strftime("%Y-%m-%d 09:00").to_string();
    let on = |device: &'static str| {
        vec!["tenant", "add", "job", "--devices", device, "--memory-limit", "1GiB", "--sm-request", "5", "--replace"]
    };
    let (first, other) = (GPU, "GPU-00000000-0000-0000-0000-000000000002");
    world.says(&on(other));
    world.says(&["book", "job", "--device", other, "--from", &tomorrow, "--for", "2h", "--sm-request", "20"]);
    let (_, told) = texts(&world.run(&on(first)));
    assert!(told.contains("booking \"job-1\"") && told.contains("has none of the booked devices"), "{told}");
    world.says(&["tenant", "remove", "job"]);
    let event = world.last_event("booking.cancelled").unwrap();
    assert_eq!((event.tenant.as_deref(), event.more["name"].as_str()), (Some("job"), Some("job-1")));
}

#[test]
fn a_resumed_tenant_launches_until_its_window_ends_however_long_another_is_exclusive() {
    let other = "GPU-00000000-0000-0000-0000-000000000002";
    let file = format!(
        "{DEVICE}[[device]]\nid = \"{other}\"\n[[tenant]]\nname = \"one\"\nmemory_limit = \"1GiB\"\ndevices = [\"{GPU}\"]\n\
         [[tenant]]\nname = \"both\"\nmemory_limit = \"1GiB\"\n{}",
        window_now("office", &format!("tenants = [\"both\"]\npaused = true\ndevices = [\"{other}\"]"))
    );
    let world = World::start(&file);
    world.says(&["exclusive", "one"]);
    let said = world.says(&["resume", "both"]);
    assert!(
        said.contains("it was paused: window \"office\" until ") && said.contains("which tenant one has alone"),
        "{said}"
    );
    let told = world.refused(&["resume", "both"], 1);
    assert!(told.contains("`vgpu unset one` ends that"), "{told}");
}
