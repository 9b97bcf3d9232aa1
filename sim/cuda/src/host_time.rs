//! The time that calls occupy the calling thread.
//!
//! A call makes its work visible to the device at some moment within it. A real driver does so near the end of the
//! call, but promises nothing. So each process picks the moment at random, unless its profile fixes it. Call lengths
//! vary too. If the model needs longer than a call's stated time, the whole call is stretched: the moment stays at its
//! part of the call.

use std::sync::atomic::{AtomicU64, Ordering};
use vgpu_sim::DeviceProfile;
use vgpu_sim::engine::DeviceEngine;

/// The least part of a call, in thousandths, after which its work is visible.
const LEAST_PART: u64 = 500;
/// A call takes up to this many thousandths more or less than usual.
const VARIATION: u64 = 150;

/// Spins for the usual time of a call, more or less.
pub(crate) fn spend_host_time(ns: u64) {
    if ns > 0 {
        spin_until(vgpu_sim::now() + varied(ns));
    }
}

/// The calls of one function.
pub(crate) struct TimedCall {
    /// Average time in ns that the model takes to submit the call's work.
    usual: AtomicU64,
}

impl TimedCall {
    pub(crate) const fn new() -> Self {
        Self { usual: AtomicU64::new(0) }
    }

    /// Occupies the thread for about `ns`, the model's own time included. `submit` ends about when the device is to
    /// see the work.
    pub(crate) fn run<T>(
        &self,
        profile: &DeviceProfile,
        engine: &DeviceEngine,
        ns: u64,
        submit: impl FnOnce() -> T,
    ) -> T {
        if ns == 0 {
            return submit();
        }
        let (begin, ns) = (vgpu_sim::now(), varied(ns));
        // The engine's first update after a pause is slow. It is made here, so that `submit` is on time.
        engine.bring_up_to_date();
        let (usual, part) = (self.usual.load(Ordering::Relaxed), visible_part(profile));
        spin_until((begin + ns * part / 1000).saturating_sub(usual));
        let from = vgpu_sim::now();
        let result = submit();
        let seen = vgpu_sim::now();
        self.usual.store((7 * usual + (seen - from).min(ns)) / 8, Ordering::Relaxed);
        spin_until(begin + ns.max((seen - begin) * 1000 / part));
        result
    }
}

fn spin_until(end: u64) {
    while vgpu_sim::now() < end {
        std::hint::spin_loop();
    }
}

fn varied(ns: u64) -> u64 {
    if ns == 0 { 0 } else { ns * (1000 - VARIATION + fastrand::u64(0..=2 * VARIATION)) / 1000 }
}

/// The part of a call, in thousandths, after which the device sees its work.
fn visible_part(profile: &DeviceProfile) -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    if profile.visible_permille > 0 {
        return profile.visible_permille.min(1000);
    }
    match DRAWN.load(Ordering::Relaxed) {
        0 => {
            let drawn = fastrand::u64(LEAST_PART..=1000);
            DRAWN.store(drawn, Ordering::Relaxed);
            drawn
        }
        drawn => drawn,
    }
}
