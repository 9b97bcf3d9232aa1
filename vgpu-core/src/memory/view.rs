//! The device memory that a tenant sees: one computation for CUDA and NVML, so that both report the same.
//!
//! ```text
//! total = min(limit, physical total)
//! free  = min(limit - used, physical free)     never negative, never above total; whole slabs
//! used  = total - free
//! ```
//!
//! `used` is the memory that is not free *to this tenant*. If other tenants fill the device, it is more than this
//! tenant's own charges. The caller supplies the inputs: charges from [`crate::memory::ledger::Ledger::used`], physical
//! numbers from the driver.

use crate::memory::charging::SLAB_BYTES;
use crate::units::bytes::Bytes;

/// The device as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalMemory {
    /// All of the device's memory.
    pub total: Bytes,
    /// Part of it that is free at this moment.
    pub free: Bytes,
}

/// The device as the tenant sees it; always `total == free + used`.
///
/// For NVML's second version `total == reserved + free + used` holds with `reserved` 0: the tenant does not see the
/// memory that the driver keeps for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// The answer of `cuDeviceTotalMem`, and the total of `cuMemGetInfo` and NVML.
    pub total: Bytes,
    /// The free memory of `cuMemGetInfo` and NVML.
    pub free: Bytes,
    /// The used memory of NVML.
    pub used: Bytes,
}

/// The total under a limit: the answer of `cuDeviceTotalMem`. It does not depend on free memory.
#[inline]
#[must_use]
pub fn total(limit: Option<Bytes>, physical_total: Bytes) -> Bytes {
    limit.map_or(physical_total, |limit| limit.min(physical_total))
}

/// The view of a tenant that holds `used` bytes under `limit`; without a limit, the physical numbers.
///
/// If `used` is above the limit (members have different limits), nothing is free.
#[inline]
#[must_use]
pub fn view_memory(limit: Option<Bytes>, used: Bytes, physical: PhysicalMemory) -> MemoryView {
    let total = total(limit, physical.total);
    let free = match limit {
        None => physical.free,
        // From the smaller of limit and device, since a limit above the device adds no memory. In whole slabs, as a
        // driver reports it: a program may allocate all memory reported free, and a request takes whole slabs.
        Some(_) => whole_slabs(total.saturating_sub(used)).min(physical.free),
    };
    let free = free.min(total);
    MemoryView { total, free, used: total.saturating_sub(free) }
}

fn whole_slabs(bytes: Bytes) -> Bytes {
    Bytes(bytes.0 / SLAB_BYTES * SLAB_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::bytes::GIB;

    fn view(limit: Option<u64>, used: u64, total: u64, free: u64) -> (u64, u64, u64) {
        let seen =
            view_memory(limit.map(Bytes), Bytes(used), PhysicalMemory { total: Bytes(total), free: Bytes(free) });
        (seen.total.0, seen.free.0, seen.used.0)
    }

    #[test]
    fn the_limit_is_the_total() {
        assert_eq!(view(Some(GIB), 0, 141 * GIB, 140 * GIB), (GIB, GIB, 0));
        assert_eq!(view(Some(GIB), SLAB_BYTES, 141 * GIB, 140 * GIB), (GIB, GIB - SLAB_BYTES, SLAB_BYTES));
        assert_eq!(
            view(Some(GIB), 512, 141 * GIB, 140 * GIB),
            (GIB, GIB - SLAB_BYTES, SLAB_BYTES),
            "what is free is whole slabs"
        );
        assert_eq!(view(Some(GIB), GIB, 141 * GIB, 140 * GIB), (GIB, 0, GIB));
    }

    #[test]
    fn a_limit_above_the_device_is_the_device() {
        assert_eq!(view(Some(100 * GIB), 3 * GIB, 16 * GIB, 12 * GIB), (16 * GIB, 12 * GIB, 4 * GIB));
        assert_eq!(view(Some(100 * GIB), 3 * GIB, 16 * GIB, 16 * GIB), (16 * GIB, 13 * GIB, 3 * GIB));
    }

    #[test]
    fn nothing_is_free_that_the_device_does_not_have() {
        assert_eq!(view(Some(8 * GIB), GIB, 16 * GIB, 2 * GIB), (8 * GIB, 2 * GIB, 6 * GIB));
    }

    #[test]
    fn more_used_than_allowed_shows_nothing_free() {
        assert_eq!(view(Some(GIB), 2 * GIB, 16 * GIB, 14 * GIB), (GIB, 0, GIB));
    }

    #[test]
    fn without_a_limit_the_device_is_shown_as_it_is() {
        assert_eq!(view(None, 5 * GIB, 16 * GIB, 10 * GIB), (16 * GIB, 10 * GIB, 6 * GIB));
    }

    proptest! {
        #[test]
        fn the_numbers_add_up_and_are_never_too_good(
            limit in prop::option::of(any::<u64>()), used: u64, physical_total: u64, physical_free: u64,
        ) {
            let physical = PhysicalMemory { total: Bytes(physical_total), free: Bytes(physical_free) };
            let seen = view_memory(limit.map(Bytes), Bytes(used), physical);
            prop_assert_eq!(seen.total.0, seen.free.0 + seen.used.0);
            prop_assert_eq!(seen.total, total(limit.map(Bytes), physical.total));
            prop_assert!(seen.total <= physical.total && seen.free <= physical.free);
            if let Some(limit) = limit {
                prop_assert!(seen.total.0 <= limit);
                prop_assert!(seen.free.0 <= limit.saturating_sub(used));
                // The free memory shown is not too low either: all memory that limit and device allow is free.
                let left = limit.min(physical_total).saturating_sub(used);
                let allowed = (left / SLAB_BYTES * SLAB_BYTES).min(physical_free);
                prop_assert_eq!(seen.free.0, allowed);
            }
        }

        #[test]
        fn an_allocation_lowers_free_by_itself(limit in 1u64..1 << 40, used: u64, more in 0u64..1 << 19) {
            let used = used % limit;
            let more = (more * SLAB_BYTES).min((limit - used) / SLAB_BYTES * SLAB_BYTES);
            let physical = PhysicalMemory { total: Bytes(1 << 41), free: Bytes(1 << 41) };
            let before = view_memory(Some(Bytes(limit)), Bytes(used), physical);
            let after = view_memory(Some(Bytes(limit)), Bytes(used + more), physical);
            prop_assert_eq!(before.free.0 - after.free.0, more);
        }
    }
}
