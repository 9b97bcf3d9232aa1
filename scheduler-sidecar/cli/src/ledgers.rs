//! Finds ledgers on disk, reads them, and removes those whose run has ended.
//!
//! `vgpu run` gives each program a tenant of its own and then replaces itself with the program, so no process remains
//! to clean up. Instead each run first removes the ledgers of earlier runs. A ledger is removed only while this
//! process holds all its locks, which is impossible while a member uses it. The library, after locking, checks that
//! the file still has its name. Ledgers of named tenants are reused, and stay until `vgpu clean`.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use shim_sys::lock::held_by_another;
use shim_sys::shared_file::remove_unused;
use vgpu_core::limits::tenant::TenantKey;
use vgpu_core::memory::ledger::{
    LEDGER_BYTES, LEDGER_HEADER_BYTES, LEDGER_MAGIC, LedgerCopy, open_doors_in, parse_ledger, slot_lock_offset,
};
use vgpu_core::protocol::wire::terms_file::LEDGERS_SUFFIX;

use rustix::fs::{Access, AtFlags, CWD, OFlags};

/// Prefix of the tenant names that `vgpu run` generates; the process id follows.
pub const NEW_TENANT_PREFIX: &str = "run-";

/// Least free bytes in a place that can hold a ledger.
const MIN_FREE_BYTES: u64 = 1 << 20;

/// Most ledgers removed by one run, so that a single run never cleans up after all earlier ones.
const MAX_SWEPT: usize = 64;

/// Returns the name of the directory next to a socket in which the daemon keeps the tenant's ledgers. Members write
/// into them.
#[must_use]
pub fn ledgers_of(socket: &OsStr) -> OsString {
    let mut name = socket.to_owned();
    name.push(LEDGERS_SUFFIX);
    name
}

/// Returns the directory in which the daemon keeps this tenant's ledgers. `None`: no daemon is named.
#[must_use]
pub fn kept_by_daemon() -> Option<PathBuf> {
    let socket = PathBuf::from(std::env::var_os("VGPU_SOCKET")?);
    Some(socket.with_file_name(ledgers_of(socket.file_name().unwrap_or_default())))
}

/// Returns the places that can hold ledgers of this tenant.
#[must_use]
pub fn readable() -> Vec<PathBuf> {
    kept_by_daemon().map_or_else(ledger_directories, |place| vec![place])
}

/// Returns the places where the library would create a ledger without a daemon, in its order; with `VGPU_STATE_DIR`
/// only that one.
#[must_use]
pub fn ledger_directories() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    if let Some(place) = set("VGPU_STATE_DIR") {
        return vec![place];
    }
    let cache = set("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    let beside = cache.as_deref().and_then(Path::parent).filter(|place| place.is_absolute()).map(Path::to_owned);
    beside.into_iter().chain(["/dev/shm".into(), "/tmp".into()]).collect()
}

/// Returns why no ledger can be created in `place`. The check creates nothing.
#[must_use]
pub fn why_unusable(place: &Path) -> Option<String> {
    let writable = rustix::fs::accessat(CWD, place, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    if let Err(why) = writable {
        return Some(format!("cannot be written: {}", io::Error::from(why)));
    }
    if !place.is_dir() {
        return Some("is not a directory".into());
    }
    let room = rustix::fs::statvfs(place).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    (room < MIN_FREE_BYTES).then(|| format!("has only {room} bytes left"))
}

/// Returns the number of bypasses that the tenant's members found, and the name of the first one, from its ledgers in
/// `place`. `None` if no ledger is readable.
#[must_use]
pub fn open_doors(place: &Path, key: &TenantKey) -> Option<(u64, String)> {
    let all = of_tenant(place, key).into_iter();
    // Every device's ledger counts all bypasses, so take the maximum, not the sum.
    all.filter_map(|(_, path)| open_doors_in(&begin_of(&path, LEDGER_HEADER_BYTES)?)).max_by_key(|(count, _)| *count)
}

/// Returns the content of the tenant's ledgers in `place`, by device. Dead members are left out.
#[must_use]
pub fn use_of(place: &Path, key: &TenantKey) -> Vec<(String, LedgerCopy)> {
    let all = of_tenant(place, key).into_iter();
    all.filter_map(|(device, path)| Some((device, of_the_living(&path)?))).collect()
}

fn of_the_living(path: &Path) -> Option<LedgerCopy> {
    let file = open_to_read(path)?;
    let mut bytes = Vec::new();
    (&file).take(LEDGER_BYTES as u64).read_to_end(&mut bytes).ok()?;
    let mut said = parse_ledger(&bytes)?;
    said.members.retain(|member| held_by_another(file.as_fd(), slot_lock_offset(member.index)).unwrap_or(true));
    Some(said)
}

/// Returns the tenant's ledgers in `place`, each with its device's name, sorted by that name.
fn of_tenant(place: &Path, key: &TenantKey) -> Vec<(String, PathBuf)> {
    let begin = format!("vgpu-{}-", key.as_str());
    let device_of = |name: &OsStr| {
        let device = name.to_str()?.strip_prefix(&begin)?.strip_suffix(".ledger")?;
        ["GPU-", "MIG-", "x"].iter().any(|kind| device.starts_with(kind)).then(|| device.to_owned())
    };
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut all: Vec<(String, PathBuf)> =
        entries.filter_map(|entry| Some((device_of(&entry.file_name())?, entry.path()))).collect();
    all.sort_unstable();
    all
}

fn open_to_read(path: &Path) -> Option<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

fn begin_of(path: &Path, length: usize) -> Option<Vec<u8>> {
    let file = open_to_read(path)?;
    let mut bytes = Vec::new();
    file.take(length as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Removes this user's ledgers of ended runs and returns their number. Ledgers that cannot be removed stay.
pub fn sweep_ended(place: &Path) -> usize {
    let Ok(entries) = fs::read_dir(place) else { return 0 };
    let left = entries.flatten().filter(|entry| run_of(&entry.file_name()).is_some_and(has_ended));
    left.take(MAX_SWEPT).filter(|entry| remove(&entry.path()).is_ok_and(|fate| fate == LedgerFate::Free)).count()
}

/// Removes the ledgers of the tenants that this process named. One that a program still holds stays, and a later run
/// removes it.
pub fn sweep_own() {
    let own = std::process::id();
    for entry in ledger_directories().iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten() {
        if run_of(&entry.file_name()) == Some(own) {
            let _ = remove(&entry.path());
        }
    }
}

/// Returns the process id in a ledger's name: `vgpu-t-run-<pid>-<16 digits>-<device>.ledger`.
fn run_of(name: &OsStr) -> Option<u32> {
    let name = name.to_str()?.strip_prefix("vgpu-t-")?.strip_prefix(NEW_TENANT_PREFIX)?.strip_suffix(".ledger")?;
    let mut parts = name.splitn(3, '-');
    let (pid, random, device) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()) && !device.is_empty();
    pid.parse().ok().filter(|_| ours)
}

/// A process in another pid namespace may be invisible here; the members' locks still protect its ledger.
fn has_ended(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// A ledger, identified by its file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerFile {
    /// Path of the ledger file.
    pub path: PathBuf,
    /// Key of the tenant in the file name, which identifies the tenant.
    pub tenant: String,
    /// Name of the device.
    pub device: String,
}

/// Returns all ledgers in `place`, sorted by name.
#[must_use]
pub fn all(place: &Path) -> Vec<LedgerFile> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut all: Vec<LedgerFile> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let (tenant, device) = parts_of(name.to_str()?)?;
            Some(LedgerFile { path: entry.path(), tenant: tenant.to_owned(), device: device.to_owned() })
        })
        .collect();
    all.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    all
}

/// Splits `vgpu-<key>-<device>.ledger` into key and device. A key may contain text that looks like a device, so the
/// last possible device counts.
fn parts_of(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("vgpu-")?.strip_suffix(".ledger")?;
    name.get(..2).filter(|kind| ["t-", "c-", "u-"].contains(kind))?;
    let at = ["-GPU-", "-MIG-", "-x"].iter().filter_map(|begin| name.rfind(begin)).max()?;
    Some((name.get(..at)?, name.get(at + 1..)?))
}

/// Result of checking or removing a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerFate {
    /// No process uses the ledger; it may be removed, or was.
    Free,
    /// A process uses the ledger.
    InUse,
    /// Another user owns it, and this process is not root.
    Foreign,
    /// The name is a ledger's, but it is a directory, a link or something else.
    NoFile,
    /// The name is a ledger's, but the content is something else.
    NoLedger,
}

/// Checks whether a ledger could be removed now. Takes no lock, so that a process that joins it is not disturbed.
///
/// # Errors
/// The file cannot be checked.
pub fn ledger_fate(path: &Path) -> io::Result<LedgerFate> {
    let file = match open_removable(path)? {
        Ok(file) => file,
        Err(fate) => return Ok(fate),
    };
    Ok(if shim_sys::lock::any_held_by_another(file.as_fd())? { LedgerFate::InUse } else { LedgerFate::Free })
}

/// Removes a ledger unless a member holds one of its locks.
///
/// # Errors
/// The file cannot be checked or removed.
pub fn remove(path: &Path) -> io::Result<LedgerFate> {
    if let Err(fate) = open_removable(path)? {
        return Ok(fate);
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    Ok(if remove_unused(&name, |_, _| true)? { LedgerFate::Free } else { LedgerFate::InUse })
}

/// Opens the file if this user may remove it, else returns the reason.
fn open_removable(path: &Path) -> io::Result<Result<File, LedgerFate>> {
    let uid = rustix::process::geteuid();
    let is_kept = |meta: &fs::Metadata| match meta.is_file() {
        false => Some(LedgerFate::NoFile),
        true => Some(LedgerFate::Foreign).filter(|_| !uid.is_root() && meta.uid() != uid.as_raw()),
    };
    if let Some(fate) = is_kept(&fs::symlink_metadata(path)?) {
        return Ok(Err(fate));
    }
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    let mut begin = Vec::new();
    (&file).take(8).read_to_end(&mut begin)?;
    // A ledger is all zeros until its first member writes the header.
    let is_ledger = begin.iter().all(|byte| *byte == 0) || begin == LEDGER_MAGIC.to_le_bytes();
    let kept = is_kept(&file.metadata()?).or_else(|| (!is_ledger).then_some(LedgerFate::NoLedger));
    Ok(kept.map_or(Ok(file), Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_ledger_tells_tenant_and_device() {
        for (name, parts) in [
            ("vgpu-t-team-GPU-1-2.ledger", Some(("t-team", "GPU-1-2"))),
            ("vgpu-t-a-GPU-b-GPU-1.ledger", Some(("t-a-GPU-b", "GPU-1"))),
            ("vgpu-u-1000-5-6-MIG-1.ledger", Some(("u-1000-5-6", "MIG-1"))),
            ("vgpu-c-1-2-x0123456789abcdef.ledger", Some(("c-1-2", "x0123456789abcdef"))),
            ("vgpu-sim-0", None),
            ("vgpu-t-team.ledger", None),
            ("vgpu-z-team-GPU-1.ledger", None),
            ("t-team-GPU-1.ledger", None),
        ] {
            assert_eq!(parts_of(name), parts, "{name}");
        }
    }

    #[test]
    fn only_names_that_a_run_makes_are_taken_for_a_runs() {
        let run = |name: &str| run_of(OsStr::new(name));
        assert_eq!(run("vgpu-t-run-4711-0123456789abcdef-GPU-1-2.ledger"), Some(4711));
        for other in [
            "vgpu-t-run-4711-GPU-1.ledger",
            "vgpu-t-run-x-0123456789abcdef-GPU-1.ledger",
            "vgpu-t-run-4711-0123456789abcdef-.ledger",
            "vgpu-t-run-4711-0123456789abcdef.ledger",
            "vgpu-t-team-GPU-1.ledger",
            "vgpu-c-1-2-GPU-1.ledger",
            "other",
        ] {
            assert_eq!(run(other), None, "{other}");
        }
    }
}
