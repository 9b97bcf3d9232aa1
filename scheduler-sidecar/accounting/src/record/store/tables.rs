//! Creates the tables, and checks whose they are.

use std::path::Path;

use rusqlite::Connection;

use super::{APPLICATION_ID, RecordTrouble, SCHEMA_VERSION};

/// Creates the tables in an empty database. Tables of another version or another program are refused.
pub(super) fn create(connection: &Connection, file: &Path) -> Result<(), RecordTrouble> {
    let number = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    match (tables, application, version) {
        (0, ..) => Ok(connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {TABLES_SQL} {} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;",
            super::energy::CREATE_SQL
        ))?),
        (_, APPLICATION_ID, SCHEMA_VERSION) => Ok(connection.execute_batch(super::energy::CREATE_SQL)?),
        (_, APPLICATION_ID, other) => Err(RecordTrouble::Version(other)),
        _ => Err(RecordTrouble::Foreign(file.to_owned())),
    }
}

/// A tenant row is a name with its group and labels, so that rows from before a change stay as they were. Unmeasured
/// device time is null.
const TABLES_SQL: &str = "\
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tenant (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, group_name TEXT NOT NULL DEFAULT '', labels TEXT NOT NULL DEFAULT '{}',
  UNIQUE (name, group_name, labels)
);
CREATE TABLE device (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE usage (
  span INTEGER NOT NULL, start INTEGER NOT NULL, tenant INTEGER NOT NULL, device INTEGER NOT NULL,
  gpu_ns INTEGER, unmeasured_ns INTEGER NOT NULL, wait_ns INTEGER NOT NULL, memory_byte_seconds INTEGER NOT NULL,
  peak_bytes INTEGER NOT NULL, launches INTEGER, refused INTEGER, members INTEGER NOT NULL, memory_limit INTEGER,
  sm_limit INTEGER,
  PRIMARY KEY (span, start, tenant, device)
) WITHOUT ROWID;
CREATE TABLE mark (
  tenant INTEGER NOT NULL, device INTEGER NOT NULL, process INTEGER NOT NULL, busy_ns INTEGER NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY (tenant, device, process)
) WITHOUT ROWID;
";
