//! Tests of windows, bookings and overrides with an end, against a running daemon and its restart.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use jiff::{Timestamp, ToSpan as _, Zoned};
use member::Member;
use rustix::process::Signal;
use support::world::World;
use support::{eventually, texts, vgpu, vgpud};
use tempfile::TempDir;
use vgpu_control::event::DaemonEvent;
use vgpu_control::{BookingStatus, DeviceExplanation, TermsStatus};

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
    fn run(&self, words: &[&str]) -> Output {
        vgpu().args(words).arg("--socket").arg(self.admin()).output().unwrap()
    }

    fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {err}");
        out
    }

    fn json<T: serde::de::DeserializeOwned>(&self, words: &[&str]) -> T {
        serde_json::from_str(&self.says(&[words, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {err}");
        err
    }

    fn terms(&self, tenant: &str) -> TermsStatus {
        let tenant = self.status().tenants.into_iter().find(|here| here.name == tenant).unwrap();
        tenant.devices.into_iter().next().unwrap()
    }

    fn is_paused(&self, tenant: &str) -> bool {
        self.status().tenants.iter().any(|here| here.name == tenant && here.paused)
    }

    fn chain(&self, tenant: &str) -> String {
        let explained: Vec<DeviceExplanation> = self.json(&["explain", tenant]);
        explained.into_iter().flat_map(|device| device.sentences).collect::<Vec<_>>().join(" ")
    }

    fn reload_and_wait(&self, sections: &str) {
        let before = self.status().configuration.unwrap().reloads;
        self.reload(&format!("{DEVICE}{TENANTS}{sections}"));
        eventually("the file is read again", || self.status().configuration.unwrap().reloads > before);
    }

    /// Kills the daemon and starts another one on the same files.
    fn killed_and_restarted(mut self) -> Self {
        self.daemon.signal(Signal::KILL);
        self.daemon.child.wait().unwrap();
        let Self { dir, daemon } = self;
        drop(daemon);
        Self::start_by(vgpud(), dir, "info", Stdio::null())
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
    assert!(world.chain("chat").contains("sm_limit 60 % (file) -> 50 % (by hand until "), "{}", world.chain("chat"));
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
    let events = world.says(&["events", "--json"]);
    let events: Vec<DaemonEvent> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().rfind(|event| event.kind == kind).unwrap_or_else(|| panic!("{events:?}"));
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
    assert!(world.chain("train").contains("tenant chat is exclusive by hand until "));
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
    let told = world.refused(&book("train", "50"));
    assert!(told.contains("\"train-1\" would not fit beside booking chat-1 from") && told.contains("110 %"), "{told}");
    let told = world.refused(&["set", "train", "--sm-request", "50"]);
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
    assert!(world.refused(&["bookings", "--cancel", "chat-2"]).contains("did you mean \"chat-1\"?"));
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
    let told = world.refused(&["exclusive", "train"]);
    assert!(told.contains("tenant train is paused itself: tenant chat is exclusive"), "{told}");
    let told = world.refused(&["resume", "train"]);
    assert!(told.contains("`vgpu unset chat` ends that"), "{told}");
    assert!(!world.is_paused("chat") && world.is_paused("train"));
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
