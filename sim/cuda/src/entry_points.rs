//! The entry point of every call from C: checks initialisation, injects failures, and keeps panics from crossing
//! into C. A [`CallFrame`] resolves the current context and stream handles for the call's body.

use crate::capture::{CaptureOperation, CaptureTable, OperationTarget, capture_table, rules};
use crate::context::{CudaContext, stack_top};
use crate::devices::DriverDevice;
use crate::driver::{self, SimulatedDriver};
use crate::errors::CallResult;
use crate::graph::node::NodeKind;
use crate::graph::{GraphTables, graph_tables};
use core::ffi::c_void;
use shim_sys::cuda::{CU_STREAM_LEGACY, CU_STREAM_NON_BLOCKING, CU_STREAM_PER_THREAD, CUresult, CUstream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use vgpu_sim::engine::StreamId;
use vgpu_sim::release::DriverRelease;

thread_local! {
    /// The engine stream of this thread's default stream in each context, by the context's number.
    static THREAD_STREAMS: RefCell<HashMap<u64, StreamId>> = RefCell::new(HashMap::new());
}

/// The address of an export.
pub(crate) struct ExportAddress(pub(crate) *const c_void);

// SAFETY: the address of a function; never dereferenced as data.
unsafe impl Sync for ExportAddress {}

/// Every export: its name and its address.
pub(crate) type ExportTable = &'static [(&'static str, ExportAddress)];

/// Facts about a call other than its arguments.
pub(crate) struct CallFrame {
    /// True if the caller's default stream is the per-thread one.
    pub(crate) per_thread: bool,
    pub(crate) exports: ExportTable,
    driver: Option<&'static SimulatedDriver>,
}

impl CallFrame {
    /// The initialised driver.
    pub(crate) fn initialised_driver(&self) -> Result<&'static SimulatedDriver, CUresult> {
        self.driver.ok_or(CUresult::NOT_INITIALIZED)
    }
}

impl CallFrame {
    /// The graphs of the initialised driver.
    pub(crate) fn graph_tables(&self) -> Result<&'static GraphTables, CUresult> {
        self.initialised_driver().map(|_| graph_tables())
    }

    /// The captures of the initialised driver.
    pub(crate) fn capture_table(&self) -> Result<&'static CaptureTable, CUresult> {
        self.initialised_driver().map(|_| capture_table())
    }

    /// The calling thread's current context.
    pub(crate) fn current_context(&self) -> Result<Arc<CudaContext>, CUresult> {
        stack_top().ok_or(CUresult::INVALID_CONTEXT)?.require_living()
    }

    /// The device of the current context.
    pub(crate) fn current_device(&self) -> Result<&'static DriverDevice, CUresult> {
        self.initialised_driver()?.device_of_ordinal(self.current_context()?.device)
    }

    /// True if a handle denotes the legacy default stream here.
    pub(crate) fn is_legacy(&self, stream: CUstream) -> bool {
        stream == CU_STREAM_LEGACY || (stream.is_null() && !self.per_thread)
    }

    /// True if a stream and the legacy default stream wait for each other.
    pub(crate) fn is_blocking(&self, stream: CUstream) -> bool {
        let of = self.initialised_driver().ok().and_then(|d| d.streams.get(stream.0));
        of.is_none_or(|s| s.flags & CU_STREAM_NON_BLOCKING == 0)
    }

    /// The context and engine stream of a handle, for a call that cannot be captured. Refuses the call if a capture
    /// conflicts with it.
    pub(crate) fn resolve_stream(&self, stream: CUstream) -> Result<(Arc<CudaContext>, StreamId), CUresult> {
        let (context, id) = self.raw_stream(stream)?;
        self.capture_table()?.refuse_captured(&context, (context.device, id), self.is_legacy(stream))?;
        Ok((context, id))
    }

    /// The context and engine stream of a handle, regardless of captures.
    pub(crate) fn raw_stream(&self, stream: CUstream) -> Result<(Arc<CudaContext>, StreamId), CUresult> {
        let driver = self.initialised_driver()?;
        let own = stream == CU_STREAM_PER_THREAD || (stream.is_null() && self.per_thread);
        if own || stream.is_null() || stream == CU_STREAM_LEGACY {
            let context = self.current_context()?;
            let engine = &driver.device_of_ordinal(context.device)?.engine;
            let id = if own {
                THREAD_STREAMS.with_borrow_mut(|m| {
                    *m.entry(context.number).or_insert_with(|| engine.open_stream(context.group, true))
                })
            } else {
                engine.legacy_stream(context.group).ok_or(CUresult::CONTEXT_IS_DESTROYED)?
            };
            return Ok((context, id));
        }
        let s = driver.streams.get(stream.0).ok_or(CUresult::INVALID_HANDLE)?;
        Ok((s.context.clone(), s.id))
    }

    /// The destination of an operation in `stream`.
    pub(crate) fn target_of(&self, stream: CUstream) -> Result<OperationTarget, CUresult> {
        let (context, id) = self.raw_stream(stream)?;
        let key = (context.device, id);
        let taking = self.capture_table()?.find_capture(&context, key, self.is_legacy(stream))?;
        Ok(taking.map_or(OperationTarget::Run(context, id), OperationTarget::Capture))
    }

    /// Adds the node that `make` returns to a capture.
    pub(crate) fn capture_node(
        &self,
        t: &CaptureOperation,
        make: impl FnOnce() -> Result<NodeKind, CUresult>,
    ) -> CallResult {
        let kind = make()?;
        self.capture_table()?.add(t, kind).map(|_| ())
    }
}

/// True for a call that touches no context, so that a fault of the context does not show in it.
fn works_after_fault(name: &str) -> bool {
    let about_device =
        name.starts_with("cuDevice") && !["Primary", "Pool", "Graph"].iter().any(|subject| name.contains(subject));
    let about_stack = ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxGetDevice"];
    let about_driver = ["cuInit", "cuDriver", "cuGet", "cuCheckpoint"];
    about_device || about_stack.iter().chain(&about_driver).any(|start| name.starts_with(start))
}

/// Refuses a call to whose context a fault came.
#[cold]
#[inline(never)]
fn refuse_after_fault(driver: &SimulatedDriver, name: &str) -> CallResult {
    if works_after_fault(name) { Ok(()) } else { driver.sticky_code().map_or(Ok(()), Err) }
}

/// Runs a call. `early`: allowed before `cuInit`. Inlined, so that questions about the name are answered at compile
/// time; otherwise each call costs 140 instructions more.
#[inline(always)]
pub(crate) fn enter_call(
    exports: ExportTable,
    name: &'static str,
    early: bool,
    per_thread: bool,
    body: impl FnOnce(&CallFrame) -> CallResult,
) -> CUresult {
    let run = || {
        let driver = driver::current();
        if driver.is_none() && !early {
            return Err(CUresult::NOT_INITIALIZED);
        }
        if let Some(d) = driver.filter(|_| !early) {
            // A process locked for a checkpoint waits here; the checkpoint calls themselves do not.
            if !name.starts_with("cuCheckpoint") {
                d.devices.machine.wait_while_locked();
            }
        }
        if let Some(d) = driver
            && d.devices.machine.had_fault()
        {
            refuse_after_fault(d, name)?;
        }
        if let Some(code) = driver::requested_faults().check(name) {
            return Err(CUresult(code));
        }
        if driver.is_some() && capture_table().any() && rules::is_unsafe(name) {
            capture_table().refuse_unsafe()?;
        }
        body(&CallFrame { per_thread, exports, driver })?;
        match driver {
            // The fault may have come during the call, as to a wait.
            Some(d) if d.devices.machine.had_fault() => refuse_after_fault(d, name),
            _ => Ok(()),
        }
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUresult::UNKNOWN,
    }
}

/// Runs a call that only drivers newer than 535 have.
pub(crate) fn enter_newer(
    exports: ExportTable,
    name: &'static str,
    early: bool,
    per_thread: bool,
    body: impl FnOnce(&CallFrame) -> CallResult,
) -> CUresult {
    if !DriverRelease::current().is_newer() {
        return CUresult::NOT_SUPPORTED;
    }
    enter_call(exports, name, early, per_thread, body)
}

/// Result of a function that is not simulated. `number` keeps two exports from being merged into one address.
#[inline(never)]
pub(crate) fn answer_absent(exports: ExportTable, name: &'static str, number: u32) -> CUresult {
    std::hint::black_box(number);
    enter_call(exports, name, false, false, |_| Err(CUresult::NOT_SUPPORTED))
}

/// Writes an output if the caller passed a pointer for it.
///
/// # Safety
/// `to` is null or valid for a write.
pub(crate) unsafe fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise; C callers may pass unaligned pointers into packed structures.
        unsafe { to.write_unaligned(value) }
    }
}

/// Writes an output that the caller must accept.
///
/// # Errors
/// `INVALID_VALUE` for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub(crate) unsafe fn write_output<T>(to: *mut T, value: T) -> CallResult {
    if to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    // SAFETY: as in `put_if`.
    unsafe { to.write_unaligned(value) };
    Ok(())
}
