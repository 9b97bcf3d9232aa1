//! The chain of policies: from the terms of the file to the terms in force, with the reason of each change.
//!
//! The stages run in a fixed order: windows, bookings, groups, need, overrides. A later stage wins, but restrictions
//! that follow from use are applied after all stages that could loosen them; only an override may. If promises do not
//! fit next to all others, raised floors of the stage need lose their effect first, then windows, the last of the file
//! before the first, then bookings. No override is taken back here.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use jiff::tz::TimeZone;
use vgpu_config::change::TermsChange;
use vgpu_config::live::{change_terms, differing_keys, find_misfits};
use vgpu_config::plan::{DevicePlan, TenantPlan, TermsPlan};
use vgpu_config::raw::Amount;
use vgpu_config::schedule::{BookingPlan, WindowPlan};
use vgpu_core::units::share::Share;

use crate::overrides::{OverrideAction, TermsOverride};
use crate::schedule::{next_boundary, window_end};
use crate::stage::PolicyStage;
use crate::usage::{Restriction, UsageChange, UsageEffect};
use crate::values::{format_value, whole_value};

/// Everything that a decision depends on, besides the time.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInputs<'a> {
    /// The devices and their sizes.
    pub devices: &'a [DevicePlan],
    /// Tenants as the file or a command describes them.
    pub tenants: &'a [TenantPlan],
    /// Promises that count and that no policy changes: of removed tenants whose processes still hold their last terms,
    /// and of slots that wait until processes leave. One of the name of a tenant counts where it is larger.
    pub leaving: &'a [TenantPlan],
    /// Windows of the file.
    pub windows: &'a [WindowPlan],
    /// Bookings of the file and of commands.
    pub bookings: &'a [BookingPlan],
    /// Changes that follow from use.
    pub usage: &'a [UsageChange],
    /// Overrides, the earliest first.
    pub overrides: &'a [TermsOverride],
    /// Time zone of the host, for overrides.
    pub zone: &'a TimeZone,
}

/// Why something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Stage that made the change.
    pub stage: PolicyStage,
    /// Name of the window, the booking, the group or the need; the exclusive tenant; empty for other overrides.
    pub name: String,
    /// Time at which the change ends, in seconds since 1970; `None`: it has no end of its own.
    pub until: Option<i64>,
    /// Time zone in which the end is printed.
    pub zone: TimeZone,
    /// Reason that a person gave.
    pub reason: Option<String>,
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStep {
    /// Device of the changed terms, as the tenant's terms name it; `None`: a key of the whole tenant.
    pub device: Option<String>,
    /// The changed key; `paused` for a pause.
    pub key: &'static str,
    /// The value after the change, for people.
    pub value: String,
    /// Why it changed.
    pub cause: Cause,
    /// True if the change takes room: a larger promise, or a ceiling below the floor.
    pub takes_room: bool,
}

/// Terms and pause in force for one tenant, with the steps that led there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantOutcome {
    /// The tenant with the terms in force.
    pub tenant: TenantPlan,
    /// Devices on which it may not launch, as its terms name them.
    pub paused_on: BTreeSet<String>,
    /// The changes that led there, in their order.
    pub steps: Vec<PolicyStep>,
    /// Values that have no effect because they cannot be computed.
    pub skipped: Vec<SkippedKey>,
}

impl TenantOutcome {
    /// True if it may not launch on any of its devices.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        !self.paused_on.is_empty() && self.paused_on.len() == self.tenant.terms.len()
    }

    /// True if a window or use pauses it on the device, so that its pause is part of the plan.
    #[must_use]
    pub fn is_paused_by_plan(&self, device: &str) -> bool {
        let is_here = |step: &&PolicyStep| step.device.as_deref().is_none_or(|of| of == device);
        let last = self.steps.iter().rev().filter(|step| step.key == "paused").find(is_here);
        self.paused_on.contains(device) && last.is_some_and(|step| step.cause.stage != PolicyStage::Override)
    }

    /// The last change that pauses it, on any device; `None`: it is not paused.
    #[must_use]
    pub fn pause_cause(&self) -> Option<&Cause> {
        let is_paused = |step: &&PolicyStep| match &step.device {
            None => !self.paused_on.is_empty(),
            Some(device) => self.paused_on.contains(device),
        };
        let steps = self.steps.iter().rev().filter(|step| step.key == "paused" && step.value == "true");
        steps.filter(is_paused).map(|step| &step.cause).next()
    }
}

/// A value that has no effect: it is a part of a device whose size is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedKey {
    /// Device of the terms, as the tenant's terms name it.
    pub device: String,
    /// The key, which keeps its value.
    pub key: &'static str,
    /// The policy that sets it.
    pub cause: Cause,
}

/// A change that has no effect because its promises do not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedPolicy {
    /// Stage of the change.
    pub stage: PolicyStage,
    /// Name of its cause.
    pub name: String,
    /// The tenant whose terms it would change; `None`: it names several.
    pub tenant: Option<String>,
    /// The device on which it does not fit; `None`: that is not known.
    pub device: Option<String>,
    /// Why it does not fit, with what would.
    pub words: String,
}

/// The terms that hold from now on, until [`Self::next`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// One outcome for each of [`PolicyInputs::tenants`], in that order.
    pub outcomes: Vec<TenantOutcome>,
    /// Changes without effect.
    pub refused: Vec<RefusedPolicy>,
    /// Time at which something begins or ends next, in seconds since 1970; `None`: never.
    pub next: Option<i64>,
}

/// Effect of a change on a tenant.
enum Effect<'a> {
    Set(Cow<'a, TermsChange>),
    Raise { floor: Option<Share>, memory: Option<Amount> },
    RaiseFloor(Share),
    Restrict(&'a Restriction),
    Nothing,
}

/// A change that is in force now.
struct ActivePolicy<'a> {
    cause: Cause,
    subject: PolicySubject<'a>,
    effect: Effect<'a>,
    paused: Option<bool>,
}

enum PolicySubject<'a> {
    Window(&'a WindowPlan),
    Booking(&'a BookingPlan),
    Tenant {
        tenant: &'a str,
        device: Option<&'a str>,
    },
    /// The other tenants on these devices of this one, there.
    Others {
        only: &'a TenantPlan,
        devices: BTreeSet<String>,
    },
}

impl ActivePolicy<'_> {
    fn is_about(&self, tenant: &TenantPlan) -> bool {
        match &self.subject {
            PolicySubject::Window(window) => window.subjects.has_tenant(&tenant.name, tenant.bearer.group.as_deref()),
            PolicySubject::Booking(booking) => booking.tenant == tenant.name,
            PolicySubject::Tenant { tenant: name, .. } => *name == tenant.name,
            PolicySubject::Others { only, .. } => only.name != tenant.name,
        }
    }

    fn is_about_device(&self, terms: &TermsPlan) -> bool {
        match &self.subject {
            PolicySubject::Window(window) => window.subjects.has_device(&terms.device),
            PolicySubject::Booking(booking) => is_booked_device(booking, terms),
            PolicySubject::Tenant { device, .. } => device.is_none_or(|device| is_named(terms, device)),
            PolicySubject::Others { devices, .. } => devices.contains(&terms.device),
        }
    }

    fn can_raise_promises(&self) -> bool {
        match &self.effect {
            Effect::Set(change) => change.memory.is_some() || change.floor.is_some() || change.ceiling.is_some(),
            Effect::Raise { .. } | Effect::RaiseFloor(_) => true,
            Effect::Restrict(_) | Effect::Nothing => false,
        }
    }
}

/// True if the booking is of the device of these terms of its tenant.
pub(crate) fn is_booked_device(booking: &BookingPlan, terms: &TermsPlan) -> bool {
    booking.devices.is_empty() || booking.devices.iter().any(|device| is_named(terms, device))
}

/// True if the tenant has on its booked devices what was booked.
#[must_use]
pub fn has_booked(tenant: &TenantPlan, booking: &BookingPlan, devices: &[DevicePlan]) -> bool {
    let has = |terms: &TermsPlan| {
        let described = devices.iter().find(|device| device.name() == terms.device);
        let mut raised = terms.clone();
        raise_terms(&mut raised, described, booking.floor, booking.memory);
        raised == *terms
    };
    tenant.terms.iter().filter(|terms| is_booked_device(booking, terms)).all(has)
}

/// True if the terms are those of the device with this number or UUID.
fn is_named(terms: &TermsPlan, device: &str) -> bool {
    let is_uuid = |uuid: &String| vgpu_core::units::uuid::is_same_device(uuid, device);
    terms.device == device || terms.uuid.as_ref().is_some_and(is_uuid)
}

/// Returns what holds at `now`, in seconds since 1970.
///
/// # Cost
/// Grows with tenants times windows in force, and with the policies that name one tenant.
#[must_use]
pub fn decide(inputs: &PolicyInputs<'_>, now: i64) -> Decision {
    let mut active = active_policies(inputs, now);
    let next = next_change(inputs, now);
    let mut refused = Vec::new();
    loop {
        reserve_devices(inputs, &mut active);
        let by_tenant = PoliciesByTenant::new(&active);
        let apply = |tenant| apply_all(inputs.devices, by_tenant.policies_of(&active, tenant), tenant);
        let outcomes: Vec<_> = inputs.tenants.iter().map(apply).collect();
        let Some((at, device, words)) = find_culprit(inputs, &active, &outcomes) else {
            return Decision { outcomes, refused, next };
        };
        let ActivePolicy { cause: Cause { stage, name, .. }, subject, .. } = active.remove(at);
        let tenant = match subject {
            PolicySubject::Booking(booking) => Some(booking.tenant.clone()),
            PolicySubject::Tenant { tenant, .. } => Some(tenant.to_owned()),
            PolicySubject::Window(_) | PolicySubject::Others { .. } => None,
        };
        refused.push(RefusedPolicy { stage, name, tenant, device: Some(device), words });
    }
}

/// Returns everything in force at `now`, in the order of the stages.
fn active_policies<'a>(inputs: &PolicyInputs<'a>, now: i64) -> Vec<ActivePolicy<'a>> {
    let windows = inputs.windows.iter().filter_map(|window| {
        let until = Some(window_end(window, now)?);
        let (name, zone) = (window.name.clone(), window.zone.clone());
        Some(ActivePolicy {
            cause: Cause { stage: PolicyStage::Window, name, until, zone, reason: None },
            subject: PolicySubject::Window(window),
            effect: Effect::Set(Cow::Borrowed(&window.change)),
            paused: window.paused.then_some(true),
        })
    });
    let bookings = inputs.bookings.iter().filter(|booking| (booking.from..booking.until).contains(&now));
    let bookings = bookings.map(|booking| {
        let (name, until, zone) = (booking.name.clone(), Some(booking.until), inputs.zone.clone());
        ActivePolicy {
            cause: Cause { stage: PolicyStage::Booking, name, until, zone, reason: None },
            subject: PolicySubject::Booking(booking),
            effect: Effect::Raise { floor: booking.floor, memory: booking.memory },
            paused: None,
        }
    });
    let overrides = inputs.overrides.iter().filter(|change| !change.is_over(now)).filter_map(|change| {
        let mut subject = PolicySubject::Tenant { tenant: &change.tenant, device: change.device.as_deref() };
        let (mut effect, mut paused, mut name) = (Effect::Nothing, None, String::new());
        match &change.action {
            // A value that an earlier version of the program accepted may be refused now; it then has no effect.
            OverrideAction::Terms(written) => effect = Effect::Set(Cow::Owned(written.read(str::to_owned).ok()?)),
            OverrideAction::Pause => paused = Some(true),
            OverrideAction::Run => paused = Some(false),
            OverrideAction::Exclusive => {
                let only = inputs.tenants.iter().find(|tenant| tenant.name == change.tenant)?;
                subject = PolicySubject::Others { only, devices: BTreeSet::new() };
                (paused, name) = (Some(true), change.tenant.clone());
            }
        }
        let (until, zone, reason) = (change.until, inputs.zone.clone(), change.reason.clone());
        let cause = Cause { stage: PolicyStage::Override, name, until, zone, reason };
        Some(ActivePolicy { cause, subject, effect, paused })
    });
    let is_restriction = |change: &&UsageChange| matches!(change.effect, UsageEffect::Restrict(_));
    let (restrictions, others): (Vec<_>, Vec<_>) = inputs.usage.iter().partition(is_restriction);
    let usage = others.into_iter().chain(restrictions).map(|change| active_usage(inputs.zone, change));
    windows.chain(bookings).chain(usage).chain(overrides).collect()
}

/// Gives each exclusive tenant its devices. A device on which a window or use pauses the tenant is left to the others:
/// otherwise nobody would use it.
fn reserve_devices(inputs: &PolicyInputs<'_>, active: &mut [ActivePolicy<'_>]) {
    if !active.iter().any(|policy| matches!(policy.subject, PolicySubject::Others { .. })) {
        return;
    }
    let by_tenant = PoliciesByTenant::new(active);
    let usable = active.iter().map(|policy| {
        let PolicySubject::Others { only, .. } = &policy.subject else { return None };
        let outcome = apply_all(inputs.devices, by_tenant.policies_of(active, only), only);
        let devices = only.terms.iter().map(|terms| &terms.device);
        Some(devices.filter(|device| !outcome.is_paused_by_plan(device)).cloned().collect())
    });
    for (at, usable) in usable.collect::<Vec<_>>().into_iter().enumerate() {
        if let (PolicySubject::Others { devices, .. }, Some(usable)) = (&mut active[at].subject, usable) {
            *devices = usable;
        }
    }
}

fn active_usage<'a>(zone: &TimeZone, change: &'a UsageChange) -> ActivePolicy<'a> {
    let UsageChange { stage, name, tenant, device, effect, until, reason } = change;
    let (effect, paused) = match effect {
        UsageEffect::Terms(change) => (Effect::Set(Cow::Borrowed(change)), None),
        UsageEffect::RaiseFloor(floor) => (Effect::RaiseFloor(*floor), None),
        UsageEffect::Restrict(bounds) => (Effect::Restrict(bounds), bounds.is_paused.then_some(true)),
    };
    let (name, zone, reason) = (name.clone(), zone.clone(), reason.clone());
    let cause = Cause { stage: *stage, name, until: *until, zone, reason };
    ActivePolicy { cause, subject: PolicySubject::Tenant { tenant, device: device.as_deref() }, effect, paused }
}

/// Returns the next moment after `now` at which something begins or ends, in seconds since 1970.
pub(crate) fn next_change(inputs: &PolicyInputs<'_>, now: i64) -> Option<i64> {
    let windows = inputs.windows.iter().filter_map(|window| next_boundary(window, now));
    let bookings = inputs.bookings.iter().flat_map(|booking| [booking.from, booking.until]);
    let overrides = inputs.overrides.iter().filter_map(|change| change.until);
    windows.chain(bookings).chain(overrides).filter(|at| *at > now).min()
}

/// Finds the policies of a tenant by their indexes among those in force. Groups and needs have a policy for each
/// tenant, so a search through all policies for each tenant would grow with the square of the tenants.
struct PoliciesByTenant {
    /// Policies that name one tenant, by that tenant's name.
    named: HashMap<String, Vec<usize>>,
    /// Policies that may select several tenants.
    others: Vec<usize>,
}

impl PoliciesByTenant {
    fn new(active: &[ActivePolicy<'_>]) -> Self {
        let mut all = Self { named: HashMap::new(), others: Vec::new() };
        for (at, policy) in active.iter().enumerate() {
            match &policy.subject {
                PolicySubject::Booking(booking) => all.named.entry(booking.tenant.clone()).or_default().push(at),
                PolicySubject::Tenant { tenant, .. } => all.named.entry((*tenant).to_owned()).or_default().push(at),
                PolicySubject::Window(_) | PolicySubject::Others { .. } => all.others.push(at),
            }
        }
        all
    }

    /// The policies that may be about a tenant, in the order of the stages.
    fn policies_of<'p, 'a>(&self, active: &'p [ActivePolicy<'a>], tenant: &TenantPlan) -> Vec<&'p ActivePolicy<'a>> {
        let named = self.named.get(&tenant.name).into_iter().flatten();
        let mut numbers: Vec<usize> = named.chain(&self.others).copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|at| &active[at]).collect()
    }
}

/// Applies everything in force to one tenant.
fn apply_all(devices: &[DevicePlan], active: Vec<&ActivePolicy<'_>>, base: &TenantPlan) -> TenantOutcome {
    let (paused_on, steps, skipped) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut outcome = TenantOutcome { tenant: base.clone(), paused_on, steps, skipped };
    let mut restricted: Vec<Option<&Cause>> = vec![None; base.terms.len()];
    for policy in active.into_iter().filter(|policy| policy.is_about(base)) {
        let mut concerned = Vec::new();
        for (at, restricted) in restricted.iter_mut().enumerate() {
            if policy.is_about_device(&base.terms[at]) {
                apply_to_device(devices, policy, &mut outcome, at);
                if matches!(&policy.effect, Effect::Restrict(Restriction { ceiling: Some(_), .. })) {
                    *restricted = Some(&policy.cause);
                }
                concerned.push(base.terms[at].device.clone());
            }
        }
        let step = |key, value| PolicyStep { device: None, key, value, cause: policy.cause.clone(), takes_room: false };
        if let Effect::Set(change) = &policy.effect {
            let tenant = &mut outcome.tenant;
            let (mode, strict) = (change.mode.unwrap_or(tenant.mode), change.strict.unwrap_or(tenant.strict));
            let keys = [("mode", mode != tenant.mode), ("strict", strict != tenant.strict)];
            (tenant.mode, tenant.strict) = (mode, strict);
            let changed = keys.into_iter().filter(|(_, differs)| *differs);
            outcome.steps.extend(changed.map(|(key, _)| step(key, whole_value(&outcome.tenant, key))));
        }
        if let Some(paused) = policy.paused {
            pause_on(&mut outcome, &concerned, paused, &policy.cause);
        }
    }
    for (at, cause) in restricted.into_iter().enumerate() {
        if let Some(cause) = cause {
            keep_floor_below_ceiling(&mut outcome, at, cause);
        }
    }
    outcome
}

/// Lowers a floor that an override set to a restricted ceiling: an override loosens only what it names.
fn keep_floor_below_ceiling(outcome: &mut TenantOutcome, at: usize, cause: &Cause) {
    let terms = &mut outcome.tenant.terms[at];
    if let (Some(floor), Some(ceiling)) = (terms.floor, terms.ceiling)
        && floor > ceiling
    {
        terms.floor = Some(ceiling);
        let (device, key) = (Some(terms.device.clone()), "sm_request");
        let value = format_value(terms, key);
        outcome.steps.push(PolicyStep { device, key, value, cause: cause.clone(), takes_room: false });
    }
}

/// Pauses the tenant on these devices, or resumes it there. Records one [`PolicyStep`] for each device that changes,
/// or a single one if all of the tenant's devices change.
fn pause_on(outcome: &mut TenantOutcome, devices: &[String], paused: bool, cause: &Cause) {
    let changed = devices.iter().filter(|device| outcome.paused_on.contains(*device) != paused);
    let changed: Vec<String> = changed.cloned().collect();
    for device in &changed {
        if paused {
            outcome.paused_on.insert(device.clone());
        } else {
            outcome.paused_on.remove(device);
        }
    }
    let is_whole = changed.len() == outcome.tenant.terms.len();
    let places = if is_whole { vec![None] } else { changed.into_iter().map(Some).collect() };
    outcome.steps.extend(places.into_iter().map(|device| PolicyStep {
        device,
        key: "paused",
        value: paused.to_string(),
        cause: cause.clone(),
        takes_room: false,
    }));
}

fn apply_to_device(devices: &[DevicePlan], policy: &ActivePolicy<'_>, outcome: &mut TenantOutcome, at: usize) {
    let before = &outcome.tenant.terms[at];
    let described = devices.iter().find(|device| device.name() == before.device);
    let mut after = before.clone();
    // A percentage of an unknown device size cannot be computed, so that key alone keeps its value.
    let is_known = match &policy.effect {
        Effect::Set(change) => {
            change_terms(&mut after, described, change).is_ok() || {
                let rest = TermsChange { memory: None, ..(**change).clone() };
                // Only the memory limit depends on the device's size.
                change_terms(&mut after, described, &rest).is_err()
            }
        }
        Effect::Raise { floor, memory } => raise_terms(&mut after, described, *floor, *memory),
        Effect::RaiseFloor(floor) => {
            // The ceiling stays: a person set it, and only a booking may pass it.
            let within = after.ceiling.map_or(*floor, |ceiling| ceiling.min(*floor));
            after.floor = after.floor.max(Some(within));
            true
        }
        Effect::Restrict(bounds) => {
            bounds.restrict_terms(&mut after);
            true
        }
        Effect::Nothing => true,
    };
    let cause = &policy.cause;
    if !is_known {
        let device = after.device.clone();
        outcome.skipped.push(SkippedKey { device, key: "memory_limit", cause: cause.clone() });
    }
    outcome.steps.extend(differing_keys(before, &after).into_iter().map(|key| PolicyStep {
        device: Some(after.device.clone()),
        key,
        value: format_value(&after, key),
        cause: cause.clone(),
        takes_room: takes_room(before, &after, key),
    }));
    outcome.tenant.terms[at] = after;
}

/// True if a changed key can be the reason why terms do not fit any more.
fn takes_room(before: &TermsPlan, after: &TermsPlan, key: &str) -> bool {
    match key {
        "memory_limit" => after.memory.is_none_or(|now| before.memory.is_some_and(|was| now > was)),
        "sm_request" => after.floor > before.floor,
        "sm_limit" => after.ceiling.is_some_and(|ceiling| after.floor.is_some_and(|floor| floor > ceiling)),
        _ => false,
    }
}

/// Gives the tenant at least what was booked; false: the booked memory is a part of an unknown size. A ceiling below
/// the booked floor rises with it.
fn raise_terms(
    terms: &mut TermsPlan,
    device: Option<&DevicePlan>,
    floor: Option<Share>,
    memory: Option<Amount>,
) -> bool {
    terms.floor = terms.floor.max(floor);
    if let (Some(ceiling), Some(floor)) = (terms.ceiling, floor) {
        terms.ceiling = Some(ceiling.max(floor)).filter(|ceiling| !ceiling.is_all());
    }
    let booked = memory.and_then(|amount| amount.bytes_on(device.and_then(|device| device.memory)));
    if let (Some(limit), Some(booked)) = (terms.memory, booked) {
        terms.memory = booked.map(|booked| booked.max(limit));
    }
    memory.is_none() || booked.is_some()
}

/// Adds the promises that no policy changes ([`PolicyInputs::leaving`]) to the tenants. For a tenant of the same name,
/// the larger promise counts.
pub(crate) fn add_leaving(mut tenants: Vec<TenantPlan>, leaving: &[TenantPlan]) -> Vec<TenantPlan> {
    for left in leaving {
        match tenants.iter_mut().find(|tenant| tenant.name == left.name) {
            Some(tenant) => tenant.raise_promise(left),
            None => tenants.push(left.clone()),
        }
    }
    tenants
}

/// Returns the policy to give up if the outcomes do not fit: the last need that takes room of the kind that is short on
/// that device, else the last such window, else the last such booking.
fn find_culprit(
    inputs: &PolicyInputs<'_>,
    active: &[ActivePolicy<'_>],
    outcomes: &[TenantOutcome],
) -> Option<(usize, String, String)> {
    let scheduled =
        |policy: &ActivePolicy<'_>| policy.cause.stage < PolicyStage::Override && policy.can_raise_promises();
    if !active.iter().any(scheduled) {
        return None;
    }
    let there = add_leaving(outcomes.iter().map(|outcome| outcome.tenant.clone()).collect(), inputs.leaving);
    inputs.devices.iter().find_map(|device| {
        let words = find_misfits(std::slice::from_ref(device), &there);
        if words.is_empty() {
            return None;
        }
        let (name, is_memory) = (device.name(), words.iter().any(|words| words.starts_with("memory_limit")));
        let promises = |policy: &ActivePolicy<'_>| {
            // Policies of several tenants may have equal causes, such as deadlines of the same time and size.
            let is_about = |tenant: &TenantPlan| {
                policy.is_about(tenant)
                    && tenant.terms.iter().any(|terms| terms.device == name && policy.is_about_device(terms))
            };
            let steps = outcomes.iter().filter(|outcome| is_about(&outcome.tenant)).flat_map(|outcome| &outcome.steps);
            let mut own = steps.filter(|step| step.cause == policy.cause && step.device.as_ref() == Some(&name));
            scheduled(policy) && own.any(|step| step.takes_room && is_memory == (step.key == "memory_limit"))
        };
        let last = |stage| active.iter().rposition(|policy| policy.cause.stage == stage && promises(policy));
        let at = [PolicyStage::Need, PolicyStage::Window, PolicyStage::Booking].into_iter().find_map(last)?;
        Some((at, name.clone(), words.join("; and ")))
    })
}
