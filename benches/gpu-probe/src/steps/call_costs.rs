//! The cost of small calls that a library in between makes or wraps.

use serde_json::json;

use super::{StepOutput, per_call};
use crate::args::Options;
use crate::driver::ProbedDriver;
use crate::gpu::ProbedGpu;
use crate::stats::series_json;

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let batches = if options.quick { 20 } else { 100 };
    let pointer = gpu.alloc(4096)?;

    sink.run_part("mem_get_info", || Ok(series_json(&per_call(batches, 20, || gpu.mem_info().map(drop))?)));
    sink.run_part("context_get", || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a local handle.
        Ok(series_json(&per_call(batches, 1000, || unsafe { driver.context_get(&raw mut context) }.ok())?))
    });
    sink.run_part("context_set_same", || Ok(series_json(&per_call(batches, 1000, || gpu.make_current())?)));
    sink.run_part("context_device", || {
        let mut device = 0;
        // SAFETY: the pointer is to a local number.
        Ok(series_json(&per_call(batches, 1000, || unsafe { driver.context_device(&raw mut device) }.ok())?))
    });
    sink.run_part("capture_mode_exchange", || {
        let mut mode = 2;
        // SAFETY: the pointer is to a local number, which alternates between the calls.
        let times = per_call(batches, 1000, || unsafe { driver.capture_exchange(&raw mut mode) }.ok())?;
        Ok(series_json(&times))
    });
    sink.run_part("capture_status", || {
        let stream = gpu.make_stream(1)?;
        let mut status = 0;
        // SAFETY: a live stream and a pointer to a local number.
        Ok(series_json(&per_call(batches, 1000, || unsafe { driver.capture_status(stream, &raw mut status) }.ok())?))
    });
    sink.run_part("pointer_attribute", || {
        let mut kind = 0_u32;
        let times = per_call(batches, 200, || {
            // SAFETY: attribute 2, the memory type, is a 32-bit number; the address is an allocation of this step.
            unsafe { driver.pointer_attribute((&raw mut kind).cast(), 2, pointer) }.ok()
        })?;
        Ok(series_json(&times))
    });
    sink.put_value("unit", json!("ns"));
    gpu.free(pointer)?;
    Ok(())
}
