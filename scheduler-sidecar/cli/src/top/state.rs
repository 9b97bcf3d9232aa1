//! The state of the view, and its only transition: a function from an input to effects. No terminal, no daemon, no
//! clock: keys, answers and times are arguments. [`act`] handles keys.

pub mod act;

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;

use super::column::RowOrder;
use super::history::RowHistory;
use super::line::InputLine;
use super::row::{self, RowKey, StatusLook, TopDevice, TopRow};
use vgpu_control::{ChangeResult, ControlCommand, DeviceExplanation, TenantStatus};

/// An input of the view.
#[derive(Debug)]
pub enum TopInput {
    /// A key was pressed.
    Key(KeyEvent),
    /// The window was resized; columns and rows.
    Size(u16, u16),
    /// The daemon answered.
    Look(Box<StatusLook>),
    /// The daemon did not answer, and why.
    Lost(String),
    /// The daemon's answer to a change.
    Done(Result<Box<ChangeResult>, String>),
    /// The daemon's explanation of a tenant's limits and time.
    Explained(String, Result<Vec<DeviceExplanation>, String>),
    /// The containers of a tenant's processes, by process id.
    Places(BTreeMap<u32, String>),
    /// The last hour from the record.
    Hour(Result<BTreeMap<RowKey, Vec<f64>>, String>),
    /// The terminal is gone.
    Gone,
}

/// An action that the loop performs.
#[derive(Debug, PartialEq, Eq)]
pub enum TopEffect {
    /// Ask the daemon for a change.
    Change(ControlCommand),
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
pub enum KeyMode {
    /// Shows the table of tenants.
    Table,
    /// The filter typed after `/`; Esc restores `before`.
    Filter {
        /// Filter that is being typed.
        line: InputLine,
        /// Filter before typing began, which Escape restores.
        before: String,
    },
    /// Input of a change, after the key `s`.
    Set {
        /// The tenant and device to change.
        of: RowKey,
        /// Change that is being typed.
        line: InputLine,
    },
    /// A confirmation: `y` means yes, every other key no.
    Sure {
        /// Question shown to the user.
        question: String,
        /// The request to send after yes.
        ask: ControlCommand,
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
pub struct FootMessage {
    /// Text of the message.
    pub words: String,
    /// True if the message is an error.
    pub wrong: bool,
}

/// The state of the view.
#[derive(Debug)]
pub struct TopState {
    /// The daemon's last answer.
    pub look: StatusLook,
    /// Why the daemon does not answer at present.
    pub lost: Option<String>,
    /// All rows of the last answer, sorted.
    rows: Vec<TopRow>,
    /// Earlier values of the rows, for the history bars.
    pub history: RowHistory,
    /// Order in which the rows are shown.
    pub sort: RowOrder,
    /// Show only tenants whose name contains this.
    pub filter: String,
    /// Device whose rows are shown; `None`: all devices.
    pub device: Option<String>,
    /// Tenant and device of the selected row; `None`: none.
    pub selected: Option<RowKey>,
    /// The part of the view that receives keys.
    pub mode: KeyMode,
    /// Message at the bottom of the view; `None`: none.
    pub message: Option<FootMessage>,
    /// True if the view only shows, and keys that change a tenant are refused.
    watches: bool,
    /// Time between two requests to the daemon.
    pub interval: Duration,
    /// The explanation of the tenant whose details are shown.
    pub explained: Option<(String, Result<Vec<DeviceExplanation>, String>)>,
    /// Containers of the processes of the tenant whose details are shown, by process ID.
    pub places: BTreeMap<u32, String>,
    /// The last hour from the record.
    pub hour: Option<Result<BTreeMap<RowKey, Vec<f64>>, String>>,
    /// Height of the window in rows.
    height: u16,
}

/// The options with which the view started.
#[derive(Debug, Clone)]
pub struct TopOptions {
    /// Order in which the rows are shown.
    pub sort: RowOrder,
    /// Show only tenants whose name contains this.
    pub filter: String,
    /// Device whose rows are shown; `None`: all devices.
    pub device: Option<String>,
    /// True if the view only shows, and keys that change a tenant are refused.
    pub read_only: bool,
    /// Time between two requests to the daemon.
    pub interval: Duration,
}

impl TopState {
    /// Creates the view from a first answer.
    #[must_use]
    pub fn new(look: StatusLook, wishes: TopOptions) -> Self {
        let mut top = Self {
            rows: row::rows_of_look(&look, None),
            lost: None,
            history: RowHistory::default(),
            sort: wishes.sort,
            filter: wishes.filter,
            device: wishes.device,
            selected: None,
            mode: KeyMode::Table,
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
        top.sort.sort_rows(&mut top.rows);
        top.choose_row(0);
        top
    }

    /// Returns the rows shown, in order.
    #[must_use]
    pub fn shown_rows(&self) -> Vec<&TopRow> {
        let wanted = self.filter.to_lowercase();
        let device = self.shown_devices().into_iter().find(|device| Some(&device.name) == self.device.as_ref());
        let status = device.map(|device| self.look.status.devices.iter().find(|known| known.name == device.name));
        let here = |row: &TopRow| match (&self.device, &status) {
            (None, _) => true,
            (Some(_), Some(Some(known))) => row::is_called(known, &row.device),
            (Some(name), _) => *name == row.device,
        };
        self.rows.iter().filter(|row| row.tenant.to_lowercase().contains(&wanted) && here(row)).collect()
    }

    /// Returns the devices.
    #[must_use]
    pub fn shown_devices(&self) -> Vec<TopDevice> {
        row::devices_of_status(&self.look.status)
    }

    /// Returns the selected row.
    #[must_use]
    pub fn chosen_row(&self) -> Option<&TopRow> {
        let chosen = self.selected.as_ref()?;
        self.shown_rows().into_iter().find(|row| row.row_key() == *chosen)
    }

    /// Returns why changes are disabled; `None` if they are allowed.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        self.watches.then(|| "this view was started with --read-only".into())
    }

    /// Returns a tenant by name.
    #[must_use]
    pub fn tenant_status(&self, name: &str) -> Option<&TenantStatus> {
        self.look.status.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// Returns a tenant's rows of the last answer.
    pub fn rows_of(&self, tenant: &str) -> impl Iterator<Item = &TopRow> {
        self.rows.iter().filter(move |row| row.tenant == tenant)
    }

    /// Applies an input and returns the effects to perform.
    pub fn update(&mut self, input: TopInput) -> Vec<TopEffect> {
        match input {
            TopInput::Key(key) => return self.handle_key(key),
            TopInput::Size(_, height) => self.height = height,
            TopInput::Look(look) => return self.take_look(*look),
            TopInput::Lost(why) => self.lost = Some(why),
            TopInput::Done(done) => self.message = Some(done_message(done)),
            TopInput::Explained(tenant, all) => self.explained = Some((tenant, all)),
            TopInput::Places(places) => self.places = places,
            TopInput::Hour(hour) => self.hour = Some(hour),
            TopInput::Gone => return vec![TopEffect::Quit],
        }
        Vec::new()
    }

    fn take_look(&mut self, look: StatusLook) -> Vec<TopEffect> {
        self.rows = row::rows_of_look(&look, Some(&self.look));
        self.history.push(&self.rows);
        self.sort.sort_rows(&mut self.rows);
        self.look = look;
        self.lost = None;
        self.keep_choice();
        match &self.mode {
            KeyMode::Details { tenant, .. } => details_of(tenant),
            _ => Vec::new(),
        }
    }

    /// Returns the index of the selected row among the rows shown.
    #[must_use]
    pub fn chosen_index(&self) -> usize {
        let chosen = self.selected.as_ref();
        self.shown_rows().iter().position(|row| Some(&row.row_key()) == chosen).unwrap_or(0)
    }

    /// Selects the row at an index, or the last row.
    fn choose_row(&mut self, at: usize) {
        let shown = self.shown_rows();
        let last = shown.len().saturating_sub(1);
        self.selected = shown.get(at.min(last)).map(|row| row.row_key());
    }

    /// Keeps the selection while its row is shown.
    fn keep_choice(&mut self) {
        if self.chosen_row().is_none() {
            self.choose_row(0);
        }
    }
}

/// Returns the queries for a tenant's details.
fn details_of(tenant: &str) -> Vec<TopEffect> {
    vec![TopEffect::Explain(tenant.to_owned()), TopEffect::Places(tenant.to_owned()), TopEffect::Hour]
}

/// Describes the daemon's answer to a change in one line.
fn done_message(done: Result<Box<ChangeResult>, String>) -> FootMessage {
    let done = match done {
        Ok(done) => done,
        Err(words) => return FootMessage { words, wrong: true },
    };
    let what = match (done.changed.as_slice(), done.paused) {
        ([], _) => "it was so already".to_owned(),
        ([key], true) if key == "paused" => "paused".to_owned(),
        ([key], false) if key == "paused" => "resumed".to_owned(),
        (keys, _) => format!("changed {}", keys.join(", ")),
    };
    let notes: String = done.notes.iter().map(|note| format!("; {note}")).collect();
    FootMessage { words: format!("{}: {what}{notes}", done.tenant), wrong: false }
}
