//! `vgpu report usage`.

use super::scope::{self, ReportScope, ReportTexts};
use vgpu_accounting::report::gather::{GatheredLines, LineBy};
use vgpu_accounting::report::usage::make_usage;
use vgpu_output::say::Failure;

/// Shows device time and memory of each tenant, and its part of the total; all parts together are 100.0 %.
///
/// Unused time of devices has its own line, unless tenants are named.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report usage
  vgpu report usage --month last --by group,tenant
  vgpu report usage --since 7d --by label:project --format html --out usage.html
  vgpu report usage train chat --by tenant,device --format csv

Units:
  GPU SECONDS  device time that was measured: see docs/report.md
  GIB HOURS    memory held, over time: 1 GiB for an hour is 1
  JSON and CSV have whole numbers: ns, byte-seconds, bytes; periods are seconds since 1970 (UTC).

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

    /// Omits unused time of devices.
    #[arg(long)]
    only_used: bool,
}

/// An alias, so that clap treats the list as a single value.
pub type ByArg = std::vec::Vec<LineBy>;

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut gathered = GatheredLines::new(args.by.clone());
    let period = args.scope.for_each_line(|line| gathered.add(line))?;
    if args.scope.is_all() && !args.only_used {
        gathered.add_nobodys(period);
    }
    let report = make_usage(&gathered);
    let sheet = report.to_sheet(args.scope.common_facts(period), gathered.reader_notes());
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(), csv: report.to_csv() })
}
