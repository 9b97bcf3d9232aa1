//! `vgpu report idle`.

use super::scope::{self, ReportScope, ReportTexts};
use crate::when;
use vgpu_accounting::report::idle::IdleReport;
use vgpu_output::say::Failure;

/// Shows memory that tenants held while they computed nothing, and idle time of devices.
///
/// A minute (older than keep_fine: an hour) is idle if memory was held in it and less than --below of the device's time
/// was used. A tenant without an sm_limit may have been busy unmeasured: its part has a question mark.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report idle
  vgpu report idle --since 7d --below 5
  vgpu report idle --month last --format html --out idle.html
  vgpu report idle notebook-0 --json

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// A minute below this percentage of the device's time is idle.
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = scope::parse_percent)]
    below: u32,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut idle = IdleReport::new(args.below, when::now());
    let period = args.scope.for_each_line(|line| idle.add(line))?;
    let answer = idle.finish_report(period);
    let sheet = answer.to_sheet(args.scope.common_facts(period));
    args.scope.write(period, ReportTexts { sheet, json: answer.to_json(), csv: answer.to_csv() })
}
