//! The daemon's configuration file: what was written, what it means, whether it can be kept.
//!
//! ```text
//! text ──read──► RawFile ──resolve──► Plan ──difference──► what a running daemon has to do
//!         │         (places in the text)  │
//!         └──► Problems: all of them, each with line, column, key, value and what is accepted
//! ```
//!
//! In reading order: [`keys`] (every key there is), [`raw`] (what was written), [`read`] and [`value`] (text to raw),
//! [`time`] (the constants of device time), [`plan`] (what it means), [`devices`] and [`resolve`] (raw to plan),
//! [`admit`] (the arithmetic of what fits), [`difference`] (plan to plan), [`live`] (one tenant's terms, while the daemon
//! serves), [`show`] (tables and JSON), [`problem`].
//!
//! Everything here is a function of its arguments: text, an [`inventory::Inventory`] of the devices that are there, and
//! [`Surroundings`]. Not here: the file (the daemon reads it), sockets, and the driver, but for [`inventory::ask`].
#![forbid(unsafe_code)]

pub mod admit;
pub mod bearer;
pub mod change;
pub mod devices;
pub mod difference;
pub mod inventory;
pub mod keys;
pub mod live;
pub mod options;
pub mod paths;
pub mod plan;
pub mod problem;
pub mod raw;
pub mod read;
pub mod resolve;
pub mod show;
pub mod suggest;
pub mod time;
pub mod value;

use std::path::PathBuf;

use inventory::Inventory;
use plan::Plan;
use problem::Report;

/// Longest file that is read, in bytes.
pub const MAX_FILE: usize = 1 << 20;

/// What the file does not decide alone.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The directory of sockets if the file names none.
    pub run_dir: PathBuf,
    /// The command line's, which wins over the file.
    pub run_dir_option: Option<PathBuf>,
    /// `--state-dir`, which wins too; `none`: nothing is kept.
    pub state_option: Option<PathBuf>,
    /// The command line's; `none` for no such socket.
    pub admin_option: Option<PathBuf>,
    /// The command line's.
    pub log_option: Option<String>,
    /// The devices that the driver knows; `None`: nobody was asked, or nobody answered.
    pub inventory: Option<Inventory>,
}

/// What a file means here.
///
/// # Errors
/// Every problem of the file, in the order of their places. A file that is not TOML is judged by its syntax alone, and
/// what fits on a device is computed only if nothing else is wrong: follow-up errors would hide the cause.
pub fn plan(text: &str, surroundings: &Surroundings) -> Result<Plan, Report> {
    let mut problems = problem::Problems::new(text);
    let raw = read::file(text, &mut problems);
    let plan = raw.map(|raw| resolve::plan(&raw, surroundings, &mut problems));
    match (plan, problems.report()) {
        (Some(plan), report) if report.problems.is_empty() => Ok(plan),
        (_, report) => Err(report),
    }
}
