//! `vgpu usage`: sums the tenants' recorded usage. Reads the record's file, so the daemon need not run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::json;
use vgpu_core::units::bytes::Bytes;

use super::ask::DaemonAddress;
use super::when::{self, PointInTime, format_second};
use vgpu_accounting::record::ask::{self, GroupBy, UsageAnswer, UsageQuestion, UsageRow};
use vgpu_accounting::record::store::RecordTrouble;
use vgpu_accounting::report::sheet;
use vgpu_config::paths;
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Shows the usage of tenants: device time, memory, time at the gate, refused allocations.
///
/// The daemon records usage minute by minute for a week and hour by hour for 400 days (docs/record.md). This command
/// reads the record's files, so it needs root or the daemon's user.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu usage
  vgpu usage train chat --since 24h --by hour
  vgpu usage --since 2026-11-01 --until 2026-12-01 --by day --format csv
  vgpu usage --device --format json
  vgpu usage --state-dir /srv/gpu/state

Units:
  GPU-SECONDS  device time that was measured; + part of it was not measured; ? none of it was
  GIB-HOURS    memory held, over time: 1 GiB for an hour is 1
  PEAK         most memory at once on one device
  WAIT-SECONDS time in which processes waited at the gate, summed
  LAUNCHES     number of launches; ? not counted
  REFUSED      allocations that were refused; ? not known
  Device time is not measured with arbitrate = false in [time] of the daemon's file, on devices
  without an sm_limit. unmeasured_ns in JSON and CSV is the time without measurement.
  JSON and CSV have whole numbers: ns, byte-seconds, bytes; starts are seconds since 1970 (UTC).

Exit codes:
  0  shown
  1  there is no record there, or it cannot be read
  2  usage")]
pub struct Args {
    /// Names of the tenants [default: all tenants].
    tenants: Vec<String>,

    /// Shows one row for each device.
    #[arg(long)]
    device: bool,

    /// Start of the period: a duration before now (90m, 24h, 7d), or a date or time in UTC (2026-11-01,
    /// 2026-11-01T12:00) [default: all].
    #[arg(long, value_name = "WHEN", value_parser = PointInTime::read)]
    since: Option<PointInTime>,

    /// End of the period, in the same forms [default: now].
    #[arg(long, value_name = "WHEN", value_parser = PointInTime::read)]
    until: Option<PointInTime>,

    /// Length of time in one row.
    #[arg(long, value_enum, default_value_t = GroupBy::Total)]
    by: GroupBy,

    /// Output format.
    #[arg(long, value_enum, default_value_t = UsageFormat::Table)]
    format: UsageFormat,

    /// Directory of the record [default: the daemon's; without a daemon /var/lib/vgpu for root, else
    /// $XDG_STATE_HOME/vgpu].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum UsageFormat {
    /// Text for people.
    Table,
    /// `{"rows": [...], "total": {...}}`; also by --json.
    Json,
    /// A line of headings, a line for each row, and no total.
    Csv,
}

/// Reads the record and prints the sums.
///
/// # Errors
/// [`Failure`]: there is no readable record.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let now = when::now();
    let since = args.since.map_or(i64::MIN, |when| when.to_second(now));
    let until = args.until.map_or(i64::MAX, |when| when.to_second(now));
    if since >= until {
        return Err(Failure::new(EXIT_USAGE, "--since is not before --until"));
    }
    // A row counts for the period in which it began, so round a relative start down to its minute.
    let since = if matches!(args.since, Some(PointInTime::Ago(_))) { since.div_euclid(60) * 60 } else { since };
    let dir = record_directory(args.state_dir.as_ref(), &args.daemon)?;
    let question =
        UsageQuestion { tenants: args.tenants.clone(), devices: args.device, span: (since, until), by: args.by };
    let answer = ask::ask_record(&dir, &question).map_err(|why| record_failure(&why))?;
    match args.format {
        _ if args.daemon.json => print_json(&answer)?,
        UsageFormat::Json => print_json(&answer)?,
        UsageFormat::Csv => say::print_text(&to_csv(&answer))?,
        UsageFormat::Table => say::print_text(&to_table(&answer, args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the directory of the record.
///
/// # Errors
/// The daemon keeps no record.
pub(super) fn record_directory(state_dir: Option<&PathBuf>, daemon: &DaemonAddress) -> Result<PathBuf, Failure> {
    if let Some(dir) = state_dir {
        return Ok(dir.clone());
    }
    let usual = || paths::state_dir(&paths::runtime_dir());
    // A user who may not ask the daemon may still be able to read the file.
    let Ok(status) = daemon.ask_daemon(&ControlCommand::Status) else { return Ok(usual()) };
    match status.status.and_then(|status| status.record) {
        None => Ok(usual()),
        Some(record) => record.dir.ok_or_else(|| {
            Failure::new(
                EXIT_FINDINGS,
                "the daemon keeps no record: its state_dir is \"none\"; --state-dir names an old one",
            )
        }),
    }
}

/// Returns the failure to report if the usage record cannot be read.
pub(super) fn record_failure(why: &RecordTrouble) -> Failure {
    let hint = "; --state-dir names another place, and `vgpu status` says where the daemon keeps it";
    Failure::new(EXIT_FINDINGS, format!("no record of usage can be read: {why}{hint}"))
}

fn print_json(answer: &UsageAnswer) -> Result<(), Failure> {
    say::print_json(&json!({ "rows": answer.rows, "total": answer.total }))
}

const CSV_COLUMNS: [&str; 11] = [
    "start",
    "tenant",
    "device",
    "gpu_ns",
    "wait_ns",
    "memory_byte_seconds",
    "peak_bytes",
    "launches",
    "refused_allocations",
    "members",
    "unmeasured_ns",
];

fn to_csv(answer: &UsageAnswer) -> String {
    let known = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let line = |row: &UsageRow| {
        vec![
            row.start.map_or(String::new(), |start| start.to_string()),
            row.tenant.clone().unwrap_or_default(),
            row.device.clone().unwrap_or_default(),
            known(row.gpu_ns),
            row.wait_ns.to_string(),
            row.memory_byte_seconds.to_string(),
            row.peak_bytes.to_string(),
            known(row.launches),
            known(row.refused_allocations),
            row.members.to_string(),
            row.unmeasured_ns.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = answer.rows.iter().map(line).collect();
    sheet::to_csv(&CSV_COLUMNS.map(str::to_owned), &rows)
}

/// Formats a value in thousandths of `whole`, rounded as in reports.
fn format_thousandths(value: u64, whole: u128) -> String {
    let all = (u128::from(value) * 1000 + whole / 2) / whole;
    format!("{}.{:03}", all / 1000, all % 1000)
}

fn to_table(answer: &UsageAnswer, args: &Args) -> String {
    let (timed, devices) = (args.by != GroupBy::Total, args.device);
    let heads = ["GPU-SECONDS", "GIB-HOURS", "PEAK", "WAIT-SECONDS", "LAUNCHES", "REFUSED"];
    let cells = |name: &str, row: &UsageRow| {
        let mut cells = Vec::new();
        if timed {
            cells.push(row.start.map_or(String::new(), format_second));
        }
        cells.push(name.to_owned());
        if devices {
            cells.push(row.device.clone().unwrap_or_default());
        }
        let known = |value: Option<u64>| value.map_or("?".into(), |value| value.to_string());
        cells.extend([
            row.gpu_ns.map_or("?".into(), |ns| {
                format_thousandths(ns, 1_000_000_000) + if row.is_partial() { "+" } else { "" }
            }),
            format_thousandths(row.memory_byte_seconds, 3600 << 30),
            Bytes(row.peak_bytes).to_string(),
            format_thousandths(row.wait_ns, 1_000_000_000),
            known(row.launches),
            known(row.refused_allocations),
        ]);
        cells
    };
    let mut head: Vec<String> = Vec::new();
    head.extend(timed.then(|| "START (UTC)".to_owned()));
    head.push("TENANT".into());
    head.extend(devices.then(|| "DEVICE".to_owned()));
    head.extend(heads.map(str::to_owned));
    let mut rows = vec![head];
    rows.extend(answer.rows.iter().map(|row| cells(row.tenant.as_deref().unwrap_or_default(), row)));
    rows.push(cells("total", &answer.total));
    say::lay_out_table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_the_sum_and_csv_has_whole_numbers() {
        let row = UsageRow {
            start: Some(3600),
            tenant: Some("a".into()),
            gpu_ns: Some(1_500_000_000),
            memory_byte_seconds: 5400 << 30,
            peak_bytes: 3 << 30,
            refused_allocations: Some(2),
            members: 1,
            ..UsageRow::default()
        };
        let total = UsageRow { start: None, tenant: None, ..row.clone() };
        let answer = UsageAnswer { rows: vec![row], total };
        assert_eq!(
            to_csv(&answer),
            "start,tenant,device,gpu_ns,wait_ns,memory_byte_seconds,peak_bytes,launches,refused_allocations,members,unmeasured_ns\n\
             3600,a,,1500000000,0,5798205849600,3221225472,,2,1,0\n"
        );
        let named = |name: &str| UsageRow { tenant: Some(name.into()), ..UsageRow::default() };
        let answer = UsageAnswer { rows: vec![named("=1+1"), named("a\u{202e}b")], total: UsageRow::default() };
        let csv = to_csv(&answer);
        assert!(csv.contains("\n,'=1+1,,") && csv.contains("\n,a\\u{202e}b,,"), "{csv}");
        assert_eq!(format_thousandths(5400 << 30, 3600 << 30), "1.500");
        assert_eq!(format_thousandths(3_010_500_000, 1_000_000_000), "3.011", "rounded as in reports");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn what_was_not_measured_is_a_mark_in_the_table_and_nothing_in_csv() {
        let used = |tenant: &str, gpu_ns, unmeasured_ns| UsageRow {
            tenant: Some(tenant.into()),
            gpu_ns,
            unmeasured_ns,
            ..UsageRow::default()
        };
        let rows = vec![used("a", None, 5), used("b", Some(1_500_000_000), 7), used("c", Some(0), 0)];
        let answer = UsageAnswer { rows, total: UsageRow { tenant: None, ..used("", Some(1_500_000_000), 12) } };
        let shown = to_table(&answer, &<Line as clap::Parser>::parse_from(["x"]).args);
        let cells = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<Vec<String>> = shown.lines().skip(1).map(cells).collect();
        assert_eq!(lines, [["a", "?"], ["b", "1.500+"], ["c", "0.000"], ["total", "1.500+"]]);
        let csv = to_csv(&answer);
        assert!(csv.contains("\n,a,,,0,0,0,,,0,5\n,b,,1500000000,0,0,0,,,0,7\n,c,,0,0,"), "{csv}");
    }
}
