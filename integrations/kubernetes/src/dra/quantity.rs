//! Quantities of Kubernetes, such as `5Gi`, `1500M` and `25`. Pure.

/// Bytes of a mebibyte.
pub const MEBIBYTE: u64 = 1 << 20;

/// Suffixes with their factor, as numerator and denominator. Longer ones come first.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("", 1, 1),
];

/// Most digits of a number that is read; no API server writes more.
const MAX_DIGITS: usize = 18;

/// Returns the whole part of a quantity; `None`: it is none, is negative, or is beyond 2^64.
#[must_use]
pub fn parse_quantity(text: &str) -> Option<u64> {
    if let Some((number, exponent)) = text.split_once(['e', 'E']).filter(|(_, exponent)| !exponent.is_empty()) {
        let exponent: i32 = exponent.parse().ok().filter(|exponent: &i32| exponent.abs() <= 18)?;
        let power = 10_u128.pow(exponent.unsigned_abs());
        return if exponent < 0 { scale_decimal(number, 1, power) } else { scale_decimal(number, power, 1) };
    }
    let (suffix, over, under) = SUFFIXES.into_iter().find(|(suffix, ..)| text.ends_with(suffix))?;
    scale_decimal(text.strip_suffix(suffix)?, over, under)
}

/// Returns the whole part of a decimal number multiplied by a fraction.
fn scale_decimal(number: &str, over: u128, under: u128) -> Option<u64> {
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{part}");
    let is_number = (1..=MAX_DIGITS).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let value: u128 = digits.parse().ok().filter(|_| is_number)?;
    let under = under.checked_mul(10_u128.checked_pow(u32::try_from(part.len()).ok()?)?)?;
    u64::try_from(value.checked_mul(over)? / under).ok()
}

/// Returns a size as a quantity in mebibytes, rounded down.
#[must_use]
pub fn format_mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes / MEBIBYTE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_the_api_server_writes_them() {
        for (text, value) in [
            ("5Gi", 5 << 30),
            ("0", 0),
            ("25", 25),
            ("1.5Gi", 3 << 29),
            ("1500M", 1_500_000_000),
            ("1e3", 1000),
            ("12E2", 1200),
            ("2500m", 2),
            ("128974848", 128_974_848),
            ("123Mi", 123 << 20),
            ("16E", 16_000_000_000_000_000_000),
            ("+7", 7),
            ("1500e-3", 1),
        ] {
            assert_eq!(parse_quantity(text), Some(value), "{text}");
        }
        for text in ["", "Gi", "-1", "1GiB", "1.2.3", "five", "1e99", "99999999999E", "16Ei", "1 Gi", "0x10", "."] {
            assert_eq!(parse_quantity(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_size_that_was_written_is_read_again(mebibytes in 0..1_u64 << 40) {
            prop_assert_eq!(parse_quantity(&format_mebibytes(mebibytes * MEBIBYTE)), Some(mebibytes * MEBIBYTE));
        }

        #[test]
        fn no_text_is_too_strange(text in ".*") {
            let _ = parse_quantity(&text);
        }
    }
}
