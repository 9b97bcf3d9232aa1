//! Pictures of a report: each row is a strip with its own scale, each column a dot with its interval.

use crate::metrics::find;
use crate::output::{Picture, csv};
use crate::plot::{draw_line, draw_text, make_drawing};
use crate::render::format_number;
use crate::row::{MetricRow, RowKind};
use crate::spread::FigureCell;
use std::fmt::Write;

/// Columns and their colours, distinguishable in grey too.
const COLUMN_COLOURS: [(&str, &str); 5] = [
    ("native", "#222222"),
    ("bare again", "#9a9a9a"),
    ("no limits", "#2e8b57"),
    ("limits", "#1f5fa8"),
    ("daemon", "#d2691e"),
];

const PICTURE_WIDTH: f64 = 900.0;
const STRIP_HEIGHT: f64 = 34.0;
/// Left and right end of a strip.
const STRIP_SPAN: (f64, f64) = (420.0, 800.0);

/// The strips of these rows, one below the other.
pub fn draw_strips(name: &'static str, rows: &[&MetricRow]) -> Picture {
    let heads = ["metric", "row", "unit", "control_holds", "column", "value", "low", "high"];
    Picture { name, csv: csv(&heads, rows.iter().flat_map(|row| numbers(row))), svg: draw(name, rows) }
}

/// CSV lines: one for each column of a row that has a figure.
fn numbers(row: &MetricRow) -> Vec<Vec<String>> {
    let unit = find(row.id).map_or("", |metric| metric.unit);
    let what = if row.kind == RowKind::Added { format!("{}, added", row.what) } else { row.what.clone() };
    let finite = |value: f64| if value.is_finite() { format_number(value) } else { String::new() };
    let line = |(column, cell): (&str, FigureCell)| {
        let (low, high) = cell.interval.unwrap_or((f64::NAN, f64::NAN));
        let holds = if row.control.holds { "yes" } else { "no" };
        let names = [row.id, &what, unit, holds, column].map(str::to_owned);
        names.into_iter().chain([cell.value, low, high].map(finite)).collect()
    };
    row.scaled_cells().into_iter().filter(|(_, cell)| cell.value.is_finite()).map(line).collect()
}

fn draw(title: &str, rows: &[&MetricRow]) -> String {
    make_drawing(PICTURE_WIDTH, 60.0 + STRIP_HEIGHT * rows.len() as f64, title, |out| {
        draw_text(out, 10.0, 20.0, "start", " font-weight=\"bold\"", title);
        for (at, (name, colour)) in COLUMN_COLOURS.iter().enumerate() {
            let x = STRIP_SPAN.0 + 85.0 * at as f64;
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"16\" r=\"4\" fill=\"{colour}\"/>");
            draw_text(out, x + 8.0, 20.0, "start", "", name);
        }
        for (at, row) in rows.iter().enumerate() {
            draw_strip(out, row, 52.0 + STRIP_HEIGHT * at as f64);
        }
    })
}

fn draw_strip(out: &mut String, row: &MetricRow, y: f64) {
    let unit = find(row.id).map_or("", |metric| metric.unit);
    let added = if row.kind == RowKind::Added { "added, " } else { "" };
    draw_text(out, 10.0, y + 4.0, "start", "", &format!("{}  {} ({added}{unit})", row.id, row.what));
    let cells = row.scaled_cells();
    let ends = cells.iter().flat_map(|(_, cell)| {
        let (low, high) = cell.interval.unwrap_or((cell.value, cell.value));
        [low, high, cell.value]
    });
    let (low, high) =
        ends.filter(|end| end.is_finite()).fold((0.0f64, 0.0f64), |(low, high), end| (low.min(end), high.max(end)));
    let span = if high > low { high - low } else { 1.0 };
    let x = |value: f64| STRIP_SPAN.0 + (STRIP_SPAN.1 - STRIP_SPAN.0) * (value - low) / span;
    draw_line(out, (STRIP_SPAN.0, y), (STRIP_SPAN.1, y), "stroke=\"#e4e4e4\"");
    draw_line(out, (x(0.0), y - 10.0), (x(0.0), y + 10.0), "stroke=\"#888\"");
    draw_text(out, STRIP_SPAN.1 + 8.0, y + 4.0, "start", " fill=\"#666\"", &format_number(high));
    if low < 0.0 {
        draw_text(out, STRIP_SPAN.0 - 6.0, y + 4.0, "end", " fill=\"#666\"", &format_number(low));
    }
    if !row.control.holds {
        draw_text(
            out,
            STRIP_SPAN.0 + 8.0,
            y + 4.0,
            "start",
            " fill=\"#b22222\"",
            "not valid: the control does not hold",
        );
        return;
    }
    for (name, cell) in cells.iter().filter(|(_, cell)| cell.value.is_finite()) {
        // Each column is drawn a little lower than the one before, so that equal figures are all visible.
        let at = COLUMN_COLOURS.iter().position(|(column, _)| column == name).unwrap_or(0);
        let (colour, y) = (COLUMN_COLOURS[at].1, y + 4.0 * (at as f64 - 2.0));
        if let Some((low, high)) = cell.interval.filter(|(low, high)| low.is_finite() && high.is_finite()) {
            draw_line(
                out,
                (x(low), y),
                (x(high), y),
                &format!("stroke=\"{colour}\" stroke-width=\"2\" opacity=\"0.6\""),
            );
        }
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{} {name} {}</title></circle>",
            x(cell.value),
            row.id,
            format_number(cell.value)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::LimitControl;

    fn row(holds: bool) -> MetricRow {
        MetricRow {
            native: Some(FigureCell::with_interval(98.0, 97.0, 99.0)),
            limits: Some(FigureCell::with_interval(50.0, 49.0, 51.0)),
            daemon: Some(FigureCell::without_interval(f64::NAN)),
            ..MetricRow::new("IS-003", "a <ceiling>", RowKind::Whole, LimitControl::new("", holds))
        }
    }

    #[test]
    fn a_strip_has_a_dot_for_each_figure_and_nothing_that_is_not_a_number() {
        let (good, none) = (row(true), MetricRow::new("IS-003", "", RowKind::Whole, LimitControl::new("", true)));
        let Picture { svg, csv, .. } = draw_strips("a & b", &[&good, &none]);
        let unit = find("IS-003").map_or("", |metric| metric.unit);
        let lines: Vec<&str> = csv.lines().skip(1).collect();
        assert_eq!(lines.len(), 2, "{csv}");
        assert_eq!(lines[1], format!("IS-003,a <ceiling>,{unit},yes,limits,50.0,49.0,51.0"));
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<ceiling>"), "{svg}");
        assert_eq!(svg.matches("IS-003 native").count() + svg.matches("IS-003 limits").count(), 2, "{svg}");
    }

    #[test]
    fn a_row_whose_control_does_not_hold_has_no_dot() {
        let svg = draw_strips("", &[&row(false)]).svg;
        assert!(svg.contains("not valid") && !svg.contains("IS-003 native"), "{svg}");
    }
}
