//! `vgpud --check`: what a file means, or everything that is wrong with it. Nothing is started, nothing is changed.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::door::{Door, refuse_foreign};
use super::source::{Source, SourceError};
use vgpu_config::options::Options;
use vgpu_config::plan::Plan;
use vgpu_config::show;
use vgpu_output::say::{self, FINDINGS, Failure, UNKNOWN};

/// Reads the file and prints.
///
/// # Errors
/// [`Failure`], with the exit code: 1 the file has errors, 3 it cannot be read.
pub fn run(file: &Path, options: &Options) -> Result<ExitCode, Failure> {
    let source = Source::new(file, options);
    match source.read() {
        Ok(plan) => {
            if options.json {
                say::json(&show::plan(&plan))?;
            } else {
                say::text(&show::table(&plan))?;
            }
            places(&plan)?;
        }
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

/// Whether a socket can lie where each is to be: the daemon serves the others if not.
fn places(plan: &Plan) -> Result<(), Failure> {
    let sockets = plan.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.socket));
    let mut unusable = 0;
    for (tenant, socket) in sockets {
        if let Err(why) = Door::check(socket) {
            unusable += 1;
            let _ = writeln!(std::io::stderr(), "tenant {tenant} cannot be served: {why}");
        }
    }
    if let Err(why) = refuse_foreign(&plan.daemon.run_dir) {
        return Err(Failure::new(FINDINGS, why));
    }
    if unusable > 0 { Err(Failure::new(FINDINGS, "")) } else { Ok(()) }
}
