//! The rows of a metric, and the controls without which a row is meaningless.

use crate::spread::Cell;
use serde::Serialize;

/// Relation of a row's columns to the native one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Native is an absolute figure. All other columns are the added part, measured in blocks that alternate with
    /// native ones.
    Added,
    /// All columns are absolute figures, except native's null control.
    Whole,
}

/// Proof that a limit was in force during the measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Control {
    /// The check and its result.
    pub what: String,
    /// True if the result is as required.
    pub holds: bool,
}

impl Control {
    /// A control with this result.
    pub fn new(what: impl Into<String>, holds: bool) -> Control {
        Control { what: what.into(), holds }
    }
}

/// One figure of a metric in all columns. A column without meaning for it is empty.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Id of the metric in the suite.
    pub id: &'static str,
    /// Name of the figure in this row.
    pub what: String,
    /// Relation of the columns to the native one.
    pub kind: Kind,
    /// Figure of the bare simulated driver.
    pub native: Option<Cell>,
    /// Null control: the bare driver against itself, as a difference.
    pub bare_again: Option<Cell>,
    /// Null control: figure with the library without a limit.
    pub no_limits: Option<Cell>,
    /// Figure with the library and a limit from its environment.
    pub limits: Option<Cell>,
    /// Figure with the library and the daemon.
    pub daemon: Option<Cell>,
    /// Last of these columns that has a figure, minus native; for [`Kind::Added`] that column itself.
    pub difference: Option<Cell>,
    /// Positive control: proof that the limit was in force.
    pub control: Control,
}

impl Row {
    /// A row whose columns are still empty.
    pub fn new(id: &'static str, what: impl Into<String>, kind: Kind, control: Control) -> Row {
        Row {
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
    pub fn scaled(&self) -> Vec<(&'static str, Cell)> {
        let native = (self.kind == Kind::Whole).then_some(self.native).flatten();
        let again = (self.kind == Kind::Added).then_some(self.bare_again).flatten();
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
