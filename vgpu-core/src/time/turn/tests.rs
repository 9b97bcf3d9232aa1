//! Promises of the turn, one at a time, step by step, in virtual time.

use super::*;
use crate::memory::ledger::LedgerPage;
use crate::memory::ledger::fake_kernel::FakeKernel;
use crate::time::config::{BURST_NS, SHORT_NS};

const MS: u64 = 1_000_000;
const NOW: u64 = 1_000 * MS;

/// Members of one page, each with its turn state.
struct Table {
    page: &'static LedgerPage,
    kernel: FakeKernel,
    members: Vec<(Member<'static>, TurnState)>,
}

impl Table {
    fn of(members: u32) -> Self {
        let page: &'static LedgerPage = Box::leak(LedgerPage::zeroed());
        let kernel = FakeKernel::default();
        let join = |pid| (page.as_ledger().join(pid, 0, &kernel).unwrap(), TurnState::default());
        let members = (1..=members).map(join).collect();
        Self { page, kernel, members }
    }

    fn step(&mut self, who: usize, here: LocalWork) -> TurnStep {
        let (member, hand) = &mut self.members[who];
        member.device_turn().step_turn(hand, &here)
    }

    fn keeps(&mut self, who: usize, now: u64) -> Option<Gate> {
        let (member, hand) = &mut self.members[who];
        member.device_turn().keep_turn(hand, now)
    }

    fn wants(&mut self, who: usize, now: u64) -> TurnStep {
        self.step(who, wants(now))
    }

    /// The first look, every 5 ms from `from` to `to`, that is not answered with "wait".
    fn waits(&mut self, who: usize, from: u64, to: u64) -> Option<(u64, TurnStep)> {
        (from..=to).step_by(5_000_000).find_map(|now| {
            let step = self.wants(who, now);
            (step.gate != Gate::Wait).then_some((now, step))
        })
    }

    fn holds(&self, who: usize) -> bool {
        let (member, hand) = &self.members[who];
        member.device_turn().holds_turn(hand)
    }
}

fn wants(now: u64) -> LocalWork {
    LocalWork { now, wants: true, ..LocalWork::default() }
}

fn flying(now: u64, in_flight: u64) -> LocalWork {
    LocalWork { now, in_flight, due: now + in_flight, ..LocalWork::default() }
}

fn is_exclusive(step: &TurnStep) -> Option<bool> {
    match step.gate {
        Gate::Run { exclusive, .. } => Some(exclusive),
        _ => None,
    }
}

#[test]
fn alone_a_member_keeps_the_turn_and_writes_nothing() {
    let mut table = Table::of(1);
    assert_eq!(table.keeps(0, NOW), None, "not taken yet");
    let step = table.wants(0, NOW);
    assert!(matches!(step.gate, Gate::Run { until: u64::MAX, exclusive: true, .. }), "{step:?}");
    assert_eq!((step.wake, step.suspect), (0, None));
    let word = table.page.header.turn.load(Ordering::SeqCst);
    for later in [1, BASE.quantum, 100 * BASE.quantum, 1_000_000 * MS] {
        let gate = table.keeps(0, NOW + later).expect("nobody else wants it");
        assert!(matches!(gate, Gate::Run { until: u64::MAX, exclusive: true, .. }), "{gate:?}");
    }
    assert_eq!(table.page.header.turn.load(Ordering::SeqCst), word);
    assert!(!table.members[0].0.device_turn().is_contended(NOW), "taking what is nobody's is no contention");
}

#[test]
fn a_lease_ends_when_somebody_waits_and_the_next_one_has_the_device_to_itself() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    table.members[0].0.add_busy(5 * MS);
    let late = NOW + 10 * BASE.quantum;
    let step = table.wants(1, late);
    assert_eq!(step.gate, Gate::Wait);
    assert_eq!(step.wake, bell_bit(0), "the holder sleeps with nothing to look for: it is told");
    // The lease of the holder, member 0, was over long ago, and it has work queued.
    assert_eq!(table.keeps(0, late + 1), None);
    let step = table.step(0, LocalWork { wants: true, ..flying(late + 2, MS) });
    assert_eq!(step.gate, Gate::Wait, "it drains");
    assert_eq!(table.wants(1, late + MS).gate, Gate::Wait, "not before it has");
    let step = table.wants(0, late + MS);
    assert_eq!((step.gate, step.wake), (Gate::Wait, bell_bit(1)), "passed on, and asked for again");
    let step = table.wants(1, late + MS);
    assert!(matches!(step.gate, Gate::Run { exclusive: true, until, .. } if until < u64::MAX), "{step:?}");
    assert!(!table.holds(0) && table.holds(1));
}

/// Under a low ceiling a quantum is only a launch or two, and each change of holder costs a context switch.
#[test]
fn a_possession_that_had_next_to_nothing_goes_on_for_a_while() {
    for (used, lasts) in
        [(0, BURST_NS), (BASE.in_flight / 10, BURST_NS), (BASE.in_flight, BASE.quantum), (10 * MS, BASE.quantum)]
    {
        let mut table = Table::of(2);
        let _ = (table.wants(0, NOW), table.wants(1, NOW + 1));
        table.members[0].0.add_busy(used);
        let passed = (1..).map(|n| NOW + n * MS).find(|&now| {
            let _ = table.wants(1, now);
            table.keeps(0, now).is_none() && table.wants(0, now).gate == Gate::Wait
        });
        let passed = passed.unwrap() - NOW;
        assert!((lasts..lasts + 2 * BASE.quantum).contains(&passed), "{used}: {passed}");
    }
}

#[test]
fn a_measurement_counts_only_if_the_possession_lasted() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let stamp = |table: &Table, who: usize| table.members[who].0.device_turn().turn_stamp(&table.members[who].1);
    let lasts = |table: &Table, who: usize, stamp| {
        table.members[who].0.device_turn().is_still_own(&table.members[who].1, stamp)
    };
    let begun = stamp(&table, 0);
    assert!(begun != 0 && lasts(&table, 0, begun));
    let (_, robbed) = table.waits(1, NOW + MS, NOW + 100 * MS).expect("it does not wait for ever");
    assert_eq!(is_exclusive(&robbed), Some(false));
    assert!(!lasts(&table, 0, begun), "somebody was let in beside it");
    assert_eq!(stamp(&table, 1), 0, "and who was let in is not alone either");
    assert_eq!(table.keeps(0, NOW + 101 * MS), None);
    // Once the preempted member has seen its work complete, the other is alone on the device from its next look on.
    let _ = table.step(0, LocalWork { now: NOW + 102 * MS, ..LocalWork::default() });
    assert!(matches!(table.keeps(1, NOW + 102 * MS), None | Some(Gate::Run { exclusive: false, .. })));
    assert_eq!(is_exclusive(&table.wants(1, NOW + 103 * MS)), Some(true));
    assert!(stamp(&table, 1) != 0);
}

/// The member has waited for its work and computes, or waits for its user: no call, no helper thread, no report that
/// it is idle.
#[test]
fn who_is_idle_and_says_nothing_keeps_nobody_from_being_alone_for_ever() {
    let mut table = Table::of(3);
    let _ = table.wants(0, NOW);
    let (mut now, robbed) = table.waits(1, NOW + MS, NOW + 100 * MS).expect("it does not wait for ever");
    assert_eq!((is_exclusive(&robbed), robbed.suspect), (Some(false), Some(0)));
    // Two others pass the turn to each other.
    while now < NOW + BASE.stuck {
        let (holder, other) = if table.holds(1) { (1, 2) } else { (2, 1) };
        assert_ne!(is_exclusive(&table.wants(holder, now)), Some(true), "{}", now - NOW);
        let _ = (
            table.wants(other, now),
            table.step(holder, LocalWork { now: now + BASE.quantum, ..LocalWork::default() }),
        );
        now += 3 * BASE.quantum;
    }
    let holder = if table.holds(1) { 1 } else { 2 };
    let step = table.wants(holder, now + 100 * MS);
    assert_eq!((is_exclusive(&step), step.suspect), (Some(true), None), "its work is over, or as long as none");
    // The idle member returns and is preempted again: the work of this new possession counts again.
    let now = now + 200 * MS;
    let (now, _) = table.waits(0, now, now + 100 * MS).expect("it does not wait for ever");
    assert!(table.holds(0));
    let (_, robbed) = table.waits(holder, now + MS, now + 100 * MS).expect("it does not wait for ever");
    assert_eq!(is_exclusive(&robbed), Some(false));
}

#[test]
fn what_the_holder_expects_is_waited_for_and_ten_milliseconds_more() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + MS);
    let _ = table.step(0, flying(NOW + 2 * MS, 100 * MS));
    let (when, step) = table.waits(1, NOW + 3 * MS, NOW + 200 * MS).expect("it does not wait for ever");
    assert_eq!((when, is_exclusive(&step)), (NOW + 113 * MS, Some(false)), "2 ms, 100 and 10");
}

#[test]
fn nobody_waits_for_ever_for_a_holder_that_promises_the_end_of_time() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + MS);
    let _ = table.step(0, LocalWork { due: u64::MAX, in_flight: 1, ..wants(NOW + 2 * MS) });
    let (when, step) = table.waits(1, NOW + 2 * MS, NOW + 2 * BASE.stuck).expect("it does not wait for ever");
    assert_eq!(is_exclusive(&step), Some(false));
    let due = NOW + BASE.stuck + BASE.drain;
    assert!((due..due + 10 * MS).contains(&when), "{}", when - NOW);
}

#[test]
fn who_was_stopped_for_long_has_not_waited() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + MS);
    let _ = table.wants(1, NOW + 500 * MS);
    assert!(table.holds(0), "it looks for the second time only");
}

#[test]
fn a_holder_that_wants_nothing_passes_on_before_its_lease_ends() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    assert_eq!(table.wants(1, NOW + 1).gate, Gate::Wait);
    let rest = |now| LocalWork { now, ..LocalWork::default() };
    let step = table.step(0, rest(NOW + 1_000));
    assert_eq!(step.look, NOW + 1_000 + SHORT_NS, "a pause between two launches is not the end");
    assert!(table.keeps(0, NOW + 50_000).is_some(), "it launches again");
    let _ = table.step(0, rest(NOW + 100_000));
    let _ = table.step(0, rest(NOW + 100_000 + SHORT_NS - 1));
    assert!(table.holds(0));
    let step = table.step(0, rest(NOW + 100_000 + SHORT_NS));
    assert_eq!(step.wake, bell_bit(1));
    assert_eq!(is_exclusive(&table.wants(1, NOW + 200_001)), Some(true));
}

#[test]
fn contention_ends_by_itself_when_those_who_waited_are_gone() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + 1);
    assert!(table.members[0].0.device_turn().is_contended(NOW + MS));
    assert!(!table.members[0].0.device_turn().is_contended(NOW + 1 + REQUEST_LIFETIME_NS));
    assert!(matches!(table.keeps(0, NOW + 1 + REQUEST_LIFETIME_NS), Some(Gate::Run { until: u64::MAX, .. })));
    // While the turn counts as contended, the holder keeps renewing its lease if no request is alive.
    let _ = table.wants(1, NOW + 100 * MS);
    let _ = table.step(1, LocalWork { now: NOW + 100 * MS, ..LocalWork::default() });
    assert_eq!(is_exclusive(&table.wants(0, NOW + 101 * MS)), Some(true));
    assert!(table.holds(0));
}

#[test]
fn one_member_that_passed_on_does_not_keep_the_turn_contended_by_itself() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + 1);
    let _ = table.step(1, LocalWork { now: NOW + 2, ..LocalWork::default() });
    let mut now = NOW + 2;
    // Member 0 launches, rests and passes the turn on, repeatedly, with its account empty at times.
    while now < NOW + 2 * REQUEST_LIFETIME_NS {
        let _ = table.step(0, LocalWork { admitted: u64::MAX, ..wants(now) });
        let _ = table.wants(0, now + 1_000);
        let _ = table.step(0, LocalWork { now: now + 100_000, ..LocalWork::default() });
        let _ = table.step(0, LocalWork { now: now + 300_000, ..LocalWork::default() });
        now += 500_000;
    }
    assert!(!table.members[0].0.device_turn().is_contended(now));
}

#[test]
fn an_empty_account_takes_no_turn() {
    let mut table = Table::of(2);
    let step = table.step(0, LocalWork { admitted: NOW + MS, ..wants(NOW) });
    assert_eq!((step.gate, step.look), (Gate::Wait, NOW + MS), "it is there when the account is");
    assert!(table.wants(1, NOW + 1).gate != Gate::Wait, "it is nobody's");
}

#[test]
fn whoever_used_less_is_next_and_who_does_not_come_is_passed_over() {
    let mut table = Table::of(3);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + 1);
    let _ = table.wants(2, NOW + 2);
    table.members[1].0.add_busy(3 * MS);
    let late = NOW + BASE.quantum + 1;
    table.members[0].0.add_busy(4 * MS);
    let step = table.wants(0, late);
    assert_eq!((step.gate, step.wake), (Gate::Wait, bell_bit(2)));
    assert_eq!(table.wants(1, late + 1).gate, Gate::Wait, "not next");
    assert_eq!(table.wants(1, late + 1 + BASE.in_flight / 2).gate, Gate::Wait);
    assert_eq!(is_exclusive(&table.wants(1, late + 1 + BASE.in_flight)), Some(true), "the next one sleeps");
    // A request that is not renewed expires soon.
    let _ = table.wants(0, late + 3 * REQUEST_LIFETIME_NS);
    table.members[1].0.add_busy(100 * MS);
    let _ = table.wants(1, late + 3 * REQUEST_LIFETIME_NS + 1);
    assert_eq!(
        is_exclusive(&table.wants(0, late + 3 * REQUEST_LIFETIME_NS + 2)),
        Some(true),
        "not passed over for the sleeper"
    );
}

#[test]
fn rest_is_no_claim_and_a_long_possession_no_debt_to_newcomers() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    table.members[0].0.add_busy(100_000 * MS);
    let late = NOW + 200_000 * MS;
    let _ = table.wants(1, late);
    let (old, new) =
        (table.members[0].0.device_turn().own_virtual_time(), table.members[1].0.device_turn().own_virtual_time());
    assert!(new + BASE.quantum <= old && new + 2 * BASE.quantum > old, "a quantum of credit, no more: {old} {new}");
}

#[test]
fn who_was_stopped_while_it_waited_has_no_claim_to_what_the_others_used() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + 1);
    table.members[0].0.add_busy(100_000 * MS);
    let _ = table.wants(1, NOW + 200_000 * MS);
    let (old, new) =
        (table.members[0].0.device_turn().own_virtual_time(), table.members[1].0.device_turn().own_virtual_time());
    assert!(new + 2 * BASE.quantum > old, "{old} {new}");
}

#[test]
fn a_dead_holder_is_suspected_soon_and_its_slot_gives_the_turn_back() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    let _ = table.wants(1, NOW + 1);
    assert_eq!(table.wants(1, NOW + 2 * MS).suspect, None, "not within its lease");
    let step = table.wants(1, NOW + BASE.quantum + 2 * BASE.in_flight);
    assert_eq!(step.suspect, Some(0));
    assert_eq!(table.wants(1, NOW + BASE.quantum + 2 * BASE.in_flight + 1).suspect, None, "asked for already");
    assert!(!table.members[1].0.reclaim_slot(0, &table.kernel), "it lives");
    table.kernel.kill(0);
    assert!(table.members[1].0.reclaim_slot(0, &table.kernel));
    let step = table.wants(1, NOW + BASE.quantum + 2 * BASE.in_flight + 2);
    assert_eq!(is_exclusive(&step), Some(true), "what was before the device went with it");
}

#[test]
fn a_slot_that_is_joined_anew_does_not_inherit_the_turn() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    table.kernel.kill(0);
    let again = table.page.as_ledger().join(9, 0, &table.kernel).unwrap();
    assert_eq!(again.index(), 0);
    assert_eq!(again.device_turn().keep_turn(&mut TurnState::default(), NOW + 1), None);
    assert_eq!(is_exclusive(&table.wants(1, NOW + 2)), Some(true), "and it stands in nobody's way");
}

/// A forked child, or a page older than this process: the word names this process's slot, but the process knows
/// nothing of it.
#[test]
fn a_word_that_names_a_member_which_does_not_know_of_it_is_taken_over() {
    let mut table = Table::of(2);
    let _ = table.wants(0, NOW);
    table.members[0].1 = TurnState::default();
    assert_eq!(table.keeps(0, NOW + 1), None);
    assert!(is_exclusive(&table.wants(0, NOW + 2)).is_some());
}

#[test]
fn nonsense_in_the_page_keeps_nobody_waiting() {
    for nonsense in [u64::MAX, 1 << 63, 0x7ff, 0x400, 12345] {
        let mut table = Table::of(2);
        let header = &table.page.header;
        for word in [&header.turn, &header.turn_contended, &header.turn_clock] {
            word.store(nonsense, Ordering::SeqCst);
        }
        let other = table.page.as_ledger().slot(1);
        for word in [&other.turn_wants, &other.turn_shift, &other.turn_taken, &other.turn_drained, &other.turn_due] {
            word.store(nonsense, Ordering::SeqCst);
        }
        let mut now = NOW;
        let took = (0..1_000).any(|_| {
            let step = table.wants(0, now);
            now = step.look;
            is_exclusive(&step).is_some()
        });
        assert!(took && now < NOW + BASE.stuck + 100 * MS, "{nonsense:#x}: {now}");
    }
}

#[test]
fn a_page_from_before_the_clock_was_set_back_counts_for_nothing() {
    let mut table = Table::of(2);
    let future = NOW + 1_000_000_000 * MS;
    let _ = table.wants(1, future);
    let _ = table.wants(0, future + 1);
    assert!(!table.members[0].0.device_turn().is_contended(NOW));
    // The reboot ended both members; a process that joins now is a new member.
    table.kernel.kill(0);
    table.kernel.kill(1);
    let again = table.page.as_ledger().join(9, 0, &table.kernel).unwrap();
    let mut hand = TurnState::default();
    let mut now = NOW;
    while !again.device_turn().holds_turn(&hand) {
        let step = again.device_turn().step_turn(&mut hand, &wants(now));
        step.suspect.into_iter().for_each(|slot| assert!(again.reclaim_slot(slot, &table.kernel)));
        now = step.look;
    }
    assert!(now < NOW + 20 * MS, "{}", now - NOW);
}
