//! Checks whether tenants fit on a device: their memory limits against its memory, their floors against its time, and
//! those of a group against the group's limits.
//!
//! Integer arithmetic only. [`super::resolve`] words a refusal and finds its place in the file.

use serde::{Deserialize, Serialize};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

use super::plan::{DevicePlan, GroupLimit, TenantPlan, TermsPlan};

/// The memory of a device, and how much of it may be promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCapacity {
    /// Device memory; `None` if unknown, and then no memory limit is refused.
    pub memory: Option<Bytes>,
    /// Part of the memory that limits may add up to, in thousandths.
    pub overcommit: u32,
}

/// The limits that one tenant asks for on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantAsk {
    /// Memory limit; `None` is unlimited and counts as the whole device.
    pub memory: Option<Bytes>,
    /// Guaranteed part of the device time.
    pub floor: Option<Share>,
    /// Upper bound of the device time.
    pub ceiling: Option<Share>,
}

impl From<&TermsPlan> for TenantAsk {
    fn from(terms: &TermsPlan) -> Self {
        Self { memory: terms.memory, floor: terms.floor, ceiling: terms.ceiling }
    }
}

impl TenantAsk {
    /// Returns the share that counts against a group's limit: the ceiling, or the floor if that is larger. A tenant
    /// without a ceiling counts as the whole device.
    #[must_use]
    pub fn counted_ceiling(&self) -> Share {
        let ceiling = self.ceiling.unwrap_or(Share::WHOLE_DEVICE);
        self.floor.map_or(ceiling, |floor| floor.max(ceiling))
    }
}

/// A reason why the asks do not fit. `at` is the index of the first ask that no longer fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// One memory limit is greater than the device's memory.
    Alone {
        /// Index of the tenant's ask that cannot be granted.
        at: usize,
    },
    /// The memory limits add up to more than may be promised.
    Memory {
        /// Index of the ask with which the running sum first exceeds the promise.
        at: usize,
        /// Sum of all limits, in bytes.
        asked: u128,
        /// Bytes that memory limits may add up to on the device.
        promised: u128,
    },
    /// A tenant's floor (guaranteed share of time) is above its ceiling (most time).
    FloorAboveCeiling {
        /// Index of the tenant's ask that cannot be granted.
        at: usize,
    },
    /// The floors (guaranteed shares of time) add up to more than the device's time.
    Floors {
        /// Index of the ask with which the running sum first exceeds 100 %.
        at: usize,
        /// Sum of all floors, in thousandths of the device's time.
        asked: u64,
    },
}

impl DeviceCapacity {
    /// Returns the bytes that may be promised, rounded down; `None` if the memory size is unknown.
    #[must_use]
    pub fn promisable_bytes(&self) -> Option<u128> {
        self.memory.map(|memory| u128::from(memory.get()) * u128::from(self.overcommit) / 1000)
    }

    /// Returns the least overcommit ratio, in thousandths, that would allow `asked` bytes; `None` if the size is
    /// unknown.
    #[must_use]
    pub fn ratio_for(&self, asked: u128) -> Option<u128> {
        self.memory.filter(|memory| memory.get() > 0).map(|memory| (asked * 1000).div_ceil(u128::from(memory.get())))
    }
}

/// Returns every reason why the asks do not fit; empty if all of them can be kept at the same time.
///
/// The order of the asks changes which index a refusal names, never whether there is one.
#[must_use]
pub fn find_refusals(capacity: &DeviceCapacity, asks: &[TenantAsk]) -> Vec<AdmissionRefusal> {
    let mut refusals = Vec::new();
    for (at, ask) in asks.iter().enumerate() {
        if let (Some(limit), Some(total)) = (ask.memory, capacity.memory)
            && limit > total
        {
            refusals.push(AdmissionRefusal::Alone { at });
        }
        if let (Some(floor), Some(ceiling)) = (ask.floor, ask.ceiling)
            && floor > ceiling
        {
            refusals.push(AdmissionRefusal::FloorAboveCeiling { at });
        }
    }
    if let (Some(total), Some(promised)) = (capacity.memory, capacity.promisable_bytes()) {
        let limits = asks.iter().map(|ask| u128::from(ask.memory.unwrap_or(total).get()));
        let (asked, at) = sum(limits, promised);
        refusals.extend(at.map(|at| AdmissionRefusal::Memory { at, asked, promised }));
    }
    let floors = asks.iter().map(|ask| u128::from(ask.floor.map_or(0, Share::as_permille)));
    let (asked, at) = sum(floors, u128::from(Share::WHOLE_DEVICE.as_permille()));
    refusals.extend(at.map(|at| AdmissionRefusal::Floors { at, asked: u64::try_from(asked).unwrap_or(u64::MAX) }));
    refusals
}

/// A reason why the tenants of a group do not fit its limits on a device. `at` is an index of the group's asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRefusal {
    /// The memory limit is a part of a device whose size is not known.
    UnknownSize,
    /// A tenant has no memory limit, so it could use more than the group may.
    Unlimited {
        /// Index of the tenant's ask.
        at: usize,
        /// Bytes that the memory limits of the group may add up to.
        most: Bytes,
    },
    /// The memory limits add up to more than the group's.
    Memory {
        /// Index of the ask with which the running sum first exceeds the limit.
        at: usize,
        /// Sum of all limits, in bytes.
        asked: u128,
        /// Bytes that the memory limits of the group may add up to.
        most: Bytes,
    },
    /// The ceilings add up to more than the group's.
    Ceilings {
        /// Index of the ask with which the running sum first exceeds the limit.
        at: usize,
        /// Sum of all ceilings, in thousandths of the device's time.
        asked: u64,
        /// Share that the ceilings of the group may add up to.
        most: Share,
    },
}

/// Returns every reason why the asks of a group's tenants do not fit the group's limits on a device of this size.
#[must_use]
pub fn find_group_refusals(limit: &GroupLimit, device_memory: Option<Bytes>, asks: &[TenantAsk]) -> Vec<GroupRefusal> {
    let mut refusals = Vec::new();
    match limit.memory.map(|amount| amount.bytes_on(device_memory)) {
        Some(None) if !asks.is_empty() => refusals.push(GroupRefusal::UnknownSize),
        Some(Some(Some(most))) => {
            let unlimited = (0..).zip(asks).filter(|(_, ask)| ask.memory.is_none());
            refusals.extend(unlimited.map(|(at, _)| GroupRefusal::Unlimited { at, most }));
            let limits = asks.iter().map(|ask| ask.memory.map_or(0, |limit| u128::from(limit.get())));
            let (asked, at) = sum(limits, most.get().into());
            refusals.extend(at.map(|at| GroupRefusal::Memory { at, asked, most }));
        }
        _ => {}
    }
    if let Some(most) = limit.ceilings {
        let ceilings = asks.iter().map(|ask| u128::from(ask.counted_ceiling().as_permille()));
        let (asked, at) = sum(ceilings, most.as_permille().into());
        let asked = u64::try_from(asked).unwrap_or(u64::MAX);
        refusals.extend(at.map(|at| GroupRefusal::Ceilings { at, asked, most }));
    }
    refusals
}

/// Sums over the tenants of a group, with its subgroups, on a device, next to the group's limits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupLimitSums {
    /// Name of the device.
    pub device: String,
    /// Sum of the tenants' memory limits, in bytes.
    pub memory: u64,
    /// Most bytes that this sum may have; null: no limit.
    pub memory_limit: Option<u64>,
    /// Sum of the tenants' ceilings, in percent; a tenant without one counts as 100.
    pub ceilings: f64,
    /// Largest sum of ceilings, in percent; null: no limit.
    pub sm_limit: Option<f64>,
}

/// Returns the sums that count against a group's limits on each device; empty if the group has no limit.
#[must_use]
pub fn sum_group_limits(devices: &[DevicePlan], tenants: &[TenantPlan], group: &str) -> Vec<GroupLimitSums> {
    let sums = |device: &DevicePlan| {
        let limit = device.group_limits.iter().find(|limit| limit.group == group)?;
        let name = device.name();
        let own = tenants.iter().filter(|tenant| limit.has_tenant(tenant)).flat_map(|tenant| &tenant.terms);
        let asks: Vec<TenantAsk> = own.filter(|terms| terms.device == name).map(TenantAsk::from).collect();
        let percent = |permille: u64| permille as f64 / 10.0;
        Some(GroupLimitSums {
            device: name,
            memory: asks.iter().filter_map(|ask| ask.memory).fold(Bytes::ZERO, Bytes::saturating_add).get(),
            memory_limit: limit.memory.and_then(|amount| amount.bytes_on(device.memory)).flatten().map(Bytes::get),
            ceilings: percent(asks.iter().map(|ask| u64::from(ask.counted_ceiling().as_permille())).sum()),
            sm_limit: limit.ceilings.map(|most| percent(most.as_permille().into())),
        })
    };
    devices.iter().filter_map(sums).collect()
}

/// Returns the sum, and the index at which the running sum first exceeds `most`.
fn sum(parts: impl Iterator<Item = u128>, most: u128) -> (u128, Option<usize>) {
    let (mut sum, mut beyond) = (0_u128, None);
    for (at, part) in parts.enumerate() {
        sum += part;
        if sum > most && beyond.is_none() {
            beyond = Some(at);
        }
    }
    (sum, beyond)
}
