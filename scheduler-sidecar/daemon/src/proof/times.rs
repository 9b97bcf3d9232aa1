//! Who works on a device without a lease: a part of each look. What follows for the others there is the leases' affair, which
//! ask for it with the next question.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::{Looking, Proof};
use crate::proof::processes::Seen;
use crate::proof::time;
use vgpu_accounting::clock;
use vgpu_control::finding::{Finding, Process};

impl Proof {
    /// Processes that work on devices without being before them.
    #[must_use]
    pub fn unseen(&self) -> Vec<(u32, String)> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).unseen.clone()
    }
}

impl Looking {
    /// Asks the driver who works, and compares it with what the loop said of leases.
    pub(super) fn times(&mut self, seen: &BTreeMap<Process, Seen>) -> Vec<Finding> {
        let working = self.driver.as_mut().map(|driver| driver.working()).unwrap_or_default();
        let unseen = self.times.look(seen, &working, &self.known, clock::now());
        self.found.lock().unwrap_or_else(PoisonError::into_inner).unseen =
            unseen.iter().map(|(process, device)| (process.pid, device.clone())).collect();
        time::findings(&unseen, seen, &self.known)
    }
}
