//! Changes that are in force at a moment: of windows, bookings, groups, needs and overrides, in this order. Exclusive
//! use comes last, so that no other override lets a tenant launch while another tenant is exclusive.
//!
//! [`crate::chain`] applies them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use jiff::tz::TimeZone;
use vgpu_config::change::TermsChange;
use vgpu_config::plan::{DevicePlan, TenantPlan, TermsPlan};
use vgpu_config::raw::Amount;
use vgpu_config::schedule::{BookingPlan, WindowPlan};
use vgpu_core::units::share::Share;

use crate::outcome::Cause;
use crate::overrides::{OverrideAction, TermsOverride};
use crate::schedule::{next_boundary, window_end};
use crate::stage::PolicyStage;
use crate::usage::{Restriction, UsageChange, UsageEffect};

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

/// Effect of a change on a tenant.
pub(crate) enum Effect<'a> {
    Set(Cow<'a, TermsChange>),
    Raise { floor: Option<Share>, memory: Option<Amount> },
    RaiseFloor(Share),
    Restrict(&'a Restriction),
    Nothing,
}

/// A change that is in force now.
pub(crate) struct ActivePolicy<'a> {
    pub cause: Cause,
    pub subject: PolicySubject<'a>,
    pub effect: Effect<'a>,
    pub paused: Option<bool>,
}

/// The tenants and devices that a change is about.
pub(crate) enum PolicySubject<'a> {
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
    pub(crate) fn is_about(&self, tenant: &TenantPlan) -> bool {
        match &self.subject {
            PolicySubject::Window(window) => window.subjects.has_tenant(&tenant.name, tenant.bearer.group.as_deref()),
            PolicySubject::Booking(booking) => booking.tenant == tenant.name,
            PolicySubject::Tenant { tenant: name, .. } => *name == tenant.name,
            PolicySubject::Others { only, .. } => only.name != tenant.name,
        }
    }

    pub(crate) fn is_about_device(&self, terms: &TermsPlan) -> bool {
        match &self.subject {
            PolicySubject::Window(window) => window.subjects.has_device(&terms.device),
            PolicySubject::Booking(booking) => is_booked_device(booking, terms),
            PolicySubject::Tenant { device, .. } => device.is_none_or(|device| is_named(terms, device)),
            PolicySubject::Others { devices, .. } => devices.contains(&terms.device),
        }
    }

    pub(crate) fn can_raise_promises(&self) -> bool {
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

/// True if the terms are those of the device with this number or UUID.
fn is_named(terms: &TermsPlan, device: &str) -> bool {
    let is_uuid = |uuid: &String| vgpu_core::units::uuid::is_same_device(uuid, device);
    terms.device == device || terms.uuid.as_ref().is_some_and(is_uuid)
}

/// Returns everything in force at `now`, in the order of the stages.
pub(crate) fn active_policies<'a>(inputs: &PolicyInputs<'a>, now: i64) -> Vec<ActivePolicy<'a>> {
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
    let is_exclusive = |policy: &ActivePolicy<'_>| matches!(policy.subject, PolicySubject::Others { .. });
    let (exclusive, overrides): (Vec<_>, Vec<_>) = overrides.partition(is_exclusive);
    windows.chain(bookings).chain(usage).chain(overrides).chain(exclusive).collect()
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
pub(crate) struct PoliciesByTenant {
    /// Policies that name one tenant, by that tenant's name.
    named: HashMap<String, Vec<usize>>,
    /// Policies that may select several tenants.
    others: Vec<usize>,
}

impl PoliciesByTenant {
    pub(crate) fn new(active: &[ActivePolicy<'_>]) -> Self {
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
    pub(crate) fn policies_of<'p, 'a>(
        &self,
        active: &'p [ActivePolicy<'a>],
        tenant: &TenantPlan,
    ) -> Vec<&'p ActivePolicy<'a>> {
        let named = self.named.get(&tenant.name).into_iter().flatten();
        let mut numbers: Vec<usize> = named.chain(&self.others).copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|at| &active[at]).collect()
    }
}
