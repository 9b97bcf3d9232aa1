//! Whose word counts: override, tenant, template, defaults, in this order.

use std::ops::RangeInclusive;

use vgpu_core::share::Share;

use crate::config::plan::{DevicePlan, TermsPlan};
use crate::config::problem::Place;
use crate::config::raw::{Amount, At, OnError, OnLoss, RawFile, RawPolicy, RawTenant, RawTerms};

/// What is said about a tenant, nearest first.
pub(super) struct Layers<'r> {
    replicas: Option<&'r At<u32>>,
    policies: Vec<&'r RawPolicy>,
}

/// A floor: whether it was written or follows from a part.
#[derive(Clone, Copy)]
struct Floor {
    share: Option<Share>,
    place: Place,
    implied: bool,
}

impl<'r> Layers<'r> {
    pub fn new(raw: &'r RawFile, tenant: &'r RawTenant, template: Option<&str>) -> Self {
        let template = raw.templates.iter().find(|known| Some(known.name.as_str()) == template);
        let policies = std::iter::once(&tenant.policy).chain(template.map(|template| &template.policy));
        Self { replicas: tenant.replicas.as_ref(), policies: policies.chain([&raw.defaults]).collect() }
    }

    pub fn uids(&self) -> Option<Vec<RangeInclusive<u32>>> {
        self.policies.iter().find_map(|policy| policy.uids.as_ref()).map(|at| at.value.clone())
    }

    pub fn on_error(&self) -> OnError {
        self.policies.iter().find_map(|policy| policy.on_error.as_ref()).map_or_else(OnError::default, |at| at.value)
    }

    pub fn on_loss(&self) -> OnLoss {
        self.policies.iter().find_map(|policy| policy.on_loss.as_ref()).map_or_else(OnLoss::default, |at| at.value)
    }

    /// The terms on a device, and where memory limit and floor are written.
    ///
    /// # Errors
    /// Where a part of a device stands whose size is not known.
    pub fn terms(
        &self,
        over: Option<&RawTerms>,
        device: &DevicePlan,
    ) -> Result<(TermsPlan, Option<Place>, Option<Place>), Place> {
        let memory = self.memory(over);
        let bytes = match &memory {
            None => None,
            Some(at) => at.value.on(device.memory).ok_or(at.place)?,
        };
        let ceiling = self.first(over, |terms| terms.sm_limit.as_ref()).and_then(|at| at.value);
        let floor = self.floor(over);
        let share = floor.and_then(|floor| match (floor.share, ceiling) {
            // A part of the device is a floor as far as the ceiling allows it.
            (Some(share), Some(ceiling)) if floor.implied => Some(share.min(ceiling)),
            (share, _) => share,
        });
        let plan = TermsPlan {
            device: device.name(),
            memory: bytes,
            ceiling: ceiling.filter(|ceiling| !ceiling.is_all()),
            floor: share,
            weight: self.first(over, |terms| terms.weight.as_ref()).map_or(1, |at| at.value),
            class: self.first(over, |terms| terms.class.as_ref()).map_or_else(Default::default, |at| at.value),
            quantum: self.first(over, |terms| terms.quantum.as_ref()).map(|at| at.value),
        };
        Ok((plan, memory.map(|at| at.place), floor.map(|floor| floor.place)))
    }

    /// The nearest word about a key that no part of a device stands for.
    fn first<'a, T>(
        &'a self,
        over: Option<&'a RawTerms>,
        get: impl Fn(&'a RawTerms) -> Option<&'a At<T>>,
    ) -> Option<&'a At<T>> {
        over.into_iter().chain(self.policies.iter().map(|policy| &policy.terms)).find_map(get)
    }

    fn memory(&self, over: Option<&RawTerms>) -> Option<At<Amount>> {
        if let Some(at) = over.and_then(|over| over.memory_limit.as_ref()) {
            return Some(at.clone());
        }
        self.policies.iter().enumerate().find_map(|(layer, policy)| {
            let own = policy.terms.memory_limit.clone();
            let gpu = || policy.gpu.as_ref().map(|at| At { value: Amount::thousandths(at.value), place: at.place });
            let slot = || self.slots_of(layer).map(|at| At { value: Amount::Slot(at.value), place: at.place });
            own.or_else(gpu).or_else(slot)
        })
    }

    fn floor(&self, over: Option<&RawTerms>) -> Option<Floor> {
        let written = |at: &At<Option<Share>>| Floor { share: at.value, place: at.place, implied: false };
        if let Some(at) = over.and_then(|over| over.sm_request.as_ref()) {
            return Some(written(at));
        }
        let implied = |thousandths, place| Floor { share: Share::from_permille(thousandths), place, implied: true };
        self.policies.iter().enumerate().find_map(|(layer, policy)| {
            let own = policy.terms.sm_request.as_ref().map(written);
            let gpu = || policy.gpu.as_ref().map(|at| implied(at.value, at.place));
            let slot = || self.slots_of(layer).map(|at| implied(1000 / at.value.max(1), at.place));
            own.or_else(gpu).or_else(slot)
        })
    }

    /// The number of slots, which the tenant itself says.
    fn slots_of(&self, layer: usize) -> Option<&'r At<u32>> {
        self.replicas.filter(|_| layer == 0)
    }
}
