//! Reads the daemon's configuration file: parses it, resolves its meaning, and checks that every promise can be kept.
//!
//! ```text
//! text ──read──► RawFile ──resolve──► Plan ──difference──► what a running daemon has to do
//!         │         (places in the text)  │
//!         └──► Problems: all of them, each with line, column, key, value and what is accepted
//! ```
//!
//! In reading order: [`keys`] (all keys), [`raw`] (the values as written), [`read`] and [`value`] (text to raw),
//! [`time`] (the constants of device time), [`action`] (programs that events start), [`templates`] (those that are
//! built in), [`plan`] (the resolved meaning), [`groups`] (the tree and its quotas),
//! [`schedule`] (windows and bookings), [`devices`] and [`resolve`] (raw to
//! plan), [`admit`] (whether limits fit), [`difference`] (plan to plan), [`slots`] (slots whose number changes),
//! [`live`] (one tenant's terms while the
//! daemon serves), [`added`] (tenants added by command), [`show`] (tables and JSON),
//! [`import`] (files of other programs), [`problem`].
//!
//! Everything here depends only on its arguments: the text, an [`inventory::Inventory`] of the machine's devices, and
//! [`resolve::Surroundings`]. Not here: reading the file (the daemon does), sockets, and the driver, except for
//! [`inventory::ask_driver`].
#![forbid(unsafe_code)]

pub mod action;
pub mod added;
pub mod admit;
pub mod bearer;
pub mod change;
pub mod devices;
pub mod difference;
pub mod groups;
pub mod import;
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
pub mod schedule;
pub mod show;
pub mod slots;
pub mod suggest;
pub mod templates;
pub mod time;
pub mod usage;
pub mod value;

use plan::ConfigPlan;
use problem::ConfigReport;
use resolve::Surroundings;

/// Parses and resolves a file for this machine.
///
/// # Errors
/// Every problem of the file, ordered by place. Later checks are skipped where their errors would hide the cause. A
/// file that is not TOML is checked for syntax only. Limits are checked for fit only if nothing else is wrong.
pub fn make_plan(text: &str, surroundings: &Surroundings) -> Result<ConfigPlan, ConfigReport> {
    let mut problems = problem::ProblemList::new(text);
    let raw = read::read_file(text, &mut problems);
    let plan = raw.map(|raw| resolve::resolve_plan(&raw, surroundings, &mut problems));
    match (plan, problems.into_report()) {
        (Some(plan), report) if report.problems.is_empty() => Ok(plan),
        (_, report) => Err(report),
    }
}
