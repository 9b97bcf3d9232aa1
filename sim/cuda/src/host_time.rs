//! The time that calls occupy the calling thread.
//!
//! A call makes its work visible to the device at some moment within it. A real driver does so near the end of the
//! call, but promises nothing. So each process picks the moment at random, unless its profile fixes it. Call lengths
//! vary too. The simulator itself needs host time until the work is visible. If its average is longer than the part of
//! the call that precedes that moment, the call is lengthened, and the part stays the same. A call that is interrupted
//! is longer by the interruption alone.

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
    /// Average time in ns that the model takes for a whole call before the device sees the work.
    needed: AtomicU64,
    /// The part of `needed` that submits the work.
    submission: AtomicU64,
}

impl TimedCall {
    pub(crate) const fn new() -> Self {
        Self { needed: AtomicU64::new(0), submission: AtomicU64::new(0) }
    }

    /// Occupies the thread for about `ns` from `begin` on, the model's own time included. `submit` ends about when the
    /// device is to see the work.
    pub(crate) fn run<T>(
        &self,
        begin: u64,
        profile: &DeviceProfile,
        engine: &DeviceEngine,
        ns: u64,
        submit: impl FnOnce() -> T,
    ) -> T {
        if ns == 0 {
            return submit();
        }
        // The engine's first update after a pause is slow. It is made here, so that `submit` is on time.
        engine.bring_up_to_date();
        let (ready, part) = (vgpu_sim::now(), visible_part(profile));
        let stated = varied(ns);
        let ns = stated.max(self.needed.load(Ordering::Relaxed) * 1000 / part);
        spin_until((begin + ns * part / 1000).saturating_sub(self.submission.load(Ordering::Relaxed)));
        let from = vgpu_sim::now();
        let result = submit();
        let seen = vgpu_sim::now();
        let needed = (ready - begin) + (seen - from);
        // A call that needed more than all of its time was interrupted, or waited for room in the queue: its time is
        // not learned.
        if needed <= stated {
            add_sample(&self.submission, seen - from);
            add_sample(&self.needed, needed);
        }
        spin_until(seen + ns * (1000 - part) / 1000);
        result
    }
}

/// Moves `average` towards `sample` by an eighth.
fn add_sample(average: &AtomicU64, sample: u64) {
    let before = average.load(Ordering::Relaxed);
    average.store((7 * before + sample) / 8, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use vgpu_sim::MachineView;

    const MS: u64 = 1_000_000;
    const CALL: u64 = 100 * MS;

    /// Processor time of this thread, in ns. A spinning thread takes it; a sleeping one does not.
    fn processor_time() -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a local.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
    }

    #[test]
    fn an_interruption_counts_as_a_part_of_its_call_and_lengthens_no_other_call() {
        let dir = tempfile::tempdir().unwrap();
        let engine = DeviceEngine::new(Arc::new(MachineView::open_at(dir.path(), Some("h200")).unwrap()), 0);
        let profile = DeviceProfile { visible_permille: 1000, ..DeviceProfile::built_in("h200").unwrap() };
        let call = TimedCall::new();
        let spent = |begin: u64, sleep: u64| {
            let before = processor_time();
            call.run(begin, &profile, &engine, CALL, || std::thread::sleep(Duration::from_nanos(sleep)));
            processor_time() - before
        };
        let now = vgpu_sim::now();
        assert!(spent(now - 2 * CALL, 0) < CALL / 2, "interrupted before its work was submitted");
        assert!(spent(now - 2 * CALL, 2 * CALL) < CALL / 2, "and while it was");
        assert_eq!(call.needed.load(Ordering::Relaxed), 0, "the model itself took no time");
        let before = vgpu_sim::now();
        spent(before, 0);
        assert!(vgpu_sim::now() - before >= CALL - CALL * VARIATION / 1000, "a whole call");
        assert!(call.needed.load(Ordering::Relaxed) > 0, "what the model took");
    }
}
