//! The ground truth: the memory and time that each process really used. The accuracy of other figures is judged
//! by it.
//!
//! A process other than the measured one reads it.
//! Not here: how it is printed (`vgpu sim stat`).

use crate::layout::{DeviceUse, FINISHED_KEPT, set_bits};
use crate::machine::MachineView;
use crate::profile::c_text;
use serde::Serialize;
use std::path::Path;

/// The ground truth at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct MachineTruth {
    /// Time of the reading, ns of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// The machine's devices, in order of their index.
    pub devices: Vec<DeviceTruth>,
}

/// Ground truth of one device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceTruth {
    /// Index of the device on the machine.
    pub index: usize,
    /// Product name of the device.
    pub name: String,
    /// UUID as NVML shows it, such as `GPU-...`.
    pub uuid: String,
    /// Total memory that NVML reports, bytes.
    pub nvml_total: u64,
    /// Total memory that CUDA reports, bytes.
    pub cuda_total: u64,
    /// Bytes that can be allocated on an idle device.
    pub capacity: u64,
    /// Bytes in use: the sum over living processes, and `unclaimed`.
    pub used: u64,
    /// Part of `used` in allocations exported to other processes; each counts with one process (`share`).
    pub shared: u64,
    /// Part of `used` that only descriptors keep, whose maker is dead.
    pub unclaimed: u64,
    /// Bytes free for allocations.
    pub free: u64,
    /// Work done for all processes, finished ones included, ns.
    pub busy_ns: u64,
    /// Time spent switching between processes, ns.
    pub switch_ns: u64,
    /// Number of switches between processes.
    pub switches: u64,
    /// The living processes that use the device.
    pub processes: Vec<ProcessTruth>,
    /// The finished processes, oldest first; the last 4,096 of the machine.
    pub finished: Vec<ProcessTruth>,
}

/// Ground truth of one process on one device.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct ProcessTruth {
    /// Process id in the reader's pid namespace, 0: it has none there; of a finished process in its own.
    pub pid: u32,
    /// Number of the process on this machine, never used twice.
    pub serial: u64,
    /// Path of the process's executable.
    pub name: String,
    /// Number of the process's contexts.
    pub contexts: u64,
    /// Number of the process's live allocations.
    pub allocations: u64,
    /// Sum of the sizes that the program requested in live allocations, bytes; imported memory does not count.
    pub requested_bytes: u64,
    /// Sum of the sizes of live allocations, each rounded to the allocator's alignment, bytes.
    pub live_bytes: u64,
    /// Physical bytes of allocations: shared slabs, whole slabs, and pools with everything they hold.
    pub slab_bytes: u64,
    /// Part of `slab_bytes` in slabs that small requests share.
    pub small_slab_bytes: u64,
    /// Physical bytes of contexts and modules.
    pub overhead_bytes: u64,
    /// Physical bytes of allocations and contexts together.
    pub physical_bytes: u64,
    /// Most physical bytes in use so far.
    pub peak_bytes: u64,
    /// Device time used, ns: kernels (also while they wait for memory), fills, copies inside the device.
    pub busy_ns: u64,
    /// Time the copy engines worked for the process, ns, both directions added.
    pub copying_ns: u64,
    /// Device time enqueued and not yet used, ns.
    pub queued_ns: u64,
    /// Number of kernels launched.
    pub kernels: u64,
    /// Number of copies and fills enqueued.
    pub copies: u64,
}

fn process_truth(pid: u32, serial: u64, name: &[u8], u: &DeviceUse) -> ProcessTruth {
    ProcessTruth {
        pid,
        serial,
        name: c_text(name).to_owned(),
        contexts: u.contexts,
        allocations: u.allocations,
        requested_bytes: u.requested,
        live_bytes: u.live,
        slab_bytes: u.slabs + u.large,
        small_slab_bytes: u.slabs,
        overhead_bytes: u.overhead,
        physical_bytes: u.physical_bytes(),
        peak_bytes: u.peak,
        busy_ns: u.busy,
        copying_ns: u.copying,
        queued_ns: u.use_backlog(),
        kernels: u.kernels,
        copies: u.copies,
    }
}

/// Reads the ground truth of the machine in `dir`.
pub fn read(dir: &Path) -> Result<MachineTruth, std::io::Error> {
    std::fs::metadata(dir.join("state"))?;
    Ok(MachineView::open_at(dir, None)?.read_truth())
}

impl MachineTruth {
    /// The living process `pid` on device `index`.
    pub fn living_process(&self, index: usize, pid: u32) -> Option<&ProcessTruth> {
        self.devices.get(index)?.processes.iter().find(|p| p.pid == pid)
    }

    /// The last process with this `pid` that finished on device `index`.
    pub fn finished_process(&self, index: usize, pid: u32) -> Option<&ProcessTruth> {
        self.devices.get(index)?.finished.iter().rev().find(|p| p.pid == pid)
    }
}

impl MachineView {
    /// The ground truth now, after dead processes were removed.
    pub fn read_truth(&self) -> MachineTruth {
        let b = self.lock_settled();
        let devices = (0..b.device_count as usize)
            .map(|i| {
                let d = &b.devices[i];
                let id = d.engine_identity();
                let mut processes: Vec<ProcessTruth> = set_bits(&b.live)
                    .map(|slot| (slot, &b.slots[slot]))
                    .filter(|(_, s)| s.touched & (1 << i) != 0)
                    .map(|(slot, s)| {
                        let pid = self.number_of(&b, slot).unwrap_or(0);
                        process_truth(pid, s.serial, &s.name, &b.used_with_shares(slot, i))
                    })
                    .collect();
                processes.sort_by_key(|p| p.serial);
                let kept = b.finished_count.min(FINISHED_KEPT as u64);
                let finished = (b.finished_count - kept..b.finished_count)
                    .map(|n| &b.finished[usize::try_from(n).unwrap_or(0) % FINISHED_KEPT])
                    .filter(|f| f.device as usize == i)
                    .map(|f| process_truth(f.pid, f.serial, &f.name, &f.used))
                    .collect();
                let used = b.taken_bytes(i);
                DeviceTruth {
                    index: i,
                    name: d.profile.name().to_owned(),
                    uuid: id.uuid_text(),
                    nvml_total: d.profile.nvml_total,
                    cuda_total: d.profile.cuda_total,
                    capacity: d.profile.capacity_bytes(),
                    used,
                    shared: b.shared_bytes(i),
                    unclaimed: b.unclaimed_bytes(i),
                    free: d.profile.capacity_bytes().saturating_sub(used),
                    busy_ns: d.done.busy + processes.iter().map(|p| p.busy_ns).sum::<u64>(),
                    switch_ns: d.switch_ns,
                    switches: d.switches,
                    processes,
                    finished,
                }
            })
            .collect();
        MachineTruth { at_ns: crate::machine::now(), devices }
    }
}
