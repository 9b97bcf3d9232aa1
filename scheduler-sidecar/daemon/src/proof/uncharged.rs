//! Memory that the driver holds for a tenant's processes and that the tenant's ledger does not contain. No IO.
//!
//! The driver allocates memory outside the calls that the library charges: code that a first launch loads, local
//! memory, slabs of small allocations that are partly freed. The daemon compares the driver's list of processes with
//! the ledgers, and the excess counts against the limit.
//!
//! The list and a ledger are read at different times, which alone must not cause a refusal. So a ledger is read after
//! the list, and growth counts only if a second comparison confirms it. Bytes that programs requested between the two
//! readings are subtracted, since they may have been freed before the last one.

use std::collections::HashMap;

use vgpu_core::memory::charging::SLAB_BYTES;
use vgpu_core::protocol::page::Uncharged;

use super::driver::ProcessOnDevice;
use vgpu_accounting::record::reading::LedgerReading;

/// A tenant's name, and the UUID of a device in lower case.
pub type TenantDeviceKey = (String, String);

/// Bytes that the driver reports beyond the ledger, rounded down to whole slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnchargedExcess {
    /// Bytes beyond the ledger; never 0.
    pub bytes: u64,
    /// The ledger that the driver's figure was compared with.
    pub reading: LedgerReading,
}

/// Compares the driver's list with the ledgers. `tenant` returns the tenant of a process.
#[must_use]
pub fn compare_with_ledgers<'k>(
    listed: &[ProcessOnDevice],
    readings: &HashMap<TenantDeviceKey, LedgerReading>,
    tenant: impl Fn(&ProcessOnDevice) -> Option<&'k str>,
) -> HashMap<TenantDeviceKey, UnchargedExcess> {
    let mut sums: HashMap<TenantDeviceKey, u64> = HashMap::new();
    for on in listed {
        let (Some(tenant), Some(used)) = (tenant(on), on.used) else { continue };
        let sum = sums.entry((tenant.to_owned(), vgpu_core::units::uuid::uuid_key(&on.device))).or_default();
        *sum = sum.saturating_add(used);
    }
    let of = |(key, sum): (TenantDeviceKey, u64)| {
        let reading = *readings.get(&key)?;
        let bytes = sum.saturating_sub(reading.used) / SLAB_BYTES * SLAB_BYTES;
        (bytes > 0).then_some((key, UnchargedExcess { bytes, reading }))
    };
    sums.into_iter().filter_map(of).collect()
}

/// True if some excess is more than what counts already, so that a second comparison is needed.
#[must_use]
pub fn has_grown(
    seen: &HashMap<TenantDeviceKey, UnchargedExcess>,
    counted: &HashMap<TenantDeviceKey, Uncharged>,
) -> bool {
    seen.iter().any(|(key, excess)| counted.get(key).is_none_or(|counted| excess.bytes > counted.bytes))
}

/// The memory that counts from now on. `again`: a second, later comparison, without which no amount grows.
#[must_use]
pub fn count_excess(
    counted: &HashMap<TenantDeviceKey, Uncharged>,
    first: &HashMap<TenantDeviceKey, UnchargedExcess>,
    again: Option<&HashMap<TenantDeviceKey, UnchargedExcess>>,
) -> HashMap<TenantDeviceKey, Uncharged> {
    let of = |(key, first): (&TenantDeviceKey, &UnchargedExcess)| {
        let before = counted.get(key).map_or(0, |counted| counted.bytes);
        let (bytes, reading) = match again {
            None => (first.bytes.min(before), first.reading),
            Some(again) => {
                let last = again.get(key)?;
                let both = first.bytes.min(last.bytes);
                let asked = last.reading.claimed.wrapping_sub(first.reading.claimed);
                let sure = both.min(last.bytes.saturating_sub(asked) / SLAB_BYTES * SLAB_BYTES);
                (both.min(before).max(sure), last.reading)
            }
        };
        (bytes > 0).then(|| (key.clone(), Uncharged { bytes, overhead: reading.overhead }))
    };
    first.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn key() -> TenantDeviceKey {
        ("a".into(), "1".into())
    }

    fn reading(used: u64, claimed: u64) -> LedgerReading {
        LedgerReading {
            used: used * SLAB_BYTES,
            overhead: SLAB_BYTES,
            claimed: claimed * SLAB_BYTES,
            read: Instant::now(),
        }
    }

    fn excess(bytes: u64, claimed: u64) -> HashMap<TenantDeviceKey, UnchargedExcess> {
        HashMap::from([(key(), UnchargedExcess { bytes: bytes * SLAB_BYTES, reading: reading(0, claimed) })])
    }

    fn counted(slabs: u64) -> HashMap<TenantDeviceKey, Uncharged> {
        HashMap::from([(key(), Uncharged { bytes: slabs * SLAB_BYTES, overhead: SLAB_BYTES })])
    }

    #[test]
    fn what_the_driver_holds_beyond_a_ledger_is_summed_over_the_tenants_processes_in_whole_slabs() {
        let on = |pid, used| ProcessOnDevice { pid, device: "GPU-1".into(), used: Some(used) };
        let tenant = |on: &ProcessOnDevice| (on.pid < 30).then_some("a");
        let all = [
            on(10, 4 * SLAB_BYTES),
            on(20, 3 * SLAB_BYTES + 5),
            on(30, 90 * SLAB_BYTES),
            ProcessOnDevice { used: None, ..on(10, 0) },
        ];
        let seen = |used| compare_with_ledgers(&all, &HashMap::from([(key(), reading(used, 0))]), tenant);
        assert_eq!(seen(5)[&key()].bytes, 2 * SLAB_BYTES);
        assert_eq!((seen(7), seen(9)), (HashMap::new(), HashMap::new()), "less than a slab is none");
        assert_eq!(
            compare_with_ledgers(&all, &HashMap::new(), tenant),
            HashMap::new(),
            "what no ledger tells is not known"
        );
    }

    #[test]
    fn growth_counts_when_a_second_comparison_shows_it_too_and_a_fall_at_once() {
        let none = HashMap::new();
        assert!(
            has_grown(&excess(4, 0), &none)
                && has_grown(&excess(4, 0), &counted(3))
                && !has_grown(&excess(4, 0), &counted(4))
        );
        assert_eq!(count_excess(&none, &excess(4, 0), None), none);
        assert_eq!(count_excess(&none, &excess(4, 0), Some(&HashMap::new())), none, "it is gone");
        assert_eq!(count_excess(&none, &excess(4, 0), Some(&excess(7, 0))), counted(4));
        assert_eq!(count_excess(&none, &excess(7, 0), Some(&excess(4, 0))), counted(4));
        assert_eq!(count_excess(&counted(6), &excess(4, 0), None), counted(4));
        assert_eq!(count_excess(&counted(6), &HashMap::new(), None), none);
    }

    /// Memory that was requested and freed between the reading of the driver's list and of the ledger would look like
    /// memory that was never charged.
    #[test]
    fn what_may_have_been_freed_meanwhile_does_not_count() {
        let none = HashMap::new();
        assert_eq!(count_excess(&none, &excess(5, 10), Some(&excess(5, 13))), counted(2));
        assert_eq!(count_excess(&none, &excess(5, 10), Some(&excess(5, 99))), none);
        assert_eq!(count_excess(&counted(3), &excess(5, 10), Some(&excess(4, 99))), counted(3), "what both show stays");
        let wrapped = (u64::MAX / SLAB_BYTES, 1);
        assert_eq!(
            count_excess(&none, &excess(5, wrapped.0), Some(&excess(5, wrapped.1))),
            counted(3),
            "counters wrap"
        );
    }
}
