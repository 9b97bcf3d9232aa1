//! Kernel and graph launches: straight to the driver without a ceiling, through the launch gate with one.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::graph::launch_graph;
use crate::device::current;
use crate::device::multi_device_launch::{self, CallPart};
use crate::device::table;
use crate::driver::launch::MeteredLaunch;
use crate::driver::streams::StreamId;
use crate::member::enforce;
use crate::process::mode::Denied;
use crate::time::credit::CountedLaunch;
use crate::time::governor;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;

/// The work that a launch puts on the device.
enum LaunchKind {
    /// A function, with grid and block dimensions.
    Kernel(CUfunction, [u32; 3], [u32; 3]),
    Graph(CUgraphExec),
}

#[cold]
fn launch_through_gate(
    what: LaunchKind,
    stream: CUstream,
    per_thread: bool,
    // A trait object, to keep the library small: one copy of this code instead of one for each launch function.
    real: &mut dyn FnMut() -> CUresult,
) -> CUresult {
    let (context, device) = match enforce::on_current() {
        Ok(Some(current)) => current,
        Ok(None) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let Some(governor) = &device.governor else { return real() };
    let joined = match device.ledger.membership() {
        Ok(joined) => joined,
        Err(_) if device.is_observed() => return real(),
        Err(_) => return CUresult::NOT_PERMITTED,
    };
    let (key, in_parts) = match what {
        LaunchKind::Kernel(f, grid, block) => (crate::driver::launch::cost_key_of(f.0 as usize, grid, block), false),
        LaunchKind::Graph(exec) => (crate::driver::launch::graph_key(exec), true),
    };
    governor.launch(joined, MeteredLaunch { context, stream, per_thread, key, in_parts }, real)
}

macro_rules! launch_kernel {
    ($name:ident $per_thread:literal) => {
        #[inline]
        pub unsafe fn $name(
            real: cuda_fn::$name,
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
        ) -> CUresult {
            if !governor::is_active() {
                return unsafe { real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
            }
            launch_through_gate(
                LaunchKind::Kernel(f, [gx, gy, gz], [bx, by, bz]),
                stream,
                $per_thread,
                &mut || unsafe { real(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra) },
            )
        }
    };
}

launch_kernel!(cuLaunchKernel false);
launch_kernel!(cuLaunchKernel_ptsz true);

macro_rules! launch_kernel_ex {
    ($name:ident $per_thread:literal) => {
        #[inline]
        pub unsafe fn $name(
            real: cuda_fn::$name,
            config: *const CUlaunchConfig,
            f: CUfunction,
            params: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) -> CUresult {
            // A null configuration is the driver's error to report.
            let Some(c) = (governor::is_active()).then(|| unsafe { config.as_ref() }).flatten() else {
                return unsafe { real(config, f, params, extra) };
            };
            let (grid, block) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
            launch_through_gate(LaunchKind::Kernel(f, grid, block), c.hStream, $per_thread, &mut || unsafe {
                real(config, f, params, extra)
            })
        }
    };
}

launch_kernel_ex!(cuLaunchKernelEx false);
launch_kernel_ex!(cuLaunchKernelEx_ptsz true);

macro_rules! launch_cooperative {
    ($name:ident $per_thread:literal) => {
        #[inline]
        pub unsafe fn $name(
            real: cuda_fn::$name,
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
        ) -> CUresult {
            let mut call = || unsafe { real(f, gx, gy, gz, bx, by, bz, shared, stream, params) };
            if governor::is_active() {
                launch_through_gate(LaunchKind::Kernel(f, [gx, gy, gz], [bx, by, bz]), stream, $per_thread, &mut call)
            } else {
                call()
            }
        }
    };
}

launch_cooperative!(cuLaunchCooperativeKernel false);
launch_cooperative!(cuLaunchCooperativeKernel_ptsz true);

/// A cooperative launch on several devices: each device is charged. The list names one stream per device.
pub unsafe fn cuLaunchCooperativeKernelMultiDevice(
    real: cuda_fn::cuLaunchCooperativeKernelMultiDevice,
    list: *mut CUDA_LAUNCH_PARAMS,
    count: u32,
    flags: u32,
) -> CUresult {
    let mut call = || unsafe { real(list, count, flags) };
    // A null list, or one longer than any machine has devices, is the driver's error to report.
    if !governor::is_active() || list.is_null() || count > MAX_LAUNCH_DEVICES {
        return call();
    }
    match enforce::is_enforced() {
        Ok(false) => return call(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let part = |at: u32| {
        let one = unsafe { list.add(at as usize).read() };
        let (context, device) = current::of_stream(one.hStream)?;
        let (grid, block) = ([one.gridDimX, one.gridDimY, one.gridDimZ], [one.blockDimX, one.blockDimY, one.blockDimZ]);
        let key = crate::driver::launch::cost_key_of(one.function.0 as usize, grid, block);
        Some(CallPart {
            device,
            launch: MeteredLaunch { context, stream: one.hStream, per_thread: false, key, in_parts: false },
        })
    };
    let mut parts: Vec<CallPart> = (0..count).filter_map(part).collect();
    multi_device_launch::through_all(&mut parts, &mut call)
}

/// More devices than a process can have.
const MAX_LAUNCH_DEVICES: u32 = 64;

/// Threads of a block as set by `cuFuncSetBlockShape`, for the launches of CUDA 2, by function. Each entry holds the
/// low bits of the function's handle, then the threads. A function without an entry counts as one thread, which only
/// costs accuracy.
static BLOCK_SHAPES: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Mask of the bits for threads. A block has at most 1024 threads; more is the driver's error to report.
const THREADS_MASK: u64 = (1 << 24) - 1;

/// The entry of a function, and the handle bits that mark it.
fn shape_of(f: CUfunction) -> (&'static AtomicU64, u64) {
    let handle = f.0 as u64 >> 4;
    (&BLOCK_SHAPES[vgpu_core::mix::slot_of(handle, BLOCK_SHAPES.len())], handle & (u64::MAX >> 24))
}

fn note_shape(f: CUfunction, block: [i32; 3]) {
    let threads = block.iter().fold(1u64, |all, n| all.saturating_mul(u64::from(n.unsigned_abs())));
    let (place, mark) = shape_of(f);
    place.store(mark << 24 | threads.min(THREADS_MASK), Relaxed);
}

fn threads_of(f: CUfunction) -> u32 {
    let (place, mark) = shape_of(f);
    let word = place.load(Relaxed);
    if word >> 24 == mark { u32::try_from(word & THREADS_MASK).unwrap_or(1) } else { 1 }
}

/// Stores the block shape, because the driver has no function to query it.
pub unsafe fn cuFuncSetBlockShape(
    real: cuda_fn::cuFuncSetBlockShape,
    f: CUfunction,
    x: i32,
    y: i32,
    z: i32,
) -> CUresult {
    let result = unsafe { real(f, x, y, z) };
    if result.ok() {
        note_shape(f, [x, y, z]);
    }
    result
}

/// The launches of CUDA 2, whose block shape was set on the function before.
fn launch_legacy(
    f: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
    real: &mut dyn FnMut() -> CUresult,
) -> CUresult {
    if !governor::is_active() {
        return real();
    }
    let grid = [width.unsigned_abs(), height.unsigned_abs(), 1];
    launch_through_gate(LaunchKind::Kernel(f, grid, [threads_of(f), 1, 1]), stream, false, real)
}

pub unsafe fn cuLaunch(real: cuda_fn::cuLaunch, f: CUfunction) -> CUresult {
    launch_legacy(f, 1, 1, CUstream::NULL, &mut || unsafe { real(f) })
}

pub unsafe fn cuLaunchGrid(real: cuda_fn::cuLaunchGrid, f: CUfunction, width: i32, height: i32) -> CUresult {
    launch_legacy(f, width, height, CUstream::NULL, &mut || unsafe { real(f, width, height) })
}

pub unsafe fn cuLaunchGridAsync(
    real: cuda_fn::cuLaunchGridAsync,
    f: CUfunction,
    width: i32,
    height: i32,
    stream: CUstream,
) -> CUresult {
    launch_legacy(f, width, height, stream, &mut || unsafe { real(f, width, height, stream) })
}

macro_rules! launch_graph {
    ($name:ident $per_thread:literal) => {
        /// A graph is charged as a whole, by its measured cost. Memory that its nodes allocate is reserved first.
        pub unsafe fn $name(real: cuda_fn::$name, exec: CUgraphExec, stream: CUstream) -> CUresult {
            let order = StreamId { stream, per_thread: $per_thread };
            let mut call = || launch_graph(exec, order, &mut || unsafe { real(exec, stream) });
            if governor::is_active() {
                launch_through_gate(LaunchKind::Graph(exec), stream, $per_thread, &mut call)
            } else {
                call()
            }
        }
    };
}

launch_graph!(cuGraphLaunch false);
launch_graph!(cuGraphLaunch_ptsz true);

/// Takes back a launch on a credit after the driver refused it.
#[cold]
pub fn undo_launch(launch: &CountedLaunch) {
    let Some((costs, chain, cost)) = launch.counted_by() else { return };
    let mut governors = table::all().filter_map(|device| device.governor.as_ref());
    if let Some(governor) = governors.find(|governor| governor.has_costs(costs)) {
        governor.refused_on_credit(chain, cost);
    }
}

/// The fast path of each kernel launch: passes on this thread's credit ([`crate::time::credit`]). `None`: use the slow
/// path.
pub mod short {
    use crate::time::credit::{self, CountedLaunch};
    use core::ffi::c_void;
    use shim_sys::cuda::{CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchConfig, CUstream};

    macro_rules! short {
        ($($kernel:ident $cooperative:ident $ex:ident $per_thread:literal)*) => {$(
            #[inline(always)]
            pub unsafe fn $kernel(
                f: CUfunction,
                gx: u32,
                gy: u32,
                gz: u32,
                bx: u32,
                by: u32,
                bz: u32,
                _shared: u32,
                stream: CUstream,
                _params: *mut *mut c_void,
                _extra: *mut *mut c_void,
            ) -> Option<CountedLaunch> {
                credit::launch_on_credit(f, [gx, gy, gz], [bx, by, bz], stream, $per_thread)
            }

            #[inline(always)]
            pub unsafe fn $cooperative(
                f: CUfunction,
                gx: u32,
                gy: u32,
                gz: u32,
                bx: u32,
                by: u32,
                bz: u32,
                _shared: u32,
                stream: CUstream,
                _params: *mut *mut c_void,
            ) -> Option<CountedLaunch> {
                credit::launch_on_credit(f, [gx, gy, gz], [bx, by, bz], stream, $per_thread)
            }

            #[inline(always)]
            pub unsafe fn $ex(
                config: *const CUlaunchConfig,
                f: CUfunction,
                _params: *mut *mut c_void,
                _extra: *mut *mut c_void,
            ) -> Option<CountedLaunch> {
                let c = unsafe { config.as_ref() }?;
                let (grid, block) = ([c.gridDimX, c.gridDimY, c.gridDimZ], [c.blockDimX, c.blockDimY, c.blockDimZ]);
                credit::launch_on_credit(f, grid, block, c.hStream, $per_thread)
            }
        )*};
    }

    short! {
        cuLaunchKernel cuLaunchCooperativeKernel cuLaunchKernelEx false
        cuLaunchKernel_ptsz cuLaunchCooperativeKernel_ptsz cuLaunchKernelEx_ptsz true
    }

    macro_rules! none {
        ($($name:ident($($ty:ty),*))*) => {$(
            #[inline(always)]
            pub unsafe fn $name($(_: $ty),*) -> Option<CountedLaunch> {
                None
            }
        )*};
    }

    // No fast path: the launches of CUDA 2, launches on several devices, and a setter.
    none! {
        cuLaunch(CUfunction)
        cuLaunchGrid(CUfunction, i32, i32)
        cuLaunchGridAsync(CUfunction, i32, i32, CUstream)
        cuFuncSetBlockShape(CUfunction, i32, i32, i32)
        cuLaunchCooperativeKernelMultiDevice(*mut CUDA_LAUNCH_PARAMS, u32, u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_a_block_is_its_functions_and_nobody_elses() {
        let function = |at: usize| CUfunction(core::ptr::without_provenance_mut(0x5555_0000_1000 + at * 0x110));
        assert_eq!(threads_of(function(0)), 1, "never told");
        for at in 0..1000 {
            let (x, y) = (1 + i32::try_from(at).unwrap() % 32, 8);
            note_shape(function(at), [x, y, 2]);
            assert_eq!(i32::try_from(threads_of(function(at))).unwrap(), x * y * 2);
        }
        // There are sixty-four entries. Each holds the last function stored in it; the others count as one thread.
        let kept = (0..1000).filter(|at| threads_of(function(*at)) != 1).count();
        assert!((32..=64).contains(&kept), "{kept}");
        note_shape(function(0), [i32::MIN, i32::MAX, i32::MAX]);
        assert_eq!(u64::from(threads_of(function(0))), THREADS_MASK);
    }
}
