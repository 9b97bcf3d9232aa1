//! Renders a measurement as a report for people and for programs.

use serde_json::{Value, json};

use super::isolation;
use super::results::{LatencySummary, ProgramChange, ProgramResults, ValidationResults};
use super::stats::ConfidenceInterval;
use vgpu_accounting::report::chart::{ChartDots, draw_dots};
use vgpu_accounting::report::sheet::{ReportSheet, SheetTable};

/// A report with fewer runs than this warns that they say little.
pub const FEW_RUNS: usize = 10;

/// Formats seconds with four digits and a unit.
#[must_use]
pub fn format_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    let digits = if value >= 1000.0 {
        0
    } else if value >= 100.0 {
        1
    } else if value >= 10.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a change: `+101.48 %`.
#[must_use]
pub fn format_percent(percent: f64) -> String {
    format!("{percent:+.2} %")
}

fn format_interval(found: Option<ConfidenceInterval>, show: impl Fn(f64) -> String) -> String {
    found.map_or("-".into(), |found| format!("{} to {}", show(found.low), show(found.high)))
}

/// Returns the whole report for people.
#[must_use]
pub fn to_sheet(results: &ValidationResults) -> ReportSheet {
    let names: Vec<&str> = results.programs.iter().map(|program| program.name.as_str()).collect();
    let rounds = results.whole_rounds();
    let changes: Vec<(&ProgramResults, ProgramChange)> =
        results.programs.iter().filter_map(|program| Some((program, program.program_change()?))).collect();
    let mut facts = results.facts.clone();
    facts.extend(
        results
            .programs
            .iter()
            .map(|program| (program.name.clone(), format!("{} ({})", program.command, program.limits))),
    );
    facts.push(("rounds".into(), format!("{rounds} of {}: each alone, then all together", results.wanted)));
    facts.push(("measured".into(), results.measure.to_words()));
    ReportSheet {
        title: format!("Alone and together: {}", names.join(", ")),
        warning: results.cut.as_ref().map(|why| format!("INCOMPLETE: {why}; {rounds} of {} rounds", results.wanted)),
        facts,
        tables: vec![
            latency_table(&changes),
            throughput_table(&changes),
            tails_table(&changes),
            combined_table(results),
            isolation::isolation_table(),
        ],
        pictures: vec![results_picture(results)],
        notes: results_notes(results),
    }
}

fn test_table(heading: &str, heads: &[&str], words: usize, rows: Vec<Vec<String>>) -> SheetTable {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    SheetTable { heading: heading.into(), heads, words, rows, total: None }
}

fn latency_table(changes: &[(&ProgramResults, ProgramChange)]) -> SheetTable {
    let row = |(program, change): &(&ProgramResults, ProgramChange)| {
        vec![
            program.name.clone(),
            format_seconds(change.alone.median),
            format_interval(change.alone.interval, format_seconds),
            format_seconds(change.together.median),
            format_interval(change.together.interval, format_seconds),
            format_percent(change.latency),
            format_interval(change.latency_interval, format_percent),
        ]
    };
    let heads = ["program", "alone", "95 %", "together", "95 %", "change", "95 %"];
    test_table("Latency (median)", &heads, 1, changes.iter().map(row).collect())
}

fn throughput_table(changes: &[(&ProgramResults, ProgramChange)]) -> SheetTable {
    let rate = |latency: &LatencySummary| format!("{:.4}", 1.0 / latency.median);
    let row = |(program, change): &(&ProgramResults, ProgramChange)| {
        vec![program.name.clone(), rate(&change.alone), rate(&change.together), format_percent(change.throughput)]
    };
    test_table(
        "Throughput (a second)",
        &["program", "alone", "together", "change"],
        1,
        changes.iter().map(row).collect(),
    )
}

fn tails_table(changes: &[(&ProgramResults, ProgramChange)]) -> SheetTable {
    let row = |(program, change): &(&ProgramResults, ProgramChange)| {
        let of = |latency: &LatencySummary| format!("{} of {}", format_seconds(latency.p99), latency.iterations);
        vec![program.name.clone(), of(&change.alone), of(&change.together), format_percent(change.p99)]
    };
    test_table(
        "P99 (number of iterations)",
        &["program", "alone", "together", "change"],
        1,
        changes.iter().map(row).collect(),
    )
}

fn combined_table(results: &ValidationResults) -> SheetTable {
    let row = |what: &str, value: String, meaning: &str| vec![what.to_owned(), value, meaning.to_owned()];
    let rows = results.combined_results().map_or_else(Vec::new, |all| {
        vec![
            row(
                "combined throughput against one after the other",
                format_percent((all.combined - 1.0) * 100.0),
                "above zero, sharing does more in the same time than taking turns",
            ),
            row(
                "fairness (Jain)",
                format!("{:.3}", all.fairness),
                "1: all are slowed down equally; 1/n: one has it \
                 all",
            ),
            row("unfairness (1 - Jain)", format!("{:.3}", 1.0 - all.fairness), "0: all are slowed down equally"),
            row("least slowed down against most", format!("{:.2} x", all.worst), "1: all alike"),
        ]
    });
    test_table("All of them", &["what", "value", "meaning"], 3, rows)
}

fn results_picture(results: &ValidationResults) -> String {
    let mut rows = Vec::new();
    for program in &results.programs {
        let Some(change) = program.program_change() else { continue };
        let (alone, together) = program.run_values();
        for (values, latency, second) in [(alone, change.alone, false), (together, change.together, true)] {
            rows.push(ChartDots {
                name: format!("{} {}", program.name, if second { "together" } else { "alone" }),
                values,
                median: latency.median,
                interval: latency.interval.map(|found| (found.low, found.high)),
                second,
                shown: format_seconds(latency.median),
            });
        }
    }
    draw_dots("Each run, its median and its interval", &rows)
}

fn results_notes(results: &ValidationResults) -> Vec<String> {
    let mut notes = results.notes.clone();
    let rounds = results.whole_rounds();
    if rounds < FEW_RUNS {
        notes.push(format!("{rounds} rounds say little: {FEW_RUNS} or more are better (--runs)."));
    }
    if rounds < 6 {
        notes.push("Fewer than 6 rounds: no interval can be given with 95 %.".into());
    }
    notes.extend(
        [
            "Medians are of runs; a run stands for the median of its iterations. Their intervals are by order statistics: exact, \
             at least 95 %, for any distribution. Those of changes are by the bootstrap (percentiles of 10,000 draws).",
            "Throughput is the reciprocal of latency. P99 is by nearest rank over all iterations: of fewer than 100 it is the highest.",
            "In shared rounds, a program that ends first is started again, uncounted, so each counted run has \
             company to its end.",
            "Combined throughput is the sum of each program's part of its own speed alone; fairness is Jain's index \
             of these parts.",
            "The table of isolation says what the product's own tests show, not what was measured here.",
        ]
        .map(str::to_owned),
    );
    notes
}

/// Returns the whole report as JSON, in seconds and percent; null if unknown.
#[must_use]
pub fn to_json(results: &ValidationResults) -> Value {
    let interval = |found: Option<ConfidenceInterval>| {
        found.map(|found| json!({ "low": found.low, "high": found.high, "coverage": found.coverage }))
    };
    let latency = |latency: &LatencySummary| {
        json!({
            "median_seconds": latency.median,
            "interval": interval(latency.interval),
            "p99_seconds": latency.p99,
            "iterations": latency.iterations,
            "throughput": 1.0 / latency.median,
        })
    };
    let program = |program: &ProgramResults| {
        let (alone, together) = program.run_values();
        json!({
            "name": program.name,
            "command": program.command,
            "limits": program.limits,
            "alone_seconds": alone,
            "together_seconds": together,
            "result": program.program_change().map(|change| json!({
                "alone": latency(&change.alone),
                "together": latency(&change.together),
                "latency_change_percent": change.latency,
                "latency_change_interval": interval(change.latency_interval),
                "throughput_change_percent": change.throughput,
                "p99_change_percent": change.p99,
            })),
        })
    };
    let test = |(file, name): &(&str, &str)| json!({ "file": file, "test": name });
    let cell = |cell: &isolation::IsolationCell| json!({ "degree": format!("{:?}", cell.degree).to_lowercase(), "words": cell.words, "tests": cell.tests.iter().map(test).collect::<Vec<_>>() });
    let axis = |axis: &isolation::IsolationAxis| json!({ "axis": axis.name, "with_vgpud": cell(&axis.daemon), "library_alone": cell(&axis.alone) });
    json!({
        "complete": results.cut.is_none(),
        "cut": results.cut,
        "began": results.began,
        "rounds": results.whole_rounds(),
        "rounds_wanted": results.wanted,
        "measured": results.measure.to_words(),
        "programs": results.programs.iter().map(program).collect::<Vec<_>>(),
        "together": results.combined_results().map(|all| json!({
            "combined_throughput_change_percent": (all.combined - 1.0) * 100.0,
            "fairness": all.fairness,
            "unfairness": 1.0 - all.fairness,
            "least_beside_most_slowed": all.worst,
        })),
        "isolation": isolation::ISOLATION_MATRIX.iter().map(axis).collect::<Vec<_>>(),
        "notes": results_notes(results),
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::test_results;
    use super::*;
    use vgpu_accounting::report::page;

    #[test]
    fn the_published_study_is_shown_to_a_hundredth_in_every_form() {
        let results = test_results(&[("phi", &[0.609], &[1.227]), ("deepseek", &[1.135], &[1.778])]);
        let sheet = to_sheet(&results);
        for text in [sheet.to_text(), sheet.to_markdown(), page::to_html(&sheet)] {
            for number in ["+101.48 %", "-50.37 %", "+56.65 %", "-36.16 %", "609.0 ms", "1.227 s", "+13.47 %", "0.985"]
            {
                assert!(text.contains(number), "{number} in {text}");
            }
            assert!(text.contains("1 rounds say little") && !text.contains("INCOMPLETE"));
        }
        let json = to_json(&results);
        let percent = json["programs"][0]["result"]["latency_change_percent"].as_f64().unwrap();
        assert!((percent - 101.48).abs() < 0.005, "{percent}");
    }

    #[test]
    fn what_was_cut_off_is_marked_in_every_form() {
        let mut results = test_results(&[("a", &[1.0; 10], &[2.0; 10]), ("b", &[1.0; 10], &[1.5; 10])]);
        results.cut = Some("interrupted".into());
        results.wanted = 20;
        let sheet = to_sheet(&results);
        for text in [sheet.to_text(), sheet.to_markdown(), page::to_html(&sheet)] {
            assert!(text.contains("INCOMPLETE: interrupted; 10 of 20 rounds"), "{text}");
        }
        assert_eq!(to_json(&results)["complete"], false);
    }

    #[test]
    fn durations_have_four_digits_and_the_unit_that_fits() {
        let all = [1.2274, 0.609, 0.000_012_346, 61.5, 1234.5].map(format_seconds);
        assert_eq!(all, ["1.227 s", "609.0 ms", "12.35 us", "61.50 s", "1234 s"].map(str::to_owned));
    }
}
