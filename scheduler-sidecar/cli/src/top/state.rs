//! The state of the view, and its only transition: a function from an input to effects. No terminal, no daemon, no
//! clock: keys, answers and times are arguments. [`act`] handles keys.

pub mod act;

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;

use super::column::Sort;
use super::history::History;
use super::line::Line;
use super::row::{self, Device, Key, Look, Row};
use vgpu_control::{Ask, Done, Explained, TenantStatus};

/// An input of the view.
#[derive(Debug)]
pub enum Input {
    /// A key was pressed.
    Key(KeyEvent),
    /// The window was resized; columns and rows.
    Size(u16, u16),
    /// The daemon answered.
    Look(Box<Look>),
    /// The daemon did not answer, and why.
    Lost(String),
    /// The daemon's answer to a change.
    Done(Result<Box<Done>, String>),
    /// The daemon's explanation of a tenant's limits and time.
    Explained(String, Result<Vec<Explained>, String>),
    /// The containers of a tenant's processes, by process id.
    Places(BTreeMap<u32, String>),
    /// The last hour from the record.
    Hour(Result<BTreeMap<Key, Vec<f64>>, String>),
    /// The terminal is gone.
    Gone,
}

/// An action that the loop performs.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the daemon for a change.
    Change(Ask),
    /// Ask the daemon for an explanation of a tenant.
    Explain(String),
    /// Find the containers of a tenant's processes.
    Places(String),
    /// Read the last hour from the record.
    Hour,
    /// Restore the terminal and suspend the program.
    Suspend,
    /// Quit.
    Quit,
}

/// The part of the view that receives keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// Shows the table of tenants.
    Table,
    /// The filter typed after `/`; Esc restores `before`.
    Filter {
        /// Filter that is being typed.
        line: Line,
        /// Filter before typing began, which Escape restores.
        before: String,
    },
    /// Input of a change, after the key `s`.
    Set {
        /// The tenant and device to change.
        of: Key,
        /// Change that is being typed.
        line: Line,
    },
    /// A confirmation: `y` means yes, every other key no.
    Sure {
        /// Question shown to the user.
        question: String,
        /// The request to send after yes.
        ask: Ask,
    },
    /// Shows the details of a tenant.
    Details {
        /// Name of the tenant.
        tenant: String,
        /// Number of lines at the top that are scrolled away.
        skipped: u16,
    },
    /// Shows the list of keys.
    Help,
}

/// A line at the bottom, shown until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Text of the message.
    pub words: String,
    /// True if the message is an error.
    pub wrong: bool,
}

/// The state of the view.
#[derive(Debug)]
pub struct Top {
    /// The daemon's last answer.
    pub look: Look,
    /// Why the daemon does not answer at present.
    pub lost: Option<String>,
    /// All rows of the last answer, sorted.
    rows: Vec<Row>,
    /// Earlier values of the rows, for the history bars.
    pub history: History,
    /// Order in which the rows are shown.
    pub sort: Sort,
    /// Show only tenants whose name contains this.
    pub filter: String,
    /// Device whose rows are shown; `None`: all devices.
    pub device: Option<String>,
    /// Tenant and device of the selected row; `None`: none.
    pub selected: Option<Key>,
    /// The part of the view that receives keys.
    pub mode: Mode,
    /// Message at the bottom of the view; `None`: none.
    pub message: Option<Message>,
    /// True if the view only shows, and keys that change a tenant are refused.
    watches: bool,
    /// Time between two requests to the daemon.
    pub interval: Duration,
    /// The explanation of the tenant whose details are shown.
    pub explained: Option<(String, Result<Vec<Explained>, String>)>,
    /// Containers of the processes of the tenant whose details are shown, by process ID.
    pub places: BTreeMap<u32, String>,
    /// The last hour from the record.
    pub hour: Option<Result<BTreeMap<Key, Vec<f64>>, String>>,
    /// Height of the window in rows.
    height: u16,
}

/// The options with which the view started.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Order in which the rows are shown.
    pub sort: Sort,
    /// Show only tenants whose name contains this.
    pub filter: String,
    /// Device whose rows are shown; `None`: all devices.
    pub device: Option<String>,
    /// True if the view only shows, and keys that change a tenant are refused.
    pub read_only: bool,
    /// Time between two requests to the daemon.
    pub interval: Duration,
}

impl Top {
    /// Creates the view from a first answer.
    #[must_use]
    pub fn new(look: Look, wishes: Wishes) -> Self {
        let mut top = Self {
            rows: row::rows(&look, None),
            lost: None,
            history: History::default(),
            sort: wishes.sort,
            filter: wishes.filter,
            device: wishes.device,
            selected: None,
            mode: Mode::Table,
            message: None,
            watches: wishes.read_only,
            interval: wishes.interval,
            explained: None,
            places: BTreeMap::new(),
            hour: None,
            height: 24,
            look,
        };
        top.history.push(&top.rows);
        top.sort.apply(&mut top.rows);
        top.choose(0);
        top
    }

    /// Returns the rows shown, in order.
    #[must_use]
    pub fn shown(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let device = self.devices().into_iter().find(|device| Some(&device.name) == self.device.as_ref());
        let status = device.map(|device| self.look.status.devices.iter().find(|known| known.name == device.name));
        let here = |row: &Row| match (&self.device, &status) {
            (None, _) => true,
            (Some(_), Some(Some(known))) => row::is(known, &row.device),
            (Some(name), _) => *name == row.device,
        };
        self.rows.iter().filter(|row| row.tenant.to_lowercase().contains(&wanted) && here(row)).collect()
    }

    /// Returns the devices.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        row::devices(&self.look.status)
    }

    /// Returns the selected row.
    #[must_use]
    pub fn chosen(&self) -> Option<&Row> {
        let chosen = self.selected.as_ref()?;
        self.shown().into_iter().find(|row| row.key() == *chosen)
    }

    /// Returns why changes are disabled; `None` if they are allowed.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        self.watches.then(|| "this view was started with --read-only".into())
    }

    /// Returns a tenant by name.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Option<&TenantStatus> {
        self.look.status.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// Returns a tenant's rows of the last answer.
    pub fn rows_of(&self, tenant: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.tenant == tenant)
    }

    /// Applies an input and returns the effects to perform.
    pub fn update(&mut self, input: Input) -> Vec<Effect> {
        match input {
            Input::Key(key) => return self.key(key),
            Input::Size(_, height) => self.height = height,
            Input::Look(look) => return self.take(*look),
            Input::Lost(why) => self.lost = Some(why),
            Input::Done(done) => self.message = Some(told(done)),
            Input::Explained(tenant, all) => self.explained = Some((tenant, all)),
            Input::Places(places) => self.places = places,
            Input::Hour(hour) => self.hour = Some(hour),
            Input::Gone => return vec![Effect::Quit],
        }
        Vec::new()
    }

    fn take(&mut self, look: Look) -> Vec<Effect> {
        self.rows = row::rows(&look, Some(&self.look));
        self.history.push(&self.rows);
        self.sort.apply(&mut self.rows);
        self.look = look;
        self.lost = None;
        self.keep_choice();
        match &self.mode {
            Mode::Details { tenant, .. } => details_of(tenant),
            _ => Vec::new(),
        }
    }

    /// Returns the index of the selected row among the rows shown.
    #[must_use]
    pub fn place(&self) -> usize {
        let chosen = self.selected.as_ref();
        self.shown().iter().position(|row| Some(&row.key()) == chosen).unwrap_or(0)
    }

    /// Selects the row at an index, or the last row.
    fn choose(&mut self, at: usize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        self.selected = shown.get(at.min(last)).map(|row| row.key());
    }

    /// Keeps the selection while its row is shown.
    fn keep_choice(&mut self) {
        if self.chosen().is_none() {
            self.choose(0);
        }
    }
}

/// Returns the queries for a tenant's details.
fn details_of(tenant: &str) -> Vec<Effect> {
    vec![Effect::Explain(tenant.to_owned()), Effect::Places(tenant.to_owned()), Effect::Hour]
}

/// Describes the daemon's answer to a change in one line.
fn told(done: Result<Box<Done>, String>) -> Message {
    let done = match done {
        Ok(done) => done,
        Err(words) => return Message { words, wrong: true },
    };
    let what = match (done.changed.as_slice(), done.paused) {
        ([], _) => "it was so already".to_owned(),
        ([key], true) if key == "paused" => "paused".to_owned(),
        ([key], false) if key == "paused" => "resumed".to_owned(),
        (keys, _) => format!("changed {}", keys.join(", ")),
    };
    let notes: String = done.notes.iter().map(|note| format!("; {note}")).collect();
    Message { words: format!("{}: {what}{notes}", done.tenant), wrong: false }
}
