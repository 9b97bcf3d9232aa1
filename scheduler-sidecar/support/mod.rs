//! What the daemon's and the command line's tests share: a daemon in a temporary directory, peers, waiting.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod world;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use vgpu_tests::artefacts;
pub use vgpu_tests::eventually;

/// Longer than anything here takes; only a hang reaches it.
pub const LONG: Duration = Duration::from_secs(30);

/// The command line, in an environment that says nothing about vgpu.
pub fn vgpu() -> Command {
    clean(Command::new(program(option_env!("CARGO_BIN_EXE_vgpu"), artefacts::vgpu)))
}

/// The daemon, in an environment that says nothing about vgpu.
pub fn vgpud() -> Command {
    clean(Command::new(program(option_env!("CARGO_BIN_EXE_vgpud"), artefacts::vgpud)))
}

/// The program that cargo built for this test, if it is of the same crate; else one that is built.
fn program(own: Option<&str>, built: fn() -> PathBuf) -> PathBuf {
    own.map_or_else(built, PathBuf::from)
}

/// A command in an environment that says nothing about vgpu.
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

/// Both outputs as text.
pub fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A process that does not outlive its test.
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
    /// Starts a daemon with one tenant `a` of 1 GiB and 30 %, and waits until it lets somebody in.
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

    /// Ends it with SIGTERM and returns its exit code and its log, if that was kept.
    pub fn stop(mut self) -> (Option<i32>, String) {
        self.signal(rustix::process::Signal::TERM);
        let mut log = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut log).unwrap();
        }
        (self.child.wait().unwrap().code(), log)
    }

    /// Ends it as a crash does.
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

/// Somebody who talks to the daemon.
pub struct Peer {
    pub reader: BufReader<UnixStream>,
}

impl Peer {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// A hello, if somebody listens and answers.
    pub fn try_hello(socket: &Path) -> Option<String> {
        let reader = BufReader::new(UnixStream::connect(socket).ok()?);
        reader.get_ref().set_read_timeout(Some(LONG)).ok()?;
        Some(Self { reader }.hello()).filter(|line| !line.is_empty())
    }

    /// Sends bytes; the daemon may have closed already, which reading will tell.
    pub fn send(&mut self, bytes: &[u8]) -> &mut Self {
        let _ = self.reader.get_mut().write_all(bytes);
        self
    }

    /// The next line, empty at the end.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(_) => line,
            // Closed with something of ours unread.
            Err(why) if why.kind() == std::io::ErrorKind::ConnectionReset => String::new(),
            Err(why) => panic!("{why}"),
        }
    }

    pub fn hello(&mut self) -> String {
        self.send(format!("{{\"hello\":1,\"pid\":{},\"version\":\"0.1.0\"}}\n", std::process::id()).as_bytes()).line()
    }
}

/// Compiles a C program or library.
pub fn compile(source: &str, to: &Path, flags: &[&str]) {
    let mut compiler =
        Command::new("cc").args(["-x", "c", "-", "-o"]).arg(to).args(flags).stdin(Stdio::piped()).spawn().unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "cc {flags:?}");
}

/// A directory with a library that is called like ours and does nothing.
pub fn with_library() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::TempDir::new().unwrap();
    let library = dir.path().join("libvgpu.so");
    compile("const char *vgpu_mark = \"VGPU_MEMORY_LIMIT\";", &library, &["-shared", "-fPIC", "-nostdlib"]);
    (dir, library)
}

/// Makes an executable file, by another process: a file that is open for writing in a thread's forked child cannot run.
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

/// Copies a file that will be executed, for the same reason by another process.
pub fn copy(from: impl AsRef<Path>, to: &Path) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to).status().unwrap().success());
}
