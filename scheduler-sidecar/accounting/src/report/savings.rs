//! Estimates the savings of sharing: compares dedicated GPUs with fewer shared ones, at a price for each GPU and each
//! tenant.

use serde_json::{Value, json};

use super::apportion::{format_decimal, round_half_up};
use super::money::{plain_decimal, read_decimal, with_currency};
use super::sheet::{ReportSheet, SheetTable};

/// Average hours in a month.
pub const HOURS_PER_MONTH: &str = "730";

/// Units in an amount of 1.
const AMOUNT_UNIT: u128 = 1_000_000_000;

/// The two setups to compare; amounts and hours in units of 10^-9.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavingsQuestion {
    /// Given: number of GPUs in the setup with dedicated ones.
    pub dedicated: u32,
    /// Number of shared GPUs.
    pub shared: u32,
    /// Number of tenants that share the shared GPUs.
    pub tenants: u32,
    /// Price of a GPU for an hour.
    pub gpu_price: DecimalAmount,
    /// Additional price of each tenant for an hour.
    pub tenant_price: DecimalAmount,
    /// Number of hours that are compared.
    pub hours: DecimalAmount,
    /// Revenue lost through added latency; `None`: not asked about.
    pub latency: Option<LatencyCost>,
    /// Currency written after amounts; empty for none.
    pub currency: String,
}

/// Cost of added latency: the percent of the revenue lost for each 100 ms. In units of 10^-9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyCost {
    /// Milliseconds by which answers take longer than on a dedicated GPU.
    pub added_ms: DecimalAmount,
    /// Percent of the revenue lost for each 100 ms.
    pub loss: DecimalAmount,
    /// Revenue earned in an hour.
    pub revenue: DecimalAmount,
}

/// A decimal number with at most nine decimals, below 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecimalAmount(u128);

impl DecimalAmount {
    /// Reads a number as written.
    ///
    /// # Errors
    /// The accepted form.
    pub fn read(text: &str) -> Result<Self, String> {
        let amount = read_decimal(text).filter(|amount| *amount < 1_000_000_000 * 1_000_000_000);
        amount.map(Self).ok_or_else(|| "a number like 2.24, with at most 9 decimals, below 1000000000".into())
    }
}

/// The result, in hundredths of the currency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Savings {
    /// Question that these costs answer.
    pub question: SavingsQuestion,
    /// Cost of the dedicated GPUs.
    pub dedicated: u128,
    /// Cost of the shared GPUs.
    pub shared: u128,
    /// Cost of the added latency, at most the whole revenue; 0 without a question about latency.
    pub lost: u128,
}

/// Computes the savings.
#[must_use]
pub fn compute_savings(question: SavingsQuestion) -> Savings {
    let cost = |each: u128, number: u32| each.saturating_mul(u128::from(number));
    // Converts units of 10^-18 for an hour into hundredths for all hours.
    let hundredths = |hourly: u128| round_half_up(hourly.saturating_mul(question.hours.0), 10_u128.pow(16));
    let dedicated = hundredths(cost(question.gpu_price.0, question.dedicated));
    let shared = hundredths(
        cost(question.gpu_price.0, question.shared).saturating_add(cost(question.tenant_price.0, question.tenants)),
    );
    let lost = question.latency.map_or(0, |latency| {
        // Milliseconds times percent for each 100 ms, in units of 10^-18. A value of 10 000 loses the whole revenue;
        // it is capped there.
        let part = latency.added_ms.0.saturating_mul(latency.loss.0).min(10_000 * AMOUNT_UNIT * AMOUNT_UNIT);
        hundredths(round_half_up(
            latency.revenue.0.saturating_mul(round_half_up(part, AMOUNT_UNIT)),
            10_000 * AMOUNT_UNIT,
        ))
    });
    Savings { question, dedicated, shared, lost }
}

/// Formats a difference of hundredths with a sign.
fn signed_difference(from: u128, less: u128) -> String {
    format!("{}{}", if less > from { "-" } else { "" }, format_decimal(from.abs_diff(less), 2))
}

impl Savings {
    /// Returns the saved amount, with a sign.
    #[must_use]
    pub fn saved_text(&self) -> String {
        signed_difference(self.dedicated, self.shared)
    }

    /// Returns the saved amount less the cost of the added latency.
    #[must_use]
    pub fn net_text(&self) -> String {
        signed_difference(self.dedicated, self.shared.saturating_add(self.lost))
    }

    /// Returns the saved part of the dedicated cost in percent; `None` if that cost is zero.
    #[must_use]
    pub fn percent_text(&self) -> Option<String> {
        if self.dedicated == 0 {
            return None;
        }
        let sign = if self.shared > self.dedicated { "-" } else { "" };
        let permille = round_half_up(self.shared.abs_diff(self.dedicated).saturating_mul(1000), self.dedicated);
        Some(format!("{sign}{}", format_decimal(permille, 1)))
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self) -> ReportSheet {
        let question = &self.question;
        let (price, more, hours) = (
            plain_decimal(question.gpu_price.0),
            plain_decimal(question.tenant_price.0),
            plain_decimal(question.hours.0),
        );
        let row = |name: &str, how: String, amount: u128| {
            vec![name.to_owned(), how, with_currency(&format_decimal(amount, 2), &question.currency)]
        };
        let rows = vec![
            row("dedicated", format!("{} x {price} x {hours} h", question.dedicated), self.dedicated),
            row(
                "shared",
                format!("({} x {price} + {} x {more}) x {hours} h", question.shared, question.tenants),
                self.shared,
            ),
        ];
        let mut rows = rows;
        let mut then = Vec::new();
        if let Some(LatencyCost { added_ms, loss, revenue }) = question.latency {
            let (added, loss, revenue) = (plain_decimal(added_ms.0), plain_decimal(loss.0), plain_decimal(revenue.0));
            let how = format!("{revenue} x {hours} h x {loss} % x {added} ms / 100 ms");
            rows.push(row("lost by latency", how, self.lost));
            then.push((
                "saved, minus the cost of latency".to_owned(),
                with_currency(&self.net_text(), &question.currency),
            ));
        }
        let percent = self.percent_text().map_or(String::new(), |percent| format!("{percent} %"));
        let total = vec!["saved".into(), percent, with_currency(&self.saved_text(), &question.currency)];
        let heads = ["", "how", "cost"].map(str::to_owned).to_vec();
        let table = SheetTable { heads, words: 2, rows, total: Some(total), ..SheetTable::default() };
        ReportSheet {
            title: "What sharing saves".into(),
            facts: then,
            tables: vec![table],
            notes: vec![
                "These are sums of the given prices; vgpu validate measures what sharing costs in speed.".into(),
            ],
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON; amounts are strings because they are exact.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "dedicated": format_decimal(self.dedicated, 2),
            "shared": format_decimal(self.shared, 2),
            "saved": self.saved_text(),
            "saved_percent": self.percent_text(),
            "lost_by_latency": self.question.latency.map(|_| format_decimal(self.lost, 2)),
            "net": self.question.latency.map(|_| self.net_text()),
            "hours": plain_decimal(self.question.hours.0),
            "currency": self.question.currency,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(dedicated: u32, shared: u32, tenants: u32, gpu: &str, tenant: &str) -> SavingsQuestion {
        let amount = |text: &str| DecimalAmount::read(text).unwrap();
        let (gpu_price, tenant_price, hours) = (amount(gpu), amount(tenant), amount(HOURS_PER_MONTH));
        SavingsQuestion {
            dedicated,
            shared,
            tenants,
            gpu_price,
            tenant_price,
            hours,
            latency: None,
            currency: String::new(),
        }
    }

    #[test]
    fn two_gpus_against_a_shared_one_save_46_4_percent() {
        let savings = compute_savings(question(2, 1, 2, "2.24", "0.08"));
        assert_eq!(
            (format_decimal(savings.dedicated, 2), format_decimal(savings.shared, 2)),
            ("3270.40".into(), "1752.00".into())
        );
        assert_eq!((savings.saved_text(), savings.percent_text()), ("1518.40".into(), Some("46.4".into())));
    }

    #[test]
    fn what_latency_costs_is_taken_off_and_is_at_most_all_that_is_earned() {
        let amount = |text: &str| DecimalAmount::read(text).unwrap();
        let with = |added: &str, loss: &str, revenue: &str| {
            let latency = LatencyCost { added_ms: amount(added), loss: amount(loss), revenue: amount(revenue) };
            let savings =
                compute_savings(SavingsQuestion { latency: Some(latency), ..question(2, 1, 2, "2.24", "0.08") });
            (format_decimal(savings.lost, 2), savings.net_text())
        };
        // 1 % for each 100 ms at a revenue of 10 an hour: 618 ms lose 6.18 % of 7300.
        assert_eq!(with("618", "1", "10"), ("451.14".into(), "1067.26".into()));
        assert_eq!(with("618", "1", "100"), ("4511.40".into(), "-2993.00".into()));
        assert_eq!(with("50", "0.5", "1"), ("1.83".into(), "1516.57".into()), "1.825 of 730");
        assert_eq!(with("0", "1", "100"), ("0.00".into(), "1518.40".into()));
        assert_eq!(with("100000", "50", "1"), ("730.00".into(), "788.40".into()), "no more than there is");
        let most = "999999999";
        assert_eq!(with(most, most, most).0, "729999999270.00");
    }

    #[test]
    fn what_costs_more_is_saved_with_a_minus_and_of_nothing_there_is_no_part() {
        let more = compute_savings(question(1, 1, 2, "2.24", "0.08"));
        assert_eq!((more.saved_text(), more.percent_text()), ("-116.80".into(), Some("-7.1".into())));
        assert_eq!(compute_savings(question(0, 1, 1, "1", "0")).percent_text(), None);
        assert!(["", "-1", "1,5", "1e9", "1000000000"].iter().all(|text| DecimalAmount::read(text).is_err()));
    }
}
