//! `vgpu docker run`: adds the library, limits and the tenant's socket to a `docker run`, and executes it.
//!
//! [`words`] parses the engine's arguments, [`image`] inspects the image. The library is loaded through LD_PRELOAD,
//! merged with the image's own, so it reaches everything the container starts, also by `docker exec`. `--preload
//! file` uses /etc/ld.so.preload instead, for programs started without an environment or with more rights than their
//! caller.

pub mod image;
pub mod words;

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Subcommand, ValueEnum};
use vgpu_core::limits::Mode;
use vgpu_core::limits::tenant::hash64;
use vgpu_core::units::bytes::{SIZE_FORMS, parse_size};
use vgpu_core::units::share::{SHARE_FORMS, parse_share};

use super::ledgers::ledgers_of;
use super::library;
use super::run::check_option;
use image::{ImageLoader, InspectedImage};
use vgpu_config::paths;
use vgpu_output::say::{self, EXIT_RUN_FAILED, EXIT_USAGE, Failure};

/// Directory of the library inside a container; the documentation names it too.
pub const LIBRARY_DIR: &str = "/vgpu";
/// Directory of a tenant inside a container.
pub const TENANT_DIR: &str = "/run/vgpu-tenant";
/// Directory of the simulated machine's state inside a container.
const MACHINE_DIR: &str = "/vgpu-sim";

/// Starts containers under limits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu docker run --memory-limit 4GiB --sm-limit 30 -- --rm --gpus all IMAGE nvidia-smi

Exit codes:
  see vgpu docker run --help")]
pub struct Args {
    #[command(subcommand)]
    verb: DockerVerb,
}

#[derive(Debug, Subcommand)]
enum DockerVerb {
    Run(Box<DockerRunArgs>),
}

/// Starts a container with libvgpu.so and limits: adds them to a `docker run`, and becomes it.
///
/// Everything after `--` is the engine's: its options, the image, the command. The command adds two mounts (the
/// library's
/// directory, the tenant's) and a few variables. It inspects the image first: the image's own LD_PRELOAD or
/// /etc/ld.so.preload is kept, after libvgpu.so, and an image whose programs cannot load the library is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  vgpu docker run --memory-limit 4GiB --sm-limit 30 -- --rm --gpus all IMAGE nvidia-smi
  vgpu docker run --tenant train -- -d --gpus all IMAGE python3 train.py   # limits from vgpud
  vgpu docker run --print --tenant train -- --rm --gpus all IMAGE          # shows the command only
  vgpu docker run --engine podman --tenant train -- --rm --device nvidia.com/gpu=all IMAGE
  vgpu docker run --sim --memory-limit 1GiB -- --rm IMAGE nvidia-smi       # the simulated GPU

Exit codes:
  those of the engine, which are the container's, or
  2    usage: an option, a limit or the tenant is wrong, nothing was started
  125  libvgpu.so was not found, or the image cannot be inspected, or cannot load it
  126  the engine's command cannot be executed
  127  the engine's command was not found")]
pub struct DockerRunArgs {
    /// Memory limit per device: 4GiB, 1500M, 25%, unlimited [sets VGPU_MEMORY_LIMIT].
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<OsString>,

    /// Ceiling on the device's time in percent: 30, 12.5, unlimited [sets VGPU_SM_LIMIT].
    #[arg(long, value_name = "PERCENT")]
    sm_limit: Option<OsString>,

    /// Mode of the limits: enforce, observe (only measure) or off; no effect with a daemon [sets VGPU_MODE].
    #[arg(long, value_name = "MODE", value_parser = Mode::WORDS)]
    mode: Option<String>,

    /// The tenant of vgpud whose limits apply; its directory below the daemon's runtime directory is mounted.
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// The tenant's socket, if it is in another place; its directory is mounted.
    #[arg(long, value_name = "PATH", conflicts_with = "tenant")]
    socket: Option<PathBuf>,

    /// libvgpu.so to use; its directory is mounted [default: $VGPU_LIBRARY, else the one next to this program].
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,

    /// Way to load the library: env (LD_PRELOAD), or file (/etc/ld.so.preload, which also reaches programs that start
    /// without
    /// an environment or with more rights than their caller).
    #[arg(long, value_name = "HOW", value_enum, default_value_t = PreloadMethod::Env)]
    preload: PreloadMethod,

    /// Gives the container the simulated GPU instead of a real one.
    #[arg(long)]
    sim: bool,

    /// With --sim: directory of the machine's state, the same for all programs that share the machine [default:
    /// $VGPU_SIM_DIR, else
    /// /dev/shm/vgpu-sim-<uid>].
    #[arg(long, value_name = "DIR", requires = "sim")]
    sim_dir: Option<PathBuf>,

    /// The engine's command [default: $VGPU_DOCKER, else docker].
    #[arg(long, value_name = "PROGRAM")]
    engine: Option<OsString>,

    /// Skips the inspection of the image: its own preload list is not kept, and an image that cannot load the library
    /// is not refused.
    #[arg(long)]
    unchecked: bool,

    /// Shows the command instead of running it.
    #[arg(long)]
    print: bool,

    /// Options of the engine, the image, and its command.
    #[arg(required = true, last = true, value_name = "DOCKER-ARGS")]
    words: Vec<OsString>,
}

/// How the library gets into programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PreloadMethod {
    Env,
    File,
}

/// Runs the command.
///
/// # Errors
/// [`Failure`]: nothing was started.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let DockerVerb::Run(args) = &args.verb;
    let command = build_command(args)?;
    if args.print {
        let words: Vec<String> = command.iter().map(|word| say::quote_shown(word)).collect();
        say::print_text(&format!("{}\n", words.join(" ")))?;
        return Ok(ExitCode::SUCCESS);
    }
    become_engine(&command).map(|never| match never {})
}

/// Builds the whole command line.
fn build_command(args: &DockerRunArgs) -> Result<Vec<OsString>, Failure> {
    if let Some(size) = &args.memory_limit {
        check_option("--memory-limit", size, SIZE_FORMS, |text| parse_size(text).map(drop))?;
    }
    if let Some(percent) = &args.sm_limit {
        check_option("--sm-limit", percent, SHARE_FORMS, |text| parse_share(text).map(drop))?;
    }
    let words = words::read(&args.words, args.sim);
    let Some(name) = &words.image else {
        return Err(Failure::new(
            EXIT_USAGE,
            "no image after `--`; accepted: -- [OPTIONS OF THE ENGINE] IMAGE [COMMAND...]",
        ));
    };
    let room = tenant_directory(args)?;
    let library = library::find(args.library.as_deref()).map_err(|why| Failure::new(EXIT_RUN_FAILED, why))?;
    let engine = args.engine.clone().or_else(|| std::env::var_os("VGPU_DOCKER")).unwrap_or_else(|| "docker".into());
    let image = if args.unchecked {
        InspectedImage::default()
    } else {
        image::inspect_image(&engine, name, words.pulls, args.preload == PreloadMethod::File)?
    };
    check_image(name, image.loader)?;
    if !words.gpu && !args.sim {
        say::print_note(
            "no --gpus, --runtime or --device after `--`: there is a GPU in the container only if the engine gives \
             one to all",
        );
    }

    let mut command: Vec<OsString> = vec![engine, "run".into()];
    let mut mount = |from: &Path, to: &str, how: &str| -> Result<(), Failure> {
        command.extend(["-v".into(), bind(from, to, how)?]);
        Ok(())
    };
    let dir = library.parent().unwrap_or(Path::new("/"));
    mount(dir, LIBRARY_DIR, ":ro")?;
    if let Some((dir, file)) = &room {
        mount(dir, TENANT_DIR, ":ro")?;
        let ledgers = ledgers_of(file);
        // An engine would make a directory that is not there, and it would not be the daemon's.
        if dir.join(&ledgers).is_dir() {
            mount(&dir.join(&ledgers), &format!("{TENANT_DIR}/{}", ledgers.to_string_lossy()), "")?;
        }
    }
    let ours = Path::new(LIBRARY_DIR).join(library.file_name().unwrap_or(OsStr::new(library::LIBRARY_NAME)));
    let mut vars: Vec<(&str, OsString)> = Vec::new();
    match args.preload {
        PreloadMethod::Env => {
            vars.push(("LD_PRELOAD", library::preloaded_first(&ours, words.preload.or(image.preload))))
        }
        PreloadMethod::File => {
            let file = write_preload_list(&ours, image.list.as_deref())?;
            mount(&file, image::SYSTEM_PRELOAD_LIST, ":ro")?;
            // An LD_PRELOAD given to the engine was removed from its arguments, so pass it on.
            vars.extend(words.preload.map(|list| ("LD_PRELOAD", list)));
        }
    }
    if args.sim {
        let machine = simulated_directory(args)?;
        mount(&machine, MACHINE_DIR, "")?;
        let sim = Path::new(LIBRARY_DIR).join("sim");
        let path = library::searched_first(&sim, words.library_path.or(image.library_path));
        vars.extend([("LD_LIBRARY_PATH", path), ("VGPU_SIM_DIR", MACHINE_DIR.into())]);
    }
    if let Some((_, file)) = &room {
        vars.push(("VGPU_SOCKET", Path::new(TENANT_DIR).join(file).into()));
    }
    vars.extend(args.memory_limit.clone().map(|size| ("VGPU_MEMORY_LIMIT", size)));
    vars.extend(args.sm_limit.clone().map(|percent| ("VGPU_SM_LIMIT", percent)));
    vars.extend(args.mode.clone().map(|mode| ("VGPU_MODE", mode.into())));
    for (name, value) in vars {
        let mut word = OsString::from(format!("{name}="));
        word.push(value);
        command.extend(["-e".into(), word]);
    }
    command.extend(words.kept);
    Ok(command)
}

/// Refuses an image whose loader would ignore the library: its programs would run without limits.
fn check_image(name: &OsStr, loader: Option<ImageLoader>) -> Result<(), Failure> {
    let why = match loader {
        None | Some(ImageLoader::Glibc) => return Ok(()),
        Some(ImageLoader::Musl) => {
            "is built on musl (as Alpine is), whose loader cannot load libvgpu.so; take an image that is built on glibc"
        }
        Some(ImageLoader::None) => {
            "has no loader of glibc: its programs are static, or bring a loader of their own, and nothing is preloaded into them"
        }
    };
    Err(Failure::new(
        EXIT_RUN_FAILED,
        format!("{name:?} {why}. It would run without limits; --unchecked starts it all the same"),
    ))
}

/// Returns the tenant's directory and the name of the socket in it.
fn tenant_directory(args: &DockerRunArgs) -> Result<Option<(PathBuf, OsString)>, Failure> {
    let socket = match (&args.tenant, &args.socket) {
        (Some(tenant), _) => {
            let tenants = paths::runtime_dir().join("tenants");
            let socket = tenants.join(tenant).join("vgpud.sock");
            if tenant.is_empty() || tenant.contains('/') || !socket.exists() {
                return Err(Failure::new(EXIT_USAGE, format!("--tenant {tenant:?}: {}", who_is_there(&tenants))));
            }
            socket
        }
        (None, Some(socket)) => {
            let path = std::path::absolute(socket)
                .map_err(|why| Failure::new(EXIT_USAGE, format!("--socket {socket:?}: {why}")))?;
            if !path.exists() {
                let words = format!(
                    "--socket {socket:?} is not there; is the daemon running? accepted: a tenant's socket, as `vgpu status` shows it"
                );
                return Err(Failure::new(EXIT_USAGE, words));
            }
            path
        }
        (None, None) => return Ok(None),
    };
    let (dir, file) = (socket.parent().unwrap_or(Path::new("/")), socket.file_name().unwrap_or_default());
    Ok(Some((dir.to_owned(), file.to_owned())))
}

/// Lists the tenants that are served, for an error about an unknown one.
fn who_is_there(tenants: &Path) -> String {
    let served = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        entry.path().join("vgpud.sock").exists().then(|| entry.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<String> = std::fs::read_dir(tenants).into_iter().flatten().filter_map(served).collect();
    names.sort();
    match names.as_slice() {
        [] => format!("no tenant is served below {}; start vgpud, or name its socket with --socket", tenants.display()),
        names => format!("there is no such tenant below {}; accepted: {}", tenants.display(), names.join(", ")),
    }
}

/// Returns the directory of the simulated machine; everybody may use it, like a real device's files.
fn simulated_directory(args: &DockerRunArgs) -> Result<PathBuf, Failure> {
    let named = args.sim_dir.clone().or_else(|| std::env::var_os("VGPU_SIM_DIR").map(PathBuf::from));
    let dir =
        named.unwrap_or_else(|| PathBuf::from(format!("/dev/shm/vgpu-sim-{}", rustix::process::geteuid().as_raw())));
    let dir = std::path::absolute(&dir).map_err(|why| Failure::new(EXIT_USAGE, format!("--sim-dir {dir:?}: {why}")))?;
    if args.print {
        return Ok(dir);
    }
    let cannot = |why: std::io::Error| Failure::new(EXIT_RUN_FAILED, format!("{}: {why}", dir.display()));
    std::fs::create_dir_all(dir.parent().unwrap_or(Path::new("/"))).map_err(cannot)?;
    match std::fs::create_dir(&dir) {
        Ok(()) => std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777)).map_err(cannot)?,
        // Keep an existing directory's permissions: its creator decides who may use it.
        Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {
            if std::fs::metadata(&dir).map_err(cannot)?.permissions().mode() & 0o003 != 0o003 {
                say::print_note(&format!(
                    "{} is closed to others: only programs of its owner can use the simulated GPU; chmod 1777 opens it",
                    dir.display()
                ));
            }
        }
        Err(why) => return Err(cannot(why)),
    }
    Ok(dir)
}

/// Creates a replacement for /etc/ld.so.preload with our library and the image's own entries. The file is named by a
/// hash of its content, so that a stopped container can start again while the file exists.
fn write_preload_list(ours: &Path, image: Option<&str>) -> Result<PathBuf, Failure> {
    let ours = ours.display().to_string();
    let mut text = format!("{ours}\n");
    for line in image.unwrap_or_default().lines().filter(|line| line.trim() != ours) {
        text.push_str(line);
        text.push('\n');
    }
    let dir = paths::state_dir(&paths::runtime_dir()).join("preload");
    let file = dir.join(format!("{:016x}", hash64(text.as_bytes())));
    let cannot =
        |why: std::io::Error| Failure::new(EXIT_RUN_FAILED, format!("--preload file: {}: {why}", file.display()));
    if std::fs::read_to_string(&file).is_ok_and(|there| there == text) {
        return Ok(file);
    }
    std::fs::create_dir_all(&dir).map_err(cannot)?;
    let new = dir.join(format!(".{}", std::process::id()));
    // Any user in the container must be able to read it.
    let readable = std::fs::Permissions::from_mode(0o644);
    let written = std::fs::write(&new, &text).and_then(|()| std::fs::set_permissions(&new, readable));
    written.and_then(|()| std::fs::rename(&new, &file)).map_err(cannot)?;
    Ok(file)
}

/// Returns `FROM:TO:ro`; refuses a colon in the path, at which the engine would split it.
fn bind(from: &Path, to: &str, how: &str) -> Result<OsString, Failure> {
    if from.as_os_str().as_bytes().contains(&b':') {
        return Err(Failure::new(
            EXIT_USAGE,
            format!("{from:?} has a colon in its path, where the engine would cut it"),
        ));
    }
    let mut word = from.as_os_str().to_owned();
    word.push(format!(":{to}{how}"));
    Ok(word)
}

fn become_engine(command: &[OsString]) -> Result<Infallible, Failure> {
    let why = Command::new(&command[0]).args(&command[1..]).exec();
    Err(image::not_started(&command[0], &why))
}
