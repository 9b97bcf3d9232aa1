//! Promises kept, judged by the simulated device: delivered shares, waits for leases, queues, and the month's report.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use vgpu_tests::artefacts::vgpu;
use world::{World, alone, eventually, finish, tenant};

fn kept(world: &World) -> PathBuf {
    world.lab.path().join("run/state")
}

fn admin(world: &World) -> PathBuf {
    world.lab.path().join("run/admin.sock")
}

/// Output of a report from the record.
#[track_caller]
fn report(world: &World, words: &[&str]) -> String {
    let out = Command::new(vgpu()).arg("report").args(words).arg("--state-dir").arg(kept(world)).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", vgpu_tests::text(&out));
    String::from_utf8(out.stdout).unwrap()
}

/// Output of a command that asks the daemon.
#[track_caller]
fn ask(world: &World, words: &[&str]) -> String {
    let out = Command::new(vgpu()).args(words).arg("--socket").arg(admin(world)).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", vgpu_tests::text(&out));
    String::from_utf8(out.stdout).unwrap()
}

/// A tenant's line of `vgpu report slo`; null if it has none yet.
fn slo(world: &World, tenant: &str) -> Value {
    let json: Value = serde_json::from_str(&report(world, &["slo", "--json"])).unwrap();
    let lines = json["lines"].as_array().unwrap();
    lines.iter().find(|line| line["tenant"] == tenant).cloned().unwrap_or_default()
}

fn number(line: &Value, part: &str) -> u64 {
    line[part].as_u64().unwrap_or(0)
}

#[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64 * 100.0
}

/// Rows 138 and 141: service levels in a report, and the month for those who decide.
#[test]
fn a_tenant_that_gets_half_of_its_floor_shows_50_percent_also_after_the_daemon_was_killed() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "sm_request = 50\nsm_limit = 90") + &tenant("b", "sm_request = 50")));
    let mut members = world.at_work(&[("a", 1000, 32, 0), ("b", 1000, 32, 0)], 12_000);
    let truth = |world: &World| world.lab.truth().living_process(0, members[0].pid).map_or(0, |a| a.busy_ns);
    thread::sleep(Duration::from_secs(4));
    // While an administrator pauses it, it still wants its floor and gets nothing.
    ask(&world, &["pause", "a"]);
    eventually("all that it got is recorded", || {
        let (delivered, truth) = (number(&slo(&world, "a"), "delivered_ns"), truth(&world));
        percent(delivered, truth) > 97.0
    });
    let got = truth(&world);
    // It had about half of the device. When it has wanted twice as long, it has had half of its floor.
    let ran = 2 * got;
    eventually("it has waited as long again", || number(&slo(&world, "a"), "wanted_ns") >= 2 * ran);
    let line = slo(&world, "a");
    let (wanted, promised) = (number(&line, "wanted_ns"), number(&line, "promised_ns"));
    assert_eq!(truth(&world), got, "a paused tenant gets nothing");
    assert!((49.0..=51.0).contains(&percent(promised, wanted)), "its floor is promised while it wants: {line:#}");
    let (told, judged) = (percent(number(&line, "delivered_ns"), promised), percent(got, promised));
    assert!((told - judged).abs() < 3.0, "{told} % is told, the device says {judged} %: {line:#}");
    assert!((42.0..=52.0).contains(&told), "half of its floor: {line:#}");
    let shown = line["delivered_percent"].as_str().unwrap().parse::<f64>().unwrap();
    assert!((shown - told).abs() < 0.1, "{line:#}");
    // The neighbour got its floor, and more when nobody else could.
    let other = slo(&world, "b");
    assert!(percent(number(&other, "delivered_ns"), number(&other, "promised_ns")) > 90.0, "{other:#}");
    ask(&world, &["resume", "a"]);
    world.kill();
    let after = slo(&world, "a");
    assert!(number(&after, "delivered_ns") >= number(&line, "delivered_ns"), "the record outlives the daemon");
    world.restart();
    finish(&mut members);

    let text = report(&world, &["slo"]);
    assert!(text.contains("Worst minutes") && text.contains("Waits for leases"), "{text}");
    assert!(report(&world, &["slo", "--format", "csv"]).starts_with("tenant,device,wanted_ns,promised_ns,"));
    let page = world.lab.path().join("month.html");
    let month = ["monthly", "--since", "1h", "--ranking", "--format", "html", "--out", page.to_str().unwrap()];
    assert_eq!(report(&world, &month), "");
    let html = fs::read_to_string(&page).unwrap();
    for heading in ["Usage", "Promises", "Waits for leases", "Hoarders", "Efficiency", "Ranking"] {
        assert!(html.contains(heading), "{heading} is not in\n{html}");
    }
    assert!(
        html.contains("<svg") && !html.contains("<script") && !html.contains("http:") && !html.contains("https:"),
        "{html}"
    );
}

/// Sum of a metric's samples of a tenant.
fn sample(page: &str, name: &str, tenant: &str) -> Option<f64> {
    let tenant = format!("tenant=\"{tenant}\"");
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(&tenant))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Rows 55 and 140: how long launches wait, as a histogram of each tenant.
#[test]
fn metrics_and_record_have_each_wait_for_a_lease_once_and_together_they_are_the_time_waited() {
    let _alone = alone();
    let mut world = World::start(&(tenant("a", "") + &tenant("b", "")));
    let mut members = world.at_work(&[("a", 2000, 8, 0), ("b", 2000, 8, 0)], 3_000);
    finish(&mut members);
    drop(members);
    let (mut page, mut line) = (String::new(), Value::Null);
    eventually("metrics and record say the same", || {
        (page, line) = (ask(&world, &["metrics"]), slo(&world, "a"));
        let count = sample(&page, "vgpu_tenant_lease_wait_seconds_count", "a");
        #[allow(clippy::cast_precision_loss)] // some hundred leases
        let recorded = line["waits"]["count"].as_u64().map(|count| count as f64);
        count.is_some() && count == recorded
    });
    let value = |name: &str| sample(&page, name, "a").unwrap_or_else(|| panic!("{name} is not in\n{page}"));
    // Leases of 4 ms, and two tenants for three seconds.
    assert!(value("vgpu_tenant_lease_wait_seconds_count") > 50.0, "{page}");
    let (sum, waited) = (value("vgpu_tenant_lease_wait_seconds_sum"), value("vgpu_tenant_wait_seconds_total"));
    assert!((sum - waited).abs() < 0.01, "{sum} s of waits, {waited} s waited");
    let buckets: u64 = line["waits"]["buckets"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(buckets, number(&line["waits"], "count"));
    // After each lease but the first one there was a time without: a gap begins with each end of a lease.
    let (leases, gaps) = (number(&line["waits"], "count"), number(&line["gaps"], "count"));
    assert!(gaps + 1 >= leases && gaps > 50, "{line:#}");
    assert!(value("vgpu_tenant_promised_seconds_total") > 0.5, "{page}");
}

fn queue(world: &World) -> Value {
    serde_json::from_str(&ask(world, &["queue", "--json"])).unwrap()
}

/// Row 140: the queue, with positions and expected waits.
#[test]
fn the_queue_shows_who_waits_behind_whom_and_who_waits_for_room() {
    let _alone = alone();
    let mut world = World::start(&(tenant("long", "") + &tenant("short", "sm_request = 60")));
    let mut members = world.at_work(&[("long", 400_000, 1, 0), ("short", 1000, 1, 0)], 6_000);
    let mut seen = Value::Null;
    eventually("the short one waits behind the long one", || {
        seen = queue(&world);
        let first = &seen["time"][0];
        first["tenant"] == "short" && first["holder"] == "long" && first["waiting_seconds"].as_f64() > Some(0.0)
    });
    let first = &seen["time"][0];
    assert_eq!((&first["position"], &first["members"], &first["state"]), (&1.into(), &1.into(), &"waiting".into()));
    assert!(first["expected_seconds"].is_number(), "{seen:#}");
    finish(&mut members);
    drop(members);
    eventually("nobody waits any more", || ask(&world, &["queue"]) == "nobody waits\n");

    // 60 % are promised already. A tenant with 50 % waits until there is room.
    ask(&world, &["tenant", "add", "first", "--memory-limit", "1GiB", "--sm-request", "30", "--for", "1h"]);
    let mut add = Command::new(vgpu());
    add.args(["tenant", "add", "later", "--memory-limit", "1GiB", "--sm-request", "20", "--wait", "60s", "--socket"])
        .arg(admin(&world));
    let mut add = add.stdout(Stdio::null()).spawn().unwrap();
    eventually("it waits for room", || queue(&world)["additions"][0]["tenant"] == "later");
    let waiting = &queue(&world)["additions"][0];
    assert_eq!(waiting["position"], 1);
    assert!(waiting["words"].as_str().is_some_and(|words| !words.is_empty()), "{waiting:#}");
    assert!((3000.0..=3600.0).contains(&waiting["expected_seconds"].as_f64().unwrap()), "{waiting:#}");
    assert!(ask(&world, &["metrics"]).contains("vgpu_queued_additions{} 1.0"));
    ask(&world, &["tenant", "remove", "first"]);
    assert!(add.wait().unwrap().success());
    assert_eq!(queue(&world)["additions"], serde_json::json!([]), "it has its room");
}
