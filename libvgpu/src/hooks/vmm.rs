//! Virtual memory management: the charge belongs to the physical allocation and ends with the last reference to it
//! (`memory/physical`). Reserving addresses costs nothing and is not hooked. Host memory is never charged to a device.
//! A multicast object is not charged either: it only gives access to memory bound to it, which is charged where it was
//! created.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::device::table::{self, Device};
use crate::driver::calls::granularity_of;
use crate::driver::library::DriverCall;
use crate::ledger::held_shares;
use crate::ledger::held_shares::LocalShare;
use crate::member::enforce;
use crate::memory::allocation_records::{AllocationRecord, RecordedCharge};
use crate::memory::physical::{self, EndedCharges};
use crate::memory::release::release_record;
use crate::memory::reservation;
use crate::process::mode::Denied;
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::charging;
use vgpu_core::memory::ledger::Reservation;

fn release_all(ended: EndedCharges) {
    ended.into_iter().for_each(release_record);
}

/// The device and the granularity by which a physical allocation is charged. `None`: host memory, or a device without
/// limits.
fn charged_device(prop: *const CUmemAllocationProp) -> Option<(&'static Device, u64)> {
    // The driver reads the struct too; null is its error to report.
    let prop = unsafe { prop.as_ref()? };
    let location = prop.location;
    if location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return None;
    }
    let device = table::by_cuda(location.id)?;
    Some((device, granularity_of(prop).unwrap_or(2 << 20)))
}

pub unsafe fn cuMemCreate(
    real: cuda_fn::cuMemCreate,
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    let call = || unsafe { real(handle, bytes, prop, flags) };
    match enforce::is_enforced() {
        Ok(false) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let charge = charged_device(prop).and_then(|(device, granularity)| {
        let bytes = charging::charge_physical(bytes as u64, granularity)?;
        Some((device, bytes))
    });
    let Some((device, bytes)) = charge else {
        let result = call();
        if result.ok() {
            // The handle may have belonged to an allocation whose release has not returned here yet.
            physical::note_created(unsafe { *handle }, None);
        }
        return result;
    };
    let reservation = match device.reserve(bytes) {
        Ok(reservation) => reservation,
        Err(refused) => return refused,
    };
    let result = call();
    if result.ok() {
        reservation.commit();
        physical::note_created(unsafe { *handle }, Some(AllocationRecord::of_bytes(bytes, device.index, 0)));
    }
    result
}

pub unsafe fn cuMemRelease(real: cuda_fn::cuMemRelease, handle: CUmemGenericAllocationHandle) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(handle) };
    }
    let releasing = physical::begin_release(handle);
    let result = unsafe { real(handle) };
    match releasing {
        Some(releasing) if result.ok() => release_all(releasing.finish()),
        Some(releasing) => releasing.undo(),
        None => {}
    }
    result
}

pub unsafe fn cuMemRetainAllocationHandle(
    real: cuda_fn::cuMemRetainAllocationHandle,
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(handle, addr) };
    }
    let pin = physical::pin_at(addr as u64);
    let result = unsafe { real(handle, addr) };
    if let Some(pin) = pin {
        release_all(if result.ok() {
            physical::note_retained(pin, unsafe { *handle })
        } else {
            physical::unpin_unused(pin)
        });
    }
    result
}

/// The charge still due for imported memory that a mapping shows.
enum MappingCharge {
    Nothing,
    /// To the share it belongs to, with the reserved bytes.
    ToShare(LocalShare, Option<Reservation<'static>>),
    /// To this process: device, bytes, reservation.
    Own(&'static Device, u64, Reservation<'static>),
}

impl MappingCharge {
    /// Reserves the bytes due for a mapping of the first `shown` bytes.
    fn reserve_mapping(pin: &physical::PinnedAllocation, shown: u64) -> Result<Self, CUresult> {
        if let Some(share) = physical::record_of(pin).and_then(|holding| holding.as_share()) {
            return Ok(Self::ToShare(share, reservation::set_aside(share, shown)?));
        }
        let owed = physical::uncharged_part(pin, shown);
        match owed.and_then(|(number, more)| Some((table::by_index(usize::from(number))?, more))) {
            Some((device, more)) => Ok(Self::Own(device, more, device.reserve(more)?)),
            None => Ok(Self::Nothing),
        }
    }

    /// Charges the reserved bytes after the driver has mapped the memory.
    fn commit_mapping(self, pin: &physical::PinnedAllocation, shown: u64) {
        match self {
            Self::Nothing => {}
            Self::ToShare(share, aside) => held_shares::charge_reserved(share, shown, aside),
            Self::Own(device, more, reservation) => {
                reservation.commit();
                device.release(physical::note_charged(pin, shown, more));
            }
        }
    }
}

/// Charges another tenant's memory, whose size is known only now.
pub unsafe fn cuMemMap(
    real: cuda_fn::cuMemMap,
    dptr: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    let call = || unsafe { real(dptr, bytes, offset, handle, flags) };
    match enforce::is_enforced() {
        Ok(false) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let Some(pin) = physical::pin_handle(handle) else { return call() };
    let bytes = bytes as u64;
    let shown = bytes.saturating_add(offset as u64);
    let due = match MappingCharge::reserve_mapping(&pin, shown) {
        Ok(due) => due,
        Err(refused) => {
            release_all(physical::unpin_unused(pin));
            return refused;
        }
    };
    let result = call();
    if !result.ok() {
        release_all(physical::unpin_unused(pin));
        return result;
    }
    due.commit_mapping(&pin, shown);
    physical::note_mapped(pin, dptr, bytes);
    result
}

pub unsafe fn cuMemUnmap(real: cuda_fn::cuMemUnmap, dptr: CUdeviceptr, bytes: usize) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(dptr, bytes) };
    }
    let unmapping = physical::begin_unmap(dptr, bytes as u64);
    let result = unsafe { real(dptr, bytes) };
    if result.ok() {
        release_all(unmapping.finish());
    } else {
        unmapping.undo();
    }
    result
}

/// Most tiles whose allocations are pinned before the driver is called. A longer list is read only after the driver
/// has accepted it: the count may be garbage, and must not lead to gigabytes of copies or to reads of unmapped
/// memory.
const MAX_TILES_READ: usize = 65_536;

/// Records tile mappings of sparse arrays, which reference physical memory as address mappings do.
///
/// The operations are queued, but references are counted at once. Memory unmapped in stream order may therefore be
/// uncharged before the stream reaches the unmap, while the driver still holds it. That lasts only until the stream
/// gets there.
fn map_arrays(list: *mut CUarrayMapInfo, count: u32, real: DriverCall<'_>) -> CUresult {
    if list.is_null() || enforce::is_enforced() != Ok(true) {
        return real();
    }
    let count = count as usize;
    let pin = |one: &CUarrayMapInfo| {
        let maps = one.memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        if maps { physical::pin_handle(one.memHandle) } else { None }
    };
    if count > MAX_TILES_READ {
        let result = real();
        if result.ok() {
            // The driver has read `count` entries.
            let all = unsafe { core::slice::from_raw_parts(list, count) };
            all.iter().for_each(|one| note_tile(one, pin(one), true));
        }
        return result;
    }
    let all = unsafe { core::slice::from_raw_parts(list, count) };
    let pinned: Vec<_> = all.iter().map(|one| (*one, pin(one))).collect();
    let result = real();
    pinned.into_iter().for_each(|(one, pin)| note_tile(&one, pin, result.ok()));
    result
}

/// Records one tile operation and the memory it maps, after the driver's answer.
fn note_tile(one: &CUarrayMapInfo, pin: Option<physical::PinnedAllocation>, done: bool) {
    let array = one.resource as usize;
    let [a, b, c, d] = one.subresource;
    let part = [u64::from(one.subresourceType), a, b, c, d];
    match pin {
        Some(pin) if done => release_all(physical::tile_mapped(pin, array, part)),
        Some(pin) => release_all(physical::unpin_unused(pin)),
        None if done && one.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP => {
            release_all(physical::tile_unmapped(array, part));
        }
        None => {}
    }
}

pub unsafe fn cuMemMapArrayAsync(
    real: cuda_fn::cuMemMapArrayAsync,
    list: *mut CUarrayMapInfo,
    count: u32,
    stream: CUstream,
) -> CUresult {
    map_arrays(list, count, &mut || unsafe { real(list, count, stream) })
}

pub unsafe fn cuMemMapArrayAsync_ptsz(
    real: cuda_fn::cuMemMapArrayAsync_ptsz,
    list: *mut CUarrayMapInfo,
    count: u32,
    stream: CUstream,
) -> CUresult {
    map_arrays(list, count, &mut || unsafe { real(list, count, stream) })
}

/// Ends a sparse array, and with it the references of its tiles.
pub fn with_tiles(array: usize, real: DriverCall<'_>) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return real();
    }
    let tiles = physical::array_ending(array);
    let result = real();
    if result.ok() {
        release_all(tiles.finish());
    } else {
        tiles.undo();
    }
    result
}

/// A multicast object is recorded for the memory bound to it.
pub unsafe fn cuMulticastCreate(
    real: cuda_fn::cuMulticastCreate,
    multicast: *mut CUmemGenericAllocationHandle,
    prop: *const CUmulticastObjectProp,
) -> CUresult {
    let result = unsafe { real(multicast, prop) };
    if result.ok() && enforce::is_enforced() == Ok(true) {
        physical::note_created(unsafe { *multicast }, None);
    }
    result
}

/// Binds the memory that `memory` pins to a multicast object, which keeps it alive as a mapping does.
fn bind(
    object: CUmemGenericAllocationHandle,
    memory: &dyn Fn() -> Option<physical::PinnedAllocation>,
    dev: Option<CUdevice>,
    offset: usize,
    bytes: usize,
    real: DriverCall<'_>,
) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return real();
    }
    let pins = (physical::pin_handle(object), memory());
    let result = real();
    match pins {
        (Some(object), Some(memory)) if result.ok() => {
            let device = match dev {
                Some(dev) => table::by_cuda(dev).map(|device| device.index),
                None => number_of_device(&memory),
            };
            release_all(physical::note_bound(object, memory, device, offset as u64, bytes as u64));
        }
        (object, memory) => object.into_iter().chain(memory).map(physical::unpin_unused).for_each(release_all),
    }
    result
}

/// The device that an allocation is on, if it has limits.
fn number_of_device(memory: &physical::PinnedAllocation) -> Option<u8> {
    let holding = physical::record_of(memory)?;
    match holding.charge {
        RecordedCharge::Own { device, .. } | RecordedCharge::InSlab { device, .. } => Some(device),
        RecordedCharge::Share(share) => held_shares::device_of(share),
        RecordedCharge::Refcounted(_) => None,
    }
}

pub unsafe fn cuMulticastBindMem(
    real: cuda_fn::cuMulticastBindMem,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
) -> CUresult {
    let mut call = || unsafe { real(multicast, offset, mem_handle, mem_offset, size, flags) };
    bind(multicast, &|| physical::pin_handle(mem_handle), None, offset, size, &mut call)
}

#[allow(clippy::too_many_arguments)] // the driver's signature
pub unsafe fn cuMulticastBindMem_v2(
    real: cuda_fn::cuMulticastBindMem_v2,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
    offset: usize,
    mem_handle: CUmemGenericAllocationHandle,
    mem_offset: usize,
    size: usize,
    flags: u64,
) -> CUresult {
    let mut call = || unsafe { real(multicast, dev, offset, mem_handle, mem_offset, size, flags) };
    bind(multicast, &|| physical::pin_handle(mem_handle), Some(dev), offset, size, &mut call)
}

pub unsafe fn cuMulticastBindAddr(
    real: cuda_fn::cuMulticastBindAddr,
    multicast: CUmemGenericAllocationHandle,
    offset: usize,
    dptr: CUdeviceptr,
    size: usize,
    flags: u64,
) -> CUresult {
    let mut call = || unsafe { real(multicast, offset, dptr, size, flags) };
    bind(multicast, &|| physical::pin_at(dptr), None, offset, size, &mut call)
}

pub unsafe fn cuMulticastBindAddr_v2(
    real: cuda_fn::cuMulticastBindAddr_v2,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
    offset: usize,
    dptr: CUdeviceptr,
    size: usize,
    flags: u64,
) -> CUresult {
    let mut call = || unsafe { real(multicast, dev, offset, dptr, size, flags) };
    bind(multicast, &|| physical::pin_at(dptr), Some(dev), offset, size, &mut call)
}

pub unsafe fn cuMulticastUnbind(
    real: cuda_fn::cuMulticastUnbind,
    multicast: CUmemGenericAllocationHandle,
    dev: CUdevice,
    offset: usize,
    size: usize,
) -> CUresult {
    let call = || unsafe { real(multicast, dev, offset, size) };
    if enforce::is_enforced() != Ok(true) {
        return call();
    }
    let Some(object) = physical::pin_handle(multicast) else { return call() };
    let result = call();
    if result.ok() {
        let device = table::by_cuda(dev).map(|device| device.index);
        release_all(physical::note_unbound(&object, device, offset as u64, size as u64));
    }
    release_all(physical::unpin_unused(object));
    result
}
