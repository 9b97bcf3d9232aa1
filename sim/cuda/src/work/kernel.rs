//! Launches of kernels: their shape, their duration and effect, and their start in a stream.

use crate::driver::SimulatedDriver;
use core::ffi::c_void;
use shim_sys::cuda::CUresult;
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_sim::engine::{DeviceEngine, StreamId, WorkKind};

/// The grid of a launch, its blocks, and their dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// Duration and effect of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LaunchCost {
    /// Device time of the launch, ns; it changes no memory.
    Time(u64),
    /// The launch lasts until the word at the address has the value.
    Wait(u64, u32),
    /// Device time of the launch, ns; then the word at the address is written.
    Set(u64, u32, u64),
}

/// A [`LaunchCost`] whose address is resolved to a pointer.
pub(crate) enum KnownLaunch {
    Time(u64),
    Wait(DeviceWord, u32),
    Set(DeviceWord, u32, u64),
}

/// A word that the device reads and writes.
pub(crate) struct DeviceWord(*const AtomicU32);

// SAFETY: content of device memory, or memory of the host that the program keeps while its kernels use it.
unsafe impl Send for DeviceWord {}

impl DeviceWord {
    fn get(&self) -> &AtomicU32 {
        // SAFETY: aligned and mapped, as `find` has checked.
        unsafe { &*self.0 }
    }
}

impl LaunchCost {
    /// Resolves the word's address. On a wrong address a real device faults and the context is lost.
    pub(crate) fn find(self, driver: &'static SimulatedDriver) -> Result<KnownLaunch, CUresult> {
        let word = |at: u64| match driver.content_or_managed(at, 4, true).as_deref() {
            Ok([(p, 4)]) if !p.is_null() && p.cast::<AtomicU32>().is_aligned() => Ok(DeviceWord(p.cast())),
            _ => Err(CUresult::ILLEGAL_ADDRESS),
        };
        Ok(match self {
            LaunchCost::Time(ns) => KnownLaunch::Time(ns),
            LaunchCost::Wait(at, value) => KnownLaunch::Wait(word(at)?, value),
            LaunchCost::Set(at, value, ns) => KnownLaunch::Set(word(at)?, value, ns),
        })
    }
}

impl KnownLaunch {
    /// Enqueues the launch in a stream. False: there is no such stream.
    pub(crate) fn start(self, engine: &DeviceEngine, stream: StreamId) -> bool {
        match self {
            KnownLaunch::Time(ns) => engine.enqueue_work(stream, ns, WorkKind::Kernel, None::<fn()>),
            KnownLaunch::Wait(word, value) => {
                engine.enqueue_occupying(stream, move || word.get().load(Ordering::Acquire) == value)
            }
            KnownLaunch::Set(word, value, ns) => {
                engine.enqueue_work(stream, ns, WorkKind::Kernel, None::<fn()>)
                    && engine.enqueue_host(stream, move || word.get().store(value, Ordering::Release))
            }
        }
    }
}

/// The packed buffer and its size, from a list of (1, buffer), (2, pointer to size), 0.
///
/// # Safety
/// `extra` is null or such a list, as for a launch.
pub(crate) unsafe fn packed_buffer(extra: *mut *mut c_void) -> Result<(*const u8, usize), CUresult> {
    let (mut buffer, mut size) = (core::ptr::null::<u8>(), None);
    if extra.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for i in (0..8).step_by(2) {
        // SAFETY: the caller's promise: the list is read up to its end.
        let key = unsafe { extra.add(i).read() } as usize;
        if key == 0 {
            break;
        }
        // SAFETY: each key has a value.
        let value = unsafe { extra.add(i + 1).read() };
        match key {
            1 => buffer = value.cast(),
            // SAFETY: the value of this key points to the size.
            2 if !value.is_null() => size = Some(unsafe { value.cast::<usize>().read() }),
            _ => return Err(CUresult::INVALID_VALUE),
        }
    }
    if buffer.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok((buffer, size.ok_or(CUresult::INVALID_VALUE)?)) }
}
