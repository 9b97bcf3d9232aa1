//! Policies: terms that follow time, use and the decisions of people.
//!
//! ```text
//! terms of the file ──► windows, bookings ──► groups, need ──► overrides ──► terms in force
//!                       (schedule)            (usage)          (overrides)   (chain: decide)
//! ```
//!
//! Everything here is a pure function of its arguments: no IO and no clock, and time zones are values. The daemon calls
//! [`chain::decide`] when something changed and at the moment that the last decision named. [`words`] tells where a
//! value comes from, and [`forecast`] what will hold later. [`promise`] computes the device time that terms promise,
//! and [`queue`] how long those who wait will wait.
#![forbid(unsafe_code)]

pub mod active;
pub mod chain;
pub mod cordons;
pub mod deadline;
pub mod forecast;
pub mod groups;
pub mod idle;
pub mod outcome;
pub mod overrides;
pub mod promise;
pub mod queue;
pub mod quotas;
pub mod schedule;
pub mod stage;
pub mod usage;
pub mod values;
pub mod words;
