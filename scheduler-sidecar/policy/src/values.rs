//! Formats values of terms for people.

use vgpu_config::plan::{TenantPlan, TermsPlan};
use vgpu_config::show::class_word;
use vgpu_config::value::format_span;

/// Returns the value of a key of a tenant's terms, for people.
#[must_use]
pub fn format_value(terms: &TermsPlan, key: &str) -> String {
    match key {
        "memory_limit" => terms.memory.map_or("unlimited".into(), |memory| memory.to_string()),
        "sm_limit" => terms.ceiling.map_or("unlimited".into(), |ceiling| ceiling.to_string()),
        "sm_request" => terms.floor.map_or("none".into(), |floor| floor.to_string()),
        "weight" => terms.weight.to_string(),
        "class" => class_word(terms.class).into(),
        "quantum" => terms.quantum.map_or("default".into(), format_span),
        _ => String::new(),
    }
}

/// Returns the value of a key of the whole tenant, for people.
#[must_use]
pub fn whole_value(tenant: &TenantPlan, key: &str) -> String {
    match key {
        "mode" => tenant.mode.to_string(),
        "strict" => tenant.strict.to_string(),
        _ => "false".into(),
    }
}
