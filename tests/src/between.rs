//! Somebody between members and the daemon, who passes on what both say, descriptors with it, and can keep answers back.
//!
//! The kernel tells the daemon this process as the peer of all connections: for tests of what members do, not of who they
//! are.

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

/// How many answers pass on each connection until it falls silent.
const ALL: usize = usize::MAX;

/// The one between; its socket is gone when it is dropped.
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
    /// Listens in a new directory `at` and passes on what comes to the daemon's socket, also to one that comes later.
    pub fn start(at: &Path, daemon: &Path) -> Between {
        fs::create_dir_all(at).expect("own directory");
        let socket = at.join("vgpud.sock");
        let listener = UnixListener::bind(&socket).expect("own directory");
        let shared = Arc::new(Shared { passes: AtomicUsize::new(ALL), connections: AtomicUsize::new(0) });
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

    /// What `VGPU_SOCKET` names.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// So many lines of the daemon pass on each connection, and no further one.
    pub fn passes(&self, lines: usize) {
        self.shared.passes.store(lines, SeqCst);
    }

    /// All lines pass, on connections that come from now on.
    pub fn passes_all(&self) {
        self.passes(ALL);
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

/// Passes on what one side says, until either is gone.
fn pass(from: &UnixStream, to: &UnixStream, bound: Option<Arc<Shared>>) {
    let (from, to) = (from.try_clone().expect("a descriptor"), to.try_clone().expect("a descriptor"));
    thread::spawn(move || {
        let mut passed = 0;
        loop {
            let (mut bytes, mut files) = ([0; 4096], Vec::new());
            let Ok(count @ 1..) = descriptors::receive(from.as_fd(), &mut bytes, &mut files) else { break };
            // Silent, and not gone: the other side waits for an answer.
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
