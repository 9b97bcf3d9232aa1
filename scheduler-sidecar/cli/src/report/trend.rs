//! `vgpu report trend`.

use clap::ValueEnum;

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::when::format_second;
use vgpu_accounting::report::trend::{TrendReport, TrendStep};
use vgpu_output::say::Failure;

/// Shows how use goes on: what each day had, whether it becomes more or less, and where that leads if it goes on so.
///
/// A straight line through the whole days of the period, by least squares. From the first row on a day without use counts
/// as nil. It needs three days, and knows of nothing that is to come.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report trend --since 30d
  vgpu report trend --since 90d --each week --ahead 12 --by group
  vgpu report trend --since 2d --each hour train --json
  vgpu report trend --month last --format html --out trend.html

Units:
  GPU SECONDS  device time that was measured: docs/report.md says what is not
  GIB HOURS    memory held, over time: 1 GiB for an hour is 1
  JSON and CSV have ns and byte-seconds; steps begin at seconds since 1970 (UTC), weeks on Mondays.

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// What lines are for: tenant, group, device, label:NAME, or several with commas between.
    #[arg(long, value_name = "WHAT", default_value = "tenant", value_parser = scope::parse_by)]
    by: ByArg,

    /// What is one step.
    #[arg(long, value_enum, default_value_t = TrendStepArg::Day)]
    each: TrendStepArg,

    /// How many steps after the last one the line is read.
    #[arg(long, value_name = "STEPS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1000))]
    ahead: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TrendStepArg {
    /// From the full hour on.
    Hour,
    /// Of UTC.
    Day,
    /// From Monday on, of UTC.
    Week,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let step = match args.each {
        TrendStepArg::Hour => TrendStep { name: "hour", seconds: 3600, from: 0 },
        TrendStepArg::Day => TrendStep { name: "day", seconds: 86_400, from: 0 },
        // 1970 began on a Thursday.
        TrendStepArg::Week => TrendStep { name: "week", seconds: 7 * 86_400, from: 4 * 86_400 },
    };
    let mut trend = TrendReport::new(args.by.clone(), step);
    let period = args.scope.for_each_line(|line| trend.add(line))?;
    let answer = trend.finish_report(period, args.ahead);
    let sheet = answer.to_sheet(args.scope.common_facts(period), format_second);
    args.scope.write(period, ReportTexts { sheet, json: answer.to_json(), csv: answer.to_csv() })
}
