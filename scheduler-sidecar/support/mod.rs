//! Helpers shared by the tests of the daemon and of the command line: a daemon in a temporary directory, peers,
//! waiting.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod world;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use vgpu_core::protocol::wire::{Hello, Reply, Terms};
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;
use vgpu_tests::artefacts;
pub use vgpu_tests::eventually;

/// Timeout for hangs; longer than anything takes here.
pub const LONG_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the command line in an environment without vgpu's variables.
pub fn vgpu() -> Command {
    clean(Command::new(program(option_env!("CARGO_BIN_EXE_vgpu"), artefacts::vgpu)))
}

/// Runs the daemon in an environment without vgpu's variables.
pub fn vgpud() -> Command {
    clean(Command::new(program(option_env!("CARGO_BIN_EXE_vgpud"), artefacts::vgpud)))
}

/// Returns the program that cargo built for this test if it is of the same crate, else builds it.
fn program(own: Option<&str>, built: fn() -> PathBuf) -> PathBuf {
    own.map_or_else(built, PathBuf::from)
}

/// Removes vgpu's variables from a command's environment.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("VGPU_")
            || text.starts_with("CUDA_DEVICE_")
            || ["LD_PRELOAD", "LD_LIBRARY_PATH", "NO_COLOR"].contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Returns stdout and stderr as text.
pub fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A process that is killed when its test ends.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
}

impl Daemon {
    /// Starts a daemon with one tenant `a` of 1 GiB and 30 %, and waits until it accepts connections.
    pub fn start(socket: &Path, more: &[&str]) -> Self {
        let child = vgpud()
            .args(["--tenant", "a", "--memory-limit", "1GiB", "--sm-limit", "30", "--socket"])
            .arg(socket)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let daemon = Self { child, socket: socket.to_owned() };
        eventually("the daemon listens", || UnixStream::connect(socket).is_ok());
        daemon
    }

    pub fn connect(&self) -> Peer {
        Peer::connect(&self.socket)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Ends the daemon with SIGTERM; returns its exit code, and its log if it was captured.
    pub fn stop(mut self) -> (Option<i32>, String) {
        self.signal(rustix::process::Signal::TERM);
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (self.child.wait().unwrap().code(), log)
    }

    /// Kills the daemon, as a crash would end it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to a socket of the daemon, for tests.
pub struct Peer {
    pub reader: BufReader<UnixStream>,
}

impl Peer {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(LONG_TIMEOUT)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// Says hello; `None` if nobody listens or answers.
    pub fn try_hello(socket: &Path) -> Option<String> {
        let reader = BufReader::new(UnixStream::connect(socket).ok()?);
        reader.get_ref().set_read_timeout(Some(LONG_TIMEOUT)).ok()?;
        Some(Self { reader }.hello()).filter(|line| !line.is_empty())
    }

    /// Sends bytes. A daemon that has closed already shows at the next read.
    pub fn send(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = self.reader.get_mut().write_all(bytes);
        self
    }

    /// Reads the next line; empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(_) => line,
            // The daemon closed with our data unread.
            Err(why) if why.kind() == std::io::ErrorKind::ConnectionReset => String::new(),
            Err(why) => panic!("{why}"),
        }
    }

    /// Says hello and returns the answer. The kernel closes the descriptors that come with a welcome.
    pub fn hello(&mut self) -> String {
        let hello = Hello { pid: std::process::id(), version: "0.1.0".into(), clock: 0 };
        self.send(hello.encode().unwrap().as_bytes()).line()
    }

    /// Says hello and returns the terms of the welcome, or the answer if it is none.
    pub fn terms(&mut self) -> Result<Terms, String> {
        welcome_terms(self.hello())
    }

    /// True if the daemon answers this member, which has said hello: it asks for a device.
    pub fn is_served(&mut self) -> bool {
        let line = self.send(b"{\"join\":\"GPU-1\"}\n").line();
        line.contains("slot") || line.contains("not one of the devices")
    }
}

/// Returns the terms of a welcome, or the line if it is none.
pub fn welcome_terms(line: String) -> Result<Terms, String> {
    match Reply::decode(line.as_bytes()) {
        Ok(Reply::Welcome(welcome)) => Ok(welcome.terms),
        _ => Err(line),
    }
}

/// Returns terms with a memory limit in bytes and a ceiling in tenths of a percent.
pub fn terms(tenant: &str, memory: Option<u64>, permille: Option<u32>) -> Terms {
    let sm_limit = permille.map(|permille| Share::from_permille(permille).unwrap());
    Terms { tenant: tenant.into(), memory_limit: memory.map(Bytes), sm_limit }
}

/// Compiles a C program or library.
pub fn compile(source: &str, to: &Path, flags: &[&str]) {
    let mut compiler =
        Command::new("cc").args(["-x", "c", "-", "-o"]).arg(to).args(flags).stdin(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "cc {flags:?}");
}

/// Creates a directory with an empty library that has our library's name.
pub fn with_library() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::TempDir::new().unwrap();
    let library = dir.path().join("libvgpu.so");
    compile("const char *vgpu_mark = \"VGPU_MEMORY_LIMIT\";", &library, &["-shared", "-fPIC", "-nostdlib"]);
    (dir, library)
}

/// Creates an executable file in another process. A file that a forked child of another thread holds open for writing
/// cannot be executed.
pub fn script(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

/// Copies a file that will be executed, in another process for the same reason.
pub fn copy(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().unwrap().success());
}
