//! Rules for calls that a thread must not make during a capture.
//!
//! Some calls do not use a stream and so cannot be captured, although captured work may depend on them. These are
//! *potentially unsafe*:
//! - A thread in global mode (the default) must not make them while it captures, nor while another thread
//!   captures in global mode.
//! - A thread in thread-local mode must not make them while it captures.
//! - A thread in relaxed mode may always make them.
//!
//! Captures begun in relaxed mode forbid nothing. A forbidden call is refused and invalidates the captures that
//! forbid it. Operations that contradict a capture (a query of its streams or events, the legacy stream) are
//! refused in every mode, at the use of the stream or event.
//!
//! Source: CUDA driver API, `cuThreadExchangeStreamCaptureMode`; CUDA programming guide, "Prohibited and
//! Unhandled Operations", "Invalidation". The list of calls is not published: the guide names allocations, the
//! rest is reported by programs (docs/simulated-device.md says which).

use super::CaptureTable;
use crate::errors::CallResult;
use shim_sys::cuda::CUresult;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Captures begun in this mode forbid the calls in their own thread and in every thread in this mode.
pub(crate) const MODE_GLOBAL: u32 = 0;
/// Captures begun in this mode forbid nothing, and threads in this mode are not restricted.
pub(crate) const MODE_RELAXED: u32 = 2;

thread_local! {
    static THREAD_MODE: Cell<u32> = const { Cell::new(MODE_GLOBAL) };
    static THREAD_NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// A number of this thread that no other thread had.
pub(crate) fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD_NUMBER.with(|m| {
        if m.get() == 0 {
            m.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        m.get()
    })
}

/// Sets this thread's mode; returns the old one.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    THREAD_MODE.replace(mode)
}

/// Calls that mode and thread can forbid, without their stream suffixes. Queries and waits of single events and
/// streams check by themselves, because captured ones and the legacy stream have error codes of their own.
const UNSAFE_CALLS: &[&str] = &[
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuGraphExecDestroy",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
];

/// True if mode and thread can forbid this call.
pub(crate) fn is_unsafe(name: &str) -> bool {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    UNSAFE_CALLS.binary_search(&name).is_ok()
}

impl CaptureTable {
    /// Refuses a potentially unsafe call of this thread if a capture forbids it, and invalidates that capture.
    pub(crate) fn refuse_unsafe(&self) -> CallResult {
        let mode = THREAD_MODE.get();
        if mode == MODE_RELAXED || !self.any() {
            return Ok(());
        }
        self.with_state(|s| {
            let mut refused = false;
            for session in s.sessions.values_mut().filter(|c| c.mode != MODE_RELAXED) {
                if session.thread == this_thread() || (mode == MODE_GLOBAL && session.mode == MODE_GLOBAL) {
                    refused = true;
                    session.invalid = true;
                }
            }
            if refused { Err(CUresult::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_so_that_it_can_be_searched() {
        assert!(UNSAFE_CALLS.windows(2).all(|w| w[0] < w[1]));
        assert!(is_unsafe("cuMemAllocManaged") && is_unsafe("cuMemAlloc_v2") && !is_unsafe("cuLaunchKernel"));
    }
}
