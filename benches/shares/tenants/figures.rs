//! Computes figures and verdicts from records of tenants. Arithmetic only: no clock, no file, no process.

use super::client::ServedRequest;
use super::run::TenantsRun;
use crate::judge::{self, SHARE_POINTS, SHORT_NS, WINDOW_POINTS};
use serde::Serialize;

/// Jain's index that tenants with equal shares must reach.
pub const MIN_JAIN_INDEX: f64 = 0.999;
/// Percent of the time that the device must work while all tenants have work.
pub const BUSY_PERCENT: f64 = 98.0;
/// Milliseconds that 99 of 100 requests of a latency tenant may take longer than alone.
pub const LATENCY_MS: f64 = 2.5;
/// Milliseconds within which a changed limit must be in force.
pub const CHANGE_MS: f64 = 10.0;
/// Percent of their uncontrolled throughput that tenants must reach together.
pub const DONE_PERCENT: f64 = 98.0;

/// Verdict of a budget on a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TenantsVerdict {
    /// The figure is within the budget.
    Kept,
    /// The figure is within the budget without the time that the host took from the programs.
    Host,
    /// The figure is outside the budget.
    Missed,
}

impl TenantsVerdict {
    /// `missing` is the amount by which the budget is missed, `excuse` the host's part, in the same unit.
    pub fn judge_missing(missing: f64, excuse: f64) -> TenantsVerdict {
        match missing {
            _ if missing <= 1e-9 => TenantsVerdict::Kept,
            _ if missing <= excuse => TenantsVerdict::Host,
            _ => TenantsVerdict::Missed,
        }
    }

    /// Word for the verdict in reports.
    pub fn verdict_word(self) -> &'static str {
        match self {
            TenantsVerdict::Kept => "kept",
            TenantsVerdict::Host => "host",
            TenantsVerdict::Missed => "MISSED",
        }
    }
}

/// Jain's index of fairness: 1 if all are equal, 1/n if one has everything.
pub fn jain_index(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(sum, squares), one| (sum + one, squares + one * one));
    if squares == 0.0 { 0.0 } else { sum * sum / (values.len() as f64 * squares) }
}

/// Change from `before` to `after` in percent.
pub fn change_percent(before: f64, after: f64) -> f64 {
    (after / before - 1.0) * 100.0
}

/// A tenant's part, in percent, with errors in points.
#[derive(Clone, Debug, Serialize)]
pub struct TenantPart {
    /// Percent of the device's time.
    pub of_time: f64,
    /// Percent of the device's work for all tenants.
    pub of_work: f64,
    /// Percentage that the tenant should get, of time or of work.
    pub due: f64,
    /// `of_work - due`; for a ceiling `of_time - due`.
    pub error: f64,
    /// 99th percentile of the errors of windows of 1 s.
    pub window_p99: f64,
    /// Run delay of the tenant's processes, in percent of the window.
    pub delay: f64,
    /// Verdict on `error` against the budget.
    pub share: TenantsVerdict,
    /// Verdict on `window_p99` against the budget.
    pub windows: TenantsVerdict,
}

/// Results of a run of tenants that always have work.
#[derive(Clone, Debug, Serialize)]
pub struct ShareFigures {
    /// Share and errors of each tenant.
    pub parts: Vec<TenantPart>,
    /// Percent of the device's time that it worked for any tenant.
    pub busy: f64,
    /// Percent of the device's time spent on switches between processes.
    pub switching: f64,
    /// Run delay of all programs and the daemon, plus stolen time.
    pub delay: f64,
    /// Run delay of the daemon alone.
    pub daemon_delay: f64,
    /// Processor time of the daemon, in percent of a core.
    pub daemon_cpu: f64,
    /// Verdict on `busy`; `None` if the ceilings leave part of the device unused.
    pub conserved: Option<TenantsVerdict>,
    /// Jain's index of `of_work / due`.
    pub jain: f64,
    /// Verdict on `jain`, if the due shares are equal.
    pub fair: Option<TenantsVerdict>,
}

/// A tenant's due share of a run.
#[derive(Clone, Copy, Debug)]
pub struct TenantDue {
    /// Due share of the tenant, in percent.
    pub percent: f64,
    /// Device time of the tenant's longest kernel, ns.
    pub longest: u64,
    /// True for a ceiling, false for a weight.
    pub ceiling: bool,
}

fn sum<'a>(values: impl IntoIterator<Item = &'a u64>) -> f64 {
    values.into_iter().sum::<u64>() as f64
}

/// Percent of `whole` in each window of 1 s, one every 50 ms.
fn window_parts(busy: &[u64], whole: &[u64], bucket_ns: u64) -> Vec<f64> {
    let buckets = |ns: u64| usize::try_from(ns / bucket_ns).unwrap_or(usize::MAX).max(1);
    let (length, step) = (buckets(1_000_000_000), buckets(50_000_000));
    let pairs = busy.windows(length).zip(whole.windows(length)).step_by(step);
    pairs.map(|(own, all)| if sum(all) > 0.0 { sum(own) / sum(all) * 100.0 } else { 0.0 }).collect()
}

/// Points that 99 of 100 windows of 1 s may be off.
pub fn window_budget(longest: u64) -> f64 {
    if longest <= SHORT_NS { WINDOW_POINTS } else { WINDOW_POINTS + longest as f64 / 1e9 * 100.0 }
}

/// Figures of a run whose programs are tenants that always have work.
pub fn share_figures(ran: &TenantsRun, dues: &[TenantDue]) -> ShareFigures {
    let buckets = ran.busy.iter().map(Vec::len).min().unwrap_or(0);
    let all: Vec<u64> = (0..buckets).map(|at| ran.busy.iter().map(|one| one[at]).sum()).collect();
    let clock = vec![ran.bucket_ns; buckets];
    let points = |ns: u64| ns as f64 / ran.window_ns as f64 * 100.0;
    let (programs, daemon) = ran.host.split_at(dues.len().min(ran.host.len()));
    let stolen = points(ran.stolen_ns);
    let delays: Vec<f64> = programs.iter().map(|usage| points(usage.delay_ns)).collect();
    let longest = dues.iter().map(|due| due.longest).max().unwrap_or(0);
    let parts: Vec<TenantPart> = ran
        .busy
        .iter()
        .zip(dues)
        .zip(&delays)
        .map(|((busy, due), &delay)| {
            let (of_time, of_work) = (sum(busy) / sum(&clock) * 100.0, sum(busy) / sum(&all).max(1.0) * 100.0);
            let whole = if due.ceiling { &clock } else { &all };
            let error = if due.ceiling { of_time } else { of_work } - due.percent;
            let off: Vec<f64> =
                window_parts(busy, whole, ran.bucket_ns).iter().map(|one| (one - due.percent).abs()).collect();
            let window_p99 = judge::percentile_of(&off, 0.99);
            // Too small a share may be due to this tenant's delay, too large a one to the others' delay, except above a
            // ceiling.
            let others = delays.iter().sum::<f64>() - delay;
            let excuse = stolen
                + if error < 0.0 {
                    delay
                } else if due.ceiling {
                    0.0
                } else {
                    others
                };
            TenantPart {
                of_time,
                of_work,
                due: due.percent,
                error,
                window_p99,
                delay,
                share: TenantsVerdict::judge_missing(error.abs() - SHARE_POINTS, excuse),
                windows: TenantsVerdict::judge_missing(window_p99 - window_budget(longest), stolen + delay.max(others)),
            }
        })
        .collect();
    let busy = sum(&all) / sum(&clock) * 100.0;
    let daemon_delay = daemon.iter().map(|usage| points(usage.delay_ns)).sum::<f64>();
    let delay = delays.iter().sum::<f64>() + daemon_delay + stolen;
    let due: f64 = dues.iter().map(|due| due.percent).sum();
    let ceilings = dues.iter().any(|due| due.ceiling) && due < 99.9;
    let jain = jain_index(&parts.iter().map(|part| part.of_work / part.due).collect::<Vec<_>>());
    let equal = dues.windows(2).all(|two| (two[0].percent - two[1].percent).abs() < 1e-9);
    // If one of n tenants is off by the fraction x of its due share, the index falls by about x^2/n. The delays limit
    // x.
    let off =
        delays.iter().zip(dues).map(|(delay, due)| (delay / due.percent).powi(2)).sum::<f64>() / dues.len() as f64;
    ShareFigures {
        parts,
        busy,
        switching: points(ran.switch_ns),
        delay,
        daemon_delay,
        daemon_cpu: daemon.iter().map(|usage| points(usage.cpu_ns)).sum(),
        conserved: (!ceilings).then(|| TenantsVerdict::judge_missing(BUSY_PERCENT - busy, delay)),
        jain,
        fair: (equal && dues.len() > 1).then(|| TenantsVerdict::judge_missing(MIN_JAIN_INDEX - jain, off)),
    }
}

/// Lengths of requests in ms, and their rate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestTimes {
    /// Number of requests measured.
    pub count: usize,
    /// Number of requests per second.
    pub per_second: f64,
    /// Mean time of a request.
    pub mean: f64,
    /// Median time of a request.
    pub p50: f64,
    /// 99th percentile of the times.
    pub p99: f64,
    /// Longest time of a request.
    pub max: f64,
}

impl RequestTimes {
    /// Computes the figures from the requests of a window.
    pub fn of_requests(requests: &[ServedRequest], window_ns: u64) -> RequestTimes {
        let took: Vec<f64> = requests.iter().map(|one| one.took as f64 / 1e6).collect();
        RequestTimes { per_second: took.len() as f64 / (window_ns as f64 / 1e9), ..RequestTimes::of_ms(&took) }
    }

    /// Computes the figures from times in ms; the rate is left out.
    pub fn of_ms(took: &[f64]) -> RequestTimes {
        let count = took.len();
        RequestTimes {
            count,
            per_second: 0.0,
            mean: took.iter().sum::<f64>() / count.max(1) as f64,
            p50: judge::percentile_of(took, 0.5),
            p99: judge::percentile_of(took, 0.99),
            max: judge::percentile_of(took, 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostUsage;

    /// Numbers of the study that the experiment with two services repeats.
    #[test]
    fn changes_are_the_studys() {
        let is = |value: f64, expected: f64| assert!((value - expected).abs() < 0.005, "{value} is not {expected}");
        is(change_percent(0.609, 1.227), 101.48);
        is(change_percent(1.0 / 0.609, 1.0 / 1.227), -50.37);
        is(change_percent(1.135, 1.778), 56.65);
        is(change_percent(1.0 / 1.135, 1.0 / 1.778), -36.16);
    }

    #[test]
    fn the_index_is_one_for_equals_and_one_nth_for_one_who_has_everything() {
        assert!(
            (jain_index(&[2.0; 5]) - 1.0).abs() < 1e-12 && (jain_index(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12
        );
        assert_eq!(jain_index(&[]), 0.0);
    }

    fn ran(busy: &[u64], delay_ns: u64) -> TenantsRun {
        let each = |ms: &u64| vec![ms * 1_000_000; 1000];
        TenantsRun {
            bucket_ns: 10_000_000,
            busy: busy.iter().map(each).collect(),
            window_ns: 10_000_000_000,
            switch_ns: 0,
            host: busy.iter().map(|_| HostUsage { cpu_ns: 0, delay_ns }).chain([HostUsage::default()]).collect(),
            stolen_ns: 0,
            requests: vec![Vec::new(); busy.len()],
        }
    }

    fn due(percent: f64, ceiling: bool) -> TenantDue {
        TenantDue { percent, longest: 1_000_000, ceiling }
    }

    #[test]
    fn shares_are_of_what_the_device_did_and_idleness_is_a_miss_of_its_own() {
        let of = |busy: &[u64], dues: &[TenantDue], delay| share_figures(&ran(busy, delay), dues);
        let both = [due(30.0, false), due(70.0, false)];
        let good = of(&[3, 7], &both, 0);
        assert!(
            good.parts.iter().all(|part| (part.share, part.windows) == (TenantsVerdict::Kept, TenantsVerdict::Kept))
        );
        assert_eq!((good.conserved, good.fair), (Some(TenantsVerdict::Kept), None));
        let idle = of(&[2, 7], &[due(200.0 / 9.0, false), due(700.0 / 9.0, false)], 0);
        assert_eq!((idle.parts[0].share, idle.conserved), (TenantsVerdict::Kept, Some(TenantsVerdict::Missed)));
        let unfair = of(&[4, 6], &both, 0);
        assert!(
            unfair
                .parts
                .iter()
                .all(|part| (part.share, part.windows) == (TenantsVerdict::Missed, TenantsVerdict::Missed))
        );
        // 1.5 s of 10 s: the host's delay explains it.
        let delayed = of(&[4, 5], &both, 1_500_000_000);
        assert_eq!((delayed.parts[0].share, delayed.conserved), (TenantsVerdict::Host, Some(TenantsVerdict::Host)));
    }

    #[test]
    fn above_a_ceiling_nothing_is_excused_and_below_the_sum_nobody_must_be_busy() {
        let of = |busy: &[u64], delay| share_figures(&ran(busy, delay), &[due(30.0, true), due(40.0, true)]);
        let over = of(&[4, 4], 2_000_000_000);
        assert_eq!((over.parts[0].share, over.conserved), (TenantsVerdict::Missed, None));
        let under = of(&[2, 4], 2_000_000_000);
        assert_eq!(under.parts[0].share, TenantsVerdict::Host);
    }

    #[test]
    fn equals_are_held_to_the_index() {
        let of = |busy: &[u64]| share_figures(&ran(busy, 0), &[due(50.0, false), due(50.0, false)]);
        assert_eq!((of(&[5, 5]).fair, of(&[4, 6]).fair), (Some(TenantsVerdict::Kept), Some(TenantsVerdict::Missed)));
    }

    #[test]
    fn requests_are_counted_by_the_windows_length() {
        let requests: Vec<ServedRequest> =
            (1..=100).map(|ms| ServedRequest { began: 0, took: ms * 1_000_000 }).collect();
        let times = RequestTimes::of_requests(&requests, 2_000_000_000);
        assert_eq!((times.count, times.p50, times.p99, times.max), (100, 50.0, 99.0, 100.0));
        assert!((times.per_second - 50.0).abs() < 1e-9 && (times.mean - 50.5).abs() < 1e-9);
    }
}
