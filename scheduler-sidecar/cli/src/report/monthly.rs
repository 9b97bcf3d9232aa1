//! `vgpu report monthly`.

use std::path::PathBuf;

use super::scope::{self, ReportScope, ReportTexts};
use super::usage::ByArg;
use crate::configuration::read_configuration;
use crate::when::{self, format_second};
use vgpu_accounting::report::monthly::MonthlyReport;
use vgpu_accounting::report::quotas::QuotaReport;
use vgpu_output::say::{EXIT_USAGE, Failure};

/// Makes the report of a month for people who decide about devices: usage, quotas, promises, waits, hoarders,
/// efficiency.
///
/// Without a period it is about the last month. Hoarders held memory while they computed nothing, most GiB hours first.
/// CSV has the usage section only, because each section has a report of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report monthly --month 2026-11 --format html --out 2026-11.html
  vgpu report monthly --by group --config /etc/vgpu/vgpud.toml
  vgpu report monthly --month last --ranking --format markdown
  vgpu report monthly --month this --json | jq '.slo.lines[] | select(.kept_percent != \"100.0\")'

Exit codes:
  0  the report was made
  1  there is no record there, something cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(flatten)]
    scope: ReportScope,

    /// Grouping of the lines: tenant, group, device, label:NAME, or several separated by commas.
    #[arg(long, value_name = "WHAT", default_value = "tenant", value_parser = scope::parse_by)]
    by: ByArg,

    /// Configuration of vgpud; adds a section of its groups' quotas.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Adds a ranking of the lines by the used part of their ceilings.
    #[arg(long)]
    ranking: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let scope = args.scope.clone().or_last_month();
    if args.config.is_some() && !scope.is_all() {
        let why = "--config adds quotas of whole groups; leave out the names of tenants, or --config";
        return Err(Failure::new(EXIT_USAGE, why));
    }
    let plan = args.config.as_deref().map(read_configuration).transpose()?;
    let quotas = plan.map(|plan| QuotaReport::new(&plan.groups));
    let mut report = MonthlyReport::new(args.by.clone(), quotas, args.ranking, when::now());
    let period = scope.for_each_line(|line| report.add_usage(line))?;
    scope.for_each_service_line(|line| report.add_service(line))?;
    let answer = report.finish_report(period, scope.is_all(), format_second);
    let sheet = answer.to_sheet(scope.common_facts(period));
    scope.write(period, ReportTexts { sheet, json: answer.to_json(), csv: answer.to_csv() })
}
