//! What a thread of ours does for the gate while others wait for the device: it sees work complete when the program makes
//! no call, and says how much is left.
#![allow(dead_code)] // called only where such a thread runs

use super::Governor;
use crate::ledger::Joined;
use crate::{clock, order};

impl Governor {
    /// Charges what completed, tails included whose time has passed. For a thread of ours, whatever its current context.
    pub fn reap_now(&self, joined: &Joined) {
        self.reap(joined, order::current());
        self.meter.lock().expire(clock::now(), |ns, since| self.charge(joined, ns, since));
    }

    /// Estimated work of this process that is before the device, in nanoseconds.
    pub fn in_flight(&self) -> u64 {
        self.meter.lock().in_flight()
    }

    /// What of it is left at `now`: 0 only if all was seen complete, `u64::MAX` if it takes longer than expected.
    pub fn left(&self, now: u64) -> u64 {
        self.meter.lock().left(now)
    }

    /// When a thread of ours should look again whether the work is done.
    pub fn look(&self, now: u64) -> u64 {
        self.meter.lock().look(now)
    }

    /// The device may be shared from now on: nothing is learned from what is in flight.
    pub fn taint(&self) {
        self.meter.lock().taint();
    }
}
