//! `vgpud --check`: prints the plan of a configuration file, or all errors in it. Starts and changes nothing.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::door::{ListeningSocket, refuse_foreign};
use super::source::{ConfigSource, SourceError};
use serde_json::{Value, json};
use vgpu_accounting::clock;
use vgpu_config::options::Options;
use vgpu_config::plan::ConfigPlan;
use vgpu_config::show;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_UNKNOWN, Failure};
use vgpu_policy::forecast::{ForecastRow, forecast_changes};
use vgpu_policy::words::format_time;

/// Time for which coming changes are shown, in seconds.
const SHOWN_SECONDS: i64 = 7 * 86_400;

/// Most coming changes that the table shows.
const MAX_ROWS_SHOWN: usize = 200;

/// Reads the file and prints the result.
///
/// # Errors
/// [`Failure`], with the exit code: 1 the file has errors, 3 it cannot be read.
pub fn run(file: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let source = ConfigSource::new(file, options);
    match source.read() {
        Ok(plan) => {
            if options.json {
                let mut plan_json = show::plan_json(&plan);
                plan_json["coming"] = coming_rows(&source, &plan).iter().map(row_json).collect();
                say::print_json(&plan_json)?;
            } else {
                say::print_text(&format!("{}{}", show::plan_table(&plan), coming_table(&source, &plan)))?;
            }
            check_programs(&plan)?;
            check_socket_places(&plan)?;
        }
        Err(SourceError::Wrong { file, report }) if options.json => {
            say::print_json(&show::problems_json(&file, &report))?;
            return Err(Failure::new(EXIT_FINDINGS, ""));
        }
        Err(why @ SourceError::Wrong { .. }) => {
            // In the format of compilers, so that editors can jump to the line.
            let _ = writeln!(std::io::stderr(), "{why}");
            return Err(Failure::new(EXIT_FINDINGS, ""));
        }
        Err(why @ SourceError::Unreadable(_)) => return Err(Failure::new(EXIT_UNKNOWN, why.to_string())),
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes of terms by windows and bookings of the file, for the next seven days.
fn coming_rows(source: &ConfigSource, plan: &ConfigPlan) -> Vec<ForecastRow> {
    forecast_changes(&source.policy_inputs(plan), clock::unix_seconds(), SHOWN_SECONDS)
}

/// Returns the coming changes as a table; empty if the file has neither windows nor bookings.
fn coming_table(source: &ConfigSource, plan: &ConfigPlan) -> String {
    if plan.windows.is_empty() && plan.bookings.is_empty() {
        return String::new();
    }
    let rows = coming_rows(source, plan);
    let mut table = vec![["FROM", "TENANT", "DEVICE", "KEY", "VALUE", "BECAUSE OF"].map(str::to_owned).to_vec()];
    table.extend(rows.iter().take(MAX_ROWS_SHOWN).map(|row| {
        vec![
            format_time(source.zone(), row.at),
            row.tenant.clone(),
            row.device.clone().unwrap_or_else(|| "all".to_owned()),
            row.key.to_owned(),
            row.value.clone(),
            row.cause.clone().unwrap_or_else(|| "the tenant's own value".to_owned()),
        ]
    }));
    let more = match rows.len().saturating_sub(MAX_ROWS_SHOWN) {
        0 => String::new(),
        more => format!("and {more} more changes; --json shows all\n"),
    };
    format!("\nchanges within the next seven days:\n{}{more}", say::lay_out_table(&table))
}

fn row_json(row: &ForecastRow) -> Value {
    json!({
        "at": row.at,
        "tenant": row.tenant,
        "device": row.device,
        "key": row.key,
        "value": row.value,
        "cause": row.cause,
    })
}

/// Checks that the programs of actions and of the step `suspend` can be run. The daemon would serve all the same, and
/// tell each failed run.
fn check_programs(plan: &ConfigPlan) -> Result<(), Failure> {
    let mut missing = false;
    let actions = plan.actions.iter().map(|action| ("on_event", action.exec[0].as_str()));
    let idle = plan.tenants.iter().filter_map(|tenant| tenant.usage.idle.as_ref());
    let suspends: BTreeSet<_> =
        idle.filter_map(|idle| Some(("idle_suspend", idle.suspend.first()?.as_str()))).collect();
    for (key, program) in actions.chain(suspends) {
        if let Err(why) = rustix::fs::access(program, rustix::fs::Access::EXEC_OK) {
            missing = true;
            let (program, why) = (program.escape_default(), std::io::Error::from(why));
            let _ = writeln!(std::io::stderr(), "{key}: {program} cannot be run: {why}");
        }
    }
    if missing { Err(Failure::new(EXIT_FINDINGS, "")) } else { Ok(()) }
}

/// Checks that each tenant's socket can be created. The daemon would serve the other tenants if one cannot.
fn check_socket_places(plan: &ConfigPlan) -> Result<(), Failure> {
    let sockets = plan.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.socket));
    let mut unusable = 0;
    for (tenant, socket) in sockets {
        if let Err(why) = ListeningSocket::check(socket) {
            unusable += 1;
            let _ = writeln!(std::io::stderr(), "tenant {tenant} cannot be served: {why}");
        }
    }
    if let Err(why) = refuse_foreign(&plan.daemon.run_dir) {
        return Err(Failure::new(EXIT_FINDINGS, why));
    }
    if unusable > 0 { Err(Failure::new(EXIT_FINDINGS, "")) } else { Ok(()) }
}
