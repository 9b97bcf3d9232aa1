//! Tests: a tenant cannot harm others with its bell, an open file that the daemon shares with it.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use member::Member;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use support::world::World;
use support::{Daemon, Peer};
use vgpu_core::time::arbiter::Gate;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";
const TENANTS: &str = "[[tenant]]\nname = \"a\"\nweight = 2\n[[tenant]]\nname = \"b\"\n";

/// Processor time used by the daemon, in hundredths of a second.
fn ticks(daemon: &Daemon) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn up(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn down(bell: &OwnedFd) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}

fn blocking(bell: &OwnedFd, blocks: bool) {
    let flags = fcntl_getfl(bell).unwrap();
    fcntl_setfl(bell, if blocks { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK }).unwrap();
}

#[test]
fn a_bell_that_somebody_keeps_and_rings_after_he_left_does_not_keep_the_daemon_busy() {
    let world = World::start(TENANTS);
    let (daemon, [a, b]) = (&world.daemon, ["a", "b"].map(|tenant| world.socket(tenant)));
    for _ in 0..3 {
        let member = Member::hello(&a);
        let kept = member.bell.try_clone().unwrap();
        drop(member);
        std::thread::sleep(Duration::from_millis(100));
        up(&kept);
        let before = ticks(daemon);
        std::thread::sleep(Duration::from_secs(1));
        let used = ticks(daemon) - before;
        assert!(used < 8, "{used} hundredths of a second of processor time in a second in which nobody asked anything");
    }
    assert!(Peer::try_hello(&b).is_some());
}

#[test]
fn a_bell_that_is_made_to_block_and_taken_down_by_somebody_else_does_not_stop_the_daemon() {
    let world = World::start(TENANTS);
    let [a, b] = ["a", "b"].map(|tenant| world.socket(tenant));
    let hostile = Member::hello(&a).join(GPU);
    let bell = hostile.member.bell.as_fd().try_clone_to_owned().unwrap();
    for _ in 0..200 {
        // Ring more often than the daemon handles at once, so that it reads the bell again later, when the counter is
        // already reset.
        (0..100).for_each(|_| up(&bell));
        blocking(&bell, false);
        down(&bell);
        blocking(&bell, true);
        std::thread::sleep(Duration::from_micros(300));
    }
    let mut other = Member::hello(&b).join(GPU);
    assert!(matches!(other.runs(1), Gate::Run { .. } | Gate::Open));
}

/// The library rings by adding 0, which a full counter accepts, even if the eventfd was made blocking.
#[test]
fn a_ring_of_nothing_is_heard_and_never_blocks() {
    let world = World::start(TENANTS);
    for (tenant, full) in [("a", false), ("b", true)] {
        let member = Member::hello(&world.socket(tenant)).join(GPU);
        let bell = member.member.bell.try_clone().unwrap();
        if full {
            blocking(&bell, true);
            rustix::io::write(&bell, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        let _ = member.report().begin_waiting();
        let (done, rang) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            rustix::io::write(&bell, &0_u64.to_ne_bytes()).unwrap();
            let _ = done.send(());
        });
        rang.recv_timeout(support::LONG_TIMEOUT).expect("the ring blocks");
        member.until("a lease", |gate| matches!(gate, Gate::Run { .. } | Gate::Open));
    }
}

#[test]
fn a_wish_behind_a_flood_of_rings_is_heard() {
    let world = World::start(TENANTS);
    let (daemon, a) = (&world.daemon, world.socket("a"));
    let mut member = Member::hello(&a).join(GPU);
    for _ in 0..50 {
        (0..500).for_each(|_| up(&member.member.bell));
        assert!(matches!(member.runs(1), Gate::Run { .. } | Gate::Open));
        member.done(1);
    }
    // The delay that the flood caused ends.
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks(daemon);
    std::thread::sleep(Duration::from_secs(1));
    assert!(ticks(daemon) - before < 8);
}
