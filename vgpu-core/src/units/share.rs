//! Shares of a device's time: [`Share`] and its parsers.
//!
//! [`crate::time::account`] applies a share to a program; [`crate::limits`] reads the variables. A share of memory is
//! [`crate::units::bytes::Percent`].

use core::fmt;

use crate::units::decimal::{Decimal, NumberError, trim_spaces};

/// A part of a device's time in thousandths, from 0.1 % to 100 %: `30 %` is 300.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Share(u16);

impl Share {
    /// 1000 thousandths, the whole device: as a ceiling, no ceiling.
    pub const WHOLE_DEVICE: Self = Self(1000);

    /// A share from thousandths; `None` outside `1..=1000`.
    #[must_use]
    pub const fn from_permille(permille: u32) -> Option<Self> {
        match permille {
            #[expect(clippy::cast_possible_truncation, reason = "at most 1000")]
            1..=1000 => Some(Self(permille as u16)),
            _ => None,
        }
    }

    /// A share from whole percent; `None` outside `1..=100`.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Option<Self> {
        if percent > 100 { None } else { Self::from_permille(percent * 10) }
    }

    /// The share in thousandths, `1..=1000`.
    #[must_use]
    pub const fn as_permille(self) -> u16 {
        self.0
    }

    /// True for the whole device, so that no ceiling needs to be enforced.
    #[must_use]
    pub const fn is_all(self) -> bool {
        self.0 == Self::WHOLE_DEVICE.0
    }

    /// This part of `amount`, rounded down.
    #[must_use]
    pub const fn part_of(self, amount: u64) -> u64 {
        let whole = amount / 1000 * self.0 as u64;
        whole + amount % 1000 * self.0 as u64 / 1000
    }
}

/// Writes percent: `30 %`, `12.5 %`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{} %", self.0 / 10),
            tenth => write!(f, "{}.{tenth} %", self.0 / 10),
        }
    }
}

/// Reasons why a text is not a share. `Display` writes the predicate of a sentence: `"abc" is not a percentage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareError {
    /// The number itself is invalid.
    Number(NumberError),
    /// Something other than `%` after the number.
    Trailing,
    /// Zero: a program that may never launch has no useful limit, and "no limit" has its own word.
    Zero,
    /// Between zero and one percent.
    BelowOne,
    /// More than 100 percent.
    OverHundred,
    /// Digits after the first decimal.
    TooManyDecimals,
}

impl From<NumberError> for ShareError {
    fn from(error: NumberError) -> Self {
        Self::Number(error)
    }
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number(NumberError::NotANumber) => "is not a percentage",
            Self::Number(number) => return number.fmt(f),
            Self::Trailing => "has something after the number",
            Self::Zero => "is zero",
            Self::BelowOne => "is less than 1%",
            Self::OverHundred => "is more than 100%",
            Self::TooManyDecimals => "has more than one decimal",
        })
    }
}

impl core::error::Error for ShareError {}

/// The syntax of [`parse_share`], for error messages.
pub const SHARE_FORMS: &str = "a percentage of the device's time from 1 to 100 like 30 or 12.5%, or unlimited";

/// The syntax of [`parse_request`], for error messages.
pub const REQUEST_FORMS: &str = "a percentage of the device's time from 1 to 100 like 30 or 12.5%";

/// The syntax of [`parse_hami_share`], for error messages.
pub const HAMI_SHARE_FORMS: &str = "a percentage of the device's time from 1 to 99 like 30, or 0 or 100 for no limit";

/// Reads a share in the syntax of our own variables: `30`, `30%`, `12.5`; `None` is `unlimited`.
///
/// # Errors
/// [`ShareError`], one variant per reason; below 1 and above 100 are errors.
pub fn parse_share(text: &str) -> Result<Option<Share>, ShareError> {
    let text = trim_spaces(text);
    if text.eq_ignore_ascii_case("unlimited") {
        return Ok(None);
    }
    parse_request(text).map(Some)
}

/// Reads a floor: as [`parse_share`], but without `unlimited`.
///
/// # Errors
/// [`ShareError`], one variant per reason; below 1 and above 100 are errors.
pub fn parse_request(text: &str) -> Result<Share, ShareError> {
    match parse_permille(trim_spaces(text))? {
        0 => Err(ShareError::Zero),
        1..=9 => Err(ShareError::BelowOne),
        permille => Share::from_permille(permille).ok_or(ShareError::OverHundred),
    }
}

/// Reads a share in the syntax of HAMi's schedulers: `0` and everything from 100 up is no limit (`None`).
///
/// # Errors
/// [`ShareError`]: not a number, more than one decimal, or between 0 and 1 percent.
pub fn parse_hami_share(text: &str) -> Result<Option<Share>, ShareError> {
    match parse_permille(trim_spaces(text))? {
        0 | 1000.. => Ok(None),
        1..=9 => Err(ShareError::BelowOne),
        permille => Ok(Share::from_permille(permille)),
    }
}

/// Parses thousandths. A number too large for the type becomes the maximum, which is above every limit.
fn parse_permille(text: &str) -> Result<u32, ShareError> {
    let (number, rest) = Decimal::parse_prefix(text)?;
    if !matches!(rest, "" | "%") {
        return Err(ShareError::Trailing);
    }
    if number.count_decimals() > 1 {
        return Err(ShareError::TooManyDecimals);
    }
    Ok(number.checked_times(10).and_then(|permille| u32::try_from(permille).ok()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_percents_and_one_decimal_are_taken() {
        let share = |text: &str| parse_share(text).unwrap().unwrap().as_permille();
        assert_eq!(share("1"), 10);
        assert_eq!(share("30"), 300);
        assert_eq!(share("30%"), 300);
        assert_eq!(share(" 12.5% \n"), 125);
        assert_eq!(share("100"), 1000);
        assert_eq!(share("007"), 70);
        assert_eq!(share("30.0"), 300);
        assert_eq!(parse_share("unlimited"), Ok(None));
        assert_eq!(parse_share("Unlimited"), Ok(None));
    }

    #[test]
    fn each_bad_share_has_its_own_reason() {
        use NumberError as N;
        use ShareError as S;
        for (text, error) in [
            ("", S::Number(N::Empty)),
            ("-5", S::Number(N::Negative)),
            ("fifty", S::Number(N::NotANumber)),
            ("30 %", S::Trailing),
            ("30%%", S::Trailing),
            ("30x", S::Trailing),
            ("0x1e", S::Number(N::Hex)),
            ("3e1", S::Number(N::Exponent)),
            ("1.2.3", S::Number(N::TwoDots)),
            ("12,5", S::Number(N::Comma)),
            ("\u{0663}0", S::Number(N::NotAscii)),
            ("0", S::Zero),
            ("0.0", S::Zero),
            ("0.5", S::BelowOne),
            ("100.1", S::OverHundred),
            ("101", S::OverHundred),
            ("18446744073709551615", S::OverHundred),
            ("99999999999999999999", S::Number(N::TooLarge)),
            ("12.25", S::TooManyDecimals),
        ] {
            assert_eq!(parse_share(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_request_is_always_some_time() {
        assert_eq!(parse_request(" 12.5% "), Share::from_permille(125).ok_or(ShareError::Zero));
        assert_eq!(parse_request("100"), Ok(Share::WHOLE_DEVICE));
        for bad in ["unlimited", "0", "0.5", "101", ""] {
            assert!(parse_request(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hami_takes_zero_and_hundred_as_no_limit() {
        for none in ["0", "00", "100", "150", "100%", "18446744073709551615"] {
            assert_eq!(parse_hami_share(none), Ok(None), "{none}");
        }
        assert_eq!(parse_hami_share("30"), Ok(Share::from_percent(30)));
        assert_eq!(parse_hami_share("99"), Ok(Share::from_percent(99)));
        for bad in ["", "abc", "-1", "30x", "unlimited", "0.5"] {
            assert!(parse_hami_share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_part_of_an_amount_is_exact_to_the_unit() {
        let third = Share::from_permille(333).unwrap();
        for amount in [0, 1, 999, 1000, 1001, 50_000_000, u64::MAX] {
            let exact = u64::try_from(u128::from(amount) * 333 / 1000).unwrap();
            assert_eq!(third.part_of(amount), exact, "{amount}");
        }
        assert_eq!(Share::WHOLE_DEVICE.part_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn the_range_is_kept_by_construction() {
        assert_eq!(Share::from_permille(0), None);
        assert_eq!(Share::from_permille(1001), None);
        assert_eq!(Share::from_percent(0), None);
        assert_eq!(Share::from_percent(u32::MAX), None);
        assert_eq!(Share::from_percent(100), Some(Share::WHOLE_DEVICE));
        assert_eq!(Share::from_permille(125).unwrap().to_string(), "12.5 %");
        assert_eq!(Share::WHOLE_DEVICE.to_string(), "100 %");
    }
}
