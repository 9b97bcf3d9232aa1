//! Slabs that small requests share: how many allocations lie in each, so that each slab is charged once.
//!
//! The driver takes a slab of 2 MiB for the first small request in it and gives it back when the last one ends. So the
//! first allocation in a slab brings the charge, and the last one takes it away. Which slab a request gets is known by its
//! address, after the driver's answer: a slab is set aside before the call where the limit has room for one. Where it has
//! not, a request that got a slab that is charged already is granted, and any other one is freed again and refused.
//!
//! Counters lie in tables by address, made when they are first needed. A counter above zero says that its slab is charged:
//! nobody counts before the bytes are reserved.

use crate::device::{self, Device};
use crate::driver::own;
use crate::holdings::Holding;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use shim_sys::cuda::CUresult;
use vgpu_core::charging::SLAB;
use vgpu_core::ledger::Reservation;

/// Slabs of one table: 16 KiB of counters for 8 GiB of addresses.
const COUNTS: usize = 1 << 12;
/// Tables for 128 TiB of addresses, all that a process has.
const TABLES: usize = 1 << 14;

/// Tables of counters, leaked; null: no small request was seen there.
static ALL: [AtomicPtr<AtomicU32>; TABLES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; TABLES];

/// The counter of a slab by its number; `None`: beyond the addresses of a process.
fn counter(slab: u64) -> Option<&'static AtomicU32> {
    let slab = usize::try_from(slab).ok()?;
    let place = ALL.get(slab / COUNTS)?;
    let mut table = place.load(Acquire);
    if table.is_null() {
        table = make(place);
    }
    // SAFETY: a leaked table of COUNTS counters.
    Some(unsafe { &*table.add(slab % COUNTS) })
}

#[cold]
fn make(place: &AtomicPtr<AtomicU32>) -> *mut AtomicU32 {
    // Zeroed u32 are counters at zero, of the same size and alignment.
    let fresh = vec![0u32; COUNTS].leak().as_mut_ptr().cast::<AtomicU32>();
    match place.compare_exchange(core::ptr::null_mut(), fresh, AcqRel, Acquire) {
        Ok(_) => fresh,
        // Of two threads one loses 16 KiB, once.
        Err(there) => there,
    }
}

/// Charges a small allocation that the driver has made at `address`, with a slab that was set aside for it if there was
/// room.
///
/// # Errors
/// What the program sees: its slab is charged to nobody and does not fit. The allocation is to be freed.
pub fn enter(
    device: &'static Device,
    context: usize,
    address: u64,
    aside: Option<Reservation<'static>>,
) -> Result<Holding, CUresult> {
    let slab = address / SLAB;
    let count = counter(slab);
    if aside.is_none()
        && let Some(count) = count
        && count.fetch_update(AcqRel, Relaxed, |count| (count > 0).then_some(count + 1)).is_ok()
    {
        return Ok(Holding::in_slab(slab, device.index, context));
    }
    let aside = match aside {
        Some(aside) => aside,
        None => device.reserve(SLAB)?,
    };
    let Some(count) = count else {
        aside.commit();
        return Ok(Holding { bytes: SLAB, device: device.index, context });
    };
    if count.fetch_add(1, AcqRel) == 0 {
        aside.commit();
    }
    Ok(Holding::in_slab(slab, device.index, context))
}

/// A small allocation has ended: the last one in its slab takes the charge away.
pub fn leave(device: u8, slab: u64) {
    if counter(slab).is_some_and(|count| count.fetch_sub(1, AcqRel) == 1)
        && let Some(device) = device::at(usize::from(device))
    {
        device.release(SLAB);
    }
}

/// Frees what was just allocated and does not fit after all.
pub fn undo(address: u64) {
    if let Some(free) = own::cuMemFree_v2() {
        // SAFETY: an allocation that the driver has just made and that nobody was told of.
        let _ = unsafe { free(address) };
    }
}

/// Forgets the parent's, in a forked child.
pub fn forget() {
    ALL.iter().for_each(|table| table.store(core::ptr::null_mut(), Release));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slab_has_a_counter_of_its_own_and_there_is_none_beyond_the_addresses_of_a_process() {
        let at = |slab: u64| counter(slab).map(core::ptr::from_ref);
        assert_eq!(at(5), at(5));
        assert_ne!(at(5), at(6));
        assert_ne!(at(COUNTS as u64 - 1), at(COUNTS as u64));
        assert!(at((1 << 47) / SLAB - 1).is_some());
        assert_eq!((at((1 << 47) / SLAB), at(u64::MAX)), (None, None));
    }

    #[test]
    fn a_place_in_a_slab_is_told_from_a_charge_of_its_own() {
        let place = Holding::in_slab((1 << 26) - 1, 63, 7);
        assert_eq!((place.slab(), place.context), (Some((63, (1 << 26) - 1)), 7));
        assert_eq!(Holding { bytes: SLAB, device: 63, context: 7 }.slab(), None);
        assert_eq!((place.share(), place.counted()), (None, None));
    }
}
