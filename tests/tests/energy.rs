//! Energy in the record and in `vgpu report energy`: of work, of idleness with memory held, and nobody's. The simulated
//! device's own counter judges. Not here: the division of one interval (`accounting/src/record/energy.rs`).

use serde_json::Value;
use std::thread;
use std::time::{Duration, Instant};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::timed::{alone, measured, timed};
use vgpu_tests::{GIB, Lab, Member, eventually};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// The device's counter, in millijoules.
fn counter(probe: &mut Member) -> f64 {
    #[allow(clippy::cast_precision_loss)] // joules of a test
    {
        probe.ok("nvenergy 0").number(0) as f64
    }
}

#[test]
fn the_energy_of_tenants_and_of_nobody_is_what_the_device_counts() {
    measured(|| {
        let _alone = alone();
        let mut lab = Lab::new("h200");
        let mut probe = lab.bare_member();
        probe.ok("nvinit");
        let first = counter(&mut probe);
        let terms = "memory_limit = \"8GiB\"".to_owned();
        let tenants = vec![("works".into(), terms.clone()), ("holds".into(), terms)];
        let mut daemon =
            Daemon::start_on_machine(&lab, &Plan { device: lab.device(0).uuid, time: String::new(), tenants });
        lab.set("VGPU_SOCKET", daemon.socket("holds"));
        let mut holds = lab.member();
        holds.begin();
        holds.alloc(GIB);
        lab.set("VGPU_SOCKET", daemon.socket("works"));
        let mut works = timed(&lab);
        let energy_of = |daemon: &Daemon, tenant: &str| {
            let status: Value = serde_json::from_str(&daemon.tell(&["status", "--json"])).expect("JSON");
            let all = status["tenants"].as_array().expect("tenants");
            all.iter().find(|one| one["name"] == tenant).expect("the tenant")["devices"][0]["energy"].clone()
        };
        let idles = |daemon: &Daemon| energy_of(daemon, "holds")["idle_millijoules"].as_u64().unwrap_or(0);
        eventually("idle energy is counted", || idles(&daemon) > 0);
        let (began, before, busy) = (Instant::now(), counter(&mut probe), lab.device(0).busy_ns);
        thread::sleep(Duration::from_millis(1_500));
        let idle_watts = (counter(&mut probe) - before) / began.elapsed().as_secs_f64() / 1_000.0;
        works.ok("loop 4000000 3000 0 1 4000000 0 0");
        let (middle, length) = (counter(&mut probe), began.elapsed().as_secs_f64());
        // A reading may be a second old.
        thread::sleep(Duration::from_millis(2_500));
        #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
        let busy = (lab.device(0).busy_ns - busy) as f64 / 1e9;
        let metrics_work = number(&energy_of(&daemon, "works")["work_millijoules"]);
        assert_eq!(daemon.stop(), Some(0));
        let last = counter(&mut probe);
        let kept = lab.path().join("kept").display().to_string();
        let report = daemon.vgpu(&["report", "energy", "--format", "json", "--state-dir", &kept]);
        let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let line = |tenant: &str, part: &str| {
            let lines = report["lines"].as_array().expect("lines");
            lines.iter().find(|line| line["tenant"] == tenant).map_or(0.0, |line| number(&line[part]))
        };
        let total = number(&report["total"]["work_mj"]) + number(&report["total"]["idle_mj"]);
        eprintln!(
            "{first} {before} {middle} {last}: {total} mJ recorded; {idle_watts:.1} W idle; {busy:.2} s of work; {report:#}"
        );
        assert!(total >= middle - before && total <= last - first, "{total} of {first} {before} {middle} {last}");
        // The counter's truth: all energy less that of the time in which the device rested.
        let worked = (middle - before) - idle_watts * 1_000.0 * (length - busy);
        let counted = line("works", "work_mj");
        assert!(busy > 0.8 && (0.85..=1.15).contains(&(counted / worked)), "{counted} of {worked} mJ");
        assert!((metrics_work / counted - 1.0).abs() < 0.01, "the status says {metrics_work}, the record {counted}");
        assert_eq!(line("holds", "work_mj"), 0.0);
        assert!(line("holds", "idle_mj") > 0.4 * idle_watts * 1_000.0 * (length - busy), "{report:#}");
        assert_eq!(
            (report["estimated"].as_bool(), report["unknown_devices"].as_array().map(Vec::len)),
            (Some(false), Some(0))
        );
        holds.ok("info");
    });
}
