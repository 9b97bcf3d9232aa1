//! Tests: after it ran out of descriptors, the daemon serves every tenant again.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use member::{Member, now};
use support::world::World;
use support::{Peer, vgpud};
use tempfile::TempDir;
use vgpu_core::protocol::wire::Hello;

#[test]
fn a_tenant_that_takes_all_descriptors_does_not_lose_the_pages_of_another() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), "[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n").unwrap();
    let vgpud = vgpud().get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 48; exec \"$0\" \"$@\""]).arg(vgpud);
    let world = World::start_by(command, dir, "off", Stdio::inherit());
    let [a, b] = ["a", "b"].map(|tenant| world.socket(tenant));
    let first = Member::hello(&b);
    let mut second = UnixStream::connect(&b).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let crowd: Vec<UnixStream> = (0..60).filter_map(|_| UnixStream::connect(&a).ok()).collect();
    std::thread::sleep(Duration::from_millis(100));
    let hello = Hello { pid: std::process::id(), version: "test".into(), clock: now() };
    second.write_all(hello.encode().unwrap().as_bytes()).unwrap();
    // The daemon may answer with a welcome or refuse: both are allowed here.
    second.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = second.read(&mut [0; 4096]);
    drop((crowd, second));
    std::thread::sleep(Duration::from_millis(100));
    let mut third = Member::hello(&b);
    assert_eq!(third.try_join("GPU-1").map(|_| third.welcome.epoch), Ok(first.welcome.epoch));
}

#[test]
fn a_tenant_that_connects_without_end_keeps_no_other_tenant_out() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), "[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n").unwrap();
    let vgpud = vgpud().get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 200; exec \"$0\" \"$@\""]).arg(vgpud);
    let world = World::start_by(command, dir, "off", Stdio::inherit());
    let [a, b] = ["a", "b"].map(|tenant| world.socket(tenant));
    // Each peer says hello, since a silent one would be disconnected.
    let begin = |_| {
        let mut peer = Peer::connect(&a);
        let answer = peer.hello();
        (peer, answer)
    };
    let crowd: Vec<(Peer, String)> = (0..400).map(begin).collect();
    let (last, inside) = (&crowd[399].1, crowd.iter().filter(|(_, answer)| answer.contains("tenant\":")).count());
    assert!(last.contains("keeps its last file descriptors for other tenants"), "{last}");
    assert!(inside >= 60, "{inside} were let in");
    let others: Vec<Member> = (0..20).map(|_| Member::hello(&b)).collect();
    assert_eq!(others.len(), 20);
    assert!(world.status().tenants.iter().any(|tenant| tenant.name == "b" && tenant.members.len() == 20));
}

#[test]
fn tenants_without_members_keep_no_descriptors_from_those_that_have_some() {
    let dir = TempDir::new().unwrap();
    let tenants: String = (0..100).map(|tenant| format!("[[tenant]]\nname = \"t{tenant}\"\n")).collect();
    fs::write(dir.path().join("vgpud.toml"), tenants).unwrap();
    let vgpud = vgpud().get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\""]).arg(vgpud);
    let world = World::start_by(command, dir, "off", Stdio::inherit());
    // 85 processes; the daemon has descriptors for twice as many.
    let sockets: Vec<_> = (0..5).map(|tenant| world.socket(&format!("t{tenant}"))).collect();
    let members: Vec<Member> = (0..17).flat_map(|_| sockets.iter().map(|socket| Member::hello(socket))).collect();
    let inside: usize = world.status().tenants.iter().map(|tenant| tenant.members.len()).sum();
    assert_eq!((members.len(), inside), (85, 85));
}
