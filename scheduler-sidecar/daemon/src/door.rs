//! A listening Unix socket and its path.
//!
//! The path is never missing: the socket is bound and listens under a temporary name, and is then renamed over the
//! socket of a dead daemon. A path where a process still listens, or where something other than a socket lies, is
//! refused. The path is removed when the `ListeningSocket` is dropped, if it still names this socket.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Most callers that wait to be accepted.
const LISTEN_BACKLOG: i32 = 1024;

/// Users that may open the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketAudience {
    /// Every user that reaches it: members may be any user of their container.
    Members,
    /// The daemon's own user, and root.
    Administrators,
}

/// A listening socket with its path.
#[derive(Debug)]
pub struct ListeningSocket {
    listener: OwnedFd,
    name: OsString,
    path: PathBuf,
    /// Device and inode of the socket file, so that no other file is removed; `None`: the file is not this daemon's.
    identity: Option<(u64, u64)>,
}

/// Why a listener cannot be opened.
#[derive(Debug)]
pub enum ListenError {
    /// A daemon already accepts connections at this path.
    Alive(PathBuf),
    /// The path is something other than a socket, and is left alone.
    NotASocket(PathBuf),
    /// A system call failed.
    Io(PathBuf, &'static str, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive(path) => write!(
                f,
                "{} is the socket of a daemon that is running; stop it first, or name another path",
                path.display()
            ),
            Self::NotASocket(path) => {
                write!(f, "{} exists and is not a socket; it is left as it is, name another path", path.display())
            }
            Self::Io(path, what, why) => write!(f, "{}: cannot {what}: {why}", path.display()),
        }
    }
}

impl std::error::Error for ListenError {}

impl ListeningSocket {
    /// Binds the path and listens there. Creates missing directories with mode 0755. `patience` is how long it may
    /// wait for another daemon's lock on that directory; the time it waited is subtracted.
    ///
    /// # Errors
    /// [`ListenError`]; then at most new directories remain.
    pub fn open(path: &Path, audience: SocketAudience, patience: &mut Duration) -> Result<Self, ListenError> {
        let failed = |what: &'static str| move |why: Errno| ListenError::Io(path.to_owned(), what, why.into());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed("use it")(Errno::INVAL));
        };
        make_dirs(parent).map_err(|why| ListenError::Io(path.to_owned(), "make its directory", why))?;
        let dir = open_directory(parent).map_err(failed("open its directory"))?;
        let _turn = lock_directory(&dir, patience);
        refuse_if_taken(&dir, name, path)?;

        let listener = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed("make a socket"))?;
        let temporary = OsString::from(format!(".vgpud-{}-{}", std::process::id(), listener.as_raw_fd()));
        let identity = bind(&listener, &dir, &temporary, audience).map_err(failed("make the socket there"))?;
        let mut door = Self { listener, name: temporary, path: path.to_owned(), identity: Some(identity) };
        rustix::net::listen(&door.listener, LISTEN_BACKLOG).map_err(failed("listen"))?;
        rustix::fs::renameat(&dir, &door.name, &dir, name).map_err(failed("put the socket there"))?;
        name.clone_into(&mut door.name);
        Ok(door)
    }

    /// Takes over a socket that the service manager opened. Its path is not removed on drop.
    ///
    /// # Errors
    /// [`ListenError`]: its directory is gone.
    pub fn adopt_listener(listener: OwnedFd, path: &Path) -> Result<Self, ListenError> {
        let failed = |why: Errno| ListenError::Io(path.to_owned(), "open its directory", why.into());
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(failed(Errno::INVAL)) };
        open_directory(parent).map_err(failed)?;
        Ok(Self { listener, name: name.to_owned(), path: path.to_owned(), identity: None })
    }

    /// Checks, without changing anything, whether a listener could be opened here. A running daemon there is no
    /// error.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn check(path: &Path) -> Result<(), ListenError> {
        let failed = |why: Errno| ListenError::Io(path.to_owned(), "use its directory", why.into());
        let parent = path.parent().ok_or_else(|| failed(Errno::INVAL))?;
        if let Err(why) = open_directory(parent)
            && why != Errno::NOENT
        {
            return Err(failed(why));
        }
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => Err(ListenError::NotASocket(path.to_owned())),
            // A missing path is fine too: opening creates it.
            _ => Ok(()),
        }
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket_path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next caller, non-blocking; `None`: none waits.
    ///
    /// # Errors
    /// Any error of `accept4`, except that it would block or that the caller hung up.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        loop {
            match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => return Ok(Some(stream)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        // The directory is opened again here: one descriptor for each tenant's directory would be a tenth of all that
        // the daemon has. Another file at the path is not removed.
        let Some(dir) = self.path.parent().and_then(|parent| open_directory(parent).ok()) else { return };
        let ours = |own| entry_identity(&dir, &self.name).is_ok_and(|identity| identity == own);
        if self.identity.is_some_and(ours) {
            // An error cannot be reported from here.
            let _ = rustix::fs::unlinkat(&dir, &self.name, AtFlags::empty());
        }
    }
}

/// Opens a directory.
fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Refuses a directory of another user inside a directory where every user can create one (`/tmp`). That user could
/// replace the daemon's sockets and read what members send.
///
/// # Errors
/// The reason as a message.
pub fn refuse_foreign(dir: &Path) -> Result<(), String> {
    let Some(parent) = dir.parent() else { return Ok(()) };
    let everybodys = fs::metadata(parent).is_ok_and(|meta| meta.permissions().mode() & 0o002 != 0);
    let Ok(there) = fs::symlink_metadata(dir) else { return Ok(()) };
    let own = rustix::process::geteuid().as_raw();
    if !everybodys || there.uid() == own || there.uid() == 0 {
        return Ok(());
    }
    let (dir, owner) = (dir.display(), there.uid());
    Err(format!(
        "{dir} belongs to user {owner}, who could replace the daemon's sockets; name a directory of your \
         own with --runtime-dir"
    ))
}

/// Creates the directory and its parents with mode 0755, whatever the umask is. Existing ones are left as they are.
fn make_dirs(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dirs(parent)?;
    }
    match DirBuilder::new().mode(0o755).create(dir) {
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755)),
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(why) => Err(why),
    }
}

/// Locks the directory, so that one of two daemons that start at the same time sees the other.
///
/// A container that can open the directory can hold this lock too. So the daemon continues without it after
/// `patience`: no safety depends on the lock. It is released when the result is dropped.
fn lock_directory(dir: &OwnedFd, patience: &mut Duration) -> Option<OwnedFd> {
    const LOCK_POLL: Duration = Duration::from_millis(10);
    let own = rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    loop {
        if rustix::fs::flock(&own, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(own);
        }
        *patience = patience.checked_sub(LOCK_POLL)?;
        std::thread::sleep(LOCK_POLL);
    }
}

/// Refuses a path where a daemon listens, or where something other than a socket lies.
fn refuse_if_taken(dir: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), ListenError> {
    let failed = |why: Errno| ListenError::Io(path.to_owned(), "look at it", why.into());
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        Err(why) => return Err(failed(why)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let caller = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(failed)?;
    let address = SocketAddrUnix::new(path_within(dir, name)).map_err(failed)?;
    match rustix::net::connect(&caller, &address) {
        // A full backlog also means that a daemon listens.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::Alive(path.to_owned())),
        // Nobody listens: the socket file was left by a killed daemon, so it may be removed.
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(why) => Err(failed(why)),
    }
}

/// Creates the socket file with its final mode from the start, and returns its identity.
fn bind(listener: &OwnedFd, dir: &OwnedFd, name: &OsStr, audience: SocketAudience) -> Result<(u64, u64), Errno> {
    let address = SocketAddrUnix::new(path_within(dir, name))?;
    let mask = match audience {
        SocketAudience::Members => 0o111,
        SocketAudience::Administrators => 0o177,
    };
    let before = rustix::process::umask(Mode::from_raw_mode(mask));
    let bound = rustix::net::bind(listener, &address);
    rustix::process::umask(before);
    bound?;
    entry_identity(dir, name)
}

/// Device and inode of a directory entry.
fn entry_identity(dir: &OwnedFd, name: &OsStr) -> Result<(u64, u64), Errno> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| (stat.st_dev, stat.st_ino))
}

/// A short path to an entry of an open directory. It stays valid if the directory is renamed.
fn path_within(dir: &OwnedFd, name: &OsStr) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}
