//! Looks ahead: which terms will hold when, and which bookings could not be kept.

use std::collections::BTreeSet;

use vgpu_config::live::find_device_misfits;
use vgpu_config::plan::TenantPlan;

use crate::active::{PolicyInputs, is_booked_device, next_change};
use crate::chain::{add_leaving, decide};
use crate::outcome::{Decision, PolicyStep, RefusedPolicy};
use crate::stage::PolicyStage;
use crate::usage::{UsageChange, UsageEffect};
use crate::values::{format_value, whole_value};

/// Most moments at which terms are looked at; a thousand tenants take about a second. Ten windows a day for half a year
/// and many bookings have fewer.
const MAX_MOMENTS: usize = 4_000;

/// Time for which windows are followed after every other change: all of them have begun and ended by then.
const WINDOWS_SECONDS: i64 = 8 * 86_400;

/// The decisions at all moments of a span of time at which something begins or ends.
struct Decisions<'a> {
    inputs: &'a PolicyInputs<'a>,
    /// `None`: there is no further moment.
    at: Option<i64>,
    end: i64,
    left: usize,
    /// Time until which windows are followed.
    windows_until: i64,
}

/// A moment after which terms were not looked at, because too much changes.
struct TooManyMoments {
    /// The moment, in seconds since 1970.
    at: i64,
}

impl TooManyMoments {
    fn words(&self) -> String {
        format!("more than {MAX_MOMENTS} windows, bookings and overrides begin or end before, too many to look at")
    }
}

impl<'a> Decisions<'a> {
    fn between(inputs: &'a PolicyInputs<'a>, now: i64, end: i64) -> Self {
        Self { inputs, at: Some(now), end, left: MAX_MOMENTS, windows_until: now.saturating_add(WINDOWS_SECONDS) }
    }
}

impl Iterator for Decisions<'_> {
    type Item = Result<(i64, Decision), TooManyMoments>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        let Some(left) = self.left.checked_sub(1) else { return Some(Err(TooManyMoments { at })) };
        self.left = left;
        let decision = decide(self.inputs, at);
        // Windows come back each week, so they are new only within a week of something else.
        let without_windows = PolicyInputs { windows: &[], ..*self.inputs };
        let other = next_change(&without_windows, at);
        let next = decision.next.filter(|next| *next < self.windows_until).or(other);
        if let Some(other) = other.filter(|_| next == other) {
            self.windows_until = other.saturating_add(WINDOWS_SECONDS);
        }
        self.at = next.filter(|next| *next < self.end);
        Some(Ok((at, decision)))
    }
}

/// The tenants of some devices.
struct DeviceInputs {
    tenants: Vec<TenantPlan>,
    leaving: Vec<TenantPlan>,
}

impl DeviceInputs {
    fn on(inputs: &PolicyInputs<'_>, devices: &BTreeSet<String>) -> Self {
        let is_there = |tenant: &&TenantPlan| tenant.terms.iter().any(|terms| devices.contains(&terms.device));
        let select = |all: &[TenantPlan]| all.iter().filter(is_there).cloned().collect();
        Self { tenants: select(inputs.tenants), leaving: select(inputs.leaving) }
    }

    fn to_inputs<'a>(&'a self, inputs: &PolicyInputs<'a>) -> PolicyInputs<'a> {
        let Self { tenants, leaving } = self;
        PolicyInputs { tenants, leaving, ..*inputs }
    }
}

/// A value that will change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForecastRow {
    /// Time of the change, in seconds since 1970.
    pub at: i64,
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the device; `None`: a key of the whole tenant.
    pub device: Option<String>,
    /// Changed key; `paused` for a pause.
    pub key: &'static str,
    /// The value from then on, for people.
    pub value: String,
    /// The policy that gives it, for people; `None`: the value of the file again.
    pub cause: Option<String>,
}

/// Returns every change of terms from `now` on for `seconds`, those that hold already first. The rows end early where
/// too much changes; a file like that is refused before.
#[must_use]
pub fn forecast_changes(inputs: &PolicyInputs<'_>, now: i64, seconds: i64) -> Vec<ForecastRow> {
    let mut rows = Vec::new();
    let none_paused = |tenant: &TenantPlan| (tenant.clone(), BTreeSet::new());
    let mut before: Vec<(TenantPlan, BTreeSet<String>)> = inputs.tenants.iter().map(none_paused).collect();
    for (at, decision) in Decisions::between(inputs, now, now.saturating_add(seconds)).map_while(Result::ok) {
        push_rows(&mut rows, &before, &decision, at);
        before = decision.outcomes.into_iter().map(|outcome| (outcome.tenant, outcome.paused_on)).collect();
    }
    rows
}

fn push_rows(rows: &mut Vec<ForecastRow>, before: &[(TenantPlan, BTreeSet<String>)], decision: &Decision, at: i64) {
    const TERMS_KEYS: [&str; 6] = ["memory_limit", "sm_limit", "sm_request", "weight", "class", "quantum"];
    for ((was, was_paused), outcome) in before.iter().zip(&decision.outcomes) {
        let (tenant, steps) = (&outcome.tenant, &outcome.steps);
        let mut push = |device: Option<&String>, key: &'static str, value: String| {
            let is_here =
                |step: &&PolicyStep| step.device.as_ref() == device || step.device.is_none() && key == "paused";
            let by = steps.iter().rev().filter(|step| step.key == key).find(is_here);
            rows.push(ForecastRow {
                at,
                tenant: tenant.name.clone(),
                device: device.cloned(),
                key,
                value,
                cause: by.map(|step| step.cause.to_words(at)),
            });
        };
        for (then, now) in was.terms.iter().zip(&tenant.terms) {
            for key in TERMS_KEYS {
                let value = format_value(now, key);
                if format_value(then, key) != value {
                    push(Some(&now.device), key, value);
                }
            }
        }
        for key in ["mode", "strict"] {
            if whole_value(was, key) != whole_value(tenant, key) {
                push(None, key, whole_value(tenant, key));
            }
        }
        let changed: Vec<&String> = was_paused.symmetric_difference(&outcome.paused_on).collect();
        if changed.len() == tenant.terms.len() && (was_paused.is_empty() || outcome.paused_on.is_empty()) {
            push(None, "paused", outcome.is_paused().to_string());
        } else {
            changed
                .iter()
                .for_each(|device| push(Some(device), "paused", outcome.paused_on.contains(*device).to_string()));
        }
    }
}

/// A booking or a window that could not be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Stage of the window or booking.
    pub stage: PolicyStage,
    /// Its name.
    pub name: String,
    /// Time at which it does not fit, in seconds since 1970.
    pub at: i64,
    /// Other bookings that hold then.
    pub beside: Vec<String>,
    /// Why it does not fit, with what would.
    pub words: String,
}

impl Conflict {
    /// Names the other bookings in the words of a message: ` beside booking demo`; empty if there is none.
    #[must_use]
    pub fn beside_words(&self) -> String {
        match self.beside.as_slice() {
            [] => String::new(),
            names => format!(" beside booking {}", names.join(", ")),
        }
    }
}

/// Returns the bookings that do not fit next to the terms and the other bookings, and those whose tenant has none of
/// the booked devices. Windows and needs count as absent: they yield to bookings.
#[must_use]
pub fn find_booking_conflicts(inputs: &PolicyInputs<'_>, now: i64) -> Vec<Conflict> {
    let Some(end) = inputs.bookings.iter().map(|booking| booking.until).max() else { return Vec::new() };
    let inputs = PolicyInputs { windows: &[], usage: &[], ..*inputs };
    let booked = inputs.bookings.iter().flat_map(|booking| {
        let own = inputs.tenants.iter().filter(|tenant| tenant.name == booking.tenant).flat_map(|own| &own.terms);
        own.filter(|terms| is_booked_device(booking, terms)).map(|terms| terms.device.clone())
    });
    let there = DeviceInputs::on(&inputs, &booked.collect());
    let mut found = find_conflicts(&there.to_inputs(&inputs), now, end);
    found.extend(inputs.bookings.iter().filter(|booking| booking.until > now).filter_map(|booking| {
        let own = inputs.tenants.iter().find(|tenant| tenant.name == booking.tenant)?;
        let is_elsewhere = !own.terms.iter().any(|terms| is_booked_device(booking, terms));
        let words = || format!("tenant {} has none of the booked devices", own.name);
        let (stage, name, at) = (PolicyStage::Booking, booking.name.clone(), booking.from.max(now));
        is_elsewhere.then(|| Conflict { stage, name, at, beside: Vec::new(), words: words() })
    }));
    found
}

/// Returns the windows that do not fit next to the terms of the file, for `seconds` from `now` on.
#[must_use]
pub fn find_window_conflicts(inputs: &PolicyInputs<'_>, now: i64, seconds: i64) -> Vec<Conflict> {
    if inputs.windows.is_empty() {
        return Vec::new();
    }
    find_conflicts(
        &PolicyInputs { bookings: &[], usage: &[], overrides: &[], ..*inputs },
        now,
        now.saturating_add(seconds),
    )
}

/// Returns the tenants with the terms that count at `now` when a promise is admitted. Changes that follow from use
/// count as absent: a restriction ends, and a raised floor yields. Restrictions of the tenant `changed` stay, so that
/// its floor is compared with the ceiling in force.
#[must_use]
pub fn admission_terms(inputs: &PolicyInputs<'_>, changed: Option<&str>, now: i64) -> Vec<TenantPlan> {
    let is_own = |change: &&UsageChange| {
        Some(change.tenant.as_str()) == changed && matches!(change.effect, UsageEffect::Restrict(_))
    };
    let usage: Vec<UsageChange> = inputs.usage.iter().filter(is_own).cloned().collect();
    let outcomes = decide(&PolicyInputs { usage: &usage, ..*inputs }, now).outcomes;
    outcomes.into_iter().map(|outcome| outcome.tenant).collect()
}

/// Returns the first moment in `now..end` at which the terms of the file with the overrides do not fit on `devices`,
/// and why. Only misfits in which `tenant` has a part count. Windows and bookings that do not fit yield, and are not a
/// reason. Changes that follow from use count as absent, as in [`admission_terms`].
#[must_use]
pub fn find_misfit_ahead(
    inputs: &PolicyInputs<'_>,
    tenant: &str,
    devices: &[String],
    now: i64,
    end: i64,
) -> Option<(i64, String)> {
    let inputs = PolicyInputs { usage: &[], ..*inputs };
    let there = DeviceInputs::on(&inputs, &devices.iter().cloned().collect());
    let inputs = there.to_inputs(&inputs);
    let concerned: Vec<_> = inputs.devices.iter().filter(|device| devices.contains(&device.name())).cloned().collect();
    Decisions::between(&inputs, now, end).find_map(|moment| {
        let (at, decision) = match moment {
            Ok(moment) => moment,
            Err(cut) => return Some((cut.at, cut.words())),
        };
        let tenants = decision.outcomes.into_iter().map(|outcome| outcome.tenant);
        let there = add_leaving(tenants.collect(), inputs.leaving);
        let misfits = concerned.iter().flat_map(|device| find_device_misfits(device, &there));
        let words: Vec<String> = misfits.filter(|misfit| misfit.is_of(tenant)).map(|misfit| misfit.words).collect();
        (!words.is_empty()).then(|| (at, words.join("; and ")))
    })
}

fn find_conflicts(inputs: &PolicyInputs<'_>, now: i64, end: i64) -> Vec<Conflict> {
    let mut found: Vec<Conflict> = Vec::new();
    for moment in Decisions::between(inputs, now, end) {
        let (at, refused) = match moment {
            Ok((at, decision)) => (at, decision.refused),
            Err(cut) => (cut.at, unseen_policies(inputs, cut)),
        };
        for refused in refused {
            if found.iter().any(|known| known.stage == refused.stage && known.name == refused.name) {
                continue;
            }
            let holds = inputs.bookings.iter().filter(|booking| (booking.from..booking.until).contains(&at));
            let beside = holds.map(|booking| booking.name.clone()).filter(|name| *name != refused.name).collect();
            let (stage, name, words) = (refused.stage, refused.name, refused.words);
            found.push(Conflict { stage, name, at, beside, words });
        }
    }
    found
}

/// Windows and bookings that may begin after the last moment that was looked at: none of them is known to fit.
fn unseen_policies(inputs: &PolicyInputs<'_>, cut: TooManyMoments) -> Vec<RefusedPolicy> {
    let refuse = |stage, name: &String, tenant: Option<&String>| {
        let (name, tenant, device) = (name.clone(), tenant.cloned(), None);
        RefusedPolicy { stage, name, tenant, device, words: cut.words() }
    };
    let windows = inputs.windows.iter().map(|window| refuse(PolicyStage::Window, &window.name, None));
    let bookings = inputs.bookings.iter().filter(|booking| booking.until > cut.at);
    let bookings = bookings.map(|booking| refuse(PolicyStage::Booking, &booking.name, Some(&booking.tenant)));
    windows.chain(bookings).collect()
}
