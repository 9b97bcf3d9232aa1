//! Finds libvgpu.so and the simulated driver.
//!
//! Looks next to this program, in the layout of an installation (`bin/vgpu`, `lib/vgpu/libvgpu.so`, `lib/vgpu/sim/`)
//! or of a build (`target/release/vgpu`, `libvgpu.so`, `sim/`).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::arch;
use super::elf::{self, ElfFacts, FileImage};

/// File name of the library. HAMi's library has the same name, by which its schedulers mount it.
pub const LIBRARY_NAME: &str = "libvgpu.so";

/// File names of the driver's libraries.
pub const DRIVER_NAMES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Returns the absolute path of the library to preload: `--library`, else `VGPU_LIBRARY`, else the one next to this
/// program.
///
/// # Errors
/// A message: the library does not exist, is not for this machine, or has a path that `LD_PRELOAD` cannot contain.
pub fn find(option: Option<&Path>) -> Result<PathBuf, String> {
    let named = std::env::var_os("VGPU_LIBRARY").filter(|value| !value.is_empty()).map(PathBuf::from);
    let (path, by) = match (option, named) {
        (Some(path), _) => (path.to_owned(), "--library"),
        (None, Some(path)) => (path, "VGPU_LIBRARY"),
        (None, None) => (find_relative(&["../lib/vgpu/libvgpu.so", LIBRARY_NAME])?, "found"),
    };
    let path = std::path::absolute(&path).map_err(|why| format!("{by} {path:?}: {why}"))?;
    check(&path).map_err(|why| format!("{by} {path:?} {why}"))?;
    Ok(path)
}

/// Returns the directory of the simulated driver.
///
/// # Errors
/// A message: there is none, and where it was looked for.
pub fn find_sim(library: Option<&Path>) -> Result<PathBuf, String> {
    let near_library = library.and_then(Path::parent).map(|dir| dir.join("sim"));
    let complete = |dir: &PathBuf| DRIVER_NAMES.iter().all(|name| dir.join(name).exists());
    match near_library.filter(complete) {
        Some(dir) => Ok(dir),
        None => {
            let driver = find_relative(&["../lib/vgpu/sim/libcuda.so.1", "sim/libcuda.so.1"])?;
            Ok(driver.parent().unwrap_or(Path::new("/")).to_owned())
        }
    }
}

/// Returns the first existing one of some paths relative to this program's directory.
fn find_relative(places: &[&str]) -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|why| format!("the path of this program is not known: {why}"))?;
    let dir = program.parent().unwrap_or(Path::new("/"));
    let candidates = places.iter().map(|place| match place.strip_prefix("../") {
        Some(place) => dir.parent().unwrap_or(Path::new("/")).join(place),
        None => dir.join(place),
    });
    let candidates: Vec<PathBuf> = candidates.collect();
    candidates.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let looked: Vec<String> = candidates.iter().map(|path| path.display().to_string()).collect();
        let name = Path::new(places[0]).file_name().unwrap_or_default().display();
        let hint = if places[0].ends_with(LIBRARY_NAME) { "; name it with --library or VGPU_LIBRARY" } else { "" };
        format!("{name} was not found; looked for {}{hint}", looked.join(" and "))
    })
}

/// Checks that the loader can preload this library from this path.
fn check(path: &Path) -> Result<(), String> {
    let text = path.as_os_str().as_encoded_bytes();
    if let Some(byte) = text.iter().find(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n')) {
        let what = if *byte == b':' { "a colon" } else { "white space" };
        return Err(format!("has {what} in its path, where LD_PRELOAD would be cut; move it, or name it by a link"));
    }
    match elf::read_image(path) {
        Err(why) => Err(format!("cannot be read: {why}")),
        Ok(FileImage::Elf(ElfFacts { bits: 64, machine: arch::HOST_MACHINE, shared: true, .. })) => Ok(()),
        Ok(FileImage::Elf(ElfFacts { machine, bits, .. })) if (machine, bits) != (arch::HOST_MACHINE, 64) => {
            Err(format!(
                "is built for {} ({bits} bit), this machine is {}",
                arch::name(machine),
                arch::name(arch::HOST_MACHINE)
            ))
        }
        Ok(_) => Err("is not a shared library".into()),
    }
}

/// Returns LD_PRELOAD with our library first, followed by the existing entries without ours.
#[must_use]
pub fn preloaded_first(ours: &Path, existing: Option<OsString>) -> OsString {
    let mut list = ours.as_os_str().to_owned();
    let existing = existing.unwrap_or_default();
    for entry in existing.as_bytes().split(|byte| matches!(byte, b':' | b' ')).map(OsStr::from_bytes) {
        if !entry.is_empty() && entry != ours {
            list.push(":");
            list.push(entry);
        }
    }
    list
}

/// Returns LD_LIBRARY_PATH with `dir` first, followed by the existing value unchanged.
#[must_use]
pub fn searched_first(dir: &Path, existing: Option<OsString>) -> OsString {
    let mut list = dir.as_os_str().to_owned();
    let existing = existing.unwrap_or_default();
    let starts_with_ours = existing.as_bytes().split(|byte| *byte == b':').next() == Some(dir.as_os_str().as_bytes());
    if starts_with_ours {
        return existing;
    }
    if !existing.is_empty() {
        list.push(":");
        list.push(existing);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_comes_first_and_once_and_what_was_there_stays() {
        let list = |existing: Option<&str>| preloaded_first(Path::new("/l/libvgpu.so"), existing.map(Into::into));
        assert_eq!(list(None), "/l/libvgpu.so");
        assert_eq!(list(Some("")), "/l/libvgpu.so");
        assert_eq!(list(Some("/a.so b.so:/c.so")), "/l/libvgpu.so:/a.so:b.so:/c.so");
        assert_eq!(list(Some("/a.so:/l/libvgpu.so:/b.so")), "/l/libvgpu.so:/a.so:/b.so");
    }

    #[test]
    fn a_search_path_keeps_its_spaces_and_empty_parts() {
        let list = |existing: Option<&str>| searched_first(Path::new("/sim"), existing.map(Into::into));
        assert_eq!(list(None), "/sim");
        assert_eq!(list(Some("/a b::/c")), "/sim:/a b::/c");
        assert_eq!(list(Some("/sim:/a")), "/sim:/a");
        assert_eq!(list(Some("/a:/sim")), "/sim:/a:/sim");
    }
}
