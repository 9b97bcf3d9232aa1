//! Lists the devices: CUDA's list, NVML's list, and the properties of each device.
//!
//! Ordinals are NVML's (PCI order, before CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER). If a limit has an ordinal or a
//! percentage, NVML is asked about CUDA's devices too. Both libraries then resolve the limit to the same bytes of the
//! same device. A MIG instance is a device of its own with its board's ordinal. A limit that names the board applies
//! to each instance of it; a percentage is of the instance's memory.

use super::table::Device;
use crate::driver::library::NVML;
use crate::driver::own;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use shim_sys::cuda::{CUdevice, CUuuid};
use shim_sys::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use vgpu_core::limits::{Quantity, RawLimits};

/// Properties of a device that CUDA or NVML reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its NVML index, if known.
    pub ordinal: Option<u32>,
    /// Its memory in bytes, from which limits in percent are computed. `None`: NVML does not tell it, because the
    /// device uses the host's memory.
    pub total: Option<u64>,
    /// Its CUDA ordinal, if CUDA showed it.
    pub cuda: Option<CUdevice>,
}

/// The devices as CUDA numbers them. Their ordinals come from NVML if a limit has an ordinal or a percentage.
pub fn cuda_devices(limits: &RawLimits) -> Result<Vec<DeviceFacts>, String> {
    // The first version returns the whole device's UUID where the second returns the MIG instance's.
    let uuid_of = own::cuDeviceGetUuid_v2().or(own::cuDeviceGetUuid());
    let (Some(count_of), Some(device_of), Some(uuid_of), Some(total_of)) =
        (own::cuDeviceGetCount(), own::cuDeviceGet(), uuid_of, own::cuDeviceTotalMem_v2())
    else {
        return Err("this driver is too old: it does not tell a device's UUID, so that no limit can be kept".into());
    };
    let mut count = 0;
    // SAFETY: here and below the driver is initialised and every pointer is to a local variable.
    if !unsafe { count_of(&raw mut count) }.ok() {
        return Err("the driver does not tell how many devices there are".into());
    }
    let mut facts = Vec::new();
    for ordinal in 0..count {
        let (mut dev, mut uuid, mut total): (CUdevice, CUuuid, usize) = (0, CUuuid::default(), 0);
        // SAFETY: as above.
        let known = unsafe {
            device_of(&raw mut dev, ordinal).ok()
                && uuid_of(&raw mut uuid, dev).ok()
                && total_of(&raw mut total, dev).ok()
        };
        if !known {
            return Err(format!("the driver does not describe device {ordinal}"));
        }
        facts.push(DeviceFacts { uuid: uuid.bytes, ordinal: None, total: Some(total as u64), cuda: Some(dev) });
    }
    if needs_nvml(limits) {
        let all = with_nvml(|| all_devices(limits)).unwrap_or_else(|| {
            Err("NVML (libnvidia-ml.so.1) cannot be used, so that ordinals and percentages of a device are not known; \
                 write a size for all devices instead"
                .into())
        })?;
        for fact in &mut facts {
            let Some(same) = all.iter().find(|other| other.uuid == fact.uuid) else {
                return Err(format!(
                    "NVML does not know the device {}, so that its ordinal is not known; write a size for all devices \
                     instead",
                    crate::ffi::uuid::uuid_text(&fact.uuid)
                ));
            };
            fact.ordinal = same.ordinal;
            fact.total = same.total;
        }
    }
    Ok(facts)
}

/// The devices as NVML numbers them, for a program that has initialised it. Checks first that every ordinal in a
/// limit exists.
pub fn all_devices(limits: &RawLimits) -> Result<Vec<DeviceFacts>, String> {
    let (count, facts) = nvml_devices()?;
    limits.check_devices(count).map_err(|e| e.to_string())?;
    Ok(facts)
}

fn needs_nvml(limits: &RawLimits) -> bool {
    limits.has_ordinals()
        || limits
            .written_variables()
            .any(|(variable, value)| variable.quantity == Quantity::Memory && value.contains('%'))
}

/// The number of boards, and the devices that can be described, as NVML numbers them: PCI order, before
/// CUDA_VISIBLE_DEVICES; the instances of a partitioned board follow it. NVML must be initialised.
fn nvml_devices() -> Result<(u32, Vec<DeviceFacts>), String> {
    let (Some(count_of), Some(handle_of)) = (own::nvmlDeviceGetCount_v2(), own::nvmlDeviceGetHandleByIndex_v2()) else {
        return Err("this NVML is too old: it does not tell a device's UUID, so that no limit can be kept".into());
    };
    let mut count = 0;
    // SAFETY: here and below NVML is initialised and every pointer is to a local variable.
    if !unsafe { count_of(&raw mut count) }.ok() {
        return Err("NVML does not tell how many devices there are".into());
    }
    let mut facts = Vec::new();
    // A device that is lost or not visible cannot be used either: it gets no limits, and its ordinal stays reserved.
    let mut describe = |handle, ordinal| {
        if let Some((total, uuid)) = total(handle).zip(nvml_uuid(handle)) {
            facts.push(DeviceFacts { uuid, ordinal: Some(ordinal), total, cuda: None });
        }
    };
    for ordinal in 0..count {
        let mut handle = nvmlDevice_t(core::ptr::null_mut());
        // SAFETY: as above.
        if unsafe { handle_of(ordinal, &raw mut handle) }.ok() {
            describe(handle, ordinal);
            mig_instances(handle).into_iter().for_each(|instance| describe(instance, ordinal));
        }
    }
    Ok((count, facts))
}

/// Bytes of a device that programs can use: NVML's total minus its reserved memory. This equals CUDA's total, and the
/// daemon takes percentages of it. A driver without the second version does not report its reserved memory. Inner
/// `None`: the device uses the host's memory, and NVML does not support the query. Outer `None`: the device is lost.
///
/// CUDA does tell a total there. It is not used for percentages: a program that initialises NVML alone, and the daemon,
/// would not know it.
fn total(handle: nvmlDevice_t) -> Option<Option<u64>> {
    let mut memory = nvmlMemory_v2_t { version: nvmlMemory_v2_t::VERSION, ..Default::default() };
    // SAFETY: here and below NVML is initialised and gave the handle; pointers are to locals.
    if own::nvmlDeviceGetMemoryInfo_v2().is_some_and(|ask| unsafe { ask(handle, &raw mut memory) }.ok()) {
        return Some(Some(memory.total.saturating_sub(memory.reserved)));
    }
    let mut memory = nvmlMemory_t::default();
    // SAFETY: as above.
    match unsafe { own::nvmlDeviceGetMemoryInfo()?(handle, &raw mut memory) } {
        nvmlReturn_t::SUCCESS => Some(Some(memory.total)),
        nvmlReturn_t::NOT_SUPPORTED => Some(None),
        _ => None,
    }
}

/// The MIG instances of a board; none if it is not partitioned or NVML does not support MIG.
pub fn mig_instances(board: nvmlDevice_t) -> Vec<nvmlDevice_t> {
    let (Some(most), Some(handle_of)) =
        (own::nvmlDeviceGetMaxMigDeviceCount(), own::nvmlDeviceGetMigDeviceHandleByIndex())
    else {
        return Vec::new();
    };
    let mut count = 0;
    // SAFETY: NVML is initialised and gave the handle; pointers are to locals.
    if !unsafe { most(board, &raw mut count) }.ok() {
        return Vec::new();
    }
    let handle = |index| {
        let mut handle = nvmlDevice_t(core::ptr::null_mut());
        // SAFETY: as above.
        unsafe { handle_of(board, index, &raw mut handle) }.ok().then_some(handle)
    };
    (0..count.min(64)).filter_map(handle).collect()
}

/// Handles by device number, valid while NVML stays initialised; 0: not looked up yet.
static NVML_HANDLES: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// NVML's handle of a device. NVML must stay initialised.
pub fn kept_handle(device: &Device) -> Option<nvmlDevice_t> {
    let kept = NVML_HANDLES.get(usize::from(device.index))?;
    match kept.load(Relaxed) {
        0 => {
            let handle = nvml_device(&device.uuid)?;
            kept.store(handle.0 as usize, Relaxed);
            Some(handle)
        }
        handle => Some(nvmlDevice_t(handle as *mut _)),
    }
}

/// The device with that UUID, an instance or a board. NVML must be initialised.
fn nvml_device(uuid: &[u8; 16]) -> Option<nvmlDevice_t> {
    let mut count = 0;
    // SAFETY: here and below NVML is initialised and pointers are to locals.
    if !unsafe { own::nvmlDeviceGetCount_v2()?(&raw mut count) }.ok() {
        return None;
    }
    let boards: Vec<nvmlDevice_t> = (0..count)
        .filter_map(|index| {
            let mut handle = nvmlDevice_t(core::ptr::null_mut());
            // SAFETY: as above.
            unsafe { own::nvmlDeviceGetHandleByIndex_v2()?(index, &raw mut handle) }.ok().then_some(handle)
        })
        .collect();
    let is = |handle: &nvmlDevice_t| nvml_uuid(*handle) == Some(*uuid);
    boards.iter().copied().find(is).or_else(|| boards.iter().flat_map(|board| mig_instances(*board)).find(is))
}

/// The UUID of an NVML device as bytes, without its prefix.
pub fn nvml_uuid(handle: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut text = [0 as c_char; 96];
    // SAFETY: a handle that NVML gave or the program passes; the buffer has the given length.
    if !unsafe { own::nvmlDeviceGetUUID()?(handle, text.as_mut_ptr(), 96) }.ok() {
        return None;
    }
    text[95] = 0;
    // SAFETY: ended by the line above.
    crate::ffi::uuid::parse(unsafe { CStr::from_ptr(text.as_ptr()) }.to_bytes())
}

/// Number of times the program has initialised NVML, minus its shutdowns.
static PROGRAM_INITS: AtomicU32 = AtomicU32::new(0);
/// Whether this library has left NVML initialised once, for frequent queries.
static NVML_KEPT: AtomicBool = AtomicBool::new(false);

/// Records that the program initialised NVML.
pub fn program_began() {
    PROGRAM_INITS.fetch_add(1, Relaxed);
}

/// Records that the program is about to shut NVML down. Before its last shutdown our own initialisation is undone
/// too, so that NVML is as uninitialised as the program expects.
pub fn program_ends() {
    let fewer = PROGRAM_INITS.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).unwrap_or(0);
    if fewer <= 1
        && NVML_KEPT.swap(false, Relaxed)
        && let Some(shutdown) = own::nvmlShutdown()
    {
        NVML_HANDLES.iter().for_each(|handle| handle.store(0, Relaxed));
        // SAFETY: paired with the init that was kept.
        let _ = unsafe { shutdown() };
    }
}

/// As [`with_nvml`], but leaves NVML initialised for the next use, because another initialisation takes milliseconds
/// on a real machine. It stays so until the program's last shutdown of NVML, or for the life of the process.
pub fn with_nvml_kept<T>(f: impl FnOnce() -> T) -> Option<T> {
    with_nvml(|| {
        if !NVML_KEPT.swap(true, Relaxed) {
            // SAFETY: no preconditions; NVML counts one more user.
            let kept = own::nvmlInit_v2().is_some_and(|init| unsafe { init() }.ok());
            NVML_KEPT.store(kept, Relaxed);
        }
        f()
    })
}

/// Runs `f` with NVML initialised by this library. `None`: it cannot be initialised.
pub fn with_nvml<T>(f: impl FnOnce() -> T) -> Option<T> {
    if !NVML.is_loaded() {
        // SAFETY: loading the vendor's library by its soname; it stays loaded.
        unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    }
    let (init, shutdown) = (own::nvmlInit_v2()?, own::nvmlShutdown()?);
    // SAFETY: no preconditions; NVML counts its users, so the program's own initialisation is not affected.
    if !unsafe { init() }.ok() {
        return None;
    }
    let result = f();
    // SAFETY: paired with the init above.
    let _ = unsafe { shutdown() };
    Some(result)
}
