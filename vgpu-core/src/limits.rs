//! Limits in two stages: what was written ([`RawLimits`]), then what it means for a device ([`DeviceLimits`]).
//!
//! The first stage knows the variables and needs no device; the second resolves percentages and
//! picks what wins. Values are read by [`crate::bytes`] and [`crate::share`]. Enforcing is not done
//! here; where the variables come from is not known here.
//!
//! What wins: within one family (ours, HAMi's) the variable of an ordinal over the global one, also
//! when it says "no limit", but for HAMi's 0, which HAMi takes for unset; between the families, and beside the daemon's
//! terms, the lower.
//!
//! Beside the limits: how far the library goes ([`Mode`]), floors ([`Quantity::SmRequest`], which only a daemon can keep)
//! and the class for its arbiter. Which other variables there are is told in [`crate::variables`].

mod error;
mod later;
mod mode;
mod raw;
mod request;
mod variable;

pub use error::LimitError;
pub(crate) use error::escape;
pub use mode::Mode;
pub use raw::RawLimits;
pub(crate) use variable::ordinal;
pub use variable::{Family, Quantity, Source, Variable};

use crate::bytes::Bytes;
use crate::share::Share;

/// The highest ordinal a variable may name. No machine has more devices, and a typo should not pass.
pub const MAX_ORDINAL: u32 = 255;

/// What one device may give: the result of [`RawLimits::for_device`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The memory limit, at most the device's total; `None` is no limit.
    pub memory: Option<Bytes>,
    /// Who asked for [`DeviceLimits::memory`].
    pub memory_from: Option<Source>,
    /// The ceiling on device time, less than all; `None` is no ceiling.
    pub sm: Option<Share>,
    /// Who asked for [`DeviceLimits::sm`].
    pub sm_from: Option<Source>,
}

impl DeviceLimits {
    /// Is there nothing to enforce on this device?
    #[must_use]
    pub const fn is_unlimited(&self) -> bool {
        self.memory.is_none() && self.sm.is_none()
    }
}
