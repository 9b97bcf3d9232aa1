//! Rows about shares, tenants and leases, from the output of `vgpu-shares` and `vgpu-daemon-bench`. Each repetition is
//! one number in each column, and differences are taken within a repetition.

use crate::row::{LimitControl, MetricRow, RowKind};
use crate::sources::{CEILING_POINT, LATENCY, STREAMS, ToldResults, WEIGHTS};
use crate::spread::{FigureCell, accuracy_percent, against_itself, jain_index, paired_differences};
use serde_json::Value;

/// Least percent of the device that a program without a limit must use; otherwise the effect of a limit cannot be seen.
const MIN_UNLIMITED_PERCENT: f64 = 80.0;
/// Threshold for the ratio of the second share to the first. It is 7/3 at weights of 30/70 and 1 at 50/50.
const DIVIDED_RATIO: f64 = 1.6;

/// One repetition: the native figure, if there is one, and ours.
type NativeAndOurs = (Option<f64>, f64);

/// Column in which vgpu's own figure is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FigureColumn {
    Limits,
    Daemon,
}

fn whole_row(
    id: &'static str,
    what: &str,
    control: LimitControl,
    column: FigureColumn,
    runs: &[NativeAndOurs],
) -> MetricRow {
    let ours: Vec<f64> = runs.iter().map(|run| run.1).collect();
    let native: Vec<f64> = runs.iter().filter_map(|run| run.0).collect();
    let cell = FigureCell::of_runs(&ours);
    MetricRow {
        native: FigureCell::of_runs(&native),
        bare_again: against_itself(&native),
        limits: cell.filter(|_| column == FigureColumn::Limits),
        daemon: cell.filter(|_| column == FigureColumn::Daemon),
        difference: if native.len() == ours.len() { paired_differences(&ours, &native) } else { None },
        ..MetricRow::new(id, what, RowKind::Whole, control)
    }
}

fn told_number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer)?.as_f64()
}

/// The entry with that name in a list.
fn entry_named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|one| one["name"] == name || one["point"]["name"] == name)
}

/// A control that holds if `holds` accepts every run and there is at least one. `text` describes the first run that
/// fails, else the last one.
fn holds_throughout(
    runs: &[(f64, f64)],
    holds: impl Fn(f64, f64) -> bool,
    text: impl Fn(f64, f64) -> String,
) -> LimitControl {
    let worst = runs.iter().find(|run| !holds(run.0, run.1)).or(runs.last());
    match worst {
        Some(&(a, b)) => LimitControl::new(text(a, b), runs.iter().all(|run| holds(run.0, run.1))),
        None => LimitControl::new("nothing was measured", false),
    }
}

/// All rows that can be made from these outputs of the measuring tools.
pub fn share_rows(told: &ToldResults) -> Vec<MetricRow> {
    let mut rows = point_rows(told);
    let tenants = &told.tenants;
    let divides = weights_hold(tenants);
    rows.extend(weight_rows(tenants, &divides));
    rows.extend(done_rows(tenants, &divides));
    rows.extend(change_rows(tenants));
    rows.extend(service_rows(tenants));
    rows.extend(latency_rows(tenants, &divides));
    rows.extend(told.leases.as_ref().map(lease_rows).unwrap_or_default());
    // Metrics that were not requested have no figures.
    rows.retain(|row| row.limits.is_some() || row.daemon.is_some());
    rows
}

/// Share without the library, share with it, and its percentage of the due share.
fn told_point(told: &Value, name: &str) -> Option<(f64, f64, f64)> {
    let null = format!("{}/null", name.rsplit_once('/')?.0);
    let tenant = &entry_named(&told["points"], name)?["tenants"][0]["median"];
    let free = told_number(entry_named(&told["nulls"], &null)?, "/figures/share")?;
    Some((free, told_number(tenant, "/share")?, told_number(tenant, "/got")?))
}

fn point_rows(told: &ToldResults) -> Vec<MetricRow> {
    let of =
        |name: &str| -> Vec<(f64, f64, f64)> { told.points.iter().filter_map(|one| told_point(one, name)).collect() };
    let control = |runs: &[(f64, f64, f64)], ceiling: f64| {
        let shares: Vec<(f64, f64)> = runs.iter().map(|run| (run.0, run.1)).collect();
        holds_throughout(
            &shares,
            |free, share| free >= MIN_UNLIMITED_PERCENT && share < (free + ceiling) / 2.0,
            |free, share| format!("{free:.1} % of the device without the library, {share:.1} % under {ceiling:.0}"),
        )
    };
    let (halves, streams) = (of(CEILING_POINT), of(STREAMS));
    let near: Vec<NativeAndOurs> =
        halves.iter().map(|run| (Some(accuracy_percent(run.0, 50.0)), accuracy_percent(run.1, 50.0))).collect();
    let got: Vec<NativeAndOurs> = streams.iter().map(|run| (Some(run.0), run.2)).collect();
    vec![
        whole_row("IS-003", "a ceiling of 50 %, 5 ms kernels", control(&halves, 50.0), FigureColumn::Limits, &near),
        whole_row("SCHED-003", "four streams, a ceiling of 80 %", control(&streams, 80.0), FigureColumn::Limits, &got),
    ]
}

/// Parts of the work that the two tenants of [`WEIGHTS`] got: due 30, due 70.
fn divided_shares(told: &Value) -> Option<(f64, f64)> {
    let parts = &entry_named(&told["shares"], WEIGHTS)?["figures"];
    Some((told_number(parts, "/parts/0/of_work")?, told_number(parts, "/parts/1/of_work")?))
}

/// Positive control of everything under the daemon with equal terms: in the same repetitions the daemon divides 30 to
/// 70 as configured.
fn weights_hold(tenants: &[Value]) -> LimitControl {
    let shares: Vec<(f64, f64)> = tenants.iter().filter_map(divided_shares).collect();
    let text =
        |a: f64, b: f64| format!("beside it the daemon gave two tenants with weights 30 and 70 {a:.1} and {b:.1} %");
    holds_throughout(&shares, |a, b| b > DIVIDED_RATIO * a, text)
}

fn weight_rows(tenants: &[Value], divides: &LimitControl) -> Vec<MetricRow> {
    let accurate = tenants
        .iter()
        .filter_map(divided_shares)
        .map(|(a, b)| (None, accuracy_percent(a, 30.0).min(accuracy_percent(b, 70.0))));
    let cpu =
        tenants.iter().filter_map(|one| told_number(entry_named(&one["shares"], WEIGHTS)?, "/figures/daemon_cpu"));
    let (accurate, cpu): (Vec<NativeAndOurs>, Vec<NativeAndOurs>) =
        (accurate.collect(), cpu.map(|cpu| (None, cpu)).collect());
    let what = "weights 30 and 70, 1 ms kernels, the worse of two";
    vec![
        whole_row("IS-003", what, divides.clone(), FigureColumn::Daemon, &accurate),
        whole_row("OH-009", "two tenants, 1 ms kernels", divides.clone(), FigureColumn::Daemon, &cpu),
    ]
}

fn done_rows(tenants: &[Value], divides: &LimitControl) -> Vec<MetricRow> {
    let busy = |one: &Value| Some((told_number(one, "/done/bare")?, told_number(one, "/done/with")?));
    let unused = tenants.iter().filter_map(busy).map(|(bare, with)| (Some(100.0 - bare), 100.0 - with));
    vec![whole_row(
        "OH-010",
        "two tenants, equal weights",
        divides.clone(),
        FigureColumn::Daemon,
        &unused.collect::<Vec<_>>(),
    )]
}

fn change_rows(tenants: &[Value]) -> Vec<MetricRow> {
    let row = |name: &str, what: &str| {
        let all: Vec<&Value> = tenants.iter().filter_map(|one| entry_named(&one["changes"], name)).collect();
        let seen: Vec<(f64, f64)> = all
            .iter()
            .filter_map(|one| Some((told_number(one, "/times/count")?, told_number(one, "/lost")?)))
            .collect();
        let text =
            |count: f64, lost: f64| format!("of {} changes in a repetition {lost} were never seen", count + lost);
        let control = holds_throughout(&seen, |count: f64, lost: f64| count > 0.0 && lost == 0.0, text);
        let times: Vec<NativeAndOurs> =
            all.iter().filter_map(|one| Some((None, told_number(one, "/times/p50")?))).collect();
        whole_row("IS-004", what, control, FigureColumn::Daemon, &times)
    };
    vec![
        row("changes/wider", "5 to 90 %, median of a repetition"),
        row("changes/narrower", "90 to 5 %, median of a repetition"),
    ]
}

/// Throughput of two services, and the spread of the first one's answer times.
type ServiceWay = ([f64; 2], f64);

/// One way in which two services ran: throughput of each relative to alone, and the spread between the first one's p50
/// and p99 in percent.
fn told_way(told: &Value, at: usize) -> Option<ServiceWay> {
    let both = &told["services"]["ways"][at][1];
    let part = |service: usize| Some(1.0 + told_number(&both[service], "/throughput_change")? / 100.0);
    let times = &both[0]["times"];
    let (p50, p99) = (told_number(times, "/p50")?, told_number(times, "/p99")?);
    Some(([part(0)?, part(1)?], (p99 - p50) / p50 * 100.0))
}

/// Each tenant's part of the throughput, relative to the share that its weight gives.
fn of_due(parts: [f64; 2], weights: [f64; 2]) -> [f64; 2] {
    let sum = weights[0] + weights[1];
    [0, 1].map(|at| parts[at] / (weights[at] / sum))
}

fn service_rows(tenants: &[Value]) -> Vec<MetricRow> {
    let all: Vec<_> =
        tenants.iter().filter_map(|one| Some([told_way(one, 0)?, told_way(one, 1)?, told_way(one, 2)?])).collect();
    let ratios: Vec<(f64, f64)> =
        all.iter().map(|[_, equal, more]| (equal.0[1] / equal.0[0], more.0[1] / more.0[0])).collect();
    let control = holds_throughout(
        &ratios,
        |equal, more| equal < DIVIDED_RATIO && more > DIVIDED_RATIO,
        |equal, more| format!("B gets {equal:.2} times A's part at 50/50 and {more:.2} times at 30/70"),
    );
    let (equal, more) = ([50.0, 50.0], [30.0, 70.0]);
    let least = |parts: [f64; 2], weights| of_due(parts, weights).into_iter().fold(f64::INFINITY, f64::min) * 100.0;
    let fair = |parts: [f64; 2], weights| jain_index(&of_due(parts, weights));
    let row = |id, what, of: &dyn Fn(&[ServiceWay; 3]) -> NativeAndOurs| {
        whole_row(id, what, control.clone(), FigureColumn::Daemon, &all.iter().map(of).collect::<Vec<_>>())
    };
    vec![
        row("IS-006", "weights 50 and 50", &|[bare, half, _]| (Some(least(bare.0, equal)), least(half.0, equal))),
        row("IS-006", "weights 30 and 70", &|[bare, _, part]| (Some(least(bare.0, more)), least(part.0, more))),
        row("IS-007", "weights 50 and 50", &|[bare, half, _]| (Some(bare.1), half.1)),
        row("IS-008", "weights 50 and 50", &|[bare, half, _]| (Some(fair(bare.0, equal)), fair(half.0, equal))),
        row("IS-008", "weights 30 and 70", &|[bare, _, part]| (Some(fair(bare.0, more)), fair(part.0, more))),
    ]
}

fn latency_rows(tenants: &[Value], divides: &LimitControl) -> Vec<MetricRow> {
    let all = |figure: &str, of: fn(f64, f64) -> f64| -> Vec<NativeAndOurs> {
        let one = |told: &Value| {
            let row = entry_named(&told["latency"], LATENCY)?;
            let of_way = |way: &str| told_number(row, &format!("/{way}/{figure}"));
            let alone = of_way("alone")?;
            Some((Some(of(of_way("bare")?, alone)), of(of_way("with")?, alone)))
        };
        tenants.iter().filter_map(one).collect()
    };
    let longer = |beside: f64, alone: f64| (beside / alone - 1.0) * 100.0;
    let row = |id, what, runs: &[NativeAndOurs]| whole_row(id, what, divides.clone(), FigureColumn::Daemon, runs);
    vec![
        row("IS-009", "mean", &all("mean", longer)),
        row("IS-009", "99th percentile", &all("p99", longer)),
        row("SCHED-004", "99th percentile", &all("p99", |beside, alone| beside - alone)),
    ]
}

fn lease_rows(told: &Value) -> Vec<MetricRow> {
    let row = |what: &str, figure: &str| {
        let cell = |of: &str| told_number(told, &format!("/{of}/{figure}")).map(FigureCell::without_interval);
        let (native, daemon) = (cell("host"), cell("asleep"));
        let difference = native.zip(daemon).map(|(native, daemon)| daemon.minus_cell(native));
        let control = LimitControl::new("every wait ended with a lease of the daemon's", daemon.is_some());
        MetricRow { native, daemon, difference, ..MetricRow::new("SCHED-001", what, RowKind::Whole, control) }
    };
    vec![row("median of 2000", "p50"), row("99th percentile", "p99")]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of the tools in a run of 2026-11-23, so that this test reads the tools' real output. The series over
    /// time were removed.
    fn kept() -> ToldResults {
        let kept: Value = serde_json::from_str(include_str!("kept-run.json")).expect("a kept run is JSON");
        let tenants = kept["tenants"].clone();
        ToldResults {
            points: vec![kept["points"].clone()],
            tenants: vec![tenants.clone(), tenants],
            ..ToldResults::default()
        }
    }

    fn figure(rows: &[MetricRow], id: &str, what: &str) -> (f64, f64) {
        let row =
            rows.iter().find(|row| row.id == id && row.what.contains(what)).unwrap_or_else(|| panic!("{id} {what}"));
        let value = |cell: Option<FigureCell>| cell.map_or(f64::NAN, |cell| cell.value);
        assert!(row.control.holds, "{id}: {}", row.control.what);
        (value(row.native), value(row.limits.or(row.daemon)))
    }

    #[test]
    fn a_kept_run_gives_the_figures_that_its_own_report_shows() {
        let rows = share_rows(&kept());
        let near = |(a, b): (f64, f64), (x, y): (f64, f64)| {
            let close = |a: f64, x: f64| (a - x).abs() < 0.05 || (a.is_nan() && x.is_nan());
            assert!(close(a, x) && close(b, y), "{a} {b}, expected {x} {y}");
        };
        // Values in that run's report: 98.52 and 97.94 % busy; requests mean 0.5551 alone, 1.4668 next to the other,
        // 1.0061 with vgpu; p99 +0.14 and +0.48.
        near(figure(&rows, "OH-010", ""), (1.478, 2.058));
        near(figure(&rows, "IS-009", "mean"), (164.26, 81.26));
        near(figure(&rows, "SCHED-004", ""), (0.141, 0.477));
        near(figure(&rows, "IS-004", "5 to 90"), (f64::NAN, 2.66));
        // Throughput -51.39 and -50.58 without vgpu, -50.63 and -51.17 at 50/50.
        near(figure(&rows, "IS-006", "50 and 50"), (97.22, 97.65));
        near(figure(&rows, "IS-003", "weights"), (f64::NAN, 99.65));
        near(figure(&rows, "OH-009", ""), (f64::NAN, 1.017));
        let (native, ours) = figure(&rows, "IS-008", "30 and 70");
        assert!(native < 0.9 && ours > 0.99, "{native} {ours}");
        let (native, ours) = figure(&rows, "IS-003", "ceiling");
        assert!(native < 5.0 && ours > 95.0, "{native} {ours}");
    }

    #[test]
    fn two_tenants_that_get_the_same_show_that_nothing_divides() {
        let mut told = kept();
        for run in &mut told.tenants {
            run["shares"][0]["figures"]["parts"][0]["of_work"] = 50.0.into();
            run["shares"][0]["figures"]["parts"][1]["of_work"] = 50.0.into();
        }
        let rows = share_rows(&told);
        let broken: Vec<&str> = rows.iter().filter(|row| !row.control.holds).map(|row| row.id).collect();
        assert_eq!(broken, ["IS-003", "OH-009", "OH-010", "IS-009", "IS-009", "SCHED-004"]);
    }

    #[test]
    fn a_program_that_has_the_device_in_spite_of_its_ceiling_shows_that_there_is_none() {
        let mut told = kept();
        for point in told.points[0]["points"].as_array_mut().unwrap() {
            point["tenants"][0]["median"]["share"] = 99.0.into();
        }
        let rows = share_rows(&told);
        assert!(rows.iter().filter(|row| row.limits.is_some()).all(|row| !row.control.holds));
    }

    #[test]
    fn what_was_not_asked_for_has_no_row() {
        assert_eq!(share_rows(&ToldResults::default()).len(), 0);
    }
}
