//! Draws the table of tenants: chooses the columns that fit, and draws the rows.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::fit;
use super::theme::Theme;
use crate::top::column::{Column, HISTORY};
use crate::top::row::{Row, brief};
use crate::top::state::Top;

/// Least and greatest width of the history bars.
const BARS: (usize, usize) = (10, 60);
/// Width of a tenant's memory bar with the gap before it.
const BAR: usize = 6;
/// Longest tenant name where there is space.
const NAME: usize = 24;
/// Longest tenant name where space is scarce.
const USUAL: usize = 14;

/// The chosen columns with their widths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Columns from left to right, each with its width.
    columns: Vec<(Column, usize)>,
    /// Width of the history bars; 0 for none.
    history: usize,
    /// True if the memory column has a bar.
    bar: bool,
}

/// Chooses the columns that fit. `name` is the length of the longest tenant name; `device` that of the longest device
/// name if rows are of several devices.
#[must_use]
pub fn plan(width: usize, name: usize, device: Option<usize>) -> Plan {
    let mut columns: Vec<Column> =
        Column::ALL.into_iter().filter(|column| device.is_some() || *column != Column::Device).collect();
    let own = |column: Column| match column {
        // A tenant's name of usual length has priority over dispensable columns.
        Column::Tenant => name.clamp(column.width(), USUAL),
        Column::Device => device.unwrap_or(0).clamp(column.head().len() + 1, column.width()),
        _ => column.width(),
    };
    let (mut history, mut bar) = (true, true);
    let needed = |columns: &[Column], history: bool, bar: bool| {
        let all: usize = columns.iter().map(|column| own(*column) + 1).sum();
        (all + if history { BARS.0 + 1 } else { 0 } + if bar { BAR } else { 0 }).saturating_sub(1)
    };
    while needed(&columns, history, bar) > width && columns.len() > 1 {
        let highest = columns.iter().map(|column| column.dispensable()).max().unwrap_or(0);
        if history && HISTORY > highest {
            history = false;
        } else if bar && highest < Column::Wait.dispensable() {
            bar = false;
        } else {
            columns.retain(|column| column.dispensable() != highest);
        }
    }
    bar &= columns.contains(&Column::Memory);
    let mut left = width.saturating_sub(needed(&columns, history, bar));
    let mut widths = Vec::new();
    for column in columns {
        let mut own = own(column);
        if column == Column::Tenant {
            let more = name.min(NAME).saturating_sub(own).min(left);
            own = (own + more).min(width);
            left -= more;
        }
        widths.push((column, own + if bar && column == Column::Memory { BAR } else { 0 }));
    }
    let history = if history { (BARS.0 + left).min(BARS.1) } else { 0 };
    Plan { columns: widths, history, bar }
}

/// Returns the heading and as many rows as fit, the selected one among them.
#[must_use]
pub fn lines<'t>(top: &Top, theme: &Theme, width: usize, room: usize) -> Vec<Line<'t>> {
    let shown = top.shown();
    let several = top.device.is_none() && top.devices().len() > 1;
    let device = shown.iter().map(|row| brief(&row.device).chars().count()).max().filter(|_| several);
    let name = shown.iter().map(|row| row.tenant.chars().count()).max().unwrap_or(0);
    let plan = plan(width, name, device);
    let mut lines = vec![heading(top, theme, &plan)];
    if shown.is_empty() {
        lines.push(Line::styled(nobody(top), theme.dim()));
        return lines;
    }
    let rows = room.saturating_sub(1);
    let (chosen, count) = (top.place(), shown.len());
    let first = (chosen + 1).saturating_sub(rows);
    for (at, row) in shown.into_iter().enumerate().skip(first).take(rows) {
        let line = line(top, theme, &plan, row);
        lines.push(if at == chosen { line.style(theme.chosen()) } else { line });
    }
    // If rows are missing, a note replaces the last row that is not selected.
    let last = first + rows;
    if count > last && rows > 2 && chosen + 1 < last {
        let rest = count - last + 1;
        lines.pop();
        lines.push(Line::styled(format!("and {rest} more"), theme.dim()));
    }
    lines
}

fn nobody(top: &Top) -> String {
    match (top.filter.is_empty(), &top.device) {
        (false, _) => format!("no tenant has {:?} in its name; Esc shows all", top.filter),
        (_, Some(device)) => format!("no tenant on device {device}; d shows the next"),
        _ => "the daemon has no tenants".into(),
    }
}

fn heading<'t>(top: &Top, theme: &Theme, plan: &Plan) -> Line<'t> {
    let mut text = String::new();
    for (column, width) in &plan.columns {
        let mut head = column.head().to_owned();
        if *column == top.sort.column {
            head.push(theme.order(top.sort.reversed));
        }
        text.push_str(&fit(&head, *width, column.is_number(), theme));
        text.push(' ');
    }
    if plan.history > 0 {
        text.push_str("HISTORY");
    }
    Line::styled(text.trim_end().to_owned(), theme.head())
}

fn line<'t>(top: &Top, theme: &Theme, plan: &Plan, row: &Row) -> Line<'t> {
    let mut spans = Vec::new();
    for (column, width) in &plan.columns {
        let cell = column.cell(row);
        match column {
            Column::Memory if plan.bar => {
                let style = row.fill().map_or_else(Style::new, |part| theme.fill(part));
                spans.push(Span::raw(fit(&cell, width - BAR, false, theme)));
                let bar = row.fill().map_or(String::new(), |part| format!(" {}", theme.bar(part, BAR - 1)));
                spans.push(Span::styled(fit(&bar, BAR, false, theme), style));
            }
            _ => {
                let style = match column {
                    Column::State => theme.state(&row.state),
                    Column::Memory => row.fill().map_or_else(Style::new, |part| theme.fill(part)),
                    _ => Style::new(),
                };
                spans.push(Span::styled(fit(&cell, *width, column.is_number(), theme), style));
            }
        }
        spans.push(Span::raw(" "));
    }
    if plan.history > 0 {
        let values: Vec<f64> = top.history.last(&row.key(), plan.history).collect();
        let bars = theme.spark(values.into_iter());
        spans.push(Span::styled(fit(&bars, plan.history, true, theme), theme.good()));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_into_every_width_and_those_that_count_most_are_there_longest() {
        let mut before = 0;
        for width in 8..200 {
            for (name, device) in [(0, None), (10, Some(1)), (100, Some(12))] {
                let plan = plan(width, name, device);
                let all: usize = plan.columns.iter().map(|(_, own)| own + 1).sum();
                let all = (all + if plan.history > 0 { plan.history + 1 } else { 0 }).saturating_sub(1);
                assert!(all <= width, "{all} of {width}: {plan:?}");
                assert_eq!(plan.columns.first().map(|(column, _)| *column), Some(Column::Tenant));
            }
            let count = plan(width, 8, Some(12)).columns.len();
            assert!(count >= before, "{width}");
            before = count;
        }
        let eighty = plan(80, 8, None);
        assert!(eighty.history >= 10 && eighty.bar, "{eighty:?}");
        let names: Vec<_> = eighty.columns.iter().map(|(column, _)| column.head()).collect();
        assert_eq!(names, ["TENANT", "CEIL", "WANT", "GOT", "MEMORY", "WAIT", "PROC", "STATE"]);
    }
}
