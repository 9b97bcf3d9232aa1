//! Reports which driver the loader would find here: the real one, the simulated one, or none.

use super::DoctorReport;
use crate::{elf, library, loader};

/// Text that only the simulated driver contains: the name of its variable.
const SIMULATED_MARK: &[u8] = b"VGPU_SIM_DIR";
/// File name of NVML.
const NVML_NAME: &str = "libnvidia-ml.so.1";

/// The effect of a missing NVML next to a CUDA that is there, and the remedy.
pub const NVML_MISSING: &str = "CUDA programs see the devices; nvidia-smi and other NVML tools do not, and no limit \
                                with a device number or a percentage can be kept; install the driver's NVML (in a \
                                container NVIDIA_DRIVER_CAPABILITIES=compute,utility), or write sizes for all devices";

pub fn examine_driver(report: &mut DoctorReport) {
    let mut kinds = Vec::new();
    let found = library::DRIVER_NAMES.map(|name| (name, loader::find_library(name)));
    let is_cuda_there = found.iter().any(|(name, path)| *name != NVML_NAME && path.is_some());
    for (name, path) in found {
        match path {
            None if name == NVML_NAME && is_cuda_there => {
                report.add_finding("driver", format!("{name} is not found: {NVML_MISSING}"));
            }
            None => report.add_finding(
                "driver",
                format!("{name} is not found: programs see no GPU; install the driver, or use `vgpu run --sim`"),
            ),
            Some(path) => {
                let simulated = elf::contains_bytes(&path, SIMULATED_MARK);
                kinds.push(simulated);
                let kind = if simulated { "simulated" } else { "real" };
                report.add_fine("driver", format!("{name}: {kind}, {}", path.display()));
            }
        }
    }
    if kinds == [true, false] || kinds == [false, true] {
        report.add_finding(
            "driver",
            "one of them is simulated and the other real: their devices will not agree; check LD_LIBRARY_PATH",
        );
    }
}
