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
    /// An administrator paused it.
    Paused,
    /// Alone, with an open gate.
    Open,
    /// It has a lease until then; `u64::MAX` while no other tenant wants the device.
    Holds {
        /// The lease's end.
        until: u64,
    },
    /// Its lease is over, its work is not.
    Drains,
    /// Its work takes longer than its lease allowed and runs next to others; it gets no lease before that is done.
    Overdue,
    /// It wants the device while another tenant has it.
    Waits,
    /// Its ceiling is used up.
    Capped,
    /// It wants nothing.
    Idle,
}

/// A tenant's standing on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its state.
    pub state: State,
    /// The tenant that has the device now.
    pub holder: Option<Tenant>,
    /// Number of its members there.
    pub members: usize,
    /// Number of those that wait at the gate without a lease.
    pub queued: usize,
    /// Device time that it may use at once under its ceiling, in ns; negative is debt. `None`: no ceiling.
    pub balance: Option<i64>,
    /// When it may have a lease again, if its ceiling is used up.
    pub refill: Option<u64>,
    /// All device time charged to it there, in ns.
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
