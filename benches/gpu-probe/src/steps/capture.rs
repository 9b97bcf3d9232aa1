//! The effect of each call during a stream capture: its code, whether it invalidates the capture, and how the capture
//! ends.
//!
//! Every call is tried in a capture of its own. The cases: both kinds of stream, the three modes, from the capturing
//! thread and from another, with the thread's own mode unchanged and exchanged to relaxed. An entry of the result is
//! `[code of the call, state of the capture afterwards (0 none, 1 active, 2 invalidated), code of the end]`.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use super::StepOutput;
use crate::args::Options;
use crate::driver::{DriverHandle, ProbedDriver};
use crate::gpu::{LEGACY_STREAM, ProbedGpu, flags, per_thread};
use crate::kernels::{KERNEL_PTX, ProbeKernels};

/// The capture modes by their numbers in the driver's interface.
const CAPTURE_MODES: &[(&str, i32)] = &[("global", 0), ("thread_local", 1), ("relaxed", 2)];
const RELAXED_MODE: i32 = 2;

/// Handles that the measured calls use.
struct CaptureFixture<'d> {
    gpu: ProbedGpu<'d>,
    null: DriverHandle,
    /// The stream that captures.
    capturing: DriverHandle,
    /// An independent stream that does not capture.
    other: DriverHandle,
    /// An event reached before the capture.
    done: DriverHandle,
    /// A second event reached before the capture.
    later: DriverHandle,
    /// An event that may be recorded.
    spare: DriverHandle,
    memory: u64,
    /// Allocations made by calls, freed after the capture.
    made: Mutex<Vec<u64>>,
}

// SAFETY: any thread may use the driver's handles; a lock protects the fixture's only mutable part.
unsafe impl Sync for CaptureFixture<'_> {}

impl CaptureFixture<'_> {
    fn keep_pointer(&self, pointer: u64) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(pointer);
    }
}

type CapturedCall = fn(&CaptureFixture<'_>) -> i32;

/// The tried calls. They are safe because every handle in the fixture lives as long as the step.
const CAPTURED_CALLS: &[(&str, CapturedCall)] = &[
    ("event_query", |f| f.gpu.query_event(f.done).value),
    ("event_synchronize", |f| f.gpu.event_sync(f.done).value),
    ("event_elapsed", |f| f.gpu.elapsed_ns(f.done, f.later).map_or_else(|e| e.0.value, |_| 0)),
    ("event_create_destroy", |f| match f.gpu.make_event(0).and_then(|event| f.gpu.event_destroy(event)) {
        Ok(()) => 0,
        Err(e) => e.0.value,
    }),
    ("record_on_other", |f| f.gpu.record_event(f.spare, f.other).value),
    ("record_on_legacy", |f| f.gpu.record_event(f.spare, LEGACY_STREAM).value),
    ("record_on_per_thread", |f| f.gpu.record_event(f.spare, per_thread()).value),
    ("record_on_capturing", |f| f.gpu.record_event(f.spare, f.capturing).value),
    ("record_on_capturing_then_query", |f| {
        let recorded = f.gpu.record_event(f.spare, f.capturing).value;
        if recorded == 0 { f.gpu.query_event(f.spare).value } else { recorded }
    }),
    ("stream_query_other", |f| f.gpu.stream_query(f.other).value),
    ("stream_query_legacy", |f| f.gpu.stream_query(LEGACY_STREAM).value),
    ("stream_query_capturing", |f| f.gpu.stream_query(f.capturing).value),
    ("stream_synchronize_other", |f| f.gpu.stream_sync(f.other).value),
    ("stream_synchronize_legacy", |f| f.gpu.stream_sync(LEGACY_STREAM).value),
    ("stream_synchronize_capturing", |f| f.gpu.stream_sync(f.capturing).value),
    ("context_synchronize", |f| f.gpu.sync_code().value),
    ("mem_get_info", |f| f.gpu.mem_info().map_or_else(|e| e.0.value, |_| 0)),
    ("mem_alloc", |f| {
        f.gpu.alloc(4096).map_or_else(
            |e| e.0.value,
            |p| {
                f.keep_pointer(p);
                0
            },
        )
    }),
    ("mem_alloc_free", |f| match f.gpu.alloc(4096).and_then(|p| f.gpu.free(p)) {
        Ok(()) => 0,
        Err(e) => e.0.value,
    }),
    ("mem_alloc_async_other", |f| match f.gpu.alloc_async(4096, f.other).and_then(|p| f.gpu.free_async(p, f.other)) {
        Ok(()) => 0,
        Err(e) => e.0.value,
    }),
    ("mem_alloc_async_capturing", |f| {
        match f.gpu.alloc_async(4096, f.capturing).and_then(|p| f.gpu.free_async(p, f.capturing)) {
            Ok(()) => 0,
            Err(e) => e.0.value,
        }
    }),
    ("mem_create_release", |f| {
        let size = f.gpu.vmm_granularity(0).ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(2 << 20);
        match f.gpu.vmm_create(size).and_then(|handle| f.gpu.vmm_release(handle)) {
            Ok(()) => 0,
            Err(e) => e.0.value,
        }
    }),
    ("copy_to_device", |f| {
        let word = 7_u64;
        // SAFETY: copies eight bytes from a local variable to an allocation of the fixture.
        unsafe { f.gpu.driver.copy_to_device(f.memory, (&raw const word).cast::<c_void>(), 8) }.value
    }),
    ("memset", |f| f.gpu.fill_zero(f.memory, 8).map_or_else(|e| e.0.value, |()| 0)),
    ("memset_async_capturing", |f| {
        // SAFETY: an allocation of the fixture and a live stream.
        unsafe { f.gpu.driver.memset8_async(f.memory, 0, 8, f.capturing) }.value
    }),
    ("launch_other", |f| f.gpu.launch_code(f.null, 1, 1, f.other, []).value),
    ("launch_legacy", |f| f.gpu.launch_code(f.null, 1, 1, LEGACY_STREAM, []).value),
    ("launch_capturing", |f| f.gpu.launch_code(f.null, 1, 1, f.capturing, []).value),
    ("module_load_unload", |f| match f.gpu.load_module(KERNEL_PTX.as_bytes()) {
        // SAFETY: the module was created by this call and nothing else uses it.
        Ok(module) => unsafe { f.gpu.driver.module_unload(module) }.value,
        Err(e) => e.0.value,
    }),
    ("stream_create_destroy", |f| match f.gpu.make_stream(flags::NON_BLOCKING_STREAM) {
        // SAFETY: the stream was created by this call and nothing else uses it.
        Ok(stream) => unsafe { f.gpu.driver.stream_destroy(stream) }.value,
        Err(e) => e.0.value,
    }),
    ("other_waits_for_done_event", |f| {
        // SAFETY: a live stream and a live event.
        unsafe { f.gpu.driver.stream_wait_event(f.other, f.done, 0) }.value
    }),
];

pub fn run(options: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let driver = ProbedDriver::load()?;
    let gpu = ProbedGpu::open(&driver, options.device)?;
    let kernels = ProbeKernels::load(&gpu)?;
    let fixture = CaptureFixture {
        null: kernels.null,
        capturing: LEGACY_STREAM,
        other: gpu.make_stream(flags::NON_BLOCKING_STREAM)?,
        done: std::ptr::null_mut(),
        later: std::ptr::null_mut(),
        spare: std::ptr::null_mut(),
        memory: gpu.alloc(4096)?,
        made: Mutex::new(Vec::new()),
        gpu,
    };
    let mut fixture = fixture;
    check_control(&mut fixture).map_err(|error| format!("a capture of nothing but a launch: {error}"))?;
    sink.put_value(
        "entry",
        json!(["code of the call", "state afterwards: 0 none, 1 active, 2 invalidated", "code of the end"]),
    );
    for (kind, stream_flags) in [("blocking", 0), ("non_blocking", flags::NON_BLOCKING_STREAM)] {
        for &(mode_name, mode) in CAPTURE_MODES {
            for (thread, elsewhere) in [("same_thread", false), ("other_thread", true)] {
                for (wrap, relaxed) in [("plain", false), ("exchanged", true)] {
                    let mut entries = Map::new();
                    for (name, call) in CAPTURED_CALLS {
                        match run_case(&mut fixture, stream_flags, mode, elsewhere, relaxed, *call) {
                            Ok(entry) => drop(entries.insert((*name).to_owned(), entry)),
                            Err(error) => {
                                sink.put_failure(format_args!("{kind} {mode_name} {thread} {wrap} {name}: {error}"));
                            }
                        }
                    }
                    sink.put_value(&format!("rules.{kind}.{mode_name}.{thread}.{wrap}"), compact_entries(&entries));
                }
            }
        }
    }
    Ok(())
}

/// One entry per line: the three numbers as one string, "code/state/end".
fn compact_entries(entries: &Map<String, Value>) -> Value {
    Value::Object(
        entries
            .iter()
            .map(|(name, entry)| {
                let words: Vec<String> = entry.as_array().into_iter().flatten().map(Value::to_string).collect();
                (name.clone(), json!(words.join("/")))
            })
            .collect(),
    )
}

/// Positive control: a capture of one launch begins, is active, and ends with a graph.
fn check_control(fixture: &mut CaptureFixture<'_>) -> Result<(), String> {
    let entry = run_case(fixture, flags::NON_BLOCKING_STREAM, 0, false, false, |f| {
        f.gpu.launch_code(f.null, 1, 1, f.capturing, []).value
    })?;
    if entry == json!([0, 1, 0]) { Ok(()) } else { Err(format!("expected [0,1,0], got {entry}")) }
}

/// Tries one call in a capture of its own.
fn run_case(
    fixture: &mut CaptureFixture<'_>,
    stream_flags: u32,
    mode: i32,
    elsewhere: bool,
    relaxed: bool,
    call: CapturedCall,
) -> Result<Value, String> {
    let driver = fixture.gpu.driver;
    // Each case gets new events, so that the effect of a case on an event or stream cannot show in the next.
    let events = [fixture.gpu.make_event(0)?, fixture.gpu.make_event(0)?, fixture.gpu.make_event(0)?];
    [fixture.done, fixture.later, fixture.spare] = events;
    for event in events {
        fixture.gpu.record_event(event, fixture.other).ok()?;
    }
    fixture.gpu.synchronize()?;
    fixture.capturing = fixture.gpu.make_stream(stream_flags)?;
    let capturing = fixture.capturing;
    // SAFETY: a live stream and a capture mode of the interface.
    unsafe { driver.capture_begin(capturing, mode) }.ok()?;
    let shared: &CaptureFixture<'_> = fixture;
    let code = if elsewhere {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                shared.gpu.make_current()?;
                call_in_mode(shared, relaxed, call)
            });
            thread.join().unwrap_or_else(|_| Err("the other thread failed".to_owned()))
        })
    } else {
        call_in_mode(shared, relaxed, call)
    };
    let mut state = -1;
    // SAFETY: a live stream and a pointer to a local number.
    let asked = unsafe { driver.capture_status(capturing, &raw mut state) };
    let mut graph = std::ptr::null_mut();
    // SAFETY: a live stream and a pointer to a local handle.
    let end = unsafe { driver.capture_end(capturing, &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph of this capture; nothing else uses it.
        unsafe { driver.graph_destroy(graph) }.ok()?;
    }
    // SAFETY: the stream of this case; nothing uses it afterwards.
    unsafe { driver.stream_destroy(capturing) }.ok()?;
    fixture.gpu.synchronize()?;
    for event in events {
        fixture.gpu.event_destroy(event)?;
    }
    let made = std::mem::take(&mut *fixture.made.lock().unwrap_or_else(PoisonError::into_inner));
    for pointer in made {
        fixture.gpu.free(pointer)?;
    }
    asked.ok()?;
    Ok(json!([code?, state, end.value]))
}

/// Makes the call. If `relaxed`, the thread's capture mode is exchanged to relaxed around it.
fn call_in_mode(fixture: &CaptureFixture<'_>, relaxed: bool, call: CapturedCall) -> Result<i32, String> {
    let driver = fixture.gpu.driver;
    let mut mode = RELAXED_MODE;
    if relaxed {
        // SAFETY: a pointer to a local number: the new mode on entry, the old one on return.
        unsafe { driver.capture_exchange(&raw mut mode) }.ok()?;
    }
    let code = call(fixture);
    if relaxed {
        // SAFETY: a pointer to a local number; this restores the old mode.
        unsafe { driver.capture_exchange(&raw mut mode) }.ok()?;
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_name_of_its_own() {
        for (i, (name, _)) in CAPTURED_CALLS.iter().enumerate() {
            assert!(!CAPTURED_CALLS[..i].iter().any(|(other, _)| other == name), "{name} twice");
        }
    }

    #[test]
    fn an_entry_is_written_on_one_line() {
        let entries = Map::from_iter([("event_query".to_owned(), json!([900, 2, 901]))]);
        assert_eq!(compact_entries(&entries), json!({"event_query": "900/2/901"}));
    }
}
