//! `vgpu report rightsizing`.

use std::time::Duration;

use super::scope::{ReportScope, ReportTexts};
use vgpu_accounting::report::rightsizing::{AdviceMargins, Rightsizing};
use vgpu_output::say::Failure;

/// Suggests limits that fit: each tenant's highest usage and its limits, the suggested limits, and the reasons.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report rightsizing --since 7d
  vgpu report rightsizing --since 30d --headroom 50
  vgpu report rightsizing train --least 10m --json
  vgpu report rightsizing --month last --format markdown --out limits.md

How:
  memory       the highest use and the headroom above it, in steps of 256 MiB; after refusals a
               quarter more than the limit
  device time  the highest use in 95 of 100 busy minutes and the headroom above it, in steps of
               5 %; a quarter more than the ceiling for a tenant that reached it and waited
  JSON and CSV have bytes and percent; null, or an empty field, means to keep the limit.

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// Room above the highest usage, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=1000))]
    headroom: u32,

    /// Minimum recorded time for a suggestion: 30m, 1h, 7d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    least: Duration,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut report = Rightsizing::default();
    let period = args.scope.for_each_line(|line| report.add(line))?;
    let care = AdviceMargins { headroom: args.headroom, least: args.least.as_secs() };
    let sheet = report.to_sheet(care, args.scope.common_facts(period));
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(care), csv: report.to_csv(care) })
}
