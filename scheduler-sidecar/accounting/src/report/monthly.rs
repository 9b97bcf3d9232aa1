//! The report of a month, for people who decide about devices: usage, quotas, promises and waits, hoarders, efficiency.
//!
//! Each section is another report's; this module puts them together and adds nothing but the order of the tenants.

use serde_json::{Value, json};

use super::ReportPeriod;
use super::apportion::format_decimal;
use super::efficiency::Efficiency;
use super::gather::{GatheredLines, LineBy, LineOwner};
use super::idle::IdleReport;
use super::quotas::QuotaReport;
use super::sheet::{ReportSheet, SheetTable};
use super::slo::SloReport;
use super::usage::make_usage;
use crate::record::ask::{RecordLine, ServiceLine};

/// A minute below this part of the device's time is idle, in tenths of a percent.
const IDLE_BELOW: u32 = 10;

/// Most hoarders, and most worst minutes.
const MOST_ROWS: usize = 10;

/// Builds the report from rows in the order of time.
#[derive(Debug)]
pub struct MonthlyReport {
    usage: GatheredLines,
    slo: SloReport,
    idle: IdleReport,
    efficiency: Efficiency,
    /// `None`: the report has no quotas.
    quotas: Option<QuotaReport>,
    is_ranked: bool,
}

impl MonthlyReport {
    /// Starts an empty report. `quotas`: it has a section of these. `is_ranked`: it has the tenants' ranks by
    /// efficiency.
    #[must_use]
    pub fn new(by: Vec<LineBy>, quotas: Option<QuotaReport>, is_ranked: bool, now: i64) -> Self {
        Self {
            usage: GatheredLines::new(by.clone()),
            slo: SloReport::new(by.clone(), MOST_ROWS),
            idle: IdleReport::new(IDLE_BELOW, now),
            efficiency: Efficiency::new(by, now),
            quotas,
            is_ranked,
        }
    }

    /// Adds a row of usage.
    pub fn add_usage(&mut self, line: &RecordLine) {
        self.usage.add(line);
        self.idle.add(line);
        self.efficiency.add(line);
        self.quotas.iter_mut().for_each(|quotas| quotas.add(line));
    }

    /// Adds a row of promises.
    pub fn add_service(&mut self, line: &ServiceLine) {
        self.slo.add(line);
    }

    /// Finishes the report after the last row. `is_all`: it covers all tenants, so that the devices' unused time is
    /// known. `moment` writes seconds since 1970 for people.
    #[must_use]
    pub fn finish_report(
        mut self,
        period: ReportPeriod,
        is_all: bool,
        moment: impl Fn(i64) -> String,
    ) -> MonthlyAnswer {
        if is_all {
            self.usage.add_nobodys(period);
        }
        let notes = self.usage.reader_notes();
        let usage = make_usage(&self.usage);
        let idle = self.idle.finish_report(period);
        let csv = usage.to_csv();
        let usage_sheet = usage.to_sheet(Vec::new(), notes);
        let idle_sheet = idle.to_sheet(Vec::new());
        let efficiency_sheet = self.efficiency.to_sheet(Vec::new());
        let slo_sheet = self.slo.to_sheet(Vec::new(), |second| second.to_string());
        let mut json = json!({
            "usage": usage.to_json(),
            "slo": self.slo.to_json(),
            "hoarders": idle.to_json()["lines"],
            "efficiency": self.efficiency.to_json(),
        });
        let mut sections = vec![
            titled(&usage_sheet, 0, "Usage"),
            titled(&slo_sheet, 0, "Promises: device time delivered of device time promised"),
            titled(&slo_sheet, 1, "Waits for leases"),
            hoarders(&idle_sheet),
            titled(&efficiency_sheet, 0, "Efficiency: use of the own limits"),
        ];
        if let Some(quotas) = &self.quotas {
            sections.insert(1, quotas.to_table(moment));
            json["quotas"] = quotas.to_json();
        }
        if self.is_ranked {
            let (table, ranks) = rank(&self.efficiency);
            sections.push(table);
            json["ranking"] = ranks;
        }
        let sheets = [usage_sheet, slo_sheet, idle_sheet, efficiency_sheet];
        let (pictures, notes) =
            sheets.into_iter().map(|sheet| (sheet.pictures, sheet.notes)).unzip::<_, _, Vec<_>, Vec<_>>();
        MonthlyAnswer { sections, pictures: pictures.concat(), notes: notes.concat(), json, csv }
    }
}

fn titled(sheet: &ReportSheet, at: usize, heading: &str) -> SheetTable {
    SheetTable { heading: heading.into(), ..sheet.tables[at].clone() }
}

/// The tenants that kept most memory from others without using their time.
fn hoarders(idle: &ReportSheet) -> SheetTable {
    let mut table = titled(idle, 0, "Hoarders: memory that was held while nothing was computed");
    // Sorted by idle memory; a tenant with none is no hoarder.
    table.rows.retain(|row| row.last().is_some_and(|hours| hours != "0.000"));
    table.rows.truncate(MOST_ROWS);
    table
}

/// Ranks the lines by the used part of their ceilings. A line without one, or without its use measured, has no rank.
fn rank(efficiency: &Efficiency) -> (SheetTable, Value) {
    let parts = efficiency.time_parts();
    let cells = |whose: &LineOwner| whose.owner_cells(efficiency.columns());
    let heads = ["rank".to_owned()].into_iter().chain(efficiency.columns().iter().map(LineBy::name));
    let rows = (1..).zip(&parts).map(|(rank, (whose, permille))| {
        let first = std::iter::once(format!("{rank}"));
        first.chain(cells(whose)).chain([format_decimal(*permille, 1)]).collect::<Vec<String>>()
    });
    let table = SheetTable {
        heading: "Ranking by use of the ceiling".into(),
        heads: heads.chain(["% of its ceiling".to_owned()]).collect(),
        words: efficiency.columns().len() + 1,
        rows: rows.collect(),
        total: None,
    };
    let ranks = parts
        .iter()
        .map(|(whose, permille)| json!({ "line": cells(whose), "ceiling_percent": format_decimal(*permille, 1) }));
    (table, ranks.collect())
}

/// The finished report of a month.
#[derive(Debug)]
pub struct MonthlyAnswer {
    /// Its tables, in their order.
    pub sections: Vec<SheetTable>,
    pictures: Vec<String>,
    notes: Vec<String>,
    json: Value,
    csv: (Vec<String>, Vec<Vec<String>>),
}

impl MonthlyAnswer {
    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>) -> ReportSheet {
        ReportSheet {
            title: "The month on the devices".into(),
            facts,
            tables: self.sections.clone(),
            pictures: self.pictures.clone(),
            notes: self.notes.clone(),
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON, an object for each section.
    #[must_use]
    pub fn to_json(&self) -> Value {
        self.json.clone()
    }

    /// Returns the usage section as CSV; the other sections have reports of their own.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        self.csv.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::super::slo::tests::minute;
    use super::*;

    fn report(quotas: Option<QuotaReport>, is_ranked: bool) -> MonthlyAnswer {
        let mut report = MonthlyReport::new(vec![LineBy::Tenant], quotas, is_ranked, 3600);
        // A ceiling of 30 % is 18 s of a minute. `hoarder` holds 8 GiB and computes nothing.
        report.add_usage(&test_line("busy", None, "G", 0, 9000, 60));
        report.add_usage(&test_line("busier", None, "G", 0, 18_000, 60));
        report.add_usage(&test_line("hoarder", None, "G", 0, 0, 480));
        report.add_service(&minute("busy", 0, 12));
        report.finish_report(ReportPeriod { since: 0, until: 60 }, true, |second| second.to_string())
    }

    #[test]
    fn a_month_has_usage_promises_waits_hoarders_and_efficiency() {
        let sheet = report(None, false).to_sheet(Vec::new());
        let headings: Vec<&str> = sheet.tables.iter().filter_map(|table| table.heading.split(':').next()).collect();
        assert_eq!(headings, ["Usage", "Promises", "Waits for leases", "Hoarders", "Efficiency"]);
        let first = |at: usize| sheet.tables[at].rows.iter().map(|row| &*row[0]).collect::<Vec<_>>();
        assert_eq!(first(0), ["busier", "busy", "hoarder", "(not used)"]);
        assert_eq!(sheet.tables[1].rows[0][3], "50.0", "half of its floor");
        // 8 GiB for a minute are 0.133 GiB hours; who computed is no hoarder, however much it held.
        assert_eq!((first(3), &*sheet.tables[3].rows[0][6]), (vec!["hoarder"], "0.133"));
        assert_eq!(sheet.pictures.len(), 4);
    }

    #[test]
    fn quotas_stand_next_to_usage_if_there_are_any_to_show() {
        assert!(report(None, false).to_json().get("quotas").is_none());
        let with = report(Some(QuotaReport::default()), false);
        assert_eq!(with.sections[1].heading, "Quotas: the fullest period of each");
        assert!(with.to_json()["quotas"].is_array());
    }

    #[test]
    fn a_ranking_is_there_if_it_was_asked_for() {
        assert!(report(None, false).to_json().get("ranking").is_none());
        let ranked = report(None, true);
        let rows = &ranked.sections.last().unwrap().rows;
        assert_eq!(rows[..2], [vec!["1", "busier", "100.0"], vec!["2", "busy", "50.0"]]);
        assert_eq!(ranked.to_json()["ranking"][0]["line"][0], "busier");
    }
}
