//! Identity of a device: names, numbers, board, architecture.

use crate::{
    door::{Answer, Out, code, text_array},
    machine::{Gpu, View},
};
use core::ffi::c_char;
use shim_sys::nvml::{nvmlDeviceAttributes_t, nvmlPciInfo_t, nvmlPciInfo_v2_t};

pub fn nvmlDeviceGetName(dev: Gpu, name: Out<c_char>, len: u32) -> Answer {
    name.put_text(len, dev.view()?.profile.name())
}

pub fn nvmlDeviceGetUUID(dev: Gpu, uuid: Out<c_char>, len: u32) -> Answer {
    uuid.put_text(len, &dev.view()?.uuid_text())
}

pub fn nvmlDeviceGetSerial(dev: Gpu, serial: Out<c_char>, len: u32) -> Answer {
    serial.put_text(len, &dev.view()?.serial_text())
}

pub fn nvmlDeviceGetVbiosVersion(dev: Gpu, text: Out<c_char>, len: u32) -> Answer {
    text.put_text(len, vgpu_sim::profile::c_text(&dev.view()?.profile.vbios))
}

pub fn nvmlDeviceGetGspFirmwareVersion(dev: Gpu, text: Out<c_char>) -> Answer {
    dev.view()?;
    text.put_text(64, vgpu_sim::release::Release::current().driver)
}

pub fn nvmlDeviceGetBoardPartNumber(dev: Gpu, text: Out<c_char>, len: u32) -> Answer {
    text.put_text(len, &format!("900-2{:04X}-0000-000", dev.view()?.profile.pci_id >> 16))
}

pub fn nvmlDeviceGetIndex(dev: Gpu, index: Out<u32>) -> Answer {
    index.put(dev.index()?)
}

pub fn nvmlDeviceGetMinorNumber(dev: Gpu, minor: Out<u32>) -> Answer {
    minor.put(dev.view()?.minor)
}

/// A PCI address as text, with `width` digits of the domain.
fn bus_id(view: &View, width: usize) -> String {
    format!("{:0width$X}:{:02X}:{:02X}.0", view.pci_domain, view.pci_bus, view.pci_device)
}

pub fn nvmlDeviceGetPciInfo_v3(dev: Gpu, pci: Out<nvmlPciInfo_t>) -> Answer {
    let view = dev.view()?;
    pci.put(nvmlPciInfo_t {
        busIdLegacy: text_array(&bus_id(&view, 4)),
        domain: view.pci_domain,
        bus: view.pci_bus,
        device: view.pci_device,
        pciDeviceId: view.profile.pci_id,
        pciSubSystemId: view.profile.pci_subsystem,
        busId: text_array(&bus_id(&view, 8)),
    })
}

pub fn nvmlDeviceGetPciInfo_v2(dev: Gpu, pci: Out<nvmlPciInfo_v2_t>) -> Answer {
    let view = dev.view()?;
    pci.put(nvmlPciInfo_v2_t {
        busId: text_array(&bus_id(&view, 4)),
        domain: view.pci_domain,
        bus: view.pci_bus,
        device: view.pci_device,
        pciDeviceId: view.profile.pci_id,
        pciSubSystemId: view.profile.pci_subsystem,
        reserved: [0; 4],
    })
}

pub fn nvmlDeviceGetPciInfo(dev: Gpu, pci: Out<nvmlPciInfo_v2_t>) -> Answer {
    nvmlDeviceGetPciInfo_v2(dev, pci)
}

pub fn nvmlDeviceGetCudaComputeCapability(dev: Gpu, major: Out<i32>, minor: Out<i32>) -> Answer {
    let p = dev.view()?.profile;
    major.put(p.cc_major.cast_signed())?;
    minor.put(p.cc_minor.cast_signed())
}

pub fn nvmlDeviceGetBoardId(dev: Gpu, board: Out<u32>) -> Answer {
    let view = dev.view()?;
    board.put(view.pci_domain << 16 | view.pci_bus << 8 | view.pci_device)
}

/// NVML's brand number of a product: Tesla 2, NVIDIA RTX 13, NVIDIA 14.
fn brand(name: &str) -> u32 {
    match name {
        n if n.starts_with("Tesla") => 2,
        n if n.contains("RTX") => 13,
        _ => 14,
    }
}

macro_rules! fact {
    ($($name:ident |$view:ident| $value:expr;)*) => { $(
        pub fn $name(dev: Gpu, value: Out<u32>) -> Answer {
            let $view = dev.view()?;
            value.put($value)
        }
    )* };
}
fact! {
    nvmlDeviceGetArchitecture |v| v.profile.architecture;
    nvmlDeviceGetBrand |v| brand(v.profile.name());
    nvmlDeviceGetNumGpuCores |v| v.profile.cores;
    nvmlDeviceGetMemoryBusWidth |v| v.profile.bus_bits;
    nvmlDeviceGetBusType |_v| 2; // PCI Express
    nvmlDeviceGetMultiGpuBoard |_v| 0;
}

/// Only MIG devices have attributes; a whole device has none. Engines other than the multiprocessors are not
/// modelled.
pub fn nvmlDeviceGetAttributes_v2(dev: Gpu, attributes: Out<nvmlDeviceAttributes_t>) -> Answer {
    let profile = dev.view()?.profile;
    if attributes.is_null() {
        return Err(code::INVALID);
    }
    if profile.mig == 0 || dev.is_partitioned() {
        return Err(code::UNSUPPORTED);
    }
    attributes.put(nvmlDeviceAttributes_t {
        multiprocessorCount: profile.sms,
        sharedCopyEngineCount: 1,
        gpuInstanceSliceCount: 1,
        computeInstanceSliceCount: 1,
        memorySizeMB: profile.nvml_total >> 20,
        ..Default::default()
    })
}

pub fn nvmlDeviceGetAttributes(dev: Gpu, attributes: Out<nvmlDeviceAttributes_t>) -> Answer {
    nvmlDeviceGetAttributes_v2(dev, attributes)
}
