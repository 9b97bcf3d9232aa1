//! A tenant's account on two words of a shared page, so that several processes keep one ceiling.
//!
//! A charge is one compare-exchange on `zero`, so a process that is killed has paid or has not. `latest` is advanced
//! separately. A process that finds it behind or ahead corrects it, so no step waits for another.
//!
//! A third word counts the expired unused time. A member whose work was queued meanwhile takes its part back, by one
//! compare-exchange on that word first. So a stretch is returned once, however many members ask; a process that is
//! killed in between has lost it.
//!
//! A fourth word names a stretch of time that some member already paid for. Members whose kernels are on the device
//! at the same time measure the same time, and the tenant pays for it once: [`SharedAccount::note_paid`].
//!
//! All members must read one clock. Members in time namespaces two seconds or more apart would each take the other's
//! times for a clock that was set back, and forgive each other's debts.

use super::{Account, AccountState, Admission, oldest_zero};
#[cfg(not(loom))]
use crate::memory::ledger::account_zero;
use crate::memory::ledger::{Ledger, LedgerHeader, Member};
use crate::sync::{AtomicU64, Ordering};
use crate::time::config::BASE;
use crate::units::share::Share;

/// A tenant's account in the header of its ledger.
#[derive(Clone, Copy)]
pub struct SharedAccount<'p> {
    zero: &'p AtomicU64,
    latest: &'p AtomicU64,
    forgotten: &'p AtomicU64,
    covered: &'p AtomicU64,
}

/// When work was queued on the device, and how much time had expired by then. `Default`: since time zero, when
/// nothing had expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkStart {
    since: u64,
    forgotten: u64,
}

/// Precision of [`PaidStretch`]: 9 years of uptime fit.
const STRETCH_UNIT_NS: u64 = 1 << 14;
/// Bits of a [`PaidStretch`] that hold its length: up to 17 s.
const STRETCH_LENGTH_BITS: u32 = 20;

/// A stretch of time in one word: its end, and in the low bits its length, both in [`STRETCH_UNIT_NS`]. 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PaidStretch(u64);

impl PaidStretch {
    fn from_bounds(from: u64, to: u64) -> Self {
        let end = to / STRETCH_UNIT_NS;
        Self(
            end << STRETCH_LENGTH_BITS | end.saturating_sub(from / STRETCH_UNIT_NS).min((1 << STRETCH_LENGTH_BITS) - 1),
        )
    }

    fn to_bounds(self) -> (u64, u64) {
        let (end, length) = (self.0 >> STRETCH_LENGTH_BITS, self.0 & ((1 << STRETCH_LENGTH_BITS) - 1));
        (end.saturating_sub(length) * STRETCH_UNIT_NS, end * STRETCH_UNIT_NS)
    }

    /// The union of both where they touch, else `new`.
    fn merge_or_replace(self, new: Self) -> Self {
        let ((from, to), (new_from, new_to)) = (self.to_bounds(), new.to_bounds());
        if new_from > to || from > new_to { new } else { Self::from_bounds(from.min(new_from), to.max(new_to)) }
    }
}

impl<'p> SharedAccount<'p> {
    fn new(header: &'p LedgerHeader) -> Self {
        Self {
            zero: &header.account_zero,
            latest: &header.account_latest,
            forgotten: &header.account_forgotten,
            covered: &header.account_covered,
        }
    }

    fn load_state(&self) -> AccountState {
        AccountState { zero: self.zero.load(Ordering::Acquire), latest: self.latest.load(Ordering::Acquire) }
    }

    /// Decides whether work may be launched at `now`: yes while the balance is positive.
    ///
    /// # Cost
    /// Two loads.
    #[inline]
    #[must_use]
    pub fn admit_launch(&self, now: u64) -> Admission {
        self.load_state().admission_at(now)
    }

    /// As [`Self::admit_launch`], with the balance reduced by `pending` ns that will be charged later.
    ///
    /// # Cost
    /// Two loads; a division only if the account does not admit a launch.
    #[inline]
    #[must_use]
    pub fn admit_beside(&self, pending: u64, share: Share, now: u64) -> Admission {
        self.load_state().admission_beside(pending, share, now)
    }

    /// Charges `ns` of device time that was used up to `now`, at the rate of `share`.
    ///
    /// # Cost
    /// One compare-exchange, repeated only if another member paid at the same moment.
    pub fn charge(&self, ns: u64, share: Share, now: u64) {
        self.apply_charge(ns, share, now.saturating_sub(ns), now);
    }

    /// Notes that work is queued on the device at `now`, and expires unused time beyond one burst.
    ///
    /// # Cost
    /// Two loads; one compare-exchange and one addition if there is something to expire.
    #[must_use]
    pub fn begin_work(&self, now: u64) -> WorkStart {
        self.forget_unused(now);
        WorkStart { since: now, forgotten: self.forgotten.load(Ordering::Acquire) }
    }

    /// Charges `ns` of device time for work that was queued since `engaged`, until `now`. Returns the time that other
    /// members expired meanwhile: the tenant was not idle.
    pub fn charge_since(&self, ns: u64, share: Share, engaged: WorkStart, now: u64) {
        let taken = self.forgotten.fetch_update(Ordering::AcqRel, Ordering::Acquire, |forgotten| {
            (forgotten > engaged.forgotten).then_some(engaged.forgotten)
        });
        if let Ok(forgotten) = taken {
            let back = forgotten - engaged.forgotten;
            let _ = self.zero.fetch_update(Ordering::AcqRel, Ordering::Acquire, |zero| Some(zero.saturating_sub(back)));
        }
        // If the clock was set back meanwhile, the work cannot have begun later than now.
        self.apply_charge(ns, share, engaged.since.min(now), now);
    }

    /// Notes that the caller pays for the time from `from` to `to`. Returns the stretch that was noted before; other
    /// members pay for its overlap with the caller's.
    ///
    /// One stretch is kept, and replaced by a later one that does not overlap it. So some time may be paid for twice.
    /// None is left out, except for 16 us at each end, and for the stretch of a member that is killed before it pays.
    ///
    /// # Cost
    /// One compare-exchange, repeated only if another member notes a stretch at the same moment.
    #[must_use]
    pub fn note_paid(&self, from: u64, to: u64) -> (u64, u64) {
        let new = PaidStretch::from_bounds(from, to);
        let note = |old| Some(PaidStretch(old).merge_or_replace(new).0);
        let old = self.covered.fetch_update(Ordering::AcqRel, Ordering::Acquire, note);
        PaidStretch(old.unwrap_or(0)).to_bounds()
    }

    /// Expires unused time up to one burst before `since`.
    fn forget_unused(&self, since: u64) {
        let oldest = oldest_zero(since);
        let cut = self.zero.fetch_update(Ordering::AcqRel, Ordering::Acquire, |zero| (zero < oldest).then_some(oldest));
        if let Ok(zero) = cut {
            self.forgotten.fetch_add(oldest - zero, Ordering::AcqRel);
        }
    }

    fn apply_charge(&self, ns: u64, share: Share, since: u64, now: u64) {
        let latest = self.latest.load(Ordering::Acquire);
        // The closure never declines. If the clock was set back, every member that has not yet seen the new `latest`
        // starts from zero again: a charge may be forgiven, but no member waits for days.
        let paid = self.zero.fetch_update(Ordering::AcqRel, Ordering::Acquire, |zero| {
            Some(AccountState { zero, latest }.charged_since(ns, share, since, now).zero)
        });
        if let Ok(zero) = paid
            && let cut @ 1.. = oldest_zero(since).saturating_sub(zero)
            && (AccountState { zero, latest }).on_clock(now).zero == zero
        {
            self.forgotten.fetch_add(cut, Ordering::AcqRel);
        }
        let seen = AccountState { zero: 0, latest }.on_clock(now).latest;
        // Written once a heartbeat: it only has to distinguish seconds, and each write costs the other members time.
        if seen < latest || seen > latest.saturating_add(BASE.heartbeat) {
            // If another member's newer view wins, that serves as well.
            let _ = self.latest.compare_exchange(latest, seen, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Device time that could be used at once; negative is debt.
    #[must_use]
    pub fn balance_at(&self, share: Share, now: u64) -> i64 {
        self.load_state().balance_at(share, now)
    }

    /// A copy that no longer follows the page, for a forked child or a lost page.
    #[must_use]
    pub fn take_snapshot(&self) -> Account {
        Account { state: self.load_state() }
    }
}

impl<'p> Ledger<'p> {
    /// The tenant's ceiling on device time.
    #[must_use]
    pub fn time_account(&self) -> SharedAccount<'p> {
        SharedAccount::new(self.header)
    }
}

impl<'p> Member<'p> {
    /// The tenant's ceiling on device time, in this ledger's header.
    #[must_use]
    pub fn time_account(&self) -> SharedAccount<'p> {
        self.ledger.time_account()
    }
}

/// True if the bytes are the beginning of a ledger whose time account equals a new one at `now`: the tenant has no
/// debt, and its unused time is older than one burst.
#[cfg(not(loom))]
#[must_use]
pub fn is_settled(bytes: &[u8], now: u64) -> bool {
    account_zero(bytes).is_some_and(|zero| zero <= oldest_zero(now))
}
