//! Policies: terms that follow time and the decisions of people.
//!
//! ```text
//! terms of the file ──► windows, bookings ──► changes by hand ──► terms in force
//!                       (schedule)            (by_hand)           (chain: decide)
//! ```
//!
//! Everything here is a pure function of its arguments: no IO and no clock, and time zones are values. The daemon calls
//! [`chain::decide`] when something changed and at the moment that the last decision named. [`words`] tells where a
//! value comes from, and [`forecast`] what will hold later.
#![forbid(unsafe_code)]

pub mod by_hand;
pub mod chain;
pub mod forecast;
pub mod schedule;
pub mod words;
