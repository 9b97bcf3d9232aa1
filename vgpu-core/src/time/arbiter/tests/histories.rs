//! In any history of events and reports: no tenant is forgotten, and an honest one makes progress.

use super::*;
use crate::time::arbiter::gang::GangKey;
use crate::time::arbiter::seat::SeatPlace;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeMap;

/// An event in the history of a test setup.
#[derive(Clone, Debug)]
enum Deed {
    Join(u32, u8, Terms),
    Leave(usize),
    Want(usize),
    Launch(usize, u64),
    Finish(usize, u64),
    Set(u32, u8, Terms),
    Pause(u32, u8, bool),
    /// Reports anything, now and then.
    Lie(usize, MemberUsage),
    /// Was here under another arbiter.
    Back(usize),
    Share(u8, DeviceSharing),
    /// From now on all usage is to be measured, or no longer.
    Measure(bool),
    Gang(u32, Option<u32>),
    Pass(u64),
}

fn lie() -> impl Strategy<Value = MemberUsage> {
    let flight = prop_oneof![Just(None), Just(Some(0)), Just(Some(u64::MAX)), (0..10_000 * MS).prop_map(Some)];
    (flight, any::<bool>(), 0..50 * MS, 0..50 * MS).prop_map(|(in_flight, wants, busy, finished)| MemberUsage {
        busy,
        finished,
        known: finished,
        in_flight,
        wants,
        since: 0,
    })
}

impl Desk {
    fn measures(&mut self, all: bool) {
        self.arbiter.set_measures_all(all);
    }

    /// No member in a queue is forgotten there.
    fn is_sound(&self) -> Result<(), String> {
        for (at, seat) in self.arbiter.seats.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?))) {
            let phase = self.arbiter.devices[index(seat.device)].phase;
            if phase != DevicePhase::Common && seat.place == SeatPlace::Idle && !seat.queue.is_empty() {
                return Err(format!("seat {at} is idle with {:?} in its queue", seat.queue));
            }
            if seat.place == SeatPlace::Current && phase.holding_seat() != Some(SeatIx::try_from(at).unwrap()) {
                return Err(format!("seat {at} is current on a device that is {phase:?}"));
            }
            let is_placed = matches!(seat.place, SeatPlace::Ready | SeatPlace::Capped(_) | SeatPlace::Overdue);
            if seat.waits_since.is_some() != (is_placed && !seat.queue.is_empty()) {
                return Err(format!(
                    "seat {at} waits since {:?}, {:?}, {:?}",
                    seat.waits_since, seat.place, seat.queue
                ));
            }
            for &slot in &seat.members {
                if self.arbiter.slot_at(slot).queued != seat.queue.contains(&slot) {
                    return Err(format!("{slot:?} of seat {at} is queued or not: {:?}", seat.queue));
                }
            }
        }
        Ok(())
    }
}

/// Seats that waited before a tick, with their gang and device.
struct WaitingGangs(Vec<(SeatIx, GangKey, DeviceId)>);

impl WaitingGangs {
    fn before_tick(desk: &Desk) -> Self {
        let arbiter = &desk.arbiter;
        let seats = arbiter.seats.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?)));
        let ready = seats.filter(|(_, seat)| seat.place == SeatPlace::Ready);
        let row =
            |(at, seat): (usize, &Seat)| (SeatIx::try_from(at).unwrap(), arbiter.gang_of(seat.tenant), seat.device);
        Self(ready.map(row).collect())
    }

    /// All or nothing: where one of a gang's seats that waited got a lease in this tick, none that waited for another
    /// device still waits.
    fn got_all_or_nothing(&self, desk: &Desk, decisions: &[(SlotId, Gate)]) -> Result<(), String> {
        let arbiter = &desk.arbiter;
        let has_leases =
            |seat: &SeatIx| arbiter.devices[index(arbiter.seat_at(*seat).device)].phase != DevicePhase::Common;
        let lets_in = |(_, gate): &&(SlotId, Gate)| matches!(gate, Gate::Run { .. } | Gate::Open);
        let granted = decisions.iter().filter(lets_in).map(|(slot, _)| arbiter.slot_at(*slot).seat);
        let granted: Vec<SeatIx> = granted.filter(has_leases).collect();
        for (seat, gang, device) in &self.0 {
            let left = !granted.contains(seat) && arbiter.seat_at(*seat).place == SeatPlace::Ready;
            let waited = |other: SeatIx| self.0.iter().any(|before| before.0 == other);
            let of_gang = |other: &&SeatIx| arbiter.gang_of(arbiter.seat_at(**other).tenant) == *gang;
            let has_device = granted.iter().filter(of_gang).any(|other| arbiter.seat_at(*other).device == *device);
            if left && !has_device && granted.iter().filter(of_gang).any(|other| waited(*other)) {
                return Err(format!("seat {seat} of {gang:?} still waits for {device:?}, its gang runs: {granted:?}"));
            }
        }
        Ok(())
    }
}

/// The latest gates, and when each tenant's latest gate on a device was shut.
#[derive(Default)]
struct Told {
    gates: BTreeMap<SlotId, Gate>,
    shut: BTreeMap<(DeviceId, TenantId), u64>,
}

impl Told {
    fn tell(&mut self, desk: &Desk, slot: SlotId, gate: Option<Gate>) {
        let seat = desk.arbiter.seat_at(desk.arbiter.slot_at(slot).seat);
        let lets_in = |gate: &Gate| matches!(gate, Gate::Run { .. } | Gate::Open);
        if self.gates.remove(&slot).is_some_and(|before| lets_in(&before)) && !gate.is_some_and(|gate| lets_in(&gate)) {
            self.shut.insert((seat.device, seat.tenant), desk.now);
        }
        self.gates.extend(gate.map(|gate| (slot, gate)));
    }

    /// The promises of a wide lease. It exists only where all usage is measured, has no end, and belongs to a tenant
    /// that was alone for long. No other tenant wants the device, and no latency tenant is registered. Where all
    /// usage is measured, no gate is open.
    fn keeps(&self, desk: &Desk) -> Result<(), String> {
        let (arbiter, now) = (&desk.arbiter, desk.now);
        for (slot, gate) in &self.gates {
            let seat = arbiter.seat_at(arbiter.slot_at(*slot).seat);
            let is_common = arbiter.devices[index(seat.device)].phase == DevicePhase::Common;
            if *gate == Gate::Open && arbiter.measures_all && !is_common {
                return Err(format!("{slot:?} has an open gate, through which nothing is measured"));
            }
            let Gate::Run { until, wide: true, .. } = *gate else { continue };
            if is_common {
                continue;
            }
            let others = || {
                let here = arbiter.seats.iter().flatten().filter(|one| one.device == seat.device);
                here.filter(|one| one.tenant != seat.tenant)
            };
            let lately = |(whose, shut): (&(DeviceId, TenantId), &u64)| {
                whose.0 == seat.device && whose.1 != seat.tenant && now - shut < arbiter.config.alone
            };
            let refused = [
                (!arbiter.measures_all, "although its use need not be measured"),
                (until != u64::MAX, "with an end"),
                (others().any(|one| one.place == SeatPlace::Ready), "although somebody else wants the device"),
                (
                    others().any(|one| one.terms.class == Class::Latency && !one.members.is_empty()),
                    "beside a latency tenant",
                ),
                (self.shut.iter().any(lately), "although somebody else had the device lately"),
            ];
            if let Some((_, why)) = refused.into_iter().find(|(is, _)| *is) {
                return Err(format!("{slot:?} has a wide lease {why}"));
            }
        }
        Ok(())
    }
}

const SHARINGS: [DeviceSharing; 3] = [DeviceSharing::Leases, DeviceSharing::Budgets, DeviceSharing::Unlimited];

/// After this many steps, a quarter of an hour, no member waits without a reason.
const FOR_NOTHING: usize = 20_000;

impl Desk {
    /// Time that was claimed for minutes under a ceiling of a hundredth is paid off in hours. In a class that is not
    /// the first on its device a tenant gets a lease now and then, in their order.
    fn has_reason_to_wait(&self, slot: SlotId) -> bool {
        let seat = self.arbiter.seat_at(self.arbiter.slot_at(slot).seat);
        let here = self.arbiter.seats.iter().flatten().filter(|other| other.device == seat.device);
        let mut before = here.filter(|other| matches!(other.place, SeatPlace::Ready | SeatPlace::Current));
        let is_capped = matches!(self.arbiter.slot_at(slot).gate, Gate::Cap { .. });
        is_capped
            || matches!(seat.place, SeatPlace::Capped(_))
            || before.any(|other| other.terms.class < seat.terms.class)
    }
}

fn terms() -> impl Strategy<Value = Terms> {
    let share = |most| prop::option::of((1u32..=most).prop_map(|p| Share::from_percent(p).unwrap()));
    // Floors leave some time: where they leave none, a tenant without a floor gets nothing. The configuration refuses a
    // floor above the ceiling.
    (share(15), share(100), 0u32..20, 0u8..3).prop_map(|(floor, ceiling, weight, class)| Terms {
        class: [Class::Latency, Class::Normal, Class::Batch][usize::from(class)],
        floor: floor.map(|floor| ceiling.map_or(floor, |ceiling| floor.min(ceiling))),
        ceiling,
        weight,
        quantum: None,
    })
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        (0u32..5, 0u8..3, terms()).prop_map(|(tenant, device, terms)| Deed::Join(tenant, device, terms)),
        (0usize..16).prop_map(Deed::Leave),
        (0usize..16).prop_map(Deed::Want),
        (0usize..16, prop_oneof![Just(10_000), Just(3 * MS), Just(u64::MAX)])
            .prop_map(|(slot, ns)| Deed::Launch(slot, ns)),
        (0usize..16, 0u64..30 * MS).prop_map(|(slot, ns)| Deed::Finish(slot, ns)),
        (0u32..5, 0u8..3, terms()).prop_map(|(tenant, device, terms)| Deed::Set(tenant, device, terms)),
        (0u32..5, 0u8..3, any::<bool>()).prop_map(|(tenant, device, on)| Deed::Pause(tenant, device, on)),
        (0usize..16, lie()).prop_map(|(slot, usage)| Deed::Lie(slot, usage)),
        (0usize..16).prop_map(Deed::Back),
        (0u8..9, 0usize..3).prop_map(|(device, sharing)| Deed::Share(device, SHARINGS[sharing])),
        any::<bool>().prop_map(Deed::Measure),
        (0u32..5, prop::option::of(0u32..2)).prop_map(|(tenant, gang)| Deed::Gang(tenant, gang)),
        prop_oneof![1u64..20 * MS, 1u64..5_000 * MS].prop_map(Deed::Pass),
    ]
}

/// By default each run draws the same histories; `make soak` draws others by `VGPU_SEED`, and `PROPTEST_CASES` of
/// them.
#[expect(clippy::disallowed_methods, reason = "a test says by its variables which histories it draws")]
fn which() -> ProptestConfig {
    let seed = std::env::var("VGPU_SEED").map_or(7, |text| text.parse().expect("VGPU_SEED"));
    let told = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { told.cases } else { 4_096 };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..told }
}

proptest! {
    #![proptest_config(which())]

    /// For any actions of the members: a device has at most one lease (an open gate counts for its tenant). Ticks at
    /// one moment end, with deadlines in the future. Each waiting member makes progress while the others behave,
    /// whichever gangs its tenant is in and however they overlap.
    #[test]
    fn no_history_breaks_it(measures_all: bool, deeds in prop::collection::vec(deed(), 1..300)) {
        let (mut desk, mut told) = (Desk::new(3), Told::default());
        desk.measures(measures_all);
        let mut slots: Vec<SlotId> = Vec::new();
        for deed in deeds {
            let now = desk.now;
            let pick = |at: usize| (!slots.is_empty()).then(|| slots[at % slots.len()]);
            match deed {
                Deed::Join(tenant, device, terms) => {
                    let slot = desk.arbiter.join(TenantId(tenant), DeviceId(u16::from(device)), terms, now);
                    *desk.book.of(slot) = MemberUsage { in_flight: Some(0), since: now, ..MemberUsage::default() };
                    told.tell(&desk, slot, Some(Gate::Wait));
                    slots.push(slot);
                }
                Deed::Leave(at) => if let Some(slot) = pick(at) {
                    slots.retain(|&other| other != slot);
                    told.tell(&desk, slot, None);
                    desk.arbiter.leave_device(slot, now);
                },
                Deed::Want(at) => if let Some(slot) = pick(at) { desk.wants(slot) },
                Deed::Launch(at, ns) => if let Some(slot) = pick(at) { desk.runs(slot, ns) },
                Deed::Finish(at, ns) => if let Some(slot) = pick(at) { desk.done(slot, ns) },
                Deed::Set(tenant, device, terms) => {
                    desk.arbiter.set(TenantId(tenant), DeviceId(u16::from(device)), terms, now);
                }
                Deed::Pause(tenant, device, on) => {
                    desk.arbiter.pause_tenant(TenantId(tenant), DeviceId(u16::from(device)), on, now);
                }
                Deed::Lie(at, usage) => if let Some(slot) = pick(at) {
                    *desk.book.of(slot) = usage;
                    if usage.wants {
                        desk.arbiter.request_launch(slot, now);
                    }
                },
                Deed::Back(at) => if let Some(slot) = pick(at) { desk.arbiter.comes_back(slot, now) },
                Deed::Share(device, sharing) => if device < 3 {
                    desk.arbiter.share_out(DeviceId(u16::from(device)), sharing);
                },
                Deed::Measure(all) => desk.measures(all),
                Deed::Gang(tenant, gang) => desk.arbiter.set_gang(TenantId(tenant), gang.map(GangId)),
                Deed::Pass(ns) => desk.now += ns,
            }
            for round in 0.. {
                let waiting = WaitingGangs::before_tick(&desk);
                let decisions = desk.tick();
                prop_assert_eq!(waiting.got_all_or_nothing(&desk, &decisions), Ok(()), "{:?}", desk.arbiter);
                for (slot, gate) in decisions {
                    told.tell(&desk, slot, Some(gate));
                }
                if desk.arbiter.next_deadline() != Some(0) {
                    break;
                }
                prop_assert!(round < 16, "devices have each other decide without end: {:?}", desk.arbiter);
            }
            for device in 0..3u16 {
                let holders = told.gates.iter().filter(|&(&slot, gate)| {
                    matches!(gate, Gate::Run { .. }) && desk.arbiter.seat_at(desk.arbiter.slot_at(slot).seat).device.0 == device
                });
                let is_common = desk.arbiter.devices[usize::from(device)].phase == DevicePhase::Common;
                prop_assert!(holders.count() <= 1 || is_common);
            }
            prop_assert_eq!(told.keeps(&desk), Ok(()), "{:?}", desk.arbiter);
            prop_assert!(desk.arbiter.next_deadline().is_none_or(|due| due > desk.now));
            prop_assert_eq!(desk.is_sound(), Ok(()), "{:?}", desk.arbiter);
        }
        // From now on every member finishes its work and wants one more launch, except for some that repeat their
        // last report for ever; all others get their turn.
        let mut served = std::collections::BTreeSet::new();
        for (tenant, device) in (0..5).flat_map(|tenant| (0..3).map(move |device| (tenant, device))) {
            desk.arbiter.pause_tenant(TenantId(tenant), DeviceId(device), false, desk.now);
        }
        slots.retain(|slot| slot.index() % 3 != 0);
        for &slot in &slots {
            desk.runs(slot, 0);
            desk.done(slot, 0);
            desk.wants(slot);
        }
        for step in 0..40_000 {
            let waiting = WaitingGangs::before_tick(&desk);
            let decisions = desk.tick();
            prop_assert_eq!(waiting.got_all_or_nothing(&desk, &decisions), Ok(()), "{:?}", desk.arbiter);
            told.gates.extend(decisions);
            for &slot in &slots {
                if matches!(told.gates[&slot], Gate::Run { .. } | Gate::Open) && desk.book.of(slot).wants {
                    served.insert(slot);
                    desk.runs(slot, 0);
                    desk.done(slot, 0);
                }
            }
            if served.len() == slots.len() {
                break;
            }
            if step == FOR_NOTHING {
                let waits = slots.iter().find(|&slot| !served.contains(slot) && !desk.has_reason_to_wait(*slot));
                prop_assert_eq!(waits, None, "{:?}", desk.arbiter);
            }
            desk.now += match step {
                0..4_000 => MS,
                4_000..=FOR_NOTHING => 50 * MS,
                _ => 10_000 * MS,
            };
            if let Some(due) = desk.arbiter.next_deadline() {
                desk.now = desk.now.max(due);
            }
        }
        prop_assert_eq!(served.len(), slots.len(), "{:?}", desk.arbiter);
    }
}
