//! Random sequences of operations, checked against a plain model of every member's charges.

use proptest::prelude::*;

use super::fake_kernel::FakeKernel;
use super::*;

const LIMIT: u64 = 1_000;
const MEMBERS: usize = 4;

#[derive(Clone, Debug)]
enum Act {
    Reserve(usize, u64),
    Commit(usize),
    Rollback(usize),
    Release(usize),
    Kill(usize),
    Leave(usize),
    Observe,
}

fn act() -> impl Strategy<Value = Act> {
    let who = 0..MEMBERS;
    prop_oneof![
        6 => (who.clone(), 0u64..=LIMIT + 1).prop_map(|(who, bytes)| Act::Reserve(who, bytes)),
        4 => who.clone().prop_map(Act::Commit),
        2 => who.clone().prop_map(Act::Rollback),
        3 => who.clone().prop_map(Act::Release),
        1 => who.clone().prop_map(Act::Kill),
        1 => who.prop_map(Act::Leave),
        1 => Just(Act::Observe),
    ]
}

/// The charges of one member in the model.
#[derive(Default)]
struct Held<'p> {
    member: Option<Member<'p>>,
    open: Vec<Reservation<'p>>,
    charged: Vec<u64>,
}

impl Held<'_> {
    fn settled(&self) -> u64 {
        self.charged.iter().sum()
    }
    fn pending(&self) -> u64 {
        self.open.iter().map(Reservation::reserved_bytes).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_ledger_is_the_sum_of_what_the_living_hold(acts in prop::collection::vec(act(), 1..80)) {
        let page = LedgerPage::zeroed();
        let kernel = FakeKernel::default();
        let mut all: Vec<Held<'_>> = (0..MEMBERS).map(|_| Held::default()).collect();
        // Charges of dead members that are not reclaimed yet, by slot.
        let mut dead: Vec<(usize, u64)> = Vec::new();
        for act in acts {
            match act {
                Act::Reserve(who, bytes) => {
                    if all[who].member.is_none() {
                        let member = page.as_ledger().join(u32::try_from(who).unwrap() + 1, 0, &kernel).unwrap();
                        dead.retain(|(slot, _)| *slot != member.index());
                        all[who].member = Some(member);
                    }
                    let held: u64 = all.iter().map(|held| held.settled() + held.pending()).sum();
                    let settled: u64 = all.iter().map(Held::settled).sum();
                    let answer = all[who].member.as_ref().unwrap().reserve(bytes, LIMIT, &kernel);
                    match answer {
                        Ok(reservation) => {
                            prop_assert!(held + bytes <= LIMIT, "never over");
                            all[who].open.push(reservation);
                        }
                        Err(Refusal::OverLimit { .. }) => prop_assert!(settled + bytes > LIMIT, "never falsely refused"),
                        Err(Refusal::Pending { .. }) => {
                            prop_assert!(held + bytes > LIMIT && settled + bytes <= LIMIT, "only for what is pending");
                        }
                    }
                    // A request that took the slow path has reclaimed the dead.
                    if held + dead.iter().map(|(_, bytes)| bytes).sum::<u64>() + bytes > LIMIT && bytes <= LIMIT {
                        dead.clear();
                    }
                }
                Act::Commit(who) => {
                    if let Some(reservation) = all[who].open.pop() {
                        let bytes = reservation.reserved_bytes();
                        all[who].charged.push(bytes);
                        reservation.commit();
                    }
                }
                Act::Rollback(who) => drop(all[who].open.pop()),
                Act::Release(who) => {
                    if let Some(bytes) = all[who].charged.pop() {
                        all[who].member.as_ref().unwrap().release(bytes);
                    }
                }
                Act::Kill(who) => {
                    let mut killed = core::mem::take(&mut all[who]);
                    if let Some(member) = killed.member.take() {
                        dead.push((member.index(), killed.settled() + killed.pending()));
                        kernel.kill(member.index());
                        killed.open.drain(..).for_each(core::mem::forget);
                    }
                }
                Act::Leave(who) => {
                    let mut left = core::mem::take(&mut all[who]);
                    left.open.clear();
                    if let Some(member) = left.member.take() {
                        member.leave_ledger(&kernel);
                    }
                }
                Act::Observe => {
                    let lost: u64 = dead.drain(..).map(|(_, bytes)| bytes).sum();
                    prop_assert_eq!(page.as_ledger().reclaim_dead(&kernel), lost);
                }
            }
            let settled: u64 = all.iter().map(Held::settled).sum();
            let pending: u64 = all.iter().map(Held::pending).sum();
            let lost: u64 = dead.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(page.as_ledger().used(), settled + pending + lost);
            prop_assert!(settled + pending <= LIMIT);
            for held in &all {
                if let Some(member) = &held.member {
                    prop_assert_eq!(member.used_bytes(), held.settled() + held.pending());
                }
            }
            prop_assert!(!kernel.turn.get());
        }
        drop(all);
    }
}
