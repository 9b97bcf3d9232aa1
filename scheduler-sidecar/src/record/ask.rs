//! What the record says: sums of rows, by tenant, device and time. Reads only, beside a daemon that writes or without one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use serde::Serialize;

use super::bearer::Bearer;
use super::store::{APPLICATION, FILE, Trouble, VERSION, positive};

/// How rows are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// All of the time that was asked about.
    Total,
    /// Hour by hour.
    Hour,
    /// Day by day, by UTC.
    Day,
    /// Minute by minute, as long as that is kept; older rows are whole hours.
    Minute,
}

impl By {
    /// The first second of what a row that began at `start` belongs to.
    fn of(self, start: i64) -> Option<i64> {
        let span = match self {
            Self::Total => return None,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
        };
        Some(start.div_euclid(span) * span)
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Question {
    /// These tenants; none: all.
    pub tenants: Vec<String>,
    /// Device by device?
    pub devices: bool,
    /// Rows that begin at this second or later, and before that one.
    pub span: (i64, i64),
    /// How they are put together.
    pub by: By,
}

/// An answer's row: what a tenant used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Used {
    /// Its first second, since 1970; null: of all that was asked about.
    pub start: Option<i64>,
    /// Whose; null: of all together.
    pub tenant: Option<String>,
    /// The device's UUID; null: of all.
    pub device: Option<String>,
    /// Device time in ns.
    pub gpu_ns: u64,
    /// Time at the gate in ns, summed over processes.
    pub wait_ns: u64,
    /// Bytes held, times seconds.
    pub memory_byte_seconds: u64,
    /// Most bytes at once on one device.
    pub peak_bytes: u64,
    /// Null: not counted.
    pub launches: Option<u64>,
    /// Requests that programs were refused; null: not known.
    pub refused_allocations: Option<u64>,
    /// Most processes at once on one device.
    pub members: u64,
}

impl Used {
    /// Adds another row's numbers.
    fn add(&mut self, other: &Self) {
        self.gpu_ns = self.gpu_ns.saturating_add(other.gpu_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
        self.memory_byte_seconds = self.memory_byte_seconds.saturating_add(other.memory_byte_seconds);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.members = self.members.max(other.members);
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        self.launches = sum(self.launches, other.launches);
        self.refused_allocations = sum(self.refused_allocations, other.refused_allocations);
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// By time, tenant, device.
    pub rows: Vec<Used>,
    /// All of them together; its peak and its number of processes are the highest of a row.
    pub total: Used,
}

/// Asks the record in a directory.
///
/// # Errors
/// [`Trouble`]: there is none, it cannot be read, or it is of another version.
pub fn ask(dir: &Path, question: &Question) -> Result<Answer, Trouble> {
    let Some((connection, _)) = checked(dir)? else {
        return Ok(Answer { rows: Vec::new(), total: Used::default() });
    };
    let mut statement = connection.prepare(
        "SELECT usage.start, tenant.name, device.uuid, gpu_ns, wait_ns, memory_byte_seconds, peak_bytes, launches, refused, \
         members FROM usage JOIN tenant ON tenant.id = usage.tenant JOIN device ON device.id = usage.device \
         WHERE usage.start >= ?1 AND usage.start < ?2",
    )?;
    let mut rows = statement.query(params![question.span.0, question.span.1])?;
    let mut sums: BTreeMap<(Option<i64>, String, Option<String>), Used> = BTreeMap::new();
    let mut total = Used::default();
    while let Some(row) = rows.next()? {
        let tenant: String = row.get(1)?;
        if !question.tenants.is_empty() && !question.tenants.contains(&tenant) {
            continue;
        }
        let device = if question.devices { Some(row.get(2)?) } else { None };
        let used = Used {
            gpu_ns: positive(row.get(3)?),
            wait_ns: positive(row.get(4)?),
            memory_byte_seconds: positive(row.get(5)?),
            peak_bytes: positive(row.get(6)?),
            launches: row.get::<_, Option<i64>>(7)?.map(positive),
            refused_allocations: row.get::<_, Option<i64>>(8)?.map(positive),
            members: positive(row.get(9)?),
            ..Used::default()
        };
        let start = question.by.of(row.get(0)?);
        sums.entry((start, tenant, device)).or_default().add(&used);
        total.add(&used);
    }
    let named = |((start, tenant, device), used)| Used { start, tenant: Some(tenant), device, ..used };
    Ok(Answer { rows: sums.into_iter().map(named).collect(), total })
}

/// What the record has of a tenant on a device, in a minute or an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// Its first second, since 1970.
    pub start: i64,
    /// Its seconds.
    pub span: i64,
    /// The tenant's name then.
    pub tenant: String,
    /// Who bore its cost then.
    pub bearer: Bearer,
    /// The device's UUID.
    pub device: String,
    /// In ns.
    pub gpu_ns: u64,
    /// In ns, summed over processes.
    pub wait_ns: u64,
    /// Bytes held, times seconds.
    pub memory_byte_seconds: u64,
    /// Most bytes at once.
    pub peak_bytes: u64,
    /// `None`: not known.
    pub refused: Option<u64>,
    /// In force last; `None`: no limit.
    pub memory_limit: Option<u64>,
    /// In thousandths; `None`: no limit.
    pub sm_limit: Option<u64>,
}

/// Gives every line that begins in this span, in the order of time.
///
/// # Errors
/// As [`ask`].
///
/// # Cost
/// A line at a time: nothing is kept.
pub fn each(dir: &Path, span: (i64, i64), mut line: impl FnMut(Line)) -> Result<(), Trouble> {
    let Some((connection, version)) = checked(dir)? else { return Ok(()) };
    // Read as it is: only the daemon brings an older one to this version.
    let bearer = if version < 2 { "'', '{}'" } else { "tenant.group_name, tenant.labels" };
    let mut statement = connection.prepare(&format!(
        "SELECT usage.start, span, tenant.name, device.uuid, gpu_ns, wait_ns, memory_byte_seconds, peak_bytes, refused, \
         memory_limit, sm_limit, {bearer} \
         FROM usage JOIN tenant ON tenant.id = usage.tenant JOIN device ON device.id = usage.device \
         WHERE usage.start >= ?1 AND usage.start < ?2 ORDER BY usage.start"
    ))?;
    let mut rows = statement.query(params![span.0, span.1])?;
    while let Some(row) = rows.next()? {
        let number = |column: usize| row.get::<_, Option<i64>>(column).map(|value| value.map(positive));
        let (group, labels): (String, String) = (row.get(11)?, row.get(12)?);
        line(Line {
            start: row.get(0)?,
            span: row.get(1)?,
            tenant: row.get(2)?,
            bearer: Bearer::of_columns(&group, &labels),
            device: row.get(3)?,
            gpu_ns: positive(row.get(4)?),
            wait_ns: positive(row.get(5)?),
            memory_byte_seconds: positive(row.get(6)?),
            peak_bytes: positive(row.get(7)?),
            refused: number(8)?,
            memory_limit: number(9)?,
            sm_limit: number(10)?,
        });
    }
    Ok(())
}

/// The record in a directory, open to read, and its version: ours, and no newer one than we know. `None`: a daemon is just
/// making it.
fn checked(dir: &Path) -> Result<Option<(Connection, i32)>, Trouble> {
    let file = dir.join(FILE);
    // SQLite would say only that it cannot be opened.
    std::fs::File::open(&file).map_err(|why| Trouble::Place(file.clone(), why))?;
    let connection = open(&file)?;
    let number = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    // In this order: tables and number come at once.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    match number("application_id")? {
        APPLICATION if tables > 0 => {}
        APPLICATION | 0 if tables == 0 => return Ok(None),
        _ => return Err(Trouble::Foreign(file)),
    }
    let version = number("user_version")?;
    if version > VERSION {
        return Err(Trouble::Newer(version));
    }
    Ok(Some((connection, version)))
}

/// To read; where the place itself cannot be written and nobody else writes, as a file that does not change.
fn open(file: &Path) -> Result<Connection, Trouble> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let plain = Connection::open_with_flags(file, flags).and_then(|connection| {
        connection.busy_timeout(Duration::from_secs(2))?;
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0))?;
        Ok(connection)
    });
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    match plain {
        Err(why) if !Path::new(&log).exists() => {
            let text = file.to_string_lossy();
            if text.contains(['%', '?', '#']) {
                return Err(why.into());
            }
            let uri = format!("file:{text}?immutable=1");
            Ok(Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?)
        }
        plain => Ok(plain?),
    }
}

#[cfg(test)]
mod tests {
    use super::super::integrate::{Key, Row};
    use super::super::store::{Keep, Store};
    use super::*;

    fn world() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path()).unwrap();
        let key = |tenant: &str, device: &str, start| Key {
            tenant: tenant.into(),
            device: device.into(),
            start,
            bearer: Default::default(),
        };
        let row = |gpu_ns, peak_bytes, refused| Row { gpu_ns, peak_bytes, refused, members: 1, ..Row::default() };
        let rows = BTreeMap::from([
            (key("a", "GPU-1", 0), row(5, 10, None)),
            (key("a", "GPU-2", 60), row(7, 30, Some(2))),
            (key("a", "GPU-1", 3600), row(11, 20, Some(1))),
            (key("b", "GPU-1", 86_400), row(100, 1, None)),
        ]);
        store.add(&rows, &BTreeMap::new(), 86_400).unwrap();
        (dir, store)
    }

    fn asked(dir: &Path, tenants: &[&str], devices: bool, span: (i64, i64), by: By) -> Vec<(Option<i64>, String, u64)> {
        let tenants = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        let answer = ask(dir, &Question { tenants, devices, span, by }).unwrap();
        assert_eq!(answer.total.gpu_ns, answer.rows.iter().map(|row| row.gpu_ns).sum::<u64>());
        answer.rows.into_iter().map(|row| (row.start, row.tenant.unwrap(), row.gpu_ns)).collect()
    }

    #[test]
    fn rows_are_put_together_as_was_asked_and_their_sum_is_the_total() {
        let (dir, mut store) = world();
        let (dir, all) = (dir.path(), (0, i64::MAX));
        let a = "a".to_owned();
        let b = "b".to_owned();
        assert_eq!(asked(dir, &[], false, all, By::Total), [(None, a.clone(), 23), (None, b.clone(), 100)]);
        assert_eq!(asked(dir, &["b"], false, all, By::Total), [(None, b.clone(), 100)]);
        assert_eq!(asked(dir, &["a"], true, all, By::Total), [(None, a.clone(), 16), (None, a.clone(), 7)]);
        assert_eq!(asked(dir, &["a"], false, all, By::Hour), [(Some(0), a.clone(), 12), (Some(3600), a.clone(), 11)]);
        assert_eq!(asked(dir, &["a"], false, (60, 3600), By::Minute), [(Some(60), a.clone(), 7)]);
        let question = Question { tenants: vec![a.clone()], devices: false, span: all, by: By::Day };
        let answer = ask(dir, &question).unwrap();
        assert_eq!(
            (answer.total.peak_bytes, answer.total.refused_allocations, answer.total.launches),
            (30, Some(3), None)
        );
        // Rolled up, nothing is missing.
        store.tidy(Keep { fine: 3600, all: 1 << 40 }, 86_400).unwrap();
        assert_eq!(ask(dir, &question).unwrap(), answer);
        drop(store);
        assert_eq!(ask(dir, &question).unwrap(), answer, "without a daemon");
    }

    #[test]
    fn where_there_is_no_record_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let question = Question { tenants: Vec::new(), devices: false, span: (0, 1), by: By::Total };
        assert!(matches!(ask(dir.path(), &question), Err(Trouble::Place(..))));
        // A daemon has begun to make it.
        let file = dir.path().join(FILE);
        std::fs::write(&file, "").unwrap();
        assert_eq!(ask(dir.path(), &question).unwrap().rows, []);
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(matches!(ask(dir.path(), &question), Err(Trouble::Foreign(_))));
    }
}
