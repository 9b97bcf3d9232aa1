//! Rates and amounts as exact decimal numbers, without floating point.

use super::apportion::{format_decimal, round_half_up};

/// Decimals of a rate.
const RATE_DIGITS: u32 = 9;
/// Units in an amount of 1.
const RATE_UNIT: u128 = 1_000_000_000;
/// Largest amount of a rate; beyond it products overflow.
const MAX_RATE: u128 = 1_000_000_000 * RATE_UNIT;

/// Accepted forms of a rate, in words.
pub const RATE_FORMS: &str =
    "an amount and the time it is for, like 2.24/h, 0.0006/s, 0.04/min or 1600/month (of 730 h); at most 9 decimals";

/// A price for one GPU or one GiB for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Amount in units of 10^-9.
    amount: u128,
    /// Length in seconds of the time that the amount pays for.
    seconds: u128,
}

impl Rate {
    /// Reads a rate as written.
    ///
    /// # Errors
    /// [`RATE_FORMS`].
    pub fn read(text: &str) -> Result<Self, String> {
        let refused = || RATE_FORMS.to_owned();
        let (amount, per) = text.split_once('/').ok_or_else(refused)?;
        let seconds = match per {
            "s" | "sec" | "second" => 1,
            "min" | "minute" => 60,
            "h" | "hour" => 3600,
            "d" | "day" => 86_400,
            "month" => 730 * 3600,
            _ => return Err(refused()),
        };
        let amount = read_decimal(amount).filter(|amount| *amount <= MAX_RATE).ok_or_else(refused)?;
        Ok(Self { amount, seconds })
    }

    /// Returns the cost of `used`, in units of 10^-`digits`, rounded half up. `one` is the amount of use in one
    /// priced unit for one second. `None` on overflow.
    #[must_use]
    pub fn cost_of(self, used: u128, one: u128, digits: u32) -> Option<u128> {
        let unit = 10_u128.pow(RATE_DIGITS.saturating_sub(digits));
        Some(round_half_up(used.checked_mul(self.amount)?, unit.checked_mul(self.seconds)?.checked_mul(one)?))
    }

    /// Returns the rate in its shortest form.
    #[must_use]
    pub fn to_words(self) -> String {
        let per = match self.seconds {
            1 => "s",
            60 => "min",
            3600 => "h",
            86_400 => "day",
            _ => "month",
        };
        format!("{}/{per}", plain_decimal(self.amount))
    }
}

/// Reads a decimal number, in units of 10^-9.
#[must_use]
pub fn read_decimal(text: &str) -> Option<u128> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(part) || text.ends_with('.') || part.len() > RATE_DIGITS as usize {
        return None;
    }
    let part: u128 = format!("{part:0<9}").parse().ok()?;
    whole.parse::<u128>().ok()?.checked_mul(RATE_UNIT)?.checked_add(part)
}

/// Formats units of 10^-9 as a decimal number without trailing zeros.
#[must_use]
pub fn plain_decimal(amount: u128) -> String {
    let text = format_decimal(amount, RATE_DIGITS);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Appends the currency to an amount, if there is one.
#[must_use]
pub fn with_currency(amount: &str, currency: &str) -> String {
    if currency.is_empty() { amount.to_owned() } else { format!("{amount} {currency}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written_and_nothing_else_is() {
        for (text, words) in
            [("2.24/h", "2.24/h"), ("0.000600/s", "0.0006/s"), ("1600/month", "1600/month"), ("0/d", "0/day")]
        {
            assert_eq!(Rate::read(text).unwrap().to_words(), words);
        }
        for wrong in [
            "2.24",
            "2.24/",
            "/h",
            "-1/h",
            "+1/h",
            "2,24/h",
            "1e3/h",
            "2./h",
            ".5/h",
            "1/year",
            "1.0000000001/h",
            "9999999999/h",
        ] {
            assert_eq!(Rate::read(wrong), Err(RATE_FORMS.into()), "{wrong}");
        }
    }

    #[test]
    fn an_hour_of_a_gpu_costs_the_rate_and_half_a_cent_is_one() {
        let rate = Rate::read("2.24/h").unwrap();
        let ns = 1_000_000_000;
        assert_eq!(rate.cost_of(3600 * ns, ns, 2), Some(224));
        assert_eq!(rate.cost_of(730 * 3600 * ns, ns, 2), Some(163_520));
        assert_eq!(Rate::read("0.01/s").unwrap().cost_of(ns / 2, ns, 2), Some(1));
        assert_eq!(Rate::read("0.01/s").unwrap().cost_of(ns / 2 - 1, ns, 2), Some(0));
        assert_eq!(rate.cost_of(u128::MAX, 1, 2), None);
    }
}
