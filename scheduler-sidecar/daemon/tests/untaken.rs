//! Tests: descriptors that a tenant never receives keep no other tenant out. While in flight they count against the
//! daemon's user, unless the kernel exempts it.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use member::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::world::World;
use support::{Peer, eventually, vgpud};
use tempfile::TempDir;
use vgpu_core::protocol::wire::Hello;
use vgpu_core::time::arbiter::Gate;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";
const TENANTS: &str = "[[tenant]]\nname = \"a\"\nweight = 2\n[[tenant]]\nname = \"b\"\n";

/// Limit of the daemon's open descriptors, and so of those in flight.
const MOST: usize = 600;

/// Starts a daemon as this user, with few descriptors and without capabilities; `None`: only root can. Descriptors in
/// flight are counted for each user, so each test has its own user.
fn world(user: u32) -> Option<World> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("vgpud.toml"), TENANTS).unwrap();
    std::os::unix::fs::chown(dir.path(), Some(user), Some(user)).unwrap();
    let mut command = Command::new("prlimit");
    command.args([&format!("--nofile={MOST}:{MOST}"), "--", "setpriv"]);
    command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(vgpud().get_program());
    Some(World::start_by(command, dir, "off", Stdio::inherit()))
}

fn hello() -> String {
    Hello { pid: 1, version: "hoarder".into(), clock: member::now() }.encode().unwrap()
}

/// Says hello many times and receives nothing. `then` runs after each hello.
fn hoard(world: &World, then: impl Fn(&mut Peer)) -> Vec<Peer> {
    let begin = |_| {
        let mut peer = Peer::connect(&world.socket("a"));
        peer.send(hello().as_bytes());
        then(&mut peer);
        peer
    };
    let hoard: Vec<Peer> = (0..MOST / 3 * 2).map(begin).collect();
    hoard.iter().for_each(|peer| is_answered(peer.reader.get_ref()));
    hoard
}

/// Waits until there is something to read.
fn is_answered(stream: &UnixStream) {
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&patience)), Ok(1));
}

/// A member of the other tenant is welcomed, receives its descriptors, and gets the device.
#[track_caller]
fn serves(world: &World) {
    let mut other = Member::hello(&world.socket("b")).join(GPU);
    assert!(matches!(other.runs(1), Gate::Run { .. } | Gate::Open));
}

#[test]
fn welcomes_that_a_tenant_never_takes_keep_nobody_else_out() {
    let Some(world) = world(65_534) else { return };
    let hoard = hoard(&world, |_| {});
    serves(&world);
    drop(hoard);
}

#[test]
fn nor_do_those_of_connections_that_are_half_closed() {
    let Some(world) = world(65_533) else { return };
    let hoard = hoard(&world, |peer| {
        is_answered(peer.reader.get_ref());
        peer.reader.get_ref().shutdown(Shutdown::Write).unwrap();
        // Time for the daemon to notice, so that few such connections are open at the same time.
        std::thread::sleep(Duration::from_millis(2));
    });
    serves(&world);
    drop(hoard);
}

#[test]
fn nor_do_those_of_connections_that_the_daemon_closed() {
    let Some(world) = world(65_532) else { return };
    let hoard = hoard(&world, |peer| {
        peer.send(b"nonsense\n");
    });
    serves(&world);
    drop(hoard);
}

#[test]
fn nor_do_they_where_the_daemon_is_a_root_without_capabilities() {
    let Some(world) = world(0) else { return };
    let hoard = hoard(&world, |_| {});
    serves(&world);
    drop(hoard);
}

/// Processor time used by the daemon, in hundredths of a second.
fn ticks(world: &World) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", world.daemon.child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn what_is_kept_for_them_costs_no_time_and_goes_with_them() {
    let Some(world) = world(65_531) else { return };
    drop(Member::hello(&world.socket("a")));
    let first = Member::hello(&world.socket("b"));
    // The spare descriptors that the daemon's `DescriptorPool` keeps are reopened a little later.
    std::thread::sleep(Duration::from_millis(200));
    let before = world.descriptors();
    for ends in [Shutdown::Write, Shutdown::Both] {
        let over: Vec<UnixStream> = (0..5)
            .map(|_| {
                let mut peer = Peer::connect(&world.socket("a"));
                peer.send(hello().as_bytes());
                let stream = peer.reader.into_inner();
                is_answered(&stream);
                stream.shutdown(ends).unwrap();
                stream
            })
            .collect();
        eventually("they are members no more", || {
            let status = world.status();
            status.tenants.iter().find(|tenant| tenant.name == "a").unwrap().members.is_empty()
        });
        assert!(world.descriptors() >= before + 5, "{} and {before}", world.descriptors());
        let used = ticks(&world);
        std::thread::sleep(Duration::from_secs(3));
        assert!(ticks(&world) - used < 20, "{} hundredths of 3 s", ticks(&world) - used);
        // Half of the peers receive their descriptors and half disconnect. The daemon closes the connections of both.
        for (at, stream) in over.iter().enumerate().filter(|(at, _)| at % 2 == 0) {
            let mut bytes = [0; 4096];
            let read = rustix::io::read(stream, &mut bytes).unwrap();
            assert!(read > 0 && bytes.starts_with(b"{"), "{at}");
        }
        let kept: Vec<UnixStream> =
            over.into_iter().enumerate().filter_map(|(at, stream)| (at % 2 == 0).then_some(stream)).collect();
        eventually("nothing is left", || world.descriptors() <= before);
        drop(kept);
    }
    drop(first);
}
