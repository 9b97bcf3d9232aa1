//! Counts the small allocations in each slab, so that each slab is charged once.
//!
//! The driver takes a slab of 2 MiB for the first small request in it and returns the slab when the last one ends. So
//! the first allocation in a slab brings the charge, and the last one removes it. Only the address in the driver's
//! answer shows which slab a request got. Before the call a slab is therefore reserved if the limit has room for one.
//! If it has not, a request that got an already charged slab is granted; any other allocation is freed again and
//! refused.
//!
//! Counters are in tables by address, made when first needed. A counter above zero means that its slab is charged,
//! because counting starts only after the bytes are reserved.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// Slabs of one table: 16 KiB of counters for 8 GiB of addresses.
const SLABS_PER_TABLE: usize = 1 << 12;
/// Tables for 128 TiB of addresses, the whole user address space of a process.
const TABLE_COUNT: usize = 1 << 14;

/// Tables of counters, leaked; null: no small request was seen in that range.
static SLAB_TABLES: [AtomicPtr<AtomicU32>; TABLE_COUNT] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; TABLE_COUNT];

/// The counter of a slab by its number. `None`: beyond a process's address space.
fn slab_counter(slab: u64) -> Option<&'static AtomicU32> {
    let slab = usize::try_from(slab).ok()?;
    let place = SLAB_TABLES.get(slab / SLABS_PER_TABLE)?;
    let mut table = place.load(Acquire);
    if table.is_null() {
        table = make_table(place);
    }
    // SAFETY: a leaked table of COUNTS counters.
    Some(unsafe { &*table.add(slab % SLABS_PER_TABLE) })
}

#[cold]
fn make_table(place: &AtomicPtr<AtomicU32>) -> *mut AtomicU32 {
    // Zeroed u32 are counters at zero, of the same size and alignment.
    let fresh = vec![0u32; SLABS_PER_TABLE].leak().as_mut_ptr().cast::<AtomicU32>();
    match place.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire) {
        Ok(_) => fresh,
        // If two threads make the counters at the same time, one set of 16 KiB is leaked, once.
        Err(there) => there,
    }
}

/// Counts one more allocation in a slab that has some. False: the slab has none, or no counter.
pub fn join(slab: u64) -> bool {
    slab_counter(slab)
        .is_some_and(|count| count.fetch_update(AcqRel, Relaxed, |count| (count > 0).then_some(count + 1)).is_ok())
}

/// Counts one more allocation in a slab whose bytes are reserved. True: it is the first one. `None`: there is no
/// counter.
pub fn enter_slab(slab: u64) -> Option<bool> {
    slab_counter(slab).map(|count| count.fetch_add(1, AcqRel) == 0)
}

/// Counts one allocation less. True: it was the last one, and the slab's charge ends.
pub fn leave_slab(slab: u64) -> bool {
    slab_counter(slab).is_some_and(|count| count.fetch_sub(1, AcqRel) == 1)
}

/// Clears the parent's counters in a forked child.
pub fn reset_after_fork() {
    SLAB_TABLES.iter().for_each(|table| table.store(core::ptr::null_mut(), Release));
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_core::memory::charging::SLAB_BYTES;

    #[test]
    fn each_slab_has_a_counter_of_its_own_and_there_is_none_beyond_the_addresses_of_a_process() {
        let at = |slab: u64| slab_counter(slab).map(core::ptr::from_ref);
        assert_eq!(at(5), at(5));
        assert_ne!(at(5), at(6));
        assert_ne!(at(SLABS_PER_TABLE as u64 - 1), at(SLABS_PER_TABLE as u64));
        assert!(at((1 << 47) / SLAB_BYTES - 1).is_some());
        assert_eq!((at((1 << 47) / SLAB_BYTES), at(u64::MAX)), (None, None));
    }

    #[test]
    fn the_first_allocation_in_a_slab_is_told_from_the_next_and_the_last() {
        let slab = SLABS_PER_TABLE as u64 * 7 + 3;
        assert_eq!((join(slab), enter_slab(slab), join(slab)), (false, Some(true), true));
        assert_eq!(
            (leave_slab(slab), enter_slab(slab), leave_slab(slab), leave_slab(slab)),
            (false, Some(false), false, true)
        );
        assert_eq!((enter_slab(u64::MAX), leave_slab(u64::MAX)), (None, false));
    }
}
