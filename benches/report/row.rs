//! The rows of a metric, and the controls without which a row is meaningless.

use crate::spread::FigureCell;
use serde::Serialize;

/// Relation of a row's columns to the native one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// Native is an absolute figure. All other columns are the added part, measured in blocks that alternate with
    /// native ones.
    Added,
    /// All columns are absolute figures, except native's null control.
    Whole,
}

/// Proof that a limit was in force during the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitControl {
    /// The check and its result.
    pub what: String,
    /// True if the result is as required.
    pub holds: bool,
}

impl LimitControl {
    /// A control with this result.
    pub fn new(what: impl Into<String>, holds: bool) -> LimitControl {
        LimitControl { what: what.into(), holds }
    }
}

/// One figure of a metric in all columns. A column without meaning for it is empty.
#[derive(Clone, Debug, Serialize)]
pub struct MetricRow {
    /// Id of the metric in the suite.
    pub id: &'static str,
    /// Name of the figure in this row.
    pub what: String,
    /// Relation of the columns to the native one.
    pub kind: RowKind,
    /// Figure of the bare simulated driver.
    pub native: Option<FigureCell>,
    /// Null control: the bare driver against itself, as a difference.
    pub bare_again: Option<FigureCell>,
    /// Null control: figure with the library without a limit.
    pub no_limits: Option<FigureCell>,
    /// Figure with the library and a limit from its environment.
    pub limits: Option<FigureCell>,
    /// Figure with the library and the daemon.
    pub daemon: Option<FigureCell>,
    /// Last of these columns that has a figure, minus native; for [`RowKind::Added`] that column itself.
    pub difference: Option<FigureCell>,
    /// Positive control: proof that the limit was in force.
    pub control: LimitControl,
}

impl MetricRow {
    /// A row whose columns are still empty.
    pub fn new(id: &'static str, what: impl Into<String>, kind: RowKind, control: LimitControl) -> MetricRow {
        MetricRow {
            id,
            what: what.into(),
            kind,
            native: None,
            bare_again: None,
            no_limits: None,
            limits: None,
            daemon: None,
            difference: None,
            control,
        }
    }

    /// Cells on one scale, with their column's name.
    pub fn scaled_cells(&self) -> Vec<(&'static str, FigureCell)> {
        let native = (self.kind == RowKind::Whole).then_some(self.native).flatten();
        let again = (self.kind == RowKind::Added).then_some(self.bare_again).flatten();
        let columns = [
            ("native", native),
            ("bare again", again),
            ("no limits", self.no_limits),
            ("limits", self.limits),
            ("daemon", self.daemon),
        ];
        columns.into_iter().filter_map(|(name, cell)| Some((name, cell?))).collect()
    }
}
