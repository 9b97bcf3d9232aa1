//! Random mixes of all policies: at every moment the terms fit, restrictions hold, no device is left unused, and what
//! is over leaves nothing behind.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use vgpu_config::change::WrittenChange;
use vgpu_config::live::{apply_change, find_misfits};
use vgpu_config::make_plan;
use vgpu_config::plan::{ConfigPlan, TenantPlan};
use vgpu_config::resolve::Surroundings;
use vgpu_core::units::share::Share;
use vgpu_policy::active::PolicyInputs;
use vgpu_policy::chain::decide;
use vgpu_policy::forecast::{admission_terms, find_booking_conflicts, find_misfit_ahead};
use vgpu_policy::outcome::{Decision, TenantOutcome};
use vgpu_policy::overrides::{OverrideAction, TermsOverride, add_override};
use vgpu_policy::stage::PolicyStage;
use vgpu_policy::usage::{Restriction, UsageChange, UsageEffect};

const HOUR: i64 = 3600;
const WEEK: i64 = 7 * 24 * HOUR;

/// Time for which a change without an end must fit, as in the daemon.
const HORIZON: i64 = 8 * 24 * HOUR;

/// Most moments that are looked at between two commands.
const MOMENTS: usize = 60;

/// Two tenants on the first device, one on the second, and one on both: their devices, floors and other keys.
const TENANTS: [(&str, &str, u32, &str); 4] = [
    ("t0", "[0]", 5, "group = \"lab\""),
    ("t1", "[0]", 15, "group = \"lab/v\""),
    ("t2", "[0, 1]", 25, "group = \"ops\"\nsm_limit = 60"),
    ("t3", "[1]", 35, "group = \"ops\"\nsm_limit = 40"),
];

/// Each group has one of the two limits.
const GROUPS: &str = "[[group]]\nname = \"lab\"\nmemory_limit = \"60GiB\"\n[[group]]\nname = \"ops\"\nsm_limit = 100\n";

static UTC: TimeZone = TimeZone::UTC;

fn plan_of(sections: &[String]) -> Option<ConfigPlan> {
    let device = |id: u32| format!("[[device]]\nid = {id}\nmemory = \"80GiB\"\n");
    let tenant = |(name, devices, floor, rest)| {
        format!(
            "[[tenant]]\nname = \"{name}\"\ndevices = {devices}\nmemory_limit = \"20GiB\"\nsm_request = {floor}\n{rest}\n"
        )
    };
    let tenants = TENANTS.map(tenant).concat();
    let file = format!("{}{}{tenants}{GROUPS}{}", device(0), device(1), sections.concat());
    let around = Surroundings { run_dir: "/run/vgpu".into(), ..Surroundings::default() };
    make_plan(&file, &around).ok()
}

/// A window or a booking. Each begins at a full hour, and windows may pass midnight.
fn sections() -> impl Strategy<Value = Vec<String>> {
    let term = prop_oneof![
        (1..=100_u32).prop_map(|share| format!("sm_request = {share}\n")),
        (30..=100_u32).prop_map(|share| format!("sm_limit = {share}\n")),
        (1..=100_u32).prop_map(|share| format!("memory_limit = \"{share}%\"\n")),
        Just("class = \"batch\"\n".to_owned()),
        Just("paused = true\n".to_owned()),
    ];
    let place = prop_oneof![Just(""), Just("devices = [0]\n"), Just("devices = [1]\n")];
    let window = (0..4_usize, 0..24_u16, 1..24_u16, place.clone(), term).prop_map(|(of, from, hours, place, term)| {
        let to = (from + hours) % 24;
        let times = format!("from = \"{from:02}:00\"\nto = \"{to:02}:00\"\n");
        format!("[[window]]\nname = \"NAME\"\ntenants = [\"t{of}\"]\n{times}{place}{term}")
    });
    let booked = prop_oneof![
        (1..=100_u32).prop_map(|share| format!("sm_request = {share}\n")),
        (1..=100_u32).prop_map(|share| format!("memory_limit = \"{share}%\"\n")),
    ];
    let booking = (0..4_usize, 0..72_i64, 1..30_u32, place, booked).prop_map(|(of, hour, hours, place, booked)| {
        let from = format!("2026-11-{} {:02}:00", 23 + hour / 24, hour % 24);
        format!(
            "[[booking]]\nname = \"NAME\"\ntenant = \"t{of}\"\nfrom = \"{from}\"\nfor = \"{hours}h\"\n{place}{booked}"
        )
    });
    prop::collection::vec(prop_oneof![3 => window, 2 => booking], 0..8)
}

/// Changes that follow from use: of quotas, idle tenants and deadlines.
fn usage() -> impl Strategy<Value = Vec<UsageChange>> {
    let effect = prop_oneof![
        (1..=1000_u32).prop_map(|permille| UsageEffect::RaiseFloor(share(permille))),
        (1..=1000_u32, any::<bool>(), any::<bool>()).prop_map(|(permille, is_batch, is_paused)| {
            UsageEffect::Restrict(Restriction { ceiling: Some(share(permille)), weight: None, is_batch, is_paused })
        }),
    ];
    let change = (0..4_usize, effect).prop_map(|(of, effect)| UsageChange {
        stage: if matches!(effect, UsageEffect::RaiseFloor(_)) { PolicyStage::Need } else { PolicyStage::Group },
        name: "use".into(),
        tenant: format!("t{of}"),
        device: None,
        effect,
        until: None,
        reason: None,
    });
    prop::collection::vec(change, 0..4)
}

fn share(permille: u32) -> Share {
    Share::from_permille(permille).unwrap()
}

/// A command of an administrator, the hours since the last one, and how long it lasts in hours.
#[derive(Debug, Clone)]
struct Command {
    of: usize,
    device: Option<&'static str>,
    action: Option<OverrideAction>,
    after: i64,
    lasts: Option<i64>,
}

fn commands() -> impl Strategy<Value = Vec<Command>> {
    let terms = |written| Some(OverrideAction::Terms(Box::new(written)));
    let action = prop_oneof![
        4 => (1..=100_u32).prop_map(move |share| {
            terms(WrittenChange { sm_request: Some(share.to_string()), ..WrittenChange::default() })
        }),
        2 => (1..=100_u32).prop_map(move |share| {
            terms(WrittenChange { sm_limit: Some(share.to_string()), ..WrittenChange::default() })
        }),
        2 => (1..=100_u32).prop_map(move |share| {
            terms(WrittenChange { memory_limit: Some(format!("{share}%")), ..WrittenChange::default() })
        }),
        1 => Just(Some(OverrideAction::Pause)),
        1 => Just(Some(OverrideAction::Run)),
        2 => Just(Some(OverrideAction::Exclusive)),
        1 => Just(None),
    ];
    let device = prop_oneof![2 => Just(None), 1 => Just(Some("0")), 1 => Just(Some("1"))];
    let command = (0..4_usize, device, action, 0..20_i64, prop::option::of(1..50_i64));
    let command = command.prop_map(|(of, device, action, after, lasts)| Command { of, device, action, after, lasts });
    prop::collection::vec(command, 0..12)
}

/// Everything in force: the file, changes that follow from use, and the accepted commands.
struct Mix {
    plan: ConfigPlan,
    usage: Vec<UsageChange>,
    overrides: Vec<TermsOverride>,
}

impl Mix {
    fn inputs<'a>(&'a self, overrides: &'a [TermsOverride]) -> PolicyInputs<'a> {
        let ConfigPlan { devices, tenants, windows, bookings, .. } = &self.plan;
        PolicyInputs { devices, tenants, leaving: &[], windows, bookings, usage: &self.usage, overrides, zone: &UTC }
    }

    /// True if all terms fit from now on, by the daemon's rule.
    fn fits_ahead(
        &self,
        overrides: &[TermsOverride],
        tenant: &str,
        devices: &[String],
        now: i64,
        until: Option<i64>,
    ) -> bool {
        let ends = overrides.iter().filter_map(|change| change.until);
        let last = ends.chain(self.plan.bookings.iter().map(|booking| booking.until)).fold(now, i64::max);
        let conflicts = |overrides| find_booking_conflicts(&self.inputs(overrides), now);
        let known: Vec<String> = conflicts(&self.overrides).into_iter().map(|conflict| conflict.name).collect();
        find_misfit_ahead(&self.inputs(overrides), tenant, devices, now, until.unwrap_or(last + HORIZON)).is_none()
            && conflicts(overrides).iter().all(|conflict| known.contains(&conflict.name))
    }

    /// Accepts a command as the daemon does; returns whether it was.
    fn obey(&mut self, command: &Command, now: i64) -> bool {
        let tenant = &self.plan.tenants[command.of];
        let name = tenant.name.clone();
        let own: Vec<String> = tenant.terms.iter().map(|terms| terms.device.clone()).collect();
        let Some(action) = command.action.clone() else {
            let left: Vec<_> = self.overrides.iter().filter(|change| change.tenant != name).cloned().collect();
            return self.fits_ahead(&left, &name, &own, now, None).then(|| self.overrides = left).is_some();
        };
        let until = command.lasts.map(|hours| now + hours * HOUR);
        let mut device = None;
        let mut touched = Vec::new();
        if let OverrideAction::Terms(written) = &action {
            let change = written.read(str::to_owned).unwrap();
            let counted = admission_terms(&self.inputs(&self.overrides), Some(&name), now);
            if apply_change(&self.plan.devices, &counted, &name, command.device, &change).is_err() {
                return false;
            }
            device = command.device.map(str::to_owned);
            touched = device.clone().map_or(own, |device| vec![device]);
        }
        let mut ahead = self.overrides.clone();
        add_override(
            &mut ahead,
            TermsOverride { tenant: name.clone(), device, action, since: now, until, by_uid: 0, reason: None },
        )
        .unwrap();
        (touched.is_empty() || self.fits_ahead(&ahead, &name, &touched, now, until))
            .then(|| self.overrides = ahead)
            .is_some()
    }

    /// Checks a decision.
    fn check(&self, decision: &Decision, now: i64) -> Result<(), TestCaseError> {
        let tenants: Vec<TenantPlan> = decision.outcomes.iter().map(|outcome| outcome.tenant.clone()).collect();
        prop_assert_eq!(find_misfits(&self.plan.devices, &tenants), Vec::<String>::new(), "at {}", now);
        for (outcome, base) in decision.outcomes.iter().zip(&self.plan.tenants) {
            let is_changed = outcome.tenant != *base || !outcome.paused_on.is_empty();
            prop_assert!(!is_changed || !outcome.steps.is_empty(), "no change without a cause");
            self.check_restrictions(outcome, now)?;
        }
        for device in &self.plan.devices {
            self.check_exclusive(decision, &device.name(), now)?;
        }
        Ok(())
    }

    /// No stage but an override loosens a restriction.
    fn check_restrictions(&self, outcome: &TenantOutcome, now: i64) -> Result<(), TestCaseError> {
        let own = |change: &&TermsOverride| change.tenant == outcome.tenant.name && !change.is_over(now);
        let is_loosened =
            |names: fn(&OverrideAction) -> bool| self.overrides.iter().filter(own).any(|change| names(&change.action));
        for change in self.usage.iter().filter(|change| change.tenant == outcome.tenant.name) {
            let UsageEffect::Restrict(bounds) = &change.effect else { continue };
            let names_ceiling =
                |action: &OverrideAction| matches!(action, OverrideAction::Terms(w) if w.sm_limit.is_some());
            for terms in &outcome.tenant.terms {
                let holds = terms.ceiling.is_some_and(|ceiling| Some(ceiling) <= bounds.ceiling);
                prop_assert!(holds || is_loosened(names_ceiling), "{:?} at {}", terms, now);
            }
            let is_paused = outcome.is_paused() || is_loosened(|action| *action == OverrideAction::Run);
            prop_assert!(!bounds.is_paused || is_paused, "{:?} at {}", outcome.paused_on, now);
        }
        Ok(())
    }

    /// At most one tenant has exclusive use of the device. No other tenant launches meanwhile. Only a command pauses
    /// it.
    fn check_exclusive(&self, decision: &Decision, device: &str, now: i64) -> Result<(), TestCaseError> {
        let is_here = |outcome: &&TenantOutcome| outcome.tenant.terms.iter().any(|terms| terms.device == device);
        let here: Vec<&TenantOutcome> = decision.outcomes.iter().filter(is_here).collect();
        let holds = |change: &&TermsOverride| change.action == OverrideAction::Exclusive && !change.is_over(now);
        let newest = self.overrides.iter().filter(holds).rev().find_map(|change| {
            let only = here.iter().find(|outcome| outcome.tenant.name == change.tenant)?;
            (!only.is_paused_by_plan(device)).then_some(only)
        });
        if let Some(only) = newest {
            let others = here.iter().filter(|other| other.tenant.name != only.tenant.name);
            for other in others {
                prop_assert!(
                    other.paused_on.contains(device),
                    "{} runs beside {}",
                    other.tenant.name,
                    only.tenant.name
                );
            }
            let by_hand = |change: &TermsOverride| {
                change.tenant == only.tenant.name && change.action == OverrideAction::Pause && !change.is_over(now)
            };
            let is_paused = only.paused_on.contains(device);
            prop_assert!(!is_paused || self.overrides.iter().any(by_hand), "{} at {}", only.tenant.name, now);
        }
        Ok(())
    }

    /// Follows the decisions from `now` to before `end`.
    fn follow(&self, mut now: i64, end: i64) -> Result<(), TestCaseError> {
        for _ in 0..MOMENTS {
            let decision = decide(&self.inputs(&self.overrides), now);
            self.check(&decision, now)?;
            let left: Vec<_> = self.overrides.iter().filter(|change| !change.is_over(now)).cloned().collect();
            prop_assert_eq!(
                &decide(&self.inputs(&left), now).outcomes,
                &decision.outcomes,
                "it is over, and has an effect"
            );
            let Some(next) = decision.next.filter(|next| *next < end) else { break };
            let before = decide(&self.inputs(&self.overrides), next - 1);
            prop_assert_eq!(&before.outcomes, &decision.outcomes, "it changed between two named moments");
            now = next;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn for_every_mix_the_terms_fit_at_every_moment_and_end_exactly(
        sections in sections(),
        usage in usage(),
        commands in commands(),
    ) {
        // A window that contradicts another one is left out, as its writer would be told to.
        let mut taken: Vec<String> = Vec::new();
        for (index, section) in sections.into_iter().enumerate() {
            let mut with = taken.clone();
            with.push(section.replace("NAME", &format!("s{index}")));
            if plan_of(&with).is_some() {
                taken = with;
            }
        }
        let mut mix = Mix { plan: plan_of(&taken).unwrap(), usage, overrides: Vec::new() };
        let mut now = "2026-11-23T00:00Z".parse::<Timestamp>().unwrap().as_second();
        for command in commands {
            let next = now + command.after * HOUR;
            mix.follow(now, next)?;
            now = next;
            mix.obey(&command, now);
        }
        mix.follow(now, now + 2 * WEEK)?;
        // Without any policy the terms are exactly those of the file.
        mix.usage.clear();
        (mix.plan.windows, mix.plan.bookings) = (Vec::new(), Vec::new());
        let ended: Vec<_> = mix.overrides.iter().filter(|change| change.until.is_some()).cloned().collect();
        let restored = decide(&mix.inputs(&ended), now + 10 * WEEK);
        for (outcome, base) in restored.outcomes.iter().zip(&mix.plan.tenants) {
            prop_assert_eq!(&outcome.tenant, base);
            prop_assert!(outcome.paused_on.is_empty() && outcome.steps.is_empty());
        }
    }
}
