//! Default directories and sockets of the daemon: `vgpud` creates them, `vgpu` looks for them.

use std::path::{Path, PathBuf};

/// Longest path of a Unix socket in bytes, without the terminating zero byte.
pub const MAX_SOCKET_PATH: usize = 107;

/// Returns the directory for the daemon's files whose place is not configured.
///
/// `VGPU_RUNTIME_DIR` if set, else `/run/vgpu` for root, else `$XDG_RUNTIME_DIR/vgpu`, else `/tmp/vgpu-<uid>`.
#[must_use]
pub fn runtime_dir() -> PathBuf {
    let set = path_variable;
    let uid = rustix::process::geteuid().as_raw();
    set("VGPU_RUNTIME_DIR").unwrap_or_else(|| match (uid, set("XDG_RUNTIME_DIR")) {
        (0, _) => PathBuf::from("/run/vgpu"),
        (_, Some(dir)) => dir.join("vgpu"),
        (uid, None) => PathBuf::from(format!("/tmp/vgpu-{uid}")),
    })
}

/// Returns the directory for state that outlives the daemon, if none is configured. With the usual runtime directory:
/// `/var/lib/vgpu` for root, else `$XDG_STATE_HOME/vgpu` or `~/.local/state/vgpu`. A daemon with another runtime
/// directory keeps its state in `state` below it. So two daemons of a host, or a test's daemon, never share a record.
#[must_use]
pub fn state_dir(runtime_dir: &Path) -> PathBuf {
    let set = path_variable;
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

/// Returns the administrative socket's path in a runtime directory.
#[must_use]
pub fn admin_socket(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("admin.sock")
}

/// Variable that names the administrative socket of a daemon itself, for the programs that ask it.
pub const ADMIN_SOCKET_VARIABLE: &str = "VGPU_ADMIN_SOCKET";

/// Returns the administrative socket that `VGPU_ADMIN_SOCKET` names; `None`: it is not set.
#[must_use]
pub fn named_admin_socket() -> Option<PathBuf> {
    path_variable(ADMIN_SOCKET_VARIABLE)
}

/// Returns the administrative socket of the daemon that is asked if no option names one: [`named_admin_socket`], else
/// that in [`runtime_dir`].
#[must_use]
pub fn usual_admin_socket() -> PathBuf {
    named_admin_socket().unwrap_or_else(|| admin_socket(&runtime_dir()))
}

/// The path in a variable; `None`: it is not set, or empty.
fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
