//! The table of promises kept: for each minute what a tenant wanted, was promised and got, and its waits for leases.
//!
//! An hour also holds how many of its minutes kept the promise, and the worst one. Minutes do not hold that: it
//! follows from their numbers. The table was added to version 1; a record without it gets it when it is opened.

use rusqlite::{Statement, params_from_iter};
use vgpu_control::service::{BUCKET_COUNT, KEPT_PERMILLE, ServiceSums, TimeHistogram};

use super::super::integrate::{MINUTE_SECONDS, RecordKey};
use super::to_signed;

/// Most of a column, so that sums of columns stay in range.
const MOST: &str = "4611686018427387904";

/// Names of the columns that are summed.
pub(in crate::record) fn sum_columns() -> Vec<String> {
    let fixed = ["wanted_ns", "promised_ns", "delivered_ns", "wait_ns", "gap_ns"].map(str::to_owned);
    let counts = |name: &'static str| (0..BUCKET_COUNT).map(move |bucket| format!("{name}_{bucket}"));
    fixed.into_iter().chain(counts("wait")).chain(counts("gap")).collect()
}

/// The values of [`sum_columns`].
fn sum_values(sums: &ServiceSums) -> Vec<i64> {
    let fixed = [sums.wanted_ns, sums.promised_ns, sums.delivered_ns, sums.waits.sum_ns, sums.gaps.sum_ns];
    fixed.into_iter().chain(sums.waits.counts).chain(sums.gaps.counts).map(to_signed).collect()
}

/// Reads the values of [`sum_columns`] in their order.
pub(in crate::record) fn read_sums(
    mut value: impl FnMut(usize) -> rusqlite::Result<u64>,
) -> rusqlite::Result<ServiceSums> {
    let (mut waits, mut gaps) =
        (TimeHistogram { sum_ns: value(3)?, ..TimeHistogram::default() }, TimeHistogram::default());
    gaps.sum_ns = value(4)?;
    for bucket in 0..BUCKET_COUNT {
        waits.counts[bucket] = value(5 + bucket)?;
        gaps.counts[bucket] = value(5 + BUCKET_COUNT + bucket)?;
    }
    let (wanted_ns, promised_ns, delivered_ns) = (value(0)?, value(1)?, value(2)?);
    Ok(ServiceSums { wanted_ns, promised_ns, delivered_ns, waits, gaps, ..ServiceSums::default() })
}

pub(super) fn table_sql() -> String {
    let columns: String = sum_columns().iter().map(|column| format!("{column} INTEGER NOT NULL, ")).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS service (span INTEGER NOT NULL, start INTEGER NOT NULL, tenant INTEGER NOT NULL, \
         device INTEGER NOT NULL, {columns} minutes INTEGER, minutes_kept INTEGER, worst_start INTEGER, \
         worst_permille INTEGER, PRIMARY KEY (span, start, tenant, device)) WITHOUT ROWID;"
    )
}

/// Adds to the sums of an existing row.
fn upsert_sums() -> String {
    let add = |column: &String| format!("{column} = min({column} + excluded.{column}, {MOST})");
    sum_columns().iter().map(add).collect::<Vec<_>>().join(", ")
}

pub(super) fn add_sql() -> String {
    let columns = sum_columns();
    let values: String = (0..columns.len()).map(|at| format!(", ?{}", at + 7)).collect();
    format!(
        "INSERT INTO service (span, start, tenant, device, {}) VALUES (?1, ?2, \
         (SELECT id FROM tenant WHERE name = ?3 AND group_name = ?5 AND labels = ?6), \
         (SELECT id FROM device WHERE uuid = ?4){values}) ON CONFLICT DO UPDATE SET {}",
        columns.join(", "),
        upsert_sums()
    )
}

/// Adds one minute's sums, unless there are none.
pub(super) fn add_row(add: &mut Statement<'_>, key: &RecordKey, sums: &ServiceSums) -> rusqlite::Result<()> {
    let values = sum_values(sums);
    if values.iter().all(|value| *value == 0) {
        return Ok(());
    }
    let group = key.bearer.group_column().to_owned();
    let words = [key.tenant.clone(), key.device.clone(), group, key.bearer.labels_column()];
    let first = [MINUTE_SECONDS, key.start].map(rusqlite::types::Value::from);
    let all = first.into_iter().chain(words.map(Into::into)).chain(values.into_iter().map(Into::into));
    add.execute(params_from_iter(all)).map(drop)
}

/// Makes an hour of its minutes. The worst minute is the one with the least part of its promise.
pub(super) fn roll_up_sql() -> String {
    let columns = sum_columns();
    let sums: String = columns.iter().map(|column| format!(", sum(min({column}, 72057594037927936))")).collect();
    let part = "CASE WHEN promised_ns > 0 THEN CAST(min(delivered_ns * 1000.0 / promised_ns, 1000) AS INTEGER) END";
    let is_worse = "coalesce(excluded.worst_permille < worst_permille, worst_permille IS NULL)";
    format!(
        "INSERT INTO service (span, start, tenant, device, {}, minutes, minutes_kept, worst_permille, worst_start) \
         SELECT 3600, ?1, tenant, device{sums}, sum(promised_ns > 0), \
         sum(promised_ns > 0 AND delivered_ns * 1000.0 >= promised_ns * {KEPT_PERMILLE}.0), min({part}), start \
         FROM service WHERE span = 60 AND start >= ?1 AND start < ?2 GROUP BY tenant, device \
         ON CONFLICT DO UPDATE SET {}, minutes = minutes + excluded.minutes, \
         minutes_kept = minutes_kept + excluded.minutes_kept, \
         worst_start = CASE WHEN {is_worse} THEN excluded.worst_start ELSE worst_start END, \
         worst_permille = CASE WHEN {is_worse} THEN excluded.worst_permille ELSE worst_permille END",
        columns.join(", "),
        upsert_sums()
    )
}
