//! Tests with peers that behave randomly, for `VGPU_SOAK_SECONDS` (2 s by default): the daemon leaks nothing and
//! other members are not disturbed.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use member::{Member, now};
use support::world::World;
use support::{Daemon, LONG_TIMEOUT, Peer, eventually, terms};
use tempfile::TempDir;
use vgpu_config::change::WrittenChange;
use vgpu_config::schedule::WrittenBooking;
use vgpu_control::{self as control, ChangeLasting, ControlCommand, SubjectName};
use vgpu_core::protocol::page::MemberReport;
use vgpu_core::protocol::wire::JoinDevice;
use vgpu_core::time::arbiter::Gate;

/// Opens a connection that sends random valid, cut, oversized or meaningless data.
fn misbehave(socket: &Path, random: &mut fastrand::Rng, kept: &mut Vec<UnixStream>) {
    let Ok(mut stream) = UnixStream::connect(socket) else { return };
    stream.set_nonblocking(true).unwrap();
    let hello = b"{\"hello\":2,\"pid\":5,\"version\":\"x\",\"pages\":1,\"clock\":0}\n";
    for _ in 0..random.usize(..5) {
        // Errors are ignored: the connection may be closed already, or the daemon busy.
        let _ = match random.usize(..7) {
            0 => stream.write(hello),
            1 => stream.write(&hello[..random.usize(..hello.len())]),
            2 => stream.write(&hello.repeat(200)),
            3 => stream.write(&[b'x'; 5000][..random.usize(..5000)]),
            4 => stream.write(&(0..64).map(|_| random.u8(..)).collect::<Vec<u8>>()),
            5 => stream.shutdown(std::net::Shutdown::Write).map(|()| 0),
            _ => stream.write(b"\n{\"hello\":2,\"ask\":\"status\"}\n"),
        };
    }
    if random.usize(..4) == 0 {
        kept.push(stream);
    }
    if kept.len() > 100 {
        kept.swap_remove(random.usize(..100));
    }
}

fn time() -> Duration {
    let seconds = std::env::var("VGPU_SOAK_SECONDS").ok().map_or(2, |text| text.parse().expect("VGPU_SOAK_SECONDS"));
    Duration::from_secs(seconds)
}

#[test]
fn soak_peers_that_do_anything_leak_nothing_and_disturb_nobody() {
    let time = time();
    let dir = TempDir::new().unwrap();
    let admin = dir.path().join("admin.sock");
    let daemon = Daemon::start(&dir.path().join("a/s"), &["--admin-socket", admin.to_str().unwrap(), "--log", "off"]);
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count();
    // A daemon that is busy with other administrators gives no number yet.
    let members = || control::ask_status(&admin).ok().map(|status| status.tenants[0].members.len());
    // Files that the first member makes the daemon open stay open.
    let mut first = daemon.connect();
    assert!(first.terms().is_ok() && first.is_served());
    drop(first);
    eventually("the daemon is alone", || members() == Some(0));
    // The connection of the last request may not be closed yet.
    let settled = |_| {
        std::thread::sleep(Duration::from_millis(2));
        descriptors()
    };
    // The record opens its files later.
    std::thread::sleep(Duration::from_millis(1500));
    let before = (0..50).map(settled).min().unwrap();
    let mut good = daemon.connect();
    let terms_of_a = Ok(terms("a", Some(1 << 30), Some(300)));
    assert_eq!(good.terms(), terms_of_a);

    let until = Instant::now() + time;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let sockets = [daemon.socket.clone(), admin.clone()];
            scope.spawn(move || {
                let seed = u64::from(std::process::id()) << 8 | thread;
                println!("seed {seed}");
                let mut random = fastrand::Rng::with_seed(seed);
                let mut kept = Vec::new();
                while Instant::now() < until {
                    misbehave(&sockets[usize::from(random.usize(..10) == 0)], &mut random, &mut kept);
                }
            });
        }
        while Instant::now() < until {
            assert!(good.is_served());
            let mut newcomer = daemon.connect();
            assert_eq!(newcomer.terms(), terms_of_a);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    drop::<Peer>(good);
    eventually("everybody is forgotten", || members() == Some(0));
    eventually("every descriptor is back", || descriptors() <= before);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB");
    assert_eq!(daemon.stop().0, Some(0));
}

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// The device that others use, some that do not exist, and invalid names.
const NAMES: [&str; 6] = [GPU, "MIG-00000000-0000-0000-0000-000000000001", "GPU-2", "", "*", "\u{e9}"];

/// A number that a member may write: small, plausible, or huge.
fn number(random: &mut fastrand::Rng) -> u64 {
    match random.usize(..4) {
        0 => 0,
        1 => now().wrapping_add(random.usize(..1 << 30) as u64).wrapping_sub(1 << 29),
        2 => random.usize(..1 << 20) as u64,
        _ => u64::MAX - random.usize(..1 << 10) as u64,
    }
}

/// One random member with pages. It joins random devices, writes random values to any slot, rings and sends invalid
/// lines. It ends at any moment, and sometimes keeps the bell.
fn live(socket: &Path, random: &mut fastrand::Rng, bells: &mut Vec<std::os::fd::OwnedFd>) {
    let mut member = Member::hello(socket);
    for _ in 0..random.usize(..8) {
        let line = JoinDevice { device: NAMES[random.usize(..NAMES.len())].into(), busy: number(random) };
        let answer = member.ask(&line.encode().unwrap());
        if answer.is_empty() {
            break;
        }
        let slot = &member.report.slots[random.usize(..member.report.slots.len())];
        let near = &member.report.slots[random.usize(..4)];
        for slot in [slot, near] {
            match random.usize(..4) {
                0 => slot.report_all(&MemberReport {
                    busy: number(random),
                    finished: number(random),
                    submitted: number(random),
                    launched: number(random),
                    known: number(random),
                    in_flight: (random.usize(..2) == 0).then(|| number(random)),
                    last_launch: number(random),
                    since: number(random),
                }),
                1 => slot.report_launch(number(random), number(random), number(random), number(random)),
                2 => {
                    let _ = slot.begin_waiting();
                }
                _ => slot.stop_waiting(),
            }
        }
        for _ in 0..random.usize(..20) {
            let _ = rustix::io::write(&member.bell, &1_u64.to_ne_bytes());
        }
        if random.usize(..8) == 0 {
            let nonsense: Vec<u8> = (0..random.usize(..64)).map(|_| random.u8(..)).collect();
            let _ = member.lines.get_mut().write_all(&nonsense);
            break;
        }
    }
    if random.usize(..16) == 0 {
        bells.push(member.bell.try_clone().unwrap());
    }
    if bells.len() > 20 {
        bells.swap_remove(random.usize(..20));
    }
}

/// Only one tenant misbehaves. Its neighbour gets the device again and again, and all resources are freed.
#[test]
fn soak_members_with_pages_that_say_anything_leak_nothing_and_disturb_no_other_tenant() {
    let time = time();
    let world = World::start("[[tenant]]\nname = \"good\"\nweight = 2\n[[tenant]]\nname = \"bad\"\n");
    let members = || world.status().tenants.iter().map(|tenant| tenant.members.len()).sum::<usize>();
    // Files that the first member makes the daemon open stay open.
    drop(Member::hello(&world.socket("bad")).join(GPU));
    drop(Member::hello(&world.socket("good")).join(GPU));
    eventually("the daemon is alone", || members() == 0);
    let settled = |_| {
        std::thread::sleep(Duration::from_millis(2));
        world.descriptors()
    };
    // The record opens its files later.
    std::thread::sleep(Duration::from_millis(1500));
    let before = (0..50).map(settled).min().unwrap();
    let until = Instant::now() + time;
    let mut leases = 0;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let socket = world.socket("bad");
            scope.spawn(move || {
                let seed = u64::from(std::process::id()) << 8 | thread;
                println!("seed {seed}");
                let (mut random, mut bells) = (fastrand::Rng::with_seed(seed), Vec::new());
                while Instant::now() < until {
                    live(&socket, &mut random, &mut bells);
                }
            });
        }
        let mut good = Member::hello(&world.socket("good")).join(GPU);
        while leases == 0 || Instant::now() < until {
            assert!(matches!(good.runs(1_000_000), Gate::Run { .. } | Gate::Open));
            good.done(1_000_000);
            leases += 1;
        }
    });
    println!("{leases} leases");
    eventually("everybody is forgotten", || members() == 0);
    eventually("every descriptor is back", || world.descriptors() <= before);
    let World { daemon, dir: _dir } = world;
    assert_eq!(daemon.stop().0, Some(0));
}

/// Decisions of administrators, by a key for each subject: overrides of weights, bookings and cordons.
type Decisions = BTreeMap<String, String>;

fn decisions_of(world: &World) -> Decisions {
    // The daemon is busy while it reads its files.
    let ask = |ask: &ControlCommand| {
        let mut answer = None;
        eventually("the daemon answers", || {
            answer = control::ask_daemon(&world.admin(), ask).ok();
            answer.is_some()
        });
        answer.unwrap()
    };
    let status = ask(&ControlCommand::Status).status.unwrap();
    let weights = status.tenants.iter().filter(|tenant| tenant.devices[0].weight != 1);
    let weights = weights.map(|tenant| (format!("weight of {}", tenant.name), tenant.devices[0].weight.to_string()));
    let cordons = status.cordons.iter().map(|cordon| (format!("cordon of {}", cordon.subject), "holds".to_owned()));
    let bookings = ask(&ControlCommand::Bookings).bookings.unwrap();
    let bookings = bookings.into_iter().map(|status| (format!("booking {}", status.booking.name), "made".to_owned()));
    weights.chain(cordons).chain(bookings).collect()
}

/// A random command, with the key of its subject and the value that it gives; `None`: it takes the value away.
fn decide_something(
    random: &mut fastrand::Rng,
    now: &Decisions,
    next: u64,
) -> (ControlCommand, String, Option<String>) {
    let tenant = ["a", "b"][random.usize(..2)].to_owned();
    let lasting = ChangeLasting { seconds: Some(3_600), reason: Some("soak".into()) };
    let known = |prefix: &str| now.keys().find_map(|key| key.strip_prefix(prefix)).map(str::to_owned);
    let subject = [tenant.clone(), GPU.to_owned()][random.usize(..2)].clone();
    let cordon = format!("cordon of {subject}");
    let is_new = !now.contains_key(&cordon);
    let subject = SubjectName { name: subject, is_tenant: false };
    match (random.usize(..6), known("booking ")) {
        (0, _) => (ControlCommand::Unset { tenant: tenant.clone() }, format!("weight of {tenant}"), None),
        (1, Some(booking)) => (ControlCommand::Cancel { booking: booking.clone() }, format!("booking {booking}"), None),
        (1 | 2, _) => {
            let name = format!("b{next}");
            let (from, until) = (4_000_000_000, 4_000_003_600);
            let sm_request = Some("1".to_owned());
            let booking = WrittenBooking { name, tenant, from, until, sm_request, ..WrittenBooking::default() };
            let key = format!("booking {}", booking.name);
            (ControlCommand::Book { booking: Box::new(booking) }, key, Some("made".to_owned()))
        }
        (3, _) if is_new => {
            (ControlCommand::Cordon { subject, evacuation: None, lasting }, cordon, Some("holds".to_owned()))
        }
        (3, _) => (ControlCommand::Uncordon { subject }, cordon, None),
        _ => {
            let weight = random.usize(2..1_000).to_string();
            let change = WrittenChange { weight: Some(weight.clone()), ..WrittenChange::default() };
            let key = format!("weight of {tenant}");
            (ControlCommand::Set { tenant, device: None, change: Box::new(change), lasting }, key, Some(weight))
        }
    }
}

/// The daemon is killed at random moments while an administrator decides. Each decision that was acknowledged holds
/// under the next daemon; the one that was not holds wholly or not at all.
#[test]
fn soak_no_decision_that_was_acknowledged_is_lost_however_often_the_daemon_is_killed() {
    let until = Instant::now() + time();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let tenant = |name: &str| format!("[[tenant]]\nname = \"{name}\"\nmemory_limit = \"1GiB\"\n");
    let device = format!("[[device]]\nid = \"{GPU}\"\nmemory = \"80GiB\"\n");
    let file = [device, tenant("a"), tenant("b")].concat();
    let mut world = World::start(&file);
    let (mut expected, mut kills, mut acknowledged) = (Decisions::new(), 0, 0_u64);
    while kills < 3 || Instant::now() < until {
        let pid = rustix::process::Pid::from_child(&world.daemon.child);
        let pause = Duration::from_micros(random.u64(..40_000));
        let mut pending = None;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(pause);
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            });
            let from = Instant::now();
            while pending.is_none() && from.elapsed() < LONG_TIMEOUT {
                let (ask, key, value) = decide_something(&mut random, &expected, acknowledged);
                match control::ask_daemon(&world.admin(), &ask) {
                    Ok(_) => {
                        acknowledged += 1;
                        match value {
                            Some(value) => drop(expected.insert(key, value)),
                            None => drop(expected.remove(&key)),
                        }
                    }
                    // A refusal changes nothing, and is one of a daemon that lives.
                    Err(why) if why.kind() == std::io::ErrorKind::Other => {}
                    Err(_) => pending = Some((key, value)),
                }
            }
        });
        world.daemon.child.wait().unwrap();
        kills += 1;
        let World { dir, daemon } = world;
        drop(daemon);
        world = World::start_by(support::vgpud(), dir, "off", std::process::Stdio::inherit());
        let found = decisions_of(&world);
        let (key, value) = pending.unwrap();
        let mut done = expected.clone();
        match value {
            Some(value) => drop(done.insert(key, value)),
            None => drop(done.remove(&key)),
        }
        assert!(found == expected || found == done, "kill {kills}:\n{found:?}\ninstead of\n{expected:?}\nor\n{done:?}");
        expected = found;
    }
    println!("{kills} kills, {acknowledged} decisions acknowledged");
}
