//! Modes and error counters of a device: healthy, default modes, partitioned or not as the machine was made.
//! Setting a mode is not simulated.

use crate::{
    door::{Answer, Out, code},
    machine::Gpu,
};
use shim_sys::nvml::nvmlDevice_t;

const OFF: u32 = 0;
const ON: u32 = 1;

macro_rules! always {
    ($($name:ident $value:expr;)*) => { $(
        pub fn $name(dev: Gpu, mode: Out<u32>) -> Answer {
            dev.view()?;
            mode.put($value)
        }
    )* };
}
always! {
    nvmlDeviceGetComputeMode 0; // default: several contexts
    nvmlDeviceGetPersistenceMode ON;
    nvmlDeviceGetDisplayMode OFF;
    nvmlDeviceGetDisplayActive OFF;
    nvmlDeviceGetVirtualizationMode 0; // none
    nvmlDeviceGetAccountingBufferSize 4000;
}

pub fn nvmlDeviceGetAPIRestriction(dev: Gpu, api: u32, restricted: Out<u32>) -> Answer {
    dev.view()?;
    if api > 1 {
        return Err(code::INVALID);
    }
    restricted.put(ON)
}

fn with_ecc(dev: Gpu) -> Answer {
    if dev.view()?.profile.ecc == 0 { Err(code::UNSUPPORTED) } else { Ok(()) }
}

pub fn nvmlDeviceGetEccMode(dev: Gpu, current: Out<u32>, pending: Out<u32>) -> Answer {
    with_ecc(dev)?;
    current.put(ON)?;
    pending.put(ON)
}

pub fn nvmlDeviceGetDefaultEccMode(dev: Gpu, mode: Out<u32>) -> Answer {
    with_ecc(dev)?;
    mode.put(ON)
}

pub fn nvmlDeviceGetTotalEccErrors(dev: Gpu, error: u32, counter: u32, count: Out<u64>) -> Answer {
    with_ecc(dev)?;
    if error > 1 || counter > 1 {
        return Err(code::INVALID);
    }
    count.put(0)
}

pub fn nvmlDeviceGetMemoryErrorCounter(dev: Gpu, error: u32, counter: u32, location: u32, count: Out<u64>) -> Answer {
    with_ecc(dev)?;
    if error > 1 || counter > 1 || location > 7 {
        return Err(code::INVALID);
    }
    // Only device memory and SRAM have counters; the older locations have none.
    if !matches!(location, 2 | 7) {
        return Err(code::UNSUPPORTED);
    }
    count.put(0)
}

/// Architectures before Ampere (number 7) retire pages; later ones remap rows.
pub fn nvmlDeviceGetRetiredPagesPendingStatus(dev: Gpu, pending: Out<u32>) -> Answer {
    if dev.view()?.profile.architecture >= 7 {
        return Err(code::UNSUPPORTED);
    }
    pending.put(OFF)
}

pub fn nvmlDeviceGetRemappedRows(
    dev: Gpu,
    correctable: Out<u32>,
    uncorrectable: Out<u32>,
    pending: Out<u32>,
    failed: Out<u32>,
) -> Answer {
    if dev.view()?.profile.architecture < 7 {
        return Err(code::UNSUPPORTED);
    }
    for place in [correctable, uncorrectable, pending, failed] {
        place.put(0)?;
    }
    Ok(())
}

/// Partitioning is fixed when the machine is made.
pub fn nvmlDeviceGetMigMode(dev: Gpu, current: Out<u32>, pending: Out<u32>) -> Answer {
    if dev.view()?.profile.mig_capable == 0 {
        return Err(code::UNSUPPORTED);
    }
    let mode = if dev.is_partitioned() { ON } else { OFF };
    current.put(mode)?;
    pending.put(mode)
}

/// 0 if MIG is not enabled.
pub fn nvmlDeviceGetMaxMigDeviceCount(dev: Gpu, count: Out<u32>) -> Answer {
    dev.view()?;
    count.put(if dev.is_partitioned() { 7 } else { 0 })
}

pub fn nvmlDeviceGetMigDeviceHandleByIndex(dev: Gpu, index: u32, mig: Out<nvmlDevice_t>) -> Answer {
    if dev.view()?.profile.mig_capable == 0 {
        return Err(code::UNSUPPORTED);
    }
    mig.put(dev.instances()?.get(index as usize).ok_or(code::NOT_FOUND)?.handle())
}

pub fn nvmlDeviceIsMigDeviceHandle(dev: Gpu, is: Out<u32>) -> Answer {
    is.put(if dev.is_partitioned() { 0 } else { dev.view()?.profile.mig.min(1) })
}

pub fn nvmlDeviceGetGspFirmwareMode(dev: Gpu, enabled: Out<u32>, default: Out<u32>) -> Answer {
    dev.view()?;
    enabled.put(ON)?;
    default.put(ON)
}
