//! `vgpu report slo`.

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::when::format_second;
use vgpu_accounting::report::slo::SloReport;
use vgpu_output::say::Failure;

/// Shows how much of the promised device time each tenant got, in how many minutes, and how long it waited for leases.
///
/// A tenant is promised its floor while it wants the device. Without a floor it is promised its part by weight of the
/// time that floors and higher classes leave. A minute keeps the promise if 95 % of it or more was delivered. Delivered
/// time may exceed the promise, because unused time is lent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report slo --since 24h
  vgpu report slo --month last --by group
  vgpu report slo chat --since 7d --worst 50 --json
  vgpu report slo --month last --format html --out slo.html

Units:
  KEPT %       part of the minutes that kept the promise
  95 % WITHIN  bound within which 95 of 100 waits ended: a power of 4, from 62.5 us to 16.4 s
  JSON and CSV have whole numbers: ns; minutes begin at seconds since 1970 (UTC).

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// Grouping of the lines: tenant, group, device, label:NAME, or several separated by commas.
    #[arg(long, value_name = "WHAT", default_value = "tenant,device", value_parser = scope::parse_by)]
    by: ByArg,

    /// Most worst minutes to name.
    #[arg(long, value_name = "MINUTES", default_value_t = 10)]
    worst: usize,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut report = SloReport::new(args.by.clone(), args.worst);
    let period = args.scope.for_each_service_line(|line| report.add(line))?;
    let sheet = report.to_sheet(args.scope.common_facts(period), format_second);
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(), csv: report.to_csv() })
}
