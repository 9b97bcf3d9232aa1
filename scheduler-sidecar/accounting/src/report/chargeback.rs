//! Bills device time and memory at given rates, in parts that sum exactly to the total.
//!
//! Each column's total is rounded once and divided by the largest remainder, so columns add up downwards. A line's
//! cost is the sum of its shown amounts, so lines add up across.

use serde_json::{Value, json};

use super::apportion::{apportion_total, format_decimal, round_half_up};
use super::chart::{ChartBar, draw_bars};
use super::gather::{GIB_BYTES, GatheredLines, GatheredUse, LineBy, LineOwner, NS_PER_SECOND, sort_class};
use super::money::{Rate, with_currency};
use super::sheet::{ReportSheet, SheetTable};
use super::usage::{column_names, merge_objects, owner_json, whole_number};

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
pub struct BillLine {
    /// The tenant, group, label or device of the line.
    pub whose: LineOwner,
    /// Usage that the line charges for.
    pub used: GatheredUse,
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

impl BillLine {
    /// Returns the whole cost of the line.
    #[must_use]
    pub const fn total_cost(&self) -> u128 {
        self.gpu_cost + self.memory_cost
    }
}

/// The bill: cost of recorded usage by the given rates.
#[derive(Debug, Clone)]
pub struct Bill {
    /// Lines, highest cost first, unattributed ones last.
    pub lines: Vec<BillLine>,
    /// Columns by which lines are grouped.
    pub by: Vec<LineBy>,
    /// Rates that the amounts were computed with.
    pub prices: Prices,
}

/// Makes the bill; `None` if an amount overflows.
#[must_use]
pub fn make_bill(gathered: &GatheredLines, prices: &Prices) -> Option<Bill> {
    let lines: Vec<(LineOwner, GatheredUse)> = gathered.sorted_lines(|used| used.gpu_ns);
    let gpu: Vec<u128> = lines.iter().map(|(_, used)| used.gpu_ns).collect();
    let memory: Vec<u128> = lines.iter().map(|(_, used)| used.byte_seconds).collect();
    let (all_gpu, all_memory): (u128, u128) = (gpu.iter().sum(), memory.iter().sum());
    let cost = |rate: Option<Rate>, used, one| rate.map_or(Some(0), |rate| rate.cost_of(used, one, prices.digits));
    let gpu_cost = apportion_total(cost(prices.gpu, all_gpu, NS_PER_SECOND)?, &gpu);
    let memory_cost = apportion_total(cost(prices.memory, all_memory, GIB_BYTES)?, &memory);
    let together: Vec<u128> = gpu_cost.iter().zip(&memory_cost).map(|(gpu, memory)| gpu + memory).collect();
    let permille = apportion_total(1000, &together);
    let gpu_ms = apportion_total(round_half_up(all_gpu, NS_PER_SECOND / 1000), &gpu);
    let milli_gib_hours = apportion_total(round_half_up(all_memory.checked_mul(1000)?, 3600 * GIB_BYTES), &memory);
    let line = |(index, (whose, used))| BillLine {
        whose,
        used,
        gpu_ms: gpu_ms[index],
        milli_gib_hours: milli_gib_hours[index],
        gpu_cost: gpu_cost[index],
        memory_cost: memory_cost[index],
        permille: permille[index],
    };
    let mut lines: Vec<BillLine> = lines.into_iter().enumerate().map(line).collect();
    lines.sort_by_key(|line| (sort_class(&line.whose), std::cmp::Reverse(line.total_cost())));
    Some(Bill { lines, by: gathered.by.clone(), prices: prices.clone() })
}

impl Bill {
    fn sum(&self, part: impl Fn(&BillLine) -> u128) -> u128 {
        self.lines.iter().map(part).sum()
    }

    fn format_money(&self, amount: u128) -> String {
        format_decimal(amount, self.prices.digits)
    }

    /// Returns the total as shown.
    #[must_use]
    pub fn total(&self) -> String {
        with_currency(&self.format_money(self.sum(BillLine::total_cost)), &self.prices.currency)
    }

    /// Returns the rates in words.
    fn rate_words(&self) -> Vec<(String, String)> {
        let rate = |rate: Rate| with_currency(&rate.to_words(), &self.prices.currency);
        let gpu = self.prices.gpu.map(|gpu| ("GPU rate".into(), rate(gpu)));
        let memory = self.prices.memory.map(|memory| ("memory rate".into(), format!("{} for each GiB", rate(memory))));
        gpu.into_iter().chain(memory).chain([("total".into(), self.total())]).collect()
    }

    /// Returns the report for people.
    #[must_use]
    pub fn to_sheet(&self, facts: Vec<(String, String)>, notes: Vec<String>) -> ReportSheet {
        let row = |line: &BillLine| {
            let numbers = [
                line.used.mark_partial(format_decimal(line.gpu_ms, 3)),
                self.format_money(line.gpu_cost),
                format_decimal(line.milli_gib_hours, 3),
                self.format_money(line.memory_cost),
                self.format_money(line.total_cost()),
                format_decimal(line.permille, 1),
            ];
            line.whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        let total = [
            format_decimal(self.sum(|line| line.gpu_ms), 3),
            self.format_money(self.sum(|line| line.gpu_cost)),
            format_decimal(self.sum(|line| line.milli_gib_hours), 3),
            self.format_money(self.sum(|line| line.memory_cost)),
            self.format_money(self.sum(BillLine::total_cost)),
            format_decimal(self.sum(|line| line.permille), 1),
        ];
        let mut name = vec![String::new(); self.by.len()];
        name[0] = "total".into();
        let more = ["GPU seconds", "GPU cost", "GiB hours", "memory cost", "cost", "%"];
        let table = SheetTable {
            heads: column_names(&self.by, &more),
            words: self.by.len(),
            rows: self.lines.iter().map(row).collect(),
            total: Some(name.into_iter().chain(total).collect()),
            ..SheetTable::default()
        };
        #[allow(clippy::cast_precision_loss)] // only for a picture
        let bar = |line: &BillLine| ChartBar {
            name: line.whose.owner_cells(&self.by).join(" "),
            value: line.total_cost() as f64,
            shown: with_currency(&self.format_money(line.total_cost()), &self.prices.currency),
        };
        ReportSheet {
            title: "GPU chargeback".into(),
            facts: facts.into_iter().chain(self.rate_words()).collect(),
            tables: vec![table],
            pictures: vec![draw_bars("Cost", &self.lines.iter().map(bar).collect::<Vec<_>>())],
            notes,
            ..ReportSheet::default()
        }
    }

    /// Returns the report as JSON; amounts are strings because they are exact.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let line = |line: &BillLine| {
            merge_objects(
                owner_json(&line.whose, &self.by),
                json!({
                    "gpu_ns": line.used.measured_ns().map(whole_number),
                    "unmeasured_ns": whole_number(line.used.unmeasured_ns),
                    "gpu_cost": self.format_money(line.gpu_cost),
                    "memory_byte_seconds": whole_number(line.used.byte_seconds),
                    "memory_cost": self.format_money(line.memory_cost),
                    "cost": self.format_money(line.total_cost()),
                    "percent": format_decimal(line.permille, 1),
                }),
            )
        };
        json!({
            "currency": self.prices.currency,
            "gpu_rate": self.prices.gpu.map(Rate::to_words),
            "memory_rate": self.prices.memory.map(Rate::to_words),
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "total": {
                "gpu_ns": whole_number(self.sum(|line| line.used.gpu_ns)),
                "gpu_cost": self.format_money(self.sum(|line| line.gpu_cost)),
                "memory_byte_seconds": whole_number(self.sum(|line| line.used.byte_seconds)),
                "memory_cost": self.format_money(self.sum(|line| line.memory_cost)),
                "cost": self.format_money(self.sum(BillLine::total_cost)),
            },
        })
    }

    /// Returns the report as CSV, one line each, without a total.
    #[must_use]
    pub fn to_csv(&self) -> (Vec<String>, Vec<Vec<String>>) {
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
        let row = |line: &BillLine| {
            let numbers = [
                line.used.measured_ns().map_or(String::new(), |ns| ns.to_string()),
                self.format_money(line.gpu_cost),
                line.used.byte_seconds.to_string(),
                self.format_money(line.memory_cost),
                self.format_money(line.total_cost()),
                format_decimal(line.permille, 1),
                self.prices.currency.clone(),
                line.used.unmeasured_ns.to_string(),
            ];
            line.whose.owner_cells(&self.by).into_iter().chain(numbers).collect()
        };
        (column_names(&self.by, &more), self.lines.iter().map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ReportPeriod;
    use super::super::gather::tests::test_line;
    use super::*;

    fn prices(gpu: &str, memory: Option<&str>) -> Prices {
        let rate = |text: &str| Rate::read(text).unwrap();
        Prices { gpu: Some(rate(gpu)), memory: memory.map(rate), currency: "EUR".into(), digits: 2 }
    }

    #[test]
    fn an_hour_of_a_device_costs_its_rate_however_it_was_divided() {
        let mut gathered = GatheredLines::new(vec![LineBy::Tenant]);
        for (tenant, minute) in [("a", 0), ("b", 1), ("c", 2)] {
            gathered.add(&test_line(tenant, None, "G", minute * 60, 20_000, 7200));
        }
        gathered.add_nobodys(ReportPeriod { since: 0, until: 3600 });
        let bill = make_bill(&gathered, &prices("2.24/h", Some("0.05/h"))).unwrap();
        let shown: Vec<(String, String, String)> = bill
            .lines
            .iter()
            .map(|line| {
                (
                    line.whose.owner_cells(&bill.by)[0].clone(),
                    bill.format_money(line.gpu_cost),
                    bill.format_money(line.total_cost()),
                )
            })
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
            let mut gathered = GatheredLines::new(vec![LineBy::Tenant]);
            for (tenant, device, ms, gib) in lines {
                gathered.add(&test_line(&format!("t{tenant}"), None, ["G", "H", "I"][device], 0, ms, gib));
            }
            gathered.add_nobodys(ReportPeriod { since: 0, until: 600 });
            let rate = |micro: u64| Rate::read(&format!("{}.{:06}/h", micro / 1_000_000, micro % 1_000_000)).unwrap();
            let prices = Prices { gpu: Some(rate(gpu)), memory: Some(rate(memory)), currency: String::new(), digits };
            let bill = make_bill(&gathered, &prices).unwrap();
            let used = gathered.lines.values().fold((0, 0), |sum, used| (sum.0 + used.gpu_ns, sum.1 + used.byte_seconds));
            prop_assert_eq!(bill.sum(|line| line.gpu_cost), rate(gpu).cost_of(used.0, NS_PER_SECOND, digits).unwrap());
            prop_assert_eq!(bill.sum(|line| line.memory_cost), rate(memory).cost_of(used.1, GIB_BYTES, digits).unwrap());
            let cost = bill.sum(BillLine::total_cost);
            prop_assert_eq!(bill.sum(|line| line.permille), if cost == 0 { 0 } else { 1000 });
            // A spreadsheet that adds up the shown amounts gets the shown total.
            let cents = |text: &str| text.replace('.', "").parse::<u128>().unwrap();
            let (_, rows) = bill.to_csv();
            prop_assert_eq!(rows.iter().map(|row| cents(&row[5])).sum::<u128>(), cents(&bill.format_money(cost)));
        }
    }
}
