//! Computes slices and switches from the recordings of several processes: pure arithmetic on the device's timestamps.
//!
//! All contexts of a device read the same timer. So the end of one process's slice can be subtracted from the start of
//! the next one's.

use serde_json::{Value, json};

use crate::kernels::SliceRecording;
use crate::stats::{count_to_float, series_json, to_float};

/// A time in which one process had the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRun {
    pub process: usize,
    pub begin: u64,
    pub end: u64,
}

/// Combined result of the recordings.
#[derive(Debug, Default, PartialEq)]
pub struct CombinedSlices {
    /// Lengths of complete slices, ns.
    pub lengths: Vec<f64>,
    /// Times between the end of one process's slice and the start of another's, ns.
    pub switches: Vec<f64>,
    /// Pairs of runs of different processes that overlapped: contexts that ran at the same time.
    pub overlaps: usize,
    /// Interruptions after which the same process continued, ns: no switch to another process of this measurement.
    pub hiccups: Vec<f64>,
    /// Time in which all processes wanted the device, ns.
    pub window: f64,
    /// Each process's part of that time.
    pub shares: Vec<f64>,
}

/// Runs of one process: the times between its gaps.
fn runs_of(process: usize, recording: &SliceRecording) -> Vec<DeviceRun> {
    let mut runs = Vec::new();
    let mut begin = recording.first;
    for &(before, after) in &recording.gaps {
        runs.push(DeviceRun { process, begin, end: before });
        begin = after;
    }
    // If there were more gaps than the buffer holds, the time after the last kept gap is unknown.
    if recording.seen <= recording.gaps.len() as u64 {
        runs.push(DeviceRun { process, begin, end: recording.last });
    }
    runs
}

/// Combines the recordings of processes that wanted the device at the same time.
pub fn combine_slices(recordings: &[SliceRecording]) -> CombinedSlices {
    let mut result = CombinedSlices::default();
    let all: Vec<Vec<DeviceRun>> = recordings.iter().enumerate().map(|(process, r)| runs_of(process, r)).collect();
    let from = recordings.iter().map(|r| r.first).max().unwrap_or(0);
    let until = all.iter().filter_map(|runs| runs.last()).map(|run| run.end).min().unwrap_or(0);
    if until <= from || all.iter().any(Vec::is_empty) {
        return result;
    }
    result.window = to_float(until - from);
    for runs in &all {
        let had: u64 = runs.iter().map(|run| run.end.min(until).saturating_sub(run.begin.max(from))).sum();
        result.shares.push(to_float(had) / result.window);
    }
    let mut merged: Vec<DeviceRun> =
        all.into_iter().flatten().filter(|run| run.end > from && run.begin < until).collect();
    merged.sort_by_key(|run| (run.begin, run.end));
    // A short interruption does not end a slice: runs of one process with no other process in between are merged.
    let mut whole: Vec<DeviceRun> = Vec::new();
    for run in merged {
        match whole.last_mut() {
            Some(last) if last.process == run.process => {
                result.hiccups.push(to_float(run.begin.saturating_sub(last.end)));
                last.end = last.end.max(run.end);
            }
            _ => whole.push(run),
        }
    }
    for pair in whole.windows(2) {
        if pair[1].begin >= pair[0].end {
            result.switches.push(to_float(pair[1].begin - pair[0].end));
        } else {
            result.overlaps += 1;
        }
    }
    // The window may cut off the first and the last slice.
    let inner = whole.get(1..whole.len().saturating_sub(1)).unwrap_or(&[]);
    result.lengths = inner.iter().map(|run| to_float(run.end - run.begin)).collect();
    result
}

impl CombinedSlices {
    /// The results in the document's form.
    pub fn to_json(&self) -> Value {
        json!({
            "slice_ns": series_json(&self.lengths),
            "switch_ns": series_json(&self.switches),
            "overlaps": self.overlaps,
            "hiccup_ns": series_json(&self.hiccups),
            "window_ns": self.window,
            "shares": self.shares,
            "busy": self.shares.iter().sum::<f64>(),
            "processes": count_to_float(self.shares.len()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(first: u64, last: u64, gaps: &[(u64, u64)]) -> SliceRecording {
        SliceRecording {
            seen: gaps.len() as u64,
            readings: 1,
            first,
            last,
            smallest_step: None,
            largest_step: 0,
            cycles: (0, 0),
            gaps: gaps.to_vec(),
        }
    }

    /// Two processes in turn: slices of 2000, switches of 100.
    fn in_turn() -> [SliceRecording; 2] {
        [
            recording(1000, 11_400, &[(3000, 5200), (7200, 9400)]),
            recording(3100, 13_500, &[(5100, 7300), (9300, 11_500)]),
        ]
    }

    #[test]
    fn slices_and_switches_of_two_processes_in_turn_are_found() {
        let got = combine_slices(&in_turn());
        assert_eq!(got.switches, [100.0, 100.0, 100.0]);
        assert_eq!(got.lengths, [2000.0, 2000.0]);
        assert_eq!(got.overlaps, 0);
        assert!(got.hiccups.is_empty());
    }

    #[test]
    fn the_shares_are_of_the_time_in_which_all_wanted_the_device() {
        let got = combine_slices(&in_turn());
        // Both wanted the device from 3100, when the second began, to 11400, when the first ended: two slices each.
        assert_eq!(got.window, 8300.0);
        assert_eq!(got.shares, [4000.0 / 8300.0, 4000.0 / 8300.0]);
    }

    #[test]
    fn processes_that_ran_at_the_same_time_are_reported_as_overlaps() {
        let got = combine_slices(&[recording(0, 1000, &[]), recording(500, 1500, &[])]);
        assert_eq!(got.overlaps, 1);
        assert!(got.switches.is_empty());
    }

    #[test]
    fn a_hiccup_of_one_process_is_no_switch() {
        let a = recording(0, 10_000, &[(4000, 8000), (9000, 9030)]);
        let b = recording(4100, 12_000, &[(7900, 10_100)]);
        let got = combine_slices(&[a, b]);
        assert_eq!(got.switches, [100.0]);
        assert_eq!(got.hiccups, [30.0]);
    }

    #[test]
    fn a_recording_that_ran_out_of_room_ends_at_its_last_gap() {
        let mut a = recording(0, 100_000, &[(1000, 2000)]);
        a.seen = 50;
        let got = combine_slices(&[a, recording(0, 100_000, &[])]);
        assert_eq!(got.window, 1000.0);
    }

    #[test]
    fn nothing_together_gives_nothing() {
        assert_eq!(combine_slices(&[recording(0, 10, &[]), recording(20, 30, &[])]), CombinedSlices::default());
        assert_eq!(combine_slices(&[]), CombinedSlices::default());
    }
}
