//! Every kind of failure at the same time and at random, with checks after every round.
//!
//! Members are killed at any instruction, stopped, continued, forked and refused memory. The daemon is killed, stopped
//! and started again. Limits change while programs run, and pages receive arbitrary bytes. One tenant's members
//! overwrite their ledger, remove it, and run another program on their connection.
//!
//! After every round no member of the other tenants hangs, every number equals the simulated device's truth, and every
//! limit is in force. At the end nothing is left.
//!
//! One number determines all steps, and a failure prints it: `VGPU_SEED=... cargo test -p vgpu-tests --test chaos`
//! repeats the same steps. `VGPU_CHAOS_SECONDS` (5) and `VGPU_CHAOS_STEPS` (unlimited) set the length.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use vgpu_core::memory::ledger::{LEDGER_BYTES, LEDGER_HEADER_BYTES};
use vgpu_tests::daemon::{Daemon, Plan};
use vgpu_tests::peer::Peer;
use vgpu_tests::program::{Kind, compile};
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB, Member, OUT_OF_MEMORY};

const TENANTS: [&str; 3] = ["a", "b", "c"];
/// Tenant whose members lie. Its own numbers need not be right; all other tenants keep every promise.
const LIAR: &str = "d";
const MOST_LIARS: usize = 3;
/// Bytes of one request of a lying member. The device has room for all such requests of a run in addition to the other
/// tenants' limits.
const LIE: u64 = 64 * MIB;
const MOST_MEMBERS: usize = 9;
const ROUND: u64 = 25;

/// A process under the library, and its state as this test knows it.
struct Actor {
    member: Member,
    tenant: usize,
    held: Vec<u64>,
    /// The command whose answer is still outstanding.
    owed: Option<String>,
    stopped: bool,
}

impl Actor {
    fn go_on(&mut self) {
        self.member.signal(libc::SIGCONT);
        self.stopped = false;
    }

    /// Reads the outstanding answer, which must arrive in time and report success.
    fn settle(&mut self) {
        if self.stopped {
            self.go_on();
        }
        if let Some(command) = self.owed.take() {
            let answer = self.member.answer();
            assert_eq!(answer.code, 0, "{command}: {answer:?}; {}", self.member.errors());
        }
    }
}

/// Limits of a tenant, from the file or from `vgpu set`.
#[derive(Clone, Debug)]
struct Limits {
    memory: u64,
    ceiling: u64,
    weight: u64,
}

struct World {
    actors: Vec<Actor>,
    liars: Vec<Member>,
    daemon: Daemon,
    /// Limits in the file. `vgpu set` overrides them until the file is read again.
    file: Vec<Limits>,
    memory: Vec<u64>,
    paused: [bool; 3],
    device: String,
    labs: Vec<Lab>,
    base: PathBuf,
    log: RefCell<Vec<String>>,
    seed: u64,
    step: u64,
    done: [u64; 17],
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log.borrow();
            let last = &log[log.len().saturating_sub(60)..];
            for tenant in TENANTS {
                eprintln!("{}", vgpu_tests::text(&self.daemon.vgpu(&["explain", tenant])));
            }
            eprintln!("VGPU_SEED={} step {}; the last steps:\n{}", self.seed, self.step, last.join("\n"));
        }
    }
}

impl World {
    fn new(seed: u64) -> World {
        let file: Vec<Limits> = [(16, 100, 1), (8, 100, 2), (6, 40, 1)]
            .map(|(gib, ceiling, weight)| Limits { memory: gib * GIB, ceiling, weight })
            .to_vec();
        let machine = Lab::new("h200");
        let (device, base) = (machine.device(0).uuid, machine.path().join("d"));
        std::fs::create_dir(&base).unwrap();
        let daemon = Daemon::start(&base, &plan(&device, &file));
        let memory = file.iter().map(|limits| limits.memory).collect();
        let mut labs = vec![machine];
        // All tenants share one machine. Each has a state directory of its own, as containers do.
        for tenant in TENANTS.into_iter().chain([LIAR]) {
            let state = base.join(format!("state-{tenant}"));
            std::fs::create_dir(&state).unwrap();
            let lab = Lab::new("h200").with("VGPU_SIM_DIR", labs[0].gpu()).with("VGPU_STATE_DIR", state);
            labs.push(lab.with("VGPU_SOCKET", daemon.socket(tenant)));
        }
        let (actors, log, paused) = (Vec::new(), RefCell::default(), [false; 3]);
        World {
            actors,
            liars: Vec::new(),
            daemon,
            file,
            memory,
            paused,
            device,
            labs,
            base,
            log,
            seed,
            step: 0,
            done: [0; 17],
        }
    }

    fn note(&self, words: String) {
        self.log.borrow_mut().push(format!("{} {words}", self.step));
    }

    fn command(&self, tenant: usize) -> Command {
        let mut command = self.labs[tenant + 1].command(compile("member", Kind::Program, &[]));
        command.arg("dlsym");
        command
    }

    /// Bytes that the simulated device really gave to a tenant.
    fn truth(&self, tenant: usize) -> u64 {
        let device = self.labs[0].device(0);
        let ours = |pid| self.actors.iter().any(|actor| actor.tenant == tenant && actor.member.pid == pid);
        device.processes.iter().filter(|p| ours(p.pid)).map(|p| p.slab_bytes + p.overhead_bytes).sum()
    }

    /// Returns to the memory limits of the file.
    fn as_written(&mut self) {
        self.memory = self.file.iter().map(|limits| limits.memory).collect();
    }

    fn one(&mut self, random: &mut fastrand::Rng) {
        // Draws the same number of random values for every kind of step, so that the seed determines the run.
        let (what, who, more, much) =
            (random.u64(..17), random.u64(..1 << 20), random.u64(..1 << 20), random.u64(..1 << 20));
        self.done[usize::try_from(what).unwrap()] += 1;
        let tenant = usize::try_from(more % 3).unwrap();
        let chosen = usize::try_from(who).unwrap().checked_rem(self.actors.len());
        let free = chosen.filter(|at| self.actors[*at].owed.is_none() && !self.actors[*at].stopped);
        match (what, chosen, free) {
            // A member of a paused tenant would wait for its first launch.
            (0 | 1, _, _) if self.actors.len() < MOST_MEMBERS && !self.paused[tenant] => {
                self.note(format!("a member of {}", TENANTS[tenant]));
                let mut member = Member::start(&mut self.command(tenant));
                member.ok("init");
                let mut code = member.code("retain 0");
                if code == 0 {
                    // The first launch loads the code while there is room for it.
                    code = member.code("launch 10000");
                }
                assert!(code == 0 || code == OUT_OF_MEMORY, "{code}: {}", member.errors());
                if code == 0 {
                    self.actors.push(Actor { member, tenant, held: Vec::new(), owed: None, stopped: false });
                }
            }
            (2, Some(at), _) => {
                self.note(format!("kill {}", self.actors[at].member.pid));
                self.actors.swap_remove(at).member.kill();
            }
            (3..=5, _, Some(at)) => {
                let bytes = 1 + much * 3 % (2 * GIB / 1024) * 1024;
                self.note(format!("{} takes {bytes}", self.actors[at].member.pid));
                let actor = &mut self.actors[at];
                let answer = actor.member.ask(&format!("alloc {bytes}"));
                match answer.code {
                    0 => actor.held.push(answer.number(0)),
                    code => assert_eq!(code, OUT_OF_MEMORY, "{}", actor.member.errors()),
                }
            }
            (6, _, Some(at)) => {
                let actor = &mut self.actors[at];
                let place = usize::try_from(much).unwrap().checked_rem(actor.held.len());
                if let Some(pointer) = place.map(|place| actor.held.swap_remove(place)) {
                    actor.member.ok(&format!("free {pointer}"));
                }
            }
            (7, _, Some(at)) => {
                self.note(format!("{} takes all", self.actors[at].member.pid));
                let actor = &mut self.actors[at];
                let mut bytes = 4 * GIB;
                while bytes >= 64 * MIB && actor.held.len() < 200 {
                    let answer = actor.member.ask(&format!("alloc {bytes}"));
                    match answer.code {
                        0 => actor.held.push(answer.number(0)),
                        code => {
                            assert_eq!(code, OUT_OF_MEMORY, "{}", actor.member.errors());
                            bytes /= 2;
                        }
                    }
                }
            }
            (8 | 9, _, Some(at)) => {
                let command = format!("work {} {} {}", 20_000 + much * 4, 10 + who % 60, 1 + more % 16);
                self.note(format!("{} {command}", self.actors[at].member.pid));
                self.actors[at].member.tell(&command);
                self.actors[at].owed = Some(command);
            }
            (10, Some(at), _) => {
                let verb = if self.actors[at].stopped { "goes on" } else { "is stopped" };
                self.note(format!("{} {verb}", self.actors[at].member.pid));
                if self.actors[at].stopped {
                    self.actors[at].go_on();
                } else {
                    self.labs[0].stop(&self.actors[at].member);
                    self.actors[at].stopped = true;
                }
                std::thread::sleep(Duration::from_millis(much % 20));
            }
            (11, _, Some(at)) => {
                self.note(format!("{} forks", self.actors[at].member.pid));
                let actor = &mut self.actors[at];
                actor.member.ok("fork");
                // The driver's answer in a child of a process that has used it is not checked; the call must return.
                let _ = actor.member.code("info");
                actor.member.tell("exit 0");
                actor.member.answer();
            }
            (12, _, _) => match (much % 3, self.daemon.runs()) {
                (0, true) => {
                    self.note("the daemon ends".into());
                    assert_eq!(self.daemon.stop(), Some(0), "{}", self.daemon.log());
                }
                (_, true) => {
                    self.note("the daemon is killed".into());
                    self.daemon.kill();
                }
                (_, false) => {
                    self.note("the daemon starts".into());
                    self.again();
                }
            },
            (13, _, _) => {
                let limits = Limits {
                    memory: (4 + much % 16) * GIB,
                    ceiling: if much & 1 == 0 { 100 } else { 20 + who % 80 },
                    weight: 1 + who % 5,
                };
                self.note(format!("the file says {limits:?} for {}", TENANTS[tenant]));
                self.file[tenant] = limits;
                self.daemon.write(&plan(&self.device, &self.file));
                if self.daemon.runs() {
                    self.daemon.reload();
                    self.as_written();
                }
            }
            (14, _, _) if self.daemon.runs() => self.administrate(tenant, much, who),
            (16, _, _) => self.lie(who, more, much, random),
            (15, _, _) if self.daemon.runs() && much % 2 == 0 => self.scribble(tenant, random),
            _ => {}
        }
    }

    fn administrate(&mut self, tenant: usize, much: u64, who: u64) {
        let name = TENANTS[tenant];
        let words: &[&str] = match much % 4 {
            0 if self.paused[tenant] => &["resume", name],
            0 => &["pause", name],
            1 => &["set", name, "--weight", "7"],
            2 => &["set", name, "--sm-limit", "50"],
            _ => {
                self.memory[tenant] = (4 + who % 12) * GIB;
                &["set", name, "--memory-limit", &format!("{}", self.memory[tenant])]
            }
        };
        self.note(words.join(" "));
        self.paused[tenant] ^= much.is_multiple_of(4);
        self.daemon.tell(words);
    }

    /// A hostile member of a tenant writes random words into its report.
    fn scribble(&mut self, tenant: usize, random: &mut fastrand::Rng) {
        self.note(format!("{} scribbles", TENANTS[tenant]));
        let socket = self.daemon.socket(TENANTS[tenant]);
        let mut peer = Peer::connect(&socket).unwrap();
        let pages = peer.pages().unwrap();
        for _ in 0..200 {
            let said = pages.said(usize::try_from(random.u64(..12)).unwrap());
            let mut word = || if random.u64(..3) == 0 { u64::MAX - random.u64(..3) } else { random.u64(..1 << 40) };
            let (finished, submitted, last_launch, since) = (word(), word(), word(), word());
            let busy = word() % PAID;
            said.report_all(&vgpu_core::protocol::page::MemberReport {
                busy,
                finished,
                submitted,
                in_flight: Some(word()),
                last_launch,
                since,
                launched: word(),
                known: word(),
            });
            if random.u64(..4) == 0 && said.begin_waiting() {
                pages.ring().unwrap();
            }
        }
    }

    /// A lying member starts, exits, takes memory, forges its ledger, or runs another program that keeps the
    /// connection. Its calls may be refused, but they must be answered.
    fn lie(&mut self, who: u64, more: u64, much: u64, random: &mut fastrand::Rng) {
        let chosen = usize::try_from(who).unwrap().checked_rem(self.liars.len());
        match (more % 6, chosen) {
            (0 | 1, _) if self.liars.len() < MOST_LIARS => {
                let mut member = Member::start(&mut self.labs[4].command(compile("escape", Kind::Program, &[])));
                let code = member.code("begin");
                self.note(format!("a liar, {}: {code}", member.pid));
                if code == 0 {
                    self.liars.push(member);
                }
            }
            (2, Some(at)) => {
                let liar = &mut self.liars[at];
                let code = liar.code(&format!("alloc {LIE}"));
                let pid = liar.pid;
                self.note(format!("liar {pid} takes {LIE}: {code}"));
            }
            (3, Some(at)) => {
                let liar = &mut self.liars[at];
                liar.ok("become bare");
                let code = (liar.code("begin"), liar.code(&format!("alloc {LIE}")));
                let pid = liar.pid;
                self.note(format!("liar {pid} is another program: {code:?}"));
            }
            (4, _) => self.forge(much, random),
            (5, Some(at)) => {
                let mut liar = self.liars.swap_remove(at);
                self.note(format!("kill liar {}", liar.pid));
                liar.kill();
            }
            _ => {}
        }
    }

    /// Zeroes the ledger's first page, writes random bytes anywhere in it, or removes it.
    fn forge(&self, much: u64, random: &mut fastrand::Rng) {
        let kept = self.daemon.room(LIAR).join("vgpud.sock.ledgers");
        let files = std::fs::read_dir(kept).into_iter().flatten().map(|entry| entry.unwrap().path());
        for path in files.filter(|path| path.metadata().is_ok_and(|meta| meta.len() == LEDGER_BYTES as u64)) {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            match much % 3 {
                0 => file.write_all_at(&[0; LEDGER_HEADER_BYTES], 0).unwrap(),
                1 => {
                    // Overwrites words within twice the header's size: mostly the header and the slots in use.
                    for _ in 0..64 {
                        let word =
                            if random.u64(..2) == 0 { random.u64(..1 << 40) } else { u64::MAX - random.u64(..9) };
                        let place = random.u64(..2 * LEDGER_HEADER_BYTES as u64 / 8) * 8;
                        file.write_all_at(&word.to_le_bytes(), place).unwrap();
                    }
                }
                _ => std::fs::remove_file(&path).unwrap(),
            }
            self.note(format!("a forged ledger: {}", much % 3));
        }
    }

    /// Starts the daemon if it does not run. A started daemon knows only the file, not later `vgpu set` changes.
    fn again(&mut self) {
        if !self.daemon.runs() {
            self.daemon.again();
            self.as_written();
            self.paused = [false; 3];
        }
    }

    /// Ends all disturbances, and then requires that every number is right.
    fn judge(&mut self) {
        self.again();
        for (tenant, paused) in self.paused.iter_mut().enumerate().filter(|(_, paused)| **paused) {
            self.daemon.tell(&["resume", TENANTS[tenant]]);
            *paused = false;
        }
        self.actors.iter_mut().for_each(Actor::settle);
        // Loaded code counts too, so every member launches before the comparison.
        self.actors.iter_mut().for_each(|actor| drop(actor.member.ok("launch 10000")));
        for (tenant, name) in TENANTS.iter().enumerate() {
            let (held, limit) = (self.truth(tenant), self.memory[tenant]);
            for actor in self.actors.iter_mut().filter(|actor| actor.tenant == tenant) {
                // A member that lost its daemon connects again at a launch.
                let begin = Instant::now();
                let seen = loop {
                    let seen = actor.member.info();
                    if seen == (limit.saturating_sub(held), limit) {
                        break seen;
                    }
                    let words = actor.member.errors();
                    assert!(
                        begin.elapsed() < LONG_TIMEOUT,
                        "{name}: {seen:?}, but {held} of {limit} are held; {words}"
                    );
                    actor.member.ok("launch 10000");
                    std::thread::sleep(Duration::from_millis(20));
                };
                // A request below half a slab may fit into a slab that is charged already, so ask for a whole one.
                let code = actor.member.code(&format!("alloc {}", (seen.0 + 1).max(2 * MIB)));
                assert_eq!(code, OUT_OF_MEMORY, "{name}: more than is free: {seen:?}");
            }
            let first = self.actors.iter_mut().find(|actor| actor.tenant == tenant);
            if let Some(actor) = first.filter(|_| limit > held + 4 * MIB) {
                let pointer = actor.member.alloc((limit - held) / 2);
                actor.member.ok(&format!("free {pointer}"));
            }
        }
        let begin = Instant::now();
        loop {
            let (told, seen) = self.members();
            let ours = [0, 1, 2].map(|tenant| self.actors.iter().filter(|actor| actor.tenant == tenant).count());
            if told == ours {
                return;
            }
            assert!(begin.elapsed() < LONG_TIMEOUT, "{ours:?} members are alive, the daemon knows {told:?}: {seen}");
            self.actors.iter_mut().for_each(|actor| drop(actor.member.ok("launch 10000")));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Number of each tenant's members as the daemon reports them, and its complete answer.
    fn members(&self) -> ([usize; 3], String) {
        let text = self.daemon.tell(&["status", "--json"]);
        let seen: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let count = |name: &str| {
            let tenant = seen["tenants"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name));
            tenant.and_then(|one| one["members"].as_array()).map_or(0, Vec::len)
        };
        (TENANTS.map(count), text)
    }

    fn end(mut self) {
        self.actors.drain(..).for_each(|mut actor| actor.member.kill());
        self.liars.drain(..).for_each(|mut liar| liar.kill());
        let device = self.labs[0].device(0);
        assert_eq!((device.used, device.processes.len()), (0, 0), "{device:?}");
        self.daemon.again();
        let begin = Instant::now();
        let fresh = || {
            let dir = self.base.join("fresh");
            let _ = std::fs::create_dir(&dir);
            let fresh = Daemon::start(&dir, &plan(&self.device, &self.file));
            // The usage record opens its files with a delay.
            std::thread::sleep(Duration::from_millis(1500));
            fresh.descriptors()
        };
        let fresh = fresh();
        while self.daemon.descriptors() > fresh + SHELF {
            let open = self.daemon.descriptors();
            assert!(
                begin.elapsed() < LONG_TIMEOUT,
                "{open} descriptors are open, {fresh} in a daemon that served nobody"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(self.daemon.stop(), Some(0));
        for tenant in TENANTS.into_iter().chain([LIAR]) {
            assert!(!self.daemon.socket(tenant).exists());
            let left = std::fs::read_dir(self.daemon.room(tenant)).map_or(0, Iterator::count);
            assert!(left <= 2, "{tenant}: the terms and the ledgers, and nothing else");
        }
    }
}

/// Most device time that a lying report claims, in ns. A tenant is charged for claimed usage, up to ten seconds at its
/// weight. Next to a tenant of seven times the weight and under a ceiling of a fifth that takes minutes, which is no
/// hang.
const PAID: u64 = 1 << 20;

/// Descriptors that a daemon opens for its first member and keeps: those of the descriptor pools for pages and for
/// ledgers in transit, with reserved numbers.
const SHELF: usize = 10;

fn plan(device: &str, limits: &[Limits]) -> Plan {
    let tenants = TENANTS.iter().zip(limits).map(|(name, Limits { memory, ceiling, weight })| {
        let mut lines = format!("memory_limit = {memory}\nweight = {weight}\n");
        if *ceiling < 100 {
            lines.push_str(&format!("sm_limit = {ceiling}\n"));
        }
        (String::from(*name), lines)
    });
    let liars = (String::from(LIAR), "memory_limit = \"4GiB\"\n".to_owned());
    let tenants = tenants.chain([liars]).collect();
    Plan { device: device.into(), time: "arbitrate = true".into(), tenants }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

#[test]
fn whatever_happens_nobody_hangs_and_every_number_is_true() {
    let drawn = || u64::try_from(Instant::now().elapsed().as_nanos()).unwrap() ^ u64::from(std::process::id()) << 20;
    let seed = setting("VGPU_SEED").unwrap_or_else(|| vgpu_tests::peer::now() ^ drawn()) & (u64::MAX >> 16) | 1;
    let time = Duration::from_secs(setting("VGPU_CHAOS_SECONDS").unwrap_or(5));
    let most = setting("VGPU_CHAOS_STEPS");
    eprintln!("chaos: seed {seed}");
    let (mut random, mut world, begin) = (fastrand::Rng::with_seed(seed), World::new(seed), Instant::now());
    while most.map_or_else(|| begin.elapsed() < time, |most| world.step < most) {
        for _ in 0..ROUND {
            world.step += 1;
            world.one(&mut random);
        }
        world.judge();
    }
    eprintln!("chaos: {} steps in {:?}, each kind {:?}", world.step, begin.elapsed(), world.done);
    world.end();
}
