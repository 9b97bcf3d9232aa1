//! `vgpu metrics`: prints the output of the daemon's HTTP server without using that server.

use std::process::ExitCode;

use super::ask::{DaemonAddress, no_answer};
use vgpu_accounting::metrics;
use vgpu_control::ControlCommand;
use vgpu_output::say::{self, Failure};

/// Prints the daemon's metrics in the OpenMetrics text format.
///
/// With `metrics.listen` in its file, the daemon serves the same text over HTTP. For node_exporter's textfile
/// collector,
/// write the text to a file with another name, then rename it to a name that ends in .prom. With --json, prints the
/// status that the metrics are made of.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu metrics
  vgpu metrics --socket /srv/gpu/admin.sock | grep vgpu_tenant_gpu_seconds_total
  vgpu metrics --no-hami-names > /srv/prom/vgpu.new && mv /srv/prom/vgpu.new /srv/prom/vgpu.prom

Exit codes:
  0  printed
  1  no daemon answers there
  2  usage")]
pub struct Args {
    /// Omits the metrics for dashboards that were made for HAMi.
    #[arg(long)]
    no_hami_names: bool,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon and prints the metrics.
///
/// # Errors
/// [`Failure`]: the daemon does not answer.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let status = args.daemon.ask_daemon(&ControlCommand::Status)?.status.ok_or_else(no_answer)?;
    if args.daemon.json {
        say::print_json(&status)?;
    } else {
        say::print_exact(&metrics::metrics_text(&status, !args.no_hami_names))?;
    }
    Ok(ExitCode::SUCCESS)
}
