//! The key bindings of the table, in one list from which the help and the documentation are generated.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A command that a key gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Select the row above.
    Up,
    /// Select the row below.
    Down,
    /// Move half a screen up.
    PageUp,
    /// Move half a screen down.
    PageDown,
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Sort by the column to the left.
    SortLeft,
    /// Sort by the column to the right.
    SortRight,
    /// Reverse the order.
    Reverse,
    /// Type a filter for names.
    Filter,
    /// Show the next device only.
    Device,
    /// Show all details of a tenant.
    Details,
    /// Pause or resume the selected tenant.
    Pause,
    /// Change the selected tenant's limits and share of time.
    Set,
    /// Show the help.
    Help,
    /// Suspend the program, as shells do.
    Suspend,
    /// Clear the filter, or quit without one.
    Leave,
    /// Quit.
    Quit,
}

/// A key binding, and its line in the help.
#[derive(Debug)]
pub struct Binding {
    /// Names of the keys, as the help shows them.
    pub shown: &'static str,
    /// Effect of the keys, as the help shows it.
    pub what: &'static str,
    /// The command of each of the keys.
    keys: &'static [(KeyCode, Command)],
}

use Command as C;
use KeyCode as K;

/// All key bindings.
pub const BINDINGS: [Binding; 14] = [
    Binding {
        shown: "up down, k j",
        what: "choose a tenant",
        keys: &[(K::Up, C::Up), (K::Down, C::Down), (K::Char('k'), C::Up), (K::Char('j'), C::Down)],
    },
    Binding {
        shown: "PgUp PgDn Home End",
        what: "the same in larger steps",
        keys: &[(K::PageUp, C::PageUp), (K::PageDown, C::PageDown), (K::Home, C::First), (K::End, C::Last)],
    },
    Binding {
        shown: "left right, < >",
        what: "order by the column beside",
        keys: &[
            (K::Left, C::SortLeft),
            (K::Right, C::SortRight),
            (K::Char('<'), C::SortLeft),
            (K::Char('>'), C::SortRight),
        ],
    },
    Binding { shown: "r", what: "the order the other way round", keys: &[(K::Char('r'), C::Reverse)] },
    Binding { shown: "/", what: "only tenants with this in their name", keys: &[(K::Char('/'), C::Filter)] },
    Binding {
        shown: "d, Tab",
        what: "the next device, then all of them",
        keys: &[(K::Char('d'), C::Device), (K::Tab, C::Device)],
    },
    Binding { shown: "Enter", what: "everything of the tenant, and why it waits", keys: &[(K::Enter, C::Details)] },
    Binding { shown: "p", what: "pause the tenant (asks first), or resume it", keys: &[(K::Char('p'), C::Pause)] },
    Binding { shown: "s", what: "other terms for the tenant, like sm=40 memory=6GiB", keys: &[(K::Char('s'), C::Set)] },
    Binding {
        shown: "?, h, F1",
        what: "these keys",
        keys: &[(K::Char('?'), C::Help), (K::Char('h'), C::Help), (K::F(1), C::Help)],
    },
    Binding { shown: "Ctrl-Z", what: "back to the shell for a while (fg returns)", keys: &[] },
    Binding { shown: "Esc", what: "forget the filter; without one, quit", keys: &[(K::Esc, C::Leave)] },
    Binding { shown: "q", what: "quit", keys: &[(K::Char('q'), C::Quit)] },
    Binding { shown: "Ctrl-C", what: "quit, wherever you are", keys: &[] },
];

/// Returns the command of a key in the table; `None` if it has none.
#[must_use]
pub fn command(key: KeyEvent) -> Option<Command> {
    if let Some(everywhere) = everywhere(key) {
        return Some(everywhere);
    }
    if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return None;
    }
    let all = BINDINGS.iter().flat_map(|binding| binding.keys);
    all.into_iter().find(|(code, _)| *code == key.code).map(|(_, command)| *command)
}

/// Returns the command of a key that works in every mode.
#[must_use]
pub fn everywhere(key: KeyEvent) -> Option<Command> {
    match key.code {
        K::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(C::Quit),
        K::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(C::Suspend),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_means_two_things() {
        let keys: Vec<KeyCode> = BINDINGS.iter().flat_map(|binding| binding.keys).map(|(code, _)| *code).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key}");
        }
        let control = |letter| KeyEvent::new(K::Char(letter), KeyModifiers::CONTROL);
        assert_eq!((command(control('c')), command(control('p'))), (Some(C::Quit), None));
    }
}
