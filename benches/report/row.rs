//! What is shown of a metric: its rows, and the controls without which a row says nothing.

use crate::spread::Cell;
use serde::Serialize;

/// How the columns of a row relate to the native one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Native is a whole figure, all other columns are what is added to it, in blocks that alternate with it.
    Added,
    /// All columns but the null control of native are whole figures.
    Whole,
}

/// Whether a limit was in force when it was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Control {
    /// What was looked at, and what was seen.
    pub what: String,
    /// Whether that is how it must be.
    pub holds: bool,
}

impl Control {
    /// One that was looked at.
    pub fn new(what: impl Into<String>, holds: bool) -> Control {
        Control { what: what.into(), holds }
    }
}

/// One figure of a metric in all columns. A column that makes no sense for it is empty.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The metric.
    pub id: &'static str,
    /// Which of its figures.
    pub what: String,
    /// How to read the columns.
    pub kind: Kind,
    /// The bare simulated driver.
    pub native: Option<Cell>,
    /// Null control: bare against bare, a difference.
    pub bare_again: Option<Cell>,
    /// Null control: the library without a limit.
    pub no_limits: Option<Cell>,
    /// The library with a limit of its own.
    pub limits: Option<Cell>,
    /// The library and the daemon.
    pub daemon: Option<Cell>,
    /// The last of these columns less native.
    pub difference: Option<Cell>,
    /// Positive control.
    pub control: Control,
}

impl Row {
    /// One without figures.
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

    /// The cells that are figures on one scale, with their column's name.
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
