//! Keeps the use of each row since the view began, one value for each refresh; and the record's last hour, minute by
//! minute.

use std::collections::{BTreeMap, VecDeque};

use super::row::{RowKey, TopRow};
use vgpu_accounting::record::ask::UsageRow;

/// Values kept for each row.
const LOOKS_KEPT: usize = 512;

/// Minutes shown from the record.
pub const MINUTES_SHOWN: usize = 60;

/// Percent of a device's time for each row, the newest last.
#[derive(Debug, Default)]
pub struct RowHistory(BTreeMap<RowKey, VecDeque<f64>>);

impl RowHistory {
    /// Adds the values of a refresh; rows that have disappeared are forgotten.
    pub fn push(&mut self, rows: &[TopRow]) {
        let mut kept = BTreeMap::new();
        for row in rows {
            let mut line = self.0.remove(&row.row_key()).unwrap_or_default();
            line.push_back(row.got.unwrap_or(0.0));
            while line.len() > LOOKS_KEPT {
                line.pop_front();
            }
            kept.insert(row.row_key(), line);
        }
        self.0 = kept;
    }

    /// Returns the newest values of a row, at most `most`, the newest last.
    pub fn newest_values(&self, key: &RowKey, most: usize) -> impl Iterator<Item = f64> {
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
pub fn minutes_of_hour(rows: &[UsageRow], now: i64) -> BTreeMap<RowKey, Vec<f64>> {
    let end = now.div_euclid(60);
    let mut all: BTreeMap<RowKey, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let (Some(start), Some(tenant), Some(device)) = (row.start, &row.tenant, &row.device) else { continue };
        let ago = end - start.div_euclid(60);
        let Some(at) = usize::try_from(ago).ok().and_then(|ago| MINUTES_SHOWN.checked_sub(ago)) else { continue };
        let line = all.entry((tenant.clone(), device.clone())).or_insert_with(|| vec![0.0; MINUTES_SHOWN]);
        if let Some(minute) = line.get_mut(at) {
            *minute += row.gpu_ns.unwrap_or(0) as f64 / 60e9 * 100.0;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tenant: &str, got: f64) -> TopRow {
        TopRow { tenant: tenant.into(), got: Some(got), ..TopRow::default() }
    }

    #[test]
    fn the_newest_looks_are_kept_and_who_is_gone_is_forgotten() {
        let mut history = RowHistory::default();
        for look in 0..LOOKS_KEPT + 10 {
            let got = f64::from(u32::try_from(look).unwrap());
            history.push(&[row("a", got), row("b", 1.0)]);
        }
        let key = row("a", 0.0).row_key();
        assert_eq!(history.newest_values(&key, 3).collect::<Vec<_>>(), [519.0, 520.0, 521.0]);
        assert_eq!(history.newest_values(&key, 1000).count(), LOOKS_KEPT);
        history.push(&[row("b", 1.0)]);
        assert_eq!(history.newest_values(&key, 3).count(), 0);
    }

    #[test]
    fn the_record_is_put_into_minutes_and_the_one_that_runs_is_left_out() {
        let used = |start, gpu_ns| UsageRow {
            start: Some(start),
            tenant: Some("a".into()),
            device: Some("GPU-1".into()),
            gpu_ns: Some(gpu_ns),
            ..UsageRow::default()
        };
        let now = 100 * 60 + 30;
        let rows = [used(99 * 60, 30_000_000_000), used(40 * 60, 60_000_000_000), used(100 * 60, 1), used(39 * 60, 1)];
        let all = minutes_of_hour(&rows, now);
        let line = &all[&("a".to_owned(), "GPU-1".to_owned())];
        assert_eq!((line.len(), line[59], line[0]), (60, 50.0, 100.0));
        assert_eq!(line.iter().sum::<f64>(), 150.0);
    }
}
