//! Tests of groups against a running daemon: quotas, shares, and that a killed daemon forgets no use.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use member::{Member, On};
use rustix::process::Signal;
use support::world::World;
use support::{eventually, texts, vgpu, vgpud};
use tempfile::TempDir;
use vgpu_accounting::record::integrate::{RecordKey, RecordRow};
use vgpu_accounting::record::store::RecordStore;
use vgpu_config::bearer::CostBearer;
use vgpu_control::event::DaemonEvent;
use vgpu_control::status::GroupStatus;
use vgpu_control::{DeviceExplanation, TermsStatus};

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

const BASE: &str = "\
[[device]]\nid = \"GPU-00000000-0000-0000-0000-000000000001\"\nmemory = \"80GiB\"
[[tenant]]\nname = \"ocr\"\nmemory_limit = \"30GiB\"\nsm_limit = 60\ngroup = \"lab/vision\"
[[tenant]]\nname = \"web\"\nmemory_limit = \"10GiB\"\nsm_limit = 60\ngroup = \"ops\"\n";

/// Nanoseconds of an hour.
const HOUR: u64 = 3_600_000_000_000;

/// One burst of work of a stand-in member.
const BURST: Duration = Duration::from_millis(200);

fn group(name: &str, rest: &str) -> String {
    format!("[[group]]\nname = \"{name}\"\n{rest}\n")
}

fn quota(gpu_hours: &str, then: &str) -> String {
    let quota = format!("[[group.quota]]\nper = \"month\"\ngpu_hours = {gpu_hours}\nthen = {then}\n");
    format!("{}{}", group("lab", &quota), group("ops", ""))
}

/// Starts a daemon with these sections. Before, the record gets device time of groups, in ns, in the last minute.
fn serve(sections: &str, used: &[(&str, u64)]) -> World {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), format!("{BASE}{sections}")).unwrap();
    if !used.is_empty() {
        let now = Timestamp::now().as_second();
        let row = |(group, gpu_ns): &(&str, u64)| {
            let bearer = CostBearer { group: Some((*group).to_owned()), ..CostBearer::default() };
            let start = now.div_euclid(60) * 60;
            let key = RecordKey { tenant: "gone".into(), device: GPU.into(), start, bearer };
            // A GiB for as long as the device.
            let memory_byte_seconds = (gpu_ns / 1_000_000_000) << 30;
            (key, RecordRow { gpu_ns: *gpu_ns, memory_byte_seconds, ..RecordRow::default() })
        };
        let (mut store, _) = RecordStore::open(&dir.path().join("run/state")).unwrap();
        store.add(&used.iter().map(row).collect(), &BTreeMap::new(), now).unwrap();
    }
    World::start_by(vgpud(), dir, "info", Stdio::null())
}

impl World {
    fn says(&self, words: &[&str]) -> String {
        let output = vgpu().args(words).arg("--socket").arg(self.admin()).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {err}");
        out
    }

    fn groups(&self) -> BTreeMap<String, GroupStatus> {
        let groups: Vec<GroupStatus> = serde_json::from_str(&self.says(&["groups", "--json"])).unwrap();
        groups.into_iter().map(|group| (group.name.clone(), group)).collect()
    }

    /// Device time that the quota of the group counts, in ns.
    fn used(&self, group: &str) -> f64 {
        self.groups()[group].quotas[0].used * HOUR as f64
    }

    fn terms(&self, tenant: &str) -> TermsStatus {
        let tenant = self.status().tenants.into_iter().find(|here| here.name == tenant).unwrap();
        tenant.devices.into_iter().next().unwrap()
    }

    fn chain(&self, tenant: &str) -> String {
        let explained: Vec<DeviceExplanation> =
            serde_json::from_str(&self.says(&["explain", tenant, "--json"])).unwrap();
        explained.into_iter().flat_map(|device| device.sentences).collect::<Vec<_>>().join(" ")
    }

    fn events(&self, kind: &str) -> Vec<DaemonEvent> {
        let all = self.says(&["events", "--json"]);
        let events = all.lines().map(|line| serde_json::from_str::<DaemonEvent>(line).unwrap());
        events.filter(|event| event.kind.starts_with(kind)).collect()
    }

    fn reload_and_wait(&self, sections: &str) {
        let before = self.status().configuration.unwrap().reloads;
        self.reload(&format!("{BASE}{sections}"));
        eventually("the file is read again", || self.status().configuration.unwrap().reloads > before);
    }

    fn kill(mut self) -> TempDir {
        self.daemon.signal(Signal::KILL);
        self.daemon.child.wait().unwrap();
        let Self { dir, daemon } = self;
        drop(daemon);
        dir
    }
}

fn restart(dir: TempDir) -> World {
    World::start_by(vgpud(), dir, "info", Stdio::null())
}

/// Works for one burst, and returns the device time in ns.
fn work(member: &mut On) -> u64 {
    let ns = u64::try_from(BURST.as_nanos()).unwrap();
    member.runs(ns);
    sleep(BURST);
    member.done(ns);
    ns
}

/// Rows 85 and 90: quotas of teams in GPU-hours.
#[test]
fn a_group_that_uses_up_its_quota_is_held_and_a_kill_forgets_it_not_for_a_moment() {
    let sections = quota("0.001", "20");
    let world = serve(&sections, &[("lab/speech", 2_000_000_000)]);
    let own = world.terms("ocr");
    assert_eq!((own.sm_limit, world.groups()["lab"].quotas[0].state.as_str()), (Some(60.0), "free"));
    let mut member = Member::hello(&world.socket("ocr")).join(GPU);
    let start = Instant::now();
    while world.terms("ocr").sm_limit != Some(20.0) {
        work(&mut member);
        assert!(start.elapsed() < support::LONG_TIMEOUT, "{:?}", world.groups());
    }
    assert!(world.used("lab") >= 0.001 * HOUR as f64, "not before it is used up: {:?}", world.groups());
    let told = "sm_limit 60 % (file) -> 20 % (group \"lab\" until ";
    let reason = ": \"its quota of 0.001 GPU-hours a month is used up\")";
    assert!(world.chain("ocr").contains(told) && world.chain("ocr").contains(reason), "{}", world.chain("ocr"));
    assert_eq!(world.terms("web").sm_limit, Some(60.0), "another group has its own terms");
    let kinds: Vec<String> = world.events("quota.").into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["quota.near", "quota.used_up"], "each is told once");
    let changed = world.events("tenant.changed");
    assert!(changed.len() == 1 && changed[0].more["what"].as_str().unwrap().contains("group \"lab\""), "{changed:?}");
    drop(member);
    let world = restart(world.kill());
    assert_eq!(world.terms("ocr").sm_limit, Some(20.0), "the first answer of the next daemon");
    world.says(&["tenant", "add", "job", "--memory-limit", "1GiB", "--group", "lab/speech"]);
    assert_eq!(world.terms("job").sm_limit, Some(20.0), "a tenant that is added is held from its start");
    world.says(&["tenant", "remove", "job"]);
    world.says(&["set", "ocr", "--sm-limit", "50"]);
    assert_eq!(world.terms("ocr").sm_limit, Some(50.0), "a person may loosen it");
    world.says(&["unset", "ocr"]);
    world.reload_and_wait(&quota("0.5", "20"));
    eventually("a larger quota ends it", || world.terms("ocr").sm_limit == Some(60.0));
    assert_eq!(world.events("quota.ended").len(), 1);
    world.reload_and_wait(&sections);
    eventually("a smaller one begins it", || world.terms("ocr").sm_limit == Some(20.0));
    world.reload_and_wait(&format!("{}{}", group("lab", ""), group("ops", "")));
    assert_eq!(world.events("quota.ended").len(), 2);
    let now = TermsStatus { time: None, ..world.terms("ocr") };
    assert_eq!(now, TermsStatus { time: None, ..own }, "without the quota the terms are exactly those of before");
    assert!(world.chain("ocr").is_empty() || !world.chain("ocr").contains("group \"lab\""), "{}", world.chain("ocr"));
}

#[test]
fn a_group_over_its_memory_quota_is_paused_and_resumes_by_hand_or_without_the_quota() {
    let quota = "[[group.quota]]\nper = \"month\"\ngib_hours = 2\nthen = \"pause\"\n";
    let sections = format!("{}{}", group("lab", quota), group("ops", ""));
    let paused = |world: &World| world.status().tenants.iter().find(|tenant| tenant.name == "ocr").unwrap().paused;
    let world = serve(&sections, &[("lab", HOUR), ("lab/vision", HOUR - 4_000_000_000)]);
    assert!(!paused(&world) && world.groups()["lab"].quotas[0].state == "near", "{:?}", world.groups());
    drop(world);
    let world = serve(&sections, &[("lab", HOUR), ("lab/vision", HOUR)]);
    assert!(paused(&world), "{:?}", world.groups());
    let said = world.says(&["resume", "ocr"]);
    assert!(said.contains("it was paused: group \"lab\" until ") && !paused(&world), "{said}");
    world.says(&["unset", "ocr"]);
    assert!(paused(&world));
    world.reload_and_wait("");
    assert!(!paused(&world), "off restores the terms");
    assert_eq!(world.says(&["groups"]), "there is no [[group]] in the configuration\n");
}

#[test]
fn a_group_with_limits_has_no_more_than_these_by_set_by_added_tenants_by_bookings_and_by_windows() {
    let limits = "memory_limit = \"50%\"\nsm_limit = 90";
    let sections = |rest: &str| format!("{}{}{rest}", group("lab", limits), group("ops", ""));
    let world = serve(&sections(""), &[]);
    let refused = |words: &[&str], expected: &str| {
        let output = vgpu().args(words).arg("--socket").arg(world.admin()).output().unwrap();
        let (out, err) = texts(&output);
        assert_ne!(output.status.code(), Some(0), "{words:?}: {out}");
        assert!(err.contains(expected) && err.contains("; accepted: "), "{words:?}: {err}");
    };
    let promised = |world: &World| {
        let limits = world.groups()["lab"].limits.clone();
        assert_eq!(limits.len(), 1, "{limits:?}");
        (limits[0].memory >> 30, limits[0].ceilings)
    };
    assert_eq!(promised(&world), (30, 60.0));
    assert_eq!(world.groups()["ops"].limits, [], "it has no limit");
    let table = world.says(&["groups"]);
    assert!(table.contains("30 GiB of 40 GiB  60 of 90 %"), "{table}");

    refused(
        &["set", "ocr", "--memory-limit", "41GiB"],
        &format!("of group \"lab\" on device {GPU} to 41 GiB (ocr 41 GiB), and the group's memory_limit is 40 GiB"),
    );
    world.says(&["set", "web", "--memory-limit", "40GiB", "--sm-limit", "unlimited"]);
    let add = ["tenant", "add", "job", "--group", "lab/speech", "--memory-limit"];
    refused(&[&add[..], &["11GiB", "--sm-limit", "30"]].concat(), "to 41 GiB (ocr 30 GiB, job 11 GiB)");
    refused(&[&add[..], &["10GiB", "--sm-limit", "31"]].concat(), "to 91 % (ocr 60 %, job 31 %)");
    refused(&[&add[..], &["10GiB"]].concat(), "to 100 % (job 100 % without a limit)");
    refused(&[&add[..5], &["--sm-limit", "30"]].concat(), "leaves tenant job without a memory limit");
    world.says(&[&add[..], &["10GiB", "--sm-limit", "30"]].concat());
    assert_eq!(promised(&world), (40, 90.0));
    refused(&["set", "ocr", "--sm-limit", "unlimited", "--for", "1h"], "(ocr 100 % without a limit, job 30 %)");
    refused(&["book", "job", "--from", "now", "--for", "1h", "--sm-request", "31"], "to 91 % (ocr 60 %, job 31 %)");
    world.says(&["set", "ocr", "--sm-limit", "50", "--for", "1h"]);
    refused(&["set", "job", "--sm-limit", "40"], "on it does not fit: sm_limit brings the sm_limits of group \"lab\"");
    world.says(&["set", "job", "--sm-limit", "40", "--for", "30m"]);
    assert_eq!(promised(&world), (40, 90.0));
    world.says(&["unset", "job"]);
    world.says(&["unset", "ocr"]);

    // A file that breaks the limit with the added tenant, or by a window, changes nothing.
    let reload_refused = |sections: &str, expected: &str| {
        world.reload(&format!("{BASE}{sections}"));
        let why = || world.status().configuration.unwrap().refused.unwrap_or_default();
        eventually("the file is refused", || why().contains(expected));
    };
    let smaller = format!("{}{}", group("lab", "memory_limit = \"39GiB\""), group("ops", ""));
    reload_refused(
        &smaller,
        "with the tenants that `vgpu tenant add` added: memory_limit brings the memory limits of group",
    );
    let night = "[[window]]\nname = \"night\"\nfrom = \"20:00\"\nto = \"06:00\"\ngroups = [\"lab\"]\nsm_limit = 91\n";
    reload_refused(&sections(night), "window.name = \"night\" does not fit from ");
    assert_eq!(promised(&world), (40, 90.0));

    // After a restart, the daemon checks its stored tenant against the file as it is now.
    let dir = world.kill();
    fs::write(dir.path().join("vgpud.toml"), format!("{BASE}{smaller}")).unwrap();
    let world = restart(dir);
    assert_eq!(promised(&world), (30, 60.0), "the added tenant waits for room");
    world.reload_and_wait(&sections(""));
    eventually("it is served when the limit leaves room", || promised(&world) == (40, 90.0));
}

/// Rows 82, 83 and 139: shares of accounts follow decayed use.
#[test]
fn the_group_that_used_less_gets_the_larger_weight_without_an_event_for_it() {
    let sections = format!("{}{}", group("lab", "weight = 3"), group("ops", "weight = 1"));
    let used = [("ops", 30 * 60 * 1_000_000_000), ("lab", 1_000_000_000)];
    let half_life = format!("[record]\nhalf_life = \"1h\"\n{sections}");
    let world = serve(&half_life, &used);
    let (mut ocr, mut web) =
        (Member::hello(&world.socket("ocr")).join(GPU), Member::hello(&world.socket("web")).join(GPU));
    let start = Instant::now();
    // Its share is due to it, and it has 64 times the weight of the other for the share that it did not use before.
    while world.terms("ocr").weight < 9_900 || world.terms("web").weight > 60 {
        work(&mut ocr);
        work(&mut web);
        assert!(start.elapsed() < support::LONG_TIMEOUT, "{:?}", world.groups());
    }
    let groups = world.groups();
    assert_eq!((groups["lab"].share, groups["ops"].share), (Some(75.0), Some(25.0)));
    assert!(groups["ops"].used > Some(90.0) && groups["lab"].effective > Some(99.0), "{groups:?}");
    assert_eq!((groups["lab"].running, groups["ops"].running), (1, 1));
    let told =
        format!("weight 1 (file) -> {} (group \"lab\": \"its share is 75 %, it used ", world.terms("ocr").weight);
    assert!(world.chain("ocr").contains(&told), "{}", world.chain("ocr"));
    assert_eq!(world.events("tenant.changed"), [], "weights that follow use are no events");
    world.says(&["tenant", "add", "job", "--memory-limit", "1GiB", "--group", "lab/speech"]);
    assert!(world.terms("job").weight > 1_000, "a tenant that is added is weighed at once: {:?}", world.terms("job"));
    drop((ocr, web));
    world.reload_and_wait("");
    assert_eq!((world.terms("ocr").weight, world.terms("web").weight), (1, 1), "off restores the terms");
    assert_eq!(world.events("tenant.changed"), [], "nor is their end");
}

#[test]
fn a_daemon_that_is_killed_at_any_instant_forgets_no_more_than_seconds_and_counts_nothing_twice() {
    let mut dir = serve(&quota("1", "20"), &[]).kill();
    let (mut worked, mut before) = (0, 0.0);
    for round in 0..3 {
        let world = restart(dir);
        let used = world.used("lab");
        // Two seconds are promised; a busy host writes late.
        let lost = worked as f64 - used;
        assert!(lost < f64::from(round) * 4e9 + 1e6, "{lost} ns of {worked} are lost");
        assert!(used >= before && used <= worked as f64 + 1e6, "{used} of {worked}, {before} at the last start");
        before = used;
        let mut member = Member::hello(&world.socket("ocr")).join(GPU);
        let bursts = 20 + 7 * round;
        worked += (0..bursts).map(|_| work(&mut member)).sum::<u64>();
        dir = world.kill();
    }
    assert!(before > 1e9, "{before}");
}

#[test]
fn a_group_above_its_limit_refuses_changes_of_its_own_tenants_alone() {
    let sections = |limit: &str| format!("{}{}", group("lab", limit), group("ops", ""));
    let world = serve(&sections("memory_limit = \"40GiB\""), &[]);
    world.says(&["set", "ocr", "--memory-limit", "40GiB", "--for", "1h"]);
    world.reload_and_wait(&sections("memory_limit = \"35GiB\""));
    let set = |tenant: &str, limit: &str| {
        let words = ["set", tenant, "--memory-limit", limit, "--for", "30m", "--socket"];
        vgpu().args(words).arg(world.admin()).output().unwrap()
    };
    let (_, told) = texts(&set("ocr", "36GiB"));
    assert!(told.contains("to 36 GiB (ocr 36 GiB), and the group's memory_limit is 35 GiB"), "{told}");
    let (said, told) = texts(&set("web", "11GiB"));
    assert!(said.contains("changed memory_limit"), "{told}");
    let (said, told) = texts(&set("ocr", "35GiB"));
    assert!(said.contains("changed memory_limit"), "{told}");
}
