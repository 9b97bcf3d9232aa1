//! The daemon under peers that do anything at all, for `VGPU_SOAK_SECONDS` (2 s unless told): nothing leaks,
//! nobody else notices.

mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use scheduler_sidecar::control;
use support::{Daemon, Peer, eventually};
use tempfile::TempDir;

const TERMS: &str = "{\"hello\":1,\"tenant\":\"a\",\"memory_limit\":1073741824,\"sm_limit\":30}\n";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }
}

/// One peer's life.
fn misbehave(socket: &Path, random: &mut Random, kept: &mut Vec<UnixStream>) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    stream.set_nonblocking(true).unwrap();
    let hello = b"{\"hello\":1,\"pid\":5,\"version\":\"x\"}\n";
    for _ in 0..random.below(5) {
        // Whatever the kernel says: the peer may be closed already, or the daemon busy.
        let _ = match random.below(7) {
            0 => stream.write(hello),
            1 => stream.write(&hello[..random.below(hello.len())]),
            2 => stream.write(&hello.repeat(200)),
            3 => stream.write(&[b'x'; 5000][..random.below(5000)]),
            4 => stream.write(&(0..64).map(|_| random.below(256).to_le_bytes()[0]).collect::<Vec<u8>>()),
            5 => stream.shutdown(std::net::Shutdown::Write).map(|()| 0),
            _ => stream.write(b"\n{\"hello\":1,\"ask\":\"status\"}\n"),
        };
    }
    if random.below(4) == 0 {
        kept.push(stream);
    }
    if kept.len() > 100 {
        kept.swap_remove(random.below(100));
    }
}

#[test]
fn soak_peers_that_do_anything_leak_nothing_and_disturb_nobody() {
    let seconds = std::env::var("VGPU_SOAK_SECONDS").ok().map_or(2, |text| text.parse().expect("VGPU_SOAK_SECONDS"));
    let dir = TempDir::new().unwrap();
    let admin = dir.path().join("admin.sock");
    let daemon = Daemon::start(&dir.path().join("a/s"), &["--admin-socket", admin.to_str().unwrap(), "--log", "off"]);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count();
    let members = || control::ask_status(&admin).unwrap().tenants[0].members.len();
    eventually("the daemon is alone", || members() == 0);
    // The question just asked may still be on its way out.
    let settled = |_| {
        std::thread::sleep(Duration::from_millis(2));
        descriptors()
    };
    let before = (0..50).map(settled).min().unwrap();
    let mut good = daemon.connect();
    assert_eq!(good.hello(), TERMS);

    let until = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let sockets = [daemon.socket.clone(), admin.clone()];
            scope.spawn(move || {
                let seed = 0x9e37_79b9_7f4a_7c15 ^ (u64::from(std::process::id()) << 8) ^ thread;
                println!("seed {seed}");
                let mut random = Random(seed);
                let mut kept = Vec::new();
                while Instant::now() < until {
                    misbehave(&sockets[usize::from(random.below(10) == 0)], &mut random, &mut kept);
                }
            });
        }
        while Instant::now() < until {
            assert_eq!(good.hello(), TERMS);
            let mut newcomer = daemon.connect();
            assert_eq!(newcomer.hello(), TERMS);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    drop::<Peer>(good);
    eventually("everybody is forgotten", || members() == 0);
    eventually("every descriptor is back", || descriptors() == before);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB");
    assert_eq!(daemon.stop().0, Some(0));
}
