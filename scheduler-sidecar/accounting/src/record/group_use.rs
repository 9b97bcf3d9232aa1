//! Sums up the use of groups: device time halved with each half-life, and device time and memory since given moments.
//!
//! The sums follow from the rows of the record, so a new daemon finds them where the last one left them. They are read
//! from the record once, and each row that is written later is added. Rows that still wait count too. Not here: the
//! meaning of shares and quotas, which is the policies'.

use std::collections::{BTreeMap, BTreeSet};

use super::integrate::{MINUTE_SECONDS, RecordKey, RecordRow};

/// Half-lives after which use counts as nothing: less than a millionth of it is left.
const COUNTED_HALF_LIVES: u64 = 20;

/// The sums that are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseQuestion {
    /// Time after which use counts half, in seconds.
    pub half_life: u64,
    /// Moments since which use is summed up, in seconds since 1970.
    pub starts: BTreeSet<i64>,
}

impl UseQuestion {
    /// The first moment whose rows count.
    #[must_use]
    pub fn oldest(&self, now: i64) -> i64 {
        let span = self.half_life.saturating_mul(COUNTED_HALF_LIVES);
        let half_lives = now.saturating_sub(i64::try_from(span).unwrap_or(i64::MAX));
        self.starts.first().map_or(half_lives, |start| half_lives.min(*start))
    }
}

/// Use of a group since a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupSums {
    /// Device time, in ns.
    pub gpu_ns: u64,
    /// Bytes held, multiplied by the seconds for which they were held.
    pub byte_seconds: u64,
}

/// Use of groups, by the name that the record has; the empty name has the tenants without a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupUse {
    /// The question that this answers.
    pub question: UseQuestion,
    /// Device time in ns, halved with each half-life.
    pub decayed: BTreeMap<String, f64>,
    /// Use since each of the moments.
    pub since: BTreeMap<i64, BTreeMap<String, GroupSums>>,
    /// Time of [`Self::decayed`], in seconds since 1970.
    at: i64,
}

impl GroupUse {
    /// Starts with nothing used.
    #[must_use]
    pub fn new(question: UseQuestion, now: i64) -> Self {
        let since = question.starts.iter().map(|start| (*start, BTreeMap::new())).collect();
        Self { question, decayed: BTreeMap::new(), since, at: now }
    }

    /// Answers another question of the same half-life: `read` answers for each new moment alone. False if it cannot.
    pub fn follow_question(&mut self, question: &UseQuestion, read: impl Fn(&UseQuestion) -> Option<Self>) -> bool {
        if self.question.half_life != question.half_life {
            return false;
        }
        self.since.retain(|start, _| question.starts.contains(start));
        for start in &question.starts {
            if self.since.contains_key(start) {
                continue;
            }
            // Decayed use is known: the shortest half-life reads no other rows.
            let Some(part) = read(&UseQuestion { half_life: 1, starts: [*start].into() }) else { return false };
            self.since.extend(part.since);
        }
        self.question = question.clone();
        true
    }

    /// Halves the decayed use by the time that passed. False if the clock was set back since: the use was halved for
    /// time that did not pass, so it must be read again.
    #[must_use]
    pub fn pass_time(&mut self, now: i64) -> bool {
        let is_forward = now >= self.at;
        let factor = halved(now.saturating_sub(self.at), self.question.half_life);
        self.decayed.values_mut().for_each(|used| *used *= factor);
        self.at = now;
        is_forward
    }

    /// Adds the use of a time that began at `start` and lasted `span` seconds. A part of it may lie before a moment of
    /// the question.
    #[expect(clippy::cast_precision_loss, reason = "device time of an hour is far below 2^53 ns")]
    pub fn add_use(&mut self, group: &str, (start, span): (i64, i64), used: GroupSums) {
        let age = self.at.saturating_sub(start.saturating_add(span / 2));
        let decayed = used.gpu_ns as f64 * halved(age, self.question.half_life);
        *self.decayed.entry(group.to_owned()).or_default() += decayed;
        for (since, groups) in &mut self.since {
            let after = start.saturating_add(span).saturating_sub(*since).clamp(0, span);
            let part = |amount: u64| {
                let part =
                    u128::from(amount) * u128::from(after.unsigned_abs()) / u128::from(span.unsigned_abs().max(1));
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            if after > 0 {
                let sums = groups.entry(group.to_owned()).or_default();
                sums.gpu_ns = sums.gpu_ns.saturating_add(part(used.gpu_ns));
                sums.byte_seconds = sums.byte_seconds.saturating_add(part(used.byte_seconds));
            }
        }
    }

    /// Adds rows of minutes.
    pub fn add_rows(&mut self, rows: &BTreeMap<RecordKey, RecordRow>) {
        for (key, row) in rows {
            let used = GroupSums { gpu_ns: row.gpu_ns, byte_seconds: row.memory_byte_seconds };
            self.add_use(key.bearer.group_column(), (key.start, MINUTE_SECONDS), used);
        }
    }
}

/// Part that is left of use after a time; all of it if the time lies ahead, because the clock was set back.
#[expect(clippy::cast_precision_loss, reason = "seconds of centuries are exact")]
fn halved(seconds: i64, half_life: u64) -> f64 {
    (-(seconds.max(0) as f64) / half_life.max(1) as f64).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::bearer::CostBearer;

    #[test]
    fn use_counts_half_after_a_half_life_and_whole_since_its_moments() {
        let question = UseQuestion { half_life: 3_600, starts: [1_000_000, 1_001_800].into() };
        assert_eq!(question.oldest(1_003_600), 1_003_600 - 72_000);
        let mut all = GroupUse::new(question, 1_003_600);
        let used = GroupSums { gpu_ns: 1_000, byte_seconds: 90 };
        all.add_use("lab", (1_003_600 - 3_630, 60), used);
        assert!((all.decayed["lab"] - 500.0).abs() < 1.0, "{all:?}");
        assert!(all.pass_time(1_007_200));
        assert!((all.decayed["lab"] - 250.0).abs() < 1.0, "{all:?}");
        // Half of the minute lies before the first moment.
        assert_eq!(all.since[&1_000_000]["lab"], GroupSums { gpu_ns: 500, byte_seconds: 45 });
        assert!(all.since[&1_001_800].is_empty());
        let bearer = CostBearer { group: Some("lab/vision".into()), ..CostBearer::default() };
        let key = RecordKey { tenant: "a".into(), device: "d".into(), start: 1_001_820, bearer };
        let row = RecordRow { gpu_ns: 7, memory_byte_seconds: 8, ..RecordRow::default() };
        all.add_rows(&BTreeMap::from([(key, row)]));
        assert_eq!(all.since[&1_001_800]["lab/vision"], GroupSums { gpu_ns: 7, byte_seconds: 8 });
        assert_eq!(all.since[&1_000_000].len(), 2);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_use_out_of_nothing() {
        let mut all = GroupUse::new(UseQuestion { half_life: 60, starts: BTreeSet::new() }, 1_000);
        all.add_use("lab", (5_000, 60), GroupSums { gpu_ns: 10, byte_seconds: 0 });
        assert!(!all.pass_time(10));
        assert_eq!(all.decayed["lab"], 10.0);
    }

    #[test]
    fn use_counts_again_after_a_clock_that_was_a_year_ahead() {
        let mut all = GroupUse::new(UseQuestion { half_life: 60, starts: BTreeSet::new() }, 1_000);
        all.add_use("lab", (940, 60), GroupSums { gpu_ns: 8, byte_seconds: 0 });
        assert!(all.pass_time(1_000 + 365 * 86_400) && all.decayed["lab"] < 1e-6);
        assert!(!all.pass_time(1_060), "the use before must be read again");
        all.add_use("lab", (1_030, 60), GroupSums { gpu_ns: 10, byte_seconds: 0 });
        assert!((all.decayed["lab"] - 10.0).abs() < 1e-6, "{all:?}");
        assert!(all.pass_time(1_120) && (all.decayed["lab"] - 5.0).abs() < 1e-6, "{all:?}");
    }
}
