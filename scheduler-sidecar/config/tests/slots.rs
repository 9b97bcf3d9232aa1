//! Promises about slots (`replicas`) when a file is read again with another number, for all histories of members.

use std::collections::BTreeSet;

use proptest::prelude::*;
use vgpu_config::live::find_misfits;
use vgpu_config::make_plan;
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_config::resolve::Surroundings;
use vgpu_config::slots::settle_slots;

const GIB: u64 = 1 << 30;

/// A file with this many slots of a device of 80 GiB, and a tenant next to them with this part of the device.
fn plan(replicas: u32, beside: u64) -> ConfigPlan {
    let slot = 80 * GIB * (100 - beside) / 100 / u64::from(replicas);
    let floor = f64::from(u32::try_from(100 - beside).unwrap()) / f64::from(replicas);
    let text = format!(
        "[[device]]\nid = 0\nmemory = \"80GiB\"\n[[tenant]]\nname = \"s\"\nreplicas = {replicas}\nmemory_limit = {slot}\n\
         sm_request = {:.1}\n[[tenant]]\nname = \"b\"\nmemory_limit = {}\nsm_request = {beside}\n",
        (floor * 10.0).floor() / 10.0,
        80 * GIB * beside / 100
    );
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
    make_plan(&text, &around).unwrap_or_else(|report| panic!("{}{text}", report.to_lines("f")))
}

/// What a tenant is promised, by name.
fn promise(tenant: &TenantPlan) -> (String, Vec<(u64, u32)>) {
    let each = tenant.terms.iter().map(|terms| {
        (terms.memory.map_or(0, u64::from), terms.floor.map_or(0, |floor| u32::from(floor.as_permille())))
    });
    (tenant.name.clone(), each.collect())
}

/// The tenants in force, and the terms of those with members, as the daemon keeps them.
#[derive(Default)]
struct Served {
    now: Vec<TenantPlan>,
    /// Tenants with members that are no longer in the file.
    removed: Vec<TenantPlan>,
    members: BTreeSet<String>,
}

impl Served {
    fn busy(&self) -> Vec<TenantPlan> {
        let there = self.now.iter().filter(|tenant| self.members.contains(&tenant.name));
        there.chain(&self.removed).cloned().collect()
    }

    /// Reads a file, or looks again at the same one. Returns whether it was accepted, and whether slots wait.
    fn follow(&mut self, plan: &ConfigPlan) -> Option<bool> {
        let busy = self.busy();
        let settled = settle_slots(&plan.devices, &plan.tenants, &self.now, &busy).ok()?;
        let names: BTreeSet<&str> = settled.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let removed = busy.iter().filter(|tenant| !names.contains(tenant.name.as_str())).cloned().collect();
        (self.now, self.removed) = (settled.tenants, removed);
        // Nobody joins a removed tenant, and one that is served again has its members.
        self.members = self.busy().into_iter().map(|tenant| tenant.name).collect();
        Some(!settled.notes.is_empty())
    }

    fn all(&self) -> Vec<TenantPlan> {
        self.now.iter().chain(&self.removed).cloned().collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_with_members_keep_their_promise_nothing_is_promised_twice_and_all_comes_when_members_leave(
        first in 1..9_u32,
        steps in prop::collection::vec((1..9_u32, any::<u16>(), any::<u16>()), 1..8),
    ) {
        let mut served = Served::default();
        served.follow(&plan(first, 20)).unwrap();
        let mut file = plan(first, 20);
        for (replicas, join, leave) in steps {
            for (at, tenant) in served.now.iter().enumerate() {
                if join >> at & 1 == 1 {
                    served.members.insert(tenant.name.clone());
                }
            }
            let before: Vec<_> = served.busy().iter().map(promise).collect();
            file = plan(replicas, 20);
            prop_assert!(served.follow(&file).is_some());
            let after: Vec<_> = served.all().iter().map(promise).collect();
            for kept in before.iter().filter(|(name, _)| name != "b") {
                prop_assert!(after.contains(kept), "{kept:?} of {after:?}");
            }
            prop_assert!(find_misfits(&file.devices, &served.all()).is_empty(), "{after:?}");
            // Some leave, and the slots are looked at again.
            let left: Vec<String> = served.busy().iter().map(|tenant| tenant.name.clone()).enumerate()
                .filter(|(at, _)| leave >> at & 1 == 1).map(|(_, name)| name).collect();
            served.members.retain(|name| !left.contains(name));
            served.removed.retain(|tenant| !left.contains(&tenant.name));
            prop_assert!(served.follow(&file).is_some());
            prop_assert!(find_misfits(&file.devices, &served.all()).is_empty());
        }
        served.members.clear();
        served.removed.clear();
        prop_assert_eq!(served.follow(&file), Some(false));
        prop_assert_eq!(&served.now, &file.tenants);
    }
}

#[test]
fn a_tenant_that_takes_the_room_of_slots_with_members_is_refused_with_the_reason() {
    let mut served = Served::default();
    served.follow(&plan(2, 20)).unwrap();
    served.members.insert("s-0".into());
    served.members.insert("s-1".into());
    let before: Vec<_> = served.now.clone();
    assert_eq!(served.follow(&plan(4, 60)), None);
    let why = settle_slots(&plan(4, 60).devices, &plan(4, 60).tenants, &served.now, &served.busy()).unwrap_err();
    assert!(why.starts_with("slots keep their terms until their last members have left: memory_limit "), "{why}");
    assert_eq!(served.now, before);
}

#[test]
fn the_same_number_with_another_limit_changes_slots_at_once_as_for_any_tenant() {
    let mut served = Served::default();
    served.follow(&plan(4, 60)).unwrap();
    served.members.insert("s-0".into());
    assert_eq!(served.follow(&plan(4, 20)), Some(false));
    assert_eq!(served.now, plan(4, 20).tenants);
}
