//! Tells in words which policies a value in force comes from.

use jiff::tz::TimeZone;
use vgpu_config::plan::TenantPlan;

use crate::outcome::{Cause, PolicyStep, SkippedKey, TenantOutcome};
use crate::schedule::format_moment;
use crate::stage::PolicyStage;
use crate::values::{format_value, whole_value};

impl Cause {
    /// Returns the cause for people: `window "night" until 06:00`.
    #[must_use]
    pub fn to_words(&self, now: i64) -> String {
        let Self { stage, name, until, zone, reason } = self;
        let what = match (stage, name.as_str()) {
            (PolicyStage::Window, name) => format!("window {name:?}"),
            (PolicyStage::Booking, name) => format!("booking {name:?}"),
            (PolicyStage::Group, "") => "shares of groups".to_owned(),
            (PolicyStage::Group, name) => format!("group {name:?}"),
            (PolicyStage::Need, name) => name.to_owned(),
            (PolicyStage::Override, "") => "override".to_owned(),
            (PolicyStage::Override, tenant) => format!("override that makes tenant {tenant} exclusive"),
        };
        let until = until.map_or(String::new(), |until| format!(" until {}", format_moment(zone, until, now)));
        let reason = reason.as_ref().map_or(String::new(), |reason| format!(": {reason:?}"));
        format!("{what}{until}{reason}")
    }
}

impl SkippedKey {
    /// Tells that the value has no effect, and why.
    #[must_use]
    pub fn to_words(&self, now: i64) -> String {
        let (key, device, cause) = (self.key, &self.device, self.cause.to_words(now));
        format!("{key} ({cause}) has no effect on device {device}: it is a part of the device, whose size is not known")
    }
}

/// Returns one sentence for each key on which a policy has an effect: the value of the file, and each change of it.
/// `device` is the name of the device in the tenant's terms; keys of the whole tenant are told at every device.
/// `source` is where `base` comes from, for people.
#[must_use]
pub fn chain_sentences(
    base: &TenantPlan,
    outcome: &TenantOutcome,
    device: &str,
    source: &str,
    now: i64,
) -> Vec<String> {
    let here = |step: &&PolicyStep| step.device.as_deref().is_none_or(|of| of == device);
    let mut keys: Vec<&'static str> = Vec::new();
    for step in outcome.steps.iter().filter(here) {
        if !keys.contains(&step.key) {
            keys.push(step.key);
        }
    }
    let terms = base.terms.iter().find(|terms| terms.device == device);
    let sentence = |key: &'static str| {
        let mut words = match (["mode", "strict", "paused"].contains(&key), terms) {
            (false, Some(terms)) => format!("{key} {} ({source})", format_value(terms, key)),
            _ => format!("{key} {} ({source})", whole_value(base, key)),
        };
        for step in outcome.steps.iter().filter(here).filter(|step| step.key == key) {
            words.push_str(&format!(" -> {} ({})", step.value, step.cause.to_words(now)));
        }
        words
    };
    let skipped = outcome.skipped.iter().filter(|skipped| skipped.device == device);
    let skipped = skipped.map(|skipped| skipped.to_words(now));
    keys.into_iter().map(sentence).chain(skipped).collect()
}

/// Formats when something happens, for a table of coming changes.
#[must_use]
pub fn format_time(zone: &TimeZone, at: i64) -> String {
    format_moment(zone, at, i64::MIN / 2)
}
