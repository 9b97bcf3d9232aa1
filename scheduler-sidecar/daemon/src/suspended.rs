//! Processes that are suspended: `vgpu-checkpoint` moved their memory off their devices, and their calls of CUDA wait.
//!
//! The daemon cannot ask the driver for the state of a process, because it loads no driver of CUDA. It believes the
//! program that changed the state. It forgets a suspension when it sees that the process works again, or when NVML
//! lists it on a device.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use vgpu_control::finding::ProcessId;

/// Time after a suspension in which work from before it may still be reported: the member's thread may wait for a
/// processor.
const LATE_REPORT_NS: u64 = 1_000_000_000;

/// A suspended process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedProcess {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Name of its tenant when it was suspended.
    pub tenant: String,
    /// Time since which it is suspended, in seconds since 1970.
    pub since: i64,
}

/// Signs of life of suspended processes: another program may have resumed them.
#[derive(Debug, Default)]
pub struct LifeSigns {
    signs: BTreeMap<ProcessId, ProcessSigns>,
}

#[derive(Debug, Default)]
struct ProcessSigns {
    /// Time at which this daemon learned of the suspension, in ns; 0: a daemon before this one did.
    learned: u64,
    /// Device time on each device at its last reading, in ns.
    measured: BTreeMap<String, u64>,
}

impl LifeSigns {
    /// Notes that a process is suspended, `now` in ns, with its device time on each device in ns.
    pub fn begin(&mut self, process: ProcessId, measured: BTreeMap<String, u64>, now: u64) {
        self.signs.insert(process, ProcessSigns { learned: now, measured });
    }

    /// Forgets a process that runs or has ended.
    pub fn forget(&mut self, process: ProcessId) {
        self.signs.remove(&process);
    }

    /// Notes a new sum of device time of a process at `now`, all in ns; true if it worked after it was suspended. No
    /// work of a suspended process ends. Under a later daemon the first sum is from before.
    pub fn has_worked(&mut self, process: ProcessId, device: &str, busy: u64, now: u64) -> bool {
        let signs = self.signs.entry(process).or_default();
        let before = signs.measured.insert(device.to_owned(), busy);
        before.is_some_and(|before| busy > before) && now.saturating_sub(signs.learned) > LATE_REPORT_NS
    }

    /// True if a process was suspended when the driver was asked for its list, at `asked` in ns.
    #[must_use]
    pub fn was_suspended_at(&self, process: ProcessId, asked: u64) -> bool {
        self.signs.get(&process).is_none_or(|signs| signs.learned < asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_was_read_late_is_no_sign_of_life_and_later_work_is() {
        let mut life = LifeSigns::default();
        let process = ProcessId { pid: 7, began: 1 };
        let other = ProcessId { began: 2, ..process };
        let sums = || BTreeMap::from([("0".to_owned(), 100)]);
        life.begin(process, sums(), 10);
        assert!(!life.has_worked(process, "0", 101, 10 + LATE_REPORT_NS), "it may be from before");
        assert!(!life.has_worked(process, "0", 101, 11 + LATE_REPORT_NS), "nothing new");
        assert!(!life.has_worked(process, "1", 500, 11 + LATE_REPORT_NS), "the first sum there");
        assert!(life.has_worked(process, "0", 102, 11 + LATE_REPORT_NS));
        life.begin(process, sums(), 3 * LATE_REPORT_NS);
        assert!(!life.has_worked(process, "0", 103, 3 * LATE_REPORT_NS), "suspended again");
        // It was suspended under a daemon before this one.
        assert!(!life.has_worked(other, "0", 300, 9 * LATE_REPORT_NS) && life.has_worked(other, "0", 301, u64::MAX));
    }

    #[test]
    fn a_list_from_before_the_suspension_is_no_sign_of_life() {
        let mut life = LifeSigns::default();
        let process = ProcessId { pid: 7, began: 1 };
        assert!(life.was_suspended_at(process, 5), "since a daemon before this one");
        life.begin(process, BTreeMap::new(), 10);
        assert!(!life.was_suspended_at(process, 9) && !life.was_suspended_at(process, 10));
        assert!(life.was_suspended_at(process, 11));
    }
}
