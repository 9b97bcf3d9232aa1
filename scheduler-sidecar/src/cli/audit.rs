//! `vgpu audit`: the daemon's audit log, shown and checked.

use std::path::PathBuf;
use std::process::ExitCode;

use super::events;
use super::say::{self, FINDINGS, Failure, UNKNOWN};
use crate::control::event::Event;
use crate::daemon::audit;

/// Shows an audit log, or checks that nothing in it was changed or taken out.
///
/// Each line holds the hash of the line before it, over rotations (FILE.1, FILE.2, ...) and restarts of the
/// daemon. What was cut off at the end, or the oldest files, cannot be missed: keep the last line elsewhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu audit /var/log/vgpu/audit.log
  vgpu audit --verify /var/log/vgpu/audit.log
  vgpu audit --json /var/log/vgpu/audit.log | jq 'select(.by != null)'

Exit codes:
  0  shown; or with --verify: nothing is missing between the first line and the last
  1  with --verify: something was changed or taken out
  2  usage
  3  the file cannot be read")]
pub struct Args {
    /// The file (`log.audit` of the daemon's file).
    file: PathBuf,

    /// Check the chain of all its lines, those of rotated files too.
    #[arg(long)]
    verify: bool,

    /// Print JSON: the lines as they are.
    #[arg(long)]
    json: bool,
}

/// Reads and prints.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or the chain is broken.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let unreadable = |path: &PathBuf, why| Failure::new(UNKNOWN, format!("{}: {why}", path.display()));
    let mut files = Vec::new();
    for number in 1_u32.. {
        let aside = PathBuf::from(format!("{}.{number}", args.file.display()));
        match std::fs::read(&aside) {
            Ok(bytes) => files.insert(0, (aside, bytes)),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => break,
            Err(why) => return Err(unreadable(&aside, why)),
        }
    }
    let bytes = std::fs::read(&args.file).map_err(|why| unreadable(&args.file, why))?;
    files.push((args.file.clone(), bytes));
    let (names, contents): (Vec<PathBuf>, Vec<Vec<u8>>) = files.into_iter().unzip();
    if args.verify {
        return match audit::verify(&contents) {
            Ok(lines) => {
                let (lines, files) = (lines.to_string(), names.len().to_string());
                let words = format!("{lines} lines in {files} files: nothing was changed or taken out between them\n");
                let json = serde_json::json!({ "ok": true, "lines": lines, "files": files });
                if args.json {
                    say::json(&json)?
                } else {
                    say::text(&words)?
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(found) => {
                let name = names.get(found.file).map(|name| name.display().to_string()).unwrap_or_default();
                Err(Failure::new(FINDINGS, format!("{name}:{}: {}", found.line, found.words)))
            }
        };
    }
    for bytes in contents {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let text = String::from_utf8_lossy(line);
            match serde_json::from_str::<Event>(&text) {
                Ok(event) if !args.json => say::text(&events::shown(&event))?,
                _ => say::text(&format!("{text}\n"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
