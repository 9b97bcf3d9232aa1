//! The state of all processes by the charging rule, and its comparison with the ledger and the device's record.

use crate::steps::{Act, PROCESSES, THREADS};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use vgpu_tests::lab::short;
use vgpu_tests::program::{Kind as Build, compile};
use vgpu_tests::{LONG_TIMEOUT, Lab, MIB, Member};

/// An object that a process holds, under its number in that process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Thing {
    /// Memory that is charged by the rule for itself alone. `context` is set if it belongs to a context other than the
    /// primary one.
    Own {
        bytes: u64,
        /// Address. A request below a slab is charged with its slab.
        at: u64,
        plain: bool,
        context: Option<u64>,
    },
    /// Memory inside a pool, charged with the pool's size. `pool` is the pool's number, or `None` for the device's
    /// default pool.
    InPool {
        pool: Option<u64>,
        bytes: u64,
    },
    Pool,
    /// An array of `bytes`, before any rounding.
    Array {
        bytes: u64,
    },
    Handle {
        body: usize,
    },
    Range {
        chunks: Vec<Option<(usize, u64)>>,
        next: u64,
    },
    Context,
    /// Code that the device counts as overhead.
    Module,
    Graph,
    /// Plain memory of another process, or a buffer of another API.
    Opened {
        body: usize,
    },
}

/// A piece of memory that handles, mappings and processes hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    pub bytes: u64,
    pub exportable: bool,
    /// True if the memory was ever passed to another process.
    pub shared: bool,
    /// The exporting process, if the memory was passed by an IPC handle. The exporter must not free it while others
    /// have it open: that is undefined behaviour.
    pub exporter: Option<usize>,
}

#[derive(Clone, Debug)]
pub enum Effect {
    Make(u64, Thing),
    End(u64),
    Map { range: u64, at: u64, body: usize, chunks: u64 },
    Unmap { range: u64, from: u64, to: u64 },
    Nothing,
}

/// A command to one thread, and the change of state if it succeeds.
#[derive(Clone, Debug)]
pub struct Order {
    pub process: usize,
    pub thread: usize,
    pub line: String,
    pub effect: Effect,
    /// Most bytes that success can add to the charges.
    pub cost: u64,
    /// Size of the body that success creates, and whether it can be exported.
    pub body: Option<(u64, bool)>,
}

pub struct Process {
    pub member: Member,
    pub things: BTreeMap<u64, Thing>,
    pub next: u64,
}

pub struct World {
    pub lab: Lab,
    pub limit: u64,
    pub processes: Vec<Process>,
    pub bodies: Vec<Body>,
    pub observer: Member,
    pub story: String,
    pub refused: u64,
    pub granted: BTreeMap<Act, u64>,
}

/// Unit in which the driver takes device memory for plain requests.
pub const SLAB: u64 = 2 * MIB;

pub fn grains(bytes: u64) -> u64 {
    bytes.next_multiple_of(512)
}

pub fn slabs(bytes: u64) -> u64 {
    bytes.next_multiple_of(SLAB)
}

impl World {
    pub fn new(limit: u64) -> World {
        let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", format!("{limit}B"));
        let mut observer = lab.member();
        observer.ok("nvinit");
        let processes = (0..PROCESSES).map(|index| Process::start(&lab, index, THREADS)).collect();
        World {
            lab,
            limit,
            processes,
            bodies: Vec::new(),
            observer,
            story: String::new(),
            refused: 0,
            granted: BTreeMap::new(),
        }
    }

    /// A new number for an object of a process.
    pub fn number(&mut self, process: usize) -> u64 {
        let p = &mut self.processes[process];
        p.next += 1;
        p.next
    }

    /// Picks one of the objects that `wanted` accepts, by a random number.
    pub fn pick(&self, process: usize, random: u64, busy: &Busy, wanted: impl Fn(&Thing) -> bool) -> Option<u64> {
        let all: Vec<u64> = self.processes[process]
            .things
            .iter()
            .filter(|(number, thing)| wanted(thing) && !busy.contains(&(process, **number)))
            .map(|(number, _)| *number)
            .collect();
        if all.is_empty() { None } else { Some(all[random as usize % all.len()]) }
    }

    pub fn thing(&self, process: usize, number: u64) -> &Thing {
        &self.processes[process].things[&number]
    }

    /// Numbers of the objects that belong to a context.
    pub fn inside(&self, process: usize, number: u64) -> Vec<u64> {
        let things = self.processes[process].things.iter();
        let inside =
            things.filter(|(_, thing)| matches!(thing, Thing::Own { context, .. } if *context == Some(number)));
        inside.map(|(number, _)| *number).collect()
    }

    pub fn told(&mut self, process: usize, thread: usize, line: &str) -> Result<(i64, Vec<u64>), String> {
        let answer = self.processes[process].ask(thread, line);
        let _ = writeln!(self.story, "  {process}: {thread} {line} -> {answer:?}");
        Ok(answer)
    }

    /// Bytes that the ledger must show: charges by the rule, pool sizes, and the device's overhead.
    pub fn expected(&mut self) -> Result<u64, String> {
        let (mut bodies, mut shared) = (BTreeSet::new(), BTreeSet::new());
        let mut sum = 0;
        for (process, p) in self.processes.iter().enumerate() {
            for thing in p.things.values() {
                match thing {
                    Thing::Own { bytes, at, .. } if *bytes < SLAB => drop(shared.insert((process, at / SLAB))),
                    Thing::Array { bytes } if *bytes < SLAB / 2 => sum += grains(*bytes),
                    Thing::Own { bytes, .. } | Thing::Array { bytes } => sum += slabs(*bytes),
                    Thing::Handle { body } | Thing::Opened { body } => {
                        bodies.insert(*body);
                    }
                    Thing::Range { chunks, .. } => bodies.extend(chunks.iter().flatten().map(|(body, _)| *body)),
                    _ => {}
                }
            }
        }
        sum += SLAB * shared.len() as u64;
        sum += bodies.iter().map(|body| self.bodies[*body].bytes).sum::<u64>();
        for p in &mut self.processes {
            let settled = p.ask(0, "settle 0");
            let (code, held) = p.ask(0, "pools 0");
            if (settled.0, code) != (0, 0) {
                return Err(format!("settle: {}, pools: {code}", settled.0));
            }
            sum += held.iter().sum::<u64>();
        }
        let truth = self.lab.device(0);
        Ok(sum + truth.processes.iter().map(|p| p.overhead_bytes).sum::<u64>())
    }

    /// Checks that ledger, rule and device record agree.
    pub fn check(&mut self) -> Result<(), String> {
        let expected = self.expected()?;
        let truth = self.lab.device(0);
        let (code, info) = self.processes[0].ask(1, "info 0");
        if code != 0 {
            return Err(format!("cuMemGetInfo answered {code}"));
        }
        let used = info[1] - info[0];
        // Free memory is reported in whole slabs; the limits are multiples of a slab.
        if used != slabs(expected) {
            let signed = i128::from(used) - i128::from(expected);
            return Err(format!(
                "the ledger says {used}, by the rule it is {expected} ({signed:+}): {}",
                short(&truth)
            ));
        }
        if used > self.limit {
            return Err(format!("{used} of {} are charged", self.limit));
        }
        // The device's record: live bytes piece by piece, and whole slabs for them.
        let (mut live, mut arrays, mut large, mut graphs) = (0, 0, 0, 0);
        let mut bodies = BTreeSet::new();
        for thing in self.processes.iter().flat_map(|p| p.things.values()) {
            match thing {
                Thing::Own { bytes, .. } | Thing::Array { bytes } => {
                    live += grains(*bytes);
                    large += u64::from(*bytes >= MIB);
                    arrays += u64::from(matches!(thing, Thing::Array { .. }));
                }
                Thing::InPool { bytes, .. } => live += bytes,
                Thing::Graph => graphs += 1,
                Thing::Handle { body } | Thing::Opened { body } => drop(bodies.insert(*body)),
                Thing::Range { chunks, .. } => bodies.extend(chunks.iter().flatten().map(|(body, _)| *body)),
                Thing::Pool | Thing::Context | Thing::Module => {}
            }
        }
        let (shared, own): (Vec<usize>, Vec<usize>) = bodies.iter().partition(|body| self.bodies[**body].shared);
        let sum = |bodies: &[usize]| bodies.iter().map(|body| self.bodies[*body].bytes).sum::<u64>();
        live += sum(&own);
        let real: u64 = truth.processes.iter().map(|p| p.live_bytes).sum();
        // Array rows are padded. Memory in a graph is known only to the graph. Shared memory counts as a request of its
        // maker while the maker holds it.
        let (least, most) = (live, live + sum(&shared) + 2 * MIB * arrays);
        if graphs == 0 && !(least..=most).contains(&real) {
            return Err(format!("{live} bytes live by the rule, on the device {real}: {}", short(&truth)));
        }
        let small: u64 = truth.processes.iter().map(|p| p.small_slab_bytes).sum();
        let slabs = 2 * MIB * (large + arrays + bodies.len() as u64) + small;
        if truth.used + 2 * MIB * arrays < used || truth.used > used + slabs {
            return Err(format!("the ledger says {used}, with slabs it is {}", short(&truth)));
        }
        let seen = self.observer.ok("nvmem 0").numbers();
        if seen != [info[1], info[0], used] {
            return Err(format!("NVML says {seen:?}, cuMemGetInfo {info:?}"));
        }
        Ok(())
    }

    /// Checks as `check` does, with retries: the library looks for dead members only from time to time.
    pub fn settled_after_death(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            match self.check() {
                Err(_) if begin.elapsed() < Duration::from_secs(2) => std::thread::sleep(Duration::from_millis(20)),
                outcome => return outcome,
            }
        }
    }
}

pub type Busy = BTreeSet<(usize, u64)>;

impl Process {
    /// Starts process `index`. Retries while other processes hold the memory that its context needs.
    pub fn start(lab: &Lab, index: usize, threads: usize) -> Process {
        let begin = Instant::now();
        loop {
            let mut c = lab.command(compile("families", Build::Program, &[]));
            let mut member = Member::start_silent(c.arg(lab.path()).arg(index.to_string()).arg(threads.to_string()));
            let line = member.line();
            if line.starts_with("ready ") {
                return Process { member, things: BTreeMap::new(), next: 0 };
            }
            assert_eq!(line, "! initialisation: 2", "{}", member.errors());
            assert!(begin.elapsed() < LONG_TIMEOUT, "no room for a context in {LONG_TIMEOUT:?}");
        }
    }

    /// Reads an answer: thread, code, numbers.
    pub fn answer(&mut self) -> (usize, i64, Vec<u64>) {
        let line = self.member.line();
        let mut words = line.split(' ');
        let thread = words.next().and_then(|word| word.parse().ok());
        let code = words.next().and_then(|word| word.parse().ok());
        let (Some(thread), Some(code)) = (thread, code) else { panic!("{line}; {}", self.member.errors()) };
        (thread, code, words.filter_map(|word| word.parse().ok()).collect())
    }

    pub fn ask(&mut self, thread: usize, line: &str) -> (i64, Vec<u64>) {
        self.member.tell(&format!("{thread} {line}"));
        let (_, code, words) = self.answer();
        (code, words)
    }
}
