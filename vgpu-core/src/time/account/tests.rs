//! The account's promises.

use proptest::prelude::*;

use super::*;
use crate::memory::ledger::LedgerPage;

const MS: u64 = 1_000_000;

fn percent(percent: u32) -> Share {
    Share::from_percent(percent).unwrap()
}

/// Launches kernels of `kernel` ns back to back whenever the account admits, for `span` ns; returns the time used.
fn busy(account: &mut Account, share: Share, kernel: u64, start: u64, span: u64) -> u64 {
    let (mut now, mut used) = (start, 0);
    while now < start + span {
        match account.admit_launch(now) {
            Admission::Admit => {
                now += kernel;
                account.charge(kernel, share, now);
                used += kernel;
            }
            Admission::WaitUntil(then) => {
                assert!(then > now, "a wait is never for the past");
                now = then;
            }
        }
    }
    used
}

/// How much of `from..to` the caller pays for, and how much another member does.
fn paid(account: SharedAccount<'_>, from: u64, to: u64) -> (u64, u64) {
    let (begin, end) = account.note_paid(from, to);
    let beside = end.min(to).saturating_sub(begin.max(from));
    (to - from - beside, beside)
}

#[test]
fn time_that_two_members_measure_at_once_is_paid_for_once() {
    let page = LedgerPage::zeroed();
    let account = page.as_ledger().time_account();
    let about = |(own, beside): (u64, u64)| ((own + MS / 2) / MS, (beside + MS / 2) / MS);
    let at = |ms: u64| 3_600_000 * MS + ms * MS;
    assert_eq!(about(paid(account, at(100), at(400))), (300, 0));
    assert_eq!(about(paid(account, at(200), at(450))), (50, 200), "began later, ended later");
    assert_eq!(about(paid(account, at(50), at(500))), (100, 350), "began sooner, ended later");
    assert_eq!(about(paid(account, at(600), at(700))), (100, 0), "apart from it");
    assert_eq!(about(paid(account, at(50), at(500))), (450, 0), "forgotten: paid for again, never left out");
    assert_eq!(about(paid(account, at(0), at(20_000))), (19_550, 450));
}

/// Two jobs with a rank on each of two devices. While one device's account is in debt, the kernels of both ranks on
/// the other device wait there, at the same time. Returns how long that is after ten such waits.
fn wait_after_ten(pays_once: bool) -> u64 {
    let (pages, share) = ([LedgerPage::zeroed(), LedgerPage::zeroed()], percent(60));
    let accounts = [0, 1].map(|device: usize| pages[device].as_ledger().time_account());
    let (mut now, mut wait) = (3_600_000 * MS, 0);
    accounts[0].charge(200 * MS, share, now);
    for round in 0..10 {
        let (poor, other) = (accounts[round % 2], accounts[1 - round % 2]);
        let Admission::WaitUntil(to) = poor.admit_launch(now) else { return 0 };
        for late in [0, 3 * MS] {
            let since = other.begin_work((now + late).min(to));
            let (own, beside) = paid(other, (now + late).min(to), to);
            other.charge_since(if pays_once { own } else { own + beside }, share, since, to);
        }
        (now, wait) = (to, to - now);
    }
    wait
}

#[test]
fn a_debt_on_one_of_two_devices_does_not_come_back_greater_from_the_other() {
    let (once, twice) = (wait_after_ten(true), wait_after_ten(false));
    assert!(once < MS, "{once}");
    assert!(twice > 1_000 * MS, "the null control: {twice}");
}

#[test]
fn a_fresh_account_admits_at_once_and_holds_one_burst() {
    let account = Account::default();
    let now = 3_600_000 * MS;
    assert_eq!(account.admit_launch(now), Admission::Admit);
    assert_eq!(account.balance_at(percent(30), now), 15_000_000, "50 ms times the limit");
}

#[test]
fn shares_are_exact_for_kernels_of_any_length() {
    for share in [1, 10, 30, 50, 80, 99] {
        for kernel in [50_000, MS, 5 * MS, 200 * MS, 1_000 * MS] {
            let mut account = Account::default();
            let span = 2_000 * kernel.max(50 * MS);
            let used = busy(&mut account, percent(share), kernel, 3_600_000 * MS, span);
            let due = percent(share).part_of(span);
            let slack = kernel + percent(share).part_of(BURST_NS);
            assert!(used + kernel >= due && used <= due + slack, "{share} % of {span} in {kernel}: {used}, due {due}");
        }
    }
}

#[test]
fn a_long_kernel_is_paid_for_afterwards() {
    let mut account = Account::default();
    let now = 3_600_000 * MS;
    account.charge(1_000 * MS, percent(10), now);
    // 1 s of device time at 10 % is 10 s, less the second it ran and the burst of 50 ms that was there.
    assert_eq!(account.admit_launch(now), Admission::WaitUntil(now + 8_950 * MS + 1));
    assert_eq!(account.balance_at(percent(10), now), -895_000_000);
    assert_eq!(
        account.admit_launch(now + 8_950 * MS),
        Admission::WaitUntil(now + 8_950 * MS + 1),
        "nil is not positive"
    );
    assert_eq!(account.admit_launch(now + 8_950 * MS + 1), Admission::Admit);
}

#[test]
fn idle_time_is_kept_for_one_burst_only() {
    let mut account = Account::default();
    let now = 3_600_000 * MS;
    account.charge(MS, percent(50), now);
    let later = now + 60_000 * MS;
    assert_eq!(account.balance_at(percent(50), later), 25_000_000);
    // Work of 50 ms that began with that burst, while 25 ms were refilled.
    account.charge(50 * MS, percent(50), later + 50 * MS);
    assert_eq!(account.balance_at(percent(50), later + 50 * MS), 0);
}

#[test]
fn remainders_are_carried() {
    let mut account = Account::default();
    let share = Share::from_permille(333).unwrap();
    let now = 3_600_000 * MS;
    account.charge(BURST_NS / 1000 * 333, share, now);
    let before = account.balance_at(share, now);
    for _ in 0..1_000_000 {
        account.charge(1_000, share, now);
    }
    let paid = before - account.balance_at(share, now);
    assert!((paid - 1_000_000_000).abs() <= 10_000, "a million microseconds cost {paid} ns, not one second");
}

#[test]
fn a_clock_that_was_set_back_starts_from_nil() {
    let mut account = Account::default();
    let yesterday = 86_400_000 * MS;
    account.charge(MS, percent(30), yesterday);
    let today = 5_000 * MS;
    assert_eq!(account.admit_launch(today), Admission::Admit, "nobody waits for a day that is over");
    assert!(account.balance_at(percent(30), today).abs() < 10);
    account.charge(30 * MS, percent(30), today);
    assert_eq!(account.admit_launch(today), Admission::WaitUntil(today + 100 * MS), "and from then on as ever");
}

#[test]
fn a_clock_that_is_a_little_late_changes_nothing() {
    let mut account = Account::default();
    let now = 3_600_000 * MS;
    account.charge(30 * MS, percent(30), now);
    let Admission::WaitUntil(then) = account.admit_launch(now) else { panic!("in debt") };
    // A thread read the clock and was held up for 900 ms.
    assert_eq!(account.admit_launch(now - 900 * MS), Admission::WaitUntil(then));
    account.charge(0, percent(30), now - 900 * MS);
    assert_eq!(account.admit_launch(now), Admission::WaitUntil(then));
}

#[test]
fn numbers_at_the_end_of_the_range_neither_panic_nor_wrap() {
    let mut account = Account::default();
    for now in [0, 1, u64::MAX / 16, u64::MAX] {
        for ns in [0, 1, u64::MAX] {
            account.charge(ns, Share::from_permille(1).unwrap(), now);
            let _ = account.balance_at(Share::WHOLE_DEVICE, now);
            if let Admission::WaitUntil(then) = account.admit_launch(now) {
                assert!(then > 0);
            }
        }
    }
}

#[test]
fn members_of_a_tenant_share_one_ceiling() {
    let page = LedgerPage::zeroed();
    let (a, b) = (page.as_ledger().time_account(), page.as_ledger().time_account());
    let now = 3_600_000 * MS;
    a.charge(15 * MS, percent(30), now);
    b.charge(30 * MS, percent(30), now);
    // 50 + 100 ms of wall time at the ceiling's rate, less the 15 ms the first one ran and the burst.
    assert_eq!(a.admit_launch(now), Admission::WaitUntil(now + 85 * MS + 1));
    assert_eq!(a.admit_launch(now), b.admit_launch(now));
    assert_eq!(b.balance_at(percent(30), now), -25_500_000);
    assert_eq!(a.take_snapshot().balance_at(percent(30), now), -25_500_000);
}

#[test]
fn a_page_that_outlived_a_reboot_makes_nobody_wait() {
    let page = LedgerPage::zeroed();
    let account = page.as_ledger().time_account();
    let before = 86_400_000 * MS;
    account.charge(10_000 * MS, percent(10), before);
    let after = 20_000 * MS;
    assert_eq!(account.admit_launch(after), Admission::Admit);
    account.charge(10 * MS, percent(10), after);
    assert_eq!(account.admit_launch(after), Admission::WaitUntil(after + 100 * MS));
    account.charge(10 * MS, percent(10), after);
    assert_eq!(account.admit_launch(after), Admission::WaitUntil(after + 200 * MS), "forgiven once, not each time");
}

/// Two members under one ceiling, on a device that gives each of `turns` a slice of 2 ms. One runs long kernels, the
/// other a kernel of 1 ms every 10 ms, the rest are busy neighbours. Pays through `begin` and `charge_since`. Returns
/// the device time used in `span`.
fn two_members(share: Share, long: u64, neighbours: u64, span: u64) -> u64 {
    let page = LedgerPage::zeroed();
    let account = page.as_ledger().time_account();
    let start = 3_600_000 * MS;
    let (mut now, mut used) = (start, 0u64);
    let (mut running, mut next_short) = (None, start);
    while now < start + span {
        if running.is_none() && account.admit_launch(now) == Admission::Admit {
            running = Some((account.begin_work(now), long));
        }
        if now >= next_short && account.admit_launch(now) == Admission::Admit {
            let engaged = account.begin_work(now);
            now += MS;
            used += MS;
            account.charge_since(MS, share, engaged, now);
            next_short = now + 9 * MS;
        } else if let Some((engaged, left)) = running {
            let step = left.min(2 * MS);
            now += step;
            used += step;
            if left == step {
                account.charge_since(long, share, engaged, now);
                running = None;
            } else {
                running = Some((engaged, left - step));
                now += neighbours * 2 * MS;
            }
        } else {
            now += MS / 10;
        }
    }
    used
}

#[test]
fn a_member_with_long_kernels_gets_its_ceiling_beside_one_with_short_ones() {
    for share in [10, 30, 50, 80] {
        for long in [20 * MS, 200 * MS, 1_000 * MS] {
            let span = 1_000 * long;
            let used = two_members(percent(share), long, 0, span);
            let due = percent(share).part_of(span);
            assert!(used.abs_diff(due) <= due / 100 + 2 * long, "{share} %, {long}: {used} of {due}");
        }
    }
}

#[test]
fn kernels_stretched_by_neighbours_still_use_what_the_ceiling_allows() {
    // With one busy neighbour half of the device is available; the ceiling is below that.
    for share in [10, 30] {
        for long in [20 * MS, 200 * MS, 1_000 * MS] {
            let span = 1_000 * long;
            let used = two_members(percent(share), long, 1, span);
            let due = percent(share).part_of(span);
            assert!(used.abs_diff(due) <= due / 100 + 2 * long, "{share} %, {long}: {used} of {due}");
        }
    }
}

#[test]
fn what_was_forgotten_is_given_back_once() {
    let page = LedgerPage::zeroed();
    let account = page.as_ledger().time_account();
    let now = 3_600_000 * MS;
    account.charge(0, percent(50), now);
    let (a, b) = (account.begin_work(now), account.begin_work(now));
    // A third member works briefly at the end of the second in which the two had work queued.
    let later = now + 1_000 * MS;
    let c = account.begin_work(later);
    account.charge_since(MS, percent(50), c, later + MS);
    account.charge_since(0, percent(50), a, later + MS);
    let after_one = account.take_snapshot();
    assert_eq!(account.admit_launch(later + MS), Admission::Admit);
    account.charge_since(0, percent(50), b, later + MS);
    assert_eq!(account.take_snapshot(), after_one, "the second to ask gets nothing");
    // The refill of the whole second, and the burst before it: 1050 ms, of which 2 ms were used.
    account.charge_since(525 * MS - MS / 2, percent(50), a, later + MS);
    assert_eq!(account.admit_launch(later + MS), Admission::WaitUntil(later + MS + 1));
}

#[test]
fn what_is_in_flight_counts_before_it_is_paid_for() {
    let mut account = Account::default();
    let now = 3_600_000 * MS;
    account.charge(0, percent(30), now);
    assert_eq!(account.admit_beside(15 * MS - 1, percent(30), now), Admission::Admit);
    assert_eq!(account.admit_beside(30 * MS, percent(30), now), Admission::WaitUntil(now + 50 * MS + 1));
    assert_eq!(account.admit_launch(now), Admission::Admit, "asking costs nothing");
}

#[test]
fn what_was_idle_long_ago_does_not_touch_what_is_owed_now() {
    let mut account = Account::default();
    let now = 3_600_000 * MS;
    account.note_idle(now);
    account.charge(30 * MS, percent(30), now);
    let owed = account.balance_at(percent(30), now);
    account.note_idle(now - 10_000 * MS);
    assert_eq!(account.balance_at(percent(30), now), owed);
    account.pay_exactly(3 * MS, percent(30));
    assert_eq!(account.balance_at(percent(30), now), owed - 3_000_000);
    // Nothing expires during a second of waiting, until the caller reports that it was idle.
    assert_eq!(account.admit_launch(now + 1_000 * MS), Admission::Admit);
    account.pay_exactly(200 * MS, percent(30));
    assert_eq!(account.admit_launch(now + 1_000 * MS), Admission::Admit);
    account.note_idle(now + 1_000 * MS);
    assert_eq!(account.balance_at(percent(30), now + 1_000 * MS), 15_000_000);
}

#[test]
fn idle_time_beyond_the_burst_stays_forgotten() {
    let page = LedgerPage::zeroed();
    let account = page.as_ledger().time_account();
    let now = 3_600_000 * MS;
    let engaged = account.begin_work(now);
    account.charge_since(MS, percent(50), engaged, now + MS);
    let engaged = account.begin_work(now + 60_000 * MS);
    account.charge_since(50 * MS, percent(50), engaged, now + 60_050 * MS);
    assert_eq!(account.balance_at(percent(50), now + 60_050 * MS), 0);
}

/// The library reads a clock that does not step; the clock of a container that was frozen, or the time in a file that
/// outlived a reboot, jumps.
#[test]
fn a_clock_that_leaps_while_work_is_in_flight_gives_one_burst_and_makes_nobody_wait() {
    let page = crate::memory::ledger::LedgerPage::zeroed();
    let (share, ledger) = (percent(50), page.as_ledger());
    let account = ledger.time_account();
    let begun = 3_600_000 * MS;
    for now in [begun, begun + 86_400_000 * MS, begun - 1_800_000 * MS] {
        let since = account.begin_work(begun);
        account.charge_since(10 * MS, share, since, now);
        let _ = account.begin_work(now);
        let most = i64::try_from(share.part_of(BURST_NS)).unwrap();
        let balance = account.balance_at(share, now);
        assert!(balance <= most, "{now}: {balance}");
        assert!(balance > -i64::try_from(11 * MS).unwrap(), "{now}: {balance}");
    }
}

proptest! {
    /// The quick yes agrees with the answer by division.
    #[test]
    fn what_is_admitted_beside_others_is_what_would_be_once_they_are_paid(
        percent_of in 1u32..=99,
        zero in 0u64..1_000_000,
        pending in 0u64..100_000,
        now in 0u64..100_000,
    ) {
        let share = percent(percent_of);
        let state = AccountState { zero, latest: 0 };
        let paid = AccountState { zero: zero + wall_ticks(pending, share), latest: 0 };
        prop_assert_eq!(state.admission_beside(pending, share, now), paid.admission_at(now));
    }


    /// In any order of events, admitted work is paid at the rate of the limit, within one burst and the last kernel.
    /// The shared account agrees with the account of a single process.
    #[test]
    fn the_ceiling_holds_over_any_span(
        permille in 10u32..1000,
        kernels in prop::collection::vec((1_000u64..300 * MS, 0u64..200 * MS), 1..200),
    ) {
        let share = Share::from_permille(permille).unwrap();
        let page = LedgerPage::zeroed();
        let shared = page.as_ledger().time_account();
        let mut account = Account::default();
        let start = 3_600_000 * MS;
        let (mut now, mut used, mut last) = (start, 0u64, 0);
        for (kernel, idle) in kernels {
            prop_assert_eq!(account.admit_launch(now), shared.admit_launch(now));
            if let Admission::WaitUntil(then) = account.admit_launch(now) {
                prop_assert!(then > now);
                prop_assert_eq!(account.admit_launch(then), Admission::Admit);
                prop_assert!(!matches!(account.admit_launch(then - 2), Admission::Admit), "not later than needed");
                now = then;
            }
            // The time used before this kernel is within the ceiling.
            let due = share.part_of(now - start) + share.part_of(BURST_NS);
            prop_assert!(used <= due + 1_000, "used {} of {}", used, due);
            now += kernel;
            account.charge(kernel, share, now);
            shared.charge(kernel, share, now);
            prop_assert_eq!(account.balance_at(share, now), shared.balance_at(share, now));
            used += kernel;
            last = kernel;
            now += idle;
        }
        prop_assert!(used <= share.part_of(now - start) + share.part_of(BURST_NS) + last + 1_000);
    }

    /// Compares the account with an independent form: a balance that is refilled step by step.
    #[test]
    fn it_agrees_with_a_balance_kept_in_fractions(
        percent_of in 1u32..=100,
        steps in prop::collection::vec((0u64..100 * MS, 0u64..20 * MS), 1..100),
    ) {
        let share = percent(percent_of);
        let mut account = Account::default();
        let mut now = 3_600_000 * MS;
        // In thousandths of a nanosecond of device time.
        let depth = i128::from(BURST_NS) * i128::from(share.as_permille());
        let mut balance = depth;
        for (idle, kernel) in steps {
            now += idle;
            balance = (balance + i128::from(idle) * i128::from(share.as_permille())).min(depth);
            let shown = account.balance_at(share, now);
            prop_assert!((i128::from(shown) - balance / 1000).abs() <= 16, "{} against {}", shown, balance / 1000);
            // The balance refills while the kernel runs and is not capped: that time is not unused.
            now += kernel;
            balance += i128::from(kernel) * (i128::from(share.as_permille()) - 1000);
            account.charge(kernel, share, now);
        }
    }
}

#[test]
fn a_ledger_is_settled_once_it_owes_nothing_and_a_new_one_would_be_the_same() {
    use crate::memory::ledger::{LEDGER_MAGIC, LEDGER_VERSION};
    use crate::sync::Ordering;
    let bytes = |page: &LedgerPage| -> Vec<u8> {
        let (magic, version) = (LEDGER_MAGIC.to_le_bytes(), LEDGER_VERSION.to_le_bytes());
        let mut bytes = vec![0; 128];
        bytes[..8].copy_from_slice(&magic);
        bytes[8..12].copy_from_slice(&version);
        bytes[64..72].copy_from_slice(&page.header.account_zero.load(Ordering::SeqCst).to_le_bytes());
        bytes
    };
    let (page, now, tenth) = (LedgerPage::zeroed(), 1_000_000_000_000, Share::from_percent(10).unwrap());
    assert!(is_settled(&bytes(&page), now), "never used");
    page.as_ledger().time_account().charge(300_000_000, tenth, now);
    // Paid from the burst that was unused when the 300 ms began.
    let owed = now - 300_000_000 - BURST_NS + 3_000_000_000;
    assert!(!is_settled(&bytes(&page), now));
    assert!(!is_settled(&bytes(&page), owed - 1_000_000), "a debt");
    assert!(!is_settled(&bytes(&page), owed + BURST_NS / 2), "half of a burst");
    assert!(is_settled(&bytes(&page), owed + 2 * BURST_NS));
    assert!(!is_settled(&bytes(&page)[..71], u64::MAX), "too short");
    assert!(!is_settled(&[7; 128], u64::MAX), "no ledger");
}
