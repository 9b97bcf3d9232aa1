//! Reads a device's memory use from NVML, finds this process's own entry in the process list, and measures its
//! growth.
//!
//! In another pid namespace the list shows other pids than the process knows. This process's pid is learned at the
//! first context, as the only entry that appeared or grew, and remembered. Until then nothing is known; nor when two
//! entries with the same pid change at once (two containers may both have a process 1).

use crate::device::list::{kept_handle, with_nvml_kept};
use crate::device::table::Device;
use crate::driver::own;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use shim_sys::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_t};

/// More than this is no context and no module: another process allocated meanwhile.
pub const MAX_PLAUSIBLE_BYTES: u64 = 4 << 30;
/// Number of tries, 1 ms apart, for two readings that agree.
const MAX_SETTLE_TRIES: u32 = 20;

/// This process's pid in NVML's list; 0: not known yet.
static OWN_NVML_PID: AtomicU32 = AtomicU32::new(0);

/// This process's pid in NVML's list, once known.
pub fn own_pid() -> Option<u32> {
    Some(OWN_NVML_PID.load(Relaxed)).filter(|&pid| pid != 0)
}

/// Stores this process's pid in NVML's list.
pub fn set_own_pid(pid: u32) {
    OWN_NVML_PID.store(pid, Relaxed);
}

/// Forgets the pid in a forked child, which has another one.
pub fn reset_after_fork() {
    OWN_NVML_PID.store(0, Relaxed);
}

/// A device's memory use at one moment.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct DeviceReading {
    /// Bytes in use by all processes, if requested and if two readings agreed.
    used: Option<u64>,
    /// The processes and their bytes, in order of pids.
    processes: Vec<(u32, u64)>,
}

/// The measured size of a context, and how it was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextGrowth {
    /// Growth of this entry, this process's own or the only new one. Valid for later contexts too.
    Own {
        /// The pid in NVML's list.
        pid: u32,
        /// Growth of the process's entry in bytes.
        bytes: u64,
    },
    /// Growth of the device's used memory while no entry on the list changed. Valid for this context only.
    Device(u64),
}

impl DeviceReading {
    /// The size of a context created between two readings, for a process that knows itself as `pid`. `surely`: NVML
    /// has shown that pid before, so a new entry is another process.
    pub fn growth_to(&self, after: &DeviceReading, pid: u32, surely: bool) -> Option<ContextGrowth> {
        let plausible = |bytes: &u64| *bytes < MAX_PLAUSIBLE_BYTES;
        if let Some(bytes) = self.change_of(after, pid)
            && let Ok(bytes) = u64::try_from(bytes)
            && bytes > 0
            && plausible(&bytes)
        {
            return Some(ContextGrowth::Own { pid, bytes });
        }
        if surely {
            return None;
        }
        // A pid on the list that does not grow belongs to a process in another pid namespace.
        let came = entries_beyond(&after.processes, &self.processes);
        let went = entries_beyond(&self.processes, &after.processes);
        let mut fresh = came.iter().filter(|entry| bytes_of_pid(&went, entry.0).is_empty());
        match (fresh.next(), fresh.next()) {
            (Some(&(pid, bytes)), None) => Some(ContextGrowth::Own { pid, bytes }).filter(|_| plausible(&bytes)),
            (None, _) if self.processes == after.processes => {
                after.used?.checked_sub(self.used?).filter(plausible).map(ContextGrowth::Device)
            }
            _ => None,
        }
    }

    /// Whether there is an entry of `pid`.
    pub fn lists_pid(&self, pid: u32) -> bool {
        self.processes.iter().any(|entry| entry.0 == pid)
    }

    /// The change of the entry of `pid`. `None`: it is on neither list, or cannot be told apart from others.
    pub fn change_of(&self, after: &DeviceReading, pid: u32) -> Option<i64> {
        // Two containers may both have a process 1, so whole entries are compared, with their multiplicity.
        let came = bytes_of_pid(&entries_beyond(&after.processes, &self.processes), pid);
        let went = bytes_of_pid(&entries_beyond(&self.processes, &after.processes), pid);
        match (&went[..], &came[..]) {
            ([], []) => after.processes.iter().any(|entry| entry.0 == pid).then_some(0),
            ([], &[now]) => now.try_into().ok(),
            (&[before], &[now]) => Some(now.wrapping_sub(before).cast_signed()),
            (&[before], []) => i64::try_from(before).ok().map(|bytes| -bytes),
            _ => None,
        }
    }
}

fn bytes_of_pid(entries: &[(u32, u64)], pid: u32) -> Vec<u64> {
    entries.iter().filter(|entry| entry.0 == pid).map(|entry| entry.1).collect()
}

/// The entries of `these` that `those` lacks, or has fewer times.
fn entries_beyond(these: &[(u32, u64)], those: &[(u32, u64)]) -> Vec<(u32, u64)> {
    let mut left = those.to_vec();
    let unmatched = |entry: &&(u32, u64)| match left.iter().position(|other| other == *entry) {
        Some(at) => {
            left.swap_remove(at);
            false
        }
        None => true,
    };
    these.iter().filter(unmatched).copied().collect()
}

/// The process list alone. NVML stays initialised.
pub fn read_list(device: &Device) -> Option<DeviceReading> {
    Some(DeviceReading { used: None, processes: read_processes(kept_handle(device)?)? })
}

/// As [`read_list`], with an empty read_list where NVML gives none.
pub fn list_or_none(device: &Device) -> Option<DeviceReading> {
    Some(DeviceReading { used: None, processes: read_processes(kept_handle(device)?).unwrap_or_default() })
}

impl DeviceReading {
    /// Whether the list is unchanged: then only the device's used memory can show the growth.
    pub fn processes_are_those_of(&self, after: &DeviceReading) -> bool {
        self.processes == after.processes
    }

    /// Whether two readings of the device's used memory agreed.
    pub fn has_used(&self) -> bool {
        self.used.is_some()
    }

    /// Adds the device's used memory. `needed`: the list shows nothing, so used memory must; it is tried
    /// `MAX_SETTLE_TRIES` times. Before that is known, two tries are enough.
    pub fn add_used(&mut self, device: &Device, needed: bool) {
        let tries = if needed { MAX_SETTLE_TRIES } else { 2 };
        self.used = with_nvml_kept(|| settled_usage(kept_handle(device)?, tries)).flatten();
    }
}

/// Bytes in use on the device, once two consecutive readings agree.
fn settled_usage(handle: nvmlDevice_t, tries: u32) -> Option<u64> {
    let read = || {
        let mut memory = nvmlMemory_t::default();
        // SAFETY: NVML is initialised and gave the handle; pointers are to locals.
        unsafe { own::nvmlDeviceGetMemoryInfo()?(handle, &raw mut memory) }.ok().then_some(memory.used)
    };
    let mut last = read()?;
    for _ in 0..tries {
        let next = read()?;
        if next == last {
            return Some(next);
        }
        last = next;
        crate::ffi::clock::sleep(1_000_000);
    }
    None
}

/// NVML's process list, in order of pids; entries without a byte count are left out.
fn read_processes(handle: nvmlDevice_t) -> Option<Vec<(u32, u64)>> {
    let list = own::nvmlDeviceGetComputeRunningProcesses_v3()?;
    let mut all = vec![nvmlProcessInfo_t::default(); 512];
    loop {
        let mut count = u32::try_from(all.len()).ok()?;
        // SAFETY: as above; the buffer has the given length.
        match unsafe { list(handle, &raw mut count, all.as_mut_ptr()) } {
            result if result.ok() => all.truncate(count as usize),
            nvmlReturn_t::INSUFFICIENT_SIZE if all.len() < 4096 => {
                all.resize(2 * all.len().max(count as usize), nvmlProcessInfo_t::default());
                continue;
            }
            _ => return None,
        }
        let mut entries = Vec::with_capacity(all.len());
        for entry in all.iter().filter(|entry| entry.usedGpuMemory != u64::MAX) {
            // The list is short; the standard library's sort would add ten kilobytes of code.
            let entry = (entry.pid, entry.usedGpuMemory);
            entries.insert(entries.partition_point(|other| *other < entry), entry);
        }
        return Some(entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(used: u64, processes: &[(u32, u64)]) -> DeviceReading {
        DeviceReading { used: Some(used), processes: processes.to_vec() }
    }

    fn own(pid: u32, bytes: u64) -> Option<ContextGrowth> {
        Some(ContextGrowth::Own { pid, bytes })
    }

    #[test]
    fn a_context_is_this_processes_own_growth_whatever_others_do() {
        let before = reading(900, &[(7, 600), (9, 300)]);
        assert_eq!(before.growth_to(&reading(5000, &[(7, 4000), (8, 500), (9, 500)]), 8, false), own(8, 500));
        assert_eq!(before.growth_to(&reading(2000, &[(7, 1700), (9, 300)]), 7, false), own(7, 1100));
    }

    #[test]
    fn of_two_containers_each_with_a_process_1_the_new_one_is_ours() {
        let before = reading(600, &[(1, 600)]);
        assert_eq!(before.growth_to(&reading(1100, &[(1, 500), (1, 600)]), 1, false), own(1, 500));
        assert_eq!(before.growth_to(&reading(1200, &[(1, 600), (1, 600)]), 1, false), own(1, 600));
        assert_eq!(before.growth_to(&reading(1300, &[(1, 600), (1, 700)]), 7, false), own(1, 700));
        assert_eq!(before.growth_to(&reading(1700, &[(1, 700), (1, 1000)]), 1, false), None, "which of them?");
    }

    #[test]
    fn in_another_pid_namespace_the_entry_that_appeared_is_ours_if_it_is_the_only_one() {
        let before = reading(900, &[(7, 600)]);
        assert_eq!(before.growth_to(&reading(1500, &[(7, 700), (8123, 500)]), 1, false), own(8123, 500));
        assert_eq!(before.growth_to(&reading(1900, &[(7, 600), (8123, 500), (8124, 500)]), 1, false), None);
    }

    #[test]
    fn who_knows_its_own_entry_takes_no_other_for_it() {
        let before = reading(900, &[(7, 600)]);
        assert_eq!(before.growth_to(&reading(1500, &[(7, 600), (8, 500)]), 7, true), None, "it shrank meanwhile");
        assert_eq!(before.growth_to(&reading(1500, &[(7, 700), (8, 500)]), 7, true), own(7, 100));
    }

    #[test]
    fn without_a_list_the_device_grew_only_if_nobody_moved() {
        assert_eq!(reading(900, &[]).growth_to(&reading(1400, &[]), 1, false), Some(ContextGrowth::Device(500)));
        assert_eq!(
            reading(900, &[(7, 1)]).growth_to(&reading(1400, &[(7, 2)]), 1, false),
            None,
            "a neighbour allocated"
        );
        assert_eq!(reading(900, &[]).growth_to(&reading(800, &[]), 1, false), None, "a neighbour freed");
        assert_eq!(reading(0, &[]).growth_to(&reading(8 << 30, &[]), 1, false), None, "no context is as large");
    }

    #[test]
    fn an_entry_that_is_known_may_grow_shrink_or_stay() {
        let before = reading(0, &[(7, 600), (9, 300)]);
        assert_eq!(before.change_of(&reading(0, &[(7, 640), (9, 100)]), 7), Some(40));
        assert_eq!(before.change_of(&reading(0, &[(7, 500), (9, 100)]), 7), Some(-100));
        assert_eq!(before.change_of(&reading(0, &[(7, 600)]), 7), Some(0));
        assert_eq!(before.change_of(&reading(0, &[(9, 300)]), 7), Some(-600));
        assert_eq!(before.change_of(&before, 8), None, "not on the list");
        let two = reading(0, &[(1, 600), (1, 700)]);
        assert_eq!(two.change_of(&reading(0, &[(1, 600), (1, 750)]), 1), Some(50));
        assert_eq!(two.change_of(&reading(0, &[(1, 610), (1, 750)]), 1), None, "which of them?");
    }
}
