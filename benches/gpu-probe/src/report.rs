//! The complete run: every step in turn within the time limit, the document, and a summary for a person.
//!
//! docs/gpu-probe.md describes the document; [`SCHEMA_VERSION`] changes when a reader would have to.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::args::Options;
use crate::isolate::{self, StepOutcome, StepStatus};
use crate::steps;

/// Name of the document in its `schema` key.
pub const DOCUMENT_SCHEMA: &str = "vgpu-gpu-probe";
/// Raised when a key changes its meaning or its place. A new key does not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// Runs the requested steps and writes the document.
pub fn run(options: &Options) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("gpu-probe: its own file cannot be found: {error}");
            return ExitCode::FAILURE;
        }
    };
    let deadline = Instant::now() + Duration::from_secs(options.budget_s);
    let mut outcomes = Vec::new();
    for step in steps::ALL_STEPS {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == step.name) {
            continue;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = if left < Duration::from_secs(2) {
            StepOutcome::skipped_step("no time left within the budget")
        } else {
            let mut command = Command::new(&program);
            command.args(["--device", &options.device.to_string()]);
            if options.quick {
                command.arg("--quick");
            }
            command.args(["--step", step.name]);
            isolate::run(&mut command, left.min(Duration::from_secs(step.limit_s)))
        };
        eprintln!("{}", line_of(step.name, &outcome));
        outcomes.push((step.name, outcome));
    }
    let document = make_document(&outcomes, options, seconds_since_epoch());
    let good = outcomes.iter().all(|(_, outcome)| outcome.status == StepStatus::Ok);
    eprint!("{}", text_summary(&document));
    match write(&document, options) {
        Ok(()) if good => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The document of a run.
pub fn make_document(outcomes: &[(&str, StepOutcome)], options: &Options, unix_s: u64) -> Value {
    let steps: Map<String, Value> =
        outcomes.iter().map(|(name, outcome)| ((*name).to_owned(), outcome.to_json())).collect();
    let mut document = json!({
        "schema": DOCUMENT_SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "probe_version": env!("CARGO_PKG_VERSION"),
        "unix_time_s": unix_s,
        "quick": options.quick,
        "device_ordinal": options.device,
        "steps": steps,
    });
    document["numbers"] = main_numbers(&document["steps"]);
    document["profile"] = make_profile(&document["steps"]);
    document
}

/// Paths of the main numbers in the steps' data.
const MAIN_NUMBERS: &[(&str, &str)] = &[
    ("name", "device/data/name"),
    ("driver_version", "device/data/driver_version"),
    ("driver", "device/data/nvml/driver"),
    ("compute_capability_major", "device/data/attributes/compute_capability_major"),
    ("compute_capability_minor", "device/data/attributes/compute_capability_minor"),
    ("multiprocessors", "device/data/attributes/multiprocessors"),
    ("memory_total_bytes", "device/data/total_bytes"),
    ("nvml_total_bytes", "device/data/nvml/memory/v2/total"),
    ("nvml_reserved_bytes", "device/data/nvml/memory/v2/reserved"),
    ("context_overhead_bytes", "context_overhead/data/context_bytes"),
    ("further_context_bytes", "context_overhead/data/further_context_bytes"),
    ("slab_bytes", "granularity/data/slab_bytes"),
    ("own_slab_from_bytes", "granularity/data/own_slab_from_bytes"),
    ("small_alignment_bytes", "granularity/data/small_alignment_bytes"),
    ("vmm_granularity_bytes", "granularity/data/vmm/least"),
    ("slice_ns", "slices/data/two_light/slice_ns/median"),
    ("switch_ns", "slices/data/two_light/switch_ns/median"),
    ("slice_full_device_ns", "slices/data/two_full/slice_ns/median"),
    ("switch_full_device_ns", "slices/data/two_full/switch_ns/median"),
    ("timer_step_ns", "timer/data/step_ns"),
    ("cu_init_ns", "first_calls/data/median/init_ns"),
    ("context_create_ns", "first_calls/data/median/primary_retain_ns"),
    ("launch_ns", "launch_cost/data/launch_ns/median"),
    ("launch_sync_ns", "launch_cost/data/launch_sync_ns/median"),
    ("null_kernel_device_ns", "launch_cost/data/null_kernel_device_ns"),
    ("idle_lead_ns", "launch_cost/data/idle_start/lead_ns"),
    ("idle_launch_ns", "launch_cost/data/idle_start/launch_call_ns/median"),
    ("queue_depth", "launch_cost/data/queue_depth"),
    ("event_record_ns", "event_cost/data/record_ns/median"),
    ("event_query_done_ns", "event_cost/data/query_done_ns/median"),
    ("event_query_busy_ns", "event_cost/data/query_busy_ns/median"),
    ("event_elapsed_ns", "event_cost/data/elapsed_ns/median"),
    ("event_record_device_ns", "event_cost/data/record_device_ns"),
    ("alloc_free_pair_ns", "alloc_cost/data/pairs/2097152/median"),
    ("mem_get_info_ns", "call_costs/data/mem_get_info/median"),
];

/// The main numbers, flat; null if a number was not measured.
fn main_numbers(steps: &Value) -> Value {
    let numbers: Map<String, Value> = MAIN_NUMBERS
        .iter()
        .map(|(name, path)| ((*name).to_owned(), steps.pointer(&format!("/{path}")).cloned().unwrap_or(Value::Null)))
        .collect();
    Value::Object(numbers)
}

/// Numbers that the simulated device's profile reads: the profile's names, and the paths in the steps' data.
const PROFILE_KEYS: &[(&str, &str)] = &[
    ("nvml_total", "device/data/nvml/memory/v2/total"),
    ("cuda_total", "device/data/total_bytes"),
    ("context_bytes", "context_overhead/data/context_bytes"),
    ("context_more_bytes", "context_overhead/data/further_context_bytes"),
    ("slab_bytes", "granularity/data/slab_bytes"),
    ("small_limit", "granularity/data/own_slab_from_bytes"),
    ("small_align", "granularity/data/small_alignment_bytes"),
    ("slice_ns", "slices/data/two_light/slice_ns/median"),
    ("switch_ns", "slices/data/two_light/switch_ns/median"),
    ("kernel_ns", "launch_cost/data/null_kernel_device_ns"),
    ("event_ns", "event_cost/data/record_device_ns"),
    ("queue_depth", "launch_cost/data/queue_depth"),
];

/// The profile in whole numbers. An unmeasured number is absent, so that the reader keeps its default.
fn make_profile(steps: &Value) -> Value {
    let whole = |path: &str| {
        let value = steps.pointer(&format!("/{path}"))?.as_f64()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked on this line")]
        (0.5..9e15).contains(&value).then_some(value.round() as u64)
    };
    let numbers: Map<String, Value> =
        PROFILE_KEYS.iter().filter_map(|(name, path)| Some(((*name).to_owned(), json!(whole(path)?)))).collect();
    Value::Object(numbers)
}

fn line_of(name: &str, outcome: &StepOutcome) -> String {
    let mut text = format!("{name:<18} {:<8} {:6.2} s", outcome.status.status_word(), outcome.seconds);
    for error in outcome.gathered.errors.iter().take(3) {
        text.push_str("\n    ");
        text.extend(error.chars().take(160));
    }
    if outcome.gathered.errors.len() > 3 {
        text.push_str(&format!("\n    and {} more", outcome.gathered.errors.len() - 3));
    }
    text
}

/// Summary for a person: the main numbers, one per line.
fn text_summary(document: &Value) -> String {
    let mut text = String::from("\n");
    for (name, _) in MAIN_NUMBERS {
        let value = match &document["numbers"][name] {
            Value::Null => "not measured".to_owned(),
            Value::String(words) => words.clone(),
            value => value.to_string(),
        };
        text.push_str(&format!("{name:<28} {value}\n"));
    }
    text
}

fn write(document: &Value, options: &Options) -> Result<(), String> {
    let text = format!("{}\n", serde_json::to_string_pretty(document).map_err(|e| e.to_string())?);
    match &options.out {
        Some(path) => std::fs::write(path, text).map_err(|e| format!("{path}: {e}")),
        None => {
            use std::io::Write;
            std::io::stdout().write_all(text.as_bytes()).map_err(|e| format!("standard output: {e}"))
        }
    }
}

fn seconds_since_epoch() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::GatheredStep;

    fn outcome(data: Value) -> StepOutcome {
        let Value::Object(data) = data else { panic!("an object is wanted") };
        StepOutcome {
            status: StepStatus::Ok,
            seconds: 1.0,
            gathered: GatheredStep { data, errors: vec![], ended: true },
            stderr: String::new(),
        }
    }

    #[test]
    fn the_document_says_its_schema_and_holds_every_step() {
        let outcomes = [("device", outcome(json!({"name": "X"}))), ("slices", StepOutcome::skipped_step("no time"))];
        let got = make_document(&outcomes, &Options::default(), 5);
        assert_eq!(got["schema"], DOCUMENT_SCHEMA);
        assert_eq!(got["schema_version"], SCHEMA_VERSION);
        assert_eq!(got["steps"]["device"]["status"], "ok");
        assert_eq!(got["steps"]["slices"]["status"], "skipped");
        assert_eq!(got["steps"]["slices"]["errors"], json!(["no time"]));
    }

    #[test]
    fn numbers_that_were_not_measured_are_null_and_absent_from_the_profile() {
        let outcomes = [
            ("device", outcome(json!({"name": "X", "attributes": {"multiprocessors": 132}}))),
            ("slices", outcome(json!({"two_light": {"slice_ns": {"median": 2_000_000.4}}}))),
        ];
        let got = make_document(&outcomes, &Options::default(), 5);
        assert_eq!(got["numbers"]["name"], "X");
        assert_eq!(got["numbers"]["multiprocessors"], 132);
        assert_eq!(got["numbers"]["slice_ns"], 2_000_000.4);
        assert_eq!(got["numbers"]["switch_ns"], Value::Null);
        assert_eq!(got["numbers"].as_object().unwrap().len(), MAIN_NUMBERS.len());
        assert_eq!(got["profile"], json!({ "slice_ns": 2_000_000 }));
    }

    #[test]
    fn every_number_of_the_profile_comes_from_a_step_that_exists() {
        for (name, path) in PROFILE_KEYS.iter().chain(MAIN_NUMBERS) {
            let step = path.split('/').next().unwrap();
            assert!(steps::ALL_STEPS.iter().any(|s| s.name == step), "{name} comes from {step}");
        }
    }

    #[test]
    fn the_summary_says_what_was_not_measured() {
        let text = text_summary(&make_document(&[], &Options::default(), 5));
        assert!(text.contains("slice_ns"));
        assert!(text.contains("not measured"));
    }
}
