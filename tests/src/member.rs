//! A process on the device that obeys commands, line by line (`programs/member.c`). Every answer has a time limit, so a
//! hang fails the test instead of blocking it.

use crate::LONG_TIMEOUT;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

/// A running program that exchanges lines with the test. Dropping it kills the program.
pub struct Member {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: File,
    /// Process id of the program.
    pub pid: u32,
}

/// An answer of the program: the driver's code and the words after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The driver's result code.
    pub code: i64,
    /// Words of the answer after the code.
    pub words: Vec<String>,
}

impl Answer {
    /// Returns the word at `index` as a number.
    #[track_caller]
    pub fn number(&self, index: usize) -> u64 {
        self.words
            .get(index)
            .and_then(|word| word.parse().ok())
            .unwrap_or_else(|| panic!("no number at {index} of {self:?}"))
    }

    /// Returns all words as numbers.
    pub fn numbers(&self) -> Vec<u64> {
        (0..self.words.len()).map(|i| self.number(i)).collect()
    }
}

impl Member {
    /// Starts `command` and reads its first line, `0 <pid>`.
    #[track_caller]
    pub fn start(command: &mut Command) -> Member {
        let mut member = Member::start_silent(command);
        let hello = member.answer();
        member.pid = u32::try_from(hello.number(0)).expect("a pid");
        member
    }

    /// Starts `command` without waiting for a line.
    #[track_caller]
    pub fn start_silent(command: &mut Command) -> Member {
        let stderr = tempfile::tempfile().expect("a temporary file");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().expect("a descriptor"))
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let stdout = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Member { pid: child.id(), stdin: child.stdin.take(), child, lines, stderr }
    }

    /// True if the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Sends a line without waiting for an answer.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("its input is open");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("{line:?}: {e}; stderr: {}", self.errors()));
    }

    /// Returns the next line that the program prints.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(LONG_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("process {} hangs; stderr: {}", self.pid, self.errors()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait();
                panic!("process {} is gone ({status:?}); stderr: {}", self.pid, self.errors())
            }
        }
    }

    /// Returns the next line, parsed as an answer.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let line = self.line();
        let mut words = line.split_whitespace().map(str::to_owned);
        let code = words.next().and_then(|word| word.parse().ok());
        let code = code.unwrap_or_else(|| panic!("{line:?}; stderr: {}", self.errors()));
        Answer { code, words: words.collect() }
    }

    /// Sends a command and returns the answer.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> Answer {
        self.tell(command);
        self.answer()
    }

    /// As [`Member::ask`], for a call that must succeed.
    #[track_caller]
    pub fn ok(&mut self, command: &str) -> Answer {
        let answer = self.ask(command);
        assert_eq!(answer.code, 0, "{command}: {answer:?}; stderr: {}", self.errors());
        answer
    }

    /// As [`Member::ask`]; returns only the driver's code.
    #[track_caller]
    pub fn code(&mut self, command: &str) -> i64 {
        self.ask(command).code
    }

    /// Calls `cuInit` and makes the primary context of device 0 current.
    #[track_caller]
    pub fn begin(&mut self) -> &mut Self {
        self.ok("init");
        self.ok("retain 0");
        self
    }

    /// Allocates and returns the address.
    #[track_caller]
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        self.ok(&format!("alloc {bytes}")).number(0)
    }

    /// Free and total bytes by `cuMemGetInfo`.
    #[track_caller]
    pub fn info(&mut self) -> (u64, u64) {
        let answer = self.ok("info");
        (answer.number(0), answer.number(1))
    }

    /// Bytes in use as `cuMemGetInfo` shows them: total minus free.
    #[track_caller]
    pub fn used(&mut self) -> u64 {
        let (free, total) = self.info();
        total - free
    }

    /// Text that the program wrote to stderr so far.
    pub fn errors(&self) -> String {
        // Reads at explicit positions, because the child shares the file offset.
        let mut text = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = self.stderr.read_at(&mut buffer, text.len() as u64) {
            text.extend_from_slice(&buffer[..n]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Sends a signal. To stop the process use [`crate::Lab::stop`].
    #[track_caller]
    pub fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.pid).expect("a pid");
        // SAFETY: the pid belongs to a child of this process that was not waited for; otherwise the kernel reports an
        // error.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "process {pid} is gone");
    }

    /// Waits until all threads of the process are stopped, or the process is dead.
    pub(crate) fn stands(&self) {
        // SAFETY: all zeroes is a valid value of this structure, which the kernel fills; the child stays to be waited
        // for.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, self.pid, &raw mut info, libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT);
        }
    }

    /// Kills the process with SIGKILL, at any instruction.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes the program's input and waits for its exit.
    #[track_caller]
    pub fn finish(&mut self) -> ExitStatus {
        self.stdin = None;
        let begin = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begin.elapsed() < LONG_TIMEOUT, "process {} does not end; stderr: {}", self.pid, self.errors());
            thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}
