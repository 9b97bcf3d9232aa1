//! `vgpu check`: tells whether libvgpu.so would be mapped in this program, in this environment.
//!
//! Nothing of the program is executed. Its files are inspected ([`super::program`], [`super::elf`]), and its loader
//! is asked for the files it would map, preloads included ([`super::loader`]). A script is judged by its interpreter.
//! With `--pid` a running process is inspected instead. Not covered: programs that the program starts later with
//! another environment.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::arch::{self, HOST_MACHINE};
use super::program::{self, ChainStep};
use super::{library, loader};
use vgpu_output::say::{self, Colour, EXIT_FINDINGS, EXIT_UNKNOWN, Failure};

/// Checks whether libvgpu.so would be mapped in a program, without running it.
///
/// The current environment counts: LD_PRELOAD and /etc/ld.so.preload. To check the program of a `vgpu run`, put
/// `vgpu check --` between `vgpu run ... --` and the program.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu run --memory-limit 4GiB -- vgpu check -- python3 train.py
  LD_PRELOAD=/opt/vgpu/libvgpu.so vgpu check -- ./server
  vgpu check --pid 4711

How:
  Scripts are followed to their interpreter, `env` to what it starts. A file without a loader
  (static), for another machine, for musl, or started with more rights than its caller (setuid) is
  reported as such. Otherwise the program's own loader lists the files that it would map
  (ld.so --list).

Exit codes:
  0  the library is mapped
  1  it is not: the program would run without limits
  2  usage
  3  unknown: no such program or process, or an unknown loader")]
pub struct Args {
    /// The library that must be mapped [default: any libvgpu.so].
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Checks a running process instead.
    #[arg(long, value_name = "PID", conflicts_with = "command", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Prints JSON.
    #[arg(long)]
    json: bool,

    /// The program; its arguments have no effect.
    #[arg(
        required_unless_present = "pid",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// Answer of `vgpu check`: if the library would be mapped, and why.
#[derive(Debug, Serialize)]
struct CheckAnswer {
    /// True if the library would be mapped; null if unknown.
    mapped: Option<bool>,
    /// The program that was inspected.
    program: Option<PathBuf>,
    /// The scripts through which the command leads to that program.
    scripts: Vec<PathBuf>,
    /// Path of the library that would be mapped or is mapped.
    library: Option<PathBuf>,
    /// The reason why it is not mapped, or why the answer is unknown.
    reason: Option<String>,
}

/// The reason why the answer is not yes.
enum CheckFailure {
    Unmapped(String),
    Unknown(String),
}

/// Answers the question.
///
/// # Errors
/// Stdout is closed.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut answer = CheckAnswer { mapped: None, program: None, scripts: Vec::new(), library: None, reason: None };
    let outcome = match args.pid {
        Some(pid) => check_running(pid, args.library.as_deref(), &mut answer),
        None => check_startable(
            args.command.first().map_or(OsStr::new(""), |name| name),
            args.library.as_deref(),
            &mut answer,
        ),
    };
    let code = match outcome {
        Ok(library) => {
            answer.mapped = Some(true);
            answer.library = Some(library);
            0
        }
        Err(CheckFailure::Unmapped(why)) => {
            answer.mapped = Some(false);
            answer.reason = Some(why);
            EXIT_FINDINGS
        }
        Err(CheckFailure::Unknown(why)) => {
            answer.reason = Some(why);
            EXIT_UNKNOWN
        }
    };
    if args.json {
        say::print_json(&answer)?;
        return Ok(ExitCode::from(code));
    }
    let program = answer.program.as_ref().map_or("the program".into(), |path| path.display().to_string());
    match (&answer.library, &answer.reason) {
        (Some(library), _) => {
            let script = answer.scripts.first().map(|path| format!(", the interpreter of {}", path.display()));
            let script = script.unwrap_or_default();
            let yes = say::in_colour(Colour::Green, "mapped");
            say::print_text(&format!("{yes}: {} in {program}{script}\n", library.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        (None, Some(why)) if code == EXIT_FINDINGS => {
            Err(Failure::new(code, format!("not mapped in {program}: {why}")))
        }
        (None, why) => Err(Failure::new(code, why.clone().unwrap_or_default())),
    }
}

/// Inspects a program that could be started.
fn check_startable(name: &OsStr, wanted: Option<&Path>, answer: &mut CheckAnswer) -> Result<PathBuf, CheckFailure> {
    let chain = program::follow_program(name).map_err(|lost| CheckFailure::Unknown(lost.0))?;
    answer.scripts = chain.scripts;
    let mut library = None;
    let last = chain.steps.len();
    for (index, step) in chain.steps.iter().enumerate() {
        answer.program = Some(step.path.clone());
        if let Some(why) = chain.drops_environment.as_ref().filter(|_| index + 1 == last) {
            return Err(CheckFailure::Unmapped(why.clone()));
        }
        library = Some(judge_step(step, wanted)?);
    }
    library.ok_or_else(|| CheckFailure::Unknown("nothing there is a program".into()))
}

/// Inspects one ELF file: first without its loader, then by asking its loader.
fn judge_step(step: &ChainStep, wanted: Option<&Path>) -> Result<PathBuf, CheckFailure> {
    let ChainStep { path, elf, secure } = step;
    if (elf.machine, elf.bits) != (HOST_MACHINE, 64) {
        return Err(CheckFailure::Unmapped(format!(
            "it is built for {} ({} bit), libvgpu.so for {} (64 bit)",
            arch::name(elf.machine),
            elf.bits,
            arch::name(HOST_MACHINE)
        )));
    }
    let Some(interpreter) = &elf.interpreter else {
        return Err(CheckFailure::Unmapped(
            "it is a static program: no loader runs, so nothing can be preloaded".into(),
        ));
    };
    if interpreter.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-musl")) {
        return Err(CheckFailure::Unmapped("its loader is musl's; libvgpu.so is built for glibc".into()));
    }
    if !loader::is_glibc(interpreter) {
        return Err(CheckFailure::Unknown(format!(
            "{}: its loader {} is not known",
            path.display(),
            interpreter.display()
        )));
    }
    // In secure mode the loader ignores LD_PRELOAD, but not /etc/ld.so.preload.
    let ignored = ("LD_PRELOAD", None);
    let changes = if *secure { std::slice::from_ref(&ignored) } else { &[] };
    let listing = loader::list_libraries(interpreter, path, changes)
        .map_err(|why| CheckFailure::Unknown(format!("{} cannot be started: {why}", path.display())))?;
    match (listing.file_named(library::LIBRARY_NAME), wanted) {
        (Some(found), None) => Ok(found.to_owned()),
        (Some(found), Some(wanted)) if same_file(found, wanted) => Ok(found.to_owned()),
        (Some(found), Some(wanted)) => {
            Err(CheckFailure::Unmapped(format!("{} is mapped there instead of {}", found.display(), wanted.display())))
        }
        (None, _) if *secure => Err(CheckFailure::Unmapped(
            "it is started with more rights than its caller has (setuid, setgid or capabilities), where the loader \
             ignores LD_PRELOAD; only /etc/ld.so.preload reaches it"
                .into(),
        )),
        (None, _) => Err(CheckFailure::Unmapped(why_not(&listing.complaints))),
    }
}

/// Explains why our library is not preloaded, from the environment and the loader's messages.
fn why_not(complaints: &[String]) -> String {
    const RUN_REMEDY: &str = "start it by `vgpu run -- ...`, or set LD_PRELOAD to the absolute path of libvgpu.so";
    let complaint = complaints.iter().find(|line| line.contains(library::LIBRARY_NAME));
    let preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preload = preload.to_string_lossy();
    let ours = preload.split([':', ' ']).find(|entry| entry.rsplit('/').next() == Some(library::LIBRARY_NAME));
    match (ours, complaint) {
        (Some(entry), _) if !entry.contains('/') => format!(
            "LD_PRELOAD names {entry} without a path, and the loader does not find it; it must be an absolute path"
        ),
        (Some(entry), _) if !Path::new(entry).exists() => {
            format!(
                "LD_PRELOAD names {entry}, which does not exist; the loader only complains and goes on without limits"
            )
        }
        (_, Some(complaint)) => format!("the loader says: {complaint}"),
        (Some(entry), None) => format!("LD_PRELOAD names {entry}, and the loader does not map it"),
        (None, None) if preload.trim().is_empty() => {
            format!("LD_PRELOAD is not set and /etc/ld.so.preload does not name it; {RUN_REMEDY}")
        }
        (None, None) => format!("LD_PRELOAD=\"{preload}\" does not name libvgpu.so; {RUN_REMEDY}"),
    }
}

/// Inspects a running process for the mapped library.
fn check_running(pid: u32, wanted: Option<&Path>, answer: &mut CheckAnswer) -> Result<PathBuf, CheckFailure> {
    let read = |what: &str| format!("/proc/{pid}/{what}");
    let maps = fs::read_to_string(read("maps"))
        .map_err(|why| CheckFailure::Unknown(format!("the process {pid} cannot be looked at: {why}")))?;
    answer.program = fs::read_link(read("exe")).ok();
    // address perms offset device inode path
    let path =
        |line: &str| line.splitn(6, ' ').nth(5).map(|path| path.trim_start().trim_end_matches(" (deleted)").to_owned());
    let found = maps
        .lines()
        .filter_map(path)
        .map(PathBuf::from)
        .find(|path| path.file_name() == Some(OsStr::new(library::LIBRARY_NAME)));
    match (found, wanted) {
        (None, _) => Err(CheckFailure::Unmapped(format!("the process {pid} runs without libvgpu.so"))),
        (Some(found), Some(wanted)) if !same_file(&found, wanted) => {
            Err(CheckFailure::Unmapped(format!("{} is mapped there instead of {}", found.display(), wanted.display())))
        }
        (Some(found), _) => Ok(found),
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    one == other || identity(one).is_some_and(|one| Some(one) == identity(other))
}
