//! The cost of an allocation and its release, by size and by the number of live allocations.

use serde_json::{Map, Value, json};

use super::{StepOutput, per_call};
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::{ProbedGpu, flags};
use crate::stats::series_json;

/// Timed sizes. The largest is small compared with every device.
const TIMED_SIZES: &[usize] = &[512, 65536, 1 << 20, 2 << 20, 64 << 20, 512 << 20];
/// Numbers of live allocations of 512 B at which a pair is timed again.
const LIVE_COUNTS: &[usize] = &[0, 1000, 10_000];

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let repeats = if options.quick { 20 } else { 100 };
    let (free, _) = gpu.mem_info()?;

    let mut pairs = Map::new();
    for &size in TIMED_SIZES.iter().filter(|&&size| size as u64 <= free / 4) {
        match per_call(repeats, 1, || gpu.alloc(size).and_then(|pointer| gpu.free(pointer))) {
            Ok(times) => drop(pairs.insert(size.to_string(), series_json(&times))),
            Err(failure) => sink.put_failure(format_args!("pair of {size} bytes: {failure}")),
        }
        sink.put_value("pairs", Value::Object(pairs.clone()));
    }
    sink.run_part("pair_beside_live", || {
        let mut alive = Vec::new();
        let mut result = Map::new();
        for &live in LIVE_COUNTS {
            while alive.len() < live {
                alive.push(gpu.alloc(512)?);
            }
            let times = per_call(repeats, 1, || gpu.alloc(512).and_then(|pointer| gpu.free(pointer)))?;
            result.insert(live.to_string(), series_json(&times));
        }
        for pointer in alive {
            gpu.free(pointer)?;
        }
        Ok(Value::Object(result))
    });
    sink.run_part("async_pairs", || {
        let stream = gpu.make_stream(flags::NON_BLOCKING_STREAM)?;
        let mut result = Map::new();
        for &size in &[512, 2 << 20] {
            let times = per_call(repeats, 1, || {
                let pointer = gpu.alloc_async(size, stream)?;
                gpu.free_async(pointer, stream)
            })?;
            gpu.stream_sync(stream).ok()?;
            result.insert(size.to_string(), series_json(&times));
        }
        Ok(Value::Object(result))
    });
    sink.run_part("vmm_create_release", || {
        let size = usize::try_from(gpu.vmm_granularity(0)?).map_err(|e| e.to_string())?;
        Ok(series_json(&per_call(repeats, 1, || gpu.vmm_create(size).and_then(|handle| gpu.vmm_release(handle)))?))
    });
    sink.put_value("unit", json!("ns"));
    Ok(())
}
