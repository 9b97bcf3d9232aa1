//! Checkpoint and restore: a process is locked, its memory leaves the device, returns, and the process continues.
//!
//! One word per process is its checkpoint state. While it is [`STATE_CHECKPOINTED`], the process's own record counts
//! nothing. So one store moves all of its memory, and a caller killed meanwhile leaves it either all moved or not
//! at all. Content needs no moving, because it is not stored on a device. A process that holds a share cannot be
//! checkpointed. A process stays locked when the process that locked it dies. A pid is the one a process sees of
//! itself: two processes with the same pid in different pid namespaces are treated as one.
//! Not here: error codes (sim/cuda), the memory figures (`memory`).

use crate::layout::{DeviceUse, ProcessSlot, STATE_CHECKPOINTED, STATE_LOCKED, STATE_RUNNING, StateBody, set_bits};
use crate::machine::{MachineView, now};
use crate::memory::NotEnoughMemory;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Interval at which a waiting call checks again.
const STATE_POLL: Duration = Duration::from_micros(500);

/// Reasons why a step of a checkpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointRefusal {
    /// There is no such process on this machine.
    Unknown,
    /// The process is not in the state from which this step starts.
    WrongState,
    /// The work of the process did not end within the limit.
    NotInTime,
    /// The process holds shares (memory that several processes may hold), which cannot be checkpointed.
    Shared,
    /// The memory does not fit on the device; the process stays checkpointed.
    Full(NotEnoughMemory),
}

impl StateBody {
    /// The own record of the process in `slot` on device `d`. Its memory is zero while the process is checkpointed.
    pub(crate) fn own_use(&self, slot: usize, d: usize) -> DeviceUse {
        let used = self.slots[slot].devices[d].used;
        if self.slots[slot].checkpoint != STATE_CHECKPOINTED {
            return used;
        }
        DeviceUse { contexts: 0, allocations: 0, requested: 0, live: 0, slabs: 0, large: 0, overhead: 0, ..used }
    }

    fn state_of(&self, all: &[usize]) -> Result<u32, CheckpointRefusal> {
        all.iter().map(|s| self.slots[*s].checkpoint).max().ok_or(CheckpointRefusal::Unknown)
    }

    fn change_state(&mut self, all: &[usize], from: u32, to: u32) -> Result<(), CheckpointRefusal> {
        if self.state_of(all)? != from {
            return Err(CheckpointRefusal::WrongState);
        }
        for s in all {
            state_word(&self.slots[*s]).store(to, Ordering::Release);
        }
        Ok(())
    }
}

/// The checkpoint state of a slot. Its process reads it without the machine's lock.
fn state_word(slot: &ProcessSlot) -> &AtomicU32 {
    // SAFETY: a live, aligned u32 that everybody treats as an atomic while other processes run.
    unsafe { AtomicU32::from_ptr((&raw const slot.checkpoint).cast_mut()) }
}

impl MachineView {
    /// The slots of a process, which has this number in the caller's pid namespace: the one of its CUDA driver, and
    /// that of NVML if it has its own.
    fn slots_of(&self, b: &StateBody, pid: u32) -> Vec<usize> {
        set_bits(&b.live).filter(|s| self.number_of(b, *s) == Some(pid)).collect()
    }

    /// The checkpoint state of the process `pid`.
    ///
    /// # Errors
    /// [`CheckpointRefusal::Unknown`].
    pub fn checkpoint_state(&self, pid: u32) -> Result<u32, CheckpointRefusal> {
        let b = self.lock_settled();
        b.state_of(&self.slots_of(&b, pid))
    }

    /// Makes further calls of the process `pid` wait, and waits until its work on all devices has ended. If that
    /// takes longer than `limit`, the process is unlocked again.
    ///
    /// # Errors
    /// All but [`CheckpointRefusal::Full`] and [`CheckpointRefusal::Shared`].
    pub fn checkpoint_lock(&self, pid: u32, limit: Option<Duration>) -> Result<(), CheckpointRefusal> {
        let mut b = self.lock_settled();
        let all = self.slots_of(&b, pid);
        b.change_state(&all, STATE_RUNNING, STATE_LOCKED)?;
        drop(b);
        let end = limit.map(|l| now() + u64::try_from(l.as_nanos()).unwrap_or(u64::MAX / 2));
        loop {
            let b = self.lock_settled();
            let all = self.slots_of(&b, pid);
            b.state_of(&all)?;
            if all.iter().all(|s| b.slots[*s].devices.iter().all(|d| d.lanes.iter().all(|l| l.line_backlog() == 0))) {
                return Ok(());
            }
            drop(b);
            if end.is_some_and(|end| now() >= end) {
                self.lock().change_state(&all, STATE_LOCKED, STATE_RUNNING)?;
                return Err(CheckpointRefusal::NotInTime);
            }
            std::thread::sleep(STATE_POLL);
        }
    }

    /// Takes the memory of the locked process `pid` off the devices.
    ///
    /// # Errors
    /// [`CheckpointRefusal::Unknown`], [`CheckpointRefusal::WrongState`], [`CheckpointRefusal::Shared`].
    pub fn checkpoint_process(&self, pid: u32) -> Result<(), CheckpointRefusal> {
        let mut b = self.lock_settled();
        let all = self.slots_of(&b, pid);
        if b.state_of(&all)? == STATE_LOCKED && all.iter().any(|s| b.holds_shares(*s)) {
            return Err(CheckpointRefusal::Shared);
        }
        b.change_state(&all, STATE_LOCKED, STATE_CHECKPOINTED)
    }

    /// Puts the memory of the process `pid` back on the devices, all of it or none. The process is locked then.
    ///
    /// # Errors
    /// [`CheckpointRefusal::Unknown`], [`CheckpointRefusal::WrongState`], [`CheckpointRefusal::Full`].
    pub fn checkpoint_restore(&self, pid: u32) -> Result<(), CheckpointRefusal> {
        let mut b = self.lock_settled();
        let all = self.slots_of(&b, pid);
        if b.state_of(&all)? == STATE_CHECKPOINTED {
            for d in 0..b.device_count as usize {
                let needed = all.iter().map(|s| b.slots[*s].devices[d].used.physical_bytes()).sum();
                let free = b.devices[d].profile.capacity_bytes().saturating_sub(b.taken_bytes(d));
                if needed > free {
                    return Err(CheckpointRefusal::Full(NotEnoughMemory { needed, free }));
                }
            }
        }
        b.change_state(&all, STATE_CHECKPOINTED, STATE_LOCKED)
    }

    /// Unlocks the locked process `pid`; its calls continue.
    ///
    /// # Errors
    /// [`CheckpointRefusal::Unknown`], [`CheckpointRefusal::WrongState`].
    pub fn checkpoint_unlock(&self, pid: u32) -> Result<(), CheckpointRefusal> {
        let mut b = self.lock_settled();
        let all = self.slots_of(&b, pid);
        b.change_state(&all, STATE_LOCKED, STATE_RUNNING)
    }

    /// Waits while this process is locked. Costs one atomic load when it is not.
    #[inline]
    pub fn wait_while_locked(&self) {
        if self.checkpoint_word().load(Ordering::Acquire) != STATE_RUNNING {
            self.wait_for_unlock();
        }
    }

    #[cold]
    fn wait_for_unlock(&self) {
        while self.checkpoint_word().load(Ordering::Acquire) != STATE_RUNNING {
            std::thread::sleep(STATE_POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_into_a_dead_ones_slot_runs() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let first = MachineView::open_at(dir.path(), Some("t4")).unwrap();
        first.checkpoint_lock(pid, None).unwrap();
        assert_eq!(first.checkpoint_state(pid), Ok(STATE_LOCKED));
        let slot = first.own_slot();
        drop(first);
        let second = MachineView::open_at(dir.path(), None).unwrap();
        assert_eq!((second.own_slot(), second.checkpoint_state(pid)), (slot, Ok(STATE_RUNNING)));
        second.wait_while_locked();
    }
}
