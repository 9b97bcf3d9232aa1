//! Hardware profiles: sizes, names, clocks and costs of a device in one struct.
//!
//! The built-in profiles are public knowledge about real boards. Costs and overheads are estimates until a
//! `gpu-probe` measurement replaces them through [`DeviceProfile::with_measurement`]; `measured` says which.
//! Not here: the state of a device (`layout`, `sched`).

use serde::Serialize;

/// Most devices of one machine.
pub const MAX_SIMULATED_DEVICES: usize = 16;

/// A device as the model knows it. Plain data, stored unchanged in the shared state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceProfile {
    /// Short name used in `VGPU_SIM_PROFILE`.
    #[serde(serialize_with = "text")]
    pub key: [u8; 16],
    /// Product name as CUDA and NVML show it.
    #[serde(serialize_with = "text")]
    pub name: [u8; 64],
    /// Video BIOS version that NVML reports.
    #[serde(serialize_with = "text")]
    pub vbios: [u8; 24],
    /// Compute capability, major.
    pub cc_major: u32,
    /// Compute capability, minor.
    pub cc_minor: u32,
    /// NVML architecture number (Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10).
    pub architecture: u32,
    /// NVML brand number (Tesla 2, NVIDIA RTX 13, NVIDIA 14).
    pub brand: u32,
    /// Number of streaming multiprocessors.
    pub sms: u32,
    /// Number of CUDA cores.
    pub cores: u32,
    /// Resident threads of one multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks of one multiprocessor.
    pub blocks_per_sm: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_per_sm: u32,
    /// Largest opt-in shared memory of one block, bytes.
    pub shared_optin: u32,
    /// Size of the second-level cache, bytes.
    pub l2_bytes: u32,
    /// Width of the memory bus, bits.
    pub bus_bits: u32,
    /// Number of copy engines.
    pub copy_engines: u32,
    /// Highest multiprocessor clock, MHz.
    pub sm_mhz: u32,
    /// Memory clock, MHz.
    pub mem_mhz: u32,
    /// Idle multiprocessor clock, MHz.
    pub idle_mhz: u32,
    /// Power limit, milliwatt; 0: the board has none that NVML tells.
    pub power_limit_mw: u32,
    /// Power drawn when idle, milliwatt.
    pub power_idle_mw: u32,
    /// PCI device and vendor id, as NVML gives it (device << 16 | vendor).
    pub pci_id: u32,
    /// PCI subsystem id.
    pub pci_subsystem: u32,
    /// PCI Express generation.
    pub pcie_gen: u32,
    /// PCI Express lanes.
    pub pcie_width: u32,
    /// 1: ECC memory is on.
    pub ecc: u32,
    /// 1: can be partitioned (MIG).
    pub mig_capable: u32,
    /// 1: has a fan.
    pub fan: u32,
    /// 1: the device has no memory of its own and uses the host's. NVML then does not tell its memory.
    pub integrated: u32,
    /// Memory as NVML reports it in `total`, bytes. On an integrated device NVML reports none, and this is CUDA's
    /// total.
    pub nvml_total: u64,
    /// Memory as `cuDeviceTotalMem` reports it, bytes. The difference to `nvml_total` is NVML's `reserved`.
    pub cuda_total: u64,
    /// BAR1 aperture, bytes.
    pub bar1_total: u64,
    /// Device memory of the first context of a process, bytes.
    pub context_bytes: u64,
    /// Device memory of each further context of a process, bytes.
    pub context_more_bytes: u64,
    /// Physical granularity of the driver's allocator, bytes.
    pub slab_bytes: u64,
    /// Requests of at least this many bytes get slabs of their own.
    pub small_limit: u64,
    /// Alignment inside a slab, bytes.
    pub small_align: u64,
    /// Time slice between processes, ns.
    pub slice_ns: u64,
    /// Switch between processes, ns; counts as busy time of no process.
    pub switch_ns: u64,
    /// Device time of an empty kernel that fits the device at once, ns. Not added to test kernels.
    pub kernel_ns: u64,
    /// Device time of an event record between two pieces of work, ns.
    pub event_ns: u64,
    /// Device time of every copy or fill in addition to its bytes, ns.
    pub copy_ns: u64,
    /// Bandwidth between host and device, bytes per microsecond.
    pub host_bytes_per_us: u64,
    /// Device memory bandwidth, bytes per microsecond.
    pub device_bytes_per_us: u64,
    /// Device time that each further wave of blocks adds in the cost model, ns.
    pub block_ns: u64,
    /// Launches a process may have outstanding before a launch blocks.
    pub queue_depth: u64,
    /// Time a launch occupies the calling thread, ns.
    pub launch_host_ns: u64,
    /// Time an event record occupies the calling thread, ns.
    pub record_host_ns: u64,
    /// Time a query of an event, a stream or a pool occupies the calling thread, ns.
    pub query_host_ns: u64,
    /// Time a synchronous allocation or free occupies the calling thread, ns, in addition to its waits.
    pub memory_host_ns: u64,
    /// Time an allocation from a pool, or a free to it, occupies the calling thread, ns.
    pub pool_host_ns: u64,
    /// Part of a call, in thousandths, after which the device sees its work; 0: each process draws 500 to 1000.
    pub visible_permille: u64,
    /// 1: costs and overheads were measured on hardware.
    pub measured: u32,
    /// 0: a whole device. Otherwise a MIG instance with one compute instance: its number on its device, from 1.
    pub mig: u32,
    /// 1: several processes are on the device at the same time (MPS) instead of in slices.
    pub mps: u32,
}

fn text<S: serde::Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(c_text(bytes))
}

/// The text of a zero-padded field.
pub fn c_text(bytes: &[u8]) -> &str {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).unwrap_or("?")
}

const fn fixed_text<const N: usize>(s: &str) -> [u8; N] {
    let b = s.as_bytes();
    let mut out = [0u8; N];
    let mut i = 0;
    while i < b.len() && i + 1 < N {
        out[i] = b[i];
        i += 1;
    }
    out
}

const MEBIBYTE: u64 = 1 << 20;

/// Values that most boards share; each row below overrides the others.
const BASE_PROFILE: DeviceProfile = DeviceProfile {
    key: [0; 16],
    name: [0; 64],
    vbios: fixed_text("00.00.00.00.00"),
    cc_major: 0,
    cc_minor: 0,
    architecture: 0,
    brand: 14,
    sms: 0,
    cores: 0,
    threads_per_sm: 2048,
    blocks_per_sm: 32,
    shared_per_sm: 228 << 10,
    shared_optin: 227 << 10,
    l2_bytes: 0,
    bus_bits: 0,
    copy_engines: 3,
    sm_mhz: 0,
    mem_mhz: 0,
    idle_mhz: 345,
    power_limit_mw: 0,
    power_idle_mw: 0,
    pci_id: 0,
    pci_subsystem: 0,
    pcie_gen: 4,
    pcie_width: 16,
    ecc: 1,
    mig_capable: 0,
    fan: 0,
    integrated: 0,
    nvml_total: 0,
    cuda_total: 0,
    bar1_total: 0,
    context_bytes: 0,
    context_more_bytes: 64 * MEBIBYTE,
    slab_bytes: 2 * MEBIBYTE,
    small_limit: MEBIBYTE,
    small_align: 512,
    slice_ns: 2_000_000,
    switch_ns: 30_000,
    kernel_ns: 2_500,
    event_ns: 500,
    copy_ns: 1_500,
    host_bytes_per_us: 24_000,
    device_bytes_per_us: 0,
    block_ns: 4_000,
    queue_depth: 1024,
    launch_host_ns: 2_200,
    record_host_ns: 700,
    query_host_ns: 500,
    memory_host_ns: 1_500,
    pool_host_ns: 400,
    visible_permille: 0,
    measured: 0,
    mig: 0,
    mps: 0,
};

/// The devices that the simulator can imitate without a measurement.
pub const BUILT_IN_PROFILES: [DeviceProfile; 9] = [
    DeviceProfile {
        key: fixed_text("t4"),
        name: fixed_text("Tesla T4"),
        vbios: fixed_text("90.04.38.00.03"),
        cc_major: 7,
        cc_minor: 5,
        architecture: 6,
        brand: 2,
        sms: 40,
        cores: 2560,
        threads_per_sm: 1024,
        blocks_per_sm: 16,
        shared_per_sm: 64 << 10,
        shared_optin: 64 << 10,
        l2_bytes: 4 << 20,
        bus_bits: 256,
        sm_mhz: 1590,
        mem_mhz: 5001,
        idle_mhz: 300,
        power_limit_mw: 70_000,
        power_idle_mw: 9_500,
        pci_id: 0x1EB8_10DE,
        pci_subsystem: 0x12A2_10DE,
        pcie_gen: 3,
        nvml_total: 15_360 * MEBIBYTE,
        cuda_total: 15_637_086_208,
        bar1_total: 256 * MEBIBYTE,
        context_bytes: 104 * MEBIBYTE,
        host_bytes_per_us: 12_000,
        device_bytes_per_us: 300_000,
        ..BASE_PROFILE
    },
    // Ids, sizes, clocks and power: thamada/gls, V100_x8_smi.py and V100_x8_deviceQuery.py (driver 550). Limits of
    // compute capability 7.0: NVIDIA/cccl, arch_traits. No source was found for the context and the host's bandwidth,
    // which are the T4's. The device's bandwidth is an estimate below the data sheet's 900 GB/s.
    DeviceProfile {
        key: fixed_text("v100"),
        name: fixed_text("Tesla V100-SXM2-16GB"),
        vbios: fixed_text("88.00.4F.00.09"),
        cc_major: 7,
        cc_minor: 0,
        architecture: 5,
        brand: 2,
        sms: 80,
        cores: 5120,
        shared_per_sm: 96 << 10,
        shared_optin: 96 << 10,
        l2_bytes: 6 << 20,
        bus_bits: 4096,
        copy_engines: 6,
        sm_mhz: 1530,
        mem_mhz: 877,
        idle_mhz: 135,
        power_limit_mw: 300_000,
        power_idle_mw: 44_500,
        pci_id: 0x1DB1_10DE,
        pci_subsystem: 0x1212_10DE,
        pcie_gen: 3,
        nvml_total: 16_384 * MEBIBYTE,
        cuda_total: 16_928_342_016,
        bar1_total: 16_384 * MEBIBYTE,
        context_bytes: 104 * MEBIBYTE,
        host_bytes_per_us: 12_000,
        device_bytes_per_us: 800_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("l4"),
        name: fixed_text("NVIDIA L4"),
        vbios: fixed_text("95.04.29.00.06"),
        cc_major: 8,
        cc_minor: 9,
        architecture: 8,
        sms: 58,
        cores: 7424,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        shared_per_sm: 100 << 10,
        shared_optin: 99 << 10,
        l2_bytes: 48 << 20,
        bus_bits: 192,
        copy_engines: 2,
        sm_mhz: 2040,
        mem_mhz: 6251,
        idle_mhz: 210,
        power_limit_mw: 72_000,
        power_idle_mw: 12_000,
        pci_id: 0x27B8_10DE,
        pci_subsystem: 0x16CA_10DE,
        nvml_total: 23_034 * MEBIBYTE,
        cuda_total: 23_600_037_888,
        bar1_total: 32_768 * MEBIBYTE,
        context_bytes: 158 * MEBIBYTE,
        device_bytes_per_us: 280_000,
        ..BASE_PROFILE
    },
    // Ids, sizes, clocks and power: thamada/nvidia-smi, L40S_smi.py and L40S_deviceQuery.py (driver 550). The video
    // BIOS: NVIDIA/k8s-test-infra, qx-l40s.xml (driver 595), which agrees with the ids, the size and the clocks. Limits
    // of compute capability 8.9: NVIDIA/cccl, arch_traits. No source was found for the context, which is the L4's. The
    // device's bandwidth is an estimate below the data sheet's 864 GB/s.
    DeviceProfile {
        key: fixed_text("l40s"),
        name: fixed_text("NVIDIA L40S"),
        vbios: fixed_text("95.02.66.00.15"),
        cc_major: 8,
        cc_minor: 9,
        architecture: 8,
        sms: 142,
        cores: 18176,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        shared_per_sm: 100 << 10,
        shared_optin: 99 << 10,
        l2_bytes: 96 << 20,
        bus_bits: 384,
        copy_engines: 2,
        sm_mhz: 2520,
        mem_mhz: 9001,
        idle_mhz: 210,
        power_limit_mw: 350_000,
        power_idle_mw: 33_400,
        pci_id: 0x26B9_10DE,
        pci_subsystem: 0x1851_10DE,
        nvml_total: 46_068 * MEBIBYTE,
        cuda_total: 47_803_596_800,
        bar1_total: 65_536 * MEBIBYTE,
        context_bytes: 158 * MEBIBYTE,
        device_bytes_per_us: 780_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("a100"),
        name: fixed_text("NVIDIA A100-SXM4-80GB"),
        vbios: fixed_text("92.00.45.00.05"),
        cc_major: 8,
        cc_minor: 0,
        architecture: 7,
        sms: 108,
        cores: 6912,
        shared_per_sm: 164 << 10,
        shared_optin: 163 << 10,
        l2_bytes: 40 << 20,
        bus_bits: 5120,
        copy_engines: 5,
        sm_mhz: 1410,
        mem_mhz: 1593,
        idle_mhz: 210,
        power_limit_mw: 400_000,
        power_idle_mw: 62_000,
        pci_id: 0x20B2_10DE,
        pci_subsystem: 0x1463_10DE,
        mig_capable: 1,
        nvml_total: 81_920 * MEBIBYTE,
        cuda_total: 85_198_045_184,
        bar1_total: 131_072 * MEBIBYTE,
        context_bytes: 418 * MEBIBYTE,
        device_bytes_per_us: 1_900_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("h100"),
        name: fixed_text("NVIDIA H100 80GB HBM3"),
        vbios: fixed_text("96.00.74.00.01"),
        cc_major: 9,
        cc_minor: 0,
        architecture: 9,
        sms: 132,
        cores: 16896,
        l2_bytes: 50 << 20,
        bus_bits: 5120,
        sm_mhz: 1980,
        mem_mhz: 2619,
        power_limit_mw: 700_000,
        power_idle_mw: 70_000,
        pci_id: 0x2330_10DE,
        pci_subsystem: 0x16C1_10DE,
        pcie_gen: 5,
        mig_capable: 1,
        nvml_total: 81_559 * MEBIBYTE,
        cuda_total: 84_942_979_072,
        bar1_total: 131_072 * MEBIBYTE,
        context_bytes: 522 * MEBIBYTE,
        host_bytes_per_us: 50_000,
        device_bytes_per_us: 3_000_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("h200"),
        name: fixed_text("NVIDIA H200"),
        vbios: fixed_text("96.00.C0.00.03"),
        cc_major: 9,
        cc_minor: 0,
        architecture: 9,
        sms: 132,
        cores: 16896,
        l2_bytes: 60 << 20,
        bus_bits: 6144,
        sm_mhz: 1980,
        mem_mhz: 3201,
        power_limit_mw: 700_000,
        power_idle_mw: 76_000,
        pci_id: 0x2335_10DE,
        pci_subsystem: 0x18BE_10DE,
        pcie_gen: 5,
        mig_capable: 1,
        nvml_total: 143_771 * MEBIBYTE,
        cuda_total: 150_121_545_728,
        bar1_total: 262_144 * MEBIBYTE,
        context_bytes: 526 * MEBIBYTE,
        host_bytes_per_us: 50_000,
        device_bytes_per_us: 4_300_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("rtxpro6000"),
        name: fixed_text("NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        vbios: fixed_text("98.02.6E.00.02"),
        cc_major: 12,
        cc_minor: 0,
        architecture: 10,
        brand: 13,
        sms: 188,
        cores: 24064,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        shared_per_sm: 100 << 10,
        shared_optin: 99 << 10,
        l2_bytes: 128 << 20,
        bus_bits: 512,
        copy_engines: 4,
        sm_mhz: 2430,
        mem_mhz: 12_481,
        idle_mhz: 180,
        power_limit_mw: 600_000,
        power_idle_mw: 30_000,
        pci_id: 0x2BB5_10DE,
        pci_subsystem: 0x204E_10DE,
        pcie_gen: 5,
        mig_capable: 1,
        nvml_total: 97_887 * MEBIBYTE,
        cuda_total: 101_973_491_712,
        bar1_total: 131_072 * MEBIBYTE,
        context_bytes: 570 * MEBIBYTE,
        host_bytes_per_us: 50_000,
        device_bytes_per_us: 1_500_000,
        ..BASE_PROFILE
    },
    DeviceProfile {
        key: fixed_text("gb10"),
        name: fixed_text("NVIDIA GB10"),
        cc_major: 12,
        cc_minor: 1,
        architecture: 10,
        brand: 13,
        sms: 48,
        cores: 6144,
        threads_per_sm: 1536,
        blocks_per_sm: 24,
        shared_per_sm: 100 << 10,
        shared_optin: 99 << 10,
        l2_bytes: 24 << 20,
        bus_bits: 256,
        copy_engines: 1,
        sm_mhz: 2418,
        mem_mhz: 8533,
        idle_mhz: 208,
        power_idle_mw: 4_000,
        pci_id: 0x2E12_10DE,
        pcie_gen: 5,
        ecc: 0,
        integrated: 1,
        nvml_total: 122_570 * MEBIBYTE,
        cuda_total: 122_570 * MEBIBYTE,
        context_bytes: 180 * MEBIBYTE,
        host_bytes_per_us: 100_000,
        device_bytes_per_us: 240_000,
        ..BASE_PROFILE
    },
];

impl DeviceProfile {
    /// The built-in device named `key`, in upper or lower case.
    pub fn built_in(key: &str) -> Option<DeviceProfile> {
        BUILT_IN_PROFILES.iter().find(|p| p.profile_key().eq_ignore_ascii_case(key)).copied()
    }

    /// Short name by which `VGPU_SIM_PROFILE` selects the device.
    pub fn profile_key(&self) -> &str {
        c_text(&self.key)
    }

    /// Product name that CUDA and NVML report.
    pub fn name(&self) -> &str {
        c_text(&self.name)
    }

    /// Memory that exists but that programs cannot use, NVML's `reserved`, bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.nvml_total - self.cuda_total
    }

    /// Bytes that allocations and contexts can use together: whole slabs.
    pub fn capacity_bytes(&self) -> u64 {
        self.cuda_total / self.slab_bytes * self.slab_bytes
    }

    /// The MIG instances of this device for a geometry such as `3g.40gb+1g.10gb` (compute slices and memory).
    ///
    /// An instance has its share of the multiprocessors and of the memory, in eighths. The model treats it as a
    /// separate device: it shares no clock with its neighbours.
    ///
    /// # Errors
    /// The device cannot be partitioned, a name is not in its geometry, or the names exceed seven compute or eight
    /// memory slices.
    pub fn mig_instances(&self, geometry: &str) -> Result<Vec<DeviceProfile>, String> {
        if self.mig_capable == 0 || self.cc_major > 9 {
            return Err(format!("{} has no MIG geometry here", self.profile_key()));
        }
        let gigabytes = self.nvml_total.div_ceil(1 << 30);
        let (mut out, mut compute, mut memory) = (Vec::new(), 0, 0);
        for name in geometry.split('+') {
            let slices = name.strip_suffix("gb").and_then(|n| n.split_once("g.")).and_then(|(c, m)| {
                let (c, m) = (c.parse::<u32>().ok()?, m.parse::<u64>().ok()?);
                let eighths = (1..=8).find(|e| (gigabytes * e).div_ceil(8) == m || gigabytes * e / 8 == m)?;
                matches!(c, 1 | 2 | 3 | 4 | 7).then_some((c, eighths))
            });
            let Some((c, m)) = slices else {
                return Err(format!("no MIG instance {name:?}; one is called 1g.{}gb", gigabytes.div_ceil(8)));
            };
            compute += c;
            memory += m;
            let mut p = *self;
            p.mig = u32::try_from(out.len() + 1).unwrap_or(1);
            p.name = [0; 64];
            let full = format!("{} MIG {name}", self.name());
            let n = full.len().min(63);
            p.name[..n].copy_from_slice(&full.as_bytes()[..n]);
            p.sms = self.sms / 8 * c;
            p.cores = self.cores / self.sms * p.sms;
            p.nvml_total = self.nvml_total / 8 * m / MEBIBYTE * MEBIBYTE;
            p.cuda_total = p.nvml_total - self.reserved_bytes() / 8 * m / MEBIBYTE * MEBIBYTE;
            out.push(p);
        }
        if compute > 7 || memory > 8 {
            return Err(format!("{geometry}: {compute} compute slices of 7, {memory} memory slices of 8"));
        }
        Ok(out)
    }

    /// Device time of `bytes` moved at `per_us` bytes per microsecond.
    pub fn copy_time(&self, bytes: u64, per_us: u64) -> u64 {
        self.copy_ns + bytes.saturating_mul(1000) / per_us.max(1)
    }

    /// Device time of a kernel that is not one of the test kernels (`launch` in sim/cuda).
    ///
    /// Blocks run on the multiprocessors in waves: `kernel_ns` includes the first, each further one takes `block_ns`.
    pub fn kernel_time(&self, blocks: u64, threads_per_block: u32) -> u64 {
        let per_sm = u64::from((self.threads_per_sm / threads_per_block.max(1)).clamp(1, self.blocks_per_sm));
        let waves = blocks.div_ceil(u64::from(self.sms).max(1) * per_sm).max(1);
        self.kernel_ns.saturating_add((waves - 1).saturating_mul(self.block_ns))
    }

    /// Replaces figures of this profile by those of a hardware measurement; unknown keys are ignored.
    ///
    /// `json` is an object, or has an object under `"profile"`. Its keys are the numeric field names of this struct
    /// that are costs or sizes.
    ///
    /// # Errors
    /// The text is not a JSON object, or a known key has no whole number.
    pub fn with_measurement(mut self, json: &str) -> Result<DeviceProfile, String> {
        let value: serde_json::Value = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let object = value.get("profile").unwrap_or(&value).as_object().ok_or("not a JSON object")?;
        let fields: [(&str, &mut u64); 23] = [
            ("nvml_total", &mut self.nvml_total),
            ("cuda_total", &mut self.cuda_total),
            ("bar1_total", &mut self.bar1_total),
            ("context_bytes", &mut self.context_bytes),
            ("context_more_bytes", &mut self.context_more_bytes),
            ("slab_bytes", &mut self.slab_bytes),
            ("small_limit", &mut self.small_limit),
            ("small_align", &mut self.small_align),
            ("slice_ns", &mut self.slice_ns),
            ("switch_ns", &mut self.switch_ns),
            ("kernel_ns", &mut self.kernel_ns),
            ("event_ns", &mut self.event_ns),
            ("copy_ns", &mut self.copy_ns),
            ("host_bytes_per_us", &mut self.host_bytes_per_us),
            ("device_bytes_per_us", &mut self.device_bytes_per_us),
            ("block_ns", &mut self.block_ns),
            ("queue_depth", &mut self.queue_depth),
            ("launch_host_ns", &mut self.launch_host_ns),
            ("record_host_ns", &mut self.record_host_ns),
            ("query_host_ns", &mut self.query_host_ns),
            ("memory_host_ns", &mut self.memory_host_ns),
            ("pool_host_ns", &mut self.pool_host_ns),
            ("visible_permille", &mut self.visible_permille),
        ];
        for (name, field) in fields {
            if let Some(v) = object.get(name) {
                *field = v.as_u64().ok_or_else(|| format!("{name} is not a whole number"))?;
            }
        }
        if self.slab_bytes == 0 || self.slice_ns == 0 || self.nvml_total < self.cuda_total {
            return Err("slab_bytes and slice_ns must be positive, cuda_total at most nvml_total".into());
        }
        // Contexts count in whole slabs, so that free memory can be allocated to the last byte.
        self.context_bytes = self.context_bytes.next_multiple_of(self.slab_bytes);
        self.context_more_bytes = self.context_more_bytes.next_multiple_of(self.slab_bytes);
        self.measured = 1;
        Ok(self)
    }
}

/// Reads `VGPU_SIM_PROFILE`: `h200`, `2xh200`, `t4,h200`, `none`. `h200@/path/probe.json` adds a measurement.
/// `a100:mig=3g.40gb+3g.40gb` is a partitioned device: only its instances exist. On `h200:mps` several processes
/// run at the same time. On `h200:instant` calls take no host time: for measuring the library's own.
///
/// # Errors
/// An unknown name, a count outside 1..=16, more than 16 devices, or an unreadable measurement; as text.
pub fn parse_list(text: &str) -> Result<Vec<DeviceProfile>, String> {
    let mut out = Vec::new();
    if text.trim().eq_ignore_ascii_case("none") {
        return Ok(out);
    }
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (part, file) = part.split_once('@').map_or((part, None), |(p, f)| (p, Some(f)));
        let (part, is_instant) = part.strip_suffix(":instant").map_or((part, false), |p| (p, true));
        let (part, mps) = part.strip_suffix(":mps").map_or((part, 0), |p| (p, 1));
        let (part, geometry) = part.split_once(":mig=").map_or((part, None), |(p, g)| (p, Some(g)));
        let (count, key) = match part.split_once(['x', '*']) {
            Some((n, key)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
                (n.parse::<usize>().map_err(|e| e.to_string())?, key)
            }
            _ => (1, part),
        };
        let known = || BUILT_IN_PROFILES.iter().map(DeviceProfile::profile_key).collect::<Vec<_>>().join(", ");
        let mut p = DeviceProfile::built_in(key).ok_or_else(|| format!("no device {key:?}; known: {}", known()))?;
        p.mps = mps;
        if let Some(file) = file {
            let json = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
            p = p.with_measurement(&json).map_err(|e| format!("{file}: {e}"))?;
        }
        if is_instant {
            (p.launch_host_ns, p.record_host_ns, p.query_host_ns, p.memory_host_ns, p.pool_host_ns) = (0, 0, 0, 0, 0);
        }
        let one = geometry.map_or_else(|| Ok(vec![p]), |geometry| p.mig_instances(geometry))?;
        if count == 0 || out.len() + count * one.len() > MAX_SIMULATED_DEVICES {
            return Err(format!("between 1 and {} devices", MAX_SIMULATED_DEVICES));
        }
        out.extend(std::iter::repeat_n(one, count).flatten());
    }
    if out.is_empty() { Err("names no device; write none for a machine without one".into()) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_board_has_nvmls_number_of_its_brand() {
        // nvml.h: NVML_BRAND_TESLA 2, NVML_BRAND_NVIDIA_RTX 13, NVML_BRAND_NVIDIA 14.
        for profile in BUILT_IN_PROFILES {
            let expected = match profile.name() {
                name if name.starts_with("Tesla") => 2,
                name if name.contains("RTX") || name.contains("GB10") => 13,
                _ => 14,
            };
            assert_eq!(profile.brand, expected, "{}", profile.name());
        }
    }

    #[test]
    fn lists_name_several_devices() {
        let keys = |t: &str| parse_list(t).unwrap().iter().map(|p| p.profile_key().to_owned()).collect::<Vec<_>>();
        assert_eq!(keys("2xh200"), ["h200", "h200"]);
        assert_eq!(keys("t4,H200"), ["t4", "h200"]);
        assert_eq!(keys("rtxpro6000"), ["rtxpro6000"]);
        assert!(keys("none").is_empty());
        let mps = |t: &str| parse_list(t).unwrap().iter().map(|p| p.mps).collect::<Vec<_>>();
        assert_eq!(mps("2xh200:mps,t4"), [1, 1, 0]);
        let costs = |t: &str| parse_list(t).unwrap().iter().map(|p| p.launch_host_ns).collect::<Vec<_>>();
        assert_eq!(costs("t4,t4:instant,h200:mps:instant"), [2_200, 0, 0]);
        assert!(parse_list("h300").unwrap_err().contains("known: t4"));
        assert!(parse_list("17xt4").is_err());
        assert!(parse_list("").is_err());
    }

    #[test]
    fn a_partitioned_device_is_its_instances() {
        let all = parse_list("t4,a100:mig=3g.40gb+1g.10gb").unwrap();
        let [t4, three, one] = &all[..] else { panic!("{}", all.len()) };
        assert_eq!((t4.mig, three.mig, one.mig), (0, 1, 2));
        assert_eq!(three.name(), "NVIDIA A100-SXM4-80GB MIG 3g.40gb");
        assert_eq!((three.nvml_total, one.nvml_total), (40 << 30, 10 << 30));
        assert!(three.sms > 2 * one.sms && three.nvml_total > three.cuda_total);
        assert_eq!(parse_list("h200:mig=1g.18gb+2g.35gb+3g.71gb").unwrap().len(), 3);
        for wrong in ["t4:mig=1g.2gb", "a100:mig=5g.40gb", "a100:mig=4g.40gb+4g.40gb", "a100:mig=", "a100:mig=1g.11gb"]
        {
            assert!(parse_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_measurement_replaces_the_estimates_it_has() {
        let p = DeviceProfile::built_in("t4")
            .unwrap()
            .with_measurement(r#"{"profile":{"slice_ns":1500000,"context_bytes":3}}"#)
            .unwrap();
        assert_eq!((p.slice_ns, p.measured, p.sms, p.context_bytes), (1_500_000, 1, 40, 2 << 20));
        assert!(DeviceProfile::built_in("t4").unwrap().with_measurement(r#"{"slice_ns":0}"#).is_err());
    }

    #[test]
    fn kernels_cost_by_waves() {
        let p = DeviceProfile::built_in("h200").unwrap();
        assert_eq!(p.kernel_time(1, 1), p.kernel_ns);
        assert_eq!(p.kernel_time(132 * 2, 1024), p.kernel_ns);
        assert_eq!(p.kernel_time(132 * 2 + 1, 1024), p.kernel_ns + p.block_ns);
        assert!(p.kernel_time(u64::MAX, 1024) > 1 << 40, "huge grids neither overflow nor vanish");
    }

    #[test]
    fn the_page_of_the_simulated_device_has_each_board_with_its_figures() {
        let page = include_str!("../../../docs/simulated-device.md");
        for p in BUILT_IN_PROFILES {
            let (key, name, mib, watts) = (p.profile_key(), p.name(), p.nvml_total >> 20, p.power_limit_mw / 1000);
            let (major, minor, sms, id) = (p.cc_major, p.cc_minor, p.sms, p.pci_id >> 16);
            let row = format!("| `{key}` | {name} | {major}.{minor} | {sms} | {mib} MiB | {watts} W | {id:04X} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    #[test]
    fn every_built_in_device_is_complete() {
        for p in BUILT_IN_PROFILES {
            assert!(
                p.sms > 0 && p.cores > 0 && p.sm_mhz > 0 && p.mem_mhz > 0 && p.device_bytes_per_us > 0,
                "{}",
                p.profile_key()
            );
            assert_eq!(
                p.nvml_total > p.cuda_total,
                p.integrated == 0,
                "{}: the driver reserves device memory",
                p.profile_key()
            );
            assert!(p.context_bytes.is_multiple_of(p.slab_bytes), "{}", p.profile_key());
            assert!(p.capacity_bytes() <= p.cuda_total && p.cuda_total - p.capacity_bytes() < p.slab_bytes);
        }
    }
}
