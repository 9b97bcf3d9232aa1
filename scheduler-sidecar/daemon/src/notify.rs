//! Tells the service manager that the daemon is ready, reloading or stopping (protocol of sd_notify).
//!
//! Each message is one datagram to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent. The
//! daemon waits for no answer, and ignores errors.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::time::{ClockId, clock_gettime};

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct ServiceNotifier {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl ServiceNotifier {
    /// Sends to the socket that the environment names.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::to_address(std::env::var_os("NOTIFY_SOCKET").as_deref())
    }

    /// Sends to a path, or to an abstract name that begins with `@`.
    fn to_address(name: Option<&OsStr>) -> Self {
        let address = |name: &OsStr| match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
            [b'/', ..] => SocketAddr::from_pathname(name).ok(),
            _ => None,
        };
        let to = name.and_then(address).and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        // A manager whose queue is full must not block the daemon.
        if let Some((socket, _)) = &to {
            let _ = socket.set_nonblocking(true);
        }
        Self { to }
    }

    /// Tells the service manager that every tenant is served.
    pub fn notify_ready(&self, status: &str) {
        self.send_state(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// The configuration is being read again; [`ServiceNotifier::notify_ready`] follows.
    pub fn notify_reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send_state(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// Tells the service manager that the daemon ends.
    pub fn notify_stopping(&self) {
        self.send_state("STOPPING=1");
    }

    fn send_state(&self, words: &str) {
        if let Some((socket, address)) = &self.to {
            let _ = socket.send_to_addr(words.as_bytes(), address);
        }
    }
}

/// Replaces line ends, which would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_told_and_anything_else_is_nobody() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let name = format!("vgpud-test-{}", std::process::id());
        let listeners = [
            (path.as_os_str().to_owned(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap(),
            ),
        ];
        for (name, listener) in listeners {
            let notifier = ServiceNotifier::to_address(Some(&name));
            notifier.notify_ready("3 tenants\nMAINPID=1");
            notifier.notify_reloading();
            notifier.notify_stopping();
            let mut buffer = [0; 256];
            let mut next = || {
                let length = listener.recv(&mut buffer).unwrap();
                String::from_utf8_lossy(&buffer[..length]).into_owned()
            };
            assert_eq!(next(), "READY=1\nSTATUS=3 tenants MAINPID=1");
            assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
            assert_eq!(next(), "STOPPING=1");
        }
        for nobody in [None, Some(OsStr::new("")), Some(OsStr::new("relative")), Some(OsStr::new("/does/not/exist"))] {
            ServiceNotifier::to_address(nobody).notify_ready("");
        }
    }
}
