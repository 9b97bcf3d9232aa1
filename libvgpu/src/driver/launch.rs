//! One launch, as the gate, the meter and the daemon link know it.

use super::streams::{StreamId, StreamLocation};
use shim_sys::cuda::{CUcontext, CUgraphExec, CUstream};

/// The key under which a launch's cost is learned: the function and the total size. 64-bit arithmetic: a grid may
/// have more than 2^32 blocks.
#[inline]
pub fn cost_key_of(function: usize, [gx, gy, gz]: [u32; 3], [bx, by, bz]: [u32; 3]) -> u64 {
    let of = |a: u32, b: u32| u64::from(a).wrapping_mul(u64::from(b));
    let volume = of(gx, gy).wrapping_mul(of(gz, bx)).wrapping_mul(of(by, bz));
    (function as u64) ^ volume.rotate_left(32) | 1
}

/// The cost model's cost_key_of of an executable graph, which is launched as a whole: as [`cost_key_of`], with the
/// graph's handle in place of the function.
pub fn graph_key(exec: CUgraphExec) -> u64 {
    cost_key_of(exec.0 as usize, [1; 3], [1; 3])
}

/// One launch, as the meter needs to know it.
#[derive(Clone, Copy, Debug)]
pub struct MeteredLaunch {
    /// The context that is current at the launch.
    pub context: CUcontext,
    /// The stream that the launch is queued in.
    pub stream: CUstream,
    /// True if the null stream means this thread's own.
    pub per_thread: bool,
    /// The cost model's key: function and grid.
    pub key: u64,
    /// True for a graph: the device may start its first node during the call.
    pub in_parts: bool,
}

impl MeteredLaunch {
    /// The stream that the launch is queued in, as calls name it.
    pub fn stream_id(&self) -> StreamId {
        StreamId { stream: self.stream, per_thread: self.per_thread }
    }

    /// The key of its stream's timeline.
    pub fn stream_location(&self) -> StreamLocation {
        StreamLocation { key: self.stream_id().stream_key(), context: self.context.0 as usize }
    }
}
