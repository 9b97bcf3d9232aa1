//! What sharing costs: programs measured alone and together, and what follows from it.
//!
//! Arithmetic: [`stats`] (medians, intervals, changes, fairness) and [`results`] (what was measured, and what it means).
//! [`line`](mod@line): what a program says of its iterations. [`isolation`]: which test shows which kind of isolation. [`show`]: a
//! report of it all. No process and no clock here: `cli/validate` has those. docs/validate.md is for readers.

pub mod stats;

pub mod line;
pub mod results;

pub mod isolation;
pub mod show;
