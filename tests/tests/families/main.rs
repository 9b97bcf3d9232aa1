//! Every kind of device memory at the same time. Several threads in several processes of one tenant act at random.
//! After every act the ledger, the charging rule and the simulated device's record must agree.
//!
//! A run is a list of steps drawn from a seed. Each step has a meaning in every state, so a failing run is shortened by
//! leaving steps out before it is printed.
//!
//! `VGPU_FAMILIES_SEED` runs one seed alone. `VGPU_FAMILIES_WITHOUT` leaves kinds out (`Graph,Pool`).
//! `VGPU_SOAK_SECONDS` continues with new seeds for that time. In `families_after_kills...` members act on their own
//! and are killed; `VGPU_KILLS` sets the number of kills.
//!
//! [`steps`]: the acts and how they are drawn; [`orders`]: the meaning of a step in the present state; [`play`]: sends
//! commands, reads answers, passes memory between processes; [`world`]: the state by the charging rule, and the
//! comparison. Not here: edge cases of single calls (memory.rs).

// Random numbers below a hundred become indices, and bytes become chunk numbers, on 64-bit machines only.
#![allow(clippy::cast_possible_truncation)]

mod orders;
mod play;
mod steps;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use steps::{Act, PROCESSES, Step, THREADS, WEIGHTS, draw_steps};
use vgpu_tests::lab::{charged, short};
use vgpu_tests::{GIB, Lab, MIB};
use world::{Process, World};

/// True if the simulated driver shares memory between processes.
static SHARING: AtomicBool = AtomicBool::new(false);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Acts that the simulated driver supports. A missing one is reported with the driver's answer.
fn present() -> BTreeSet<Act> {
    let mut world = World::new(8 * GIB);
    let mut there: BTreeSet<Act> = WEIGHTS.iter().map(|(act, _)| *act).collect();
    let p = &mut world.processes[0];
    let mut leave_out = |acts: &[Act], answers: &[i64]| {
        if answers.iter().any(|code| *code != 0) {
            eprintln!("the simulated driver answers {answers:?}: without {acts:?}");
            acts.iter().for_each(|act| {
                there.remove(act);
            });
        }
    };
    let mut probe = |acts: &[Act], lines: &[&str]| {
        let answers: Vec<i64> = lines.iter().map(|line| p.ask(0, line).0).collect();
        leave_out(acts, &answers);
    };
    probe(&[Act::Managed], &["managed 1 4096"]);
    probe(&[Act::Array], &["array 2 64 64 0 32 1"]);
    probe(&[Act::Mipmap], &["mipmap 3 64 64 2 32 1"]);
    probe(&[Act::Send, Act::External], &["create 4 2097152 1"]);
    probe(&[Act::External], &["send 4 0", "external 5 2097152"]);
    probe(&[Act::Offer], &["plain 6 4096", "offer 6"]);
    probe(&[Act::Graph], &["graph 7 4096 1"]);
    // Leaves out stream-ordered memory if the driver's pools keep none: such a pool is not a real one.
    let held = p.ask(0, "async 8 1000").0 == 0 && p.ask(0, "pools 0").1[0].is_multiple_of(2 * MIB);
    if !held {
        eprintln!("the simulated driver's pools keep nothing: without them");
        there.retain(|act| !matches!(act, Act::Async | Act::Pool | Act::Pooled | Act::Trim | Act::Graph));
    }
    let without = std::env::var("VGPU_FAMILIES_WITHOUT").unwrap_or_default();
    there.retain(|act| !without.split(',').any(|word| word == format!("{act:?}")));
    SHARING.store(there.contains(&Act::Send), Relaxed);
    there
}

/// Plays steps in a new world. On failure returns the reason and the commands so far.
fn outcome(steps: &[Step], limit: u64, granted: &mut BTreeMap<Act, u64>) -> Result<u64, (String, String)> {
    let mut world = World::new(limit);
    let played = catch_unwind(AssertUnwindSafe(|| world.play(steps)));
    for (act, count) in &world.granted {
        *granted.entry(*act).or_insert(0) += count;
    }
    match played {
        Ok(Ok(())) => Ok(world.refused),
        Ok(Err(why)) => Err((why, world.story)),
        Err(panic) => {
            let why = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
            Err((why, world.story))
        }
    }
}

/// Leaves steps out as long as the run still fails.
fn shorter(mut steps: Vec<Step>, limit: u64) -> Vec<Step> {
    let begin = Instant::now();
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len() && begin.elapsed() < Duration::from_secs(120) {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            if outcome(&fewer, limit, &mut BTreeMap::new()).is_err() {
                steps = fewer;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    steps
}

fn run_seed(seed: u64, acts: &BTreeSet<Act>, granted: &mut BTreeMap<Act, u64>) -> u64 {
    // The limit varies with the seed: some runs always have room, others reach the limit all the time.
    let limit = [2 * GIB, 4 * GIB, 24 * GIB][seed as usize % 3];
    let steps = draw_steps(&mut fastrand::Rng::with_seed(seed), 300, acts);
    match outcome(&steps, limit, granted) {
        Ok(refused) => refused,
        Err((why, story)) => {
            let few = shorter(steps, limit);
            let again = outcome(&few, limit, &mut BTreeMap::new());
            let (why_now, story_now) = again.err().unwrap_or_else(|| (format!("not every time: {why}"), story));
            panic!(
                "seed {seed}, limit {limit}: {why}\n{} steps suffice: {why_now}\n{story_now}\n\
                 again: VGPU_FAMILIES_SEED={seed} cargo test -p vgpu-tests --test families",
                few.len()
            );
        }
    }
}

#[test]
fn ledger_rule_and_truth_agree_after_every_act_of_every_family() {
    let acts = present();
    let seeds = setting("VGPU_FAMILIES_SEED").map_or(1..=9, |seed| seed..=seed);
    let several = seeds.end() > seeds.start();
    let mut granted = BTreeMap::new();
    let refused: u64 = seeds.map(|seed| run_seed(seed, &acts, &mut granted)).sum();
    eprintln!("{refused} refused; granted: {granted:?}");
    if std::env::var_os("VGPU_FAMILIES_WITHOUT").is_none() {
        assert_eq!(acts.len(), WEIGHTS.len(), "the simulated driver lacks a family, see above");
    }
    if several {
        assert!(refused > 0, "the limit was met");
        for act in acts.iter().filter(|act| **act != Act::Kill) {
            assert!(granted.get(act).is_some_and(|count| *count > 0), "{act:?} never happened: {granted:?}");
        }
    }
}

#[test]
fn families_soak_with_new_seeds() {
    let acts = present();
    let seconds = Duration::from_secs(setting("VGPU_SOAK_SECONDS").unwrap_or(5));
    let begin = Instant::now();
    let mut seed = 1_000 + u64::from(std::process::id());
    while begin.elapsed() < seconds {
        run_seed(seed, &acts, &mut BTreeMap::new());
        seed += 1;
    }
}

/// Processes act on their own in several threads and are killed at random instructions: in the middle of calls, and
/// with descriptors in transit. Afterwards the survivors answer, and ledger and device agree to the byte.
#[test]
fn families_after_kills_at_random_instructions_agree_with_the_device() {
    kill_at_random(1 << MODULE | 1 << ARRAY | 1 << MIPMAP, 0);
}

/// As the test above, with modules. The size of a module is measured as growth. Allocations of other threads at the
/// same moment can hide a slab or two that the driver keeps for code. Without concurrent work the size is exact:
/// `overhead.rs`.
#[test]
fn families_after_kills_with_modules_agree_with_the_device_but_for_slabs() {
    kill_at_random(0, 4 * MIB);
}

/// Bit numbers of arrays and modules among the verbs in `programs/families.c`.
const ARRAY: u64 = 4;
const MIPMAP: u64 = 5;
const MODULE: u64 = 10;

/// Kills processes at random and compares. `blur` is the allowed error of a process's overhead in bytes.
fn kill_at_random(without: u64, blur: u64) {
    let kills = setting("VGPU_KILLS").unwrap_or(100);
    let mut draw = fastrand::Rng::with_seed(u64::from(std::process::id()));
    let limit = 2 * GIB + 512 * MIB;
    // Leaves other kinds out, to find the one that fails.
    let without = setting("VGPU_FAMILIES_CHURN_WITHOUT").unwrap_or(without);
    let lab = Lab::new("h200").with("VGPU_MEMORY_LIMIT", format!("{limit}B"));
    let begin = |draw: &mut fastrand::Rng, index: usize| {
        let mut p = Process::start(&lab, index, THREADS);
        churn(&mut p, draw, without);
        p
    };
    // The tenant learns the size of a context from a process without concurrent work. The first context next to working
    // threads is charged its visible growth, until a better measurement exists.
    let mut quiet = Process::start(&lab, 0, THREADS);
    assert_eq!(quiet.ask(0, "context 1").0, 0);
    assert!(quiet.member.finish().success());
    let mut processes: Vec<Process> = (0..PROCESSES).map(|index| begin(&mut draw, index)).collect();
    let mut granted = 0;
    for kill in 0..kills {
        std::thread::sleep(Duration::from_micros(draw.u64(..20_000)));
        let victim = draw.usize(..PROCESSES);
        processes[victim].member.kill();
        processes[victim] = begin(&mut draw, victim);
        // From time to time all processes stop, and everything is compared.
        if kill % 25 == 24 || kill + 1 == kills {
            granted += compare(&lab, &mut processes, limit, kill + 1, blur, without);
            for p in &mut processes {
                p.member.tell("go");
                churn(p, &mut draw, without);
            }
        }
    }
    assert!(granted > kills, "{granted} requests were granted");
    // The last killed processes are not replaced.
    if let Some(mut last) = processes.pop() {
        last.member.kill();
    }
    compare(&lab, &mut processes, limit, kills + 1, blur, without);
    for p in &mut processes {
        assert!(p.member.finish().success());
    }
    assert_eq!(lab.device(0).used, 0, "the device is empty");
}

/// Makes all threads of a process draw their own acts.
fn churn(p: &mut Process, draw: &mut fastrand::Rng, without: u64) {
    for thread in 0..THREADS {
        p.member.tell(&format!("{thread} churn {} {PROCESSES} {without}", draw.u32(..)));
    }
}

/// Stops all processes, waits for their threads, and compares ledger, process lists and the device's record. Returns
/// the number of granted requests.
fn compare(lab: &Lab, processes: &mut [Process], limit: u64, kills: u64, blur: u64, without: u64) -> u64 {
    let (process_blur, blur) = (blur, blur * processes.len() as u64);
    processes.iter_mut().for_each(|p| p.member.tell("stop"));
    let mut granted = 0;
    for p in processes.iter_mut() {
        for _ in 0..THREADS {
            let (_, code, counts) = p.answer();
            assert_eq!(code, 0);
            granted += counts[0];
            assert_eq!(counts[2..], [0, 0], "neither a request nor an end fails for another reason than the limit");
        }
    }
    // The thread that stopped first waited only for its own work, while others still submitted work. A stream-ordered
    // free stays charged until a wait that began after it has ended. So every thread waits, and one of them waits once
    // more.
    for line in ["drain 0", "settle 0", "settle 1", "settle 2", "info 0", "settle 0", "info 0"] {
        processes.iter_mut().for_each(|p| assert_eq!(p.ask(0, line).0, 0, "{line}"));
        // A process keeps memory for a descriptor that nobody received. It releases that at one of its occasional
        // checks.
        std::thread::sleep(Duration::from_millis(60));
    }
    let mut observer = lab.member();
    observer.ok("nvinit");
    let truth = lab.device(0);
    let seen = observer.ok("nvmem 0").number(2);
    for p in &truth.processes {
        let charged = overhead_in_the_ledger(lab, p.pid);
        assert!(
            charged.abs_diff(p.overhead_bytes) <= process_blur,
            "after {kills} kills process {} is charged {charged} of overhead: {}",
            p.pid,
            short(&truth)
        );
    }
    let allocations: u64 = truth.processes.iter().map(|p| p.allocations).sum();
    let slabs = 2 * MIB * (allocations + 2 * truth.processes.len() as u64);
    // A small array is charged by itself, even if it lies in a slab that is already charged.
    let arrays = if without >> ARRAY & 1 == 0 { MIB * allocations } else { 0 };
    let listed: u64 = observer.ok("nvprocs 0").numbers().chunks(2).map(|entry| entry[1]).sum();
    assert!(
        listed <= truth.used + blur + arrays && truth.used <= listed + slabs + blur,
        "after {kills} kills the ledger says {listed}, by process {:?}; the device {}, with pools {:?}: {}",
        observer.ok("nvprocs 0").numbers(),
        truth.used,
        truth.processes.iter().map(|p| (p.pid, p.physical_bytes)).collect::<Vec<_>>(),
        short(&truth)
    );
    assert!(seen <= limit, "{seen} of {limit} are charged");
    assert_eq!(listed.next_multiple_of(2 * MIB), seen, "the list of processes adds up; what is free is whole slabs");
    // Everything is freed. Only contexts are left, to the byte.
    for p in processes.iter_mut() {
        for thread in 0..THREADS {
            assert_eq!(p.ask(thread, "end-all 0").0, 0, "an end");
        }
    }
    std::thread::sleep(Duration::from_millis(60));
    processes.iter_mut().for_each(|p| assert_eq!(p.ask(0, "info 0").0, 0));
    let truth = lab.device(0);
    let (seen, real) = (observer.ok("nvmem 0").number(2), charged(&truth));
    assert!(
        seen.abs_diff(real) <= blur,
        "after {kills} kills and the end of all the ledger says {seen}, the device has {real}: {}",
        short(&truth)
    );
    assert_eq!(truth.used, real, "nothing is left on the device: {}", short(&truth));
    granted
}

/// Overhead charged to a process according to the ledger's file, which has slots of 128 bytes after the first page.
fn overhead_in_the_ledger(lab: &Lab, pid: u32) -> u64 {
    let file = std::fs::read_dir(lab.state()).unwrap().map(|entry| entry.unwrap().path()).next().expect("a ledger");
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let slots = (0..1024).map(|slot| 4096 + 128 * slot);
    slots.filter(|at| word(at + 64) & 0xffff_ffff == u64::from(pid)).map(|at| word(at + 40)).sum()
}
