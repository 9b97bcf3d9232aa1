//! Rate limit for a tenant's bell: a hostile tenant that rings all day costs the daemon no more than this.
//!
//! A ring that is too early is not lost but answered later. Until then the daemon does not listen to the bell;
//! afterwards it reads the tenant's launch requests. It reads the words of all members of the tenant, so a ring of a
//! tenant with many members uses more of the allowance. Not here: the eventfd.

/// When the daemon reads a tenant's launch requests after a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOutcome {
    /// Read the launch requests now.
    Now,
    /// Read them at this time, in nanoseconds; do not listen until then.
    At(u64),
}

/// The rate limit of one tenant's bell: a token bucket, stored as the time at which the bucket is full again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    interval: u64,
    burst: u64,
    full: u64,
}

/// Rings answered immediately after a pause: enough for every member of a busy tenant.
const BURST_RINGS: u64 = 64;
/// Time per further ring, in nanoseconds: 4000 rings a second, 16 times the need of handovers every 4 ms.
const RING_INTERVAL_NS: u64 = 250_000;
/// Members whose words one token pays for.
const MEMBERS_PER_RING: u64 = 128;

impl Default for Bell {
    fn default() -> Self {
        Self::new(RING_INTERVAL_NS, BURST_RINGS)
    }
}

impl Bell {
    /// Answers `burst` rings immediately, and one more every `interval` ns. Both are at least 1.
    #[must_use]
    pub const fn new(interval: u64, burst: u64) -> Self {
        let interval = if interval == 0 { 1 } else { interval };
        Self { interval, burst: if burst == 0 { 1 } else { burst }, full: 0 }
    }

    /// Answers a ring at `now`.
    pub const fn hear_ring(&mut self, now: u64) -> RingOutcome {
        self.rings_for(1, now)
    }

    /// Answers a ring at `now`, of a tenant with this number of members.
    pub const fn rings_for(&mut self, members: usize, now: u64) -> RingOutcome {
        let price = (members as u64).div_ceil(MEMBERS_PER_RING);
        // At most the whole bucket, or the ring would never be answered.
        let price = if price > self.burst { self.burst } else { price };
        let begin = if self.full > now { self.full } else { now };
        let full = begin.saturating_add(self.interval.saturating_mul(if price == 0 { 1 } else { price }));
        let room = self.interval.saturating_mul(self.burst);
        if full.saturating_sub(now) <= room {
            self.full = full;
            return RingOutcome::Now;
        }
        RingOutcome::At(full.saturating_sub(room))
    }
}
