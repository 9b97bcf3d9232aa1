//! How far the library goes in a process: `VGPU_MODE`.

use core::fmt;

/// What is done about the limits that were asked for, the strictest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// They are kept.
    #[default]
    Enforce,
    /// Memory is charged and device time measured; nothing is refused, delayed or shown differently.
    Observe,
    /// As if nothing had been asked.
    Off,
}

impl Mode {
    /// The words of `VGPU_MODE`, in the order of the modes.
    pub const WORDS: [&'static str; 3] = ["enforce", "observe", "off"];

    pub(super) fn of(word: &str) -> Self {
        match word {
            "observe" => Self::Observe,
            "off" => Self::Off,
            _ => Self::Enforce,
        }
    }
}

/// The word that asks for it.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        })
    }
}
