//! Draws the state on a screen of any size. Read-only.
//!
//! From top to bottom: [`head`] (the daemon, its devices), [`table`] (tenants) or [`pane`] (a tenant's details, the
//! help), [`foot`] (problems, results, input). [`theme`] has colours and characters.

pub mod foot;
pub mod head;
pub mod pane;
pub mod table;
pub mod theme;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::state::{KeyMode, TopState};
use theme::ColourTheme;

/// Draws everything.
pub fn draw(top: &TopState, theme: &ColourTheme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut above = head::head_lines(top, theme, width, height);
    let (below, cursor) = foot::foot_lines(top, theme, width, height);
    // If space is short, keep the last lines: questions and input are there.
    let below: Vec<_> = below.into_iter().rev().take(height).rev().collect();
    above.truncate(height - below.len());
    let room = height - below.len() - above.len();
    let middle = match &top.mode {
        KeyMode::Details { tenant, skipped } => {
            pane::detail_lines(top, theme, tenant, width, room, usize::from(*skipped))
        }
        KeyMode::Help => pane::help_lines(theme, room),
        _ => table::table_lines(top, theme, width, room),
    };
    let foot_at = height - below.len();
    put_lines(frame, area, 0, &above);
    put_lines(frame, area, above.len(), &middle.into_iter().take(room).collect::<Vec<_>>());
    put_lines(frame, area, foot_at, &below);
    if let Some(column) = cursor {
        let last = width.saturating_sub(1);
        let (x, y) = (u16::try_from(column.min(last)), u16::try_from(height.saturating_sub(1)));
        if let (Ok(x), Ok(y)) = (x, y) {
            frame.set_cursor_position((x, y));
        }
    }
}

/// Draws lines, beginning at a row of the area.
fn put_lines(frame: &mut Frame<'_>, area: Rect, at: usize, lines: &[Line<'_>]) {
    for (row, line) in (at..).zip(lines) {
        let Ok(row) = u16::try_from(row) else { return };
        if row >= area.height {
            return;
        }
        frame.render_widget(line, Rect { x: area.x, y: area.y + row, width: area.width, height: 1 });
    }
}

/// Pads or cuts text to exactly `width` characters, with a mark if cut.
#[must_use]
pub fn fit_width(text: &str, width: usize, right: bool, theme: &ColourTheme) -> String {
    let length = text.chars().count();
    if length > width {
        let mark = if theme.ascii { '~' } else { '…' };
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return if width == 0 { String::new() } else { format!("{kept}{mark}") };
    }
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// Breaks text between words into lines of at most `width` characters.
#[must_use]
pub fn wrap_text(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(line) if last == 0 || last + 1 + word.chars().count() <= width => {
                if last > 0 {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(format!("  {word}")),
        }
    }
    lines
}
