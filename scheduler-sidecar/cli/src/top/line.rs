//! An editable input line with a cursor and the usual editing keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest text accepted, in characters.
const MAX_LINE_CHARS: usize = 200;

/// The text and the cursor's position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputLine {
    letters: Vec<char>,
    cursor: usize,
}

impl InputLine {
    /// Creates a line with this text and the cursor at its end.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let letters: Vec<char> = text.chars().take(MAX_LINE_CHARS).collect();
        Self { cursor: letters.len(), letters }
    }

    /// Returns the text.
    #[must_use]
    pub fn line_text(&self) -> String {
        self.letters.iter().collect()
    }

    /// Returns the number of characters before the cursor.
    #[must_use]
    pub const fn cursor(&self) -> usize {
        self.cursor
    }

    /// Handles a key; other keys change nothing.
    pub fn press_key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.letters.len(),
            KeyCode::Char('u') if control => {
                self.letters.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('w') if control => {
                let word = |letters: &[char]| {
                    let end = letters.iter().rposition(|letter| *letter != ' ').map_or(0, |at| at + 1);
                    letters.iter().take(end).rposition(|letter| *letter == ' ').map_or(0, |at| at + 1)
                };
                let begin = word(self.letters.get(..self.cursor).unwrap_or_default());
                self.letters.drain(begin..self.cursor);
                self.cursor = begin;
            }
            KeyCode::Char(letter) if !control && !letter.is_control() && self.letters.len() < MAX_LINE_CHARS => {
                self.letters.insert(self.cursor, letter);
                self.cursor += 1;
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.letters.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < self.letters.len() => {
                self.letters.remove(self.cursor);
            }
            KeyCode::Left => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Right => self.cursor = (self.cursor + 1).min(self.letters.len()),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.letters.len(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_the_text_where_the_cursor_is() {
        let mut line = InputLine::new("sm=4");
        let plain = |code| KeyEvent::new(code, KeyModifiers::NONE);
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        for key in [plain(KeyCode::Char('0')), plain(KeyCode::Home), plain(KeyCode::Char('x')), plain(KeyCode::Delete)]
        {
            line.press_key(key);
        }
        assert_eq!((line.line_text(), line.cursor()), ("xm=40".into(), 1));
        for key in [plain(KeyCode::Backspace), plain(KeyCode::Backspace), control('e'), plain(KeyCode::Delete)] {
            line.press_key(key);
        }
        assert_eq!((line.line_text(), line.cursor()), ("m=40".into(), 4));
        let mut line = InputLine::new("sm=40 memory=6GiB  ");
        line.press_key(control('w'));
        assert_eq!(line.line_text(), "sm=40 ");
        line.press_key(control('u'));
        assert_eq!((line.line_text(), line.cursor()), (String::new(), 0));
        for _ in 0..2 * MAX_LINE_CHARS {
            line.press_key(plain(KeyCode::Char('a')));
        }
        assert_eq!(line.line_text().len(), MAX_LINE_CHARS);
    }
}
