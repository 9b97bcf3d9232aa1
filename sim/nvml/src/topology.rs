//! Topology of devices and CPUs: all devices are on one host bridge, next to every CPU of one memory node.

use crate::{
    door::{Answer, Out, code},
    machine::{self, Gpu},
};
use shim_sys::nvml::nvmlDevice_t;

const SAME: u32 = 0;
/// Connected through a host bridge.
const HOST_BRIDGE: u32 = 30;
const SYSTEM: u32 = 50;

/// One bit per configured CPU.
fn cpus() -> Vec<u64> {
    // SAFETY: sysconf reads a number.
    let n = usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1).max(1);
    (0..n.div_ceil(64)).map(|w| if (w + 1) * 64 <= n { u64::MAX } else { (1 << (n % 64)) - 1 }).collect()
}

pub fn nvmlDeviceGetCpuAffinity(dev: Gpu, words: u32, set: Out<u64>) -> Answer {
    dev.view()?;
    set.put_padded(words, &cpus(), 0)
}

pub fn nvmlDeviceGetCpuAffinityWithinScope(dev: Gpu, words: u32, set: Out<u64>, _scope: u32) -> Answer {
    nvmlDeviceGetCpuAffinity(dev, words, set)
}

pub fn nvmlDeviceGetMemoryAffinity(dev: Gpu, words: u32, set: Out<u64>, _scope: u32) -> Answer {
    dev.view()?;
    set.put_padded(words, &[1], 0)
}

pub fn nvmlDeviceGetTopologyCommonAncestor(dev: Gpu, other: Gpu, level: Out<u32>) -> Answer {
    level.put(if dev == other { SAME } else { HOST_BRIDGE })
}

/// Writes the devices; if the capacity is too small, only the first ones, as in the real library.
fn some(list: &[nvmlDevice_t], count: Out<u32>, devs: Out<nvmlDevice_t>) -> Answer {
    if devs.is_null() {
        return count.put(u32::try_from(list.len()).map_err(|_| code::UNKNOWN)?);
    }
    let room = count.get()? as usize;
    devs.put_list(count, &list[..list.len().min(room)])
}

pub fn nvmlDeviceGetTopologyNearestGpus(dev: Gpu, level: u32, count: Out<u32>, devs: Out<nvmlDevice_t>) -> Answer {
    if level > SYSTEM {
        return Err(code::INVALID);
    }
    let mut list = Vec::new();
    if level == HOST_BRIDGE {
        for index in 0..machine::count()? {
            let other = Gpu::at(index)?;
            if other != dev {
                list.push(other.handle());
            }
        }
    }
    some(&list, count, devs)
}

pub fn nvmlSystemGetTopologyGpuSet(_cpu: u32, count: Out<u32>, devs: Out<nvmlDevice_t>) -> Answer {
    let list: Answer<Vec<_>> = (0..machine::count()?).map(|index| Ok(Gpu::at(index)?.handle())).collect();
    some(&list?, count, devs)
}

/// Status 0 is ok, 5 not supported: peer access is not simulated.
pub fn nvmlDeviceGetP2PStatus(dev: Gpu, other: Gpu, _index: u32, status: Out<u32>) -> Answer {
    status.put(if dev == other { 0 } else { 5 })
}

pub fn nvmlDeviceOnSameBoard(dev: Gpu, other: Gpu, same: Out<i32>) -> Answer {
    same.put(i32::from(dev == other))
}
