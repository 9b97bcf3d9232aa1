//! Gangs that wait for each other on two devices, and others that look like them.

use super::*;

/// When the kernels begin, in ms: the ceilings have balance by then.
const START: u64 = 1_000;

/// Two tenants whose kernels run on one device each and wait for a launch on the other one's device.
struct Crossed {
    desk: Desk,
    /// Of each tenant the members on both devices.
    slots: [[SlotId; 2]; 2],
    /// The gate of each member as it was last told.
    gates: std::collections::BTreeMap<SlotId, Gate>,
}

impl Crossed {
    /// The tenants' terms, and terms of further tenants on device 0.
    fn new(terms: [Terms; 2], others: &[Terms]) -> Self {
        let mut desk = Desk::new(2);
        let both = |desk: &mut Desk, tenant: u32, terms: Terms| {
            [0, 1].map(|device| desk.arbiter.join(TenantId(tenant), DeviceId(device), terms, desk.now))
        };
        let slots = [both(&mut desk, 0, terms[0]), both(&mut desk, 1, terms[1])];
        for (tenant, terms) in (2..).zip(others) {
            desk.join(tenant, *terms);
        }
        let mut this = Self { desk, slots, gates: std::collections::BTreeMap::new() };
        this.desk.now = START * MS;
        for (tenant, first) in [(0, 0), (1, 1)] {
            this.desk.wants(slots[tenant][first]);
            this.at(START * MS);
            this.desk.runs(slots[tenant][first], u64::MAX);
        }
        this.desk.wants(slots[0][1]);
        this.desk.wants(slots[1][0]);
        this
    }

    /// Ticks at a time in ns.
    fn at(&mut self, now: u64) {
        let told = self.desk.at(now);
        self.gates.extend(told);
    }

    /// After how many ms all four members may launch at the same time; `None`: not within `most`.
    fn all_run_within(&mut self, most: u64) -> Option<u64> {
        (1..most).find(|ms| {
            self.at((START + ms) * MS);
            let runs = |slot: &SlotId| matches!(self.gates.get(slot), Some(Gate::Run { until: u64::MAX, .. }));
            self.slots.iter().flatten().all(runs)
        })
    }
}

#[test]
fn gangs_that_wait_crosswise_launch_at_the_same_time_for_ten_seconds() {
    let mut crossed = Crossed::new([Terms::default(); 2], &[]);
    // A lease of 4 ms, and a drain's 10.
    assert_eq!(crossed.all_run_within(1_000), Some(14));
    let slots = crossed.slots;
    slots.iter().flatten().for_each(|&slot| crossed.desk.done(slot, MS));
    crossed.at((START + 10_013) * MS);
    assert!(crossed.gates.values().all(|gate| matches!(gate, Gate::Run { .. })), "{:?}", crossed.gates);
    assert_eq!(crossed.desk.arbiter.next_deadline(), Some((START + 10_014) * MS));
    crossed.at((START + 10_014) * MS);
    assert!(crossed.gates.values().any(|gate| *gate == Gate::Wait), "leases again: {:?}", crossed.gates);
}

/// A tenant on one of the devices keeps what it is promised, or the devices stay shared by leases.
#[test]
fn nobody_else_loses_by_gangs_that_wait_crosswise() {
    let third = Share::from_permille(333);
    let percent = Share::from_percent;
    let equal = Terms::default();
    let limited = Terms { ceiling: percent(30), ..equal };
    for (terms, other, is_shared) in [
        (equal, equal, true),
        (equal, Terms { weight: 2, ..equal }, false),
        (equal, Terms { floor: third, ..equal }, false),
        (equal, class(Class::Latency), false),
        (equal, class(Class::Batch), true),
        // 40 % are left by the two ceilings.
        (limited, Terms { floor: percent(10), ..equal }, true),
        (limited, Terms { floor: percent(41), ..equal }, false),
        (limited, Terms { floor: percent(60), ceiling: percent(33), ..equal }, true),
    ] {
        let mut crossed = Crossed::new([terms; 2], &[other]);
        assert_eq!(crossed.all_run_within(200).is_some(), is_shared, "{terms:?} and {other:?}");
    }
}

#[test]
fn work_that_keeps_to_its_estimate_waits_for_nobody() {
    let mut crossed = Crossed::new([Terms::default(); 2], &[]);
    let [[first, _], [_, second]] = crossed.slots;
    for slot in [first, second] {
        // A report before its lease ends: its kernel takes 300 ms.
        crossed.desk.runs(slot, 300 * MS);
    }
    assert_eq!(crossed.all_run_within(300), None);
}

/// One gang, and two tenants with one device each: nobody waits for it where it has work.
#[test]
fn late_work_of_one_gang_alone_is_no_crossing() {
    let mut crossed = Crossed::new([Terms::default(); 2], &[]);
    let [_, [gone, _]] = crossed.slots;
    crossed.desk.arbiter.leave_device(gone, 0);
    let other = crossed.desk.join(2, Terms::default());
    crossed.desk.wants(other);
    let mut is_shared = false;
    for ms in START..START + 200 {
        crossed.at(ms * MS);
        is_shared |= crossed.desk.arbiter.devices.iter().any(|device| device.phase == DevicePhase::Common);
    }
    assert!(!is_shared);
}

/// The members' own accounts let them run into debt by what their kernels wait. One that ignores its account is held
/// back at one second.
#[test]
fn a_tenant_that_waits_crosswise_owes_at_most_a_second() {
    let limited = Terms { ceiling: Share::from_percent(30), ..Terms::default() };
    let mut crossed = Crossed::new([limited; 2], &[]);
    let begin = START + crossed.all_run_within(1_000).unwrap();
    let liar = crossed.slots[0][0];
    let stopped = (begin + 1..begin + 5_000).find(|ms| {
        crossed.desk.book.of(liar).busy = (ms - begin) * MS;
        crossed.at(ms * MS);
        matches!(crossed.gates[&liar], Gate::Cap { .. })
    });
    // It owes 70 % of the time.
    let stopped = stopped.expect("it is held back") - begin;
    assert!((1_400..=1_460).contains(&stopped), "{stopped} ms");
    let Gate::Cap { until } = crossed.gates[&liar] else { panic!("{:?}", crossed.gates) };
    assert!(until > (begin + stopped + 3_300) * MS, "until all is paid: {until}");
}
