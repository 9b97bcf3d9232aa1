//! The table of energy: its rows, and their roll-up into hours. A row without a tenant (0) is nobody's.

use rusqlite::{Connection, ToSql, Transaction, params};

use super::{HOUR_SECONDS, to_signed};
use crate::record::integrate::{MINUTE_SECONDS, RecordKey, RecordRow};

/// Creates the table in a record that an earlier build began. Readers that do not know it do without.
pub(super) const CREATE_SQL: &str = "\
CREATE TABLE IF NOT EXISTS energy (
  span INTEGER NOT NULL, start INTEGER NOT NULL, tenant INTEGER NOT NULL, device INTEGER NOT NULL,
  work_mj INTEGER NOT NULL, idle_mj INTEGER NOT NULL, estimated INTEGER NOT NULL,
  PRIMARY KEY (span, start, tenant, device)
) WITHOUT ROWID;
";

/// Adds to an existing row, saturating.
macro_rules! upsert {
    () => {
        " ON CONFLICT DO UPDATE SET work_mj = min(work_mj + excluded.work_mj, 4611686018427387904), \
         idle_mj = min(idle_mj + excluded.idle_mj, 4611686018427387904), estimated = max(estimated, excluded.estimated)"
    };
}

const ADD_SQL: &str = concat!(
    "INSERT INTO energy (span, start, tenant, device, work_mj, idle_mj, estimated) VALUES (?1, ?2, CASE WHEN ?3 = '' \
     THEN 0 ELSE (SELECT id FROM tenant WHERE name = ?3 AND group_name = ?4 AND labels = ?5) END, \
     (SELECT id FROM device WHERE uuid = ?6), ?7, ?8, ?9)",
    upsert!()
);

/// An hour's sums stay in range, because each minute's value is bounded.
const ROLL_UP_SQL: &str = concat!(
    "INSERT INTO energy (span, start, tenant, device, work_mj, idle_mj, estimated) SELECT 3600, ?1, tenant, device, \
     sum(min(work_mj, 72057594037927936)), sum(min(idle_mj, 72057594037927936)), max(estimated) FROM energy \
     WHERE span = 60 AND start >= ?1 AND start < ?2 GROUP BY tenant, device",
    upsert!()
);

/// Adds the energy of a row whose device, and tenant if it has one, are in the database.
pub(super) fn add_energy(connection: &Connection, key: &RecordKey, row: &RecordRow) -> rusqlite::Result<()> {
    if row.energy.sum_mj() == 0 {
        return Ok(());
    }
    let (group, labels) = (key.bearer.group_column(), key.bearer.labels_column());
    let (work, idle) = (to_signed(row.energy.work_mj), to_signed(row.energy.idle_mj));
    connection.prepare_cached(ADD_SQL)?.execute(params![
        MINUTE_SECONDS,
        key.start,
        key.tenant,
        group,
        labels,
        key.device,
        work,
        idle,
        row.is_estimated
    ])?;
    Ok(())
}

/// Turns the minutes of an hour into one row for each tenant and device.
pub(super) fn roll_up_hour(change: &Transaction<'_>, hour: i64) -> rusqlite::Result<()> {
    let hour: [&dyn ToSql; 2] = [&hour, &(hour + HOUR_SECONDS)];
    change.execute(ROLL_UP_SQL, hour)?;
    change.execute("DELETE FROM energy WHERE span = 60 AND start >= ?1 AND start < ?2", hour)?;
    Ok(())
}

/// Removes rows that ended before `oldest`.
pub(super) fn remove_before(change: &Transaction<'_>, oldest: i64) -> rusqlite::Result<()> {
    change.execute("DELETE FROM energy WHERE start + span <= ?1", [oldest])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::RecordStore;
    use super::*;
    use crate::record::ask::{for_each_line, for_each_nobody};
    use crate::record::energy::EnergyUse;
    use std::collections::BTreeMap;
    use vgpu_config::plan::Keep;

    #[test]
    fn minutes_of_energy_become_hours_and_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        let row = |work_mj, idle_mj| RecordRow {
            energy: EnergyUse { work_mj, idle_mj },
            is_estimated: work_mj == 5,
            ..RecordRow::default()
        };
        let key = |tenant: &str, start| RecordKey {
            tenant: tenant.into(),
            device: "GPU-1".into(),
            start,
            bearer: Default::default(),
        };
        let rows = BTreeMap::from([(key("a", 60), row(5, 7)), (key("a", 120), row(1, 0)), (key("", 60), row(2, 11))]);
        for _ in 0..2 {
            store.add(&rows, &BTreeMap::new(), 120).unwrap();
        }
        let sums = || {
            let (mut lines, mut nobody) = (Vec::new(), EnergyUse::default());
            for_each_line(dir.path(), (0, i64::MAX), |line| lines.push((line.span, line.energy, line.is_estimated)))
                .unwrap();
            for_each_nobody(dir.path(), (0, i64::MAX), |_, energy, _| nobody.add(energy)).unwrap();
            (lines, nobody)
        };
        let used = |work_mj, idle_mj| Some(EnergyUse { work_mj, idle_mj });
        let nobody = EnergyUse { work_mj: 4, idle_mj: 22 };
        assert_eq!(sums(), (vec![(60, used(10, 14), true), (60, used(2, 0), false)], nobody));
        store.roll_up_old(Keep { fine: 0, all: 1_000_000 }, 10_000).unwrap();
        assert_eq!(sums(), (vec![(3600, used(12, 14), true)], nobody));
        store.roll_up_old(Keep { fine: 0, all: 10 }, 1_000_000).unwrap();
        assert_eq!(sums(), (Vec::new(), EnergyUse::default()));
        // A record of an earlier build has no such table.
        store.connection.execute("DROP TABLE energy", []).unwrap();
        assert_eq!(sums(), (Vec::new(), EnergyUse::default()));
    }
}
