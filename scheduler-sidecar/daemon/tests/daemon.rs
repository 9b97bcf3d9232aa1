//! Tests of the daemon process: its promises to members, the administrator and the file system.

#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;
use support::{Daemon, Guard, LONG_TIMEOUT, Peer, eventually, terms, texts, vgpud, welcome_terms};
use tempfile::TempDir;
use vgpu_control as control;
use vgpu_core::protocol::wire::{Hello, MAX_LINE, Reply, Terms};

/// A hello of one piece.
const HELLO: &str = "{\"hello\":2,\"pid\":1,\"version\":\"x\",\"pages\":1,\"clock\":0}\n";

/// The terms of the daemon's tenant.
fn terms_of_a() -> Result<Terms, String> {
    Ok(terms("a", Some(1 << 30), Some(300)))
}

fn start(dir: &TempDir) -> Daemon {
    Daemon::start(
        &dir.path().join("a/vgpud.sock"),
        &["--admin-socket", dir.path().join("admin.sock").to_str().unwrap()],
    )
}

fn status(dir: &TempDir) -> control::DaemonStatus {
    control::ask_status(&dir.path().join("admin.sock")).unwrap()
}

/// The daemon still serves an ordinary member.
fn serves(daemon: &Daemon) {
    assert_eq!(daemon.connect().terms(), terms_of_a());
}

#[test]
fn a_hello_is_answered_with_the_tenants_terms() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let hello = Hello { pid: 4711, version: "0.1.0".into(), clock: 0 };
    let line = daemon.connect().send(hello.encode().unwrap().as_bytes()).line();
    let known = "{\"hello\":2,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30,\"member\":";
    assert!(line.starts_with(known), "{line}");
    assert_eq!(welcome_terms(line), terms_of_a());
}

#[test]
fn what_was_found_of_a_tenant_is_told_twenty_times_in_a_second_at_most() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let (begin, mut told) = (Instant::now(), 0);
    eventually("it was too many questions", || {
        let line = daemon.connect().send(b"{\"hello\":2,\"ask\":\"findings\"}\n").line();
        let is_told = line.contains("\"findings\":[]");
        assert!(is_told || line.contains("too many questions"), "{line}");
        told += u64::from(is_told);
        !is_told
    });
    assert!(told <= 20 * (begin.elapsed().as_secs() + 2), "{told} answers in {:?}", begin.elapsed());
    serves(&daemon);
}

#[test]
fn a_hello_in_pieces_and_two_lines_in_one_are_answered() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut slow = daemon.connect();
    for byte in HELLO.replace("\"pid\"", "\"new\":[{}],\"pid\"").bytes() {
        slow.send(&[byte]);
    }
    assert_eq!(welcome_terms(slow.line()), terms_of_a());
    let mut quick = daemon.connect();
    quick.send(format!("{HELLO}{{\"join\":\"GPU-1\"}}\n").as_bytes());
    assert_eq!(welcome_terms(quick.line()), terms_of_a());
    let joined = "{\"join\":\"GPU-1\",\"slot\":0}\n";
    let answer = quick.line();
    // The daemon may reach the join before this peer has read the welcome.
    assert!([joined, "{\"error\":\"an earlier answer was not read yet\"}\n"].contains(&answer.as_str()), "{answer}");
    assert_eq!(quick.send(b"{\"join\":\"GPU-1\"}\n").line(), joined, "a member that reads may join, once more too");
}

/// This holds without an administrative socket too. A daemon that finds every path taken does not start.
#[test]
fn who_listens_at_one_tenants_place_keeps_no_other_tenant_from_being_served() {
    let dir = TempDir::new().unwrap();
    let socket = |name: &str| dir.path().join(name).join("vgpud.sock");
    fs::create_dir(dir.path().join("a")).unwrap();
    let _hostile = UnixListener::bind(socket("a")).unwrap();
    let tenants = ["a", "b"].map(|name| format!("--tenant={name}:socket={}", socket(name).display()));
    let _daemon = Guard(vgpud().args(&tenants).args(["--log", "off"]).spawn().unwrap());
    eventually("the other is served", || Peer::try_hello(&socket("b")).is_some());
    let second = vgpud().args(&tenants).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", texts(&second).1);
}

#[test]
fn each_tenant_has_its_own_socket_and_terms() {
    let dir = TempDir::new().unwrap();
    let socket = |name: &str| dir.path().join(name).join("vgpud.sock");
    let more = format!("b:memory=4GiB,sm=12.5,socket={}", socket("b").display());
    let free = format!("c:memory=unlimited,socket={}", socket("c").display());
    let child = vgpud()
        .args(["--tenant", &format!("a:memory=1GiB,socket={}", socket("a").display()), "--tenant", &more])
        .args(["--tenant", &free, "--log", "off"])
        .spawn()
        .unwrap();
    let _child = Guard(child);
    eventually("the daemon listens", || UnixStream::connect(socket("c")).is_ok());
    for own in [terms("a", Some(1 << 30), None), terms("b", Some(4 << 30), Some(125)), terms("c", None, None)] {
        assert_eq!(Peer::connect(&socket(&own.tenant)).terms(), Ok(own));
    }
}

#[test]
fn another_protocol_is_refused_naming_both_numbers_and_closed() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    for theirs in [1, 3] {
        let mut peer = daemon.connect();
        let line = peer.send(format!("{{\"hello\":{theirs},\"pid\":1,\"version\":\"9.9\"}}\n").as_bytes()).line();
        let Ok(Reply::Refused(words)) = Reply::decode(line.as_bytes()) else { panic!("{line}") };
        assert_eq!(words, format!("protocol {theirs} is not spoken here; this side speaks protocol 2"));
        assert_eq!(peer.line(), "", "closed");
    }
    serves(&daemon);
}

#[test]
fn garbage_is_told_so_and_harms_only_itself() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut member = daemon.connect();
    assert_eq!(member.terms(), terms_of_a());
    let mut random = fastrand::Rng::with_seed(1);
    let noise: Vec<u8> = (0..100_000).map(|_| random.u8(..)).collect();
    for garbage in [
        b"\n".as_slice(),
        b"hello\n",
        b"{}\n",
        b"{\"hello\":2}\n",
        b"{\"hello\":2,\"pid\":0,\"version\":\"\",\"pages\":1,\"clock\":0}\n",
        b"{\"hello\":2,\"hello\":2}\n",
        b"\xff\xfe\x00\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &noise,
        &[b'x'; 3 * MAX_LINE],
        &[b'['; MAX_LINE],
    ] {
        let mut peer = daemon.connect();
        let line = peer.send(garbage).line();
        assert!(matches!(Reply::decode(line.as_bytes()), Ok(Reply::Refused(_))), "{line:?}");
        assert_eq!(peer.line(), "", "closed");
    }
    assert!(member.is_served(), "the member that was there before");
    let status = status(&dir);
    assert_eq!((status.tenants[0].refused, status.tenants[0].members.len()), (11, 1));
}

#[test]
fn a_line_that_never_ends_is_cut_at_the_length_limit() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let line = daemon.connect().send(&[b'x'; MAX_LINE]).line();
    assert!(line.contains("longer than 4096 bytes"), "{line}");
    // The longest valid line, with its newline.
    let mut longest = format!("{},\"pad\":\"{}", HELLO.trim_end_matches("}\n"), "p".repeat(MAX_LINE));
    longest.truncate(MAX_LINE - 3);
    longest.push_str("\"}\n");
    assert_eq!(welcome_terms(daemon.connect().send(longest.as_bytes()).line()), terms_of_a());
}

#[test]
fn half_a_message_and_silence_are_closed_after_the_deadline_and_not_before() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut member = daemon.connect();
    assert_eq!(member.terms(), terms_of_a());
    let start = Instant::now();
    let mut silent = daemon.connect();
    let mut half = daemon.connect();
    half.send(b"{\"hello\":2,\"pid\":");
    for peer in [&mut silent, &mut half] {
        let line = peer.line();
        assert!(line.contains("no complete line within 2 s"), "{line}");
        assert_eq!(peer.line(), "");
    }
    let waited = start.elapsed();
    assert!(waited.as_secs_f64() > 1.9 && waited < LONG_TIMEOUT, "{waited:?}");
    assert!(member.is_served(), "a member that said hello may be silent for ever");
}

#[test]
fn a_peer_that_drips_bytes_gains_no_time() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut peer = daemon.connect();
    let mut writer = peer.reader.get_ref().try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        while writer.write_all(b" ").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    assert!(peer.line().contains("no complete line within 2 s"));
    dripping.join().unwrap();
}

#[test]
fn a_peer_that_does_not_read_is_closed_and_others_are_served() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut deaf = daemon.connect();
    deaf.send(HELLO.as_bytes());
    let mut writer = deaf.reader.get_ref().try_clone().unwrap();
    let flood = "{\"join\":\"GPU-1\"}\n".repeat(1000);
    // Ends only because the daemon closes: it stops reading while its answers are not read.
    let closed = std::thread::spawn(move || while writer.write_all(flood.as_bytes()).is_ok() {});
    eventually("the deaf peer is closed", || {
        serves(&daemon);
        closed.is_finished()
    });
    drop(deaf);
}

#[test]
fn two_hundred_members_are_served_and_seen() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let mut peers = Vec::new();
    for _ in 0..200 {
        let mut peer = daemon.connect();
        assert_eq!(peer.terms(), terms_of_a());
        peers.push(peer);
    }
    let before = status(&dir);
    assert_eq!(before.tenants[0].members.len(), 200);
    for member in &before.tenants[0].members {
        assert_eq!(member.pid, Some(std::process::id()), "the kernel's word");
        assert_eq!(member.uid, rustix::process::getuid().as_raw());
    }
    peers.truncate(50);
    eventually("the members that left are forgotten", || status(&dir).tenants[0].members.len() == 50);
    drop(daemon);
}

#[test]
fn a_tenant_has_no_more_connections_than_it_may_and_gets_back_those_it_closed() {
    let dir = TempDir::new().unwrap();
    let daemon = Daemon::start(&dir.path().join("s"), &["--max-connections", "3"]);
    // The connection that tested whether the daemon listens may not be closed yet.
    eventually("three members", || {
        let mut peers: Vec<Peer> = (0..3).map(|_| daemon.connect()).collect();
        if !peers.iter_mut().all(|peer| peer.terms() == terms_of_a()) {
            return false;
        }
        let mut fourth = daemon.connect();
        let line = fourth.line();
        assert!(line.contains("already has 3 connections"), "{line}");
        assert_eq!(fourth.line(), "");
        true
    });
    eventually("room again", || daemon.connect().terms() == terms_of_a());
}

#[test]
fn when_descriptors_run_out_the_caller_is_told_and_the_members_stay() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("s");
    let child = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 50; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_vgpud"), "--log", "off", "--socket"])
        .arg(&socket)
        .spawn()
        .unwrap();
    let _child = Guard(child);
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    let (mut peers, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let mut peer = Peer::connect(&socket);
        answers.push(peer.hello());
        peers.push(peer);
    }
    let told = answers.iter().filter(|line| line.contains("no file descriptor left")).count();
    let served = answers.iter().filter(|line| line.contains("\"tenant\":\"default\"")).count();
    assert_eq!(told + served, 60, "{answers:?}");
    assert!(told > 20 && served > 20, "{told} told, {served} served");
    drop(peers);
    eventually("room again", || Peer::connect(&socket).hello().contains("tenant"));
}

#[test]
fn sockets_have_the_modes_of_their_audience_and_go_with_the_daemon() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let dir = TempDir::new().unwrap();
        let mut daemon = start(&dir);
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("a"), mode("a/vgpud.sock"), mode("admin.sock")), (0o755, 0o666, 0o600));
        let members: Vec<Peer> = (0..3).map(|_| daemon.connect()).collect();
        daemon.signal(signal);
        assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
        drop(members);
        let mut left: Vec<_> =
            fs::read_dir(dir.path().join("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, ["terms.json", "vgpud.sock.ledgers"], "for members that start while no daemon runs");
        assert!(!dir.path().join("admin.sock").exists());
    }
}

#[test]
fn a_killed_daemons_sockets_are_taken_over_and_members_of_the_dead_one_see_its_end() {
    let dir = TempDir::new().unwrap();
    let first = start(&dir);
    let mut member = first.connect();
    assert_eq!(member.terms(), terms_of_a());
    first.kill();
    assert_eq!(member.line(), "");
    assert!(fs::symlink_metadata(dir.path().join("a/vgpud.sock")).unwrap().file_type().is_socket(), "left behind");
    let second = start(&dir);
    serves(&second);
    assert_eq!(fs::read_dir(dir.path().join("a")).unwrap().count(), 3, "the socket, the terms file and the ledgers");
    assert_eq!(second.stop().0, Some(0));
}

#[test]
fn a_second_daemon_is_refused_with_words_and_the_first_goes_on() {
    let dir = TempDir::new().unwrap();
    let first = start(&dir);
    let output = vgpud().arg("--socket").arg(&first.socket).output().unwrap();
    let (_, log) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("a/vgpud.sock is the socket of a daemon that is running"), "{log}");
    serves(&first);
    // With a path of its own, a second daemon serves that one and does not touch the first one's.
    let other = dir.path().join("b/vgpud.sock");
    let both = [("b", &other), ("a", &first.socket)]
        .map(|(name, socket)| format!("--tenant={name}:socket={}", socket.display()));
    let _second = Guard(vgpud().args(["--log", "off"]).args(&both).spawn().unwrap());
    eventually("the second serves its own", || Peer::try_hello(&other).is_some());
    serves(&first);
}

#[test]
fn many_daemons_that_start_at_once_end_as_one() {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("s");
    drop(UnixListener::bind(&socket).unwrap());
    let start = || vgpud().args(["--log", "off", "--socket"]).arg(&socket).stderr(Stdio::null()).spawn().unwrap();
    let mut all: Vec<Guard> = (0..8).map(|_| Guard(start())).collect();
    eventually("seven are refused", || {
        let mut refused = 0;
        for child in &mut all {
            refused += usize::from(child.0.try_wait().unwrap().is_some_and(|status| status.code() == Some(1)));
        }
        refused == 7
    });
    eventually("the one that is left answers", || UnixStream::connect(&socket).is_ok());
}

#[test]
fn what_is_not_a_socket_is_left_as_it_is() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("elsewhere", &link).unwrap();
    for path in [&file, &link] {
        let output = vgpud().arg("--socket").arg(path).output().unwrap();
        let (_, log) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains("is not a socket"), "{log}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("elsewhere"));
}

#[test]
fn a_socket_that_somebody_put_in_place_of_ours_is_not_removed() {
    let dir = TempDir::new().unwrap();
    let daemon = Daemon::start(&dir.path().join("s"), &[]);
    fs::remove_file(dir.path().join("s")).unwrap();
    let _other = UnixListener::bind(dir.path().join("s")).unwrap();
    assert_eq!(daemon.stop().0, Some(0));
    assert!(dir.path().join("s").exists());
}

#[test]
fn usage_errors_name_the_option_the_value_and_what_is_accepted_with_code_2() {
    for (args, words) in [
        (["--memory-limit", "abc"], ["--memory-limit", "\"abc\"", "accepted:"]),
        (["--sm-limit", "0"], ["--sm-limit", "\"0\"", "accepted:"]),
        (["--tenant", "a b"], ["--tenant", "\"a b\"", "accepted:"]),
        (["--log", "loud"], ["--log", "loud", "possible values"]),
    ] {
        let output = vgpud().args(args).output().unwrap();
        let (_, log) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{log}");
        for word in words {
            assert!(log.contains(word), "{log} lacks {word}");
        }
    }
}

#[test]
fn the_log_says_who_came_and_a_flood_of_garbage_does_not_fill_it() {
    let dir = TempDir::new().unwrap();
    let daemon = start(&dir);
    let hello = Hello { pid: 77, version: "1\n2".into(), clock: 0 }.encode().unwrap();
    assert_eq!(welcome_terms(daemon.connect().send(hello.as_bytes()).line()), terms_of_a());
    for _ in 0..500 {
        daemon.connect().send(b"x\n").line();
    }
    let (code, log) = daemon.stop();
    assert_eq!(code, Some(0));
    let uid = rustix::process::getuid().as_raw();
    let member = log.lines().find(|line| line.contains("pid_inside=77")).unwrap_or_else(|| panic!("{log}"));
    assert!(member.contains(&format!("pid={} uid={uid} gid=", std::process::id())), "{member}");
    assert!(member.contains(r#"version="1\n2""#), "text from outside is escaped: {member}");
    assert!(log.lines().count() < 200, "{} lines", log.lines().count());
}

#[test]
fn the_administrative_socket_answers_its_own_protocol_only() {
    let dir = TempDir::new().unwrap();
    let _daemon = start(&dir);
    let ask = |line: &[u8]| Peer::connect(&dir.path().join("admin.sock")).send(line).line();
    assert!(ask(b"{\"hello\":2,\"ask\":\"status\"}\n").contains("\"memory_limit\":1073741824,\"sm_limit\":30.0"));
    assert!(ask(b"{\"hello\":9,\"ask\":\"status\"}\n").contains("protocol 9"));
    assert!(ask(HELLO.as_bytes()).contains("error"));
    assert!(ask(b"\x00\n").contains("error"));
    assert_eq!(status(&dir).tenants[0].name, "a");
}

#[test]
fn a_tenant_whose_place_is_unusable_keeps_nobody_else_from_being_served() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let place = |tenant: &str| run.join("tenants").join(tenant).join("vgpud.sock");
    // Entries that a container could create there: a file, a socket, a link.
    for tenant in ["file", "socket", "link"] {
        fs::create_dir_all(place(tenant).parent().unwrap()).unwrap();
    }
    fs::write(place("file"), "x").unwrap();
    let _listens = UnixListener::bind(place("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/null", place("link")).unwrap();
    let options = ["--tenant", "file", "--tenant", "socket", "--tenant", "link", "--tenant", "good", "--runtime-dir"];
    let child = vgpud().args(options).arg(&run).stderr(Stdio::piped()).spawn().unwrap();
    let daemon = Daemon { child, socket: place("good") };
    eventually("the good one is served", || Peer::try_hello(&place("good")).is_some());
    let status = control::ask_status(&run.join("admin.sock")).unwrap();
    let unusable: Vec<(&str, bool)> =
        status.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.unusable.is_some())).collect();
    assert_eq!(unusable, [("file", true), ("socket", true), ("link", true), ("good", false)]);
    let shown = support::vgpu().args(["status", "--socket"]).arg(run.join("admin.sock")).output().unwrap();
    assert!(texts(&shown).0.contains("file: not served: "), "{}", texts(&shown).0);
    let (code, log) = daemon.stop();
    assert_eq!(code, Some(0));
    assert_eq!(log.matches("this tenant is not served; the others are").count(), 3, "{log}");
    assert_eq!(fs::read_to_string(place("file")).unwrap(), "x", "left as it is");
    // A daemon without any tenant to serve does not start.
    let output = vgpud().args(["--tenant", "file", "--runtime-dir"]).arg(&run).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", texts(&output).1);
}

#[test]
fn a_directory_of_sockets_that_somebody_else_made_in_tmp_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // Only root can create another user's directory.
        assert!(fs::metadata("/tmp").unwrap().permissions().mode() & 0o002 != 0);
        return;
    }
    let tmp = TempDir::new().unwrap();
    fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let run = tmp.path().join("vgpu-0");
    fs::create_dir(&run).unwrap();
    std::os::unix::fs::chown(&run, Some(12345), None).unwrap();
    let output = vgpud().args(["--tenant", "a", "--runtime-dir"]).arg(&run).output().unwrap();
    let (_, log) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("belongs to user 12345") && log.contains("--runtime-dir"), "{log}");
    assert_eq!(fs::read_dir(&run).unwrap().count(), 0, "nothing was put there");
}

#[test]
fn a_directory_whose_lock_somebody_holds_does_not_keep_the_daemon_from_starting() {
    let dir = TempDir::new().unwrap();
    let run = dir.path().join("run");
    let mut held = Vec::new();
    let mut command = vgpud();
    for at in 0..8 {
        let place = run.join("tenants").join(format!("t{at}"));
        fs::create_dir_all(&place).unwrap();
        let lock = fs::File::open(&place).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        held.push(lock);
        command.args(["--tenant", &format!("t{at}")]);
    }
    let begin = Instant::now();
    let child = command.args(["--log", "off", "--runtime-dir"]).arg(&run).spawn().unwrap();
    let _daemon = Guard(child);
    let last = run.join("tenants/t7/vgpud.sock");
    eventually("the last one is served", || Peer::try_hello(&last).is_some());
    eprintln!("eight held directories: served after {:?}", begin.elapsed());
}
