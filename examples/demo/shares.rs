//! Device time of each process, from the simulated device's own record. A real device has no such record here.

use crate::device::Gpu;
use vgpu_sim::truth;

/// A point in time, and the device time that each process had used until then, ns.
pub struct Moment {
    at: u64,
    used: Vec<Option<u64>>,
}

/// The device time that the processes have used so far.
pub fn used(gpu: &Gpu, pids: &[u32]) -> Option<Moment> {
    if !gpu.simulated {
        return None;
    }
    let truth = truth::read(&gpu.scratch.0.join("gpu")).ok()?;
    let device = truth.devices.first()?;
    let busy = |pid: &u32| device.processes.iter().find(|process| process.pid == *pid).map(|process| process.busy_ns);
    Some(Moment { at: truth.at_ns, used: pids.iter().map(busy).collect() })
}

/// Each process's share of the time between two moments, in percent.
pub fn between(before: &Option<Moment>, after: &Option<Moment>) -> Vec<Option<f64>> {
    let (Some(before), Some(after)) = (before, after) else { return vec![None; 2] };
    let passed = (after.at - before.at) as f64;
    let share = |(then, now): (&Option<u64>, &Option<u64>)| Some(100.0 * ((*now)? - (*then)?) as f64 / passed);
    before.used.iter().zip(&after.used).map(share).collect()
}
