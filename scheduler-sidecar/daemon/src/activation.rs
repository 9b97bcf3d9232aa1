//! Takes the administrative socket from the service manager: systemd's socket activation (`LISTEN_PID`, `LISTEN_FDS`,
//! `LISTEN_FDNAMES`).
//!
//! Only this socket: those of tenants change with the configuration, and a manager's would not. The manager owns the
//! socket, so its path is not removed at shutdown. Then a client that connects while the daemon is down waits, or
//! starts it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, sockopt};

/// First descriptor that a service manager passes to a process.
const FIRST_HANDED_DESCRIPTOR: i32 = 3;

/// A listening socket of the service manager.
#[derive(Debug)]
pub struct ActivatedSocket {
    /// The socket; non-blocking.
    pub listener: OwnedFd,
    /// Path of the socket.
    pub path: PathBuf,
}

/// The socket that the manager passed to this process; `None`: none.
///
/// # Errors
/// A message: there are several, or it is not a listening Unix socket. A wrong unit must not look right.
pub fn activated_socket() -> Result<Option<ActivatedSocket>, String> {
    let [pid, count, names] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].map(std::env::var_os);
    match is_announced(pid, count, names, std::process::id())? {
        false => Ok(None),
        true => {
            take_socket().map(Some).map_err(|why| format!("the socket of the service manager cannot be used: {why}"))
        }
    }
}

/// True if the manager passed one socket to this process.
fn is_announced(
    pid: Option<OsString>,
    count: Option<OsString>,
    names: Option<OsString>,
    own: u32,
) -> Result<bool, String> {
    let number = |text: Option<OsString>| text.and_then(|text| text.to_str()?.parse::<u32>().ok());
    // The variables were meant for a parent process and were inherited.
    if number(pid) != Some(own) {
        return Ok(false);
    }
    match number(count) {
        None | Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(many) => Err(format!(
            "the service manager hands over {many} sockets ({}); vgpud takes one, the administrative socket: \
             tenants' sockets change with the configuration",
            names.map_or("without names".into(), |names| names.to_string_lossy().replace(':', ", "))
        )),
    }
}

fn take_socket() -> Result<ActivatedSocket, String> {
    let failed = |why: rustix::io::Errno| std::io::Error::from(why).to_string();
    // Works on a copy that this process owns: nothing shows whether a bare descriptor number is owned elsewhere.
    let listener = shim_sys::descriptors::copy_of(FIRST_HANDED_DESCRIPTOR).map_err(|why| why.to_string())?;
    let listens = sockopt::socket_acceptconn(&listener).map_err(failed)?
        && sockopt::socket_domain(&listener).map_err(failed)? == AddressFamily::UNIX
        && sockopt::socket_type(&listener).map_err(failed)? == SocketType::STREAM;
    if !listens {
        return Err("it is not a Unix stream socket that listens; accepted: ListenStream=/run/vgpu/admin.sock".into());
    }
    let flags = rustix::fs::fcntl_getfl(&listener).map_err(failed)?;
    rustix::fs::fcntl_setfl(&listener, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)?;
    let address = rustix::net::getsockname(&listener).map_err(failed)?;
    let address = SocketAddrUnix::try_from(address).map_err(failed)?;
    let path = address.path().ok_or("it has no path; accepted: ListenStream=/run/vgpu/admin.sock")?;
    let path = PathBuf::from(path.to_string_lossy().into_owned());
    Ok(ActivatedSocket { listener, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_socket_for_this_very_process_is_taken() {
        let said = |pid: &str, count: &str, names: &str| {
            is_announced(Some(pid.into()), Some(count.into()), Some(names.into()), 7)
        };
        assert_eq!(said("7", "1", "admin"), Ok(true));
        assert_eq!(said("7", "1", ""), Ok(true), "whatever it is called");
        assert_eq!(said("8", "1", "admin"), Ok(false), "another process's");
        assert_eq!(said("7", "0", ""), Ok(false));
        assert_eq!(said("x", "1", ""), Ok(false));
        assert_eq!(is_announced(None, None, None, 7), Ok(false));
        let words = said("7", "2", "admin:a").unwrap_err();
        assert!(words.contains("2 sockets (admin, a)") && words.contains("takes one"), "{words}");
    }
}
