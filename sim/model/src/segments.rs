//! History of service on a queue: stretches of service, folded where they are regular, by which events are dated.
//!
//! Also samples of it: utilisation windows as NVML has them, and buckets of the ground truth.

use crate::layout::{
    BUCKET_NS, BUCKETS_KEPT, BusyBuckets, ClockJournal, SEGMENTS_KEPT, ServiceSegment, SlotDevice, WINDOW_NS,
    WINDOWS_KEPT, WorkLine, ring_index,
};

/// Adds a run to the queue's segments: extends the newest, folds regular slices into one, or starts another.
pub(crate) fn note_run(line: &WorkLine, j: &mut ClockJournal, run: u64) {
    let at = |i: u64| line.ring[ring_index(i, SEGMENTS_KEPT)];
    j.wrote = line.wrote;
    let fresh = ServiceSegment { at: j.clock, served: line.busy, len: run, span: run, period: 0, count: 1 };
    if line.wrote == line.read {
        j.wrote += 1;
        j.newest = fresh;
        j.before = at(line.wrote.wrapping_sub(1));
        return;
    }
    j.newest = at(line.wrote - 1);
    j.before = at(line.wrote.wrapping_sub(2));
    if j.newest.count == 1 && j.newest.len == j.newest.span && j.newest.at + j.newest.span == fresh.at {
        j.newest.len += run;
        j.newest.span += run;
        return;
    }
    if line.wrote - line.read >= 2 && continues_segment(&j.before, &j.newest) {
        j.before.period = j.newest.at - (j.before.at + (j.before.count - 1) * j.before.period);
        j.before.count += 1;
        j.newest = fresh;
        return;
    }
    if line.wrote - line.read >= SEGMENTS_KEPT as u64 - 1 {
        // The ring is full, because the owner has not read it for a long, irregular time. Merge into the newest
        // segment: sums stay right, times inside the merged stretch are interpolated.
        let start = j.newest;
        j.newest.len = fresh.served + run - start.served;
        j.newest.span = fresh.at + run - start.at;
        j.newest.period = 0;
        j.newest.count = 1;
        return;
    }
    j.before = j.newest;
    j.newest = fresh;
    j.wrote += 1;
}

/// True when `b` continues the regular slices of `a`.
fn continues_segment(a: &ServiceSegment, b: &ServiceSegment) -> bool {
    b.count == 1
        && a.len == a.span
        && b.len == b.span
        && a.len == b.len
        && a.served + a.count * a.len == b.served
        && (a.count == 1 || a.at + a.count * a.period == b.at)
}

/// When the queue's service passed `mark`, from the segments that its owner has not read yet.
pub(crate) fn passed_at(line: &WorkLine, mark: u64) -> Option<u64> {
    (line.read..line.wrote).map(|i| line.ring[ring_index(i, SEGMENTS_KEPT)]).find_map(|g: ServiceSegment| {
        let inside = g.served < mark && mark <= g.served + g.len * g.count;
        inside.then(|| {
            let k = (mark - g.served - 1) / g.len;
            let rest = mark - g.served - k * g.len;
            let time = if g.span == g.len {
                rest
            } else {
                u64::try_from(u128::from(rest) * u128::from(g.span) / u128::from(g.len)).unwrap_or(rest)
            };
            g.at + k * g.period + time
        })
    })
}

/// Adds a run of the process `serial` to the windows and buckets. A process killed here may lose one run: these
/// are samples, not accounts.
pub(crate) fn sample_run(sd: &mut SlotDevice, serial: u64, at: u64, run: u64) {
    for (w, part) in period_parts(WINDOW_NS, at, run) {
        if w > sd.window {
            if w - sd.window >= WINDOWS_KEPT as u64 {
                sd.windows = [0; WINDOWS_KEPT];
            } else {
                (sd.window + 1..=w).for_each(|w| sd.windows[ring_index(w, WINDOWS_KEPT)] = 0);
            }
            sd.window = w;
        }
        let cell = &mut sd.windows[ring_index(w, WINDOWS_KEPT)];
        *cell = cell.saturating_add(part);
    }
    let b = &mut sd.buckets;
    for (n, part) in period_parts(BUCKET_NS, at, run) {
        if b.serial != serial || n >= b.last.saturating_add(BUCKETS_KEPT as u64) {
            // Older buckets belong to another process, or are too old to keep.
            (b.serial, b.first, b.last) = (serial, n, n);
            b.busy[ring_index(n, BUCKETS_KEPT)] = 0;
        } else if n > b.last {
            (b.last + 1..=n).for_each(|m| b.busy[ring_index(m, BUCKETS_KEPT)] = 0);
            b.last = n;
            b.first = b.first.max((n + 1).saturating_sub(BUCKETS_KEPT as u64));
        }
        let cell = &mut b.busy[ring_index(n, BUCKETS_KEPT)];
        *cell = cell.saturating_add(part);
    }
}

/// The periods of `period` ns that a run overlaps, with the part of the run in each.
fn period_parts(period: u64, mut at: u64, mut run: u64) -> impl Iterator<Item = (u64, u32)> {
    std::iter::from_fn(move || {
        let n = at / period;
        let part = run.min((n + 1) * period - at);
        at += part;
        run -= part;
        (part > 0).then_some((n, u32::try_from(part).unwrap_or(u32::MAX)))
    })
}

impl BusyBuckets {
    /// Busy ns in period `n`; 0 for a period that is not kept.
    pub fn get(&self, n: u64) -> u32 {
        if (self.first..=self.last).contains(&n) { self.busy[ring_index(n, BUCKETS_KEPT)] } else { 0 }
    }
}
