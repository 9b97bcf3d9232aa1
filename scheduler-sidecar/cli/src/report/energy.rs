//! `vgpu report energy`.

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use vgpu_accounting::report::energy::make_energy;
use vgpu_accounting::report::gather::GatheredLines;
use vgpu_output::say::Failure;

/// Shows the energy of each tenant: of its work, and of idleness while it held memory.
///
/// All lines add up to the devices' own counters. Energy that no tenant used has its own lines, unless tenants are
/// named.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report energy
  vgpu report energy --month last --by group,tenant
  vgpu report energy --since 7d --by tenant,device --format csv

Units:
  WORK WH  energy while its kernels ran, by device time
  IDLE WH  energy of a device that did nothing, while it held memory there
  JSON and CSV have whole numbers of millijoules; 3,600,000 are 1 Wh.

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
    let mut gathered = GatheredLines::new(args.by.clone());
    let period = args.scope.for_each_line(|line| gathered.add(line))?;
    if args.scope.is_all() {
        args.scope.for_each_nobody(|device, energy, is_estimated| {
            gathered.add_nobodys_energy(&device, energy, is_estimated);
        })?;
    }
    let report = make_energy(&gathered);
    let sheet = report.to_sheet(args.scope.common_facts(period));
    args.scope.write(period, ReportTexts { sheet, json: report.to_json(), csv: report.to_csv() })
}
