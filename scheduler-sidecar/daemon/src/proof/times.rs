//! The part of a look that finds processes that work on a device without a lease. The consequences for other members
//! are up to the leases, which get the result with the next request.

use std::collections::BTreeMap;

use super::{ProofLink, ProofThread};
use crate::proof::driver::WorkingProcess;
use crate::proof::processes::SeenProcess;
use crate::proof::time::{self, UnseenWork};
use vgpu_accounting::clock;
use vgpu_control::finding::{Finding, ProcessId};
use vgpu_core::time::arbiter::audit::AuditVerdict;

impl ProofLink {
    /// Processes that work on a device without a lease or a report, with the device.
    #[must_use]
    pub fn unseen_workers(&self) -> Vec<(u32, String, AuditVerdict)> {
        self.found.lock().unseen.clone()
    }
}

impl ProofThread {
    /// Asks the driver for the working processes. This must happen before the reactor is asked for leases, since any
    /// time may pass in between on a busy host.
    pub(super) fn sample(&mut self) -> (Vec<WorkingProcess>, u64) {
        let sampled = clock::now();
        (self.driver.as_mut().map(|driver| driver.working_processes()).unwrap_or_default(), sampled)
    }

    /// Compares the driver's samples with the leases, as the reactor reported them afterwards.
    pub(super) fn look_at_times(
        &mut self,
        seen: &BTreeMap<ProcessId, SeenProcess>,
        (working, sampled): &(Vec<WorkingProcess>, u64),
    ) -> Vec<Finding> {
        let unseen = self.times.look_at_work(seen, (working, *sampled), (&self.known, self.told));
        let unseen_of = |one: &UnseenWork| (one.process.pid, one.device.clone(), one.verdict);
        self.found.lock().unseen = unseen.iter().map(unseen_of).collect();
        time::time_findings(&unseen, seen, &self.known)
    }
}
