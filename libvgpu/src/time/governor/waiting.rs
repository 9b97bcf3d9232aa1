//! How a thread waits at the gate: asleep on a futex until a given time, or until work of this process completes.
//!
//! Not here: how long. No spinning: the thread sleeps even for the last microseconds. The kernel's timer slack adds
//! some 50 us to each sleep; the gate lets a launch go that much ahead.

use super::Governor;
use crate::ffi::clock;
use core::sync::atomic::Ordering::*;

impl Governor {
    /// State of the bell. Read it before the decision to wait, so that no ring after that decision is lost.
    pub fn hear_bell(&self) -> u32 {
        self.bell.load(Acquire)
    }

    /// Work in flight completed, or the daemon granted other terms: wakes the waiting threads, which look again.
    ///
    /// # Cost
    /// One atomic addition and one short lock; a system call if a thread waits.
    pub fn ring_waiters(&self) {
        self.bell.fetch_add(1, Release);
        if self.lock_meter().is_waited_for() {
            // SAFETY: a word that lives as long as the process.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.bell.as_ptr(),
                    libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                    i32::MAX,
                )
            };
        }
    }
}

/// A thread that waits at the gate: as long as there is one, the tenant wants the device.
pub struct WaitingThread<'a> {
    governor: &'a Governor,
}

impl<'a> WaitingThread<'a> {
    /// Counts this thread as waiting.
    pub fn begin_waiting(governor: &'a Governor) -> Self {
        governor.lock_meter().wait(true);
        Self { governor }
    }

    /// Waits until `moment`, until the bell is no longer as `heard`, or until a signal arrives.
    pub fn wait_until(&self, heard: u32, moment: u64) {
        clock::wait(&self.governor.bell, heard, moment);
    }
}

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        let mut meter = self.governor.lock_meter();
        meter.wait(false);
        if !meter.is_waited_for() {
            meter.lease.note_none_waiting();
        }
    }
}
