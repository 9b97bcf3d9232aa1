//! The ceiling on device time: an account that refills with time, is charged measured device time, and may go into
//! debt.
//!
//! The whole state is one word, `zero`: the time at which the balance is zero, in the past or in the future. The
//! balance is the distance from `zero`, at the rate of the limit:
//!
//! ```text
//! balance(now) = min(50 ms, now - zero) x limit        negative while zero lies ahead: debt
//! charge(ns)     zero = max(zero, now - ns - 50 ms) + ns / limit
//! admit          balance > 0, else wait until just after zero
//! ```
//!
//! Unused time beyond 50 ms expires. But the time in which the work itself ran was not unused: hence `now - ns`.
//! Without it a kernel of 1 s under 80 % would get 45 %. The textbook form, `balance = min(depth, balance + limit x
//! dt) - charged`, caps at the wrong time: by the time a kernel of 1 s is charged, all but 50 ms of the refill while
//! it ran is gone.
//!
//! `ns` is how long the work ran only if nothing else ran meanwhile. Work that waited for a neighbour's kernel, or
//! for another member of the same tenant, was queued for longer than it used the device. And a member that charges
//! short kernels would expire time in which another member's long kernel runs. So a charge can count from the time at
//! which the work was queued. [`SharedAccount::begin_work`] notes that time, and [`SharedAccount::charge_since`]
//! returns the time that other members expired since; each expired stretch is returned once. A caller that knows when
//! its tenant is idle says so itself: [`Account::note_idle`], then [`Account::pay_exactly`].
//!
//! So refilling needs no action, and nothing can be lost between two steps. Processes that share the word share the
//! ceiling with a single compare-exchange ([`SharedAccount`]); each is charged at the rate of its own limit. A kernel
//! is charged after it ran, whatever its length. Time is kept in sixteenths of a nanosecond, so that the remainder of
//! `ns / limit` is carried, not dropped.
//!
//! A second word, `latest`, is the latest time seen. If a caller's clock is more than [`BASE`]`.stuck` before it, the
//! clock was set back (a file that outlived a reboot). The balance then starts from zero instead of a debt of days.
//! `latest` decides nothing else.
//!
//! Unexpected time is paid off in parts: [`arrears`].
//!
//! Not here: the estimated cost of a kernel ([`cost`]), the measurements (libvgpu's meter), the choice of who runs.

pub mod arrears;
pub mod cost;
pub mod lead;
mod shared;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
pub use shared::is_settled;
pub use shared::{SharedAccount, WorkStart};

use crate::time::config::{BASE, BURST_NS};
use crate::units::share::Share;

/// Ticks per nanosecond: in sixteenths of a nanosecond, 36 years of uptime fit into a word.
pub(crate) const TICKS_PER_NS: u64 = 16;

/// The account's answer to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The launch may go now.
    Admit,
    /// Not before this time (nanoseconds, same clock as `now`).
    WaitUntil(u64),
}

/// A balance of device time in private memory; [`SharedAccount`] is the one in the ledger. The balance of `Default` is
/// full from one burst (50 ms of clock time) on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    state: AccountState,
}

/// The two words; every rule is a pure function of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AccountState {
    zero: u64,
    latest: u64,
}

impl AccountState {
    /// The same state of the account on a clock that shows `now`.
    fn on_clock(self, now: u64) -> Self {
        if now.saturating_add(BASE.stuck) < self.latest {
            // Just above zero. At zero the answer would be "wait", nothing would be charged, and `latest` would never
            // be updated.
            return Self { zero: to_ticks(now).saturating_sub(1), latest: now };
        }
        Self { zero: self.zero, latest: self.latest.max(now) }
    }

    fn after_charge(self, ns: u64, share: Share, now: u64) -> Self {
        self.charged_since(ns, share, now.saturating_sub(ns), now)
    }

    /// Charges work that has been queued since `since`: unused time expires only up to there.
    fn charged_since(self, ns: u64, share: Share, since: u64, now: u64) -> Self {
        let here = self.on_clock(now);
        let oldest = oldest_zero(since);
        Self { zero: here.zero.max(oldest).saturating_add(wall_ticks(ns, share)), latest: here.latest }
    }

    fn admission_at(self, now: u64) -> Admission {
        let here = self.on_clock(now);
        if here.zero < to_ticks(now) {
            return Admission::Admit;
        }
        Admission::WaitUntil((here.zero / TICKS_PER_NS).saturating_add(1))
    }

    /// As [`AccountState::admission_at`], with the balance reduced by `pending` ns. A yes needs no division.
    #[inline]
    fn admission_beside(self, pending: u64, share: Share, now: u64) -> Admission {
        let here = self.on_clock(now);
        let permille = u64::from(share.as_permille());
        // floor(x / permille) < room, for the rounding of `wall_ticks`.
        let need = pending.saturating_mul(1000 * TICKS_PER_NS).saturating_add(permille / 2);
        if need < to_ticks(now).saturating_sub(here.zero).saturating_mul(permille) {
            return Admission::Admit;
        }
        AccountState { zero: here.zero.saturating_add(wall_ticks(pending, share)), ..here }.admission_at(now)
    }

    fn balance_at(self, share: Share, now: u64) -> i64 {
        let here = self.on_clock(now);
        let now = to_ticks(now);
        let part = |distance: u64| i64::try_from(share.part_of(distance / TICKS_PER_NS)).unwrap_or(i64::MAX);
        if here.zero <= now { part((now - here.zero).min(to_ticks(BURST_NS))) } else { -part(here.zero - now) }
    }
}

/// The earliest value of `zero` that a tenant idle until `since` may have.
pub(crate) fn oldest_zero(since: u64) -> u64 {
    to_ticks(since.saturating_sub(BURST_NS))
}

fn to_ticks(ns: u64) -> u64 {
    ns.saturating_mul(TICKS_PER_NS)
}

/// Wall time in which a share refills `ns` of device time, to the nearest tick.
fn wall_ticks(ns: u64, share: Share) -> u64 {
    let permille = u128::from(share.as_permille());
    let exact = u128::from(ns) * 1000 * u128::from(TICKS_PER_NS) + permille / 2;
    u64::try_from(exact / permille).unwrap_or(u64::MAX)
}

impl Account {
    /// An account that holds `ns` of device time at `now`, at the rate of `share`.
    #[must_use]
    pub fn with_balance(ns: u64, share: Share, now: u64) -> Self {
        Self { state: AccountState { zero: to_ticks(now).saturating_sub(wall_ticks(ns, share)), latest: now } }
    }

    /// The whole state, for a page of shared memory.
    pub(crate) const fn as_words(&self) -> [u64; 2] {
        [self.state.zero, self.state.latest]
    }

    /// The account that [`Self::as_words`] returned.
    pub(crate) const fn from_words([zero, latest]: [u64; 2]) -> Self {
        Self { state: AccountState { zero, latest } }
    }

    /// Decides whether work may be launched at `now`: yes while the balance is positive.
    #[must_use]
    pub fn admit_launch(&self, now: u64) -> Admission {
        self.state.admission_at(now)
    }

    /// As [`Self::admit_launch`], with the balance reduced by `pending` ns that will be charged later.
    #[must_use]
    pub fn admit_beside(&self, pending: u64, share: Share, now: u64) -> Admission {
        self.state.admission_beside(pending, share, now)
    }

    /// Charges `ns` of device time that was used up to `now`, at the rate of `share`.
    pub fn charge(&mut self, ns: u64, share: Share, now: u64) {
        self.state = self.state.after_charge(ns, share, now);
    }

    /// The tenant was idle until `until`, which may be long ago: expires its unused time of then, beyond one burst.
    pub fn note_idle(&mut self, until: u64) {
        self.state.zero = self.state.zero.max(oldest_zero(until));
    }

    /// Charges `ns` and lets no unused time expire: for a caller that reports with [`Self::note_idle`] when the tenant
    /// was idle.
    pub fn pay_exactly(&mut self, ns: u64, share: Share) {
        self.state.zero = self.state.zero.saturating_add(wall_ticks(ns, share));
    }

    /// Device time that could be used at once; negative is debt.
    #[must_use]
    pub fn balance_at(&self, share: Share, now: u64) -> i64 {
        self.state.balance_at(share, now)
    }

    /// When the balance will reach `ns`; in the past if it has more already. Waiting yields at most one burst.
    #[must_use]
    pub fn when_balance_is(&self, ns: u64, share: Share) -> u64 {
        let need = wall_ticks(ns, share).min(to_ticks(BURST_NS));
        (self.state.zero.saturating_add(need) / TICKS_PER_NS).saturating_add(1)
    }
}
