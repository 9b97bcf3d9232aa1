//! Lists of the processes on a device. Every simulated process is a compute process; the lists of graphics and MPS
//! processes are empty.
//!
//! The bytes are the physical memory of the process, contexts included, as on a real device. A process has its number
//! in the caller's pid namespace, and is left out if it has none there.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::NvmlGpu,
};
use shim_sys::nvml::{nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t};

const NO_INSTANCE: u32 = u32::MAX;

fn running_processes(dev: NvmlGpu) -> NvmlAnswer<Vec<nvmlProcessInfo_t>> {
    let info = |p: &crate::machine::NvmlProcess| {
        Some(nvmlProcessInfo_t {
            pid: p.pid?,
            usedGpuMemory: p.used.physical_bytes(),
            gpuInstanceId: if p.instance == 0 { NO_INSTANCE } else { p.instance },
            computeInstanceId: if p.instance == 0 { NO_INSTANCE } else { 0 },
        })
    };
    // A process is listed while it holds a context, not from its first query of the device.
    Ok(dev.current_view()?.processes.iter().filter(|p| p.used.contexts > 0).filter_map(info).collect())
}

pub fn nvmlDeviceGetComputeRunningProcesses(
    dev: NvmlGpu,
    count: CallerPlace<u32>,
    infos: CallerPlace<nvmlProcessInfo_v1_t>,
) -> NvmlAnswer {
    let all: Vec<_> = running_processes(dev)?
        .iter()
        .map(|p| nvmlProcessInfo_v1_t { pid: p.pid, usedGpuMemory: p.usedGpuMemory })
        .collect();
    infos.put_list(count, &all)
}

pub fn nvmlDeviceGetComputeRunningProcesses_v2(
    dev: NvmlGpu,
    count: CallerPlace<u32>,
    infos: CallerPlace<nvmlProcessInfo_t>,
) -> NvmlAnswer {
    infos.put_list(count, &running_processes(dev)?)
}

pub fn nvmlDeviceGetComputeRunningProcesses_v3(
    dev: NvmlGpu,
    count: CallerPlace<u32>,
    infos: CallerPlace<nvmlProcessInfo_t>,
) -> NvmlAnswer {
    infos.put_list(count, &running_processes(dev)?)
}

pub fn nvmlDeviceGetRunningProcessDetailList(
    dev: NvmlGpu,
    list: CallerPlace<nvmlProcessDetailList_v1_t>,
) -> NvmlAnswer {
    let mut asked = list.get()?;
    if asked.version != nvmlProcessDetailList_v1_t::VERSION {
        return Err(code::ERROR_VERSION);
    }
    let all: Vec<nvmlProcessDetail_v1_t> = match asked.mode {
        0 => running_processes(dev)?,
        1 | 2 => Vec::new(),
        _ => return Err(code::ERROR_INVALID),
    }
    .iter()
    .map(|p| nvmlProcessDetail_v1_t {
        pid: p.pid,
        usedGpuMemory: p.usedGpuMemory,
        gpuInstanceId: p.gpuInstanceId,
        computeInstanceId: p.computeInstanceId,
        usedGpuCcProtectedMemory: 0,
    })
    .collect();
    let room = asked.numProcArrayEntries as usize;
    asked.numProcArrayEntries = u32::try_from(all.len()).map_err(|_| code::UNKNOWN)?;
    list.put_value(asked)?;
    if all.len() > room {
        return Err(code::ERROR_TOO_SMALL);
    }
    CallerPlace::of_struct(asked.procArray).fill_all(&all)
}

macro_rules! none_of_this_kind {
    ($($name:ident $info:ty;)*) => { $(
        pub fn $name(dev: NvmlGpu, count: CallerPlace<u32>, infos: CallerPlace<$info>) -> NvmlAnswer {
            dev.current_view()?;
            infos.put_list(count, &[])
        }
    )* };
}
none_of_this_kind! {
    nvmlDeviceGetGraphicsRunningProcesses nvmlProcessInfo_v1_t;
    nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlProcessInfo_t;
    nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses nvmlProcessInfo_v1_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 nvmlProcessInfo_t;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlProcessInfo_t;
}
