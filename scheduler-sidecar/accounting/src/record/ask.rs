//! Queries the record: sums of rows by tenant, device and time. Read-only, with or without a running daemon.

mod service;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};
use serde::Serialize;

use super::energy::EnergyUse;
use super::store::{APPLICATION_ID, RECORD_FILE, RecordTrouble, SCHEMA_VERSION, to_unsigned};
use vgpu_config::bearer::CostBearer;
use vgpu_core::units::uuid::uuid_key;

pub use service::{ServiceLine, for_each_service_line};

/// Length of time in one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum GroupBy {
    /// The whole period.
    Total,
    /// One row for each hour.
    Hour,
    /// One row for each day in UTC.
    Day,
    /// One row for each minute, while minutes are kept; older rows are whole hours.
    Minute,
}

impl GroupBy {
    /// Returns the first second of the period that a row beginning at `start` belongs to.
    fn bucket_of(self, start: i64) -> Option<i64> {
        let span = match self {
            Self::Total => return None,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => 86_400,
        };
        Some(start.div_euclid(span) * span)
    }
}

/// A query of the usage record.
#[derive(Debug, Clone)]
pub struct UsageQuestion {
    /// Names of tenants; empty for all.
    pub tenants: Vec<String>,
    /// True for separate rows for each device.
    pub devices: bool,
    /// Selects rows that begin at or after the first second and before the second one.
    pub span: (i64, i64),
    /// Length of the periods that rows are summed over.
    pub by: GroupBy,
}

/// A row of the answer: usage of a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageRow {
    /// First second of the period, since 1970; null for the whole query.
    pub start: Option<i64>,
    /// Name of the tenant; null for the sum of all.
    pub tenant: Option<String>,
    /// UUID of the device; null for all.
    pub device: Option<String>,
    /// Measured device time in ns; null if the device was used and none of it was measured.
    pub gpu_ns: Option<u64>,
    /// Time in ns during which use was not measured, summed over tenants and devices.
    pub unmeasured_ns: u64,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u64,
    /// Memory over time: bytes held, multiplied by the seconds for which they were held.
    pub memory_byte_seconds: u64,
    /// Most bytes held at once on one device.
    pub peak_bytes: u64,
    /// Number of launches; null if not counted.
    pub launches: Option<u64>,
    /// Allocation requests refused; null if unknown.
    pub refused_allocations: Option<u64>,
    /// Most processes at once on one device.
    pub members: u64,
}

impl UsageRow {
    /// Returns true if some use was not measured.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.unmeasured_ns > 0
    }

    /// Adds the numbers of another row.
    fn add(&mut self, other: &Self) {
        let measured = self.gpu_ns.unwrap_or(0).saturating_add(other.gpu_ns.unwrap_or(0));
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
        self.memory_byte_seconds = self.memory_byte_seconds.saturating_add(other.memory_byte_seconds);
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.members = self.members.max(other.members);
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        self.unmeasured_ns = self.unmeasured_ns.saturating_add(other.unmeasured_ns);
        self.gpu_ns = (measured > 0 || !self.is_partial()).then_some(measured);
        self.launches = sum(self.launches, other.launches);
        self.refused_allocations = sum(self.refused_allocations, other.refused_allocations);
    }
}

/// Rows of the usage record that answer a [`UsageQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UsageAnswer {
    /// Rows sorted by time, tenant, device.
    pub rows: Vec<UsageRow>,
    /// Sum of all rows. Its peak and its number of processes are the highest of any row.
    pub total: UsageRow,
}

/// Queries the record in a directory.
///
/// # Errors
/// [`RecordTrouble`]: there is no record, it cannot be read, or it is of another version.
pub fn ask_record(dir: &Path, question: &UsageQuestion) -> Result<UsageAnswer, RecordTrouble> {
    let mut total = UsageRow { gpu_ns: Some(0), ..UsageRow::default() };
    let Some(connection) = open_checked(dir)? else {
        return Ok(UsageAnswer { rows: Vec::new(), total });
    };
    let mut statement = connection.prepare(
        "SELECT usage.start, tenant.name, device.uuid, gpu_ns, wait_ns, memory_byte_seconds, peak_bytes, launches, refused, \
         members, unmeasured_ns FROM usage JOIN tenant ON tenant.id = usage.tenant JOIN device ON device.id = usage.device \
         WHERE usage.start >= ?1 AND usage.start < ?2",
    )?;
    let names = InstanceNames::read(&connection)?;
    let mut rows = statement.query(params![question.span.0, question.span.1])?;
    let mut sums: BTreeMap<(Option<i64>, String, Option<String>), UsageRow> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let tenant: String = row.get(1)?;
        if !question.tenants.is_empty() && !question.tenants.contains(&tenant) {
            continue;
        }
        let device = if question.devices { Some(names.name_of(row.get(2)?)) } else { None };
        let used = UsageRow {
            gpu_ns: row.get::<_, Option<i64>>(3)?.map(to_unsigned),
            unmeasured_ns: to_unsigned(row.get(10)?),
            wait_ns: to_unsigned(row.get(4)?),
            memory_byte_seconds: to_unsigned(row.get(5)?),
            peak_bytes: to_unsigned(row.get(6)?),
            launches: row.get::<_, Option<i64>>(7)?.map(to_unsigned),
            refused_allocations: row.get::<_, Option<i64>>(8)?.map(to_unsigned),
            members: to_unsigned(row.get(9)?),
            ..UsageRow::default()
        };
        let start = question.by.bucket_of(row.get(0)?);
        sums.entry((start, tenant, device)).or_default().add(&used);
        total.add(&used);
    }
    let named = |((start, tenant, device), used)| UsageRow { start, tenant: Some(tenant), device, ..used };
    Ok(UsageAnswer { rows: sums.into_iter().map(named).collect(), total })
}

/// A recorded row: a tenant on a device during a minute or an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordLine {
    /// First second of the period, since 1970.
    pub start: i64,
    /// Length of the period, in seconds.
    pub span: i64,
    /// Name of the tenant at that time.
    pub tenant: String,
    /// Group and labels that bore the cost at that time.
    pub bearer: CostBearer,
    /// UUID of the device.
    pub device: String,
    /// Measured device time, in ns.
    pub gpu_ns: u64,
    /// Time during which use was not measured, in ns.
    pub unmeasured_ns: u64,
    /// Time spent waiting at the launch gate in ns, summed over processes.
    pub wait_ns: u64,
    /// Memory over time: bytes held, multiplied by the seconds for which they were held.
    pub memory_byte_seconds: u64,
    /// Most bytes that the tenant held at once.
    pub peak_bytes: u64,
    /// Allocation requests refused; `None` if unknown.
    pub refused: Option<u64>,
    /// Last memory limit in force; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Last ceiling in force, in thousandths; `None` for no limit.
    pub sm_limit: Option<u64>,
    /// Energy of the tenant there; `None` if unknown.
    pub energy: Option<EnergyUse>,
    /// True if the energy is the sum of the device's power over time.
    pub is_estimated: bool,
}

impl RecordLine {
    /// Seconds of the row's period that have begun at `now`, in seconds since 1970; at least 1. The second that is
    /// under way counts: the row already holds its memory and time.
    #[must_use]
    pub fn begun_seconds(&self, now: i64) -> u64 {
        let begun = now.saturating_sub(self.start).saturating_add(1);
        u64::try_from(self.span.min(begun).max(1)).unwrap_or(1)
    }
}

/// Passes every row that begins in the span to `line`, in the order of time.
///
/// # Errors
/// As [`ask_record`].
///
/// # Cost
/// Handles one row at a time and stores none.
pub fn for_each_line(dir: &Path, span: (i64, i64), mut line: impl FnMut(RecordLine)) -> Result<(), RecordTrouble> {
    let Some(connection) = open_checked(dir)? else { return Ok(()) };
    let energy = if has_energy(&connection)? { LINE_ENERGY_SQL } else { ("NULL, NULL, NULL", "") };
    let mut statement = connection.prepare(&format!(
        "SELECT usage.start, usage.span, tenant.name, device.uuid, gpu_ns, wait_ns, memory_byte_seconds, peak_bytes, \
         refused, memory_limit, sm_limit, tenant.group_name, tenant.labels, unmeasured_ns, {} \
         FROM usage JOIN tenant ON tenant.id = usage.tenant JOIN device ON device.id = usage.device {} \
         WHERE usage.start >= ?1 AND usage.start < ?2 ORDER BY usage.start",
        energy.0, energy.1
    ))?;
    let names = InstanceNames::read(&connection)?;
    let mut rows = statement.query(params![span.0, span.1])?;
    while let Some(row) = rows.next()? {
        let number = |column: usize| row.get::<_, Option<i64>>(column).map(|value| value.map(to_unsigned));
        let (group, labels): (String, String) = (row.get(11)?, row.get(12)?);
        line(RecordLine {
            start: row.get(0)?,
            span: row.get(1)?,
            tenant: row.get(2)?,
            bearer: CostBearer::of_columns(&group, &labels),
            device: names.name_of(row.get(3)?),
            gpu_ns: number(4)?.unwrap_or(0),
            unmeasured_ns: to_unsigned(row.get(13)?),
            wait_ns: to_unsigned(row.get(5)?),
            memory_byte_seconds: to_unsigned(row.get(6)?),
            peak_bytes: to_unsigned(row.get(7)?),
            refused: number(8)?,
            memory_limit: number(9)?,
            sm_limit: number(10)?,
            energy: number(14)?.zip(number(15)?).map(|(work_mj, idle_mj)| EnergyUse { work_mj, idle_mj }),
            is_estimated: number(16)?.unwrap_or(0) > 0,
        });
    }
    Ok(())
}

/// The energy of a line: its columns, and the tables that have them.
const LINE_ENERGY_SQL: (&str, &str) = (
    "work_mj, idle_mj, estimated",
    "LEFT JOIN energy ON energy.span = usage.span AND energy.start = usage.start AND energy.tenant = usage.tenant AND \
     energy.device = usage.device",
);

/// True if the record has a table of energy; one that an earlier build wrote has none.
fn has_energy(connection: &Connection) -> Result<bool, RecordTrouble> {
    let ask = "SELECT count(*) FROM sqlite_master WHERE name = 'energy'";
    Ok(connection.query_row(ask, [], |row| row.get::<_, i64>(0))? > 0)
}

/// Passes nobody's energy of each device in the span to `line`: the device, the energy, and true if it is estimated.
///
/// # Errors
/// As [`ask_record`].
pub fn for_each_nobody(
    dir: &Path,
    span: (i64, i64),
    mut line: impl FnMut(String, EnergyUse, bool),
) -> Result<(), RecordTrouble> {
    let Some(connection) = open_checked(dir)? else { return Ok(()) };
    if !has_energy(&connection)? {
        return Ok(());
    }
    let mut statement = connection.prepare(
        "SELECT device.uuid, work_mj, idle_mj, estimated FROM energy JOIN device ON device.id = energy.device \
         WHERE tenant = 0 AND start >= ?1 AND start < ?2",
    )?;
    let mut rows = statement.query(params![span.0, span.1])?;
    while let Some(row) = rows.next()? {
        let energy = EnergyUse { work_mj: to_unsigned(row.get(1)?), idle_mj: to_unsigned(row.get(2)?) };
        line(row.get(0)?, energy, row.get(3)?);
    }
    Ok(())
}

/// NVML's names of the MIG instances in the record, by [`uuid_key`].
///
/// A daemon without a driver knows an instance only by CUDA's name, `GPU-...`. Once a later daemon recorded NVML's
/// name, `MIG-...`, all rows of the instance have that one, as in `vgpu status`.
struct InstanceNames(BTreeMap<String, String>);

impl InstanceNames {
    fn read(connection: &Connection) -> Result<Self, RecordTrouble> {
        let mut statement = connection.prepare("SELECT uuid FROM device WHERE uuid LIKE 'MIG-%'")?;
        let names = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
        Ok(Self(names.into_iter().map(|name| (uuid_key(&name), name)).collect()))
    }

    /// Returns the device's name, from one of its names in the record.
    fn name_of(&self, recorded: String) -> String {
        if self.0.is_empty() {
            return recorded;
        }
        self.0.get(&uuid_key(&recorded)).cloned().unwrap_or(recorded)
    }
}

/// Opens the record in a directory for reading, and refuses other versions. `None` if a daemon is just creating it.
fn open_checked(dir: &Path) -> Result<Option<Connection>, RecordTrouble> {
    let file = dir.join(RECORD_FILE);
    // SQLite's own error would say only that the file cannot be opened.
    std::fs::File::open(&file).map_err(|why| RecordTrouble::Place(file.clone(), why))?;
    let connection = open(&file)?;
    let number = |name: &str| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    // Count tables before reading the numbers; both are committed together.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))?;
    match number("application_id")? {
        APPLICATION_ID if tables > 0 => {}
        APPLICATION_ID | 0 if tables == 0 => return Ok(None),
        _ => return Err(RecordTrouble::Foreign(file)),
    }
    match number("user_version")? {
        SCHEMA_VERSION => Ok(Some(connection)),
        other => Err(RecordTrouble::Version(other)),
    }
}

/// Opens the file for reading. If the directory is not writable and nobody else writes, opens it as immutable.
fn open(file: &Path) -> Result<Connection, RecordTrouble> {
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
    use super::super::integrate::{RecordKey, RecordRow};
    use super::super::store::RecordStore;
    use super::*;
    use vgpu_config::plan::Keep;

    fn world() -> (tempfile::TempDir, RecordStore) {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        let key = |tenant: &str, device: &str, start| RecordKey {
            tenant: tenant.into(),
            device: device.into(),
            start,
            bearer: Default::default(),
        };
        let row =
            |gpu_ns, peak_bytes, refused| RecordRow { gpu_ns, peak_bytes, refused, members: 1, ..RecordRow::default() };
        let rows = BTreeMap::from([
            (key("a", "GPU-1", 0), row(5, 10, None)),
            (key("a", "GPU-2", 60), row(7, 30, Some(2))),
            (key("a", "GPU-1", 3600), row(11, 20, Some(1))),
            (key("b", "GPU-1", 86_400), row(100, 1, None)),
        ]);
        store.add(&rows, &BTreeMap::new(), 86_400).unwrap();
        (dir, store)
    }

    fn asked(
        dir: &Path,
        tenants: &[&str],
        devices: bool,
        span: (i64, i64),
        by: GroupBy,
    ) -> Vec<(Option<i64>, String, u64)> {
        let tenants = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        let answer = ask_record(dir, &UsageQuestion { tenants, devices, span, by }).unwrap();
        assert_eq!(answer.total.gpu_ns, answer.rows.iter().map(|row| row.gpu_ns).sum::<Option<u64>>());
        answer.rows.into_iter().map(|row| (row.start, row.tenant.unwrap(), row.gpu_ns.unwrap())).collect()
    }

    #[test]
    fn rows_are_put_together_as_was_asked_and_their_sum_is_the_total() {
        let (dir, mut store) = world();
        let (dir, all) = (dir.path(), (0, i64::MAX));
        let a = "a".to_owned();
        let b = "b".to_owned();
        assert_eq!(asked(dir, &[], false, all, GroupBy::Total), [(None, a.clone(), 23), (None, b.clone(), 100)]);
        assert_eq!(asked(dir, &["b"], false, all, GroupBy::Total), [(None, b.clone(), 100)]);
        assert_eq!(asked(dir, &["a"], true, all, GroupBy::Total), [(None, a.clone(), 16), (None, a.clone(), 7)]);
        assert_eq!(
            asked(dir, &["a"], false, all, GroupBy::Hour),
            [(Some(0), a.clone(), 12), (Some(3600), a.clone(), 11)]
        );
        assert_eq!(asked(dir, &["a"], false, (60, 3600), GroupBy::Minute), [(Some(60), a.clone(), 7)]);
        let question = UsageQuestion { tenants: vec![a.clone()], devices: false, span: all, by: GroupBy::Day };
        let answer = ask_record(dir, &question).unwrap();
        assert_eq!(
            (answer.total.peak_bytes, answer.total.refused_allocations, answer.total.launches),
            (30, Some(3), None)
        );
        // Summing minutes into hours loses nothing.
        store.roll_up_old(Keep { fine: 3600, all: 1 << 40 }, 86_400).unwrap();
        assert_eq!(ask_record(dir, &question).unwrap(), answer);
        drop(store);
        assert_eq!(ask_record(dir, &question).unwrap(), answer, "without a daemon");
    }

    /// A sum over unmeasured use only is null, never 0; with any measured use it is that amount. Holds on disk, in
    /// hours and here.
    #[test]
    fn device_time_that_was_not_measured_is_null_and_for_how_long_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        let mut add = |tenant: &str, start, gpu_ns, unmeasured_ns| {
            let key = RecordKey { tenant: tenant.into(), device: "GPU-1".into(), start, bearer: Default::default() };
            let row = RecordRow { gpu_ns, unmeasured_ns, members: 1, ..RecordRow::default() };
            store.add(&BTreeMap::from([(key, row)]), &BTreeMap::new(), start).unwrap();
        };
        // Nothing yet, then unmeasured use; the other order; some of both; all measured.
        add("not", 0, 0, 0);
        add("not", 0, 0, 5);
        add("not", 60, 0, 6);
        add("not", 60, 0, 0);
        add("some", 0, 7, 0);
        add("some", 0, 0, 8);
        add("some", 60, 0, 9);
        add("all", 0, 11, 0);
        let question = UsageQuestion { tenants: Vec::new(), devices: false, span: (0, i64::MAX), by: GroupBy::Total };
        let used = |answer: &UsageAnswer| -> Vec<(String, Option<u64>, u64)> {
            let one = |row: &UsageRow| (row.tenant.clone().unwrap(), row.gpu_ns, row.unmeasured_ns);
            answer.rows.iter().map(one).collect()
        };
        // A direct reader of the table finds no 0 either.
        let raw = Connection::open(dir.path().join(RECORD_FILE)).unwrap();
        let nulls = || -> (i64, i64) {
            let ask = "SELECT count(*) - count(gpu_ns), sum(gpu_ns = 0) FROM usage";
            raw.query_row(ask, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
        };
        assert_eq!(nulls(), (3, 0));
        let expected =
            [("all".to_owned(), Some(11), 0), ("not".to_owned(), None, 11), ("some".to_owned(), Some(7), 17)];
        let answer = ask_record(dir.path(), &question).unwrap();
        assert_eq!(used(&answer), expected);
        assert_eq!((answer.total.gpu_ns, answer.total.unmeasured_ns), (Some(18), 28));
        let minutes = ask_record(dir.path(), &UsageQuestion { by: GroupBy::Minute, ..question.clone() }).unwrap();
        assert_eq!(minutes.rows.iter().filter(|row| row.gpu_ns.is_none()).count(), 3, "{minutes:?}");
        store.roll_up_old(Keep { fine: 3600, all: 1 << 40 }, 86_400).unwrap();
        assert_eq!(ask_record(dir.path(), &question).unwrap(), answer, "in hours");
        assert_eq!(nulls(), (1, 0));
        let mut lines = Vec::new();
        for_each_line(dir.path(), (0, i64::MAX), |line| lines.push((line.tenant, line.gpu_ns, line.unmeasured_ns)))
            .unwrap();
        assert!(lines.contains(&("not".to_owned(), 0, 11)), "{lines:?}");
    }

    #[test]
    fn an_instance_is_one_device_under_nvmls_name_whatever_name_its_rows_have() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        let mut add = |device: &str, start, gpu_ns| {
            let key = RecordKey { tenant: "a".into(), device: device.into(), start, bearer: Default::default() };
            let row = RecordRow { gpu_ns, members: 1, ..RecordRow::default() };
            store.add(&BTreeMap::from([(key, row)]), &BTreeMap::new(), start).unwrap();
        };
        // Rows of a daemon without a driver, then of one with it; and a whole device.
        add("GPU-00aa", 0, 5);
        add("MIG-00AA", 60, 7);
        add("GPU-00bb", 60, 11);
        let question = UsageQuestion { tenants: Vec::new(), devices: true, span: (0, i64::MAX), by: GroupBy::Total };
        let answer = ask_record(dir.path(), &question).unwrap();
        let rows: Vec<_> = answer.rows.iter().map(|row| (row.device.as_deref().unwrap(), row.gpu_ns)).collect();
        assert_eq!(rows, [("GPU-00bb", Some(11)), ("MIG-00AA", Some(12))]);
        let mut lines = Vec::new();
        for_each_line(dir.path(), (0, i64::MAX), |line| lines.push((line.device, line.gpu_ns))).unwrap();
        lines.sort();
        assert_eq!(lines, [("GPU-00bb".to_owned(), 11), ("MIG-00AA".to_owned(), 5), ("MIG-00AA".to_owned(), 7)]);
    }

    #[test]
    fn where_there_is_no_record_that_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let question = UsageQuestion { tenants: Vec::new(), devices: false, span: (0, 1), by: GroupBy::Total };
        assert!(matches!(ask_record(dir.path(), &question), Err(RecordTrouble::Place(..))));
        // Case: a daemon has begun to create the record, and the file has no tables yet.
        let file = dir.path().join(RECORD_FILE);
        std::fs::write(&file, "").unwrap();
        assert_eq!(ask_record(dir.path(), &question).unwrap().rows, []);
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(matches!(ask_record(dir.path(), &question), Err(RecordTrouble::Foreign(_))));
    }
}
