//! Measures the cost that libvgpu.so adds to a call, as differences against the bare driver in one run.
//!
//!     vgpu-overhead [--quick] [--json] [--check] [--pools | --instructions]
//!
//! Four processes run on a simulated device of their own:
//!
//! - without the library: the null control, which shows the noise
//! - with the library and no limits
//! - with it and a memory limit; the process itself checks that the limit is in force
//! - with it and a ceiling on device time
//!
//! In each, blocks of bare and of hooked calls alternate. The report shows the median of the paired differences and its
//! 95 % interval. Each row is measured three times, and the attempt with the fastest bare calls counts: other guests
//! of the machine disturbed it least. One more process launches under a ceiling with a driver that does nothing
//! ([`launches`]).
//!
//! `--check` fails if a complete interval is above its budget. `--instructions` counts instructions under valgrind
//! instead; `--check` then fails if a lookup takes more instructions than its budget. `--pools`
//! measures the calls of memory pools alone.
//!
//! [`calls`] finds the two addresses of a call, [`child`] measures, [`threads`] measures several threads at the same
//! time, [`instructions`] counts, [`stats`] computes the medians.

mod calls;
mod child;
mod instructions;
mod launches;
mod stats;
mod threads;

use child::{DifferenceRow, OverheadScenario};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// Budgets: nanoseconds that a call may cost more; for cuGetProcAddress as much as the bare call. A name that ends with
/// a comma or a blank stands for all names with that prefix.
const CALL_BUDGETS: [(&str, f64); 11] = [
    ("launch", 5.0),
    ("launch, ceiling", 25.0),
    ("launch, own code", 25.0),
    ("launch that the driver refuses", 5.0),
    ("alloc + free,", 100.0),
    ("the same,", 100.0),
    ("pool pair,", 100.0),
    // The simulated driver's search leaves the caches cold.
    ("pool pair among ", 300.0),
    ("cuMemGetInfo", 30.0),
    ("cuGetProcAddress,", f64::NAN),
    ("dlsym of ", 10.0),
];

const LIMIT_BYTES: u64 = 64 << 30;
/// Ceiling in percent, so high that the measured launches stay below it.
const CEILING_VALUE: &str = "95";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    match arguments.first().map(String::as_str) {
        Some("--measure") => {
            let scenario = OverheadScenario {
                preloaded: arguments[1] != "bare",
                limit: (arguments[1] == "limit").then_some(LIMIT_BYTES),
                ceiling: arguments[1] == "ceiling",
                only_pools: has("--pools"),
                effort: arguments[2].parse().expect("a number of rounds"),
            };
            println!("{}", serde_json::to_string(&child::measure_scenario(&scenario)).expect("rows are plain numbers"));
            ExitCode::SUCCESS
        }
        Some("--launches") => {
            let rows = launches::measure_launches(arguments[1].parse().expect("a number of rounds"));
            println!("{}", serde_json::to_string(&rows).expect("rows are plain numbers"));
            ExitCode::SUCCESS
        }
        Some("--first-call") => {
            println!("{}", child::first_call());
            ExitCode::SUCCESS
        }
        Some("--repeat") => {
            instructions::repeat_call(&arguments[1], &arguments[2], arguments[3].parse().expect("a number of calls"));
            ExitCode::SUCCESS
        }
        _ if has("--instructions") => run_counts(has("--check")),
        _ => run_report(if has("--quick") { 2 } else { 10 }, has("--pools"), has("--json"), has("--check")),
    }
}

/// Directory of the libraries (`VGPU_BUILD`, else this program's directory), and scratch space.
struct OverheadPlace {
    build: PathBuf,
    scratch: PathBuf,
}

impl OverheadPlace {
    fn command_for(&self, program: &Path, scenario: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.build.join("sim"))
            .env("VGPU_SIM_DIR", self.scratch.join("gpu"))
            .env("VGPU_SIM_PROFILE", "h200:instant")
            .env("VGPU_STATE_DIR", &self.scratch)
            .env("VGPU_TENANT", "bench")
            .env_remove("LD_PRELOAD")
            .env_remove("VGPU_MEMORY_LIMIT")
            .env_remove("VGPU_SM_LIMIT")
            .stderr(Stdio::inherit());
        if scenario != "bare" {
            command.env("LD_PRELOAD", self.build.join("libvgpu.so"));
        }
        match scenario {
            "limit" => command.env("VGPU_MEMORY_LIMIT", LIMIT_BYTES.to_string()),
            "ceiling" => command.env("VGPU_SM_LIMIT", CEILING_VALUE),
            "split" | "nothing" => command.env("VGPU_SM_LIMIT", launches::CEILING_PERCENT.to_string()),
            _ => &mut command,
        };
        if scenario == "nothing" {
            command.env("LD_LIBRARY_PATH", self.build.join("nothing"));
        }
        command
    }
}

/// Path of this program, and the directories of the build.
fn own_place() -> (PathBuf, OverheadPlace) {
    let own = std::env::current_exe().expect("this program has a path");
    let build =
        std::env::var_os("VGPU_BUILD").map_or_else(|| own.parent().expect("a directory").to_owned(), PathBuf::from);
    let scratch = std::env::temp_dir().join(format!("vgpu-overhead-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a temporary directory can be made");
    (own, OverheadPlace { build, scratch })
}

/// Counts instructions instead of nanoseconds.
fn run_counts(check: bool) -> ExitCode {
    let (own, place) = own_place();
    let mut code = ExitCode::SUCCESS;
    println!("{:<34}{:>12}{:>12}", "instructions per call", "bare", "added");
    for (scenario, title) in [("bare", "library absent"), ("off", "no limits"), ("limit", "memory limit")] {
        let command = || {
            let mut c = place.command_for(Path::new("valgrind"), scenario);
            c.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&own).stderr(Stdio::piped());
            c
        };
        match instructions::count_instructions(command) {
            Ok(rows) => {
                println!("{title}");
                for row in rows {
                    let word = if row.is_kept() { "" } else { "  OVER" };
                    println!("  {:<32}{:>12.1}{:>12.1}{word}", row.name, row.bare, row.added);
                    if check && !row.is_kept() {
                        code = ExitCode::FAILURE;
                    }
                }
            }
            Err(why) => {
                eprintln!("SKIPPED: instructions ({why})");
                code = ExitCode::FAILURE;
                break;
            }
        }
    }
    for (scenario, title) in [("split", "the simulated driver"), ("nothing", "a driver that does nothing")] {
        let command = |file: &Path| {
            let mut c = place.command_for(Path::new("valgrind"), scenario);
            let mut to = std::ffi::OsString::from("--callgrind-out-file=");
            to.push(file);
            c.arg("--tool=callgrind").arg(to).arg(&own).stderr(Stdio::piped());
            c
        };
        match instructions::split_launch(command, &place.scratch) {
            Ok(split) => {
                println!("launch under a ceiling, positive balance, {title}");
                let parts =
                    [("in the library", split.own), ("in the driver", split.driver), ("elsewhere", split.other)];
                for (at, (name, added)) in parts.into_iter().enumerate() {
                    let bare = if at == 1 { format!("{:.1}", split.bare) } else { "-".into() };
                    println!("  {name:<32}{bare:>12}{added:>12.1}");
                }
            }
            Err(why) => {
                eprintln!("SKIPPED: instructions of a launch under a ceiling, {title} ({why})");
                code = ExitCode::FAILURE;
            }
        }
    }
    let _ = std::fs::remove_dir_all(&place.scratch);
    code
}

fn run_report(effort: u32, only_pools: bool, as_json: bool, check: bool) -> ExitCode {
    let (own, place) = own_place();

    let mut table = Vec::new();
    let scenarios = [
        ("bare", "library absent"),
        ("off", "no limits"),
        ("limit", "memory limit"),
        ("ceiling", "ceiling on device time"),
    ];
    for (scenario, title) in scenarios.into_iter().filter(|(scenario, _)| !only_pools || *scenario != "ceiling") {
        eprintln!("measuring: {title}");
        let mut child = place.command_for(&own, scenario);
        let child = child.args(["--measure", scenario, &effort.to_string()]).args(only_pools.then_some("--pools"));
        let out = child.output();
        let out = out.expect("this program can be started");
        assert!(out.status.success(), "the measurement \"{title}\" failed: {}", out.status);
        let rows: Vec<DifferenceRow> = serde_json::from_slice(&out.stdout).expect("rows from the child");
        table.push((title, rows));
    }
    let title = "ceiling, a driver that does nothing";
    if only_pools {
        // It makes launches alone.
    } else if place.build.join("nothing/libcuda.so.1").exists() {
        eprintln!("measuring: {title}");
        let out = place.command_for(&own, "nothing").args(["--launches", &effort.to_string()]).output();
        let out = out.expect("this program can be started");
        assert!(out.status.success(), "the measurement \"{title}\" failed: {}", out.status);
        table.push((title, serde_json::from_slice(&out.stdout).expect("rows from the child")));
    } else {
        eprintln!("SKIPPED: {title} (benches/overhead/nothing.c is not built: make bench builds it)");
    }
    let processes = if only_pools {
        Vec::new()
    } else {
        eprintln!("measuring: processes");
        measure_processes(&place, &own, 30 * effort)
    };
    let _ = std::fs::remove_dir_all(&place.scratch);

    let over = if as_json {
        println!("{:#}", json!({ "calls": table, "processes": processes }));
        table
            .iter()
            .flat_map(|(title, rows)| rows.iter().filter(move |row| budget_verdict(title, row) == Some(false)))
            .count()
    } else {
        print_table(&table, &processes)
    };
    if check && over > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// True if the row is within its budget; `None` if there is none.
fn budget_verdict(title: &str, row: &DifferenceRow) -> Option<bool> {
    let meant = |name: &str| name == row.name || (name.ends_with([',', ' ']) && row.name.starts_with(name));
    let (_, budget) = CALL_BUDGETS.iter().find(|(name, _)| meant(name))?;
    let budget = if budget.is_nan() { row.bare } else { *budget };
    // A launch's budget is that of a process without a ceiling; the null control has none.
    (title != "library absent" && budget.is_finite()).then_some(row.low <= budget)
}

fn print_table(table: &[(&str, Vec<DifferenceRow>)], processes: &[(String, f64, f64, f64, f64)]) -> usize {
    let mut over = 0;
    println!("{:<34}{:>12}{:>12}{:>22}  budget", "nanoseconds per call", "bare", "added", "95 % interval");
    for (title, rows) in table {
        println!("{title}");
        for row in rows {
            let word = match budget_verdict(title, row) {
                Some(true) => "kept",
                Some(false) => "OVER",
                None => "",
            };
            over += usize::from(word == "OVER");
            let interval = format!("{:.1} .. {:.1}", row.low, row.high);
            println!("  {:<32}{:>12.1}{:>12.1}{interval:>22}  {word}", row.name, row.bare, row.added);
        }
    }
    if processes.is_empty() {
        return over;
    }
    println!("{:<34}{:>12}{:>12}{:>22}", "microseconds per process", "bare", "added", "95 % interval");
    for (name, bare, added, low, high) in processes {
        println!("  {name:<32}{bare:>12.1}{added:>12.1}{:>22}", format!("{low:.1} .. {high:.1}"));
    }
    over
}

/// Times whole processes in microseconds, with and without the library in turn: one that never uses a GPU, and the
/// first call of one that does.
fn measure_processes(place: &OverheadPlace, own: &Path, rounds: u32) -> Vec<(String, f64, f64, f64, f64)> {
    let idle = |scenario: &str| {
        let mut command = place.command_for(Path::new("/bin/true"), scenario);
        let started = Instant::now();
        assert!(command.status().expect("/bin/true").success());
        started.elapsed().as_secs_f64() * 1e6
    };
    let first = |scenario: &str| {
        let out = place.command_for(own, scenario).arg("--first-call").output().expect("this program can be started");
        String::from_utf8_lossy(&out.stdout).trim().parse::<f64>().expect("nanoseconds") / 1e3
    };
    let row = |name: &str, measure: &dyn Fn(&str) -> f64, ours: &str| {
        let (mut bares, mut differences) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let (b, o) = if round % 2 == 0 {
                let b = measure("bare");
                (b, measure(ours))
            } else {
                let o = measure(ours);
                (measure("bare"), o)
            };
            bares.push(b);
            differences.push(o - b);
        }
        let (bare, added) = (stats::median_interval(&mut bares), stats::median_interval(&mut differences));
        (name.to_owned(), bare.value, added.value, added.low, added.high)
    };
    vec![row("/bin/true, start to end", &idle, "limit"), row("cuInit, memory limit", &first, "limit")]
}
