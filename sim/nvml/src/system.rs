//! Queries about the driver as a whole: versions, process names, and hardware that no simulated machine has.

use crate::{
    door::{Answer, Out, code},
    machine,
};
use core::ffi::{c_char, c_void};
use vgpu_sim::release::Release;

pub fn nvmlSystemGetDriverVersion(text: Out<c_char>, len: u32) -> Answer {
    text.put_text(len, Release::current().driver)
}

pub fn nvmlSystemGetNVMLVersion(text: Out<c_char>, len: u32) -> Answer {
    text.put_text(len, Release::current().nvml)
}

pub fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) -> Answer {
    version.put(Release::current().cuda)
}

pub fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> Answer {
    version.put(Release::current().cuda)
}

/// The name is cut to the caller's buffer, as in the real library; a process that never used a device is not
/// found.
pub fn nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, len: u32) -> Answer {
    if name.is_null() || len == 0 {
        return Err(code::INVALID);
    }
    let full = machine::process_name(pid).ok_or(code::NOT_FOUND)?;
    let mut cut = full.len().min(len as usize - 1);
    while !full.is_char_boundary(cut) {
        cut -= 1;
    }
    name.put_text(len, &full[..cut])
}

pub fn nvmlUnitGetCount(count: Out<u32>) -> Answer {
    count.put(0)
}

pub fn nvmlGetExcludedDeviceCount(count: Out<u32>) -> Answer {
    count.put(0)
}

pub fn nvmlSystemGetHicVersion(count: Out<u32>, _entries: Out<c_void>) -> Answer {
    count.put(0)
}
