//! The pages in one thread: written values are read back, and impossible values are not taken over.

use proptest::prelude::*;

use super::bell::{Bell, RingOutcome};
use super::*;
use crate::limits::Mode;
use crate::time::account::Account;
use crate::time::arbiter::{
    Arbiter, Class, DeviceId, Gate, MemberPages as _, MemberUsage, QUANTUM_RANGE_NS, SlotId, TenantId, Terms,
};
use crate::time::config::{ALONE_IN_FLIGHT_NS, TimeConfig};
use crate::time::gate::loss::OnLoss;
use crate::units::bytes::Bytes;
use crate::units::share::Share;

const MS: u64 = 1_000_000;
const EPOCH: u64 = 7;

fn any_share() -> impl Strategy<Value = Option<Share>> {
    prop::option::of((1u32..=1000).prop_map(|permille| Share::from_permille(permille).unwrap()))
}

fn any_gate() -> impl Strategy<Value = Gate> {
    let run = (any::<u64>(), any::<u64>(), any::<[bool; 2]>(), any_share(), any::<[u64; 2]>());
    prop_oneof![
        Just(Gate::Open),
        Just(Gate::Wait),
        any::<u64>().prop_map(|until| Gate::Cap { until }),
        run.prop_map(|(lease, until, [exclusive, wide], share, words)| {
            let ceiling = share.map(|share| (share, Account::from_words(words)));
            Gate::Run { lease, until, exclusive, ceiling, wide }
        }),
    ]
}

fn any_allowed() -> impl Strategy<Value = AllowedUse> {
    let class = prop::sample::select(vec![Class::Latency, Class::Normal, Class::Batch]);
    let mode = prop::sample::select(vec![Mode::Enforce, Mode::Observe, Mode::Off]);
    let on_loss = prop::sample::select(vec![OnLoss::Local, OnLoss::Open, OnLoss::Block]);
    let terms = (class, any_share(), any_share(), any::<u32>(), QUANTUM_RANGE_NS).prop_map(
        |(class, floor, ceiling, weight, quantum)| Terms { class, floor, ceiling, weight, quantum: Some(quantum) },
    );
    (any::<[u64; 4]>(), prop::option::of(1..u64::MAX), terms, 0..4_000_000_000u64, mode, on_loss).prop_map(
        |([device, member, bytes, overhead], memory, terms, in_flight, mode, on_loss)| {
            let (memory, uncharged) = (memory.map(Bytes), Uncharged { bytes, overhead });
            AllowedUse { device, member, memory, uncharged, terms, in_flight, mode, on_loss }
        },
    )
}

#[test]
fn overhead_that_is_charged_since_explains_that_much_and_no_more() {
    let uncharged = Uncharged { bytes: 500, overhead: 100 };
    for (overhead, beside) in [(100, 500), (0, 500), (400, 200), (600, 0), (u64::MAX, 0)] {
        assert_eq!(uncharged.unexplained_bytes(overhead), beside, "{overhead}");
    }
    assert_eq!(Uncharged::default().unexplained_bytes(0), 0);
}

fn allowed() -> AllowedUse {
    let terms = Terms { quantum: Some(4 * MS), ..Terms::default() };
    let (mode, on_loss) = (Mode::Enforce, OnLoss::Local);
    let uncharged = Uncharged { bytes: 4, overhead: 5 };
    AllowedUse { device: 1, member: 2, memory: Some(Bytes(3)), uncharged, terms, in_flight: 2 * MS, mode, on_loss }
}

proptest! {
    #[test]
    fn what_the_daemon_says_is_what_a_member_reads(first in any_allowed(), second in any_allowed(),
        gates in prop::collection::vec(any_gate(), 1..5)) {
        let slot = BoardSlot::zeroed();
        slot.take_slot(&first, EPOCH);
        prop_assert_eq!(slot.read_grant(EPOCH).unwrap().gate, Gate::Wait);
        prop_assert_eq!(slot.read_allowed(EPOCH).unwrap().1, first);
        for gate in &gates {
            let before = slot.read_grant(EPOCH).unwrap().sequence;
            prop_assert!(slot.is_unchanged(before));
            slot.change_gate(gate);
            prop_assert!(!slot.is_unchanged(before));
            let grant = slot.read_grant(EPOCH).unwrap();
            let in_flight = if matches!(gate, Gate::Run { wide: true, .. }) { ALONE_IN_FLIGHT_NS } else { first.in_flight };
            prop_assert_eq!((grant.gate, grant.in_flight), (*gate, in_flight));
            prop_assert_eq!((grant.mode, grant.on_loss), (first.mode, first.on_loss));
        }
        slot.change_allowed(&second);
        prop_assert_eq!(slot.read_grant(EPOCH).unwrap().gate, *gates.last().unwrap());
        prop_assert_eq!(slot.read_allowed(EPOCH).unwrap().1, second);
    }

    #[test]
    fn a_board_of_any_bits_is_read_or_refused_and_never_more_than_it_can_say(head in any::<u32>(), narrow in any::<bool>(),
        mut words in any::<[u64; 15]>(), ways in any::<[u8; 3]>()) {
        let slot = BoardSlot::zeroed();
        words[4] = EPOCH;
        if narrow {
            words[6] = u64::from_le_bytes([ways[0] % 5, ways[1] % 5, ways[2] % 5, 0, 0, 0, 0, 0]);
        }
        let head = if narrow { head % 6 } else { head };
        slot.write_any_bits(head, words);
        if let Ok((_, allowed)) = slot.read_allowed(EPOCH) {
            prop_assert!(allowed.memory != Some(Bytes(0)));
        }
        match slot.read_grant(EPOCH) {
            // A value that decodes is one that the daemon could have written.
            Ok(LaunchGrant { gate, .. }) => {
                slot.change_gate(&gate);
                prop_assert_eq!(slot.read_grant(EPOCH).unwrap().gate, gate);
            }
            Err(UnreadSlot::Unknown { .. }) => {}
            Err(UnreadSlot::Nobody { .. }) => prop_assert_eq!(head, 0),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn what_a_member_says_is_what_the_daemon_reads_if_it_can_be(busy in 0..1000 * MS, finished in 0..1000 * MS,
        submitted in any::<u64>(), in_flight in prop::option::of(prop_oneof![0..1000 * MS, Just(u64::MAX)]),
        since in 5 * MS..=1005 * MS, wants in any::<bool>()) {
        let (slot, mut witness) = (ReportSlot::zeroed(), ReportHistory::new(5 * MS));
        slot.clear();
        prop_assert_eq!(wants && !slot.begin_waiting(), false, "the first wish rings");
        prop_assert_eq!(wants && slot.begin_waiting(), false, "the second does not");
        slot.report_all(&MemberReport { busy, finished, submitted, in_flight, last_launch: 6 * MS, since, launched: submitted, known: finished });
        let idle = !wants && in_flight == Some(0);
        let since = if idle { 1005 * MS } else { since };
        prop_assert_eq!(witness.read_report(&slot, 1005 * MS), MemberUsage { busy, finished, known: finished, in_flight, wants, since });
        prop_assert_eq!((witness.reported_launches(), witness.last_launch()), (submitted, 6 * MS));
        prop_assert_eq!(witness.reported_faults(), ReportFaults::default());
    }

    #[test]
    fn of_any_bytes_only_what_is_possible_is_believed(joined in any::<u64>(),
        looks in prop::collection::vec((any::<[u64; 6]>(), any::<u32>(), 0..40u32, any::<u8>()), 1..40)) {
        let (slot, mut witness, mut now) = (ReportSlot::zeroed(), ReportHistory::new(joined), joined);
        let mut last = MemberUsage::default();
        for (words, wants, step, narrow) in looks {
            now = now.saturating_add(1 << step);
            // Half of the words lie near possible values.
            let near = |at: usize| if narrow >> at & 1 == 0 { words[at] } else { words[at] % (2 << step) };
            slot.wants.store(wants, Ordering::SeqCst);
            slot.in_flight.store(words[0], Ordering::SeqCst);
            slot.busy.store(near(1), Ordering::SeqCst);
            slot.finished.store(near(2), Ordering::SeqCst);
            slot.submitted.store(words[3], Ordering::SeqCst);
            slot.last_launch.store(joined.saturating_add(near(4)), Ordering::SeqCst);
            slot.since.store(joined.saturating_add(near(5)), Ordering::SeqCst);
            let usage = witness.read_report(&slot, now);
            prop_assert!(usage.busy >= last.busy && usage.finished >= last.finished);
            prop_assert!(usage.busy <= now - joined && usage.finished <= now - joined);
            prop_assert!((joined..=now).contains(&usage.since) && (joined..=now).contains(&witness.last_launch()));
            prop_assert!(matches!(usage.in_flight, None | Some(u64::MAX | 0..=3_600_000_000_000)));
            last = usage;
        }
    }
}

#[test]
fn what_cannot_be_is_counted() {
    let (slot, mut witness) = (ReportSlot::zeroed(), ReportHistory::new(1000));
    slot.report_all(&MemberReport {
        busy: 50,
        finished: 60,
        since: 1010,
        in_flight: Some(0),
        ..MemberReport::default()
    });
    assert_eq!(witness.read_report(&slot, 1100).busy, 50);
    assert_eq!(witness.reported_faults(), ReportFaults::default());
    slot.report_all(&MemberReport {
        busy: 500,
        finished: 60,
        since: 1010,
        in_flight: Some(0),
        ..MemberReport::default()
    });
    assert_eq!(witness.read_report(&slot, 1200).busy, 200, "no more than the clock");
    slot.clear();
    assert_eq!(witness.read_report(&slot, 1300).busy, 200, "no less than before");
    slot.report_all(&MemberReport {
        busy: 250,
        finished: 60,
        since: 5000,
        in_flight: Some(1),
        ..MemberReport::default()
    });
    assert_eq!(witness.read_report(&slot, 1400).since, 1400, "not in the future");
    assert_eq!(witness.reported_faults(), ReportFaults { shrank: 2, outran: 1, misdated: 1 });
}

#[test]
fn a_slot_that_is_nobodys_and_one_whose_epoch_ended_are_told_apart() {
    let slot = BoardSlot::zeroed();
    assert_eq!(slot.read_grant(EPOCH), Err(UnreadSlot::Nobody { sequence: 0 }));
    slot.take_slot(&allowed(), EPOCH);
    slot.change_gate(&Gate::Open);
    assert_eq!(slot.read_grant(EPOCH + 1), Err(UnreadSlot::Ended { epoch: EPOCH }), "never what another daemon said");
    let seen = slot.read_grant(EPOCH).unwrap().sequence;
    slot.end_epoch(EPOCH + 1);
    assert!(!slot.is_unchanged(seen));
    assert_eq!(slot.read_grant(EPOCH), Err(UnreadSlot::Ended { epoch: EPOCH + 1 }));
    assert_eq!(slot.read_allowed(EPOCH), Err(UnreadSlot::Ended { epoch: EPOCH + 1 }));
    slot.leave_slot();
    assert!(matches!(slot.read_grant(EPOCH), Err(UnreadSlot::Nobody { .. })));
}

#[test]
fn a_writer_that_died_half_way_leaves_a_busy_slot_and_the_next_one_mends_it() {
    let slot = BoardSlot::zeroed();
    slot.take_slot(&allowed(), EPOCH);
    let sequence = slot.read_grant(EPOCH).unwrap().sequence + 1;
    slot.futex_word().store(sequence, Ordering::SeqCst);
    assert_eq!(slot.read_grant(EPOCH), Err(UnreadSlot::Busy { sequence }));
    slot.change_gate(&Gate::Open);
    assert_eq!(slot.read_grant(EPOCH).unwrap().gate, Gate::Open);
    slot.futex_word().store(u32::MAX, Ordering::SeqCst);
    slot.change_gate(&Gate::Wait);
    assert_eq!(slot.read_grant(EPOCH).unwrap().sequence, 0, "the counter goes round");
}

#[test]
fn a_page_is_checked_for_what_it_is() {
    let (board, report, beat) = (BoardPage::zeroed(), ReportPage::zeroed(), BeatPage::zeroed());
    assert_eq!(board.check(0), Err(PageError::Other), "fresh memory is no page");
    board.format_page(EPOCH);
    report.format_page(EPOCH);
    beat.format_page(EPOCH);
    assert_eq!((board.check(EPOCH), report.check(EPOCH), beat.check(EPOCH)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(board.check(8), Err(PageError::Epoch { found: EPOCH }));
    board.slots[9].take_slot(&allowed(), EPOCH);
    board.end_epoch_of_all(GONE_EPOCH);
    assert_eq!(board.check(EPOCH), Err(PageError::Epoch { found: GONE_EPOCH }));
    assert_eq!(board.slots[9].read_grant(EPOCH), Err(UnreadSlot::Ended { epoch: GONE_EPOCH }));
    let mut header = PageHeader::zeroed();
    header.format_header(5, EPOCH);
    assert_eq!((header.check(6, EPOCH), header.check(5, EPOCH)), (Err(PageError::Other), Ok(())));
    header.slots = AtomicU32::new(3);
    assert_eq!(header.check(5, EPOCH), Err(PageError::Dimensions { found: 3 }));
    header.version = AtomicU32::new(PAGE_VERSION + 1);
    let words = header.check(5, EPOCH).unwrap_err().to_string();
    assert_eq!(words, "the page has version 2; this side reads version 1");
}

#[test]
fn a_beat_is_read_whole_and_a_goodbye_is_another_epoch() {
    let page = BeatPage::zeroed();
    assert_eq!(page.last_beat(), None);
    page.make_beat(EPOCH, 10 * MS);
    page.make_beat(EPOCH, 20 * MS);
    assert_eq!(page.last_beat(), Some(Beat { count: 2, time: 20 * MS, epoch: EPOCH }));
    page.make_beat(GONE_EPOCH, 21 * MS);
    assert_eq!(page.last_beat().map(|beat| beat.epoch), Some(GONE_EPOCH));
}

proptest! {
    #[test]
    fn a_bell_is_heard_as_often_as_allowed_and_no_ring_is_lost(interval in 1..1000u64, burst in 1..20u64,
        members in 0..600usize, steps in prop::collection::vec(0..500u64, 1..200)) {
        let (mut bell, mut now, mut heard) = (Bell::new(interval, burst), 0, 0);
        let price = (members as u64).div_ceil(128).clamp(1, burst);
        for step in steps {
            now += step;
            match bell.rings_for(members, now) {
                RingOutcome::Now => heard += 1,
                RingOutcome::At(then) => {
                    prop_assert!(then > now && then - now <= interval * price, "{} at {}", then, now);
                    prop_assert_eq!(bell.rings_for(members, then), RingOutcome::Now);
                    (now, heard) = (then, heard + 1);
                }
            }
            prop_assert!(heard * price <= burst + now / interval, "{} by {}", heard, now);
        }
    }
}

/// Runs an honest tenant next to one whose page holds random bytes, for two seconds of virtual time.
fn beside_a_liar(seed: u64) -> (u64, [u64; 2]) {
    let mut draw = fastrand::Rng::with_seed(seed);
    let mut random = || if draw.u8(..4) == 0 { draw.u64(..) } else { draw.u64(..4 * MS) };
    let (pages, begin) = ([ReportPage::zeroed(), ReportPage::zeroed()], 1_000 * MS);
    let mut arbiter = Arbiter::new(TimeConfig::default(), 1, begin);
    let mut reports = Reports::new();
    reports.set_now(begin);
    let slots: [SlotId; 2] = core::array::from_fn(|at| {
        let tenant = TenantId(u32::try_from(at).unwrap());
        let slot = arbiter.join(tenant, DeviceId(0), Terms::default(), begin);
        assert!(reports.join(slot, &*pages[at], at) && !reports.join(slot, &*pages[at], PAGE_SLOTS));
        assert!(reports.join(slot, &*pages[at], at));
        slot
    });
    let (honest, lies) = (&pages[0].slots[0], &pages[1].slots[1]);
    let (mut now, mut said, mut runs, mut out) = (begin, MemberReport::default(), false, Vec::new());
    let end = begin + 20_000 * MS;
    while now < end {
        for word in [
            &lies.in_flight,
            &lies.busy,
            &lies.finished,
            &lies.submitted,
            &lies.launched,
            &lies.last_launch,
            &lies.since,
        ] {
            word.store(random(), Ordering::SeqCst);
        }
        lies.wants.store(u32::try_from(random() & 1).unwrap(), Ordering::SeqCst);
        if random() & 1 == 0 {
            arbiter.request_launch(slots[1], now);
        }
        // The honest member always wants the device, and works whenever its gate allows.
        let _ = honest.begin_waiting();
        arbiter.request_launch(slots[0], now);
        if runs {
            said.busy += MS / 2;
            said.finished += MS / 2;
        }
        honest.report_all(&MemberReport { since: begin, in_flight: Some(0), ..said });
        reports.set_now(now);
        arbiter.tick(now, &mut reports, &mut out);
        for decision in out.drain(..).filter(|decision| decision.slot == slots[0]) {
            runs = matches!(decision.gate, Gate::Open | Gate::Run { .. });
        }
        now += MS / 2;
    }
    let charged = core::array::from_fn(|at| arbiter.charged_ns(TenantId(u32::try_from(at).unwrap()), DeviceId(0)));
    assert_eq!(reports.slot_history(slots[0]).unwrap().reported_faults(), ReportFaults::default());
    assert!(reports.leave_slot(slots[1]).unwrap().shrank > 0 && reports.leave_slot(slots[1]).is_none());
    assert_eq!(
        reports.read_usage(slots[1]),
        MemberUsage { in_flight: Some(0), since: reports_now(end), ..MemberUsage::default() }
    );
    (said.busy, charged)
}

fn reports_now(end: u64) -> u64 {
    end - MS / 2
}

#[test]
fn a_tenant_that_writes_random_bytes_pays_at_most_the_time_there_was_and_keeps_nobody_out() {
    for seed in 1..=20u64 {
        let (worked, [honest, liar]) = beside_a_liar(seed);
        assert!(liar <= 20_000 * MS, "seed {seed}: the liar was charged {liar}");
        assert!(honest <= worked, "seed {seed}: the honest one was charged {honest} of {worked}");
        assert!(worked >= 2_000 * MS, "seed {seed}: the honest one worked {worked} ns of 20 s");
    }
}
