//! The daemon and the library are replaced while programs run. The side that meets another version refuses with words,
//! and a running program keeps its last terms (docs/vgpud.md#replacing-the-daemon-or-the-library). Stubs act as the
//! next version, in both directions.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use shim_sys::{descriptors, lock};
use vgpu_core::memory::ledger::LEDGER_VERSION;
use vgpu_core::protocol::page::PAGE_VERSION;
use vgpu_tests::artefacts::vgpu;
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, eventually, text};

/// Answers of a daemon of the next version to this version's hello. It refuses the protocol or the pages with a
/// message, or it sends a welcome in its own protocol or with its own pages.
const ANSWERS: [(&str, &str); 4] = [
    ("{\"error\":\"protocol 2 is not spoken here; this side speaks protocol 3\"}\n", "this side speaks protocol 3"),
    ("{\"error\":\"pages of version 1 are not used here; this side uses version 2\"}\n", "this side uses version 2"),
    ("{\"hello\":3,\"tenant\":\"a\",\"member\":1,\"epoch\":1}\n", "protocol 3 is not spoken here"),
    ("{\"hello\":2,\"pages\":2,\"tenant\":\"a\",\"member\":1}\n", "pages of version 2 are not used here"),
];

/// A daemon of the next version, which answers every first line in the same way.
struct NextDaemon {
    socket: PathBuf,
    asked: Arc<AtomicUsize>,
}

impl NextDaemon {
    fn start(socket: &Path, answer: &'static str) -> NextDaemon {
        let _ = fs::remove_file(socket);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(answer.as_bytes());
                counted.fetch_add(1, SeqCst);
            }
        });
        NextDaemon { socket: socket.to_owned(), asked }
    }
}

impl Drop for NextDaemon {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

fn plan(lab: &Lab, gib: u64) -> Plan {
    let tenants = vec![("a".into(), format!("memory_limit = \"{gib}GiB\""))];
    Plan { device: lab.device(0).uuid, time: String::new(), tenants }
}

fn keeps_two_gib(member: &mut Member) {
    assert_eq!(member.info().1, 2 * GIB);
    assert_eq!(member.code(&format!("alloc {}", 2 * GIB)), OUT_OF_MEMORY);
    let held = member.alloc(GIB / 2);
    member.ok("launch 1000");
    member.ok(&format!("free {held}"));
}

#[test]
fn a_program_keeps_its_terms_under_a_daemon_of_the_next_version_and_a_new_one_is_refused_with_words() {
    let mut lab = Lab::new("h200");
    let mut daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let mut member = lab.member();
    member.begin();
    keeps_two_gib(&mut member);
    for (answer, words) in ANSWERS {
        daemon.kill();
        let next = NextDaemon::start(&daemon.socket("a"), answer);
        // The running program asks the new daemon, is refused, and continues.
        eventually("the running program asks the next daemon", || {
            member.info();
            next.asked.load(SeqCst) > 0
        });
        keeps_two_gib(&mut member);
        for (init, code) in [("init", NOT_PERMITTED), ("nvinit", NO_PERMISSION)] {
            let mut fresh = lab.member();
            assert_eq!(fresh.code(init), code, "{answer}");
            let said = fresh.errors();
            assert!(said.lines().count() == 1 && said.contains(words), "{words:?} in {said:?}");
        }
        drop(next);
        daemon.write(&plan(&lab, 2));
        daemon.again();
        eventually("the program is a member of this version's daemon again", || {
            member.info();
            daemon.tell(&["status", "--json"]).contains("\"pid_inside\"")
        });
        assert_eq!(member.errors(), "");
    }
}

#[test]
fn a_library_of_the_next_version_is_refused_with_words_and_disturbs_no_member() {
    let mut lab = Lab::new("h200");
    let daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let mut member = lab.member();
    member.begin();
    for (hello, words) in [
        ("{\"hello\":3,\"pid\":7,\"version\":\"9\",\"pages\":1,\"clock\":1}\n", "protocol 3 is not spoken here"),
        ("{\"hello\":2,\"pid\":7,\"version\":\"9\",\"pages\":2,\"clock\":1}\n", "pages of version 2 are not used here"),
    ] {
        let mut stream = UnixStream::connect(daemon.socket("a")).unwrap();
        stream.set_read_timeout(Some(LONG_TIMEOUT)).unwrap();
        stream.write_all(hello.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let (mut said, mut rest) = (String::new(), Vec::new());
        reader.read_line(&mut said).unwrap();
        assert!(said.starts_with("{\"error\":") && said.contains(words), "{words:?} in {said:?}");
        assert_eq!(reader.read_to_end(&mut rest).unwrap(), 0, "it is hung up on");
    }
    keeps_two_gib(&mut member);
    assert_eq!(member.errors(), "");
}

/// Position of the version in the header of a page and of a ledger, after the magic.
const VERSION_OFFSET: u64 = 8;

/// A file in memory with the content of this one and another version. A board is sealed as a daemon seals it.
fn with_version(file: &OwnedFd, version: u32, is_board: bool) -> OwnedFd {
    let from = File::from(file.try_clone().unwrap());
    let mut content = vec![0; usize::try_from(from.metadata().unwrap().len()).unwrap()];
    from.read_exact_at(&mut content, 0).unwrap();
    // SAFETY: a C string and flags; the descriptor is new and owned by nobody else.
    let copy = unsafe {
        let raw = libc::memfd_create(c"next version".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(raw >= 0);
        File::from_raw_fd(raw)
    };
    copy.write_all_at(&content, 0).unwrap();
    copy.write_all_at(&version.to_le_bytes(), VERSION_OFFSET).unwrap();
    let copy = OwnedFd::from(copy);
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    if is_board {
        let seals = size | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: an open descriptor and a number.
        assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&copy), libc::F_ADD_SEALS, seals) }, 0);
    }
    copy
}

/// Passes the lines between members and the daemon at `to`. If the n-th answer has that descriptor, it is replaced by
/// one with this version.
fn relay(at: &Path, to: PathBuf, (answer, place, version): (usize, usize, u32)) {
    let listener = UnixListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for mut member in listener.incoming().map_while(Result::ok) {
            let to = to.clone();
            std::thread::spawn(move || {
                let mut daemon = UnixStream::connect(to).unwrap();
                let mut bytes = [0; 4096];
                for number in 0.. {
                    let Ok(length @ 1..) = member.read(&mut bytes) else { return };
                    daemon.write_all(&bytes[..length]).unwrap();
                    let mut files = Vec::new();
                    let length = descriptors::receive_descriptors(daemon.as_fd(), &mut bytes, &mut files).unwrap();
                    if number == answer {
                        files[place] = with_version(&files[place], version, answer == 0);
                    }
                    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    let _ = descriptors::send(member.as_fd(), &bytes[..length], &files);
                }
            });
        }
    });
}

#[test]
fn a_board_or_a_ledger_of_the_next_version_that_a_daemon_sends_is_refused_with_words() {
    let mut lab = Lab::new("h200");
    let daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    let (pages, ledger) = (PAGE_VERSION + 1, LEDGER_VERSION + 1);
    for (name, changed, words) in [
        // The welcome is the first answer, and the board its second descriptor.
        ("board", (0, 1, pages), format!("version {pages}; this side reads version {PAGE_VERSION}")),
        (
            "ledger",
            (1, 0, ledger),
            format!("the ledger has version {ledger}, this library writes version {LEDGER_VERSION}"),
        ),
    ] {
        let socket = lab.path().join(name);
        relay(&socket, daemon.socket("a"), changed);
        lab.set("VGPU_SOCKET", &socket);
        let mut member = lab.member();
        assert_eq!(member.code("init"), NOT_PERMITTED, "{name}");
        let said = member.errors();
        assert!(said.lines().count() == 1 && said.contains(&words), "{words:?} in {said:?}");
    }
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let mut member = lab.member();
    member.begin();
    keeps_two_gib(&mut member);
}

/// The ledger that the daemon keeps for tenant `a`.
fn kept_ledger(daemon: &Daemon) -> PathBuf {
    let dir = fs::read_dir(daemon.room("a").join("vgpud.sock.ledgers")).unwrap();
    dir.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|end| end == "ledger")).unwrap()
}

fn set_version(ledger: &Path, version: u32) -> File {
    let file = File::options().read(true).write(true).open(ledger).unwrap();
    file.write_all_at(&version.to_le_bytes(), VERSION_OFFSET).unwrap();
    file
}

#[test]
fn a_kept_ledger_of_the_next_version_is_refused_with_words_while_a_process_holds_it() {
    let next = LEDGER_VERSION + 1;
    let mut lab = Lab::new("h200");
    let mut daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let ledger = kept_ledger(&daemon);
    // A process of the next version holds the ledger.
    let held = set_version(&ledger, next);
    assert!(lock::try_lock(held.as_fd(), 4096).unwrap());
    let refused = |words: &str| {
        let mut member = lab.member();
        assert_eq!(member.code("init"), NOT_PERMITTED, "{words}");
        let said = member.errors();
        assert!(said.lines().count() == 1 && said.contains(words), "{words:?} in {said:?}");
    };
    refused(&format!(
        "it has version {next}, this vgpud writes version {LEDGER_VERSION}; end all processes of the tenant"
    ));
    // The next daemon of this version says the same, and a member without a daemon finds the ledger itself.
    daemon.kill();
    refused(&format!("the ledger has version {next}, this library writes version {LEDGER_VERSION}"));
    daemon.again();
    refused(&format!("it has version {next}, this vgpud writes version {LEDGER_VERSION}"));
    let mut version = [0; 4];
    held.read_exact_at(&mut version, VERSION_OFFSET).unwrap();
    assert_eq!(u32::from_le_bytes(version), next, "it is left as it is");
    // Nobody holds it any more: nothing of it counts, and the daemon replaces it.
    lock::unlock(held.as_fd(), 4096).unwrap();
    let mut member = lab.member();
    member.begin();
    keeps_two_gib(&mut member);
}

#[test]
fn a_terms_file_of_the_next_version_is_refused_with_words_and_a_running_program_keeps_its_terms() {
    let mut lab = Lab::new("h200");
    let mut daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let mut member = lab.member();
    member.begin();
    daemon.kill();
    let file = daemon.room("a").join("terms.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("{\"terms\":1,"), "{text}");
    fs::write(&file, text.replace("{\"terms\":1,", "{\"terms\":2,")).unwrap();
    let mut fresh = lab.member();
    assert_eq!(fresh.code("init"), NOT_PERMITTED);
    let said = fresh.errors();
    assert!(said.contains("terms.json") && said.contains("\"terms\" is 2; accepted: 1"), "{said}");
    keeps_two_gib(&mut member);
}

/// Version of the schema in a record, after it was set if there is a new one.
fn schema_version(record: &Path, new: Option<u32>) -> u32 {
    let script = "import sqlite3, sys
of = sqlite3.connect(sys.argv[1])
of.execute(sys.argv[2])
of.commit()
\
        print(of.execute('PRAGMA user_version').fetchone()[0])";
    let set = new.map(|new| format!("PRAGMA user_version = {new}")).unwrap_or_default();
    let out = Command::new("python3").args(["-c", script]).arg(record).arg(set).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    String::from_utf8_lossy(&out.stdout).trim().parse().unwrap()
}

#[test]
fn a_daemon_that_finds_a_record_of_the_next_version_says_so_leaves_it_and_serves() {
    let mut lab = Lab::new("h200");
    let mut daemon = Daemon::start(lab.path(), &plan(&lab, 2));
    lab.set("VGPU_SOCKET", daemon.socket("a"));
    let record = lab.path().join("kept/record.sqlite");
    eventually("there is a record", || record.exists() && !daemon.tell(&["status"]).contains("not open yet"));
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(schema_version(&record, None), 1);
    assert_eq!(schema_version(&record, Some(2)), 2);
    daemon.again();
    let words = "the record has version 2, this vgpud writes version 1";
    eventually("it says so", || daemon.tell(&["status"]).contains(words));
    let report = Command::new(vgpu()).args(["report", "usage", "--state-dir"]).arg(lab.path().join("kept")).output();
    let report = report.unwrap();
    assert!(!report.status.success() && text(&report).contains("version 2"), "{report:?}");
    let mut member = lab.member();
    member.begin();
    keeps_two_gib(&mut member);
    drop(member);
    assert_eq!(daemon.stop(), Some(0));
    assert_eq!(schema_version(&record, None), 2, "it is left as it is");
}
