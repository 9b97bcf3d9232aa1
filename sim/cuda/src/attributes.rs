//! Device attributes by number, for `cuDeviceGetAttribute`. Values that differ between boards are public facts
//! about them.

use vgpu_sim::{DeviceIdentity, DeviceProfile};

/// The value of an attribute; `None` for a number that this driver version does not know.
pub(crate) fn device_attribute(p: &DeviceProfile, id: &DeviceIdentity, number: u32) -> Option<i32> {
    let hopper = i32::from(p.cc_major >= 9);
    let ampere = i32::from(p.cc_major >= 8);
    let i = |v: u32| i32::try_from(v).unwrap_or(i32::MAX);
    Some(match number {
        1 => 1024,                // threads per block
        2 | 3 => 1024,            // block x, y
        4 => 64,                  // block z
        5 => i32::MAX,            // grid x
        6 | 7 => 65_535,          // grid y, z
        8 => 48 << 10,            // shared memory per block
        9 => 64 << 10,            // constant memory
        10 => 32,                 // warp
        11 => i32::MAX,           // pitch
        12 => 65_536,             // registers per block
        13 => i(p.sm_mhz * 1000), // clock, kHz
        14 => 512,                // texture alignment
        15 => 1,                  // copies run next to kernels
        16 => i(p.sms),           // multiprocessors
        17 => 0,                  // no time limit
        18 => i(p.integrated),    // shares the host's memory
        19 => 1,                  // maps host memory
        20 => 0,                  // compute mode default
        21 => 131_072,            // texture 1D
        22 => 131_072,            // texture 2D
        23 => 65_536,
        24..=26 => 16_384, // texture 3D
        27 | 28 => 32_768, // layered
        29 => 2048,
        30 => 512, // surface alignment
        31 => 1,   // concurrent kernels
        32 => i(p.ecc),
        33 => i(id.bus),
        34 => i(id.device),
        35 => 0, // TCC: Windows
        36 => i(p.mem_mhz * 1000),
        37 => i(p.bus_bits),
        38 => i(p.l2_bytes),
        39 => i(p.threads_per_sm),
        40 => i(p.copy_engines),
        41 => 1, // unified addressing
        42 => 32_768,
        43 => 2048,
        44 => 1,
        45..=47 => 16_384,
        48 => 8192,
        49 => 8192,
        50 => i(id.domain),
        51 => 32,
        52 => 32_768,
        53 => 32_768,
        54 => 2046,
        55 => 32_768,
        56 => 131_072,
        57 | 59 | 60 => {
            if number == 57 {
                65_536
            } else {
                16_384
            }
        }
        58 => 16_384,
        61 => 32_768,
        62 => 2048,
        63 => 32_768,
        64 => 32_768,
        65 => 2048,
        66 => 32_768,
        67 => 32_768,
        68 => 2046,
        69 => 268_435_456,
        70 => 131_072,
        71 => 65_000,
        72 => 2_097_120,
        73 => 32_768,
        74 => 32_768,
        75 => i(p.cc_major),
        76 => i(p.cc_minor),
        77 => 32_768,
        78 => 1, // stream priorities
        79 => 1,
        80 => 1,
        81 => i(p.shared_per_sm),
        82 => 65_536, // registers per multiprocessor
        83 => 1,      // managed memory
        84 => 0,      // not on a multi-GPU board
        85 => 0,
        86 => i32::from(p.cc_major < 8 || p.cc_major == 9 || p.mig_capable == 1),
        87 => 32,
        88 => 0, // pageable access
        89 => 1, // concurrent managed access
        90 => 1, // preemption
        91 => 1, // registered host pointers are device pointers
        92 => 0, // stream memory operations: not simulated
        93 => 0,
        94 => 0,
        95 => 1, // cooperative launch
        96 => 1, // cooperative multi-device
        97 => i(p.shared_optin),
        98 => 0,
        99 => 1, // host registration
        100 => 0,
        101 => 0,
        102 => 1, // virtual memory management
        103 => 1, // export as file descriptor
        104 | 105 => 0,
        106 => i(p.blocks_per_sm),
        107 => 0, // compression
        108 => i(p.l2_bytes) * 5 / 8 * ampere,
        109 => 134_213_632 * ampere,
        110 => 0,
        111 => 1024 * ampere, // reserved shared memory per block
        112 => 1,             // sparse arrays
        113 => 0,             // read-only registration
        114 => 0,
        115 => 1, // memory pools
        116 => 0,
        117 => 0,
        118 => 100 * ampere,
        119 => 1,      // pools can be exported as file descriptors
        120 => hopper, // clusters
        121 => 1,      // arrays that are mapped later
        122 | 123 => 0,
        124 => i32::from(p.integrated == 0), // DMA-BUF descriptors, as with open kernel modules
        125 => 0,                            // IPC events
        126 => {
            if hopper == 1 {
                4
            } else {
                1
            }
        }
        127 => hopper, // tensor maps
        128 => hopper, // fabric handles, if the machine has their service
        129 => 1,      // unified function pointers
        130 => 0,
        131 => -1,
        132 => 0, // multicast depends on the machine, see `calls::device`
        133 => i32::from(p.mps != 0),
        134 => -1,
        _ => return None,
    })
}

/// Attributes of a kernel by number, as in `cuFuncGetAttribute`.
pub(crate) fn function_attribute(p: &DeviceProfile, e: &crate::image::KernelEntry, number: u32) -> Option<i32> {
    let i = |v: u32| i32::try_from(v).unwrap_or(i32::MAX);
    let arch = i(p.cc_major * 10 + p.cc_minor);
    Some(match number {
        0 => 1024,
        1 => i(e.shared),
        2 => 0,
        3 => i(e.local),
        4 => i(e.registers),
        5 | 6 => arch,
        7 => 0,
        8 => (48 << 10) - i(e.shared).min(48 << 10),
        9 => -1,
        10..=15 => 0,
        _ => return None,
    })
}
