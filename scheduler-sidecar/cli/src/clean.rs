//! `vgpu clean`: removes ledgers that ended programs left behind.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::ledgers::{self, LedgerFate};
use vgpu_output::say::{self, EXIT_FINDINGS, Failure};

/// Removes ledgers that ended programs left in memory and no process holds.
///
/// A tenant's ledger stays when its last process ends, because device time that it used counts for the next process.
/// When
/// the library creates a ledger, it removes those of its user that owe no device time. This command removes all ledgers
/// of this user; as root, those of all users. A ledger that a process holds stays.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu clean --dry-run
  vgpu clean
  vgpu clean --dir /srv/ledgers --json
  vgpu sim reset && vgpu clean     # the simulated GPU too

Exit codes:
  0  all removable ledgers were removed, or listed with --dry-run
  1  a ledger could not be read or removed; it is named
  2  usage")]
pub struct Args {
    /// Directory with ledgers, repeatable [default: $VGPU_STATE_DIR, else /dev/shm and /tmp].
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,

    /// Shows the ledgers that would be removed, and removes nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A ledger with its state, for the output.
#[derive(Debug, Serialize)]
struct ShownLedger {
    path: String,
    /// Tenant key from the file name: `t-` and the tenant's name, `c-` and a container's namespaces, or `u-` and a
    /// user.
    tenant: String,
    device: String,
    /// `removed`, `unused` (with --dry-run), `in use`, `another user's`, `no file` or `failed`.
    state: &'static str,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Removes ledgers and reports each.
///
/// # Errors
/// [`Failure`]: a named directory cannot be read, or a ledger cannot be removed.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let named = !args.dir.is_empty();
    let places: BTreeSet<PathBuf> =
        if named { args.dir.clone() } else { ledgers::ledger_directories() }.into_iter().collect();
    let mut all = Vec::new();
    for place in places {
        match std::fs::read_dir(&place) {
            Ok(_) => all.extend(ledgers::all(&place).into_iter().map(|one| judge_ledger(one, args.dry_run))),
            Err(why) if named => {
                return Err(Failure::new(EXIT_FINDINGS, format!("--dir {}: {why}", place.display())));
            }
            Err(_) => {} // a default place without ledgers
        }
    }
    if args.json {
        say::print_json(&all)?;
    } else if all.is_empty() {
        say::print_text("no ledgers\n")?;
    } else {
        let mut rows = vec![["LEDGER", "STATE"].map(str::to_owned).to_vec()];
        rows.extend(all.iter().map(|one| vec![say::quote_shown(one.path.as_ref()), one.state.to_owned()]));
        say::print_text(&say::lay_out_table(&rows))?;
    }
    let failed: Vec<String> =
        all.iter().filter_map(|one| Some(format!("{}: {}", one.path, one.reason.as_ref()?))).collect();
    if failed.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::new(EXIT_FINDINGS, failed.join("; "))) }
}

fn judge_ledger(ledger: ledgers::LedgerFile, dry: bool) -> ShownLedger {
    let fate = if dry { ledgers::ledger_fate(&ledger.path) } else { ledgers::remove(&ledger.path) };
    let (state, reason) = match fate {
        Ok(LedgerFate::Free) if dry => ("unused", None),
        Ok(LedgerFate::Free) => ("removed", None),
        Ok(LedgerFate::InUse) => ("in use", None),
        Ok(LedgerFate::Foreign) => ("another user's", None),
        Ok(LedgerFate::NoFile) => ("no file", None),
        Ok(LedgerFate::NoLedger) => ("no ledger", None),
        Err(why) => ("failed", Some(why.to_string())),
    };
    let path = ledger.path.display().to_string();
    ShownLedger { path, tenant: ledger.tenant, device: ledger.device, state, reason }
}
