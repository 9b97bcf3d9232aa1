//! Tells the daemon which processes are off their devices and which run there. Without a daemon nothing happens.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use vgpu_accounting::clock;
use vgpu_config::paths;
use vgpu_control::finding::ProcessId;
use vgpu_control::tenant::{DaemonRefusal, RefusalKind};
use vgpu_control::{ControlCommand, SuspensionReport, ask_daemon};
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

    /// Tells the daemon the driver's state of each process. If it does not take them over, that is a note: the
    /// processes are changed.
    pub(super) fn tell_states(&self, pids: &[u32], locked: LockedProcesses, driver: &mut impl CheckpointDriver) {
        self.try_telling(pids, locked, driver).iter().for_each(|words| say::print_note(words));
    }

    /// As [`Self::tell_states`]; returns the note. A daemon that does not answer may be restarting, and to one that has
    /// just started a process is no member before it has connected again. Both are told again for [`TELL_PATIENCE`].
    fn try_telling(&self, pids: &[u32], locked: LockedProcesses, driver: &mut impl CheckpointDriver) -> Option<String> {
        let socket = self.socket.clone().unwrap_or_else(paths::usual_admin_socket);
        let is_named = self.socket.is_some() || paths::named_admin_socket().is_some();
        let (end, mut is_new) = (Instant::now() + TELL_PATIENCE, false);
        loop {
            // A process may have changed since the last attempt.
            let report = read_states(pids, locked, driver);
            let held: Vec<u32> = report.suspended.iter().chain(&report.locked).map(|process| process.pid).collect();
            if held.is_empty() && report.running.is_empty() {
                return None;
            }
            let answered = ask_daemon(&socket, &ControlCommand::Suspensions(report));
            let is_over = Instant::now() >= end;
            match answered {
                Ok(answer) => {
                    let known = answer.suspensions.unwrap_or_default();
                    let is_unknown = |pid: &u32| known.iter().all(|member| member.pid != *pid);
                    let unknown: Vec<u32> = held.iter().copied().filter(is_unknown).collect();
                    is_new |= answer.members_may_return;
                    if unknown.is_empty() || !is_new || is_over {
                        return shortfall_note(&unknown, held.len());
                    }
                }
                Err(why) if is_over || !may_answer_soon(&socket, is_named, &why) => {
                    return failure_note(&socket, is_named, &why);
                }
                Err(_) => is_new = true,
            }
            thread::sleep(TELL_INTERVAL);
        }
    }

    /// Tells the daemon that these processes are about to be resumed, so that it does not take it for another program's
    /// work when the driver lists the first one. Only the event depends on it, so a failure is no word.
    pub(super) fn announce_resume(&self, pids: &[u32]) {
        let socket = self.socket.clone().unwrap_or_else(paths::usual_admin_socket);
        let resuming = pids.iter().filter_map(|pid| read_process(*pid)).collect();
        let report = SuspensionReport { resuming, ..SuspensionReport::default() };
        let _ = ask_daemon(&socket, &ControlCommand::Suspensions(report));
    }
}

/// The program that locked a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockedProcesses {
    /// This one, which could lead it neither forward nor back.
    Own,
    /// Another one, which may be in the middle of its work and tells the daemon the end.
    OfOthers,
}

/// The suspended ones among these processes, those that stay locked, and those that run.
fn read_states(pids: &[u32], locked: LockedProcesses, driver: &mut impl CheckpointDriver) -> SuspensionReport {
    let mut report = SuspensionReport { read: clock::now(), ..SuspensionReport::default() };
    for pid in pids {
        let list = match driver.state(*pid) {
            Ok(ProcessState::Checkpointed) => &mut report.suspended,
            Ok(ProcessState::Running) => &mut report.running,
            Ok(ProcessState::Locked) if locked == LockedProcesses::Own => &mut report.locked,
            // A failed process has no work.
            _ => continue,
        };
        list.extend(read_process(*pid));
    }
    report
}

/// True if a daemon may answer soon. One that stops removes its socket, but not the socket's directory.
fn may_answer_soon(socket: &Path, is_named: bool, why: &io::Error) -> bool {
    let refusal = why.get_ref().and_then(|cause| cause.downcast_ref::<DaemonRefusal>());
    match why.kind() {
        ErrorKind::PermissionDenied => false,
        // The daemon's own refusal, or an answer of another version.
        ErrorKind::Other => refusal.is_some_and(|refusal| refusal.kind == Some(RefusalKind::Busy)),
        ErrorKind::NotFound => is_named || socket.parent().is_some_and(Path::is_dir),
        _ => true,
    }
}

/// The note about suspended processes that the daemon does not know, of this many; `None`: it knows all.
fn shortfall_note(unknown: &[u32], count: usize) -> Option<String> {
    let pids: Vec<String> = unknown.iter().map(u32::to_string).collect();
    let words = || {
        format!(
            "the daemon knows {} of {count} suspended processes; not connected to it: {}",
            count - unknown.len(),
            pids.join(", ")
        )
    };
    (!unknown.is_empty()).then(words)
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
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

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
        let comes = |socket: &Path, is_named, kind| may_answer_soon(socket, is_named, &io::Error::from(kind));
        assert!(comes(&here, false, ErrorKind::NotFound) && comes(&nowhere, true, ErrorKind::NotFound));
        assert!(!comes(&nowhere, false, ErrorKind::NotFound));
        assert!(comes(&here, false, ErrorKind::ConnectionRefused) && comes(&here, false, ErrorKind::UnexpectedEof));
        assert!(!comes(&here, true, ErrorKind::PermissionDenied) && !comes(&here, true, ErrorKind::Other));
        let refused = |kind| {
            let refusal = DaemonRefusal { words: String::new(), kind };
            may_answer_soon(&here, true, &io::Error::other(refusal))
        };
        assert!(refused(Some(RefusalKind::Busy)) && !refused(Some(RefusalKind::Failed)) && !refused(None));
    }

    /// A driver whose processes are all in this state.
    struct AllIn(ProcessState);

    impl CheckpointDriver for AllIn {
        fn state(&mut self, _: u32) -> Result<ProcessState, u32> {
            Ok(self.0)
        }
        fn lock(&mut self, _: u32, _: Duration) -> Result<(), u32> {
            unreachable!("telling changes no process")
        }
        fn checkpoint(&mut self, _: u32) -> Result<(), u32> {
            unreachable!("telling changes no process")
        }
        fn restore(&mut self, _: u32) -> Result<(), u32> {
            unreachable!("telling changes no process")
        }
        fn unlock(&mut self, _: u32) -> Result<(), u32> {
            unreachable!("telling changes no process")
        }
    }

    /// The note of a daemon that gives these answers, one to each request, and the number of its requests.
    fn told_to(answers: &[&str]) -> (Option<String>, usize) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("admin.sock");
        let daemon = UnixListener::bind(&socket).unwrap();
        thread::scope(|scope| {
            let requests = scope.spawn(move || {
                let serve = |answer: &&str| {
                    let (stream, _) = daemon.accept().unwrap();
                    let mut stream = BufReader::new(stream);
                    let is_request = stream.read_line(&mut String::new()).unwrap() > 0;
                    is_request && writeln!(stream.get_mut(), "{answer}").is_ok()
                };
                answers.iter().take_while(|answer| serve(answer)).count()
            });
            let told = ToldDaemon { socket: Some(socket.clone()) };
            let mut driver = AllIn(ProcessState::Checkpointed);
            let note = told.try_telling(&[std::process::id()], LockedProcesses::Own, &mut driver);
            // Ends a daemon that waits for further requests.
            drop(UnixStream::connect(socket));
            (note, requests.join().unwrap())
        })
    }

    #[test]
    fn a_process_that_this_program_left_locked_is_told_and_one_that_another_program_locked_is_not() {
        let pids = [std::process::id()];
        let read = |locked, state| {
            let report = read_states(&pids, locked, &mut AllIn(state));
            [report.suspended, report.locked, report.running].map(|processes| processes.len())
        };
        let states = [ProcessState::Checkpointed, ProcessState::Locked, ProcessState::Running, ProcessState::Failed];
        let own = states.map(|state| read(LockedProcesses::Own, state));
        assert_eq!(own, [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]);
        assert_eq!(read(LockedProcesses::OfOthers, ProcessState::Locked), [0, 0, 0]);
    }

    #[test]
    fn a_process_that_a_new_daemon_does_not_know_yet_is_told_again() {
        let pid = std::process::id();
        let known = format!(r#"{{"hello":2,"suspensions":[{{"tenant":"a","pid":{pid},"suspended_since":1}}]}}"#);
        let unknown = r#"{"hello":2,"suspensions":[]}"#;
        let just_started = r#"{"hello":2,"suspensions":[],"members_may_return":true}"#;
        assert_eq!(told_to(&[&known]), (None, 1));
        assert_eq!(told_to(&[just_started, unknown, &known]), (None, 3));
        let note = format!("the daemon knows 0 of 1 suspended processes; not connected to it: {pid}");
        assert_eq!(told_to(&[unknown]), (Some(note), 1), "it has no members that could return");
    }
}
