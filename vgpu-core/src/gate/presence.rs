//! Since when a process has work before the device without a pause: what it has left unused since then is not forgotten.
//!
//! Unused time is kept beyond one burst only while work really was before the device, or while somebody else's turn kept it
//! away. A queueing program sees its work complete late, and seldom finds nothing in flight but when a thread of it waits:
//! so whoever finds nothing in flight any more begins anew, whether a thread waits or not. And after a pause in the
//! looks themselves what is in flight says nothing: whoever asks must find out first what of it is over.
//!
//! Not here: what is forgotten ([`crate::account`]), what is in flight ([`super::Keeper`]).

use crate::account::{Engaged, SharedAccount};

/// After so long without a look, what is in flight is to be found out anew.
pub const PAUSE_NS: u64 = 5_000_000;
/// Who waits for somebody else's turn looks again at a known moment; later than that by so much, it was not the turn that
/// kept it.
const LATE_NS: u64 = 10_000_000;

/// Since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    since: Engaged,
    /// Kept away by somebody else's turn until then.
    away: u64,
}

impl Presence {
    /// What is charged was before the device since then.
    #[must_use]
    pub const fn since(&self) -> Engaged {
        self.since
    }

    /// A launch is considered at `now`, beside so much in flight.
    ///
    /// # Cost
    /// A comparison where something is in flight, else [`SharedAccount::begin`].
    #[inline]
    pub fn look(&mut self, account: SharedAccount<'_>, in_flight: u64, now: u64) {
        if in_flight == 0 && now > self.away {
            self.since = account.begin(now);
        }
    }

    /// A launch is held back by somebody else's turn, and will look again at `until`.
    pub fn is_kept_away(&mut self, until: u64) {
        self.away = until.saturating_add(LATE_NS);
    }

    /// A launch goes, or none is wanted any more.
    #[inline]
    pub fn is_there(&mut self) {
        self.away = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::account::{Admission, BURST_NS};
    use crate::ledger::LedgerPage;
    use crate::share::Share;

    const MS: u64 = 1_000_000;
    const START: u64 = 3_600_000 * MS;

    fn percent(n: u32) -> Share {
        Share::from_percent(n).unwrap()
    }

    /// A program that queues kernels of 5 ms under a ceiling: one runs, a thread waits to launch the next. For 1.2 s
    /// the host lets it look every 50 ms only, and it finds everything complete each time. Returns what it then uses in
    /// the second after.
    fn after_starvation(share: Share) -> u64 {
        let page = LedgerPage::zeroed();
        let account = page.ledger().account();
        let (mut presence, mut now, mut used) = (Presence::default(), START, 0);
        while now < START + 2_200 * MS {
            let starved = now < START + 1_200 * MS;
            presence.look(account, 0, now);
            if let Admission::WaitUntil(then) = account.admit(now) {
                now = then;
                continue;
            }
            if !starved {
                used += 5 * MS;
            }
            now += if starved { 50 * MS } else { 5 * MS };
            account.charge_since(5 * MS, share, presence.since(), now);
        }
        used
    }

    #[test]
    fn a_thread_that_waits_and_wakes_late_keeps_one_burst() {
        for limit in [30, 50, 80] {
            let share = percent(limit);
            let most = share.of(1_000 * MS) + share.of(BURST_NS) + 10 * MS;
            let used = after_starvation(share);
            assert!(used <= most, "{limit} %: {used} of {most}");
        }
    }

    #[test]
    fn work_that_stays_before_the_device_forgets_nothing() {
        let page = LedgerPage::zeroed();
        let account = page.ledger().account();
        let mut presence = Presence::default();
        presence.look(account, 0, START);
        // Beside neighbours it runs for a second, and used 100 ms of it.
        presence.look(account, 100 * MS, START + 500 * MS);
        account.charge_since(100 * MS, percent(50), presence.since(), START + 1_000 * MS);
        account.charge_since(400 * MS, percent(50), presence.since(), START + 1_000 * MS);
        assert_eq!(account.admit(START + 1_000 * MS), Admission::Admit);
    }

    #[test]
    fn somebody_elses_turn_forgets_nothing_and_a_pause_in_it_does() {
        for (late, kept) in [(0, true), (1_000 * MS, false)] {
            let page = LedgerPage::zeroed();
            let account = page.ledger().account();
            let mut presence = Presence::default();
            presence.look(account, 0, START);
            let mut now = START;
            while now < START + 500 * MS {
                presence.is_kept_away(now + 10 * MS);
                now += 10 * MS;
                presence.look(account, 0, now);
            }
            now += late;
            presence.look(account, 0, now);
            presence.is_there();
            account.charge_since(100 * MS, percent(50), presence.since(), now);
            let is_left = account.admit(now) == Admission::Admit;
            assert_eq!(is_left, kept, "{late}");
        }
    }
}
