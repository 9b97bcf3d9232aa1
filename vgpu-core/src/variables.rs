//! The one table of variables of the environment: every one that a part of this project reads, and every one that the
//! schedulers of this field set for a library like this one. What each does here is said in its row: honoured, and how;
//! or accepted without effect, and why, so that `vgpu doctor` can tell and nobody has to guess.
//!
//! docs/environment.md is made of these rows, and a test keeps it so. Values of a few words are checked against the row;
//! sizes and shares are read by [`crate::limits`]. Nobody reads an environment here.
//!
//! How the foreign rows were found: HAMi's device plugin and HAMi-core, Volcano's two device plugins and KAI's binder were
//! read in public copies of 2025 and 2026. Known from documents or from one copy only, not seen in the current sources:
//! `HAMI_WATCHER_TICK_MS`, `LIBVGPU_LIMITER`, `VOLCANO_GPU_TOTAL`, `RUNAI-VISIBLE-DEVICES`.

mod table;
mod words;

pub use table::TABLE;
pub(crate) use words::{CONTROL, MODE, POLICY, PRIORITY};
pub use words::{WORDED, Worded};

use crate::limits::ordinal;

/// Whose variable it is: who reads it, or where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The library's own.
    Library,
    /// `vgpu`'s and `vgpud`'s.
    Tools,
    /// The simulated device's.
    Simulator,
    /// Of the checkout: building and testing.
    Checkout,
    /// HAMi's, and Volcano's vGPU plugin's, which drives the same library.
    Hami,
    /// Volcano's older GPU sharing.
    Volcano,
    /// KAI's, before Run:ai's.
    Kai,
    /// The driver's or the container toolkit's.
    Nvidia,
}

/// What may stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// One of these words, exactly; anything else is an error.
    Words(&'static [&'static str]),
    /// What this says.
    Text(&'static str),
}

/// What it does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is obeyed, so.
    Honoured(&'static str),
    /// It may be set and does nothing, for this reason.
    Ignored(&'static str),
}

/// One variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name; [`Row::per_device`] says whether ordinals may follow.
    pub name: &'static str,
    /// Whether `<name>_<i>` holds for one device.
    pub per_device: bool,
    /// Whose it is.
    pub owner: Owner,
    /// Its values.
    pub accepted: Accepted,
    /// What it does.
    pub effect: Effect,
}

impl Row {
    /// The words that it takes, if it takes words.
    #[must_use]
    pub const fn words(&self) -> Option<&'static [&'static str]> {
        match self.accepted {
            Accepted::Words(words) => Some(words),
            Accepted::Text(_) => None,
        }
    }

    /// Why it does nothing, if it does nothing.
    #[must_use]
    pub const fn ignored(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Ignored(why) => Some(why),
            Effect::Honoured(_) => None,
        }
    }

    fn is(&self, name: &[u8]) -> bool {
        match name.strip_prefix(self.name.as_bytes()) {
            Some([]) => true,
            Some([b'_', digits @ ..]) => self.per_device && ordinal(digits).is_some(),
            _ => false,
        }
    }
}

/// The row of a variable, an ordinal behind its name included.
///
/// # Cost
/// A walk over the table; not for hot paths.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.is(name))
}
