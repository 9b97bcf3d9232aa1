//! The report: the results as Markdown and as pictures. Not here: the computation of a figure (`judge`).

use crate::host::HostFacts;
use crate::judge::{self, BudgetVerdict, PointVerdicts, TenantFigures, lower_median};
use crate::measure::MeasuredRun;
use crate::output::{MeasuredReport, Picture};
use crate::plot::{self, PlotDot, PlotLine, PlotPanel};
use crate::points::{MeasuredPoint, TenantLoad, format_length, format_percent};
use serde::Serialize;
use std::fmt::Write;

/// Buckets of 10 ms that form one step of the pictures and of the series in JSON.
const BUCKETS_PER_STEP: usize = 10;
/// Number of panels in the picture over time.
const MAX_PANELS: usize = 24;

/// All results of a run of this tool.
#[derive(Serialize)]
pub struct ShareResults {
    /// The machine and the time of the run.
    pub facts: HostFacts,
    /// Runs of each point; the report shows their medians.
    pub runs: usize,
    /// Null controls: the programs' use without the library.
    pub nulls: Vec<NullControl>,
    /// Points (settings under test) with their figures.
    pub points: Vec<PointResult>,
    /// Points that were measured again, alone on the host.
    pub alone: Vec<AloneAndTogether>,
    /// Descriptions of runs that failed.
    pub failures: Vec<String>,
}

/// A null control: a program without the library, which shows its use without a limit.
#[derive(Serialize)]
pub struct NullControl {
    /// Name of the null control.
    pub name: String,
    /// The program that ran.
    pub load: TenantLoad,
    /// Profile of the simulated device.
    pub profile: &'static str,
    /// Figures of the null control's run.
    pub figures: TenantFigures,
}

/// A point (setting under test) with its figures.
#[derive(Serialize)]
pub struct PointResult {
    /// The setting under test: device profile, tenants, ceilings and work.
    pub point: MeasuredPoint,
    /// Length of the measurement after the start, in seconds.
    pub seconds: f64,
    /// Percent of the device's time that it worked for any process, median of the runs.
    pub device_busy: f64,
    /// Largest number of runs that shared the host with one of these.
    pub beside: usize,
    /// Results of each tenant of the point.
    pub tenants: Vec<TenantResult>,
}

/// Results of one tenant over all runs of a point.
#[derive(Serialize)]
pub struct TenantResult {
    /// Median of each figure over the runs.
    pub median: TenantFigures,
    /// Lowest and highest share of the runs.
    pub range: (f64, f64),
    /// Verdicts of the budgets on the medians.
    pub verdicts: PointVerdicts,
    /// Figures of each single run of the point.
    pub runs: Vec<TenantFigures>,
    /// Percent in each tenth of a second of the first run, start included.
    pub tenths: Vec<f64>,
}

/// A point measured alone and together with others.
#[derive(Serialize)]
pub struct AloneAndTogether {
    /// Name of the measured point.
    pub name: String,
    /// Share of the first tenant (median of the runs), number of other runs at the same time, range of the share.
    pub together: (f64, usize, (f64, f64)),
    /// Share of the first tenant when alone.
    pub alone: f64,
    /// 99th percentile of the windows of 1 s, together and alone.
    pub window_p99: (f64, f64),
}

impl PointResult {
    /// Results of a point from its runs; its tenants use `unlimited` percent without a limit. `None` if there is no
    /// run.
    pub fn of_runs(point: &MeasuredPoint, runs: &[MeasuredRun], unlimited: &[f64]) -> Option<PointResult> {
        let first = runs.first()?;
        let tenants = point.tenants.iter().enumerate().map(|(index, tenant)| {
            let each = runs.iter().map(|run| judge::tenant_figures(run, &run.tenants[index], tenant, unlimited[index]));
            let runs: Vec<TenantFigures> = each.collect();
            let median = median_figures(&runs);
            let shares = || runs.iter().map(|figures| figures.share);
            let range = (shares().fold(f64::INFINITY, f64::min), shares().fold(0.0, f64::max));
            let busy = first.tenants[index].busy_buckets();
            let tenths = busy.chunks(BUCKETS_PER_STEP).map(|part| judge::busy_percent(part, first.bucket_ns)).collect();
            TenantResult { verdicts: judge::judge_point(point, &median), median, range, runs, tenths }
        });
        Some(PointResult {
            point: point.clone(),
            seconds: first.window_ns as f64 / 1e9,
            device_busy: lower_median(runs.iter().map(judge::device_busy)),
            beside: runs.iter().map(|run| run.beside).max().unwrap_or(1),
            tenants: tenants.collect(),
        })
    }
}

/// Figures of the runs combined: the median of each figure by itself.
pub fn median_figures(runs: &[TenantFigures]) -> TenantFigures {
    let of = |figure: fn(&TenantFigures) -> f64| lower_median(runs.iter().map(figure));
    let metered: Vec<f64> = runs.iter().filter_map(|run| run.meter).collect();
    TenantFigures {
        share: of(|f| f.share),
        over_s: of(|f| f.over_s),
        expected: of(|f| f.expected),
        error: of(|f| f.error),
        window_mean: of(|f| f.window_mean),
        window_p99: of(|f| f.window_p99),
        got: of(|f| f.got),
        host: of(|f| f.host),
        excuse: of(|f| f.excuse),
        excused_p99: of(|f| f.excused_p99),
        meter: (!metered.is_empty()).then(|| lower_median(metered)),
        kernels: of(|f| f.kernels),
        cpu: of(|f| f.cpu),
        cpu_per_kernel_us: of(|f| f.cpu_per_kernel_us),
        start_excess_ms: of(|f| f.start_excess_ms),
        apart: of(|f| f.apart),
    }
}

impl MeasuredReport for ShareResults {
    fn to_markdown(&self) -> String {
        let mut out = String::from("# Shares of device time, measured\n\n");
        self.write_head(&mut out);
        self.write_accuracy(&mut out);
        self.write_cost(&mut out);
        self.write_controls(&mut out);
        out
    }

    fn all_pictures(&self) -> Vec<Picture> {
        vec![self.errors_picture(), self.over_time()]
    }
}

impl ShareResults {
    /// Number of tenants with at least one verdict of that kind.
    pub fn count_verdicts(&self, wanted: BudgetVerdict) -> usize {
        self.tenant_results().filter(|(_, tenant)| tenant.verdicts.all().contains(&wanted)).count()
    }

    fn tenant_results(&self) -> impl Iterator<Item = (&PointResult, &TenantResult)> {
        self.points.iter().flat_map(|measured| measured.tenants.iter().map(move |tenant| (measured, tenant)))
    }

    /// Share of a program in its null control.
    fn null_of(&self, profile: &str, load: TenantLoad) -> f64 {
        let null = self.nulls.iter().find(|null| null.profile == profile && null.load == load);
        null.map_or(100.0, |null| null.figures.share)
    }

    fn write_head(&self, out: &mut String) {
        out.push_str(
            &self.facts.report_head(
                "The device is simulated ([how](../../simulated-device.md)), processes and clock are real.",
            ),
        );
        let all = self.tenant_results().count();
        let only_kept =
            self.tenant_results().filter(|(_, tenant)| tenant.verdicts.all() == [BudgetVerdict::Kept; 3]).count();
        let _ = writeln!(
            out,
            "**{} points, {all} tenants: {only_kept} keep every budget; {} miss one; {} are below one by no more than the \
             host explains; {} are below one as several tenants without a daemon may be; {} runs failed.** Medians of \
             {} run(s).\n",
            self.points.len(),
            self.count_verdicts(BudgetVerdict::Missed),
            self.count_verdicts(BudgetVerdict::Host),
            self.count_verdicts(BudgetVerdict::Alone),
            self.failures.len(),
            self.runs
        );
        for failure in &self.failures {
            let _ = writeln!(out, "- failed: {failure}");
        }
        out.push_str(METHOD_TEXT);
    }

    fn write_accuracy(&self, out: &mut String) {
        out.push_str("\n## Accuracy\n\n![errors](errors.svg)\n\n![shares over time](over-time.svg)\n\n");
        out.push_str(
            "| point | s | ceiling | by itself | share | lowest .. highest | error (1) | 1 s mean | 1 s p99 (budget) | got (98) | \
             device | host (excuse) | verdicts: share, 1 s, got |\n|---|--:|--:|--:|--:|---|--:|--:|---|--:|--:|--:|---|\n",
        );
        for measured in &self.points {
            let PointResult { point, device_busy, tenants, .. } = measured;
            for (index, (tenant, result)) in point.tenants.iter().zip(tenants).enumerate() {
                let (f, v) = (&result.median, result.verdicts);
                let name =
                    if tenants.len() == 1 { point.name.clone() } else { format!("{} #{}", point.name, index + 1) };
                let _ = writeln!(
                    out,
                    "| {name} | {:.1} | {} | {:.1} | {:.2} | {:.2} .. {:.2} | {:+.2} | {:.2} | {:.2} ({:.0}) | {:.1} | {:.1} | {:.1} ({:.1}) | {} |",
                    f.over_s,
                    tenant.ceiling.map_or("-".into(), format_percent),
                    self.null_of(point.profile, tenant.load),
                    f.share,
                    result.range.0,
                    result.range.1,
                    f.error,
                    f.window_mean,
                    f.window_p99,
                    judge::window_budget(point.longest_kernel_ns()),
                    f.got,
                    device_busy,
                    f.host,
                    f.excuse,
                    verdict_text(v),
                );
            }
        }
    }

    fn write_cost(&self, out: &mut String) {
        out.push_str("\n## What it took\n\n");
        out.push_str(
            "| point | kernels/s | own meter against truth, % | processor, % of a core | us per kernel | start excess, ms | \
             between members, points | runs at once |\n|---|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        for measured in &self.points {
            for (index, result) in measured.tenants.iter().enumerate() {
                let (f, several) = (&result.median, measured.tenants.len() > 1);
                let name = if several {
                    format!("{} #{}", measured.point.name, index + 1)
                } else {
                    measured.point.name.clone()
                };
                let members = measured.point.tenants[index].load.processes;
                let _ = writeln!(
                    out,
                    "| {name} | {:.1} | {} | {:.1} | {:.1} | {:+.1} | {} | {} |",
                    f.kernels,
                    f.meter.map_or("-".into(), |meter| format!("{meter:+.2}")),
                    f.cpu,
                    f.cpu_per_kernel_us,
                    f.start_excess_ms,
                    if members > 1 { format!("{:.2}", f.apart) } else { "-".into() },
                    measured.beside,
                );
            }
        }
    }

    fn write_controls(&self, out: &mut String) {
        out.push_str("\n## Null control: the same programs without the library\n\n");
        out.push_str(
            "| program | share | host | kernels/s | processor, % of a core | us per kernel | |\n|---|--:|--:|--:|--:|--:|---|\n",
        );
        for NullControl { name, load, figures: f, .. } in &self.nulls {
            use crate::points::LaunchPattern::{Bursts, Sync};
            let waits = matches!(load.pattern, Sync | Bursts);
            let word = match f.share {
                _ if waits => "waits by itself",
                share if share >= judge::NULL_PERCENT => "takes the device",
                share if share + f.host >= judge::NULL_PERCENT => "host",
                _ => "DOES NOT",
            };
            let _ = writeln!(
                out,
                "| {name} | {:.2} | {:.2} | {:.1} | {:.1} | {:.1} | {word} |",
                f.share, f.host, f.kernels, f.cpu, f.cpu_per_kernel_us
            );
        }
        out.push_str("\n## Alone and together\n\n");
        if self.alone.is_empty() {
            out.push_str("No run shared the host with another, or the comparison was not asked for.\n");
            return;
        }
        out.push_str(
            "Points that were measured beside others, once more alone on the host (`--compare`).\n\n\
             | point | runs at once | share together (lowest .. highest) | alone | difference | 1 s p99 together | alone |\n\
             |---|--:|---|--:|--:|--:|--:|\n",
        );
        for AloneAndTogether { name, together: (share, beside, (low, high)), alone, window_p99: (p99, p99_alone) } in
            &self.alone
        {
            let difference = share - alone;
            let _ = writeln!(
                out,
                "| {name} | {beside} | {share:.2} ({low:.2} .. {high:.2}) | {alone:.2} | {difference:+.2} | {p99:.2} | {p99_alone:.2} |"
            );
        }
    }

    /// Picture of errors by kernel length, for points with one tenant.
    pub fn errors_picture(&self) -> Picture {
        let single: Vec<&PointResult> = self.points.iter().filter(|measured| measured.tenants.len() == 1).collect();
        let mut lengths: Vec<u64> = single.iter().map(|measured| measured.point.longest_kernel_ns()).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let series_of = |point: &MeasuredPoint| {
            let load = point.tenants[0].load;
            let name = load.pattern.name();
            if load.processes > 1 { "several processes".to_owned() } else { name.to_owned() }
        };
        let mut series: Vec<String> = Vec::new();
        for measured in &single {
            let name = series_of(&measured.point);
            if !series.contains(&name) {
                series.push(name);
            }
        }
        let dots = single.iter().map(|measured| PlotDot {
            column: lengths.iter().position(|length| *length == measured.point.longest_kernel_ns()).unwrap_or(0),
            series: series.iter().position(|name| *name == series_of(&measured.point)).unwrap_or(0),
            error: measured.tenants[0].median.error,
            name: measured.point.name.clone(),
        });
        let columns: Vec<String> = lengths.iter().map(|ns| format_length(*ns)).collect();
        plot::errors_picture(&columns, &series, &dots.collect::<Vec<_>>(), judge::SHARE_POINTS)
    }

    /// Picture of shares over time: points with several tenants first, then those with the largest errors.
    pub fn over_time(&self) -> Picture {
        let mut chosen: Vec<&PointResult> = self.points.iter().collect();
        let off =
            |measured: &PointResult| measured.tenants.iter().map(|tenant| tenant.median.window_p99).fold(0.0, f64::max);
        chosen.sort_by(|a, b| (b.tenants.len() > 1).cmp(&(a.tenants.len() > 1)).then(off(b).total_cmp(&off(a))));
        let panels = chosen.into_iter().take(MAX_PANELS).map(|measured| PlotPanel {
            title: measured.point.name.clone(),
            step: BUCKETS_PER_STEP as f64 * 0.01,
            lines: measured
                .point
                .tenants
                .iter()
                .zip(&measured.tenants)
                .map(|(tenant, result)| PlotLine {
                    name: format!(
                        "{}, ceiling {} %",
                        tenant.load.name(),
                        tenant.ceiling.map_or("no".into(), format_percent)
                    ),
                    shares: result.tenths.clone(),
                    ceiling: tenant.ceiling.map(|permille| f64::from(permille) / 10.0),
                })
                .collect(),
        });
        plot::over_time(&panels.collect::<Vec<_>>())
    }
}

fn verdict_text(verdicts: PointVerdicts) -> String {
    verdicts.all().map(BudgetVerdict::verdict_word).join(", ")
}

const METHOD_TEXT: &str = "
**Method.** Each point has a simulated device of its own and real processes under `LD_PRELOAD=libvgpu.so`; each tenant its \
ceiling (`VGPU_SM_LIMIT`) and name. The judge is the device's own record of whom it worked for, in buckets of 10 ms \
(`vgpu sim stat --timeline`); nothing that the library says enters a share. *By itself* is what the same program uses \
without the library (the null control, the best of its runs); *expected* = min(ceiling, by itself), *error* = share - expected in points, *got* = \
share / expected in percent. A share is taken from the very beginning to the first launch after max(10 s, 50 of the longest \
kernels) that follows a pause (column *s*): there every kernel is paid for, and one more or less does not show. *1 s* are windows of a second, one every 50 ms: mean and 99th percentile of how far they are below \
expected or above the ceiling. *Host* is the run delay of the tenant's processes and stolen \
time (`/proc/PID/task/*/schedstat`, `/proc/stat`, ten times a second) in points, the *excuse* what of it can have cost \
device time: all of it for a program that does not reach its ceiling by itself; under a ceiling what exceeds 50 ms in a \
tenth of a second, since the account's burst makes up for the rest. A budget that is missed on the low side by no more \
than the excuse (for windows: by each window's own) says `host`. \
*Start excess* is device time beyond expected before the first window of 1 s, while costs are learned and the first burst is \
spent; it counts in the share. The own meter is read from the ledger; it is behind by what is in flight.

**Budgets.** Share within 1 point over max(10 s, 50 of the longest kernels); 99 of 100 windows of 1 s within 3 points, for \
kernels above 20 ms within 3 points and a kernel; got at least 98 %. Several tenants are here without the daemon: an \
interval between two markers holds the others' time too, so that ceilings hold but may be under-used; they are judged from \
above only, and `no daemon` stands where they are below. Weights are ceilings here: weights themselves need the daemon.
";
