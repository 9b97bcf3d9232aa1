//! Table of all environment variables: those that any part of this project reads, and those that other schedulers set
//! for a library like this one. Each row says how a variable is honoured, or why it has no effect, so that `vgpu
//! doctor` can explain it.
//!
//! docs/environment.md is generated from these rows, and a test compares the two. Variables that take words are
//! checked against their row; [`crate::limits`] parses sizes and shares. Not here: reading the environment.
//!
//! Sources of the foreign rows: HAMi's device plugin and HAMi-core, Volcano's two device plugins and KAI's binder, in
//! public copies of 2025 and 2026. Four are known from documents or from one copy only, not from current sources:
//! `HAMI_WATCHER_TICK_MS`, `LIBVGPU_LIMITER`, `VOLCANO_GPU_TOTAL`, `RUNAI-VISIBLE-DEVICES`.

mod table;
mod words;

pub use table::VARIABLES;
pub(crate) use words::{CONTROL, MODE, POLICY, PRIORITY};
pub use words::{WORD_VARIABLES, WordVariable};

use crate::limits::parse_ordinal;

/// Component that reads a variable, or project that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VariableOwner {
    /// The library, libvgpu.
    Library,
    /// `vgpu` and `vgpud`.
    Tools,
    /// The simulated device.
    Simulator,
    /// The source checkout: builds and tests.
    Checkout,
    /// HAMi, and Volcano's vGPU plugin, which drives the same library.
    Hami,
    /// Volcano's older GPU sharing.
    Volcano,
    /// KAI, formerly Run:ai.
    Kai,
    /// vgpu-manager, whose variables have the prefix of this project.
    Manager,
    /// The driver or the container toolkit.
    Nvidia,
}

/// Values that the variable accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedValue {
    /// One of these words, exactly; anything else is an error.
    Words(&'static [&'static str]),
    /// Values that this text describes.
    Text(&'static str),
}

/// Effect of the variable in this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableEffect {
    /// The variable is honoured, in this way.
    Honoured(&'static str),
    /// Accepted without effect, for this reason.
    Ignored(&'static str),
}

/// One variable of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableRow {
    /// The variable's name; [`VariableRow::per_device`] allows ordinals after it.
    pub name: &'static str,
    /// True if `<name>_<i>` applies to one device.
    pub per_device: bool,
    /// Component or project that it belongs to.
    pub owner: VariableOwner,
    /// Values that the variable accepts.
    pub accepted: AcceptedValue,
    /// Effect of the variable in this project.
    pub effect: VariableEffect,
}

impl VariableRow {
    /// The words it accepts; `None`: it takes other values.
    #[must_use]
    pub const fn accepted_words(&self) -> Option<&'static [&'static str]> {
        match self.accepted {
            AcceptedValue::Words(words) => Some(words),
            AcceptedValue::Text(_) => None,
        }
    }

    /// The reason why it has no effect; `None`: it has one.
    #[must_use]
    pub const fn reason_ignored(&self) -> Option<&'static str> {
        match self.effect {
            VariableEffect::Ignored(why) => Some(why),
            VariableEffect::Honoured(_) => None,
        }
    }

    fn is_named(&self, name: &[u8]) -> bool {
        match name.strip_prefix(self.name.as_bytes()) {
            Some([]) => true,
            Some([b'_', digits @ ..]) => self.per_device && parse_ordinal(digits).is_some(),
            _ => false,
        }
    }
}

/// The row of a variable, whose name may end in an ordinal.
///
/// # Cost
/// A linear search of the table; not for hot paths.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static VariableRow> {
    VARIABLES.iter().find(|row| row.is_named(name))
}
