//! Refcounted charges: one charge that several objects of this process hold, such as external memory and the buffers
//! and arrays that map it. It ends with the last of them, in any order.
//!
//! Memory that several processes hold is in `ledger/held_shares`.

use crate::ffi::lock::Lock;
use crate::ffi::sorted_map::SortedMap;
use crate::memory::allocation_records::{AllocationRecord, RecordedCharge};

struct SharedNames {
    /// Charges by number, with their reference counts.
    charges: SortedMap<u32, (AllocationRecord, u32)>,
    next: u32,
}

impl SharedNames {
    const NO_NAMES: SharedNames = SharedNames { charges: SortedMap::new(), next: 0 };
}

static SHARED_NAMES: Lock<SharedNames> = Lock::new(SharedNames::NO_NAMES);

/// Stores a charge and returns the first reference to it.
pub fn share_charge(charge: AllocationRecord) -> AllocationRecord {
    let mut all = SHARED_NAMES.lock();
    let number = all.next;
    all.next = all.next.wrapping_add(1);
    all.charges.insert(number, (charge, 1));
    AllocationRecord { charge: RecordedCharge::Refcounted(number), context: charge.context }
}

/// Adds a reference to the same charge, for `context`. `None`: `name` is no such reference, or the charge has ended.
pub fn add_name(name: AllocationRecord, context: usize) -> Option<AllocationRecord> {
    let RecordedCharge::Refcounted(number) = name.charge else { return None };
    SHARED_NAMES.lock().charges.get_mut(&number)?.1 += 1;
    Some(AllocationRecord { charge: RecordedCharge::Refcounted(number), context })
}

/// Drops one reference; returns the charge if it was the last.
pub fn drop_name(number: u32) -> Option<AllocationRecord> {
    let mut all = SHARED_NAMES.lock();
    let names = &mut all.charges.get_mut(&number)?.1;
    *names -= 1;
    if *names > 0 { None } else { all.charges.remove(&number).map(|(charge, _)| charge) }
}

/// Clears the parent's charges in a forked child.
pub fn reset_after_fork() {
    // SAFETY: called by the child's settling thread, before any other thread continues.
    unsafe { SHARED_NAMES.reset(SharedNames::NO_NAMES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_ends_with_the_last_of_its_names_in_any_order() {
        let charge = AllocationRecord::of_bytes(512, 3, 7);
        let first = share_charge(charge);
        let second = add_name(first, 8).unwrap();
        assert_eq!((first.context, second.context), (7, 8));
        let drop_reference = |name: AllocationRecord| match name.charge {
            RecordedCharge::Refcounted(number) => drop_name(number),
            other => panic!("{other:?} is no reference"),
        };
        assert_eq!(drop_reference(first), None);
        assert_eq!(drop_reference(second), Some(charge));
        assert_eq!(add_name(first, 7), None, "it has ended");
        assert_eq!(add_name(charge, 7), None, "an ordinary charge has no other names");
    }
}
