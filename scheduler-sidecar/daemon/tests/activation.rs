//! Tests of an administrative socket that a service manager opens.

#[path = "../../support/mod.rs"]
mod support;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

use support::{Daemon, eventually, texts, vgpud};
use tempfile::TempDir;
use vgpu_control as control;

/// A shell as service manager: it passes sockets as descriptors 3, 4, ... and sets `LISTEN_PID`.
const MANAGER: &str = "exec 3<&\"$1\"; [ \"$2\" = 1 ] || exec 4<&\"$1\"; export LISTEN_PID=$$ LISTEN_FDS=\"$2\" LISTEN_FDNAMES=admin; \
                       shift 2; exec \"$@\"";

/// A daemon with one tenant, started by that shell with `count` sockets.
fn start(dir: &Path, listener: &(impl AsFd + AsRawFd), count: u32) -> std::process::Command {
    // The shell inherits the descriptor under its own number, and passes it to the daemon as 3.
    rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty()).unwrap();
    let mut command = support::clean(std::process::Command::new("bash"));
    command.args(["-c", MANAGER, "manager", &listener.as_raw_fd().to_string(), &count.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_vgpud")).arg("--runtime-dir").arg(dir.join("run")).args(["--tenant", "a"]);
    command.stderr(Stdio::piped());
    command
}

#[test]
fn a_socket_of_the_manager_is_served_from_its_first_caller_on_and_outlives_the_daemon() {
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("admin.sock");
    let listener = UnixListener::bind(&place).unwrap();
    let inode = std::fs::metadata(&place).unwrap().ino();
    for _ in 0..2 {
        // A request sent before the daemon runs waits for it.
        let asked = std::thread::spawn({
            let place = place.clone();
            move || {
                let mut status = None;
                eventually("the daemon answers", || {
                    status = control::ask_status(&place).ok();
                    status.is_some()
                });
                status.unwrap()
            }
        });
        let child = start(dir.path(), &listener, 1).spawn().unwrap();
        let daemon = Daemon { child, socket: dir.path().join("run/tenants/a/vgpud.sock") };
        let status = asked.join().unwrap();
        assert_eq!((status.pid, status.tenants[0].name.as_str()), (daemon.child.id(), "a"));
        assert!(!dir.path().join("run/admin.sock").exists(), "its own is not opened beside it");
        let (code, log) = daemon.stop();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("administrators connect to the service manager's socket"), "{log}");
        assert_eq!(std::fs::metadata(&place).unwrap().ino(), inode, "it is the manager's, for the next start");
    }
}

#[test]
fn what_is_not_one_listening_unix_socket_is_refused_and_somebody_elses_variables_are_not_read() {
    let dir = TempDir::new().unwrap();
    let listener = UnixListener::bind(dir.path().join("admin.sock")).unwrap();
    let output = start(dir.path(), &listener, 2).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.contains("hands over 2 sockets (admin)"), "{}", texts(&output).1);
    assert!(!dir.path().join("run").exists(), "nothing was started");

    let not_listening = std::os::unix::net::UnixStream::pair().unwrap().0;
    let output = start(dir.path(), &not_listening, 1).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(texts(&output).1.contains("accepted: ListenStream="), "{}", texts(&output).1);

    let mut plain = vgpud();
    // Descriptor 3 is not open here, and `LISTEN_PID` is another process.
    plain.args(["--runtime-dir"]).arg(dir.path().join("run")).args(["--tenant", "a"]).stderr(Stdio::piped());
    plain.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let daemon = Daemon { child: plain.spawn().unwrap(), socket: dir.path().join("run/tenants/a/vgpud.sock") };
    let admin = dir.path().join("run/admin.sock");
    eventually("its own socket is open", || control::ask_status(&admin).is_ok());
    drop(daemon);
}

#[test]
fn a_socket_in_a_tenants_directory_is_refused() {
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("run/tenants/a");
    std::fs::create_dir_all(&place).unwrap();
    let listener = UnixListener::bind(place.join("admin.sock")).unwrap();
    let output = start(dir.path(), &listener, 1).output().unwrap();
    let (_, log) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("mounted into the containers of tenant a"), "{log}");
}
