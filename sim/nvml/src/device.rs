//! Enumeration of devices: the count, and handles by index, UUID, PCI address and serial number. A MIG instance
//! is found by its UUID, or through its board (`mode`).

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code},
    machine::{self, NvmlGpu},
};
use shim_sys::nvml::nvmlDevice_t;

pub fn nvmlDeviceGetCount_v2(count: CallerPlace<u32>) -> NvmlAnswer {
    count.put_value(machine::board_count()?)
}

pub fn nvmlDeviceGetCount(count: CallerPlace<u32>) -> NvmlAnswer {
    nvmlDeviceGetCount_v2(count)
}

pub fn nvmlDeviceGetHandleByIndex_v2(index: u32, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    let gpu = NvmlGpu::board_at(index)?;
    gpu.require_present()?;
    dev.put_value(gpu.device_handle())
}

pub fn nvmlDeviceGetHandleByIndex(index: u32, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    nvmlDeviceGetHandleByIndex_v2(index, dev)
}

fn first_device(found: impl Fn(&machine::DeviceView) -> bool) -> NvmlAnswer<nvmlDevice_t> {
    for board in NvmlGpu::all()? {
        for gpu in [board].into_iter().chain(board.mig_instances()?) {
            if found(&gpu.current_view()?) {
                return Ok(gpu.device_handle());
            }
        }
    }
    Err(code::NOT_FOUND)
}

pub fn nvmlDeviceGetHandleByUUID(uuid: String, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    dev.put_value(first_device(|view| view.uuid_text().eq_ignore_ascii_case(&uuid))?)
}

pub fn nvmlDeviceGetHandleBySerial(text: String, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    dev.put_value(first_device(|view| view.serial_text() == text)?)
}

/// Parses domain, bus and device of `[domain:]bus:device[.function]`, hexadecimal; the function must be 0.
pub fn parse_pci(text: &str) -> Option<(u32, u32, u32)> {
    let text = text.trim();
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    if u32::from_str_radix(function, 16).ok()? != 0 {
        return None;
    }
    let number = |part: &str| u32::from_str_radix(part, 16).ok();
    let parts: Vec<&str> = place.split(':').collect();
    match parts[..] {
        [domain, bus, device] => Some((number(domain)?, number(bus)?, number(device)?)),
        [bus, device] => Some((0, number(bus)?, number(device)?)),
        _ => None,
    }
}

pub fn nvmlDeviceGetHandleByPciBusId_v2(text: String, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    let place = parse_pci(&text).ok_or(code::ERROR_INVALID)?;
    dev.put_value(first_device(|view| (view.pci_domain, view.pci_bus, view.pci_device) == place)?)
}

pub fn nvmlDeviceGetHandleByPciBusId(text: String, dev: CallerPlace<nvmlDevice_t>) -> NvmlAnswer {
    nvmlDeviceGetHandleByPciBusId_v2(text, dev)
}
