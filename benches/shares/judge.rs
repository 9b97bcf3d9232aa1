//! Computes figures from records and verdicts from figures. Arithmetic only: no clock, no file, no process.
//!
//! The budgets:
//!
//! - Share: within 1 point over max(10 s, 50 of the longest kernels). It is counted from the very beginning, up to a
//!   time at which a program that pays for a kernel afterwards has paid ([`counted_buckets`]).
//! - Windows of 1 s, one every 50 ms: 99 of 100 within 3 points; for kernels above 20 ms within 3 points and one
//!   kernel.
//! - At least 98 % of min(ceiling, the program's own use without a limit).

use crate::measure::{MeasuredRun, TenantRun};
use crate::points::{MeasuredPoint, PointTenant};
use serde::Serialize;

/// Points that the share may be off.
pub const SHARE_POINTS: f64 = 1.0;
/// Points that 99 of 100 windows may be off, for short kernels.
pub const WINDOW_POINTS: f64 = 3.0;
/// Longest kernel that counts as short, ns.
pub const SHORT_NS: u64 = 20_000_000;
/// Percent of min(ceiling, own use) that a tenant must get.
pub const GOT_PERCENT: f64 = 98.0;
/// Percent that the null control of a program that never waits must reach.
pub const NULL_PERCENT: f64 = 98.0;
const JUDGE_WINDOW_NS: u64 = 1_000_000_000;
const STEP_NS: u64 = 50_000_000;
/// Longest delay, in ns, after which a program under a ceiling can catch up, thanks to the burst in its account.
const BURST_NS: u64 = 50_000_000;

/// A tenant's figures in one run. Shares are percent of the device's time, errors are points.
#[derive(Clone, Debug, Serialize)]
pub struct TenantFigures {
    /// Share of the device's time, from the beginning to the first launch after the window's length.
    pub share: f64,
    /// Length of the time over which `share` is taken, s.
    pub over_s: f64,
    /// Share that the tenant should get: min(ceiling, own use).
    pub expected: f64,
    /// `share - expected`, in points.
    pub error: f64,
    /// Mean over windows of 1 s: how far each is below `expected` or above the ceiling.
    pub window_mean: f64,
    /// 99th percentile of the windows' distances, as in `window_mean`.
    pub window_p99: f64,
    /// The share in percent of `expected`.
    pub got: f64,
    /// Run delay of the tenant's processes and stolen time, in points.
    pub host: f64,
    /// The part of `host` that can have cost device time. For a program that does not reach its ceiling that is all of
    /// it; under a ceiling it is the part that the burst cannot make up for.
    pub excuse: f64,
    /// As `window_p99`, with the time that the host took in each window added to its share.
    pub excused_p99: f64,
    /// Error of the library's own usage meter against the device's record, in percent.
    pub meter: Option<f64>,
    /// Number of kernels launched per second.
    pub kernels: f64,
    /// Processor time of the tenant's processes, in percent of a core.
    pub cpu: f64,
    /// Processor time per kernel, in microseconds.
    pub cpu_per_kernel_us: f64,
    /// Device time beyond `expected` before the window, in ms: the excess while costs were learned.
    pub start_excess_ms: f64,
    /// Difference between the processes with the largest and the smallest share, in percent of the device's time.
    pub apart: f64,
}

/// Percent of the time in these buckets that the device worked.
pub fn busy_percent(busy: &[u64], bucket_ns: u64) -> f64 {
    let whole = busy.len() as f64 * bucket_ns as f64;
    if whole == 0.0 { 0.0 } else { busy.iter().sum::<u64>() as f64 / whole * 100.0 }
}

/// Share in every window of `length` ns, one every `step` ns; empty if the record is shorter.
pub fn window_shares(busy: &[u64], bucket_ns: u64, length: u64, step: u64) -> Vec<f64> {
    let buckets = |ns: u64| usize::try_from(ns / bucket_ns).unwrap_or(usize::MAX).max(1);
    busy.windows(buckets(length)).step_by(buckets(step)).map(|window| busy_percent(window, bucket_ns)).collect()
}

/// Smallest of `values` that at least `part` of them do not exceed (nearest rank); 0 for none.
pub fn percentile_of(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = part * sorted.len() as f64;
    let at = (0..sorted.len()).find(|&at| (at + 1) as f64 >= rank - 1e-9);
    at.map_or(0.0, |at| sorted[at])
}

/// Median of `values`; the lower one of an even number.
pub fn lower_median(values: impl IntoIterator<Item = f64>) -> f64 {
    percentile_of(&values.into_iter().collect::<Vec<_>>(), 0.5)
}

/// Figures of one tenant, which uses `unlimited` percent without a limit.
pub fn tenant_figures(run: &MeasuredRun, ran: &TenantRun, tenant: &PointTenant, unlimited: f64) -> TenantFigures {
    let busy = ran.busy_buckets();
    let (start, window) = busy.split_at(run.warm.min(busy.len()));
    let ceiling = tenant.ceiling.map_or(100.0, |permille| f64::from(permille) / 10.0);
    let judged = &busy[counted_buckets(&busy, run)];
    let got = busy_percent(judged, run.bucket_ns);
    // If a program gets more than in its null control, it could have got that there too: the host was the obstacle.
    let expected = ceiling.min(unlimited.max(got));
    let shares = window_shares(window, run.bucket_ns, JUDGE_WINDOW_NS, STEP_NS);
    // A program that uses less than its ceiling on average may use more at times.
    let beyond = |one: f64| if one > expected { (one - ceiling).max(0.0) } else { one - expected };
    let off: Vec<f64> = shares.iter().map(|one| beyond(*one).abs()).collect();
    let excuses = excused_ns(run, ran, ceiling <= unlimited);
    let lost: Vec<u64> = (0..window.len()).map(|bucket| excuse_of_bucket(&excuses, run, bucket)).collect();
    let lost = window_shares(&lost, run.bucket_ns, JUDGE_WINDOW_NS, STEP_NS);
    let excused: Vec<f64> = shares.iter().zip(lost).map(|(one, lost)| excused_distance(beyond(*one), lost)).collect();
    let elapsed = run.window_ns as f64;
    let sum = |of: &dyn Fn(&crate::measure::ProcessRun) -> u64| ran.processes.iter().map(of).sum::<u64>() as f64;
    let (kernels, cpu) = (sum(&|process| process.kernels), sum(&|process| process.host.cpu_ns));
    let truth = window.iter().sum::<u64>() as f64;
    let each: Vec<f64> = ran.processes.iter().map(|process| own_share(&process.busy_ns, run)).collect();
    let early = busy_percent(start, run.bucket_ns) - expected;
    TenantFigures {
        share: got,
        over_s: judged.len() as f64 * run.bucket_ns as f64 / 1e9,
        expected,
        error: got - expected,
        window_mean: if off.is_empty() { 0.0 } else { off.iter().sum::<f64>() / off.len() as f64 },
        window_p99: percentile_of(&off, 0.99),
        got: if expected > 0.0 { got / expected * 100.0 } else { 0.0 },
        host: ran.delay_ns.iter().sum::<u64>() as f64 / elapsed * 100.0,
        excuse: excuses.iter().sum::<u64>() as f64 / elapsed * 100.0,
        excused_p99: percentile_of(&excused, 0.99),
        meter: ran.metered_ns.filter(|_| truth > 0.0).map(|ns| (ns as f64 / truth - 1.0) * 100.0),
        kernels: kernels / elapsed * 1e9,
        cpu: cpu / elapsed * 100.0,
        cpu_per_kernel_us: if kernels > 0.0 { cpu / kernels / 1e3 } else { 0.0 },
        start_excess_ms: early / 100.0 * start.len() as f64 * run.bucket_ns as f64 / 1e6,
        apart: percentile_of(&each, 1.0) - percentile_of(&each, 0.0),
    }
}

/// Range of buckets that the share is taken over.
///
/// A program pays for a kernel afterwards, by a pause. From the start of one kernel to the start of another after a
/// pause, everything used is paid and nothing else is. Over such a time the share must be exact, even with few kernels.
///
/// So the range begins with the programs, which owe nothing then. It ends at the first bucket after the window's length
/// in which the tenant starts again, or at the end of the record. Excess and shortage anywhere in between count.
pub fn counted_buckets(busy: &[u64], run: &MeasuredRun) -> std::ops::Range<usize> {
    if run.least == 0 {
        return run.warm.min(busy.len())..busy.len();
    }
    let begins = |at: &usize| busy[*at] > 0 && busy[*at - 1] == 0;
    0..(run.least.max(1)..busy.len()).find(begins).unwrap_or(busy.len())
}

/// Device time that delays can have cost in each tick, ns.
fn excused_ns(run: &MeasuredRun, ran: &TenantRun, limited: bool) -> Vec<u64> {
    let made_up = if limited { BURST_NS } else { 0 };
    ran.delay_ns.iter().map(|delay| delay.saturating_sub(made_up).min(run.tick_ns)).collect()
}

/// Part of the tick's excuse that belongs to one bucket of the window.
fn excuse_of_bucket(excuses: &[u64], run: &MeasuredRun, bucket: usize) -> u64 {
    let buckets = (run.tick_ns / run.bucket_ns).max(1);
    let tick = usize::try_from(bucket as u64 / buckets).unwrap_or(usize::MAX);
    excuses.get(tick).map_or(0, |excuse| excuse / buckets)
}

/// Distance of a window of 1 s from its due, in points. `beyond`: points above the due (negative: below). `lost`:
/// points that the host took, which reduce a shortfall.
fn excused_distance(beyond: f64, lost: f64) -> f64 {
    if beyond < 0.0 { (-beyond - lost).max(0.0) } else { beyond }
}

fn own_share(busy: &[u32], run: &MeasuredRun) -> f64 {
    let window: Vec<u64> = busy.iter().skip(run.warm).map(|ns| u64::from(*ns)).collect();
    busy_percent(&window, run.bucket_ns)
}

/// Percent of the device's time that it worked for any process.
pub fn device_busy(run: &MeasuredRun) -> f64 {
    run.tenants
        .iter()
        .map(|tenant| busy_percent(tenant.busy_buckets().get(run.warm..).unwrap_or(&[]), run.bucket_ns))
        .sum()
}

/// Verdict of a budget on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetVerdict {
    /// The figure is within the budget.
    Kept,
    /// The figure is below the budget by no more than the host's run delay and stolen time can explain.
    Host,
    /// The figure is below the budget, as expected of several tenants without a daemon.
    Alone,
    /// The figure is outside the budget.
    Missed,
}

impl BudgetVerdict {
    /// Word for the verdict in reports.
    pub fn verdict_word(self) -> &'static str {
        match self {
            BudgetVerdict::Kept => "kept",
            BudgetVerdict::Host => "host",
            BudgetVerdict::Alone => "no daemon",
            BudgetVerdict::Missed => "MISSED",
        }
    }
}

/// Verdicts on a tenant of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PointVerdicts {
    /// Verdict on the share over the whole window.
    pub share: BudgetVerdict,
    /// Verdict on windows of 1 s.
    pub window: BudgetVerdict,
    /// Verdict on the share relative to the possible one.
    pub got: BudgetVerdict,
}

impl PointVerdicts {
    /// The three verdicts as a list.
    pub fn all(self) -> [BudgetVerdict; 3] {
        [self.share, self.window, self.got]
    }
}

/// Points that 99 of 100 windows of 1 s may be off.
pub fn window_budget(kernel_ns: u64) -> f64 {
    WINDOW_POINTS + if kernel_ns > SHORT_NS { kernel_ns as f64 / JUDGE_WINDOW_NS as f64 * 100.0 } else { 0.0 }
}

/// Compares figures with the budgets. Without a daemon several tenants are only held below their ceilings.
pub fn judge_point(point: &MeasuredPoint, figures: &TenantFigures) -> PointVerdicts {
    let alone = point.tenants.len() > 1;
    let above = figures.error > SHARE_POINTS;
    // A budget missed on the low side may be due to the host, or to the missing daemon.
    let low = |kept: bool, with_excuse: bool| match kept {
        true => BudgetVerdict::Kept,
        false if alone => BudgetVerdict::Alone,
        false if with_excuse => BudgetVerdict::Host,
        false => BudgetVerdict::Missed,
    };
    let share_is = |excuse: f64| figures.error + excuse >= -SHARE_POINTS;
    let got_is = |excuse: f64| figures.share + excuse >= GOT_PERCENT / 100.0 * figures.expected;
    let window_is = |p99: f64| p99 <= window_budget(point.longest_kernel_ns());
    let window = low(window_is(figures.window_p99), window_is(figures.excused_p99));
    PointVerdicts {
        share: if above { BudgetVerdict::Missed } else { low(share_is(0.0), share_is(figures.excuse)) },
        window: if above && window != BudgetVerdict::Kept { BudgetVerdict::Missed } else { window },
        got: low(got_is(0.0), got_is(figures.excuse)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostUsage;
    use crate::measure::ProcessRun;
    use crate::points::{LaunchPattern, TenantLoad};

    const BUCKET: u64 = 10_000_000;

    /// A run with `busy` ms of the 10 ms in each bucket, one slice per process.
    fn run(processes: &[&[u32]], warm: usize) -> MeasuredRun {
        let process = |ms: &&[u32]| ProcessRun {
            busy_ns: ms.iter().map(|ms| ms * 1_000_000).collect(),
            kernels: 100,
            host: HostUsage { cpu_ns: 50_000_000, delay_ns: 20_000_000 },
        };
        let buckets = processes[0].len() - warm;
        let tenant = TenantRun {
            processes: processes.iter().map(process).collect(),
            metered_ns: Some(660_000_000),
            delay_ns: vec![1_000_000; buckets / 10],
        };
        MeasuredRun {
            bucket_ns: BUCKET,
            warm,
            least: processes[0].len(),
            window_ns: buckets as u64 * BUCKET,
            tenants: vec![tenant],
            switch_ns: 0,
            tick_ns: 10 * BUCKET,
            beside: 1,
        }
    }

    fn point(ceiling: u32, kernel_ns: u64, tenants: usize) -> MeasuredPoint {
        let load = TenantLoad { pattern: LaunchPattern::Async, kernel_ns, processes: 1 };
        let tenant = PointTenant { ceiling: Some(ceiling), load };
        MeasuredPoint { name: "p".into(), profile: "h200", tenants: vec![tenant; tenants] }
    }

    #[test]
    fn windows_slide_by_their_step_and_are_whole() {
        let busy: Vec<u64> = (0..110).map(|n| if n < 100 { BUCKET } else { 0 }).collect();
        assert_eq!(window_shares(&busy, BUCKET, 1_000_000_000, 50_000_000), [100.0, 95.0, 90.0]);
        assert!(window_shares(&busy[..99], BUCKET, 1_000_000_000, 50_000_000).is_empty());
        assert_eq!(busy_percent(&[], BUCKET), 0.0);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=100).map(f64::from).rev().collect();
        assert_eq!(percentile_of(&values, 0.99), 99.0);
        assert_eq!(percentile_of(&values, 1.0), 100.0);
        assert_eq!(percentile_of(&values, 0.0), 1.0);
        assert_eq!(percentile_of(&[], 0.99), 0.0);
        assert_eq!(lower_median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(lower_median([4.0]), 4.0);
    }

    #[test]
    fn figures_of_a_made_up_record_are_what_was_made_up() {
        // A start of half a second at 100 %, then two seconds: one at 20 %, one at 40 %.
        let record: Vec<u32> = (0..250)
            .map(|n| {
                if n < 50 {
                    10
                } else if n < 150 {
                    2
                } else {
                    4
                }
            })
            .collect();
        let run = run(&[&record], 50);
        let point = point(300, 1_000_000, 1);
        let figures = tenant_figures(&run, &run.tenants[0], &point.tenants[0], 100.0);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a} {b}: {figures:?}");
        // The share includes the start: half a second at 70 points more than due.
        near(figures.share, 44.0);
        near(figures.error, 14.0);
        near(figures.over_s, 2.5);
        // 21 windows: 10 points below, then 9, ... 0 ..., 10 above.
        near(figures.window_p99, 10.0);
        near(figures.window_mean, 110.0 / 21.0);
        near(figures.start_excess_ms, 350.0);
        near(figures.meter.unwrap(), 10.0);
        near(figures.kernels, 50.0);
        near(figures.cpu, 2.5);
        near(figures.cpu_per_kernel_us, 500.0);
        near(figures.host, 1.0);
        near(figures.excuse, 0.0);
        near(device_busy(&run), 30.0);
    }

    /// Kernels of 1 s under `due` percent, for `seconds`, by a governor that charges `charged` percent of the use. The
    /// first `early` kernels run before anything is paid, and none runs after `stops` seconds.
    fn governed(due: u64, charged: u64, early: u64, seconds: u64, stops: u64) -> MeasuredRun {
        let pause = 100 * charged / due;
        let mut record = vec![0; usize::try_from(seconds * 100).unwrap()];
        let mut begin = 0;
        for kernel in 0.. {
            let end = begin + 100;
            let in_time = |at: &usize| (*at as u64) < stops * 100;
            let at = (begin..end).filter_map(|at| usize::try_from(at).ok()).filter(in_time);
            at.for_each(|at| record.get_mut(at).into_iter().for_each(|bucket| *bucket = 10));
            begin = if kernel + 1 < early { end } else { (kernel + 1) * pause };
            if begin >= seconds * 100 {
                break;
            }
        }
        MeasuredRun { least: 5_000, ..run(&[&record], 350) }
    }

    /// An error of the governor is reported, even where the time of fifty kernels contains only five.
    #[test]
    fn a_governor_that_charges_a_tenth_too_little_or_too_much_is_reported() {
        use BudgetVerdict::*;
        for due in [10, 30, 50, 80] {
            let judge = |charged, early, stops| {
                let run = governed(due, charged, early, 50 + 100 / due + 1, stops);
                let point = point(u32::try_from(due).unwrap() * 10, 1_000_000_000, 1);
                let figures = tenant_figures(&run, &run.tenants[0], &point.tenants[0], 100.0);
                let verdicts = judge_point(&point, &figures);
                ((verdicts.share, verdicts.got), figures)
            };
            let is = |made: ((BudgetVerdict, BudgetVerdict), TenantFigures), share, got| {
                assert_eq!(made.0, (share, got), "{due} %: {:?}", made.1);
            };
            is(judge(100, 1, u64::MAX / 100), Kept, Kept);
            is(judge(90, 1, u64::MAX / 100), Missed, Kept);
            is(judge(111, 1, u64::MAX / 100), if due == 10 { Kept } else { Missed }, Missed);
            // An excess at the start is paid back by the end; an excess that is never paid back is reported.
            is(judge(100, 3.min(50 * due / 100), u64::MAX / 100), Kept, Kept);
            is(judge(50, 1, u64::MAX / 100), Missed, Kept);
            // No kernel runs after half of the time, although each kernel before was paid exactly.
            is(judge(100, 1, 25), Missed, Missed);
        }
    }

    #[test]
    fn a_tenant_is_the_sum_of_its_processes_and_their_distance_is_told() {
        let run = run(&[&[4; 200], &[1; 200]], 0);
        let point = point(500, 1_000_000, 1);
        let figures = tenant_figures(&run, &run.tenants[0], &point.tenants[0], 100.0);
        assert!((figures.share - 50.0).abs() < 1e-6 && (figures.apart - 30.0).abs() < 1e-6, "{figures:?}");
    }

    #[test]
    fn who_wants_less_than_the_ceiling_is_held_to_what_it_uses_by_itself() {
        let run = run(&[&[1; 200]], 0);
        let point = point(500, 1_000_000, 1);
        let figures = tenant_figures(&run, &run.tenants[0], &point.tenants[0], 10.0);
        assert_eq!(judge_point(&point, &figures).all(), [BudgetVerdict::Kept; 3]);
    }

    #[test]
    fn a_burst_makes_up_for_short_delays_under_a_ceiling_and_for_none_below_it() {
        let mut run = run(&[&[3; 200]], 0);
        let point = point(500, 1_000_000, 1);
        run.tenants[0].delay_ns = [vec![40_000_000; 10], vec![90_000_000; 10]].concat();
        let excuse = |unlimited| tenant_figures(&run, &run.tenants[0], &point.tenants[0], unlimited).excuse;
        assert!((excuse(100.0) - 20.0).abs() < 1e-6 && (excuse(40.0) - 65.0).abs() < 1e-6);
        // The first half has no excuse, so its windows stay as far off. With the same delays all along no window would
        // be off.
        let p99 = |run: &MeasuredRun| tenant_figures(run, &run.tenants[0], &point.tenants[0], 100.0).excused_p99;
        assert!((p99(&run) - 20.0).abs() < 1e-6);
        run.tenants[0].delay_ns = vec![90_000_000; 20];
        assert!(p99(&run) < 1e-6);
    }

    #[test]
    fn windows_between_own_use_and_the_ceiling_are_not_off() {
        let record = [[2; 100], [4; 100]].concat();
        let run = run(&[&record], 0);
        let of =
            |ceiling| tenant_figures(&run, &run.tenants[0], &point(ceiling, 1_000_000, 1).tenants[0], 25.0).window_p99;
        assert!((of(500) - 10.0).abs() < 1e-6 && (of(320) - 10.0).abs() < 1e-6 && (of(250) - 15.0).abs() < 1e-6);
    }

    #[test]
    fn more_than_in_the_null_control_is_no_error_below_the_ceiling() {
        let run = run(&[&[3; 200]], 0);
        let point = point(500, 1_000_000, 1);
        let figures = tenant_figures(&run, &run.tenants[0], &point.tenants[0], 20.0);
        assert!(figures.error.abs() < 1e-6 && (figures.got - 100.0).abs() < 1e-6, "{figures:?}");
    }

    #[test]
    fn too_much_is_missed_whatever_the_host_did_and_too_little_may_be_its_fault() {
        let figures = |share: f64, excuse: f64| TenantFigures {
            share,
            over_s: 10.0,
            expected: 30.0,
            error: share - 30.0,
            window_mean: 0.0,
            window_p99: (share - 30.0).abs(),
            got: share / 30.0 * 100.0,
            host: 50.0,
            excuse,
            excused_p99: (share - 30.0).abs() - excuse,
            meter: None,
            kernels: 0.0,
            cpu: 0.0,
            cpu_per_kernel_us: 0.0,
            start_excess_ms: 0.0,
            apart: 0.0,
        };
        use BudgetVerdict::*;
        let judge = |point: &MeasuredPoint, share, excuse| judge_point(point, &figures(share, excuse)).all();
        let one = point(300, 1_000_000, 1);
        assert_eq!(judge(&one, 30.9, 0.0), [Kept, Kept, Kept]);
        assert_eq!(judge(&one, 35.0, 50.0), [Missed, Missed, Kept]);
        assert_eq!(judge(&one, 28.0, 0.5), [Missed, Kept, Missed]);
        assert_eq!(judge(&one, 28.0, 2.0), [Host, Kept, Host]);
        assert_eq!(judge(&one, 25.0, 2.5), [Missed, Host, Missed]);
        let two = point(300, 1_000_000, 2);
        assert_eq!(judge(&two, 20.0, 0.0), [Alone, Alone, Alone]);
        assert_eq!(judge(&two, 32.0, 0.0), [Missed, Kept, Kept]);
    }

    #[test]
    fn a_window_of_long_kernels_may_be_off_by_one_of_them() {
        assert_eq!([1_000_000, SHORT_NS, 200_000_000, 1_000_000_000].map(window_budget), [3.0, 3.0, 23.0, 103.0]);
    }
}
