//! What goes in and what comes out of the arbiter. Not here: the pages in which these words stand.

use super::terms::{DeviceId, SlotId, Tenant};
use crate::account::Account;
use crate::share::Share;

/// What a member may do on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Alone and without a ceiling: launch, ask nobody.
    Open,
    /// Launch until `until`.
    Run {
        /// Counts the leases of the device; the word that members wait for.
        lease: u64,
        /// End of the lease; `u64::MAX` while nobody else wants the device.
        until: u64,
        /// Nobody else is before the device: what events measure is this member's own time.
        exclusive: bool,
        /// The ceiling and the tenant's account at the grant, to be charged on by the member itself.
        ceiling: Option<(Share, Account)>,
        /// Nobody else was here for long: more may be in flight ([`crate::gate::ALONE_NS`]), until this changes.
        wide: bool,
    },
    /// Launch nothing; what is in flight drains.
    Wait,
    /// Used up; a new lease will not come before `until`.
    Cap {
        /// When there will be enough of a balance again.
        until: u64,
    },
}

/// A gate that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whose.
    pub slot: SlotId,
    /// Its tenant.
    pub tenant: Tenant,
    /// The device.
    pub device: DeviceId,
    /// What holds from now on.
    pub gate: Gate,
}

/// What a member says of itself on one device. Never trusted: sums that shrink or outrun time count as what is
/// possible, and the audit compares with what NVML saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Device time measured by events, since it joined: the union over its streams.
    pub busy: u64,
    /// Estimates of the launches that were seen complete, since it joined.
    pub finished: u64,
    /// As `finished`, at what those launches take when nobody slows them.
    pub known: u64,
    /// Estimated work before the device now: 0 only if all was seen complete, `u64::MAX` if it takes longer than was
    /// expected; `None`: not known at all, as after a gate that was open.
    pub in_flight: Option<u64>,
    /// A thread stands at the gate.
    pub wants: bool,
    /// Since when it has had something wanted or in flight without a pause; now, if it has nothing.
    pub since: u64,
}

impl Usage {
    /// How long what is in flight is expected to take.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.in_flight.filter(|&ns| ns != u64::MAX).unwrap_or(0)
    }
}

/// The members' pages, read at the moment of a decision.
pub trait Pages {
    /// These gates changed; each is said once, in order, and before a page is read again. Whoever takes the decisions
    /// from [`super::Arbiter::tick`] must not lose what a member launches between the two: then it writes them here.
    fn tell(&mut self, _decisions: &[Decision]) {}

    /// What the member says now.
    fn usage(&mut self, slot: SlotId) -> Usage;
}
