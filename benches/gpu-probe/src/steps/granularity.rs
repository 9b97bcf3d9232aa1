//! The free memory that allocations of each size really take, the number of allocations per slab, and their alignment.

use serde_json::{Map, Value, json};

use super::{StepOutput, read_settled};
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::ProbedGpu;

const KIB_BYTES: usize = 1024;
const MIB_BYTES: usize = 1024 * KIB_BYTES;

/// Measured sizes, around those at which an allocator changes its behaviour.
const TRIED_SIZES: &[usize] = &[
    1,
    512,
    513,
    4 * KIB_BYTES,
    64 * KIB_BYTES,
    MIB_BYTES - 512,
    MIB_BYTES,
    MIB_BYTES + 1,
    2 * MIB_BYTES - 1,
    2 * MIB_BYTES,
    2 * MIB_BYTES + 1,
    3 * MIB_BYTES,
    32 * MIB_BYTES,
];

/// Largest sum in bytes that the allocations of one size may request.
const MAX_BYTES_PER_SIZE: usize = 512 * MIB_BYTES;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let (free, total) = gpu.mem_info()?;
    sink.put_value("before", json!({ "free": free, "total": total }));
    if free < 4 * MAX_BYTES_PER_SIZE as u64 {
        return Err(format!("only {free} bytes are free: too few to look without being in the way"));
    }
    let mut sizes = Map::new();
    for &size in TRIED_SIZES {
        match fill_until_drop(&gpu, size, options.quick) {
            Ok(value) => {
                if let Some(refusal) = value["stopped_by"].as_str() {
                    sink.put_failure(format_args!("{size} bytes: broken off: {refusal}"));
                }
                sizes.insert(size.to_string(), value);
            }
            Err(error) => sink.put_failure(format_args!("{size} bytes: {error}")),
        }
        sink.put_value("sizes", Value::Object(sizes.clone()));
    }
    sink.put_value("slab_bytes", sizes.get("1").map_or(Value::Null, |one| one["steps"][0]["bytes"].clone()));
    sink.put_value("own_slab_from_bytes", own_slab_from(&sizes));
    sink.put_value("small_alignment_bytes", sizes.get("1").map_or(Value::Null, |one| one["alignment_bytes"].clone()));
    sink.run_part("vmm", || {
        let least = gpu.vmm_granularity(0)?;
        let recommended = gpu.vmm_granularity(1)?;
        let (before, _) = read_settled(|| Ok(gpu.mem_info()?.0))?;
        let handle = gpu.vmm_create(usize::try_from(least).map_err(|e| e.to_string())?)?;
        let (after, agrees) = read_settled(|| Ok(gpu.mem_info()?.0))?;
        gpu.vmm_release(handle)?;
        Ok(json!({
            "least": least, "recommended": recommended, "least_takes_bytes": before.saturating_sub(after),
            "two_readings_agree": agrees,
        }))
    });
    sink.run_part("left_at_the_end_bytes", || Ok(json!(free.saturating_sub(gpu.mem_info()?.0))));
    Ok(())
}

/// Repeats allocations of one size until free memory has fallen three times. Returns the points where it fell, the
/// amounts, and the addresses.
fn fill_until_drop(gpu: &ProbedGpu<'_>, size: usize, quick: bool) -> Result<Value, String> {
    let most = (MAX_BYTES_PER_SIZE / size).clamp(4, if quick { 5_000 } else { 14_000 });
    let (before, agrees) = read_settled(|| Ok(gpu.mem_info()?.0))?;
    let mut free = before;
    let mut steps = Vec::new();
    let mut pointers = Vec::new();
    let mut failed = None;
    while pointers.len() < most && steps.len() < 3 {
        match gpu.alloc(size) {
            Ok(pointer) => pointers.push(pointer),
            Err(failure) => {
                failed = Some(failure.to_string());
                break;
            }
        }
        let now = gpu.mem_info()?.0;
        if now != free {
            let fell = i64::try_from(free).unwrap_or(0) - i64::try_from(now).unwrap_or(0);
            steps.push(json!({ "at": pointers.len(), "bytes": fell }));
            free = now;
        }
    }
    let value = json!({
        "allocations": pointers.len(),
        "steps": steps,
        "per_slab": per_slab(&steps),
        "alignment_bytes": common_alignment(&pointers),
        "smallest_distance_bytes": smallest_distance(&pointers),
        "stopped_by": failed,
        "two_readings_agree_before": agrees,
    });
    for pointer in pointers {
        gpu.free(pointer)?;
    }
    let (after, _) = read_settled(|| Ok(gpu.mem_info()?.0))?;
    let mut value = value;
    value["kept_after_free_bytes"] = json!(before.saturating_sub(after));
    Ok(value)
}

/// Allocations between two steps of free memory: the number that fits one slab; null if fewer than two steps were seen.
fn per_slab(steps: &[Value]) -> Value {
    let at: Vec<u64> = steps.iter().filter_map(|step| step["at"].as_u64()).collect();
    match at[..] {
        [.., before, last] => json!(last - before),
        _ => Value::Null,
    }
}

/// Smallest size with a slab of its own that is above every size of which several share a slab; null if there is none.
fn own_slab_from(sizes: &Map<String, Value>) -> Value {
    let per_slab = |size: &usize| sizes.get(&size.to_string())?["per_slab"].as_u64();
    let shared = TRIED_SIZES.iter().filter(|size| per_slab(size).is_some_and(|n| n > 1)).max();
    json!(TRIED_SIZES.iter().filter(|size| per_slab(size) == Some(1) && Some(*size) > shared).min())
}

/// Largest power of two that divides every address.
fn common_alignment(pointers: &[u64]) -> Value {
    let all = pointers.iter().fold(0, |all, pointer| all | pointer);
    if all == 0 { Value::Null } else { json!(1_u64 << all.trailing_zeros()) }
}

/// Smallest distance between two addresses.
fn smallest_distance(pointers: &[u64]) -> Value {
    let mut sorted = pointers.to_vec();
    sorted.sort_unstable();
    json!(sorted.windows(2).map(|pair| pair[1] - pair[0]).min())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_holds_what_lies_between_two_steps() {
        let steps = [json!({"at": 1, "bytes": 2_097_152}), json!({"at": 4097, "bytes": 2_097_152})];
        assert_eq!(per_slab(&steps), json!(4096));
        assert_eq!(per_slab(&steps[..1]), Value::Null);
    }

    #[test]
    fn the_size_from_which_a_slab_is_one_s_own_lies_above_all_that_share() {
        let sizes = |list: &[(usize, u64)]| -> Map<String, Value> {
            list.iter().map(|(size, n)| (size.to_string(), json!({ "per_slab": n }))).collect()
        };
        assert_eq!(
            own_slab_from(&sizes(&[(1, 4096), (MIB_BYTES - 512, 2), (MIB_BYTES, 1), (2 * MIB_BYTES, 1)])),
            json!(MIB_BYTES)
        );
        assert_eq!(own_slab_from(&sizes(&[(1, 4096), (MIB_BYTES, 2)])), Value::Null);
        assert_eq!(own_slab_from(&Map::new()), Value::Null);
    }

    #[test]
    fn the_alignment_is_that_of_the_worst_address() {
        assert_eq!(common_alignment(&[0x7000_0000, 0x7000_0200]), json!(512));
        assert_eq!(common_alignment(&[]), Value::Null);
    }

    #[test]
    fn the_distance_does_not_depend_on_the_order() {
        assert_eq!(smallest_distance(&[4096, 0, 1024]), json!(1024));
        assert_eq!(smallest_distance(&[4096]), Value::Null);
    }
}
