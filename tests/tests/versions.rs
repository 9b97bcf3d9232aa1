//! The daemon and the library are replaced while programs run. Another version refuses with a message, and a running
//! program keeps its last limits. Stubs act as the next version.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, Member, NO_PERMISSION, NOT_PERMITTED, OUT_OF_MEMORY, eventually};

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
