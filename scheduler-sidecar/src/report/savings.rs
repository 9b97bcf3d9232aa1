//! What sharing saves: GPUs of one's own against fewer that are shared, at a price for each GPU and for each who shares.

use serde_json::{Value, json};

use super::apportion::{decimal, rounded};
use super::money::{plain, read_decimal, with_currency};
use super::sheet::{Sheet, Table};

/// Hours of a month, on average.
pub const HOURS: &str = "730";

/// What is compared; amounts and hours in units of 10^-9.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// GPUs of one's own.
    pub dedicated: u32,
    /// GPUs that are shared instead.
    pub shared: u32,
    /// Who share them.
    pub tenants: u32,
    /// A GPU's price for an hour.
    pub gpu_price: Amount,
    /// What each who shares adds to that, for an hour.
    pub tenant_price: Amount,
    /// For so many hours.
    pub hours: Amount,
    /// Written behind amounts.
    pub currency: String,
}

/// A decimal number of at most nine digits behind its point, and below a thousand million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount(u128);

impl Amount {
    /// As it is written.
    ///
    /// # Errors
    /// What is accepted.
    pub fn read(text: &str) -> Result<Self, String> {
        let amount = read_decimal(text).filter(|amount| *amount < 1_000_000_000 * 1_000_000_000);
        amount.map(Self).ok_or_else(|| "a number like 2.24, with at most 9 decimals, below 1000000000".into())
    }
}

/// The answer, in hundredths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Savings {
    /// What was asked.
    pub question: Question,
    /// What GPUs of one's own cost.
    pub dedicated: u128,
    /// What sharing costs.
    pub shared: u128,
}

/// Computes it.
#[must_use]
pub fn savings(question: Question) -> Savings {
    let cost = |each: u128, number: u32| each.saturating_mul(u128::from(number));
    // Hundredths of what is in units of 10^-18.
    let hundredths = |hourly: u128| rounded(hourly.saturating_mul(question.hours.0), 10_u128.pow(16));
    let dedicated = hundredths(cost(question.gpu_price.0, question.dedicated));
    let shared = hundredths(
        cost(question.gpu_price.0, question.shared).saturating_add(cost(question.tenant_price.0, question.tenants)),
    );
    Savings { question, dedicated, shared }
}

impl Savings {
    /// Hundredths that are saved, with a sign.
    #[must_use]
    pub fn saved(&self) -> String {
        let (sign, amount) = if self.shared > self.dedicated {
            ("-", self.shared - self.dedicated)
        } else {
            ("", self.dedicated - self.shared)
        };
        format!("{sign}{}", decimal(amount, 2))
    }

    /// The same as tenths of a percent of what GPUs of one's own cost; `None`: they cost nothing.
    #[must_use]
    pub fn percent(&self) -> Option<String> {
        if self.dedicated == 0 {
            return None;
        }
        let sign = if self.shared > self.dedicated { "-" } else { "" };
        let permille = rounded(self.shared.abs_diff(self.dedicated).saturating_mul(1000), self.dedicated);
        Some(format!("{sign}{}", decimal(permille, 1)))
    }

    /// For people.
    #[must_use]
    pub fn sheet(&self) -> Sheet {
        let question = &self.question;
        let (price, more, hours) =
            (plain(question.gpu_price.0), plain(question.tenant_price.0), plain(question.hours.0));
        let row = |name: &str, how: String, amount: u128| {
            vec![name.to_owned(), how, with_currency(&decimal(amount, 2), &question.currency)]
        };
        let rows = vec![
            row("dedicated", format!("{} x {price} x {hours} h", question.dedicated), self.dedicated),
            row(
                "shared",
                format!("({} x {price} + {} x {more}) x {hours} h", question.shared, question.tenants),
                self.shared,
            ),
        ];
        let percent = self.percent().map_or(String::new(), |percent| format!("{percent} %"));
        let total = vec!["saved".into(), percent, with_currency(&self.saved(), &question.currency)];
        let heads = ["", "how", "cost"].map(str::to_owned).to_vec();
        let table = Table { heads, words: 2, rows, total: Some(total), ..Table::default() };
        Sheet {
            title: "What sharing saves".into(),
            tables: vec![table],
            notes: vec![
                "Arithmetic on the prices that were given: what sharing costs in speed is measured by vgpu validate."
                    .into(),
            ],
            ..Sheet::default()
        }
    }

    /// For programs: amounts are texts, since they are exact.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "dedicated": decimal(self.dedicated, 2),
            "shared": decimal(self.shared, 2),
            "saved": self.saved(),
            "saved_percent": self.percent(),
            "hours": plain(self.question.hours.0),
            "currency": self.question.currency,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(dedicated: u32, shared: u32, tenants: u32, gpu: &str, tenant: &str) -> Question {
        let amount = |text: &str| Amount::read(text).unwrap();
        let (gpu_price, tenant_price, hours) = (amount(gpu), amount(tenant), amount(HOURS));
        Question { dedicated, shared, tenants, gpu_price, tenant_price, hours, currency: String::new() }
    }

    #[test]
    fn two_gpus_against_a_shared_one_save_46_4_percent() {
        let savings = savings(question(2, 1, 2, "2.24", "0.08"));
        assert_eq!((decimal(savings.dedicated, 2), decimal(savings.shared, 2)), ("3270.40".into(), "1752.00".into()));
        assert_eq!((savings.saved(), savings.percent()), ("1518.40".into(), Some("46.4".into())));
    }

    #[test]
    fn what_costs_more_is_saved_with_a_minus_and_of_nothing_there_is_no_part() {
        let more = savings(question(1, 1, 2, "2.24", "0.08"));
        assert_eq!((more.saved(), more.percent()), ("-116.80".into(), Some("-7.1".into())));
        assert_eq!(savings(question(0, 1, 1, "1", "0")).percent(), None);
        assert!(["", "-1", "1,5", "1e9", "1000000000"].iter().all(|text| Amount::read(text).is_err()));
    }
}
