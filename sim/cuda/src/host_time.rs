//! The time that calls occupy the calling thread.
//!
//! A call makes its work visible to the device at some moment within it. A real driver does so near the end of the
//! call, but promises nothing. So each process picks the moment at random, and no test can rely on it. Call lengths
//! vary too.

use std::sync::atomic::{AtomicU64, Ordering};
use vgpu_sim::DeviceProfile;

/// The least part of a call, in thousandths, after which its work is visible.
const LEAST_PART: u64 = 500;
/// A call takes up to this many thousandths more or less than usual.
const VARIATION: u64 = 150;

/// Spins for the usual time of a call, more or less.
pub(crate) fn spend_host_time(ns: u64) {
    spin(varied(ns));
}

/// Occupies the thread for a call of about `ns`. Runs `submit` at the moment when the device sees the work.
pub(crate) fn within_call<T>(profile: &DeviceProfile, ns: u64, submit: impl FnOnce() -> T) -> T {
    let ns = varied(ns);
    let before = ns * visible_part(profile) / 1000;
    spin(before);
    let result = submit();
    spin(ns - before);
    result
}

fn spin(ns: u64) {
    if ns > 0 {
        let end = vgpu_sim::now() + ns;
        while vgpu_sim::now() < end {
            std::hint::spin_loop();
        }
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
