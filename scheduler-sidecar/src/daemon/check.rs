//! `vgpud --check`: what a file means, or everything that is wrong with it. Nothing is started, nothing is changed.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::options::Options;
use super::source::{Source, SourceError};
use crate::cli::say::{self, FINDINGS, Failure, UNKNOWN};
use crate::config::show;

/// Reads the file and prints.
///
/// # Errors
/// [`Failure`], with the exit code: 1 the file has errors, 3 it cannot be read.
pub fn run(file: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let source = Source::new(file, options);
    match source.read() {
        Ok(plan) if options.json => say::json(&show::plan(&plan))?,
        Ok(plan) => say::text(&show::table(&plan))?,
        Err(SourceError::Wrong { file, report }) if options.json => {
            say::json(&show::problems(&file, &report))?;
            return Err(Failure::new(FINDINGS, ""));
        }
        Err(why @ SourceError::Wrong { .. }) => {
            // As compilers write it, so that editors find the place.
            let _ = writeln!(std::io::stderr(), "{why}");
            return Err(Failure::new(FINDINGS, ""));
        }
        Err(why @ SourceError::Unreadable(_)) => return Err(Failure::new(UNKNOWN, why.to_string())),
    }
    Ok(ExitCode::SUCCESS)
}
