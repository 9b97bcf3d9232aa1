//! Since when a process has had work queued on the device without a pause. That time keeps its unused share from
//! expiring.
//!
//! An account keeps unused time beyond one burst only while work was really queued on the device, or while another
//! member's turn kept it away. A program that queues work sees completions late, and rarely finds nothing in flight
//! unless a thread of it waits. So a look that finds nothing in flight starts a new period, whether a thread waits or
//! not. After a pause of [`BASE`]`.heartbeat` in the looks the count of work in flight is stale. The caller must first
//! find out what has completed. If it cannot, it says that nothing is in flight.
//!
//! Not here: how unused time expires ([`crate::time::account`]), the work in flight ([`super::LaunchGate`]).

use crate::time::account::{SharedAccount, WorkStart};
use crate::time::config::BASE;

/// The start of the current period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    since: WorkStart,
    /// Another member's turn kept this process away until then.
    away: u64,
}

impl Presence {
    /// The start of the period for the work that is charged now.
    #[must_use]
    pub const fn engaged_since(&self) -> WorkStart {
        self.since
    }

    /// Notes that a launch is considered at `now`, with this much work in flight.
    ///
    /// # Cost
    /// A comparison where something is in flight, else [`SharedAccount::begin_work`].
    #[inline]
    pub fn note_look(&mut self, account: SharedAccount<'_>, in_flight: u64, now: u64) {
        if in_flight == 0 && now > self.away {
            self.since = account.begin_work(now);
        }
    }

    /// Notes that another member's turn holds back a launch, which asks again at `until`.
    pub fn is_kept_away(&mut self, until: u64) {
        self.away = until.saturating_add(BASE.heartbeat);
    }

    /// Notes that a launch goes, or that none is wanted any more.
    #[inline]
    pub fn is_there(&mut self) {
        self.away = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::ledger::LedgerPage;
    use crate::time::account::Admission;
    use crate::time::config::BURST_NS;
    use crate::units::share::Share;

    const MS: u64 = 1_000_000;
    const START: u64 = 3_600_000 * MS;

    fn percent(n: u32) -> Share {
        Share::from_percent(n).unwrap()
    }

    /// Simulates a program under a ceiling that queues kernels of 5 ms: one runs, and a thread waits to launch the
    /// next. For 1.2 s the host lets that thread run only every 50 ms; it finds everything complete each time.
    /// Returns the device time used in the following second.
    fn after_starvation(share: Share) -> u64 {
        let page = LedgerPage::zeroed();
        let account = page.as_ledger().time_account();
        let (mut presence, mut now, mut used) = (Presence::default(), START, 0);
        while now < START + 2_200 * MS {
            let starved = now < START + 1_200 * MS;
            presence.note_look(account, 0, now);
            if let Admission::WaitUntil(then) = account.admit_launch(now) {
                now = then;
                continue;
            }
            if !starved {
                used += 5 * MS;
            }
            now += if starved { 50 * MS } else { 5 * MS };
            account.charge_since(5 * MS, share, presence.engaged_since(), now);
        }
        used
    }

    #[test]
    fn a_thread_that_waits_and_wakes_late_keeps_one_burst() {
        for limit in [30, 50, 80] {
            let share = percent(limit);
            let most = share.part_of(1_000 * MS) + share.part_of(BURST_NS) + 10 * MS;
            let used = after_starvation(share);
            assert!(used <= most, "{limit} %: {used} of {most}");
        }
    }

    #[test]
    fn work_that_stays_before_the_device_forgets_nothing() {
        let page = LedgerPage::zeroed();
        let account = page.as_ledger().time_account();
        let mut presence = Presence::default();
        presence.note_look(account, 0, START);
        // Next to neighbours its work runs for a second and uses 100 ms of device time.
        presence.note_look(account, 100 * MS, START + 500 * MS);
        account.charge_since(100 * MS, percent(50), presence.engaged_since(), START + 1_000 * MS);
        account.charge_since(400 * MS, percent(50), presence.engaged_since(), START + 1_000 * MS);
        assert_eq!(account.admit_launch(START + 1_000 * MS), Admission::Admit);
    }

    #[test]
    fn somebody_elses_turn_forgets_nothing_and_a_pause_in_it_does() {
        for (late, kept) in [(0, true), (1_000 * MS, false)] {
            let page = LedgerPage::zeroed();
            let account = page.as_ledger().time_account();
            let mut presence = Presence::default();
            presence.note_look(account, 0, START);
            let mut now = START;
            while now < START + 500 * MS {
                presence.is_kept_away(now + 10 * MS);
                now += 10 * MS;
                presence.note_look(account, 0, now);
            }
            now += late;
            presence.note_look(account, 0, now);
            presence.is_there();
            account.charge_since(100 * MS, percent(50), presence.engaged_since(), now);
            let is_left = account.admit_launch(now) == Admission::Admit;
            assert_eq!(is_left, kept, "{late}");
        }
    }
}
