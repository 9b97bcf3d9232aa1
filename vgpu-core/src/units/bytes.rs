//! Amounts of memory: the [`Bytes`] newtype, its text form, and parsers for sizes.
//!
//! [`parse_size`] reads our own variables, [`parse_hami_size`] those of HAMi's schedulers. [`crate::limits`] chooses
//! between variables; [`crate::memory::charging`] rounds allocations.

mod parse;

use core::fmt;

pub use parse::{
    HAMI_SIZE_FORMS, MEBIBYTES_FORM, Percent, SIZE_FORMS, Size, SizeError, parse_hami_size, parse_mebibytes, parse_size,
};

/// A number of bytes; never bits or KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Bytes(pub u64);

/// 1024 bytes.
pub const KIB: u64 = 1 << 10;
/// 1024 KiB.
pub const MIB: u64 = 1 << 20;
/// 1024 MiB.
pub const GIB: u64 = 1 << 30;
/// 1024 GiB.
pub const TIB: u64 = 1 << 40;

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);
    /// The largest amount; no device has as much.
    pub const MAX: Self = Self(u64::MAX);

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, or `None` if it does not fit.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The sum, at most [`Bytes::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> Self {
        bytes.0
    }
}

/// Exact in every case: `1 GiB`, `1536 MiB`, `1000000 bytes`, `1 byte`.
///
/// Uses the largest binary unit that divides the amount; never rounds.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{} {name}", self.0 / unit);
            }
        }
        write!(f, "{} byte{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_exact_and_short() {
        let shown = |b: u64| Bytes(b).to_string();
        assert_eq!(shown(0), "0 bytes");
        assert_eq!(shown(1), "1 byte");
        assert_eq!(shown(512), "512 bytes");
        assert_eq!(shown(KIB), "1 KiB");
        assert_eq!(shown(1536 * MIB), "1536 MiB");
        assert_eq!(shown(GIB), "1 GiB");
        assert_eq!(shown(GIB + 1), "1073741825 bytes");
        assert_eq!(shown(1_000_000), "1000000 bytes");
        assert_eq!(shown(3 * TIB), "3 TiB");
        assert_eq!(shown(u64::MAX), "18446744073709551615 bytes");
    }

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(Bytes::MAX.saturating_add(Bytes(1)), Bytes::MAX);
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
        assert_eq!(Bytes::MAX.checked_add(Bytes(1)), None);
        assert_eq!(Bytes(2).checked_add(Bytes(3)), Some(Bytes(5)));
    }
}
