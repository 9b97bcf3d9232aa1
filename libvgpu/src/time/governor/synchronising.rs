//! Programs that wait for their work: that work is over, and is charged at once.

use super::Governor;
use crate::driver::streams::StreamLocation;
use crate::ffi::clock;
use crate::ledger::joined::JoinedLedger;
use shim_sys::cuda::CUcontext;

impl Governor {
    /// The number of launches so far in a stream, or in all of them.
    pub fn launch_count(&self, stream: Option<StreamLocation>) -> u64 {
        self.lock_meter().launch_count(stream)
    }

    /// The driver has waited in this context: charges completed work. `drained`: the wait was for a stream, or for all
    /// of them, with the launches that it had before the wait.
    #[cold]
    pub fn note_waited(
        &self,
        joined: &JoinedLedger,
        context: CUcontext,
        drained: Option<(Option<StreamLocation>, u64)>,
    ) {
        self.reap_completed(joined, context);
        if let Some((stream, launches)) = drained {
            let pay = |due, since| self.charge(joined, due, since);
            self.lock_meter().note_drained(context.0 as usize, stream, launches, clock::now(), pay);
        }
        self.settle_debt(joined);
    }
}
