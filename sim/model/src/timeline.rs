//! Busy time of each process in buckets of 10 ms, for more than a minute: when the device worked for which
//! process.
//!
//! Buckets are kept for living processes, and for a finished one until another process is served in its slot.
//! Busy time is that of the kernel engine, as `busy_ns` in the ground truth.
//! Not here: how it is counted (`segments`).

use crate::layout::{BUCKET_NS, BUCKETS_KEPT, FINISHED_KEPT, ProcessSlot, set_bits};
use crate::machine::MachineView;
use crate::profile::c_text;
use serde::Serialize;

/// Busy time on one device over a stretch of time.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct DeviceTimeline {
    /// Length of a bucket, the period over which busy time is added up, ns.
    pub bucket_ns: u64,
    /// CLOCK_MONOTONIC at the start of the first bucket, ns.
    pub from_ns: u64,
    /// The processes served in that time.
    pub processes: Vec<ServedProcess>,
}

/// Busy time of one process.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct ServedProcess {
    /// Process id in the caller's pid namespace, 0: it has none there; of a finished process in its own.
    pub pid: u32,
    /// Number of the process on this machine.
    pub serial: u64,
    /// Path of the process's executable.
    pub name: String,
    /// Busy time of the process in each bucket, ns.
    pub busy_ns: Vec<u32>,
}

impl DeviceTimeline {
    /// Busy ns of a process in the whole buckets between two moments of CLOCK_MONOTONIC, and the length of those
    /// buckets, ns. The first bucket begins at `from` or later, the last one ends at `to` or earlier.
    pub fn busy_between(&self, serial: u64, from: u64, to: u64) -> (u64, u64) {
        let begin = from.max(self.from_ns).div_ceil(self.bucket_ns);
        let base = self.from_ns / self.bucket_ns;
        let end = to / self.bucket_ns;
        let of = self.processes.iter().find(|p| p.serial == serial);
        let sum = (begin..end).map(|n| {
            let i = usize::try_from(n - base).unwrap_or(usize::MAX);
            of.and_then(|p| p.busy_ns.get(i)).map_or(0, |b| u64::from(*b))
        });
        (sum.sum(), end.saturating_sub(begin) * self.bucket_ns)
    }
}

impl MachineView {
    /// The last `buckets` finished buckets of device `i`, or all that are kept.
    pub fn device_timeline(&self, i: usize, buckets: u64) -> DeviceTimeline {
        let b = self.lock_settled();
        let end = crate::machine::now() / BUCKET_NS;
        let from = end.saturating_sub(buckets.min(BUCKETS_KEPT as u64 - 1));
        let cells = |s: &ProcessSlot| (from..end).map(|n| s.devices[i].buckets.get(n)).collect::<Vec<_>>();
        let mut processes: Vec<ServedProcess> = set_bits(&b.live)
            .map(|slot| (slot, &b.slots[slot]))
            .filter(|(_, s)| s.devices[i].buckets.serial == s.serial)
            .map(|(slot, s)| ServedProcess {
                pid: self.number_of(&b, slot).unwrap_or(0),
                serial: s.serial,
                name: c_text(&s.name).to_owned(),
                busy_ns: cells(s),
            })
            .collect();
        let kept = b.finished_count.min(FINISHED_KEPT as u64);
        for n in b.finished_count - kept..b.finished_count {
            let f = &b.finished[usize::try_from(n).unwrap_or(0) % FINISHED_KEPT];
            let s = &b.slots[f.slot as usize];
            if f.device as usize == i && s.devices[i].buckets.serial == f.serial {
                let name = c_text(&f.name).to_owned();
                processes.push(ServedProcess { pid: f.pid, serial: f.serial, name, busy_ns: cells(s) });
            }
        }
        processes.retain(|p| p.busy_ns.iter().any(|b| *b > 0));
        processes.sort_by_key(|p| p.serial);
        DeviceTimeline { bucket_ns: BUCKET_NS, from_ns: from * BUCKET_NS, processes }
    }
}
