//! Queries about the driver as a whole: versions, process names, and hardware that no simulated machine has.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine,
};
use core::ffi::{c_char, c_void};
use vgpu_sim::release::DriverRelease;

pub fn nvmlSystemGetDriverVersion(text: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    text.put_text(len, DriverRelease::current().driver)
}

pub fn nvmlSystemGetNVMLVersion(text: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    text.put_text(len, DriverRelease::current().nvml)
}

pub fn nvmlSystemGetCudaDriverVersion(version: CallerPlace<i32>) -> NvmlAnswer {
    version.put_value(DriverRelease::current().cuda)
}

pub fn nvmlSystemGetCudaDriverVersion_v2(version: CallerPlace<i32>) -> NvmlAnswer {
    version.put_value(DriverRelease::current().cuda)
}

/// The name is cut to the caller's buffer, as in the real library; a process that never used a device is not
/// found.
pub fn nvmlSystemGetProcessName(pid: u32, name: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    if name.is_null() || len == 0 {
        return Err(code::ERROR_INVALID);
    }
    let full = machine::process_name(pid).ok_or(code::NOT_FOUND)?;
    let mut cut = full.len().min(len as usize - 1);
    while !full.is_char_boundary(cut) {
        cut -= 1;
    }
    name.put_text(len, &full[..cut])
}

pub fn nvmlUnitGetCount(count: CallerPlace<u32>) -> NvmlAnswer {
    count.put_value(0)
}

pub fn nvmlGetExcludedDeviceCount(count: CallerPlace<u32>) -> NvmlAnswer {
    count.put_value(0)
}

pub fn nvmlSystemGetHicVersion(count: CallerPlace<u32>, _entries: CallerPlace<c_void>) -> NvmlAnswer {
    count.put_value(0)
}
