//! Stream-ordered memory: the pool is charged for its size, not each allocation.
//!
//! Not hooked: the choice of the current pool and a pool's numbers, which are read from the driver when needed; access
//! rights, which take no memory.
#![allow(non_snake_case, clippy::missing_safety_doc)]
// SAFETY of every block in this file: the program's own arguments for the function it called, passed on unchanged;
// outputs are read after success only.
#![allow(clippy::undocumented_unsafe_blocks)]

use super::charge::free_address;
use crate::device::current;
use crate::device::table;
use crate::driver::calls::free_in_order;
use crate::driver::library::DriverCall;
use crate::driver::streams::StreamId;
use crate::member::enforce;
use crate::memory::pools::{self, StreamOrderedRequest};
use crate::process::mode::Denied;
use core::ffi::c_void;
use shim_sys::cuda::*;
use shim_sys::table::cuda_fn;
use vgpu_core::memory::charging;

/// The pool attribute for the bytes that a pool keeps.
const THRESHOLD_ATTRIBUTE: u32 = 4;

fn allocate(
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    per_thread: bool,
    bytes: usize,
    dptr: *mut CUdeviceptr,
    real: DriverCall<'_>,
) -> CUresult {
    match enforce::is_enforced() {
        Ok(false) => return real(),
        Err(Denied) => return CUresult::NOT_PERMITTED,
        Ok(true) => {}
    }
    let home = || current::of_stream(stream).map(|(_, device)| device);
    let entry = match pool {
        Some(pool) => pools::of_handle(pool.0 as usize, &home),
        None => pools::usual_pool().or_else(|| home().and_then(pools::current_pool)),
    };
    // Zero bytes, or more than any device has, is the driver's error to report.
    let charge = charging::charge_linear(bytes as u64).filter(|bytes| (1..1 << 62).contains(bytes));
    let (Some(entry), Some(charge)) = (entry, charge) else { return real() };
    let order = StreamId { stream, per_thread };
    // In a capturing stream the allocation becomes a graph node, which takes no memory before its launch.
    if dptr.is_null() || order.is_captured() {
        return real();
    }
    pools::allocate(StreamOrderedRequest {
        entry: &entry,
        named: pool.is_some(),
        bytes: charge,
        order,
        real,
        address: &|| unsafe { *dptr },
        undo: &|address| free_in_order(address, order),
    })
}

macro_rules! async_allocation {
    ($name:ident $per_thread:literal) => {
        pub unsafe fn $name(real: cuda_fn::$name, dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
            allocate(None, stream, $per_thread, bytes, dptr, &mut move || unsafe { real(dptr, bytes, stream) })
        }
    };
}

async_allocation!(cuMemAllocAsync false);
async_allocation!(cuMemAllocAsync_ptsz true);

macro_rules! pool_allocation {
    ($name:ident $per_thread:literal) => {
        pub unsafe fn $name(
            real: cuda_fn::$name,
            dptr: *mut CUdeviceptr,
            bytes: usize,
            pool: CUmemoryPool,
            stream: CUstream,
        ) -> CUresult {
            allocate(Some(pool), stream, $per_thread, bytes, dptr, &mut move || unsafe {
                real(dptr, bytes, pool, stream)
            })
        }
    };
}

pool_allocation!(cuMemAllocFromPoolAsync false);
pool_allocation!(cuMemAllocFromPoolAsync_ptsz true);

pub unsafe fn cuMemFreeAsync(real: cuda_fn::cuMemFreeAsync, dptr: CUdeviceptr, stream: CUstream) -> CUresult {
    free_address(dptr, Some(StreamId { stream, per_thread: false }), &mut move || unsafe { real(dptr, stream) })
}

pub unsafe fn cuMemFreeAsync_ptsz(real: cuda_fn::cuMemFreeAsync_ptsz, dptr: CUdeviceptr, stream: CUstream) -> CUresult {
    free_address(dptr, Some(StreamId { stream, per_thread: true }), &mut move || unsafe { real(dptr, stream) })
}

/// Allocation type of pools whose pages migrate between host and devices, like managed memory.
const MANAGED_POOL: u32 = 2;

/// Whether a pool can take device memory, and on which device if it names one.
fn lives_on(props: &CUmemPoolProps) -> Option<Option<CUdevice>> {
    match props.location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => Some(Some(props.location.id)),
        // Managed pages may migrate to a device all at once at any time, wherever they are now.
        _ if props.allocType == MANAGED_POOL => Some(None),
        _ => None,
    }
}

/// Records the new pool's device. A pool takes no memory before its first allocation.
pub unsafe fn cuMemPoolCreate(
    real: cuda_fn::cuMemPoolCreate,
    pool: *mut CUmemoryPool,
    props: *const CUmemPoolProps,
) -> CUresult {
    let limited = match enforce::is_enforced() {
        Ok(limited) => limited,
        Err(Denied) => return CUresult::NOT_PERMITTED,
    };
    let result = unsafe { real(pool, props) };
    if result.ok() && limited {
        let props = unsafe { &*props };
        let max = if props.maxSize == 0 { u64::MAX } else { props.maxSize as u64 };
        let current = || current::current().map(|(_, device)| device).or_else(|| table::all().next());
        let on_device = lives_on(props).and_then(|named| named.map_or_else(current, table::by_cuda));
        pools::note_created(unsafe { *pool }.0 as usize, on_device, max);
    }
    result
}

pub unsafe fn cuMemPoolDestroy(real: cuda_fn::cuMemPoolDestroy, pool: CUmemoryPool) -> CUresult {
    if enforce::is_enforced() != Ok(true) {
        return unsafe { real(pool) };
    }
    pools::destroy_pool(pool, &mut || unsafe { real(pool) })
}

pub unsafe fn cuMemPoolTrimTo(real: cuda_fn::cuMemPoolTrimTo, pool: CUmemoryPool, keep: usize) -> CUresult {
    let _announced = pools::begin_shrinking();
    let result = unsafe { real(pool, keep) };
    if result.ok() && enforce::is_enforced() == Ok(true) {
        pools::remeasure_pool(pool, None);
    }
    result
}

/// A lower release threshold may take effect at once.
pub unsafe fn cuMemPoolSetAttribute(
    real: cuda_fn::cuMemPoolSetAttribute,
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> CUresult {
    let _announced = if attribute == THRESHOLD_ATTRIBUTE { pools::begin_shrinking() } else { None };
    let result = unsafe { real(pool, attribute, value) };
    if result.ok() && attribute == THRESHOLD_ATTRIBUTE && enforce::is_enforced() == Ok(true) {
        // The driver has just read the value, so it exists and is 64 bits wide.
        pools::remeasure_pool(pool, Some(unsafe { value.cast::<u64>().read_unaligned() }));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_managed_memory_is_charged_wherever_it_says_it_lives() {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut props: CUmemPoolProps = unsafe { core::mem::zeroed() };
        let mut of = |kind: u32, location: u32, id: i32| {
            props.allocType = kind;
            props.location = CUmemLocation { kind: location, id };
            lives_on(&props)
        };
        assert_eq!(of(1, CU_MEM_LOCATION_TYPE_DEVICE, 3), Some(Some(3)));
        assert_eq!(of(1, 2, 0), None, "the host's own");
        assert_eq!(of(MANAGED_POOL, CU_MEM_LOCATION_TYPE_DEVICE, 3), Some(Some(3)));
        for elsewhere in [0, 2, 3] {
            assert_eq!(of(MANAGED_POOL, elsewhere, 0), Some(None));
        }
    }
}
