//! `vgpu run`: checks the options, sets the environment, and replaces itself with the program.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use vgpu_core::limits::tenant::{ProcessFacts, TenantKey, hash64};
use vgpu_core::limits::{Mode, RawLimits};
use vgpu_core::units::bytes::{SIZE_FORMS, parse_size};
use vgpu_core::units::share::{SHARE_FORMS, parse_share};

use super::ledgers::{self, NEW_TENANT_PREFIX};
use super::library;
use super::program;
use vgpu_output::say::{self, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_RUN_FAILED, EXIT_USAGE, Failure};

/// Starts a program under limits.
///
/// Sets LD_PRELOAD and the limits in the environment, and then becomes the program: signals, the terminal and the exit
/// code are the program's own.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu run --memory-limit 4GiB --sm-limit 30 -- python3 train.py
  vgpu run --memory-limit 25% -- ./server            # of each device
  vgpu run --memory-limit 4GiB --mode observe -- ./job   # only measured; see vgpu doctor
  vgpu run --tenant team-a -- ./one & vgpu run --tenant team-a -- ./two   # one limit for both
  vgpu run --socket /run/vgpu/a/vgpud.sock -- ./job  # limits from the daemon
  vgpu run --sim --memory-limit 1GiB -- nvidia-smi   # the simulated GPU
  vgpu run --memory-limit 4GiB -- vgpu check -- python3 train.py

Exit codes:
  that of the program, or
  2    usage: an option or a limit in the environment is wrong, nothing was started
  125  libvgpu.so, or with --sim the simulated driver, was not found or cannot be used
  126  the program cannot be executed
  127  the program was not found")]
pub struct Args {
    /// Memory limit per device: 4GiB, 1500M, 25%, unlimited [sets VGPU_MEMORY_LIMIT].
    #[arg(long, value_name = "SIZE")]
    pub(super) memory_limit: Option<OsString>,

    /// Ceiling on the device's time in percent: 30, 12.5, unlimited [sets VGPU_SM_LIMIT].
    #[arg(long, value_name = "PERCENT")]
    pub(super) sm_limit: Option<OsString>,

    /// Mode of the limits: enforce, observe (only measure) or off; no effect with a daemon [sets VGPU_MODE].
    #[arg(long, value_name = "MODE", value_parser = Mode::WORDS)]
    pub(super) mode: Option<String>,

    /// Name of the tenant; programs with the same name share its limits [default: $VGPU_TENANT, else a new name].
    #[arg(long, value_name = "NAME")]
    pub(super) tenant: Option<OsString>,

    /// The tenant's socket of vgpud, whose limits apply too [sets VGPU_SOCKET].
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,

    /// libvgpu.so to use [default: $VGPU_LIBRARY, else the one next to this program].
    #[arg(long, value_name = "PATH")]
    pub(super) library: Option<PathBuf>,

    /// Gives the program the simulated driver instead of the real one.
    #[arg(long)]
    pub(super) sim: bool,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(super) command: Vec<OsString>,
}

/// Replaces this process with the program.
///
/// # Errors
/// [`Failure`]: the program was not started.
pub fn run(args: &Args) -> Result<Infallible, Failure> {
    become_program(&args.command, environment_changes(args)?)
}

/// Returns the changes to the program's environment.
///
/// # Errors
/// [`Failure`]: an option or a limit in the environment is wrong, or the library is missing.
pub(super) fn environment_changes(args: &Args) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let mut changes: Vec<(&str, OsString)> = Vec::new();
    if let Some(size) = &args.memory_limit {
        check_option("--memory-limit", size, SIZE_FORMS, |text| parse_size(text).map(drop))?;
        changes.push(("VGPU_MEMORY_LIMIT", size.clone()));
    }
    if let Some(percent) = &args.sm_limit {
        check_option("--sm-limit", percent, SHARE_FORMS, |text| parse_share(text).map(drop))?;
        changes.push(("VGPU_SM_LIMIT", percent.clone()));
    }
    if let Some(mode) = &args.mode {
        changes.push(("VGPU_MODE", mode.into()));
    }
    if let Some(socket) = &args.socket {
        changes.push(("VGPU_SOCKET", absolute_path("--socket", socket)?.into()));
    }
    changes.push(("VGPU_TENANT", tenant_name(args)?));
    check_environment(&changes)?;

    let library = library::find(args.library.as_deref()).map_err(|why| Failure::new(EXIT_RUN_FAILED, why))?;
    changes.push(("LD_PRELOAD", library::preloaded_first(&library, std::env::var_os("LD_PRELOAD"))));
    changes.extend(simulated_beside(args, Some(&library))?);
    for place in ledgers::ledger_directories() {
        ledgers::sweep_ended(&place);
    }
    Ok(changes)
}

/// Returns the changes for a program without the library: the simulated driver, with `--sim`.
///
/// # Errors
/// [`Failure`]: the simulated driver was not found.
pub(super) fn simulated_changes(args: &Args) -> Result<Vec<(&'static str, OsString)>, Failure> {
    simulated_beside(args, args.library.as_deref()).map(Vec::from_iter)
}

fn simulated_beside(args: &Args, library: Option<&Path>) -> Result<Option<(&'static str, OsString)>, Failure> {
    if !args.sim {
        return Ok(None);
    }
    let sim = library::find_sim(library).map_err(|why| Failure::new(EXIT_RUN_FAILED, format!("--sim: {why}")))?;
    Ok(Some(("LD_LIBRARY_PATH", library::searched_first(&sim, std::env::var_os("LD_LIBRARY_PATH")))))
}

/// Refuses a wrong value before anything is started.
pub(super) fn check_option<E: std::fmt::Display>(
    option: &str,
    value: &OsStr,
    accepted: &str,
    parse: impl Fn(&str) -> Result<(), E>,
) -> Result<(), Failure> {
    let why = match value.to_str() {
        None => "is not UTF-8 text".to_owned(),
        Some(text) => match parse(text) {
            Ok(()) => return Ok(()),
            Err(why) => why.to_string(),
        },
    };
    Err(Failure::new(EXIT_USAGE, format!("{option} {value:?} {why}; accepted: {accepted}")))
}

/// Returns the tenant's name: from the option, inherited, derived from the daemon's socket, or a new one.
///
/// All members of one socket are one tenant, so its name is derived from the socket's path.
fn tenant_name(args: &Args) -> Result<OsString, Failure> {
    let inherited = std::env::var_os("VGPU_TENANT");
    let inherited_socket = std::env::var_os("VGPU_SOCKET").filter(|socket| !socket.is_empty()).map(PathBuf::from);
    let (name, option) = match (&args.tenant, inherited, args.socket.clone().or(inherited_socket)) {
        (Some(name), _, _) => (name.clone(), true),
        (None, Some(name), _) => (name, false),
        (None, None, Some(socket)) => {
            let path = absolute_path("the socket", &socket)?;
            (format!("socket-{:016x}", hash64(path.as_os_str().as_bytes())).into(), false)
        }
        (None, None, None) => (new_name()?.into(), false),
    };
    let facts = ProcessFacts { name: Some(name.as_bytes()), mount_namespace: 0, pid_namespace: 0, host: false, uid: 0 };
    match TenantKey::from_facts(&facts) {
        Ok(_) => Ok(name),
        Err(why) if option => {
            let why = why.to_string();
            let words = why.split_once("\" ").map_or(why.as_str(), |(_, words)| words);
            Err(Failure::new(EXIT_USAGE, format!("--tenant {name:?} {words}")))
        }
        Err(why) => Err(Failure::new(EXIT_USAGE, why.to_string())),
    }
}

/// Returns a unique name for a tenant of this process. [`ledgers::sweep_ended`] finds its ledgers by it.
///
/// # Errors
/// [`Failure`]: the kernel gives no random number.
pub(super) fn new_name() -> Result<String, Failure> {
    let mut random = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut random, flags) {
        Ok(8) => Ok(format!("{NEW_TENANT_PREFIX}{}-{:016x}", std::process::id(), u64::from_ne_bytes(random))),
        _ => Err(Failure::new(EXIT_RUN_FAILED, "no random name for the tenant could be made; give one with --tenant")),
    }
}

/// Refuses limits in the environment that the library would refuse at the program's first CUDA call.
fn check_environment(changes: &[(&str, OsString)]) -> Result<(), Failure> {
    let daemon = std::env::var_os("VGPU_SOCKET").is_some() || changes.iter().any(|(name, _)| *name == "VGPU_SOCKET");
    if !daemon && std::env::var_os("VGPU_ON_ERROR").is_some_and(|value| value == "open") {
        return Ok(());
    }
    let changed = changes.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    // If a variable occurs twice the first counts, so ours override the inherited ones.
    let vars =
        changed.chain(std::env::vars_os()).map(|(name, value)| (name.into_encoded_bytes(), value.into_encoded_bytes()));
    let limits = RawLimits::from_vars(vars).map_err(|why| Failure::new(EXIT_USAGE, why.to_string()))?;
    if let Some((name, word)) = limits.unheard_mode() {
        say::print_note(&format!("{name}={word} has no effect with VGPU_SOCKET: the daemon sets the mode"));
    }
    match limits.asked_mode() {
        Mode::Enforce => limits.check_requests().map_err(|why| Failure::new(EXIT_USAGE, why.to_string())),
        Mode::Observe | Mode::Off => Ok(()),
    }
}

fn absolute_path(what: &str, path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|why| Failure::new(EXIT_USAGE, format!("{what} {path:?}: {why}")))
}

/// Replaces this process with the program. The standard library restores the default SIGPIPE, which Rust ignores.
fn become_program(command: &[OsString], changes: Vec<(&str, OsString)>) -> Result<Infallible, Failure> {
    let [program, args @ ..] = command else {
        return Err(Failure::new(EXIT_USAGE, "no program is given"));
    };
    let why = Command::new(program).args(args).envs(changes).exec();
    if why.kind() == std::io::ErrorKind::NotFound {
        return Err(Failure::new(EXIT_NOT_FOUND, format!("{}: {why}", program.display())));
    }
    // For a program that exists nowhere, the kernel reports "permission denied" if a directory of PATH may not be
    // searched.
    match program::find(program) {
        Err(program::NotStartable(words)) if !program.as_bytes().contains(&b'/') => {
            Err(Failure::new(EXIT_NOT_FOUND, words))
        }
        _ => Err(Failure::new(EXIT_NOT_EXECUTABLE, format!("{}: {why}", program.display()))),
    }
}
