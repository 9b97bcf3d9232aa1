//! The metric ids of a published suite of 56 for GPU virtualisation, each with its meaning here or the reason why it is
//! not measured ([`crate::table`]). The names are the suite's; the definitions are ours.

pub use crate::table::METRICS;
use serde::Serialize;

/// Subject of a metric, by which the report is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
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

impl Group {
    /// Groups with measured metrics, in the order of the report.
    pub const MEASURED: [Group; 4] = [Group::Overhead, Group::Isolation, Group::Scheduling, Group::Errors];

    /// Name in files and headings.
    pub fn name(self) -> &'static str {
        match self {
            Group::Overhead => "overhead",
            Group::Isolation => "isolation",
            Group::Scheduling => "scheduling",
            Group::Errors => "errors",
            Group::Other => "other",
        }
    }
}

/// Direction in which a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Lower figures are better.
    Lower,
    /// Higher figures are better.
    Higher,
}

impl Better {
    /// Words for a heading of the report.
    pub fn word(self) -> &'static str {
        match self {
            Better::Lower => "lower is better",
            Better::Higher => "higher is better",
        }
    }
}

/// Treatment of a metric in this report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The metric is measured; the text is its definition.
    Measured(&'static str),
    /// The metric is not measured; the text is the reason.
    NotMeasured(&'static str),
}

/// One metric of the published suite.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Metric {
    /// Id of the metric in the suite, such as `OH-001`.
    pub id: &'static str,
    /// Name of the metric in the suite.
    pub name: &'static str,
    /// Subject of the metric.
    pub group: Group,
    /// Unit of the metric's figures.
    pub unit: &'static str,
    /// Direction in which the metric's figures are better.
    pub better: Better,
    /// Definition of the metric, or the reason why it is not measured.
    pub how: How,
}

impl Metric {
    /// True if the report has figures of it.
    pub fn is_measured(&self) -> bool {
        matches!(self.how, How::Measured(_))
    }
}

/// The metric with that id.
pub fn find(id: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    #[test]
    fn all_56_ids_are_there_once_and_in_the_suites_numbers() {
        let ids: HashSet<&str> = METRICS.iter().map(|metric| metric.id).collect();
        assert_eq!(ids.len(), METRICS.len());
        let mut count: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for metric in &METRICS {
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
        for metric in &METRICS {
            let (How::Measured(words) | How::NotMeasured(words)) = metric.how;
            assert!(words.len() > 40, "{}: {words}", metric.id);
            assert!(!metric.unit.is_empty() && !metric.name.is_empty(), "{}", metric.id);
            assert_eq!(metric.group == Group::Other, !metric.is_measured() && metric.id != "OH-003", "{}", metric.id);
        }
        for group in Group::MEASURED {
            assert!(METRICS.iter().filter(|metric| metric.group == group && metric.is_measured()).count() >= 3);
        }
    }

    #[test]
    fn reasons_name_metrics_that_are_measured() {
        for metric in METRICS.iter().filter(|metric| !metric.is_measured()) {
            let How::NotMeasured(why) = metric.how else { continue };
            for word in why.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
                let is_id =
                    word.split_once('-').is_some_and(|(_, number)| number.len() == 3 && number.parse::<u32>().is_ok());
                assert!(!is_id || find(word).is_some_and(Metric::is_measured), "{}: {word}", metric.id);
            }
        }
    }
}
