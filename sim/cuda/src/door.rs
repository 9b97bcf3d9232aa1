//! The entry point of every call from C: checks initialisation, injects failures, and keeps panics from crossing
//! into C.

use crate::driver::{self, SimulatedDriver};
use core::ffi::c_void;
use shim_sys::cuda::CUresult;
use vgpu_sim::release::DriverRelease;

/// Result of a driver call.
pub(crate) type CallResult = Result<(), CUresult>;

/// The address of an export.
pub(crate) struct ExportAddress(pub(crate) *const c_void);

// SAFETY: the address of a function; never dereferenced as data.
unsafe impl Sync for ExportAddress {}

/// Facts about a call other than its arguments.
pub(crate) struct CallFrame {
    /// True if the caller's default stream is the per-thread one.
    pub(crate) per_thread: bool,
    driver: Option<&'static SimulatedDriver>,
}

impl CallFrame {
    /// The initialised driver.
    pub(crate) fn initialised_driver(&self) -> Result<&'static SimulatedDriver, CUresult> {
        self.driver.ok_or(CUresult::NOT_INITIALIZED)
    }
}

/// Runs a call. `early`: allowed before `cuInit`.
pub(crate) fn enter_call(
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
                d.machine.wait_while_locked();
            }
        }
        if let Some(code) = driver::requested_faults().check(name) {
            return Err(CUresult(code));
        }
        if let Some(d) = driver.filter(|d| d.captures.any() && crate::capture::rules::is_unsafe(name)) {
            d.captures.refuse_unsafe()?;
        }
        body(&CallFrame { per_thread, driver })
    };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUresult::UNKNOWN,
    }
}

/// Runs a call that only drivers newer than 535 have.
pub(crate) fn enter_newer(
    name: &'static str,
    early: bool,
    per_thread: bool,
    body: impl FnOnce(&CallFrame) -> CallResult,
) -> CUresult {
    if !DriverRelease::current().is_newer() {
        return CUresult::NOT_SUPPORTED;
    }
    enter_call(name, early, per_thread, body)
}

/// Result of a function that is not simulated. `number` keeps two exports from being merged into one address.
#[inline(never)]
pub(crate) fn answer_absent(name: &'static str, number: u32) -> CUresult {
    std::hint::black_box(number);
    enter_call(name, false, false, |_| Err(CUresult::NOT_SUPPORTED))
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
