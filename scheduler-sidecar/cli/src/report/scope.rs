//! Options shared by all reports from the record: tenants, period, source, format, destination.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::ask::DaemonAddress;
use crate::usage::{record_directory, record_failure};
use crate::when::{self, MonthArg, PointInTime, format_second};
use vgpu_accounting::record::ask::{self, RecordLine, ServiceLine};
use vgpu_accounting::record::energy::EnergyUse;
use vgpu_accounting::record::store::RecordTrouble;
use vgpu_accounting::report::gather::{BY_FORMS, LineBy};
use vgpu_accounting::report::sheet::{ReportSheet, to_csv};
use vgpu_accounting::report::{ReportPeriod, page};
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Options that choose the tenants, the period and the source of a report.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportScope {
    /// Names of the tenants [default: all tenants].
    tenants: Vec<String>,

    /// Start of the period: a duration before now (90m, 24h, 7d), or a date or time in UTC (2026-11-01,
    /// 2026-11-01T12:00) [default: all].
    #[arg(long, value_name = "WHEN", value_parser = PointInTime::read)]
    since: Option<PointInTime>,

    /// End of the period, in the same forms [default: now].
    #[arg(long, value_name = "WHEN", value_parser = PointInTime::read)]
    until: Option<PointInTime>,

    /// A month in UTC: 2026-11, this, last.
    #[arg(long, value_name = "MONTH", value_parser = MonthArg::read, conflicts_with_all = ["since", "until"])]
    month: Option<MonthArg>,

    /// Directory of the record [default: the daemon's; without a daemon /var/lib/vgpu for root, else
    /// $XDG_STATE_HOME/vgpu].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    daemon: DaemonAddress,

    #[command(flatten)]
    form: ReportForm,
}

/// In which form, to where.
#[derive(Debug, Clone, clap::Args)]
pub struct ReportForm {
    /// Output format.
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,

    /// Output file, written as a whole or not at all [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Text for people.
    Table,
    /// JSON for programs; also by --json.
    Json,
    /// CSV for spreadsheets: a line of headings, a line for each row, no total.
    Csv,
    /// Markdown for documents.
    Markdown,
    /// One HTML file that contains its pictures and loads nothing.
    Html,
}

/// A report in all its formats.
pub struct ReportTexts {
    /// The report for people, for the formats table, Markdown and HTML.
    pub sheet: ReportSheet,
    /// The report for programs, as JSON.
    pub json: Value,
    /// The report for spreadsheets: headings, and rows.
    pub csv: (Vec<String>, Vec<Vec<String>>),
}

impl ReportForm {
    /// Writes a report.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn write(&self, is_json: bool, made: &ReportTexts) -> Result<(), Failure> {
        let text = match self.format {
            _ if is_json => pretty_json(&made.json)?,
            ReportFormat::Json => pretty_json(&made.json)?,
            ReportFormat::Table => made.sheet.to_text(),
            ReportFormat::Csv => to_csv(&made.csv.0, &made.csv.1),
            ReportFormat::Markdown => made.sheet.to_markdown(),
            ReportFormat::Html => page::to_html(&made.sheet),
        };
        match &self.out {
            None if is_json || self.format == ReportFormat::Json => say::print_exact(&say::plain_json(&text)),
            None => say::print_text(&text),
            Some(file) if is_json || self.format == ReportFormat::Json => {
                say::write_file(file, &say::plain_json(&text))
            }
            Some(file) => say::write_file(file, &say::uncoloured(&text)),
        }
    }
}

fn pretty_json(value: &Value) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|why| Failure::new(EXIT_FINDINGS, format!("cannot write: {why}")))?;
    Ok(text + "\n")
}

impl ReportScope {
    /// Passes the rows of the period to `line`, in the order of time, and returns the period.
    ///
    /// # Errors
    /// The times are invalid, or there is no readable record.
    pub fn for_each_line(&self, line: impl FnMut(&RecordLine)) -> Result<ReportPeriod, Failure> {
        self.for_each_row(|dir, span, each| ask::for_each_line(dir, span, each), |row| (row.start, &row.tenant), line)
    }

    /// Passes the rows about promises to `line`, as [`Self::for_each_line`] does.
    ///
    /// # Errors
    /// As [`Self::for_each_line`].
    pub fn for_each_service_line(&self, line: impl FnMut(&ServiceLine)) -> Result<ReportPeriod, Failure> {
        let read = |dir: &Path, span, each: &mut dyn FnMut(ServiceLine)| ask::for_each_service_line(dir, span, each);
        self.for_each_row(read, |row| (row.start, &row.tenant), line)
    }

    fn for_each_row<T>(
        &self,
        read: impl FnOnce(&Path, (i64, i64), &mut dyn FnMut(T)) -> Result<(), RecordTrouble>,
        key: impl Fn(&T) -> (i64, &String),
        mut line: impl FnMut(&T),
    ) -> Result<ReportPeriod, Failure> {
        let (span, mut period) = self.row_span(when::now())?;
        let dir = record_directory(self.state_dir.as_ref(), &self.daemon)?;
        let (mut first, mut known) = (None, std::collections::BTreeSet::new());
        let mut each = |row: T| {
            let (start, tenant) = key(&row);
            first = Some(first.map_or(start, |first: i64| first.min(start)));
            if self.tenants.is_empty() || self.tenants.contains(tenant) {
                line(&row);
                if !known.contains(tenant) {
                    known.insert(tenant.clone());
                }
            }
        };
        read(&dir, span, &mut each).map_err(|why| record_failure(&why))?;
        for name in self.tenants.iter().filter(|name| !known.contains(*name)) {
            say::print_note(&format!("the record has nothing of tenant {name:?} in this time"));
        }
        // Without a start, the period begins with the first row.
        if span.0 == i64::MIN {
            period.since = first.unwrap_or(period.until);
        }
        Ok(period)
    }

    /// Passes the energy of the period that no tenant used to `line`, for each device.
    ///
    /// # Errors
    /// As [`Self::for_each_line`].
    pub fn for_each_nobody(&self, line: impl FnMut(String, EnergyUse, bool)) -> Result<(), Failure> {
        let (span, _) = self.row_span(when::now())?;
        let dir = record_directory(self.state_dir.as_ref(), &self.daemon)?;
        ask::for_each_nobody(&dir, span, line).map_err(|why| record_failure(&why))
    }

    /// Returns the range of row starts to read, and the period of the report.
    fn row_span(&self, now: i64) -> Result<((i64, i64), ReportPeriod), Failure> {
        let (since, until) = match self.month {
            Some(month) => month.to_span(now),
            None => {
                let since = self.since.map_or(i64::MIN, |when| when.to_second(now));
                let until = self.until.map_or(i64::MAX, |when| when.to_second(now));
                // A row counts for the period in which it began, so round a relative start down to its minute.
                let is_ago = matches!(self.since, Some(PointInTime::Ago(_)));
                (if is_ago { since.div_euclid(60) * 60 } else { since }, until)
            }
        };
        if since >= until {
            return Err(Failure::new(EXIT_USAGE, "--since is not before --until"));
        }
        if since > now {
            return Err(Failure::new(
                EXIT_USAGE,
                format!("the period begins at {} UTC, which is in the future", format_second(since)),
            ));
        }
        Ok(((since, until), ReportPeriod { since, until: until.min(now) }))
    }

    /// Returns these options, about the last month if no period is given.
    #[must_use]
    pub fn or_last_month(mut self) -> Self {
        if self.since.is_none() && self.until.is_none() {
            self.month.get_or_insert(MonthArg::Before(1));
        }
        self
    }

    /// Returns true if the report covers all tenants.
    pub fn is_all(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Returns the facts that hold for the whole report.
    pub fn common_facts(&self, period: ReportPeriod) -> Vec<(String, String)> {
        let mut facts = vec![(
            "period (UTC)".to_owned(),
            format!("{} to {}", format_second(period.since), format_second(period.until)),
        )];
        if !self.tenants.is_empty() {
            facts.push(("tenants".into(), self.tenants.join(", ")));
        }
        facts
    }

    /// Writes a report together with its period.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn write(&self, period: ReportPeriod, mut made: ReportTexts) -> Result<(), Failure> {
        if let Value::Object(json) = &mut made.json {
            json.insert("period".into(), json!({ "since": period.since, "until": period.until }));
            json.insert("notes".into(), json!(made.sheet.notes));
        }
        self.form.write(self.daemon.json, &made)
    }
}

/// Parses the grouping columns, separated by commas.
pub fn parse_by(text: &str) -> Result<Vec<LineBy>, String> {
    let by: Vec<LineBy> =
        text.split(',').map(LineBy::read).collect::<Result<_, _>>().map_err(|_| format!("accepted: {BY_FORMS}"))?;
    let twice = by.iter().enumerate().any(|(at, one)| by[..at].contains(one));
    if twice { Err(format!("one of them is given twice; accepted: {BY_FORMS}")) } else { Ok(by) }
}

/// Parses `12.5` as thousandths of a whole: 125.
pub fn parse_percent(text: &str) -> Result<u32, String> {
    let refused = || "accepted: a percentage from 0 to 100 with at most one decimal, like 5 or 0.5".to_owned();
    let tenths = vgpu_accounting::report::money::read_decimal(text)
        .filter(|value| value % 100_000_000 == 0)
        .map(|value| value / 100_000_000);
    tenths.and_then(|tenths| u32::try_from(tenths).ok()).filter(|tenths| *tenths <= 1000).ok_or_else(refused)
}
