//! What the view knows and how it changes: one function from an input to what is to be done. No terminal, no daemon, no
//! clock: keys, answers and moments are given. What keys do is [`act`].

pub mod act;

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;

use super::column::Sort;
use super::history::History;
use super::line::Line;
use super::row::{self, Device, Key, Look, Row};
use vgpu_control::{Ask, Done, Explained, TenantStatus};

/// Something that happens.
#[derive(Debug)]
pub enum Input {
    /// A key.
    Key(KeyEvent),
    /// The window has another size: columns and rows.
    Size(u16, u16),
    /// The daemon said how things are.
    Look(Box<Look>),
    /// It did not answer; why.
    Lost(String),
    /// What it answered to a change.
    Done(Result<Box<Done>, String>),
    /// Why a tenant gets what it gets.
    Explained(String, Result<Vec<Explained>, String>),
    /// The containers of a tenant's processes, by the processes' numbers.
    Places(BTreeMap<u32, String>),
    /// What the record says of the last hour.
    Hour(Result<BTreeMap<Key, Vec<f64>>, String>),
    /// Nobody is left who types.
    Gone,
}

/// Something to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask the daemon for a change.
    Change(Ask),
    /// Ask it why.
    Explain(String),
    /// Look where its processes live.
    Places(String),
    /// Ask the record for the last hour.
    Hour,
    /// Give the terminal back for a while.
    Suspend,
    /// The end.
    Quit,
}

/// What keys go to.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// The table.
    Table,
    /// The line behind `/`; Esc takes `before` again.
    Filter {
        /// What is typed.
        line: Line,
        /// What was there.
        before: String,
    },
    /// The line behind `s`.
    Set {
        /// Whose terms, where.
        of: Key,
        /// What is typed.
        line: Line,
    },
    /// A question that `y` answers with yes and every other key with no.
    Sure {
        /// The question.
        question: String,
        /// What is asked of the daemon then.
        ask: Ask,
    },
    /// Everything of a tenant.
    Details {
        /// Its name.
        tenant: String,
        /// Lines that were scrolled away.
        skipped: u16,
    },
    /// The keys.
    Help,
}

/// A line at the bottom until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub words: String,
    /// Is something wrong?
    pub wrong: bool,
}

/// The view.
#[derive(Debug)]
pub struct Top {
    /// The last answer of the daemon.
    pub look: Look,
    /// Why it does not answer now.
    pub lost: Option<String>,
    /// All rows of the last look, in order.
    rows: Vec<Row>,
    /// What rows got before.
    pub history: History,
    /// The order.
    pub sort: Sort,
    /// Only tenants with this in their name.
    pub filter: String,
    /// Only this device.
    pub device: Option<String>,
    /// The row that keys are about.
    pub selected: Option<Key>,
    /// What keys go to.
    pub mode: Mode,
    /// The line at the bottom.
    pub message: Option<Message>,
    /// Shall nothing be changed?
    watches: bool,
    /// Between two looks.
    pub interval: Duration,
    /// What was explained of the tenant whose details are shown.
    pub explained: Option<(String, Result<Vec<Explained>, String>)>,
    /// The containers of its processes, by their numbers.
    pub places: BTreeMap<u32, String>,
    /// The last hour by the record.
    pub hour: Option<Result<BTreeMap<Key, Vec<f64>>, String>>,
    /// Rows of the window.
    height: u16,
}

/// What was asked for when the view began.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The order.
    pub sort: Sort,
    /// Only tenants with this in their name.
    pub filter: String,
    /// Only this device.
    pub device: Option<String>,
    /// Shall nothing be changed?
    pub read_only: bool,
    /// Between two looks.
    pub interval: Duration,
}

impl Top {
    /// The view of a first answer.
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

    /// The rows that are shown, in order.
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

    /// The devices.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        row::devices(&self.look.status)
    }

    /// The chosen row.
    #[must_use]
    pub fn chosen(&self) -> Option<&Row> {
        let chosen = self.selected.as_ref()?;
        self.shown().into_iter().find(|row| row.key() == *chosen)
    }

    /// Why nothing can be changed; `None`: it can.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        self.watches.then(|| "this view was started with --read-only".into())
    }

    /// A tenant by its name.
    #[must_use]
    pub fn tenant(&self, name: &str) -> Option<&TenantStatus> {
        self.look.status.tenants.iter().find(|tenant| tenant.name == name)
    }

    /// Rows of the last look that are this tenant's.
    pub fn rows_of(&self, tenant: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.tenant == tenant)
    }

    /// Takes what happened; returns what is to be done about it.
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

    /// The place of the chosen row among those that are shown.
    #[must_use]
    pub fn place(&self) -> usize {
        let chosen = self.selected.as_ref();
        self.shown().iter().position(|row| Some(&row.key()) == chosen).unwrap_or(0)
    }

    /// Chooses the row at a place, or the last one.
    fn choose(&mut self, at: usize) {
        let shown = self.shown();
        let last = shown.len().saturating_sub(1);
        self.selected = shown.get(at.min(last)).map(|row| row.key());
    }

    /// The chosen row stays chosen as long as it is shown.
    fn keep_choice(&mut self) {
        if self.chosen().is_none() {
            self.choose(0);
        }
    }
}

/// What is asked for the details of a tenant.
fn details_of(tenant: &str) -> Vec<Effect> {
    vec![Effect::Explain(tenant.to_owned()), Effect::Places(tenant.to_owned()), Effect::Hour]
}

/// What the daemon answered to a change, in a line.
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
