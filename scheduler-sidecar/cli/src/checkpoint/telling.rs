//! Tells the daemon which processes are off their devices and which run there. Without a daemon nothing happens.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use vgpu_control::finding::ProcessId;
use vgpu_control::{ControlCommand, ask_daemon};
use vgpu_output::say;

use super::steps::{CheckpointDriver, ProcessState};
use crate::ask::explain_failure;

/// Number of the start time among the fields of /proc/PID/stat after the process's name.
const START_TIME_FIELD: usize = 19;

/// Tells the daemon at this socket the driver's state of each process. A refusal is a note: the processes are changed.
pub(super) fn tell_daemon(socket: &Path, pids: &[u32], driver: &mut impl CheckpointDriver) {
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
    if suspended.is_empty() && running.is_empty() {
        return;
    }
    if let Err(why) = ask_daemon(socket, &ControlCommand::Suspensions { suspended, running }) {
        failure_note(socket, &why).iter().for_each(|words| say::print_note(words));
    }
}

/// The note about a daemon that was not told; `None`: there is none at this socket.
fn failure_note(socket: &Path, why: &io::Error) -> Option<String> {
    let is_absent = matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
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
    fn a_daemon_that_refuses_is_a_note_and_none_is_no_word() {
        let note = |kind| failure_note(Path::new("/run/vgpu/admin.sock"), &io::Error::from(kind));
        assert_eq!((note(ErrorKind::NotFound), note(ErrorKind::ConnectionRefused)), (None, None));
        assert!(note(ErrorKind::PermissionDenied).is_some_and(|words| words.contains("try it with sudo")));
        let refused = failure_note(Path::new("/s"), &io::Error::other("only root may ask"));
        assert!(refused.is_some_and(|words| words.ends_with(": only root may ask")));
    }
}
