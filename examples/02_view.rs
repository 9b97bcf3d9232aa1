//! 02: prints NVML's view of the device's memory and of the processes that use it. An ordinary monitor without
//! any vgpu code.
//!
//!     vgpu run --sim --memory-limit 1GiB -- target/release/example-view

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

fn main() -> Result<(), NvmlError> {
    let nvml = Nvml::init()?;
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let memory = device.memory_info()?;
        println!("device {index}: {}", device.name()?);
        println!("total: {} MiB", memory.total >> 20);
        println!("used: {} MiB", memory.used >> 20);
        println!("free: {} MiB", memory.free >> 20);
        for process in device.running_compute_processes()? {
            match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => println!("process {}: {} MiB", process.pid, bytes >> 20),
                UsedGpuMemory::Unavailable => println!("process {}: unknown", process.pid),
            }
        }
    }
    Ok(())
}
