//! Tests: the daemon runs when its log is not read.

#[path = "../../support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};

use rustix::process::Signal;
use support::{Guard, Peer, eventually, vgpud};
use tempfile::TempDir;
use vgpu_control as control;

/// A full pipe that is not read.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    while writer.write(b".").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// More lines than the queue holds: the daemon starts, serves and ends while its log is not read.
#[test]
fn a_log_that_nobody_reads_holds_up_nobody_and_what_was_lost_is_said() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let (mut reader, writer) = full_pipe();
    let mut command = vgpud();
    command.arg("--runtime-dir").arg(&run).args((0..300).map(|at| format!("--tenant=t{at}"))).stderr(writer);
    let mut daemon = Guard(command.spawn().unwrap());
    drop(command);
    let socket = run.join("tenants/t299/vgpud.sock");
    eventually("it serves", || Peer::try_hello(&socket).is_some());
    assert_eq!(control::ask_status(&run.join("admin.sock")).unwrap().tenants.len(), 300);
    let log = std::thread::spawn(move || {
        let mut log = Vec::new();
        reader.read_to_end(&mut log).unwrap();
        String::from_utf8_lossy(&log).into_owned()
    });
    let pid = rustix::process::Pid::from_raw(daemon.0.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    let log = log.join().unwrap();
    assert!(log.contains(" lines of the log were lost here: they were not read in time"), "{}", log.trim_matches('.'));
    // A daemon whose log is never read ends too.
    let (_reader, writer) = full_pipe();
    let mut daemon = Guard(vgpud().arg("--socket").arg(dir.path().join("b/s")).stderr(writer).spawn().unwrap());
    eventually("it serves", || Peer::try_hello(&dir.path().join("b/s")).is_some());
    let pid = rustix::process::Pid::from_raw(daemon.0.id().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    eventually("it ends", || daemon.0.try_wait().unwrap().is_some());
}
