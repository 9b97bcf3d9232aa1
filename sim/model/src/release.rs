//! The driver version that the simulator imitates: 535 with CUDA 12.2, or the one `VGPU_SIM_DRIVER` names.
//!
//! Not here: the features of each version (sim/cuda's `versions` and `newer`).

use std::sync::OnceLock;

/// Version numbers of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverRelease {
    /// Number by which `VGPU_SIM_DRIVER` selects this driver.
    pub key: &'static str,
    /// Driver version as NVML shows it.
    pub driver: &'static str,
    /// Version of the NVML library.
    pub nvml: &'static str,
    /// CUDA version that `cuDriverGetVersion` returns.
    pub cuda: i32,
}

/// The supported drivers, oldest first. The first one is the default.
const ALL_RELEASES: [DriverRelease; 2] = [
    DriverRelease { key: "535", driver: "535.309.01", nvml: "12.535.309.01", cuda: 12_020 },
    DriverRelease { key: "580", driver: "580.65.06", nvml: "13.580.65.06", cuda: 13_000 },
];

impl DriverRelease {
    /// The driver that this process sees, decided once. An unknown name prints a warning and selects the first.
    pub fn current() -> DriverRelease {
        static CURRENT_RELEASE: OnceLock<DriverRelease> = OnceLock::new();
        *CURRENT_RELEASE.get_or_init(|| {
            let asked = std::env::var("VGPU_SIM_DRIVER").unwrap_or_default();
            let found = ALL_RELEASES.iter().find(|r| asked.is_empty() || r.key == asked);
            *found.unwrap_or_else(|| {
                eprintln!("vgpu-sim: VGPU_SIM_DRIVER={asked:?}: neither 535 nor 580");
                &ALL_RELEASES[0]
            })
        })
    }

    /// True if the driver is newer than 535.
    pub fn is_newer(&self) -> bool {
        self.cuda > ALL_RELEASES[0].cuda
    }
}
