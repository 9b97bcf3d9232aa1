//! The tenants' terms, and the arbiter's constants. Not here: their text form (the daemon's configuration), and their
//! effects ([`super::order`], [`super::device`]).

use crate::limits::Class;
use crate::time::config::TimeConfig;
use crate::units::share::Share;

/// A tenant, by the number its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A device, by its index in the arbiter from 0 on. A tenant gets leases on several devices in the order of this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A gang: tenants that get their leases together, by the number its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GangId(pub u32);

/// One member on one device, with a gate of its own. Returned by [`super::Arbiter::join`], reused after
/// [`super::Arbiter::leave_device`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub(super) u32);

impl SlotId {
    /// A small number, for the caller's tables.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How the tenants of a device share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSharing {
    /// One tenant at a time has the device, by leases.
    #[default]
    Leases,
    /// All members launch at the same time, and each tenant is held to its ceiling alone. For a device under MPS, where
    /// the work of several processes runs at once: a member that waited for a lease would leave the device idle. Also
    /// for a lost device, whose work never ends: a member that waited would get the driver's error late.
    /// A device of `Leases` is shared like this for a while if gangs wait crosswise on it.
    Budgets,
    /// All members launch without limits, unmeasured: no tenant has terms about time.
    Unlimited,
}

/// The limits that a tenant has on a device: class, floor, ceiling, weight and length of its leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The priority class, which decides who is served first.
    pub class: Class,
    /// The floor (`sm_request`): device time that is guaranteed while the tenant wants it. The caller ensures that
    /// a device's floors sum to at most the whole.
    pub floor: Option<Share>,
    /// The ceiling (`sm_limit`): device time that is never exceeded, even alone on the device.
    pub ceiling: Option<Share>,
    /// The tenant's weight against others of its class in sharing the time that floors leave. 0 counts as 1.
    pub weight: u32,
    /// Length of the tenant's leases, in ns; `None`: as configured for its class.
    pub quantum: Option<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { class: Class::Normal, floor: None, ceiling: None, weight: 1, quantum: None }
    }
}

impl Terms {
    /// The ceiling, if it is below the whole device.
    #[must_use]
    pub fn effective_ceiling(&self) -> Option<Share> {
        self.ceiling.filter(|ceiling| !ceiling.is_all())
    }
}

/// The shortest and longest lease that terms can ask for.
pub const QUANTUM_RANGE_NS: core::ops::RangeInclusive<u64> = 500_000..=50_000_000;

/// Length of a lease for a tenant with these terms. A lease of class latency is a quarter of the others', so that more
/// tenants of that class get one within a request's time.
#[must_use]
pub fn quantum_of(time: &TimeConfig, terms: &Terms) -> u64 {
    let asked = terms.quantum.unwrap_or(match terms.class {
        Class::Latency => time.quantum / 4,
        Class::Normal | Class::Batch => time.quantum,
    });
    asked.clamp(*QUANTUM_RANGE_NS.start(), *QUANTUM_RANGE_NS.end())
}
