//! Graph memory of a device: its amounts, and the return of unused memory.

use super::INVALID_GRAPH_CALL;
use crate::entry_points::{CallFrame, write_output};
use crate::errors::CallResult;
use core::ffi::c_void;
use shim_sys::cuda::*;

pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    d: &CallFrame,
    dev: CUdevice,
    attribute: u32,
    value: *mut c_void,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.device_of_ordinal(dev)?;
    let n = d.graph_tables()?.memory.pool_numbers(dev);
    let bytes = match attribute {
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => n.used,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => n.used_high,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => n.reserved,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => n.reserved_high,
        _ => return Err(INVALID_GRAPH_CALL),
    };
    unsafe { write_output(value.cast(), bytes) }
}

/// Only the highest values can be written, and only with zero, which resets them.
pub(crate) unsafe fn cuDeviceSetGraphMemAttribute(
    d: &CallFrame,
    dev: CUdevice,
    attribute: u32,
    value: *mut c_void,
) -> CallResult {
    let driver = d.initialised_driver()?;
    driver.device_of_ordinal(dev)?;
    let high = [CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH];
    if !high.contains(&attribute) || value.is_null() || unsafe { value.cast::<u64>().read_unaligned() } != 0 {
        return Err(INVALID_GRAPH_CALL);
    }
    d.graph_tables()?.memory.reset_high(dev, attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
    Ok(())
}

pub(crate) unsafe fn cuDeviceGraphMemTrim(d: &CallFrame, dev: CUdevice) -> CallResult {
    let driver = d.initialised_driver()?;
    d.graph_tables()?.memory.trim_device(driver, dev)
}
