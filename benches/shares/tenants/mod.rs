//! Measures tenants under the daemon: each one's part of the device, and the length of short requests next to long
//! ones. It also measures two services and decode steps at the same time, and the time until a changed limit is in
//! force.
//!
//!     vgpu-shares tenants [--only TEXT,...] [--seconds S] [--out DIR] [--json] [--check] [--list]
//!
//! Real processes with the preloaded library, a real `vgpud`, the simulated device and its own record. [`cases`] lists
//! the runs, [`client`] makes requests and watches limits, [`run`] and [`changes`] execute, [`figures`] judges,
//! [`report`] shows. Runs come one after the other, because each needs the host's cores for itself.

mod cases;
mod changes;
pub mod client;
mod decode;
mod figures;
mod report;
mod run;

use crate::host::HostFacts;
use crate::output::{self, OutputOptions};
use crate::place::MeasuringPlace;
use cases::TenantsCase;
use clap::Parser;
use figures::{RequestTimes, TenantsVerdict, share_figures};
use report::{DoneResult, LatencyRow, ServiceResult, ServicesResult, SharesRow, TenantsResults};
use run::TenantProgramSpec;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measures tenants under the daemon with real processes on the simulated device.
#[derive(Parser, Debug)]
#[command(
    name = "vgpu-shares tenants",
    after_help = "\
Examples:
  vgpu-shares tenants --list                         the names of the measurements
  vgpu-shares tenants --only latency,changes         a part of it, by parts of names
  vgpu-shares tenants --check --out /tmp/tenants     all of it (seven minutes); exit 1 if a budget is missed

vgpud and the libraries are found next to this program, or by VGPU_BUILD.

Exit codes:
  0  measured
  1  a run failed, or a budget is missed under --check
  2  usage, or a part is missing"
)]
struct Options {
    /// Measures only what has one of these texts in its name.
    #[arg(long, value_name = "TEXT,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Measures each run for S seconds instead of its own length.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: Option<u64>,
    /// Number of changes of a limit.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=1000))]
    changes: u64,
    /// Directory for report.md, the pictures over-time and decode (SVG) and their numbers (CSV).
    #[arg(long, value_name = "DIR", default_value = "target/tenants")]
    out: PathBuf,
    #[command(flatten)]
    output: OutputOptions,
}

const SERVICES: &str = "services";
const DONE: &str = "done/2x50/1ms";
const CHANGES: [&str; 3] = ["changes/memory", "changes/ceiling", "changes/pause"];

impl Options {
    fn wants_case(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    /// Window of a run whose default is `seconds`.
    fn window_of(&self, seconds: u64) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(seconds))
    }
}

/// Time that programs run before requests count.
const WARM_UP_TIME: Duration = Duration::from_millis(1500);

/// Measures the selection in `words`, the first of which is this tool's name.
///
/// # Errors
/// A part is missing, or nothing can be written.
pub fn measure_tenants(words: &[String]) -> Result<ExitCode, String> {
    let options = Options::parse_from(words);
    let names = case_names();
    for text in &options.only {
        if !names.iter().any(|name| name.contains(text.as_str())) {
            return Err(format!("--only {text}: nothing has this in its name; --list shows the names"));
        }
    }
    if options.output.list {
        names.iter().filter(|name| options.wants_case(name)).for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let (place, facts) = (MeasuringPlace::find()?, HostFacts::ask_machine("vgpu-shares"));
    place.daemon_path()?;
    output::prepare_output(&options.out)?;
    eprintln!("measuring {}", place.library_path().display());
    let results = all(&place, facts, &options);
    output::write(&results, &options.out, options.output.json)?;
    let missed = results.names_of(TenantsVerdict::Missed);
    missed.iter().for_each(|name| eprintln!("MISSED: {name}"));
    results.failures.iter().for_each(|why| eprintln!("failed: {why}"));
    Ok(options.output.exit_code(!results.failures.is_empty(), !missed.is_empty()))
}

fn case_names() -> Vec<String> {
    let shares = cases::share_cases().into_iter().map(|case| case.name);
    let latency = cases::latency_cases().into_iter().map(|one| one.name.to_owned());
    let decode = decode::DECODE_CASES.map(|(name, _)| name);
    let others = std::iter::once(SERVICES).chain(decode).chain([DONE]).chain(CHANGES);
    shares.chain(latency).chain(others.map(str::to_owned)).collect()
}

fn all(place: &MeasuringPlace, facts: HostFacts, options: &Options) -> TenantsResults {
    let mut results = TenantsResults::new(facts);
    let mut failures = Vec::new();
    let mut note = |name: &str, why: String| failures.push(format!("{name}: {why}"));
    for case in cases::share_cases().iter().filter(|case| options.wants_case(&case.name)) {
        match side_by_side(place, case, options) {
            Ok(row) => results.shares.push(row),
            Err(why) => note(&case.name, why),
        }
    }
    let mut alone = Vec::new();
    for one in cases::latency_cases().iter().filter(|one| options.wants_case(one.name)) {
        match measure_latency(place, one, options, &mut alone) {
            Ok(row) => results.latency.push(row),
            Err(why) => note(one.name, why),
        }
    }
    if options.wants_case(SERVICES) {
        results.services = measure_services(place, options).map_err(|why| note(SERVICES, why)).ok();
    }
    results.decode = decode::measure_decode(place, options).map_err(|why| note("decode", why)).unwrap_or_default();
    if options.wants_case(DONE) {
        results.done = measure_done(place, options).map_err(|why| note(DONE, why)).ok();
    }
    let times = usize::try_from(options.changes).unwrap_or(1);
    if options.wants_case(CHANGES[0]) {
        print_progress(CHANGES[0]);
        results.changes.extend(changes::measure_memory(place, 5 * times).map_err(|why| note(CHANGES[0], why)));
    }
    type ChangeMeasure = fn(&MeasuringPlace, usize) -> Result<Vec<changes::ChangeTimes>, String>;
    for (name, change) in
        [(CHANGES[1], changes::measure_ceiling as ChangeMeasure), (CHANGES[2], changes::measure_pause)]
    {
        if options.wants_case(name) {
            print_progress(name);
            results.changes.extend(change(place, times.div_ceil(2)).map_err(|why| note(name, why)).unwrap_or_default());
        }
    }
    results.failures = failures;
    results
}

fn print_progress(name: &str) {
    eprintln!("running {name}");
}

fn side_by_side(place: &MeasuringPlace, case: &TenantsCase, options: &Options) -> Result<SharesRow, String> {
    print_progress(&case.name);
    let ran =
        run::run(place, Some(&case.terms), &case.programs, case.warm_up_time(), case.window_time(options.seconds))?;
    Ok(SharesRow::new(&case.name, &ran, share_figures(&ran, &case.dues)))
}

/// Latency of short requests: alone, next to a batch program without vgpu, and with vgpu.
fn measure_latency(
    place: &MeasuringPlace,
    one: &cases::LatencyCase,
    options: &Options,
    solos: &mut Vec<(u64, RequestTimes)>,
) -> Result<LatencyRow, String> {
    print_progress(one.name);
    let both = [one.request_program(), TenantProgramSpec::busy_program(1, &[one.batch_ns])];
    let terms = [cases::tenant_terms("class = \"latency\""), cases::tenant_terms("class = \"batch\"")];
    let times = |terms: Option<&[String]>, programs: &[TenantProgramSpec], seconds: u64| {
        let ran = run::run(place, terms, programs, WARM_UP_TIME, options.window_of(seconds))?;
        let batch = ran.busy.get(1).map_or(0, |busy| busy.iter().sum());
        let batch = batch as f64 / ran.window_ns as f64 * 100.0;
        let delay = ran.host.iter().map(|usage| usage.delay_ns).sum::<u64>() as f64 / ran.window_ns as f64 * 100.0;
        Ok::<_, String>((RequestTimes::of_requests(&ran.requests[0], ran.window_ns), batch, delay))
    };
    let known = solos.iter().find(|solo| solo.0 == one.kernel_ns).map(|solo| solo.1);
    let alone = match known {
        Some(alone) => alone,
        None => times(None, &both[..1], 5)?.0,
    };
    solos.push((one.kernel_ns, alone));
    let (bare, bare_batch, _) = times(None, &both, 5)?;
    let (with, with_batch, delay) = times(Some(&terms), &both, 8)?;
    Ok(LatencyRow::new(one, alone, (bare, bare_batch), (with, with_batch), delay))
}

/// The two services: each alone, both without vgpu, both with vgpu at two divisions.
fn measure_services(place: &MeasuringPlace, options: &Options) -> Result<ServicesResult, String> {
    print_progress(SERVICES);
    let programs: Vec<TenantProgramSpec> =
        cases::SERVICES.iter().enumerate().map(|(at, (_, kernels))| cases::service_program(at, *kernels)).collect();
    let run = |terms: Option<&[String]>, programs: &[TenantProgramSpec], seconds: u64| {
        let ran = run::run(place, terms, programs, WARM_UP_TIME, options.window_of(seconds))?;
        Ok::<Vec<RequestTimes>, String>(
            ran.requests.iter().map(|one| RequestTimes::of_requests(one, ran.window_ns)).collect(),
        )
    };
    let mut alone = Vec::new();
    for program in &programs {
        alone.extend(run(None, std::slice::from_ref(program), 5)?);
    }
    let divided = |a: u32, b: u32| [a, b].map(|weight| cases::tenant_terms(&format!("weight = {weight}")));
    let ways = [
        ("together, without us", run(None, &programs, 8)?),
        ("together, 50/50", run(Some(&divided(50, 50)), &programs, 10)?),
        ("together, 30/70", run(Some(&divided(30, 70)), &programs, 10)?),
    ];
    let named = |times: Vec<RequestTimes>| -> Vec<ServiceResult> {
        let each = times.into_iter().zip(cases::SERVICES).zip(&alone);
        each.map(|((times, (name, _)), alone)| ServiceResult::new(name, times, alone)).collect()
    };
    let own = named(alone.clone());
    Ok(ServicesResult { alone: own, ways: ways.into_iter().map(|(way, times)| (way, named(times))).collect() })
}

/// Throughput of two tenants that always have work, with vgpu and in the device's own time slices.
fn measure_done(place: &MeasuringPlace, options: &Options) -> Result<DoneResult, String> {
    print_progress(DONE);
    let programs = [0, 1].map(|tenant| TenantProgramSpec::busy_program(tenant, &[1_000_000]));
    let terms = [cases::tenant_terms("weight = 50"), cases::tenant_terms("weight = 50")];
    let percent = |terms: Option<&[String]>| {
        let ran = run::run(place, terms, &programs, WARM_UP_TIME, options.window_of(8))?;
        let busy: u64 = ran.busy.iter().flatten().sum();
        let clock = ran.busy.iter().map(Vec::len).max().unwrap_or(0) as u64 * ran.bucket_ns;
        let delay = ran.host.iter().map(|usage| usage.delay_ns).sum::<u64>() + ran.stolen_ns;
        Ok::<_, String>((busy as f64 / clock as f64 * 100.0, delay as f64 / ran.window_ns as f64 * 100.0))
    };
    let ((bare, _), (with, delay)) = (percent(None)?, percent(Some(&terms))?);
    Ok(DoneResult::new(DONE, bare, with, delay))
}
