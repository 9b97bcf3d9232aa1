//! Reports the daemon's findings, each with a remedy: processes that use the devices, and anything the daemon cannot
//! write, read or accept. Covers all tenants if the administrative socket can be opened, else the tenant whose socket
//! is set here.

use std::collections::BTreeMap;
use std::path::Path;

use super::DoctorReport;
use vgpu_config::problem::escape_value;
use vgpu_control::finding::Finding;
use vgpu_control::{DaemonStatus, own};

/// Reports every finding in a daemon's status.
pub fn all(report: &mut DoctorReport, status: &DaemonStatus) {
    for finding in &status.findings {
        report.add_finding("proof", finding_words(finding));
    }
    if status.findings.is_empty() {
        report.add_fine(
            "proof",
            "the daemon found no process that uses a device without a limit, or more than its tenant's ledger says",
        );
    }
    for device in &status.devices {
        if let Some(since) = &device.lost_since {
            let name = device.uuid.as_ref().unwrap_or(&device.name);
            report.add_finding(
                "device",
                format!(
                    "{name} is lost since {since}, as the driver says; end its processes and reset it \
                     (nvidia-smi --gpu-reset), or restart the machine"
                ),
            );
        }
    }
    for fault in &status.faults {
        report.add_finding("daemon", format!("{}: {}; {}", fault.what, fault.words, cure(&fault.what)));
    }
    if let Some(file) = &status.configuration
        && let Some(why) = &file.refused
    {
        let file = file.file.display();
        report.add_finding(
            "daemon",
            format!(
                "the last reading of {file} was refused: {why}; correct it (`vgpud --check {file}`) and send SIGHUP"
            ),
        );
    }
    for (device, names) in unmeasured_devices(status) {
        report.add_fine(
            "daemon",
            format!(
                "device time of {names} on device {device} is not measured: that device is not shared by leases, \
                 because of arbitrate = false in [time]"
            ),
        );
    }
    for tenant in &status.tenants {
        if let Some(why) = &tenant.unusable {
            let name = &tenant.name;
            report.add_finding("daemon", format!("tenant {name} is not served: {why}; remove it and send SIGHUP"));
        }
    }
}

/// Returns the devices with unmeasured use, and the names of the tenants that use them.
fn unmeasured_devices(status: &DaemonStatus) -> BTreeMap<&str, String> {
    let mut names: BTreeMap<&str, String> = BTreeMap::new();
    for tenant in &status.tenants {
        for here in tenant.devices.iter().filter(|here| here.time.as_ref().is_some_and(|time| time.unmeasured)) {
            let there = names.entry(&here.device).or_default();
            let comma = if there.is_empty() { "" } else { ", " };
            there.push_str(&format!("{comma}{}", tenant.name));
        }
    }
    names
}

/// Reports the findings about the tenant that owns this socket.
pub fn report_own_findings(report: &mut DoctorReport, socket: &Path) {
    match own::ask_own(socket) {
        Ok(Some(told)) => {
            for finding in &told.findings {
                report.add_finding("proof", finding_words(finding));
            }
            if told.more > 0 {
                report
                    .add_finding("proof", format!("and {} more of this tenant; end the listed ones first", told.more));
            }
            if told.findings.is_empty() {
                report.add_fine("proof", "the daemon found nothing of this tenant's processes");
            }
        }
        Ok(None) => report.add_fine(
            "proof",
            "the daemon did not report its findings: it is an older version, or this tenant asked too often",
        ),
        // The missing answer is reported elsewhere already.
        Err(_) => {}
    }
}

fn finding_words(finding: &Finding) -> String {
    let whose = finding.tenant.as_ref().map_or(String::new(), |tenant| format!(" of {tenant}"));
    let place = match &finding.container {
        Some(container) => format!(" in {}", escape_value(container)),
        None if finding.contained => " in a container".to_owned(),
        None => String::new(),
    };
    let inside = finding.pid_inside.filter(|pid| *pid != finding.process.pid);
    let inside = inside.map_or(String::new(), |pid| format!(", {pid} there"));
    let device = finding.device.as_ref().map_or(String::new(), |device| format!(" on {device}"));
    let (what, pid, name) = (finding.what.kind_word(), finding.process.pid, &finding.name);
    format!("{what}: process {pid} ({name:?}{inside}){whose}{place}{device}: {}", finding.words)
}

/// Returns the remedy for a fault of this kind.
fn cure(what: &str) -> &'static str {
    match what {
        "audit" => "give the directory of log.audit space and write permission, or name another file and restart vgpud",
        "metrics" => "name a free address in metrics.listen, and restart vgpud",
        "record" => "give state_dir space and write permission; usage from the meantime is recorded then",
        "proof" => "run vgpud as root in the host's pid namespace, where it can load the driver's library",
        _ => "its log says more",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_control::finding::{FindingKind, ProcessId};
    use vgpu_control::{DaemonFault, status};

    #[test]
    fn a_lost_device_is_a_finding_with_its_time_and_a_device_that_answers_is_none() {
        let device = |uuid: &str, since: Option<&str>| status::DeviceStatus {
            uuid: Some(uuid.into()),
            lost_since: since.map(str::to_owned),
            ..Default::default()
        };
        let devices = [device("GPU-1", None), device("GPU-2", Some("2026-01-02T03:04:05.678Z"))];
        let status = serde_json::json!({
            "version": "1", "pid": 1, "uptime_seconds": 1, "tenants": [], "devices": devices,
        });
        let mut report = DoctorReport::default();
        all(&mut report, &serde_json::from_value(status).unwrap());
        assert_eq!(report.findings, 1);
        assert!(report.lines.iter().any(|line| line.words.starts_with("GPU-2 is lost since 2026-01-02T03:04:05.678Z")));
    }

    #[test]
    fn each_fault_and_finding_is_a_line_of_its_own_with_what_to_do() {
        let finding = Finding {
            what: FindingKind::Over,
            process: ProcessId { pid: 70, began: 1 },
            pid_inside: Some(3),
            name: "python3".into(),
            tenant: Some("a".into()),
            device: Some("GPU-1".into()),
            contained: true,
            container: Some("4711".into()),
            words: "do this".into(),
        };
        let fault = |what: &str| DaemonFault { what: what.into(), words: "broken".into() };
        let faults = ["audit", "metrics", "record", "proof", "new"].map(fault);
        let status: status::DaemonStatus = serde_json::from_value(serde_json::json!({
            "version": "1", "pid": 1, "uptime_seconds": 1, "tenants": [],
            "findings": [finding], "faults": faults,
            "configuration": { "file": "/v.toml", "reloads": 0, "refused": "line 3", "notes": [] },
        }))
        .unwrap();
        let mut report = DoctorReport::default();
        all(&mut report, &status);
        assert_eq!(report.findings, 7);
        let text: Vec<&str> = report.lines.iter().map(|line| line.words.as_str()).collect();
        assert_eq!(text[0], "over: process 70 (\"python3\", 3 there) of a in 4711 on GPU-1: do this");
        let cure = |words: &str| words.split_once(": broken; ").unwrap().1.len();
        assert!(text[1..6].iter().all(|words| cure(words) > 10), "{text:?}");
        assert!(text[6].contains("vgpud --check /v.toml"), "{text:?}");
    }

    #[test]
    fn time_that_nobody_measures_is_told_and_is_no_finding() {
        let device = |device: &str, unmeasured| {
            let time = status::TimeStatus { unmeasured, ..status::TimeStatus::default() };
            status::TermsStatus { device: device.into(), time: Some(time), ..status::TermsStatus::default() }
        };
        let tenant = |name: &str, devices: Vec<status::TermsStatus>| serde_json::json!({"name": name, "socket": "/s", "refused": 0, "members": [], "devices": devices});
        let tenants = [
            tenant("a", vec![device("0", true), device("1", false)]),
            tenant("b", vec![device("0", true)]),
            tenant("c", vec![device("0", false)]),
        ];
        let status = serde_json::json!({"version": "1", "pid": 1, "uptime_seconds": 1, "tenants": tenants});
        let mut report = DoctorReport::default();
        all(&mut report, &serde_json::from_value(status).unwrap());
        let told: Vec<&str> =
            report.lines.iter().map(|line| line.words.as_str()).filter(|words| words.contains("measured")).collect();
        assert!(report.findings == 0 && told.len() == 1, "{told:?}");
        assert!(told[0].starts_with("device time of a, b on device 0 is not measured"), "{told:?}");
    }
}
