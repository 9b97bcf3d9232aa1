//! Whose charges these are and where they are kept: the facts the kernel gives, for vgpu-core's rule.

use crate::environment::variable;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vgpu_core::tenant::{Facts, TenantKey, uid_in_parent};
use vgpu_core::wire::terms_file::LEDGERS_SUFFIX;

/// Inode of the pid namespace that the kernel made at boot (PROC_PID_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// The tenant of this process: the daemon's word (`named`), else `VGPU_TENANT`, else its namespaces.
///
/// # Errors
/// One line: the variable with what is accepted, or what could not be read.
pub fn key(named: Option<&str>) -> Result<TenantKey, String> {
    // SAFETY: no preconditions.
    let uid = unsafe { libc::geteuid() };
    let facts = Facts { name: None, mount_namespace: 0, pid_namespace: 0, host: true, uid };
    if let Some(name) = named {
        return TenantKey::of(&Facts { name: Some(name.as_bytes()), ..facts })
            .map_err(|e| format!("the daemon's name for this tenant cannot be used: {e}"));
    }
    if let Some(name) = variable("VGPU_TENANT") {
        return TenantKey::of(&Facts { name: Some(name.as_bytes()), ..facts }).map_err(|e| e.to_string());
    }
    let inode = |path: &str| {
        inode_of(path).map_err(|e| {
            format!("{path} cannot be read ({e}), so that the container is not known; set VGPU_TENANT to a name")
        })
    };
    let (mount_namespace, pid_namespace) = (inode("/proc/self/ns/mnt")?, inode("/proc/self/ns/pid")?);
    // In the host's own namespaces there is no container: each user is a tenant of their own.
    let host = pid_namespace == INITIAL_PID_NAMESPACE;
    TenantKey::of(&Facts { mount_namespace, pid_namespace, host, ..facts }).map_err(|e| e.to_string())
}

fn inode_of(path: &str) -> std::io::Result<u64> {
    std::fs::metadata(path).map(|file| file.ino())
}

/// The number of this process's user in the daemon's user namespace, as the daemon would see it: the parent's, where this process
/// has another namespace.
pub fn user_of(namespace: u64) -> u32 {
    // SAFETY: no preconditions.
    let uid = unsafe { libc::geteuid() };
    if inode_of("/proc/self/ns/user").is_ok_and(|own| own == namespace) {
        return uid;
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid_in_parent(&map, uid).unwrap_or(uid)
}

/// Checks the name in `VGPU_TENANT`, if there is one.
///
/// # Errors
/// One line: the variable with what is accepted.
pub fn check_name() -> Result<(), String> {
    let Some(name) = variable("VGPU_TENANT") else { return Ok(()) };
    let facts = Facts { name: Some(name.as_bytes()), mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
    TenantKey::of(&facts).map(drop).map_err(|e| e.to_string())
}

/// Where ledgers may be kept, the first that can be written counts. With `VGPU_STATE_DIR` that place only.
pub fn places() -> Vec<PathBuf> {
    if let Some(place) = variable("VGPU_STATE_DIR") {
        return vec![path(place)];
    }
    let cache = variable("CUDA_DEVICE_MEMORY_SHARED_CACHE").map(path);
    let beside = cache.as_deref().and_then(Path::parent).filter(|place| place.is_absolute()).map(Path::to_owned);
    beside.into_iter().chain(["/dev/shm".into(), "/tmp".into()]).collect()
}

/// Where the daemon keeps the tenant's ledgers; `None`: no daemon is named.
pub fn kept_ledgers() -> Option<PathBuf> {
    let mut directory = variable("VGPU_SOCKET")?.to_os_string();
    directory.push(LEDGERS_SUFFIX);
    Some(path(directory))
}

/// Whether the ledger is common to all users of the container.
pub fn shared_by_users() -> bool {
    variable("VGPU_SHARED_UIDS").is_some_and(|value| value.as_bytes() == b"1")
}

fn path(text: impl AsRef<std::ffi::OsStr>) -> PathBuf {
    PathBuf::from(text.as_ref())
}
