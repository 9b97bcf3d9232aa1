//! Identity of a device: names, numbers, board, architecture.

use crate::{
    arguments::{CallerPlace, NvmlAnswer, code, text_array},
    machine::{DeviceView, NvmlGpu},
};
use core::ffi::c_char;
use shim_sys::nvml::{nvmlDeviceAttributes_t, nvmlPciInfo_t, nvmlPciInfo_v2_t};

pub fn nvmlDeviceGetName(dev: NvmlGpu, name: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    name.put_text(len, dev.current_view()?.profile.name())
}

pub fn nvmlDeviceGetUUID(dev: NvmlGpu, uuid: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    uuid.put_text(len, &dev.current_view()?.uuid_text())
}

pub fn nvmlDeviceGetSerial(dev: NvmlGpu, serial: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    serial.put_text(len, &dev.current_view()?.serial_text())
}

pub fn nvmlDeviceGetVbiosVersion(dev: NvmlGpu, text: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    text.put_text(len, vgpu_sim::profile::c_text(&dev.current_view()?.profile.vbios))
}

pub fn nvmlDeviceGetGspFirmwareVersion(dev: NvmlGpu, text: CallerPlace<c_char>) -> NvmlAnswer {
    dev.current_view()?;
    text.put_text(64, vgpu_sim::release::DriverRelease::current().driver)
}

pub fn nvmlDeviceGetBoardPartNumber(dev: NvmlGpu, text: CallerPlace<c_char>, len: u32) -> NvmlAnswer {
    text.put_text(len, &format!("900-2{:04X}-0000-000", dev.current_view()?.profile.pci_id >> 16))
}

pub fn nvmlDeviceGetIndex(dev: NvmlGpu, index: CallerPlace<u32>) -> NvmlAnswer {
    index.put_value(dev.index()?)
}

pub fn nvmlDeviceGetMinorNumber(dev: NvmlGpu, minor: CallerPlace<u32>) -> NvmlAnswer {
    minor.put_value(dev.current_view()?.minor)
}

/// A PCI address as text, with `width` digits of the domain.
fn bus_id(view: &DeviceView, width: usize) -> String {
    format!("{:0width$X}:{:02X}:{:02X}.0", view.pci_domain, view.pci_bus, view.pci_device)
}

pub fn nvmlDeviceGetPciInfo_v3(dev: NvmlGpu, pci: CallerPlace<nvmlPciInfo_t>) -> NvmlAnswer {
    let view = dev.current_view()?;
    pci.put_value(nvmlPciInfo_t {
        busIdLegacy: text_array(&bus_id(&view, 4)),
        domain: view.pci_domain,
        bus: view.pci_bus,
        device: view.pci_device,
        pciDeviceId: view.profile.pci_id,
        pciSubSystemId: view.profile.pci_subsystem,
        busId: text_array(&bus_id(&view, 8)),
    })
}

pub fn nvmlDeviceGetPciInfo_v2(dev: NvmlGpu, pci: CallerPlace<nvmlPciInfo_v2_t>) -> NvmlAnswer {
    let view = dev.current_view()?;
    pci.put_value(nvmlPciInfo_v2_t {
        busId: text_array(&bus_id(&view, 4)),
        domain: view.pci_domain,
        bus: view.pci_bus,
        device: view.pci_device,
        pciDeviceId: view.profile.pci_id,
        pciSubSystemId: view.profile.pci_subsystem,
        reserved: [0; 4],
    })
}

pub fn nvmlDeviceGetPciInfo(dev: NvmlGpu, pci: CallerPlace<nvmlPciInfo_v2_t>) -> NvmlAnswer {
    nvmlDeviceGetPciInfo_v2(dev, pci)
}

pub fn nvmlDeviceGetCudaComputeCapability(
    dev: NvmlGpu,
    major: CallerPlace<i32>,
    minor: CallerPlace<i32>,
) -> NvmlAnswer {
    let p = dev.current_view()?.profile;
    major.put_value(p.cc_major.cast_signed())?;
    minor.put_value(p.cc_minor.cast_signed())
}

pub fn nvmlDeviceGetBoardId(dev: NvmlGpu, board: CallerPlace<u32>) -> NvmlAnswer {
    let view = dev.current_view()?;
    board.put_value(view.pci_domain << 16 | view.pci_bus << 8 | view.pci_device)
}

macro_rules! fact {
    ($($name:ident |$view:ident| $value:expr;)*) => { $(
        pub fn $name(dev: NvmlGpu, value: CallerPlace<u32>) -> NvmlAnswer {
            let $view = dev.current_view()?;
            value.put_value($value)
        }
    )* };
}
fact! {
    nvmlDeviceGetArchitecture |v| v.profile.architecture;
    nvmlDeviceGetBrand |v| v.profile.brand;
    nvmlDeviceGetNumGpuCores |v| v.profile.cores;
    nvmlDeviceGetMemoryBusWidth |v| v.profile.bus_bits;
    nvmlDeviceGetBusType |_v| 2; // PCI Express
    nvmlDeviceGetMultiGpuBoard |_v| 0;
}

/// Only MIG devices have attributes; a whole device has none. Engines other than the multiprocessors are not
/// modelled.
pub fn nvmlDeviceGetAttributes_v2(dev: NvmlGpu, attributes: CallerPlace<nvmlDeviceAttributes_t>) -> NvmlAnswer {
    let profile = dev.current_view()?.profile;
    if attributes.is_null() {
        return Err(code::ERROR_INVALID);
    }
    if profile.mig == 0 || dev.is_partitioned() {
        return Err(code::ERROR_UNSUPPORTED);
    }
    attributes.put_value(nvmlDeviceAttributes_t {
        multiprocessorCount: profile.sms,
        sharedCopyEngineCount: 1,
        gpuInstanceSliceCount: 1,
        computeInstanceSliceCount: 1,
        memorySizeMB: profile.nvml_total >> 20,
        ..Default::default()
    })
}

pub fn nvmlDeviceGetAttributes(dev: NvmlGpu, attributes: CallerPlace<nvmlDeviceAttributes_t>) -> NvmlAnswer {
    nvmlDeviceGetAttributes_v2(dev, attributes)
}
