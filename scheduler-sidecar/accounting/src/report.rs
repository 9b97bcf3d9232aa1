//! Reports: turns recorded rows into hours, money and advice. Arithmetic and rendering are separate.
//!
//! Integer arithmetic: [`apportion`] (parts that sum to the shown total), [`money`] (rates and amounts), [`gather`]
//! (rows grouped by tenant, group, label, device), and one module for each report: [`usage`], [`chargeback`],
//! [`idle`], [`rightsizing`], [`efficiency`], [`energy`], [`slo`], [`monthly`] with [`quotas`], [`trend`], [`savings`].
//! Rendering: [`sheet`] (a report as text and Markdown), [`page`] (as one HTML file), [`chart`] (its pictures). No
//! clock, files or database here: the commands in `cli/report` have those. docs/report.md is the user's guide.

pub mod apportion;
pub mod money;

pub mod gather;

pub mod chargeback;
pub mod efficiency;
pub mod energy;
pub mod idle;
pub mod rightsizing;
pub mod savings;
pub mod slo;
pub mod trend;
pub mod usage;

pub mod quotas;

pub mod monthly;

pub mod chart;
pub mod page;
pub mod sheet;

/// The period of a report, in seconds since 1970; the end is excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportPeriod {
    /// First second of the period, since 1970.
    pub since: i64,
    /// First second after the period.
    pub until: i64,
}

impl ReportPeriod {
    /// Returns the length in seconds.
    #[must_use]
    pub fn length_seconds(self) -> u128 {
        u128::try_from(self.until.saturating_sub(self.since)).unwrap_or(0)
    }
}
