//! `vgpu status`: asks the daemon for its tenants. Memory in use and bypasses also come from the tenants' ledgers, if
//! they are readable here.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use vgpu_core::limits::tenant::{ProcessFacts, TenantKey};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::uuid;

use super::ask::{self, DaemonAddress, TERMS_HEADINGS, no_answer};
use super::cordon::{format_members, format_subject};
use super::ledgers;
use vgpu_config::problem;
use vgpu_control::place;
use vgpu_control::{
    ActionStatus, ControlCommand, DaemonStatus, DeviceStatus, RecordStatus, TenantStatus, TermsStatus, TimeStatus,
};
use vgpu_output::say::{self, Failure};

/// Shows the daemon's tenants: their limits, their members, and their use of each device.
///
/// WANTED and GOT are parts of the last seconds: the device time that a tenant wanted, and the time that it got. A ?
/// means
/// not measured, as on devices that are not shared by leases. Memory in use comes from the tenants' ledgers. The daemon
/// reads them; if it cannot, this command tries.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu status
  vgpu status --watch
  vgpu status --socket /srv/gpu/admin.sock --json

Columns:
  MEMORY, SM    the tenant's memory limit and ceiling, the lowest of all its devices
  MEMBERS       its processes, by their numbers on the host; in brackets inside their container
  BYPASSES      number of bypasses that its programs found, and the first one; ? if no ledger can be
                read here
  REQUEST       the guaranteed share of the device; LIMIT the ceiling
  GPU-SECONDS   device time since the daemon started; WAITED the seconds that its
                processes waited at the gate, summed
  STATE         running, open (alone, with no lease needed), waiting, capped (used up for now),
                draining, overdue, idle, paused, suspended, lost; vgpu explain
                TENANT says why

Exit codes:
  0  shown
  1  no daemon answers there
  2  usage")]
pub struct Args {
    #[command(flatten)]
    daemon: DaemonAddress,

    /// Shows the status again every SECONDS, until interrupted, also across restarts of the daemon; with --json one
    /// line each time.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = parse_seconds)]
    watch: Option<Duration>,
}

/// Parses the pause between two refreshes.
pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let accepted = 0.1..=3600.0;
    let seconds: f64 = text.parse().map_err(|_| "accepted: seconds from 0.1 to 3600, like 2".to_owned())?;
    match accepted.contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("accepted: seconds from 0.1 to 3600, like 2".to_owned()),
    }
}

/// Asks the daemon and prints the status.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let screen = args.watch.is_some() && !args.daemon.json && std::io::stdout().is_terminal();
    let mut seen = false;
    loop {
        let answer =
            args.daemon.ask_daemon(&ControlCommand::Status).and_then(|answer| answer.status.ok_or_else(no_answer));
        let status = match (answer, args.watch) {
            (Ok(status), _) => status,
            // With --watch, a daemon that answered before may be restarting: ask again.
            (Err(why), Some(pause)) if seen => {
                let _code = say::show_failure(&why);
                std::thread::sleep(pause);
                continue;
            }
            (Err(why), _) => return Err(why),
        };
        seen = true;
        match (args.daemon.json, args.watch) {
            (true, None) => say::print_json(&enrich_status(&status)?)?,
            (true, Some(_)) => say::print_exact(&say::plain_json(&format!("{}\n", enrich_status(&status)?)))?,
            // Cursor home, then clear, in one write with the new content.
            (false, _) if screen => {
                say::print_exact(&format!("\x1b[H\x1b[2J{}", say::escape_text(&format_status(&status))))?
            }
            (false, Some(_)) => say::print_text(&format!("{}\n", format_status(&status)))?,
            (false, None) => say::print_text(&format_status(&status))?,
        }
        match args.watch {
            Some(pause) => std::thread::sleep(pause),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Content of a tenant's ledgers that are readable here.
struct LedgerUse {
    /// Number of bypasses found, and the name of the first one.
    bypasses: Option<(u64, String)>,
    /// Bytes in use, by the device's UUID in the form of [`uuid::uuid_key`]: a ledger's name does not say whether the
    /// device is a MIG instance.
    used: BTreeMap<String, u64>,
}

fn read_ledgers(tenant: &str) -> LedgerUse {
    let facts =
        ProcessFacts { name: Some(tenant.as_bytes()), mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
    let Ok(key) = TenantKey::from_facts(&facts) else { return LedgerUse { bypasses: None, used: BTreeMap::new() } };
    let places = ledgers::readable();
    let bypasses = places.iter().find_map(|place| ledgers::open_doors(place, &key));
    let used = places.iter().flat_map(|place| ledgers::use_of(place, &key)).map(|(device, copied)| {
        let held = copied.members.iter().fold(copied.shared, |sum, member| sum.saturating_add(member.used));
        (uuid::uuid_key(&device), held)
    });
    LedgerUse { bypasses, used: used.collect() }
}

/// Returns the status as JSON, extended with data from the ledgers.
pub(super) fn enrich_status(status: &DaemonStatus) -> Result<serde_json::Value, Failure> {
    let mut all = serde_json::to_value(status).map_err(std::io::Error::from)?;
    let Some(tenants) = all.get_mut("tenants").and_then(|tenants| tenants.as_array_mut()) else { return Ok(all) };
    for (value, tenant) in tenants.iter_mut().zip(&status.tenants) {
        let seen = read_ledgers(&tenant.name);
        value["bypasses"] = seen.bypasses.as_ref().map(|(count, _)| *count).into();
        value["first_bypass"] =
            seen.bypasses.as_ref().filter(|(count, _)| *count > 0).map(|(_, first)| first.as_str()).into();
        if let Some(devices) = value["devices"].as_array_mut() {
            for (value, here) in devices.iter_mut().zip(&tenant.devices) {
                value["memory_used"] = used_on_device(status, here, &seen).into();
            }
        }
    }
    Ok(all)
}

/// Fills in memory in use from this host's ledgers where the daemon does not know it.
pub(super) fn fill_memory(mut status: DaemonStatus) -> DaemonStatus {
    let asked = status.clone();
    for (tenant, here) in status.tenants.iter_mut().zip(&asked.tenants) {
        let missing = |device: &TermsStatus| device.memory_used.is_none() && device.time.is_some();
        if !tenant.devices.iter().any(missing) {
            continue;
        }
        let seen = read_ledgers(&here.name);
        for device in tenant.devices.iter_mut().filter(|device| missing(device)) {
            device.memory_used = used_on_device(&asked, device, &seen);
        }
    }
    status
}

/// Returns the bytes in use on the device; for `*`, the highest value of any device without a name of its own.
fn used_on_device(status: &DaemonStatus, here: &TermsStatus, seen: &LedgerUse) -> Option<u64> {
    // Prefer the daemon's number, which its members reported; else use this host's readable ledgers.
    if here.memory_used.is_some() {
        return here.memory_used;
    }
    let named: Vec<String> =
        status.devices.iter().filter_map(|device| device.uuid.as_deref()).map(uuid::uuid_key).collect();
    match uuid_of(&status.devices, &here.device) {
        Some(uuid) => seen.used.get(&uuid::uuid_key(uuid)).copied(),
        None if here.device != "*" => seen.used.get(&uuid::uuid_key(&here.device)).copied(),
        None => seen.used.iter().filter(|(uuid, _)| !named.contains(uuid)).map(|(_, used)| *used).max(),
    }
}

fn uuid_of<'d>(devices: &'d [DeviceStatus], name: &str) -> Option<&'d str> {
    devices.iter().find(|device| device.name == name)?.uuid.as_deref()
}

fn in_words(told: Option<(u64, String)>) -> String {
    match told {
        None => "?".into(),
        Some((0, _)) => "none".into(),
        Some((count, first)) => format!("{count}, first: {first}"),
    }
}

fn format_status(status: &DaemonStatus) -> String {
    // Omit the columns for groups and labels if no tenant has any.
    let groups = status.tenants.iter().any(|tenant| tenant.bearer.group.is_some());
    let labels = status.tenants.iter().any(|tenant| !tenant.bearer.labels.is_empty());
    let heads = ["TENANT"].into_iter().chain(groups.then_some("GROUP")).chain(labels.then_some("LABELS"));
    let heads = heads.chain(["MEMORY", "SM", "MEMBERS", "BYPASSES", "SOCKET"]);
    let mut rows = vec![heads.map(str::to_owned).collect()];
    let mut times = vec![TERMS_HEADINGS.iter().chain(&TIME_HEADINGS).map(|head| (*head).to_owned()).collect()];
    let mut remarks = Vec::new();
    for tenant in &status.tenants {
        let seen = read_ledgers(&tenant.name);
        remarks.extend(remarks_of(tenant));
        for here in &tenant.devices {
            let mut row = ask::terms_rows(&tenant.name, here);
            row.extend(time_cells(tenant, here, used_on_device(status, here, &seen)));
            times.push(row);
        }
        let mut row = vec![tenant.name.clone()];
        row.extend(groups.then(|| tenant.bearer.group.clone().unwrap_or_else(|| "-".into())));
        row.extend(labels.then(|| labels_of(tenant)));
        row.extend([
            ask::size(tenant.memory_limit),
            ask::format_percent(tenant.sm_limit, "unlimited"),
            format_pids(tenant),
            in_words(seen.bypasses),
            tenant.socket.display().to_string(),
        ]);
        rows.push(row);
    }
    // Only hints of a working record are shown here. A failing record is listed as a fault below.
    if let Some(RecordStatus { ok: true, words: Some(words), .. }) = &status.record {
        remarks.push(format!("the record of usage: {words}\n"));
    }
    if let Some(file) = &status.configuration {
        remarks.extend(file.notes.iter().map(|note| format!("note: {note}\n")));
        if let Some(why) = &file.refused {
            remarks.push(format!("the last reload of {} was refused:\n{why}\n", file.file.display()));
        }
    }
    for device in &status.devices {
        if let Some(since) = &device.lost_since {
            let name = &device.name;
            remarks.push(format!("device {name}: lost since {since}; end its processes and reset it\n"));
        }
    }
    for cordon in &status.cordons {
        let done = if cordon.evacuates { "evacuated" } else { "cordoned" };
        let (subject, left, name) = (format_subject(cordon), format_members(cordon), &cordon.subject);
        let reason = cordon.reason.as_ref().map_or(String::new(), |reason| format!(": {reason:?}"));
        remarks.push(format!("{subject}: {done}{reason}; {left}; `vgpu uncordon {name}` lets new ones in\n"));
    }
    for found in &status.findings {
        let whose = found.tenant.as_ref().map_or(String::new(), |tenant| format!(" of {tenant}"));
        let place = match &found.container {
            // The last part of a control group, as engines name it.
            Some(group) => {
                let place = place::parse_cgroup(&format!("0::/{group}"));
                let pod = place.pod.as_ref().map_or(String::new(), |pod| format!(" of pod {pod}"));
                format!(" in {}{pod}", place.short_text().unwrap_or_else(|| problem::escape_value(group)))
            }
            None if found.contained => " in a container".to_owned(),
            None => String::new(),
        };
        let (what, pid, name) = (found.what.kind_word(), found.process.pid, &found.name);
        remarks.push(format!("{what}: process {pid} ({name:?}){whose}{place}: {}\n", found.words));
    }
    for action in status.actions.iter().filter(|action| action.running + action.waiting > 0 || action.dropped > 0) {
        let ActionStatus { running, waiting, ended, failed, dropped, .. } = action;
        let program = action.exec.first().map_or(String::new(), |program| problem::escape_value(program));
        remarks.push(format!(
            "on_event {program}: {running} running, {waiting} waiting, {ended} ended, {failed} failed, {dropped} dropped\n"
        ));
    }
    remarks.extend(status.faults.iter().map(|fault| format!("{}: {}\n", fault.what, fault.words)));
    let DaemonStatus { version, pid, uptime_seconds, .. } = status;
    let mut text = format!("vgpud {version}, process {pid}, up {uptime_seconds} s\n{}", say::lay_out_table(&rows));
    // Without a tenant there is only the heading.
    if times.len() > 1 {
        text.push('\n');
        text.push_str(&say::lay_out_table(&times));
    }
    if !remarks.is_empty() {
        text.push('\n');
    }
    text + &remarks.concat()
}

const TIME_HEADINGS: [&str; 6] = ["USED", "WANTED", "GOT", "GPU-SECONDS", "WAITED", "STATE"];

/// Returns a tenant's use of a device, with the columns of [`TIME_HEADINGS`].
fn time_cells(tenant: &TenantStatus, here: &TermsStatus, used: Option<u64>) -> Vec<String> {
    let used = used.map_or("?".into(), |used| Bytes(used).to_string());
    let Some(TimeStatus { state, gpu_seconds, waited_seconds, wanted, got, .. }) = &here.time else {
        let state = if tenant.paused || here.paused { "paused" } else { "-" };
        return vec![used, "-".into(), "-".into(), "-".into(), "-".into(), state.into()];
    };
    let known = |text: Option<String>| text.unwrap_or_else(|| "?".into());
    let more = if here.time.as_ref().is_some_and(|time| time.unmeasured) { "+" } else { "" };
    vec![
        used,
        known(wanted.map(|wanted| format!("{wanted:.0} %"))),
        known(got.map(|got| format!("{got:.1} %"))),
        known(gpu_seconds.map(|seconds| format!("{seconds:.3}{more}"))),
        format!("{waited_seconds:.3}"),
        state.clone(),
    ]
}

/// Formats labels: `cost-centre=4711,project=atlas`.
fn labels_of(tenant: &TenantStatus) -> String {
    let all: Vec<String> = tenant.bearer.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if all.is_empty() { "-".into() } else { all.join(",") }
}

fn format_pids(tenant: &TenantStatus) -> String {
    let pid = |pid: Option<u32>, inside: u32| pid.map_or(format!("({inside})"), |pid| pid.to_string());
    let all: Vec<String> = tenant.members.iter().map(|member| pid(member.pid, member.pid_inside)).collect();
    if all.is_empty() { "-".into() } else { all.join(",") }
}

/// Returns notes about a tenant that the table cannot show.
fn remarks_of(tenant: &TenantStatus) -> Vec<String> {
    let name = &tenant.name;
    let mut remarks = Vec::new();
    if tenant.removed {
        remarks.push(format!("{name}: removed; it ends with its last member\n"));
    }
    if let Some(why) = &tenant.unusable {
        remarks.push(format!("{name}: not served: {why}\n"));
    }
    if tenant.mode != "enforce" {
        remarks.push(format!(
            "{name}: mode {}: its use is measured, nothing is refused or delayed, and it takes time from other \
             tenants\n",
            tenant.mode
        ));
    }
    if tenant.strict {
        remarks.push(format!("{name}: strict: bypasses of the library are refused\n"));
    }
    for here in tenant.devices.iter().filter(|here| here.time.as_ref().is_some_and(|time| time.unmeasured)) {
        remarks.push(format!(
            "{name}: its time on device {} is not measured, because it needs no lease there\n",
            here.device
        ));
    }
    if tenant.paused {
        remarks.push(format!("{name}: paused; it launches nothing until `vgpu resume {name}`\n"));
    }
    let suspended = tenant.members.iter().filter(|member| member.suspended_since.is_some());
    let suspended: Vec<String> = suspended.filter_map(|member| Some(member.pid?.to_string())).collect();
    if !suspended.is_empty() {
        let pids = suspended.join(" ");
        remarks.push(format!("{name}: suspended; `vgpu-checkpoint resume {pids}` brings its processes back\n"));
    }
    for here in tenant.devices.iter().filter(|here| here.paused && !tenant.paused) {
        remarks.push(format!("{name}: paused on device {}; `vgpu explain {name}` says why\n", here.device));
    }
    if let Some(gang) = &tenant.gang {
        remarks.push(format!("{name}: gang {gang}: it gets its leases together with the gang's other tenants\n"));
    }
    for here in tenant.devices.iter().filter(|here| !here.changed_live.is_empty()) {
        let (device, keys) = (&here.device, here.changed_live.join(", "));
        remarks.push(format!(
            "{name}: changed live on device {device}: {keys}; until the configuration is read again or the daemon restarts\n"
        ));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::bearer::CostBearer;

    fn tenant() -> TenantStatus {
        let time = TimeStatus {
            state: "waiting".into(),
            wanted: Some(99.6),
            got: Some(29.96),
            gpu_seconds: Some(1.5),
            ..TimeStatus::default()
        };
        let here = TermsStatus {
            device: "0".into(),
            memory_limit: Some(1 << 30),
            sm_limit: Some(30.0),
            weight: 2,
            class: "batch".into(),
            changed_live: vec!["sm_limit".into()],
            time: Some(time),
            ..TermsStatus::default()
        };
        TenantStatus {
            name: "no-such-tenant".into(),
            bearer: CostBearer {
                group: Some("research/vision".into()),
                labels: BTreeMap::from([("cost-centre".into(), "4711".into()), ("p".into(), "x".into())]),
            },
            socket: "/s".into(),
            labels_live: Vec::new(),
            memory_limit: Some(1 << 30),
            sm_limit: Some(30.0),
            refused: 0,
            removed: false,
            added: None,
            unusable: None,
            paused: true,
            suspended: false,
            gang: None,
            mode: "observe".into(),
            strict: true,
            idle: None,
            deadline: None,
            devices: vec![here],
            members: Vec::new(),
        }
    }

    fn status(tenants: Vec<TenantStatus>) -> DaemonStatus {
        let version = "1".into();
        let dir = Some("/var/lib/vgpu".into());
        let record = Some(RecordStatus { ok: true, words: Some("the last one was damaged".into()), dir });
        DaemonStatus {
            queued_additions: 0,
            version,
            pid: 1,
            uptime_seconds: 1,
            actions: Vec::new(),
            configuration: None,
            record,
            audit: None,
            devices: Vec::new(),
            tenants,
            groups: Vec::new(),
            faults: Vec::new(),
            findings: Vec::new(),
            cordons: Vec::new(),
        }
    }

    #[test]
    fn each_device_has_a_row_and_what_a_table_cannot_say_is_said_below() {
        let text = format_status(&status(vec![tenant()]));
        assert!(text.contains("TENANT          DEVICE  CLASS  WEIGHT  REQUEST  LIMIT  MEMORY  USED"), "{text}");
        assert!(text.contains("batch  2       none     30 %   1 GiB   ?     100 %   30.0 %"), "{text}");
        assert!(text.contains("no-such-tenant: changed live on device 0: sm_limit; until"), "{text}");
        assert!(text.contains("until `vgpu resume no-such-tenant`"), "{text}");
        assert!(text.contains("no-such-tenant: mode observe: its use is measured"), "{text}");
        assert!(text.contains("no-such-tenant: strict: bypasses"), "{text}");
        assert!(text.contains("TENANT          GROUP            LABELS"), "{text}");
        assert!(text.contains("no-such-tenant  research/vision  cost-centre=4711,p=x  1 GiB"), "{text}");
        assert!(text.contains("the record of usage: the last one was damaged\n"), "{text}");
    }

    #[test]
    fn what_is_not_measured_is_not_shown_as_nil() {
        let mut tenant = tenant();
        tenant.devices[0].time = Some(TimeStatus { unmeasured: true, ..TimeStatus::default() });
        let text = format_status(&status(vec![tenant]));
        let row = text.lines().find(|line| line.contains(" batch ")).unwrap();
        assert!(row.contains("  ?       ?    ?            0.000"), "{text}");
        assert!(text.contains("no-such-tenant: its time on device 0 is not measured"), "{text}");
    }

    #[test]
    fn a_pause_between_two_looks_is_a_number_of_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "x", "0", "-1", "nan", "inf", "1e9"] {
            assert!(parse_seconds(bad).unwrap_err().contains("accepted"), "{bad}");
        }
    }
}
