//! `vgpu report`: usage, bills, idle memory, fitting limits, efficiency, energy, promises, trends, savings, a month.
//! One report per file; [`scope`] is shared.

use std::process::ExitCode;

use clap::Subcommand;

use vgpu_output::say::Failure;

mod chargeback;
mod efficiency;
mod energy;
mod idle;
mod monthly;
mod rightsizing;
mod savings;
mod scope;
mod slo;
mod trend;
mod usage;

/// Makes reports from the daemon's record: usage, bills, idle resources, limits that fit, promises kept.
///
/// The command reads the record's files (docs/record.md); the daemon need not run. Each report says which data the
/// record
/// lacks (docs/report.md).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu report usage --month this --by group,tenant
  vgpu report chargeback --month last --gpu-rate 2.24/h --memory-rate 0.02/h --by group
  vgpu report idle --since 7d
  vgpu report rightsizing --since 7d
  vgpu report efficiency --month last --by group
  vgpu report energy --since 7d
  vgpu report slo --since 24h
  vgpu report monthly --month last --format html --out month.html
  vgpu report trend --since 30d
  vgpu report savings --gpu-price 2.24 --tenant-price 0.08

Exit codes:
  0  the report was made
  1  there is no record there, it cannot be read, or the report cannot be written
  2  usage")]
pub struct Args {
    #[command(subcommand)]
    verb: ReportVerb,
}

#[derive(Debug, Subcommand)]
enum ReportVerb {
    Usage(usage::Args),
    Chargeback(chargeback::Args),
    Idle(idle::Args),
    Rightsizing(rightsizing::Args),
    Efficiency(efficiency::Args),
    Energy(energy::Args),
    Slo(slo::Args),
    Monthly(monthly::Args),
    Trend(trend::Args),
    Savings(savings::Args),
}

/// Makes a report.
///
/// # Errors
/// [`Failure`]: there is no record, or the report cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        ReportVerb::Usage(args) => usage::run(args),
        ReportVerb::Chargeback(args) => chargeback::run(args),
        ReportVerb::Idle(args) => idle::run(args),
        ReportVerb::Rightsizing(args) => rightsizing::run(args),
        ReportVerb::Efficiency(args) => efficiency::run(args),
        ReportVerb::Energy(args) => energy::run(args),
        ReportVerb::Slo(args) => slo::run(args),
        ReportVerb::Monthly(args) => monthly::run(args),
        ReportVerb::Trend(args) => trend::run(args),
        ReportVerb::Savings(args) => savings::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}
