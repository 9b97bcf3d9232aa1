//! The daemon's directories and sockets where nobody names others: `vgpud` makes them, `vgpu` looks for them.

use std::path::{Path, PathBuf};

/// Longest path of a Unix socket, its end mark not counted.
pub const MAX_SOCKET_PATH: usize = 107;

/// The directory where the daemon puts what it was given no other place for.
///
/// `VGPU_RUNTIME_DIR` if set, else `/run/vgpu` for root, else `$XDG_RUNTIME_DIR/vgpu`, else `/tmp/vgpu-<uid>`.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = rustix::process::geteuid().as_raw();
    set("VGPU_RUNTIME_DIR").unwrap_or_else(|| match (uid, set("XDG_RUNTIME_DIR")) {
        (0, _) => PathBuf::from("/run/vgpu"),
        (_, Some(dir)) => dir.join("vgpu"),
        (uid, None) => PathBuf::from(format!("/tmp/vgpu-{uid}")),
    })
}

/// Where a daemon keeps what outlives it, if nobody says where: `/var/lib/vgpu` for root, the user's own directory of states
/// for others. One whose sockets lie at another place than the usual one keeps it there, so that two daemons of a host, or
/// a test's, do not write into one record.
#[must_use]
pub fn state_dir(runtime_dir: &Path) -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let uid = rustix::process::geteuid().as_raw();
    let (usual, place) = match (uid, set("XDG_RUNTIME_DIR"), set("XDG_STATE_HOME"), set("HOME")) {
        (0, ..) => (Some(PathBuf::from("/run/vgpu")), Some(PathBuf::from("/var/lib/vgpu"))),
        (_, usual, Some(dir), _) => (usual.map(|dir| dir.join("vgpu")), Some(dir.join("vgpu"))),
        (_, usual, None, home) => (usual.map(|dir| dir.join("vgpu")), home.map(|home| home.join(".local/state/vgpu"))),
    };
    match place {
        Some(place) if usual.as_deref() == Some(runtime_dir) => place,
        _ => runtime_dir.join("state"),
    }
}

/// The administrative socket within a runtime directory.
#[must_use]
pub fn admin_socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("admin.sock")
}
