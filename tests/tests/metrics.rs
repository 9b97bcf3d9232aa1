//! The daemon's metrics and the rules made for them, read by Prometheus' own programs. That metrics are true and
//! complete: scheduler-sidecar/daemon/tests/metrics.rs.

#[path = "leases/world.rs"]
#[allow(unused_imports, reason = "this program uses a part")]
mod world;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use vgpu_tests::artefacts::checkout;
use vgpu_tests::{GIB, LONG_TIMEOUT, optional};
use world::{World, eventually, finish, tenant};

/// Requests the metrics page as a scraper does.
fn scrape(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LONG_TIMEOUT)).ok()?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut all = String::new();
    stream.read_to_string(&mut all).ok()?;
    Some(all.split_once("\r\n\r\n")?.1.to_owned())
}

/// The page as Prometheus' Python parser reads it.
fn parsed(text: &str) -> Option<Value> {
    let script = checkout().join("tests/clients/openmetrics.py");
    let mut python = Command::new(optional::python()?);
    let mut child =
        python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{text}", vgpu_tests::text(&out));
    Some(serde_json::from_slice(&out.stdout).unwrap())
}

/// Value of a tenant's sample.
fn value(families: &Value, family: &str, sample: &str, tenant: &str) -> Option<f64> {
    let samples = families[family]["samples"].as_array()?;
    samples.iter().find(|one| one[0] == sample && one[1]["tenant"] == tenant)?[2].as_f64()
}

/// Client: prometheus-client
#[test]
fn prometheus_own_parser_reads_the_page_and_finds_what_tenants_used() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let metrics = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let terms =
        "memory_limit = \"4GiB\"\nweight = 50\ngroup = \"lab/vision\"\nlabels = { cost-centre = 'a \"b\" \\ c' }";
    let tenants = tenant("a", terms) + &tenant("idle", "sm_limit = 30");
    let mut world = World::start(&(metrics + &tenants));
    let mut holder = world.plain("a");
    holder.begin();
    holder.alloc(GIB);
    let mut members = world.at_work(&[("a", 1000, 64, 0)], 300);
    finish(&mut members);
    eventually("it is exported", || scrape(port).is_some_and(|page| page.contains("vgpu_tenant_memory_used_bytes")));
    let page = scrape(port).unwrap();
    let Some(families) = parsed(&page) else { return };
    assert!(families.as_object().is_some_and(|all| all.len() > 20), "{page}");
    let info = families["vgpu_tenant_info"]["samples"].as_array().unwrap();
    let info = &info.iter().find(|one| one[1]["tenant"] == "a").unwrap()[1];
    assert_eq!((&info["group"], &info["label_cost_centre"]), (&"lab/vision".into(), &"a \"b\" \\ c".into()));
    let used = value(&families, "vgpu_tenant_gpu_seconds", "vgpu_tenant_gpu_seconds_total", "a").unwrap();
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to a second
    let truth = world.lab.device(0).busy_ns as f64 / 1e9;
    assert!((used - truth).abs() < 0.02, "{used} s of {truth}");
    assert!(value(&families, "vgpu_tenant_launches", "vgpu_tenant_launches_total", "a").unwrap() >= 64.0, "{page}");
    let family = &families["vgpu_tenant_gpu_seconds"];
    assert_eq!((&family["type"], &family["unit"]), (&"counter".into(), &"seconds".into()), "{family}");
    assert_eq!(value(&families, "vgpu_tenant_members", "vgpu_tenant_members", "idle"), Some(0.0), "{page}");
}

/// Control of the metrics parser: it rejects a page that is cut off.
#[test]
fn a_page_that_is_cut_off_is_none() {
    let Some(python) = optional::python() else { return };
    let mut child = Command::new(python)
        .arg(checkout().join("tests/clients/openmetrics.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"# TYPE a gauge\na 1.0\n").unwrap();
    assert!(!child.wait().unwrap().success());
}

/// Client: promtool
#[test]
fn promtool_accepts_the_alert_rules() {
    let Some(promtool) = optional::promtool() else { return };
    let rules = checkout().join("examples/monitoring/alerts.yml");
    let said = vgpu_tests::run(Command::new(&promtool).args(["check", "rules"]).arg(&rules));
    assert!(said.contains("SUCCESS: ") && said.contains("rules found"), "{said}");
    let broken = tempfile::NamedTempFile::new().unwrap();
    let text = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(broken.path(), text.replacen("expr: absent(", "expr: absent((", 1)).unwrap();
    assert!(!Command::new(promtool).args(["check", "rules"]).arg(broken.path()).output().unwrap().status.success());
}
