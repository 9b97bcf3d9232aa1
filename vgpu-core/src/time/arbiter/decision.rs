//! The arbiter's inputs and outputs. Not here: the layout of the pages that carry them.

use super::terms::{DeviceId, SlotId, TenantId};
use crate::time::account::Account;
use crate::units::share::Share;

/// A member's permission on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Launch without asking: alone and without a ceiling, or no tenant of the device has a time setting.
    Open,
    /// Launch until this time.
    Run {
        /// Number of this lease on the device.
        lease: u64,
        /// End of the lease; `u64::MAX` while no other tenant wants the device.
        until: u64,
        /// True if no other work is on the device: events measure this member's own time.
        exclusive: bool,
        /// The ceiling and the tenant's account at the grant; the member charges it from then on.
        ceiling: Option<(Share, Account)>,
        /// True if no other tenant was here for long: more may be in flight
        /// ([`crate::time::config::ALONE_IN_FLIGHT_NS`]), until this changes.
        wide: bool,
    },
    /// Launch nothing; the work in flight drains.
    Wait,
    /// The ceiling is used up; no new lease before `until`.
    Cap {
        /// When the balance will be sufficient for a lease again.
        until: u64,
    },
}

/// A gate that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The member on its device.
    pub slot: SlotId,
    /// The member's tenant.
    pub tenant: TenantId,
    /// The device.
    pub device: DeviceId,
    /// The member's new gate.
    pub gate: Gate,
}

/// A member's report about itself on one device. Never trusted: sums that shrink or outrun time are clamped to the
/// possible, and the audit compares them with NVML's samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberUsage {
    /// Device time measured by events since it joined: the union over its streams.
    pub busy: u64,
    /// Estimates of the launches that were seen complete since it joined.
    pub finished: u64,
    /// As `finished`, at the cost that those launches have when nothing else slows them.
    pub known: u64,
    /// Estimated work in flight now: 0 only if all was seen complete, `u64::MAX` if it takes longer than expected;
    /// `None`: unknown, as after an open gate.
    pub in_flight: Option<u64>,
    /// True if a thread waits at the gate.
    pub wants: bool,
    /// Since when the member has wanted the device or had work in flight without a pause; now, if it has neither.
    pub since: u64,
}

impl MemberUsage {
    /// How long the work in flight is expected to take.
    #[must_use]
    pub fn expected_ns(&self) -> u64 {
        self.in_flight.filter(|&ns| ns != u64::MAX).unwrap_or(0)
    }
}

/// The members' pages, read while a decision is made.
pub trait MemberPages {
    /// Announces changed gates: each once, in order, and before a page is read again. A caller that only uses the
    /// decisions returned by [`super::Arbiter::tick`] could miss launches that members make between the two. It must
    /// write the gates here.
    fn tell_decisions(&mut self, _decisions: &[Decision]) {}

    /// The member's current report.
    fn read_usage(&mut self, slot: SlotId) -> MemberUsage;
}
