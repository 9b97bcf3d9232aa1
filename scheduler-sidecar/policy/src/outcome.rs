//! Outcome of the chain: terms in force for each tenant, the steps that led there, and changes without effect.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use vgpu_config::plan::TenantPlan;

use crate::stage::PolicyStage;

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
    /// Keys whose values may not fit any more because of the change, as a [`vgpu_config::live::Misfit`] names them.
    pub strains: Vec<&'static str>,
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
    /// One outcome for each of [`crate::active::PolicyInputs::tenants`], in that order.
    pub outcomes: Vec<TenantOutcome>,
    /// Changes without effect.
    pub refused: Vec<RefusedPolicy>,
    /// Time at which something begins or ends next, in seconds since 1970; `None`: never.
    pub next: Option<i64>,
}
