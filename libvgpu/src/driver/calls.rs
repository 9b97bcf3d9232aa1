//! Our own calls of the driver and NVML, with outputs in locals. Calls with the program's arguments are in `hooks`.
//!
//! A handle that is ended here is one that the driver has just given to the caller, and that the program does not know.

use super::own;
use super::streams::{StreamId, without_captures};
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlProcessUtilizationSample_t, nvmlReturn_t};
use shim_sys::table::cuda_fn;

/// CUDA's pointer attribute for the memory type: host or device.
const POINTER_MEMORY_TYPE: u32 = 2;
/// CUDA's pointer attribute for the ordinal of the device.
const POINTER_DEVICE_ORDINAL: u32 = 9;
/// Maximum number of NVML's samples that are read at once.
const MAX_SAMPLES: u32 = 256;

/// The current context; null: there is none. `None`: the driver does not answer.
#[inline]
pub fn current_context() -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: a pointer to a local.
    unsafe { own::cuCtxGetCurrent()?(&raw mut context) }.ok().then_some(context)
}

/// Whether the primary context of a device exists.
pub fn is_primary_active(dev: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: pointers to locals.
    let known = own::cuDevicePrimaryCtxGetState()
        .is_some_and(|state| unsafe { state(dev, &raw mut flags, &raw mut active) }.ok());
    known && active != 0
}

/// The primary context of a device on which it is active. The driver returns the handle only from a retain, so it is
/// retained and released.
pub fn active_primary(dev: CUdevice) -> CUcontext {
    let mut context = CUcontext::NULL;
    if let (Some(retain), Some(_)) = (own::cuDevicePrimaryCtxRetain(), own::cuDevicePrimaryCtxRelease_v2())
        // SAFETY: a pointer to a local.
        && unsafe { retain(&raw mut context, dev) }.ok()
    {
        release_primary(dev);
        return context;
    }
    CUcontext::NULL
}

/// Releases the primary context of a device, which the caller has just retained.
pub fn release_primary(dev: CUdevice) {
    if let Some(release) = own::cuDevicePrimaryCtxRelease_v2() {
        // SAFETY: it ends the caller's own retain.
        let _ = unsafe { release(dev) };
    }
}

/// Destroys a context; false: the driver refuses.
pub fn destroy_context(context: CUcontext) -> bool {
    // SAFETY: a context that the driver has just given to the caller.
    own::cuCtxDestroy_v2().is_some_and(|destroy| unsafe { destroy(context) }.ok())
}

/// Destroys a green context.
pub fn destroy_green_context(green: CUgreenCtx) {
    if let Some(destroy) = own::cuGreenCtxDestroy() {
        // SAFETY: as in `destroy_context`.
        let _ = unsafe { destroy(green) };
    }
}

/// The context that stands for a living green one.
pub fn context_of_green(green: CUgreenCtx) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: a green context that the program is about to destroy; a pointer to a local.
    unsafe { own::cuCtxFromGreenCtx()?(&raw mut context, green) }.ok().then_some(context)
}

/// Unloads a module.
pub fn unload_module(module: CUmodule) {
    if let Some(unload) = own::cuModuleUnload() {
        // SAFETY: a module that the driver has just given to the caller.
        let _ = unsafe { unload(module) };
    }
}

/// Unloads a library.
pub fn unload_library(library: CUlibrary) {
    if let Some(unload) = own::cuLibraryUnload() {
        // SAFETY: a library that the driver has just given to the caller.
        let _ = unsafe { unload(library) };
    }
}

/// The current value of a limit of the current context.
pub fn context_limit(limit: u32) -> Option<u64> {
    let mut value = 0;
    // SAFETY: a pointer to a local.
    unsafe { own::cuCtxGetLimit()?(&raw mut value, limit) }.ok().then_some(value as u64)
}

/// Frees an allocation that the driver has just made and that the program does not know.
pub fn free_allocation(address: CUdeviceptr) {
    if let Some(free) = own::cuMemFree_v2() {
        // SAFETY: nobody else knows the allocation.
        let _ = unsafe { free(address) };
    }
}

/// As [`free_allocation`], in the order of the stream in which it was made.
pub fn free_in_order(address: CUdeviceptr, order: StreamId) {
    // SAFETY: as above, and the stream of a call that has just used it.
    let _ = unsafe {
        if order.per_thread {
            own::cuMemFreeAsync_ptsz().map(|free| free(address, order.stream))
        } else {
            own::cuMemFreeAsync().map(|free| free(address, order.stream))
        }
    };
}

/// Closes an imported address that the driver has just opened and that the program does not know.
pub fn close_import(address: CUdeviceptr) {
    if let Some(close) = own::cuIpcCloseMemHandle() {
        // SAFETY: nobody else knows the address.
        let _ = unsafe { close(address) };
    }
}

/// Whether the driver knows no memory at an address. `None`: it cannot be asked.
pub fn is_unknown_address(address: CUdeviceptr) -> Option<bool> {
    let mut kind = 0u32;
    // SAFETY: the attribute is an `unsigned`, and the address need not be one.
    let asked = unsafe { own::cuPointerGetAttribute()?((&raw mut kind).cast(), POINTER_MEMORY_TYPE, address) };
    Some(asked == CUresult::INVALID_VALUE)
}

/// Whether the driver knows an address as device memory. The call disturbs no capture.
pub fn is_device(address: CUdeviceptr) -> bool {
    const DEVICE_MEMORY: u32 = 2;
    let mut kind = 0u32;
    let ask = |ask: cuda_fn::cuPointerGetAttribute| {
        // SAFETY: a pointer to a local; an unknown address is an error.
        without_captures(|| unsafe { ask((&raw mut kind).cast(), POINTER_MEMORY_TYPE, address) }).ok()
    };
    own::cuPointerGetAttribute().is_some_and(ask) && kind == DEVICE_MEMORY
}

/// The ordinal of the device that an address is on.
pub fn device_of_pointer(address: CUdeviceptr) -> Option<CUdevice> {
    let mut dev: CUdevice = -1;
    let into = core::ptr::from_mut(&mut dev).cast::<c_void>();
    // SAFETY: the attribute is an `int`, and the address need not be one.
    unsafe { own::cuPointerGetAttribute()?(into, POINTER_DEVICE_ORDINAL, address) }.ok().then_some(dev)
}

/// The address and the bytes of the allocation around an address.
pub fn range_of(address: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: pointers to locals; an unknown address is an error.
    let asked = unsafe { own::cuMemGetAddressRange_v2()?(&raw mut base, &raw mut bytes, address) };
    asked.ok().then_some((base, bytes as u64))
}

/// Where the memory of a physical allocation is.
pub fn location_of(handle: CUmemGenericAllocationHandle) -> Option<CUmemLocation> {
    let mut prop = core::mem::MaybeUninit::<CUmemAllocationProp>::zeroed();
    // SAFETY: a handle of a call that has just used it, and a pointer to a local.
    if !unsafe { own::cuMemGetAllocationPropertiesFromHandle()?(prop.as_mut_ptr(), handle) }.ok() {
        return None;
    }
    // SAFETY: zeroed, then written by the driver: any bytes are valid for it.
    Some(unsafe { prop.assume_init() }.location)
}

/// The smallest unit of physical allocations like this.
pub fn granularity_of(prop: &CUmemAllocationProp) -> Option<u64> {
    let mut granularity = 0;
    // SAFETY: a pointer to a local.
    unsafe { own::cuMemGetAllocationGranularity()?(&raw mut granularity, prop, 0) }.ok().then_some(granularity as u64)
}

/// Free and total memory of the current device.
pub fn memory_info() -> Option<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: pointers to locals.
    unsafe { own::cuMemGetInfo_v2()?(&raw mut free, &raw mut total) }.ok().then_some((free as u64, total as u64))
}

/// Total memory of a device, by its CUDA ordinal. CUDA must be initialised.
pub fn total_memory(dev: CUdevice) -> Option<u64> {
    let mut total = 0;
    // SAFETY: a pointer to a local; an unknown ordinal is an error.
    unsafe { own::cuDeviceTotalMem_v2()?(&raw mut total, dev) }.ok().then_some(total as u64)
}

/// Undoes an initialisation of NVML.
pub fn shut_nvml_down() {
    if let Some(shutdown) = own::nvmlShutdown() {
        // SAFETY: paired with an initialisation that has just succeeded.
        let _ = unsafe { shutdown() };
    }
}

/// The boards, in NVML's order. NVML must be initialised.
pub fn nvml_boards() -> Vec<nvmlDevice_t> {
    let (Some(count_of), Some(handle_of)) = (own::nvmlDeviceGetCount_v2(), own::nvmlDeviceGetHandleByIndex_v2()) else {
        return Vec::new();
    };
    let mut count = 0;
    // SAFETY: here and below NVML is initialised, and pointers are to locals.
    if !unsafe { count_of(&raw mut count) }.ok() {
        return Vec::new();
    }
    let handle = |index| {
        let mut dev = nvmlDevice_t(core::ptr::null_mut());
        // SAFETY: as above.
        unsafe { handle_of(index, &raw mut dev) }.ok().then_some(dev)
    };
    (0..count).filter_map(handle).collect()
}

/// The memory of a device by NVML's handle, and NVML's result.
pub fn nvml_memory(dev: nvmlDevice_t) -> Option<(nvmlReturn_t, nvmlMemory_t)> {
    let mut memory = nvmlMemory_t::default();
    // SAFETY: a handle of a call that has just used it, and a pointer to a local.
    let result = unsafe { own::nvmlDeviceGetMemoryInfo()?(dev, &raw mut memory) };
    Some((result, memory))
}

/// NVML's samples of the processes on a device.
pub fn nvml_samples(dev: nvmlDevice_t, since: u64) -> Vec<nvmlProcessUtilizationSample_t> {
    let Some(ask) = own::nvmlDeviceGetProcessUtilization() else { return Vec::new() };
    let mut all = vec![nvmlProcessUtilizationSample_t::default(); MAX_SAMPLES as usize];
    let mut count = MAX_SAMPLES;
    // SAFETY: as above; the buffer has the given length.
    if !unsafe { ask(dev, all.as_mut_ptr(), &raw mut count, since) }.ok() {
        return Vec::new();
    }
    all.truncate(count as usize);
    all
}
