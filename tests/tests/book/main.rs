//! Checks that the book (README.md and docs/) is true. Its pages are complete, links have targets, and messages and
//! names equal those of the programs.
//!
//! Commands work: those that need only the simulated device run here; for the others a named test or recipe contains
//! them.
//!
//! - [`pages`]: the Markdown subset that these tests need
//! - [`links`]: contents, links, anchors
//! - [`measurements`]: files kept of measured runs
//! - [`features`]: a row for every promise, with its tests
//! - [`compatibility`]: a row for every client that a test declares
//! - [`reference`]: a row for every metric, variable, key and event
//! - [`messages`]: messages in the troubleshooting tables equal those of the programs
//! - [`commands`]: every command block of a page, in order, in one shell; [`setting`]: that shell's environment;
//!   [`stand_ins`]: programs that replace an engine, a service manager, the reader's own program; [`elsewhere`]:
//!   commands that need more than this, and the files that execute them
//! - [`texts`]: blocks of TOML, JSON, Python and C

mod commands;
mod compatibility;
mod elsewhere;
mod features;
mod links;
mod measurements;
mod messages;
mod pages;
mod reference;
mod setting;
mod stand_ins;
mod texts;
