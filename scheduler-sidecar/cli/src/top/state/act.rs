//! Handles keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use vgpu_core::units::bytes::{Size, parse_size};

use super::{Effect, Message, Mode, Top};
use crate::top::change;
use crate::top::keys::{self, Command};
use crate::top::line::Line;
use crate::top::row::Key;
use vgpu_config::change::Words;
use vgpu_control::Ask;

impl Top {
    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        match keys::everywhere(key) {
            Some(Command::Quit) => return vec![Effect::Quit],
            Some(Command::Suspend) => return vec![Effect::Suspend],
            _ => {}
        }
        let mode = std::mem::replace(&mut self.mode, Mode::Table);
        match mode {
            Mode::Table => {
                self.message = None;
                keys::command(key).map_or_else(Vec::new, |command| self.command(command))
            }
            Mode::Filter { line, before } => {
                self.filtering(key, line, before);
                Vec::new()
            }
            Mode::Set { of, line } => self.setting(key, of, line),
            Mode::Sure { question: _, ask } => match key.code {
                KeyCode::Char('y' | 'Y') => vec![Effect::Change(ask)],
                _ => {
                    self.message = Some(Message { words: "nothing was changed".into(), wrong: false });
                    Vec::new()
                }
            },
            Mode::Details { tenant, skipped } => {
                let skipped = match key.code {
                    KeyCode::Up | KeyCode::Char('k') => skipped.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => skipped.saturating_add(1),
                    KeyCode::PageUp => skipped.saturating_sub(self.height / 2),
                    KeyCode::PageDown => skipped.saturating_add(self.height / 2),
                    // Return to the table.
                    KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => return Vec::new(),
                    // Only the tenant whose details are shown may be changed.
                    KeyCode::Char(letter @ ('p' | 's')) if self.chosen().is_some_and(|row| row.tenant == tenant) => {
                        return self.begin(if letter == 'p' { Command::Pause } else { Command::Set });
                    }
                    _ => skipped,
                };
                self.mode = Mode::Details { tenant, skipped: skipped.min(200) };
                Vec::new()
            }
            Mode::Help => Vec::new(),
        }
    }

    fn command(&mut self, command: Command) -> Vec<Effect> {
        let half = usize::from(self.height / 2).max(1);
        let count = self.shown().len();
        let at = self.place();
        match command {
            Command::Up => self.choose(at.saturating_sub(1)),
            Command::Down => self.choose(at + 1),
            Command::PageUp => self.choose(at.saturating_sub(half)),
            Command::PageDown => self.choose(at + half),
            Command::First => self.choose(0),
            Command::Last => self.choose(count),
            Command::SortLeft | Command::SortRight => {
                self.sort.column = self.sort.column.beside(command == Command::SortRight);
                self.sort.apply(&mut self.rows);
            }
            Command::Reverse => {
                self.sort.reversed = !self.sort.reversed;
                self.sort.apply(&mut self.rows);
            }
            Command::Filter => {
                self.mode = Mode::Filter { line: Line::new(&self.filter), before: self.filter.clone() };
            }
            Command::Device => self.next_device(),
            Command::Help => self.mode = Mode::Help,
            Command::Details => {
                if let Some(tenant) = self.chosen().map(|row| row.tenant.clone()) {
                    self.mode = Mode::Details { tenant: tenant.clone(), skipped: 0 };
                    return super::details_of(&tenant);
                }
            }
            Command::Pause | Command::Set => return self.begin(command),
            Command::Leave if !self.filter.is_empty() => {
                self.filter.clear();
                self.keep_choice();
            }
            Command::Leave | Command::Quit => return vec![Effect::Quit],
            Command::Suspend => return vec![Effect::Suspend],
        }
        Vec::new()
    }

    /// Starts to pause, resume or change the selected tenant, if that is allowed.
    fn begin(&mut self, command: Command) -> Vec<Effect> {
        let Some(row) = self.chosen().cloned() else {
            self.message = Some(Message { words: "no tenant is chosen".into(), wrong: true });
            return Vec::new();
        };
        if let Some(why) = self.read_only() {
            self.message = Some(Message { words: format!("nothing can be changed: {why}"), wrong: true });
            return Vec::new();
        }
        let tenant = row.tenant.clone();
        match command {
            Command::Set => self.mode = Mode::Set { of: row.key(), line: Line::default() },
            _ if row.paused => return vec![Effect::Change(Ask::Resume { tenant })],
            _ => {
                let question = format!("pause {tenant}? its programs wait at their next launch until it is resumed");
                self.mode = Mode::Sure { question, ask: Ask::Pause { tenant } };
            }
        }
        Vec::new()
    }

    fn filtering(&mut self, key: KeyEvent, mut line: Line, before: String) {
        match key.code {
            KeyCode::Enter => self.filter = line.text(),
            KeyCode::Esc => self.filter = before,
            _ => {
                line.press(key);
                self.filter = line.text();
                self.mode = Mode::Filter { line, before };
            }
        }
        self.keep_choice();
    }

    fn setting(&mut self, key: KeyEvent, of: Key, mut line: Line) -> Vec<Effect> {
        match key.code {
            KeyCode::Esc => self.message = None,
            KeyCode::Enter => match change::read(&line.text()) {
                Ok(words) => return self.asked(of, words),
                Err(words) => {
                    self.message = Some(Message { words, wrong: true });
                    self.mode = Mode::Set { of, line };
                }
            },
            _ => {
                self.message = None;
                line.press(key);
                self.mode = Mode::Set { of, line };
            }
        }
        Vec::new()
    }

    /// Sends a change, or asks for confirmation first.
    fn asked(&mut self, (tenant, device): Key, words: Words) -> Vec<Effect> {
        self.message = None;
        // With only one row, leave out the device: the change then applies to the tenant's only device.
        let many = self.rows_of(&tenant).count() > 1;
        let here = self.rows_of(&tenant).find(|row| row.device == device).cloned().unwrap_or_default();
        let said = words.said(None);
        let danger = dangers(&words, here.used);
        let device = (many && device != "*").then_some(device);
        let ask = Ask::Set { tenant: tenant.clone(), device, change: Box::new(words) };
        match danger {
            None => vec![Effect::Change(ask)],
            Some(why) => {
                self.mode = Mode::Sure { question: format!("set {tenant} {said}? {why}"), ask };
                Vec::new()
            }
        }
    }

    fn next_device(&mut self) {
        let names: Vec<String> = self.devices().into_iter().map(|device| device.name).collect();
        let at = self.device.as_ref().and_then(|name| names.iter().position(|known| known == name));
        self.device = match at {
            None => names.first().cloned(),
            Some(at) => names.get(at + 1).cloned(),
        };
        self.keep_choice();
    }
}

/// Returns a warning about a consequence that the user may have overlooked.
fn dangers(words: &Words, used: Option<u64>) -> Option<&'static str> {
    if words.mode.as_deref().is_some_and(|mode| mode.eq_ignore_ascii_case("observe")) {
        return Some("nothing is refused or delayed then");
    }
    if words.strict.is_some() {
        return Some("it counts for processes that start from now on");
    }
    let size = words.memory_limit.as_deref().and_then(|text| parse_size(text).ok());
    match (size, used) {
        (Some(Size::Bytes(limit)), Some(used)) if u64::from(limit) < used => {
            Some("that is less than it holds: it cannot grow until it has freed enough")
        }
        _ => None,
    }
}
