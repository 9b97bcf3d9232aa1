//! When the device worked for whom: busy time of each process in buckets of ten milliseconds, for more than a minute.
//!
//! Kept for the living, and for the finished until another process is served in their slot. Busy is what `busy_ns` of the
//! truth is: the engine for kernels. Not here: how it is counted (`segments`).

use crate::layout::{BUCKET_NS, BUCKETS, FINISHED, Slot, bits};
use crate::machine::Machine;
use crate::profile::c_text;
use serde::Serialize;

/// One device over a stretch of time.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Timeline {
    /// Length of a bucket, ns.
    pub bucket_ns: u64,
    /// CLOCK_MONOTONIC at the start of the first bucket, ns.
    pub from_ns: u64,
    /// Who was served in that time.
    pub processes: Vec<Served>,
}

/// One process in it.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Served {
    /// Process id, as the process sees it.
    pub pid: u32,
    /// Its number on this machine.
    pub serial: u64,
    /// Its executable.
    pub name: String,
    /// Busy ns in each bucket.
    pub busy_ns: Vec<u32>,
}

impl Timeline {
    /// Busy ns of a process between two moments of CLOCK_MONOTONIC, whole buckets: from the first that begins at `from`
    /// or later to the last that ends at `to` or earlier; and how long those are together.
    pub fn busy(&self, serial: u64, from: u64, to: u64) -> (u64, u64) {
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

impl Machine {
    /// The last `buckets` finished buckets of device `i`, at most as many as are kept.
    pub fn timeline(&self, i: usize, buckets: u64) -> Timeline {
        let b = self.settled();
        let end = crate::machine::now() / BUCKET_NS;
        let from = end.saturating_sub(buckets.min(BUCKETS as u64 - 1));
        let cells = |s: &Slot| (from..end).map(|n| s.devices[i].buckets.get(n)).collect::<Vec<_>>();
        let mut processes: Vec<Served> = bits(&b.live)
            .map(|slot| &b.slots[slot])
            .filter(|s| s.devices[i].buckets.serial == s.serial)
            .map(|s| Served { pid: s.pid, serial: s.serial, name: c_text(&s.name).to_owned(), busy_ns: cells(s) })
            .collect();
        let kept = b.finished_count.min(FINISHED as u64);
        for n in b.finished_count - kept..b.finished_count {
            let f = &b.finished[usize::try_from(n).unwrap_or(0) % FINISHED];
            let s = &b.slots[f.slot as usize];
            if f.device as usize == i && s.devices[i].buckets.serial == f.serial {
                let name = c_text(&f.name).to_owned();
                processes.push(Served { pid: f.pid, serial: f.serial, name, busy_ns: cells(s) });
            }
        }
        processes.retain(|p| p.busy_ns.iter().any(|b| *b > 0));
        processes.sort_by_key(|p| p.serial);
        Timeline { bucket_ns: BUCKET_NS, from_ns: from * BUCKET_NS, processes }
    }
}
