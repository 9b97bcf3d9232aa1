//! Finds the section that sets a key: override, tenant, template or defaults, in this order.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use vgpu_core::limits::Mode;
use vgpu_core::units::share::Share;

use crate::bearer::CostBearer;
use crate::plan::{DevicePlan, TermsPlan};
use crate::problem::{At, TextRange};
use crate::raw::{Amount, OnError, OnLoss, RawFile, RawPolicy, RawTemplate, RawTenant, RawTerms};

/// The sections that apply to a tenant, most specific first.
pub(super) struct TenantLayers<'r> {
    replicas: Option<&'r At<u32>>,
    /// Settings of each section, with the section's name.
    policies: Vec<(&'static str, &'r RawPolicy)>,
}

/// The place that sets a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenPlace {
    /// Place of the value in the file.
    pub place: TextRange,
    /// Name of the key, as `section.key`.
    pub key: String,
}

/// The places that set a tenant's terms on a device; `None`: no section sets the key.
#[derive(Debug, Clone, Default)]
pub(super) struct TermsPlaces {
    pub memory: Option<WrittenPlace>,
    pub floor: Option<WrittenPlace>,
    pub ceiling: Option<WrittenPlace>,
}

/// A floor (guaranteed share of time); `implied`: it follows from `gpu` or `replicas` instead of `sm_request`.
struct ResolvedFloor {
    share: Option<Share>,
    word: WrittenPlace,
    implied: bool,
}

impl<'r> TenantLayers<'r> {
    pub fn new(raw: &'r RawFile, tenant: &'r RawTenant, template: Option<&'r RawTemplate>) -> Self {
        let template = template.map(|template| ("template", &template.policy));
        let policies = std::iter::once(("tenant", &tenant.policy)).chain(template);
        Self { replicas: tenant.replicas.as_ref(), policies: policies.chain([("defaults", &raw.defaults)]).collect() }
    }

    /// Returns the policies of the sections, most specific first, each with the section's name.
    pub fn sections(&self) -> impl Iterator<Item = (&'static str, &RawPolicy)> {
        self.policies.iter().copied()
    }

    pub fn allowed_uids(&self) -> Option<Vec<RangeInclusive<u32>>> {
        self.policies.iter().find_map(|(_, policy)| policy.uids.as_ref()).map(|at| at.value.clone())
    }

    /// Returns the group of the most specific section, and each label's most specific value.
    pub fn resolve_bearer(&self) -> CostBearer {
        let mut labels = BTreeMap::new();
        for (_, policy) in self.policies.iter().rev() {
            labels.extend(policy.labels.clone().into_iter().flatten());
        }
        let group = self.policies.iter().find_map(|(_, policy)| policy.group.as_ref()).map(|at| at.value.clone());
        CostBearer { group, labels }
    }

    pub fn resolve_mode(&self) -> Mode {
        self.policies.iter().find_map(|(_, policy)| policy.mode.as_ref()).map_or_else(Mode::default, |at| at.value)
    }

    pub fn resolve_strict(&self) -> bool {
        self.policies.iter().find_map(|(_, policy)| policy.strict.as_ref()).is_some_and(|at| at.value)
    }

    pub fn on_error(&self) -> OnError {
        self.policies
            .iter()
            .find_map(|(_, policy)| policy.on_error.as_ref())
            .map_or_else(OnError::default, |at| at.value)
    }

    pub fn on_loss(&self) -> OnLoss {
        self.policies.iter().find_map(|(_, policy)| policy.on_loss.as_ref()).map_or_else(OnLoss::default, |at| at.value)
    }

    /// Resolves the terms on a device.
    ///
    /// # Errors
    /// The place of an amount that is a part of the device, if the device's size is unknown.
    pub fn resolve_terms(
        &self,
        over: Option<&RawTerms>,
        device: &DevicePlan,
    ) -> Result<(TermsPlan, TermsPlaces), WrittenPlace> {
        let (bytes, memory_word) = match self.resolve_memory(over) {
            None => (None, None),
            Some((amount, word)) => match amount.bytes_on(device.memory) {
                Some(bytes) => (bytes, Some(word)),
                None => return Err(word),
            },
        };
        let ceiling_word = self.resolve_ceiling(over);
        let ceiling = ceiling_word.as_ref().and_then(|(ceiling, _)| *ceiling);
        let floor = self.resolve_floor(over);
        let share = floor.as_ref().and_then(|floor| match (floor.share, ceiling) {
            // A floor that only follows from the part of the device is lowered to the ceiling instead of refused.
            (Some(share), Some(ceiling)) if floor.implied => Some(share.min(ceiling)),
            (share, _) => share,
        });
        let weight = self.nearest_word(over, |terms| terms.weight.as_ref());
        let class = self.nearest_word(over, |terms| terms.class.as_ref());
        let plan = TermsPlan {
            device: device.name(),
            uuid: device.uuid.clone(),
            memory: bytes,
            ceiling: ceiling.filter(|ceiling| !ceiling.is_all()),
            floor: share,
            weight: weight.map_or(1, |at| at.value),
            class: class.map_or_else(Default::default, |at| at.value),
            quantum: self.nearest_word(over, |terms| terms.quantum.as_ref()).map(|at| at.value),
        };
        let (floor, ceiling) = (floor.map(|floor| floor.word), ceiling_word.map(|(_, word)| word));
        Ok((plan, TermsPlaces { memory: memory_word, floor, ceiling }))
    }

    /// Returns the most specific value of a key that `gpu` and `replicas` do not imply.
    fn nearest_word<'a, T>(
        &'a self,
        over: Option<&'a RawTerms>,
        get: impl Fn(&'a RawTerms) -> Option<&'a At<T>>,
    ) -> Option<&'a At<T>> {
        over.into_iter().chain(self.policies.iter().map(|(_, policy)| &policy.terms)).find_map(get)
    }

    fn resolve_memory(&self, over: Option<&RawTerms>) -> Option<(Amount, WrittenPlace)> {
        let written = |section, at: &At<Amount>| (at.value, written_place(section, "memory_limit", at));
        if let Some(at) = over.and_then(|over| over.memory_limit.as_ref()) {
            return Some(written(OVERRIDE_SECTION, at));
        }
        self.policies.iter().find_map(|&(section, policy)| {
            let own = policy.terms.memory_limit.as_ref().map(|at| written(section, at));
            let gpu =
                || policy.gpu.as_ref().map(|at| (Amount::of_thousandths(at.value), written_place(section, "gpu", at)));
            let slot =
                || self.slots_of(section).map(|at| (Amount::Slot(at.value), written_place(section, "replicas", at)));
            own.or_else(gpu).or_else(slot)
        })
    }

    fn resolve_ceiling(&self, over: Option<&RawTerms>) -> Option<(Option<Share>, WrittenPlace)> {
        let own = over.map(|over| (OVERRIDE_SECTION, over));
        let sections = self.policies.iter().map(|(section, policy)| (*section, &policy.terms));
        let written = |(section, terms): (&str, &RawTerms)| {
            terms.sm_limit.as_ref().map(|at| (at.value, written_place(section, "sm_limit", at)))
        };
        own.into_iter().chain(sections).find_map(written)
    }

    fn resolve_floor(&self, over: Option<&RawTerms>) -> Option<ResolvedFloor> {
        let written = |section, at: &At<Option<Share>>| ResolvedFloor {
            share: at.value,
            word: written_place(section, "sm_request", at),
            implied: false,
        };
        if let Some(at) = over.and_then(|over| over.sm_request.as_ref()) {
            return Some(written(OVERRIDE_SECTION, at));
        }
        let implied =
            |thousandths, word| ResolvedFloor { share: Share::from_permille(thousandths), word, implied: true };
        self.policies.iter().find_map(|&(section, policy)| {
            let own = policy.terms.sm_request.as_ref().map(|at| written(section, at));
            let gpu = || policy.gpu.as_ref().map(|at| implied(at.value, written_place(section, "gpu", at)));
            let slot = || {
                self.slots_of(section).map(|at| implied(1000 / at.value.max(1), written_place(section, "replicas", at)))
            };
            own.or_else(gpu).or_else(slot)
        })
    }

    /// Returns the number of the tenant's slots; `None`: it is no slot.
    pub fn slot_count(&self) -> Option<u32> {
        self.replicas.map(|at| at.value)
    }

    /// Returns the number of slots, which only the tenant's own section gives.
    fn slots_of(&self, section: &str) -> Option<&'r At<u32>> {
        self.replicas.filter(|_| section == "tenant")
    }
}

const OVERRIDE_SECTION: &str = "tenant.device";

fn written_place<T>(section: &str, key: &str, at: &At<T>) -> WrittenPlace {
    WrittenPlace { place: at.place, key: format!("{section}.{key}") }
}
