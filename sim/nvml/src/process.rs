//! Lists of the processes on a device. Every simulated process is a compute process; the lists of graphics and MPS
//! processes are empty.
//!
//! The bytes are the physical memory of the process, contexts included, as on a real device.

use crate::{
    door::{Answer, Out, code},
    machine::Gpu,
};
use shim_sys::nvml::{nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t};

const NO_INSTANCE: u32 = u32::MAX;

fn running(dev: Gpu) -> Answer<Vec<nvmlProcessInfo_t>> {
    let info = |p: &crate::machine::Process| nvmlProcessInfo_t {
        pid: p.pid,
        usedGpuMemory: p.used.physical(),
        gpuInstanceId: if p.instance == 0 { NO_INSTANCE } else { p.instance },
        computeInstanceId: if p.instance == 0 { NO_INSTANCE } else { 0 },
    };
    // A process is listed while it holds a context, not from its first query of the device.
    Ok(dev.view()?.processes.iter().filter(|p| p.used.contexts > 0).map(info).collect())
}

pub fn nvmlDeviceGetComputeRunningProcesses(dev: Gpu, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) -> Answer {
    let all: Vec<_> =
        running(dev)?.iter().map(|p| nvmlProcessInfo_v1_t { pid: p.pid, usedGpuMemory: p.usedGpuMemory }).collect();
    infos.put_list(count, &all)
}

pub fn nvmlDeviceGetComputeRunningProcesses_v2(dev: Gpu, count: Out<u32>, infos: Out<nvmlProcessInfo_t>) -> Answer {
    infos.put_list(count, &running(dev)?)
}

pub fn nvmlDeviceGetComputeRunningProcesses_v3(dev: Gpu, count: Out<u32>, infos: Out<nvmlProcessInfo_t>) -> Answer {
    infos.put_list(count, &running(dev)?)
}

pub fn nvmlDeviceGetRunningProcessDetailList(dev: Gpu, list: Out<nvmlProcessDetailList_v1_t>) -> Answer {
    let mut asked = list.get()?;
    if asked.version != nvmlProcessDetailList_v1_t::VERSION {
        return Err(code::VERSION);
    }
    let all: Vec<nvmlProcessDetail_v1_t> = match asked.mode {
        0 => running(dev)?,
        1 | 2 => Vec::new(),
        _ => return Err(code::INVALID),
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
    list.put(asked)?;
    if all.len() > room {
        return Err(code::SMALL);
    }
    Out::of(asked.procArray).fill(&all)
}

macro_rules! none_of_this_kind {
    ($($name:ident $info:ty;)*) => { $(
        pub fn $name(dev: Gpu, count: Out<u32>, infos: Out<$info>) -> Answer {
            dev.view()?;
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
