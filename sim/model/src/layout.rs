//! The shared state: one file, mapped by every process that uses the machine.
//!
//! Nothing here is a total over processes: totals are sums over the slots of the living, made when somebody asks, so a
//! process killed between two stores leaves nothing to correct but its own slot. The two exceptions (the device's clock
//! and another process's served time) are stepped through [`Journal`], and burials through [`Burial`]: a step that was
//! left half made can be repeated.
//! Not here: who may touch it (`lock`), where the file is (`machine`).

use crate::profile::Profile;
use std::sync::atomic::AtomicU32;

/// Devices of one machine at most.
pub const DEVICES: usize = 16;
/// Processes at once at most.
pub const SLOTS: usize = 1024;
/// Service intervals kept until their owner reads them.
pub const SEGMENTS: usize = 128;
/// Engines of a device that work beside each other, each on a line of its own.
pub const LANES: usize = 3;
/// The line of kernels, fills and copies inside the device.
pub const COMPUTE: usize = 0;
/// The copy engine from the host.
pub const TO_DEVICE: usize = 1;
/// The copy engine to the host.
pub const TO_HOST: usize = 2;
/// Places on a line that wait for another line, kept until they were passed.
pub const GATES: usize = 256;
/// One bucket of the ground truth, ns.
pub const BUCKET_NS: u64 = 10_000_000;
/// Buckets kept: more than 80 s.
pub const BUCKETS: usize = 8192;
/// Utilisation windows kept.
pub const WINDOWS: usize = 64;
/// One utilisation window, ns: a sixth of a second, as NVML's sampling.
pub const WINDOW_NS: u64 = 1_000_000_000 / 6;
/// Finished processes kept one by one; older ones only in the totals.
pub const FINISHED: usize = 4096;
/// First bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"vgpu-sim");
/// Changes with every change of the layout.
pub const VERSION: u32 = 5;
/// Allocations that several processes hold at once at most.
pub const SHARES: usize = 4096;
/// No slot.
pub const NOBODY: u32 = u32::MAX;
/// Words of a bit set over the slots.
pub const WORDS: usize = SLOTS / 64;

/// The whole file. Everything behind `lock` is read and written only by its holder.
#[repr(C)]
pub struct Shared {
    /// [`MAGIC`]
    pub magic: u64,
    /// [`VERSION`]
    pub version: u32,
    /// `size_of::<Shared>()`, a second guard against another layout.
    pub size: u64,
    /// The futex word of the machine's lock.
    pub lock: AtomicU32,
    /// Unused.
    pub pad: [u8; 100],
    /// Everything else.
    pub body: Body,
}

/// What the lock protects.
#[repr(C)]
pub struct Body {
    /// Random, new with every reset.
    pub boot: u64,
    /// Wall clock at creation, ns.
    pub created_ns: u64,
    /// Devices present.
    pub device_count: u32,
    /// Unused.
    pub pad: u32,
    /// The step of the device clock that is being made.
    pub journal: Journal,
    /// The burial that is being made.
    pub burial: Burial,
    /// When the dead were last looked for.
    pub reaped_at: u64,
    /// Slots in use, one bit each.
    pub live: [u64; WORDS],
    /// Shares made so far; the last one's number. Here, and not beside the shares: every look for the dead reads it, and
    /// the first touch of a page far behind costs a millisecond.
    pub shares_made: u64,
    /// Entries from here on were never in use.
    pub shares_top: u32,
    /// Unused.
    pub pad_shares: u32,
    /// Shares in use, one bit each.
    pub shared: [u64; SHARES / 64],
    /// Numbers given to processes so far.
    pub processes: u64,
    /// Finished entries written so far; the next goes to this modulo [`FINISHED`].
    pub finished_count: u64,
    /// The devices.
    pub devices: [Device; DEVICES],
    /// The processes.
    pub slots: [Slot; SLOTS],
    /// What finished processes had done.
    pub finished: [Finished; FINISHED],
    /// The shares.
    pub shares: [Share; SHARES],
}

/// One device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    /// What it is.
    pub profile: Profile,
    /// Its identity.
    pub uuid: [u8; 16],
    /// PCI domain.
    pub pci_domain: u32,
    /// PCI bus.
    pub pci_bus: u32,
    /// PCI device number.
    pub pci_device: u32,
    /// NVML minor number.
    pub minor: u32,
    /// Its engines.
    pub lanes: [Lane; LANES],
    /// Time spent switching, ns.
    pub switch_ns: u64,
    /// Switches made.
    pub switches: u64,
    /// Sum over finished processes.
    pub done: Use,
}

/// One engine of a device, as `sched` runs it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lane {
    /// The state of the engine up to here is final, ns of CLOCK_MONOTONIC. May run ahead of now by one switch.
    pub clock: u64,
    /// End of the running slice.
    pub slice_end: u64,
    /// Slot that runs, or [`NOBODY`].
    pub current: u32,
    /// Slot that ran last, or [`NOBODY`].
    pub last: u32,
    /// Slots with unfinished work, one bit each.
    pub ready: [u64; WORDS],
}

/// What a process has, or had, on one device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Use {
    /// Contexts.
    pub contexts: u64,
    /// Live allocations.
    pub allocations: u64,
    /// Sum of the sizes the program asked for, live.
    pub requested: u64,
    /// The same, each rounded to the allocator's alignment.
    pub live: u64,
    /// Physical bytes of shared slabs.
    pub slabs: u64,
    /// Physical bytes of allocations that have slabs of their own.
    pub large: u64,
    /// Physical bytes of contexts and modules.
    pub overhead: u64,
    /// Highest physical bytes so far.
    pub peak: u64,
    /// Work enqueued, ns of device time. This and the times below are filled in by [`Body::used`].
    pub submitted: u64,
    /// Time the device worked, ns: kernels, fills, copies inside the device, kernels that wait.
    pub busy: u64,
    /// Time the copy engines worked, ns, both directions together.
    pub copying: u64,
    /// Kernels launched.
    pub kernels: u64,
    /// Copies and fills.
    pub copies: u64,
}

impl Use {
    /// Device memory taken.
    pub fn physical(&self) -> u64 {
        self.slabs + self.large + self.overhead
    }

    /// Work not yet done, ns.
    pub fn backlog(&self) -> u64 {
        self.submitted - self.busy
    }
}

/// A stretch of service: `count` slices of `len` ns of work, one every `period`; each takes `span` of time.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start of the first slice.
    pub at: u64,
    /// Work served before it.
    pub served: u64,
    /// Work in a slice.
    pub len: u64,
    /// Time of a slice; more than `len` only where history was merged.
    pub span: u64,
    /// Start to start.
    pub period: u64,
    /// Slices.
    pub count: u64,
}

/// A process on a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SlotDevice {
    /// Numbers of the truth.
    pub used: Use,
    /// Utilisation window that `windows` is at.
    pub window: u64,
    /// Busy ns by window, modulo [`WINDOWS`].
    pub windows: [u32; WINDOWS],
    /// Buckets of the truth; they outlive the process, until another is served here.
    pub buckets: Buckets,
    /// Kernels that are on the device and wait for a word of memory.
    pub waiting: u64,
    /// Time in which such kernels alone kept the device for the process, ns.
    pub waited: u64,
    /// Its lines.
    pub lanes: [Line; LANES],
}

/// Busy time of a process in periods of [`BUCKET_NS`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buckets {
    /// Number of the process.
    pub serial: u64,
    /// The first period that is kept.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Busy ns of each, modulo [`BUCKETS`].
    pub busy: [u32; BUCKETS],
}

/// A process's line of work on one engine.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Line {
    /// Work enqueued, ns.
    pub submitted: u64,
    /// Work done, ns.
    pub busy: u64,
    /// Segments written so far.
    pub wrote: u64,
    /// Segments the owner has taken.
    pub read: u64,
    /// Gates written so far.
    pub gates_wrote: u64,
    /// Gates passed so far.
    pub gates_read: u64,
    /// Ring of segments.
    pub ring: [Segment; SEGMENTS],
    /// Ring of gates, in the order of their places.
    pub gates: [Gate; GATES],
}

impl Line {
    /// Work not yet done, ns.
    pub fn backlog(&self) -> u64 {
        self.submitted - self.busy
    }
}

/// A place on a line that is passed only after a place on another line of the same process.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The place: work on this line before it.
    pub at: u64,
    /// The other line's place.
    pub mark: u64,
    /// When that was passed; 0: not yet.
    pub open: u64,
    /// The other line.
    pub lane: u64,
}

/// A process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slot {
    /// 0 free, 1 in use.
    pub state: u32,
    /// Tells successive holders of a slot apart, together with the lock.
    pub generation: u32,
    /// Process id as the process sees it.
    pub pid: u32,
    /// User id as the process sees it.
    pub uid: u32,
    /// Number of the process on this machine, never used twice.
    pub serial: u64,
    /// When it came, ns of CLOCK_MONOTONIC.
    pub since: u64,
    /// Its executable.
    pub name: [u8; 128],
    /// Bit per device it has touched.
    pub touched: u32,
    /// How far it is on the way to a checkpoint (`checkpoint`).
    pub checkpoint: u32,
    /// Per device.
    pub devices: [SlotDevice; DEVICES],
}

/// Memory that several processes may hold; it is there once, and belongs to no process's record.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Share {
    /// Its number, never used twice.
    pub id: u64,
    /// What it is (`share::Kind`).
    pub kind: u32,
    /// The device, or [`NOBODY`] for host memory.
    pub device: u32,
    /// Slot of the process that made it.
    pub creator: u32,
    /// 1: a slab that small requests share.
    pub small: u32,
    /// 1: a program got a descriptor for it.
    pub descriptors: u32,
    /// Unused.
    pub pad: u32,
    /// Number of the process that made it.
    pub creator_serial: u64,
    /// Physical bytes on the device.
    pub bytes: u64,
    /// Bytes of content.
    pub size: u64,
    /// Device and inode of the content's file.
    pub node: [u64; 2],
    /// For the driver.
    pub words: [u64; 4],
    /// Slots that hold it, one bit each.
    pub holders: [u64; WORDS],
}

/// A finished process on a device it touched.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Finished {
    /// Number of the process.
    pub serial: u64,
    /// Its pid.
    pub pid: u32,
    /// The device.
    pub device: u32,
    /// The slot it had.
    pub slot: u32,
    /// Unused.
    pub pad: u32,
    /// When it was seen to be gone.
    pub at: u64,
    /// Its executable.
    pub name: [u8; 128],
    /// Its numbers at that moment.
    pub used: Use,
}

/// One step of a device's clock, written down before it is made: applying it twice is applying it once.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Journal {
    /// 1 while the step may be half made.
    pub open: u32,
    /// The device.
    pub device: u32,
    /// The slot served, or [`NOBODY`].
    pub slot: u32,
    /// The engine.
    pub lane: u32,
    /// New `current`.
    pub current: u32,
    /// New `last`.
    pub last: u32,
    /// New clock.
    pub clock: u64,
    /// New end of the slice.
    pub slice_end: u64,
    /// New switching time.
    pub switch_ns: u64,
    /// New number of switches.
    pub switches: u64,
    /// New busy time of the slot.
    pub busy: u64,
    /// New time that kernels waited.
    pub waited: u64,
    /// New number of gates passed.
    pub gates_read: u64,
    /// New write index of its ring.
    pub wrote: u64,
    /// New entry at `wrote - 1`.
    pub newest: Segment,
    /// New entry at `wrote - 2`.
    pub before: Segment,
}

/// One device's part of a burial, written down before it is made.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Burial {
    /// 1 while it may be half made.
    pub open: u32,
    /// The dead one's slot.
    pub slot: u32,
    /// The device.
    pub device: u32,
    /// Unused.
    pub pad: u32,
    /// New number of finished entries.
    pub count: u64,
    /// New sum over finished processes.
    pub done: Use,
}

/// Index of entry `i` of a ring of `len`.
pub fn ring_index(i: u64, len: usize) -> usize {
    usize::try_from(i % len as u64).unwrap_or(0)
}

/// Iterates over the set bits.
pub fn bits(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
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

/// The first set bit after `i`, wrapping; `i` itself comes last.
pub fn next_bit(set: &[u64; WORDS], i: usize) -> Option<usize> {
    let start = (i + 1) % SLOTS;
    for k in 0..=WORDS {
        let w = (start / 64 + k) % WORDS;
        let mut word = set[w];
        if k == 0 {
            word &= !0 << (start % 64);
        } else if k == WORDS {
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
        let mut set = [0u64; WORDS];
        assert_eq!(next_bit(&set, 5), None);
        set_bit(&mut set, 5, true);
        assert_eq!(next_bit(&set, 5), Some(5));
        set_bit(&mut set, 70, true);
        assert_eq!(next_bit(&set, 5), Some(70));
        assert_eq!(next_bit(&set, 70), Some(5));
        set_bit(&mut set, SLOTS - 1, true);
        assert_eq!(next_bit(&set, 70), Some(SLOTS - 1));
        assert_eq!(next_bit(&set, SLOTS - 1), Some(5));
        assert_eq!(bits(&set).collect::<Vec<_>>(), [5, 70, SLOTS - 1]);
    }
}
