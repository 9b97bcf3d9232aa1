//! Which driver is imitated: 535 with CUDA 12.2, or what `VGPU_SIM_DRIVER` names. Not here: what each of them knows
//! (sim/cuda's `versions` and `newer`).

use std::sync::OnceLock;

/// A driver's versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The number in `VGPU_SIM_DRIVER`.
    pub key: &'static str,
    /// As NVML shows it.
    pub driver: &'static str,
    /// NVML's own.
    pub nvml: &'static str,
    /// `cuDriverGetVersion`.
    pub cuda: i32,
}

/// The oldest one first; it is the one that is meant if nobody says otherwise.
const ALL: [Release; 2] = [
    Release { key: "535", driver: "535.309.01", nvml: "12.535.309.01", cuda: 12_020 },
    Release { key: "580", driver: "580.65.06", nvml: "13.580.65.06", cuda: 13_000 },
];

impl Release {
    /// The driver this process sees; decided once. A name that is not known is said and means the first.
    pub fn current() -> Release {
        static CURRENT: OnceLock<Release> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let asked = std::env::var("VGPU_SIM_DRIVER").unwrap_or_default();
            let found = ALL.iter().find(|r| asked.is_empty() || r.key == asked);
            *found.unwrap_or_else(|| {
                eprintln!("vgpu-sim: VGPU_SIM_DRIVER={asked:?}: neither 535 nor 580");
                &ALL[0]
            })
        })
    }

    /// Whether it knows what came after driver 535.
    pub fn is_newer(&self) -> bool {
        self.cuda > ALL[0].cuda
    }
}
