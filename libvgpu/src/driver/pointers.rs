//! Questions to the driver about addresses.

use super::own;
use super::streams::without_captures;
use shim_sys::table::cuda_fn;

/// Whether the driver knows an address as device memory.
pub fn is_device(address: u64) -> bool {
    const POINTER_MEMORY_TYPE: u32 = 2;
    const DEVICE_MEMORY: u32 = 2;
    let mut kind = 0u32;
    let ask = |ask: cuda_fn::cuPointerGetAttribute| {
        // SAFETY: a pointer to a local; an unknown address is an error.
        without_captures(|| unsafe { ask((&raw mut kind).cast(), POINTER_MEMORY_TYPE, address) }).ok()
    };
    own::cuPointerGetAttribute().is_some_and(ask) && kind == DEVICE_MEMORY
}
