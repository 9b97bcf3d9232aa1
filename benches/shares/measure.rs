//! Runs one point: starts processes on a private device, lets them begin together, and reads the device's own record of
//! each process.
//!
//! Not here: the meaning of the record (`judge`), the choice of runs that share the host (`schedule`).

use crate::host::{self, HostUsage};
use crate::meter;
use crate::place::{MeasuringPlace, RunRoom};
use crate::points::MeasuredPoint;
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};
use vgpu_sim::{DeviceTimeline, MachineView};

/// Interval of the host's delay readings.
const DELAY_TICK: Duration = Duration::from_millis(100);
/// Time limit for a process to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Everything that the figures of a run are computed from.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredRun {
    /// Length of a bucket, the period over which device time is added up, ns.
    pub bucket_ns: u64,
    /// Buckets of the start, in which costs are learned; windows of 1 s begin after them.
    pub warm: usize,
    /// Least number of buckets from the very beginning that a share is taken over; 0 marks a null control, whose start
    /// is left out.
    pub least: usize,
    /// Wall time after the start, in ns. The buckets after `warm` are the whole ones in it.
    pub window_ns: u64,
    /// The tenants, in the point's order.
    pub tenants: Vec<TenantRun>,
    /// Time that the device spent on switches between processes in the window, ns.
    pub switch_ns: u64,
    /// Length of a tick in ns: the interval of the host's readings.
    pub tick_ns: u64,
    /// Largest number of runs that shared the host, this one included.
    pub beside: usize,
}

/// Record of one tenant of a run.
#[derive(Clone, Debug, Serialize)]
pub struct TenantRun {
    /// The processes of this tenant.
    pub processes: Vec<ProcessRun>,
    /// Device time in the window by the library's own usage meter, ns; `None` without the library.
    pub metered_ns: Option<u64>,
    /// For each tick of the window: run delay of its processes plus stolen time per core, ns.
    pub delay_ns: Vec<u64>,
}

/// Record of one process of a tenant.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRun {
    /// Device time in each bucket since the start, ns.
    pub busy_ns: Vec<u32>,
    /// Kernels launched in the window.
    pub kernels: u64,
    /// The process's use of the host in the window.
    pub host: HostUsage,
}

impl TenantRun {
    /// Device time of all processes in each bucket since the start, ns.
    pub fn busy_buckets(&self) -> Vec<u64> {
        let length = self.processes.iter().map(|process| process.busy_ns.len()).max().unwrap_or(0);
        let at = |bucket: usize| {
            let each = self.processes.iter().filter_map(|process| process.busy_ns.get(bucket));
            each.map(|ns| u64::from(*ns)).sum()
        };
        (0..length).map(at).collect()
    }
}

/// A running workload. Dropping it kills the process, which has no end of its own.
pub struct RunningWorkload {
    child: Child,
    go: Option<ChildStdin>,
    said: Receiver<String>,
}

impl RunningWorkload {
    /// Starts a workload and waits until it is ready.
    ///
    /// # Errors
    /// The workload cannot be started, ends, or is not ready in time.
    pub fn start(mut command: Command) -> Result<RunningWorkload, String> {
        let mut child = command.spawn().map_err(|why| format!("a workload: {why}"))?;
        let (go, out) = (child.stdin.take(), child.stdout.take());
        let (send, said) = channel();
        thread::spawn(move || {
            let Some(out) = out else { return };
            let (mut out, mut text) = (BufReader::new(out), String::new());
            let _ = out.read_line(&mut text);
            let _ = send.send(std::mem::take(&mut text));
            let _ = out.read_to_string(&mut text);
            let _ = send.send(text);
        });
        let mut client = RunningWorkload { child, go, said };
        match client.said.recv_timeout(START_TIMEOUT).as_deref().map(str::trim) {
            Ok("ready") => Ok(client),
            Ok(_) => Err(format!("a workload ended before it began: {}", client.stderr_text())),
            Err(_) => Err(format!("a workload was not ready after {} s", START_TIMEOUT.as_secs())),
        }
    }

    /// Lets the workload begin.
    ///
    /// # Errors
    /// The workload does not read its input.
    pub fn begin_work(&mut self) -> Result<(), String> {
        let go = self.go.as_mut().ok_or("a workload was told to end already")?;
        go.write_all(b"go\n").map_err(|why| format!("a workload does not listen: {why}"))
    }

    /// Closes the input of a workload that ends by that, and returns its output.
    ///
    /// # Errors
    /// The workload does not end, or fails.
    pub fn end_work(&mut self) -> Result<String, String> {
        self.go = None;
        let text = self.said.recv_timeout(START_TIMEOUT).map_err(|_| "a workload does not end")?;
        match self.child.wait() {
            Ok(status) if status.success() => Ok(text),
            _ => Err(format!("a workload failed: {}", self.stderr_text())),
        }
    }

    /// Description of the failure if the workload has ended.
    pub fn is_over(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("a workload ended by itself: {status}, {}", self.stderr_text()))
    }

    /// Kills the workload and returns its stderr.
    fn stderr_text(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        let _ = self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut text));
        let status = self.child.wait().map_or(String::new(), |status| status.to_string());
        format!("{} ({status})", text.trim())
    }

    /// Process id of the workload.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for RunningWorkload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Values read twice, before and after the window.
struct WindowReading {
    kernels: Vec<u64>,
    usage: Vec<HostUsage>,
    metered: Vec<Option<u64>>,
    switch_ns: u64,
}

fn read(machine: &MachineView, room: &RunRoom, point: &MeasuredPoint, pids: &[u32]) -> WindowReading {
    let metered =
        (0..point.tenants.len()).map(|index| meter::measured_ns(&room.state_path(), &RunRoom::tenant_name(index)));
    let metered = metered.collect();
    let truth = machine.read_truth();
    WindowReading {
        kernels: pids.iter().map(|&pid| truth.living_process(0, pid).map_or(0, |process| process.kernels)).collect(),
        usage: pids.iter().map(|&pid| HostUsage::of_process(pid)).collect(),
        metered,
        switch_ns: truth.devices.first().map_or(0, |device| device.switch_ns),
    }
}

/// Runs `point` once, for `seconds` if given.
///
/// # Errors
/// A process cannot be started, fails, or ends by itself; the text names it.
pub fn run(place: &MeasuringPlace, point: &MeasuredPoint, seconds: Option<u64>) -> Result<MeasuredRun, String> {
    let room = place.make_room()?;
    let machine = MachineView::open_at(&room.machine_path(), Some(point.profile)).map_err(|why| why.to_string())?;
    let mut clients = Vec::new();
    for (index, tenant) in point.tenants.iter().enumerate() {
        for _ in 0..tenant.load.processes {
            clients.push(RunningWorkload::start(room.workload_command(point, index, tenant))?);
        }
    }
    let pids: Vec<u32> = clients.iter().map(RunningWorkload::process_id).collect();
    let (started, begun) = (vgpu_sim::now(), Instant::now());
    for client in &mut clients {
        client.begin_work()?;
    }
    let warm = Duration::from_nanos(point.warm_ns());
    let window = Duration::from_nanos(point.record_ns(seconds)).saturating_sub(warm);
    sleep_until(begun + warm);
    let (from, before) = (vgpu_sim::now(), read(&machine, &room, point, &pids));
    let delays = watch_delays(point, &pids, begun + warm, window);
    let (to, after) = (vgpu_sim::now(), read(&machine, &room, point, &pids));
    let timeline = machine.device_timeline(0, (to - started) / vgpu_sim::layout::BUCKET_NS + 100);
    for client in &mut clients {
        client.is_over().map_or(Ok(()), Err)?;
    }

    let span = BucketSpan::span_of_run(&timeline, started, from, to)?;
    let mut processes = pids.iter().enumerate().map(|(at, pid)| ProcessRun {
        busy_ns: span.busy_of_process(&timeline, *pid),
        kernels: after.kernels[at].saturating_sub(before.kernels[at]),
        host: after.usage[at].since_reading(before.usage[at]),
    });
    let tenants = point.tenants.iter().zip(delays).enumerate().map(|(index, (tenant, delay_ns))| TenantRun {
        processes: processes.by_ref().take(tenant.load.processes).collect(),
        metered_ns: after.metered[index].zip(before.metered[index]).map(|(after, before)| after.saturating_sub(before)),
        delay_ns,
    });
    Ok(MeasuredRun {
        bucket_ns: timeline.bucket_ns,
        warm: span.warm,
        least: if point.is_null() {
            0
        } else {
            usize::try_from(point.window_ns(seconds) / timeline.bucket_ns).unwrap_or(usize::MAX)
        },
        window_ns: to - from,
        tenants: tenants.collect(),
        switch_ns: after.switch_ns.saturating_sub(before.switch_ns),
        tick_ns: u64::try_from(DELAY_TICK.as_nanos()).unwrap_or(0),
        beside: 1,
    })
}

/// Waits for the window to pass, and reads each tenant's delay in every tick.
fn watch_delays(point: &MeasuredPoint, pids: &[u32], from: Instant, window: Duration) -> Vec<Vec<u64>> {
    let each = || pids.iter().map(|&pid| HostUsage::of_process(pid).delay_ns).collect::<Vec<u64>>();
    let (mut told, mut before, mut stolen) = (vec![Vec::new(); point.tenants.len()], each(), host::stolen_ns());
    let mut next = from;
    while next < from + window {
        next = (next + DELAY_TICK).min(from + window);
        sleep_until(next);
        let (now, taken) = (each(), host::stolen_ns());
        let mut delay = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before));
        for (tenant, told) in point.tenants.iter().zip(&mut told) {
            told.push(delay.by_ref().take(tenant.load.processes).sum::<u64>() + taken.saturating_sub(stolen));
        }
        (before, stolen) = (now, taken);
    }
    told
}

/// Sleeps until the given time.
pub fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Buckets of a timeline that belong to a run.
pub struct BucketSpan {
    first: usize,
    end: usize,
    /// Number of buckets of the start.
    pub warm: usize,
}

impl BucketSpan {
    /// From the first whole bucket after `started` to the last before `to`; those before `from` are the start.
    ///
    /// # Errors
    /// The device no longer remembers the run's beginning.
    pub fn span_of_run(timeline: &DeviceTimeline, started: u64, from: u64, to: u64) -> Result<BucketSpan, String> {
        let base = timeline.from_ns / timeline.bucket_ns;
        let place = |number: u64| {
            let place = number.checked_sub(base).and_then(|place| usize::try_from(place).ok());
            place.ok_or("the run was longer than the device remembers: take fewer --seconds")
        };
        let first = place(started.div_ceil(timeline.bucket_ns))?;
        let window = place(from.div_ceil(timeline.bucket_ns))?;
        Ok(BucketSpan { first, end: place(to / timeline.bucket_ns)?, warm: window - first })
    }

    /// Device time of a process in each bucket, the start included.
    pub fn busy_of_process(&self, timeline: &DeviceTimeline, pid: u32) -> Vec<u32> {
        let served = timeline.processes.iter().find(|process| process.pid == pid);
        (self.first..self.end).map(|at| served.and_then(|p| p.busy_ns.get(at)).copied().unwrap_or(0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_sim::timeline::ServedProcess;

    #[test]
    fn only_whole_buckets_of_the_run_count_and_an_absent_process_had_nothing() {
        let one = ServedProcess { pid: 7, serial: 1, name: String::new(), busy_ns: vec![1, 2, 3, 4, 5, 6] };
        let timeline = DeviceTimeline { bucket_ns: 10, from_ns: 100, processes: vec![one] };
        let span = BucketSpan::span_of_run(&timeline, 101, 121, 159).unwrap();
        assert_eq!(span.busy_of_process(&timeline, 7), [2, 3, 4, 5]);
        assert_eq!(span.warm, 2);
        assert_eq!(span.busy_of_process(&timeline, 8), [0, 0, 0, 0]);
        assert!(BucketSpan::span_of_run(&timeline, 50, 121, 159).is_err());
    }
}
