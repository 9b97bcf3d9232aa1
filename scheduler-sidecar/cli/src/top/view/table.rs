//! Draws the table of tenants: chooses the columns that fit, and draws the rows.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::fit_width;
use super::theme::ColourTheme;
use crate::top::column::{HISTORY_RANK, TopColumn};
use crate::top::row::{TopRow, brief_name};
use crate::top::state::TopState;

/// Least and greatest width of the history bars.
const HISTORY_WIDTHS: (usize, usize) = (10, 60);
/// Width of a tenant's memory bar with the gap before it.
const MEMORY_BAR_WIDTH: usize = 6;
/// Longest tenant name where there is space.
const MAX_NAME_WIDTH: usize = 24;
/// Longest tenant name where space is scarce.
const USUAL_NAME_WIDTH: usize = 14;

/// The chosen columns with their widths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ColumnPlan {
    /// Columns from left to right, each with its width.
    columns: Vec<(TopColumn, usize)>,
    /// Width of the history bars; 0 for none.
    history: usize,
    /// True if the memory column has a bar.
    bar: bool,
}

/// Chooses the columns that fit. `name` is the length of the longest tenant name; `device` that of the longest device
/// name if rows are of several devices.
#[must_use]
pub fn plan_columns(width: usize, name: usize, device: Option<usize>) -> ColumnPlan {
    let mut columns: Vec<TopColumn> =
        TopColumn::ALL.into_iter().filter(|column| device.is_some() || *column != TopColumn::Device).collect();
    let own = |column: TopColumn| match column {
        // A tenant's name of usual length has priority over dispensable columns.
        TopColumn::Tenant => name.clamp(column.column_width(), USUAL_NAME_WIDTH),
        TopColumn::Device => device.unwrap_or(0).clamp(column.heading().len() + 1, column.column_width()),
        _ => column.column_width(),
    };
    let (mut history, mut bar) = (true, true);
    let needed = |columns: &[TopColumn], history: bool, bar: bool| {
        let all: usize = columns.iter().map(|column| own(*column) + 1).sum();
        (all + if history { HISTORY_WIDTHS.0 + 1 } else { 0 } + if bar { MEMORY_BAR_WIDTH } else { 0 })
            .saturating_sub(1)
    };
    while needed(&columns, history, bar) > width && columns.len() > 1 {
        let highest = columns.iter().map(|column| column.dispensable_rank()).max().unwrap_or(0);
        if history && HISTORY_RANK > highest {
            history = false;
        } else if bar && highest < TopColumn::Wait.dispensable_rank() {
            bar = false;
        } else {
            columns.retain(|column| column.dispensable_rank() != highest);
        }
    }
    bar &= columns.contains(&TopColumn::Memory);
    let mut left = width.saturating_sub(needed(&columns, history, bar));
    let mut widths = Vec::new();
    for column in columns {
        let mut own = own(column);
        if column == TopColumn::Tenant {
            let more = name.min(MAX_NAME_WIDTH).saturating_sub(own).min(left);
            own = (own + more).min(width);
            left -= more;
        }
        widths.push((column, own + if bar && column == TopColumn::Memory { MEMORY_BAR_WIDTH } else { 0 }));
    }
    let history = if history { (HISTORY_WIDTHS.0 + left).min(HISTORY_WIDTHS.1) } else { 0 };
    ColumnPlan { columns: widths, history, bar }
}

/// Returns the heading and as many rows as fit, the selected one among them.
#[must_use]
pub fn table_lines<'t>(top: &TopState, theme: &ColourTheme, width: usize, room: usize) -> Vec<Line<'t>> {
    let shown = top.shown_rows();
    let several = top.device.is_none() && top.shown_devices().len() > 1;
    let device = shown.iter().map(|row| brief_name(&row.device).chars().count()).max().filter(|_| several);
    let name = shown.iter().map(|row| row.tenant.chars().count()).max().unwrap_or(0);
    let plan = plan_columns(width, name, device);
    let mut lines = vec![heading_line(top, theme, &plan)];
    if shown.is_empty() {
        lines.push(Line::styled(empty_table_text(top), theme.dim_style()));
        return lines;
    }
    let rows = room.saturating_sub(1);
    let (chosen, count) = (top.chosen_index(), shown.len());
    let first = (chosen + 1).saturating_sub(rows);
    for (at, row) in shown.into_iter().enumerate().skip(first).take(rows) {
        let line = row_line(top, theme, &plan, row);
        lines.push(if at == chosen { line.style(theme.chosen_style()) } else { line });
    }
    // If rows are missing, a note replaces the last row that is not selected.
    let last = first + rows;
    if count > last && rows > 2 && chosen + 1 < last {
        let rest = count - last + 1;
        lines.pop();
        lines.push(Line::styled(format!("and {rest} more"), theme.dim_style()));
    }
    lines
}

fn empty_table_text(top: &TopState) -> String {
    match (top.filter.is_empty(), &top.device) {
        (false, _) => format!("no tenant has {:?} in its name; Esc shows all", top.filter),
        (_, Some(device)) => format!("no tenant on device {device}; d shows the next"),
        _ => "the daemon has no tenants".into(),
    }
}

fn heading_line<'t>(top: &TopState, theme: &ColourTheme, plan: &ColumnPlan) -> Line<'t> {
    let mut text = String::new();
    for (column, width) in &plan.columns {
        let mut head = column.heading().to_owned();
        if *column == top.sort.column {
            head.push(theme.order_mark(top.sort.reversed));
        }
        text.push_str(&fit_width(&head, *width, column.is_number(), theme));
        text.push(' ');
    }
    if plan.history > 0 {
        text.push_str("HISTORY");
    }
    Line::styled(text.trim_end().to_owned(), theme.heading_style())
}

fn row_line<'t>(top: &TopState, theme: &ColourTheme, plan: &ColumnPlan, row: &TopRow) -> Line<'t> {
    let mut spans = Vec::new();
    for (column, width) in &plan.columns {
        let cell = column.cell_text(row);
        match column {
            TopColumn::Memory if plan.bar => {
                let style = row.memory_fill().map_or_else(Style::new, |part| theme.fill_style(part));
                spans.push(Span::raw(fit_width(&cell, width - MEMORY_BAR_WIDTH, false, theme)));
                let bar = row
                    .memory_fill()
                    .map_or(String::new(), |part| format!(" {}", theme.bar_text(part, MEMORY_BAR_WIDTH - 1)));
                spans.push(Span::styled(fit_width(&bar, MEMORY_BAR_WIDTH, false, theme), style));
            }
            _ => {
                let style = match column {
                    TopColumn::State => theme.state_style(&row.state),
                    TopColumn::Memory => row.memory_fill().map_or_else(Style::new, |part| theme.fill_style(part)),
                    _ => Style::new(),
                };
                spans.push(Span::styled(fit_width(&cell, *width, column.is_number(), theme), style));
            }
        }
        spans.push(Span::raw(" "));
    }
    if plan.history > 0 {
        let values: Vec<f64> = top.history.newest_values(&row.row_key(), plan.history).collect();
        let bars = theme.spark_text(values.into_iter());
        spans.push(Span::styled(fit_width(&bars, plan.history, true, theme), theme.good_style()));
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
                let plan = plan_columns(width, name, device);
                let all: usize = plan.columns.iter().map(|(_, own)| own + 1).sum();
                let all = (all + if plan.history > 0 { plan.history + 1 } else { 0 }).saturating_sub(1);
                assert!(all <= width, "{all} of {width}: {plan:?}");
                assert_eq!(plan.columns.first().map(|(column, _)| *column), Some(TopColumn::Tenant));
            }
            let count = plan_columns(width, 8, Some(12)).columns.len();
            assert!(count >= before, "{width}");
            before = count;
        }
        let eighty = plan_columns(80, 8, None);
        assert!(eighty.history >= 10 && eighty.bar, "{eighty:?}");
        let names: Vec<_> = eighty.columns.iter().map(|(column, _)| column.heading()).collect();
        assert_eq!(names, ["TENANT", "CEIL", "WANT", "GOT", "MEMORY", "WAIT", "PROC", "STATE"]);
    }
}
