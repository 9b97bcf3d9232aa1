//! Tests of the chain of policies: what holds when, why, and that nothing promises more than there is.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use vgpu_config::change::WrittenChange;
use vgpu_config::live::{apply_change, find_misfits};
use vgpu_config::make_plan;
use vgpu_config::plan::{ConfigPlan, DevicePlan, TenantPlan};
use vgpu_config::resolve::Surroundings;
use vgpu_config::schedule::BookingPlan;
use vgpu_core::units::share::Share;
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::chain::{decide, has_booked};
use vgpu_policy::forecast::{
    admission_terms, find_booking_conflicts, find_misfit_ahead, find_window_conflicts, forecast_changes,
};
use vgpu_policy::outcome::Decision;
use vgpu_policy::overrides::{OverrideAction, TermsOverride};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{Restriction, UsageChange, UsageEffect};
use vgpu_policy::words::chain_sentences;

const WEEK: i64 = 7 * 86_400;

static UTC: TimeZone = TimeZone::UTC;

fn plan(sections: &str) -> ConfigPlan {
    let file = format!("[[device]]\nid = 0\nmemory = \"80GiB\"\n[[device]]\nid = 1\nmemory = \"80GiB\"\n{sections}");
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
    make_plan(&file, &around).unwrap_or_else(|report| panic!("{}\n{file}", report.to_lines("f")))
}

fn tenant(name: &str, rest: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\ndevices = [0]\nmemory_limit = \"20GiB\"\n{rest}\n")
}

fn inputs_with<'a>(plan: &'a ConfigPlan, usage: &'a [UsageChange], overrides: &'a [TermsOverride]) -> PolicyInputs<'a> {
    PolicyInputs { usage, ..inputs(plan, overrides) }
}

fn inputs<'a>(plan: &'a ConfigPlan, overrides: &'a [TermsOverride]) -> PolicyInputs<'a> {
    PolicyInputs {
        devices: &plan.devices,
        tenants: &plan.tenants,
        leaving: &[],
        windows: &plan.windows,
        bookings: &plan.bookings,
        usage: &[],
        overrides,
        zone: &UTC,
    }
}

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn overrides(tenant: &str, action: OverrideAction, since: &str, until: Option<&str>) -> TermsOverride {
    let reason = until.map(|_| "demo".to_owned());
    let until = until.map(at);
    TermsOverride { tenant: tenant.into(), device: None, action, since: at(since), until, by_uid: 0, reason }
}

fn limit(percent: &str) -> OverrideAction {
    OverrideAction::Terms(Box::new(WrittenChange { sm_limit: Some(percent.into()), ..WrittenChange::default() }))
}

fn ceilings(decision: &Decision) -> Vec<String> {
    let ceiling = |plan: &TenantPlan| plan.terms[0].ceiling.map_or("unlimited".into(), |share| share.to_string());
    decision.outcomes.iter().map(|outcome| ceiling(&outcome.tenant)).collect()
}

#[test]
fn a_window_holds_between_its_times_and_the_file_before_and_after() {
    let night = "[[window]]\nname = \"night\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_limit = 80\ntenants = [\"a\"]\n";
    let plan = plan(&format!("{}{}{night}", tenant("a", "sm_limit = 30"), tenant("b", "sm_limit = 30")));
    for (now, expected, next) in [
        ("2026-11-27T21:59:59Z", ["30 %", "30 %"], "2026-11-27T22:00Z"),
        ("2026-11-27T22:00Z", ["80 %", "30 %"], "2026-11-28T06:00Z"),
        ("2026-11-28T06:00Z", ["30 %", "30 %"], "2026-11-28T22:00Z"),
    ] {
        let decision = decide(&inputs(&plan, &[]), at(now));
        assert_eq!(
            (ceilings(&decision), decision.next),
            (expected.map(str::to_owned).to_vec(), Some(at(next))),
            "{now}"
        );
    }
}

#[test]
fn the_chain_is_told_with_each_value_its_cause_and_its_end() {
    let night = "[[window]]\nname = \"night\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_limit = 80\n";
    let plan = plan(&format!("{}{night}", tenant("a", "sm_limit = 30")));
    let changes = [overrides("a", limit("20"), "2026-11-27T23:00Z", Some("2026-11-27T23:05Z"))];
    let told = |now: &str| {
        let decision = decide(&inputs(&plan, &changes), at(now));
        chain_sentences(&plan.tenants[0], &decision.outcomes[0], "0", "file", at(now))
    };
    let both = "sm_limit 30 % (file) -> 80 % (window \"night\" until 2026-11-28 06:00) -> 20 % (override until 23:05: \"demo\")";
    assert_eq!(told("2026-11-27T23:01Z"), [both]);
    assert_eq!(told("2026-11-27T23:05Z"), ["sm_limit 30 % (file) -> 80 % (window \"night\" until 2026-11-28 06:00)"]);
    assert_eq!(told("2026-11-28T06:00Z"), Vec::<String>::new());
}

#[test]
fn a_pause_of_a_window_ends_with_it_and_a_person_may_end_it_before() {
    let day = "[[window]]\nname = \"day\"\nfrom = \"08:00\"\nto = \"18:00\"\npaused = true\ngroups = [\"batch\"]\n";
    let plan = plan(&format!("{}{}{day}", tenant("a", "group = \"batch/nightly\""), tenant("b", "")));
    let paused = |now: &str, changes: &[TermsOverride]| {
        let decision = decide(&inputs(&plan, changes), at(now));
        decision.outcomes.iter().map(|outcome| outcome.is_paused()).collect::<Vec<_>>()
    };
    assert_eq!(paused("2026-11-27T08:00Z", &[]), [true, false]);
    assert_eq!(paused("2026-11-27T18:00Z", &[]), [false, false]);
    let run = overrides("a", OverrideAction::Run, "2026-11-27T09:00Z", Some("2026-11-27T10:00Z"));
    assert_eq!(paused("2026-11-27T09:30Z", std::slice::from_ref(&run)), [false, false]);
    assert_eq!(paused("2026-11-27T10:00Z", &[run]), [true, false]);
}

#[test]
fn an_exclusive_tenant_pauses_those_on_its_devices_and_nobody_else() {
    let other = "[[tenant]]\nname = \"c\"\ndevices = [1]\nmemory_limit = \"1GiB\"\n";
    let plan = plan(&format!("{}{}{other}", tenant("a", ""), tenant("b", "")));
    let changes = [overrides("a", OverrideAction::Exclusive, "2026-11-27T09:00Z", Some("2026-11-27T10:00Z"))];
    let decision = decide(&inputs(&plan, &changes), at("2026-11-27T09:30Z"));
    assert_eq!(decision.outcomes.iter().map(|outcome| outcome.is_paused()).collect::<Vec<_>>(), [false, true, false]);
    let words = chain_sentences(&plan.tenants[1], &decision.outcomes[1], "0", "file", at("2026-11-27T09:30Z"));
    assert_eq!(words, ["paused false (file) -> true (override that makes tenant a exclusive until 10:00: \"demo\")"]);
}

#[test]
fn an_exclusive_tenant_pauses_others_only_on_its_own_devices() {
    let both = "[[tenant]]\nname = \"b\"\ndevices = [0, 1]\nmemory_limit = \"1GiB\"\n";
    let plan = plan(&format!("{}{both}", tenant("a", "")));
    let changes = [overrides("a", OverrideAction::Exclusive, "2026-11-27T09:00Z", Some("2026-11-27T10:00Z"))];
    let now = at("2026-11-27T09:30Z");
    let outcome = &decide(&inputs(&plan, &changes), now).outcomes[1];
    assert_eq!(outcome.paused_on.iter().collect::<Vec<_>>(), ["0"]);
    assert!(!outcome.is_paused() && outcome.pause_cause().is_some_and(|cause| cause.name == "a"));
    let told = |device: &str| chain_sentences(&plan.tenants[1], outcome, device, "file", now);
    assert_eq!(told("0").len(), 1);
    assert_eq!(told("1"), Vec::<String>::new());
    let rows = forecast_changes(&inputs(&plan, &changes), now, 3600);
    let row = |at: usize| (rows[at].device.as_deref(), rows[at].key, rows[at].value.as_str());
    assert_eq!((row(0), row(1)), ((Some("0"), "paused", "true"), (Some("0"), "paused", "false")));
}

#[test]
fn a_device_is_left_to_the_others_while_a_policy_pauses_its_exclusive_tenant_there() {
    let both = "devices = [0, 1]\nmemory_limit = \"1GiB\"\n";
    let plan = plan(&["a", "b"].map(|name| format!("[[tenant]]\nname = \"{name}\"\n{both}")).concat());
    let effect = UsageEffect::Restrict(Restriction { is_paused: true, ..Restriction::default() });
    let quota = UsageChange {
        stage: PolicyStage::Group,
        name: "lab".into(),
        tenant: "a".into(),
        device: Some("0".into()),
        effect,
        until: None,
        reason: None,
    };
    let exclusive = overrides("a", OverrideAction::Exclusive, "2026-11-27T09:00Z", None);
    let paused = |usage: &[UsageChange], overrides: &[TermsOverride]| {
        let decision = decide(&inputs_with(&plan, usage, overrides), at("2026-11-27T09:30Z"));
        decision.outcomes.iter().map(|outcome| outcome.paused_on.iter().cloned().collect()).collect::<Vec<Vec<_>>>()
    };
    let (none, first, second) = (Vec::<String>::new(), vec!["0".to_owned()], vec!["1".to_owned()]);
    let all = [first.clone(), second.clone()].concat();
    let quota = std::slice::from_ref(&quota);
    assert_eq!(paused(&[], std::slice::from_ref(&exclusive)), [none.clone(), all.clone()]);
    assert_eq!(paused(quota, std::slice::from_ref(&exclusive)), [first, second]);
    let run = overrides("a", OverrideAction::Run, "2026-11-27T09:10Z", None);
    assert_eq!(paused(quota, &[exclusive.clone(), run]), [none, all.clone()], "a person let it run");
    let pause = overrides("a", OverrideAction::Pause, "2026-11-27T09:10Z", None);
    assert_eq!(paused(&[], &[exclusive, pause]), [all.clone(), all], "both are a person's decision");
}

#[test]
fn of_two_exclusive_tenants_the_newest_has_the_device_and_nobody_runs_beside_it() {
    let plan = plan(&["a", "b", "c"].map(|name| tenant(name, "")).concat());
    let alone = |tenant: &str, until| overrides(tenant, OverrideAction::Exclusive, "2026-11-27T09:00Z", until);
    let run = |tenant: &str| overrides(tenant, OverrideAction::Run, "2026-11-27T09:10Z", None);
    let paused = |overrides: &[TermsOverride], now: &str| {
        let outcomes = decide(&inputs(&plan, overrides), at(now)).outcomes;
        outcomes.iter().map(|outcome| outcome.is_paused()).collect::<Vec<_>>()
    };
    let changes = [alone("a", None), alone("b", Some("2026-11-27T10:00Z")), run("c"), run("a")];
    assert_eq!(paused(&changes, "2026-11-27T09:30Z"), [true, false, true]);
    assert_eq!(paused(&changes, "2026-11-27T10:00Z"), [false, true, true], "the earlier one has it again");
}

#[test]
fn a_window_pauses_its_tenants_on_its_devices_alone() {
    let day = "[[window]]\nname = \"day\"\nfrom = \"00:00\"\nto = \"24:00\"\npaused = true\ndevices = [1]\n";
    let both = "[[tenant]]\nname = \"b\"\ndevices = [0, 1]\nmemory_limit = \"1GiB\"\n";
    let plan = plan(&format!("{}{both}{day}", tenant("a", "")));
    let outcomes = decide(&inputs(&plan, &[]), at("2026-11-27T09:00Z")).outcomes;
    let paused: Vec<Vec<&str>> =
        outcomes.iter().map(|outcome| outcome.paused_on.iter().map(String::as_str).collect()).collect();
    assert_eq!(paused, [vec![], vec!["1"]]);
}

#[test]
fn a_part_of_a_device_of_unknown_size_loses_that_key_alone_and_is_told() {
    let plan = plan(&tenant("a", "sm_limit = 30"));
    let unknown: Vec<_> = plan.devices.iter().map(|device| DevicePlan { memory: None, ..device.clone() }).collect();
    let change =
        WrittenChange { sm_limit: Some("20".into()), memory_limit: Some("50%".into()), ..WrittenChange::default() };
    let changes = [overrides("a", OverrideAction::Terms(Box::new(change)), "2026-11-27T09:00Z", None)];
    let now = at("2026-11-27T09:30Z");
    let decision = decide(&PolicyInputs { devices: &unknown, ..inputs(&plan, &changes) }, now);
    assert_eq!(ceilings(&decision), ["20 %"], "the other key of the command holds");
    assert_eq!(decision.outcomes[0].tenant.terms[0].memory, plan.tenants[0].terms[0].memory);
    let words = chain_sentences(&plan.tenants[0], &decision.outcomes[0], "0", "file", now);
    assert_eq!(
        words,
        [
            "sm_limit 30 % (file) -> 20 % (override)",
            "memory_limit (override) has no effect on device 0: it is a part of the device, whose size is not known",
        ]
    );
    assert!(decide(&inputs(&plan, &changes), now).outcomes[0].skipped.is_empty());
}

#[test]
fn a_booking_gives_at_least_what_was_booked_and_takes_nothing() {
    let booking = "[[booking]]\nname = \"exam\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\nsm_request = 50\n\
        memory_limit = \"40GiB\"\n";
    let plan = plan(&format!("{}{booking}", tenant("a", "sm_limit = 30\nsm_request = 10")));
    let terms = |now: &str| {
        let decision = decide(&inputs(&plan, &[]), at(now));
        let terms = &decision.outcomes[0].tenant.terms[0];
        format!("{} {} {}", terms.memory.unwrap(), terms.floor.unwrap(), terms.ceiling.unwrap())
    };
    assert_eq!(terms("2026-12-01T08:59:59Z"), "20 GiB 10 % 30 %");
    assert_eq!(terms("2026-12-01T09:00Z"), "40 GiB 50 % 50 %");
    assert_eq!(terms("2026-12-01T11:00Z"), "20 GiB 10 % 30 %");
}

#[test]
fn windows_yield_to_bookings_and_neither_breaks_a_promise() {
    let rest = "[[window]]\nname = \"w\"\nfrom = \"00:00\"\nto = \"24:00\"\nsm_request = 60\ntenants = [\"b\"]\n\
        [[booking]]\nname = \"one\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\nsm_request = 50\n\
        [[booking]]\nname = \"two\"\ntenant = \"b\"\nfrom = \"2026-12-01 10:00\"\nfor = \"2h\"\nsm_request = 60\n";
    let plan = plan(&format!("{}{}{rest}", tenant("a", ""), tenant("b", "")));
    let refused = |now: &str| {
        let decision = decide(&inputs(&plan, &[]), at(now));
        let tenants: Vec<_> = decision.outcomes.iter().map(|outcome| outcome.tenant.clone()).collect();
        assert_eq!(find_misfits(&plan.devices, &tenants), Vec::<String>::new(), "{now}");
        decision.refused.into_iter().map(|refused| (refused.stage, refused.name)).collect::<Vec<_>>()
    };
    assert_eq!(refused("2026-12-01T08:00Z"), []);
    assert_eq!(refused("2026-12-01T09:00Z"), [(PolicyStage::Window, "w".into())]);
    let both = [(PolicyStage::Window, "w".into()), (PolicyStage::Booking, "two".into())];
    assert_eq!(refused("2026-12-01T10:00Z"), both);
    let now = at("2026-11-27T00:00Z");
    let conflicts = find_booking_conflicts(&inputs(&plan, &[]), now);
    let told: Vec<_> = conflicts.iter().map(|it| (it.name.as_str(), it.at, it.beside.clone())).collect();
    assert_eq!(told, [("two", at("2026-12-01T10:00Z"), vec!["one".to_owned()])]);
    assert!(conflicts[0].words.contains("110 %"), "{}", conflicts[0].words);
    assert_eq!(find_window_conflicts(&inputs(&plan, &[]), now, WEEK), [], "without bookings the window fits");
}

#[test]
fn a_window_that_takes_no_room_is_not_given_up_for_one_that_does() {
    let rest = "[[window]]\nname = \"big\"\nfrom = \"00:00\"\nto = \"24:00\"\nmemory_limit = \"70GiB\"\ntenants = [\"a\"]\n\
        [[window]]\nname = \"small\"\nfrom = \"00:00\"\nto = \"24:00\"\nsm_limit = 20\nmemory_limit = \"19GiB\"\n\
        tenants = [\"b\"]\n";
    let plan = plan(&format!("{}{}{rest}", tenant("a", ""), tenant("b", "")));
    let decision = decide(&inputs(&plan, &[]), at("2026-11-27T12:00Z"));
    assert_eq!(decision.refused.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["big"]);
    assert_eq!(ceilings(&decision)[1], "20 %", "the limit of the other window holds");
}

/// An override that stays although a new file leaves no room for it.
#[test]
fn a_window_that_takes_time_is_given_up_also_where_an_override_takes_memory() {
    let window = "[[window]]\nname = \"w\"\nfrom = \"00:00\"\nto = \"24:00\"\nsm_request = 60\ntenants = [\"b\"]\n";
    let plan = plan(&format!("{}{}{window}", tenant("a", "sm_request = 50"), tenant("b", "")));
    let memory = WrittenChange { memory_limit: Some("70GiB".into()), ..WrittenChange::default() };
    let changes = [overrides("a", OverrideAction::Terms(Box::new(memory)), "2026-11-27T09:00Z", None)];
    let decision = decide(&inputs(&plan, &changes), at("2026-11-27T12:00Z"));
    let refused: Vec<_> = decision.refused.iter().map(|it| (it.name.as_str(), it.words.contains("110 %"))).collect();
    assert_eq!(refused, [("w", true)]);
}

#[test]
fn a_booking_of_a_device_that_its_tenant_does_not_have_is_a_conflict_and_never_kept() {
    let booking =
        "[[booking]]\nname = \"exam\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\nsm_request = 50\n";
    let plan = plan(&format!("{}{booking}", tenant("a", "")));
    let (now, during) = (at("2026-11-27T12:00Z"), at("2026-12-01T10:00Z"));
    for (device, fits) in [("0", true), ("1", false)] {
        let bookings = [BookingPlan { devices: vec![device.into()], ..plan.bookings[0].clone() }];
        let inputs = PolicyInputs { bookings: &bookings, ..inputs(&plan, &[]) };
        let told: Vec<_> = find_booking_conflicts(&inputs, now).into_iter().map(|one| (one.at, one.words)).collect();
        let words = "tenant a has none of the booked devices".to_owned();
        assert_eq!(told, if fits { vec![] } else { vec![(at("2026-12-01T09:00Z"), words)] });
        let outcome = &decide(&inputs, during).outcomes[0];
        assert_eq!(has_booked(&outcome.tenant, &bookings[0], &plan.devices), fits);
    }
}

/// Two tenants of a group with limits, and one of another group.
fn grouped(rest: &str) -> String {
    let lab = "[[group]]\nname = \"lab\"\nmemory_limit = \"40GiB\"\nsm_limit = 80\n[[group]]\nname = \"ops\"\n";
    let own = |name: &str, group: &str| tenant(name, &format!("sm_limit = 40\ngroup = \"{group}\""));
    format!("{lab}{}{}{}{rest}", own("a", "lab"), own("b", "lab/vision"), own("c", "ops"))
}

#[test]
fn a_window_above_a_groups_limit_is_given_up_and_no_window_of_another_group() {
    let window = |name: &str, of: &str, term: &str| {
        format!("[[window]]\nname = \"{name}\"\nfrom = \"10:00\"\nto = \"11:00\"\ntenants = [\"{of}\"]\n{term}\n")
    };
    for (term, words) in [
        ("sm_limit = 41", "sm_limit brings the sm_limits of group \"lab\" on device 0 to 81 % (a 40 %, b 41 %)"),
        ("sm_limit = \"unlimited\"", "to 140 % (a 40 %, b 100 % without a limit)"),
        ("memory_limit = \"21GiB\"", "memory limits of group \"lab\" on device 0 to 41 GiB (a 20 GiB, b 21 GiB)"),
        ("memory_limit = \"unlimited\"", "leaves tenant b without a memory limit on device 0"),
    ] {
        // The other group has no limit. Its windows come last, and would be given up first.
        let others = window("other", "c", "sm_limit = 90\nmemory_limit = \"30GiB\"");
        let plan = plan(&grouped(&(window("more", "b", term) + &others)));
        let decision = decide(&inputs(&plan, &[]), at("2026-11-27T10:30Z"));
        let refused: Vec<_> = decision.refused.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(refused, ["more"], "{term}: {:?}", decision.refused);
        assert!(decision.refused[0].words.contains(words), "{}", decision.refused[0].words);
        assert_eq!(ceilings(&decision), ["40 %", "40 %", "90 %"], "{term}");
        let conflicts = find_window_conflicts(&inputs(&plan, &[]), at("2026-11-27T00:00Z"), WEEK);
        assert_eq!(conflicts.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["more"]);
    }
    // Each of the two fits while the other tenant has less.
    let swap = window("up", "b", "sm_limit = 60") + &window("down", "a", "sm_limit = 20");
    let plan = plan(&grouped(&swap));
    assert_eq!(decide(&inputs(&plan, &[]), at("2026-11-27T10:30Z")).refused, []);
    let raise = [overrides("a", limit("30"), "2026-11-27T10:30Z", None)];
    let ahead = find_misfit_ahead(
        &inputs(&plan, &raise),
        "a",
        &["0".to_owned()],
        at("2026-11-27T09:00Z"),
        at("2026-11-28T00:00Z"),
    );
    assert_eq!(ahead, None, "the window that does not fit next to the override is given up");
}

#[test]
fn a_booking_or_an_override_above_a_groups_limit_does_not_fit() {
    let booking = |term: &str| {
        format!("[[booking]]\nname = \"one\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\n{term}\n")
    };
    for (term, fits) in [
        ("sm_request = 40", true),
        ("sm_request = 41", false),
        ("memory_limit = \"20GiB\"", true),
        ("memory_limit = \"21GiB\"", false),
    ] {
        let plan = plan(&grouped(&booking(term)));
        let conflicts = find_booking_conflicts(&inputs(&plan, &[]), at("2026-11-27T00:00Z"));
        assert_eq!(conflicts.is_empty(), fits, "{term}: {conflicts:?}");
        assert!(conflicts.iter().all(|it| it.words.contains("of group \"lab\" on device 0")), "{conflicts:?}");
    }
    let plan = plan(&grouped(""));
    let set = |name, percent: &str| {
        let change = WrittenChange { sm_limit: Some(percent.into()), ..WrittenChange::default() };
        apply_change(&plan.devices, &plan.tenants, name, None, &change.read(str::to_owned).unwrap())
    };
    let refused = set("a", "41").unwrap_err();
    assert_eq!(
        refused,
        "sm_limit brings the sm_limits of group \"lab\" on device 0 to 81 % (a 41 %, b 40 %), and the group's sm_limit is \
         80 %; accepted: at most 80 % together, or a larger sm_limit of the group; nothing was changed"
    );
    assert!(set("c", "100").is_ok() && set("b", "39").is_ok());
    let changes = [overrides("b", limit("45"), "2026-11-27T00:00Z", Some("2026-11-27T02:00Z"))];
    let ahead = |from: &str| {
        find_misfit_ahead(&inputs(&plan, &changes), "b", &["0".to_owned()], at(from), at("2026-11-28T00:00Z"))
    };
    assert!(ahead("2026-11-27T01:00Z").is_some_and(|(_, words)| words.contains("85 % (a 40 %, b 45 %)")));
    assert_eq!(ahead("2026-11-27T02:00Z"), None);
}

#[test]
fn terms_may_change_places_at_one_moment() {
    let swap = "[[window]]\nname = \"up\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_request = 80\ntenants = [\"b\"]\n\
        [[window]]\nname = \"down\"\nfrom = \"22:00\"\nto = \"06:00\"\nsm_request = 20\ntenants = [\"a\"]\n";
    let plan = plan(&format!("{}{}{swap}", tenant("a", "sm_request = 80"), tenant("b", "sm_request = 20")));
    let decision = decide(&inputs(&plan, &[]), at("2026-11-27T22:00Z"));
    assert_eq!(decision.refused, []);
    // A override that fits only while the window lowers its neighbour is refused for the time after it.
    let floor = WrittenChange { sm_request: Some("70".into()), ..WrittenChange::default() };
    let raise = |until| [overrides("b", OverrideAction::Terms(Box::new(floor.clone())), "2026-11-27T23:00Z", until)];
    let ahead = |changes: &[TermsOverride], end: &str| {
        find_misfit_ahead(&inputs(&plan, changes), "b", &["0".to_owned()], at("2026-11-27T23:00Z"), at(end))
    };
    assert_eq!(ahead(&raise(Some("2026-11-28T05:00Z")), "2026-11-28T05:00Z"), None);
    let (moment, words) = ahead(&raise(None), "2026-12-05T00:00Z").unwrap();
    assert!(moment == at("2026-11-28T06:00Z") && words.contains("150 %"), "{words}");
}

#[test]
fn bookings_beyond_the_moments_that_can_be_looked_at_are_refused_and_no_moment_is_passed_over() {
    let one = "[[booking]]\nname = \"b\"\ntenant = \"a\"\nfrom = \"2027-01-01 00:00\"\nfor = \"1h\"\nsm_request = 50\n";
    let plan = plan(&format!("{}{}{one}", tenant("a", ""), tenant("b", "sm_request = 20")));
    let booking = |at: i64| {
        let (from, until) = (plan.bookings[0].from + at * 7_200, plan.bookings[0].until + at * 7_200);
        let floor = if at == 1_500 { Some(share("90")) } else { plan.bookings[0].floor };
        BookingPlan { name: format!("b{at}"), from, until, floor, ..plan.bookings[0].clone() }
    };
    let conflicts = |count| {
        let bookings: Vec<_> = (0..count).map(booking).collect();
        let inputs = PolicyInputs { bookings: &bookings, ..inputs(&plan, &[]) };
        let found = find_booking_conflicts(&inputs, plan.bookings[0].from - 1);
        found.into_iter().map(|conflict| conflict.name).collect::<Vec<_>>()
    };
    assert_eq!(conflicts(1_900), ["b1500"]);
    assert_eq!(conflicts(2_003), ["b1500", "b2000", "b2001", "b2002"]);
}

#[test]
fn a_window_that_comes_after_a_far_booking_is_followed_for_a_week() {
    let night = "[[window]]\nname = \"night\"\nfrom = \"22:00\"\nto = \"06:00\"\ndays = [\"sun\"]\nsm_request = 20\n\
        tenants = [\"b\"]\n";
    let plan = plan(&format!("{}{}{night}", tenant("a", ""), tenant("b", "sm_request = 60")));
    let floor = WrittenChange { sm_request: Some("70".into()), ..WrittenChange::default() };
    // It fits on Sundays alone. It begins on a Sunday, months from now, in the place of an override that ends then.
    let small = WrittenChange { sm_request: Some("10".into()), ..WrittenChange::default() };
    let changes = [
        overrides("a", OverrideAction::Terms(Box::new(floor)), "2026-11-27T00:00Z", None),
        overrides("a", OverrideAction::Terms(Box::new(small)), "2026-11-27T00:01Z", Some("2027-03-07T23:00Z")),
    ];
    let found = find_misfit_ahead(
        &inputs(&plan, &changes),
        "a",
        &["0".to_owned()],
        at("2026-11-27T12:00Z"),
        at("2027-03-20T00:00Z"),
    );
    assert_eq!(found.unwrap().0, at("2027-03-08T06:00Z"));
}

#[test]
fn the_forecast_lists_changes_only() {
    let night = "[[window]]\nname = \"night\"\nfrom = \"22:00\"\nto = \"06:00\"\ndays = [\"fri\"]\nsm_limit = 80\n";
    let plan = plan(&format!("{}{night}", tenant("a", "sm_limit = 30")));
    let rows = forecast_changes(&inputs(&plan, &[]), at("2026-11-27T12:00Z"), WEEK);
    let rows: Vec<_> = rows.into_iter().map(|row| (row.at, row.key, row.value, row.cause)).collect();
    let cause = Some("window \"night\" until 2026-11-28 06:00".to_owned());
    assert_eq!(
        rows,
        [
            (at("2026-11-27T22:00Z"), "sm_limit", "80 %".to_owned(), cause),
            (at("2026-11-28T06:00Z"), "sm_limit", "30 %".to_owned(), None)
        ]
    );
}

fn usage(stage: PolicyStage, name: &str, effect: UsageEffect) -> UsageChange {
    UsageChange { stage, name: name.into(), tenant: "a".into(), device: None, effect, until: None, reason: None }
}

fn share(percent: &str) -> vgpu_core::units::share::Share {
    let change = WrittenChange { sm_request: Some(percent.into()), ..WrittenChange::default() };
    change.read(str::to_owned).unwrap().floor.flatten().unwrap()
}

#[test]
fn a_restriction_that_follows_from_use_is_loosened_by_an_override_alone() {
    let plan = plan(&tenant("a", "sm_request = 10\nsm_limit = 90"));
    let bounds = Restriction { ceiling: Some(share("20")), is_batch: true, is_paused: true, weight: None };
    let changes = [
        usage(PolicyStage::Group, "lab", UsageEffect::Restrict(bounds)),
        usage(PolicyStage::Need, "deadline", UsageEffect::RaiseFloor(share("60"))),
    ];
    let now = at("2026-11-27T12:00:00Z");
    let restricted = decide(&inputs_with(&plan, &changes, &[]), now);
    let outcome = &restricted.outcomes[0];
    let terms = &outcome.tenant.terms[0];
    assert_eq!((terms.ceiling, terms.floor, outcome.is_paused()), (Some(share("20")), Some(share("20")), true));
    let words = chain_sentences(&plan.tenants[0], outcome, "0", "file", now);
    assert!(words.contains(&"sm_request 10 % (file) -> 60 % (deadline) -> 20 % (group \"lab\")".into()), "{words:?}");
    let by_hand = [
        overrides("a", limit("70"), "2026-11-27T11:00:00Z", None),
        overrides("a", OverrideAction::Run, "2026-11-27T11:00:00Z", None),
    ];
    let loosened = decide(&inputs_with(&plan, &changes, &by_hand), now);
    let outcome = &loosened.outcomes[0];
    assert_eq!((outcome.tenant.terms[0].ceiling, outcome.is_paused()), (Some(share("70")), false));
    let off = decide(&inputs(&plan, &[]), now);
    assert_eq!((&off.outcomes[0].tenant, off.outcomes[0].is_paused()), (&plan.tenants[0], false));
}

#[test]
fn a_promise_is_admitted_next_to_the_terms_without_the_changes_that_follow_from_use() {
    let plan = plan(&format!("{}{}", tenant("a", "sm_request = 50"), tenant("b", "")));
    let now = at("2026-11-27T12:00Z");
    let bounds = Restriction { ceiling: Some(share("20")), ..Restriction::default() };
    let restricted = [usage(PolicyStage::Group, "lab", UsageEffect::Restrict(bounds))];
    let raised = [usage(PolicyStage::Need, "deadline", UsageEffect::RaiseFloor(share("60")))];
    let admits = |usage: &[UsageChange], of: &str, floor: &str| {
        let written = WrittenChange { sm_request: Some(floor.into()), ..WrittenChange::default() };
        let change = written.read(str::to_owned).unwrap();
        let changes = [overrides(of, OverrideAction::Terms(Box::new(written)), "2026-11-27T12:00Z", None)];
        let counted = admission_terms(&inputs_with(&plan, usage, &[]), Some(of), now);
        let now_fits = apply_change(&plan.devices, &counted, of, None, &change).is_ok();
        let later = find_misfit_ahead(&inputs_with(&plan, usage, &changes), of, &["0".to_owned()], now, now + WEEK);
        (now_fits, later.is_none())
    };
    assert_eq!(admits(&restricted, "b", "60"), (false, false), "the period of the quota ends");
    assert_eq!(admits(&restricted, "b", "50"), (true, true));
    assert_eq!(admits(&raised, "b", "50"), (true, true), "what the need raised yields");
    assert_eq!(admits(&restricted, "a", "30"), (false, true), "its own quota leaves it 20 percent");
}

#[test]
fn a_need_never_raises_a_floor_past_the_ceiling_of_the_file_or_of_a_window() {
    let window = "[[window]]\nname = \"day\"\nfrom = \"08:00\"\nto = \"18:00\"\nsm_limit = 20\n";
    let plan = plan(&format!("{}{window}", tenant("a", "sm_request = 10\nsm_limit = 40")));
    let changes = [usage(PolicyStage::Need, "deadline", UsageEffect::RaiseFloor(share("60")))];
    let terms = |now: &str| {
        let decision = decide(&inputs_with(&plan, &changes, &[]), at(now));
        let terms = &decision.outcomes[0].tenant.terms[0];
        (terms.floor, terms.ceiling)
    };
    assert_eq!(terms("2026-11-27T12:00Z"), (Some(share("20")), Some(share("20"))), "by day");
    assert_eq!(terms("2026-11-27T20:00Z"), (Some(share("40")), Some(share("40"))), "by night");
}

#[test]
fn a_floor_that_a_need_raises_yields_before_a_window() {
    let window = "[[window]]\nname = \"w\"\nfrom = \"00:00\"\nto = \"24:00\"\ntenants = [\"b\"]\nsm_request = 50\n";
    let plan = plan(&format!("{}{}{window}", tenant("a", "sm_request = 10"), tenant("b", "sm_request = 10")));
    let changes = [usage(PolicyStage::Need, "deadline", UsageEffect::RaiseFloor(share("60")))];
    let decision = decide(&inputs_with(&plan, &changes, &[]), at("2026-11-27T12:00:00Z"));
    let floors: Vec<_> = decision.outcomes.iter().map(|outcome| outcome.tenant.terms[0].floor).collect();
    assert_eq!(floors, [Some(share("10")), Some(share("50"))]);
    let refused: Vec<_> = decision.refused.iter().map(|refused| (refused.stage, refused.name.as_str())).collect();
    assert_eq!(refused, [(PolicyStage::Need, "deadline")]);
}

/// Two deadlines of the same time and size, of tenants on two devices.
#[test]
fn of_policies_with_equal_causes_only_that_of_the_tenant_that_takes_the_room_is_refused() {
    let on_one = "[[tenant]]\nname = \"b\"\ndevices = [1]\nmemory_limit = \"20GiB\"\n";
    let plan = plan(&format!("{}{}{on_one}", tenant("c", "sm_request = 50"), tenant("a", "")));
    let raise = |tenant: &str, device: &str| UsageChange {
        stage: PolicyStage::Need,
        name: "deadline".into(),
        tenant: tenant.into(),
        device: Some(device.into()),
        effect: UsageEffect::RaiseFloor(Share::from_permille(600).unwrap()),
        until: None,
        reason: None,
    };
    let decision = decide(&inputs_with(&plan, &[raise("a", "0"), raise("b", "1")], &[]), 0);
    let floors: Vec<_> = decision.outcomes.iter().map(|outcome| outcome.tenant.terms[0].floor).collect();
    assert_eq!(floors, [Share::from_permille(500), None, Share::from_permille(600)]);
    let refused: Vec<_> =
        decision.refused.iter().map(|one| (one.name.as_str(), one.tenant.as_deref(), one.device.as_deref())).collect();
    assert_eq!(refused, [("deadline", Some("a"), Some("0"))]);
}

#[test]
fn a_restricted_ceiling_is_above_every_floor_whatever_an_override_set_before() {
    let plan = plan(&tenant("a", "sm_request = 10\nsm_limit = 80"));
    let restrict = UsageChange {
        stage: PolicyStage::Group,
        name: "lab".into(),
        tenant: "a".into(),
        device: None,
        effect: UsageEffect::Restrict(Restriction { ceiling: Share::from_permille(200), ..Restriction::default() }),
        until: None,
        reason: None,
    };
    let floor = WrittenChange { sm_request: Some("50".into()), ..WrittenChange::default() };
    let both = WrittenChange { sm_limit: Some("60".into()), ..floor.clone() };
    for (written, expected) in [(floor, (200, 200)), (both, (500, 600))] {
        let change = overrides("a", OverrideAction::Terms(Box::new(written)), "2026-11-27T12:00Z", None);
        let decision = decide(&inputs_with(&plan, std::slice::from_ref(&restrict), &[change]), 0);
        let terms = &decision.outcomes[0].tenant.terms[0];
        let permille = |share: Option<Share>| share.map_or(1000, |share| share.as_permille());
        assert_eq!((permille(terms.floor), permille(terms.ceiling)), expected);
    }
}

#[test]
fn a_booking_is_not_kept_where_an_override_gives_the_tenant_less() {
    let booking = "[[booking]]\nname = \"exam\"\ntenant = \"a\"\nfrom = \"2026-12-01 09:00\"\nfor = \"2h\"\nsm_request = 50\nmemory_limit = \"30GiB\"\n";
    let plan = plan(&format!("{}{booking}", tenant("a", "sm_request = 10")));
    let given = |written: Option<WrittenChange>| {
        let action = |written| OverrideAction::Terms(Box::new(written));
        let all: Vec<_> =
            written.into_iter().map(|written| overrides("a", action(written), "2026-11-27T12:00Z", None)).collect();
        let decision = decide(&inputs(&plan, &all), at("2026-12-01T10:00Z"));
        has_booked(&decision.outcomes[0].tenant, &plan.bookings[0], &plan.devices)
    };
    assert!(given(None));
    let less = WrittenChange { sm_request: Some("20".into()), ..WrittenChange::default() };
    let smaller = WrittenChange { memory_limit: Some("25GiB".into()), ..WrittenChange::default() };
    let more = WrittenChange { sm_request: Some("60".into()), ..WrittenChange::default() };
    assert_eq!([less, smaller, more].map(|written| given(Some(written))), [false, false, true]);
}

/// Slots that wait until processes leave: a new one, and one that grows.
#[test]
fn promises_of_slots_that_wait_leave_no_room_for_a_window() {
    let night = "[[window]]\nname = \"night\"\nfrom = \"00:00\"\nto = \"24:00\"\nsm_request = 60\ntenants = [\"b\"]\n";
    let alone = plan(&format!("{}{}{night}", tenant("a", "sm_request = 10"), tenant("b", "")));
    let refused = |name: &str, percent: u32| {
        let waits = plan(&tenant(name, &format!("sm_request = {percent}"))).tenants;
        let decision = decide(&PolicyInputs { leaving: &waits, ..inputs(&alone, &[]) }, at("2026-11-27T12:00Z"));
        assert_eq!(decision.outcomes[0].tenant, alone.tenants[0], "its terms stay until the processes left");
        decision.refused.len()
    };
    assert_eq!([refused("a", 40), refused("a", 41), refused("new", 30), refused("new", 31)], [0, 1, 0, 1]);
}
