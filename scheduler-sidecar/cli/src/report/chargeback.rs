//! `vgpu report chargeback`.

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use vgpu_accounting::report::chargeback::{Prices, make_bill};
use vgpu_accounting::report::gather::GatheredLines;
use vgpu_accounting::report::money::Rate;
use vgpu_output::say::{EXIT_FINDINGS, EXIT_USAGE, Failure};

/// Makes a bill: device time and memory at rates, by tenant, group or label; its lines add up to its total exactly.
///
/// Unused time of devices has its own line, so the bill covers the whole devices; --only-used omits that line. Each
/// column's total is rounded once and divided among the lines by the largest remainder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report chargeback --month last --gpu-rate 2.24/h --currency EUR
  vgpu report chargeback --month last --gpu-rate 2.24/h --memory-rate 0.02/h --by group,tenant
  vgpu report chargeback --month 2026-10 --gpu-rate 0.0006/s --by label:cost-centre --format csv
  vgpu report chargeback --month last --gpu-rate 2.24/h --only-used --format html --out bill.html

Rates:
  --gpu-rate is the price of used GPU time, --memory-rate that of a held GiB: an amount and its
  time, /s, /min, /h, /day or /month (of 730 h).

Exit codes:
  0  the bill was made
  1  there is no record there, it cannot be read, or the bill cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// Price of a GPU's time: 2.24/h, 0.0006/s.
    #[arg(long, value_name = "RATE", value_parser = Rate::read)]
    gpu_rate: Option<Rate>,

    /// Price of a GiB that is held: 0.02/h.
    #[arg(long, value_name = "RATE", value_parser = Rate::read)]
    memory_rate: Option<Rate>,

    /// Currency that follows amounts: EUR.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    currency: String,

    /// Digits after the decimal point of amounts.
    #[arg(long, value_name = "DIGITS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=6))]
    decimals: u32,

    /// Grouping of the lines: tenant, group, device, label:NAME, or several separated by commas.
    #[arg(long, value_name = "WHAT", default_value = "tenant", value_parser = scope::parse_by)]
    by: ByArg,

    /// Omits unused time of devices.
    #[arg(long)]
    only_used: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if args.gpu_rate.is_none() && args.memory_rate.is_none() {
        return Err(Failure::new(
            EXIT_USAGE,
            "a bill needs a price: --gpu-rate RATE, like 2.24/h, or --memory-rate RATE",
        ));
    }
    if args.currency.chars().count() > 16 || args.currency.chars().any(char::is_control) {
        return Err(Failure::new(EXIT_USAGE, "--currency: accepted: at most 16 letters, like EUR"));
    }
    let mut gathered = GatheredLines::new(args.by.clone());
    let period = args.scope.for_each_line(|line| gathered.add(line))?;
    if args.scope.is_all() && !args.only_used {
        gathered.add_nobodys(period);
    }
    let prices =
        Prices { gpu: args.gpu_rate, memory: args.memory_rate, currency: args.currency.clone(), digits: args.decimals };
    let bill = make_bill(&gathered, &prices)
        .ok_or_else(|| Failure::new(EXIT_FINDINGS, "what was used, at these rates, is more than any bill can hold"))?;
    let sheet = bill.to_sheet(args.scope.common_facts(period), gathered.reader_notes());
    args.scope.write(period, ReportTexts { sheet, json: bill.to_json(), csv: bill.to_csv() })
}
