//! The book (README.md and docs/) tells the truth: it is whole, its links lead somewhere, messages and names in it are the
//! programs', and its commands work: those that the simulated device is enough for are run, the others
//! are words of a test or a recipe that is named.
//!
//! - [`pages`]: Markdown as far as it is needed here
//! - [`links`]: contents, links, anchors
//! - [`measurements`]: what is kept of runs that were measured
//! - [`reference`]: rows for every metric, variable, key and event
//! - [`messages`]: what is looked up by its message is what the programs say
//! - [`commands`]: every block of commands, in the order of its page, in one shell; [`setting`]: what that shell has around it;
//!   [`stand_ins`]: programs that stand in for an engine, a service manager, somebody's own program; [`elsewhere`]: commands
//!   that need more than this, and where they are executed
//! - [`texts`]: blocks of TOML, JSON, Python and C

mod commands;
mod elsewhere;
mod links;
mod measurements;
mod messages;
mod pages;
mod reference;
mod setting;
mod stand_ins;
mod texts;
