//! Programs that report their observations: the length of requests, or the time at which a limit changed. They know
//! nothing of vgpu.
//!
//!     vgpu-shares --serve KERNELS NANOSECONDS PAUSE
//!     vgpu-shares --watch
//!
//! They print `ready`, begin when they read a line, and print their results when their input closes.

use crate::driver::BenchDevice;
use std::io::{BufRead, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Interval between a watching program's queries.
pub const LIMIT_POLL: Duration = Duration::from_micros(50);

/// One request: its start (CLOCK_MONOTONIC) and its length, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedRequest {
    /// Start of the request, ns of CLOCK_MONOTONIC.
    pub began: u64,
    /// Length of the request, ns.
    pub took: u64,
}

/// True if the word selects a program of this file.
pub fn is_program(word: &str) -> bool {
    ["--serve", "--watch"].contains(&word)
}

/// Runs the program that `words` select.
///
/// # Errors
/// A call of the driver fails, or a number is missing.
pub fn run(words: &[String]) -> Result<ExitCode, String> {
    // SAFETY: the call has no preconditions. It ends this process if the measuring process is killed.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let lines = match words {
        [word, kernels, ns, pause] if word == "--serve" => {
            let number = |text: &String| text.parse::<u64>().map_err(|why| format!("{text}: {why}"));
            serve(number(kernels)?, number(ns)?, Duration::from_nanos(number(pause)?))?
        }
        [word] if word == "--watch" => watch_limit()?,
        _ => return Err("--serve KERNELS NANOSECONDS PAUSE, or --watch".into()),
    };
    let text: String = lines.iter().map(|(a, b)| format!("{a} {b}\n")).collect();
    std::io::stdout().write_all(text.as_bytes()).map_err(|why| why.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the pairs of numbers that such a program printed.
pub fn parse_pairs(text: &str) -> Vec<(u64, u64)> {
    let pair = |line: &str| {
        let (a, b) = line.split_once(' ')?;
        Some((a.parse().ok()?, b.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// Prints `ready`, waits for a line, and returns a flag that becomes true when the input closes.
fn wait_until_started() -> Result<Arc<AtomicBool>, String> {
    println!("ready");
    std::io::stdout().flush().map_err(|why| why.to_string())?;
    let over = Arc::new(AtomicBool::new(false));
    std::io::stdin().lock().read_line(&mut String::new()).map_err(|why| why.to_string())?;
    let told = Arc::clone(&over);
    thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        told.store(true, Relaxed);
    });
    Ok(over)
}

/// Serves requests of `kernels` launches of `ns` and a wait, one after the other.
fn serve(kernels: u64, ns: u64, pause: Duration) -> Result<Vec<(u64, u64)>, String> {
    let device = BenchDevice::open()?;
    let stream = device.make_stream()?;
    let over = wait_until_started()?;
    let mut requests = Vec::new();
    while !over.load(Relaxed) {
        let began = vgpu_sim::now();
        for _ in 0..kernels {
            device.launch(stream, ns)?;
        }
        device.synchronize_stream(stream)?;
        requests.push((began, vgpu_sim::now() - began));
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }
    Ok(requests)
}

/// Records each time at which the visible memory changed, and its new size.
fn watch_limit() -> Result<Vec<(u64, u64)>, String> {
    let device = BenchDevice::open()?;
    let over = wait_until_started()?;
    let (mut changes, mut last) = (Vec::new(), device.shown_memory()?);
    while !over.load(Relaxed) {
        let now = device.shown_memory()?;
        if now != last {
            changes.push((vgpu_sim::now(), now as u64));
            last = now;
        }
        thread::sleep(LIMIT_POLL);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_understood_and_what_it_does_not_say_is_left_out() {
        assert_eq!(parse_pairs("12 34\nnonsense\n5 x\n7 8\n"), [(12, 34), (7, 8)]);
    }
}
