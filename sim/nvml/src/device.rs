//! Enumeration of devices: the count, and handles by index, UUID, PCI address and serial number. A MIG instance
//! is found by its UUID, or through its board (`mode`).

use crate::{
    door::{Answer, Out, code},
    machine::{self, Gpu},
};
use shim_sys::nvml::nvmlDevice_t;

pub fn nvmlDeviceGetCount_v2(count: Out<u32>) -> Answer {
    count.put(machine::count()?)
}

pub fn nvmlDeviceGetCount(count: Out<u32>) -> Answer {
    nvmlDeviceGetCount_v2(count)
}

pub fn nvmlDeviceGetHandleByIndex_v2(index: u32, dev: Out<nvmlDevice_t>) -> Answer {
    dev.put(Gpu::at(index)?.handle())
}

pub fn nvmlDeviceGetHandleByIndex(index: u32, dev: Out<nvmlDevice_t>) -> Answer {
    nvmlDeviceGetHandleByIndex_v2(index, dev)
}

fn first(found: impl Fn(&machine::View) -> bool) -> Answer<nvmlDevice_t> {
    for board in Gpu::all()? {
        for gpu in [board].into_iter().chain(board.instances()?) {
            if found(&gpu.view()?) {
                return Ok(gpu.handle());
            }
        }
    }
    Err(code::NOT_FOUND)
}

pub fn nvmlDeviceGetHandleByUUID(uuid: String, dev: Out<nvmlDevice_t>) -> Answer {
    dev.put(first(|view| view.uuid_text().eq_ignore_ascii_case(&uuid))?)
}

pub fn nvmlDeviceGetHandleBySerial(text: String, dev: Out<nvmlDevice_t>) -> Answer {
    dev.put(first(|view| view.serial_text() == text)?)
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

pub fn nvmlDeviceGetHandleByPciBusId_v2(text: String, dev: Out<nvmlDevice_t>) -> Answer {
    let place = parse_pci(&text).ok_or(code::INVALID)?;
    dev.put(first(|view| (view.pci_domain, view.pci_bus, view.pci_device) == place)?)
}

pub fn nvmlDeviceGetHandleByPciBusId(text: String, dev: Out<nvmlDevice_t>) -> Answer {
    nvmlDeviceGetHandleByPciBusId_v2(text, dev)
}
