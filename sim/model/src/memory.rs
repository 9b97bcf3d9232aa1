//! Counts device memory. A process changes its own record; free memory is summed over all records when it is
//! needed.
//!
//! Not here: addresses and slabs (`slab`), content (the driver).

use crate::layout::DeviceUse;
use crate::machine::{MachineView, now};

/// A change of this process's record on one device. Additional physical bytes must fit on the device.
#[derive(Clone, Copy, Default, Debug)]
pub struct RecordChange {
    /// Number of contexts added.
    pub contexts: i64,
    /// Number of allocations added.
    pub allocations: i64,
    /// Bytes that the program requested, added.
    pub requested: i64,
    /// Bytes of allocations, rounded to the allocator's alignment, added.
    pub live: i64,
    /// Physical bytes of slabs that small requests share, added.
    pub slabs: i64,
    /// Physical bytes of allocations with slabs of their own, added.
    pub large: i64,
    /// Physical bytes of contexts and modules, added.
    pub overhead: i64,
}

impl RecordChange {
    /// The reverse of this change.
    pub fn reversed(self) -> RecordChange {
        RecordChange {
            contexts: -self.contexts,
            allocations: -self.allocations,
            requested: -self.requested,
            live: -self.live,
            slabs: -self.slabs,
            large: -self.large,
            overhead: -self.overhead,
        }
    }

    fn physical_change(&self) -> i64 {
        self.slabs + self.large + self.overhead
    }
}

/// The device has not enough free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotEnoughMemory {
    /// Bytes that the change needs.
    pub needed: u64,
    /// Bytes free on the device.
    pub free: u64,
}

impl MachineView {
    /// Applies `change` on `device`, all of it or nothing, if its physical bytes fit next to those of all processes.
    ///
    /// Before it refuses, it removes dead processes and sums again.
    ///
    /// # Errors
    /// [`NotEnoughMemory`], with both figures.
    pub fn adjust_device(&self, device: usize, change: &RecordChange) -> Result<(), NotEnoughMemory> {
        let mut b = self.lock();
        let needed = u64::try_from(change.physical_change()).unwrap_or(0);
        if needed > 0 {
            let capacity = b.devices[device].profile.capacity_bytes();
            let free = |b: &crate::layout::StateBody| capacity.saturating_sub(b.taken_bytes(device));
            if free(&b) < needed {
                self.reap_dead(&mut b, now());
                let free = free(&b);
                if free < needed {
                    return Err(NotEnoughMemory { needed, free });
                }
            }
        }
        let slot = &mut b.slots[self.own_slot()];
        slot.touched |= 1 << device;
        let u: &mut DeviceUse = &mut slot.devices[device].used;
        let add = |field: &mut u64, by: i64| *field = field.saturating_add_signed(by);
        add(&mut u.contexts, change.contexts);
        add(&mut u.allocations, change.allocations);
        add(&mut u.requested, change.requested);
        add(&mut u.live, change.live);
        add(&mut u.slabs, change.slabs);
        add(&mut u.large, change.large);
        add(&mut u.overhead, change.overhead);
        let now_used = b.used_with_shares(self.own_slot(), device).physical_bytes();
        let u = &mut b.slots[self.own_slot()].devices[device].used;
        u.peak = u.peak.max(now_used);
        Ok(())
    }

    /// Memory and work of this process on `device`, including the shares it owns.
    pub fn own_use(&self, device: usize) -> DeviceUse {
        self.lock().used_with_shares(self.own_slot(), device)
    }
}

/// `bytes` as a signed change; sizes are far below 2^63.
pub fn signed_bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
