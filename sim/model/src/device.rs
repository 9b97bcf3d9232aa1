//! Queries about a device: identity, memory, processes, utilisation. CUDA and NVML both use them.
//!
//! All memory figures of one query come from one look at the state, so they agree with each other.
//! Not here: changes of the state (`memory`, `engine`).

use crate::layout::{ProcessSlot, WINDOW_NS, WINDOWS_KEPT, ring_index, set_bits};
use crate::machine::{MachineView, now, wall_ns};
use crate::profile::{DeviceProfile, c_text};

/// Numbers by which CUDA and NVML identify a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The 16 bytes of the UUID.
    pub uuid: [u8; 16],
    /// PCI domain of the device.
    pub domain: u32,
    /// PCI bus of the device.
    pub bus: u32,
    /// PCI device number.
    pub device: u32,
    /// NVML minor number: the number of the device file.
    pub minor: u32,
    /// The profile's `mig`: 0 for a whole device.
    pub mig: u32,
}

impl DeviceIdentity {
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`; `MIG-...` for a MIG instance.
    pub fn uuid_text(&self) -> String {
        let h = self.uuid.map(|b| format!("{b:02x}"));
        let part = |r: std::ops::Range<usize>| h[r].concat();
        let kind = if self.mig == 0 { "GPU" } else { "MIG" };
        format!("{kind}-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16))
    }

    /// Identity of the whole device that this instance is part of; its UUID is not among the machine's devices.
    pub fn whole_device(&self) -> DeviceIdentity {
        let mut whole = DeviceIdentity { mig: 0, ..*self };
        if self.mig > 0 {
            // The last byte is the instance's number; a partitioned whole device has 0xFF there.
            whole.uuid[15] = 0xFF;
        }
        whole
    }

    /// `0000:17:00.0`, as CUDA shows it.
    pub fn pci_text(&self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// `00000000:17:00.0`, as NVML shows it.
    pub fn pci_text_long(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }
}

/// Memory of a device at one moment, bytes. `cuda_total = nvml_total - reserved`; `free` can be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Total memory that NVML reports.
    pub nvml_total: u64,
    /// Reserved memory that NVML reports.
    pub reserved: u64,
    /// Total memory that CUDA reports.
    pub cuda_total: u64,
    /// In use: allocations in whole slabs, contexts, and each share once.
    pub used: u64,
    /// Free for allocations and contexts: whole slabs.
    pub free: u64,
}

/// A process that has a context on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Process id in the caller's pid namespace; 0: it has none there.
    pub pid: u32,
    /// Device memory that the process uses, contexts included, bytes.
    pub bytes: u64,
    /// Path of the process's executable.
    pub name: String,
    /// Number of the process on this machine, never used twice.
    pub serial: u64,
}

/// A utilisation sample of a process over one finished window of a sixth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilisationSample {
    /// Process id in the caller's pid namespace; 0: it has none there.
    pub pid: u32,
    /// End of the window, microseconds of the wall clock.
    pub at_us: u64,
    /// Share of the window in which the device worked for the process, percent.
    pub sm: u32,
    /// Device memory bandwidth, percent; the model estimates half of `sm`.
    pub mem: u32,
}

impl crate::layout::DeviceBody {
    /// Identity of this device: UUID, PCI address, minor number.
    pub fn engine_identity(&self) -> DeviceIdentity {
        DeviceIdentity {
            uuid: self.uuid,
            domain: self.pci_domain,
            bus: self.pci_bus,
            device: self.pci_device,
            minor: self.minor,
            mig: self.profile.mig,
        }
    }
}

impl MachineView {
    /// Identity of device `i`: UUID, PCI address, minor number.
    pub fn device_identity(&self, i: usize) -> DeviceIdentity {
        self.lock().devices[i].engine_identity()
    }

    /// Memory of device `i` now, after dead processes were removed.
    pub fn device_memory(&self, i: usize) -> DeviceMemory {
        let mut b = self.lock();
        self.reap_now_and_then(&mut b, now());
        let p: DeviceProfile = b.devices[i].profile;
        let used = b.taken_bytes(i);
        DeviceMemory {
            nvml_total: p.nvml_total,
            reserved: p.reserved_bytes(),
            cuda_total: p.cuda_total,
            used,
            free: p.capacity_bytes().saturating_sub(used),
        }
    }

    /// Processes with a context on device `i`, oldest first.
    pub fn device_processes(&self, i: usize) -> Vec<ProcessUse> {
        let mut b = self.lock();
        self.reap_dead(&mut b, now());
        let mut out: Vec<ProcessUse> = set_bits(&b.live)
            .map(|slot| (slot, &b.slots[slot]))
            .filter(|(slot, _)| b.used_with_shares(*slot, i).contexts > 0)
            .map(|(slot, s)| ProcessUse {
                pid: self.number_of(&b, slot).unwrap_or(0),
                bytes: b.used_with_shares(slot, i).physical_bytes(),
                name: c_text(&s.name).to_owned(),
                serial: s.serial,
            })
            .collect();
        out.sort_by_key(|p| p.serial);
        out
    }

    /// Utilisation of device `i` in the last finished window: (compute, memory), percent.
    pub fn device_utilisation(&self, i: usize) -> (u32, u32) {
        let b = self.lock_settled();
        let window = now() / WINDOW_NS;
        let busy: u64 = set_bits(&b.live).map(|s| u64::from(window_busy(&b.slots[s], i, window.wrapping_sub(1)))).sum();
        let sm = busy_percent(busy);
        (sm, sm / 2)
    }

    /// Samples of device `i` that ended after `since_us` (wall clock), oldest first. As with NVML, a process without
    /// work in a window has no sample there. About ten seconds are kept.
    pub fn utilisation_samples(&self, i: usize, since_us: u64) -> Vec<UtilisationSample> {
        let b = self.lock_settled();
        let time = now();
        let offset = wall_ns().saturating_sub(time);
        let window = time / WINDOW_NS;
        let mut out = Vec::new();
        for w in window.saturating_sub(WINDOWS_KEPT as u64 - 2)..window {
            let at_us = ((w + 1) * WINDOW_NS + offset) / 1000;
            if at_us <= since_us {
                continue;
            }
            for s in set_bits(&b.live) {
                let busy = window_busy(&b.slots[s], i, w);
                if busy > 0 {
                    let sm = busy_percent(u64::from(busy));
                    out.push(UtilisationSample { pid: self.number_of(&b, s).unwrap_or(0), at_us, sm, mem: sm / 2 });
                }
            }
        }
        out
    }
}

fn busy_percent(busy: u64) -> u32 {
    u32::try_from((busy * 100 + WINDOW_NS / 2) / WINDOW_NS).unwrap_or(100).min(100)
}

fn window_busy(slot: &ProcessSlot, device: usize, window: u64) -> u32 {
    let sd = &slot.devices[device];
    if window > sd.window || sd.window - window >= WINDOWS_KEPT as u64 {
        return 0;
    }
    sd.windows[ring_index(window, WINDOWS_KEPT)]
}
