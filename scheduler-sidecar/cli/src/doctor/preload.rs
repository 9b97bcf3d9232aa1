//! Checks the library, and the preloads in LD_PRELOAD and /etc/ld.so.preload.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{Report, variable};
use crate::{elf, library, loader};

/// The file in which glibc's loader finds system-wide preloads; it applies to every program of the machine or
/// container.
const SYSTEM_LIST: &str = "/etc/ld.so.preload";

/// Text that our library contains and HAMi's, which has the same name, does not.
const MARK: &[u8] = b"VGPU_MEMORY_LIMIT";

pub fn look(report: &mut Report) {
    match library::find(None) {
        Ok(path) => ours(report, "library", "", &path),
        // A container has only the library, mounted anywhere; its LD_PRELOAD entry is checked below.
        Err(_) if variable("VGPU_LIBRARY").is_none() && preloaded() => {}
        Err(why) => report.finding("library", why),
    }
    environment(report);
    system(report);
}

/// Returns true if LD_PRELOAD names an existing libvgpu.so.
fn preloaded() -> bool {
    let list = variable("LD_PRELOAD").unwrap_or_default();
    list.split([':', ' ']).any(|entry| entry.rsplit('/').next() == Some(library::NAME) && found(entry).is_some())
}

/// Checks that a libvgpu.so is this project's.
fn ours(report: &mut Report, subject: &'static str, by: &str, path: &Path) {
    if elf::holds(path, MARK) {
        report.fine(subject, format!("{by}{}", described(path)));
    } else {
        report.finding(subject, format!("{by}{} is another project's (HAMi's has the same name)", described(path)));
    }
}

/// Describes a library by its path, size and build id.
fn described(path: &Path) -> String {
    let id = elf::build_id(path).unwrap_or_else(|| "none".into());
    let size = fs::metadata(path).map_or(0, |meta| meta.len());
    format!("{} ({size} bytes, build id {id})", path.display())
}

fn environment(report: &mut Report) {
    let Some(list) = variable("LD_PRELOAD") else {
        return report.fine("preload", "LD_PRELOAD is not set; `vgpu run` sets it");
    };
    let mut count = 0;
    for entry in list.split([':', ' ']).filter(|entry| !entry.is_empty()) {
        let is_ours = entry.rsplit('/').next() == Some(library::NAME);
        count += usize::from(is_ours);
        match found(entry) {
            Some(path) if is_ours && count > 1 => {
                report.finding("preload", format!("LD_PRELOAD names a second {}: {}; one must go", library::NAME, path.display()));
            }
            Some(path) if is_ours => ours(report, "preload", "LD_PRELOAD: ", &path),
            Some(path) => report.fine("preload", format!("LD_PRELOAD also names {}", path.display())),
            None if !entry.contains('/') => report.finding(
                "preload",
                format!("LD_PRELOAD names {entry} without a path, and the loader does not find it: programs run without it; give an absolute path"),
            ),
            None => report.finding(
                "preload",
                format!("LD_PRELOAD names {entry}, which does not exist: the loader only complains, and programs run without it"),
            ),
        }
    }
    if count == 0 {
        report.fine("preload", format!("LD_PRELOAD does not name {}; `vgpu run` puts it first", library::NAME));
    }
}

fn system(report: &mut Report) {
    let list = match fs::read_to_string(SYSTEM_LIST) {
        Ok(list) => list,
        Err(why) if why.kind() == ErrorKind::NotFound => {
            return report.fine("preload", format!("{SYSTEM_LIST} is not there"));
        }
        Err(why) => return report.finding("preload", format!("{SYSTEM_LIST} cannot be read: {why}")),
    };
    // The loader accepts white space, colons and comments.
    let entries = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(|line| line.split([' ', '\t', ':']));
    let mut any = false;
    for entry in entries.filter(|entry| !entry.is_empty()) {
        any = true;
        match found(entry) {
            Some(path) if path.ends_with(library::NAME) => {
                ours(report, "preload", &format!("{SYSTEM_LIST} names "), &path);
            }
            Some(path) => report.fine("preload", format!("{SYSTEM_LIST} names {}", described(&path))),
            None => report.finding(
                "preload",
                format!("{SYSTEM_LIST} names {entry}, which is not found: every program complains and runs without it"),
            ),
        }
    }
    if !any {
        report.fine("preload", format!("{SYSTEM_LIST} is empty"));
    }
}

/// Returns the file that an entry refers to.
fn found(entry: &str) -> Option<PathBuf> {
    if entry.contains('/') {
        return Path::new(entry).exists().then(|| PathBuf::from(entry));
    }
    loader::finds(entry)
}
