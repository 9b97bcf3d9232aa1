//! Looks ahead: which terms will hold when, and which bookings could not be kept.

use vgpu_config::live::find_misfits;
use vgpu_config::plan::TenantPlan;

use crate::chain::{Decision, PolicyInputs, decide};
use crate::stage::PolicyStage;
use crate::values::{format_value, whole_value};

/// Most moments that are looked at: windows of a week and many bookings have fewer.
const MAX_MOMENTS: usize = 2_000;

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

/// Returns every change of terms from `now` on for `seconds`, those that hold already first.
#[must_use]
pub fn forecast_changes(inputs: &PolicyInputs<'_>, now: i64, seconds: i64) -> Vec<ForecastRow> {
    let end = now.saturating_add(seconds);
    let mut rows = Vec::new();
    let mut before: Vec<(TenantPlan, bool)> = inputs.tenants.iter().map(|tenant| (tenant.clone(), false)).collect();
    let mut at = now;
    for _ in 0..MAX_MOMENTS {
        let decision = decide(inputs, at);
        push_rows(&mut rows, &before, &decision, at);
        before = decision.outcomes.into_iter().map(|outcome| (outcome.tenant, outcome.paused)).collect();
        match decision.next {
            Some(next) if next < end => at = next,
            _ => break,
        }
    }
    rows
}

fn push_rows(rows: &mut Vec<ForecastRow>, before: &[(TenantPlan, bool)], decision: &Decision, at: i64) {
    const TERMS_KEYS: [&str; 6] = ["memory_limit", "sm_limit", "sm_request", "weight", "class", "quantum"];
    for ((was, was_paused), outcome) in before.iter().zip(&decision.outcomes) {
        let (tenant, steps) = (&outcome.tenant, &outcome.steps);
        let mut push = |device: Option<&String>, key: &'static str, value: String| {
            let by = steps.iter().rev().find(|step| step.key == key && step.device.as_ref() == device);
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
        if *was_paused != outcome.paused {
            push(None, "paused", outcome.paused.to_string());
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

/// Returns the bookings that do not fit next to the terms and the other bookings. Windows and needs count as absent: they
/// yield to bookings.
#[must_use]
pub fn find_booking_conflicts(inputs: &PolicyInputs<'_>, now: i64) -> Vec<Conflict> {
    let Some(end) = inputs.bookings.iter().map(|booking| booking.until).max() else { return Vec::new() };
    find_conflicts(&PolicyInputs { windows: &[], usage: &[], ..*inputs }, now, end)
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

/// Returns the first moment, from `now` to before `end`, at which the terms of the file and the overrides do not
/// fit on one of `devices`, and why. Windows and bookings that do not fit yield, and are not a reason.
#[must_use]
pub fn find_misfit_ahead(inputs: &PolicyInputs<'_>, devices: &[String], now: i64, end: i64) -> Option<(i64, String)> {
    let concerned: Vec<_> = inputs.devices.iter().filter(|device| devices.contains(&device.name())).cloned().collect();
    let mut at = now;
    for _ in 0..MAX_MOMENTS {
        let decision = decide(inputs, at);
        let tenants = decision.outcomes.into_iter().map(|outcome| outcome.tenant);
        let there: Vec<TenantPlan> = tenants.chain(inputs.leaving.iter().cloned()).collect();
        let words = find_misfits(&concerned, &there);
        if !words.is_empty() {
            return Some((at, words.join("; and ")));
        }
        match decision.next {
            Some(next) if next < end => at = next,
            _ => break,
        }
    }
    None
}

fn find_conflicts(inputs: &PolicyInputs<'_>, now: i64, end: i64) -> Vec<Conflict> {
    let mut found: Vec<Conflict> = Vec::new();
    let mut at = now;
    for _ in 0..MAX_MOMENTS {
        let decision = decide(inputs, at);
        for refused in decision.refused {
            if found.iter().any(|known| known.stage == refused.stage && known.name == refused.name) {
                continue;
            }
            let holds = inputs.bookings.iter().filter(|booking| (booking.from..booking.until).contains(&at));
            let beside = holds.map(|booking| booking.name.clone()).filter(|name| *name != refused.name).collect();
            let (stage, name, words) = (refused.stage, refused.name, refused.words);
            found.push(Conflict { stage, name, at, beside, words });
        }
        match decision.next {
            Some(next) if next < end => at = next,
            _ => break,
        }
    }
    found
}
