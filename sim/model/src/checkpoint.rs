//! Checkpoint and restore: a process is locked, its memory leaves the device, comes back, and it goes on.
//!
//! One word per process says how far it is. While it says "checkpointed" the process's own record counts nothing, so
//! that one store moves all of its memory at once, and whoever is killed meanwhile leaves it there or not there.
//! Content needs no moving: it never was on a device. A process that holds shared memory is not checkpointed.
//! A process stays locked when the one that locked it dies. Pids are those that processes see of themselves: two with the
//! same pid in different pid namespaces are taken for one.
//! Not here: error codes (sim/cuda), the numbers themselves (`memory`).

use crate::layout::{Body, Slot, Use, bits};
use crate::machine::{Machine, now};
use crate::memory::Full;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Calls are answered.
pub const RUNNING: u32 = 0;
/// Calls wait.
pub const LOCKED: u32 = 1;
/// Calls wait, and the memory is not on the device.
pub const CHECKPOINTED: u32 = 2;

/// How often a waiting call looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// Why a step is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such process on this machine.
    Unknown,
    /// The process is not in the state that the step begins with.
    WrongState,
    /// The work of the process did not end in time.
    NotInTime,
    /// The process holds memory that others hold too.
    Shared,
    /// The memory does not fit on the device; the process stays checkpointed.
    Full(Full),
}

impl Body {
    /// What the process in `slot` has of its own on device `d`: no memory while it is checkpointed.
    pub(crate) fn record(&self, slot: usize, d: usize) -> Use {
        let used = self.slots[slot].devices[d].used;
        if self.slots[slot].checkpoint != CHECKPOINTED {
            return used;
        }
        Use { contexts: 0, allocations: 0, requested: 0, live: 0, slabs: 0, large: 0, overhead: 0, ..used }
    }

    /// The slots of a process: its driver's, and its NVML's if that has one of its own.
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

/// The word of a slot. Its process reads it without the machine's lock.
fn word(slot: &Slot) -> &AtomicU32 {
    // SAFETY: a live, aligned u32 that everybody treats as an atomic while other processes run.
    unsafe { AtomicU32::from_ptr((&raw const slot.checkpoint).cast_mut()) }
}

impl Machine {
    /// How far the process `pid` is.
    ///
    /// # Errors
    /// [`Refusal::Unknown`].
    pub fn checkpoint_state(&self, pid: u32) -> Result<u32, Refusal> {
        let b = self.settled();
        b.state_of(&b.slots_of(pid))
    }

    /// Lets further calls of the process `pid` wait, and waits until its work on all devices has ended; `limit`: at most
    /// so long, and if that is not enough the process runs on.
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

    /// Brings the memory of the process `pid` back, all of it or nothing; the process is locked then.
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

    /// Lets the locked process `pid` go on.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], [`Refusal::WrongState`].
    pub fn checkpoint_unlock(&self, pid: u32) -> Result<(), Refusal> {
        self.settled().step(pid, LOCKED, RUNNING)
    }

    /// Waits while this process is locked. One load where it is not.
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
