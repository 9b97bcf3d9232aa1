//! `make demo`: two tenants on one GPU, each with its own quota, each running ordinary programs.
//!
//! This file has the sequence of the demo. [`daemon`] is its part with vgpud, [`device`] finds the GPU (the real
//! one, or else the simulated one), [`tenant`] runs a program as a tenant, [`shares`] measures device time per
//! process, [`style`] formats the output. The programs are the examples next to this directory and nvidia-smi,
//! without any vgpu code.

mod daemon;
mod device;
mod shares;
mod style;
mod tenant;

use device::Gpu;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use style::{Style, gib};
use tenant::{Program, Tenant};

/// Duration of the measured part of the launches.
const RUN: Duration = Duration::from_secs(6);
/// Time at the start of the launches that is not measured.
const SETTLE: Duration = Duration::from_millis(1000);

/// Why the demo ended early.
pub type Trouble = String;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

/// Sleeps. Ctrl-C ends the demo here with an error, so that everything is cleaned up.
fn pause(moment: Duration) -> Result<(), Trouble> {
    std::thread::sleep(moment);
    if INTERRUPTED.load(Relaxed) { Err("interrupted".to_owned()) } else { Ok(()) }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(device::LOOK) {
        return device::look();
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic and nothing else.
        unsafe { libc::signal(signal, interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
    match tell() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(trouble) => {
            eprintln!("demo: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// The limits of a tenant, and its measured results.
struct Row {
    limit: u64,
    ceiling: u32,
    seen: u64,
    allocated: u64,
    refused: bool,
    share: f64,
}

/// Runs the demo; true if every limit was kept.
fn tell() -> Result<bool, Trouble> {
    let style = Style::of_stdout();
    let gpu = Gpu::find()?;
    println!("{}", style.strong("One GPU, two tenants."));
    println!("  device    {}", gpu.description);
    println!("  programs  example-memory, example-launches, {}: ordinary ones, not changed", gpu.monitor_name());

    let (small, large) = if gpu.total >= 40 << 30 { (4 << 30, 8 << 30) } else { (1 << 30, 2 << 30) };
    let tenants = [Tenant::new("a", small, 25, &gpu), Tenant::new("b", large, 50, &gpu)];
    for tenant in &tenants {
        println!("  {}  {}", style.tenant(tenant.name, &format!("tenant {}", tenant.name)), tenant.command_line());
    }

    let mut rows = Vec::new();
    println!("\n{}", style.strong("1. Memory: to the last byte, and one byte more"));
    let mut holders = Vec::new();
    for tenant in &tenants {
        // Start them one after the other, so that the memory of a context is not misattributed; then both hold at the
        // same time.
        let mut holder = tenant.start(&gpu.example("example-memory"), &["hold"])?;
        let lines = holder.lines_until("one byte more")?;
        for line in lines.iter().filter(|line| !line.starts_with("device")) {
            println!("  {} {}", style.tenant(tenant.name, &format!("{} |", tenant.name)), in_words(line));
        }
        rows.push(Row {
            limit: tenant.limit,
            ceiling: tenant.ceiling,
            seen: tenant::number(&lines, "total"),
            allocated: tenant::number(&lines, "allocated"),
            refused: tenant::number(&lines, "left") == 0 && lines.iter().any(|line| line.contains("OUT_OF_MEMORY")),
            share: 0.0,
        });
        holders.push(holder);
    }

    println!("\n{}", style.strong("2. The view from inside, while both hold their memory"));
    for tenant in &tenants {
        let (program, arguments) = gpu.monitor();
        for line in tenant.start(&program, &arguments)?.output()? {
            println!("  {} {line}", style.tenant(tenant.name, &format!("{} |", tenant.name)));
        }
    }
    for holder in holders {
        holder.output()?;
    }

    println!("\n{}", style.strong("3. Time: both launch kernels of 1 ms as fast as they can"));
    let seconds = format!("{}", RUN.as_secs_f64() + SETTLE.as_secs_f64());
    let started = tenants
        .iter()
        .map(|tenant| tenant.start(&gpu.example("example-launches"), &[&seconds]))
        .collect::<Result<Vec<_>, _>>()?;
    let shares = watch(&gpu, &started, &style)?;
    let outputs = started.into_iter().map(Program::output).collect::<Result<Vec<_>, _>>()?;
    for ((row, tenant), (measured, lines)) in rows.iter_mut().zip(&tenants).zip(shares.iter().zip(&outputs)) {
        // Without the simulated device's record only the programs' own count of finished kernels is available.
        row.share = measured.unwrap_or_else(|| tenant::percent(lines, "share of the device"));
        println!(
            "  {} {} kernels, {:.1} % of the device",
            style.tenant(tenant.name, &format!("{} |", tenant.name)),
            tenant::number(lines, "kernels"),
            row.share
        );
    }
    println!(
        "\n{}",
        style.strong("4. The same with the daemon: shares by weight, and a limit that changes while they run")
    );
    let live = daemon::live(&gpu, &style)?;
    println!("  {}", style.verdict(live));
    Ok(summary(&rows, &tenants, &gpu, &style) && live)
}

/// Lets the launches run, with a progress line on a terminal; returns each tenant's share of the device in
/// percent.
fn watch(gpu: &Gpu, programs: &[Program], style: &Style) -> Result<Vec<Option<f64>>, Trouble> {
    let pids: Vec<u32> = programs.iter().map(Program::pid).collect();
    pause(SETTLE)?;
    let (started, before) = (Instant::now(), shares::used(gpu, &pids));
    let mut last = vec![None; pids.len()];
    while started.elapsed() < RUN - Duration::from_millis(300) {
        pause(Duration::from_millis(250))?;
        last = shares::between(&before, &shares::used(gpu, &pids));
        style.progress(started.elapsed().as_secs_f64() / RUN.as_secs_f64(), &last);
    }
    style.progress_done();
    Ok(last)
}

/// A line of a program, with readable sizes.
fn in_words(line: &str) -> String {
    match line.split_once(": ").and_then(|(key, value)| Some((key, value.parse::<u64>().ok()?))) {
        Some((key @ ("total" | "free" | "allocated"), bytes)) => format!("{key}: {bytes} bytes ({})", gib(bytes)),
        Some(("left", bytes)) => format!("left: {bytes} bytes"),
        _ => line.to_owned(),
    }
}

/// Prints the summary. On a real device other processes may run too, so the measured time proves nothing there.
fn summary(rows: &[Row], tenants: &[Tenant], gpu: &Gpu, style: &Style) -> bool {
    println!("\n{}", style.strong("Summary"));
    println!(
        "  {:<10}{:>12}{:>12}{:>16}{:>14}{:>12}{:>12}",
        "", "memory", "shown as", "allocated", "one more byte", "time up to", "time got"
    );
    let mut all_kept = true;
    for (row, tenant) in rows.iter().zip(tenants) {
        let memory_kept =
            row.seen == row.limit && row.allocated <= row.limit && row.allocated > row.limit / 2 && row.refused;
        let ceiling = f64::from(row.ceiling);
        let time_kept = row.share <= ceiling + 3.0 && row.share >= ceiling / 4.0;
        all_kept &= memory_kept && (time_kept || !gpu.simulated);
        println!(
            "  {:<10}{:>12}{:>12}{:>16}{:>14}{:>11}%{:>11.1}%  {}",
            format!("tenant {}", tenant.name),
            gib(row.limit),
            gib(row.seen),
            format!("{} MiB", row.allocated >> 20),
            if row.refused { "refused" } else { "NOT REFUSED" },
            row.ceiling,
            row.share,
            style.verdict(memory_kept && time_kept)
        );
    }
    println!("  Memory that is missing below the limit is what the driver takes for a context; it counts too.");
    println!("  The share of time is a ceiling: next to a busy neighbour a tenant may get less, never more.");
    println!(
        "  Time got: {}.",
        if gpu.simulated { "by the simulated device's own record" } else { "by the programs' own count" }
    );
    println!("  Next: README.md, or one of your own: {}", gpu.try_it());
    all_kept
}
