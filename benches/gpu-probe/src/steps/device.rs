//! Facts about the device from the driver and from NVML; their cost in time and memory is negligible.

use serde_json::{Map, Value, json};

use super::StepOutput;
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::{ProbedGpu, device_attribute, device_of_ordinal, init, pci_address};
use crate::nvml::{ProbedNvml, until_nul};

/// Attributes by their numbers in the driver's interface.
const ATTRIBUTES: &[(&str, i32)] = &[
    ("max_threads_per_block", 1),
    ("warp", 10),
    ("clock_khz", 13),
    ("multiprocessors", 16),
    ("integrated", 18),
    ("compute_mode", 20),
    ("concurrent_kernels", 31),
    ("ecc", 32),
    ("memory_clock_khz", 36),
    ("memory_bus_bits", 37),
    ("l2_bytes", 38),
    ("threads_per_multiprocessor", 39),
    ("copy_engines", 40),
    ("unified_addressing", 41),
    ("compute_capability_major", 75),
    ("compute_capability_minor", 76),
    ("stream_priorities", 78),
    ("managed_memory", 83),
    ("multi_gpu_board", 84),
    ("compute_preemption", 90),
    ("vmm", 102),
    ("memory_pools", 115),
];

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    sink.run_part("driver_version", || {
        let mut version = 0;
        // SAFETY: the pointer is to a local number.
        unsafe { driver.driver_version(&raw mut version) }.ok()?;
        Ok(json!(version))
    });
    sink.run_part("driver_file", || {
        let (file, _) = driver.library_file()?;
        Ok(json!(std::fs::canonicalize(&file).map_or(file, |path| path.to_string_lossy().into_owned())))
    });
    init(&driver)?;
    sink.run_part("count", || {
        let mut count = 0;
        // SAFETY: the pointer is to a local number.
        unsafe { driver.device_count(&raw mut count) }.ok()?;
        Ok(json!(count))
    });
    let handle = device_of_ordinal(&driver, options.device)?;
    sink.run_part("name", || {
        let mut text = [0_u8; 256];
        // SAFETY: the buffer has the stated length.
        unsafe { driver.device_name(text.as_mut_ptr().cast(), 256, handle) }.ok()?;
        Ok(json!(until_nul(&text)))
    });
    sink.run_part("uuid", || {
        let mut uuid = [0_u8; 16];
        // SAFETY: the pointer is to sixteen local bytes.
        unsafe { driver.device_uuid(&raw mut uuid, handle) }.ok()?;
        Ok(json!(uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
    });
    sink.run_part("total_bytes", || {
        let mut bytes = 0_usize;
        // SAFETY: the pointer is to a local number.
        unsafe { driver.device_total(&raw mut bytes, handle) }.ok()?;
        Ok(json!(bytes))
    });
    let mut attributes = Map::new();
    for (name, number) in ATTRIBUTES {
        match device_attribute(&driver, handle, *number) {
            Ok(value) => drop(attributes.insert((*name).to_owned(), json!(value))),
            Err(failure) => sink.put_failure(format_args!("attribute {number} ({name}): {failure}")),
        }
    }
    sink.put_value("attributes", Value::Object(attributes));
    let address = pci_address(&driver, handle);
    sink.put_value("pci", address.as_ref().map_or(Value::Null, |text| json!(text)));
    match address.map_err(String::from).and_then(|text| ProbedNvml::open(&text)) {
        Ok(nvml) => {
            sink.run_part("nvml.driver", || Ok(json!(nvml.driver_version()?)));
            sink.run_part("nvml.memory", || nvml.read_memory());
            sink.run_part("nvml.processes", || Ok(json!(nvml.read_processes()?)));
            sink.put_value("nvml.modes", nvml.read_modes());
        }
        Err(error) => sink.put_failure(format_args!("nvml: {error}")),
    }
    sink.run_part("mem_get_info", || {
        let (free, total) = ProbedGpu::open(&driver, options.device)?.mem_info()?;
        Ok(json!({ "free": free, "total": total }))
    });
    Ok(())
}
