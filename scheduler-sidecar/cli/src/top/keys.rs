//! The key bindings of the table, in one list from which the help and the documentation are generated.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A command that a key gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopCommand {
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
pub struct KeyBinding {
    /// Names of the keys, as the help shows them.
    pub shown: &'static str,
    /// Effect of the keys, as the help shows it.
    pub what: &'static str,
    /// The command of each of the keys.
    keys: &'static [(KeyCode, TopCommand)],
}

use KeyCode as K;
use TopCommand as C;

/// All key bindings.
pub const KEY_BINDINGS: [KeyBinding; 14] = [
    KeyBinding {
        shown: "up down, k j",
        what: "choose a tenant",
        keys: &[(K::Up, C::Up), (K::Down, C::Down), (K::Char('k'), C::Up), (K::Char('j'), C::Down)],
    },
    KeyBinding {
        shown: "PgUp PgDn Home End",
        what: "the same in larger steps",
        keys: &[(K::PageUp, C::PageUp), (K::PageDown, C::PageDown), (K::Home, C::First), (K::End, C::Last)],
    },
    KeyBinding {
        shown: "left right, < >",
        what: "order by the next column",
        keys: &[
            (K::Left, C::SortLeft),
            (K::Right, C::SortRight),
            (K::Char('<'), C::SortLeft),
            (K::Char('>'), C::SortRight),
        ],
    },
    KeyBinding { shown: "r", what: "the order the other way round", keys: &[(K::Char('r'), C::Reverse)] },
    KeyBinding { shown: "/", what: "only tenants with this in their name", keys: &[(K::Char('/'), C::Filter)] },
    KeyBinding {
        shown: "d, Tab",
        what: "the next device, then all of them",
        keys: &[(K::Char('d'), C::Device), (K::Tab, C::Device)],
    },
    KeyBinding { shown: "Enter", what: "everything of the tenant, and why it waits", keys: &[(K::Enter, C::Details)] },
    KeyBinding { shown: "p", what: "pause the tenant (asks first), or resume it", keys: &[(K::Char('p'), C::Pause)] },
    KeyBinding {
        shown: "s",
        what: "other terms for the tenant, like sm=40 memory=6GiB",
        keys: &[(K::Char('s'), C::Set)],
    },
    KeyBinding {
        shown: "?, h, F1",
        what: "these keys",
        keys: &[(K::Char('?'), C::Help), (K::Char('h'), C::Help), (K::F(1), C::Help)],
    },
    KeyBinding { shown: "Ctrl-Z", what: "back to the shell for a while (fg returns)", keys: &[] },
    KeyBinding { shown: "Esc", what: "forget the filter; without one, quit", keys: &[(K::Esc, C::Leave)] },
    KeyBinding { shown: "q", what: "quit", keys: &[(K::Char('q'), C::Quit)] },
    KeyBinding { shown: "Ctrl-C", what: "quit, wherever you are", keys: &[] },
];

/// Returns the command of a key in the table; `None` if it has none.
#[must_use]
pub fn command_of_key(key: KeyEvent) -> Option<TopCommand> {
    if let Some(everywhere) = global_command(key) {
        return Some(everywhere);
    }
    if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return None;
    }
    let all = KEY_BINDINGS.iter().flat_map(|binding| binding.keys);
    all.into_iter().find(|(code, _)| *code == key.code).map(|(_, command)| *command)
}

/// Returns the command of a key that works in every mode.
#[must_use]
pub fn global_command(key: KeyEvent) -> Option<TopCommand> {
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
        let keys: Vec<KeyCode> = KEY_BINDINGS.iter().flat_map(|binding| binding.keys).map(|(code, _)| *code).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key}");
        }
        let control = |letter| KeyEvent::new(K::Char(letter), KeyModifiers::CONTROL);
        assert_eq!((command_of_key(control('c')), command_of_key(control('p'))), (Some(C::Quit), None));
    }
}
