//! `vgpu audit`: shows and verifies the daemon's audit log.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::ask::DaemonAddress;
use super::events;
use vgpu_accounting::audit_chain::{self, Head};
use vgpu_control::event::DaemonEvent;
use vgpu_control::{AuditStatus, ControlCommand};
use vgpu_output::say::{self, EXIT_FINDINGS, EXIT_UNKNOWN, Failure};

/// Shows an audit log, or checks that no line of it was changed or removed.
///
/// Each line ends with its own hash and holds that of the line before it, over rotations (FILE.1, FILE.2, ...) and
/// restarts of the daemon. The daemon that writes the file knows whether lines are missing at the end, and is asked if
/// it
/// answers. Without it, --head names a hash of the last line that was kept elsewhere. The check does not notice that
/// the
/// oldest files are missing, because rotation removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu audit /var/log/vgpu/audit.log
  vgpu audit --verify /var/log/vgpu/audit.log
  vgpu audit --json /var/log/vgpu/audit.log | jq 'select(.by != null)'
  vgpu status --json | jq -r .audit.head

Exit codes:
  0  shown; or with --verify: no line was changed, and none is missing between two
  1  with --verify: a line was changed, cut or removed, or this is not an audit log
  2  usage
  3  the file cannot be read, or no daemon answers at --socket")]
pub struct Args {
    /// The audit log's file (`log.audit` in the daemon's file).
    file: PathBuf,

    /// Checks the chain of all lines, including those of rotated files.
    #[arg(long)]
    verify: bool,

    /// Hash of a line that must be in the log: the last line at the time when the hash was saved.
    #[arg(long, value_name = "HASH", requires = "verify", value_parser = parse_head)]
    head: Vec<String>,

    /// The administrative socket of the daemon that writes the file [default: as in vgpu status; no daemon needs to
    /// answer].
    #[arg(long, value_name = "PATH", requires = "verify")]
    socket: Option<PathBuf>,

    /// Prints JSON: the lines as they are.
    #[arg(long)]
    json: bool,
}

/// Parses a SHA-256 in hexadecimal digits.
fn parse_head(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash {
        Ok(text.to_owned())
    } else {
        Err("accepted: 64 hexadecimal digits, as --verify prints them".to_owned())
    }
}

/// Reads the log and prints it.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or the chain is broken.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.verify {
        return verify_files(args);
    }
    for bytes in read(&args.file)?.1 {
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let text = String::from_utf8_lossy(line);
            match serde_json::from_str::<DaemonEvent>(&text) {
                Ok(mut event) if !args.json => {
                    // The chain's fields mean nothing to a reader.
                    event.more.retain(|key, _| !["prev", "hash"].contains(&key.as_str()));
                    say::print_text(&events::format_event(&event))?;
                }
                Ok(_) => say::print_exact(&say::plain_json(&format!("{text}\n")))?,
                Err(_) => say::print_text(&format!("{}\n", say::escape_line(&text)))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns names and content of the file and its rotated files, oldest first.
fn read(file: &Path) -> Result<(Vec<PathBuf>, Vec<Vec<u8>>), Failure> {
    let unreadable = |path: &Path, why| Failure::new(EXIT_UNKNOWN, format!("{}: {why}", path.display()));
    let mut files = Vec::new();
    for number in 1_u32.. {
        let aside = PathBuf::from(format!("{}.{number}", file.display()));
        match std::fs::read(&aside) {
            Ok(bytes) => files.insert(0, (aside, bytes)),
            Err(why) if why.kind() == ErrorKind::NotFound => break,
            Err(why) => return Err(unreadable(&aside, why)),
        }
    }
    let bytes = std::fs::read(file).map_err(|why| unreadable(file, why))?;
    files.push((file.to_owned(), bytes));
    Ok(files.into_iter().unzip())
}

fn verify_files(args: &Args) -> Result<ExitCode, Failure> {
    // Ask before reading the file, so that lines written meanwhile come after this one.
    let served = served_head(args)?;
    let (names, contents) = read(&args.file)?;
    let by_daemon = served.iter().map(|hash| Head { hash, by: "the daemon that writes it" });
    let kept = args.head.iter().map(|hash| Head { hash, by: "--head" });
    let heads: Vec<Head<'_>> = by_daemon.chain(kept).collect();
    let chain = audit_chain::verify(&contents, &heads).map_err(|found| {
        let name = names.get(found.file).map(|name| name.display().to_string()).unwrap_or_default();
        Failure::new(EXIT_FINDINGS, format!("{name}:{}: {}", found.line, found.words))
    })?;
    let (lines, cut, files, last, first) = (chain.lines, chain.cut, names.len(), chain.head, chain.is_from_first);
    if args.json {
        let end = if heads.is_empty() { None } else { Some(true) };
        say::print_json(&serde_json::json!({
            "ok": true, "lines": lines, "not_whole": cut, "files": files, "head": last, "end_is_known": end,
            "is_from_first": first,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut words = format!("{lines} lines in {files} files: no line was changed or removed between them\n");
    if cut > 0 {
        words.push_str(&format!(
            "{cut} of them are incomplete: the daemon ended, or the disk was full, while it wrote them\n"
        ));
    }
    if !first {
        words.push_str("the log began before these files: their first line names a line that is not in them\n");
    }
    words.push_str(&format!("the last line's hash is {last}\n"));
    words.push_str(match (served.is_some(), args.head.is_empty()) {
        (true, _) => "nothing was cut off at the end: the daemon's last line is there\n",
        (false, false) => "nothing was cut off at the end before the line of --head\n",
        (false, true) => {
            "whether lines are missing at the end is not known: no daemon that writes this file answers, and no --head was given\n"
        }
    });
    say::print_text(&words)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the hash of the last line that the daemon wrote into this file; `None` if no daemon answers that writes
/// it.
fn served_head(args: &Args) -> Result<Option<String>, Failure> {
    let daemon = DaemonAddress { socket: args.socket.clone(), json: false };
    let answer = match daemon.ask_daemon(&ControlCommand::Status) {
        Ok(answer) => answer,
        Err(why) if args.socket.is_some() => return Err(Failure::new(EXIT_UNKNOWN, why.words)),
        Err(_) => return Ok(None),
    };
    let here = args.file.canonicalize().ok();
    let audit = answer.status.and_then(|status| status.audit);
    let audit = audit.filter(|audit| here.is_some() && audit.file.canonicalize().ok() == here);
    match audit {
        Some(AuditStatus { head, .. }) => Ok(Some(head).filter(|head| !head.is_empty())),
        None if args.socket.is_some() => {
            let words = format!("the daemon there does not write {}", args.file.display());
            Err(Failure::new(EXIT_UNKNOWN, words))
        }
        None => Ok(None),
    }
}
