//! Asks the dynamic loader itself which files it would map.
//!
//! `ld.so --list FILE` does everything that the loader does before the program's first instruction, preloads
//! included. It then prints the list and ends; the program does not run. LD_TRACE_LOADED_OBJECTS is not an option: a
//! static program would ignore it and run. Only glibc's loaders are asked, since the meaning of `--list` to others is
//! unknown.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::elf::{self, FileImage};

/// Answer of a dynamic loader that lists the files it would map.
#[derive(Debug, Default)]
pub struct LoaderListing {
    /// Every file that it would map, with the path it found.
    pub files: Vec<PathBuf>,
    /// Error messages of the loader, one line each.
    pub complaints: Vec<String>,
}

impl LoaderListing {
    /// Returns the file with this name.
    #[must_use]
    pub fn file_named(&self, name: &str) -> Option<&Path> {
        self.files.iter().map(PathBuf::as_path).find(|path| path.file_name() == Some(OsStr::new(name)))
    }
}

/// Returns true for glibc's loaders, which support `--list`.
#[must_use]
pub fn is_glibc(interpreter: &Path) -> bool {
    let name = interpreter.file_name().unwrap_or_default().as_encoded_bytes();
    (name.starts_with(b"ld-linux")
        || name.starts_with(b"ld64.so")
        || name.starts_with(b"ld-2.")
        || name.starts_with(b"ld.so"))
        && !name.starts_with(b"ld-musl")
}

/// Asks a program's loader, in this environment with some variables changed (`None` removes one).
///
/// # Errors
/// A message: the loader cannot be started, or reports that the program cannot be.
pub fn list_libraries(
    interpreter: &Path,
    program: &Path,
    changes: &[(&str, Option<&OsStr>)],
) -> Result<LoaderListing, String> {
    // Given a name without a slash, a loader searches for a library.
    let program = std::path::absolute(program).map_err(|why| format!("{}: {why}", program.display()))?;
    let mut command = Command::new(interpreter);
    command.arg("--list").arg(&program).stdin(Stdio::null());
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().map_err(|why| format!("its loader {}: {why}", interpreter.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<String> = stderr.lines().map(|line| line.trim().to_owned()).collect();
    if !output.status.success() {
        return Err(complaints.last().cloned().unwrap_or_else(|| format!("its loader ended with {}", output.status)));
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok(LoaderListing { files: stdout.lines().filter_map(parse_line).collect(), complaints })
}

/// Parses the file of a line: `name => /path (0x...)` or `/path (0x...)`.
fn parse_line(line: &str) -> Option<PathBuf> {
    let (text, _) = line.trim().rsplit_once(" (0x")?;
    let path = text.rsplit_once(" => ").map_or(text, |(_, path)| path);
    Some(PathBuf::from(path))
}

/// Returns where the loader finds a library in this environment.
#[must_use]
pub fn find_library(library: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let Ok(FileImage::Elf(elf::ElfFacts { interpreter: Some(interpreter), .. })) = elf::read_image(&program) else {
        return None;
    };
    if !is_glibc(&interpreter) {
        return None;
    }
    let listing = list_libraries(&interpreter, &program, &[("LD_PRELOAD", Some(OsStr::new(library)))]).ok()?;
    listing.file_named(library).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::arch;
    use super::*;

    #[test]
    fn lines_of_a_listing_are_read() {
        assert_eq!(parse_line("\tlibz.so.1 => /lib/libz.so.1 (0x00007f91c0784000)"), Some("/lib/libz.so.1".into()));
        assert_eq!(
            parse_line("\t/opt/my libs/libvgpu.so (0x00007f91c0784000)"),
            Some("/opt/my libs/libvgpu.so".into())
        );
        assert_eq!(parse_line("\tlinux-vdso.so.1 (0x00007f91c07be000)"), Some("linux-vdso.so.1".into()));
        assert_eq!(parse_line("\tlibx.so => not found"), None);
    }

    #[test]
    fn only_glibcs_loaders_are_asked() {
        for (path, known) in
            [(arch::GLIBC_LOADER, true), ("/lib/ld-linux.so.2", true), (arch::MUSL_LOADER, false), ("/bin/true", false)]
        {
            assert_eq!(is_glibc(Path::new(path)), known, "{path}");
        }
    }

    #[test]
    fn the_loader_says_where_it_finds_the_c_library() {
        assert_eq!(find_library("libc.so.6").unwrap().file_name(), Some(OsStr::new("libc.so.6")));
        assert_eq!(find_library("libno-such-library.so.9"), None);
    }
}
