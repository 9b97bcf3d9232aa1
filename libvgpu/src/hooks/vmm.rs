//! Virtual memory: the charge belongs to the physical allocation and ends with the last thing that names it
//! (`physical`). Reserving addresses costs nothing and is not hooked; host memory is never charged to a device, and
//! neither is a multicast object: it is a way to memory that is bound to it, which is charged where it was made.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on as they came;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use crate::device::{self, Device};
use crate::driver::{Call, own};
use crate::enforce;
use crate::holdings::Holding;
use crate::mode::Denied;
use crate::physical::{self, Ended};
use crate::share::{self, Share};
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::charging;
use vgpu_core::ledger::Reservation;

fn release_all(ended: Ended) {
    ended.into_iter().for_each(device::release);
}

/// The device and the granularity a physical allocation is charged by; `None`: it is not a device's, or not ours.
fn charged_device(prop: *const CUmemAllocationProp) -> Option<(&'static Device, u64)> {
    // The driver reads the struct too; null is its error to report.
    let location = unsafe { prop.as_ref()? }.location;
    if location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return None;
    }
    let device = device::by_cuda(location.id)?;
    let mut granularity = 0;
    let known = unsafe { own::cuMemGetAllocationGranularity()?(&raw mut granularity, prop, 0) }.ok();
    Some((device, if known { granularity as u64 } else { 2 << 20 }))
}

pub unsafe fn cuMemCreate(
    real: cuda_fn::cuMemCreate,
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    let call = || unsafe { real(handle, bytes, prop, flags) };
    match enforce::enforced() {
        Ok(false) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let charge = charged_device(prop).and_then(|(device, granularity)| {
        let bytes = charging::physical(bytes as u64, granularity)?;
        Some((device, bytes))
    });
    let Some((device, bytes)) = charge else {
        let result = call();
        if result.ok() {
            // Its handle may have been another's whose release has not returned here yet.
            physical::created(unsafe { *handle }, None);
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
        physical::created(unsafe { *handle }, Some(Holding { bytes, device: device.index, context: 0 }));
    }
    result
}

pub unsafe fn cuMemRelease(real: cuda_fn::cuMemRelease, handle: CUmemGenericAllocationHandle) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return unsafe { real(handle) };
    }
    let releasing = physical::releasing(handle);
    let result = unsafe { real(handle) };
    match releasing {
        Some(releasing) if result.ok() => release_all(releasing.done()),
        Some(releasing) => releasing.failed(),
        None => {}
    }
    result
}

pub unsafe fn cuMemRetainAllocationHandle(
    real: cuda_fn::cuMemRetainAllocationHandle,
    handle: *mut CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return unsafe { real(handle, addr) };
    }
    let pin = physical::pin_at(addr as u64);
    let result = unsafe { real(handle, addr) };
    if let Some(pin) = pin {
        release_all(if result.ok() { physical::retained(pin, unsafe { *handle }) } else { physical::unpin(pin) });
    }
    result
}

/// What a mapping shows of imported memory and is not charged yet.
enum Due {
    Nothing,
    ToShare(Share, Option<Reservation<'static>>),
    Own(&'static Device, u64, Reservation<'static>),
}

impl Due {
    /// Sets aside what a mapping of the first `shown` bytes owes.
    fn of(pin: &physical::Pin, shown: u64) -> Result<Self, CUresult> {
        if let Some(share) = physical::holding(pin).and_then(|holding| holding.share()) {
            return Ok(Self::ToShare(share, share::set_aside(share, shown)?));
        }
        let owed = physical::owed(pin, shown);
        match owed.and_then(|(number, more)| Some((device::at(usize::from(number))?, more))) {
            Some((device, more)) => Ok(Self::Own(device, more, device.reserve(more)?)),
            None => Ok(Self::Nothing),
        }
    }

    /// The driver has mapped it.
    fn pay(self, pin: &physical::Pin, shown: u64) {
        match self {
            Self::Nothing => {}
            Self::ToShare(share, aside) => share::pay(share, shown, aside),
            Self::Own(device, more, reservation) => {
                reservation.commit();
                device.release(physical::paid(pin, shown, more));
            }
        }
    }
}

/// Another tenant's memory is charged here, when its size is known.
pub unsafe fn cuMemMap(
    real: cuda_fn::cuMemMap,
    dptr: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    let call = || unsafe { real(dptr, bytes, offset, handle, flags) };
    match enforce::enforced() {
        Ok(false) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let Some(pin) = physical::pin(handle) else { return call() };
    let bytes = bytes as u64;
    let shown = bytes.saturating_add(offset as u64);
    let due = match Due::of(&pin, shown) {
        Ok(due) => due,
        Err(refused) => {
            release_all(physical::unpin(pin));
            return refused;
        }
    };
    let result = call();
    if !result.ok() {
        release_all(physical::unpin(pin));
        return result;
    }
    due.pay(&pin, shown);
    physical::mapped(pin, dptr, bytes);
    result
}

pub unsafe fn cuMemUnmap(real: cuda_fn::cuMemUnmap, dptr: CUdeviceptr, bytes: usize) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return unsafe { real(dptr, bytes) };
    }
    let unmapping = physical::unmapping(dptr, bytes as u64);
    let result = unsafe { real(dptr, bytes) };
    if result.ok() {
        release_all(unmapping.done());
    } else {
        unmapping.failed();
    }
    result
}

/// As many tiles are named before the driver is asked. A longer list is read when the driver has judged it: a count may be
/// nonsense, and what is told to us then is not worth gigabytes of copies, or memory that is not there.
const TILES_BEFORE: usize = 65_536;

/// Tiles of sparse arrays show physical memory, as mappings of addresses do.
///
/// The operations are queued, the names are counted at once: what is unmapped in stream order may be charged no longer
/// while the stream has not come to it. The driver frees nothing before that either, but only for as long as it takes.
fn map_arrays(list: *mut CUarrayMapInfo, count: u32, real: Call<'_>) -> CUresult {
    if list.is_null() || enforce::enforced() != Ok(true) {
        return real();
    }
    let count = count as usize;
    let pin = |one: &CUarrayMapInfo| {
        let maps = one.memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        if maps { physical::pin(one.memHandle) } else { None }
    };
    if count > TILES_BEFORE {
        let result = real();
        if result.ok() {
            // The driver has read so many.
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

/// One operation on a tile, and what it maps, when the driver has answered.
fn note_tile(one: &CUarrayMapInfo, pin: Option<physical::Pin>, done: bool) {
    let array = one.resource as usize;
    let [a, b, c, d] = one.subresource;
    let part = [u64::from(one.subresourceType), a, b, c, d];
    match pin {
        Some(pin) if done => release_all(physical::tile_mapped(pin, array, part)),
        Some(pin) => release_all(physical::unpin(pin)),
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

/// Ends a sparse array, and with it what its tiles show.
pub fn with_tiles(array: usize, real: Call<'_>) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return real();
    }
    let tiles = physical::array_ending(array);
    let result = real();
    if result.ok() {
        release_all(tiles.done());
    } else {
        tiles.failed();
    }
    result
}

/// A multicast object is known here for the memory that is bound to it.
pub unsafe fn cuMulticastCreate(
    real: cuda_fn::cuMulticastCreate,
    multicast: *mut CUmemGenericAllocationHandle,
    prop: *const CUmulticastObjectProp,
) -> CUresult {
    let result = unsafe { real(multicast, prop) };
    if result.ok() && enforce::enforced() == Ok(true) {
        physical::created(unsafe { *multicast }, None);
    }
    result
}

/// Binds memory that is found by `memory` to a multicast object, which keeps it as a mapping does.
fn bind(
    object: CUmemGenericAllocationHandle,
    memory: &dyn Fn() -> Option<physical::Pin>,
    dev: Option<CUdevice>,
    offset: usize,
    bytes: usize,
    real: Call<'_>,
) -> CUresult {
    if enforce::enforced() != Ok(true) {
        return real();
    }
    let pins = (physical::pin(object), memory());
    let result = real();
    match pins {
        (Some(object), Some(memory)) if result.ok() => {
            let device = match dev {
                Some(dev) => device::by_cuda(dev).map(|device| device.index),
                None => number_of_device(&memory),
            };
            release_all(physical::bound(object, memory, device, offset as u64, bytes as u64));
        }
        (object, memory) => object.into_iter().chain(memory).map(physical::unpin).for_each(release_all),
    }
    result
}

/// The device that an allocation is on, if it has limits.
fn number_of_device(memory: &physical::Pin) -> Option<u8> {
    let holding = physical::holding(memory)?;
    holding.share().map_or(Some(holding.device), share::device_of)
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
    bind(multicast, &|| physical::pin(mem_handle), None, offset, size, &mut call)
}

#[allow(clippy::too_many_arguments)] // the driver's own
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
    bind(multicast, &|| physical::pin(mem_handle), Some(dev), offset, size, &mut call)
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
    if enforce::enforced() != Ok(true) {
        return call();
    }
    let Some(object) = physical::pin(multicast) else { return call() };
    let result = call();
    if result.ok() {
        let device = device::by_cuda(dev).map(|device| device.index);
        release_all(physical::unbound(&object, device, offset as u64, size as u64));
    }
    release_all(physical::unpin(object));
    result
}
