//! The table of measurements: workloads, tenants, points.
//!
//! A profile of the simulated device changes its geometry and its switching costs, not the length of a known kernel. So
//! only one profile gets the complete product of ceilings, kernels and patterns. Each other profile gets half of the
//! pairs of kernel and pattern, with ceilings in a Latin square. Every pair of values then occurs (profile and ceiling,
//! profile and kernel, kernel and ceiling, ...). Not here: the measurement (`measure`), the budgets (`judge`).

use serde::Serialize;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Device times of one kernel under test, ns.
pub const KERNEL_LENGTHS: [u64; 6] = [50 * US, MS, 5 * MS, 20 * MS, 200 * MS, SECOND_NS];
/// Ceilings in permille of the device's time.
pub const MEASURED_CEILINGS: [u32; 4] = [100, 300, 500, 800];
/// The profile that gets every point, then those that get a covering part.
pub const MEASURED_PROFILES: [&str; 4] = ["h200", "t4", "a100", "rtxpro6000"];
/// Length of the share's window in ns, unless [`KERNELS_PER_WINDOW`] of the longest kernels take longer.
pub const POINT_WINDOW_NS: u64 = 10 * SECOND_NS;
/// Least number of the longest kernels in a share's window.
pub const KERNELS_PER_WINDOW: u64 = 50;
/// Length of a null control in ns. It needs no longer window: it shows the program's use without a limit.
const NULL_NS: u64 = 3 * SECOND_NS;

/// Launch pattern of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LaunchPattern {
    /// Launches a kernel, then waits for it, repeatedly.
    Sync,
    /// Kernels into one stream without any wait.
    Async,
    /// Graphs of ten kernels into one stream without any wait; one graph takes the kernel length.
    Graphs,
    /// Kernels into four streams in turn without any wait.
    Streams,
    /// Three kernels, a wait, then 20 ms without a call.
    Bursts,
}

impl LaunchPattern {
    /// All patterns with their names.
    pub const ALL_PATTERNS: [(LaunchPattern, &str); 5] = [
        (LaunchPattern::Sync, "sync"),
        (LaunchPattern::Async, "async"),
        (LaunchPattern::Graphs, "graphs"),
        (LaunchPattern::Streams, "streams"),
        (LaunchPattern::Bursts, "bursts"),
    ];

    /// Name in points and on the command line of a workload.
    pub fn name(self) -> &'static str {
        Self::ALL_PATTERNS.iter().find(|(pattern, _)| *pattern == self).map_or("", |(_, name)| name)
    }

    /// The pattern with that name.
    pub fn pattern_named(name: &str) -> Option<LaunchPattern> {
        Self::ALL_PATTERNS.iter().find(|(_, own)| *own == name).map(|(pattern, _)| *pattern)
    }
}

/// The work of a tenant's processes, the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TenantLoad {
    /// Pattern in which a process launches and waits.
    pub pattern: LaunchPattern,
    /// Device time of one launch, ns.
    pub kernel_ns: u64,
    /// Number of processes of the tenant.
    pub processes: usize,
}

impl TenantLoad {
    /// Name such as `async/1ms` or `2x-async/1ms`.
    pub fn name(&self) -> String {
        let several = if self.processes == 1 { String::new() } else { format!("{}x-", self.processes) };
        format!("{several}{}/{}", self.pattern.name(), format_length(self.kernel_ns))
    }
}

/// Length such as `50us`, `20ms` or `1s`.
pub fn format_length(ns: u64) -> String {
    match ns {
        _ if ns.is_multiple_of(SECOND_NS) => format!("{}s", ns / SECOND_NS),
        _ if ns.is_multiple_of(MS) => format!("{}ms", ns / MS),
        _ => format!("{}us", ns / US),
    }
}

/// A tenant's ceiling and work.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointTenant {
    /// Permille of the device's time; `None` runs without the library.
    pub ceiling: Option<u32>,
    /// Work of the tenant's processes.
    pub load: TenantLoad,
}

/// One row of the table: tenants on a device of their own.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredPoint {
    /// Name by which the user selects the point.
    pub name: String,
    /// Profile of the simulated device.
    pub profile: &'static str,
    /// Tenants that run on the device at the same time.
    pub tenants: Vec<PointTenant>,
}

impl MeasuredPoint {
    fn single_tenant(profile: &'static str, load: TenantLoad, ceiling: u32) -> MeasuredPoint {
        let name = format!("{profile}/{}/{}", load.name(), format_percent(ceiling));
        MeasuredPoint { name, profile, tenants: vec![PointTenant { ceiling: Some(ceiling), load }] }
    }

    /// Null control: the program without the library, which shows its use without a limit.
    pub fn null_control(profile: &'static str, load: TenantLoad) -> MeasuredPoint {
        MeasuredPoint {
            name: format!("{profile}/{}/null", load.name()),
            profile,
            tenants: vec![PointTenant { ceiling: None, load }],
        }
    }

    /// True for a null control.
    pub fn is_null(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.ceiling.is_none())
    }

    /// Longest kernel of all tenants, ns.
    pub fn longest_kernel_ns(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.load.kernel_ns).max().unwrap_or(0)
    }

    /// Least length of the share's window in ns; `seconds` overrides it.
    pub fn window_ns(&self, seconds: Option<u64>) -> u64 {
        match seconds {
            _ if self.is_null() => NULL_NS.max(5 * self.longest_kernel_ns()),
            Some(seconds) => seconds * SECOND_NS,
            None => POINT_WINDOW_NS.max(KERNELS_PER_WINDOW * self.longest_kernel_ns()),
        }
    }

    /// Time in ns before windows of 1 s begin. Costs are learned and the first burst is spent in it.
    pub fn warm_ns(&self) -> u64 {
        1_500 * MS + 2 * self.longest_kernel_ns()
    }

    /// Length of the run in ns.
    ///
    /// A share is taken from the beginning to the first launch after [`MeasuredPoint::window_ns`]. That launch comes
    /// within one kernel's period at the lowest ceiling. The start must not reduce the number of windows of 1 s.
    pub fn record_ns(&self, seconds: Option<u64>) -> u64 {
        let lowest = self.tenants.iter().filter_map(|tenant| tenant.ceiling).min().unwrap_or(1000).max(1);
        let period = self.longest_kernel_ns() * 1000 / u64::from(lowest) + 500 * MS;
        self.window_ns(seconds) + self.warm_ns().max(if self.is_null() { 0 } else { period })
    }

    /// Estimated number of cores that the run uses, which decides whether others may run at the same time. A wait for
    /// the device spins for the last 100 us (sim/model, `engine`), and a launch takes some microseconds.
    pub fn cores_needed(&self) -> f64 {
        let one = |tenant: &PointTenant| {
            let TenantLoad { pattern, kernel_ns, processes } = tenant.load;
            let per_launch = match pattern {
                LaunchPattern::Sync => 10 * US + kernel_ns.min(100 * US),
                LaunchPattern::Async | LaunchPattern::Streams => 5 * US,
                LaunchPattern::Graphs => 20 * US,
                LaunchPattern::Bursts => 10 * US,
            };
            let share = f64::from(tenant.ceiling.unwrap_or(1000)) / 1000.0;
            0.03 * processes as f64 + share * per_launch as f64 / kernel_ns as f64
        };
        self.tenants.iter().map(one).sum()
    }
}

/// Permille as percent in the library's syntax: `30`, `12.5`.
pub fn format_percent(permille: u32) -> String {
    if permille.is_multiple_of(10) {
        (permille / 10).to_string()
    } else {
        format!("{}.{}", permille / 10, permille % 10)
    }
}

fn load(pattern: LaunchPattern, kernel_ns: u64, processes: usize) -> TenantLoad {
    TenantLoad { pattern, kernel_ns, processes }
}

/// Launch patterns that every kernel and ceiling is measured with: four patterns, and two processes of one tenant.
fn launch_ways() -> [(LaunchPattern, usize); 5] {
    [
        (LaunchPattern::Sync, 1),
        (LaunchPattern::Async, 1),
        (LaunchPattern::Graphs, 1),
        (LaunchPattern::Streams, 1),
        (LaunchPattern::Async, 2),
    ]
}

/// Several tenants on one device, each with the same program.
fn beside(name: &str, ceilings: &[u32], kernel_ns: u64) -> MeasuredPoint {
    let load = load(LaunchPattern::Async, kernel_ns, 1);
    MeasuredPoint {
        name: format!("h200/tenants-{name}/{}", format_length(kernel_ns)),
        profile: "h200",
        tenants: ceilings.iter().map(|&ceiling| PointTenant { ceiling: Some(ceiling), load }).collect(),
    }
}

/// All points of the complete table.
pub fn full() -> Vec<MeasuredPoint> {
    let mut points = Vec::new();
    for (p, profile) in MEASURED_PROFILES.into_iter().enumerate() {
        for (k, kernel) in KERNEL_LENGTHS.into_iter().enumerate() {
            for (w, (pattern, processes)) in launch_ways().into_iter().enumerate() {
                let load = load(pattern, kernel, processes);
                if p == 0 {
                    points
                        .extend(MEASURED_CEILINGS.map(|ceiling| MeasuredPoint::single_tenant(profile, load, ceiling)));
                } else if (p + k + w).is_multiple_of(2) {
                    points.push(MeasuredPoint::single_tenant(
                        profile,
                        load,
                        MEASURED_CEILINGS[((p + k + w) / 2 + k) % MEASURED_CEILINGS.len()],
                    ));
                }
            }
        }
    }
    for (kernel, ceiling) in [(200 * US, 100), (MS, 100), (5 * MS, 100), (5 * MS, 300), (20 * MS, 500)] {
        points.push(MeasuredPoint::single_tenant("h200", load(LaunchPattern::Bursts, kernel, 1), ceiling));
    }
    for (pattern, kernel, ceiling) in
        [(LaunchPattern::Sync, MS, 300), (LaunchPattern::Async, 5 * MS, 500), (LaunchPattern::Async, 200 * MS, 300)]
    {
        points.push(MeasuredPoint::single_tenant("h200", load(pattern, kernel, 4), ceiling));
    }
    // One to seven twenty-eighths, rounded down.
    let weights: Vec<u32> = (1..=7).map(|weight| 1000 * weight / 28).collect();
    for kernel in [MS, 20 * MS, 200 * MS] {
        points.push(beside("30-70", &[300, 700], kernel));
        points.push(beside("10-90", &[100, 900], kernel));
        points.push(beside("4x25", &[250; 4], kernel));
        points.push(beside("weights", &weights, kernel));
    }
    let mut mixed = beside("10-90-mixed", &[100, 900], MS);
    mixed.tenants[0].load.kernel_ns = 100 * MS;
    points.push(mixed);
    points
}

/// Points of `make bench-quick`: each ceiling, pattern and profile, with kernels whose window is 10 s.
pub fn quick() -> Vec<MeasuredPoint> {
    const NAMES: [&str; 12] = [
        "h200/sync/1ms/30",
        "h200/async/50us/30",
        "h200/async/1ms/50",
        "h200/async/200ms/10",
        "h200/graphs/20ms/30",
        "h200/streams/5ms/80",
        "h200/2x-async/1ms/30",
        "h200/4x-async/5ms/50",
        "h200/bursts/5ms/10",
        "a100/graphs/50us/*",
        "rtxpro6000/sync/20ms/*",
        "h200/tenants-30-70/20ms",
    ];
    let all = full();
    let found = |name: &&str| {
        let begin = name.strip_suffix('*').unwrap_or(name);
        all.iter().find(|point| point.name == **name || (begin != *name && point.name.starts_with(begin))).cloned()
    };
    NAMES.iter().filter_map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_point_has_a_name_of_its_own_and_a_sum_of_ceilings_that_fits() {
        let all = full();
        let names: HashSet<&str> = all.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for point in &all {
            let sum: u32 = point.tenants.iter().filter_map(|tenant| tenant.ceiling).sum();
            assert!((100..=1000).contains(&sum), "{}", point.name);
        }
    }

    #[test]
    fn the_covering_part_has_every_pair_of_values() {
        let all = full();
        let single = || all.iter().filter(|point| point.tenants.len() == 1);
        let has = |profile: &str, kernel: u64, ceiling: u32| {
            single().any(|point| {
                let tenant = point.tenants[0];
                (profile.is_empty() || point.profile == profile)
                    && (kernel == 0 || tenant.load.kernel_ns == kernel)
                    && (ceiling == 0 || tenant.ceiling == Some(ceiling))
            })
        };
        for profile in MEASURED_PROFILES {
            assert!(KERNEL_LENGTHS.iter().all(|&kernel| has(profile, kernel, 0)), "{profile}");
            assert!(MEASURED_CEILINGS.iter().all(|&ceiling| has(profile, 0, ceiling)), "{profile}");
            for (pattern, _) in launch_ways() {
                assert!(single().any(|point| point.profile == profile && point.tenants[0].load.pattern == pattern));
            }
        }
        assert!(KERNEL_LENGTHS.iter().all(|&kernel| MEASURED_CEILINGS.iter().all(|&ceiling| has("", kernel, ceiling))));
    }

    #[test]
    fn the_quick_points_are_twelve_of_ten_seconds() {
        let quick = quick();
        assert_eq!(quick.len(), 12, "{:?}", quick.iter().map(|point| &point.name).collect::<Vec<_>>());
        assert!(quick.iter().all(|point| point.window_ns(None) == POINT_WINDOW_NS));
        for profile in ["h200", "a100", "rtxpro6000"] {
            assert!(quick.iter().any(|point| point.profile == profile));
        }
    }

    #[test]
    fn lengths_and_shares_are_written_as_people_do() {
        assert_eq!([50_000, 20_000_000, 1_000_000_000].map(format_length), ["50us", "20ms", "1s"]);
        assert_eq!([300, 125].map(format_percent), ["30", "12.5"]);
    }
}
