//! Queries the promises kept: what tenants wanted, were promised and got, and their waits for leases.

use std::path::Path;

use rusqlite::params;
use vgpu_config::bearer::CostBearer;
use vgpu_control::service::{ServiceSums, is_kept};

use super::super::store::{RecordTrouble, read_sums, sum_columns, to_unsigned};
use super::{InstanceNames, open_checked};

/// A recorded row: promise and delivery of a tenant on a device during a minute or an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceLine {
    /// First second of the period, since 1970.
    pub start: i64,
    /// Length of the period, in seconds.
    pub span: i64,
    /// Name of the tenant at that time.
    pub tenant: String,
    /// Group and labels of the tenant at that time.
    pub bearer: CostBearer,
    /// UUID of the device.
    pub device: String,
    /// The sums of the period, with its minutes.
    pub sums: ServiceSums,
    /// First second of the worst minute, and its delivered part of the promise in thousandths; `None`: nothing was
    /// promised.
    pub worst: Option<(i64, u64)>,
}

/// Passes all rows that begin in a period to `line`, in order of time. A record of a daemon that stored none has none.
///
/// # Errors
/// [`RecordTrouble`]: there is no record, it cannot be read, or it is of another version.
pub fn for_each_service_line(
    dir: &Path,
    span: (i64, i64),
    mut line: impl FnMut(ServiceLine),
) -> Result<(), RecordTrouble> {
    let Some(connection) = open_checked(dir)? else { return Ok(()) };
    let exists = "SELECT count(*) FROM sqlite_master WHERE name = 'service'";
    if connection.query_row(exists, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(());
    }
    let mut statement = connection.prepare(&format!(
        "SELECT start, span, tenant.name, tenant.group_name, tenant.labels, device.uuid, minutes, minutes_kept, \
         worst_start, worst_permille, {} FROM service JOIN tenant ON tenant.id = service.tenant \
         JOIN device ON device.id = service.device WHERE start >= ?1 AND start < ?2 ORDER BY start",
        sum_columns().join(", ")
    ))?;
    let names = InstanceNames::read(&connection)?;
    let mut rows = statement.query(params![span.0, span.1])?;
    while let Some(row) = rows.next()? {
        let (group, labels): (String, String) = (row.get(3)?, row.get(4)?);
        let mut sums = read_sums(|column| row.get::<_, i64>(10 + column).map(to_unsigned))?;
        let (start, length) = (row.get(0)?, row.get(1)?);
        let worst = match row.get::<_, Option<i64>>(6)? {
            Some(minutes) => {
                sums.minutes = to_unsigned(minutes);
                sums.minutes_kept = to_unsigned(row.get::<_, Option<i64>>(7)?.unwrap_or(0));
                row.get::<_, Option<i64>>(8)?.zip(row.get::<_, Option<i64>>(9)?.map(to_unsigned))
            }
            None if sums.promised_ns == 0 => None,
            None => {
                (sums.minutes, sums.minutes_kept) = (1, u64::from(is_kept(sums.delivered_ns, sums.promised_ns)));
                Some((start, delivered_permille(&sums)))
            }
        };
        line(ServiceLine {
            start,
            span: length,
            tenant: row.get(2)?,
            bearer: CostBearer::of_columns(&group, &labels),
            device: names.name_of(row.get(5)?),
            sums,
            worst: worst.filter(|_| sums.minutes > 0),
        });
    }
    Ok(())
}

/// The delivered part of the promise in thousandths, at most all of it.
fn delivered_permille(sums: &ServiceSums) -> u64 {
    let part = u128::from(sums.delivered_ns) * 1000 / u128::from(sums.promised_ns.max(1));
    u64::try_from(part.min(1000)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use vgpu_config::plan::Keep;
    use vgpu_control::service::TimeHistogram;

    use super::super::super::integrate::{RecordKey, RecordRow};
    use super::super::super::store::{RECORD_FILE, RecordStore};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn add(store: &mut RecordStore, start: i64, promised: u64, delivered: u64, waits: &[u64]) {
        let key = RecordKey { tenant: "a".into(), device: "G".into(), start, bearer: CostBearer::default() };
        let mut times = TimeHistogram::default();
        waits.iter().for_each(|ns| times.note(*ns));
        let service = ServiceSums {
            wanted_ns: 2 * promised * SECOND,
            promised_ns: promised * SECOND,
            delivered_ns: delivered * SECOND,
            waits: times,
            gaps: times,
            ..ServiceSums::default()
        };
        let rows = BTreeMap::from([(key, RecordRow { service, ..RecordRow::default() })]);
        store.add(&rows, &BTreeMap::new(), start).unwrap();
    }

    fn lines(dir: &Path) -> Vec<ServiceLine> {
        let mut lines = Vec::new();
        for_each_service_line(dir, (0, i64::MAX), |line| lines.push(line)).unwrap();
        lines
    }

    /// Minutes, kept ones, waits and the worst minute of all lines.
    fn all(dir: &Path) -> (ServiceSums, Option<(i64, u64)>) {
        let mut sums = ServiceSums::default();
        let mut worst: Option<(i64, u64)> = None;
        for line in lines(dir) {
            sums.add(&line.sums);
            worst = worst.into_iter().chain(line.worst).min_by_key(|(_, permille)| *permille);
        }
        (sums, worst)
    }

    #[test]
    fn minutes_are_judged_by_their_sums_and_hours_know_their_minutes_and_the_worst_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = RecordStore::open(dir.path()).unwrap();
        // A minute arrives in parts; half of its promise, all of it, just kept, and nothing promised.
        add(&mut store, 60, 10, 2, &[1, 5_000_000]);
        add(&mut store, 60, 10, 8, &[]);
        add(&mut store, 120, 20, 30, &[1]);
        add(&mut store, 180, 20, 19, &[]);
        add(&mut store, 240, 0, 0, &[7]);
        let before = lines(dir.path());
        assert_eq!(
            before.iter().map(|line| line.worst).collect::<Vec<_>>(),
            [Some((60, 500)), Some((120, 1000)), Some((180, 950)), None]
        );
        let minutes = all(dir.path());
        assert_eq!((minutes.0.minutes, minutes.0.minutes_kept, minutes.0.waits.total()), (3, 2, 4));
        assert_eq!(minutes.0.delivered_ns, 59 * SECOND);
        store.roll_up_old(Keep { fine: 3600, all: 1 << 40 }, 86_400).unwrap();
        assert_eq!((lines(dir.path()).len(), all(dir.path())), (1, minutes), "an hour");
        // A late row is added to its hour.
        add(&mut store, 300, 10, 1, &[]);
        store.roll_up_old(Keep { fine: 3600, all: 1 << 40 }, 86_400).unwrap();
        let (sums, worst) = all(dir.path());
        assert_eq!((lines(dir.path()).len(), sums.minutes, sums.minutes_kept, worst), (1, 4, 2, Some((300, 100))));
        store.roll_up_old(Keep { fine: 3600, all: 3600 }, 86_400).unwrap();
        assert_eq!(lines(dir.path()), [], "old hours go");
    }

    #[test]
    fn a_record_from_before_promises_were_stored_has_none_and_gets_them_when_a_daemon_opens_it() {
        let dir = tempfile::tempdir().unwrap();
        drop(RecordStore::open(dir.path()).unwrap());
        let drop_table = "DROP TABLE service";
        rusqlite::Connection::open(dir.path().join(RECORD_FILE)).unwrap().execute_batch(drop_table).unwrap();
        assert_eq!(lines(dir.path()), []);
        let (mut store, aside) = RecordStore::open(dir.path()).unwrap();
        assert!(aside.is_none());
        add(&mut store, 60, 10, 5, &[1]);
        assert_eq!(lines(dir.path()).len(), 1);
    }
}
