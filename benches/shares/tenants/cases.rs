//! The measured cases: tenants that share a device, a latency tenant next to a batch one, two services. Not here: the
//! run itself (`run`).

use super::figures::TenantDue;
use super::run::TenantProgramSpec;
use std::time::Duration;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Kernel lengths that a program launches in turn.
const MIXED_LENGTHS: [u64; 5] = [50 * US, MS, 5 * MS, 20 * MS, 200 * MS];

/// A case to measure: tenants that always have work.
pub struct TenantsCase {
    /// Name by which the user selects the case.
    pub name: String,
    /// Configuration lines of each tenant.
    pub terms: Vec<String>,
    /// Program that each tenant runs.
    pub programs: Vec<TenantProgramSpec>,
    /// Share that each tenant should get.
    pub dues: Vec<TenantDue>,
}

/// Setting that determines a tenant's due share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DueKind {
    Weight,
    Ceiling,
}

impl TenantsCase {
    fn new(name: &str, by: DueKind, numbers: &[u32], lengths: &[&[u64]]) -> TenantsCase {
        let sum: u32 = numbers.iter().sum();
        let of = |at: usize| lengths[at % lengths.len()];
        let terms = numbers.iter().map(|number| match by {
            DueKind::Weight => tenant_terms(&format!("weight = {number}")),
            DueKind::Ceiling => tenant_terms(&format!("sm_limit = {number}")),
        });
        let due = |(at, number): (usize, &u32)| TenantDue {
            percent: if by == DueKind::Ceiling {
                f64::from(*number)
            } else {
                f64::from(*number) / f64::from(sum) * 100.0
            },
            longest: of(at).iter().copied().max().unwrap_or(0),
            ceiling: by == DueKind::Ceiling,
        };
        TenantsCase {
            name: name.into(),
            terms: terms.collect(),
            programs: (0..numbers.len()).map(|at| TenantProgramSpec::busy_program(at, of(at))).collect(),
            dues: numbers.iter().enumerate().map(due).collect(),
        }
    }

    /// Device time of the longest kernel, ns.
    pub fn longest_kernel_ns(&self) -> u64 {
        self.dues.iter().map(|due| due.longest).max().unwrap_or(0)
    }

    /// Time before the measurement. Costs are learned in it, and work admitted earlier by the gates completes.
    pub fn warm_up_time(&self) -> Duration {
        Duration::from_millis(1500) + 30 * Duration::from_nanos(self.longest_kernel_ns())
    }

    /// Length of the measurement: max(10 s, 50 of the longest kernels), or `seconds`.
    pub fn window_time(&self, seconds: Option<u64>) -> Duration {
        let due = Duration::from_secs(10).max(50 * Duration::from_nanos(self.longest_kernel_ns()));
        seconds.map_or(due, Duration::from_secs)
    }
}

/// Configuration lines of a tenant, with a part of the device's memory.
pub fn tenant_terms(more: &str) -> String {
    format!("memory_limit = \"8GiB\"\n{more}")
}

/// Cases of tenants that run at the same time.
pub fn share_cases() -> Vec<TenantsCase> {
    use DueKind::{Ceiling, Weight};
    vec![
        TenantsCase::new("shares/30-70/1ms", Weight, &[30, 70], &[&[MS]]),
        TenantsCase::new("shares/30-70/50us-and-5ms", Weight, &[30, 70], &[&[50 * US], &[5 * MS]]),
        TenantsCase::new("shares/30-70/mixed", Weight, &[30, 70], &[&MIXED_LENGTHS]),
        TenantsCase::new("shares/10-90/1ms", Weight, &[10, 90], &[&[MS]]),
        TenantsCase::new("shares/10-90/20ms-and-1ms", Weight, &[10, 90], &[&[20 * MS], &[MS]]),
        TenantsCase::new("shares/4x25/1ms", Weight, &[1; 4], &[&[MS]]),
        TenantsCase::new(
            "shares/4x25/50us-1ms-20ms-200ms",
            Weight,
            &[1; 4],
            &[&[50 * US], &[MS], &[20 * MS], &[200 * MS]],
        ),
        TenantsCase::new("shares/weights-1-to-7/5ms", Weight, &[1, 2, 3, 4, 5, 6, 7], &[&[5 * MS]]),
        TenantsCase::new("shares/8x12.5/1ms", Weight, &[1; 8], &[&[MS]]),
        TenantsCase::new("shares/ceilings-30-60/1ms", Ceiling, &[30, 60], &[&[MS]]),
    ]
}

/// Short requests next to a tenant that always has work.
pub struct LatencyCase {
    /// Name by which the user selects the case.
    pub name: &'static str,
    /// Kernel length of a request, ns. Requests are 5 ms apart.
    pub kernel_ns: u64,
    /// Kernel length of the batch tenant, ns.
    pub batch_ns: u64,
    /// True if the budget applies to such kernels.
    pub judged: bool,
}

impl LatencyCase {
    /// The program whose latency is measured.
    pub fn request_program(&self) -> TenantProgramSpec {
        TenantProgramSpec::serving_program(0, 1, self.kernel_ns, 5 * MS)
    }
}

/// Cases of a latency tenant next to a batch one.
pub fn latency_cases() -> [LatencyCase; 3] {
    [
        LatencyCase { name: "latency/500us-beside-1ms", kernel_ns: 500 * US, batch_ns: MS, judged: true },
        LatencyCase { name: "latency/50us-beside-1ms", kernel_ns: 50 * US, batch_ns: MS, judged: true },
        LatencyCase { name: "latency/500us-beside-20ms", kernel_ns: 500 * US, batch_ns: 20 * MS, judged: false },
    ]
}

/// The two services of the study, at a tenth of their size: one answers in 61 kernels of 1 ms, one in 113. Both start
/// the next request as soon as one is answered.
pub const SERVICES: [(&str, u64); 2] = [("A", 61), ("B", 113)];

/// The program of a tenant's service.
pub fn service_program(tenant: usize, kernels: u64) -> TenantProgramSpec {
    TenantProgramSpec::serving_program(tenant, kernels, MS, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dues_of_weights_are_the_whole_device_and_each_tenant_has_a_program() {
        for case in share_cases() {
            let sum: f64 = case.dues.iter().map(|due| due.percent).sum();
            let whole = (sum - 100.0).abs() < 1e-9;
            assert!(whole || (sum < 100.0 && case.dues[0].ceiling), "{}: {sum}", case.name);
            assert!([case.terms.len(), case.programs.len()].iter().all(|len| *len == case.dues.len()), "{}", case.name);
            assert_eq!(case.window_time(None), Duration::from_secs(10), "{}", case.name);
        }
    }
}
