//! Parses sizes: `1.5GiB`, `25%`, `unlimited`; and the smaller syntax of HAMi's schedulers.
//!
//! This file reads only the value. [`crate::limits`] adds the variable's name and the message for a person.

use core::fmt;

use super::{Bytes, GIB, KIB, MIB, TIB};
use crate::units::decimal::{Decimal, NumberError, trim_spaces};

/// A share of a device's memory, in millionths: `12.5%` is 125,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// The whole device.
    pub const WHOLE: Self = Self(1_000_000);

    /// A share from millionths; `None` outside `1..=1_000_000`.
    #[must_use]
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths >= 1 && millionths <= Self::WHOLE.0 { Some(Self(millionths)) } else { None }
    }

    /// This share of `total`, rounded down to the byte.
    #[must_use]
    pub fn part_of(self, total: Bytes) -> Bytes {
        let bytes = u128::from(total.0) * u128::from(self.0) / u128::from(Self::WHOLE.0);
        // At most `total`, because the share is at most 100 %.
        Bytes(u64::try_from(bytes).unwrap_or(total.0))
    }
}

/// A parsed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A number of bytes, at least one.
    Bytes(Bytes),
    /// A part of the device to which it is applied.
    Percent(Percent),
    /// No limit.
    Unlimited,
}

impl Size {
    /// The limit in bytes on a device with `total` bytes; `None`: no limit.
    #[must_use]
    pub fn to_bytes(self, total: Bytes) -> Option<Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Percent(percent) => Some(percent.part_of(total)),
            Self::Unlimited => None,
        }
    }
}

/// Reasons why a text is not a size. `Display` writes the predicate of a sentence: `"abc" is not a size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// The number itself is invalid.
    Number(NumberError),
    /// The number is valid, but no known unit follows.
    UnknownUnit,
    /// White space between the parts.
    InnerSpace,
    /// Zero: as a limit it would allow nothing, and our syntax does not use it for "no limit".
    Zero,
    /// A fraction without a unit, or a fraction of a byte.
    FractionOfByte,
    /// More than 100 % of the device.
    OverHundred,
    /// Below one byte, or below a ten-thousandth of a percent, after rounding down.
    TooSmall,
    /// A percentage with more than four decimals.
    TooManyDecimals,
}

impl From<NumberError> for SizeError {
    fn from(error: NumberError) -> Self {
        Self::Number(error)
    }
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number(NumberError::NotANumber) => "is not a size",
            Self::Number(number) => return number.fmt(f),
            Self::UnknownUnit => "has an unknown unit",
            Self::InnerSpace => "has a space inside",
            Self::Zero => "is zero",
            Self::FractionOfByte => "is a fraction of a byte (a unit is missing)",
            Self::OverHundred => "is more than 100%",
            Self::TooSmall => "is less than one byte",
            Self::TooManyDecimals => "has more than four decimals",
        })
    }
}

impl core::error::Error for SizeError {}

/// The syntax of [`parse_size`], for error messages.
pub const SIZE_FORMS: &str = "bytes or a number with K, M, G, T, KiB..TiB (1024) or KB..TB (1000) like 1.5GiB, \
                              a percentage of the device like 25%, or unlimited";

/// The syntax of [`parse_hami_size`], for error messages.
pub const HAMI_SIZE_FORMS: &str =
    "bytes or a number with k, m, g or t (1024, with b or ib too) like 1024m, or 0 for no limit";

/// Reads a size in the syntax of our own variables.
///
/// - `K M G T` and `Ki..Ti`, `KiB..TiB`, in any case: powers of 1024; `KB..TB`: powers of 1000.
/// - No unit or `B`: bytes. A leading zero is decimal. Fractions are exact, rounded down to the byte.
/// - `25%`, `12.5%`: of the device, at most four decimals, at most 100.
/// - `unlimited`, in any case.
/// - White space (ASCII) around the size is ignored.
///
/// # Errors
/// [`SizeError`], one variant per reason; zero is an error, because `0` could mean two things.
pub fn parse_size(text: &str) -> Result<Size, SizeError> {
    let text = trim_spaces(text);
    if text.eq_ignore_ascii_case("unlimited") {
        return Ok(Size::Unlimited);
    }
    let (number, unit) = Decimal::parse_prefix(text)?;
    if unit == "%" {
        return parse_percent(&number).map(Size::Percent);
    }
    let scale = parse_unit(unit)?;
    if number.is_zero() {
        return Err(SizeError::Zero);
    }
    scale_number(&number, scale).map(Size::Bytes)
}

/// Reads a size in the syntax of HAMi's schedulers; `0` is [`Size::Unlimited`].
///
/// Digits, then a unit of which only the first letter counts (`k m g t`, any case), always as a power of 1024.
/// `1024MiB` and `1g` are both 1 GiB, `2gb` is 2 GiB. No letter: bytes. After the letter only the rest of a unit may
/// follow (`i`, `b`, `ib`).
///
/// HAMi's own parser differs in two points. It knows one letter, at the end, so `2gb` is 2 bytes there. It stops at a
/// decimal point, so `1.5g`, exactly 1.5 GiB here, is 1 GiB there.
///
/// # Errors
/// [`SizeError`] for everything else, including percentages and words.
pub fn parse_hami_size(text: &str) -> Result<Size, SizeError> {
    let (number, unit) = Decimal::parse_prefix(trim_spaces(text))?;
    let scale = match parse_unit(unit)? {
        1 => 1,
        1_000 | KIB => KIB,
        1_000_000 | MIB => MIB,
        1_000_000_000 | GIB => GIB,
        _ => TIB,
    };
    if number.is_zero() {
        return Ok(Size::Unlimited);
    }
    scale_number(&number, scale).map(Size::Bytes)
}

/// The syntax of [`parse_mebibytes`], for error messages.
pub const MEBIBYTES_FORM: &str = "a whole number of MiB without a unit like 4096";

/// Reads a size as NVIDIA's container toolkit does: a whole number of MiB, without a unit.
///
/// # Errors
/// [`SizeError`] for everything else, zero included.
pub fn parse_mebibytes(text: &str) -> Result<Size, SizeError> {
    let (number, unit) = Decimal::parse_prefix(trim_spaces(text))?;
    if !unit.is_empty() {
        return Err(SizeError::UnknownUnit);
    }
    if number.is_zero() {
        return Err(SizeError::Zero);
    }
    scale_number(&number, 1)?; // a fraction is an error without a unit
    scale_number(&number, MIB).map(Size::Bytes)
}

/// The bytes of a unit; no unit and `B` are 1.
fn parse_unit(unit: &str) -> Result<u64, SizeError> {
    const UNITS: [(&str, u64); 18] = [
        ("", 1),
        ("b", 1),
        ("k", KIB),
        ("ki", KIB),
        ("kib", KIB),
        ("kb", 1_000),
        ("m", MIB),
        ("mi", MIB),
        ("mib", MIB),
        ("mb", 1_000_000),
        ("g", GIB),
        ("gi", GIB),
        ("gib", GIB),
        ("gb", 1_000_000_000),
        ("t", TIB),
        ("ti", TIB),
        ("tib", TIB),
        ("tb", 1_000_000_000_000),
    ];
    match UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        Some((_, bytes)) => Ok(*bytes),
        None if unit.bytes().any(|b| b.is_ascii_whitespace()) => Err(SizeError::InnerSpace),
        None => Err(SizeError::UnknownUnit),
    }
}

fn scale_number(number: &Decimal<'_>, unit: u64) -> Result<Bytes, SizeError> {
    if unit == 1 && number.count_decimals() > 0 {
        return Err(SizeError::FractionOfByte);
    }
    match number.checked_times(unit) {
        None => Err(SizeError::Number(NumberError::TooLarge)),
        Some(0) => Err(SizeError::TooSmall),
        Some(bytes) => Ok(Bytes(bytes)),
    }
}

fn parse_percent(number: &Decimal<'_>) -> Result<Percent, SizeError> {
    if number.is_zero() {
        return Err(SizeError::Zero);
    }
    if number.count_decimals() > 4 {
        return Err(SizeError::TooManyDecimals);
    }
    number
        .checked_times(10_000)
        .and_then(|millionths| u32::try_from(millionths).ok())
        .and_then(Percent::from_millionths)
        .ok_or(SizeError::OverHundred)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        match parse_size(text) {
            Ok(Size::Bytes(bytes)) => bytes.0,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn hami(text: &str) -> u64 {
        match parse_hami_size(text) {
            Ok(Size::Bytes(bytes)) => bytes.0,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn letters_are_powers_of_1024_in_any_case() {
        for (unit, factor) in [("k", KIB), ("m", MIB), ("g", GIB), ("t", TIB)] {
            for suffix in ["", "i", "ib", "iB", "IB", "I"] {
                for unit in [unit.to_owned(), unit.to_uppercase()] {
                    assert_eq!(bytes(&format!("3{unit}{suffix}")), 3 * factor, "{unit}{suffix}");
                }
            }
        }
    }

    #[test]
    fn kb_to_tb_are_powers_of_1000_in_any_case() {
        assert_eq!(bytes("1KB"), 1_000);
        assert_eq!(bytes("1mb"), 1_000_000);
        assert_eq!(bytes("2Gb"), 2_000_000_000);
        assert_eq!(bytes("1.5TB"), 1_500_000_000_000);
    }

    #[test]
    fn a_bare_number_is_bytes_and_a_leading_zero_is_decimal() {
        assert_eq!(bytes("1073741824"), GIB);
        assert_eq!(bytes("512B"), 512);
        assert_eq!(bytes("512b"), 512);
        assert_eq!(bytes("010G"), 10 * GIB);
        assert_eq!(bytes("0008"), 8);
        assert_eq!(bytes("18446744073709551615"), u64::MAX);
    }

    #[test]
    fn fractions_are_exact_and_rounded_down() {
        assert_eq!(bytes("1.5GiB"), 3 * GIB / 2);
        assert_eq!(bytes("0.5k"), 512);
        assert_eq!(bytes("0.0009765625K"), 1);
        assert_eq!(bytes("1.9999999999999999999999999999999999999999999999K"), 2047);
        // One byte of a TiB has forty decimals, and all of them count.
        assert_eq!(bytes("0.0000000000009094947017729282379150390625T"), 1);
        assert_eq!(parse_size("0.0000000000009094947017729282379150390624T"), Err(SizeError::TooSmall));
        assert_eq!(bytes("1.0"), 1, "a fraction of nothing is no fraction");
        assert_eq!(bytes("16777215.99999999999999999999T"), u64::MAX, "the largest there is");
    }

    #[test]
    fn percentages_are_of_the_device() {
        let of = |text: &str, total: u64| parse_size(text).unwrap().to_bytes(Bytes(total)).unwrap().0;
        assert_eq!(of("25%", 16 * GIB), 4 * GIB);
        assert_eq!(of("12.5%", 16 * GIB), 2 * GIB);
        assert_eq!(of("100%", u64::MAX), u64::MAX);
        assert_eq!(of("100.0000%", 7), 7);
        assert_eq!(of("33.3333%", 1_000_000), 333_333);
        assert_eq!(of("0.0001%", 1_000_000), 1);
        assert_eq!(of("99.9999%", u64::MAX), 18_446_725_626_965_477_905);
    }

    #[test]
    fn unlimited_is_a_word_and_white_space_around_is_dropped() {
        for text in ["unlimited", "UNLIMITED", " Unlimited\n"] {
            assert_eq!(parse_size(text), Ok(Size::Unlimited));
        }
        assert_eq!(bytes(" \t1GiB \r\n"), GIB);
        assert_eq!(parse_size("unlimited").unwrap().to_bytes(Bytes(1)), None);
    }

    #[test]
    fn each_bad_size_has_its_own_reason() {
        use NumberError as N;
        use SizeError as S;
        let rows: &[(&str, SizeError)] = &[
            ("", S::Number(N::Empty)),
            (" \t ", S::Number(N::Empty)),
            ("-1G", S::Number(N::Negative)),
            ("-0", S::Number(N::Negative)),
            ("+1G", S::Number(N::NotANumber)),
            ("abc", S::Number(N::NotANumber)),
            ("G", S::Number(N::NotANumber)),
            ("%", S::Number(N::NotANumber)),
            ("unlimitedd", S::Number(N::NotANumber)),
            ("$1G", S::Number(N::NotANumber)),
            ("\"1G\"", S::Number(N::NotANumber)),
            ("inf", S::Number(N::NotANumber)),
            (".5G", S::Number(N::LoneDot)),
            ("5.G", S::Number(N::LoneDot)),
            ("5.", S::Number(N::LoneDot)),
            (".", S::Number(N::NotANumber)),
            ("1.2.3G", S::Number(N::TwoDots)),
            ("1..2G", S::Number(N::TwoDots)),
            ("1,5G", S::Number(N::Comma)),
            ("0x10", S::Number(N::Hex)),
            ("0X10G", S::Number(N::Hex)),
            ("1e9", S::Number(N::Exponent)),
            ("1E+9", S::Number(N::Exponent)),
            ("\u{ff11}GiB", S::Number(N::NotAscii)),
            ("1\u{212a}", S::Number(N::NotAscii)),
            ("1\u{a0}G", S::Number(N::NotAscii)),
            ("18446744073709551616", S::Number(N::TooLarge)),
            ("16777216T", S::Number(N::TooLarge)),
            ("99999999999999999999999999999999", S::Number(N::TooLarge)),
            ("1Q", S::UnknownUnit),
            ("1E", S::UnknownUnit),
            ("1PiB", S::UnknownUnit),
            ("1GiBs", S::UnknownUnit),
            ("1G1", S::UnknownUnit),
            ("1_000", S::UnknownUnit),
            ("1%%", S::UnknownUnit),
            ("1\0", S::UnknownUnit),
            ("1 GiB", S::InnerSpace),
            ("1 000", S::InnerSpace),
            ("25 %", S::InnerSpace),
            ("0", S::Zero),
            ("00", S::Zero),
            ("0.0G", S::Zero),
            ("0%", S::Zero),
            ("1.5", S::FractionOfByte),
            ("1.5B", S::FractionOfByte),
            ("0.0001K", S::TooSmall),
            ("101%", S::OverHundred),
            ("100.0001%", S::OverHundred),
            ("99999999999999999999%", S::Number(N::TooLarge)),
            ("18446744073709551615%", S::OverHundred),
            ("12.34567%", S::TooManyDecimals),
        ];
        for (text, error) in rows {
            assert_eq!(parse_size(text), Err(*error), "{text:?}");
        }
    }

    #[test]
    fn hami_counts_the_first_letter_by_1024_and_zero_is_no_limit() {
        assert_eq!(hami("1024MiB"), GIB);
        assert_eq!(hami("1024m"), GIB);
        assert_eq!(hami("2gb"), 2 * GIB);
        assert_eq!(hami("2GB"), 2 * GIB);
        assert_eq!(hami("3K"), 3 * KIB);
        assert_eq!(hami("1kb"), KIB);
        assert_eq!(hami("1MB"), MIB);
        assert_eq!(hami("1tb"), TIB);
        assert_eq!(hami("4096"), 4096);
        assert_eq!(hami("4096b"), 4096);
        assert_eq!(hami("010g"), 10 * GIB, "decimal, not octal");
        assert_eq!(hami("1.5g"), 3 * GIB / 2);
        for none in ["0", "0m", "000", "0.0g"] {
            assert_eq!(parse_hami_size(none), Ok(Size::Unlimited), "{none}");
        }
    }

    #[test]
    fn hami_nonsense_is_an_error() {
        for text in ["", "abc", "-1", "1Q", "2garbage", "25%", "unlimited", "1 g", "0x10", "1e3", "1.5", "99999999999g"]
        {
            assert!(parse_hami_size(text).is_err(), "{text:?}");
        }
    }
}
