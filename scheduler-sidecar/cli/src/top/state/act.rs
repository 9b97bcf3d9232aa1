//! Handles keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent};
use vgpu_core::units::bytes::{Size, parse_size};

use super::{FootMessage, KeyMode, TopEffect, TopState};
use crate::top::change;
use crate::top::keys::{self, TopCommand};
use crate::top::line::InputLine;
use crate::top::row::RowKey;
use vgpu_config::change::WrittenChange;
use vgpu_control::{ChangeLasting, ControlCommand};

impl TopState {
    /// Handles a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Vec<TopEffect> {
        match keys::global_command(key) {
            Some(TopCommand::Quit) => return vec![TopEffect::Quit],
            Some(TopCommand::Suspend) => return vec![TopEffect::Suspend],
            _ => {}
        }
        let mode = std::mem::replace(&mut self.mode, KeyMode::Table);
        match mode {
            KeyMode::Table => {
                self.message = None;
                keys::command_of_key(key).map_or_else(Vec::new, |command| self.handle_command(command))
            }
            KeyMode::Filter { line, before } => {
                self.edit_filter(key, line, before);
                Vec::new()
            }
            KeyMode::Set { of, line } => self.edit_change(key, of, line),
            KeyMode::Sure { question: _, ask } => match key.code {
                KeyCode::Char('y' | 'Y') => vec![TopEffect::Change(ask)],
                _ => {
                    self.message = Some(FootMessage { words: "nothing was changed".into(), wrong: false });
                    Vec::new()
                }
            },
            KeyMode::Details { tenant, skipped } => {
                let skipped = match key.code {
                    KeyCode::Up | KeyCode::Char('k') => skipped.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => skipped.saturating_add(1),
                    KeyCode::PageUp => skipped.saturating_sub(self.height / 2),
                    KeyCode::PageDown => skipped.saturating_add(self.height / 2),
                    // Return to the table.
                    KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => return Vec::new(),
                    // Only the tenant whose details are shown may be changed.
                    KeyCode::Char(letter @ ('p' | 's'))
                        if self.chosen_row().is_some_and(|row| row.tenant == tenant) =>
                    {
                        return self.begin_change(if letter == 'p' { TopCommand::Pause } else { TopCommand::Set });
                    }
                    _ => skipped,
                };
                self.mode = KeyMode::Details { tenant, skipped: skipped.min(200) };
                Vec::new()
            }
            KeyMode::Help => Vec::new(),
        }
    }

    fn handle_command(&mut self, command: TopCommand) -> Vec<TopEffect> {
        let half = usize::from(self.height / 2).max(1);
        let count = self.shown_rows().len();
        let at = self.chosen_index();
        match command {
            TopCommand::Up => self.choose_row(at.saturating_sub(1)),
            TopCommand::Down => self.choose_row(at + 1),
            TopCommand::PageUp => self.choose_row(at.saturating_sub(half)),
            TopCommand::PageDown => self.choose_row(at + half),
            TopCommand::First => self.choose_row(0),
            TopCommand::Last => self.choose_row(count),
            TopCommand::SortLeft | TopCommand::SortRight => {
                self.sort.column = self.sort.column.neighbour(command == TopCommand::SortRight);
                self.sort.sort_rows(&mut self.rows);
            }
            TopCommand::Reverse => {
                self.sort.reversed = !self.sort.reversed;
                self.sort.sort_rows(&mut self.rows);
            }
            TopCommand::Filter => {
                self.mode = KeyMode::Filter { line: InputLine::new(&self.filter), before: self.filter.clone() };
            }
            TopCommand::Device => self.next_device(),
            TopCommand::Help => self.mode = KeyMode::Help,
            TopCommand::Details => {
                if let Some(tenant) = self.chosen_row().map(|row| row.tenant.clone()) {
                    self.mode = KeyMode::Details { tenant: tenant.clone(), skipped: 0 };
                    return super::details_of(&tenant);
                }
            }
            TopCommand::Pause | TopCommand::Set => return self.begin_change(command),
            TopCommand::Leave if !self.filter.is_empty() => {
                self.filter.clear();
                self.keep_choice();
            }
            TopCommand::Leave | TopCommand::Quit => return vec![TopEffect::Quit],
            TopCommand::Suspend => return vec![TopEffect::Suspend],
        }
        Vec::new()
    }

    /// Starts to pause, resume or change the selected tenant, if that is allowed.
    fn begin_change(&mut self, command: TopCommand) -> Vec<TopEffect> {
        let Some(row) = self.chosen_row().cloned() else {
            self.message = Some(FootMessage { words: "no tenant is chosen".into(), wrong: true });
            return Vec::new();
        };
        if let Some(why) = self.read_only() {
            self.message = Some(FootMessage { words: format!("nothing can be changed: {why}"), wrong: true });
            return Vec::new();
        }
        let tenant = row.tenant.clone();
        match command {
            TopCommand::Set => self.mode = KeyMode::Set { of: row.row_key(), line: InputLine::default() },
            _ if row.paused => return vec![TopEffect::Change(ControlCommand::Resume { tenant })],
            _ => {
                let question = format!("pause {tenant}? its programs wait at their next launch until it is resumed");
                self.mode = KeyMode::Sure {
                    question,
                    ask: ControlCommand::Pause { tenant, lasting: ChangeLasting::default() },
                };
            }
        }
        Vec::new()
    }

    fn edit_filter(&mut self, key: KeyEvent, mut line: InputLine, before: String) {
        match key.code {
            KeyCode::Enter => self.filter = line.line_text(),
            KeyCode::Esc => self.filter = before,
            _ => {
                line.press_key(key);
                self.filter = line.line_text();
                self.mode = KeyMode::Filter { line, before };
            }
        }
        self.keep_choice();
    }

    fn edit_change(&mut self, key: KeyEvent, of: RowKey, mut line: InputLine) -> Vec<TopEffect> {
        match key.code {
            KeyCode::Esc => self.message = None,
            KeyCode::Enter => match change::read(&line.line_text()) {
                Ok(words) => return self.confirm_change(of, words),
                Err(words) => {
                    self.message = Some(FootMessage { words, wrong: true });
                    self.mode = KeyMode::Set { of, line };
                }
            },
            _ => {
                self.message = None;
                line.press_key(key);
                self.mode = KeyMode::Set { of, line };
            }
        }
        Vec::new()
    }

    /// Sends a change, or asks for confirmation first.
    fn confirm_change(&mut self, (tenant, device): RowKey, words: WrittenChange) -> Vec<TopEffect> {
        self.message = None;
        // With only one row, leave out the device: the change then applies to the tenant's only device.
        let many = self.rows_of(&tenant).count() > 1;
        let here = self.rows_of(&tenant).find(|row| row.device == device).cloned().unwrap_or_default();
        let said = words.to_command_words(None);
        let danger = warn_of_change(&words, here.used);
        let device = (many && device != "*").then_some(device);
        let ask = ControlCommand::Set {
            tenant: tenant.clone(),
            device,
            change: Box::new(words),
            lasting: ChangeLasting::default(),
        };
        match danger {
            None => vec![TopEffect::Change(ask)],
            Some(why) => {
                self.mode = KeyMode::Sure { question: format!("set {tenant} {said}? {why}"), ask };
                Vec::new()
            }
        }
    }

    fn next_device(&mut self) {
        let names: Vec<String> = self.shown_devices().into_iter().map(|device| device.name).collect();
        let at = self.device.as_ref().and_then(|name| names.iter().position(|known| known == name));
        self.device = match at {
            None => names.first().cloned(),
            Some(at) => names.get(at + 1).cloned(),
        };
        self.keep_choice();
    }
}

/// Returns a warning about a consequence that the user may have overlooked.
fn warn_of_change(words: &WrittenChange, used: Option<u64>) -> Option<&'static str> {
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
