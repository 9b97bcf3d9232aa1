//! Reports which driver the loader would find here: the real one, the simulated one, or none.

use super::DoctorReport;
use crate::{elf, library, loader};

/// Text that only the simulated driver contains: the name of its variable.
const SIMULATED_MARK: &[u8] = b"VGPU_SIM_DIR";

pub fn examine_driver(report: &mut DoctorReport) {
    let mut kinds = Vec::new();
    for name in library::DRIVER_NAMES {
        match loader::find_library(name) {
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
