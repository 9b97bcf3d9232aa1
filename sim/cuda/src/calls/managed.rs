//! Managed memory: allocation, advice, prefetches, queries.
//!
//! Not here: the stored advice (`crate::managed`), freeing (`memory`, with all other pointers), batches of
//! prefetches.

use crate::content::OwnerTag;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::managed::{PageAdvice, old_name};
use core::ffi::c_void;
use shim_sys::cuda::*;
use vgpu_sim::engine::WorkKind;

/// The host, in the older calls.
const HOST_ORDINAL: i32 = -1;
/// No device: the result when pages differ.
const MIXED_DEVICES: i32 = -2;

pub(crate) unsafe fn cuMemAllocManaged(d: &CallFrame, dptr: *mut CUdeviceptr, bytes: usize, flags: u32) -> CallResult {
    if dptr.is_null() || ![1, 2].contains(&flags) {
        return Err(CUresult::INVALID_VALUE);
    }
    let (driver, c) = (d.initialised_driver()?, d.current_context()?);
    unsafe {
        write_output(dptr, driver.managed.alloc(&driver.memory, c.device, bytes as u64, OwnerTag(c.number), flags)?)
    }
}

/// A location of the older calls.
fn location_of_ordinal(d: &CallFrame, device: i32) -> Result<CUmemLocation, CUresult> {
    if device == HOST_ORDINAL {
        return Ok(CUmemLocation { kind: CU_MEM_LOCATION_TYPE_HOST, id: 0 });
    }
    d.initialised_driver()?.device_of_ordinal(device)?;
    Ok(CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device })
}

/// A location of the newer calls.
fn check_location(d: &CallFrame, l: CUmemLocation) -> Result<CUmemLocation, CUresult> {
    match l.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => d.initialised_driver()?.device_of_ordinal(l.id).map(|_| l),
        CU_MEM_LOCATION_TYPE_HOST => Ok(CUmemLocation { id: 0, ..l }),
        CU_MEM_LOCATION_TYPE_HOST_NUMA if l.id >= 0 => Ok(l),
        CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(CUmemLocation { id: 0, ..l }),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn advise_range(
    d: &CallFrame,
    at: u64,
    bytes: usize,
    advice: u32,
    place: impl FnOnce() -> Result<CUmemLocation, CUresult>,
) -> CallResult {
    d.current_context()?;
    if !(1..=6).contains(&advice) {
        return Err(CUresult::INVALID_VALUE);
    }
    // The read-mostly advice, and unsetting the preferred location, need no location.
    let l = if [1, 2, 4].contains(&advice) { CUmemLocation::default() } else { place()? };
    d.initialised_driver()?.managed.change_advice(at, bytes as u64, |a| match advice {
        1 | 2 => a.read_mostly = advice == 1,
        3 => a.preferred = Some(l),
        4 => a.preferred = None,
        5 => _ = a.accessed.insert(old_name(l)),
        _ => _ = a.accessed.remove(&old_name(l)),
    })
}

pub(crate) unsafe fn cuMemAdvise(
    d: &CallFrame,
    dptr: CUdeviceptr,
    count: usize,
    advice: u32,
    device: CUdevice,
) -> CallResult {
    advise_range(d, dptr, count, advice, || location_of_ordinal(d, device))
}

pub(crate) unsafe fn cuMemAdvise_v2(
    d: &CallFrame,
    dptr: CUdeviceptr,
    count: usize,
    advice: u32,
    location: CUmemLocation,
) -> CallResult {
    advise_range(d, dptr, count, advice, || check_location(d, location))
}

fn prefetch_range(d: &CallFrame, at: u64, bytes: usize, to: CUmemLocation, stream: CUstream) -> CallResult {
    let (c, id) = d.resolve_stream(stream)?;
    let driver = d.initialised_driver()?;
    let before = driver.managed.advice_of(at, bytes as u64)?;
    driver.managed.change_advice(at, bytes as u64, |a| a.prefetched = Some(to))?;
    let device = driver.device_of_ordinal(c.device)?;
    // Pages that are already at the destination do not move.
    let there = before.iter().all(|a| a.prefetched == Some(to));
    let p = &device.profile;
    let ns = if there { 0 } else { p.copy_time(bytes as u64, p.host_bytes_per_us) };
    device.engine.enqueue_work(id, ns, WorkKind::Other, None::<fn()>);
    Ok(())
}

pub(crate) unsafe fn cuMemPrefetchAsync(
    d: &CallFrame,
    dptr: CUdeviceptr,
    count: usize,
    dst: CUdevice,
    stream: CUstream,
) -> CallResult {
    d.current_context()?;
    prefetch_range(d, dptr, count, location_of_ordinal(d, dst)?, stream)
}

pub(crate) unsafe fn cuMemPrefetchAsync_v2(
    d: &CallFrame,
    dptr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> CallResult {
    d.current_context()?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    prefetch_range(d, dptr, count, check_location(d, location)?, stream)
}

pub(crate) unsafe fn cuStreamAttachMemAsync(
    d: &CallFrame,
    stream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> CallResult {
    d.resolve_stream(stream)?;
    let own = stream.is_null() || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    // An attachment to a single stream needs a created stream.
    if ![1, 2, 4].contains(&flags) || (flags == 4 && own) {
        return Err(CUresult::INVALID_VALUE);
    }
    d.initialised_driver()?.managed.attach_allocation(dptr, length as u64, flags)
}

/// The value on which all pages agree.
fn common_value<T: PartialEq + Clone>(all: &[PageAdvice], what: impl Fn(&PageAdvice) -> T) -> Option<T> {
    let first = what(all.first()?);
    all.iter().all(|a| what(a) == first).then_some(first)
}

unsafe fn answer_attribute(all: &[PageAdvice], data: *mut c_void, size: usize, attribute: u32) -> CallResult {
    let invalid = CUresult::INVALID_VALUE;
    if data.is_null() {
        return Err(invalid);
    }
    let preferred = || common_value(all, |a| a.preferred).flatten();
    let prefetched = || common_value(all, |a| a.prefetched).flatten();
    let kind = |l: Option<CUmemLocation>| l.map_or(0, |l| i32::try_from(l.kind).unwrap_or(0));
    let value = match attribute {
        1 => i32::from(all.iter().all(|a| a.read_mostly)),
        2 => preferred().map_or(MIXED_DEVICES, old_name),
        4 => prefetched().map_or(MIXED_DEVICES, old_name),
        5 => kind(preferred()),
        6 => preferred().map_or(0, |l| l.id),
        7 => kind(prefetched()),
        8 => prefetched().map_or(0, |l| l.id),
        3 => {
            if size == 0 || !size.is_multiple_of(4) {
                return Err(invalid);
            }
            let everywhere = |n: &i32| all.iter().all(|a| a.accessed.contains(n));
            let mut named = all.first().map(|a| a.accessed.clone()).unwrap_or_default().into_iter().filter(everywhere);
            for i in 0..size / 4 {
                unsafe { data.cast::<i32>().add(i).write_unaligned(named.next().unwrap_or(MIXED_DEVICES)) };
            }
            return Ok(());
        }
        _ => return Err(invalid),
    };
    if size != 4 {
        return Err(invalid);
    }
    unsafe { write_output(data.cast(), value) }
}

pub(crate) unsafe fn cuMemRangeGetAttribute(
    d: &CallFrame,
    data: *mut c_void,
    size: usize,
    attribute: u32,
    dptr: CUdeviceptr,
    count: usize,
) -> CallResult {
    let all = d.initialised_driver()?.managed.advice_of(dptr, count as u64)?;
    unsafe { answer_attribute(&all, data, size, attribute) }
}

pub(crate) unsafe fn cuMemRangeGetAttributes(
    d: &CallFrame,
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut u32,
    how_many: usize,
    dptr: CUdeviceptr,
    count: usize,
) -> CallResult {
    if data.is_null() || sizes.is_null() || attributes.is_null() || how_many == 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let all = d.initialised_driver()?.managed.advice_of(dptr, count as u64)?;
    for i in 0..how_many {
        unsafe { answer_attribute(&all, data.add(i).read(), sizes.add(i).read(), attributes.add(i).read())? };
    }
    Ok(())
}
