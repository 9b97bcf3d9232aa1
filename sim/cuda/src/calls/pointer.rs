//! Queries about a pointer.

use crate::content::{AllocationKind, OwnerTag};
use crate::driver::SimulatedDriver;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use crate::objects::object_handle;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::fs::File;
use std::os::fd::IntoRawFd;

/// Bytes of a page of the host, to which a range for other devices is aligned.
const HOST_PAGE: u64 = 4096;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_DESCRIPTOR: u32 = 1;

/// The memory that a pointer refers to.
struct PointerTarget {
    base: u64,
    bytes: u64,
    number: u64,
    /// Memory type: 1 host, 2 device.
    kind: u32,
    device: i32,
    tag: Option<OwnerTag>,
    mapped: bool,
    /// True if the allocation can have a legacy IPC handle.
    legacy: bool,
    /// Number of the pool that the allocation comes from.
    pool: u64,
    /// Types of handles to which the allocation may be exported.
    handle_types: u32,
    /// True if the pointer is to managed memory.
    managed: bool,
}

impl Default for PointerTarget {
    fn default() -> PointerTarget {
        PointerTarget {
            base: 0,
            bytes: 0,
            number: 0,
            kind: 2,
            device: 0,
            tag: None,
            mapped: false,
            legacy: false,
            pool: 0,
            handle_types: 0,
            managed: false,
        }
    }
}

fn target_of(driver: &SimulatedDriver, at: u64) -> Option<PointerTarget> {
    let none = PointerTarget::default();
    if let Some((base, r)) = driver.managed.find(at) {
        let (bytes, number, device, tag) = (r.bytes, r.number, r.device, Some(r.tag));
        return Some(PointerTarget { base, bytes, number, device, tag, managed: true, ..none });
    }
    let t = driver.memory.lock_tables();
    if let Some((base, a)) = t.live.range(..=at).next_back().filter(|(b, a)| at < **b + a.len) {
        let (base, bytes, number, device, tag) = (*base, a.bytes, a.number, a.device, Some(a.tag));
        let legacy = a.kind == AllocationKind::Plain;
        return Some(PointerTarget { base, bytes, number, device, tag, legacy, pool: a.pool, ..none });
    }
    if let Some((base, m)) = t.mapping_at(at) {
        let p = t.physical.get(&m.handle)?;
        let kind = if p.device.is_some() { 2 } else { 1 };
        let (device, handle_types) = (p.device.unwrap_or(-1), p.handle_types);
        return Some(PointerTarget {
            base,
            bytes: m.len,
            number: m.handle,
            kind,
            device,
            mapped: true,
            handle_types,
            ..none
        });
    }
    let (base, h) = t.host.range(..=at).next_back().filter(|(b, h)| at < **b + h.len)?;
    Some(PointerTarget { base: *base, bytes: h.len, number: *base, kind: 1, tag: Some(h.tag), ..none })
}

unsafe fn answer_attribute(
    driver: &SimulatedDriver,
    data: *mut c_void,
    attribute: u32,
    at: u64,
    x: Option<&PointerTarget>,
) -> CallResult {
    let invalid = CUresult::INVALID_VALUE;
    let managed = x.is_some_and(|x| x.managed);
    let host = managed || x.is_some_and(|x| x.kind == 1);
    unsafe {
        match attribute {
            1 => {
                let x = x.ok_or(invalid)?;
                let all = driver.contexts.find(|c| x.tag == Some(OwnerTag(c.number)));
                write_output(data.cast(), all.map_or(core::ptr::null_mut(), |c| object_handle(&c)))
            }
            2 => write_output(data.cast(), x.ok_or(invalid)?.kind),
            3 => x.map_or(Err(invalid), |_| write_output(data.cast(), at)),
            4 if host => write_output(data.cast(), at),
            4 => Err(invalid),
            5 => Err(CUresult::NOT_SUPPORTED),
            6 => write_output(data.cast(), 0u32),
            7 => write_output(data.cast(), x.ok_or(invalid)?.number),
            8 => write_output(data.cast(), u32::from(managed)),
            9 => write_output(data.cast(), x.ok_or(invalid)?.device),
            10 => write_output(data.cast(), u32::from(x.is_some_and(|x| x.legacy))),
            11 => write_output(data.cast(), x.ok_or(invalid)?.base),
            12 => write_output(data.cast(), x.ok_or(invalid)?.bytes),
            13 => write_output(data.cast(), u32::from(x.is_some_and(|x| x.mapped))),
            14 => write_output(data.cast(), x.map_or(0, |x| x.handle_types)),
            15 => write_output(data.cast(), 0u32),
            16 => write_output(data.cast(), if x.is_some() { 3u32 } else { 0 }),
            17 => {
                let number = x.map_or(0, |x| x.pool);
                let pool = driver.pools.find(|p| number != 0 && p.number == number);
                write_output(data.cast(), pool.map_or(core::ptr::null_mut(), |p| object_handle(&p)))
            }
            18 => write_output(data.cast(), x.ok_or(invalid)?.bytes),
            19 => write_output(data.cast(), x.ok_or(invalid)?.base),
            20 => write_output(data.cast(), x.ok_or(invalid)?.number),
            _ => Err(invalid),
        }
    }
}

pub(crate) unsafe fn cuPointerGetAttribute(
    d: &CallFrame,
    data: *mut c_void,
    attribute: u32,
    ptr: CUdeviceptr,
) -> CallResult {
    d.current_context()?;
    if data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let x = target_of(driver, ptr).ok_or(CUresult::INVALID_VALUE)?;
    unsafe { answer_attribute(driver, data, attribute, ptr, Some(&x)) }
}

/// Unlike the query of a single attribute, an unknown pointer is no error here: its results are null.
pub(crate) unsafe fn cuPointerGetAttributes(
    d: &CallFrame,
    count: u32,
    attributes: *mut u32,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> CallResult {
    if count == 0 || attributes.is_null() || data.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let driver = d.initialised_driver()?;
    let x = target_of(driver, ptr);
    for i in 0..count as usize {
        unsafe {
            let (attribute, to) = (attributes.add(i).read(), data.add(i).read());
            if answer_attribute(driver, to, attribute, ptr, x.as_ref()).is_err() {
                match attribute {
                    1 | 3 | 4 | 7 | 11 | 12 | 17..=20 => write_output(to.cast(), 0u64)?,
                    9 => write_output(to.cast(), -2i32)?,
                    _ => write_output(to.cast(), 0u32)?,
                }
            }
        }
    }
    Ok(())
}

/// A descriptor for devices of other vendors. It names the range, keeps nothing alive, and nothing here imports it.
pub(crate) unsafe fn cuMemGetHandleForAddressRange(
    d: &CallFrame,
    handle: *mut c_void,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: u32,
    flags: u64,
) -> CallResult {
    let bytes = size as u64;
    let whole_pages = dptr.is_multiple_of(HOST_PAGE) && bytes.is_multiple_of(HOST_PAGE) && bytes > 0;
    let end = dptr.checked_add(bytes).ok_or(CUresult::INVALID_VALUE)?;
    let inside = |x: &PointerTarget| x.kind == 2 && end <= x.base + x.bytes.next_multiple_of(HOST_PAGE);
    let target = target_of(d.initialised_driver()?, dptr).filter(inside);
    if handle.is_null() || handle_type != DMA_BUF_DESCRIPTOR || flags > 1 || !whole_pages || target.is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    let descriptor = File::open("/dev/null").map_err(|_| CUresult(304))?;
    unsafe { write_output(handle.cast::<i32>(), descriptor.into_raw_fd()) }
}

/// The only attribute that can be set (synchronous operations) has no effect here.
pub(crate) unsafe fn cuPointerSetAttribute(
    d: &CallFrame,
    value: *const c_void,
    attribute: u32,
    ptr: CUdeviceptr,
) -> CallResult {
    if value.is_null() || attribute != 6 || target_of(d.initialised_driver()?, ptr).is_none() {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(())
}
