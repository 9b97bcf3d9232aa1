//! Parses a decimal number at the start of a text, for both sizes and shares.
//!
//! Integer arithmetic only, any number of fraction digits, no floating point. [`crate::units::bytes`] and
//! [`crate::units::share`] parse units and percent signs and check ranges.

use core::fmt;

/// An unsigned decimal number, not yet scaled: `1.5` is `whole = 1`, `fraction = b"5"`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal<'a> {
    whole: u64,
    fraction: &'a [u8],
}

/// Reasons why a text does not start with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberError {
    /// Nothing but white space.
    Empty,
    /// A minus sign at the start.
    Negative,
    /// No digit where a number should start.
    NotANumber,
    /// A byte outside ASCII: digits and units are ASCII only.
    NotAscii,
    /// More than one decimal point.
    TwoDots,
    /// A decimal point without a digit on both sides.
    LoneDot,
    /// A comma, which is a decimal point to some readers and a separator to others.
    Comma,
    /// A hexadecimal number: `0x...`.
    Hex,
    /// A number with an exponent: `1e9`.
    Exponent,
    /// Does not fit into 64 bits.
    TooLarge,
}

impl fmt::Display for NumberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::Negative => "is negative",
            Self::NotANumber => "is not a number",
            Self::NotAscii => "has characters outside ASCII",
            Self::TwoDots => "has two decimal points",
            Self::LoneDot => "has a decimal point without digits on both sides",
            Self::Comma => "has a comma (write a decimal point)",
            Self::Hex => "is hexadecimal (write a decimal number)",
            Self::Exponent => "has an exponent (write the number out)",
            Self::TooLarge => "is too large",
        })
    }
}

impl<'a> Decimal<'a> {
    /// Splits `text` (already trimmed) into the number it starts with and the rest.
    pub(crate) fn parse_prefix(text: &'a str) -> Result<(Self, &'a str), NumberError> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(NumberError::Empty);
        }
        if !text.is_ascii() {
            return Err(NumberError::NotAscii);
        }
        match bytes[0] {
            b'-' => return Err(NumberError::Negative),
            b'.' if bytes.get(1).is_some_and(u8::is_ascii_digit) => return Err(NumberError::LoneDot),
            b'0'..=b'9' => {}
            _ => return Err(NumberError::NotANumber),
        }
        let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
        let mut rest = &text[digits..];
        let mut fraction: &[u8] = &[];
        if let Some(after) = rest.strip_prefix('.') {
            let n = after.bytes().take_while(u8::is_ascii_digit).count();
            if n == 0 {
                return Err(if after.starts_with('.') { NumberError::TwoDots } else { NumberError::LoneDot });
            }
            fraction = &after.as_bytes()[..n];
            rest = &after[n..];
        }
        match rest.as_bytes() {
            [b'.', ..] => return Err(NumberError::TwoDots),
            [b',', ..] => return Err(NumberError::Comma),
            [b'x' | b'X', ..] if digits == 1 && bytes[0] == b'0' => return Err(NumberError::Hex),
            [b'e' | b'E', b'0'..=b'9' | b'+' | b'-', ..] => return Err(NumberError::Exponent),
            _ => {}
        }
        let mut whole: u64 = 0;
        for digit in &bytes[..digits] {
            whole = whole
                .checked_mul(10)
                .and_then(|w| w.checked_add(u64::from(digit - b'0')))
                .ok_or(NumberError::TooLarge)?;
        }
        Ok((Self { whole, fraction }, rest))
    }

    /// The number times `unit`, rounded down; `None` if it does not fit.
    ///
    /// Exact for any number of digits: the fraction is folded from its last digit, and
    /// `floor((d * unit + floor(x)) / 10) == floor((d * unit + x) / 10)` for whole `d * unit`.
    pub(crate) fn checked_times(&self, unit: u64) -> Option<u64> {
        let part = self
            .fraction
            .iter()
            .rev()
            .fold(0u128, |below, digit| (u128::from(digit - b'0') * u128::from(unit) + below) / 10);
        self.whole.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
    }

    /// Digits after the decimal point without trailing zeros.
    pub(crate) fn count_decimals(&self) -> usize {
        self.fraction.len() - self.fraction.iter().rev().take_while(|d| **d == b'0').count()
    }

    /// True if the number is exactly zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.whole == 0 && self.count_decimals() == 0
    }
}

/// Removes surrounding ASCII white space, and only that.
pub(crate) fn trim_spaces(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_ascii_whitespace())
}
