//! Shares in one process with a simulated kernel. Interleavings: `loom_share_tests.rs`; positions of shares:
//! `share_place_tests.rs`.

use proptest::prelude::*;

use super::fake_kernel::FakeKernel;
use super::*;

pub(super) const LIMIT: u64 = 10_000;
pub(super) const WATCHED: Watched = Watched { descriptor: 300, node: (1, 2) };

/// Members of one tenant with pids from 1; the simulated kernel sees each as its own process.
pub(super) struct Tenant<'p> {
    pub(super) page: &'p LedgerPage,
    pub(super) kernel: FakeKernel,
    members: Vec<Option<Member<'p>>>,
}

impl<'p> Tenant<'p> {
    pub(super) fn of(page: &'p LedgerPage, members: u32) -> Self {
        let kernel = FakeKernel::default();
        let join = |pid| Some(page.as_ledger().join(pid, u64::from(pid), &kernel).unwrap());
        let members = (1..=members).map(join).collect();
        Self { page, kernel, members }
    }

    /// Runs `act` as member `who`, counted from 0.
    pub(super) fn as_member<T>(&self, who: usize, act: impl FnOnce(&Member<'p>, &FakeKernel) -> T) -> T {
        self.kernel.process.set(u32::try_from(who).unwrap() + 1);
        act(self.members[who].as_ref().unwrap(), &self.kernel)
    }

    pub(super) fn kill(&mut self, who: usize) {
        let member = self.members[who].take().unwrap();
        self.kernel.kill(member.index());
        self.kernel.kill_process(u32::try_from(who).unwrap() + 1);
    }

    pub(super) fn charge(&self, who: usize, bytes: u64) {
        self.as_member(who, |member, kernel| member.reserve(bytes, LIMIT, kernel).unwrap().commit());
    }

    pub(super) fn share(&self, who: usize, identity: u64, bytes: u64) -> SharedChargeId {
        self.charge(who, bytes);
        self.as_member(who, |member, kernel| member.begin_shared(identity, bytes, kernel)).unwrap()
    }

    pub(super) fn hold(&self, who: usize, identity: u64) -> Option<SharedChargeId> {
        self.as_member(who, |member, kernel| member.hold_again(identity, kernel))
    }

    /// Releases a hold while no descriptor is open; returns true if the share ended.
    pub(super) fn let_go(&self, who: usize, share: SharedChargeId) -> bool {
        self.as_member(who, |member, kernel| member.let_go(share, None, kernel)) == Release::Ended
    }

    pub(super) fn let_go_while_open(&self, who: usize, share: SharedChargeId) -> Release {
        self.as_member(who, |member, kernel| member.let_go(share, Some(WATCHED), kernel))
    }

    pub(super) fn keep_no_longer(&self, who: usize, share: SharedChargeId, identity: u64) -> Release {
        self.as_member(who, |member, kernel| member.keep_no_longer(share, identity, kernel))
    }

    /// Usage after an outside observer has reclaimed the dead.
    pub(super) fn used(&self) -> u64 {
        self.kernel.process.set(99);
        self.page.as_ledger().reclaim_dead(&self.kernel);
        assert_eq!(self.page.as_ledger().stable(1).unwrap().used, self.page.as_ledger().used());
        self.page.as_ledger().used()
    }
}

#[test]
fn an_exported_allocation_is_charged_once_however_many_hold_it() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 3);
    let share = tenant.share(0, 77, 6_000);
    assert_eq!((tenant.as_member(0, |member, _| member.used_bytes()), tenant.used()), (0, 6_000));
    for who in [1, 2, 2] {
        assert_eq!(tenant.hold(who, 77), Some(share));
    }
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.as_member(1, |member, kernel| member.reserve(4_001, LIMIT, kernel)).is_err(), "it counts");
    tenant.charge(1, 4_000);
    assert!(!tenant.let_go(0, share));
    assert!(!tenant.let_go(1, share));
    assert!(!tenant.let_go(2, share), "it was imported twice");
    assert_eq!(tenant.used(), LIMIT);
    assert!(tenant.let_go(2, share));
    assert_eq!(tenant.used(), 4_000);
    assert_eq!(tenant.hold(1, 77), None, "it has ended");
    assert!(!tenant.let_go(2, share), "it ends once");
}

#[test]
fn what_the_dead_exported_stays_with_the_living_importer_and_ends_with_it() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 3);
    tenant.share(0, 77, 6_000);
    tenant.share(0, 78, 1_000);
    tenant.hold(1, 77).unwrap();
    tenant.kill(0);
    assert_eq!(tenant.used(), 6_000, "the other had no holder but the dead");
    tenant.kill(1);
    tenant.as_member(2, |member, kernel| {
        member.reserve(LIMIT, LIMIT, kernel).expect("the dead hold nothing").commit();
    });
    assert_eq!(tenant.used(), LIMIT);
}

#[test]
fn an_importer_that_dies_takes_nothing_along() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 6_000);
    tenant.hold(1, 77).unwrap();
    tenant.kill(1);
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.let_go(0, share), "nobody else holds it");
    assert_eq!(tenant.used(), 0);
}

#[test]
fn one_that_looks_for_the_dead_leaves_its_own_shares_alone() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 1);
    let share = tenant.share(0, 77, 6_000);
    // The process is the only holder, so the kernel would give it the write lock.
    assert_eq!(tenant.as_member(0, |member, kernel| member.reclaim_dead(kernel)), 0);
    assert!(tenant.as_member(0, |member, kernel| member.reserve(4_001, LIMIT, kernel)).is_err());
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.let_go(0, share));
}

#[test]
fn a_pool_that_was_exported_grows_and_shrinks_in_its_share() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 2_000);
    tenant.hold(1, 77).unwrap();
    tenant.as_member(0, |member, kernel| {
        let growth = member.reserve(3_000, LIMIT, kernel).unwrap();
        growth.commit_to(member.held_charge(share));
        assert_eq!((member.used_bytes(), member.held_charge(share).used_bytes()), (0, 5_000));
        member.held_charge(share).release(1_000);
    });
    assert_eq!(tenant.used(), 4_000);
    tenant.kill(0);
    assert_eq!(tenant.used(), 4_000, "an importer holds it");
    assert!(tenant.let_go(1, share));
}

#[test]
fn whoever_holds_a_share_answers_for_it_when_its_exporter_does_not() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 3);
    let share = tenant.share(0, 77, 6_000);
    tenant.charge(1, 500);
    tenant.hold(1, 77).unwrap();
    let shown = |tenant: &Tenant<'_>| -> Vec<(u32, u64, u64)> {
        tenant.page.as_ledger().members().map(|member| (member.pid, member.used, member.shared)).collect()
    };
    assert_eq!(shown(&tenant), [(1, 6_000, 6_000), (2, 500, 0), (3, 0, 0)]);
    assert_eq!(tenant.as_member(0, |member, _| member.used_and_shared()), 6_000);
    tenant.hold(2, 77).unwrap();
    assert!(!tenant.let_go(0, share));
    assert_eq!(shown(&tenant).iter().map(|(_, used, _)| used).sum::<u64>(), tenant.used(), "the list adds up at once");
    tenant.as_member(2, |member, kernel| member.reclaim_dead(kernel));
    assert_eq!(shown(&tenant), [(1, 0, 0), (2, 500, 0), (3, 6_000, 6_000)]);
    tenant.kill(2);
    tenant.used();
    tenant.as_member(1, |member, kernel| member.reclaim_dead(kernel));
    assert_eq!(shown(&tenant), [(1, 0, 0), (2, 6_500, 6_000)]);
    // A new member in the dead one's slot does not answer for its shares.
    tenant.kernel.process.set(4);
    tenant.page.as_ledger().join(4, 4, &tenant.kernel).unwrap();
    assert_eq!(shown(&tenant), [(1, 0, 0), (2, 6_500, 6_000), (4, 0, 0)]);
}

#[test]
fn a_full_table_of_shares_leaves_the_charge_where_it_was() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    for identity in 1..=SHARED_CHARGES as u64 {
        tenant.share(0, identity, 1);
    }
    tenant.charge(1, 100);
    assert_eq!(tenant.as_member(1, |member, kernel| member.begin_shared(9_999, 100, kernel)), None);
    assert_eq!(
        (tenant.as_member(1, |member, _| member.used_bytes()), tenant.used()),
        (100, SHARED_CHARGES as u64 + 100)
    );
    tenant.kill(0);
    let share =
        tenant.as_member(1, |member, kernel| member.begin_shared(9_999, 100, kernel)).expect("the dead make room");
    assert_eq!(tenant.used(), 100);
    assert!(tenant.let_go(1, share));
}

#[test]
fn a_share_is_kept_for_a_descriptor_until_that_is_closed() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 6_000);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    assert_eq!(tenant.used(), 6_000);
    tenant.as_member(1, |member, kernel| member.reclaim_dead(kernel));
    assert_eq!(tenant.used(), 6_000, "its keeper lives");
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::Ended);
    assert_eq!(tenant.used(), 0);
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::ToOthers, "it ends once");
    // No process keeps a share that another one holds, and the death of a keeper ends the share.
    let share = tenant.share(0, 78, 6_000);
    tenant.hold(1, 78).unwrap();
    assert_eq!(tenant.let_go_while_open(0, share), Release::ToOthers);
    assert_eq!(tenant.let_go_while_open(1, share), Release::Kept);
    tenant.kill(1);
    assert_eq!(tenant.used(), 0);
}

#[test]
fn what_is_kept_ends_with_the_last_who_takes_it_up() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 6_000);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    assert_eq!(tenant.hold(1, 77), Some(share));
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.let_go(1, share), "no descriptor is open, and the keeper need not say so");
    assert_eq!(tenant.used(), 0);
    let second = tenant.share(1, 78, 1_000);
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::ToOthers);
    assert_eq!(tenant.used(), 1_000);
    assert!(tenant.let_go(1, second));
}

#[test]
fn what_is_kept_can_be_taken_up_again_by_its_keeper() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 2);
    let share = tenant.share(0, 77, 6_000);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    assert_eq!(tenant.hold(0, 77), Some(share));
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::ToOthers, "it is held, not kept");
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.let_go(0, share));
    assert_eq!(tenant.used(), 0);
}

#[test]
fn what_is_kept_for_a_closed_descriptor_stands_in_nobodys_way() {
    let page = LedgerPage::zeroed();
    let tenant = Tenant::of(&page, 3);
    let share = tenant.share(0, 77, 6_000);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    assert!(tenant.as_member(1, |member, kernel| member.reserve(4_001, LIMIT, kernel)).is_err(), "it is open");
    // The descriptor is closed and its keeper does nothing: another member's request ends the share.
    tenant.kernel.closed.borrow_mut().push((1, WATCHED, 77));
    tenant.charge(1, LIMIT);
    assert_eq!(tenant.used(), LIMIT);
    tenant.as_member(1, |member, _| member.release(LIMIT));
    assert_eq!(tenant.keep_no_longer(0, share, 77), Release::ToOthers);
    // A closed descriptor neither ends a share that is held, nor one that has another identity by now.
    assert_eq!(tenant.share(0, 77, 6_000), share);
    assert_eq!(tenant.let_go_while_open(0, share), Release::Kept);
    tenant.kernel.closed.borrow_mut().clear();
    assert_eq!(tenant.hold(2, 77), Some(share));
    tenant.kernel.closed.borrow_mut().push((1, WATCHED, 77));
    assert_eq!(tenant.used(), 6_000);
    assert!(tenant.let_go(2, share));
    tenant.share(1, 78, 1_000);
    assert_eq!(tenant.used(), 1_000);
}

#[test]
fn leaving_lets_everything_go() {
    let page = LedgerPage::zeroed();
    let mut tenant = Tenant::of(&page, 2);
    tenant.share(0, 77, 1_000);
    tenant.share(1, 78, 2_000);
    tenant.hold(0, 78).unwrap();
    tenant.hold(0, 78).unwrap();
    tenant.kernel.process.set(1);
    tenant.members[0].take().unwrap().leave_ledger(&tenant.kernel);
    assert_eq!(tenant.page.as_ledger().used(), 2_000);
}

/// The exporter may be killed after each step of an export. The count is never less than it holds, the settled part
/// never more, and its death leaves nothing.
#[test]
fn an_exporter_killed_at_any_step_has_never_counted_too_little_and_leaves_nothing() {
    use crate::sync::Ordering::SeqCst;
    const BYTES: u64 = 6_000;
    for killed_after in 0..=5 {
        let page = LedgerPage::zeroed();
        let mut tenant = Tenant::of(&page, 2);
        tenant.charge(0, BYTES);
        let share = &page.shares[0];
        {
            let slot = tenant.members[0].as_ref().unwrap().slot;
            // The steps of `Member::share`, one by one.
            let steps: [&dyn Fn(); 6] = [
                &|| _ = slot.claimed.fetch_add(BYTES, SeqCst),
                &|| _ = slot.granted.fetch_add(BYTES, SeqCst),
                &|| _ = slot.dropped.fetch_add(BYTES, SeqCst),
                &|| _ = share.gained.fetch_add(BYTES, SeqCst),
                &|| _ = slot.dropped.fetch_add(BYTES, SeqCst),
                &|| _ = slot.committed.fetch_add(BYTES, SeqCst),
            ];
            tenant.kernel.process.set(1);
            assert!(tenant.kernel.try_lock_share(0) && tenant.kernel.try_hold_share(0));
            page.header.high_share.store(1, SeqCst);
            share.identity.store(77, SeqCst);
            for step in &steps[..=killed_after] {
                step();
                let totals = page.as_ledger().stable(1).unwrap();
                assert!(totals.used >= BYTES, "{killed_after}: {totals:?}");
                assert!(totals.settled <= BYTES, "{killed_after}: a refusal would rest on {totals:?}");
            }
        }
        tenant.kill(0);
        tenant.as_member(1, |member, kernel| {
            member.reserve(LIMIT, LIMIT, kernel).expect("the dead hold nothing").commit();
        });
        assert_eq!(page.as_ledger().used(), LIMIT);
    }
}

#[derive(Clone, Debug)]
enum Act {
    Charge(usize, u64),
    Release(usize),
    Export(usize),
    Import(usize, usize),
    LetGo(usize, usize),
    Grow(usize, u64),
    Kill(usize),
    Observe,
}

const MEMBERS: usize = 4;

fn act() -> impl Strategy<Value = Act> {
    let who = 0..MEMBERS;
    prop_oneof![
        4 => (who.clone(), 1u64..=3_000).prop_map(|(who, bytes)| Act::Charge(who, bytes)),
        1 => who.clone().prop_map(Act::Release),
        4 => who.clone().prop_map(Act::Export),
        5 => (who.clone(), any::<usize>()).prop_map(|(who, which)| Act::Import(who, which)),
        4 => (who.clone(), any::<usize>()).prop_map(|(who, which)| Act::LetGo(who, which)),
        2 => (any::<usize>(), 1u64..=500).prop_map(|(which, bytes)| Act::Grow(which, bytes)),
        1 => who.prop_map(Act::Kill),
        1 => Just(Act::Observe),
    ]
}

/// An exported allocation in the model: its bytes and the holds of each member.
struct Exported {
    identity: u64,
    bytes: u64,
    holders: [u32; MEMBERS],
    id: SharedChargeId,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn shared_and_own_charges_are_the_sum_of_what_the_living_hold(acts in prop::collection::vec(act(), 1..120)) {
        let page = LedgerPage::zeroed();
        let mut tenant = Tenant::of(&page, u32::try_from(MEMBERS).unwrap());
        let mut own: Vec<Vec<u64>> = vec![Vec::new(); MEMBERS];
        let mut shared: Vec<Exported> = Vec::new();
        let mut identities = 0;
        for act in acts {
            let living = |who: usize| tenant.members[who].is_some();
            match act {
                Act::Charge(who, bytes) if living(who) => {
                    let held: u64 = own.iter().flatten().sum::<u64>() + shared.iter().map(|one| one.bytes).sum::<u64>();
                    let answer = tenant.as_member(who, |member, kernel| {
                        member.reserve(bytes, LIMIT, kernel).map(Reservation::commit)
                    });
                    prop_assert_eq!(answer.is_ok(), held + bytes <= LIMIT, "never over, never falsely refused");
                    if answer.is_ok() {
                        own[who].push(bytes);
                    }
                }
                Act::Release(who) if living(who) => {
                    if let Some(bytes) = own[who].pop() {
                        tenant.as_member(who, |member, _| member.release(bytes));
                    }
                }
                Act::Export(who) if living(who) => {
                    if let Some(bytes) = own[who].pop() {
                        identities += 1;
                        let id = tenant.as_member(who, |member, kernel| member.begin_shared(identities, bytes, kernel));
                        let mut holders = [0; MEMBERS];
                        holders[who] = 1;
                        shared.push(Exported { identity: identities, bytes, holders, id: id.unwrap() });
                    }
                }
                Act::Import(who, which) if living(who) && !shared.is_empty() => {
                    let at = which % shared.len();
                    prop_assert_eq!(tenant.hold(who, shared[at].identity), Some(shared[at].id));
                    shared[at].holders[who] += 1;
                }
                Act::LetGo(who, which) if living(who) && !shared.is_empty() => {
                    let at = which % shared.len();
                    if shared[at].holders[who] > 0 {
                        shared[at].holders[who] -= 1;
                        let last = shared[at].holders.iter().sum::<u32>() == 0;
                        prop_assert_eq!(tenant.let_go(who, shared[at].id), last);
                        if last {
                            shared.remove(at);
                        }
                    }
                }
                Act::Grow(which, bytes) if !shared.is_empty() => {
                    let at = which % shared.len();
                    if let Some(who) = (0..MEMBERS).find(|who| shared[at].holders[*who] > 0) {
                        let id = shared[at].id;
                        let grew = tenant.as_member(who, |member, kernel| {
                            member.reserve(bytes, LIMIT, kernel).map(|more| more.commit_to(member.held_charge(id))).is_ok()
                        });
                        if grew {
                            shared[at].bytes += bytes;
                        }
                    }
                }
                Act::Kill(who) if living(who) => {
                    tenant.kill(who);
                    own[who].clear();
                    for one in &mut shared {
                        one.holders[who] = 0;
                    }
                    shared.retain(|one| one.holders.iter().sum::<u32>() > 0);
                }
                Act::Observe => _ = tenant.used(),
                _ => continue,
            }
            let held: u64 = own.iter().flatten().sum::<u64>() + shared.iter().map(|one| one.bytes).sum::<u64>();
            // Dead members count until somebody reclaims them.
            prop_assert!(page.as_ledger().used() >= held);
            if matches!(act, Act::Observe) {
                prop_assert_eq!(page.as_ledger().used(), held);
            }
            let totals = page.as_ledger().stable(1).unwrap();
            prop_assert_eq!((totals.pending, totals.tentative), (0, 0));
        }
        let held: u64 = own.iter().flatten().sum::<u64>() + shared.iter().map(|one| one.bytes).sum::<u64>();
        prop_assert_eq!(tenant.used(), held);
    }
}
