//! Reports from the record of a real daemon, compared with the simulated device. Bills add up, usage stays with the
//! group name under which it happened, and pages need no other file.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use vgpu_tests::GIB;
use vgpu_tests::artefacts::vgpu;
use world::{World, alone, eventually, finish, tenant};

fn kept(world: &World) -> PathBuf {
    world.lab.path().join("run/state")
}

fn report(world: &World, words: &[&str]) -> Output {
    let state = kept(world);
    Command::new(vgpu()).arg("report").args(words).arg("--state-dir").arg(state).output().unwrap()
}

#[track_caller]
fn text(world: &World, words: &[&str]) -> String {
    let output = report(world, words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(world: &World, words: &[&str]) -> Value {
    serde_json::from_str(&text(world, &[words, &["--json"]].concat())).unwrap()
}

/// Returns an amount of money in units of its last digit.
fn units(amount: &Value) -> u128 {
    amount.as_str().unwrap().replace('.', "").parse().unwrap()
}

/// Lines of a report with the value of one of their parts. Unused time is under "".
fn by(report: &Value, part: &str) -> Vec<(String, Value)> {
    let lines = report["lines"].as_array().unwrap().iter();
    lines.map(|line| (line[part].as_str().unwrap_or_default().to_owned(), line.clone())).collect()
}

fn file(group: &str) -> String {
    let label = "sm_limit = 60\nlabels = { cost = \"4711\" }";
    tenant("a", &format!("group = \"{group}\"\n{label}"))
        + &tenant("b", "group = \"two\"\nsm_limit = 60\nmemory_limit = \"4GiB\"")
}

#[test]
fn a_bill_is_what_the_device_did_its_lines_add_up_and_a_renamed_group_keeps_what_it_used() {
    let _alone = alone();
    let mut world = World::start(&file("one"));
    let mut holder = world.plain("b");
    holder.begin();
    holder.alloc(GIB);
    let mut members = world.at_work(&[("a", 1000, 32, 0), ("b", 700, 30, 0)], 1500);
    finish(&mut members);
    drop(members);
    // The record must contain everything before the group's name changes.
    let used = |world: &World, group: &str| -> u64 {
        let report = json(world, &["usage", "--by", "group"]);
        by(&report, "group")
            .iter()
            .find(|(name, _)| name == group)
            .map_or(0, |(_, line)| line["gpu_ns"].as_u64().unwrap())
    };
    let truth = world.lab.device(0).busy_ns;
    eventually("all is recorded", || (used(&world, "one") + used(&world, "two")) * 100 > truth * 98);
    // Waits until the last usage is recorded too.
    let mut before = 0;
    eventually("nothing more comes", || {
        thread::sleep(Duration::from_millis(1500));
        let now = used(&world, "one");
        std::mem::replace(&mut before, now) == now
    });
    fs::write(world.lab.path().join("vgpud.toml"), file("renamed")).unwrap();
    world.signal("-HUP");
    eventually("it is read", || fs::read_to_string(world.lab.path().join("vgpud.log")).unwrap().contains("group"));
    finish(&mut world.at_work(&[("a", 1000, 32, 0)], 500));
    let truth = world.lab.device(0).busy_ns;
    eventually("all is recorded under the new name", || {
        (used(&world, "one") + used(&world, "two") + used(&world, "renamed")) * 100 > truth * 98
    });
    assert_eq!(used(&world, "one"), before, "what was used under the old name stays there");
    assert!(used(&world, "renamed") > 0);
    drop(holder);
    world.kill();

    // 3.60 per hour is 0.001 per second, so the bill equals the seconds that the device worked.
    let prices =
        ["chargeback", "--gpu-rate", "3.60/h", "--memory-rate", "36/h", "--decimals", "6", "--by", "group,tenant"];
    let bill = json(&world, &[&prices[..], &["--only-used"]].concat());
    let names: Vec<String> = by(&bill, "group").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.iter().filter(|name| ["one", "two", "renamed"].contains(&name.as_str())).count(), 3, "{bill:#}");
    let sum = |part: &str| by(&bill, "group").iter().map(|(_, line)| units(&line[part])).sum::<u128>();
    for part in ["gpu_cost", "memory_cost", "cost"] {
        assert_eq!(sum(part), units(&bill["total"][part]), "{part}: {bill:#}");
    }
    assert_eq!(sum("percent"), 1000, "{bill:#}");
    let (seconds, truth) = (units(&bill["total"]["gpu_cost"]), u128::from(truth));
    assert!((truth * 98..truth * 102).contains(&(seconds * 100 * 1_000_000)), "{seconds} for {truth} ns: {bill:#}");
    assert!(units(&bill["total"]["memory_cost"]) > 0, "a GiB was held: {bill:#}");

    // With the unused time the bill is the price of the device for the whole period.
    let whole = json(&world, &prices[..prices.len() - 2]);
    let period = &whole["period"];
    let time = period["until"].as_u64().unwrap() - period["since"].as_u64().unwrap();
    assert_eq!(units(&whole["total"]["gpu_cost"]), u128::from(time) * 1000, "{whole:#}");
    assert!(whole["lines"].as_array().unwrap().last().unwrap()["not_used"].as_bool().unwrap());
    // The report can be grouped by a label, in all output forms.
    let label = json(&world, &["usage", "--by", "label:cost", "--only-used"]);
    assert_eq!(
        by(&label, "label:cost").iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().len(),
        2,
        "{label:#}"
    );
    assert!(by(&label, "label:cost").iter().any(|(name, _)| name == "4711"));
    assert!(text(&world, &[&prices[..], &["--format", "csv"]].concat()).starts_with("group,tenant,gpu_ns,gpu_cost,"));
    assert!(text(&world, &[&prices[..], &["--format", "markdown"]].concat()).contains("\n| **total** |"));
    let page = world.lab.path().join("bill.html");
    let out = [&prices[..], &["--format", "html", "--out", page.to_str().unwrap()]].concat();
    assert_eq!(text(&world, &out), "");
    let html = fs::read_to_string(&page).unwrap();
    assert!(
        html.contains("<svg")
            && html.contains("renamed")
            && !html.contains("<script")
            && !html.contains("http:")
            && !html.contains("https:"),
        "{html}"
    );
}

/// The record is written each second, and a slot may go from one pod to the next at any moment of it.
#[test]
fn a_bill_by_label_divides_a_tenants_use_at_the_moment_its_labels_change() {
    const TOLERANCE_NS: u64 = 150_000_000;
    let _alone = alone();
    let mut world = World::start(&file("one"));
    let label = |world: &World, words: &[&str]| told(world, &[&["label", "a"], words].concat(), "--socket");
    let busy = |world: &World| world.lab.device(0).busy_ns;
    let mut truths = Vec::new();
    let mut members = Vec::new();
    let namespaces = ["lab", "shop", "web", "dev", "ops"];
    for namespace in namespaces {
        let said = label(&world, &[&format!("namespace={namespace}"), "pod=train"]);
        assert!(said.contains(&format!("cost=4711 namespace={namespace} pod=train")), "{said}");
        truths.push(busy(&world));
        if members.is_empty() {
            members = world.at_work(&[("a", 1000, 32, 0)], 4500);
        }
        thread::sleep(Duration::from_millis(900));
    }
    finish(&mut members);
    drop(members);
    truths.push(busy(&world));
    label(&world, &["namespace-", "pod-"]);
    let whole = |bill: &Value| bill["total"]["gpu_ns"].as_u64().unwrap_or(0);
    let ask = || json(&world, &["chargeback", "--gpu-rate", "3.60/h", "--by", "label:namespace", "--only-used"]);
    eventually("all is recorded", || whole(&ask()) * 100 > truths[namespaces.len()] * 98);
    let bill = ask();
    let lines = by(&bill, "label:namespace");
    for (namespace, truth) in namespaces.iter().zip(truths.windows(2).map(|pair| pair[1] - pair[0])) {
        let line = lines.iter().find(|(name, _)| name == namespace).map(|(_, line)| line["gpu_ns"].as_u64().unwrap());
        let billed = line.unwrap_or(0);
        assert!(billed.abs_diff(truth) < TOLERANCE_NS, "{namespace}: {billed} for {truth}: {bill:#}");
    }
    let nobody = lines.iter().filter(|(name, _)| name.is_empty()).map(|(_, line)| line["gpu_ns"].as_u64().unwrap());
    assert_eq!(nobody.sum::<u64>(), 0, "usage without a namespace: {bill:#}");
    world.kill();
}

/// Output of a command that asks the daemon or its record.
fn told(world: &World, words: &[&str], place: &str) -> String {
    let place = match place {
        "--socket" => ["--socket".into(), world.lab.path().join("run/admin.sock")],
        _ => [PathBuf::from("--state-dir"), kept(world)],
    };
    let out = Command::new(vgpu()).args(words).args(place).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", vgpu_tests::text(&out));
    String::from_utf8(out.stdout).unwrap()
}

/// With arbitrate = false and no ceiling, device time is not measured. After a reload with leases, it is.
#[test]
fn device_time_that_nobody_measures_is_told_as_that_everywhere_and_never_as_nil() {
    let _alone = alone();
    let plain = "[time]\narbitrate = false\n".to_owned()
        + &tenant("a", "memory_limit = \"4GiB\"")
        + &tenant("holds", "memory_limit = \"4GiB\"");
    let mut world = World::start(&plain);
    let mut holds = world.plain("holds");
    holds.begin();
    holds.alloc(GIB);
    let mut members = world.at_work(&[("a", 1000, 32, 0)], 4_000);
    eventually("it is seen", || world.time("a")["unmeasured"] == true);
    let time = world.time("a");
    assert!(time["gpu_seconds"].is_null() && time["got"].is_null() && time["wanted"].is_null(), "{time}");
    let page = told(&world, &["metrics"], "--socket");
    let sample = |name: &str, tenant: &str| {
        let line = page.lines().find(|line| line.starts_with(name) && line.contains(&format!("\"{tenant}\"")));
        line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    for name in ["vgpu_tenant_gpu_seconds_total", "vgpu_tenant_got_ratio", "hami_container_device_utilization_ratio"] {
        assert_eq!(sample(name, "a"), None, "{page}");
    }
    assert_eq!(sample("vgpu_tenant_unmeasured", "a").as_deref(), Some("1.0"), "{page}");
    // A process without launches used nothing.
    assert_eq!(sample("vgpu_tenant_unmeasured", "holds").as_deref(), Some("0.0"), "{page}");
    assert_eq!(sample("vgpu_tenant_gpu_seconds_total", "holds").as_deref(), Some("0.0"), "{page}");
    for words in [&["status"][..], &["ps"], &["top", "--once"]] {
        let shown = told(&world, words, "--socket");
        let line = shown.lines().rfind(|line| line.starts_with("a ")).unwrap();
        assert!(line.split_whitespace().any(|cell| cell == "?"), "{words:?}: {shown}");
    }
    let why = told(&world, &["explain", "a"], "--socket");
    assert!(why.contains("time.arbitrate = false") && why.contains("is not measured"), "{why}");
    let mut doctor = world.lab.bare(vgpu());
    doctor.arg("doctor").env("VGPU_RUNTIME_DIR", world.lab.path().join("run"));
    let doctor = vgpu_tests::text(&doctor.output().unwrap());
    assert!(doctor.contains("device time of a on device 0 is not measured"), "{doctor}");
    let log = fs::read_to_string(world.lab.path().join("vgpud.log")).unwrap();
    assert!(log.contains("device time is not measured where"), "{log}");
    finish(&mut members);
    drop(members);

    // The record shows the unmeasured time too, after its period has ended.
    let row = |world: &World, tenant: &str| -> Value {
        let all: Value = serde_json::from_str(&told(world, &["usage", "--format", "json"], "--state-dir")).unwrap();
        all["rows"].as_array().unwrap().iter().find(|row| row["tenant"] == tenant).cloned().unwrap_or_default()
    };
    let unmeasured = |world: &World| row(world, "a")["unmeasured_ns"].as_u64().unwrap_or(0);
    eventually("all of it is recorded", || unmeasured(&world) > 3_000_000_000);
    let a = row(&world, "a");
    assert!(a["gpu_ns"].is_null() && unmeasured(&world) < 10_000_000_000 && a["launches"].as_u64() > Some(0), "{a}");
    assert_eq!((&row(&world, "holds")["gpu_ns"], &row(&world, "holds")["unmeasured_ns"]), (&0.into(), &0.into()));
    assert!(told(&world, &["usage", "--format", "csv"], "--state-dir").contains("\n,a,,,"), "an empty cell");
    let shown = told(&world, &["usage"], "--state-dir");
    assert!(shown.lines().any(|line| line.split_whitespace().take(2).eq(["a", "?"])), "{shown}");
    let bill = json(&world, &["chargeback", "--gpu-rate", "3600/h"]);
    let line = |what: &str| {
        bill["lines"].as_array().unwrap().iter().find(|line| line[what] == true).unwrap()["gpu_ns"].clone()
    };
    let (a, period) = (&by(&bill, "tenant")[0].1.clone(), &bill["period"]);
    assert!(by(&bill, "tenant").iter().any(|(name, line)| name == "a" && line["gpu_ns"].is_null()), "{a}");
    let whole = (period["until"].as_u64().unwrap() - period["since"].as_u64().unwrap()) * 1_000_000_000;
    let (unknown, unused) = (line("not_measured").as_u64().unwrap(), line("not_used").as_u64().unwrap());
    assert!(unknown >= 3_000_000_000 && unknown + unused == whole, "{bill:#}");
    let shown = text(&world, &["usage"]);
    assert!(shown.contains("(not measured)") && shown.contains("or none of it (?): a. They used"), "{shown}");
    let idle = json(&world, &["idle"]);
    assert!(idle["devices"][0]["idle_percent"].is_null(), "{idle:#}");

    // The device is shared by leases from now on: new usage is measured, and earlier usage is kept.
    fs::write(world.lab.path().join("vgpud.toml"), plain.replace("arbitrate = false", "arbitrate = true")).unwrap();
    world.signal("-HUP");
    eventually("it is given out", || {
        !told(&world, &["status"], "--socket").contains("note: device time is not measured")
    });
    let before = world.lab.device(0).busy_ns;
    finish(&mut world.at_work(&[("a", 1000, 32, 0)], 700));
    let truth = world.lab.device(0).busy_ns - before;
    let measured = |world: &World| row(world, "a")["gpu_ns"].as_u64().unwrap_or(0);
    eventually("it is measured", || measured(&world) * 100 > truth * 98);
    assert!(measured(&world) * 100 < truth * 102, "{} of {truth}", measured(&world));
    let shown = told(&world, &["usage"], "--state-dir");
    let cell = shown.lines().find(|line| line.starts_with("a ")).and_then(|line| line.split_whitespace().nth(1));
    assert!(cell.is_some_and(|cell| cell.ends_with('+')), "{shown}");
    world.kill();
}

#[test]
fn who_held_and_did_nothing_is_idle_and_a_limit_that_fits_is_suggested() {
    let _alone = alone();
    let mut world = World::start(&file("one"));
    let mut holder = world.plain("b");
    holder.begin();
    holder.alloc(GIB);
    let idle = |world: &World| {
        let report = json(world, &["idle"]);
        by(&report, "tenant").into_iter().find(|(name, _)| name == "b").map(|(_, line)| line)
    };
    eventually("it was seen", || idle(&world).is_some_and(|line| line["idle_byte_seconds"].as_u64() > Some(2 * GIB)));
    drop(holder);
    world.kill();
    let line = idle(&world).unwrap();
    assert_eq!(
        (line["held_seconds"].clone(), line["perhaps_unmeasured_seconds"].as_u64()),
        (line["idle_seconds"].clone(), Some(0))
    );
    let sizes = json(&world, &["rightsizing", "--least", "0s"]);
    let (_, b) = by(&sizes, "tenant").into_iter().find(|(name, _)| name == "b").unwrap();
    let (peak, enough) = (b["peak_bytes"].as_u64().unwrap(), b["suggested_memory_limit"].as_u64().unwrap());
    assert!(peak >= GIB && enough > peak && enough < 4 * GIB, "{sizes:#}");
    assert!(
        b["memory_why"].as_str().unwrap().contains("of its limit") && b["suggested_sm_limit"].is_null(),
        "{sizes:#}"
    );
    let early = json(&world, &["rightsizing"]);
    assert!(by(&early, "tenant")[0].1["suggested_memory_limit"].is_null(), "an hour was not seen: {early:#}");

    // Memory is held and nothing computed: a quarter of the memory limit plus a context, and nothing of the ceiling, if
    // there is one.
    let kept = json(&world, &["efficiency"]);
    let (_, b) = by(&kept, "tenant").into_iter().find(|(name, _)| name == "b").unwrap();
    let memory: f64 = b["memory_percent"].as_str().unwrap().parse().unwrap();
    assert!((1.0..60.0).contains(&memory) && b["gpu_ns"] == 0, "{kept:#}");
    let trend = json(&world, &["trend", "--each", "hour"]);
    let steps = trend["steps"].as_array().unwrap();
    let sum: u64 = steps.iter().map(|step| step["memory_byte_seconds"].as_u64().unwrap()).sum();
    assert!(sum > 2 * GIB && steps.iter().all(|step| step["whole"] == false), "{trend:#}");
    assert!(
        by(&trend, "tenant").iter().all(|(_, line)| line["gpu_ns"].is_null()),
        "of an hour no line is drawn: {trend:#}"
    );

    // Impossible requests get a message.
    for (words, code, said) in [
        (vec!["chargeback"], 2, "--gpu-rate"),
        (vec!["chargeback", "--gpu-rate", "2.24"], 2, "2.24/h"),
        (vec!["trend", "--each", "year"], 2, "week"),
        (vec!["usage", "--by", "label:"], 2, "label:NAME"),
        (vec!["usage", "--month", "2026-13"], 2, "a month in UTC"),
        (vec!["usage", "--since", "2026-02-01", "--until", "2026-01-01"], 2, "not before"),
        (vec!["usage", "--out", "/no/such/place/x.txt"], 1, "/no/such/place/x.txt"),
    ] {
        let output = report(&world, &words);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && err.contains(said), "{words:?}: {err}");
    }
    let nowhere = Command::new(vgpu()).args(["report", "usage", "--state-dir", "/no/such/place"]).output().unwrap();
    assert!(
        nowhere.status.code() == Some(1) && String::from_utf8_lossy(&nowhere.stderr).contains("no record of usage")
    );
}
