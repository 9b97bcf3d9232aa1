//! The workload: a process on the device that launches in one pattern until it is killed. It knows nothing of vgpu.
//!
//!     vgpu-shares --work PATTERN NANOSECONDS[,NANOSECONDS...]
//!
//! It prints `ready` when it has a context and its kernel, and begins when it reads a line. Its launches use the
//! lengths in turn. Not here: programs that report how long something took (`tenants/client`).

use crate::driver::BenchDevice;
use crate::points::LaunchPattern;
use std::io::{BufRead, Write};
use std::time::Duration;

/// Number of kernels in a graph.
pub const KERNELS_PER_GRAPH: u64 = 10;
/// Kernels per burst, and the time without a call after it.
pub const BURST: (u32, Duration) = (3, Duration::from_millis(20));
/// Number of streams of [`LaunchPattern::Streams`].
const STREAM_COUNT: usize = 4;

/// Launches in the `pattern` with `lengths` in ns. Returns only at a failure, or if the input closes before it may
/// begin.
///
/// # Errors
/// A call of the driver fails.
pub fn work_by_pattern(pattern: LaunchPattern, lengths: &[u64]) -> Result<(), String> {
    let longest = lengths.iter().copied().max().ok_or("a workload needs a length")?;
    // SAFETY: the call has no preconditions. It ends this process if the measuring process is killed, because this loop
    // has no end of its own.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let device = BenchDevice::open()?;
    let streams = (0..STREAM_COUNT).map(|_| device.make_stream()).collect::<Result<Vec<_>, _>>()?;
    let stream = streams[0];
    let graph = match pattern {
        LaunchPattern::Graphs => Some(device.make_graph(stream, KERNELS_PER_GRAPH, longest / KERNELS_PER_GRAPH)?),
        _ => None,
    };
    println!("ready");
    std::io::stdout().flush().map_err(|why| why.to_string())?;
    if std::io::stdin().lock().lines().next().is_none() {
        return Ok(());
    }
    let mut turn = streams.iter().cycle();
    for &ns in lengths.iter().cycle() {
        match (pattern, graph) {
            (LaunchPattern::Graphs, Some(graph)) => device.launch_graph(graph, stream)?,
            (LaunchPattern::Streams, _) => device.launch(*turn.next().unwrap_or(&stream), ns)?,
            (LaunchPattern::Sync, _) => {
                device.launch(stream, ns)?;
                device.synchronize_stream(stream)?;
            }
            (LaunchPattern::Bursts, _) => {
                for _ in 0..BURST.0 {
                    device.launch(stream, ns)?;
                }
                device.synchronize_stream(stream)?;
                std::thread::sleep(BURST.1);
            }
            (LaunchPattern::Async | LaunchPattern::Graphs, _) => device.launch(stream, ns)?,
        }
    }
    Ok(())
}
