//! The columns of the table: headings, widths, cells, and the order of rows by each.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::row::{TopRow, brief_name, short_bytes};

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopColumn {
    /// By name.
    Tenant,
    /// By device.
    Device,
    /// By class.
    Class,
    /// By weight.
    Weight,
    /// By guaranteed share.
    Floor,
    /// By ceiling.
    Ceiling,
    /// By the part of the device's time that was wanted.
    Wanted,
    /// By the part of the device's time that was received.
    Got,
    /// By memory in use.
    Memory,
    /// By time at the gate.
    Wait,
    /// By number of processes.
    Members,
    /// By state.
    State,
}

use TopColumn as C;

/// Rank of the history bars, on the scale of [`TopColumn::dispensable_rank`].
pub const HISTORY_RANK: u8 = 9;

impl TopColumn {
    /// All columns, from left to right.
    pub const ALL: [Self; 12] = [
        C::Tenant,
        C::Device,
        C::Class,
        C::Weight,
        C::Floor,
        C::Ceiling,
        C::Wanted,
        C::Got,
        C::Memory,
        C::Wait,
        C::Members,
        C::State,
    ];

    /// Returns the heading.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            C::Tenant => "TENANT",
            C::Device => "DEVICE",
            C::Class => "CLASS",
            C::Weight => "WEIGHT",
            C::Floor => "FLOOR",
            C::Ceiling => "CEIL",
            C::Wanted => "WANT",
            C::Got => "GOT",
            C::Memory => "MEMORY",
            C::Wait => "WAIT",
            C::Members => "PROC",
            C::State => "STATE",
        }
    }

    /// Returns the width in characters, without the gap after it; [`C::Tenant`] and [`C::Memory`] may be wider.
    #[must_use]
    pub const fn column_width(self) -> usize {
        match self {
            C::Tenant | C::State => 8,
            C::Device => 12,
            C::Memory => 11,
            C::Class | C::Weight => 7,
            C::Floor | C::Got => 6,
            _ => 5,
        }
    }

    /// Returns the rank for removal where space is short: the highest is removed first. [`HISTORY_RANK`] is on the same
    /// scale.
    #[must_use]
    pub const fn dispensable_rank(self) -> u8 {
        match self {
            C::Tenant => 0,
            C::Got => 1,
            C::State => 2,
            C::Memory => 3,
            C::Wanted => 4,
            C::Device => 5,
            C::Ceiling => 6,
            C::Wait => 7,
            C::Members => 8,
            C::Floor => 10,
            C::Class => 11,
            C::Weight => 12,
        }
    }

    /// Returns true if text is aligned right.
    #[must_use]
    pub const fn is_number(self) -> bool {
        !matches!(self, C::Tenant | C::Device | C::Class | C::Memory | C::State)
    }

    /// Returns the text of a row's cell.
    #[must_use]
    pub fn cell_text(self, row: &TopRow) -> String {
        let percent = |value: Option<f64>| value.map_or(row.missing_time().to_owned(), |value| format!("{value:.0}%"));
        // The configured value has at most one decimal, and is shown unchanged.
        let share = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value}%"));
        match self {
            C::Tenant => row.tenant.clone(),
            C::Device => brief_name(&row.device),
            C::Class => row.class.clone(),
            C::Weight => row.weight.to_string(),
            C::Floor => share(row.floor),
            C::Ceiling => share(row.ceiling),
            C::Wanted => percent(row.wanted),
            C::Got => row.got.map_or(row.missing_time().into(), |got| format!("{got:.1}%")),
            C::Memory => {
                let used = row.used.map_or("?".into(), short_bytes);
                row.limit.map_or_else(|| used.clone(), |limit| format!("{used}/{}", short_bytes(limit)))
            }
            C::Wait => percent(row.wait),
            C::Members => match row.waiting {
                0 => row.members.to_string(),
                waiting => format!("{waiting}/{}", row.members),
            },
            C::State => row.state.clone(),
        }
    }

    /// Returns the next column in a direction, wrapping around.
    #[must_use]
    pub fn neighbour(self, right: bool) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        let step = if right { 1 } else { Self::ALL.len() - 1 };
        Self::ALL.get((at + step) % Self::ALL.len()).copied().unwrap_or(self)
    }

    /// Compares rows: names from a to z, numbers from the highest.
    fn compare_rows(self, a: &TopRow, b: &TopRow) -> Ordering {
        // An unknown value sorts below 0, no ceiling above any ceiling.
        let number = |a: Option<f64>, b: Option<f64>, none: f64| b.unwrap_or(none).total_cmp(&a.unwrap_or(none));
        match self {
            C::Tenant => a.tenant.cmp(&b.tenant),
            C::Device => a.device.cmp(&b.device),
            C::Class => class_rank(&a.class).cmp(&class_rank(&b.class)),
            C::Weight => b.weight.cmp(&a.weight),
            C::Floor => number(a.floor, b.floor, -1.0),
            C::Ceiling => number(a.ceiling, b.ceiling, f64::INFINITY),
            C::Wanted => number(a.wanted, b.wanted, -1.0),
            C::Got => number(a.got, b.got, -1.0),
            C::Memory => b.used.cmp(&a.used),
            C::Wait => number(a.wait, b.wait, -1.0),
            C::Members => b.members.cmp(&a.members),
            C::State => a.state.cmp(&b.state),
        }
    }
}

/// Returns the class's rank, the highest priority first.
fn class_rank(class: &str) -> u8 {
    match class {
        "latency" => 0,
        "normal" => 1,
        "batch" => 2,
        _ => 3,
    }
}

/// An order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOrder {
    /// Column that rows are ordered by.
    pub column: TopColumn,
    /// True for the reverse order.
    pub reversed: bool,
}

impl RowOrder {
    /// Sorts rows; equal ones stay in the order of their names in both directions.
    pub fn sort_rows(self, rows: &mut [TopRow]) {
        rows.sort_by(|a, b| {
            let by = self.column.compare_rows(a, b);
            let by = if self.reversed { by.reverse() } else { by };
            by.then_with(|| a.tenant.cmp(&b.tenant)).then_with(|| a.device.cmp(&b.device))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<TopRow> {
        let row = |tenant: &str, got, ceiling, class: &str| TopRow {
            tenant: tenant.into(),
            got,
            ceiling,
            class: class.into(),
            ..TopRow::default()
        };
        vec![
            row("b", Some(10.0), Some(30.0), "batch"),
            row("a", Some(10.0), None, "normal"),
            row("c", Some(60.0), Some(80.0), "latency"),
            row("d", None, None, "batch"),
        ]
    }

    fn order(column: TopColumn, reversed: bool) -> String {
        let mut rows = rows();
        RowOrder { column, reversed }.sort_rows(&mut rows);
        rows.into_iter().map(|row| row.tenant).collect()
    }

    #[test]
    fn numbers_begin_with_the_highest_names_with_a_and_what_is_alike_is_ordered_by_name() {
        assert_eq!(order(TopColumn::Got, false), "cabd");
        assert_eq!(order(TopColumn::Got, true), "dabc");
        assert_eq!(order(TopColumn::Tenant, false), "abcd");
        assert_eq!(order(TopColumn::Tenant, true), "dcba");
        assert_eq!(order(TopColumn::Ceiling, false), "adcb", "no ceiling is the highest");
        assert_eq!(order(TopColumn::Class, false), "cabd", "as the daemon ranks them");
    }

    #[test]
    fn every_column_can_be_reached_from_every_other_both_ways() {
        for right in [true, false] {
            let mut at = TopColumn::Tenant;
            for _ in 0..TopColumn::ALL.len() {
                at = at.neighbour(right);
            }
            assert_eq!(at, TopColumn::Tenant);
            assert_ne!(at.neighbour(right), at);
        }
    }
}
