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
