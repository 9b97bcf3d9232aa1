//! Memory shared with other processes and other APIs: exports, imports, and external memory.
//!
//! Exported memory is charged to a share of the ledger from then on (`ledger/held_shares`). An import by the same
//! tenant holds that share and charges nothing. Any other import is charged to the tenant once, in a share that its
//! first importer founds. An address is charged by the range that the driver reports, a handle when it is mapped
//! (`vmm`), external memory by the size in its descriptor. A share is held *before* the driver is called, so that a
//! release in another process meanwhile does not end it.
//!
//! Not hooked: `cuMemGetHandleForAddressRange`. Its descriptor is for other vendors' devices, no driver function
//! imports it, and the memory is charged where it was allocated.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::charge;
use crate::device::table::{self, Device};
use crate::driver::calls::{self, device_of_pointer, range_of};
use crate::driver::contexts;
use crate::driver::library::DriverCall;
use crate::ledger::descriptor_marks;
use crate::ledger::held_shares;
use crate::ledger::held_shares::LocalShare;
use crate::member::enforce;
use crate::memory::allocation_records::{
    ADDRESS_RECORDS, ARRAY_RECORDS, AllocationRecord, EXTERNAL_RECORDS, RecordTable, RecordedCharge,
};
use crate::memory::open_imports;
use crate::memory::release::release_record;
use crate::memory::reservation;
use crate::memory::shares;
use crate::memory::{physical, pools, refcounted_charge};
use crate::process::mode::Denied;
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::charging;
use vgpu_core::memory::ledger::Reservation;

/// Moves the charge of an exported allocation to a share, or returns the share it already has.
fn share_exported(holding: AllocationRecord, identity: u64) -> Option<LocalShare> {
    match holding.charge {
        RecordedCharge::Share(share) => Some(share),
        RecordedCharge::Own { bytes, device } => {
            shares::export_charge(table::by_index(usize::from(device))?, identity, bytes)
        }
        RecordedCharge::InSlab { .. } | RecordedCharge::Refcounted(_) => None,
    }
}

/// Charges an allocation of `bytes` by itself if it shares a slab; the other allocations stay in the slab. `None`:
/// its own charge does not fit in addition to the slab.
fn charge_separately(holding: AllocationRecord, bytes: u64) -> Option<AllocationRecord> {
    let RecordedCharge::InSlab { device: number, .. } = holding.charge else { return Some(holding) };
    let device = table::by_index(usize::from(number))?;
    let bytes = charging::charge_linear(bytes)?;
    device.try_reserve(bytes).ok()?.commit();
    release_record(holding);
    Some(AllocationRecord::of_bytes(bytes, number, holding.context))
}

pub unsafe fn cuIpcGetMemHandle(
    real: cuda_fn::cuIpcGetMemHandle,
    handle: *mut CUipcMemHandle,
    dptr: CUdeviceptr,
) -> CUresult {
    let result = unsafe { real(handle, dptr) };
    if result.ok() && enforce::is_enforced_for_rare_call() == Ok(true) {
        let identity = descriptor_marks::of_bytes(&unsafe { *handle }.reserved);
        let base = base_of(dptr);
        let whole = range_of(base).map_or(0, |(_, bytes)| bytes);
        held_shares::with_export_turn(|| {
            // Take the record out meanwhile, as a free does: if an export and a free overlap, only one of them gets
            // the charge.
            let Some(holding) = ADDRESS_RECORDS.take_record(base) else { return };
            let Some(holding) = charge_separately(holding, whole) else {
                ADDRESS_RECORDS.insert_record(base, holding);
                return;
            };
            let now = match share_exported(holding, identity) {
                Some(share) => AllocationRecord::of_share(share, holding.context),
                None => holding,
            };
            ADDRESS_RECORDS.insert_record(base, now);
        });
    }
    result
}

/// The address under which the allocation around `dptr` is charged.
fn base_of(dptr: CUdeviceptr) -> CUdeviceptr {
    if ADDRESS_RECORDS.get(dptr).is_some() { dptr } else { range_of(dptr).map_or(dptr, |(base, _)| base) }
}

fn open(handle: &CUipcMemHandle, dptr: *mut CUdeviceptr, real: DriverCall<'_>) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let (context, moment) = (current_context(), contexts::epoch());
    let identity = descriptor_marks::of_bytes(&handle.reserved);
    let share = shares::import_share(identity);
    let result = real();
    if !result.ok() {
        share.into_iter().for_each(held_shares::let_go);
        return result;
    }
    let at = unsafe { *dptr };
    let holding = match hold_imported(share, identity, at, context) {
        Ok(Some(holding)) => holding,
        Ok(None) => return result,
        Err(refused) => {
            calls::close_import(at);
            return refused;
        }
    };
    open_imports::note_opened(at, holding).into_iter().for_each(release_record);
    // The record may have been stored after the context's end had removed all its records.
    if contexts::has_ended(context, moment) {
        ADDRESS_RECORDS.take_record(at).into_iter().for_each(release_record);
    }
    result
}

/// Charges imported memory at address `at`: to the share it has, or to one founded for it, with its whole size
/// charged. `None`: it is on no device with limits.
fn hold_imported(
    share: Option<LocalShare>,
    identity: u64,
    at: CUdeviceptr,
    context: usize,
) -> Result<Option<AllocationRecord>, CUresult> {
    let whole = || range_of(at).and_then(|(_, bytes)| charging::charge_plain(bytes));
    match share {
        Some(share) if held_shares::is_founded(share) => charge_share(share, whole().unwrap_or(0), context).map(Some),
        Some(share) => Ok(Some(AllocationRecord::of_share(share, context))),
        None => {
            // A peer's memory stays where it is, which need not be the current context's device.
            let home = device_of_pointer(at).and_then(table::by_cuda).zip(whole());
            let Some((home, whole)) = home else { return Ok(None) };
            if let Some(share) = shares::hold_or_begin(home, identity) {
                return charge_share(share, whole, context).map(Some);
            }
            home.reserve(whole)?.commit();
            Ok(Some(AllocationRecord::of_bytes(whole, home.index, context)))
        }
    }
}

/// Charges `whole` to a share that is already held. If that does not fit, the share is let go.
fn charge_share(share: LocalShare, whole: u64, context: usize) -> Result<AllocationRecord, CUresult> {
    let aside = reservation::set_aside(share, whole).inspect_err(|_| held_shares::let_go(share))?;
    held_shares::charge_reserved(share, whole, aside);
    Ok(AllocationRecord::of_share(share, context))
}

/// The current context as an integer, whether or not its device has limits.
fn current_context() -> usize {
    calls::current_context().map_or(0, |context| context.0 as usize)
}

pub unsafe fn cuIpcOpenMemHandle(
    real: cuda_fn::cuIpcOpenMemHandle,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    open(&handle, dptr, &mut || unsafe { real(dptr, handle, flags) })
}

pub unsafe fn cuIpcOpenMemHandle_v2(
    real: cuda_fn::cuIpcOpenMemHandle_v2,
    dptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: u32,
) -> CUresult {
    open(&handle, dptr, &mut || unsafe { real(dptr, handle, flags) })
}

pub unsafe fn cuIpcCloseMemHandle(real: cuda_fn::cuIpcCloseMemHandle, dptr: CUdeviceptr) -> CUresult {
    if enforce::is_enforced_for_rare_call() != Ok(true) {
        return unsafe { real(dptr) };
    }
    let Some(closing) = open_imports::begin_close(dptr) else { return unsafe { real(dptr) } };
    let result = unsafe { real(dptr) };
    if result.ok() {
        closing.finish().into_iter().for_each(release_record);
    } else {
        closing.undo();
    }
    result
}

/// An exported handle: a file descriptor, or opaque bytes.
enum HandleName {
    Descriptor(i32),
    Bytes(u64),
}

/// Reads a handle of that kind. `None`: a kind that does not exist on Linux.
unsafe fn name(os_handle: *const c_void, kind: u32, by_value: bool) -> Option<HandleName> {
    if os_handle.is_null() && !by_value {
        return None;
    }
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if by_value => {
            #[allow(clippy::cast_possible_truncation)] // a descriptor, passed as a pointer
            Some(HandleName::Descriptor(os_handle as usize as i32))
        }
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Some(HandleName::Descriptor(unsafe { *os_handle.cast::<i32>() })),
        CU_MEM_HANDLE_TYPE_FABRIC if !os_handle.is_null() => {
            Some(HandleName::Bytes(descriptor_marks::of_bytes(unsafe { &*os_handle.cast::<[u8; 64]>() })))
        }
        _ => None,
    }
}

impl HandleName {
    /// The identity to export under.
    fn export_identity(&self) -> u64 {
        match self {
            HandleName::Descriptor(_) => descriptor_marks::fresh_identity(),
            HandleName::Bytes(identity) => *identity,
        }
    }

    /// Makes the share findable through this handle.
    fn mark_share(&self, share: LocalShare) {
        if let HandleName::Descriptor(descriptor) = self {
            held_shares::mark_descriptor(share, *descriptor);
        }
    }

    /// The handle's identity, and its share, which the caller holds from here on.
    fn import_share(&self) -> (Option<u64>, Option<LocalShare>) {
        let identity = self.known_identity();
        let share = identity.and_then(|identity| match self {
            HandleName::Descriptor(descriptor) => shares::import_descriptor(*descriptor, identity),
            HandleName::Bytes(_) => shares::import_share(identity),
        });
        (identity, share)
    }

    /// The identity that the exporter gave the handle, if any.
    fn known_identity(&self) -> Option<u64> {
        match self {
            HandleName::Descriptor(descriptor) => descriptor_marks::read(*descriptor),
            HandleName::Bytes(identity) => Some(*identity),
        }
    }
}

pub unsafe fn cuMemExportToShareableHandle(
    real: cuda_fn::cuMemExportToShareableHandle,
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: u32,
    flags: u64,
) -> CUresult {
    if enforce::is_enforced_for_rare_call() != Ok(true) {
        return unsafe { real(shareable, handle, kind, flags) };
    }
    let pin = physical::pin_handle(handle);
    let result = unsafe { real(shareable, handle, kind, flags) };
    let Some(pin) = pin else { return result };
    if result.ok()
        && let Some(name) = unsafe { name(shareable, kind, false) }
    {
        held_shares::with_export_turn(|| {
            // Another tenant's memory of which nothing is charged yet has no charge to move.
            let Some(holding) = physical::record_of(&pin) else { return };
            if holding.own_bytes().is_some_and(|(bytes, _)| bytes == 0) {
                return;
            }
            if let Some(share) = share_exported(holding, name.export_identity()) {
                physical::set_holding(&pin, AllocationRecord::of_share(share, 0));
                name.mark_share(share);
            }
        });
    }
    physical::unpin_unused(pin).into_iter().for_each(release_record);
    result
}

/// The device that an imported handle's memory is on, if it has limits.
fn home_of(handle: CUmemGenericAllocationHandle) -> Option<&'static Device> {
    let location = calls::location_of(handle)?;
    (location.kind == CU_MEM_LOCATION_TYPE_DEVICE).then(|| table::by_cuda(location.id)).flatten()
}

pub unsafe fn cuMemImportFromShareableHandle(
    real: cuda_fn::cuMemImportFromShareableHandle,
    handle: *mut CUmemGenericAllocationHandle,
    os_handle: *mut c_void,
    kind: u32,
) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
        Ok(false) => return unsafe { real(handle, os_handle, kind) },
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let (identity, share) = unsafe { name(os_handle, kind, true) }.map_or((None, None), |name| name.import_share());
    let result = unsafe { real(handle, os_handle, kind) };
    if !result.ok() {
        share.into_iter().for_each(held_shares::let_go);
        return result;
    }
    let new = unsafe { *handle };
    let home = if share.is_none() { home_of(new) } else { None };
    let share = share.or_else(|| shares::hold_or_begin(home?, identity?));
    let spare = match share {
        // A share whose full size is unknown is charged when the memory is mapped.
        Some(share) => physical::note_imported(new, Some(AllocationRecord::of_share(share, 0)), false),
        None => {
            let home = home.map(|device| AllocationRecord::of_bytes(0, device.index, 0));
            physical::note_imported(new, home, true)
        }
    };
    spare.into_iter().for_each(release_record);
    result
}

pub unsafe fn cuMemPoolExportToShareableHandle(
    real: cuda_fn::cuMemPoolExportToShareableHandle,
    shareable: *mut c_void,
    pool: CUmemoryPool,
    kind: u32,
    flags: u64,
) -> CUresult {
    let result = unsafe { real(shareable, pool, kind, flags) };
    if result.ok()
        && enforce::is_enforced_for_rare_call() == Ok(true)
        && let Some(name) = unsafe { name(shareable, kind, false) }
        && let Some(share) = pools::share_pool(pool, || name.export_identity())
    {
        name.mark_share(share);
    }
    result
}

pub unsafe fn cuMemPoolImportFromShareableHandle(
    real: cuda_fn::cuMemPoolImportFromShareableHandle,
    pool: *mut CUmemoryPool,
    os_handle: *mut c_void,
    kind: u32,
    flags: u64,
) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
        Ok(false) => return unsafe { real(pool, os_handle, kind, flags) },
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let identity = unsafe { name(os_handle, kind, true) }.and_then(|name| name.known_identity());
    let result = unsafe { real(pool, os_handle, kind, flags) };
    if result.ok() {
        pools::note_imported(unsafe { *pool }, identity);
    }
    result
}

/// Memory of an imported pool. The same tenant's is charged to the pool's share. Another tenant's is charged here, by
/// the range that the driver reports.
pub unsafe fn cuMemPoolImportPointer(
    real: cuda_fn::cuMemPoolImportPointer,
    dptr: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    match enforce::is_enforced_for_rare_call() {
        Ok(false) => return unsafe { real(dptr, pool, data) },
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let moment = contexts::epoch();
    // The driver reads it too; null is its error to report.
    let identity = unsafe { data.as_ref() }.map_or(0, |data| descriptor_marks::of_bytes(&data.reserved));
    let share = pools::share_of_imported(pool).or_else(|| shares::import_share(identity));
    let result = unsafe { real(dptr, pool, data) };
    if !result.ok() {
        share.into_iter().for_each(held_shares::let_go);
        return result;
    }
    let at = unsafe { *dptr };
    let holding = match hold_imported(share, identity, at, 0) {
        Ok(Some(holding)) => holding,
        Ok(None) => return result,
        Err(refused) => {
            calls::free_allocation(at);
            return refused;
        }
    };
    charge::note_charge(&ADDRESS_RECORDS, at, holding, moment);
    result
}

/// Memory of another API, charged by the size in its descriptor. If it is this tenant's own exported memory, its
/// share is held. The charge ends, as the memory does, with the external object and everything mapped from it.
pub unsafe fn cuImportExternalMemory(
    real: cuda_fn::cuImportExternalMemory,
    memory: *mut CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    const OPAQUE_DESCRIPTOR_KIND: u32 = 1;
    let call = || unsafe { real(memory, desc) };
    let moment = contexts::epoch();
    let (context, device) = match enforce::on_current() {
        Ok(Some(current)) => current,
        Ok(None) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    // The driver reads the struct too; null is its error to report.
    let Some(desc) = (unsafe { desc.as_ref() }) else { return call() };
    let Some(whole) = charging::charge_plain(desc.size) else { return call() };
    // Before the call, because the driver owns an imported descriptor and closes it.
    #[allow(clippy::cast_possible_truncation)] // the first four of its bytes
    let name = (desc.kind == OPAQUE_DESCRIPTOR_KIND).then(|| HandleName::Descriptor(desc.handle[0] as i32));
    let (identity, share) = name.map_or((None, None), |name| name.import_share());
    let share = share.or_else(|| shares::hold_or_begin(device, identity?));
    let aside = match share {
        Some(share) => reservation::set_aside(share, whole).inspect_err(|_| held_shares::let_go(share)),
        None => device.reserve(whole).map(Some),
    };
    let aside = match aside {
        Ok(aside) => aside,
        Err(refused) => return refused,
    };
    let context = context.0 as usize;
    let holding = match share {
        Some(share) => AllocationRecord::of_share(share, context),
        None => AllocationRecord::of_bytes(whole, device.index, context),
    };
    let result = call();
    if result.ok() {
        match share {
            Some(share) => held_shares::charge_reserved(share, whole, aside),
            None => aside.into_iter().for_each(Reservation::commit),
        }
        charge::note_charge(
            &EXTERNAL_RECORDS,
            unsafe { *memory }.0 as u64,
            refcounted_charge::share_charge(holding),
            moment,
        );
    } else {
        share.into_iter().for_each(held_shares::let_go);
    }
    result
}

/// Adds a reference for an object mapped from external memory, stored in `table` under the `key` that the driver
/// returns.
fn map_external(
    memory: CUexternalMemory,
    table: &RecordTable,
    real: DriverCall<'_>,
    key: &dyn Fn() -> u64,
) -> CUresult {
    if enforce::is_enforced_for_rare_call() != Ok(true) {
        return real();
    }
    let moment = contexts::epoch();
    let name =
        EXTERNAL_RECORDS.get(memory.0 as u64).and_then(|object| refcounted_charge::add_name(object, current_context()));
    let result = real();
    match name {
        Some(name) if result.ok() => charge::note_charge(table, key(), name, moment),
        name => name.into_iter().for_each(release_record),
    }
    result
}

pub unsafe fn cuExternalMemoryGetMappedBuffer(
    real: cuda_fn::cuExternalMemoryGetMappedBuffer,
    dptr: *mut CUdeviceptr,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> CUresult {
    map_external(memory, &ADDRESS_RECORDS, &mut || unsafe { real(dptr, memory, desc) }, &|| unsafe { *dptr })
}

pub unsafe fn cuExternalMemoryGetMappedMipmappedArray(
    real: cuda_fn::cuExternalMemoryGetMappedMipmappedArray,
    array: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    desc: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> CUresult {
    map_external(memory, &ARRAY_RECORDS, &mut || unsafe { real(array, memory, desc) }, &|| unsafe { *array }.0 as u64)
}

pub unsafe fn cuDestroyExternalMemory(real: cuda_fn::cuDestroyExternalMemory, memory: CUexternalMemory) -> CUresult {
    charge::free(&EXTERNAL_RECORDS, memory.0 as u64, &mut || unsafe { real(memory) })
}
