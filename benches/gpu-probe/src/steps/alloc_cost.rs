//! The cost of an allocation and its release, by size and by the number of live allocations.

use serde_json::{Map, Value, json};

use super::{Out, per_call};
use crate::args::Options;
use crate::driver::Driver;
use crate::gpu::{Gpu, flags};
use crate::stats::summary;

/// Timed sizes. The largest is small compared with every device.
const SIZES: &[usize] = &[512, 65536, 1 << 20, 2 << 20, 64 << 20, 512 << 20];
/// Numbers of live allocations of 512 B at which a pair is timed again.
const LIVE: &[usize] = &[0, 1000, 10_000];

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let repeats = if options.quick { 20 } else { 100 };
    let (free, _) = gpu.mem_info()?;

    let mut pairs = Map::new();
    for &size in SIZES.iter().filter(|&&size| size as u64 <= free / 4) {
        match per_call(repeats, 1, || gpu.alloc(size).and_then(|pointer| gpu.free(pointer))) {
            Ok(times) => drop(pairs.insert(size.to_string(), summary(&times))),
            Err(failure) => sink.fail(format_args!("pair of {size} bytes: {failure}")),
        }
        sink.put("pairs", Value::Object(pairs.clone()));
    }
    sink.attempt("pair_beside_live", || {
        let mut alive = Vec::new();
        let mut result = Map::new();
        for &live in LIVE {
            while alive.len() < live {
                alive.push(gpu.alloc(512)?);
            }
            let times = per_call(repeats, 1, || gpu.alloc(512).and_then(|pointer| gpu.free(pointer)))?;
            result.insert(live.to_string(), summary(&times));
        }
        for pointer in alive {
            gpu.free(pointer)?;
        }
        Ok(Value::Object(result))
    });
    sink.attempt("async_pairs", || {
        let stream = gpu.stream(flags::NON_BLOCKING)?;
        let mut result = Map::new();
        for &size in &[512, 2 << 20] {
            let times = per_call(repeats, 1, || {
                let pointer = gpu.alloc_async(size, stream)?;
                gpu.free_async(pointer, stream)
            })?;
            gpu.stream_sync(stream).ok()?;
            result.insert(size.to_string(), summary(&times));
        }
        Ok(Value::Object(result))
    });
    sink.attempt("vmm_create_release", || {
        let size = usize::try_from(gpu.vmm_granularity(0)?).map_err(|e| e.to_string())?;
        Ok(summary(&per_call(repeats, 1, || gpu.vmm_create(size).and_then(|handle| gpu.vmm_release(handle)))?))
    });
    sink.put("unit", json!("ns"));
    Ok(())
}
