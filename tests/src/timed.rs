//! Device time in tests: a program that uses it (`programs/timed.c`), the device's busy time, and the tenant's
//! payments.
//!
//! Payments are read from the ledger's file and compared with the simulated device's record. Only that record judges
//! shares.

use crate::lab::Lab;
use crate::member::Member;
use crate::program::{Kind, compile};
use std::fs;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// A millisecond, in nanoseconds.
pub const MS: u64 = 1_000_000;

/// Position of device time in a ledger file (layout of vgpu-core): first slot's offset, slot size, slot count, offset
/// of device time in a slot.
const SLOTS: (usize, usize, usize, usize) = (4096, 128, 1024, 80);

/// Allows one measurement at a time: two cores cannot run several busy devices and their judges at once.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A machine with a device-time ceiling of `percent`.
pub fn ceiling(percent: u32) -> Lab {
    Lab::new("h200").with("VGPU_SM_LIMIT", percent.to_string())
}

/// Starts a program that uses device time; it has a context.
pub fn timed(lab: &Lab) -> Member {
    let mut m = Member::start(&mut lab.command(compile("timed", Kind::Program, &[])));
    m.ok("begin");
    m
}

/// Device time charged to all members of the tenant so far, in nanoseconds.
pub fn paid(lab: &Lab) -> u64 {
    let (begin, size, count, at) = SLOTS;
    let files = fs::read_dir(lab.state()).expect("the state's directory");
    let ledgers = files.map(|file| fs::read(file.expect("a file").path()).expect("a ledger"));
    let word = |bytes: &[u8], place: usize| {
        bytes.get(place..place + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
    };
    ledgers.map(|bytes| (0..count).map(|slot| word(&bytes, begin + slot * size + at)).sum::<u64>()).sum()
}

/// A measurement of device time that has begun.
pub struct Stretch {
    began: Instant,
    busy: u64,
    paid: u64,
}

/// Result of a measurement of device time.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Time that the device worked, in nanoseconds.
    pub busy: u64,
    /// Device time charged to the tenant, in nanoseconds.
    pub paid: u64,
    /// Wall time of the measurement, in nanoseconds.
    pub wall: u64,
}

impl Stretch {
    /// Begins a measurement of the device's busy time and of the time charged to the tenant.
    pub fn begin(lab: &Lab) -> Stretch {
        Stretch { busy: lab.device(0).busy_ns, paid: paid(lab), began: Instant::now() }
    }

    /// Ends the measurement and returns the times since it began.
    pub fn end(&self, lab: &Lab) -> Spent {
        let wall = u64::try_from(self.began.elapsed().as_nanos()).expect("less than centuries");
        Spent { wall, busy: lab.device(0).busy_ns - self.busy, paid: paid(lab) - self.paid }
    }
}

impl Spent {
    /// Busy time in percent of the wall time.
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    pub fn share(&self) -> f64 {
        self.busy as f64 / self.wall as f64 * 100.0
    }

    /// Paid time in percent of the busy time.
    #[allow(clippy::cast_precision_loss)] // nanoseconds that add up to seconds
    pub fn paid_percent(&self) -> f64 {
        self.paid as f64 / self.busy as f64 * 100.0
    }

    /// Prints the result to stderr and requires that paid and busy time differ by at most `points` percent.
    #[track_caller]
    pub fn is_paid_within(&self, points: f64, what: &str) {
        let percent = self.paid_percent();
        eprintln!("{what}: share {:.1} %, paid {percent:.1} % of {} us", self.share(), self.busy / 1000);
        assert!((percent - 100.0).abs() <= points, "{what}: paid {percent:.1} % of what the device did: {self:?}");
    }
}

/// Runs a measurement of shares, and repeats it at most twice if it fails.
///
/// A host that stalls for a moment can spoil one measurement; a real fault fails three times. Not for promises of
/// liveness, which must hold every time.
#[track_caller]
pub fn measured(measurement: impl Fn()) {
    for again in 1..3 {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&measurement)).is_ok() {
            return;
        }
        eprintln!("measured again, {again}");
    }
    measurement();
}

#[cfg(test)]
mod tests {
    use super::measured;
    use std::cell::Cell;

    #[test]
    fn what_is_wrong_three_times_is_wrong() {
        let tries = Cell::new(0);
        let wrong = |right_at: u32| {
            tries.set(0);
            let measurement = || {
                tries.set(tries.get() + 1);
                assert!(tries.get() >= right_at, "wrong on purpose");
            };
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| measured(measurement))).is_err()
        };
        assert_eq!((wrong(1), tries.get()), (false, 1));
        assert_eq!((wrong(3), tries.get()), (false, 3));
        assert_eq!((wrong(4), tries.get()), (true, 3));
    }
}
