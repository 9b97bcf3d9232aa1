//! Bills device time and memory at given rates, in parts that sum exactly to the total.
//!
//! Each column's total is rounded once and divided by the largest remainder, so columns add up downwards. A line's
//! cost is the sum of its shown amounts, so lines add up across.

use serde_json::{Value, json};

use super::apportion::{apportion, decimal, rounded};
use super::chart::{Bar, bars};
use super::gather::{By, GIB, Gathered, NS, Used, Whose, place};
use super::money::{Rate, with_currency};
use super::sheet::{Sheet, Table};
use super::usage::{heads, named, whole, with};

/// The rates, and how amounts are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prices {
    /// Rate for the time of one GPU.
    pub gpu: Option<Rate>,
    /// Rate for one GiB held.
    pub memory: Option<Rate>,
    /// Written after amounts; empty for none.
    pub currency: String,
    /// Decimals with which amounts are shown.
    pub digits: u32,
}

/// A line of the bill, with amounts in units of the last decimal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The tenant, group, label or device of the line.
    pub whose: Whose,
    /// Usage that the line charges for.
    pub used: Used,
    /// Device time as shown, in ms.
    pub gpu_ms: u128,
    /// Memory as shown, in thousandths of a GiB-hour.
    pub milli_gib_hours: u128,
    /// Cost of device time.
    pub gpu_cost: u128,
    /// Cost of memory held.
    pub memory_cost: u128,
    /// Part of the whole bill, in tenths of a percent.
    pub permille: u128,
}

impl Line {
    /// Returns the whole cost of the line.
    #[must_use]
    pub const fn cost(&self) -> u128 {
        self.gpu_cost + self.memory_cost
    }
}

/// The bill: cost of recorded usage by the given rates.
#[derive(Debug, Clone)]
pub struct Bill {
    /// Lines, highest cost first, unattributed ones last.
    pub lines: Vec<Line>,
    /// Columns by which lines are grouped.
    pub by: Vec<By>,
    /// Rates that the amounts were computed with.
    pub prices: Prices,
}

/// Makes the bill; `None` if an amount overflows.
#[must_use]
pub fn bill(gathered: &Gathered, prices: &Prices) -> Option<Bill> {
    let lines: Vec<(Whose, Used)> = gathered.sorted(|used| used.gpu_ns);
    let gpu: Vec<u128> = lines.iter().map(|(_, used)| used.gpu_ns).collect();
    let memory: Vec<u128> = lines.iter().map(|(_, used)| used.byte_seconds).collect();
    let (all_gpu, all_memory): (u128, u128) = (gpu.iter().sum(), memory.iter().sum());
    let cost = |rate: Option<Rate>, used, one| rate.map_or(Some(0), |rate| rate.cost(used, one, prices.digits));
    let gpu_cost = apportion(cost(prices.gpu, all_gpu, NS)?, &gpu);
    let memory_cost = apportion(cost(prices.memory, all_memory, GIB)?, &memory);
    let together: Vec<u128> = gpu_cost.iter().zip(&memory_cost).map(|(gpu, memory)| gpu + memory).collect();
    let permille = apportion(1000, &together);
    let gpu_ms = apportion(rounded(all_gpu, NS / 1000), &gpu);
    let milli_gib_hours = apportion(rounded(all_memory.checked_mul(1000)?, 3600 * GIB), &memory);
    let line = |(index, (whose, used))| Line {
        whose,
        used,
        gpu_ms: gpu_ms[index],
        milli_gib_hours: milli_gib_hours[index],
        gpu_cost: gpu_cost[index],
        memory_cost: memory_cost[index],
        permille: permille[index],
    };
    let mut lines: Vec<Line> = lines.into_iter().enumerate().map(line).collect();
    lines.sort_by_key(|line| (place(&line.whose), std::cmp::Reverse(line.cost())));
    Some(Bill { lines, by: gathered.by.clone(), prices: prices.clone() })
}

impl Bill {
    fn sum(&self, part: impl Fn(&Line) -> u128) -> u128 {
        self.lines.iter().map(part).sum()
    }

    fn money(&self, amount: u128) -> String {
        decimal(amount, self.prices.digits)
    }

    /// Returns the total as shown.
    #[must_use]
    pub fn total(&self) -> String {
        with_currency(&self.money(self.sum(Line::cost)), &self.prices.currency)
    }

    /// Returns the rates in words.
    fn rates(&self) -> Vec<(String, String)> {
        let rate = |rate: Rate| with_currency(&rate.words(), &self.prices.currency);
        let gpu = self.prices.gpu.map(|gpu| ("GPU rate".into(), rate(gpu)));
        let memory = self.prices.memory.map(|memory| ("memory rate".into(), format!("{} for each GiB", rate(memory))));
        gpu.into_iter().chain(memory).chain([("total".into(), self.total())]).collect()
    }

    /// Returns the report for people.
    #[must_use]
    pub fn sheet(&self, facts: Vec<(String, String)>, notes: Vec<String>) -> Sheet {
        let row = |line: &Line| {
            let numbers = [
                line.used.marked(decimal(line.gpu_ms, 3)),
                self.money(line.gpu_cost),
                decimal(line.milli_gib_hours, 3),
                self.money(line.memory_cost),
                self.money(line.cost()),
                decimal(line.permille, 1),
            ];
            line.whose.cells(&self.by).into_iter().chain(numbers).collect()
        };
        let total = [
            decimal(self.sum(|line| line.gpu_ms), 3),
            self.money(self.sum(|line| line.gpu_cost)),
            decimal(self.sum(|line| line.milli_gib_hours), 3),
            self.money(self.sum(|line| line.memory_cost)),
            self.money(self.sum(Line::cost)),
            decimal(self.sum(|line| line.permille), 1),
        ];
        let mut name = vec![String::new(); self.by.len()];
        name[0] = "total".into();
        let more = ["GPU seconds", "GPU cost", "GiB hours", "memory cost", "cost", "%"];
        let table = Table {
            heads: heads(&self.by, &more),
            words: self.by.len(),
            rows: self.lines.iter().map(row).collect(),
            total: Some(name.into_iter().chain(total).collect()),
            ..Table::default()
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |line: &Line| Bar {
            name: line.whose.cells(&self.by).join(" "),
            value: line.cost() as f64,
            shown: with_currency(&self.money(line.cost()), &self.prices.currency),
        };
        Sheet {
            title: "GPU chargeback".into(),
            facts: facts.into_iter().chain(self.rates()).collect(),
            tables: vec![table],
            pictures: vec![bars("Cost", &self.lines.iter().map(bar).collect::<Vec<_>>())],
            notes,
            ..Sheet::default()
        }
    }

    /// Returns the report as JSON; amounts are strings because they are exact.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            with(
                named(&line.whose, &self.by),
                json!({
                    "gpu_ns": line.used.gpu().map(whole),
                    "unmeasured_ns": whole(line.used.unmeasured_ns),
                    "gpu_cost": self.money(line.gpu_cost),
                    "memory_byte_seconds": whole(line.used.byte_seconds),
                    "memory_cost": self.money(line.memory_cost),
                    "cost": self.money(line.cost()),
                    "percent": decimal(line.permille, 1),
                }),
            )
        };
        json!({
            "currency": self.prices.currency,
            "gpu_rate": self.prices.gpu.map(Rate::words),
            "memory_rate": self.prices.memory.map(Rate::words),
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "total": {
                "gpu_ns": whole(self.sum(|line| line.used.gpu_ns)),
                "gpu_cost": self.money(self.sum(|line| line.gpu_cost)),
                "memory_byte_seconds": whole(self.sum(|line| line.used.byte_seconds)),
                "memory_cost": self.money(self.sum(|line| line.memory_cost)),
                "cost": self.money(self.sum(Line::cost)),
            },
        })
    }

    /// Returns the report as CSV, one line each, without a total.
    #[must_use]
    pub fn csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let more = [
            "gpu_ns",
            "gpu_cost",
            "memory_byte_seconds",
            "memory_cost",
            "cost",
            "percent",
            "currency",
            "unmeasured_ns",
        ];
        let row = |line: &Line| {
            let numbers = [
                line.used.gpu().map_or(String::new(), |ns| ns.to_string()),
                self.money(line.gpu_cost),
                line.used.byte_seconds.to_string(),
                self.money(line.memory_cost),
                self.money(line.cost()),
                decimal(line.permille, 1),
                self.prices.currency.clone(),
                line.used.unmeasured_ns.to_string(),
            ];
            line.whose.cells(&self.by).into_iter().chain(numbers).collect()
        };
        (heads(&self.by, &more), self.lines.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Period;
    use super::super::gather::tests::line;
    use super::*;

    fn prices(gpu: &str, memory: Option<&str>) -> Prices {
        let rate = |text: &str| Rate::read(text).unwrap();
        Prices { gpu: Some(rate(gpu)), memory: memory.map(rate), currency: "EUR".into(), digits: 2 }
    }

    #[test]
    fn an_hour_of_a_device_costs_its_rate_however_it_was_divided() {
        let mut gathered = Gathered::new(vec![By::Tenant]);
        for (tenant, minute) in [("a", 0), ("b", 1), ("c", 2)] {
            gathered.add(&line(tenant, None, "G", minute * 60, 20_000, 7200));
        }
        gathered.add_nobodys(Period { since: 0, until: 3600 });
        let bill = bill(&gathered, &prices("2.24/h", Some("0.05/h"))).unwrap();
        let shown: Vec<(String, String, String)> = bill
            .lines
            .iter()
            .map(|line| (line.whose.cells(&bill.by)[0].clone(), bill.money(line.gpu_cost), bill.money(line.cost())))
            .collect();
        let row = |name: &str, gpu: &str, cost: &str| (name.to_owned(), gpu.to_owned(), cost.to_owned());
        assert_eq!(
            shown,
            [
                row("a", "0.01", "0.11"),
                row("b", "0.01", "0.11"),
                row("c", "0.01", "0.11"),
                row("(not used)", "2.21", "2.21")
            ]
        );
        assert_eq!(bill.total(), "2.54 EUR");
    }

    proptest! {
        #[test]
        fn the_bill_is_the_sum_of_its_lines_in_every_column_and_its_total_is_what_all_would_cost_at_once(
            lines in prop::collection::vec((0..9_usize, 0..3_usize, 0..70_000_u64, 0..9999_u64), 1..50),
            (gpu, memory, digits) in (0..1_000_000_u64, 0..1_000_000_u64, 0..=6_u32),
        ) {
            let mut gathered = Gathered::new(vec![By::Tenant]);
            for (tenant, device, ms, gib) in lines {
                gathered.add(&line(&format!("t{tenant}"), None, ["G", "H", "I"][device], 0, ms, gib));
            }
            gathered.add_nobodys(Period { since: 0, until: 600 });
            let rate = |micro: u64| Rate::read(&format!("{}.{:06}/h", micro / 1_000_000, micro % 1_000_000)).unwrap();
            let prices = Prices { gpu: Some(rate(gpu)), memory: Some(rate(memory)), currency: String::new(), digits };
            let bill = bill(&gathered, &prices).unwrap();
            let used = gathered.lines.values().fold((0, 0), |sum, used| (sum.0 + used.gpu_ns, sum.1 + used.byte_seconds));
            prop_assert_eq!(bill.sum(|line| line.gpu_cost), rate(gpu).cost(used.0, NS, digits).unwrap());
            prop_assert_eq!(bill.sum(|line| line.memory_cost), rate(memory).cost(used.1, GIB, digits).unwrap());
            let cost = bill.sum(Line::cost);
            prop_assert_eq!(bill.sum(|line| line.permille), if cost == 0 { 0 } else { 1000 });
            // A spreadsheet that adds up the shown amounts gets the shown total.
            let cents = |text: &str| text.replace('.', "").parse::<u128>().unwrap();
            let (_, rows) = bill.csv();
            prop_assert_eq!(rows.iter().map(|row| cents(&row[5])).sum::<u128>(), cents(&bill.money(cost)));
        }
    }
}
