//! Driver functions that this library itself calls, hooked or not: `own::cuCtxGetDevice()` is the typed function, or
//! `None` where the driver lacks it.

use super::library::{CUDA, Library, NVML};
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use shim_sys::table::{cuda_fn, nvml_fn};

/// Not inlined, to keep the path of known functions short.
#[cold]
#[inline(never)]
fn find<const ROWS: usize, const SLOTS: usize, const BYTES: usize>(
    library: &Library<ROWS, SLOTS, BYTES>,
    name: &CStr,
    known: &AtomicUsize,
) -> usize {
    let at = library.function_named(name) as usize;
    known.store(at, Relaxed);
    at
}

macro_rules! own {
    ($library:ident $fns:ident { $($name:ident)* }) => {$(
        #[doc = concat!("The driver's `", stringify!($name), "`. Cost: one load after the first time.")]
        #[allow(non_snake_case)]
        #[inline]
        pub fn $name() -> Option<$fns::$name> {
            static AT: AtomicUsize = AtomicUsize::new(0);
            let mut at = AT.load(Relaxed);
            if at == 0 {
                let name = const {
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name holds no zero byte"),
                    }
                };
                at = find(&$library, name, &AT);
            }
            // SAFETY: the address is 0 (None) or the driver's function of this name, whose signature is the
            // table's.
            unsafe { core::mem::transmute::<usize, Option<$fns::$name>>(at) }
        }
    )*};
}

own!(CUDA cuda_fn {
    cuCtxGetCurrent cuCtxGetDevice cuCtxDestroy_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2
    cuCtxFromGreenCtx cuGreenCtxDestroy
    cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuStreamGetCtx
    cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDevicePrimaryCtxGetState
    cuCtxGetLimit cuModuleUnload cuLibraryUnload
    cuDeviceGetMemPool cuDeviceGetDefaultMemPool cuMemPoolGetAttribute cuMemPoolTrimTo
    cuMemFreeAsync cuMemFreeAsync_ptsz cuMemGetAddressRange_v2
    cuMemGetAllocationPropertiesFromHandle cuPointerGetAttribute cuIpcCloseMemHandle
    cuDeviceGetGraphMemAttribute cuDeviceGraphMemTrim
    cuGraphGetNodes cuGraphNodeGetType cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams
    cuGraphChildGraphNodeGetGraph
    cuMemGetInfo_v2 cuMemGetAllocationGranularity cuMemFree_v2
    cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventRecord_ptsz cuEventQuery cuEventElapsedTime
    cuStreamQuery cuStreamQuery_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz cuThreadExchangeStreamCaptureMode
});
own!(NVML nvml_fn {
    nvmlInit_v2 nvmlShutdown nvmlDeviceGetCount_v2 nvmlDeviceGetHandleByIndex_v2
    nvmlDeviceGetUUID nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetComputeRunningProcesses_v3
    nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetProcessUtilization
});
