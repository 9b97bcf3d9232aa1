//! The tenants' terms, and the arbiter's constants. Not here: their text form (the daemon's configuration), and their
//! effects ([`super::order`], [`super::device`]).

use crate::limits::Class;
use crate::time::account::BURST_NS;
use crate::units::share::Share;

/// A tenant, by the number its owner gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A device, by its index in the arbiter from 0 on. A tenant gets leases on several devices in the order of this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

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
    /// the work of several processes runs at once: a member that waited for a lease would leave the device idle.
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

/// Durations that the arbiter works with, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArbiterConfig {
    /// Length of a lease, unless the tenant's terms or its class say otherwise.
    pub quantum: u64,
    /// Length of a lease of class latency.
    pub latency_quantum: u64,
    /// Work in flight below this does not delay the next member: about the time until that one launches. A larger
    /// value costs accuracy: the device may switch to the next member first, and return a slice later.
    pub overlap: u64,
    /// How long a drain may take before the next member is admitted at the same time; at least two quanta.
    pub drain: u64,
    /// A launch in flight is trusted to take at most this long; then the drain's allowance begins.
    pub longest: u64,
    /// A member no longer holds up its own tenant this long after its allowance ended: it was stopped, waits for that
    /// tenant, or reports falsely.
    pub stuck: u64,
    /// A tenant this far behind its floor goes before every class.
    pub patience: u64,
    /// A class that is passed over for this long gets a lease.
    pub ageing: u64,
    /// A tenant that was alone for this long needs no lease: its gate opens.
    pub alone: u64,
    /// True: a tenant that was alone for `alone` still gets a lease, a wide one (more may be in flight), because
    /// its device time is measured only under a lease.
    pub measures_all: bool,
}

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            quantum: 4_000_000,
            latency_quantum: 1_000_000,
            overlap: 40_000,
            drain: 10_000_000,
            longest: 2_000_000_000,
            stuck: 2_000_000_000,
            patience: BURST_NS,
            ageing: 1_000_000_000,
            alone: 1_000_000_000,
            measures_all: false,
        }
    }
}

/// The shortest and longest lease that terms can ask for.
pub const QUANTUM_RANGE_NS: core::ops::RangeInclusive<u64> = 500_000..=50_000_000;

impl ArbiterConfig {
    /// Length of a lease for a tenant with these terms.
    #[must_use]
    pub fn quantum_of(&self, terms: &Terms) -> u64 {
        let asked = terms.quantum.unwrap_or(match terms.class {
            Class::Latency => self.latency_quantum,
            Class::Normal | Class::Batch => self.quantum,
        });
        asked.clamp(*QUANTUM_RANGE_NS.start(), *QUANTUM_RANGE_NS.end())
    }

    /// How long the drain after such a lease may take.
    #[must_use]
    pub fn drain_of(&self, terms: &Terms) -> u64 {
        self.drain.max(2 * self.quantum_of(terms))
    }
}
