//! The report as Markdown, and its pictures.

use crate::host::HostFacts;
use crate::metrics::{MetricGroup, MetricMethod, REPORT_METRICS, ReportMetric};
use crate::output::{self, Picture};
use crate::picture;
use crate::row::{MetricRow, RowKind};
use crate::spread::{FigureCell, range_confidence};
use serde::Serialize;
use std::fmt::Write;

/// All measured figures, and all metrics without figures.
#[derive(Serialize)]
pub struct MetricReport {
    /// The machine and the time of the run.
    pub facts: HostFacts,
    /// True: the device is simulated, so the figures are the model's.
    pub simulated: bool,
    /// Number of repetitions of each measurement.
    pub runs: u32,
    /// Length of each repetition, in seconds.
    pub seconds: u32,
    /// Probability in percent that the range of the repetitions contains the median.
    pub confidence: Option<f64>,
    /// Requested metrics with their definitions.
    pub metrics: Vec<ReportMetric>,
    /// Figures of the measured metrics.
    pub rows: Vec<MetricRow>,
    /// Measurements that failed, with the reason.
    pub failures: Vec<String>,
}

/// A number with a suitable number of digits.
pub fn format_number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".into(),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn format_signed(value: f64) -> String {
    if value > 0.0 { format!("+{}", format_number(value)) } else { format_number(value) }
}

fn format_cell(cell: Option<FigureCell>, word: fn(f64) -> String) -> String {
    let Some(cell) = cell.filter(|cell| cell.value.is_finite()) else { return "-".into() };
    match cell.interval {
        Some((low, high)) => format!("{} ({} .. {})", word(cell.value), word(low), word(high)),
        None => word(cell.value),
    }
}

impl MetricReport {
    /// The measured metrics of a group.
    fn metrics_of(&self, group: MetricGroup) -> Vec<&ReportMetric> {
        self.metrics.iter().filter(|metric| metric.group == group && metric.is_measured()).collect()
    }

    fn rows_of(&self, id: &str) -> Vec<&MetricRow> {
        self.rows.iter().filter(|row| row.id == id).collect()
    }

    /// Rows whose limit was not in force, and metrics without a row: the reasons why this report is incomplete.
    pub fn report_faults(&self) -> Vec<String> {
        let broken = self.rows.iter().filter(|row| !row.control.holds);
        let broken = broken.map(|row| format!("{}, {}: not valid: {}", row.id, row.what, row.control.what));
        let missing = self.metrics.iter().filter(|metric| metric.is_measured() && self.rows_of(metric.id).is_empty());
        let missing = missing.map(|metric| format!("{}: no figures", metric.id));
        self.failures.iter().cloned().chain(broken).chain(missing).collect()
    }

    fn method_text(&self) -> String {
        let runs = match self.confidence {
            Some(percent) => format!(
                "A figure is the median of {} repetitions of {} s, in brackets their range, which holds the true median with \
                 {percent:.1} %.",
                self.runs, self.seconds
            ),
            None => format!("A figure is one repetition of {} s, without an interval.", self.seconds),
        };
        format!(
            "\n**How to read it.** {runs} Rows marked *added* are medians of many blocks in one process with a 95 % interval instead. \
             *Native* is the bare simulated driver. Null controls: *bare against bare* is the difference that the method itself \
             shows, and *no limits* is the library with no limit set. *Difference* is the last column with a figure less native: \
             taken within a block or a repetition where both are in it, else all that both intervals allow; *none* is one whose interval holds zero. Rows marked \
             *added* show differences in every column but native. A row whose positive control does not hold has no figures. \
             Each tenant is a process, or several. A share is device time by the device's own record, never NVML's utilisation.\n"
        )
    }

    fn write_group(&self, out: &mut String, group: MetricGroup) {
        let metrics = self.metrics_of(group);
        if metrics.is_empty() {
            return;
        }
        let name = group.name();
        let _ = writeln!(out, "\n## {}{}\n\n![{name}]({name}.svg)", name[..1].to_uppercase(), &name[1..]);
        for metric in metrics {
            let MetricMethod::Measured(definition) = metric.how else { continue };
            let ReportMetric { id, name, unit, better, .. } = metric;
            let _ = writeln!(out, "\n### {id} {name}\n\n{definition} {unit}; {}.\n", better.direction_word());
            let rows = self.rows_of(id);
            if rows.is_empty() {
                out.push_str("No figures: see the faults above.\n");
                continue;
            }
            out.push_str(
                "| | native | bare against bare | no limits | with limits | with the daemon | difference |\n\
                 |---|--:|--:|--:|--:|--:|--:|\n",
            );
            rows.iter().for_each(|row| write_row(out, row));
            out.push('\n');
            for row in rows {
                let word = if row.control.holds { "Control" } else { "CONTROL DOES NOT HOLD" };
                let _ = writeln!(out, "- {word}, {}: {}.", row.what, row.control.what);
            }
        }
    }

    fn write_unmeasured(&self, out: &mut String) {
        let rest: Vec<&ReportMetric> = self.metrics.iter().filter(|metric| !metric.is_measured()).collect();
        if rest.is_empty() {
            return;
        }
        out.push_str("\n## Not measured here\n\n| metric | name | why not |\n|---|---|---|\n");
        for metric in rest {
            let MetricMethod::NotMeasured(why) = metric.how else { continue };
            let _ = writeln!(out, "| {} | {} | {why} |", metric.id, metric.name);
        }
    }
}

impl output::MeasuredReport for MetricReport {
    fn to_markdown(&self) -> String {
        let mut out = String::from("# Metrics people know, measured\n\n");
        out.push_str(&self.facts.report_head(
            "**These are the model's figures:** the device is simulated; processes, library, daemon and clock are real.",
        ));
        let measured = self.metrics.iter().filter(|metric| metric.is_measured()).count();
        let faults = self.report_faults();
        let _ = writeln!(
            out,
            "**{} metrics: {measured} measured, {} not measured here, with the reason; {} faults.**\n",
            self.metrics.len(),
            self.metrics.len() - measured,
            faults.len()
        );
        for fault in &faults {
            let _ = writeln!(out, "- {fault}");
        }
        out.push_str(&self.method_text());
        for group in MetricGroup::MEASURED_GROUPS {
            self.write_group(&mut out, group);
        }
        self.write_unmeasured(&mut out);
        out
    }

    fn all_pictures(&self) -> Vec<Picture> {
        let of = |group: MetricGroup| {
            let rows: Vec<&MetricRow> =
                self.metrics_of(group).iter().flat_map(|metric| self.rows_of(metric.id)).collect();
            (!rows.is_empty()).then(|| picture::draw_strips(group.name(), &rows))
        };
        MetricGroup::MEASURED_GROUPS.into_iter().filter_map(of).collect()
    }
}

/// A difference. If its interval contains zero, the text says that there is none.
fn format_difference(of: Option<FigureCell>) -> String {
    let none = of.is_some_and(|of| of.interval.is_some() && !of.is_told_from_zero());
    format_cell(of, format_signed) + if none { ", none" } else { "" }
}

fn write_row(out: &mut String, row: &MetricRow) {
    let added = row.kind == RowKind::Added;
    let what = if added { format!("{}, added", row.what) } else { row.what.clone() };
    if !row.control.holds {
        let _ = writeln!(out, "| {what} | not valid | not valid | not valid | not valid | not valid | not valid |");
        return;
    }
    let word = if added { format_signed } else { format_number };
    let _ = writeln!(
        out,
        "| {what} | {} | {} | {} | {} | {} | {} |",
        format_cell(row.native, format_number),
        format_cell(row.bare_again, format_signed),
        format_cell(row.no_limits, word),
        format_cell(row.limits, word),
        format_cell(row.daemon, word),
        format_difference(row.difference),
    );
}

/// Report of the metrics in `ids`, with the rows that belong to them.
pub fn report(
    facts: HostFacts,
    runs: u32,
    seconds: u32,
    ids: &[&str],
    rows: Vec<MetricRow>,
    failures: Vec<String>,
) -> MetricReport {
    let metrics = REPORT_METRICS.iter().filter(|metric| ids.contains(&metric.id)).copied().collect();
    // One source may serve several metrics, so rows of unrequested ones are removed.
    let rows = rows.into_iter().filter(|row| ids.contains(&row.id)).collect();
    MetricReport { facts, simulated: true, runs, seconds, confidence: range_confidence(runs), metrics, rows, failures }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::MeasuredReport as _;
    use crate::row::LimitControl;

    fn made(ids: &[&str], holds: bool) -> MetricReport {
        let row = |id| MetricRow {
            native: Some(FigureCell::with_interval(98.0, 97.5, 98.5)),
            limits: Some(FigureCell::with_interval(50.0, 49.0, 51.0)),
            difference: Some(FigureCell::with_interval(-48.0, -49.0, -47.0)),
            ..MetricRow::new(id, "a row", RowKind::Whole, LimitControl::new("seen", holds))
        };
        report(HostFacts::ask_machine("a test"), 6, 2, ids, vec![row("IS-003"), row("OH-001")], Vec::new())
    }

    #[test]
    fn a_report_shows_figures_definitions_and_reasons_of_what_was_asked_for_only() {
        let made = made(&["IS-003", "BW-001"], true);
        let text = made.to_markdown();
        assert!(
            text.contains("### IS-003")
                && text.contains("50.0 (49.0 .. 51.0)")
                && text.contains("-48.0 (-49.0 .. -47.0)")
        );
        assert!(text.contains("| BW-001 |") && text.contains("96.9 %") && !text.contains("OH-001"), "{text}");
        assert_eq!(made.report_faults(), Vec::<String>::new());
        assert_eq!(made.all_pictures().len(), 1);
        let json = serde_json::to_value(&made).unwrap();
        assert_eq!(json["rows"][0]["limits"]["value"], 50.0);
        assert!(json["metrics"][1]["how"]["not_measured"].is_string(), "{json:#}");
    }

    #[test]
    fn figures_of_a_limit_that_was_not_in_force_are_not_shown() {
        let made = made(&["IS-003"], false);
        assert!(made.to_markdown().contains("not valid") && !made.to_markdown().contains("50.0 (49.0"));
        assert_eq!(made.report_faults().len(), 1);
    }

    #[test]
    fn a_measured_metric_without_figures_is_a_fault() {
        assert_eq!(made(&["IS-001"], true).report_faults(), ["IS-001: no figures"]);
    }

    #[test]
    fn numbers_have_the_digits_they_deserve() {
        assert_eq!(
            [1234.56, 12.345, 1.2345, 0.012_345, 0.0, f64::NAN].map(format_number),
            ["1235", "12.3", "1.23", "0.0123", "0.00", "-"]
        );
        assert_eq!([1.0, -1.0].map(format_signed), ["+1.00", "-1.00"]);
    }
}
