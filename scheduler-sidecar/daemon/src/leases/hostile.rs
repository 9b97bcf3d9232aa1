//! Tests: the limits of harm by members that lie, invent devices and ring all the time.

use std::rc::Rc;
use std::time::Instant;

use vgpu_core::protocol::page::bell::RingOutcome;
use vgpu_core::protocol::page::{BoardPage, MemberReport, PAGE_SLOTS, ReportPage};
use vgpu_core::time::arbiter::{Gate, TenantId as Number, Terms};

use super::{ClaimedPast, LeaseBook};
use crate::config::TenantConfig;
use vgpu_config::time::TimeConfig;

const MS: u64 = 1_000_000;

type World = LeaseBook<Rc<BoardPage>, Rc<ReportPage>>;

fn world() -> World {
    LeaseBook::new(TimeConfig::default(), true, &["GPU-0".to_owned()], 7, MS)
}

fn move_in(leases: &mut World, number: u32) -> Rc<ReportPage> {
    let mut tenant = TenantConfig::on_all_devices(&format!("t{number}"), "/s".into(), None, None);
    tenant.on[0].terms = Terms { weight: 2, ..Terms::default() };
    leases.put_tenant(Number(number), tenant, MS);
    let report: Rc<ReportPage> = Rc::from(ReportPage::zeroed());
    leases.map_pages(Number(number), Rc::from(BoardPage::zeroed()), report.clone());
    report
}

#[test]
fn devices_that_tenants_invent_go_with_them() {
    let mut leases = world();
    for number in 0..50 {
        move_in(&mut leases, number);
        for device in 0..16 {
            leases.join(Number(number), 1, &format!("GPU-of-{number}-{device}"), MS).unwrap();
        }
        assert!(leases.join(Number(number), 1, "GPU-17", MS).is_err());
        leases.join(Number(number), 1, "GPU-0", MS).unwrap();
        leases.leave_devices(Number(number), 1, MS);
        leases.remove(Number(number), MS);
    }
    let devices: Vec<String> = leases.known_devices().into_iter().map(|(uuid, _)| uuid).collect();
    assert!(devices.len() <= 17 && devices[0] == "GPU-0", "{} devices are left", devices.len());
    assert!(leases.next_deadline().is_none_or(|deadline| deadline > MS));
}

#[test]
fn a_device_that_another_tenant_used_too_outlives_who_named_it() {
    let mut leases = world();
    move_in(&mut leases, 0);
    move_in(&mut leases, 1);
    leases.join(Number(0), 1, "GPU-8", MS).unwrap();
    leases.join(Number(1), 2, "gpu-8", MS).unwrap();
    leases.leave_devices(Number(1), 2, MS);
    leases.remove(Number(0), MS);
    assert!(leases.known_devices().iter().any(|(uuid, _)| uuid == "GPU-8"));
    assert_eq!(leases.used_by_tenant(Number(1), MS).len(), 1);
    leases.join(Number(1), 3, "GPU-9", MS).unwrap();
    let used: Vec<String> = leases.used_by_tenant(Number(1), MS).into_iter().map(|used| used.device).collect();
    assert_eq!(used, ["GPU-8", "GPU-9"]);
}

#[test]
fn what_is_no_name_of_a_device_is_nobodys_device() {
    let mut leases = world();
    move_in(&mut leases, 0);
    for name in ["", " ", "GPU 1", "GPU-\x1b[2J", "GPU-1\n", "GPU-\u{202e}1"] {
        assert!(leases.join(Number(0), 1, name, MS).is_err(), "{name:?}");
    }
    assert_eq!(leases.known_devices().len(), 1);
}

/// Number of `looks` at which an honest member has an open gate. At each look a hostile member joins again with work
/// that nothing confirms, in place of the one before or (`stays`) in addition. It reports `busy` ns before it leaves,
/// or at each look.
fn open_beside(looks: u64, stays: bool, busy: u64) -> u64 {
    let mut leases = world();
    let theirs = move_in(&mut leases, 0);
    let report = move_in(&mut leases, 1);
    let slot = leases.join(Number(1), 1_000_000, "GPU-0", MS).unwrap();
    let (mut open, mut places) = (0, Vec::new());
    for look in 1..=looks {
        let now = look * 50 * MS;
        if !stays {
            leases.leave_devices(Number(0), look - 1, now);
        }
        let past = ClaimedPast { process: 7, busy: 1_000 };
        let place = leases.join_again(Number(0), look, "GPU-0", past, now).unwrap();
        // The honest member drains its work at once, and has new work as soon as it may launch.
        report.slots[slot].report_all(&MemberReport { in_flight: Some(0), ..MemberReport::default() });
        let _ = report.slots[slot].begin_waiting();
        leases.read_report(Number(1), now);
        leases.tick(now);
        let gate = leases.houses[&Number(1)].pages.as_ref().unwrap().slots[slot].as_ref().unwrap().gate;
        open += u64::from(gate == Gate::Open);
        if matches!(gate, Gate::Run { .. } | Gate::Open) {
            report.slots[slot].report_launch(MS, 0, now, now);
            report.slots[slot].stop_waiting();
        }
        places.push((place, look));
        for (place, came) in places.iter().filter(|(_, came)| stays || *came == look) {
            let busy = busy * (look + 1 - came);
            theirs.slots[*place].report_all(&MemberReport { busy, in_flight: None, ..MemberReport::default() });
        }
    }
    open
}

#[test]
fn whoever_comes_back_again_and_again_is_not_believed_anew_each_time() {
    for (stays, busy) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
        let open = open_beside(400, stays, busy);
        assert!(open > 250, "open at {open} of 400 looks in 20 s, {stays}, {busy} ns");
    }
}

#[test]
fn a_tenant_that_rings_all_day_with_all_its_slots_costs_little_more_than_one_of_few() {
    let mut looks = Vec::new();
    for members in [16, PAGE_SLOTS] {
        let mut leases = world();
        let report = move_in(&mut leases, 0);
        for member in 0..members {
            let slot = leases.join(Number(0), member as u64 + 1, "GPU-0", MS).unwrap();
            let _ = report.slots[slot].begin_waiting();
        }
        let (mut now, end, mut heard, start) = (MS, 1_001 * MS, 0, Instant::now());
        while now < end {
            match leases.hear_bell(Number(0), now) {
                RingOutcome::Now => heard += 1,
                RingOutcome::At(moment) => now = moment.max(now + 1),
            }
        }
        eprintln!("{members} members: {heard} rings were heard in a second, {:?}", start.elapsed());
        looks.push(heard * members);
    }
    assert!(looks[1] < looks[0] * 10, "{looks:?}");
}

/// How long a process held the only device, as the proof is told.
fn had(leases: &mut World, process: u32, now: u64) -> Option<u64> {
    let all = leases.held_times(now).into_iter().filter(|(one, ..)| *one == process);
    all.map(|(.., had)| had.map(|had| had.held)).sum()
}

#[test]
fn a_process_that_joins_again_keeps_the_time_in_which_it_held_the_device() {
    let mut leases = world();
    let report = move_in(&mut leases, 0);
    move_in(&mut leases, 1);
    leases.join(Number(1), 9, "GPU-0", MS).unwrap();
    let (mut now, mut held) = (MS, 0);
    // After a slow daemon a process says hello with its past, and another program in the same process without any.
    for (member, busy) in [(1, 1), (2, 0), (3, 1), (4, 0)] {
        let past = ClaimedPast { process: 42, busy };
        let slot = leases.join_again(Number(0), member, "GPU-0", past, now).unwrap();
        assert_eq!(had(&mut leases, 42, now), Some(held), "hello {member}");
        let _ = report.slots[slot].begin_waiting();
        leases.read_report(Number(0), now);
        leases.tick(now);
        now += 3 * MS;
        held = had(&mut leases, 42, now).unwrap();
        assert!(held >= member * 3 * MS, "hello {member}: {held} ns");
        leases.leave_devices(Number(0), member, now);
        assert_eq!(had(&mut leases, 42, now), Some(held), "gone after hello {member}");
    }
}

#[test]
fn time_in_which_the_daemon_was_silent_and_the_time_until_all_are_back_count_once() {
    let mut leases = world();
    assert_eq!(leases.silent_ns(200 * MS), 0);
    leases.was_silent(100 * MS, 400 * MS);
    assert_eq!([400, 2_400, 9_000].map(|ms| leases.silent_ns(ms * MS) / MS), [300, 2_300, 2_300]);
    leases.was_silent(2_000 * MS, 4_000 * MS);
    assert_eq!([4_000, 9_000].map(|ms| leases.silent_ns(ms * MS) / MS), [3_900, 5_900], "it overlaps the last one");
    leases.was_silent(9_000 * MS, 10_000 * MS);
    assert_eq!([10_000, 20_000].map(|ms| leases.silent_ns(ms * MS) / MS), [6_900, 8_900]);
}
