//! Tests of groups: shares that use converges to, weights that rest, and quotas that are exact.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use vgpu_config::change::WrittenChange;
use vgpu_config::make_plan;
use vgpu_config::plan::ConfigPlan;
use vgpu_config::resolve::Surroundings;
use vgpu_core::limits::Class;
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::chain::decide;
use vgpu_policy::groups::{GroupInputs, HeldWeights, divide_shares, settle_weights, weight_changes};
use vgpu_policy::outcome::Decision;
use vgpu_policy::overrides::{OverrideAction, TermsOverride};
use vgpu_policy::quotas::{
    PeriodUse, QuotaLevel, QuotaState, UseByPeriod, follow_quotas, judge_quotas, period_starts, quota_changes,
};
use vgpu_policy::usage::UsageChange;
use vgpu_policy::words::chain_sentences;

static UTC: TimeZone = TimeZone::UTC;

const DAY: u64 = 86_400;

/// Seconds between two updates of the weights in the simulated loop.
const STEP: u64 = 60;

fn plan(sections: &str) -> ConfigPlan {
    let file = format!("[[device]]\nid = 0\nmemory = \"80GiB\"\n{sections}");
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
    make_plan(&file, &around).unwrap_or_else(|report| panic!("{}\n{file}", report.to_lines("f")))
}

fn tenant(name: &str, group: &str, rest: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nmemory_limit = \"1GiB\"\ngroup = \"{group}\"\n{rest}\n")
}

fn group(name: &str, rest: &str) -> String {
    format!("[[group]]\nname = \"{name}\"\n{rest}\n")
}

/// The tenants with their groups.
fn grouped(plan: &ConfigPlan) -> impl Iterator<Item = (&str, Option<&str>)> {
    plan.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.bearer.group.as_deref()))
}

/// `lab` is due three quarters, two thirds of them for `lab/vision`; `ops` is due a quarter.
fn department() -> ConfigPlan {
    plan(
        &[
            group("lab", "weight = 3"),
            group("lab/vision", "weight = 2"),
            group("lab/speech", "weight = 1"),
            group("ops", "weight = 1"),
            tenant("v1", "lab/vision", ""),
            tenant("v2", "lab/vision", "weight = 3"),
            tenant("s1", "lab/speech", ""),
            tenant("o1", "ops", ""),
        ]
        .concat(),
    )
}

/// A device that is divided by weights among the tenants that run, and the record of what they used.
struct Machine<'p> {
    plan: &'p ConfigPlan,
    running: BTreeSet<String>,
    /// Use by group, halved with each half-life; and in total.
    used: BTreeMap<String, f64>,
    total: BTreeMap<String, f64>,
    held: HeldWeights,
    /// Number of changes of any tenant's weight.
    changes: usize,
}

impl<'p> Machine<'p> {
    fn new(plan: &'p ConfigPlan) -> Self {
        let none = BTreeMap::new;
        Self { plan, running: BTreeSet::new(), used: none(), total: none(), held: HeldWeights::new(), changes: 0 }
    }

    fn inputs(&self) -> GroupInputs<'_> {
        let ConfigPlan { groups, tenants, .. } = self.plan;
        GroupInputs { groups, half_life: DAY, tenants, running: &self.running, used: &self.used }
    }

    fn step(&mut self) {
        let shares = divide_shares(&self.inputs());
        let settled = settle_weights(&self.inputs(), &shares, &self.held);
        self.changes += settled.iter().filter(|(key, held)| self.held.get(key) != Some(held)).count();
        self.held = settled;
        let weight = |name: &str| f64::from(self.held[&(name.to_owned(), "0".to_owned())].weight);
        let weights: f64 = self.running.iter().map(|name| weight(name)).sum();
        let kept = (-std::f64::consts::LN_2 * STEP as f64 / DAY as f64).exp();
        self.used.values_mut().for_each(|used| *used *= kept);
        for tenant in self.plan.tenants.iter().filter(|tenant| self.running.contains(&tenant.name)) {
            let group = tenant.bearer.group.clone().unwrap_or_default();
            let got = STEP as f64 * 1e9 * weight(&tenant.name) / weights;
            *self.used.entry(group.clone()).or_default() += got;
            *self.total.entry(group).or_default() += got;
        }
    }

    fn parts(&self) -> BTreeMap<&str, f64> {
        let all: f64 = self.total.values().sum();
        self.total.iter().map(|(name, used)| (name.as_str(), 100.0 * used / all)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Rows 82, 83 and 85: accounts in a tree share by decayed use.
    #[test]
    fn use_converges_to_the_shares_of_the_tree_although_tenants_come_and_go(
        lengths in prop::collection::vec((20_u64..200, 5_u64..45), 4 * 60),
    ) {
        let plan = department();
        let mut machine = Machine::new(&plan);
        let mut next = [0; 4];
        let mut used = [0; 4];
        // Each tenant runs for 20 minutes to 3 hours, and is away for 5 to 45 minutes, for 8 days.
        for step in 0..8 * DAY / STEP {
            for (at, tenant) in plan.tenants.iter().enumerate() {
                if step < next[at] {
                    continue;
                }
                let (on, off) = lengths[at * 60 + used[at] / 2 % 60];
                next[at] = step + if used[at] % 2 == 0 { on } else { off };
                if used[at] % 2 == 0 {
                    machine.running.insert(tenant.name.clone());
                } else {
                    machine.running.remove(&tenant.name);
                }
                used[at] += 1;
            }
            if step == 2 * DAY / STEP {
                machine.total.clear();
            }
            machine.step();
        }
        let parts = machine.parts();
        for (group, due) in [("lab/vision", 50.0), ("lab/speech", 25.0), ("ops", 25.0)] {
            prop_assert!((parts[group] - due).abs() < 3.0, "{group} is due {due} %: {parts:?}");
        }
    }

    #[test]
    fn the_parts_of_running_tenants_add_up_and_nobody_gets_nothing(
        used in prop::collection::vec(0.0_f64..1e18, 3),
        running in prop::collection::vec(any::<bool>(), 5),
    ) {
        let plan = plan(&[
            group("a", "weight = 100"),
            group("a/b", "weight = 1"),
            group("c", ""),
            tenant("t0", "a", ""),
            tenant("t1", "a/b", "weight = 9"),
            tenant("t2", "a/b", ""),
            tenant("t3", "c/deep/er", ""),
            "[[tenant]]\nname = \"t4\"\nmemory_limit = \"1GiB\"\n".to_owned(),
        ].concat());
        let names = plan.tenants.iter().zip(&running).filter(|(_, runs)| **runs).map(|(tenant, _)| tenant.name.clone());
        let running: BTreeSet<String> = names.collect();
        let used: BTreeMap<String, f64> = ["a", "a/b", "c/deep/er"].map(str::to_owned).into_iter().zip(used).collect();
        let ConfigPlan { groups, tenants, .. } = &plan;
        let inputs = GroupInputs { groups, half_life: DAY, tenants, running: &running, used: &used };
        let shares = divide_shares(&inputs);
        let sum: f64 = running.iter().map(|name| shares.tenants[name]).sum();
        prop_assert!(running.is_empty() || (sum - 1.0).abs() < 1e-9, "{shares:?}");
        prop_assert!(shares.tenants.values().all(|part| *part > 0.0 && *part <= 1.0 + 1e-9), "{shares:?}");
        prop_assert_eq!(shares.tenants.len(), 5);
        let top: f64 = shares.rows.iter().filter(|row| !row.name.contains('/')).map(|row| row.share).sum();
        prop_assert!(top < 1.0 && top > 0.98, "the tenant without a group has the rest: {:?}", shares.rows);
        for held in settle_weights(&inputs, &shares, &HeldWeights::new()).values() {
            prop_assert!((1..=10_000).contains(&held.weight));
        }
    }

    /// Row 90: all amounts are integers, so the limit is hit exactly.
    #[test]
    fn a_quota_is_near_at_80_percent_and_used_up_at_100_and_not_a_unit_before(
        thousandths in 1_u32..4_000_000, on_gpu in any::<bool>(), below in 0_u64..3,
    ) {
        let key = if on_gpu { "gpu_hours" } else { "gib_hours" };
        let limit = f64::from(thousandths) / 1000.0;
        let plan = plan(&group("lab", &format!("[[group.quota]]\nper = \"day\"\n{key} = {limit}")));
        // A thousandth of an hour is 3.6 s, of a GiB-hour 3.6 GiB-seconds.
        let exact = u64::from(thousandths) * if on_gpu { 3_600_000_000 } else { 18 << 30 };
        let level = |five_times: u64| {
            // Byte-seconds are asked for in fifths, rounded up: the first whole number that reaches the amount.
            let amount = if on_gpu { five_times } else { five_times.div_ceil(5) };
            let used = if on_gpu { PeriodUse { gpu_ns: amount, ..PeriodUse::default() } }
                else { PeriodUse { byte_seconds: amount, ..PeriodUse::default() } };
            let used = UseByPeriod::from([(0, BTreeMap::from([("lab/vision".to_owned(), used)]))]);
            judge_quotas(&plan.groups, &used, 3_600)[0].level
        };
        let (unit, near) = (if on_gpu { 1 } else { 5 }, (exact * 4).div_ceil(5));
        prop_assert_eq!(level(exact), QuotaLevel::UsedUp);
        prop_assert_eq!(level(exact - unit), QuotaLevel::Near);
        prop_assert_eq!(level(near + below * unit.min(1)), QuotaLevel::Near);
        prop_assert_eq!(level(near - unit), QuotaLevel::Free);
    }
}

#[test]
fn use_of_a_group_that_no_tenant_has_any_more_counts_for_nobody() {
    let plan = department();
    let mut machine = Machine::new(&plan);
    machine.running.insert("v1".into());
    machine.step();
    let before = divide_shares(&machine.inputs());
    machine.used.insert("renamed".into(), 1e18);
    assert_eq!(divide_shares(&machine.inputs()), before);
}

#[test]
fn weights_rest_while_the_same_tenants_run() {
    let plan = department();
    let mut machine = Machine::new(&plan);
    machine.running.insert("o1".into());
    for _ in 0..DAY / STEP {
        machine.step();
    }
    machine.running = plan.tenants.iter().map(|tenant| tenant.name.clone()).collect();
    machine.changes = 0;
    for _ in 0..5 * DAY / STEP {
        machine.step();
    }
    // The others catch up on `o1`, from a 64th of its weight to all of it, in steps of 10 %.
    let catching_up = machine.changes;
    for _ in 0..5 * DAY / STEP {
        machine.step();
    }
    let later = machine.changes - catching_up;
    assert!(catching_up <= 100 && later <= 20, "{catching_up} and {later} changes of 4 weights in 5 days each");
    assert!(catching_up > 40, "{catching_up}");
    let parts = machine.parts();
    assert!((parts["lab/vision"] / parts["lab/speech"] - 2.0).abs() < 0.1, "{parts:?}");
}

#[test]
fn a_group_that_returns_after_a_week_catches_up_and_starves_nobody() {
    let plan = department();
    let mut machine = Machine::new(&plan);
    machine.running = ["o1", "s1"].map(str::to_owned).into();
    for _ in 0..7 * DAY / STEP {
        machine.step();
    }
    machine.running.insert("v1".into());
    machine.step();
    let shares = divide_shares(&machine.inputs());
    // The lab had what it is due, so `v1` catches up on the other tenants of the lab.
    assert!(shares.tenants["v1"] > 0.7 && shares.tenants["o1"] > 0.24, "it catches up: {shares:?}");
    assert!(shares.tenants["s1"] > 0.005, "{shares:?}");
    let mut days = 0.0;
    while divide_shares(&machine.inputs()).tenants["v1"] > 0.6 {
        machine.step();
        days += STEP as f64 / DAY as f64;
        assert!(days < 3.0, "it never has caught up");
    }
    assert!(days > 0.25, "what the others had is not forgotten within {days} days");
}

fn decision(plan: &ConfigPlan, usage: &[UsageChange], overrides: &[TermsOverride], now: i64) -> Decision {
    let ConfigPlan { devices, tenants, windows, bookings, .. } = plan;
    decide(&PolicyInputs { devices, tenants, leaving: &[], windows, bookings, usage, overrides, zone: &UTC }, now)
}

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_second()
}

/// Device time of one group since a moment, in hours.
fn used(start: i64, group: &str, hours: u64) -> UseByPeriod {
    let used = PeriodUse { gpu_ns: hours * 3_600_000_000_000, byte_seconds: 0 };
    BTreeMap::from([(start, BTreeMap::from([(group.to_owned(), used)]))])
}

#[test]
fn a_used_up_quota_restricts_the_group_and_its_subgroups_and_the_next_period_restores_the_terms() {
    let quota = "[[group.quota]]\nper = \"week\"\ngpu_hours = 10\nthen = ";
    let now = at("2026-11-27T12:00Z");
    let (monday, next) = (at("2026-11-23T00:00Z"), at("2026-11-30T00:00Z"));
    for (then, class, ceiling, paused) in [
        ("\"batch\"", Class::Batch, Some(600), false),
        ("20", Class::Normal, Some(200), false),
        ("\"pause\"", Class::Normal, Some(600), true),
    ] {
        let plan = plan(
            &[
                group("lab", &format!("{quota}{then}")),
                group("ops", ""),
                tenant("v", "lab/vision", "sm_limit = 60"),
                tenant("o", "ops", "sm_limit = 60"),
            ]
            .concat(),
        );
        let outcome = |hours: u64, now: i64| {
            let states = judge_quotas(&plan.groups, &used(monday, "lab/vision", hours), now);
            let usage = quota_changes(grouped(&plan), &states);
            let decision = decision(&plan, &usage, &[], now);
            assert_eq!(decision.outcomes[1].tenant, plan.tenants[1], "another group has its own terms");
            let outcome = &decision.outcomes[0];
            let terms = &outcome.tenant.terms[0];
            (terms.class, terms.ceiling.map(|share| share.as_permille()), outcome.is_paused())
        };
        assert_eq!(outcome(10, now), (class, ceiling, paused), "{then}");
        let own = (Class::Normal, Some(600), false);
        assert_eq!((outcome(9, now), outcome(10, next)), (own, own), "{then}: before it, and in the next week");
    }
}

#[test]
fn a_quota_stays_used_up_while_the_use_since_another_start_is_not_known() {
    let quota = |per: &str| group("lab", &format!("[[group.quota]]\nper = \"{per}\"\ngpu_hours = 1\nthen = \"pause\""));
    let (now, monday) = (at("2026-11-27T12:00Z"), at("2026-11-23T00:00Z"));
    let known = used(monday, "lab", 1);
    let week = plan(&quota("week")).groups;
    let last = follow_quotas(&week, &known, [], now);
    assert_eq!((last.len(), last[0].level), (1, QuotaLevel::UsedUp));
    // Another file: the record has not summed up the use of today yet.
    let both = [week.clone(), plan(&quota("day")).groups].concat();
    assert_eq!(follow_quotas(&both, &known, &last, now), last);
    let mut answered = known.clone();
    answered.insert(at("2026-11-27T00:00Z"), [].into());
    let levels = |states: Vec<QuotaState>| states.iter().map(|state| state.level).collect::<Vec<_>>();
    assert_eq!(levels(follow_quotas(&both, &answered, &last, now)), [QuotaLevel::UsedUp, QuotaLevel::Free]);
    assert_eq!(follow_quotas(&week, &known, &last, last[0].end), [], "in the next week it is over");
}

#[test]
fn a_window_or_a_booking_does_not_loosen_a_quota_and_a_person_may() {
    let plan = plan(
        &[
            group("lab", "[[group.quota]]\nper = \"day\"\ngpu_hours = 1\nthen = 10"),
            tenant("v", "lab", "sm_limit = 60"),
            "[[window]]\nname = \"w\"\nfrom = \"00:00\"\nto = \"24:00\"\nsm_limit = 90\n".to_owned(),
            "[[booking]]\nname = \"b\"\ntenant = \"v\"\nfrom = \"2026-11-27 09:00\"\nfor = \"9h\"\nsm_request = 50\n"
                .to_owned(),
        ]
        .concat(),
    );
    let now = at("2026-11-27T12:00Z");
    let states = judge_quotas(&plan.groups, &used(at("2026-11-27T00:00Z"), "lab", 1), now);
    let usage = quota_changes(grouped(&plan), &states);
    let ceiling = |decision: &Decision| decision.outcomes[0].tenant.terms[0].ceiling.map(|share| share.as_permille());
    let restricted = decision(&plan, &usage, &[], now);
    assert_eq!(ceiling(&restricted), Some(100));
    let words = chain_sentences(&plan.tenants[0], &restricted.outcomes[0], "0", "file", now);
    let told = "sm_limit 60 % (file) -> 90 % (window \"w\" until 2026-11-28 00:00) -> 10 % (group \"lab\" until \
                2026-11-28 00:00: \"its quota of 1 GPU-hours a day is used up\")";
    assert!(words.contains(&told.to_owned()), "{words:?}");
    let by_hand = TermsOverride {
        tenant: "v".into(),
        device: None,
        action: OverrideAction::Terms(Box::new(WrittenChange { sm_limit: Some("70".into()), ..Default::default() })),
        since: now,
        until: None,
        by_uid: 0,
        reason: None,
    };
    assert_eq!(ceiling(&decision(&plan, &usage, &[by_hand], now)), Some(700));
}

/// Row 139: weights of projects and classes of tenants stand in one file.
#[test]
fn weights_of_projects_go_with_classes_of_tenants_and_without_groups_the_terms_are_those_of_the_file() {
    let plan = plan(
        &[
            group("prod", "weight = 9"),
            group("dev", "weight = 1"),
            tenant("p", "prod", "class = \"latency\""),
            tenant("d", "dev", "class = \"batch\""),
        ]
        .concat(),
    );
    let mut machine = Machine::new(&plan);
    machine.running = plan.tenants.iter().map(|tenant| tenant.name.clone()).collect();
    machine.step();
    let usage = weight_changes(&machine.inputs(), &machine.held);
    let decision_with = decision(&plan, &usage, &[], 0);
    let terms: Vec<_> = decision_with.outcomes.iter().map(|outcome| &outcome.tenant.terms[0]).collect();
    assert_eq!([terms[0].weight, terms[1].weight], [9_000, 1_000]);
    assert_eq!([terms[0].class, terms[1].class], [Class::Latency, Class::Batch]);
    let words = chain_sentences(&plan.tenants[0], &decision_with.outcomes[0], "0", "file", 0);
    assert_eq!(words, ["weight 1 (file) -> 9000 (group \"prod\": \"its share is 90 %, it used 0 %\")"]);
    let off = decision(&plan, &[], &[], 0);
    assert!(
        off.outcomes
            .iter()
            .zip(&plan.tenants)
            .all(|(outcome, tenant)| outcome.tenant == *tenant && outcome.steps.is_empty())
    );
}

#[test]
fn periods_begin_at_midnight_of_their_time_zone_also_when_clocks_change() {
    let bounds = |per: &str, zone: &str, now: &str| {
        let quota = format!("[[group.quota]]\nper = \"{per}\"\ngpu_hours = 1\ntime_zone = \"{zone}\"");
        let plan = plan(&group("lab", &quota));
        assert_eq!(period_starts(&plan.groups, at(now)).len(), 1);
        plan.groups[0].quotas[0].bounds_at(at(now)).unwrap()
    };
    let expected = |from: &str, to: &str| (at(from), at(to));
    // 29 March 2026 has 23 hours in Berlin, and October 745.
    let day = bounds("day", "Europe/Berlin", "2026-03-29T12:00Z");
    assert_eq!(day, expected("2026-03-28T23:00Z", "2026-03-29T22:00Z"));
    let month = bounds("month", "Europe/Berlin", "2026-10-31T22:59:59Z");
    assert_eq!(month, expected("2026-09-30T22:00Z", "2026-10-31T23:00Z"));
    assert_eq!(bounds("week", "UTC", "2026-11-29T23:59:59Z"), expected("2026-11-23T00:00Z", "2026-11-30T00:00Z"));
    assert_eq!(bounds("day", "Asia/Kolkata", "2026-11-29T18:30Z"), expected("2026-11-29T18:30Z", "2026-11-30T18:30Z"));
}
