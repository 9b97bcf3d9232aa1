//! Modes and error counters of a device: healthy, default modes, partitioned or not as the machine was made.
//! Setting a mode is not simulated.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::NvmlGpu,
};
use shim_sys::nvml::nvmlDevice_t;

const MODE_OFF: u32 = 0;
const MODE_ON: u32 = 1;

macro_rules! always {
    ($($name:ident $value:expr;)*) => { $(
        pub fn $name(dev: NvmlGpu, mode: CallerPlace<u32>) -> NvmlAnswer {
            dev.current_view()?;
            mode.put_value($value)
        }
    )* };
}
always! {
    nvmlDeviceGetComputeMode 0; // default: several contexts
    nvmlDeviceGetPersistenceMode MODE_ON;
    nvmlDeviceGetDisplayMode MODE_OFF;
    nvmlDeviceGetDisplayActive MODE_OFF;
    nvmlDeviceGetVirtualizationMode 0; // none
    nvmlDeviceGetAccountingBufferSize 4000;
}

pub fn nvmlDeviceGetAPIRestriction(dev: NvmlGpu, api: u32, restricted: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    if api > 1 {
        return Err(code::ERROR_INVALID);
    }
    restricted.put_value(MODE_ON)
}

fn with_ecc(dev: NvmlGpu) -> NvmlAnswer {
    if dev.current_view()?.profile.ecc == 0 { Err(code::ERROR_UNSUPPORTED) } else { Ok(()) }
}

pub fn nvmlDeviceGetEccMode(dev: NvmlGpu, current: CallerPlace<u32>, pending: CallerPlace<u32>) -> NvmlAnswer {
    with_ecc(dev)?;
    current.put_value(MODE_ON)?;
    pending.put_value(MODE_ON)
}

pub fn nvmlDeviceGetDefaultEccMode(dev: NvmlGpu, mode: CallerPlace<u32>) -> NvmlAnswer {
    with_ecc(dev)?;
    mode.put_value(MODE_ON)
}

pub fn nvmlDeviceGetTotalEccErrors(dev: NvmlGpu, error: u32, counter: u32, count: CallerPlace<u64>) -> NvmlAnswer {
    with_ecc(dev)?;
    if error > 1 || counter > 1 {
        return Err(code::ERROR_INVALID);
    }
    count.put_value(0)
}

pub fn nvmlDeviceGetMemoryErrorCounter(
    dev: NvmlGpu,
    error: u32,
    counter: u32,
    location: u32,
    count: CallerPlace<u64>,
) -> NvmlAnswer {
    with_ecc(dev)?;
    if error > 1 || counter > 1 || location > 7 {
        return Err(code::ERROR_INVALID);
    }
    // Only device memory and SRAM have counters; the older locations have none.
    if !matches!(location, 2 | 7) {
        return Err(code::ERROR_UNSUPPORTED);
    }
    count.put_value(0)
}

/// Architectures before Ampere (number 7) retire pages; later ones remap rows.
pub fn nvmlDeviceGetRetiredPagesPendingStatus(dev: NvmlGpu, pending: CallerPlace<u32>) -> NvmlAnswer {
    if dev.current_view()?.profile.architecture >= 7 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    pending.put_value(MODE_OFF)
}

pub fn nvmlDeviceGetRemappedRows(
    dev: NvmlGpu,
    correctable: CallerPlace<u32>,
    uncorrectable: CallerPlace<u32>,
    pending: CallerPlace<u32>,
    failed: CallerPlace<u32>,
) -> NvmlAnswer {
    if dev.current_view()?.profile.architecture < 7 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    for place in [correctable, uncorrectable, pending, failed] {
        place.put_value(0)?;
    }
    Ok(())
}

/// Partitioning is fixed when the machine is made.
pub fn nvmlDeviceGetMigMode(dev: NvmlGpu, current: CallerPlace<u32>, pending: CallerPlace<u32>) -> NvmlAnswer {
    if dev.current_view()?.profile.mig_capable == 0 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    let mode = if dev.is_partitioned() { MODE_ON } else { MODE_OFF };
    current.put_value(mode)?;
    pending.put_value(mode)
}

/// 0 if MIG is not enabled.
pub fn nvmlDeviceGetMaxMigDeviceCount(dev: NvmlGpu, count: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    count.put_value(if dev.is_partitioned() { 7 } else { 0 })
}

pub fn nvmlDeviceGetMigDeviceHandleByIndex(dev: NvmlGpu, index: u32, mig: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    if dev.current_view()?.profile.mig_capable == 0 {
        return Err(code::ERROR_UNSUPPORTED);
    }
    mig.put_value(dev.mig_instances()?.get(index as usize).ok_or(code::NOT_FOUND)?.device_handle())
}

pub fn nvmlDeviceIsMigDeviceHandle(dev: NvmlGpu, is: CallerPlace<u32>) -> NvmlAnswer {
    is.put_value(if dev.is_partitioned() { 0 } else { dev.current_view()?.profile.mig.min(1) })
}

pub fn nvmlDeviceGetGspFirmwareMode(dev: NvmlGpu, enabled: CallerPlace<u32>, default: CallerPlace<u32>) -> NvmlAnswer {
    dev.current_view()?;
    enabled.put_value(MODE_ON)?;
    default.put_value(MODE_ON)
}
