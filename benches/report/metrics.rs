//! The metric ids of a published suite of 56 for GPU virtualisation, each with its meaning here or the reason why it is
//! not measured ([`crate::table`]). The names are the suite's; the definitions are ours.

pub use crate::table::REPORT_METRICS;
use serde::Serialize;

/// Subject of a metric, by which the report is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricGroup {
    /// Added cost of calls.
    Overhead,
    /// Effects of limits on tenants, and of tenants on each other.
    Isolation,
    /// Distribution of the device's time.
    Scheduling,
    /// Behaviour at failures.
    Errors,
    /// Not measured on a device that computes nothing.
    Other,
}

impl MetricGroup {
    /// Groups with measured metrics, in the order of the report.
    pub const MEASURED_GROUPS: [MetricGroup; 4] =
        [MetricGroup::Overhead, MetricGroup::Isolation, MetricGroup::Scheduling, MetricGroup::Errors];

    /// Name in files and headings.
    pub fn name(self) -> &'static str {
        match self {
            MetricGroup::Overhead => "overhead",
            MetricGroup::Isolation => "isolation",
            MetricGroup::Scheduling => "scheduling",
            MetricGroup::Errors => "errors",
            MetricGroup::Other => "other",
        }
    }
}

/// Direction in which a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BetterDirection {
    /// Lower figures are better.
    Lower,
    /// Higher figures are better.
    Higher,
}

impl BetterDirection {
    /// Words for a heading of the report.
    pub fn direction_word(self) -> &'static str {
        match self {
            BetterDirection::Lower => "lower is better",
            BetterDirection::Higher => "higher is better",
        }
    }
}

/// Treatment of a metric in this report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricMethod {
    /// The metric is measured; the text is its definition.
    Measured(&'static str),
    /// The metric is not measured; the text is the reason.
    NotMeasured(&'static str),
}

/// One metric of the published suite.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReportMetric {
    /// Id of the metric in the suite, such as `OH-001`.
    pub id: &'static str,
    /// Name of the metric in the suite.
    pub name: &'static str,
    /// Subject of the metric.
    pub group: MetricGroup,
    /// Unit of the metric's figures.
    pub unit: &'static str,
    /// Direction in which the metric's figures are better.
    pub better: BetterDirection,
    /// Definition of the metric, or the reason why it is not measured.
    pub how: MetricMethod,
}

impl ReportMetric {
    /// True if the report has figures of it.
    pub fn is_measured(&self) -> bool {
        matches!(self.how, MetricMethod::Measured(_))
    }
}

/// The metric with that id.
pub fn find(id: &str) -> Option<&'static ReportMetric> {
    REPORT_METRICS.iter().find(|metric| metric.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    #[test]
    fn all_56_ids_are_there_once_and_in_the_suites_numbers() {
        let ids: HashSet<&str> = REPORT_METRICS.iter().map(|metric| metric.id).collect();
        assert_eq!(ids.len(), REPORT_METRICS.len());
        let mut count: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for metric in &REPORT_METRICS {
            let (kind, number) = metric.id.split_once('-').expect("KIND-NUMBER");
            count.entry(kind).or_default().push(number.parse().expect("a number"));
        }
        let expected = [
            ("OH", 10),
            ("IS", 10),
            ("LLM", 10),
            ("BW", 4),
            ("CACHE", 4),
            ("PCIE", 4),
            ("NCCL", 4),
            ("SCHED", 4),
            ("FRAG", 3),
            ("ERR", 3),
        ];
        for (kind, most) in expected {
            assert_eq!(count.remove(kind), Some((1..=most).collect()), "{kind}");
        }
        assert!(count.is_empty(), "{count:?}");
    }

    #[test]
    fn every_metric_is_defined_or_has_a_reason_and_the_four_groups_of_this_report_are_measured() {
        for metric in &REPORT_METRICS {
            let (MetricMethod::Measured(words) | MetricMethod::NotMeasured(words)) = metric.how;
            assert!(words.len() > 40, "{}: {words}", metric.id);
            assert!(!metric.unit.is_empty() && !metric.name.is_empty(), "{}", metric.id);
            assert_eq!(
                metric.group == MetricGroup::Other,
                !metric.is_measured() && metric.id != "OH-003",
                "{}",
                metric.id
            );
        }
        for group in MetricGroup::MEASURED_GROUPS {
            assert!(REPORT_METRICS.iter().filter(|metric| metric.group == group && metric.is_measured()).count() >= 3);
        }
    }

    #[test]
    fn reasons_name_metrics_that_are_measured() {
        for metric in REPORT_METRICS.iter().filter(|metric| !metric.is_measured()) {
            let MetricMethod::NotMeasured(why) = metric.how else { continue };
            for word in why.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
                let is_id =
                    word.split_once('-').is_some_and(|(_, number)| number.len() == 3 && number.parse::<u32>().is_ok());
                assert!(!is_id || find(word).is_some_and(ReportMetric::is_measured), "{}: {word}", metric.id);
            }
        }
    }
}
