//! Limits from environment variables, in two stages: the values as written ([`RawLimits`]), then their meaning for
//! one device ([`DeviceLimits`]).
//!
//! The first stage needs no device. The second resolves percentages and chooses between variables.
//! [`crate::units::bytes`] and [`crate::units::share`] parse the values. Not here: reading the environment, and
//! enforcement.
//!
//! Precedence: within one family (ours, HAMi's or the container toolkit's) a device's own variable overrides the global
//! one, even if it says "no limit". The exception is HAMi's 0, which HAMi treats as unset. Between the families, MPS's
//! list and the daemon's terms, the lowest limit holds.
//!
//! Also here: the enforcement mode ([`Mode`]), floors ([`Quantity::SmRequest`], which only a daemon can guarantee)
//! and the class for the daemon's arbiter. [`crate::limits::variables`] lists all variables.

mod class;
mod error;
mod later;
mod listed;
mod mode;
mod raw;
mod request;
pub mod tenant;
mod variable;
pub mod variables;

pub use class::Class;
pub use error::LimitError;
pub(crate) use error::escape_bytes;
pub use listed::{ListedLimit, NamedDevice};
pub use mode::Mode;
pub use raw::RawLimits;
pub(crate) use variable::parse_ordinal;
pub use variable::{Family, Quantity, Source, Variable};

use crate::units::bytes::Bytes;
use crate::units::share::Share;

/// The highest ordinal in a variable's name. No machine has more devices, so a higher one is a typo.
pub const MAX_ORDINAL: u32 = 255;

/// Limits of one device: the result of [`RawLimits::for_device`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The memory limit, at most the device's total; `None`: no limit.
    pub memory: Option<Bytes>,
    /// Source of [`DeviceLimits::memory`].
    pub memory_from: Option<Source>,
    /// The ceiling on device time, less than 100 %; `None`: no ceiling.
    pub sm: Option<Share>,
    /// Source of [`DeviceLimits::sm`].
    pub sm_from: Option<Source>,
}

impl DeviceLimits {
    /// True if nothing is enforced on this device.
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.memory.is_none() && self.sm.is_none()
    }
}
