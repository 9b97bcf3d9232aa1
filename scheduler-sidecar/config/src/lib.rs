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
//! [`resolve::Surroundings`]. Not here: the file (the daemon reads it), sockets, and the driver, but for
//! [`inventory::ask`].
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

use plan::Plan;
use problem::Report;
use resolve::Surroundings;

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
