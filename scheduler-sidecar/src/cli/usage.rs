//! `vgpu usage`: what tenants used, by the daemon's record, which is read where it lies: the daemon need not run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde_json::json;
use vgpu_core::bytes::Bytes;

use super::ask::Where;
use super::say::{self, FINDINGS, Failure, USAGE};
use crate::control::{self, Ask};
use crate::record::ask::{self, Answer, By, Question, Used};

/// Shows what tenants used: device time, memory, time at the gate, refused allocations.
///
/// The daemon keeps it minute by minute for a week and hour by hour for 400 days (docs/record.md). It is read where it
/// lies, by whoever may read it: root, or the daemon's user.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu usage
  vgpu usage train chat --since 24h --by hour
  vgpu usage --since 2026-11-01 --until 2026-12-01 --by day --format csv
  vgpu usage --device --format json
  vgpu usage --state-dir /srv/gpu/state

Units:
  GPU-SECONDS  device time that was measured: not that of a tenant alone on a device, without a limit
  GIB-HOURS    memory held, over time: 1 GiB for an hour is 1
  PEAK         most memory at once on one device
  WAIT-SECONDS time in which processes stood at the gate, summed over them
  LAUNCHES     ? is not counted
  REFUSED      allocations that were refused; ? is not known
  JSON and CSV have whole numbers: ns, byte-seconds, bytes; starts are seconds since 1970 (UTC).

Exit codes:
  0  shown
  1  there is no record there, or it cannot be read
  2  usage")]
pub struct Args {
    /// Whose; none: all tenants'.
    tenants: Vec<String>,

    /// Device by device.
    #[arg(long)]
    device: bool,

    /// From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all].
    #[arg(long, value_name = "WHEN", value_parser = When::read)]
    since: Option<When>,

    /// Until when, likewise [default: now].
    #[arg(long, value_name = "WHEN", value_parser = When::read)]
    until: Option<When>,

    /// How rows are put together.
    #[arg(long, value_enum, default_value_t = By::Total)]
    by: By,

    /// What is printed.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// Where the record lies [default: where the daemon says, else where one keeps it that is told nothing].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    daemon: Where,
}

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// `{"rows": [...], "total": {...}}`; also by --json.
    Json,
    /// A head, a line for each row, and no total.
    Csv,
}

/// A moment, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Ago(i64),
    At(i64),
}

const WHENS: &str =
    "accepted: so long ago, like 90m, 24h or 7d; or a day or time of UTC, like 2026-11-01 or 2026-11-01T12:00";

impl When {
    fn read(text: &str) -> Result<Self, String> {
        let read = match text.strip_suffix(['s', 'm', 'h', 'd']) {
            Some(amount) => {
                let unit = match text.as_bytes().last() {
                    Some(b's') => 1,
                    Some(b'm') => 60,
                    Some(b'h') => 3600,
                    _ => 86_400,
                };
                let digits = !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit());
                let amount = amount.parse::<i64>().ok().filter(|_| digits);
                amount.and_then(|amount| amount.checked_mul(unit)).map(Self::Ago)
            }
            None => moment(text).map(Self::At),
        };
        read.ok_or_else(|| WHENS.to_owned())
    }

    fn second(self, now: i64) -> i64 {
        match self {
            Self::Ago(seconds) => now.saturating_sub(seconds),
            Self::At(second) => second,
        }
    }
}

/// Seconds since 1970 of `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM`.
fn moment(text: &str) -> Option<i64> {
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00"));
    let number = |text: &str, digits: usize, most: i64| {
        let right = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| right && *number <= most)
    };
    let mut parts = date.splitn(3, '-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month, day) = (number(year, 4, 9999)?, number(month, 2, 12)?, number(day, 2, 31)?);
    let (hour, minute) = time.split_once(':')?;
    let (hour, minute) = (number(hour, 2, 23)?, number(minute, 2, 59)?);
    let days = days(year, month, day);
    // What is no day of its month comes back as another one.
    (month > 0 && date_of(days) == (year, month, day)).then_some(days * 86_400 + hour * 3600 + minute * 60)
}

/// Days since 1970 of a day of the Gregorian calendar: years begin in March, so that leap days are at their end.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leaps + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// The day that is so many days after the first of 1970.
fn date_of(since: i64) -> (i64, i64, i64) {
    // Guessed, and then put right: a year has 365.2425 days.
    let mut year = 1970 + since.saturating_mul(10_000).div_euclid(3_652_425);
    while days(year + 1, 1, 1) <= since {
        year += 1;
    }
    while days(year, 1, 1) > since {
        year -= 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) <= since).unwrap_or(1);
    (year, month, since - days(year, month, 1) + 1)
}

/// As people read it: `2026-11-22 21:15`.
fn shown(second: i64) -> String {
    let (year, month, day) = date_of(second.div_euclid(86_400));
    let minute = second.rem_euclid(86_400) / 60;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minute / 60, minute % 60)
}

/// Reads and prints.
///
/// # Errors
/// [`Failure`]: there is no record, or it cannot be read.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let since = args.since.map_or(i64::MIN, |when| when.second(now));
    let until = args.until.map_or(i64::MAX, |when| when.second(now));
    if since >= until {
        return Err(Failure::new(USAGE, "--since is not before --until"));
    }
    // A row belongs to the time that was asked about if it began then; what ends now may have begun a minute ago.
    let since = if matches!(args.since, Some(When::Ago(_))) { since.div_euclid(60) * 60 } else { since };
    let dir = place(args)?;
    let question = Question { tenants: args.tenants.clone(), devices: args.device, span: (since, until), by: args.by };
    let answer = ask::ask(&dir, &question).map_err(|why| {
        let hint = "; --state-dir names another place, and `vgpu status` says where the daemon keeps it";
        Failure::new(FINDINGS, format!("no record of usage can be read: {why}{hint}"))
    })?;
    match args.format {
        _ if args.daemon.json => print_json(&answer)?,
        Format::Json => print_json(&answer)?,
        Format::Csv => say::text(&csv(&answer))?,
        Format::Table => say::text(&table(&answer, args))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the record lies.
fn place(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(dir) = &args.state_dir {
        return Ok(dir.clone());
    }
    let usual = || control::state_dir(&control::runtime_dir());
    // Who cannot ask may be able to read all the same.
    let Ok(status) = args.daemon.ask(&Ask::Status) else { return Ok(usual()) };
    match status.status.and_then(|status| status.record) {
        None => Ok(usual()),
        Some(record) => record.dir.ok_or_else(|| {
            Failure::new(
                FINDINGS,
                "the daemon keeps no record: its state_dir is \"none\"; --state-dir names an old one",
            )
        }),
    }
}

fn print_json(answer: &Answer) -> Result<(), Failure> {
    say::json(&json!({ "rows": answer.rows, "total": answer.total }))
}

const COLUMNS: [&str; 10] = [
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
];

fn csv(answer: &Answer) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for row in &answer.rows {
        let known = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
        // Names of tenants and devices hold nothing that would have to be quoted; another's word might.
        let plain = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default();
            if text.contains([',', '"', '\n', '\r']) {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text.to_owned()
            }
        };
        let cells = [
            row.start.map_or(String::new(), |start| start.to_string()),
            plain(&row.tenant),
            plain(&row.device),
            row.gpu_ns.to_string(),
            row.wait_ns.to_string(),
            row.memory_byte_seconds.to_string(),
            row.peak_bytes.to_string(),
            known(row.launches),
            known(row.refused_allocations),
            row.members.to_string(),
        ];
        text.push_str(&cells.join(","));
        text.push('\n');
    }
    text
}

/// Thousandths of a whole, as text.
fn thousandths(value: u64, whole: u128) -> String {
    let all = u128::from(value) * 1000 / whole;
    format!("{}.{:03}", all / 1000, all % 1000)
}

fn table(answer: &Answer, args: &Args) -> String {
    let (timed, devices) = (args.by != By::Total, args.device);
    let heads = ["GPU-SECONDS", "GIB-HOURS", "PEAK", "WAIT-SECONDS", "LAUNCHES", "REFUSED"];
    let cells = |name: &str, row: &Used| {
        let mut cells = Vec::new();
        if timed {
            cells.push(row.start.map_or(String::new(), shown));
        }
        cells.push(name.to_owned());
        if devices {
            cells.push(row.device.clone().unwrap_or_default());
        }
        let known = |value: Option<u64>| value.map_or("?".into(), |value| value.to_string());
        cells.extend([
            thousandths(row.gpu_ns, 1_000_000_000),
            thousandths(row.memory_byte_seconds, 3600 << 30),
            Bytes(row.peak_bytes).to_string(),
            thousandths(row.wait_ns, 1_000_000_000),
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
    say::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_meant_and_nothing_else_is() {
        assert_eq!(When::read("24h"), Ok(When::Ago(86_400)));
        assert_eq!(When::read("1970-01-02"), Ok(When::At(86_400)));
        assert_eq!(When::read("2026-11-22T21:15"), Ok(When::At(1_795_382_100)));
        assert_eq!(When::read("2024-02-29"), Ok(When::At(1_709_164_800)));
        for wrong in
            ["", "h", "-1h", "+1h", "2023-02-29", "2026-13-01", "2026-00-10", "2026-1-1", "2026-11-22T24:00", "x"]
        {
            assert_eq!(When::read(wrong), Err(WHENS.to_owned()), "{wrong}");
        }
        for days in [-1, 0, 58, 59, 60, 11_016, 19_782, 20_000, 47_541] {
            let (year, month, day) = date_of(days);
            assert_eq!(super::days(year, month, day), days);
        }
        assert_eq!(shown(1_795_382_100), "2026-11-22 21:15");
    }

    #[test]
    fn a_table_has_the_sum_and_csv_has_whole_numbers() {
        let row = Used {
            start: Some(3600),
            tenant: Some("a".into()),
            gpu_ns: 1_500_000_000,
            memory_byte_seconds: 5400 << 30,
            peak_bytes: 3 << 30,
            refused_allocations: Some(2),
            members: 1,
            ..Used::default()
        };
        let total = Used { start: None, tenant: None, ..row.clone() };
        let answer = Answer { rows: vec![row], total };
        assert_eq!(
            csv(&answer),
            "start,tenant,device,gpu_ns,wait_ns,memory_byte_seconds,peak_bytes,launches,refused_allocations,members\n\
             3600,a,,1500000000,0,5798205849600,3221225472,,2,1\n"
        );
        assert_eq!(thousandths(5400 << 30, 3600 << 30), "1.500");
    }
}
