//! The layout of the shared state: one file that every process of the machine maps.
//!
//! The file stores no totals over processes. A reader sums the slots of the living processes, so a process killed
//! between two stores leaves only its own slot to correct. Two updates do touch other state: a step of the
//! device's clock (which also serves another process) is logged in [`ClockJournal`], and the removal of a dead process
//! in [`ProcessBurial`]. A half-made update is repeated from its log.
//! Not here: who may access the state (`lock`), where the file is (`machine`).

use crate::profile::{DeviceProfile, MAX_SIMULATED_DEVICES};
use std::sync::atomic::AtomicU32;

/// Most processes at the same time.
pub const MAX_PROCESSES: usize = 1024;
/// Service intervals kept on one [`WorkLine`] until its owner reads them.
pub const SEGMENTS_KEPT: usize = 128;
/// Engines of a device that work at the same time, each with its own queue.
pub const LANE_COUNT: usize = 3;
/// The engine for kernels, fills and copies inside the device.
pub const COMPUTE_LANE: usize = 0;
/// The copy engine from the host.
pub const TO_DEVICE_LANE: usize = 1;
/// The copy engine to the host.
pub const TO_HOST_LANE: usize = 2;
/// Checkpoint state of a process: its CUDA calls are answered.
pub const STATE_RUNNING: u32 = 0;
/// Checkpoint state of a process: its CUDA calls wait.
pub const STATE_LOCKED: u32 = 1;
/// Checkpoint state of a process: its CUDA calls wait, and its memory is not on the device.
pub const STATE_CHECKPOINTED: u32 = 2;
/// Most gates on one [`WorkLine`] at the same time.
pub const GATES_KEPT: usize = 256;
/// Length of one bucket of the ground truth, ns.
pub const BUCKET_NS: u64 = 10_000_000;
/// Buckets kept: more than 80 s (8,192 of 10 ms).
pub const BUCKETS_KEPT: usize = 8192;
/// Utilisation windows kept per process and device.
pub const WINDOWS_KEPT: usize = 64;
/// Length of one utilisation window, ns: a sixth of a second, the sampling period of NVML.
pub const WINDOW_NS: u64 = 1_000_000_000 / 6;
/// Finished processes kept one by one; older ones remain only in the totals.
pub const FINISHED_KEPT: usize = 4096;
/// First eight bytes of the file.
pub const STATE_MAGIC: u64 = u64::from_le_bytes(*b"vgpu-sim");
/// Version of the layout; changes with every change of it.
pub const STATE_VERSION: u32 = 8;
/// Most live shares (`share`: memory that several processes can hold).
pub const MAX_SHARES: usize = 4096;
/// Xids kept until event sets read them.
pub const XIDS_KEPT: usize = 64;
/// Value that stands for no slot, or for no device.
pub const NO_SLOT: u32 = u32::MAX;
/// Words of a bit set with one bit per slot.
pub const SLOT_SET_WORDS: usize = MAX_PROCESSES / 64;

/// The whole file. Only the holder of `lock` reads and writes `body`.
#[repr(C)]
pub struct StateFile {
    /// [`STATE_MAGIC`], by which a state file is recognised.
    pub magic: u64,
    /// [`STATE_VERSION`] of the layout.
    pub version: u32,
    /// `size_of::<StateFile>()`, a second guard against another layout.
    pub size: u64,
    /// The futex word of the machine's lock.
    pub lock: AtomicU32,
    /// Unused.
    pub pad: [u8; 100],
    /// Everything that the lock protects.
    pub body: StateBody,
}

/// Everything that the lock protects.
#[repr(C)]
pub struct StateBody {
    /// Identity of the machine, new with every reset.
    pub boot: u64,
    /// Wall clock when the machine was made, ns.
    pub created_ns: u64,
    /// Number of devices of the machine.
    pub device_count: u32,
    /// Unused.
    pub pad: u32,
    /// Redo log of the device clock's current step.
    pub journal: ClockJournal,
    /// Redo log of the current removal of a dead process.
    pub burial: ProcessBurial,
    /// When dead processes were last looked for, ns of CLOCK_MONOTONIC.
    pub reaped_at: u64,
    /// Slots in use, one bit each.
    pub live: [u64; SLOT_SET_WORDS],
    /// Shares made so far, which is also the newest one's number. Every search for dead processes reads it. So it is
    /// stored here and not next to `shares`: the first touch of a page far behind costs a millisecond.
    pub shares_made: u64,
    /// Entries of `shares` from this index on were never in use.
    pub shares_top: u32,
    /// 1 once a fault was injected; calls look for faults only then.
    pub had_fault: u32,
    /// Xids reported so far; the next goes to this modulo [`XIDS_KEPT`].
    pub xid_count: u64,
    /// The last Xids, a ring.
    pub xids: [XidEvent; XIDS_KEPT],
    /// Shares in use, one bit each.
    pub shared: [u64; MAX_SHARES / 64],
    /// Processes that joined so far; numbers are never reused.
    pub processes: u64,
    /// Finished entries written so far; the next goes to this modulo [`FINISHED_KEPT`].
    pub finished_count: u64,
    /// The devices; `device_count` says how many entries are in use.
    pub devices: [DeviceBody; MAX_SIMULATED_DEVICES],
    /// The processes; `live` says which entries are in use.
    pub slots: [ProcessSlot; MAX_PROCESSES],
    /// The numbers of finished processes, a ring.
    pub finished: [FinishedProcess; FINISHED_KEPT],
    /// The shares; `shared` says which entries are in use.
    pub shares: [SharedMemory; MAX_SHARES],
}

/// One device of the machine: profile, identity, engines and totals.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceBody {
    /// Sizes, names and costs of the device.
    pub profile: DeviceProfile,
    /// The 16 bytes of the UUID.
    pub uuid: [u8; 16],
    /// PCI domain of the device.
    pub pci_domain: u32,
    /// PCI bus of the device.
    pub pci_bus: u32,
    /// PCI device number.
    pub pci_device: u32,
    /// NVML minor number: the number of the device file.
    pub minor: u32,
    /// The device's engines: one for kernels, one copy engine per direction.
    pub lanes: [EngineLane; LANE_COUNT],
    /// Time spent switching between processes, ns.
    pub switch_ns: u64,
    /// Number of switches between processes.
    pub switches: u64,
    /// Code with which the driver answers calls about this lost device; 0: it is not lost.
    pub lost_code: u32,
    /// Unused.
    pub pad: u32,
    /// Counters of all finished processes, added up.
    pub done: DeviceUse,
}

/// A fault that the driver reported.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct XidEvent {
    /// When it was reported, ns of CLOCK_MONOTONIC.
    pub at: u64,
    /// Index of the device on the machine.
    pub device: u32,
    /// The driver's number of the fault.
    pub xid: u32,
}

/// One engine of a device, as `sched` runs it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct EngineLane {
    /// Everything before this time is final, ns of CLOCK_MONOTONIC. May be ahead of now by one switch.
    pub clock: u64,
    /// End of the running slice, ns.
    pub slice_end: u64,
    /// Slot of the running process, or [`NO_SLOT`].
    pub current: u32,
    /// Slot of the process that ran last, or [`NO_SLOT`].
    pub last: u32,
    /// Slots with unfinished work, one bit each.
    pub ready: [u64; SLOT_SET_WORDS],
}

/// Memory and work of a process on one device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Number of contexts.
    pub contexts: u64,
    /// Number of live allocations.
    pub allocations: u64,
    /// Sum of the sizes the program asked for in live allocations, bytes.
    pub requested: u64,
    /// Sum of the sizes of live allocations, each rounded to the allocator's alignment, bytes.
    pub live: u64,
    /// Physical bytes of slabs that small requests share.
    pub slabs: u64,
    /// Physical bytes of allocations with slabs of their own.
    pub large: u64,
    /// Physical bytes of contexts and modules.
    pub overhead: u64,
    /// Most physical bytes in use so far.
    pub peak: u64,
    /// Work enqueued, ns of device time. [`StateBody::used_with_shares`] fills in this and the times below.
    pub submitted: u64,
    /// Time the device worked, ns: kernels, fills, copies inside the device, and kernels that wait on memory.
    pub busy: u64,
    /// Time the copy engines worked, ns, both directions added.
    pub copying: u64,
    /// Number of kernels launched.
    pub kernels: u64,
    /// Number of copies and fills enqueued.
    pub copies: u64,
}

impl DeviceUse {
    /// Physical device memory in use, bytes.
    pub fn physical_bytes(&self) -> u64 {
        self.slabs + self.large + self.overhead
    }

    /// Work not yet done, ns.
    pub fn use_backlog(&self) -> u64 {
        self.submitted - self.busy
    }
}

/// A stretch of service: `count` slices of `len` ns of work, one every `period` ns; each slice lasts `span` ns.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ServiceSegment {
    /// Start of the first slice, ns of CLOCK_MONOTONIC.
    pub at: u64,
    /// Work served before this stretch, ns.
    pub served: u64,
    /// Work in one slice, ns.
    pub len: u64,
    /// Duration of one slice, ns; more than `len` only where history was merged.
    pub span: u64,
    /// Time from the start of one slice to the start of the next, ns.
    pub period: u64,
    /// Number of slices in this stretch.
    pub count: u64,
}

/// State of one process on one device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SlotDevice {
    /// Memory and work counters, the base of the ground truth.
    pub used: DeviceUse,
    /// Number of the newest utilisation window in `windows`.
    pub window: u64,
    /// Busy ns per window, indexed modulo [`WINDOWS_KEPT`].
    pub windows: [u32; WINDOWS_KEPT],
    /// Busy time per bucket. Kept after the process ends, until another process in this slot is served.
    pub buckets: BusyBuckets,
    /// Kernels on the device that wait for a word of memory.
    pub waiting: u64,
    /// Time in which only such kernels kept the device for the process, ns.
    pub waited: u64,
    /// The process's work queues, one per engine.
    pub lanes: [WorkLine; LANE_COUNT],
}

/// Busy time of a process in periods of [`BUCKET_NS`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BusyBuckets {
    /// Serial number of the process that was served.
    pub serial: u64,
    /// Number of the first period kept in `busy`.
    pub first: u64,
    /// Number of the last period kept in `busy`.
    pub last: u64,
    /// Busy ns of each period, indexed modulo [`BUCKETS_KEPT`].
    pub busy: [u32; BUCKETS_KEPT],
}

/// A process's work queue on one engine. Its positions are counted in ns of work.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WorkLine {
    /// Work enqueued on this queue so far, ns.
    pub submitted: u64,
    /// Work of this queue done so far, ns.
    pub busy: u64,
    /// Number of segments (stretches of service) written to `ring` so far.
    pub wrote: u64,
    /// Number of segments that the owner of the queue (its process) has read. It dates its events from them.
    pub read: u64,
    /// Number of gates (dependencies on other engines) written to `gates` so far.
    pub gates_wrote: u64,
    /// Number of gates passed so far.
    pub gates_read: u64,
    /// Ring of segments, which record when the engine served this queue.
    pub ring: [ServiceSegment; SEGMENTS_KEPT],
    /// Ring of gates, ordered by `at`.
    pub gates: [LineGate; GATES_KEPT],
}

impl WorkLine {
    /// Work not yet done, ns.
    pub fn line_backlog(&self) -> u64 {
        self.submitted - self.busy
    }
}

/// A dependency between engines: the queue passes position `at` only after another queue of the same process
/// passed `mark`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LineGate {
    /// Position on this queue: the work before it, ns.
    pub at: u64,
    /// Position on the other queue, ns of work.
    pub mark: u64,
    /// When the other queue passed `mark`, ns of CLOCK_MONOTONIC; 0: not yet.
    pub open: u64,
    /// The engine whose queue must pass `mark`.
    pub lane: u64,
}

/// Entry of one process in the table of processes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessSlot {
    /// 1 while a process uses this entry, 0 if it is free.
    pub state: u32,
    /// Counts the holders of this slot; the lock word uses it to tell successive holders apart.
    pub generation: u32,
    /// Process id in the process's own pid namespace.
    pub pid: u32,
    /// User id as the process sees it.
    pub uid: u32,
    /// Number of the process on this machine, never used twice.
    pub serial: u64,
    /// When the process joined, ns of CLOCK_MONOTONIC.
    pub since: u64,
    /// Path of the process's executable.
    pub name: [u8; 128],
    /// Devices that the process has used, one bit each.
    pub touched: u32,
    /// Checkpoint state of the process: [`STATE_RUNNING`], [`STATE_LOCKED`] or [`STATE_CHECKPOINTED`].
    pub checkpoint: u32,
    /// Code with which the driver answers every call of the process; 0: it has no fault.
    pub fault: u32,
    /// The process's pid namespace: the inode of its file; 0: not known.
    pub pid_namespace: u32,
    /// State of the process on each device.
    pub devices: [SlotDevice; MAX_SIMULATED_DEVICES],
}

/// Memory that several processes may hold. One physical copy exists, and it is in no process's own record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SharedMemory {
    /// Number of the share, never used twice.
    pub id: u64,
    /// Kind (`share::Kind` as a number).
    pub kind: u32,
    /// The device, or [`NO_SLOT`] for host memory.
    pub device: u32,
    /// Slot of the process that made the share.
    pub creator: u32,
    /// 1: a slab that small requests share.
    pub small: u32,
    /// 1: a program received a file descriptor for it.
    pub descriptors: u32,
    /// Unused.
    pub pad: u32,
    /// Number of the process that made the share.
    pub creator_serial: u64,
    /// Physical bytes on the device.
    pub bytes: u64,
    /// Bytes of the share's content.
    pub size: u64,
    /// Device and inode number of the file with the content.
    pub node: [u64; 2],
    /// Data of the driver, opaque to the model.
    pub words: [u64; 4],
    /// Slots of the processes that hold the share, one bit each.
    pub holders: [u64; SLOT_SET_WORDS],
}

/// A finished process on a device it touched.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FinishedProcess {
    /// Number of the finished process on this machine.
    pub serial: u64,
    /// Process id of the finished process in its own pid namespace.
    pub pid: u32,
    /// The device that this entry is about.
    pub device: u32,
    /// Slot that the process used.
    pub slot: u32,
    /// Unused.
    pub pad: u32,
    /// When another process noticed the death of this one, or when it left.
    pub at: u64,
    /// Path of the process's executable.
    pub name: [u8; 128],
    /// Counters of the process on the device at that time.
    pub used: DeviceUse,
}

/// Redo log of one step of a device's clock, written before the step. Applying it twice has the same effect as
/// once.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ClockJournal {
    /// 1 while the step may be half applied.
    pub open: u32,
    /// The device whose clock the step advances.
    pub device: u32,
    /// The slot that is served, or [`NO_SLOT`].
    pub slot: u32,
    /// The engine whose clock the step advances.
    pub lane: u32,
    /// Value of [`EngineLane::current`] after the step.
    pub current: u32,
    /// Value of [`EngineLane::last`] after the step.
    pub last: u32,
    /// Value of [`EngineLane::clock`] after the step.
    pub clock: u64,
    /// Value of [`EngineLane::slice_end`] after the step.
    pub slice_end: u64,
    /// Value of [`DeviceBody::switch_ns`] after the step.
    pub switch_ns: u64,
    /// Value of [`DeviceBody::switches`] after the step.
    pub switches: u64,
    /// Value of [`WorkLine::busy`] of the served slot after the step.
    pub busy: u64,
    /// Value of [`SlotDevice::waited`] of the served slot after the step.
    pub waited: u64,
    /// Value of [`WorkLine::gates_read`] of the served queue after the step.
    pub gates_read: u64,
    /// Value of [`WorkLine::wrote`] of the served queue after the step.
    pub wrote: u64,
    /// Entry of the queue's ring at `wrote - 1` after the step.
    pub newest: ServiceSegment,
    /// Entry of the queue's ring at `wrote - 2` after the step.
    pub before: ServiceSegment,
}

/// Redo log of the removal of a dead process from one device, written before the removal.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProcessBurial {
    /// 1 while the removal may be half applied.
    pub open: u32,
    /// Slot of the process that is removed.
    pub slot: u32,
    /// The device from which the process is removed.
    pub device: u32,
    /// Unused.
    pub pad: u32,
    /// Value of [`StateBody::finished_count`] after the removal.
    pub count: u64,
    /// Value of [`DeviceBody::done`] after the removal.
    pub done: DeviceUse,
}

/// Index of entry `i` in a ring of `len` entries.
pub fn ring_index(i: u64, len: usize) -> usize {
    usize::try_from(i % len as u64).unwrap_or(0)
}

/// Iterates over the set bits.
pub fn set_bits(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
    set.iter().enumerate().flat_map(|(i, word)| {
        let mut w = *word;
        std::iter::from_fn(move || {
            if w == 0 {
                return None;
            }
            let b = w.trailing_zeros() as usize;
            w &= w - 1;
            Some(i * 64 + b)
        })
    })
}

/// Sets or clears bit `i`.
pub fn set_bit(set: &mut [u64], i: usize, on: bool) {
    if on {
        set[i / 64] |= 1 << (i % 64);
    } else {
        set[i / 64] &= !(1 << (i % 64));
    }
}

/// The first set bit after `i`, wrapping around; `i` itself is tried last.
pub fn next_bit(set: &[u64; SLOT_SET_WORDS], i: usize) -> Option<usize> {
    let start = (i + 1) % MAX_PROCESSES;
    for k in 0..=SLOT_SET_WORDS {
        let w = (start / 64 + k) % SLOT_SET_WORDS;
        let mut word = set[w];
        if k == 0 {
            word &= !0 << (start % 64);
        } else if k == SLOT_SET_WORDS {
            word &= !(!0 << (start % 64));
        }
        if word != 0 {
            return Some(w * 64 + word.trailing_zeros() as usize);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_bit_goes_round() {
        let mut set = [0u64; SLOT_SET_WORDS];
        assert_eq!(next_bit(&set, 5), None);
        set_bit(&mut set, 5, true);
        assert_eq!(next_bit(&set, 5), Some(5));
        set_bit(&mut set, 70, true);
        assert_eq!(next_bit(&set, 5), Some(70));
        assert_eq!(next_bit(&set, 70), Some(5));
        set_bit(&mut set, MAX_PROCESSES - 1, true);
        assert_eq!(next_bit(&set, 70), Some(MAX_PROCESSES - 1));
        assert_eq!(next_bit(&set, MAX_PROCESSES - 1), Some(5));
        assert_eq!(set_bits(&set).collect::<Vec<_>>(), [5, 70, MAX_PROCESSES - 1]);
    }
}
