//! `vgpud --import`: prints a configuration file made from one of another program. Starts and changes nothing.

use std::path::Path;
use std::process::ExitCode;

use vgpu_config::import::import_text;
use vgpu_config::inventory;
use vgpu_config::options::Options;
use vgpu_config::problem::escape_value;
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_UNKNOWN, Failure};

use super::source::read_file;

/// Reads the file and prints the result.
///
/// # Errors
/// [`Failure`], with the exit code: 1 the file has an error, 3 it cannot be read.
pub fn run(file: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let name = escape_value(&file.display().to_string());
    let text = read_file(file, &name).map_err(|why| Failure::new(EXIT_UNKNOWN, why.to_string()))?;
    let inventory = if options.driver == "none" { None } else { inventory::ask_driver().ok() };
    let imported = import_text(&text, inventory.as_ref())
        .map_err(|why| Failure::new(EXIT_FINDINGS, format!("{name}:{}: {}", why.line, escape_value(&why.words))))?;
    say::print_text(&imported)?;
    Ok(ExitCode::SUCCESS)
}
