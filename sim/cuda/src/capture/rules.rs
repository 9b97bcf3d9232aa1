//! What a thread may not do while somebody captures.
//!
//! Some calls are not put into a stream and so cannot be captured, though the captured work may depend on them: these
//! are *potentially unsafe*. A thread in the default mode (global) may not make them while it captures itself, nor while
//! another thread captures in global mode; in thread-local mode only while it captures itself; in relaxed mode always.
//! Captures begun in relaxed mode forbid nothing. A forbidden call is refused and makes the captures that forbid it
//! invalid. What contradicts a capture (a query of its streams or events, the legacy stream) is refused in every mode,
//! where the stream or event is looked at.
//!
//! Source: CUDA driver API, `cuThreadExchangeStreamCaptureMode`; CUDA programming guide, "Prohibited and Unhandled
//! Operations", "Invalidation". The list itself is not published: allocations are named there, the rest is what programs
//! have reported (docs/simulated-device.md says which).

use super::Captures;
use crate::door::Answer;
use shim_sys::cuda::CUresult;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everybody's capture forbids.
pub(crate) const GLOBAL: u32 = 0;
/// Captures begun in this mode forbid nothing; threads in it are forbidden nothing.
pub(crate) const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
    static ME: Cell<u64> = const { Cell::new(0) };
}

/// A number for this thread that no other has had.
pub(crate) fn me() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    ME.with(|m| {
        if m.get() == 0 {
            m.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        m.get()
    })
}

/// Gives this thread a mode; the old one comes back.
pub(crate) fn exchange(mode: u32) -> u32 {
    MODE.replace(mode)
}

/// Calls that are forbidden by mode and thread, without their suffixes for streams. Queries and waits of single events
/// and streams ask for themselves, since what is captured, and the legacy stream, have codes of their own.
const UNSAFE: &[&str] = &[
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

/// Whether a call is forbidden by mode and thread.
pub(crate) fn is_unsafe(name: &str) -> bool {
    let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
    UNSAFE.binary_search(&name).is_ok()
}

impl Captures {
    /// Refuses a potentially unsafe call of this thread where a capture forbids it; that capture is invalid then.
    pub(crate) fn forbid(&self) -> Answer {
        let mode = MODE.get();
        if mode == RELAXED || !self.any() {
            return Ok(());
        }
        self.with(|s| {
            let mut refused = false;
            for session in s.sessions.values_mut().filter(|c| c.mode != RELAXED) {
                if session.thread == me() || (mode == GLOBAL && session.mode == GLOBAL) {
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
        assert!(UNSAFE.windows(2).all(|w| w[0] < w[1]));
        assert!(is_unsafe("cuMemAllocManaged") && is_unsafe("cuMemAlloc_v2") && !is_unsafe("cuLaunchKernel"));
    }
}
