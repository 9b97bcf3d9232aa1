//! `vgpu top`: shows the tenants and their use, continuously.
//!
//! [`state`] holds the data and its changes, without a terminal or a clock. It builds on [`row`] (the daemon's answer
//! as rows), [`column`], [`history`], [`keys`], [`line`](mod@line) and [`change`] (the text typed after `s`).
//! [`view`] draws it. The rest is I/O: [`feed`] asks the daemon, [`screen`] takes and restores the terminal, [`live`]
//! runs the loop, [`plain`] works without a terminal.

pub mod change;
pub mod column;
pub mod feed;
pub mod history;
pub mod keys;
pub mod line;
pub mod live;
pub mod plain;
pub mod row;
pub mod screen;
pub mod state;
pub mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use super::ask::DaemonAddress;
use super::status::parse_seconds;
use column::{RowOrder, TopColumn};
use state::TopOptions;
use vgpu_output::say::{EXIT_USAGE, Failure};

/// Shows tenants and devices in a live view, with keys to sort, filter, pause and change them.
///
/// WANT and GOT are parts of the last seconds: the device time that a tenant wanted, and the time that it got. WAIT is
/// the
/// part of the time since the last refresh in which its processes waited at the gate. PROC is the number of connected
/// processes on the device; a number before a slash says how many wait now. HISTORY is GOT of the last refreshes. A
/// window that is too small for all columns shows the most important ones. A MIG instance is a device of its own, named
/// by its UUID as in `vgpu status`; a narrow column shows both ends of the UUID.
///
/// In the view, ? shows the keys. A change there is the same as `vgpu set`, and lasts as long. Colours and letters
/// follow
/// NO_COLOR and the locale. Without a terminal, use --once, --batch or --json; --json prints the whole status each
/// time,
/// without filter or order.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu top
  vgpu top --interval 0.5 --sort memory
  vgpu top --read-only --device 0        # for a screen on the wall
  vgpu top --once --filter train         # as text, for scripts
  vgpu top --json --batch 60             # a JSON line each second, as vgpu status --json --watch

Exit codes:
  0    quit, or everything was shown
  1    no daemon answers there at the start, or the terminal cannot be used
  2    usage, also without a terminal and without --once, --batch or --json
  128  plus a signal's number: ended by it; the terminal is restored")]
pub struct Args {
    /// Time between two refreshes.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,

    /// Prints N refreshes as text, without a terminal, and ends.
    #[arg(long, short = 'b', value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "once")]
    batch: Option<u32>,

    /// Prints one refresh as text, and ends.
    #[arg(long)]
    once: bool,

    /// Sorts by this column: numbers from the highest, names from a.
    #[arg(long, short = 's', value_enum, value_name = "COLUMN", default_value = "got")]
    sort: TopColumn,

    /// Reverses the order.
    #[arg(long, short = 'r')]
    reverse: bool,

    /// Shows only tenants whose name contains TEXT, ignoring case.
    #[arg(long, short = 'f', value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,

    /// Shows only this device: its number or UUID, as the daemon names it.
    #[arg(long, short = 'd', value_name = "ID")]
    device: Option<String>,

    /// Disables all keys that change something.
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    daemon: DaemonAddress,
}

/// Shows the view.
///
/// # Errors
/// [`Failure`]: the daemon does not answer, or there is no terminal.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wishes = TopOptions {
        sort: RowOrder { column: args.sort, reversed: args.reverse },
        filter: args.filter.clone(),
        device: args.device.clone(),
        read_only: args.read_only,
        interval: args.interval,
    };
    let looks = if args.once { Some(1) } else { args.batch };
    if looks.is_some() || args.daemon.json {
        return plain::run(&args.daemon, &wishes, looks);
    }
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == *"dumb");
    if dumb || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let what = if dumb { "the terminal is a dumb one (TERM=dumb)" } else { "input or output is no terminal" };
        return Err(Failure::new(
            EXIT_USAGE,
            format!("{what}; accepted there: --once, --batch N, or --json, which need none"),
        ));
    }
    live::run(&args.daemon, &wishes)
}
