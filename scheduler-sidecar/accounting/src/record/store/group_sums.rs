//! Reads the use of groups from the stored rows.

use rusqlite::params;

use super::super::group_use::{GroupSums, GroupUse, UseQuestion};
use super::{HOUR_SECONDS, RecordStore, RecordTrouble};
use crate::record::integrate::MINUTE_SECONDS;

/// Sums are exact: one group's amounts of an hour are far below 2^53.
const GROUPS_SQL: &str = "\
SELECT tenant.group_name, usage.start, total(usage.gpu_ns), total(usage.memory_byte_seconds) \
FROM usage JOIN tenant ON tenant.id = usage.tenant WHERE usage.span = ?1 AND usage.start > ?2 \
GROUP BY tenant.group_name, usage.start";

impl RecordStore {
    /// Returns the use of groups by the rows that are stored.
    ///
    /// # Errors
    /// [`RecordTrouble`].
    ///
    /// # Cost
    /// Reads all rows of the question's time: about a microsecond each.
    pub fn read_group_use(&self, question: &UseQuestion, now: i64) -> Result<GroupUse, RecordTrouble> {
        let mut all = GroupUse::new(question.clone(), now);
        let mut ask = self.connection.prepare_cached(GROUPS_SQL)?;
        for span in [MINUTE_SECONDS, HOUR_SECONDS] {
            let mut rows = ask.query(params![span, question.oldest(now).saturating_sub(span)])?;
            while let Some(row) = rows.next()? {
                let used = GroupSums { gpu_ns: whole(row.get(2)?), byte_seconds: whole(row.get(3)?) };
                let group: String = row.get(0)?;
                all.add_use(&group, (row.get(1)?, span), used);
            }
        }
        Ok(all)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative; larger saturates")]
fn whole(sum: f64) -> u64 {
    sum as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::integrate::{RecordKey, RecordRow};
    use super::*;
    use vgpu_config::bearer::CostBearer;
    use vgpu_config::plan::Keep;

    #[test]
    fn use_of_groups_is_the_same_from_minutes_and_from_the_hours_that_they_became() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        let row = |tenant: &str, group: &str, start: i64, gpu_ns: u64| {
            let bearer = CostBearer { group: Some(group.to_owned()), ..CostBearer::default() };
            let key = RecordKey { tenant: tenant.into(), device: "GPU-1".into(), start, bearer };
            (key, RecordRow { gpu_ns, memory_byte_seconds: 2 * gpu_ns, ..RecordRow::default() })
        };
        let rows = [row("a", "lab", 60, 5), row("b", "lab", 60, 7), row("a", "lab", 7_260, 1), row("c", "ops", 120, 9)];
        store.add(&BTreeMap::from(rows), &BTreeMap::new(), 200).unwrap();
        let question = UseQuestion { half_life: 365 * 86_400, starts: [0, 7_200].into() };
        let before = store.read_group_use(&question, 8_000).unwrap();
        assert_eq!(before.since[&0]["lab"], GroupSums { gpu_ns: 13, byte_seconds: 26 });
        assert_eq!(before.since[&7_200]["lab"], GroupSums { gpu_ns: 1, byte_seconds: 2 });
        assert!((before.decayed["ops"] - 9.0).abs() < 0.01 && before.since[&7_200].len() == 1, "{before:?}");
        let mut other = store.read_group_use(&UseQuestion { starts: [0].into(), ..question.clone() }, 8_000).unwrap();
        assert!(other.follow_question(&question, |part| store.read_group_use(part, 8_000).ok()));
        assert_eq!(other, before, "a new moment is answered alone");
        assert!(!other.follow_question(&UseQuestion { half_life: 60, ..question.clone() }, |_| None));
        store.roll_up_old(Keep { fine: 0, all: 100_000 }, 90_000).unwrap();
        let after = store.read_group_use(&question, 8_000).unwrap();
        assert_eq!(after.since, before.since);
    }
}
