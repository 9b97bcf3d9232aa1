//! Keeps the use of each row since the view began, one value for each refresh; and the record's last hour, minute by
//! minute.

use std::collections::{BTreeMap, VecDeque};

use super::row::{Key, Row};
use vgpu_accounting::record::ask::Used;

/// Values kept for each row.
const KEPT: usize = 512;

/// Minutes shown from the record.
pub const MINUTES: usize = 60;

/// Percent of a device's time for each row, the newest last.
#[derive(Debug, Default)]
pub struct History(BTreeMap<Key, VecDeque<f64>>);

impl History {
    /// Adds the values of a refresh; rows that have disappeared are forgotten.
    pub fn push(&mut self, rows: &[Row]) {
        let mut kept = BTreeMap::new();
        for row in rows {
            let mut line = self.0.remove(&row.key()).unwrap_or_default();
            line.push_back(row.got.unwrap_or(0.0));
            while line.len() > KEPT {
                line.pop_front();
            }
            kept.insert(row.key(), line);
        }
        self.0 = kept;
    }

    /// Returns the newest values of a row, at most `most`, the newest last.
    pub fn last(&self, key: &Key, most: usize) -> impl Iterator<Item = f64> {
        let line = self.0.get(key);
        let skipped = line.map_or(0, |line| line.len().saturating_sub(most));
        line.into_iter().flatten().skip(skipped).copied()
    }
}

/// Returns the percent of a device's time minute by minute, the newest last, by tenant and the device's UUID. Uses
/// the recorded rows that began in the hour before `now` (seconds since 1970), without the current, incomplete
/// minute.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "for a line of bars")]
pub fn hour(rows: &[Used], now: i64) -> BTreeMap<Key, Vec<f64>> {
    let end = now.div_euclid(60);
    let mut all: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let (Some(start), Some(tenant), Some(device)) = (row.start, &row.tenant, &row.device) else { continue };
        let ago = end - start.div_euclid(60);
        let Some(at) = usize::try_from(ago).ok().and_then(|ago| MINUTES.checked_sub(ago)) else { continue };
        let line = all.entry((tenant.clone(), device.clone())).or_insert_with(|| vec![0.0; MINUTES]);
        if let Some(minute) = line.get_mut(at) {
            *minute += row.gpu_ns.unwrap_or(0) as f64 / 60e9 * 100.0;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tenant: &str, got: f64) -> Row {
        Row { tenant: tenant.into(), got: Some(got), ..Row::default() }
    }

    #[test]
    fn the_newest_looks_are_kept_and_who_is_gone_is_forgotten() {
        let mut history = History::default();
        for look in 0..KEPT + 10 {
            let got = f64::from(u32::try_from(look).unwrap());
            history.push(&[row("a", got), row("b", 1.0)]);
        }
        let key = row("a", 0.0).key();
        assert_eq!(history.last(&key, 3).collect::<Vec<_>>(), [519.0, 520.0, 521.0]);
        assert_eq!(history.last(&key, 1000).count(), KEPT);
        history.push(&[row("b", 1.0)]);
        assert_eq!(history.last(&key, 3).count(), 0);
    }

    #[test]
    fn the_record_is_put_into_minutes_and_the_one_that_runs_is_left_out() {
        let used = |start, gpu_ns| Used {
            start: Some(start),
            tenant: Some("a".into()),
            device: Some("GPU-1".into()),
            gpu_ns: Some(gpu_ns),
            ..Used::default()
        };
        let now = 100 * 60 + 30;
        let rows = [used(99 * 60, 30_000_000_000), used(40 * 60, 60_000_000_000), used(100 * 60, 1), used(39 * 60, 1)];
        let all = hour(&rows, now);
        let line = &all[&("a".to_owned(), "GPU-1".to_owned())];
        assert_eq!((line.len(), line[59], line[0]), (60, 50.0, 100.0));
        assert_eq!(line.iter().sum::<f64>(), 150.0);
    }
}
