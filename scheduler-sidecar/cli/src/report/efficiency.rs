//! `vgpu report efficiency`.

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::when;
use vgpu_accounting::report::efficiency::Efficiency;
use vgpu_output::say::Failure;

/// Shows how much of what was kept for a tenant it used: of its ceiling on device time, and of its memory limit.
///
/// Only time counts in which it computed, held memory or waited. Two numbers and no score of both, and what a tenant waited
/// for each second of device time: who waited much could not use its ceiling.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report efficiency --since 7d
  vgpu report efficiency --month last --by group
  vgpu report efficiency --month last --format html --out efficiency.html
  vgpu report efficiency train --since 24h --json

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
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut report = Efficiency::new(args.by.clone(), when::now());
    let period = args.scope.for_each_line(|line| report.add(line))?;
    let sheet = report.to_sheet(args.scope.common_facts(period));
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(), csv: report.to_csv() })
}
