//! The enforcement mode of a process: `VGPU_MODE`.

use core::fmt;

/// Handling of the requested limits, strictest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Limits are enforced.
    #[default]
    Enforce,
    /// Memory is charged and device time measured, but nothing is refused, delayed or displayed differently.
    Observe,
    /// The library does nothing, as if no variable were set.
    Off,
}

impl Mode {
    /// The words of `VGPU_MODE`, in the order of the modes.
    pub const WORDS: [&'static str; 3] = ["enforce", "observe", "off"];

    pub(super) fn from_word(word: &str) -> Self {
        match word {
            "observe" => Self::Observe,
            "off" => Self::Off,
            _ => Self::Enforce,
        }
    }
}

/// The word of `VGPU_MODE`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        })
    }
}
