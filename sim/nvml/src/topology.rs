//! Topology of devices and CPUs: all devices are on one host bridge, next to every CPU of one memory node.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{self, NvmlGpu},
};
use shim_sys::nvml::nvmlDevice_t;

const LEVEL_SAME: u32 = 0;
/// Connected through a host bridge.
const LEVEL_HOST_BRIDGE: u32 = 30;
const LEVEL_SYSTEM: u32 = 50;

/// One bit per configured CPU.
fn visible_cpus() -> Vec<u64> {
    // SAFETY: sysconf reads a number.
    let n = usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1).max(1);
    (0..n.div_ceil(64)).map(|w| if (w + 1) * 64 <= n { u64::MAX } else { (1 << (n % 64)) - 1 }).collect()
}

pub fn nvmlDeviceGetCpuAffinity(dev: NvmlGpu, words: u32, set: CallerPlace<u64>) -> NvmlAnswer {
    dev.current_view()?;
    set.put_padded(words, &visible_cpus(), 0)
}

pub fn nvmlDeviceGetCpuAffinityWithinScope(dev: NvmlGpu, words: u32, set: CallerPlace<u64>, _scope: u32) -> NvmlAnswer {
    nvmlDeviceGetCpuAffinity(dev, words, set)
}

pub fn nvmlDeviceGetMemoryAffinity(dev: NvmlGpu, words: u32, set: CallerPlace<u64>, _scope: u32) -> NvmlAnswer {
    dev.current_view()?;
    set.put_padded(words, &[1], 0)
}

pub fn nvmlDeviceGetTopologyCommonAncestor(dev: NvmlGpu, other: NvmlGpu, level: CallerPlace<u32>) -> NvmlAnswer {
    level.put_value(if dev == other { LEVEL_SAME } else { LEVEL_HOST_BRIDGE })
}

/// Writes the devices; if the capacity is too small, only the first ones, as in the real library.
fn write_devices(list: &[nvmlDevice_t], count: CallerPlace<u32>, devs: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    if devs.is_null() {
        return count.put_value(u32::try_from(list.len()).map_err(|_| code::UNKNOWN)?);
    }
    let room = count.get()? as usize;
    devs.put_list(count, &list[..list.len().min(room)])
}

pub fn nvmlDeviceGetTopologyNearestGpus(
    dev: NvmlGpu,
    level: u32,
    count: CallerPlace<u32>,
    devs: CallerPlace<nvmlDevice_t>,
) -> NvmlAnswer {
    if level > LEVEL_SYSTEM {
        return Err(code::ERROR_INVALID);
    }
    let mut list = Vec::new();
    if level == LEVEL_HOST_BRIDGE {
        for index in 0..machine::board_count()? {
            let other = NvmlGpu::board_at(index)?;
            if other != dev {
                list.push(other.device_handle());
            }
        }
    }
    write_devices(&list, count, devs)
}

pub fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: CallerPlace<u32>, devs: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    let list: NvmlAnswer<Vec<_>> =
        (0..machine::board_count()?).map(|index| Ok(NvmlGpu::board_at(index)?.device_handle())).collect();
    write_devices(&list?, count, devs)
}

/// Status 0 is ok, 5 not supported: peer access is not simulated.
pub fn nvmlDeviceGetP2PStatus(dev: NvmlGpu, other: NvmlGpu, _index: u32, status: CallerPlace<u32>) -> NvmlAnswer {
    status.put_value(if dev == other { 0 } else { 5 })
}

pub fn nvmlDeviceOnSameBoard(dev: NvmlGpu, other: NvmlGpu, same: CallerPlace<i32>) -> NvmlAnswer {
    same.put_value(i32::from(dev == other))
}
