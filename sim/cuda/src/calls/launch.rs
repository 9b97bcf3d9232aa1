//! Kernel launches: they take device time and compute nothing.
//!
//! Three test kernels are known by name:
//! - `vgpu_spin_ns(ns)` takes exactly `ns`.
//! - `vgpu_wait_word(address, value)` stays on the device until the 32-bit word at `address` has the value.
//! - `vgpu_set_word(address, value, ns)` takes `ns` and then writes the word.
//!
//! Any other kernel takes the time that the profile's cost model gives for its grid and block.
//! Not here: cooperative launches (`together`).

use super::function::function;
use crate::capture::{Taking, Target};
use crate::door::{Answer, Door};
use crate::driver::Driver;
use crate::graph::node::{self, Arguments, Kernel};
use crate::objects::Function;
use core::ffi::c_void;
use shim_sys::cuda::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_sim::Profile;
use vgpu_sim::engine::{Engine, Kind, StreamId};

/// The grid of a launch, its blocks, and their dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// The test kernels that are known by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Test {
    Spin,
    Wait,
    Set,
}

impl Test {
    pub(crate) fn named(name: &str) -> Option<Test> {
        match name {
            "vgpu_spin_ns" => Some(Test::Spin),
            "vgpu_wait_word" => Some(Test::Wait),
            "vgpu_set_word" => Some(Test::Set),
            _ => None,
        }
    }
}

/// Duration and effect of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    /// Device time of the launch, ns; it changes no memory.
    Time(u64),
    /// The launch lasts until the word at the address has the value.
    Wait(u64, u32),
    /// Device time of the launch, ns; then the word at the address is written.
    Set(u64, u32, u64),
}

/// A [`Cost`] whose address is resolved to a pointer.
pub(crate) enum Known {
    Time(u64),
    Wait(Word, u32),
    Set(Word, u32, u64),
}

/// A word that the device reads and writes.
pub(crate) struct Word(*const AtomicU32);

// SAFETY: content of device memory, or memory of the host that the program keeps while its kernels use it.
unsafe impl Send for Word {}

impl Word {
    fn get(&self) -> &AtomicU32 {
        // SAFETY: aligned and mapped, as `find` has checked.
        unsafe { &*self.0 }
    }
}

impl Cost {
    /// Resolves the word's address. On a wrong address a real device faults and the context is lost.
    pub(crate) fn find(self, driver: &'static Driver) -> Result<Known, CUresult> {
        let word = |at: u64| match driver.reach(at, 4, true).as_deref() {
            Ok([(p, 4)]) if !p.is_null() && p.cast::<AtomicU32>().is_aligned() => Ok(Word(p.cast())),
            _ => Err(CUresult::ILLEGAL_ADDRESS),
        };
        Ok(match self {
            Cost::Time(ns) => Known::Time(ns),
            Cost::Wait(at, value) => Known::Wait(word(at)?, value),
            Cost::Set(at, value, ns) => Known::Set(word(at)?, value, ns),
        })
    }
}

impl Known {
    /// Enqueues the launch in a stream. False: there is no such stream.
    pub(crate) fn start(self, engine: &Engine, stream: StreamId) -> bool {
        match self {
            Known::Time(ns) => engine.work(stream, ns, Kind::Kernel, None::<fn()>),
            Known::Wait(word, value) => engine.occupy(stream, move || word.get().load(Ordering::Acquire) == value),
            Known::Set(word, value, ns) => {
                engine.work(stream, ns, Kind::Kernel, None::<fn()>)
                    && engine.host(stream, move || word.get().store(value, Ordering::Release))
            }
        }
    }
}

/// The first eight bytes of a parameter, from the array of pointers or the packed buffer.
unsafe fn parameter(
    f: &Function,
    i: usize,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<u64, CUresult> {
    let invalid = CUresult::INVALID_VALUE;
    let (at, size) = f.entry.params.get(i).copied().ok_or(invalid)?;
    let mut bytes = [0u8; 8];
    unsafe {
        let from: *const u8 = if params.is_null() { packed(extra)?.0.add(at) } else { params.add(i).read().cast() };
        if from.is_null() {
            return Err(invalid);
        }
        core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), size.min(8));
    }
    Ok(u64::from_le_bytes(bytes))
}

/// The packed buffer and its size, from a list of (1, buffer), (2, pointer to size), 0.
pub(crate) unsafe fn packed(extra: *mut *mut c_void) -> Result<(*const u8, usize), CUresult> {
    let (mut buffer, mut size) = (core::ptr::null::<u8>(), None);
    if extra.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    for i in (0..8).step_by(2) {
        let key = unsafe { extra.add(i).read() } as usize;
        if key == 0 {
            break;
        }
        let value = unsafe { extra.add(i + 1).read() };
        match key {
            1 => buffer = value.cast(),
            2 if !value.is_null() => size = Some(unsafe { value.cast::<usize>().read() }),
            _ => return Err(CUresult::INVALID_VALUE),
        }
    }
    if buffer.is_null() { Err(CUresult::INVALID_VALUE) } else { Ok((buffer, size.ok_or(CUresult::INVALID_VALUE)?)) }
}

/// The duration and effect of a launch; checks its shape, and that its parameters exist.
pub(crate) unsafe fn duration(
    p: &Profile,
    x: &Function,
    shape: &Shape,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<Cost, CUresult> {
    let (g, b) = (shape.grid, shape.block);
    let invalid = CUresult::INVALID_VALUE;
    if g.contains(&0) || b.contains(&0) || g[0] > i32::MAX as u32 || g[1] > 65_535 || g[2] > 65_535 {
        return Err(invalid);
    }
    let threads = b.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).filter(|t| *t <= 1024 && b[2] <= 64);
    let threads = threads.ok_or(invalid)?;
    let allowed = crate::driver::hold(&x.set).get(&8).copied().unwrap_or(48 << 10);
    if i64::from(shape.shared) > i64::from(allowed) || (!params.is_null() && !extra.is_null()) {
        return Err(invalid);
    }
    if !x.entry.params.is_empty() && params.is_null() {
        let (_, size) = unsafe { packed(extra)? };
        let needed = x.entry.params.iter().map(|(at, n)| at + n).max().unwrap_or(0);
        if size < needed {
            return Err(invalid);
        }
    }
    let blocks = g.iter().map(|n| u64::from(*n)).product::<u64>();
    let value = |i| unsafe { parameter(x, i, params, extra) };
    // The value of a word is the lower half of its parameter.
    let half = |i| value(i).map(|v| u32::try_from(v & u64::from(u32::MAX)).unwrap_or(0));
    Ok(match x.test {
        None => Cost::Time(p.kernel_time(blocks, threads)),
        Some(Test::Spin) => Cost::Time(value(0)?),
        Some(Test::Wait) => Cost::Wait(value(0)?, half(1)?),
        Some(Test::Set) => Cost::Set(value(0)?, half(1)?, value(2)?),
    })
}

/// Adds a launch as a node to a capture.
unsafe fn node(
    d: &Door,
    f: CUfunction,
    x: &Arc<Function>,
    shape: &Shape,
    t: &Taking,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<node::Kind, CUresult> {
    let profile = &d.driver()?.device(t.context.device)?.profile;
    let cost = unsafe { duration(profile, x, shape, params, extra)? };
    let arguments = unsafe { Arguments::read(x, params, extra)? };
    Ok(node::Kind::Kernel(Kernel {
        f: x.clone(),
        context: t.context.clone(),
        named: (f, CUkernel::NULL, CUcontext::NULL),
        shape: *shape,
        arguments,
        cost,
        attributes: BTreeMap::new(),
    }))
}

pub(super) unsafe fn launch(
    d: &Door,
    f: CUfunction,
    shape: &Shape,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let x = function(d, f)?;
    let (c, id) = match d.target(stream)? {
        Target::Capture(t) => return d.capture(&t, || unsafe { node(d, f, &x, shape, &t, params, extra) }),
        Target::Run(c, id) => (c, id),
    };
    super::library::arrive(d, &x)?;
    let driver = d.driver()?;
    let device = driver.device(c.device)?;
    spend(device.profile.launch_host_ns);
    let known = unsafe { duration(&device.profile, &x, shape, params, extra)? }.find(driver)?;
    if known.start(&device.engine, id) { Ok(()) } else { Err(CUresult::INVALID_HANDLE) }
}

/// Spins for the time that a call occupies the calling thread.
pub(crate) fn spend(ns: u64) {
    if ns > 0 {
        let end = vgpu_sim::now() + ns;
        while vgpu_sim::now() < end {
            std::hint::spin_loop();
        }
    }
}

pub(crate) unsafe fn cuLaunchKernel(
    d: &Door,
    f: CUfunction,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    unsafe { launch(d, f, &shape, stream, params, extra) }
}

/// Launch attributes (clusters, priorities, programmatic order) have no effect here.
pub(crate) unsafe fn cuLaunchKernelEx(
    d: &Door,
    config: *const CUlaunchConfig,
    f: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    if config.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let c = unsafe { config.read() };
    let shape = Shape {
        grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
        block: [c.blockDimX, c.blockDimY, c.blockDimZ],
        shared: c.sharedMemBytes,
    };
    unsafe { launch(d, f, &shape, c.hStream, params, extra) }
}
