//! How often a tenant's bell is heard: a hostile one may ring all day and costs no more than this.
//!
//! A ring that comes too early is not lost, only answered later: the daemon leaves the bell alone until then, and looks
//! at the tenant's wishes after it listens again. A look reads the words of all the tenant's members, so that a ring of
//! many costs more of the allowance. Not here: the eventfd.

/// What is done about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Look at the wishes.
    Now,
    /// The same at this moment; do not listen until then.
    At(u64),
}

/// One tenant's bell. A bucket of rings that refills with time, kept as the moment at which it would be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    interval: u64,
    burst: u64,
    full: u64,
}

/// Rings that are heard at once after a pause: every member of a busy tenant.
const BURST: u64 = 64;
/// Time in which one more ring is heard, in nanoseconds: 4000 a second, 16 times what handovers of 4 ms need.
const INTERVAL: u64 = 250_000;
/// Members whose words are read for the price of one ring.
const EACH: u64 = 128;

impl Default for Bell {
    fn default() -> Self {
        Self::new(INTERVAL, BURST)
    }
}

impl Bell {
    /// `burst` rings are heard at once, and one more every `interval` ns; neither is less than 1.
    #[must_use]
    pub const fn new(interval: u64, burst: u64) -> Self {
        let interval = if interval == 0 { 1 } else { interval };
        Self { interval, burst: if burst == 0 { 1 } else { burst }, full: 0 }
    }

    /// The bell rings at `now`.
    pub const fn rings(&mut self, now: u64) -> Heard {
        self.rings_for(1, now)
    }

    /// The bell of so many members rings at `now`.
    pub const fn rings_for(&mut self, members: usize, now: u64) -> Heard {
        let price = (members as u64).div_ceil(EACH);
        // Never more than there is room for, or it would never be heard.
        let price = if price > self.burst { self.burst } else { price };
        let begin = if self.full > now { self.full } else { now };
        let full = begin.saturating_add(self.interval.saturating_mul(if price == 0 { 1 } else { price }));
        let room = self.interval.saturating_mul(self.burst);
        if full.saturating_sub(now) <= room {
            self.full = full;
            return Heard::Now;
        }
        Heard::At(full.saturating_sub(room))
    }
}
