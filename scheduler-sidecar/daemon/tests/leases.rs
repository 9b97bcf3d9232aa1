//! Tests of members that share the daemon's pages: who gets the device when, changes of terms, and the end of a
//! lease.

#[path = "../../support/member.rs"]
mod member;
#[path = "../../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use member::{Member, On, now};
use rustix::process::Signal;
use support::world::World;
use support::{LONG_TIMEOUT, Peer, eventually};
use tempfile::TempDir;
use vgpu_core::protocol::page::{GONE_EPOCH, MemberReport, UnreadSlot};
use vgpu_core::time::arbiter::Gate;
use vgpu_core::time::gate::loss::OnLoss;
use vgpu_core::units::bytes::Bytes;
use vgpu_core::units::share::Share;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";
const MS: u64 = 1_000_000;

const TWO: &str = "
[[tenant]]
name = \"a\"
memory_limit = \"10GiB\"
weight = 3
on_loss = \"block\"

[[tenant]]
name = \"b\"
sm_limit = 60
";

impl World {
    fn hello(&self, tenant: &str) -> Member {
        Member::hello(&self.socket(tenant))
    }

    fn on(&self, tenant: &str) -> On {
        self.hello(tenant).join(GPU)
    }
}

fn runs(gate: &Gate) -> bool {
    matches!(gate, Gate::Run { .. })
}

fn shut(gate: &Gate) -> bool {
    matches!(gate, Gate::Wait | Gate::Cap { .. })
}

#[test]
fn a_member_is_welcomed_with_pages_and_its_slot_says_its_terms() {
    let world = World::start(TWO);
    let member = world.hello("a");
    let welcome = &member.welcome;
    assert_eq!((welcome.terms.tenant.as_str(), welcome.on_loss), ("a", OnLoss::Block));
    assert_eq!(welcome.terms.memory_limit, Some(Bytes(10 << 30)));
    assert!(welcome.member > 0 && welcome.clock <= now());
    let number = welcome.member;
    let a = member.join(GPU);
    let allowed = a.allowed();
    assert_eq!((allowed.memory, allowed.terms.weight, allowed.terms.ceiling), (Some(Bytes(10 << 30)), 3, None));
    assert_eq!((allowed.member, allowed.device), (number, vgpu_core::limits::tenant::hash64(GPU.as_bytes())));
    assert_eq!((allowed.terms.quantum, allowed.in_flight), (Some(4 * MS), 2 * MS));
    let b = world.on("b").allowed();
    assert_eq!((b.memory, b.terms.ceiling), (None, Share::from_percent(60)));
    // Joining twice is the same as once.
    let mut a = a;
    assert_eq!(a.member.try_join(GPU), Ok(a.slot));
    assert_ne!(world.on("a").slot, a.slot, "a slot is one member's");
}

#[test]
fn the_page_beats_as_long_as_somebody_listens() {
    let world = World::start(TWO);
    let a = world.hello("a");
    let first = a.beat.last_beat().unwrap();
    assert!(now() - first.time < 1_000 * MS, "fresh");
    eventually("ten beats", || a.beat.last_beat().unwrap().count >= first.count + 10);
    drop(a);
    std::thread::sleep(Duration::from_millis(600));
    let again = world.hello("b");
    let age = now() - again.beat.last_beat().unwrap().time;
    assert!(age < 250 * MS, "{age} ns old when it was handed out");
}

#[test]
fn two_tenants_have_the_device_in_turn() {
    let world = World::start(TWO);
    let (mut a, b) = (world.on("a"), world.on("b"));
    assert_eq!(a.gate(), Gate::Wait, "nobody is let in unasked");
    let Gate::Run { until: u64::MAX, exclusive: true, .. } = a.runs(MS) else { panic!("{:?}", a.gate()) };
    b.wish();
    // The lease gets an end, then the gate closes; work in flight is drained.
    a.until("an end", |gate| shut(gate) || matches!(gate, Gate::Run { until, .. } if *until != u64::MAX));
    a.until("the gate shuts", shut);
    assert!(shut(&b.gate()), "not beside what drains");
    a.done(MS);
    let gate = b.until("b is next", runs);
    let Gate::Run { ceiling: Some((share, _)), .. } = gate else { panic!("{gate:?}") };
    assert_eq!(Some(share), Share::from_percent(60));
    assert!(shut(&a.gate()), "one at a time");
    drop(b);
    a.wish();
    a.until("a again", runs);
}

#[test]
fn a_member_that_dies_inside_its_lease_blocks_nobody() {
    let world = World::start(TWO);
    let (mut a, b) = (world.on("a"), world.on("b"));
    a.runs(60_000 * MS);
    b.wish();
    a.until("the gate shuts", shut);
    let begin = Instant::now();
    drop(a);
    b.until("b is let in", runs);
    assert!(begin.elapsed() < LONG_TIMEOUT);
}

#[test]
fn a_changed_limit_is_in_force_for_members_that_are_there() {
    let world = World::start(TWO);
    let (a, mut b) = (world.on("a"), world.on("b"));
    b.runs(MS);
    let changed = TWO.replace("10GiB", "5GiB").replace("sm_limit = 60", "sm_limit = 25");
    let begin = Instant::now();
    world.reload(&changed);
    while a.allowed().memory != Some(Bytes(5 << 30)) {
        assert!(begin.elapsed() < LONG_TIMEOUT);
        std::hint::spin_loop();
    }
    eprintln!("a file changed: in force after {:?}", begin.elapsed());
    let known = |grant: &vgpu_core::protocol::page::LaunchGrant| match grant.gate {
        Gate::Run { ceiling: Some((share, _)), .. } => Some(share) == Share::from_percent(25),
        // In every other state, b's lease under the earlier ceiling has ended.
        _ => true,
    };
    b.until_all("b runs by its new ceiling or not at all", known);
    assert_eq!(b.allowed().terms.ceiling, Share::from_percent(25));
}

#[test]
fn without_leases_a_device_is_open_until_somebody_has_a_ceiling() {
    let tenants = "[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\nmemory_limit = \"1GiB\"\n";
    let plain = &format!("[time]\narbitrate = false\n{tenants}");
    let world = World::start(plain);
    let (a, b) = (world.on("a"), world.on("b"));
    a.until("open", |gate| *gate == Gate::Open);
    b.until("open", |gate| *gate == Gate::Open);
    world.reload(&format!("{plain}sm_limit = 30\n"));
    a.until("leases", shut);
    b.wish();
    b.until("b's lease", runs);
    world.reload(plain);
    a.until("open again", |gate| *gate == Gate::Open);
    b.until("open again", |gate| *gate == Gate::Open);
    world.reload(tenants);
    a.until("leases by default", shut);
    b.wish();
    b.until("b's lease", runs);
    world.reload(plain);
    a.until("open again", |gate| *gate == Gate::Open);
    b.until("open again", |gate| *gate == Gate::Open);
}

#[test]
fn a_device_that_the_tenant_may_not_use_is_refused_and_the_member_stays() {
    let numbered = World::start("[[device]]\nid = 3\nmemory = \"1GiB\"\n[[tenant]]\nname = \"a\"\n");
    let words = numbered.hello("a").try_join(GPU).unwrap_err();
    assert!(words.contains("does not know which device is 3; name devices by their UUID"), "{words}");
    let device = format!("[[device]]\nid = \"{GPU}\"\nmemory = \"1GiB\"\n");
    let world = World::start(&format!("{device}[[tenant]]\nname = \"a\"\n"));
    let mut a = world.hello("a");
    let words = a.try_join("GPU-ffffffff-0000-0000-0000-000000000000").unwrap_err();
    assert!(words.ends_with("is not one of the devices of tenant a"), "{words}");
    let a = a.join(&GPU.to_ascii_uppercase());
    a.wish();
    a.until("its lease", runs);
}

#[test]
fn a_daemon_that_stops_ends_its_boards_and_the_next_one_has_another_epoch() {
    let World { dir, mut daemon } = World::start(TWO);
    let world = |dir, daemon| World { dir, daemon };
    let socket = dir.path().join("run/tenants/a/vgpud.sock");
    let mut a = Member::hello(&socket).join(GPU);
    a.runs(MS);
    let epoch = a.member.welcome.epoch;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    assert_eq!(a.grant(), Err(UnreadSlot::Ended { epoch: GONE_EPOCH }));
    assert_eq!(a.member.beat.last_beat().unwrap().epoch, GONE_EPOCH);
    drop(world(TempDir::new().unwrap(), daemon));
    let next = World::start_in(dir, TWO);
    assert!(next.hello("a").welcome.epoch > epoch);
}

#[test]
fn a_killed_daemons_members_see_no_beat_and_are_taken_in_by_the_next_one() {
    let World { dir, daemon } = World::start(TWO);
    let socket = dir.path().join("run/tenants/a/vgpud.sock");
    let a = Member::hello(&socket).join(GPU);
    daemon.kill();
    let last = a.member.beat.last_beat().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(a.member.beat.last_beat().unwrap(), last);
    let next = World::start_in(dir, TWO);
    let mut again = next.on("a");
    again.runs(MS);
    assert_ne!(again.member.welcome.epoch, a.member.welcome.epoch);
}

#[test]
fn whatever_a_tenant_writes_the_others_get_the_device() {
    let world = World::start(TWO);
    let hostile = world.on("a");
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state
    };
    hostile.wish();
    hostile.until("a lease", runs);
    for round in 0..2_000 {
        let said = MemberReport {
            busy: noise(),
            finished: noise(),
            submitted: noise(),
            launched: noise(),
            known: noise(),
            in_flight: [None, Some(u64::MAX), Some(noise())][round % 3],
            last_launch: noise(),
            since: noise(),
        };
        hostile.report().report_all(&said);
        let _ = hostile.report().begin_waiting();
        hostile.member.ring();
    }
    let b = world.on("b");
    b.wish();
    b.until("b is let in", runs);
}

#[test]
fn a_flood_of_rings_keeps_nobody_else_waiting() {
    let world = World::start(TWO);
    let loud = world.on("a");
    let bell = loud.member.bell.try_clone().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = stop.clone();
    let ringing = std::thread::spawn(move || {
        while !flag.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
        }
    });
    let mut b = world.on("b");
    for _ in 0..20 {
        b.runs(MS / 10);
        b.done(MS / 10);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    ringing.join().unwrap();
    loud.wish();
    loud.until("its own ring is heard too, later", runs);
}

#[test]
fn a_tenant_that_joins_without_end_is_told_where_the_end_is() {
    let world = World::start(TWO);
    let mut a = world.hello("a");
    let refused = (0..100).map(|at| a.try_join(&format!("GPU-{at}"))).find_map(Result::err).unwrap();
    assert!(refused.contains("named 16 such devices already"), "{refused}");
    // Another tenant joins a real device and gets it.
    let mut b = world.on("b");
    b.runs(MS);
}

#[test]
fn a_line_that_is_no_join_ends_only_its_own_connection() {
    let world = World::start(TWO);
    let mut a = world.on("a");
    let b = world.on("b");
    let answer = a.member.ask("{\"join\":7}\n");
    assert!(answer.contains("error"), "{answer}");
    assert_eq!(a.member.ask(""), "", "closed");
    eventually("its slot is nobody's", || matches!(a.grant(), Err(UnreadSlot::Nobody { .. })));
    let mut early = Peer::connect(&world.socket("a"));
    let words = early.send(format!("{{\"join\":\"{GPU}\",\"busy\":0}}\n").as_bytes()).line();
    assert!(words.contains("comes before a join"), "{words}");
    b.wish();
    b.until("b is served", runs);
}

#[test]
fn a_member_costs_one_descriptor_and_a_tenants_pages_little_more_than_one() {
    let names: Vec<String> = (0..24).map(|at| format!("t{at}")).collect();
    let tenants: String = names.iter().map(|name| format!("[[tenant]]\nname = \"{name}\"\n")).collect();
    let world = World::start(&format!("[[tenant]]\nname = \"a\"\n{tenants}"));
    let open = || world.descriptors();
    let before = open();
    let members: Vec<Member> = names.iter().chain(&names).map(|name| world.hello(name)).collect();
    let more = open() - before;
    // Descriptors: one for each connection, a bell for each tenant, two for every twelve tenants, and four spare ones.
    assert!(more <= members.len() + 24 + 6 + 4, "{more} for 24 tenants and {} members", members.len());
    drop(members);
    eventually("all of it comes back", || open() <= before + 2 + 4);
}
