//! `vgpu report trend`.

use clap::ValueEnum;

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::when::format_second;
use vgpu_accounting::report::trend::{TrendReport, TrendStep};
use vgpu_output::say::Failure;

/// Shows the trend of use: each day's use, its growth or decline, and the use that the trend predicts.
///
/// The trend is a straight line through the whole days of the period, by least squares. After the first row, a day
/// without use counts as zero. The line needs three days, and takes no coming event into account.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report trend --since 30d
  vgpu report trend --since 90d --each week --ahead 12 --by group
  vgpu report trend --since 2d --each hour train --json
  vgpu report trend --month last --format html --out trend.html

Units:
  GPU SECONDS  device time that was measured: see docs/report.md
  GIB HOURS    memory held, over time: 1 GiB for an hour is 1
  JSON and CSV have ns and byte-seconds; steps begin at seconds since 1970 (UTC), weeks on Mondays.

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// Grouping of the lines: tenant, group, device, label:NAME, or several separated by commas.
    #[arg(long, value_name = "WHAT", default_value = "tenant", value_parser = scope::parse_by)]
    by: ByArg,

    /// Length of one step.
    #[arg(long, value_enum, default_value_t = TrendStepArg::Day)]
    each: TrendStepArg,

    /// Number of steps after the last one for the prediction.
    #[arg(long, value_name = "STEPS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1000))]
    ahead: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TrendStepArg {
    /// A full hour.
    Hour,
    /// A day in UTC.
    Day,
    /// A week in UTC, from Monday.
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
