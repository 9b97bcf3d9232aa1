//! The tables, and how those of an older version become these.

use std::path::Path;

use rusqlite::Connection;

use super::{APPLICATION, Trouble, VERSION};

/// Brings the tables of an older version, or none, to this one.
pub(super) fn migrate(connection: &Connection, file: &Path) -> Result<(), Trouble> {
    let number = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables > 0 && application != APPLICATION {
        return Err(Trouble::Foreign(file.to_owned()));
    }
    if version > VERSION {
        return Err(Trouble::Newer(version));
    }
    if version < 1 {
        connection.execute_batch(&format!(
            "BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1; COMMIT;"
        ))?;
    }
    if version < 2 {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {BEARERS} PRAGMA user_version = 2; COMMIT;"))?;
    }
    if version < 3 {
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {UNMEASURED} PRAGMA user_version = 3; COMMIT;"))?;
    }
    Ok(())
}

const TABLES: &str = "\
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tenant (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE device (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE usage (
  span INTEGER NOT NULL, start INTEGER NOT NULL, tenant INTEGER NOT NULL, device INTEGER NOT NULL,
  gpu_ns INTEGER NOT NULL, wait_ns INTEGER NOT NULL, memory_byte_seconds INTEGER NOT NULL, peak_bytes INTEGER NOT NULL,
  launches INTEGER, refused INTEGER, members INTEGER NOT NULL, memory_limit INTEGER, sm_limit INTEGER,
  PRIMARY KEY (span, start, tenant, device)
) WITHOUT ROWID;
CREATE TABLE mark (
  tenant INTEGER NOT NULL, device INTEGER NOT NULL, process INTEGER NOT NULL, busy_ns INTEGER NOT NULL, seen INTEGER NOT NULL,
  PRIMARY KEY (tenant, device, process)
) WITHOUT ROWID;
";

/// Version 2: a tenant is its name, its group and its labels, so that rows of before a change stay as they were. Rows of
/// version 1 are in no group. Nothing but the small table of tenants is written anew.
const BEARERS: &str = "\
CREATE TABLE tenant_2 (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL, group_name TEXT NOT NULL DEFAULT '', labels TEXT NOT NULL DEFAULT '{}',
  UNIQUE (name, group_name, labels)
);
INSERT INTO tenant_2 (id, name) SELECT id, name FROM tenant;
DROP TABLE tenant;
ALTER TABLE tenant_2 RENAME TO tenant;
";

/// Version 3: device time that was not measured is null, and for how long it was not is a number; of rows of before that is
/// not known. The table of usage is written anew: SQLite lifts no NOT NULL.
const UNMEASURED: &str = "\
CREATE TABLE usage_3 (
  span INTEGER NOT NULL, start INTEGER NOT NULL, tenant INTEGER NOT NULL, device INTEGER NOT NULL,
  gpu_ns INTEGER, unmeasured_ns INTEGER, wait_ns INTEGER NOT NULL, memory_byte_seconds INTEGER NOT NULL,
  peak_bytes INTEGER NOT NULL, launches INTEGER, refused INTEGER, members INTEGER NOT NULL, memory_limit INTEGER,
  sm_limit INTEGER,
  PRIMARY KEY (span, start, tenant, device)
) WITHOUT ROWID;
INSERT INTO usage_3 SELECT span, start, tenant, device, gpu_ns, NULL, wait_ns, memory_byte_seconds, peak_bytes, launches,
  refused, members, memory_limit, sm_limit FROM usage;
DROP TABLE usage;
ALTER TABLE usage_3 RENAME TO usage;
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::ask::{By, Question, ask, each};
    use super::super::super::integrate::{Key, Row};
    use super::super::{FILE, Store};
    use super::*;
    use vgpu_config::bearer::Bearer;

    /// A record as version 1 wrote it: two tenants, and how far a process had come.
    fn version_1(dir: &Path) {
        let connection = Connection::open(dir.join(FILE)).unwrap();
        connection
            .execute_batch(&format!(
                "{TABLES} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1; \
                 INSERT INTO meta VALUES ('boot', 'this'); \
                 INSERT INTO tenant VALUES (1, 'a'), (2, 'b'); INSERT INTO device VALUES (1, 'GPU-1'); \
                 INSERT INTO usage VALUES (60, 60, 1, 1, 500, 0, 7, 8, NULL, 1, 1, NULL, 300); \
                 INSERT INTO usage VALUES (3600, 0, 2, 1, 40, 0, 0, 0, NULL, NULL, 1, 9, NULL); \
                 INSERT INTO mark VALUES (1, 1, 77, 500, 60);"
            ))
            .unwrap();
    }

    fn lines(dir: &Path) -> Vec<(String, Option<String>, u64)> {
        let mut lines = Vec::new();
        each(dir, (i64::MIN, i64::MAX), |line| lines.push((line.tenant, line.bearer.group, line.gpu_ns))).unwrap();
        lines.sort();
        lines
    }

    #[test]
    fn a_record_of_version_1_is_read_as_it_is_and_goes_on_as_this_version_with_nothing_lost() {
        let dir = tempfile::tempdir().unwrap();
        version_1(dir.path());
        let question = Question { tenants: Vec::new(), devices: true, span: (0, i64::MAX), by: By::Minute };
        let before = ask(dir.path(), &question).unwrap();
        let old = [("a".to_owned(), None, 500), ("b".to_owned(), None, 40)];
        assert_eq!((before.total.gpu_ns, lines(dir.path())), (Some(540), old.to_vec()), "nobody writes it yet");

        let (mut store, aside) = Store::open(dir.path()).unwrap();
        assert!(aside.is_none());
        assert_eq!(ask(dir.path(), &question).unwrap(), before);
        assert_eq!(store.marks("this").unwrap(), BTreeMap::from([(("a".into(), "GPU-1".into(), 77), 500)]));

        // The tenant gets a group, in the same minute.
        let bearer = Bearer { group: Some("lab".into()), ..Bearer::default() };
        let key = Key { tenant: "a".into(), device: "GPU-1".into(), start: 60, bearer };
        let row = Row { gpu_ns: 25, ..Row::default() };
        let mark = BTreeMap::from([(("a".to_owned(), "GPU-1".to_owned(), 77), 525)]);
        store.add(&BTreeMap::from([(key, row)]), &mark, 61).unwrap();
        assert_eq!(
            lines(dir.path()),
            [("a".to_owned(), None, 500), ("a".to_owned(), Some("lab".to_owned()), 25), ("b".to_owned(), None, 40)]
        );
        assert_eq!(store.marks("this").unwrap(), mark, "one process, whatever its group");
        let sums = ask(dir.path(), &question).unwrap();
        assert_eq!((sums.rows.len(), sums.total.gpu_ns), (2, Some(565)), "sums by name go on");
        let unmeasured: Vec<_> = sums.rows.iter().map(|row| row.unmeasured_ns).collect();
        assert_eq!(unmeasured, [None, Some(0)], "of what was before it is not known: {sums:?}");
        drop(store);
        Store::open(dir.path()).unwrap();
        assert_eq!(lines(dir.path()).len(), 3, "once is enough");
    }
}
