//! Reports: what the record's lines mean in hours, money and advice. Arithmetic and rendering, each apart.
//!
//! Arithmetic, in integers: [`apportion`] (parts that add up to what is shown), [`money`] (rates and amounts), [`gather`] (lines
//! put together by tenant, group, label, device), and by report [`usage`], [`chargeback`], [`idle`], [`rightsizing`],
//! [`efficiency`], [`trend`], [`savings`]. Rendering: [`sheet`] (what a report says, as text and Markdown), [`page`] (as one HTML file), [`chart`] (its
//! pictures). No clock, no file and no database here: the verbs in `cli/report` have those. docs/report.md is for readers.

pub mod apportion;
pub mod money;

pub mod gather;

pub mod chargeback;
pub mod efficiency;
pub mod idle;
pub mod rightsizing;
pub mod savings;
pub mod trend;
pub mod usage;

pub mod chart;
pub mod page;
pub mod sheet;

/// The time that a report is about: seconds since 1970, the last one not of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Its first second.
    pub since: i64,
    /// The first one after it.
    pub until: i64,
}

impl Period {
    /// Its seconds.
    #[must_use]
    pub fn seconds(self) -> u128 {
        u128::try_from(self.until.saturating_sub(self.since)).unwrap_or(0)
    }
}
