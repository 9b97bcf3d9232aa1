//! Determines this process's tenant and the directory of its ledgers.
//!
//! This module reads the environment, namespaces and user; vgpu-core's [`TenantKey`] derives the tenant from them.

use crate::process::environment::decisive_variable;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vgpu_core::limits::tenant::{ProcessFacts, TenantKey, uid_in_parent};
use vgpu_core::protocol::wire::terms_file::LEDGERS_SUFFIX;

/// Inode of the pid namespace that the kernel creates at boot (PROC_PID_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xeffffffc;

/// Returns this process's tenant: the name that the daemon gave (`named`), else `VGPU_TENANT`, else its namespaces.
///
/// # Errors
/// One line that names the variable and its accepted values, or the file that could not be read.
pub fn tenant_key(named: Option<&str>) -> Result<TenantKey, String> {
    // SAFETY: no preconditions.
    let uid = unsafe { libc::geteuid() };
    let facts = ProcessFacts { name: None, mount_namespace: 0, pid_namespace: 0, host: true, uid };
    if let Some(name) = named {
        return TenantKey::from_facts(&ProcessFacts { name: Some(name.as_bytes()), ..facts })
            .map_err(|e| format!("the daemon's name for this tenant cannot be used: {e}"));
    }
    if let Some(name) = decisive_variable("VGPU_TENANT") {
        return TenantKey::from_facts(&ProcessFacts { name: Some(name.as_bytes()), ..facts })
            .map_err(|e| e.to_string());
    }
    let inode = |path: &str| {
        inode_of(path).map_err(|e| {
            format!("{path} cannot be read ({e}), so that the container is not known; set VGPU_TENANT to a name")
        })
    };
    let (mount_namespace, pid_namespace) = (inode("/proc/self/ns/mnt")?, inode("/proc/self/ns/pid")?);
    // A process in the host's own namespaces is in no container. There each user is a tenant.
    let host = pid_namespace == INITIAL_PID_NAMESPACE;
    TenantKey::from_facts(&ProcessFacts { mount_namespace, pid_namespace, host, ..facts }).map_err(|e| e.to_string())
}

fn inode_of(path: &str) -> std::io::Result<u64> {
    std::fs::metadata(path).map(|file| file.ino())
}

/// Returns this process's uid as the daemon sees it. `namespace` is the inode of the daemon's user namespace. If this
/// process is in another one, its uid map gives the uid in the parent namespace.
pub fn user_of(namespace: u64) -> u32 {
    // SAFETY: no preconditions.
    let uid = unsafe { libc::geteuid() };
    if inode_of("/proc/self/ns/user").is_ok_and(|own| own == namespace) {
        return uid;
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid_in_parent(&map, uid).unwrap_or(uid)
}

/// Checks the name in `VGPU_TENANT`, if it is set.
///
/// # Errors
/// One line that names the variable and its accepted values.
pub fn check_name() -> Result<(), String> {
    let Some(name) = decisive_variable("VGPU_TENANT") else { return Ok(()) };
    let facts = ProcessFacts { name: Some(name.as_bytes()), mount_namespace: 0, pid_namespace: 0, host: true, uid: 0 };
    TenantKey::from_facts(&facts).map(drop).map_err(|e| e.to_string())
}

/// Returns the directories to try for ledgers, in order; the first writable one is used. `VGPU_STATE_DIR` replaces all.
pub fn ledger_directories() -> Vec<PathBuf> {
    if let Some(place) = decisive_variable("VGPU_STATE_DIR") {
        return vec![to_path(place)];
    }
    let cache = decisive_variable("CUDA_DEVICE_MEMORY_SHARED_CACHE").map(to_path);
    let beside = cache.as_deref().and_then(Path::parent).filter(|place| place.is_absolute()).map(Path::to_owned);
    beside.into_iter().chain(["/dev/shm".into(), "/tmp".into()]).collect()
}

/// Returns the directory in which the daemon keeps the tenant's ledgers. `None`: `VGPU_SOCKET` is not set.
pub fn kept_ledgers() -> Option<PathBuf> {
    let mut directory = decisive_variable("VGPU_SOCKET")?.to_os_string();
    directory.push(LEDGERS_SUFFIX);
    Some(to_path(directory))
}

/// True if all users of the container share one ledger (`VGPU_SHARED_UIDS=1`).
pub fn shared_by_users() -> bool {
    decisive_variable("VGPU_SHARED_UIDS").is_some_and(|value| value.as_bytes() == b"1")
}

fn to_path(text: impl AsRef<std::ffi::OsStr>) -> PathBuf {
    PathBuf::from(text.as_ref())
}
