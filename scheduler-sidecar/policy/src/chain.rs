//! The chain of policies: from the terms of the file to the terms in force, with the reason of each change.
//!
//! The stages run in a fixed order: windows, bookings, groups, need, overrides. A later stage wins, but restrictions
//! that follow from use are applied after all stages that could loosen them; only an override may. If promises do not
//! fit next to all others, raised floors of the stage need lose their effect first, then windows, the last of the file
//! before the first, then bookings. No override is taken back here.

use std::collections::BTreeSet;

use vgpu_config::admit::TenantAsk;
use vgpu_config::change::TermsChange;
use vgpu_config::live::{Misfit, change_terms, differing_keys, find_device_misfits};
use vgpu_config::plan::{DevicePlan, TenantPlan, TermsPlan};
use vgpu_config::raw::Amount;
use vgpu_config::schedule::BookingPlan;
use vgpu_core::units::share::Share;

use crate::active::{
    ActivePolicy, Effect, PoliciesByTenant, PolicyInputs, PolicySubject, active_policies, is_booked_device, next_change,
};
use crate::outcome::{Cause, Decision, PolicyStep, RefusedPolicy, SkippedKey, TenantOutcome};
use crate::stage::PolicyStage;
use crate::usage::Restriction;
use crate::values::{format_value, whole_value};

/// True if the tenant has on its booked devices what was booked.
#[must_use]
pub fn has_booked(tenant: &TenantPlan, booking: &BookingPlan, devices: &[DevicePlan]) -> bool {
    let has = |terms: &TermsPlan| {
        let described = devices.iter().find(|device| device.name() == terms.device);
        let mut raised = terms.clone();
        raise_terms(&mut raised, described, booking.floor, booking.memory);
        raised == *terms
    };
    let mut booked = tenant.terms.iter().filter(|terms| is_booked_device(booking, terms)).peekable();
    booked.peek().is_some() && booked.all(has)
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

/// Gives each exclusive tenant its devices. Of two on one device, the newest has it. A device on which a window or use
/// pauses the tenant is left to the others: otherwise nobody would use it.
fn reserve_devices(inputs: &PolicyInputs<'_>, active: &mut [ActivePolicy<'_>]) {
    if !active.iter().any(|policy| matches!(policy.subject, PolicySubject::Others { .. })) {
        return;
    }
    let by_tenant = PoliciesByTenant::new(active);
    let usable = active.iter().map(|policy| {
        let PolicySubject::Others { only, .. } = &policy.subject else { return BTreeSet::new() };
        let outcome = apply_all(inputs.devices, by_tenant.policies_of(active, only), only);
        let devices = only.terms.iter().map(|terms| &terms.device);
        devices.filter(|device| !outcome.is_paused_by_plan(device)).cloned().collect()
    });
    let usable: Vec<BTreeSet<String>> = usable.collect();
    let mut taken = BTreeSet::new();
    for (policy, mut usable) in active.iter_mut().zip(usable).rev() {
        if let PolicySubject::Others { devices, .. } = &mut policy.subject {
            usable.retain(|device| taken.insert(device.clone()));
            *devices = usable;
        }
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
        let step =
            |key, value| PolicyStep { device: None, key, value, cause: policy.cause.clone(), strains: Vec::new() };
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
        outcome.steps.push(PolicyStep { device, key, value, cause: cause.clone(), strains: Vec::new() });
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
        strains: Vec::new(),
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
        strains: strained_keys(before, &after, key),
    }));
    outcome.tenant.terms[at] = after;
}

/// Returns the keys whose values may not fit any more after `key` changed. That is so after a larger floor or memory
/// limit, after a ceiling below the floor, and after a larger part of what a group may have.
fn strained_keys(before: &TermsPlan, after: &TermsPlan, key: &str) -> Vec<&'static str> {
    let is_more_memory = after.memory.is_none_or(|now| before.memory.is_some_and(|was| now > was));
    let is_below_floor = after.ceiling.is_some_and(|ceiling| after.floor.is_some_and(|floor| floor > ceiling));
    let is_more_time = TenantAsk::from(after).counted_ceiling() > TenantAsk::from(before).counted_ceiling();
    let keys = match key {
        "memory_limit" => vec![("memory_limit", is_more_memory)],
        "sm_request" => vec![("sm_request", after.floor > before.floor), ("sm_limit", is_more_time)],
        "sm_limit" => vec![("sm_request", is_below_floor), ("sm_limit", is_more_time)],
        _ => Vec::new(),
    };
    keys.into_iter().filter(|(_, is_strained)| *is_strained).map(|(key, _)| key).collect()
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

/// Returns the policy to give up if the outcomes do not fit: the last need that can be a reason for that, else the last
/// such window, else the last such booking.
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
        let mut misfits = find_device_misfits(device, &there);
        // The policy that a misfit of few tenants names may be the reason of those of more tenants too.
        misfits.sort_by_key(|misfit| misfit.tenants.len());
        let name = device.name();
        let promises = |misfit: &Misfit, policy: &ActivePolicy<'_>| {
            // Policies of several tenants may have equal causes, such as deadlines of the same time and size.
            let is_about = |tenant: &TenantPlan| {
                policy.is_about(tenant)
                    && tenant.terms.iter().any(|terms| terms.device == name && policy.is_about_device(terms))
            };
            let strains = |tenant: &TenantPlan, step: &PolicyStep| {
                let is_own = step.cause == policy.cause && step.device.as_ref() == Some(&name);
                is_own && step.strains.contains(&misfit.key) && misfit.tenants.contains(&tenant.name)
            };
            let mut own = outcomes.iter().filter(|outcome| is_about(&outcome.tenant));
            scheduled(policy) && own.any(|outcome| outcome.steps.iter().any(|step| strains(&outcome.tenant, step)))
        };
        let last =
            |misfit, stage| active.iter().rposition(|policy| policy.cause.stage == stage && promises(misfit, policy));
        let stages = [PolicyStage::Need, PolicyStage::Window, PolicyStage::Booking];
        let at = misfits.iter().find_map(|misfit| stages.into_iter().find_map(|stage| last(misfit, stage)))?;
        let words: Vec<String> = misfits.into_iter().map(|misfit| misfit.words).collect();
        Some((at, name.clone(), words.join("; and ")))
    })
}
