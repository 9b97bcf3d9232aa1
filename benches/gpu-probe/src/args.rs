//! The command line: its parser and the help text. [`crate::steps`] contains the meaning of a step's options.

use crate::steps;

/// The parsed command line.
#[derive(Debug, Clone, PartialEq)]
pub enum ProbeCommand {
    /// Print the help.
    Help,
    /// Print the names of the steps.
    List,
    /// Run the steps and write the document.
    Probe(Options),
    /// Run one step in this process; the probe starts itself with this command.
    Step { name: String, options: Options },
    /// Play a role in a step of several processes; a step starts the probe with this command.
    Worker { role: String, rest: Vec<String>, options: Options },
    /// Time one kind of call, for comparisons with and without a preloaded library.
    Bench(BenchOptions),
}

/// Options of a run, from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Fewer repetitions and shorter kernels.
    pub quick: bool,
    /// CUDA ordinal of the measured device.
    pub device: i32,
    /// File for the document; `None` is standard output.
    pub out: Option<String>,
    /// Steps to run; empty means all.
    pub only: Vec<String>,
    /// Time limit in seconds for all steps together.
    pub budget_s: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { quick: false, device: 0, out: None, only: Vec::new(), budget_s: 240 }
    }
}

/// One timing run of one kind of call.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchOptions {
    /// Kind of call: one of [`crate::bench::BENCH_KINDS`].
    pub kind: String,
    /// Number of batches of calls that are timed.
    pub batches: usize,
    /// Number of calls in one batch.
    pub batch: usize,
    /// Pause between two batches, in microseconds.
    pub pause_us: u64,
    /// Kernel length in nanoseconds (kind `spin`).
    pub kernel_ns: u64,
    /// Length of the run in seconds (kind `spin`).
    pub seconds: f64,
    /// CUDA ordinal of the device.
    pub device: i32,
}

/// The text of `--help`.
pub fn help_text() -> String {
    let mut text = String::from(
        "gpu-probe measures a GPU and its driver, and writes the results as JSON.\n\n\
         Usage: gpu-probe [--out FILE] [--only STEP[,STEP...]] [--quick] [--device N] [--budget SECONDS]\n\
         \x20      gpu-probe --list\n\
         \x20      gpu-probe --bench KIND [--batches N] [--batch N] [--pause-us N] [--kernel-ns N] [--seconds S]\n\n\
         --out FILE      write the document to FILE (default: standard output)\n\
         --only STEPS    run these steps only\n\
         --quick         fewer repetitions and shorter kernels\n\
         --device N      CUDA ordinal to measure (default 0)\n\
         --budget S      seconds for all steps together (default 240); steps that do not fit are reported as skipped\n\
         --list          print the steps\n\
         --bench KIND    time one kind of call in this process: launch, alloc, meminfo, dlsym, spin\n\n\
         Exit code: 0 when every step gave its result, 1 when one did not, 2 for a wrong command line.\n\n\
         Steps:\n",
    );
    for step in steps::ALL_STEPS {
        text.push_str(&format!("  {:<18} {}\n", step.name, step.about));
    }
    text
}

/// Parses the command line.
///
/// # Errors
/// A sentence that names the argument which was not understood.
pub fn parse(arguments: &[String]) -> Result<ProbeCommand, String> {
    let mut options = Options::default();
    let mut bench = BenchOptions {
        kind: String::new(),
        batches: 200,
        batch: 50,
        pause_us: 1000,
        kernel_ns: 1_000_000,
        seconds: 10.0,
        device: 0,
    };
    let mut step = None;
    let mut worker: Option<String> = None;
    let mut rest = Vec::new();
    let mut list = false;
    let mut at = arguments.iter();
    while let Some(argument) = at.next() {
        let mut value = |name: &str| at.next().cloned().ok_or_else(|| format!("{name} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(ProbeCommand::Help),
            "--list" => list = true,
            "--quick" => options.quick = true,
            "--out" => options.out = Some(value("--out")?),
            "--only" => {
                for name in value("--only")?.split(',').filter(|name| !name.is_empty()) {
                    check_step(name)?;
                    options.only.push(name.to_owned());
                }
            }
            "--device" => options.device = parse_number("--device", &value("--device")?)?,
            "--budget" => options.budget_s = parse_number("--budget", &value("--budget")?)?,
            "--step" => step = Some(value("--step")?),
            "--worker" => worker = Some(value("--worker")?),
            "--bench" => bench.kind = value("--bench")?,
            "--batches" => bench.batches = parse_number("--batches", &value("--batches")?)?,
            "--batch" => bench.batch = parse_number("--batch", &value("--batch")?)?,
            "--pause-us" => bench.pause_us = parse_number("--pause-us", &value("--pause-us")?)?,
            "--kernel-ns" => bench.kernel_ns = parse_number("--kernel-ns", &value("--kernel-ns")?)?,
            "--seconds" => bench.seconds = parse_number("--seconds", &value("--seconds")?)?,
            other if worker.is_some() && !other.starts_with('-') => rest.push(other.to_owned()),
            other => return Err(format!("{other} is not an option")),
        }
    }
    if list {
        return Ok(ProbeCommand::List);
    }
    if let Some(name) = step {
        check_step(&name)?;
        return Ok(ProbeCommand::Step { name, options });
    }
    if let Some(role) = worker {
        return Ok(ProbeCommand::Worker { role, rest, options });
    }
    if !bench.kind.is_empty() {
        if !crate::bench::BENCH_KINDS.contains(&bench.kind.as_str()) {
            return Err(format!("--bench {} is not one of {}", bench.kind, crate::bench::BENCH_KINDS.join(", ")));
        }
        if bench.batch == 0 || bench.batches == 0 {
            return Err("--batch and --batches must be at least 1".to_owned());
        }
        bench.device = options.device;
        return Ok(ProbeCommand::Bench(bench));
    }
    Ok(ProbeCommand::Probe(options))
}

fn check_step(name: &str) -> Result<(), String> {
    if steps::ALL_STEPS.iter().any(|step| step.name == name) {
        return Ok(());
    }
    Err(format!("{name} is not a step (--list prints them)"))
}

fn parse_number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{name} {text}: not a number in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<ProbeCommand, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn no_argument_means_every_step() {
        assert_eq!(read(""), Ok(ProbeCommand::Probe(Options::default())));
    }

    #[test]
    fn only_takes_a_list_and_refuses_an_unknown_step() {
        let Ok(ProbeCommand::Probe(options)) = read("--only device,capture --quick --device 2") else {
            panic!("not a probe")
        };
        assert_eq!(options.only, ["device", "capture"]);
        assert!(options.quick);
        assert_eq!(options.device, 2);
        assert!(read("--only device,nonsense").unwrap_err().contains("nonsense"));
    }

    #[test]
    fn a_missing_value_and_a_wrong_number_are_named() {
        assert_eq!(read("--out").unwrap_err(), "--out needs a value");
        assert!(read("--device two").unwrap_err().contains("--device two"));
        assert!(read("--bench launch --batch 0").is_err());
        assert!(read("--bench juggling").unwrap_err().contains("juggling"));
        assert!(read("--wat").unwrap_err().contains("--wat"));
    }

    #[test]
    fn a_worker_keeps_its_own_arguments() {
        assert_eq!(
            read("--worker slices 1 32 5000"),
            Ok(ProbeCommand::Worker {
                role: "slices".into(),
                rest: vec!["1".into(), "32".into(), "5000".into()],
                options: Options::default()
            })
        );
    }

    #[test]
    fn the_help_names_every_step() {
        let help = help_text();
        for step in steps::ALL_STEPS {
            assert!(help.contains(step.name), "{} is missing", step.name);
        }
    }
}
