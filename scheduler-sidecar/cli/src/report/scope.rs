//! Options shared by all reports from the record: tenants, period, source, format, destination.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::ask::Where;
use crate::usage::{place, unread};
use crate::when::{self, Month, When, shown};
use vgpu_accounting::record::ask::{self, Line};
use vgpu_accounting::report::gather::{BY_FORMS, By};
use vgpu_accounting::report::sheet::{Sheet, csv};
use vgpu_accounting::report::{Period, page};
use vgpu_output::say::{self, FINDINGS, Failure, USAGE};

/// Whose, of which time, from where.
#[derive(Debug, clap::Args)]
pub struct Scope {
    /// Whose; none: all tenants'.
    tenants: Vec<String>,

    /// From when on: so long ago (90m, 24h, 7d), or a date or time of UTC (2026-11-01, 2026-11-01T12:00) [default: all].
    #[arg(long, value_name = "WHEN", value_parser = When::read)]
    since: Option<When>,

    /// Until when, likewise [default: now].
    #[arg(long, value_name = "WHEN", value_parser = When::read)]
    until: Option<When>,

    /// A month of UTC: 2026-11, this, last.
    #[arg(long, value_name = "MONTH", value_parser = Month::read, conflicts_with_all = ["since", "until"])]
    month: Option<Month>,

    /// Where the record lies [default: where the daemon says; without one /var/lib/vgpu for root, else $XDG_STATE_HOME/vgpu].
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    daemon: Where,

    #[command(flatten)]
    form: Form,
}

/// In which form, to where.
#[derive(Debug, clap::Args)]
pub struct Form {
    /// How it is written.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,

    /// The file that it is written to, as a whole or not at all [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs; also by --json.
    Json,
    /// For spreadsheets: a head, a line for each row, no total.
    Csv,
    /// For documents.
    Markdown,
    /// One file with pictures, and nothing from elsewhere.
    Html,
}

/// A report in all its formats.
pub struct Made {
    /// The report for people, for the formats table, Markdown and HTML.
    pub sheet: Sheet,
    /// The report for programs, as JSON.
    pub json: Value,
    /// The report for spreadsheets: headings, and rows.
    pub csv: (Vec<String>, Vec<Vec<String>>),
}

impl Form {
    /// Writes a report.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn write(&self, is_json: bool, made: &Made) -> Result<(), Failure> {
        let text = match self.format {
            _ if is_json => pretty(&made.json)?,
            Format::Json => pretty(&made.json)?,
            Format::Table => made.sheet.text(),
            Format::Csv => csv(&made.csv.0, &made.csv.1),
            Format::Markdown => made.sheet.markdown(),
            Format::Html => page::html(&made.sheet),
        };
        match &self.out {
            None if is_json || self.format == Format::Json => say::exact(&say::plain_json(&text)),
            None => say::text(&text),
            Some(file) if is_json || self.format == Format::Json => say::file(file, &say::plain_json(&text)),
            Some(file) => say::file(file, &say::uncoloured(&text)),
        }
    }
}

fn pretty(value: &Value) -> Result<String, Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|why| Failure::new(FINDINGS, format!("cannot write: {why}")))?;
    Ok(text + "\n")
}

impl Scope {
    /// Passes the rows of the period to `line`, in the order of time, and returns the period.
    ///
    /// # Errors
    /// The times are invalid, or there is no readable record.
    pub fn lines(&self, mut line: impl FnMut(&Line)) -> Result<Period, Failure> {
        let (span, mut period) = self.span(when::now())?;
        let dir = place(self.state_dir.as_ref(), &self.daemon)?;
        let (mut first, mut known) = (None, std::collections::BTreeSet::new());
        let each = |each: Line| {
            first = Some(first.map_or(each.start, |first: i64| first.min(each.start)));
            if self.tenants.is_empty() || self.tenants.contains(&each.tenant) {
                line(&each);
                known.insert(each.tenant);
            }
        };
        ask::each(&dir, span, each).map_err(|why| unread(&why))?;
        for name in self.tenants.iter().filter(|name| !known.contains(*name)) {
            say::note(&format!("the record has nothing of tenant {name:?} in this time"));
        }
        // Without a start, the period begins with the first row.
        if span.0 == i64::MIN {
            period.since = first.unwrap_or(period.until);
        }
        Ok(period)
    }

    /// Returns the range of row starts to read, and the period of the report.
    fn span(&self, now: i64) -> Result<((i64, i64), Period), Failure> {
        let (since, until) = match self.month {
            Some(month) => month.seconds(now),
            None => {
                let since = self.since.map_or(i64::MIN, |when| when.second(now));
                let until = self.until.map_or(i64::MAX, |when| when.second(now));
                // A row counts for the period in which it began, so round a relative start down to its minute.
                let is_ago = matches!(self.since, Some(When::Ago(_)));
                (if is_ago { since.div_euclid(60) * 60 } else { since }, until)
            }
        };
        if since >= until {
            return Err(Failure::new(USAGE, "--since is not before --until"));
        }
        if since > now {
            return Err(Failure::new(
                USAGE,
                format!("the time that is asked about begins at {} UTC, which is to come", shown(since)),
            ));
        }
        Ok(((since, until), Period { since, until: until.min(now) }))
    }

    /// Returns true if the report covers all tenants.
    pub fn is_all(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Returns the facts that hold for the whole report.
    pub fn facts(&self, period: Period) -> Vec<(String, String)> {
        let mut facts =
            vec![("period (UTC)".to_owned(), format!("{} to {}", shown(period.since), shown(period.until)))];
        if !self.tenants.is_empty() {
            facts.push(("tenants".into(), self.tenants.join(", ")));
        }
        facts
    }

    /// Writes a report together with its period.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn write(&self, period: Period, mut made: Made) -> Result<(), Failure> {
        if let Value::Object(json) = &mut made.json {
            json.insert("period".into(), json!({ "since": period.since, "until": period.until }));
            json.insert("notes".into(), json!(made.sheet.notes));
        }
        self.form.write(self.daemon.json, &made)
    }
}

/// Parses the grouping columns, separated by commas.
pub fn by(text: &str) -> Result<Vec<By>, String> {
    let by: Vec<By> =
        text.split(',').map(By::read).collect::<Result<_, _>>().map_err(|_| format!("accepted: {BY_FORMS}"))?;
    let twice = by.iter().enumerate().any(|(at, one)| by[..at].contains(one));
    if twice { Err(format!("the same twice; accepted: {BY_FORMS}")) } else { Ok(by) }
}

/// Parses `12.5` as thousandths of a whole: 125.
pub fn percent(text: &str) -> Result<u32, String> {
    let refused = || "accepted: a percentage from 0 to 100 with at most one decimal, like 5 or 0.5".to_owned();
    let tenths = vgpu_accounting::report::money::read_decimal(text)
        .filter(|value| value % 100_000_000 == 0)
        .map(|value| value / 100_000_000);
    tenths.and_then(|tenths| u32::try_from(tenths).ok()).filter(|tenths| *tenths <= 1000).ok_or_else(refused)
}
