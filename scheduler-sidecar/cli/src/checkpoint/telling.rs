//! Tells the daemon which processes are off their devices and which run there. Without a daemon nothing happens.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use vgpu_config::paths;
use vgpu_control::finding::ProcessId;
use vgpu_control::{ControlCommand, ask_daemon};
use vgpu_output::say;

use super::steps::{CheckpointDriver, ProcessState};
use crate::ask::explain_failure;

/// Number of the start time among the fields of /proc/PID/stat after the process's name.
const START_TIME_FIELD: usize = 19;

/// Time for which a daemon that does not answer is told again: a service manager restarts one within a second or two,
/// and its members come back within two.
const TELL_PATIENCE: Duration = Duration::from_secs(5);

/// Pause before a daemon that did not answer is asked again.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// The daemon that is told.
#[derive(Debug, clap::Args)]
pub(super) struct ToldDaemon {
    /// The daemon's administrative socket [default: $VGPU_ADMIN_SOCKET, or admin.sock in $VGPU_RUNTIME_DIR, /run/vgpu
    /// or $XDG_RUNTIME_DIR/vgpu].
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl ToldDaemon {
    /// The options by which another run of this program tells the same daemon.
    pub(super) fn to_options(&self) -> Vec<OsString> {
        let socket = self.socket.iter().map(|socket| ["--socket".into(), socket.into()]);
        socket.flatten().collect()
    }

    /// Tells the daemon the driver's state of each process. A daemon that does not answer may be restarting, so it is
    /// told again for [`TELL_PATIENCE`]. A failure is a note: the processes are changed.
    pub(super) fn tell_states(&self, pids: &[u32], driver: &mut impl CheckpointDriver) {
        let socket = self.socket.clone().unwrap_or_else(paths::usual_admin_socket);
        let is_named = self.socket.is_some() || paths::named_admin_socket().is_some();
        let (end, mut was_away) = (Instant::now() + TELL_PATIENCE, false);
        loop {
            // A process may have changed since the last attempt.
            let (suspended, running) = read_states(pids, driver);
            let count = suspended.len() + running.len();
            if count == 0 {
                return;
            }
            let is_over = Instant::now() >= end;
            match ask_daemon(&socket, &ControlCommand::Suspensions { suspended, running, resuming: Vec::new() }) {
                // To a daemon that has just started, a process is no member before it has come back.
                Ok(answer) => {
                    if !was_away || is_over || answer.suspensions.is_some_and(|known| known.len() == count) {
                        return;
                    }
                }
                Err(why) if is_over || !may_be_restarting(&socket, is_named, &why) => {
                    failure_note(&socket, is_named, &why).iter().for_each(|words| say::print_note(words));
                    return;
                }
                Err(_) => was_away = true,
            }
            thread::sleep(TELL_INTERVAL);
        }
    }

    /// Tells the daemon that these processes are about to be resumed, so that it does not take it for another program's
    /// work when the driver lists the first one. Only the event depends on it, so a failure is no word.
    pub(super) fn announce_resume(&self, pids: &[u32]) {
        let socket = self.socket.clone().unwrap_or_else(paths::usual_admin_socket);
        let resuming = pids.iter().filter_map(|pid| read_process(*pid)).collect();
        let told = ControlCommand::Suspensions { suspended: Vec::new(), running: Vec::new(), resuming };
        let _ = ask_daemon(&socket, &told);
    }
}

/// The suspended ones among these processes, and those that run.
fn read_states(pids: &[u32], driver: &mut impl CheckpointDriver) -> (Vec<ProcessId>, Vec<ProcessId>) {
    let (mut suspended, mut running) = (Vec::new(), Vec::new());
    for pid in pids {
        let list = match driver.state(*pid) {
            Ok(ProcessState::Checkpointed) => &mut suspended,
            Ok(ProcessState::Running) => &mut running,
            // A locked process is between both, and a failed one has no work.
            _ => continue,
        };
        list.extend(read_process(*pid));
    }
    (suspended, running)
}

/// True if a daemon may answer soon. One that stops removes its socket, but not the socket's directory.
fn may_be_restarting(socket: &Path, is_named: bool, why: &io::Error) -> bool {
    match why.kind() {
        // An error of the second kind carries the daemon's own refusal.
        ErrorKind::PermissionDenied | ErrorKind::Other => false,
        ErrorKind::NotFound => is_named || socket.parent().is_some_and(Path::is_dir),
        _ => true,
    }
}

/// The note about a daemon that was not told; `None`: no socket was named, and none is at the usual place.
fn failure_note(socket: &Path, is_named: bool, why: &io::Error) -> Option<String> {
    let is_absent = !is_named && why.kind() == ErrorKind::NotFound;
    let words = || format!("the daemon does not know which processes are suspended: {}", explain_failure(socket, why));
    (!is_absent).then(words)
}

fn read_process(pid: u32) -> Option<ProcessId> {
    let began = start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(ProcessId { pid, began })
}

/// The start time in a line of /proc/PID/stat. The name in it may contain anything, and ends with the last bracket.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(START_TIME_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_identified_by_its_start_whatever_its_name_is() {
        let stat =
            "71 (a) 1 (b c) S 1 71 71 0 -1 4194560 90 0 0 0 0 0 0 0 20 0 1 0 4321 2973696 200 18446744073709551615";
        assert_eq!(start_time(stat), Some(4321));
        assert_eq!((start_time("71 (a"), start_time("71 (a) S 1 2")), (None, None));
        assert!(read_process(std::process::id()).is_some_and(|process| process.began > 0));
    }

    #[test]
    fn a_daemon_that_is_not_told_is_a_note_unless_there_is_no_socket_and_none_was_named() {
        let note = |kind, is_named| failure_note(Path::new("/run/vgpu/admin.sock"), is_named, &io::Error::from(kind));
        assert_eq!(note(ErrorKind::NotFound, false), None);
        assert!(note(ErrorKind::NotFound, true).is_some_and(|words| words.contains("no daemon answers at")));
        assert!(note(ErrorKind::ConnectionRefused, false).is_some_and(|words| words.contains("no daemon answers at")));
        assert!(note(ErrorKind::PermissionDenied, false).is_some_and(|words| words.contains("try it with sudo")));
        let refused = failure_note(Path::new("/s"), false, &io::Error::other("only root may ask"));
        assert!(refused.is_some_and(|words| words.ends_with(": only root may ask")));
    }

    #[test]
    fn a_daemon_may_come_back_if_it_left_its_directory_or_was_named_and_one_that_refuses_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (here, nowhere) = (dir.path().join("admin.sock"), dir.path().join("none/admin.sock"));
        let comes = |socket: &Path, is_named, kind| may_be_restarting(socket, is_named, &io::Error::from(kind));
        assert!(comes(&here, false, ErrorKind::NotFound) && comes(&nowhere, true, ErrorKind::NotFound));
        assert!(!comes(&nowhere, false, ErrorKind::NotFound));
        assert!(comes(&here, false, ErrorKind::ConnectionRefused) && comes(&here, false, ErrorKind::UnexpectedEof));
        assert!(!comes(&here, true, ErrorKind::PermissionDenied) && !comes(&here, true, ErrorKind::Other));
    }
}
