//! Checkpoint and restore: a process is locked, its memory leaves the device, returns, and the process continues.
//!
//! One word per process is its checkpoint state. While it is [`CHECKPOINTED`], the process's own record counts
//! nothing. So one store moves all of its memory, and a caller killed meanwhile leaves it either all moved or not
//! at all. Content needs no moving, because it is not stored on a device. A process that holds a share cannot be
//! checkpointed. A process stays locked when the process that locked it dies. A pid is the one a process sees of
//! itself: two processes with the same pid in different pid namespaces are treated as one.
//! Not here: error codes (sim/cuda), the memory figures (`memory`).

use crate::layout::{Body, Slot, Use, bits};
use crate::machine::{Machine, now};
use crate::memory::Full;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Checkpoint state of a process: its CUDA calls are answered.
pub const RUNNING: u32 = 0;
/// Checkpoint state of a process: its CUDA calls wait.
pub const LOCKED: u32 = 1;
/// Checkpoint state of a process: its CUDA calls wait, and its memory is not on the device.
pub const CHECKPOINTED: u32 = 2;

/// Interval at which a waiting call checks again.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Reasons why a step of a checkpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such process on this machine.
    Unknown,
    /// The process is not in the state from which this step starts.
    WrongState,
    /// The work of the process did not end within the limit.
    NotInTime,
    /// The process holds shares (memory that several processes may hold), which cannot be checkpointed.
    Shared,
    /// The memory does not fit on the device; the process stays checkpointed.
    Full(Full),
}

impl Body {
    /// The own record of the process in `slot` on device `d`. Its memory is zero while the process is checkpointed.
    pub(crate) fn record(&self, slot: usize, d: usize) -> Use {
        let used = self.slots[slot].devices[d].used;
        if self.slots[slot].checkpoint != CHECKPOINTED {
            return used;
        }
        Use { contexts: 0, allocations: 0, requested: 0, live: 0, slabs: 0, large: 0, overhead: 0, ..used }
    }

    /// The slots of a process: the one of its CUDA driver, and that of NVML if it has its own.
    fn slots_of(&self, pid: u32) -> Vec<usize> {
        bits(&self.live).filter(|s| self.slots[*s].pid == pid).collect()
    }

    fn state_of(&self, all: &[usize]) -> Result<u32, Refusal> {
        all.iter().map(|s| self.slots[*s].checkpoint).max().ok_or(Refusal::Unknown)
    }

    fn step(&mut self, pid: u32, from: u32, to: u32) -> Result<(), Refusal> {
        let all = self.slots_of(pid);
        if self.state_of(&all)? != from {
            return Err(Refusal::WrongState);
        }
        for s in all {
            word(&self.slots[s]).store(to, Ordering::Release);
        }
        Ok(())
    }
}

/// The checkpoint state of a slot. Its process reads it without the machine's lock.
fn word(slot: &Slot) -> &AtomicU32 {
    // SAFETY: a live, aligned u32 that everybody treats as an atomic while other processes run.
    unsafe { AtomicU32::from_ptr((&raw const slot.checkpoint).cast_mut()) }
}

impl Machine {
    /// The checkpoint state of the process `pid`.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn checkpoint_state(&self, pid: u32) -> Result<u32, Refusal> {
        let b = self.settled();
        b.state_of(&b.slots_of(pid))
    }

    /// Makes further calls of the process `pid` wait, and waits until its work on all devices has ended. If that
    /// takes longer than `limit`, the process is unlocked again.
    ///
    /// # Errors
    /// All but [`Refusal::Full`] and [`Refusal::Shared`].
    pub fn checkpoint_lock(&self, pid: u32, limit: Option<Duration>) -> Result<(), Refusal> {
        self.settled().step(pid, RUNNING, LOCKED)?;
        let end = limit.map(|l| now() + u64::try_from(l.as_nanos()).unwrap_or(u64::MAX / 2));
        loop {
            let b = self.settled();
            let all = b.slots_of(pid);
            b.state_of(&all)?;
            if all.iter().all(|s| b.slots[*s].devices.iter().all(|d| d.lanes.iter().all(|l| l.backlog() == 0))) {
                return Ok(());
            }
            drop(b);
            if end.is_some_and(|end| now() >= end) {
                self.lock().step(pid, LOCKED, RUNNING)?;
                return Err(Refusal::NotInTime);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Takes the memory of the locked process `pid` off the devices.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::WrongState`], [`Refusal::Shared`].
    pub fn checkpoint(&self, pid: u32) -> Result<(), Refusal> {
        let mut b = self.settled();
        let all = b.slots_of(pid);
        if b.state_of(&all)? == LOCKED && all.iter().any(|s| b.holds_shares(*s)) {
            return Err(Refusal::Shared);
        }
        b.step(pid, LOCKED, CHECKPOINTED)
    }

    /// Puts the memory of the process `pid` back on the devices, all of it or none. The process is locked then.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::WrongState`], [`Refusal::Full`].
    pub fn checkpoint_restore(&self, pid: u32) -> Result<(), Refusal> {
        let mut b = self.settled();
        let all = b.slots_of(pid);
        if b.state_of(&all)? == CHECKPOINTED {
            for d in 0..b.device_count as usize {
                let needed = all.iter().map(|s| b.slots[*s].devices[d].used.physical()).sum();
                let free = b.devices[d].profile.capacity().saturating_sub(b.taken(d));
                if needed > free {
                    return Err(Refusal::Full(Full { needed, free }));
                }
            }
        }
        b.step(pid, CHECKPOINTED, LOCKED)
    }

    /// Unlocks the locked process `pid`; its calls continue.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::WrongState`].
    pub fn checkpoint_unlock(&self, pid: u32) -> Result<(), Refusal> {
        self.settled().step(pid, LOCKED, RUNNING)
    }

    /// Waits while this process is locked. Costs one atomic load when it is not.
    #[inline]
    pub fn wait_while_locked(&self) {
        if self.checkpoint_word().load(Ordering::Acquire) != RUNNING {
            self.wait_for_unlock();
        }
    }

    #[cold]
    fn wait_for_unlock(&self) {
        while self.checkpoint_word().load(Ordering::Acquire) != RUNNING {
            std::thread::sleep(LOOK_AGAIN);
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
        let first = Machine::open_at(dir.path(), Some("t4")).unwrap();
        first.checkpoint_lock(pid, None).unwrap();
        assert_eq!(first.checkpoint_state(pid), Ok(LOCKED));
        let slot = first.slot();
        drop(first);
        let second = Machine::open_at(dir.path(), None).unwrap();
        assert_eq!((second.slot(), second.checkpoint_state(pid)), (slot, Ok(RUNNING)));
        second.wait_while_locked();
    }
}
