//! `vgpu report efficiency`.

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::when;
use vgpu_accounting::report::efficiency::Efficiency;
use vgpu_output::say::Failure;

/// Shows how much of its limits each tenant used: of its ceiling on device time, and of its memory limit.
///
/// Only time in which the tenant computed, held memory or waited counts. The report also shows how long a tenant waited
/// for each second of device time: a tenant that waited much could not use its ceiling.
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

    /// Grouping of the lines: tenant, group, device, label:NAME, or several separated by commas.
    #[arg(long, value_name = "WHAT", default_value = "tenant", value_parser = scope::parse_by)]
    by: ByArg,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut report = Efficiency::new(args.by.clone(), when::now());
    let period = args.scope.for_each_line(|line| report.add(line))?;
    let sheet = report.to_sheet(args.scope.common_facts(period));
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(), csv: report.to_csv() })
}
