//! Stores the rows on disk: SQLite in the daemon's state directory, one transaction a second, and the roll-up of old
//! rows.
//!
//! docs/record.md documents the schema and its units. Only the record's own thread waits for this code. Errors are
//! reported and the operation is retried. Not here: the meaning of rows ([`super::integrate`]) and queries
//! ([`super::ask`]).

mod energy;
mod group_sums;
mod service;
mod tables;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, TransactionBehavior, params};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::integrate::{RecordKey, RecordRow};
pub(in crate::record) use service::{read_sums, sum_columns};
use vgpu_config::plan::Keep;
use vgpu_core::units::uuid::uuid_key;

/// The database in the state directory.
pub const RECORD_FILE: &str = "record.sqlite";
/// Lock file, locked by the daemon that has the database open for writing.
const LOCK_FILE: &str = "record.lock";
/// SQLite application id `vgpu`, to recognise databases of other programs.
pub const APPLICATION_ID: i32 = i32::from_be_bytes(*b"vgpu");
/// Schema version; increases with every released change of the tables. A record of another version is refused and
/// left unchanged.
pub const SCHEMA_VERSION: i32 = 1;
/// Length of a rolled-up row in seconds.
pub const HOUR_SECONDS: i64 = 3600;
/// Marks of processes not seen for this long are deleted, in seconds.
const MARKS_KEPT_SECONDS: i64 = 30 * 86_400;
/// Hours rolled up in one transaction, so that readers never wait for long.
const HOURS_PER_ROLL_UP: usize = 24;

/// Tables of rows that become hours and are deleted when they are old. Each row of `service` has one in `usage`.
const ROW_TABLES: [&str; 2] = ["usage", "service"];

/// Identifies a process on a device: the tenant's name, the device's UUID, the process's number.
pub type ProcessMark = (String, String, u32);

/// Returns the mark with the [`uuid_key`] of its device, because a daemon without a driver knows a MIG instance by
/// another name than one with it.
#[must_use]
pub fn mark_of_any_name((tenant, device, process): ProcessMark) -> ProcessMark {
    (tenant, uuid_key(&device), process)
}

/// Reasons why nothing is written at the moment.
#[derive(Debug)]
pub enum RecordTrouble {
    /// The directory cannot be created or used.
    Place(PathBuf, std::io::Error),
    /// Another daemon stores its record in this directory.
    Taken(PathBuf),
    /// The tables are of another version.
    Version(i32),
    /// The database belongs to another program.
    Foreign(PathBuf),
    /// An error of SQLite.
    Database(rusqlite::Error),
}

impl fmt::Display for RecordTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Taken(path) => {
                write!(f, "another daemon keeps its record in {}; give each its own state_dir", path.display())
            }
            Self::Version(found) => write!(
                f,
                "the record has version {found}, this vgpud writes version {SCHEMA_VERSION}: keep it elsewhere, or use the vgpud that wrote it"
            ),
            Self::Foreign(path) => {
                write!(f, "{} is the database of another program; choose another state_dir", path.display())
            }
            Self::Database(why) => match why.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => f.write_str("the disk is full"),
                Some(ErrorCode::ReadOnly) => f.write_str("the state directory cannot be written (read-only)"),
                _ => write!(f, "the record cannot be written: {why}"),
            },
        }
    }
}

impl std::error::Error for RecordTrouble {}

impl From<rusqlite::Error> for RecordTrouble {
    fn from(why: rusqlite::Error) -> Self {
        Self::Database(why)
    }
}

impl RecordTrouble {
    /// Returns true if the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Database(why) if why.sqlite_error_code() == Some(ErrorCode::DiskFull))
    }

    /// Returns true if the file is damaged, so that only a new file helps.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        let code = if let Self::Database(why) = self { why.sqlite_error_code() } else { None };
        matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }
}

/// The database, open for writing.
pub struct RecordStore {
    connection: Connection,
    _lock: OwnedFd,
}

impl RecordStore {
    /// Opens or creates the database. A damaged file is moved aside, a new one is created, and the damaged file's new
    /// name is returned.
    ///
    /// # Errors
    /// [`RecordTrouble`].
    pub fn open(dir: &Path) -> Result<(Self, Option<PathBuf>), RecordTrouble> {
        let place = |why: std::io::Error| RecordTrouble::Place(dir.to_owned(), why);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(place)?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(dir.join(LOCK_FILE), flags, Mode::from_raw_mode(0o600))
            .map_err(|why| place(why.into()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(RecordTrouble::Taken(dir.to_owned()));
        }
        let file = dir.join(RECORD_FILE);
        match Self::open_file(&file) {
            Ok(connection) => Ok((Self { connection, _lock: lock }, None)),
            Err(why) if why.is_corrupt() => {
                let aside = move_aside(&file).map_err(place)?;
                Ok((Self { connection: Self::open_file(&file)?, _lock: lock }, Some(aside)))
            }
            Err(why) => Err(why),
        }
    }

    fn open_file(file: &Path) -> Result<Connection, RecordTrouble> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(1))?;
        // Takes effect only in a file without tables.
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update_and_check(None, "journal_size_limit", 4 << 20, |_| Ok(()))?;
        let sound: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if sound != "ok" {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            return Err(rusqlite::Error::SqliteFailure(code, Some(sound)).into());
        }
        tables::create(&connection, file)?;
        connection.execute_batch(&service::table_sql())?;
        Ok(connection)
    }

    /// Returns the device time in ns that earlier daemons of this boot recorded for processes, by
    /// [`mark_of_any_name`]. Marks of another boot are deleted.
    ///
    /// # Errors
    /// [`RecordTrouble`].
    pub fn read_marks(&mut self, boot: &str) -> Result<BTreeMap<ProcessMark, u64>, RecordTrouble> {
        let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let was: Option<String> =
            change.query_row("SELECT value FROM meta WHERE key = 'boot'", [], |row| row.get(0)).optional()?;
        if was.as_deref() != Some(boot) {
            change.execute("DELETE FROM mark", [])?;
            change.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('boot', ?1)", [boot])?;
        }
        let mut marks = BTreeMap::new();
        {
            let mut ask = change.prepare(
                "SELECT tenant.name, device.uuid, mark.process, mark.busy_ns FROM mark \
                 JOIN tenant ON tenant.id = mark.tenant JOIN device ON device.id = mark.device ORDER BY mark.seen",
            )?;
            let mut rows = ask.query([])?;
            while let Some(row) = rows.next()? {
                let mark = mark_of_any_name((row.get(0)?, row.get(1)?, row.get(2)?));
                marks.insert(mark, to_unsigned(row.get(3)?));
            }
        }
        change.commit()?;
        Ok(marks)
    }

    /// Adds rows to the stored ones and updates the processes' marks, all or nothing.
    ///
    /// # Errors
    /// [`RecordTrouble`]; then nothing is written.
    ///
    /// # Cost
    /// About ten microseconds a row, and one write to the disk.
    pub fn add(
        &mut self,
        rows: &BTreeMap<RecordKey, RecordRow>,
        marks: &BTreeMap<ProcessMark, u64>,
        now: i64,
    ) -> Result<(), RecordTrouble> {
        let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        {
            let mut tenant =
                change.prepare_cached("INSERT OR IGNORE INTO tenant (name, group_name, labels) VALUES (?1, ?2, ?3)")?;
            let mut device = change.prepare_cached("INSERT OR IGNORE INTO device (uuid) VALUES (?1)")?;
            let mut add = change.prepare_cached(ADD_SQL)?;
            let mut serve = change.prepare_cached(&service::add_sql())?;
            for (key, row) in rows {
                let (group, labels) = (key.bearer.group_column(), key.bearer.labels_column());
                if key.tenant.is_empty() {
                    // Nobody's energy: a row without a tenant.
                    device.execute([&key.device])?;
                    energy::add_energy(&change, key, row)?;
                    continue;
                }
                tenant.execute(params![key.tenant, group, labels])?;
                device.execute([&key.device])?;
                add.execute(params![
                    super::integrate::MINUTE_SECONDS,
                    key.start,
                    key.tenant,
                    key.device,
                    (row.gpu_ns > 0 || row.unmeasured_ns == 0).then_some(to_signed(row.gpu_ns)),
                    to_signed(row.wait_ns),
                    to_signed(row.memory_byte_seconds),
                    to_signed(row.peak_bytes),
                    row.launches.map(to_signed),
                    row.refused.map(to_signed),
                    to_signed(row.members),
                    row.memory_limit.map(to_signed),
                    row.sm_limit.map(to_signed),
                    group,
                    labels,
                    to_signed(row.unmeasured_ns),
                ])?;
                energy::add_energy(&change, key, row)?;
                service::add_row(&mut serve, key, &row.service)?;
            }
            // A process's mark does not depend on the tenant's group.
            let mut tenant = change.prepare_cached(
                "INSERT INTO tenant (name) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM tenant WHERE name = ?1)",
            )?;
            let mut mark = change.prepare_cached(MARK_SQL)?;
            for ((name, uuid, process), busy) in marks {
                tenant.execute([name])?;
                device.execute([uuid])?;
                mark.execute(params![name, uuid, process, to_signed(*busy), now])?;
            }
        }
        change.commit()?;
        Ok(())
    }

    /// Rolls up old minutes into hours and deletes rows older than `keep`, a bounded amount each call. Returns true
    /// if more is left.
    ///
    /// # Errors
    /// [`RecordTrouble`].
    pub fn roll_up_old(&mut self, keep: Keep, now: i64) -> Result<bool, RecordTrouble> {
        let ago = |seconds: u64| now.saturating_sub(i64::try_from(seconds).unwrap_or(i64::MAX));
        let change = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut more = false;
        for _ in 0..HOURS_PER_ROLL_UP {
            let oldest: Option<i64> = change.query_row(OLDEST_MINUTE_SQL, [], |row| row.get(0))?;
            let hour = oldest.map(|start| start.div_euclid(HOUR_SECONDS) * HOUR_SECONDS);
            let Some(hour) = hour.filter(|hour| hour + HOUR_SECONDS <= ago(keep.fine)) else {
                more = false;
                break;
            };
            change.execute(ROLL_UP_SQL, [hour, hour + HOUR_SECONDS])?;
            change.execute(&service::roll_up_sql(), [hour, hour + HOUR_SECONDS])?;
            for table in ROW_TABLES {
                change.execute(
                    &format!("DELETE FROM {table} WHERE span = 60 AND start >= ?1 AND start < ?2"),
                    [hour, hour + HOUR_SECONDS],
                )?;
            }
            energy::roll_up_hour(&change, hour)?;
            more = true;
        }
        energy::remove_before(&change, ago(keep.all))?;
        for table in ROW_TABLES {
            change.execute(&format!("DELETE FROM {table} WHERE start + span <= ?1"), [ago(keep.all)])?;
        }
        change.execute("DELETE FROM mark WHERE seen < ?1", [now.saturating_sub(MARKS_KEPT_SECONDS)])?;
        change.commit()?;
        // SQLite frees one page for each row that is read, so all rows must be read.
        let mut vacuum = self.connection.prepare("PRAGMA incremental_vacuum(256)")?;
        let mut pages = vacuum.query([])?;
        while pages.next()?.is_some() {}
        Ok(more)
    }
}

const OLDEST_MINUTE_SQL: &str = "SELECT min(start) FROM (SELECT min(start) AS start FROM usage WHERE span = 60 \
    UNION ALL SELECT min(start) FROM energy WHERE span = 60)";

/// The columns of an inserted row.
macro_rules! insert {
    () => {
        "INSERT INTO usage (span, start, tenant, device, gpu_ns, unmeasured_ns, wait_ns, memory_byte_seconds, peak_bytes, launches, refused, \
         members, memory_limit, sm_limit) "
    };
}

/// Adds to an existing row, saturating. Device time is null, never 0, if there was use and none of it was measured.
macro_rules! upsert {
    () => {
        " ON CONFLICT DO UPDATE SET gpu_ns = CASE WHEN coalesce(gpu_ns, 0) + coalesce(excluded.gpu_ns, 0) = 0 \
         AND unmeasured_ns + excluded.unmeasured_ns > 0 THEN NULL \
         ELSE min(coalesce(gpu_ns, 0) + coalesce(excluded.gpu_ns, 0), 4611686018427387904) END, \
         unmeasured_ns = min(unmeasured_ns + excluded.unmeasured_ns, 4611686018427387904), \
         wait_ns = min(wait_ns + excluded.wait_ns, 4611686018427387904), \
         memory_byte_seconds = min(memory_byte_seconds + excluded.memory_byte_seconds, 4611686018427387904), \
         peak_bytes = max(peak_bytes, excluded.peak_bytes), \
         launches = CASE WHEN excluded.launches IS NULL THEN launches \
         ELSE min(coalesce(launches, 0) + excluded.launches, 4611686018427387904) END, \
         refused = CASE WHEN excluded.refused IS NULL THEN refused \
         ELSE min(coalesce(refused, 0) + excluded.refused, 4611686018427387904) END, \
         members = max(members, excluded.members), memory_limit = excluded.memory_limit, sm_limit = excluded.sm_limit"
    };
}

const ADD_SQL: &str = concat!(
    insert!(),
    "VALUES (?1, ?2, (SELECT id FROM tenant WHERE name = ?3 AND group_name = ?14 AND labels = ?15), \
(SELECT id FROM device WHERE uuid = ?4), \
?5, ?16, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    upsert!()
);

const MARK_SQL: &str = "\
INSERT INTO mark (tenant, device, process, busy_ns, seen) VALUES ((SELECT min(id) FROM tenant WHERE name = ?1), \
(SELECT id FROM device WHERE uuid = ?2), ?3, ?4, ?5) \
ON CONFLICT DO UPDATE SET busy_ns = excluded.busy_ns, seen = excluded.seen";

/// An hour's rows hold at most sixty times a minute's, so bounding a minute's values keeps the sum in range. The
/// limits are those of the hour's last minute.
const ROLL_UP_SQL: &str = concat!(
    insert!(),
    "SELECT 3600, ?1, tenant, device, \
CASE WHEN coalesce(sum(gpu_ns > 0), 0) = 0 AND sum(unmeasured_ns) > 0 THEN NULL \
ELSE coalesce(sum(min(gpu_ns, 72057594037927936)), 0) END, sum(min(unmeasured_ns, 72057594037927936)), \
sum(min(wait_ns, 72057594037927936)), sum(min(memory_byte_seconds, 72057594037927936)), max(peak_bytes), \
sum(min(launches, 72057594037927936)), sum(min(refused, 72057594037927936)), max(members), \
(SELECT memory_limit FROM usage AS last WHERE last.span = 60 AND last.start >= ?1 AND last.start < ?2 \
AND last.tenant = fine.tenant AND last.device = fine.device ORDER BY start DESC LIMIT 1), \
(SELECT sm_limit FROM usage AS last WHERE last.span = 60 AND last.start >= ?1 AND last.start < ?2 \
AND last.tenant = fine.tenant AND last.device = fine.device ORDER BY start DESC LIMIT 1) \
FROM usage AS fine WHERE span = 60 AND start >= ?1 AND start < ?2 GROUP BY tenant, device",
    upsert!()
);

/// Moves a damaged database aside, together with its side files.
fn move_aside(file: &Path) -> std::io::Result<PathBuf> {
    let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let with = |end: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let to = with(&format!(".damaged-{stamp}"));
    fs::rename(file, &to)?;
    for end in ["-wal", "-shm", "-journal"] {
        // A write-ahead log of another file would damage the new one.
        match fs::remove_file(with(end)) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
    }
    Ok(to)
}

fn to_signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Stored values of ours are never negative.
pub(super) fn to_unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_config::bearer::CostBearer;

    fn row(gpu_ns: u64, memory_limit: u64) -> RecordRow {
        RecordRow { gpu_ns, memory_limit: Some(memory_limit), refused: Some(1), ..RecordRow::default() }
    }

    fn key(start: i64) -> RecordKey {
        RecordKey { tenant: "a".into(), device: "GPU-1".into(), start, bearer: CostBearer::default() }
    }

    type Seen = (i64, i64, i64, Option<i64>, Option<i64>, Option<i64>);

    fn rows(store: &RecordStore) -> Vec<Seen> {
        let ask = "SELECT span, start, gpu_ns, launches, refused, memory_limit FROM usage ORDER BY span, start";
        let mut ask = store.connection.prepare(ask).unwrap();
        let rows =
            ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?)));
        rows.unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn rows_add_up_and_old_minutes_become_hours_and_old_hours_go() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, aside) = RecordStore::open(dir.path()).unwrap();
        assert!(aside.is_none());
        let none = BTreeMap::new();
        store.add(&BTreeMap::from([(key(60), row(5, 1)), (key(120), row(7, 9))]), &none, 120).unwrap();
        store.add(&BTreeMap::from([(key(60), row(10, 2)), (key(7200), row(1, 3))]), &none, 130).unwrap();
        let minutes = [
            (60, 60, 15, None, Some(2), Some(2)),
            (60, 120, 7, None, Some(1), Some(9)),
            (60, 7200, 1, None, Some(1), Some(3)),
        ];
        assert_eq!(rows(&store), minutes);
        let keep = Keep { fine: 3600, all: 10_000 };
        assert!(!store.roll_up_old(keep, 7199).unwrap());
        assert_eq!(rows(&store), minutes, "the first hour is not old enough");
        assert!(!store.roll_up_old(keep, 7200).unwrap());
        assert_eq!(rows(&store), [(60, 7200, 1, None, Some(1), Some(3)), (3600, 0, 22, None, Some(3), Some(9))]);
        // A late row is added to its hour.
        store.add(&BTreeMap::from([(key(180), row(3, 4))]), &none, 7300).unwrap();
        store.roll_up_old(keep, 7300).unwrap();
        assert_eq!(rows(&store)[1], (3600, 0, 25, None, Some(4), Some(4)));
        store.roll_up_old(keep, 13_600).unwrap();
        assert_eq!(rows(&store).iter().map(|row| row.1).collect::<Vec<_>>(), [7200]);
    }

    #[test]
    fn marks_are_those_of_this_boot() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        assert!(store.read_marks("one").unwrap().is_empty());
        let mark = ("a".to_owned(), "GPU-1".to_owned(), 7);
        store.add(&BTreeMap::new(), &BTreeMap::from([(mark.clone(), 50)]), 1).unwrap();
        store.add(&BTreeMap::new(), &BTreeMap::from([(mark.clone(), 60)]), 1).unwrap();
        assert!(matches!(RecordStore::open(dir.path()), Err(RecordTrouble::Taken(_))), "one daemon at a time");
        drop(store);
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        assert_eq!(store.read_marks("one").unwrap(), BTreeMap::from([(mark_of_any_name(mark), 60)]));
        assert!(store.read_marks("two").unwrap().is_empty());
    }

    #[test]
    fn the_mark_of_a_process_on_an_instance_is_found_under_either_name_and_the_newest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        assert!(store.read_marks("one").unwrap().is_empty());
        let mark = |device: &str| ("a".to_owned(), device.to_owned(), 7);
        for (device, busy, seen) in [("MIG-00AA", 70, 2), ("GPU-00aa", 50, 1)] {
            store.add(&BTreeMap::new(), &BTreeMap::from([(mark(device), busy)]), seen).unwrap();
        }
        let marks = store.read_marks("one").unwrap();
        assert_eq!(marks.get(&mark_of_any_name(mark("GPU-00aa"))), Some(&70), "{marks:?}");
        assert_eq!(mark_of_any_name(mark("GPU-00aa")), mark_of_any_name(mark("MIG-00AA")));
    }

    #[test]
    fn a_damaged_file_is_moved_aside_and_one_of_another_version_or_program_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(RECORD_FILE);
        fs::write(&file, "no database, and long enough to be looked at as one".repeat(100)).unwrap();
        let (store, aside) = RecordStore::open(dir.path()).unwrap();
        assert!(fs::read(aside.unwrap()).unwrap().starts_with(b"no database"));
        drop(store);
        for other in [SCHEMA_VERSION + 1, SCHEMA_VERSION - 1] {
            Connection::open(&file).unwrap().pragma_update(None, "user_version", other).unwrap();
            assert!(matches!(RecordStore::open(dir.path()), Err(RecordTrouble::Version(found)) if found == other));
            let span = (i64::MIN, i64::MAX);
            let read = super::super::ask::for_each_line(dir.path(), span, |_| panic!("a row of version {other}"));
            assert!(read.unwrap_err().to_string().contains(&format!("version {other}")));
            let kept = Connection::open(&file).unwrap();
            let version: i32 = kept.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
            assert_eq!(version, other, "its tables are as they were");
        }
        fs::remove_file(&file).unwrap();
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(matches!(RecordStore::open(dir.path()), Err(RecordTrouble::Foreign(_))));
    }
}
