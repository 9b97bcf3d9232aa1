//! Property tests of admission and of plan differences, for any tenants on any device.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vgpu_config as config;
use vgpu_config::admit::{
    AdmissionRefusal, DeviceCapacity, GroupRefusal, TenantAsk, find_group_refusals, find_refusals,
};
use vgpu_config::difference::{PlanDifference, compare_plans};
use vgpu_config::inventory::{FoundDevice, Inventory};
use vgpu_config::plan::{ConfigPlan, DaemonPlan, GroupLimit, TenantPlan, TermsPlan};
use vgpu_config::raw::Amount;
use vgpu_config::resolve::Surroundings;
use vgpu_core::units::bytes::{Bytes, Size};
use vgpu_core::units::share::Share;

fn share() -> impl Strategy<Value = Option<Share>> {
    prop::option::of((10..=1000_u32).prop_map(|permille| Share::from_permille(permille).unwrap()))
}

/// Sizes on both sides of the limit: small ones so that sums meet it exactly, and the greatest possible ones.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![1..=100_u64, 1..=200_000_000_000_u64, Just(u64::MAX), Just(u64::MAX / 2)]
}

fn ask() -> impl Strategy<Value = TenantAsk> {
    (prop::option::of(bytes()), share(), share()).prop_map(|(memory, floor, ceiling)| TenantAsk {
        memory: memory.map(Bytes),
        floor,
        ceiling,
    })
}

fn capacity() -> impl Strategy<Value = DeviceCapacity> {
    (prop::option::of(bytes()), 1000..=3000_u32)
        .prop_map(|(memory, overcommit)| DeviceCapacity { memory: memory.map(Bytes), overcommit })
}

/// The admission rule, implemented independently: compares ratios instead of rounding, and never stops early.
fn fits(capacity: &DeviceCapacity, asks: &[TenantAsk]) -> bool {
    let memory_fits = capacity.memory.is_none_or(|total| {
        let asked: u128 = asks.iter().map(|ask| u128::from(ask.memory.map_or(total.get(), Bytes::get))).sum();
        asked * 1000 <= u128::from(total.get()) * u128::from(capacity.overcommit)
            && asks.iter().all(|ask| ask.memory.is_none_or(|limit| limit <= total))
    });
    let floors: u32 = asks.iter().filter_map(|ask| ask.floor).map(|floor| u32::from(floor.as_permille())).sum();
    let apart = asks.iter().all(|ask| ask.floor.is_none_or(|floor| ask.ceiling.is_none_or(|ceiling| floor <= ceiling)));
    memory_fits && floors <= 1000 && apart
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_admitted_fits_and_what_fits_is_admitted(
        capacity in capacity(),
        asks in prop::collection::vec(ask(), 0..12),
    ) {
        prop_assert_eq!(find_refusals(&capacity, &asks).is_empty(), fits(&capacity, &asks));
    }

    #[test]
    fn the_order_of_tenants_changes_no_verdict_and_fewer_tenants_always_fit(
        capacity in capacity(),
        asks in prop::collection::vec(ask(), 1..12),
        turn in 0..12_usize,
    ) {
        let admitted = find_refusals(&capacity, &asks).is_empty();
        let mut turned = asks.clone();
        turned.rotate_left(turn % asks.len());
        prop_assert_eq!(find_refusals(&capacity, &turned).is_empty(), admitted);
        turned.pop();
        prop_assert!(!admitted || find_refusals(&capacity, &turned).is_empty());
    }

    #[test]
    fn more_overcommit_never_refuses_what_less_admitted_and_the_named_ratio_is_the_least_that_admits(
        capacity in capacity(),
        asks in prop::collection::vec(ask(), 1..12),
        more in 0..1000_u32,
    ) {
        let wider = DeviceCapacity { overcommit: capacity.overcommit + more, ..capacity };
        prop_assert!(!find_refusals(&capacity, &asks).is_empty() || find_refusals(&wider, &asks).is_empty());
        for refusal in find_refusals(&capacity, &asks) {
            let AdmissionRefusal::Memory { at, asked, .. } = refusal else { continue };
            let Ok(ratio) = u32::try_from(capacity.ratio_for(asked).unwrap()) else { continue };
            let memory_refused = |overcommit, asks: &[TenantAsk]| {
                let refusals = find_refusals(&DeviceCapacity { overcommit, ..capacity }, asks);
                refusals.iter().any(|refusal| matches!(refusal, AdmissionRefusal::Memory { .. }))
            };
            prop_assert!(!memory_refused(ratio, &asks));
            prop_assert!(memory_refused(ratio - 1, &asks));
            // The index names the first ask that does not fit.
            prop_assert!(!memory_refused(capacity.overcommit, &asks[..at]));
            prop_assert!(memory_refused(capacity.overcommit, &asks[..=at]));
        }
    }

    #[test]
    fn equal_slots_always_fit(slots in 1..=100_u32, total in 100..=u64::MAX) {
        let memory = Amount::Slot(slots).bytes_on(Some(Bytes(total))).unwrap();
        let one = TenantAsk { memory, floor: Share::from_permille(1000 / slots), ceiling: None };
        let capacity = DeviceCapacity { memory: Some(Bytes(total)), overcommit: 1000 };
        prop_assert_eq!(find_refusals(&capacity, &vec![one; slots as usize]), Vec::new());
    }

    #[test]
    fn a_file_is_accepted_exactly_if_its_tenants_fit(
        limits in prop::collection::vec((1..=60_u64, 1..=60_u32), 1..6),
        ratio in 1000..=1500_u32,
    ) {
        let mut text = format!("[[device]]\nid = '*'\novercommit = {}.{:03}\n", ratio / 1000, ratio % 1000);
        for (index, (gib, percent)) in limits.iter().enumerate() {
            text.push_str(&format!("[[tenant]]\nname='t{index}'\nmemory_limit='{gib}GiB'\nsm_request={percent}\n"));
        }
        let found = FoundDevice { index: 0, parent: None, uuid: "GPU-1".into(), memory: Some(Bytes(80 << 30)), model: None };
        let inventory = Some(Inventory { found: vec![found], silent: Vec::new() });
        let around = Surroundings { run_dir: "/r".into(), inventory, ..Default::default() };
        let asked: u64 = limits.iter().map(|(gib, _)| gib * 1000).sum();
        let floors: u32 = limits.iter().map(|(_, percent)| percent).sum();
        let fits = asked <= 80 * u64::from(ratio) && floors <= 100;
        prop_assert_eq!(config::make_plan(&text, &around).is_ok(), fits, "{}", text);
    }

    #[test]
    fn a_file_with_limited_groups_is_accepted_exactly_if_each_groups_tenants_fit_its_limits(
        groups in prop::collection::vec((prop::option::of(1..=60_u64), prop::option::of(1..=100_u32)), 3),
        tenants in prop::collection::vec(
            (0..4_usize, prop::option::of(1..=20_u64), prop::option::of(1..=60_u32), prop::option::of(1..=20_u32), 0..3_u32),
            1..5,
        ),
    ) {
        // A subgroup's limit is never above its parent's, which is refused by itself.
        const NAMES: [&str; 3] = ["lab", "lab/vision", "ops"];
        let most = |group: usize| {
            let (memory, share) = groups[group];
            let parent = if group == 1 { groups[0] } else { (None, None) };
            let least = |own: Option<u64>, above: Option<u64>| own.map(|own| above.map_or(own, |above| own.min(above)));
            (least(memory, parent.0), least(share.map(u64::from), parent.1.map(u64::from)))
        };
        let mut text = "[[device]]\nid = 0\nmemory = '200GiB'\n[[device]]\nid = 1\nmemory = '200GiB'\n".to_owned();
        for (index, name) in NAMES.iter().enumerate() {
            text.push_str(&format!("[[group]]\nname='{name}'\n"));
            let (memory, share) = most(index);
            memory.iter().for_each(|gib| text.push_str(&format!("memory_limit='{gib}GiB'\n")));
            share.iter().for_each(|percent| text.push_str(&format!("sm_limit={percent}\n")));
        }
        for (index, (group, memory, ceiling, floor, device)) in tenants.iter().enumerate() {
            text.push_str(&format!("[[tenant]]\nname='t{index}'\n"));
            // The last group has no section of its own.
            text.push_str(&format!("group='{}'\n", ["lab", "lab/vision", "ops", "lab/vision/ocr"][*group]));
            memory.iter().for_each(|gib| text.push_str(&format!("memory_limit='{gib}GiB'\n")));
            ceiling.iter().for_each(|percent| text.push_str(&format!("sm_limit={percent}\n")));
            floor.iter().for_each(|percent| text.push_str(&format!("sm_request={percent}\n")));
            if *device < 2 {
                text.push_str(&format!("devices=[{device}]\n"));
            }
        }
        let fits = (0..2).all(|device| {
            let there = || tenants.iter().filter(|tenant| tenant.4 == device || tenant.4 == 2);
            let whole = there().map(|tenant| tenant.1.unwrap_or(200)).sum::<u64>() <= 200
                && there().all(|(.., ceiling, floor, _)| floor.unwrap_or(0) <= ceiling.unwrap_or(100));
            whole && (0..3).all(|group| {
                let members: [&[usize]; 3] = [&[0, 1, 3], &[1, 3], &[2]];
                let own = || there().filter(|tenant| members[group].contains(&tenant.0));
                let (memory, share) = most(group);
                let ceilings: u64 = own().map(|tenant| u64::from(tenant.2.unwrap_or(100))).sum();
                memory.is_none_or(|most| own().map(|tenant| tenant.1.unwrap_or(1_000)).sum::<u64>() <= most)
                    && share.is_none_or(|most| ceilings <= most)
            })
        });
        let around = Surroundings { run_dir: "/r".into(), ..Default::default() };
        prop_assert_eq!(config::make_plan(&text, &around).is_ok(), fits, "{}", text);
    }

    #[test]
    fn a_groups_refusal_names_the_first_tenant_that_does_not_fit_and_fewer_tenants_always_fit(
        memory in prop::option::of(bytes()),
        ceilings in share(),
        asks in prop::collection::vec(ask(), 1..12),
    ) {
        let memory = memory.map(|bytes| Amount::Size(Size::Bytes(Bytes(bytes))));
        let limit = GroupLimit { group: "lab".into(), memory, ceilings };
        let refusals = |asks: &[TenantAsk]| find_group_refusals(&limit, None, asks);
        let refuses_more = |asks: &[TenantAsk]| refusals(asks).iter().any(|it| matches!(it, GroupRefusal::Memory { .. }));
        let refuses_time = |asks: &[TenantAsk]| refusals(asks).iter().any(|it| matches!(it, GroupRefusal::Ceilings { .. }));
        for refusal in refusals(&asks) {
            match refusal {
                GroupRefusal::UnknownSize => prop_assert!(false, "a size in bytes needs no device"),
                GroupRefusal::Unlimited { at, .. } => prop_assert_eq!(asks[at].memory, None),
                GroupRefusal::Memory { at, asked, most } => {
                    prop_assert!(asked > most.get().into() && refuses_more(&asks[..=at]) && !refuses_more(&asks[..at]));
                }
                GroupRefusal::Ceilings { at, asked, most } => {
                    prop_assert!(asked > most.as_permille().into());
                    prop_assert!(refuses_time(&asks[..=at]) && !refuses_time(&asks[..at]));
                }
            }
        }
        prop_assert!(!refusals(&asks).is_empty() || refusals(&asks[1..]).is_empty());
    }
}

fn tenant(name: &str) -> impl Strategy<Value = TenantPlan> + use<> {
    let name = name.to_owned();
    let terms = (prop::option::of(1..4_u64), share(), 1..3_u32).prop_map(|(memory, ceiling, weight)| TermsPlan {
        device: "0".into(),
        uuid: None,
        memory: memory.map(Bytes),
        ceiling,
        floor: None,
        weight,
        class: Default::default(),
        quantum: None,
    });
    (terms, prop::option::of(Just(vec![0..=9]))).prop_map(move |(terms, uids)| TenantPlan {
        name: name.clone(),
        replicas: None,
        gang: None,
        socket: format!("/r/tenants/{name}/vgpud.sock").into(),
        bearer: Default::default(),
        uids,
        mode: Default::default(),
        strict: false,
        on_error: Default::default(),
        on_loss: Default::default(),
        usage: Default::default(),
        terms: vec![terms],
    })
}

fn plan() -> impl Strategy<Value = ConfigPlan> {
    let some = ["a", "b", "c", "d", "e", "f"].map(|name| prop::option::of(tenant(name)));
    (Vec::from(some), 1..3_u32, any::<bool>()).prop_map(|(tenants, connections, reversed)| {
        let mut tenants: Vec<_> = tenants.into_iter().flatten().collect();
        if reversed {
            tenants.reverse();
        }
        ConfigPlan {
            arbitrate: true,
            groups: Vec::new(),
            daemon: DaemonPlan {
                half_life: 7 * 86_400,
                run_dir: "/r".into(),
                state_dir: Some("/s".into()),
                exact: true,
                keep: Default::default(),
                admin: None,
                max_connections: connections,
                log: "info".into(),
            },
            log: Default::default(),
            metrics: Default::default(),
            proof: None,
            time: Default::default(),
            devices: Vec::new(),
            tenants,
            defaults: Default::default(),
            actions: Vec::new(),
            templates: Vec::new(),
            windows: Vec::new(),
            bookings: Vec::new(),
            notes: Vec::new(),
        }
    })
}

/// Applies a difference to a plan, and returns the resulting tenants by name.
fn obeyed(old: &ConfigPlan, difference: &PlanDifference) -> BTreeMap<String, TenantPlan> {
    let mut tenants: BTreeMap<_, _> = old.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.clone())).collect();
    for name in &difference.removed {
        assert!(tenants.remove(name).is_some(), "{name} was not there");
    }
    for changed in &difference.changed {
        assert!(tenants.insert(changed.tenant.name.clone(), changed.tenant.clone()).is_some());
        assert!(!changed.what.is_empty(), "what changed is named");
    }
    for added in &difference.added {
        assert!(tenants.insert(added.name.clone(), added.clone()).is_none());
    }
    tenants
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn obeying_the_difference_leads_from_the_old_plan_to_the_new_one(old in plan(), new in plan()) {
        let difference = compare_plans(&old, &new);
        let expected: BTreeMap<_, _> = new.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.clone())).collect();
        prop_assert_eq!(obeyed(&old, &difference), expected);
        prop_assert_eq!(difference.kept + difference.changed.len() + difference.added.len(), new.tenants.len());
        prop_assert_eq!(difference.kept + difference.changed.len() + difference.removed.len(), old.tenants.len());
    }

    #[test]
    fn a_plan_is_no_different_from_itself_and_the_way_back_takes_away_what_the_way_there_added(
        old in plan(),
        new in plan(),
    ) {
        prop_assert!(compare_plans(&old, &old).is_empty());
        let (there, back) = (compare_plans(&old, &new), compare_plans(&new, &old));
        let mut added: Vec<_> = there.added.iter().map(|tenant| tenant.name.clone()).collect();
        added.sort();
        prop_assert_eq!(&added, &back.removed);
        prop_assert_eq!((there.changed.len(), there.kept), (back.changed.len(), back.kept));
        prop_assert_eq!(there.is_empty(), back.is_empty());
    }
}
