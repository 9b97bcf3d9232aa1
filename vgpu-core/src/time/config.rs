//! The durations of time sharing. Every other duration in this part of the code is derived from these by name.
//!
//! The daemon's file may set the fields of [`TimeConfig`] under `[time]`; the other durations are fixed. Not here:
//! sizes of tables, and divisors without a unit, which stand next to the rule that uses them.

/// Durations that an administrator may set, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeConfig {
    /// Length of a lease, and of a member's turn without a daemon. Shorter: more switches of 15 us each. Longer: others
    /// wait longer. A lease of class latency is a quarter of it.
    pub quantum: u64,
    /// D: the most estimated work that a process may have queued on the device while a ceiling or a neighbour counts.
    /// Queued work cannot be taken back. At most half a lease, so that the rest of the lease can correct an estimate.
    pub in_flight: u64,
    /// Work in flight below this does not delay the next member: about the time until that one launches. A larger
    /// value costs accuracy: the device may switch to the next member first, and return a slice later.
    pub handover: u64,
    /// R: work in flight may take this much longer than one and a half times its estimate ([`deadline`]). After that,
    /// others are admitted next to it.
    pub drain: u64,
    /// No launch is trusted to take longer than this, and no claim that nothing confirms lasts longer.
    pub stuck: u64,
    /// A class of tenants that is passed over for this long gets a lease.
    pub ageing: u64,
    /// A tenant that was alone for this long may have [`ALONE_IN_FLIGHT_NS`] queued, or needs no lease.
    pub alone: u64,
    /// Interval of the daemon's heartbeat. A member that waits looks again after this time, in any case.
    pub heartbeat: u64,
}

impl TimeConfig {
    /// The values that apply unless the daemon's file sets others, and always without a daemon.
    pub const DEFAULT: Self = Self {
        quantum: 4 * MS,
        in_flight: 2 * MS,
        handover: 40 * US,
        drain: 10 * MS,
        stuck: 2_000 * MS,
        ageing: 1_000 * MS,
        alone: 1_000 * MS,
        heartbeat: 10 * MS,
    };

    /// Until when a drain that begins now may last, with `remaining` work by estimate. The daemon and the member that
    /// drains find the same.
    #[must_use]
    pub const fn allow_drain(&self, now: u64, remaining: u64) -> u64 {
        deadline(now, if remaining < self.stuck { remaining } else { self.stuck }, self.drain)
    }
}

impl Default for TimeConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// [`TimeConfig::DEFAULT`], for rules that the daemon's file does not reach.
pub const BASE: TimeConfig = TimeConfig::DEFAULT;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// The time over which shares are promised: 10 s. A tenant owes at most this much device time. Gangs that wait for each
/// other crosswise share their devices without leases for this long.
pub const PROMISED_OVER_NS: u64 = 10_000 * MS;
/// A ceiling keeps at most this much unused time, times the ceiling.
pub const BURST_NS: u64 = 50 * MS;
/// A launch whose device time is below this counts as short: the launch call itself takes about as long. An
/// undisturbed call takes no longer than this.
pub const SHORT_LAUNCH_NS: u64 = 5 * US;
/// Greatest delay of a driver's sample by NVML's documentation, and the longest time of which one is the mean.
pub const SAMPLE_LAG_NS: u64 = 1_000 * MS;

/// D for a tenant that has had a device to itself for long: 250 ms. A program that computes, or wakes up late, leaves
/// the device idle only after that much work. A tenant that arrives later waits for at most that much, once.
pub const ALONE_IN_FLIGHT_NS: u64 = BASE.alone / 4;
/// An event marker follows this much estimated work: 250 us. A marker costs a record and a query, about a microsecond
/// of the host, so this distance keeps the cost below half a percent.
pub const MARKER_INTERVAL_NS: u64 = small_part(BASE.quantum);
/// A daemon without a heartbeat for this long is gone: 250 ms.
pub const DAEMON_GONE_NS: u64 = 25 * BASE.heartbeat;
/// A member that sees an old heartbeat waits this long for the next one: 50 ms. After a pause of the whole host, the
/// daemon and its members run again at the same moment, and a member may be first.
pub const HOST_RESUME_NS: u64 = DAEMON_GONE_NS / 5;

/// A sixteenth of a duration: the part that is too small to act on.
#[must_use]
pub const fn small_part(ns: u64) -> u64 {
    ns / 16
}

/// True if work took longer than launches of one function differ from each other: a quarter above `expected`.
#[must_use]
pub const fn is_longer(ns: u64, expected: u64) -> bool {
    ns > expected.saturating_add(expected / 4)
}

/// A pause, or work of another stream, up to this length is not worth a change of holder: 100 us, some handovers.
pub const SHORT_NS: u64 = BASE.quantum / 40;

/// Work of known length may be late without a reason. It gets this beyond one and a half times its estimate, so that it
/// is measured alone and nothing is queued behind it. With 10 ms, many kernels of 100 ms were queued behind one of 4
/// us.
pub const KNOWN_WAIT_NS: u64 = 10 * BASE.drain;

/// The time from which work counts as late. It began at `began` and should take `estimate`. It gets half as long again,
/// because launches of one function differ in length, and `drain`.
#[must_use]
pub const fn deadline(began: u64, estimate: u64, drain: u64) -> u64 {
    began.saturating_add(estimate).saturating_add(estimate / 2).saturating_add(drain)
}
