//! Colours and characters: no colours if they are unwanted, only ASCII if the terminal supports no more.

use ratatui::style::{Color, Modifier, Style};

/// Style of the view: colours or none, and the characters that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColourTheme {
    /// True to use colours.
    pub colours: bool,
    /// True to use only ASCII characters.
    pub ascii: bool,
}

impl ColourTheme {
    /// Derives the theme from the environment; `variable` returns the value of a variable.
    #[must_use]
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        // The first one set counts, as in the C library.
        let letters = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
        let ascii = !(letters.contains("utf-8") || letters.contains("utf8"));
        Self { colours: set("NO_COLOR").is_none(), ascii }
    }

    fn style_of(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Style for good states.
    #[must_use]
    pub fn good_style(self) -> Style {
        self.style_of(Color::Green)
    }

    /// Style for warnings.
    #[must_use]
    pub fn warning_style(self) -> Style {
        self.style_of(Color::Yellow)
    }

    /// Style for errors.
    #[must_use]
    pub fn bad_style(self) -> Style {
        self.style_of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Style for tenants paused by an administrator.
    #[must_use]
    pub fn override_style(self) -> Style {
        self.style_of(Color::Magenta)
    }

    /// Style for less important text.
    #[must_use]
    pub fn dim_style(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Style for headings.
    #[must_use]
    pub fn heading_style(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Style for the selected row.
    #[must_use]
    pub fn chosen_style(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style for a fill level from 0 to 1.
    #[must_use]
    pub fn fill_style(self, part: f64) -> Style {
        match part {
            part if part >= 0.95 => self.bad_style(),
            part if part >= 0.8 => self.warning_style(),
            _ => self.good_style(),
        }
    }

    /// Returns the style for a state.
    #[must_use]
    pub fn state_style(self, state: &str) -> Style {
        match state {
            "running" | "open" | "free" | "shared" => self.good_style(),
            "waiting" | "capped" | "draining" | "observed" => self.warning_style(),
            "overdue" | "unserved" | "lost" => self.bad_style(),
            "paused" | "suspended" => self.override_style(),
            _ => self.dim_style(),
        }
    }

    /// Returns a bar of `width` characters, filled to `part`, from 0 to 1.
    #[must_use]
    pub fn bar_text(self, part: f64, width: usize) -> String {
        let steps = if self.ascii { 1 } else { 8 };
        let filled = round_part(part, width * steps);
        let (whole, rest) = (filled / steps, filled % steps);
        let (full, empty) = if self.ascii { ("#", ".") } else { ("█", "░") };
        let mut text = full.repeat(whole);
        if let Some(edge) = "▏▎▍▌▋▊▉".chars().nth(rest.wrapping_sub(1)).filter(|_| rest > 0) {
            text.push(edge);
        }
        let used = whole + usize::from(rest > 0);
        text + &empty.repeat(width - used)
    }

    /// Returns one bar character for each value in percent. Any value above 0 is visible.
    #[must_use]
    pub fn spark_text(self, values: impl Iterator<Item = f64>) -> String {
        let letters: &[char] = if self.ascii {
            &['_', '.', ':', '-', '=', '+', '*', '#', '@']
        } else {
            &[' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        };
        let letter = |value: f64| {
            let level = round_part(value / 100.0, 8);
            letters.get(if value >= 0.05 { level.max(1) } else { 0 }).copied().unwrap_or(' ')
        };
        values.map(letter).collect()
    }

    /// Returns the sort mark for a column heading.
    #[must_use]
    pub const fn order_mark(self, reversed: bool) -> char {
        match (self.ascii, reversed) {
            (true, false) => 'v',
            (true, true) => '^',
            (false, false) => '▼',
            (false, true) => '▲',
        }
    }
}

/// Returns `part` of `of`, rounded half up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped first"
)]
fn round_part(part: f64, of: usize) -> usize {
    let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
    (part * of as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINE: ColourTheme = ColourTheme { colours: true, ascii: false };
    const PLAIN: ColourTheme = ColourTheme { colours: false, ascii: true };

    #[test]
    fn bars_have_their_width_whatever_they_show() {
        assert_eq!((FINE.bar_text(0.5, 4), PLAIN.bar_text(0.5, 4)), ("██░░".into(), "##..".into()));
        assert_eq!(
            (FINE.bar_text(0.3, 4), FINE.bar_text(0.0, 2), FINE.bar_text(9.0, 2)),
            ("█▎░░".into(), "░░".into(), "██".into())
        );
        for part in [-1.0, 0.0, 0.01, 0.49, 0.99, 1.0, 2.0, f64::NAN, f64::INFINITY] {
            for width in 0..9 {
                assert_eq!(FINE.bar_text(part, width).chars().count(), width, "{part}");
                assert_eq!(PLAIN.bar_text(part, width).chars().count(), width, "{part}");
            }
        }
    }

    #[test]
    fn what_is_not_nothing_shows_in_a_line_of_bars() {
        assert_eq!(FINE.spark_text([0.0, 0.1, 50.0, 100.0, 300.0].into_iter()), " ▁▄██");
        assert_eq!(PLAIN.spark_text([0.0, 0.1, 50.0, 100.0].into_iter()), "_.=@");
    }

    #[test]
    fn colours_and_letters_are_those_that_the_environment_wants() {
        let theme = |all: &'static [(&str, &str)]| {
            ColourTheme::from_environment(|name| {
                all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(theme(&[("LANG", "de_DE.UTF-8")]), FINE);
        assert_eq!(theme(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C"), ("NO_COLOR", "1")]), PLAIN);
        assert_eq!(theme(&[("LC_CTYPE", "C.utf8"), ("NO_COLOR", "")]), FINE, "empty is not set");
        assert!(theme(&[]).ascii);
        assert_eq!(PLAIN.bad_style().fg, None);
    }
}
