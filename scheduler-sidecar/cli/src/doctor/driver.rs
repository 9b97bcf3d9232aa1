//! Reports which driver the loader would find here: the real one, the simulated one, or none.

use super::Report;
use crate::{elf, library, loader};

/// Text that only the simulated driver contains: the name of its variable.
const MARK: &[u8] = b"VGPU_SIM_DIR";

pub fn look(report: &mut Report) {
    let mut kinds = Vec::new();
    for name in library::DRIVERS {
        match loader::finds(name) {
            None => report.finding(
                "driver",
                format!("{name} is not found: programs see no GPU; install the driver, or use `vgpu run --sim`"),
            ),
            Some(path) => {
                let simulated = elf::holds(&path, MARK);
                kinds.push(simulated);
                let kind = if simulated { "simulated" } else { "real" };
                report.fine("driver", format!("{name}: {kind}, {}", path.display()));
            }
        }
    }
    if kinds == [true, false] || kinds == [false, true] {
        report.finding(
            "driver",
            "one of them is simulated and the other real: their devices will not agree; check LD_LIBRARY_PATH",
        );
    }
}
