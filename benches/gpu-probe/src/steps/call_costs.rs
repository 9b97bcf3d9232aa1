//! The cost of small calls that a library in between makes or wraps.

use serde_json::json;

use super::{Out, per_call};
use crate::args::Options;
use crate::driver::Driver;
use crate::gpu::Gpu;
use crate::stats::summary;

pub fn run(options: &Options, sink: &mut Out) -> Result<(), String> {
    let driver = Driver::load()?;
    let gpu = Gpu::open(&driver, options.device)?;
    let batches = if options.quick { 20 } else { 100 };
    let pointer = gpu.alloc(4096)?;

    sink.attempt("mem_get_info", || Ok(summary(&per_call(batches, 20, || gpu.mem_info().map(drop))?)));
    sink.attempt("context_get", || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a local handle.
        Ok(summary(&per_call(batches, 1000, || unsafe { driver.context_get(&raw mut context) }.ok())?))
    });
    sink.attempt("context_set_same", || Ok(summary(&per_call(batches, 1000, || gpu.make_current())?)));
    sink.attempt("context_device", || {
        let mut device = 0;
        // SAFETY: the pointer is to a local number.
        Ok(summary(&per_call(batches, 1000, || unsafe { driver.context_device(&raw mut device) }.ok())?))
    });
    sink.attempt("capture_mode_exchange", || {
        let mut mode = 2;
        // SAFETY: the pointer is to a local number, which alternates between the calls.
        let times = per_call(batches, 1000, || unsafe { driver.capture_exchange(&raw mut mode) }.ok())?;
        Ok(summary(&times))
    });
    sink.attempt("capture_status", || {
        let stream = gpu.stream(1)?;
        let mut status = 0;
        // SAFETY: a live stream and a pointer to a local number.
        Ok(summary(&per_call(batches, 1000, || unsafe { driver.capture_status(stream, &raw mut status) }.ok())?))
    });
    sink.attempt("pointer_attribute", || {
        let mut kind = 0_u32;
        let times = per_call(batches, 200, || {
            // SAFETY: attribute 2, the memory type, is a 32-bit number; the address is an allocation of this step.
            unsafe { driver.pointer_attribute((&raw mut kind).cast(), 2, pointer) }.ok()
        })?;
        Ok(summary(&times))
    });
    sink.put("unit", json!("ns"));
    gpu.free(pointer)?;
    Ok(())
}
