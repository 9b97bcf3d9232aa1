//! `vgpu set`: changes a tenant's terms while its programs run.

use std::process::ExitCode;

use super::ask::{DaemonAddress, LastingOptions, TERMS_HEADINGS, print_change, terms_rows};
use super::terms::TermsOptions;
use vgpu_config::change::WrittenChange;
use vgpu_control::{ChangeResult, ControlCommand};
use vgpu_output::say::{self, EXIT_USAGE, Failure};

/// Changes a tenant's terms while its programs run, for some time or until the configuration is read again.
///
/// The daemon's file is not changed. With --for the change ends by itself, and a restart of the daemon does not end it.
/// Without it, reading the file again (SIGHUP) or a restart of the daemon restores the file's values, and so does `vgpu
/// unset`. A change that does not fit with the other tenants is refused, by the file's rules, also if it would not fit
/// later, when a window ends or a booking begins. A memory limit below the tenant's use frees nothing: the tenant
/// cannot allocate until it has freed enough.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu set train --sm-limit 30
  vgpu set train --device 0 --memory-limit 20GiB --class batch
  vgpu set chat --sm-request 40 --sm-limit unlimited --weight 4 --quantum 1ms
  vgpu set chat --mode observe       # only measured, until it is set back
  vgpu set chat --sm-request 60 --for 1h --reason 'demo for the board'

Exit codes:
  0  in force; or it was so already
  1  the daemon refused it: no such tenant or device, or it does not fit; or no daemon answers
  2  usage: a value is not accepted, and the daemon was not asked")]
pub struct Args {
    /// The tenant, by its name.
    tenant: String,

    /// Changes this device only: its number or UUID, as the configuration names it [default: all of the tenant's].
    #[arg(long, value_name = "ID")]
    device: Option<String>,

    #[command(flatten)]
    terms: TermsOptions,

    /// Length of its leases: 500us to 50ms, or default for that of its class.
    #[arg(long, value_name = "DURATION")]
    quantum: Option<String>,

    /// Mode: enforce, or observe (usage is only measured, nothing is refused or delayed).
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,

    /// Refuses bypasses of the library: true or false, for processes that start from now on.
    #[arg(long, value_name = "BOOL")]
    strict: Option<String>,

    #[command(flatten)]
    lasting: LastingOptions,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Asks the daemon for the change, and prints the terms in force.
///
/// # Errors
/// [`Failure`]: a value is not accepted, the daemon does not answer, or it refuses.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let change = WrittenChange {
        memory_limit: args.terms.memory_limit.clone(),
        sm_limit: args.terms.sm_limit.clone(),
        sm_request: args.terms.sm_request.clone(),
        weight: args.terms.weight.clone(),
        class: args.terms.class.clone(),
        quantum: args.quantum.clone(),
        mode: args.mode.clone(),
        strict: args.strict.clone(),
    };
    if change.is_empty() {
        let accepted = "--memory-limit, --sm-limit, --sm-request, --weight, --class, --quantum, --mode, --strict";
        return Err(Failure::new(EXIT_USAGE, format!("nothing to set; accepted: one or more of {accepted}")));
    }
    let option = |key: &str| format!("--{}", key.replace('_', "-"));
    change.read(option).map_err(|words| Failure::new(EXIT_USAGE, words))?;
    let ask = ControlCommand::Set {
        tenant: args.tenant.clone(),
        device: args.device.clone(),
        change: Box::new(change),
        lasting: args.lasting.to_lasting(),
    };
    print_change(&args.daemon, &ask, format_done)
}

/// Formats the change for people.
pub(super) fn format_done(done: &ChangeResult) -> String {
    let head = match done.changed.as_slice() {
        [] => format!("{}: it was so already\n", done.tenant),
        keys => format!("{}: changed {}\n", done.tenant, keys.join(", ")),
    };
    let rows = done.devices.iter().map(|here| terms_rows(&done.tenant, here));
    let table: Vec<_> = std::iter::once(TERMS_HEADINGS.map(str::to_owned).to_vec()).chain(rows).collect();
    let notes: String = done.notes.iter().map(|note| format!("note: {note}\n")).collect();
    let mode = match (done.mode.as_str(), done.strict) {
        ("enforce", false) => String::new(),
        (mode, strict) => format!("mode: {mode}{}\n", if strict { ", strict" } else { "" }),
    };
    format!("{head}{}{mode}{notes}", say::lay_out_table(&table))
}
