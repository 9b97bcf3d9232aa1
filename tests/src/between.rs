//! A proxy between members and the daemon. It forwards both directions, descriptors included, and can hold the daemon's
//! answers back.
//!
//! The kernel reports this process as the peer of every connection. So the proxy serves tests of member behaviour, not
//! tests of how the daemon identifies a member.

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use shim_sys::descriptors;

/// Lines forwarded per connection when there is no bound.
const NEVER_SILENT: usize = usize::MAX;

/// The running proxy. Dropping it removes its socket.
pub struct Between {
    socket: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    passes: AtomicUsize,
    connections: AtomicUsize,
}

impl Between {
    /// Listens on `at/vgpud.sock` in the new directory `at` and forwards each connection to the daemon's socket. A
    /// daemon that starts later on the same path works too.
    pub fn start(at: &Path, daemon: &Path) -> Between {
        fs::create_dir_all(at).expect("own directory");
        let socket = at.join("vgpud.sock");
        let listener = UnixListener::bind(&socket).expect("own directory");
        let shared = Arc::new(Shared { passes: AtomicUsize::new(NEVER_SILENT), connections: AtomicUsize::new(0) });
        let (daemon, theirs) = (daemon.to_owned(), shared.clone());
        thread::spawn(move || {
            for member in listener.incoming().map_while(Result::ok) {
                let Ok(daemon) = UnixStream::connect(&daemon) else { continue };
                theirs.connections.fetch_add(1, SeqCst);
                pass(&member, &daemon, None);
                pass(&daemon, &member, Some(theirs.clone()));
            }
        });
        Between { socket, shared }
    }

    /// Path of the proxy's socket, for `VGPU_SOCKET`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Forwards only the first `lines` lines of the daemon on each connection, and drops the rest.
    pub fn passes(&self, lines: usize) {
        self.shared.passes.store(lines, SeqCst);
    }

    /// Removes the bound again. Lines dropped before stay lost, so this helps only new connections.
    pub fn passes_all(&self) {
        self.passes(NEVER_SILENT);
    }

    /// Connections that reached the daemon so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(SeqCst)
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Forwards one direction until either side closes.
fn pass(from: &UnixStream, to: &UnixStream, bound: Option<Arc<Shared>>) {
    let (from, to) = (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
    thread::spawn(move || {
        let mut passed = 0;
        loop {
            let (mut bytes, mut files) = ([0; 4096], Vec::new());
            let Ok(count @ 1..) = descriptors::receive_descriptors(from.as_fd(), &mut bytes, &mut files) else { break };
            // The line is dropped and the connection stays open: the other side waits for an answer.
            if bound.as_ref().is_some_and(|shared| passed >= shared.passes.load(SeqCst)) {
                continue;
            }
            passed += bytes[..count].iter().filter(|byte| **byte == b'\n').count();
            let files: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
            let sent = descriptors::send(to.as_fd(), &bytes[..count], &files);
            if !sent.is_ok_and(|sent| (&to).write_all(&bytes[sent..count]).is_ok()) {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}
