//! Whatever happens, in any order, and whatever anybody says: nobody is forgotten, and whoever tells the truth gets on.

use super::*;
use crate::arbiter::seat::Place;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// What may happen to a desk.
#[derive(Clone, Debug)]
enum Deed {
    Join(u32, u8, Terms),
    Leave(usize),
    Want(usize),
    Launch(usize, u64),
    Finish(usize, u64),
    Set(u32, u8, Terms),
    Pause(u32, u8, bool),
    /// Says anything, now and then.
    Lie(usize, Usage),
    /// Was here under another arbiter.
    Back(usize),
    Common(u8, bool),
    /// From now on all that is used is measured, or not.
    Measure(bool),
    Pass(u64),
}

fn lie() -> impl Strategy<Value = Usage> {
    let flight = prop_oneof![Just(None), Just(Some(0)), Just(Some(u64::MAX)), (0..10_000 * MS).prop_map(Some)];
    (flight, any::<bool>(), 0..50 * MS, 0..50 * MS).prop_map(|(in_flight, wants, busy, finished)| Usage {
        busy,
        finished,
        in_flight,
        wants,
        since: 0,
    })
}

impl Desk {
    /// Nobody who stands in a queue is forgotten there.
    fn is_sound(&self) -> Result<(), String> {
        for (at, seat) in self.arbiter.seats.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?))) {
            let phase = self.arbiter.devices[index(seat.device)].phase;
            if phase != Phase::Common && seat.place == Place::Idle && !seat.queue.is_empty() {
                return Err(format!("seat {at} is idle with {:?} in its queue", seat.queue));
            }
            if seat.place == Place::Current && phase.seat() != Some(SeatIx::try_from(at).unwrap()) {
                return Err(format!("seat {at} is current on a device that is {phase:?}"));
            }
            for &slot in &seat.members {
                if self.arbiter.slot(slot).queued != seat.queue.contains(&slot) {
                    return Err(format!("{slot:?} of seat {at} is queued or not: {:?}", seat.queue));
                }
            }
        }
        Ok(())
    }
}

/// After so many steps, a quarter of an hour, nobody waits who has no reason to.
const FOR_NOTHING: usize = 20_000;

impl Desk {
    /// What was claimed for minutes under a ceiling of a hundredth is paid for in hours; and of a class that is not the
    /// first on its device one gets a lease now and then, in their order.
    fn has_reason_to_wait(&self, slot: SlotId) -> bool {
        let seat = self.arbiter.seat(self.arbiter.slot(slot).seat);
        let here = self.arbiter.seats.iter().flatten().filter(|other| other.device == seat.device);
        let mut before = here.filter(|other| matches!(other.place, Place::Ready | Place::Current));
        matches!(seat.place, Place::Capped(_)) || before.any(|other| other.terms.class < seat.terms.class)
    }
}

fn terms() -> impl Strategy<Value = Terms> {
    let share = |most| prop::option::of((1u32..=most).prop_map(|p| Share::from_percent(p).unwrap()));
    // Floors that leave something: whoever has none gets nothing where they do not.
    (share(15), share(100), 0u32..20, 0u8..3).prop_map(|(floor, ceiling, weight, class)| Terms {
        class: [Class::Latency, Class::Normal, Class::Batch][usize::from(class)],
        floor,
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
        (0u8..9, any::<bool>()).prop_map(|(device, common)| Deed::Common(device, common)),
        any::<bool>().prop_map(Deed::Measure),
        prop_oneof![1u64..20 * MS, 1u64..5_000 * MS].prop_map(Deed::Pass),
    ]
}

/// The same histories each time; `make soak` draws others by `VGPU_SEED`, and `PROPTEST_CASES` of them.
#[expect(clippy::disallowed_methods, reason = "a test says by its variables which histories it draws")]
fn which() -> ProptestConfig {
    let seed = std::env::var("VGPU_SEED").map_or(7, |text| text.parse().expect("VGPU_SEED"));
    let told = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { told.cases } else { 4_096 };
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..told }
}

proptest! {
    #![proptest_config(which())]

    /// Whatever members do: at most one lease per device (an open gate counts for its tenant), deadlines lie ahead
    /// after a tick, and whoever wants gets on while the others behave.
    #[test]
    fn no_history_breaks_it(deeds in prop::collection::vec(deed(), 1..300)) {
        let mut desk = Desk::new(3);
        let mut slots: Vec<SlotId> = Vec::new();
        let mut gates = std::collections::BTreeMap::new();
        for deed in deeds {
            let now = desk.now;
            let pick = |at: usize| (!slots.is_empty()).then(|| slots[at % slots.len()]);
            match deed {
                Deed::Join(tenant, device, terms) => {
                    let slot = desk.arbiter.join(Tenant(tenant), DeviceId(u16::from(device)), terms, now);
                    *desk.book.of(slot) = Usage { in_flight: Some(0), since: now, ..Usage::default() };
                    gates.insert(slot, Gate::Wait);
                    slots.push(slot);
                }
                Deed::Leave(at) => if let Some(slot) = pick(at) {
                    slots.retain(|&other| other != slot);
                    gates.remove(&slot);
                    desk.arbiter.leaves(slot, now);
                },
                Deed::Want(at) => if let Some(slot) = pick(at) { desk.wants(slot) },
                Deed::Launch(at, ns) => if let Some(slot) = pick(at) { desk.runs(slot, ns) },
                Deed::Finish(at, ns) => if let Some(slot) = pick(at) { desk.done(slot, ns) },
                Deed::Set(tenant, device, terms) => {
                    desk.arbiter.set(Tenant(tenant), DeviceId(u16::from(device)), terms, now);
                }
                Deed::Pause(tenant, device, on) => {
                    desk.arbiter.pause(Tenant(tenant), DeviceId(u16::from(device)), on, now);
                }
                Deed::Lie(at, usage) => if let Some(slot) = pick(at) {
                    *desk.book.of(slot) = usage;
                    if usage.wants {
                        desk.arbiter.wants(slot, now);
                    }
                },
                Deed::Back(at) => if let Some(slot) = pick(at) { desk.arbiter.comes_back(slot, now) },
                Deed::Common(device, common) => if device < 3 {
                    desk.arbiter.share_out(DeviceId(u16::from(device)), common);
                },
                Deed::Measure(all) => {
                    desk.arbiter.configure(Config { measures_all: all, ..desk.arbiter.config });
                }
                Deed::Pass(ns) => desk.now += ns,
            }
            for (slot, gate) in desk.tick() {
                gates.insert(slot, gate);
            }
            for device in 0..3u16 {
                let holders = gates.iter().filter(|&(&slot, gate)| {
                    matches!(gate, Gate::Run { .. }) && desk.arbiter.seat(desk.arbiter.slot(slot).seat).device.0 == device
                });
                prop_assert!(holders.count() <= 1);
            }
            for (&slot, gate) in &gates {
                let device = desk.arbiter.seat(desk.arbiter.slot(slot).seat).device;
                let unmeasured = *gate == Gate::Open && desk.arbiter.devices[index(device)].phase != Phase::Common;
                prop_assert!(!(unmeasured && desk.arbiter.config.measures_all), "{slot:?} is not measured");
            }
            prop_assert!(desk.arbiter.next_deadline().is_none_or(|due| due > desk.now || due == 0));
            prop_assert_eq!(desk.is_sound(), Ok(()), "{:?}", desk.arbiter);
        }
        // From now on everybody finishes what it has and wants one more launch, but for some who say for ever what they said
        // last; all others get their turn.
        let mut served = std::collections::BTreeSet::new();
        for (tenant, device) in (0..5).flat_map(|tenant| (0..3).map(move |device| (tenant, device))) {
            desk.arbiter.pause(Tenant(tenant), DeviceId(device), false, desk.now);
        }
        slots.retain(|slot| slot.index() % 3 != 0);
        for &slot in &slots {
            desk.runs(slot, 0);
            desk.done(slot, 0);
            desk.wants(slot);
        }
        for step in 0..40_000 {
            for (slot, gate) in desk.tick() {
                gates.insert(slot, gate);
            }
            for &slot in &slots {
                if matches!(gates[&slot], Gate::Run { .. } | Gate::Open) && desk.book.of(slot).wants {
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
