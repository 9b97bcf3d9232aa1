//! A device on which the work of several processes runs at once (MPS): no leases, ceilings alone.

use super::*;

const START: u64 = 3_600_000 * MS;

fn limited(percent: u32) -> Terms {
    Terms { ceiling: Share::from_percent(percent), ..Terms::default() }
}

fn desk(tenants: &[(u32, Terms)]) -> (Desk, Vec<SlotId>) {
    let mut desk = Desk::new(1);
    desk.now = START;
    desk.arbiter.share_out(D0, DeviceSharing::Budgets);
    let slots = tenants.iter().map(|&(tenant, terms)| desk.join(tenant, terms)).collect();
    (desk, slots)
}

#[test]
fn all_members_launch_at_the_same_time_and_nobody_needs_a_lease() {
    let (mut desk, slots) = desk(&[(1, limited(30)), (2, Terms::default()), (2, Terms::default())]);
    assert_eq!(runs(&desk.tick()), slots);
    slots.iter().for_each(|&slot| desk.wants(slot));
    assert!(desk.at(START + 10_000 * MS).is_empty(), "and nobody takes anything from anybody");
}

/// Runs members of one tenant for ten seconds. Each uses the device whenever its gate and its own copy of the account
/// let it. Returns the device time used, in ms.
fn used(desk: &mut Desk, slots: &[SlotId]) -> u64 {
    let mut copies = vec![None; slots.len()];
    let mut used = 0;
    for ms in 1..10_000 {
        let now = START + ms * MS;
        let told = desk.at(now);
        for (slot, gate) in told {
            let at = slots.iter().position(|&one| one == slot).unwrap();
            copies[at] = if let Gate::Run { ceiling, .. } = gate { ceiling } else { None };
        }
        for (&slot, copy) in slots.iter().zip(&mut copies) {
            let Some((limit, account)) = copy else { continue };
            if account.admit_launch(now) == crate::time::account::Admission::Admit {
                account.pay_exactly(MS, *limit);
                used += 1;
                let usage = desk.book.of(slot);
                (usage.busy, usage.finished) = (usage.busy + MS, usage.finished + MS);
                (usage.wants, usage.in_flight, usage.since) = (true, Some(0), START);
            } else {
                desk.wants(slot);
            }
        }
    }
    used
}

#[test]
fn a_tenant_of_any_number_of_members_gets_its_ceiling() {
    for members in [1, 2, 4] {
        let (mut desk, slots) = desk(&vec![(1, limited(30)); members]);
        let used = used(&mut desk, &slots);
        assert!((2_950..=3_100).contains(&used), "{members} members: {used} ms of 3,000");
    }
}

#[test]
fn a_member_that_does_not_share_begins_leases_and_work_in_flight_is_overdue() {
    let (mut desk, slots) = desk(&[(1, Terms::default()), (2, Terms::default())]);
    desk.tick();
    desk.runs(slots[0], 30 * MS);
    desk.says(slots[0], 30 * MS);
    desk.now += MS;
    desk.arbiter.share_out(D0, DeviceSharing::Leases);
    let third = desk.join(3, Terms::default());
    let told = desk.tick();
    assert!(slots.iter().all(|slot| told.contains(&(*slot, Gate::Wait))), "{told:?}");
    desk.wants(third);
    let told = desk.tick();
    assert!(
        matches!(told[..], [(slot, Gate::Run { exclusive: false, .. })] if slot == third),
        "it does not have the device to itself: {told:?}"
    );
}

#[test]
fn a_paused_tenant_waits_and_a_changed_ceiling_is_told() {
    let (mut desk, slots) = desk(&[(1, limited(30))]);
    desk.tick();
    desk.arbiter.pause_tenant(TenantId(1), D0, true, START);
    assert_eq!(desk.tick(), [(slots[0], Gate::Cap { until: u64::MAX })]);
    desk.arbiter.pause_tenant(TenantId(1), D0, false, START);
    assert_eq!(runs(&desk.tick()), slots);
    desk.arbiter.set(TenantId(1), D0, limited(60), START);
    let told = desk.tick();
    let limit = Share::from_percent(60).unwrap();
    assert!(matches!(told[..], [(_, Gate::Run { ceiling: Some((share, _)), .. })] if share == limit), "{told:?}");
}
