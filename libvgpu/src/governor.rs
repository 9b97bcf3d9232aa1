//! The gate of launches under a ceiling on device time: pay first, or wait.
//!
//! A launch is admitted while the tenant's account, which all its members share in the ledger, has a positive balance
//! and this process has less than [`IN_FLIGHT_NS`] of estimated work before the device. What a launch really took is
//! charged when the meter sees it complete, so a long kernel is paid for afterwards. Waiting is bounded by progress: if
//! nothing of ours completes for [`DRAIN_NS`], one launch passes anyway, because what runs may be waiting for it.
//!
//! In this version completion is seen when the program launches again, not by a thread of ours.

use crate::clock::{now, sleep};
use crate::driver::own;
use crate::ledger::Joined;
use crate::lock::Lock;
use crate::meter::{Launch, Meter};
use crate::order;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use shim_sys::cuda::*;
use vgpu_core::account::Admission;
use vgpu_core::account::cost::CostTable;
use vgpu_core::share::Share;

/// Estimated work that one process may have before the device.
const IN_FLIGHT_NS: u64 = 2_000_000;
/// Without any completion for so long, one launch is admitted.
const DRAIN_NS: u64 = 10_000_000;
/// Longest single sleep: completions are looked for in between.
const STEP_NS: u64 = 1_000_000;
/// Sleep while only completions are awaited.
const POLL_NS: u64 = 100_000;
/// Tries for the meter before a launch goes unmeasured, some of them 20 us apart.
const BORROW_TRIES: u32 = 40;
/// Tries before a context ends although another thread has the meter: 100 ms.
const ENDING_TRIES: u32 = 5_000;

/// Whether any device has a ceiling, so that launches must look further.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Whether launches must look at the gate at all.
///
/// # Cost
/// One load and a predictable branch: all that a launch costs without a ceiling.
#[inline]
pub fn active() -> bool {
    ACTIVE.load(Relaxed)
}

/// Makes launches look: there is a ceiling, or launches must be refused.
pub fn activate() {
    ACTIVE.store(true, Relaxed);
}

/// The gate of one device.
pub struct Governor {
    share: Share,
    costs: CostTable<1024>,
    /// Taken out while a thread works with it, so that no lock is held across a driver call; a thread that finds it
    /// gone charges its launch by the estimate.
    meter: Lock<Option<Box<Meter>>>,
    /// Contexts that ended while another thread had the meter.
    gone: Lock<Vec<CUcontext>>,
    /// Estimated work of contexts that ended before it was measured, not charged yet.
    unpaid: AtomicU64,
    /// When the last completion was seen, or a launch was let through without one.
    progress: AtomicU64,
    /// Estimated work of this process that has a marker and was not seen complete.
    in_flight: AtomicU64,
}

impl Governor {
    /// A gate that keeps `share`.
    pub fn new(share: Share) -> Self {
        activate();
        Self {
            share,
            costs: CostTable::new(),
            meter: Lock::new(Some(Box::default())),
            gone: Lock::new(Vec::new()),
            unpaid: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        }
    }

    /// Passes one launch: waits for its turn, measures it, charges what completed.
    pub fn launch(&self, joined: &Joined, launch: Launch, real: impl FnOnce() -> CUresult) -> CUresult {
        match capturing(&launch) {
            Some(false) => {}
            // Recorded, not run: the graph's launch will be the one to pay.
            Some(true) => return real(),
            // The stream cannot be asked now, so that it cannot be measured either.
            None => return self.unmeasured(joined, &launch, real),
        }
        let estimate = self.costs.estimate(launch.key);
        self.wait(joined, estimate);
        let begun = self.with_meter(|meter| meter.before(&launch, |ns| self.charge(joined, ns)));
        let result = real();
        if !result.ok() {
            return result;
        }
        let in_flight = begun.and_then(|()| {
            self.with_meter(|meter| meter.after(&launch, estimate, &self.costs, |ns| self.charge(joined, ns)))
        });
        match in_flight {
            Some(in_flight) => self.in_flight.store(in_flight, Relaxed),
            None => self.charge(joined, estimate),
        }
        result
    }

    fn unmeasured(&self, joined: &Joined, launch: &Launch, real: impl FnOnce() -> CUresult) -> CUresult {
        let result = real();
        if result.ok() {
            self.charge(joined, self.costs.estimate(launch.key));
        }
        result
    }

    fn charge(&self, joined: &Joined, ns: u64) {
        joined.member().account().charge(ns, self.share, now());
        joined.member().add_busy(ns);
    }

    /// Works with the meter, if no other thread does for longer than a short wait.
    fn with_meter<T>(&self, work: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        let mut meter = self.take_meter(BORROW_TRIES)?;
        let result = work(&mut meter);
        *self.meter.lock() = Some(meter);
        Some(result)
    }

    fn take_meter(&self, tries: u32) -> Option<Box<Meter>> {
        for round in 0..tries {
            if let Some(mut meter) = self.meter.lock().take() {
                for context in self.gone.lock().drain(..) {
                    self.unpaid.fetch_add(meter.forget(context), Relaxed);
                }
                return Some(meter);
            }
            if round < 32 { core::hint::spin_loop() } else { sleep(20_000) }
        }
        None
    }

    /// Charges what completed.
    fn reap(&self, joined: &Joined) {
        let reaped = self.with_meter(|meter| meter.reap(&self.costs, |ns| self.charge(joined, ns)));
        self.pay(joined);
        if let Some((in_flight, completed)) = reaped {
            self.in_flight.store(in_flight, Relaxed);
            if completed {
                self.progress.store(now(), Relaxed);
            }
        }
    }

    fn wait(&self, joined: &Joined, estimate: u64) {
        let account = joined.member().account();
        self.reap(joined);
        let mut time = now();
        if self.in_flight.load(Relaxed) == 0 {
            self.progress.store(time, Relaxed);
        }
        loop {
            let in_flight = self.in_flight.load(Relaxed);
            let crowded = in_flight > 0 && in_flight.saturating_add(estimate) > IN_FLIGHT_NS;
            let until = match account.admit(time) {
                Admission::Admit if !crowded => return,
                Admission::Admit => time + POLL_NS,
                Admission::WaitUntil(until) => until,
            };
            // What runs may wait for what we hold back. With nothing in flight only the balance keeps us.
            if in_flight > 0 && time.saturating_sub(self.progress.load(Relaxed)) > DRAIN_NS {
                self.progress.store(time, Relaxed);
                return;
            }
            sleep(until.saturating_sub(time).clamp(1, STEP_NS));
            self.reap(joined);
            time = now();
        }
    }

    /// Forgets the measurements of a context before it ends: its events go with it, and what they would have measured is
    /// charged by the estimate. Waits a little for a thread that is asking about them.
    pub fn context_ended(&self, joined: &Joined, context: CUcontext) {
        self.gone.lock().push(context);
        if let Some(meter) = self.take_meter(ENDING_TRIES) {
            self.in_flight.store(meter.in_flight(), Relaxed);
            *self.meter.lock() = Some(meter);
        }
        self.pay(joined);
    }

    /// Charges what ended unmeasured.
    fn pay(&self, joined: &Joined) {
        match self.unpaid.swap(0, Relaxed) {
            0 => {}
            ns => self.charge(joined, ns),
        }
    }

    /// Forgets everything, in a forked child.
    pub fn forget(&self) {
        // SAFETY: called in a forked child, whose only thread this is.
        unsafe {
            self.meter.reset(Some(Box::default()));
            self.gone.reset(Vec::new());
        }
        self.in_flight.store(0, Relaxed);
        self.unpaid.store(0, Relaxed);
    }
}

/// Whether the launch is recorded into a graph instead of run; `None`: the driver does not say.
fn capturing(launch: &Launch) -> Option<bool> {
    if !order::may_capture() {
        return Some(false);
    }
    let mut status = 0;
    let ask = if launch.per_thread { own::cuStreamIsCapturing_ptsz() } else { own::cuStreamIsCapturing() };
    let Some(ask) = ask else { return Some(false) }; // older than captures
    // SAFETY: the program's own stream, which it is about to launch into; a pointer to a local.
    unsafe { ask(launch.stream, &raw mut status) }.ok().then_some(status != 0)
}
