//! `make demo`: two tenants on one GPU, each with its own quota, each running ordinary programs.
//!
//! The story is here; [`daemon`] is its part with vgpud, [`device`] finds the GPU (the real one, else the simulated one),
//! [`tenant`] runs a program as a tenant, [`shares`] says who used the device for how long, [`style`] is about the
//! terminal. The programs are the examples beside this directory and nvidia-smi: nothing of vgpu is in them.

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

/// How long the launches run, and how much of that passes before it is measured.
const RUN: Duration = Duration::from_secs(6);
const SETTLE: Duration = Duration::from_millis(1000);

/// What ends the demo early.
pub type Trouble = String;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

/// Waits a moment; ctrl-C ends the demo through here, so that everything is cleaned up.
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

/// What one tenant was asked to keep to, and what came of it.
struct Row {
    limit: u64,
    ceiling: u32,
    seen: u64,
    allocated: u64,
    refused: bool,
    share: f64,
}

/// The demo; true if every promise was kept.
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
        // One after the other, so that what a context takes is not mistaken; then both hold at the same time.
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
        // Without a simulated device there is no truth but the programs' own count of finished kernels.
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

/// Lets the launches run, with a moving line on a terminal; each tenant's share of the device in percent.
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

/// A line of a program, with sizes that can be read.
fn in_words(line: &str) -> String {
    match line.split_once(": ").and_then(|(key, value)| Some((key, value.parse::<u64>().ok()?))) {
        Some((key @ ("total" | "free" | "allocated"), bytes)) => format!("{key}: {bytes} bytes ({})", gib(bytes)),
        Some(("left", bytes)) => format!("left: {bytes} bytes"),
        _ => line.to_owned(),
    }
}

/// The last words. On a real device somebody else may be at work too, so that the time got proves nothing.
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
    println!("  The share of time is a ceiling: beside a busy neighbour a tenant may get less, never more.");
    println!(
        "  Time got: {}.",
        if gpu.simulated { "by the simulated device's own record" } else { "by the programs' own count" }
    );
    println!("  Next: README.md, or one of your own: {}", gpu.try_it());
    all_kept
}
