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

/// Shows tenants and devices in a view that goes on, with keys to order, filter, pause and set.
///
/// WANT and GOT are parts of the last seconds: how much of the device's time a tenant wanted, and how
/// much it got. WAIT is how much of the time since the look before its processes stood at the gate,
/// PROC how many are connected, and before a slash how many stand there now; HISTORY is GOT, look
/// after look. A window that is too small for all columns shows those that count most.
///
/// In the view, ? shows the keys. What is set there is what `vgpu set` sets, and lasts as long. Colours
/// and letters follow NO_COLOR and the locale. Without a terminal: --once, --batch; and --json, which
/// prints the whole status each time, whatever is filtered or ordered.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu top
  vgpu top --interval 0.5 --sort memory
  vgpu top --read-only --device 0        # for a screen on the wall
  vgpu top --once --filter train         # as text, for scripts
  vgpu top --json --batch 60             # a JSON line each second, as vgpu status --json --watch

Exit codes:
  0    left, or everything was shown
  1    no daemon answers there at the start, or the terminal cannot be used
  2    usage, as where there is no terminal and neither --once, --batch nor --json
  128  and a signal's number: ended by it; the terminal is as it was")]
pub struct Args {
    /// Time between two looks.
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    interval: Duration,

    /// Print so many looks as text, without a terminal, and end.
    #[arg(long, short = 'b', value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "once")]
    batch: Option<u32>,

    /// Print one look as text and end.
    #[arg(long)]
    once: bool,

    /// Order by this column: numbers from the highest, names from a.
    #[arg(long, short = 's', value_enum, value_name = "COLUMN", default_value = "got")]
    sort: TopColumn,

    /// Order the other way round.
    #[arg(long, short = 'r')]
    reverse: bool,

    /// Only tenants with this in their name, in small or capital letters.
    #[arg(long, short = 'f', value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,

    /// Only this device: its number or UUID, as the daemon names it.
    #[arg(long, short = 'd', value_name = "ID")]
    device: Option<String>,

    /// Change nothing, whatever is typed.
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
