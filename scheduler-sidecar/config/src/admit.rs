//! Checks whether tenants fit on a device: their memory limits against its memory, their floors against its time.
//!
//! Integer arithmetic only. [`super::resolve`] words a refusal and finds its place in the file.

use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

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
