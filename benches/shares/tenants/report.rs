//! The report: the results as Markdown and as a picture. Not here: the computation of a figure (`figures`).

use super::cases::LatencyCase;
use super::changes::ChangeTimes;
use super::decode::{self, DecodeRow};
use super::figures::{
    self, CHANGE_MS, DONE_PERCENT, LATENCY_MS, RequestTimes, ShareFigures, TenantsVerdict, change_percent,
};
use super::run::TenantsRun;
use crate::host::HostFacts;
use crate::output::{MeasuredReport, Picture};
use crate::plot::{self, PlotLine, PlotPanel};
use serde::Serialize;
use std::fmt::Write;

/// All results of a run of `vgpu-shares tenants`.
#[derive(Serialize)]
pub struct TenantsResults {
    /// The machine and the time of the run.
    pub facts: HostFacts,
    /// Results of tenants that always have work.
    pub shares: Vec<SharesRow>,
    /// Results of short requests next to a batch program.
    pub latency: Vec<LatencyRow>,
    /// Results of the two services.
    pub services: Option<ServicesResult>,
    /// Decode steps of one service and of two.
    pub decode: Vec<DecodeRow>,
    /// Throughput of two tenants, with and without vgpu.
    pub done: Option<DoneResult>,
    /// Times until changed settings are in force.
    pub changes: Vec<ChangeTimes>,
    /// Descriptions of runs that failed.
    pub failures: Vec<String>,
}

/// Tenants at the same time on one device.
#[derive(Serialize)]
pub struct SharesRow {
    /// Name by which the user selects the case.
    pub name: String,
    /// Length of the measurement, in seconds.
    pub seconds: f64,
    /// Shares, errors and verdicts of the run.
    pub figures: ShareFigures,
    /// Percent of the device's time for each tenant in each tenth of a second.
    pub tenths: Vec<Vec<f64>>,
}

impl SharesRow {
    /// Makes the row of a run.
    pub fn new(name: &str, ran: &TenantsRun, figures: ShareFigures) -> SharesRow {
        let step = usize::try_from(100_000_000 / ran.bucket_ns).unwrap_or(1).max(1);
        let tenths = |busy: &Vec<u64>| {
            let part =
                |part: &[u64]| part.iter().sum::<u64>() as f64 / (part.len() as u64 * ran.bucket_ns) as f64 * 100.0;
            busy.chunks(step).map(part).collect()
        };
        let (seconds, tenths) = (ran.window_ns as f64 / 1e9, ran.busy.iter().map(tenths).collect());
        SharesRow { name: name.into(), seconds, figures, tenths }
    }
}

/// Short requests: alone, next to a batch program without vgpu, and with vgpu.
#[derive(Serialize)]
pub struct LatencyRow {
    /// Name by which the user selects the case.
    pub name: &'static str,
    /// Times of requests alone on the device, without vgpu.
    pub alone: RequestTimes,
    /// Times of requests next to the batch program, without vgpu.
    pub bare: RequestTimes,
    /// Times of requests next to the batch program, with vgpu.
    pub with: RequestTimes,
    /// The batch program's percent of the device's time, without and with vgpu.
    pub batch: (f64, f64),
    /// Run delay of programs and daemon in the run with vgpu, in percent of its time.
    pub delay: f64,
    /// Verdict on the 99th percentile; `None` if the budget does not apply to such kernels.
    pub verdict: Option<TenantsVerdict>,
}

impl LatencyRow {
    /// The row of three runs.
    pub fn new(
        one: &LatencyCase,
        alone: RequestTimes,
        bare: (RequestTimes, f64),
        with: (RequestTimes, f64),
        delay: f64,
    ) -> LatencyRow {
        let verdict = one.judged.then(|| TenantsVerdict::judge_missing(with.0.p99 - alone.p99 - LATENCY_MS, 0.0));
        LatencyRow { name: one.name, alone, bare: bare.0, with: with.0, batch: (bare.1, with.1), delay, verdict }
    }
}

/// Results of the two services, alone and together in several ways.
#[derive(Serialize)]
pub struct ServicesResult {
    /// Each alone on the device, without vgpu.
    pub alone: Vec<ServiceResult>,
    /// Both at the same time: name of the way, and results of each.
    pub ways: Vec<(&'static str, Vec<ServiceResult>)>,
}

/// Results of one of the two services.
#[derive(Serialize)]
pub struct ServiceResult {
    /// Name of the service in the report.
    pub name: &'static str,
    /// Times of the service's requests.
    pub times: RequestTimes,
    /// Change of the mean time against alone, percent.
    pub latency_change: f64,
    /// Change of the throughput against alone, percent.
    pub throughput_change: f64,
}

impl ServiceResult {
    /// Compares the times with those when alone.
    pub fn new(name: &'static str, times: RequestTimes, alone: &RequestTimes) -> ServiceResult {
        let latency_change = change_percent(alone.mean, times.mean);
        ServiceResult {
            name,
            times,
            latency_change,
            throughput_change: change_percent(alone.per_second, times.per_second),
        }
    }
}

/// Throughput of two tenants together, in percent of the device's time.
#[derive(Serialize)]
pub struct DoneResult {
    /// Name by which the user selects the case.
    pub name: &'static str,
    /// Throughput in the device's own time slices, without vgpu.
    pub bare: f64,
    /// Throughput with vgpu.
    pub with: f64,
    /// Throughput with vgpu in percent of the throughput without it.
    pub part: f64,
    /// Run delay of programs and daemon plus stolen time, in percent of the run with vgpu.
    pub delay: f64,
    /// Verdict on `part` against the budget.
    pub verdict: TenantsVerdict,
}

impl DoneResult {
    /// The row of two runs.
    pub fn new(name: &'static str, bare: f64, with: f64, delay: f64) -> DoneResult {
        let part = if bare > 0.0 { with / bare * 100.0 } else { 0.0 };
        DoneResult { name, bare, with, part, delay, verdict: TenantsVerdict::judge_missing(DONE_PERCENT - part, delay) }
    }
}

impl MeasuredReport for TenantsResults {
    fn to_markdown(&self) -> String {
        let mut out = String::from("# Tenants under the daemon, measured\n\n");
        self.write_head(&mut out);
        self.side_by_side(&mut out);
        self.write_latencies(&mut out);
        self.two_services(&mut out);
        decode::write_decode(&self.decode, &mut out);
        self.what_is_done(&mut out);
        self.write_changes(&mut out);
        out
    }

    fn all_pictures(&self) -> Vec<Picture> {
        let over_time = (!self.shares.is_empty()).then(|| self.over_time());
        let decode = (!self.decode.is_empty()).then(|| decode::decode_picture(&self.decode));
        over_time.into_iter().chain(decode).collect()
    }
}

impl TenantsResults {
    /// Results before the first measurement.
    pub fn new(facts: HostFacts) -> TenantsResults {
        let (shares, latency, changes, failures) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let decode = Vec::new();
        TenantsResults { facts, shares, latency, services: None, decode, done: None, changes, failures }
    }

    /// Every judged figure: its row and budget, and the verdict.
    fn all_verdicts(&self) -> Vec<(String, TenantsVerdict)> {
        let mut all = Vec::new();
        for row in &self.shares {
            let mut note = |what: String, verdict| all.push((format!("{}, {what}", row.name), verdict));
            for (at, part) in row.figures.parts.iter().enumerate() {
                note(format!("tenant {}, share: {:+.2} points", at + 1, part.error), part.share);
                note(format!("tenant {}, windows of 1 s: p99 {:.2} points", at + 1, part.window_p99), part.windows);
            }
            row.figures.conserved.into_iter().for_each(|it| note(format!("busy: {:.2} %", row.figures.busy), it));
            row.figures.fair.into_iter().for_each(|it| note(format!("Jain's index: {:.5}", row.figures.jain), it));
        }
        for row in &self.latency {
            let more = row.with.p99 - row.alone.p99;
            all.extend(row.verdict.map(|verdict| (format!("{}, p99: alone {more:+.2} ms", row.name), verdict)));
        }
        all.extend(self.done.as_ref().map(|it| (format!("{}: {:.2} % of uncontrolled", it.name, it.part), it.verdict)));
        all.extend(self.changes.iter().map(|it| (format!("{}: p99 {:.2} ms", it.name, it.times.p99), it.verdict)));
        all
    }

    /// Names of the rows with such a verdict.
    pub fn names_of(&self, wanted: TenantsVerdict) -> Vec<String> {
        self.all_verdicts().into_iter().filter(|(_, verdict)| *verdict == wanted).map(|(name, _)| name).collect()
    }

    fn write_head(&self, out: &mut String) {
        out.push_str(&self.facts.report_head(
            "**These are the model's figures:** the device is simulated ([how](../../simulated-device.md)); processes, \
             daemon and clock are real.",
        ));
        let count = |wanted| self.names_of(wanted).len();
        let _ = writeln!(
            out,
            "**{} budgets: {} kept, {} missed by no more than the host took, {} missed; {} runs failed.**\n",
            self.all_verdicts().len(),
            count(TenantsVerdict::Kept),
            count(TenantsVerdict::Host),
            count(TenantsVerdict::Missed),
            self.failures.len()
        );
        let said =
            |word: &str, lines: &[String]| lines.iter().map(|line| format!("- {word}: {line}\n")).collect::<String>();
        out.push_str(&said("missed", &self.names_of(TenantsVerdict::Missed)));
        out.push_str(&said("host", &self.names_of(TenantsVerdict::Host)));
        out.push_str(&said("failed", &self.failures));
        out.push_str(METHOD);
    }

    fn side_by_side(&self, out: &mut String) {
        if self.shares.is_empty() {
            return;
        }
        out.push_str(
            "\n## Shares of tenants that always have work\n\n![shares over time](over-time.svg)\n\n\
             | tenant | due | of what was done | of the clock | error (1) | 1 s p99 (3, and the longest kernel) | host | verdicts: share, 1 s |\n\
             |---|--:|--:|--:|--:|--:|--:|---|\n",
        );
        for row in &self.shares {
            for (at, part) in row.figures.parts.iter().enumerate() {
                let _ = writeln!(
                    out,
                    "| {} #{} | {:.2} | {:.2} | {:.2} | {:+.2} | {:.2} | {:.2} | {}, {} |",
                    row.name,
                    at + 1,
                    part.due,
                    part.of_work,
                    part.of_time,
                    part.error,
                    part.window_p99,
                    part.delay,
                    part.share.verdict_word(),
                    part.windows.verdict_word()
                );
            }
        }
        out.push_str(
            "\n| run | s | device busy (98) | changing processes | Jain (0.999) | host, all | of it the daemon | \
             daemon, % of a core | verdicts: busy, equal |\n|---|--:|--:|--:|--:|--:|--:|--:|---|\n",
        );
        let word = |verdict: Option<TenantsVerdict>| verdict.map_or("-", TenantsVerdict::verdict_word);
        for SharesRow { name, seconds, figures: f, .. } in &self.shares {
            let _ = writeln!(
                out,
                "| {name} | {seconds:.1} | {:.2} | {:.2} | {:.5} | {:.2} | {:.2} | {:.2} | {}, {} |",
                f.busy,
                f.switching,
                f.jain,
                f.delay,
                f.daemon_delay,
                f.daemon_cpu,
                word(f.conserved),
                word(f.fair)
            );
        }
    }

    fn write_latencies(&self, out: &mut String) {
        if self.latency.is_empty() {
            return;
        }
        out.push_str(
            "\n## A latency tenant beside a batch tenant\n\nmilliseconds from the launch of a kernel to the end of the wait for it; a request every 5 ms.\n\n\
             | requests | way | requests | mean | p50 | p99 | longest | batch gets, % | p99 against alone (+2.5) |\n\
             |---|---|--:|--:|--:|--:|--:|--:|---|\n",
        );
        for row in &self.latency {
            let ways = [
                ("alone", &row.alone, None),
                ("beside, without us", &row.bare, Some(row.batch.0)),
                ("with us", &row.with, Some(row.batch.1)),
            ];
            for (way, times, batch) in ways {
                let judged = way == "with us";
                let word = row.verdict.map_or("not judged", TenantsVerdict::verdict_word);
                let _ = writeln!(
                    out,
                    "| {} | {way} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {:+.2}{} |",
                    row.name,
                    times.count,
                    times.mean,
                    times.p50,
                    times.p99,
                    times.max,
                    batch.map_or("-".into(), |batch| format!("{batch:.1}")),
                    times.p99 - row.alone.p99,
                    if judged { format!(" {word}; host {:.1} %", row.delay) } else { String::new() }
                );
            }
        }
    }

    fn two_services(&self, out: &mut String) {
        let Some(services) = &self.services else { return };
        out.push_str(
            "\n## Two inference services\n\nA answers in 61 kernels of 1 ms, B in 113; each asks anew as soon as it is answered. \
             Changes are against alone. *Together* is the sum of both services' throughput, each as a part of what it is alone.\n\n\
             | way | service | answers | per second | mean, ms | p50 | p99 | latency | throughput | together |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        let alone = ("alone", &services.alone);
        for (way, each) in std::iter::once(alone).chain(services.ways.iter().map(|(way, each)| (*way, each))) {
            let together = each.iter().map(|one| one.throughput_change / 100.0 + 1.0).sum::<f64>();
            for (at, ServiceResult { name, times, latency_change, throughput_change }) in each.iter().enumerate() {
                let sum = if at == 0 && way != "alone" { format!("{together:.3}") } else { String::new() };
                let _ = writeln!(
                    out,
                    "| {way} | {name} | {} | {:.2} | {:.1} | {:.1} | {:.1} | {latency_change:+.1} % | {throughput_change:+.1} % | {sum} |",
                    times.count, times.per_second, times.mean, times.p50, times.p99
                );
            }
        }
    }

    fn what_is_done(&self, out: &mut String) {
        let Some(done) = &self.done else { return };
        let _ = writeln!(
            out,
            "\n## What two tenants get done\n\nTwo programs with kernels of 1 ms and work all the time: **{:.2} %** of the \
             device's time in its own time slices, **{:.2} %** in leases at 50/50, which is **{:.2} %** of that (budget {DONE_PERCENT}; \
             host {:.2} points): {}.",
            done.bare,
            done.with,
            done.part,
            done.delay,
            done.verdict.verdict_word()
        );
    }

    fn write_changes(&self, out: &mut String) {
        if self.changes.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "\n## Limits that change\n\nmilliseconds from before the daemon is asked; budget {CHANGE_MS} for the 99th percentile.\n\n\
             | change | times | p50 | p99 | longest | never | verdict | what |\n|---|--:|--:|--:|--:|--:|---|---|"
        );
        for ChangeTimes { name, what, times, lost, verdict } in &self.changes {
            let _ = writeln!(
                out,
                "| {name} | {} | {:.2} | {:.2} | {:.2} | {lost} | {} | {what} |",
                times.count,
                times.p50,
                times.p99,
                times.max,
                verdict.verdict_word()
            );
        }
    }

    /// Picture of shares over time.
    pub fn over_time(&self) -> Picture {
        let line = |(part, shares): (&figures::TenantPart, &Vec<f64>)| PlotLine {
            name: format!("due {:.1} %", part.due),
            shares: shares.clone(),
            ceiling: Some(part.due),
        };
        let panels = self.shares.iter().map(|row| PlotPanel {
            title: row.name.clone(),
            step: 0.1,
            lines: row.figures.parts.iter().zip(&row.tenths).map(line).collect(),
        });
        plot::over_time(&panels.collect::<Vec<_>>())
    }
}

const METHOD: &str = "
**Method.** Each run has a simulated H200 of its own, a real `vgpud` with one tenant per program, and real processes under \
`LD_PRELOAD=libvgpu.so`; nothing else runs beside it. The judge of shares is the device's own record of whom it worked for, in \
buckets of 10 ms; of latency the program's own clock. *Due* is the weight's part of all weights, or the ceiling. With weights a \
share is judged by what was done (*of what was done*), and that the device is never idle by *device busy*; with ceilings by the \
clock. *Host* is the run delay that the kernel reports (`schedstat`), in points of the run: time in which a program or the daemon \
could run and had no core, in which the device may be idle through no fault of ours. A budget that is missed by no more than \
that says `host`: too little for who was delayed, too much for the others, an idle device for all delays together. Above a \
ceiling, in latency and in changes of limits nothing is excused. *Without us* is the same program without the library, in the \
device's time slices of 2 ms.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_named_and_the_report_says_whose_figures_these_are() {
        let facts = HostFacts {
            cores: 2,
            processor: "p".into(),
            kernel: "k".into(),
            date: "d".into(),
            commit: "c".into(),
            command: "vgpu-shares tenants".into(),
            load: "0".into(),
        };
        let mut results = TenantsResults::new(facts);
        results.done = Some(DoneResult::new("done", 98.0, 90.0, 1.0));
        assert_eq!(results.names_of(TenantsVerdict::Missed).len(), 1);
        let text = results.to_markdown();
        assert!(
            text.contains("the model's figures") && text.contains("- missed: done: 91.84 % of uncontrolled"),
            "{text}"
        );
        results.done = Some(DoneResult::new("done", 98.0, 90.0, 7.0));
        assert_eq!(
            (results.names_of(TenantsVerdict::Missed).len(), results.names_of(TenantsVerdict::Host).len()),
            (0, 1)
        );
    }
}
