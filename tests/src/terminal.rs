//! A program on a terminal: the test sends keys and reads the screen that the program draws.
//!
//! The terminal is a pseudo-terminal of the kernel; `vt100` interprets the program's output.

use crate::LONG_TIMEOUT;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Terminal settings: flags for input, output, control and local modes, and the control characters.
pub type Settings = ([libc::tcflag_t; 4], Vec<libc::cc_t>);

/// A terminal that runs a program. Dropping it kills the program.
pub struct Terminal {
    child: Child,
    /// The controlling side: keys are written here, output is read here.
    ours: File,
    /// The program's side of the terminal. It stays open so that the terminal survives the program's end.
    its: OwnedFd,
    before: Settings,
    screen: Arc<Mutex<vt100::Parser>>,
}

fn check(code: libc::c_int, what: &str) {
    assert_eq!(code, 0, "{what}: {}", std::io::Error::last_os_error());
}

fn size_of(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn at_least_one(count: u16) -> NonZero<u16> {
    NonZero::new(count).unwrap_or(NonZero::<u16>::MIN)
}

fn settings(terminal: BorrowedFd<'_>) -> Settings {
    let mut now = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the descriptor is open, and `now` has room for the structure.
    check(unsafe { libc::tcgetattr(terminal.as_raw_fd(), now.as_mut_ptr()) }, "tcgetattr");
    // SAFETY: `tcgetattr` succeeded, so the structure is initialised.
    let now = unsafe { now.assume_init() };
    ([now.c_iflag, now.c_oflag, now.c_cflag, now.c_lflag], now.c_cc.to_vec())
}

impl Terminal {
    /// Starts a command on a terminal of `rows` by `columns`, as its controlling terminal.
    pub fn start(command: &Command, rows: u16, columns: u16) -> Terminal {
        let (mut ours, mut its) = (-1, -1);
        let size = size_of(rows, columns);
        // SAFETY: both descriptors are local variables; the null pointers ask for no name and no settings.
        let opened = unsafe { libc::openpty(&mut ours, &mut its, std::ptr::null_mut(), std::ptr::null(), &size) };
        check(opened, "openpty");
        // SAFETY: `openpty` just opened both, and nothing else owns them.
        let (ours, its) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) };
        for end in [ours.as_fd(), its.as_fd()] {
            // SAFETY: the descriptor is open.
            let marked = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
            check(marked, "fcntl");
        }
        let before = settings(its.as_fd());
        let end = || its.try_clone().expect("a descriptor");
        // A session of its own, so that the program cannot ask the terminal that runs the tests for its size.
        let mut started = Command::new("setsid");
        started.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => started.env(name, value),
                None => started.env_remove(name),
            };
        }
        started.stdin(end()).stdout(end()).stderr(end());
        let child = started.spawn().expect("setsid is there (util-linux)");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(at_least_one(rows), at_least_one(columns), 0)));
        let (mut read, drawn) = (ours.try_clone().expect("a descriptor"), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match read.read(&mut bytes) {
                    // The last descriptor of the program's side is closed.
                    Ok(0) | Err(_) => return,
                    Ok(count) => drawn.lock().unwrap_or_else(|e| e.into_inner()).process(&bytes[..count]),
                }
            }
        });
        Terminal { child, ours, its, before, screen }
    }

    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.screen.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Text on the screen now.
    pub fn screen(&self) -> String {
        self.parser().screen().contents()
    }

    /// True if the program switched to the alternate screen.
    pub fn is_alternate(&self) -> bool {
        self.parser().screen().alternate_screen()
    }

    /// True if the cursor is hidden.
    pub fn hides_cursor(&self) -> bool {
        self.parser().screen().hide_cursor()
    }

    /// True if any cell on the screen has a colour.
    pub fn is_coloured(&self) -> bool {
        let parser = self.parser();
        let (rows, columns) = parser.screen().size();
        let cells = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| parser.screen().cell(row, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bgcolor() != vt100::Color::Default)
    }

    /// True if the terminal's settings equal those before the program started.
    pub fn is_as_before(&self) -> bool {
        settings(self.its.as_fd()) == self.before
    }

    /// Sends keys to the program.
    pub fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("the terminal is there");
    }

    /// Resizes the terminal's window.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.parser().screen_mut().set_size(at_least_one(rows), at_least_one(columns));
        let size = size_of(rows, columns);
        // SAFETY: the terminal is open, and the kernel only reads `size`.
        check(unsafe { libc::ioctl(self.ours.as_raw_fd(), libc::TIOCSWINSZ, &size) }, "TIOCSWINSZ");
    }

    /// Waits until `is` accepts the screen, and returns the screen.
    #[track_caller]
    pub fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if is(&screen) {
                return screen;
            }
            let ended = self.child.try_wait().expect("a child");
            assert!(begin.elapsed() < LONG_TIMEOUT && ended.is_none(), "{what}: still not ({ended:?}):\n{screen}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid()).expect("a pid");
        // SAFETY: the process is a child of this test that was not waited for.
        check(unsafe { libc::kill(pid, signal) }, "kill");
    }

    /// Waits until the program has exited and all its output is on the screen.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(begin.elapsed() < LONG_TIMEOUT, "it does not end:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        };
        // Output is read in order, so this line appears after everything that the program wrote.
        let mut its = File::from(self.its.try_clone().expect("a descriptor"));
        its.write_all(b"\r\nEND").expect("the terminal is there");
        while !self.screen().lines().any(|line| line == "END") {
            assert!(begin.elapsed() < LONG_TIMEOUT, "not all is read:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
