//! Checks the members' reports against the driver's samples and other members' measurements.
//!
//! [`LeaseAudit`] compares the driver's samples of a process with the time in which it held the device, and with its
//! reports. Samples come late and vanish when a process is idle. They show which process works without a lease or
//! without a report, and never how much of the device anyone gets. [`ClaimDoubt`] checks whether the holders'
//! measurements confirm work that is claimed to share the device.

use std::collections::VecDeque;

use crate::time::config::{BASE, BURST_NS, SAMPLE_LAG_NS, is_longer};

/// Length of the compared window, in ns.
const AUDIT_WINDOW_NS: u64 = 2 * SAMPLE_LAG_NS;
/// Length of a second window for reports, in ns. The reports compared cover the samples' time and twice their lag more,
/// so within the shorter window a member could hide almost half of its work.
const REPORTS_WINDOW_NS: u64 = 4 * AUDIT_WINDOW_NS;
/// Work without a lease, or without a report, that counts as a finding, in ns of a window: a tenth. Samples are whole
/// percents of a second.
const AUDIT_MARGIN_NS: u64 = AUDIT_WINDOW_NS / 10;

/// A member's time on its device since it joined, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldTime {
    /// Time in which the member held the device, drained, was overdue or needed no lease.
    pub held: u64,
    /// Device time that the member reported, and time in which it needed no lease or drained unmeasured launches.
    pub reported: u64,
    /// Time held since the last report that confirmed work. The measurement of that time may follow; after
    /// [`BASE`]`.stuck` a report without any completed work counts as false.
    pub awaited: u64,
}

impl HeldTime {
    /// Returns the sums of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            held: self.held.saturating_add(other.held),
            reported: self.reported.saturating_add(other.reported),
            awaited: self.awaited.saturating_add(other.awaited),
        }
    }

    /// Adds time in which the member may have worked without a lease and without a report.
    #[must_use]
    pub const fn excused_for(self, ns: u64) -> Self {
        self.plus(Self { held: ns, reported: ns, awaited: 0 })
    }
}

/// Results of one reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditVerdict {
    /// The process worked for longer than it held the device.
    pub is_unleased: bool,
    /// Set if the process worked for longer than its reports say: the held time without a report, in ns.
    pub unreported: Option<u64>,
}

/// Compares one process's device time in the driver's samples with the time in which it held its device, and with its
/// reports.
#[derive(Clone, Debug, Default)]
pub struct LeaseAudit {
    looks: VecDeque<AuditReading>,
}

/// One reading of both figures. All times are in ns of the caller's clock.
#[derive(Clone, Copy, Debug)]
struct AuditReading {
    /// When the driver was asked for these samples.
    sampled: u64,
    /// Earliest work that these samples can show.
    from: u64,
    /// Latest time at which `had` was read.
    told: u64,
    had: HeldTime,
    /// Device time that these samples show.
    seen: u64,
}

impl LeaseAudit {
    /// Takes one reading and judges the process.
    ///
    /// The driver was asked at `sampled` and showed `seen` ns of new device time. Afterwards, and no later than
    /// `told`, the process had held the device for `had` since it joined. `None`: nothing is judged, since its tenant
    /// is only observed.
    ///
    /// On a busy host each reading may be late by any time, independently. So no reading may count for another time
    /// than its own. Take a reading of `had` from before the earliest work that samples can show, and one after they
    /// were taken. Between them an honest process held the device for at least as long as the samples show, and
    /// reported that time or still awaits its measurement.
    pub fn take_reading(&mut self, had: Option<HeldTime>, seen: u64, sampled: u64, told: u64) -> AuditVerdict {
        let Some(had) = had else {
            self.looks.clear();
            return AuditVerdict::default();
        };
        let before = self.looks.back().map_or(sampled, |last| last.sampled);
        let from = before.max(sampled.saturating_sub(SAMPLE_LAG_NS)).saturating_sub(SAMPLE_LAG_NS);
        self.looks.push_back(AuditReading { sampled, from, told, had, seen });
        let (Some(short), Some(long)) = (self.sum_within(AUDIT_WINDOW_NS), self.sum_within(REPORTS_WINDOW_NS)) else {
            return AuditVerdict::default();
        };
        let earliest = long.earliest;
        while self.looks.get(1).is_some_and(|look| look.told <= earliest) {
            self.looks.pop_front();
        }
        AuditVerdict {
            is_unleased: short.exceeds(short.held),
            unreported: [short, long].iter().find_map(AuditSums::unreported),
        }
    }

    /// Sums over the readings of this time up to the last one; `None`: none is complete.
    fn sum_within(&self, window: u64) -> Option<AuditSums> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        // Samples may show work from before counting began.
        let is_compared =
            |look: &&AuditReading| last.sampled.saturating_sub(look.sampled) < window && look.from >= first.told;
        let earliest = self.looks.iter().find(is_compared)?.from;
        let before = self.looks.iter().rev().find(|look| look.told <= earliest)?.had;
        let compared = self.looks.iter().filter(|look| look.from >= earliest);
        let awaited = if last.had.awaited < BASE.stuck { last.had.awaited } else { 0 };
        Some(AuditSums {
            earliest,
            seen: compared.fold(0, |sum, look| sum.saturating_add(look.seen)),
            held: last.had.held.saturating_sub(before.held),
            reported: last.had.reported.saturating_add(awaited).saturating_sub(before.reported),
        })
    }
}

/// Sums of several readings, in ns.
#[derive(Clone, Copy, Debug)]
struct AuditSums {
    /// The earliest work that the samples can show.
    earliest: u64,
    seen: u64,
    held: u64,
    reported: u64,
}

impl AuditSums {
    const fn exceeds(&self, counted: u64) -> bool {
        self.seen > counted.saturating_add(AUDIT_MARGIN_NS)
    }

    fn unreported(&self) -> Option<u64> {
        self.exceeds(self.reported).then(|| self.held.saturating_sub(self.reported))
    }
}

/// Sum of the times in which the daemon was silent and members may have worked without leases, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentTime {
    ended: u64,
    from: u64,
    until: u64,
}

impl SilentTime {
    /// Adds a time that may overlap the last one.
    pub const fn add(&mut self, from: u64, until: u64) {
        if from > self.until {
            (self.ended, self.from) = (self.up_to(self.until), from);
        }
        if until > self.until {
            self.until = until;
        }
    }

    /// Returns the sum up to `now`. It never falls.
    #[must_use]
    pub const fn up_to(&self, now: u64) -> u64 {
        let now = if now < self.until { now } else { self.until };
        self.ended.saturating_add(now.saturating_sub(self.from))
    }
}

/// Trust in members that claim to have work on the device after their drain's allowance, sharing it with the holder.
///
/// If that is true, the holder's launches of known cost take far longer than usual. If they take the usual time,
/// nothing shares the device, whatever is claimed. A holder without launches of known cost proves nothing: claims are
/// then trusted for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimDoubt {
    busy: u64,
    finished: u64,
    against: bool,
    backed: u64,
}

impl ClaimDoubt {
    /// Notes another claim (a member's report that its work still runs after its drain's allowance); it restarts
    /// trust.
    pub fn note_claim(&mut self, now: u64) {
        *self = Self { backed: now, ..Self::default() };
    }

    /// Notes that `paid` of the claimed work was charged. That extends trust by the time such work takes when it
    /// shares the device with `sharing` others. It does not restart trust at `now`; otherwise a nanosecond each second
    /// would keep it.
    pub fn note_progress(&mut self, paid: u64, sharing: u64, now: u64) {
        self.backed = self.backed.saturating_add(paid.saturating_mul(sharing)).min(now);
    }

    /// Notes that the holder measured `busy` for launches that are known to take `finished`. [`BURST_NS`] of them make
    /// a finding for or against the claims.
    pub fn note_slowdown(&mut self, busy: u64, finished: u64, now: u64) {
        if finished == 0 {
            return;
        }
        self.busy = self.busy.saturating_add(busy);
        self.finished = self.finished.saturating_add(finished);
        if self.finished < BURST_NS {
            return;
        }
        if is_longer(self.busy, self.finished) {
            (self.against, self.backed) = (false, now);
        } else {
            self.against = true;
        }
        (self.busy, self.finished) = (0, 0);
    }

    /// True if the claims are no longer trusted.
    #[must_use]
    pub const fn is_doubted(&self, now: u64) -> bool {
        self.against || now.saturating_sub(self.backed) > BASE.stuck
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn claims_are_believed_for_as_long_as_what_is_measured_of_them_pays_for_and_not_for_a_nanosecond_a_second() {
        for (part, believed) in [(2, true), (4, false), (1_000_000, false)] {
            let mut doubt = ClaimDoubt::default();
            doubt.note_claim(SECOND);
            for tenth in 11..100u64 {
                doubt.note_progress(SECOND / 10 / part, 2, tenth * SECOND / 10);
            }
            assert_eq!(!doubt.is_doubted(10 * SECOND), believed, "a {part}th of the time");
        }
        let mut doubt = ClaimDoubt::default();
        doubt.note_claim(SECOND);
        doubt.note_progress(u64::MAX, 2, 2 * SECOND);
        assert!(!doubt.is_doubted(4 * SECOND) && doubt.is_doubted(4 * SECOND + 1), "nobody buys what is to come");
    }

    fn held(ns: u64) -> HeldTime {
        HeldTime { held: ns, reported: ns, awaited: 0 }
    }

    /// Looks every 400 ms at driver samples that are `late` looks old. Each look gives the time used and the time
    /// held, in percent of the 400 ms before it. Returns after how many ms the process is detected.
    fn found(late: usize, looks: &[(u64, u64)]) -> Option<u64> {
        const LOOK: u64 = 400_000_000;
        let (mut audit, mut all) = (LeaseAudit::default(), 0);
        (0..looks.len()).find_map(|at| {
            all += looks[at].1 * 4_000_000;
            let seen = at.checked_sub(late).map_or(0, |at| looks[at].0 * 4_000_000);
            let now = SECOND + at as u64 * LOOK;
            audit.take_reading(Some(held(all)), seen, now, now).is_unleased.then_some(at as u64 * 400)
        })
    }

    #[test]
    fn work_without_leave_is_found_within_three_seconds_and_a_tenth_of_the_device_is_not() {
        for late in 1..=2 {
            assert!(found(late, &[(50, 0); 20]).is_some_and(|ms| ms <= 2_400), "{:?}", found(late, &[(50, 0); 20]));
            assert!(found(late, &[(20, 0); 20]).is_some_and(|ms| ms <= 3_000), "{:?}", found(late, &[(20, 0); 20]));
            assert!(found(late, &[(90, 30); 40]).is_some(), "beside leases of its own");
            assert_eq!(found(late, &[(10, 0); 40]), None, "samples are no more exact than that");
        }
    }

    /// As [`found`], with a process that held the device all the time and reports a part of its work, in percent.
    fn hidden(part: u64, awaited: u64) -> Option<u64> {
        let (mut audit, mut held) = (LeaseAudit::default(), 0);
        (0..20u64).find_map(|look| {
            held += 400_000_000;
            let now = SECOND + look * 400_000_000;
            let had = HeldTime { held, reported: held / 100 * part, awaited };
            let verdict = audit.take_reading(Some(had), if look > 0 { 400_000_000 } else { 0 }, now, now);
            assert!(!verdict.is_unleased, "it holds the device");
            verdict.unreported
        })
    }

    #[test]
    fn work_that_is_not_reported_is_found_unless_its_measurement_may_follow() {
        assert_eq!([100, 97].map(|part| hidden(part, 0)), [None; 2], "samples are no more exact than that");
        let found = [80, 50, 0].map(|part| hidden(part, 0));
        assert!(found.iter().all(|ns| ns.is_some_and(|ns| ns >= 200_000_000)), "{found:?}");
        assert_eq!(hidden(80, BASE.stuck - 1), None, "a long kernel");
        assert!(hidden(80, BASE.stuck).is_some(), "nothing was reported for long");
    }

    #[test]
    fn work_under_leases_is_never_found_however_it_comes_and_goes() {
        for late in 0..=3 {
            for (on, off) in [(1, 1), (1, 9), (3, 3), (10, 2), (2, 10), (40, 1)] {
                let looks: Vec<_> = (0..200).map(|at| if at % (on + off) < on { (100, 100) } else { (0, 0) }).collect();
                assert_eq!(found(late, &looks), None, "{late} late, {on} on {off} off");
            }
        }
    }

    /// Simulates looks of a busy host: the pause before each, and how long after the samples the lease time is read,
    /// both in ms. The process works all of `on` of each `on + off` ms, always under a lease. Samples are `late` ms
    /// behind.
    fn is_accused(late: u64, (on, off): (u64, u64), looks: &[(u64, u64)]) -> bool {
        const MS: u64 = 1_000_000;
        let worked = |at: u64| at / (on + off) * on + (at % (on + off)).min(on);
        let (mut audit, mut now, mut newest) = (LeaseAudit::default(), 10_000, 0);
        looks.iter().any(|(pause, delay)| {
            now += pause;
            let (from, to) = (newest.max((now - late).saturating_sub(1_000)), now - late);
            let seen = (worked(to) - worked(from)) * MS;
            newest = to;
            let sampled = now;
            now += delay;
            let had = held(worked(now) * MS);
            audit.take_reading(Some(had), seen, sampled * MS, now * MS) != AuditVerdict::default()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn an_honest_process_is_never_accused_however_late_a_busy_host_looks(
            late in 0u64..=1_000,
            on in 1u64..3_000,
            off in 0u64..3_000,
            looks in prop::collection::vec(
                (prop_oneof![3 => 100u64..500, 1 => 100u64..4_500], prop_oneof![3 => 0u64..50, 1 => 0u64..4_000]),
                40,
            ),
        ) {
            prop_assert!(!is_accused(late, (on, off), &looks));
        }
    }

    #[test]
    fn what_was_used_while_nobody_counted_is_no_work_without_leave() {
        let mut audit = LeaseAudit::default();
        for look in 0..100u64 {
            let now = SECOND + look * 400_000_000;
            // The process's gate is open for four seconds of each eight; the process works then.
            let had = (look % 20 >= 10).then_some(HeldTime::default());
            let seen = if (2..12).contains(&(look % 20)) { 400_000_000 } else { 0 };
            assert_eq!(audit.take_reading(had, seen, now, now), AuditVerdict::default(), "look {look}");
        }
    }
}
