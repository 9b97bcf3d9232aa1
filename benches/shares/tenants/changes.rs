//! How long it takes until a changed limit is in force, told the daemon as `vgpu set` and `vgpu pause` tell it, without
//! the time that a new process takes.
//!
//! Memory is what a living process is shown; time is what the device does, by its own record, sampled.

use super::cases::terms;
use super::client;
use super::figures::{CHANGE_MS, Times, Verdict};
use super::run::{Program, World, tenant_name};
use crate::place::Place;
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vgpu_tests::daemon::Daemon;

/// How often the device's record is looked at.
const LOOK: Duration = Duration::from_micros(200);
/// Kernels of the program whose time is changed.
const KERNEL_NS: u64 = 1_000_000;
/// A device that did nothing for so long was stopped: at 5 % a kernel follows another after 19 ms.
const STILL_NS: u64 = 12_000_000;
/// A change that is not seen for so long is lost.
const MOST_NS: u64 = 1_000_000_000;

/// How long changes took, ms.
#[derive(Serialize)]
pub struct Change {
    /// What it is chosen by.
    pub name: &'static str,
    /// What was changed, and when it counts as in force.
    pub what: &'static str,
    /// How long it took.
    pub times: Times,
    /// Changes that were never seen.
    pub lost: usize,
    /// On the 99th percentile.
    pub verdict: Verdict,
}

impl Change {
    fn of(name: &'static str, what: &'static str, times: &[Option<f64>]) -> Change {
        let seen: Vec<f64> = times.iter().flatten().copied().collect();
        let (lost, times) = (times.len() - seen.len(), Times::of_ms(&seen));
        let verdict = if lost > 0 { Verdict::Missed } else { Verdict::of(times.p99 - CHANGE_MS, 0.0) };
        Change { name, what, times, lost, verdict }
    }
}

/// Says a line to the daemon and waits for its answer.
fn ask(daemon: &Daemon, line: &str) -> Result<(), String> {
    let tell = || {
        let mut admin = UnixStream::connect(daemon.admin())?;
        writeln!(admin, "{{\"hello\":2,{line}}}")?;
        let mut answer = String::new();
        BufReader::new(admin).read_line(&mut answer)?;
        Ok(answer)
    };
    let answer: std::io::Result<String> = tell();
    match answer {
        Ok(answer) if !answer.is_empty() && !answer.contains("\"error\"") => Ok(()),
        Ok(answer) => Err(format!("the daemon refuses {line}: {answer}")),
        Err(why) => Err(format!("the daemon does not answer {line}: {why}")),
    }
}

fn set(daemon: &Daemon, key: &str, value: &str) -> Result<(), String> {
    let tenant = tenant_name(0);
    ask(daemon, &format!("\"ask\":\"set\",\"tenant\":\"{tenant}\",\"change\":{{\"{key}\":\"{value}\"}}"))
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A memory limit, so often.
///
/// # Errors
/// The run cannot be made.
pub fn memory(place: &Place, times: usize) -> Result<Change, String> {
    let mut world = World::start(place, Some(&[terms("")]), &[Program::watching(0)])?;
    world.begin()?;
    std::thread::sleep(Duration::from_millis(200));
    let mut asked = Vec::new();
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    for round in 0..times {
        let gib = if round % 2 == 0 { 4 } else { 8 };
        asked.push((vgpu_sim::now(), gib << 30));
        set(daemon, "memory_limit", &format!("{gib}GiB"))?;
        // Not in step with anything.
        std::thread::sleep(Duration::from_micros(15_000 + 370 * (round as u64 % 17)));
    }
    std::thread::sleep(Duration::from_millis(100));
    let seen = client::pairs(&world.clients[0].end()?);
    let next = |at: usize| asked.get(at + 1).map_or(u64::MAX, |one| one.0);
    let took = asked.iter().enumerate().map(|(at, &(moment, bytes))| {
        let first = seen.iter().find(|one| one.0 > moment && one.0 < next(at) && one.1 == bytes);
        first.map(|one| milliseconds(one.0 - moment))
    });
    let what = "memory_limit 8 <-> 4 GiB: until cuMemGetInfo of a living process says so (asked every 50 us)";
    Ok(Change::of("changes/memory", what, &took.collect::<Vec<_>>()))
}

/// Looks at the device until `done` of the work done since (ns) and the moment of the last of it.
fn until(world: &World, done: impl Fn(u64, u64, u64) -> bool) -> Option<(u64, u64)> {
    let (began, before) = (vgpu_sim::now(), world.busy_ns());
    let (mut work, mut last) = (0, began);
    loop {
        let (busy, now) = (world.busy_ns() - before, vgpu_sim::now());
        if busy != work {
            (work, last) = (busy, now);
        }
        if done(work, last, now) {
            return Some((last, now));
        }
        if now > began + MOST_NS {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// From before `change` until the moment that `seen` finds, ms.
fn step(
    change: impl FnOnce() -> Result<(), String>,
    seen: impl FnOnce() -> Option<u64>,
) -> Result<Option<f64>, String> {
    let moment = vgpu_sim::now();
    change()?;
    Ok(seen().map(|end| milliseconds(end.saturating_sub(moment))))
}

/// The moment at which the device has done 2 ms more.
fn works(world: &World) -> Option<u64> {
    until(world, |work, _, _| work >= 2 * KERNEL_NS).map(|(_, now)| now)
}

/// The end of the last work before the device rests.
fn stops(world: &World) -> Option<u64> {
    until(world, |_, last, now| now > last + STILL_NS).map(|(last, _)| last)
}

/// Long enough for a change to settle, and in step with nothing.
fn settle(round: usize) {
    std::thread::sleep(Duration::from_micros(150_000 + 3_700 * (round as u64 % 13)));
}

/// A ceiling that gets wider and narrower, so often each.
///
/// # Errors
/// The run cannot be made.
pub fn ceiling(place: &Place, times: usize) -> Result<Vec<Change>, String> {
    let mut world = World::start(place, Some(&[terms("sm_limit = 5")]), &[Program::busy(0, &[KERNEL_NS])])?;
    world.begin()?;
    std::thread::sleep(Duration::from_millis(1500));
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    let (mut wider, mut narrower) = (Vec::new(), Vec::new());
    for round in 0..times {
        // Behind a kernel, so that the old ceiling allows nothing for a while.
        until(&world, |work, last, now| work > 0 && now > last + 1_000_000);
        wider.push(step(|| set(daemon, "sm_limit", "90"), || works(&world))?);
        settle(round);
        narrower.push(step(|| set(daemon, "sm_limit", "5"), || stops(&world))?);
        settle(round);
    }
    let what = "sm_limit 5 -> 90: until 2 ms of work are done, which at 5 % take 20 ms at least";
    let wider = Change::of("changes/wider", what, &wider);
    let what = "sm_limit 90 -> 5: until the end of the last kernel before the first rest of 12 ms";
    Ok(vec![wider, Change::of("changes/narrower", what, &narrower)])
}

/// A tenant without a ceiling that is paused and goes on, so often. It waits for each of its kernels: with an open gate the
/// driver's queue is long, and what is in it is done.
///
/// # Errors
/// The run cannot be made.
pub fn pause(place: &Place, times: usize) -> Result<Vec<Change>, String> {
    let mut world = World::start(place, Some(&[terms("")]), &[Program::serving(0, 1, KERNEL_NS, 0)])?;
    world.begin()?;
    std::thread::sleep(Duration::from_millis(1500));
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    let say = |word: &str| ask(daemon, &format!("\"ask\":\"{word}\",\"tenant\":\"{}\"", tenant_name(0)));
    let (mut paused, mut resumed) = (Vec::new(), Vec::new());
    for round in 0..times {
        paused.push(step(|| say("pause"), || stops(&world))?);
        settle(round);
        resumed.push(step(|| say("resume"), || works(&world))?);
        settle(round);
    }
    let paused = Change::of("changes/pause", "pause: until the end of the last kernel", &paused);
    Ok(vec![paused, Change::of("changes/resume", "resume: until 2 ms of work are done", &resumed)])
}
