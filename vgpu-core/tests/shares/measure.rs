//! Shares by the model's true usage: over the whole run and over windows of a second.

use crate::device::BUCKET;
use crate::world::World;

const WINDOW: usize = 100;
/// Buckets before the first window, because a process's first launches have unknown length. The share over the whole
/// run has no such allowance.
const COLD: usize = 200;

/// Error of one tenant's share against its due share, in points of the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Error {
    pub got: f64,
    pub mean: f64,
    pub p99: f64,
}

fn buckets(world: &World, device: usize, tenant: Option<u32>) -> Vec<u64> {
    let count = usize::try_from(world.now / BUCKET).unwrap();
    let mut sum = vec![0; count];
    for member in world.members.iter().filter(|m| m.device == device && tenant.is_none_or(|tenant| m.tenant == tenant))
    {
        let context = &world.devices[device].contexts[member.context];
        for (sum, ns) in sum.iter_mut().zip(&context.buckets) {
            *sum += ns;
        }
    }
    sum
}

/// Device time of a tenant, in percent of the run.
pub fn share(world: &World, device: usize, tenant: u32) -> f64 {
    used(world, device, tenant) as f64 * 100.0 / world.now as f64
}

pub fn used(world: &World, device: usize, tenant: u32) -> u64 {
    let of = world.members.iter().filter(|m| m.device == device && m.tenant == tenant);
    of.map(|m| world.devices[device].contexts[m.context].busy).sum()
}

/// Percent of the time in which the device worked, from `from` on.
pub fn busy(world: &World, device: usize, from: u64) -> f64 {
    let buckets = buckets(world, device, None);
    let skipped = usize::try_from(from / BUCKET).unwrap();
    let rest = &buckets[skipped..];
    rest.iter().sum::<u64>() as f64 * 100.0 / (rest.len() as u64 * BUCKET) as f64
}

pub fn error(world: &World, device: usize, tenant: u32, due: f64) -> Error {
    let buckets = buckets(world, device, Some(tenant));
    let percent = |sum: u64, buckets: usize| sum as f64 * 100.0 / (buckets as u64 * BUCKET) as f64;
    let got = percent(buckets.iter().sum(), buckets.len());
    let mut errors: Vec<f64> = Vec::new();
    let mut sum: u64 = buckets[COLD..COLD + WINDOW].iter().sum();
    for at in COLD + WINDOW..=buckets.len() {
        if at % 5 == 0 {
            errors.push((percent(sum, WINDOW) - due).abs());
        }
        if at < buckets.len() {
            sum = sum + buckets[at] - buckets[at - WINDOW];
        }
    }
    errors.sort_unstable_by(f64::total_cmp);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    Error { got, mean, p99: percentile(&errors, 99) }
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// The `percent`-th percentile of some durations.
pub fn quantile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Jain's index: 1 if all values are equal.
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = (values.iter().sum::<f64>(), values.iter().map(|v| v * v).sum::<f64>());
    sum * sum / (values.len() as f64 * squares)
}
