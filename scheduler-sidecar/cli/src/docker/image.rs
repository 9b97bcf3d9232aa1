//! Inspects an image: its own preloads, its library search path, and which C library's loader it has.
//!
//! Nothing of the image is executed. The engine is asked for its variables, and its files are copied from a container
//! that is created, never started, and removed.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{fs, io};

use super::super::arch;
use vgpu_output::say::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_RUN_FAILED, Failure};

/// The file in which glibc's loader finds system-wide preloads.
pub const SYSTEM_PRELOAD_LIST: &str = "/etc/ld.so.preload";

/// Largest /etc/ld.so.preload that is accepted, in bytes.
const MAX_LIST_BYTES: u64 = 64 * 1024;

/// The loader that an image's programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageLoader {
    /// glibc's, which can map the library.
    Glibc,
    /// musl's, which cannot map the library.
    Musl,
    /// None at the usual paths: its programs are static, or bring their own loader.
    None,
}

/// Settings of a container image that decide if the library can be loaded.
#[derive(Debug, Default)]
pub struct InspectedImage {
    /// Value of LD_PRELOAD in the image's environment.
    pub preload: Option<OsString>,
    /// Value of LD_LIBRARY_PATH in the image's environment.
    pub library_path: Option<OsString>,
    /// Content of the image's /etc/ld.so.preload, if that was asked for.
    pub list: Option<String>,
    /// Loader of the image's programs; `None` if it was not inspected.
    pub loader: Option<ImageLoader>,
}

/// Inspects an image; a missing one is pulled if `pulls`. Its preload list is read if `list`.
///
/// # Errors
/// [`Failure`] with the engine's message if there is no engine or no such image; with ours if the list cannot be
/// read.
pub fn inspect_image(engine: &OsStr, name: &OsStr, pulls: bool, list: bool) -> Result<InspectedImage, Failure> {
    let inspect = || {
        run_engine(
            engine,
            &["image".as_ref(), "inspect".as_ref(), "--format".as_ref(), "{{json .Config.Env}}".as_ref(), name],
        )
    };
    let mut out = inspect()?;
    if !out.status.success() && pulls {
        let pulled = Command::new(engine).arg("pull").arg(name).stdin(Stdio::null()).stdout(io::stderr()).status();
        if pulled.is_ok_and(|status| status.success()) {
            out = inspect()?;
        }
    }
    if !out.status.success() {
        return Err(engine_failure(engine, name, &out));
    }
    let env: Option<Vec<String>> = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let env = env.unwrap_or_default();
    let value = |name: &str| env.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(OsString::from);
    let mut image = InspectedImage {
        preload: value("LD_PRELOAD"),
        library_path: value("LD_LIBRARY_PATH"),
        ..InspectedImage::default()
    };
    inspect_files(engine, name, list, &mut image)?;
    Ok(image)
}

/// Inspects the files of the image.
fn inspect_files(engine: &OsStr, name: &OsStr, list: bool, image: &mut InspectedImage) -> Result<(), Failure> {
    // `create` needs a command, and an image may have none; this one never runs.
    let made =
        run_engine(engine, &["create".as_ref(), "--network".as_ref(), "none".as_ref(), name, "/vgpu-looks".as_ref()])?;
    if !made.status.success() {
        return Err(engine_failure(engine, name, &made));
    }
    let id = OsString::from_vec(made.stdout.trim_ascii().to_vec());
    let seen = scratch_directory().and_then(|dir| {
        let result = inspect_unpacked(engine, &id, &dir, list, image);
        let _ = fs::remove_dir_all(&dir); // if this fails, only a directory in /tmp is left behind
        result
    });
    // Remove the container in any case, and the volumes that the engine created for the image.
    let _ = run_engine(engine, &["rm".as_ref(), "--force".as_ref(), "--volumes".as_ref(), id.as_ref()]);
    seen
}

fn inspect_unpacked(
    engine: &OsStr,
    id: &OsStr,
    dir: &Path,
    list: bool,
    image: &mut InspectedImage,
) -> Result<(), Failure> {
    let copy = |file: &str, to: &str| -> Result<Option<PathBuf>, Failure> {
        let mut from = id.to_owned();
        from.push(":");
        from.push(file);
        let to = dir.join(to);
        let mut out = run_engine(engine, &["cp".as_ref(), "--follow-link".as_ref(), from.as_ref(), to.as_ref()])?;
        // podman follows links anyway and has no such option. Any other failure remains one: without the option,
        // docker copies a dangling link as a link.
        if !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("unknown flag: --follow-link") {
            out = run_engine(engine, &["cp".as_ref(), from.as_ref(), to.as_ref()])?;
        }
        Ok(out.status.success().then_some(to))
    };
    image.loader = Some(if copy(arch::GLIBC_LOADER, "loader")?.is_some() {
        ImageLoader::Glibc
    } else if copy(arch::MUSL_LOADER, "musl")?.is_some() {
        ImageLoader::Musl
    } else {
        ImageLoader::None
    });
    if list && let Some(file) = copy(SYSTEM_PRELOAD_LIST, "list")? {
        let text = read_list(&file).map_err(|why| {
            let words = format!("{SYSTEM_PRELOAD_LIST} of the image {why}; --unchecked starts it without that list");
            Failure::new(EXIT_RUN_FAILED, words)
        })?;
        image.list = Some(text);
    }
    Ok(())
}

/// Reads a file that the engine copied out of an image; the file may be anything. Links are not followed, because
/// they would lead to a file of the host. Pipes and devices are not waited for. At most [`MAX_LIST_BYTES`] bytes are
/// read.
fn read_list(file: &Path) -> Result<String, String> {
    use rustix::fs::{Mode, OFlags};
    let cannot = |why: io::Error| format!("cannot be read: {why}");
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = match rustix::fs::open(file, flags, Mode::empty()) {
        Ok(open) => fs::File::from(open),
        Err(rustix::io::Errno::LOOP) => return Err("is a link that this engine does not follow".to_owned()),
        Err(why) => return Err(cannot(why.into())),
    };
    if !open.metadata().map_err(cannot)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    open.take(MAX_LIST_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_LIST_BYTES {
        return Err("is larger than 64 KiB".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

/// Creates a directory that only this user can enter.
fn scratch_directory() -> Result<PathBuf, Failure> {
    let mut random = [0; 8];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()); // a taken name fails below
    let dir = std::env::temp_dir().join(format!("vgpu-look-{:016x}", u64::from_ne_bytes(random)));
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => Ok(dir),
        Err(why) => Err(Failure::new(EXIT_RUN_FAILED, format!("{}: {why}", dir.display()))),
    }
}

fn run_engine(engine: &OsStr, words: &[&OsStr]) -> Result<Output, Failure> {
    Command::new(engine).args(words).stdin(Stdio::null()).output().map_err(|why| not_started(engine, &why))
}

/// Failure for an engine whose command cannot be started.
pub fn not_started(engine: &OsStr, why: &io::Error) -> Failure {
    let code = if why.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE };
    Failure::new(code, format!("{}: {why}; name the engine's command with --engine", engine.display()))
}

fn engine_failure(engine: &OsStr, name: &OsStr, out: &Output) -> Failure {
    let words = String::from_utf8_lossy(&out.stderr);
    let words = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").trim();
    Failure::new(
        EXIT_RUN_FAILED,
        format!(
            "{} cannot show the image {name:?}: {words}; --unchecked starts it without looking. If that is no image but an \
             option's value, write the option as --name=value",
            engine.display()
        ),
    )
}
