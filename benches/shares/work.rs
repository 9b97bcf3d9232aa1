//! The workload: a process on the device that launches in one pattern until it is killed. It knows nothing of vgpu.
//!
//!     vgpu-shares --work PATTERN NANOSECONDS[,NANOSECONDS...]
//!
//! It prints `ready` when it has a context and its kernel, and begins when it reads a line. Its launches use the
//! lengths in turn. Not here: programs that report how long something took (`tenants/client`).

use crate::driver::Device;
use crate::points::Pattern;
use std::io::{BufRead, Write};
use std::time::Duration;

/// Number of kernels in a graph.
pub const NODES: u64 = 10;
/// Kernels per burst, and the time without a call after it.
pub const BURST: (u32, Duration) = (3, Duration::from_millis(20));
/// Number of streams of [`Pattern::Streams`].
const STREAMS: usize = 4;

/// Launches in the `pattern` with `lengths` in ns. Returns only at a failure, or if the input closes before it may
/// begin.
///
/// # Errors
/// A call of the driver fails.
pub fn work(pattern: Pattern, lengths: &[u64]) -> Result<(), String> {
    let longest = lengths.iter().copied().max().ok_or("a workload needs a length")?;
    // SAFETY: the call has no preconditions. It ends this process if the measuring process is killed, because this loop
    // has no end of its own.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let device = Device::open()?;
    let streams = (0..STREAMS).map(|_| device.stream()).collect::<Result<Vec<_>, _>>()?;
    let stream = streams[0];
    let graph = match pattern {
        Pattern::Graphs => Some(device.graph(stream, NODES, longest / NODES)?),
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
            (Pattern::Graphs, Some(graph)) => device.launch_graph(graph, stream)?,
            (Pattern::Streams, _) => device.launch(*turn.next().unwrap_or(&stream), ns)?,
            (Pattern::Sync, _) => {
                device.launch(stream, ns)?;
                device.synchronize(stream)?;
            }
            (Pattern::Bursts, _) => {
                for _ in 0..BURST.0 {
                    device.launch(stream, ns)?;
                }
                device.synchronize(stream)?;
                std::thread::sleep(BURST.1);
            }
            (Pattern::Async | Pattern::Graphs, _) => device.launch(stream, ns)?,
        }
    }
    Ok(())
}
