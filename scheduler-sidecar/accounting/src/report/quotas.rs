//! The quotas section of the month's report: how much of each quota its group used in its fullest period, and when it
//! was used up.
//!
//! The limits are those of a configuration of today, since the record has none. A row counts for the period of the
//! quota in which it began. Only rows of the report count, so a week that began before it counts from the report's
//! start.

use serde_json::{Value, json};
use vgpu_config::groups::{GroupPlan, QuotaPlan, QuotaResource, is_within};

use super::apportion::format_decimal;
use super::sheet::SheetTable;
use crate::record::ask::RecordLine;

/// Sums up the use of quotas, from rows in the order of time.
#[derive(Debug, Default)]
pub struct QuotaReport {
    limits: Vec<LimitUse>,
}

/// One limit of one quota, and its use.
#[derive(Debug)]
struct LimitUse {
    group: String,
    quota: QuotaPlan,
    resource: QuotaResource,
    /// The limit, in thousandths of an hour.
    limit: u32,
    /// Start and end of the period that the last row of the group belongs to, in seconds since 1970.
    period: Option<(i64, i64)>,
    /// Use in that period, in parts of the resource ([`QuotaResource::parts_of`]).
    used: u128,
    /// Most use in any period, in the same parts, and the start of that period; `None`: nothing was used.
    most: Option<(u128, i64)>,
    /// Number of periods in which the limit was reached.
    used_up: u32,
    /// End of the row in which the limit was reached first, in seconds since 1970.
    reached: Option<i64>,
}

impl QuotaReport {
    /// Starts with nothing used of the groups' quotas.
    #[must_use]
    pub fn new(groups: &[GroupPlan]) -> Self {
        let quotas = groups.iter().flat_map(|group| group.quotas.iter().map(move |quota| (group, quota)));
        let limits = quotas.flat_map(|(group, quota)| {
            quota.limits().map(|(resource, limit)| LimitUse {
                group: group.name.clone(),
                quota: quota.clone(),
                resource,
                limit,
                period: None,
                used: 0,
                most: None,
                used_up: 0,
                reached: None,
            })
        });
        Self { limits: limits.collect() }
    }

    /// Adds a row of usage.
    pub fn add(&mut self, line: &RecordLine) {
        let Some(group) = &line.bearer.group else { return };
        self.limits.iter_mut().filter(|limit| is_within(group, &limit.group)).for_each(|limit| limit.add(line));
    }

    /// Returns the section. `moment` writes seconds since 1970 for people.
    #[must_use]
    pub fn to_table(&self, moment: impl Fn(i64) -> String) -> SheetTable {
        let shown = |at: Option<i64>| at.map_or_else(|| "-".to_owned(), &moment);
        let heads = ["group", "quota", "fullest period from", "first used up", "used", "used %", "periods used up"];
        let rows = self.limits.iter().map(|limit| {
            vec![
                limit.group.clone(),
                limit.words(),
                shown(limit.most.map(|(_, start)| start)),
                shown(limit.reached),
                limit.most_hours(),
                limit.most_percent(),
                limit.used_up.to_string(),
            ]
        });
        SheetTable {
            heading: "Quotas: the fullest period of each".into(),
            heads: heads.map(str::to_owned).to_vec(),
            words: 4,
            rows: rows.collect(),
            total: None,
        }
    }

    /// Returns the section as JSON: a list of limits.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let limits = self.limits.iter().map(|limit| {
            json!({
                "group": limit.group,
                "quota": limit.words(),
                "used_hours": limit.most_hours(),
                "used_percent": limit.most_percent(),
                "fullest_from": limit.most.map(|(_, start)| start),
                "used_up": limit.used_up,
                "first_used_up": limit.reached,
            })
        });
        limits.collect()
    }
}

impl LimitUse {
    fn add(&mut self, line: &RecordLine) {
        if self.period.is_none_or(|(_, end)| line.start >= end) {
            (self.period, self.used) = (self.quota.bounds_at(line.start), 0);
        }
        let Some((start, _)) = self.period else { return };
        let full = u128::from(self.limit) * self.resource.parts_per_step();
        let before = self.used;
        self.used += self.resource.parts_of(u128::from(line.gpu_ns), u128::from(line.memory_byte_seconds));
        if before < full && self.used >= full {
            self.used_up += 1;
            self.reached = self.reached.or(Some(line.start.saturating_add(line.span)));
        }
        if self.used > self.most.map_or(0, |(most, _)| most) {
            self.most = Some((self.used, start));
        }
    }

    fn words(&self) -> String {
        format!("{} {} a {}", f64::from(self.limit) / 1000.0, self.resource.unit(), self.quota.period.word())
    }

    fn most_steps(&self, factor: u128, divisor: u128) -> u128 {
        self.most.map_or(0, |(most, _)| most * factor / divisor)
    }

    /// Most use in a period, in hours with three decimals, rounded down.
    fn most_hours(&self) -> String {
        format_decimal(self.most_steps(1, self.resource.parts_per_step()), 3)
    }

    /// Most use in a period, in percent of the limit with one decimal, rounded down.
    fn most_percent(&self) -> String {
        let full = u128::from(self.limit) * self.resource.parts_per_step();
        format_decimal(self.most_steps(1000, full.max(1)), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::tests::test_line;
    use super::*;
    use vgpu_config::resolve::Surroundings;

    const DAY: i64 = 86_400;

    /// A row of an hour that used 0.4 GPU-hours and held 1 GiB.
    fn hour(group: &str, start: i64) -> RecordLine {
        let mut line = test_line("a", Some(group), "G", start, 0, 0);
        (line.span, line.gpu_ns, line.memory_byte_seconds) = (3600, 1_440_000_000_000, 3600 << 30);
        line
    }

    #[test]
    fn each_quota_has_its_fullest_period_and_the_moment_at_which_it_was_used_up() {
        let group = |name: &str, quota: &str| {
            format!("[[group]]\nname = \"{name}\"\n[[group.quota]]\ntime_zone = \"UTC\"\nthen = \"pause\"\n{quota}\n")
        };
        let file = group("lab", "per = \"day\"\ngpu_hours = 1\ngib_hours = 8")
            + &group("ops", "per = \"week\"\ngpu_hours = 40");
        let plan = vgpu_config::make_plan(&file, &Surroundings::default()).unwrap_or_else(|why| panic!("{why:?}"));
        let mut report = QuotaReport::new(&plan.groups);
        // Two hours of the first day, three of a subgroup on the second, one on the third. Others count nowhere.
        for start in [0, 3600, DAY, DAY + 3600, DAY + 7200, 2 * DAY] {
            report.add(&hour(if start < DAY { "lab" } else { "lab/vision" }, start));
            report.add(&hour("labs", start));
        }
        let rows = report.to_table(|second| (second / 3600).to_string()).rows;
        assert_eq!(rows[0], ["lab", "1 GPU-hours a day", "24", "27", "1.200", "120.0", "1"]);
        assert_eq!(rows[1], ["lab", "8 GiB-hours a day", "24", "-", "3.000", "37.5", "0"]);
        assert_eq!(rows[2], ["ops", "40 GPU-hours a week", "-", "-", "0.000", "0.0", "0"]);
        assert_eq!(report.to_json()[0]["first_used_up"], 27 * 3600);
    }
}
