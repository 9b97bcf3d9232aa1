//! Reads a configuration of vgpud for commands that need no daemon. No driver is asked.

use std::fs;
use std::path::Path;

use vgpu_config::plan::ConfigPlan;
use vgpu_config::resolve::Surroundings;
use vgpu_config::{self as config, paths};
use vgpu_output::say::{EXIT_FINDINGS, Failure};

/// Reads and checks the file.
///
/// # Errors
/// The file cannot be read, or its problems, one line for each.
pub fn read_configuration(file: &Path) -> Result<ConfigPlan, Failure> {
    let text =
        fs::read_to_string(file).map_err(|why| Failure::new(EXIT_FINDINGS, format!("{}: {why}", file.display())))?;
    let around = Surroundings {
        run_dir: paths::runtime_dir(),
        event_kinds: vgpu_control::event::triggering_kinds(),
        ..Surroundings::default()
    };
    config::make_plan(&text, &around).map_err(|report| {
        Failure::new(EXIT_FINDINGS, report.to_lines(&file.display().to_string()).trim_end().to_owned())
    })
}
