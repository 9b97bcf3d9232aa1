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
    /// When the present circle of waits began, in ms.
    begin: u64,
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
        let mut this = Self { desk, slots, gates: std::collections::BTreeMap::new(), begin: START };
        this.cross([0, 1]);
        // Only the tenant that is late on device 0 is found. Then it gets the other device, and all kernels end.
        for ms in 1..100 {
            this.at((START + ms) * MS);
            let is_shared = this.desk.arbiter.devices.iter().any(|device| device.phase == DevicePhase::Common);
            assert!(!is_shared, "one gang is found");
            if ms > 20 {
                this.slots.iter().flatten().for_each(|&slot| this.desk.done(slot, 0));
                this.slots.iter().flatten().for_each(|&slot| this.desk.says(slot, 0));
            }
        }
        this.begin = START + 100;
        this.cross([1, 0]);
        this
    }

    /// The kernel of tenant `first[device]` runs on that device, and the other tenant waits there.
    fn cross(&mut self, first: [usize; 2]) {
        self.desk.now = self.begin * MS;
        for (device, tenant) in first.into_iter().enumerate() {
            let slot = self.slots[tenant][device];
            self.desk.wants(slot);
            self.at(self.begin * MS);
            self.desk.runs(slot, u64::MAX);
        }
        for (device, tenant) in first.into_iter().enumerate() {
            self.desk.wants(self.slots[1 - tenant][device]);
        }
    }

    /// Ticks at a time in ns.
    fn at(&mut self, now: u64) {
        let told = self.desk.at(now);
        self.gates.extend(told);
    }

    /// After how many ms all four members may launch at the same time; `None`: not within `most`.
    fn all_run_within(&mut self, most: u64) -> Option<u64> {
        (1..most).find(|ms| {
            self.at((self.begin + ms) * MS);
            let runs = |slot: &SlotId| matches!(self.gates.get(slot), Some(Gate::Run { until: u64::MAX, .. }));
            self.slots.iter().flatten().all(runs)
        })
    }
}

#[test]
fn gangs_that_wait_crosswise_launch_at_the_same_time_for_ten_seconds() {
    let mut crossed = Crossed::new([Terms::default(); 2], &[]);
    // A lease of 1 to 4 ms, and a drain's 10.
    let found = crossed.all_run_within(1_000).unwrap();
    assert!((11..=14).contains(&found), "{found}");
    let slots = crossed.slots;
    slots.iter().flatten().for_each(|&slot| crossed.desk.done(slot, MS));
    crossed.at((crossed.begin + found + 9_999) * MS);
    assert!(crossed.gates.values().all(|gate| matches!(gate, Gate::Run { .. })), "{:?}", crossed.gates);
    assert_eq!(crossed.desk.arbiter.next_deadline(), Some((crossed.begin + found + 10_000) * MS));
    crossed.at((crossed.begin + found + 10_000) * MS);
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
        (equal, limited, false),
        // A gang's own floor.
        (Terms { floor: third, ..equal }, class(Class::Batch), true),
        (Terms { floor: percent(34), ..equal }, class(Class::Batch), false),
    ] {
        let mut crossed = Crossed::new([terms; 2], &[other]);
        assert_eq!(crossed.all_run_within(200).is_some(), is_shared, "{terms:?} and {other:?}");
    }
}

#[test]
fn work_that_keeps_to_its_estimate_waits_for_nobody() {
    let mut crossed = Crossed::new([Terms::default(); 2], &[]);
    let [[_, first], [second, _]] = crossed.slots;
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
    let [[gone, _], _] = crossed.slots;
    crossed.desk.arbiter.leave_device(gone, crossed.desk.now);
    let other = crossed.desk.join(2, Terms::default());
    crossed.desk.wants(other);
    let mut is_shared = false;
    for ms in crossed.begin..crossed.begin + 200 {
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
    let begin = crossed.begin + crossed.all_run_within(1_000).unwrap();
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

/// The phase was shared by time slices. A tenant that came meanwhile is not owed what the gangs used in it, and no
/// tenant is behind its floor.
#[test]
fn after_the_phase_nobody_is_far_ahead_or_behind() {
    let third = Terms { floor: Share::from_permille(333), ..Terms::default() };
    let mut crossed = Crossed::new([third; 2], &[]);
    let found = crossed.all_run_within(1_000).unwrap();
    let slots = crossed.slots;
    crossed.at((crossed.begin + found + 5_000) * MS);
    let late = crossed.desk.join(3, Terms::default());
    crossed.desk.runs(late, MS);
    for slot in [slots[0][0], slots[1][0]] {
        crossed.desk.done(slot, 4_000 * MS);
    }
    crossed.at((crossed.begin + found + 10_000) * MS);
    let now = crossed.desk.now;
    let arbiter = &crossed.desk.arbiter;
    assert_ne!(arbiter.devices[0].phase, DevicePhase::Common);
    let seat = |tenant| arbiter.seat_at(arbiter.find(TenantId(tenant), D0).unwrap());
    let apart = seat(0).virtual_time.abs_diff(seat(3).virtual_time) / crate::time::account::TICKS_PER_NS;
    // Without that it would be 2.3 s; the gangs themselves are 26 ms apart.
    assert!(apart <= 50 * MS, "{apart} ns apart");
    assert!(seat(0).floor_zero >= now - 10 * MS, "{} of {now}", seat(0).floor_zero);
}

/// A neighbour that comes and goes ends the phase as often as it likes.
#[test]
fn a_debt_is_forgiven_once_in_ten_seconds() {
    let limited = Terms { ceiling: Share::from_percent(30), ..Terms::default() };
    let mut crossed = Crossed::new([limited; 2], &[]);
    let mut ms = crossed.begin + crossed.all_run_within(1_000).unwrap();
    let member = crossed.slots[0][0];
    let mut debt_after_phase = || {
        ms += 900;
        crossed.desk.book.of(member).busy += 900 * MS;
        crossed.at(ms * MS);
        let standing = |desk: &Desk| desk.arbiter.tenant_standing(TenantId(0), D0, ms * MS).unwrap();
        let before = standing(&crossed.desk).balance.unwrap();
        crossed.desk.arbiter.pause_tenant(TenantId(1), D0, true, ms * MS);
        crossed.at(ms * MS);
        assert_ne!(crossed.desk.arbiter.devices[0].phase, DevicePhase::Common);
        let after = standing(&crossed.desk).balance.unwrap();
        crossed.desk.arbiter.pause_tenant(TenantId(1), D0, false, ms * MS);
        crossed.at(ms * MS);
        assert_eq!(crossed.desk.arbiter.devices[0].phase, DevicePhase::Common);
        (before, after)
    };
    let (before, after) = debt_after_phase();
    assert!(before < 0 && after >= 0, "{before}, then {after}");
    let (before, after) = debt_after_phase();
    assert!(before < 0 && after < 0, "{before}, then {after}");
}
