//! The common path of every allocation and every free: charge and release.

use crate::device::current;
use crate::device::table::Device;
use crate::driver::calls::{free_allocation, is_unknown_address};
use crate::driver::contexts;
use crate::driver::contexts::ContextFate;
use crate::driver::library::DriverCall;
use crate::driver::streams::StreamId;
use crate::member::enforce;
use crate::memory::allocation_records::{ADDRESS_RECORDS, AllocationRecord, PutOutcome, RecordTable, RecordedCharge};
use crate::memory::release::release_record;
use crate::memory::{deferred_frees, in_flight_frees, pools, slabs};
use crate::process::mode::Denied;
use shim_sys::cuda::{CUcontext, CUresult};
use vgpu_core::memory::charging;
use vgpu_core::memory::ledger::Reservation;

/// The common path of every allocation: reserve by the charging rule, call the driver, then commit with the address
/// or roll back.
///
/// `charge` returns the number of bytes by the rule, or `None` if the request has no size. A request without a size
/// is not charged; the driver is expected to refuse it. `key` reads the address after success.
#[inline]
pub fn allocate(
    table: &RecordTable,
    charge: &dyn Fn() -> Option<u64>,
    real: DriverCall<'_>,
    key: &dyn Fn() -> u64,
) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => real(),
        Err(Denied) => CUresult::NOT_PERMITTED,
        Ok(true) => allocate_charged(table, charge, real, key),
    }
}

/// Allocates where limits are enforced. One function for all callers: a copy in each hook cost 1 KB apiece.
#[inline(never)]
fn allocate_charged(
    table: &RecordTable,
    charge: &dyn Fn() -> Option<u64>,
    real: DriverCall<'_>,
    key: &dyn Fn() -> u64,
) -> CUresult {
    let Some((context, device)) = current::current() else { return real() };
    let Some(bytes) = charge() else { return real() };
    let reservation = match device.reserve(bytes) {
        Ok(reservation) => reservation,
        Err(refused) => return refused,
    };
    let moment = contexts::epoch();
    let result = real();
    if result.ok() {
        reservation.commit();
        note_charge(table, key(), AllocationRecord::of_bytes(bytes, device.index, context.0 as usize), moment);
    }
    result
}

/// Allocates plain memory of `bytes` as [`allocate`] does, charged by the slabs it takes. `key` reads the address
/// that the driver returns.
#[inline]
pub fn allocate_plain(bytes: u64, real: DriverCall<'_>, key: &dyn Fn() -> u64) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => real(),
        Err(Denied) => CUresult::NOT_PERMITTED,
        Ok(true) if charging::may_share_a_slab(bytes) => match current::current() {
            Some((context, device)) => allocate_small(device, context, real, key),
            None => real(),
        },
        Ok(true) => allocate_charged(&ADDRESS_RECORDS, &|| charging::charge_plain(bytes), real, key),
    }
}

/// Allocates plain memory that may share a slab with other allocations: see [`slabs`].
#[inline(never)]
pub fn allocate_small(
    device: &'static Device,
    context: CUcontext,
    real: DriverCall<'_>,
    key: &dyn Fn() -> u64,
) -> CUresult {
    let aside = device.ledger.reserve_at_once(charging::SLAB_BYTES, device.chargeable_bytes());
    // Without a reservation, only this guard shows that an allocation may be in flight.
    let _under_way = if aside.is_none() { in_flight_frees::enter_free() } else { None };
    let moment = contexts::epoch();
    let result = real();
    if result.ok() {
        let address = key();
        match charge_in_slab(device, context.0 as usize, address, aside) {
            Ok(holding) => note_charge(&ADDRESS_RECORDS, address, holding, moment),
            Err(refused) => {
                free_allocation(address);
                return refused;
            }
        }
    }
    result
}

/// Charges a small allocation that the driver has made at `address`. `aside` is a slab reserved for it, if there was
/// room.
///
/// # Errors
/// The error code for the program: the slab is not charged yet and does not fit. The caller frees the allocation.
fn charge_in_slab(
    device: &'static Device,
    context: usize,
    address: u64,
    aside: Option<Reservation<'static>>,
) -> Result<AllocationRecord, CUresult> {
    let slab = address / charging::SLAB_BYTES;
    let in_slab = AllocationRecord { charge: RecordedCharge::InSlab { slab, device: device.index }, context };
    if aside.is_none() && slabs::join(slab) {
        return Ok(in_slab);
    }
    let aside = match aside {
        Some(aside) => aside,
        None => device.reserve(charging::SLAB_BYTES)?,
    };
    let Some(is_first) = slabs::enter_slab(slab) else {
        aside.commit();
        return Ok(AllocationRecord::of_bytes(charging::SLAB_BYTES, device.index, context));
    };
    if is_first {
        aside.commit();
    }
    Ok(in_slab)
}

/// Records a committed charge whose driver call began after `moment`. Releases it if its context has ended since
/// then.
#[inline]
pub fn note_charge(table: &RecordTable, key: u64, holding: AllocationRecord, moment: u64) {
    deferred_frees::came_again(key);
    if core::ptr::eq(table, &raw const ADDRESS_RECORDS) {
        pools::came_again(key);
    }
    keep_charge(table, key, holding, moment);
}

/// Stores the charge record. If the context is ending, nothing is stored: the address may belong to another
/// allocation by now.
#[inline]
fn keep_charge(table: &RecordTable, key: u64, holding: AllocationRecord, moment: u64) {
    let mut fate = ContextFate::Lives;
    let lives = || {
        fate = contexts::context_fate(holding.context, moment);
        fate == ContextFate::Lives
    };
    match table.put_if(key, holding, lives) {
        PutOutcome::New => {}
        PutOutcome::Not => keep_if_it_lives(table, key, holding, fate),
        PutOutcome::InPlaceOf(stale) => release_stale(stale),
    }
}

#[cold]
fn release_stale(stale: AllocationRecord) {
    release_record(stale);
}

/// Handles a record whose context was ending. A failed free may have begun after the driver had ended the context but
/// before its charges were removed. So the end that the call met decides, not the time at which the call began.
#[cold]
fn keep_if_it_lives(table: &RecordTable, key: u64, holding: AllocationRecord, fate: ContextFate) {
    let ended = match fate {
        ContextFate::Lives => false,
        ContextFate::Ended => true,
        ContextFate::Ending(since) => {
            contexts::wait_until(|| !contexts::is_ending(holding.context_handle()));
            contexts::has_ended(holding.context, since)
        }
    };
    if ended {
        release_record(holding);
    } else if let Some(stale) = table.insert_record(key, holding) {
        release_record(stale);
    }
}

/// The common path of every free: take the charge, call the driver, release. A failed free restores the charge.
#[inline]
pub fn free(table: &'static RecordTable, key: u64, real: DriverCall<'_>) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) | Err(Denied) => real(),
        Ok(true) => free_charged(table, key, real),
    }
}

#[inline(never)]
fn free_charged(table: &'static RecordTable, key: u64, real: DriverCall<'_>) -> CUresult {
    let moment = contexts::epoch();
    let Some((holding, _leaving)) = table.take_to_free(key) else { return real() };
    let result = real();
    if result.ok() {
        release_record(holding);
        if contexts::epoch() != moment {
            freed_beside_an_end(table, key);
        }
    } else {
        // If the driver rejects the address because its context has ended, the memory is gone as well.
        keep_charge(table, key, holding, moment);
    }
    result
}

/// A free that overlapped the end of a context may have run after that end. If the address was given out again
/// meanwhile, the driver freed the new memory, so its record is removed.
#[cold]
fn freed_beside_an_end(table: &RecordTable, key: u64) {
    if core::ptr::eq(table, &raw const ADDRESS_RECORDS)
        && let Some(seen) = table.get(key)
        && is_unknown_address(key) == Some(true)
        && let Some(other) = table.take_if(key, seen)
    {
        release_record(other);
    }
}

/// Frees a device address, whether it is plain memory, a pool's or a graph's. With an order (a stream) the driver
/// frees it when the stream reaches the free.
#[inline]
pub fn free_address(address: u64, order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    if pools::any() { beside_pools(address, order, real) } else { free_plain(address, order, real) }
}

/// Not inlined: one copy for all callers, because it is long.
#[inline(never)]
fn beside_pools(address: u64, order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return free_plain(address, order, real);
    }
    if let Some(result) = pools::free(address, order, real) {
        return result;
    }
    free_outside_pools(address, order, real)
}

/// Frees an address at which no pool has a block. It may be graph memory.
#[inline(never)]
fn free_outside_pools(address: u64, order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    let _under_way = in_flight_frees::enter_free();
    free_plain(address, order, &mut || {
        let result = real();
        if result.ok() {
            pools::graphs_changed();
        }
        result
    })
}

/// Not inlined: without its registers to save, a free from a pool begins faster.
#[inline(never)]
fn free_plain(address: u64, order: Option<StreamId>, real: DriverCall<'_>) -> CUresult {
    if let Some(order) = order
        && enforce::is_enforced() == Ok(true)
        && let Some(holding) = ADDRESS_RECORDS.take_record(address)
    {
        let _under_way = in_flight_frees::enter_free();
        return deferred_frees::free(&ADDRESS_RECORDS, address, holding, order, real);
    }
    free(&ADDRESS_RECORDS, address, real)
}
