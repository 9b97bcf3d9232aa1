//! Checks the library, and the preloads in LD_PRELOAD and /etc/ld.so.preload.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{DoctorReport, environment_text};
use crate::{elf, library, loader};

/// The file in which glibc's loader finds system-wide preloads; it applies to every program of the machine or
/// container.
const SYSTEM_PRELOAD_LIST: &str = "/etc/ld.so.preload";

/// Text that our library contains and HAMi's, which has the same name, does not.
const LIBRARY_MARK: &[u8] = b"VGPU_MEMORY_LIMIT";

pub fn examine_preload(report: &mut DoctorReport) {
    match library::find(None) {
        Ok(path) => report_library(report, "library", "", &path),
        // A container has only the library, mounted anywhere; its LD_PRELOAD entry is checked below.
        Err(_) if environment_text("VGPU_LIBRARY").is_none() && is_preloaded() => {}
        Err(why) => report.add_finding("library", why),
    }
    examine_environment(report);
    examine_system_list(report);
}

/// Returns true if LD_PRELOAD names an existing libvgpu.so.
fn is_preloaded() -> bool {
    let list = environment_text("LD_PRELOAD").unwrap_or_default();
    list.split([':', ' '])
        .any(|entry| entry.rsplit('/').next() == Some(library::LIBRARY_NAME) && find_entry(entry).is_some())
}

/// Checks that a libvgpu.so is this project's.
fn report_library(report: &mut DoctorReport, subject: &'static str, by: &str, path: &Path) {
    if elf::contains_bytes(path, LIBRARY_MARK) {
        report.add_fine(subject, format!("{by}{}", describe_library(path)));
    } else {
        report.add_finding(
            subject,
            format!("{by}{} is another project's (HAMi's has the same name)", describe_library(path)),
        );
    }
}

/// Describes a library by its path, size and build id.
fn describe_library(path: &Path) -> String {
    let id = elf::build_id(path).unwrap_or_else(|| "none".into());
    let size = fs::metadata(path).map_or(0, |meta| meta.len());
    format!("{} ({size} bytes, build id {id})", path.display())
}

fn examine_environment(report: &mut DoctorReport) {
    let Some(list) = environment_text("LD_PRELOAD") else {
        return report.add_fine("preload", "LD_PRELOAD is not set; `vgpu run` sets it");
    };
    let mut count = 0;
    for entry in list.split([':', ' ']).filter(|entry| !entry.is_empty()) {
        let is_ours = entry.rsplit('/').next() == Some(library::LIBRARY_NAME);
        count += usize::from(is_ours);
        match find_entry(entry) {
            Some(path) if is_ours && count > 1 => {
                report.add_finding("preload", format!("LD_PRELOAD names a second {}: {}; one must go", library::LIBRARY_NAME, path.display()));
            }
            Some(path) if is_ours => report_library(report, "preload", "LD_PRELOAD: ", &path),
            Some(path) => report.add_fine("preload", format!("LD_PRELOAD also names {}", path.display())),
            None if !entry.contains('/') => report.add_finding(
                "preload",
                format!("LD_PRELOAD names {entry} without a path, and the loader does not find it: programs run without it; give an absolute path"),
            ),
            None => report.add_finding(
                "preload",
                format!("LD_PRELOAD names {entry}, which does not exist: the loader only complains, and programs run without it"),
            ),
        }
    }
    if count == 0 {
        report.add_fine(
            "preload",
            format!("LD_PRELOAD does not name {}; `vgpu run` puts it first", library::LIBRARY_NAME),
        );
    }
}

fn examine_system_list(report: &mut DoctorReport) {
    let list = match fs::read_to_string(SYSTEM_PRELOAD_LIST) {
        Ok(list) => list,
        Err(why) if why.kind() == ErrorKind::NotFound => {
            return report.add_fine("preload", format!("{SYSTEM_PRELOAD_LIST} is not there"));
        }
        Err(why) => return report.add_finding("preload", format!("{SYSTEM_PRELOAD_LIST} cannot be read: {why}")),
    };
    // The loader accepts white space, colons and comments.
    let entries = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(|line| line.split([' ', '\t', ':']));
    let mut any = false;
    for entry in entries.filter(|entry| !entry.is_empty()) {
        any = true;
        match find_entry(entry) {
            Some(path) if path.ends_with(library::LIBRARY_NAME) => {
                report_library(report, "preload", &format!("{SYSTEM_PRELOAD_LIST} names "), &path);
            }
            Some(path) => report.add_fine("preload", format!("{SYSTEM_PRELOAD_LIST} names {}", describe_library(&path))),
            None => report.add_finding(
                "preload",
                format!("{SYSTEM_PRELOAD_LIST} names {entry}, which is not found: every program complains and runs without it"),
            ),
        }
    }
    if !any {
        report.add_fine("preload", format!("{SYSTEM_PRELOAD_LIST} is empty"));
    }
}

/// Returns the file that an entry refers to.
fn find_entry(entry: &str) -> Option<PathBuf> {
    if entry.contains('/') {
        return Path::new(entry).exists().then(|| PathBuf::from(entry));
    }
    loader::find_library(entry)
}
