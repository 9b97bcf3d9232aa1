//! Changes of terms that follow from use: what groups used before, and what a tenant needs or does now.
//!
//! Policies that look at use are functions of their own. Each returns a list of [`UsageChange`], and
//! [`crate::chain::decide`] applies the list like every other change.

use vgpu_config::change::TermsChange;
use vgpu_config::plan::TermsPlan;
use vgpu_core::limits::Class;
use vgpu_core::units::share::Share;

use crate::stage::PolicyStage;

/// One change of one tenant's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageChange {
    /// [`PolicyStage::Group`] or [`PolicyStage::Need`].
    pub stage: PolicyStage,
    /// Name of the group, or the word for the need: `deadline`, `idle`.
    pub name: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the device; `None`: all devices of the tenant.
    pub device: Option<String>,
    /// The change.
    pub effect: UsageEffect,
    /// Time at which it ends if nothing else happens, in seconds since 1970; `None`: use ends it.
    pub until: Option<i64>,
    /// Why, for people. A text that changes each second makes the daemon decide each second.
    pub reason: Option<String>,
}

/// Effect of a [`UsageChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageEffect {
    /// Other values.
    Terms(TermsChange),
    /// At least this floor, up to the ceiling. It yields first if the floors of a device do not fit.
    RaiseFloor(Share),
    /// At most these values. No stage but an override loosens them.
    Restrict(Restriction),
}

/// Upper bounds of terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restriction {
    /// Highest ceiling; a higher floor falls to it too.
    pub ceiling: Option<Share>,
    /// Highest weight.
    pub weight: Option<u32>,
    /// True: the class is batch.
    pub is_batch: bool,
    /// True: the tenant may not launch.
    pub is_paused: bool,
}

impl Restriction {
    /// Lowers the terms to these bounds. A pause is the caller's.
    pub(crate) fn restrict_terms(&self, terms: &mut TermsPlan) {
        if let Some(bound) = self.ceiling {
            terms.ceiling = Some(terms.ceiling.map_or(bound, |ceiling| ceiling.min(bound)));
            terms.floor = terms.floor.map(|floor| floor.min(bound));
        }
        terms.weight = self.weight.map_or(terms.weight, |bound| terms.weight.min(bound));
        if self.is_batch {
            terms.class = Class::Batch;
        }
    }
}
