//! A tenant's standing on a device: for status, and to explain why it does not run. Decides nothing.

use super::device::Phase;
use super::seat::Place;
use super::terms::{DeviceId, Tenant};
use super::{Arbiter, index};

/// A tenant's state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There are no leases on this device.
    Common,
    /// An administrator paused the tenant.
    Paused,
    /// The tenant is alone, with an open gate: it launches without a lease.
    Open,
    /// The tenant has a lease until this time; `u64::MAX` while no other tenant wants the device.
    Holds {
        /// The lease's end.
        until: u64,
    },
    /// The tenant's lease is over, its work in flight is not.
    Drains,
    /// The tenant's work takes longer than its lease allowed and runs next to others; it gets no lease before that
    /// is done.
    Overdue,
    /// The tenant wants the device while another tenant has it.
    Waits,
    /// The tenant's ceiling is used up.
    Capped,
    /// The tenant wants nothing.
    Idle,
}

/// A tenant's position on a device, as status output shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The tenant's state.
    pub state: State,
    /// The tenant that has the device now.
    pub holder: Option<Tenant>,
    /// Number of the tenant's members on the device.
    pub members: usize,
    /// Number of members that wait at the gate without a lease.
    pub queued: usize,
    /// Device time that the tenant may use at once under its ceiling, in ns; negative is debt. `None`: no ceiling.
    pub balance: Option<i64>,
    /// When the tenant may have a lease again, if its ceiling is used up.
    pub refill: Option<u64>,
    /// All device time charged to the tenant there, in ns.
    pub charged: u64,
}

impl Arbiter {
    /// A tenant's standing; `None`: it never was on this device.
    #[must_use]
    pub fn standing(&self, tenant: Tenant, device: DeviceId, now: u64) -> Option<Standing> {
        let seat = self.seat(self.find(tenant, device)?);
        let phase = self.devices[index(device)].phase;
        let state = match (seat.place, phase) {
            _ if seat.paused => State::Paused,
            (_, Phase::Common) => State::Common,
            (Place::Idle, _) => State::Idle,
            (Place::Ready, _) => State::Waits,
            (Place::Capped(_), _) => State::Capped,
            (Place::Overdue, _) => State::Overdue,
            (Place::Current, Phase::Open { .. }) => State::Open,
            (Place::Current, Phase::Held { until, .. }) => State::Holds { until },
            (Place::Current, Phase::Drain { .. } | Phase::Free) => State::Drains,
        };
        let refill = match seat.place {
            Place::Capped(refill) if !seat.paused => Some(refill),
            _ => None,
        };
        Some(Standing {
            state,
            holder: phase.seat().map(|holder| self.seat(holder).tenant),
            members: seat.members.len(),
            queued: seat.queue.len(),
            balance: seat.terms.limit().map(|limit| seat.account.balance(limit, now)),
            refill,
            charged: seat.charged,
        })
    }
}
