//! A tenant's standing on a device: for status, and to explain why it does not run. Decides nothing.

use super::decision::Gate;
use super::device::DevicePhase;
use super::seat::SeatPlace;
use super::terms::{DeviceId, DeviceSharing, TenantId};
use super::{Arbiter, index};

/// A tenant's state on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandingState {
    /// There are no leases and no limits on this device.
    Unlimited,
    /// There are no leases on this device, and the tenant launches up to its ceiling.
    Budget,
    /// As `Budget`, for a while, because kernels of tenants on this device wait for each other across devices.
    Crosswise,
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
    pub state: StandingState,
    /// The tenant that has the device now.
    pub holder: Option<TenantId>,
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
    pub fn tenant_standing(&self, tenant: TenantId, device: DeviceId, now: u64) -> Option<Standing> {
        let seat = self.seat_at(self.find(tenant, device)?);
        let phase = self.devices[index(device)].phase;
        let is_mps = self.devices[index(device)].sharing == DeviceSharing::Budgets;
        let is_capped = seat.members.iter().any(|&slot| matches!(self.slot_at(slot).gate, Gate::Cap { .. }));
        let state = match (seat.place, phase) {
            _ if seat.paused => StandingState::Paused,
            (_, DevicePhase::Common) if !self.has_budgets(device) => StandingState::Unlimited,
            (_, DevicePhase::Common) if is_capped => StandingState::Capped,
            (_, DevicePhase::Common) if is_mps => StandingState::Budget,
            (_, DevicePhase::Common) => StandingState::Crosswise,
            (SeatPlace::Idle, _) => StandingState::Idle,
            (SeatPlace::Ready, _) => StandingState::Waits,
            (SeatPlace::Capped(_), _) => StandingState::Capped,
            (SeatPlace::Overdue, _) => StandingState::Overdue,
            (SeatPlace::Current, DevicePhase::Open { .. }) => StandingState::Open,
            (SeatPlace::Current, DevicePhase::Held { until, .. }) => StandingState::Holds { until },
            (SeatPlace::Current, DevicePhase::Drain { .. } | DevicePhase::Free) => StandingState::Drains,
        };
        let refill = match seat.place {
            SeatPlace::Capped(refill) if !seat.paused => Some(refill),
            _ => (state == StandingState::Capped).then(|| seat.refill_time(&self.config)),
        };
        Some(Standing {
            state,
            holder: phase.holding_seat().map(|holder| self.seat_at(holder).tenant),
            members: seat.members.len(),
            queued: seat.queue.len(),
            balance: seat.terms.effective_ceiling().map(|limit| seat.account.balance_at(limit, now)),
            refill,
            charged: seat.charged,
        })
    }
}
