//! Time until a changed limit is in force. The daemon is asked as `vgpu set` and `vgpu pause` ask it, without the time
//! that a new process takes.
//!
//! For memory, the time ends when a living process sees the new limit. For device time, it ends when the device's own
//! sampled record shows the change.

use super::cases::tenant_terms;
use super::client;
use super::figures::{CHANGE_MS, RequestTimes, TenantsVerdict};
use super::run::{TenantProgramSpec, TenantsWorld, tenant_name};
use crate::place::MeasuringPlace;
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vgpu_tests::daemon::Daemon;

/// Interval between readings of the device's record.
const RECORD_POLL: Duration = Duration::from_micros(200);
/// Kernel length of the program whose time limit changes, ns.
const KERNEL_NS: u64 = 1_000_000;
/// Idle time after which the device counts as stopped, ns. At a ceiling of 5 % the device rests 19 ms after a kernel,
/// and after the first one less, by up to 8 ms, if the balance was positive. At 90 % it rests a millisecond at most.
const STILL_NS: u64 = 6_000_000;
/// Time after which an unseen change counts as lost, ns.
const MAX_CHANGE_NS: u64 = 1_000_000_000;

/// Times that changes took, ms.
#[derive(Serialize)]
pub struct ChangeTimes {
    /// Name by which the user selects the case.
    pub name: &'static str,
    /// The changed setting, and the condition for being in force.
    pub what: &'static str,
    /// Distribution of the times until a change was in force.
    pub times: RequestTimes,
    /// Number of changes that were never seen.
    pub lost: usize,
    /// Verdict on the 99th percentile of the times.
    pub verdict: TenantsVerdict,
}

impl ChangeTimes {
    fn from_times(name: &'static str, what: &'static str, times: &[Option<f64>]) -> ChangeTimes {
        let seen: Vec<f64> = times.iter().flatten().copied().collect();
        let (lost, times) = (times.len() - seen.len(), RequestTimes::of_ms(&seen));
        let verdict =
            if lost > 0 { TenantsVerdict::Missed } else { TenantsVerdict::judge_missing(times.p99 - CHANGE_MS, 0.0) };
        ChangeTimes { name, what, times, lost, verdict }
    }
}

/// Sends a line to the daemon and waits for its answer.
fn ask_daemon(daemon: &Daemon, line: &str) -> Result<(), String> {
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
    ask_daemon(daemon, &format!("\"ask\":\"set\",\"tenant\":\"{tenant}\",\"change\":{{\"{key}\":\"{value}\"}}"))
}

fn to_milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Changes a memory limit `times` times.
///
/// # Errors
/// The run cannot be made.
pub fn measure_memory(place: &MeasuringPlace, times: usize) -> Result<ChangeTimes, String> {
    let mut world = TenantsWorld::start(place, Some(&[tenant_terms("")]), &[TenantProgramSpec::watching_program(0)])?;
    world.begin_all()?;
    std::thread::sleep(Duration::from_millis(200));
    let mut asked = Vec::new();
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    for round in 0..times {
        let gib = if round % 2 == 0 { 4 } else { 8 };
        asked.push((vgpu_sim::now(), gib << 30));
        set(daemon, "memory_limit", &format!("{gib}GiB"))?;
        // Varies the pause so that it is in step with nothing.
        std::thread::sleep(Duration::from_micros(15_000 + 370 * (round as u64 % 17)));
    }
    std::thread::sleep(Duration::from_millis(100));
    let seen = client::parse_pairs(&world.clients[0].end_work()?);
    let next = |at: usize| asked.get(at + 1).map_or(u64::MAX, |one| one.0);
    let took = asked.iter().enumerate().map(|(at, &(moment, bytes))| {
        let first = seen.iter().find(|one| one.0 > moment && one.0 < next(at) && one.1 == bytes);
        first.map(|one| to_milliseconds(one.0 - moment))
    });
    let what = "memory_limit 8 <-> 4 GiB: until cuMemGetInfo of a living process says so (asked every 50 us)";
    Ok(ChangeTimes::from_times("changes/memory", what, &took.collect::<Vec<_>>()))
}

/// Samples the device until `done` accepts: the work since the start (ns), the time of the last change, the present
/// time. Returns the last two.
fn look_until(world: &TenantsWorld, done: impl Fn(u64, u64, u64) -> bool) -> Option<(u64, u64)> {
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
        if now > began + MAX_CHANGE_NS {
            return None;
        }
        std::thread::sleep(RECORD_POLL);
    }
}

/// Time in ms from before `change` until the time that `seen` returns.
fn measure_step(
    change: impl FnOnce() -> Result<(), String>,
    seen: impl FnOnce() -> Option<u64>,
) -> Result<Option<f64>, String> {
    let moment = vgpu_sim::now();
    change()?;
    Ok(seen().map(|end| to_milliseconds(end.saturating_sub(moment))))
}

/// Time at which the device has worked 2 ms more.
fn when_working(world: &TenantsWorld) -> Option<u64> {
    look_until(world, |work, _, _| work >= 2 * KERNEL_NS).map(|(_, now)| now)
}

/// Time in ns at which the last work ended, once the device did nothing for [`STILL_NS`] after it.
fn when_stopped(world: &TenantsWorld) -> Option<u64> {
    look_until(world, |_, last, now| now > last + STILL_NS).map(|(last, _)| last)
}

/// Waits long enough for a change to settle, in step with nothing.
fn settle_change(round: usize) {
    std::thread::sleep(Duration::from_micros(150_000 + 3_700 * (round as u64 % 13)));
}

/// Raises and lowers a ceiling, `times` times each.
///
/// # Errors
/// The run cannot be made.
pub fn measure_ceiling(place: &MeasuringPlace, times: usize) -> Result<Vec<ChangeTimes>, String> {
    let mut world = TenantsWorld::start(
        place,
        Some(&[tenant_terms("sm_limit = 5")]),
        &[TenantProgramSpec::busy_program(0, &[KERNEL_NS])],
    )?;
    world.begin_all()?;
    std::thread::sleep(Duration::from_millis(1500));
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    let (mut wider, mut narrower) = (Vec::new(), Vec::new());
    for round in 0..times {
        // Changes the ceiling just after a kernel, so that the old ceiling permits nothing for a while.
        look_until(&world, |work, last, now| work > 0 && now > last + 1_000_000);
        wider.push(measure_step(|| set(daemon, "sm_limit", "90"), || when_working(&world))?);
        settle_change(round);
        narrower.push(measure_step(|| set(daemon, "sm_limit", "5"), || when_stopped(&world))?);
        settle_change(round);
    }
    let what = "sm_limit 5 -> 90: until 2 ms of work are done, which at 5 % take 20 ms at least";
    let wider = ChangeTimes::from_times("changes/wider", what, &wider);
    let what = "sm_limit 90 -> 5: until the end of the last kernel before the first rest of 6 ms";
    Ok(vec![wider, ChangeTimes::from_times("changes/narrower", what, &narrower)])
}

/// Pauses and resumes a tenant without a ceiling, `times` times. It waits for each of its kernels: through an open gate
/// the driver's queue would be long, and queued work still runs.
///
/// # Errors
/// The run cannot be made.
pub fn measure_pause(place: &MeasuringPlace, times: usize) -> Result<Vec<ChangeTimes>, String> {
    let mut world = TenantsWorld::start(
        place,
        Some(&[tenant_terms("")]),
        &[TenantProgramSpec::serving_program(0, 1, KERNEL_NS, 0)],
    )?;
    world.begin_all()?;
    std::thread::sleep(Duration::from_millis(1500));
    let daemon = world.daemon.as_ref().ok_or("no daemon")?;
    let say = |word: &str| ask_daemon(daemon, &format!("\"ask\":\"{word}\",\"tenant\":\"{}\"", tenant_name(0)));
    let (mut paused, mut resumed) = (Vec::new(), Vec::new());
    for round in 0..times {
        paused.push(measure_step(|| say("pause"), || when_stopped(&world))?);
        settle_change(round);
        resumed.push(measure_step(|| say("resume"), || when_working(&world))?);
        settle_change(round);
    }
    let paused = ChangeTimes::from_times("changes/pause", "pause: until the end of the last kernel", &paused);
    Ok(vec![paused, ChangeTimes::from_times("changes/resume", "resume: until 2 ms of work are done", &resumed)])
}
