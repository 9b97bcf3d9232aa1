//! Tests of the metrics: correct, complete, with the names that dashboards use, and served over HTTP only on request.

#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Guard, LONG_TIMEOUT, Peer, eventually, vgpud};
use tempfile::TempDir;
use vgpu_accounting::metrics::{FAMILY_NAMES, FamilyName, metrics_text};
use vgpu_config::bearer::CostBearer;
use vgpu_control::finding::{Finding, FindingKind, ProcessId};
use vgpu_control::service::{ServiceSums, TimeHistogram};
use vgpu_control::{
    DaemonFault, DaemonStatus, DeviceStatus, EnergyStatus, IdleStatus, MemberStatus, TenantStatus, TermsStatus,
    TimeStatus,
};

fn found() -> Finding {
    let process = ProcessId { pid: 7, began: 1 };
    let (what, name, words) = (FindingKind::Uncontrolled, "x".into(), "y".into());
    Finding {
        what,
        process,
        pid_inside: None,
        name,
        tenant: None,
        device: None,
        contained: false,
        container: None,
        words,
    }
}

fn bearer() -> CostBearer {
    let labels = [("cost-centre", "47\"11"), ("cost.centre", "b"), ("zone", "eu")];
    CostBearer {
        group: Some("lab/vision".into()),
        labels: labels.map(|(name, value)| (name.into(), value.into())).into(),
    }
}

/// Waits of which one is in the second bucket, two in the fourth, and one in the last.
fn times() -> TimeHistogram {
    let mut times = TimeHistogram::default();
    [100_000, 3_000_000, 4_000_000, 20_000_000_000].into_iter().for_each(|ns| times.note(ns));
    times
}

/// A status in which every optional value is known.
fn full() -> DaemonStatus {
    let time = TimeStatus {
        gpu_seconds: Some(12.5),
        waited_seconds: 0.25,
        wanted: Some(100.0),
        got: Some(29.5),
        waiting: 1,
        service: ServiceSums {
            wanted_ns: 60_000_000_000,
            promised_ns: 24_000_000_000,
            delivered_ns: 12_000_000_000,
            minutes: 3,
            minutes_kept: 2,
            waits: times(),
            gaps: times(),
        },
        ..Default::default()
    };
    let terms = TermsStatus {
        device: "0".into(),
        memory_limit: Some(1 << 30),
        sm_limit: Some(30.0),
        sm_request: Some(10.0),
        weight: 2,
        time: Some(time),
        memory_used: Some(5 << 20),
        memory_peak: Some(6 << 20),
        overhead: Some(0),
        refused_allocations: Some(3),
        launches: Some(1000),
        energy: Some(EnergyStatus { work_millijoules: 7_500, idle_millijoules: 250 }),
        ..Default::default()
    };
    let tenant = |name: &str, devices| TenantStatus {
        name: name.into(),
        bearer: CostBearer::default(),
        labels_live: Vec::new(),
        socket: "/s".into(),
        memory_limit: None,
        sm_limit: None,
        refused: 4,
        removed: false,
        added: None,
        unusable: None,
        paused: true,
        suspended: false,
        gang: None,
        mode: "enforce".into(),
        strict: false,
        idle: None,
        deadline: None,
        devices,
        members: vec![MemberStatus::default()],
    };
    let idle = TermsStatus { device: "0".into(), weight: 1, ..Default::default() };
    // On a device that has no line of its own, with limits other than device 0's.
    let other = TermsStatus { device: "1".into(), weight: 3, memory_limit: Some(7), ..Default::default() };
    DaemonStatus {
        cordons: Vec::new(),
        version: "1.2.3".into(),
        pid: 1,
        uptime_seconds: 60,
        actions: Vec::new(),
        queued_additions: 2,
        record: None,
        audit: None,
        configuration: Some(vgpu_control::ConfigurationStatus {
            file: "/f".into(),
            reloads: 0,
            refused: None,
            notes: Vec::new(),
        }),
        devices: vec![DeviceStatus {
            name: "0".into(),
            uuid: Some("GPU-1".into()),
            model: None,
            memory: Some(80 << 30),
            overcommit: 1.0,
            arbitrated: true,
            holder: None,
            lost_since: Some("2026-01-01T00:00:00.000Z".into()),
        }],
        tenants: vec![
            TenantStatus { bearer: bearer(), ..tenant("a", vec![terms]) },
            TenantStatus {
                members: Vec::new(),
                paused: false,
                mode: "observe".into(),
                refused: 0,
                idle: Some(IdleStatus { idle_seconds: 90, reclaimable: 4096, ..IdleStatus::default() }),
                ..tenant("idle", vec![idle, other])
            },
        ],
        findings: vec![found(), found()],
        groups: vec![vgpu_control::status::GroupStatus {
            name: "lab".into(),
            share: Some(75.0),
            used: Some(50.0),
            effective: Some(80.0),
            quotas: vec![vgpu_control::status::QuotaStatus {
                per: "week".into(),
                unit: "GPU-hours".into(),
                limit: 40.0,
                used: 10.0,
                then: "paused".into(),
                ..Default::default()
            }],
            ..Default::default()
        }],
        faults: vec![DaemonFault { what: "audit".into(), words: "full".into() }],
    }
}

/// Names of all samples. The samples of a histogram have the histogram's name.
fn samples(text: &str) -> BTreeSet<&str> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let name = line.split(['{', ' ']).next().unwrap();
            let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            stem.filter(|stem| text.contains(&format!("# TYPE {stem} histogram"))).unwrap_or(name)
        })
        .collect()
}

#[test]
fn everything_that_is_known_is_there_under_its_name_and_nothing_else() {
    let text = metrics_text(&full(), true);
    let named: BTreeSet<&str> = FAMILY_NAMES.iter().map(|name| name.name).collect();
    assert_eq!(samples(&text), named);
    assert!(text.ends_with("# EOF\n"), "{text}");
    for line in [
        "# UNIT vgpu_tenant_gpu_seconds seconds",
        "# TYPE vgpu_tenant_gpu_seconds counter",
        "vgpu_tenant_info{tenant=\"a\",group=\"lab/vision\",label_cost_centre=\"47\\\"11\",label_cost_centre_2=\"b\",label_zone=\"eu\"} 1.0",
        "vgpu_tenant_info{tenant=\"idle\",group=\"\"} 1.0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
}

/// Checks every sample, so that none can have another's number.
#[test]
fn each_sample_is_the_number_that_its_name_says() {
    let mut expected: Vec<String> = [
        "build_info{version=\"1.2.3\"} 1.0",
        "uptime_seconds{} 60.0",
        "configuration_refused{} 0.0",
        "faults{what=\"audit\"} 1.0",
        "findings{kind=\"uncontrolled\"} 2.0",
        "findings{kind=\"unregistered\"} 0.0",
        "findings{kind=\"over\"} 0.0",
        "findings{kind=\"time\"} 0.0",
        "queued_additions{} 2.0",
        "device_memory_bytes{device=\"GPU-1\"} 85899345920.0",
        "device_arbitrated{device=\"GPU-1\"} 1.0",
        "device_lost{device=\"GPU-1\"} 1.0",
        "device_memory_promised_bytes{device=\"GPU-1\"} 1073741824.0",
    ]
    .map(|line| format!("vgpu_{line}"))
    .to_vec();
    let labels = "label_cost_centre=\"47\\\"11\",label_cost_centre_2=\"b\",label_zone=\"eu\"";
    expected.push(format!("vgpu_tenant_info{{tenant=\"a\",group=\"lab/vision\",{labels}}} 1.0"));
    expected.push("vgpu_tenant_info{tenant=\"idle\",group=\"\"} 1.0".into());
    for (labels, all) in [
        ("tenant=\"a\"", "members 1,connections_refused_total 4,enforced 1,paused 1"),
        (
            "tenant=\"idle\"",
            "members 0,connections_refused_total 0,enforced 0,paused 0,idle_seconds 90,memory_reclaimable_bytes 4096",
        ),
        (
            "tenant=\"a\",device=\"GPU-1\"",
            "memory_limit_bytes 1073741824,memory_used_bytes 5242880,memory_peak_bytes 6291456,sm_limit_ratio 0.3,\
             sm_request_ratio 0.1,weight 2,wanted_ratio 1,got_ratio 0.295,unmeasured 0,waiting 1,gpu_seconds_total 12.5,\
             wait_seconds_total 0.25,launches_total 1000,allocations_refused_total 3,promised_seconds_total 24,\
             delivered_seconds_total 12,promise_minutes_total 3,promise_kept_minutes_total 2",
        ),
        ("tenant=\"a\",device=\"GPU-1\",use=\"work\"", "energy_joules_total 7.5"),
        ("tenant=\"a\",device=\"GPU-1\",use=\"idle\"", "energy_joules_total 0.25"),
        (
            "tenant=\"idle\",device=\"GPU-1\"",
            "weight 1,wanted_ratio 0,got_ratio 0,unmeasured 0,waiting 0,gpu_seconds_total 0,wait_seconds_total 0",
        ),
        (
            "tenant=\"idle\",device=\"1\"",
            "memory_limit_bytes 7,weight 3,wanted_ratio 0,got_ratio 0,unmeasured 0,waiting 0,gpu_seconds_total 0,\
             wait_seconds_total 0",
        ),
    ] {
        expected.extend(all.split(',').map(|one| {
            let (name, value) = one.split_once(' ').unwrap();
            format!("vgpu_tenant_{name}{{{labels}}} {:?}", value.parse::<f64>().unwrap())
        }));
    }
    let quota = "group=\"lab\",per=\"week\",unit=\"GPU-hours\",then=\"paused\"";
    expected.push(format!("vgpu_group_quota_used_ratio{{{quota}}} 0.25"));
    for (name, value) in [("share", "0.75"), ("used", "0.5"), ("effective", "0.8")] {
        expected.push(format!("vgpu_group_{name}_ratio{{group=\"lab\"}} {value}"));
    }
    // The bounds are powers of 4, and each bucket holds the ones before it.
    let bounds = ["0.0000625", "0.00025", "0.001", "0.004", "0.016", "0.064", "0.256", "1.024", "4.096", "16.384"];
    for name in ["lease_wait", "lease_gap"] {
        let (name, labels) = (format!("vgpu_tenant_{name}_seconds"), "tenant=\"a\",device=\"GPU-1\"");
        for (bound, count) in bounds.into_iter().zip([0, 1, 1, 3, 3, 3, 3, 3, 3, 3]) {
            expected.push(format!("{name}_bucket{{le=\"{bound}\",{labels}}} {count}"));
        }
        expected.push(format!("{name}_bucket{{le=\"+Inf\",{labels}}} 4"));
        expected.push(format!("{name}_sum{{{labels}}} 20.0071"));
        expected.push(format!("{name}_count{{{labels}}} 4"));
    }
    // HAMi's names, new and old. Without a limit they show the device's memory, and shares are in percent.
    for (tenant, at, uuid, used, limit, got) in [
        ("a", 0, "GPU-1", Some(5_242_880.0), 1_073_741_824.0, 29.5),
        ("idle", 0, "GPU-1", None, 85_899_345_920.0, 0.0),
        ("idle", 1, "1", None, 7.0, 0.0),
    ] {
        let new = format!(
            "zone=\"vGPU\",namespace=\"\",pod=\"{tenant}\",container=\"{tenant}\",vdevice_index=\"{at}\",device_uuid=\"{uuid}\""
        );
        let old = format!(
            "podnamespace=\"\",podname=\"{tenant}\",ctrname=\"{tenant}\",vdeviceid=\"{at}\",deviceuuid=\"{uuid}\""
        );
        for (value, first, second) in [
            (used, "hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
            (Some(limit), "hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
            (Some(got), "hami_container_device_utilization_ratio", "Device_utilization_desc_of_container"),
        ] {
            let value = value.into_iter();
            expected
                .extend(value.flat_map(|v| [format!("{first}{{{new}}} {v:?}"), format!("{second}{{{old}}} {v:?}")]));
        }
    }
    let text = metrics_text(&full(), true);
    let mut shown: Vec<String> = text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    expected.sort();
    shown.sort();
    assert_eq!(shown, expected);
}

#[test]
fn a_tenants_samples_name_its_pod_if_its_labels_do_and_there_are_no_more_of_them() {
    let mut status = full();
    let before = metrics_text(&status, true).lines().count();
    let labels = [("namespace", "lab"), ("pod", "train-\"0\""), ("container", "main"), ("pod-uid", "7ac1")];
    status.tenants[0].bearer.labels = labels.map(|(name, value)| (name.into(), value.into())).into();
    let text = metrics_text(&status, true);
    assert_eq!(text.lines().count(), before, "{text}");
    let pod = r#"namespace="lab",pod="train-\"0\"",container="main""#;
    for line in [
        format!("vgpu_tenant_members{{tenant=\"a\",{pod}}} 1.0"),
        format!("vgpu_tenant_memory_used_bytes{{tenant=\"a\",{pod},device=\"GPU-1\"}} 5242880.0"),
        format!("vgpu_tenant_lease_wait_seconds_count{{tenant=\"a\",{pod},device=\"GPU-1\"}} 4"),
        format!(
            "hami_vgpu_memory_used_bytes{{zone=\"vGPU\",{pod},vdevice_index=\"0\",device_uuid=\"GPU-1\"}} 5242880.0"
        ),
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
    let info = text.lines().find(|line| line.starts_with("vgpu_tenant_info{tenant=\"a\"")).unwrap();
    assert!(info.contains("label_pod_uid=\"7ac1\"") && info.contains("label_namespace=\"lab\""), "{info}");
    // A tenant without the labels has none of them.
    assert!(text.contains("vgpu_tenant_members{tenant=\"idle\"} 0.0"), "{text}");
}

#[test]
fn without_hamis_names_there_is_none_of_them_and_what_is_not_known_has_no_sample() {
    let mut status = full();
    status.tenants[0].devices[0].memory_used = None;
    let text = metrics_text(&status, false);
    assert!(samples(&text).iter().all(|name| name.starts_with("vgpu_")), "{text}");
    assert!(!text.contains("vgpu_tenant_memory_used_bytes"), "{text}");
}

#[test]
fn device_time_that_is_not_measured_has_no_sample_and_that_it_is_not_has_one() {
    let mut status = full();
    let time = TimeStatus { unmeasured: true, waiting: 1, ..Default::default() };
    status.tenants[0].devices[0].time = Some(time);
    let text = metrics_text(&status, true);
    let has = |name: &str| text.lines().any(|line| line.starts_with(name) && line.contains("\"a\""));
    for name in [
        "vgpu_tenant_gpu_seconds_total",
        "vgpu_tenant_got_ratio",
        "vgpu_tenant_wanted_ratio",
        "hami_container_device_utilization_ratio",
        "Device_utilization_desc_of_container",
    ] {
        assert!(!has(name), "{name} is in\n{text}");
    }
    assert!(text.contains("vgpu_tenant_unmeasured{tenant=\"a\",device=\"GPU-1\"} 1.0"), "{text}");
    assert!(has("vgpu_tenant_launches_total") && has("vgpu_tenant_waiting"), "{text}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Words that look like names of our metrics.
fn mentioned(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    // A histogram's buckets are asked for by a name of their own.
    let family = |word: &str| word.strip_suffix("_bucket").unwrap_or(word).to_owned();
    words.filter(|word| word.starts_with("vgpu_") || word.starts_with("hami_")).map(family).collect()
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_nothing_that_is_not_exported() {
    for file in ["examples/monitoring/grafana.json", "examples/monitoring/alerts.yml"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let mentioned = mentioned(&text);
        assert!(mentioned.len() >= 5, "{file}: {mentioned:?}");
        for name in mentioned {
            assert!(FAMILY_NAMES.iter().any(|known| known.name == name), "{file} asks for {name}");
        }
    }
    let dashboard = fs::read_to_string(root().join("examples/monitoring/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["targets"].is_array()), "{panels:?}");
}

/// Type and unit of a metric family, as exported.
fn kind_and_unit(text: &str, name: &str, says: &str) -> (String, &'static str) {
    let stem = name.strip_suffix("_total").unwrap_or(name);
    let told = text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {stem} ")));
    let told = told.or_else(|| text.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))));
    let unit = match stem {
        _ if says.contains("in percent") => "percent",
        _ if stem.ends_with("_bytes") => "bytes",
        _ if stem.ends_with("_seconds") => "seconds",
        _ if stem.ends_with("_ratio") => "ratio",
        _ => "",
    };
    if ["bytes", "seconds"].contains(&unit) && name.starts_with("vgpu_") {
        assert!(text.contains(&format!("# UNIT {stem} {unit}")), "{name}: its unit is exported");
    }
    (told.unwrap_or_else(|| panic!("{name}: its type is exported")).to_owned(), unit)
}

/// Compares the generated table of a page with `table`; `UPDATE=1` rewrites it.
fn in_step(page: &str, table: &str) {
    const BEGIN: &str = "<!-- generated: UPDATE=1 cargo test -p vgpu-daemon --test metrics -->\n";
    const END: &str = "<!-- end -->";
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(fs::read_to_string(&path).unwrap() == made, "{page}: run it with UPDATE=1");
}

#[test]
fn the_reference_has_every_metric_with_the_type_and_the_unit_that_are_exported() {
    let shown = metrics_text(&full(), true);
    let mut table = "| metric | type | unit | labels | |\n|---|---|---|---|---|\n".to_owned();
    for FamilyName { name, labels, says } in FAMILY_NAMES {
        let (kind, unit) = kind_and_unit(&shown, name, says);
        table.push_str(&format!("| `{name}` | {kind} | {unit} | {labels} | {says} |\n"));
    }
    in_step("docs/metrics.md", &table);
}

#[test]
fn the_reference_has_every_kind_of_event() {
    let mut table = "| kind | in the audit log | |\n|---|---|---|\n".to_owned();
    for kind in vgpu_control::event::EVENT_KINDS {
        let audited = if kind.audited { "yes" } else { "" };
        table.push_str(&format!("| `{}` | {audited} | {} |\n", kind.name, kind.says));
    }
    in_step("docs/observing.md", &table);
}

fn get(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_server_answers_with_the_truth_also_beside_a_client_that_says_nothing() {
    let dir = TempDir::new().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = dir.path().join("vgpud.toml");
    let tenants = "[[tenant]]\nname = \"a\"\nmemory_limit = \"1GiB\"\ngroup = \"lab\"\nlabels = { p = \"x\" }\n\
                   [[tenant]]\nname = \"idle\"\n";
    fs::write(&file, format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\nhami_names = false\n{tenants}")).unwrap();
    let start = || {
        let mut command = vgpud();
        command.arg("--config").arg(&file).args(["--driver", "none", "--runtime-dir"]).arg(dir.path().join("run"));
        Guard(command.stderr(Stdio::null()).spawn().unwrap())
    };
    let daemon = start();
    eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let socket = dir.path().join("run/tenants/a/vgpud.sock");
    eventually("it serves", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let mut peer = Peer::connect(&socket);
    assert!(peer.hello().contains("\"tenant\""));
    let (head, body) = get(port, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    for line in [
        "vgpu_tenant_info{tenant=\"a\",group=\"lab\",label_p=\"x\"} 1.0",
        "vgpu_tenant_members{tenant=\"a\"} 1.0",
        "vgpu_tenant_members{tenant=\"idle\"} 0.0",
        "vgpu_tenant_memory_limit_bytes{tenant=\"a\",device=\"*\"} 1073741824.0",
    ] {
        assert!(body.lines().any(|shown| shown == line), "{line} is not in\n{body}");
    }
    assert!(!body.contains("vGPU_device"), "{body}");
    let (head, body) = get(port, "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && body == "ok\n");
    assert!(get(port, "/else").0.starts_with("HTTP/1.1 404"));
    drop(daemon);

    // The address is taken: the fault is reported, and limits are still enforced.
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let _daemon = start();
    let admin = dir.path().join("run/admin.sock");
    eventually("it serves", || vgpu_control::ask_status(&admin).is_ok());
    let status = vgpu_control::ask_status(&admin).unwrap();
    assert!(
        status.faults.iter().any(|fault| fault.what == "metrics" && fault.words.contains("127.0.0.1")),
        "{status:?}"
    );
    assert!(Peer::try_hello(&socket).is_some());
}

/// Incomplete requests before each scrape. With 16 served at a time for 2 s each, they would delay a scrape by 12 s.
const HALVES: usize = 100;
/// Number of floods, each followed by one scrape.
const FLOODS: usize = 3;
/// Files that the daemon's other threads may have open at the same time, mostly in /proc.
const OTHER_THREADS_FILES: usize = 8;
/// Longest time of a scrape: far less than the incomplete requests would take, far more than a busy host adds.
const SCRAPE: Duration = Duration::from_secs(6);

#[test]
fn a_scrape_does_not_wait_for_a_hundred_half_questions_and_descriptors_are_bounded() {
    let dir = TempDir::new().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = dir.path().join("vgpud.toml");
    fs::write(&file, format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[[tenant]]\nname = \"a\"\n")).unwrap();
    let mut command = vgpud();
    command.arg("--config").arg(&file).args(["--driver", "none", "--runtime-dir"]).arg(dir.path().join("run"));
    let daemon = Guard(command.stderr(Stdio::null()).spawn().unwrap());
    eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    eventually("it answers", || get(port, "/healthz").0.starts_with("HTTP/1.1 200"));
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.0.id())).unwrap().count();
    let before = descriptors();
    let mut half_questions = Vec::new();
    for _ in 0..FLOODS {
        for _ in 0..HALVES {
            let mut half = TcpStream::connect(("127.0.0.1", port)).unwrap();
            half.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").unwrap();
            half_questions.push(half);
        }
        let asked = Instant::now();
        let (head, body) = get(port, "/metrics");
        let took = asked.elapsed();
        let most = descriptors();
        assert!(head.starts_with("HTTP/1.1 200") && body.contains("vgpu_tenant_members"), "{head}");
        assert!(took < SCRAPE, "a scrape took {took:?} behind {HALVES} half questions");
        assert!(
            most <= before + 17 + OTHER_THREADS_FILES,
            "{before} descriptors before, {most} meanwhile: 16 connections, one that is accepted, and other threads' files"
        );
    }
}
