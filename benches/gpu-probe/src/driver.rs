//! The CUDA driver library, loaded at run time: typed functions by name, and result codes with their names.
//!
//! No policy and no hooks here; [`crate::gpu`] is the safe layer above. A function that the library does not export
//! causes an error only when it is called: the call then returns [`MISSING_FUNCTION`].

use std::ffi::{CStr, c_char, c_void};
use std::fmt;

use libloading::Library;

/// Code of a call whose function the library does not export. The driver's own codes are never negative.
pub const MISSING_FUNCTION: i32 = -1;

/// A handle of the driver (context, stream, event, module, function, graph).
pub type DriverHandle = *mut c_void;

/// Result of a driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct DriverCode {
    /// Exported name of the called function.
    pub call: &'static str,
    /// The CUresult, or [`MISSING_FUNCTION`].
    pub value: i32,
}

impl DriverCode {
    /// Turns any code but success into a [`CallFailure`].
    pub fn ok(self) -> Result<(), CallFailure> {
        if self.value == 0 { Ok(()) } else { Err(CallFailure(self)) }
    }
}

/// A call that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFailure(pub DriverCode);

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DriverCode { call, value } = self.0;
        match (value, code_name(value)) {
            (MISSING_FUNCTION, _) => write!(f, "{call} is not exported by this driver"),
            (_, Some(name)) => write!(f, "{call} answered {value} ({name})"),
            _ => write!(f, "{call} answered {value}"),
        }
    }
}

impl From<CallFailure> for String {
    fn from(failure: CallFailure) -> Self {
        failure.to_string()
    }
}

/// Names of the codes that occur most in reports. The number is always printed next to the name.
pub fn code_name(code: i32) -> Option<&'static str> {
    Some(match code {
        0 => "success",
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialized",
        100 => "no device",
        101 => "invalid device",
        201 => "invalid context",
        209 => "no binary for this device",
        218 => "invalid PTX",
        222 => "unsupported PTX version",
        400 => "invalid handle",
        500 => "not found",
        600 => "not ready",
        700 => "illegal address",
        719 => "launch failed",
        800 => "not permitted",
        801 => "not supported",
        802 => "system not ready",
        803 => "driver and library differ",
        900 => "stream capture unsupported",
        901 => "stream capture invalidated",
        902 => "stream capture merge",
        903 => "stream capture unmatched",
        904 => "stream capture unjoined",
        905 => "stream capture isolation",
        906 => "stream capture implicit",
        907 => "captured event",
        908 => "stream capture wrong thread",
        999 => "unknown",
        _ => return None,
    })
}

/// Properties of an allocation of the VMM interface: `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct AllocationProp {
    /// Kind of memory; 1 is pinned memory.
    pub kind: i32,
    /// Handle types that may be exported; 0 is none.
    pub handle_types: i32,
    /// Kind of location; 1 is a device.
    pub location_kind: i32,
    /// CUDA ordinal of that device.
    pub location_id: i32,
    /// Security attributes, used on Windows only.
    pub security: u64,
    /// Compression and usage; 0 is none.
    pub flags: [u8; 8],
}

macro_rules! driver {
    ($( $field:ident = $symbol:literal ( $($arg:ident : $ty:ty),* ); )*) => {
        /// The driver library with the functions that the probe calls.
        pub struct ProbedDriver {
            library: Library,
            $( $field: Option<unsafe extern "C" fn($($ty),*) -> i32>, )*
        }

        impl ProbedDriver {
            /// Loads `libcuda.so.1` as any program does.
            ///
            /// # Errors
            /// The loader's error message.
            pub fn load() -> Result<Self, String> {
                // SAFETY: the driver library is made to be loaded this way; its initialisers have no precondition.
                let library = unsafe { Library::new("libcuda.so.1") }.map_err(|e| format!("libcuda.so.1: {e}"))?;
                $(
                    // SAFETY: the type is the one that the driver's interface gives this exported name.
                    let $field = unsafe { library.get::<unsafe extern "C" fn($($ty),*) -> i32>(concat!($symbol, "\0").as_bytes()) }
                        .ok().map(|symbol| *symbol);
                )*
                Ok(Self { library, $( $field, )* })
            }

            $(
                #[doc = concat!("Calls `", $symbol, "`.")]
                ///
                /// # Safety
                /// The arguments must be what the driver's interface asks for; pointers valid for the call.
                #[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
                pub unsafe fn $field(&self, $($arg: $ty),*) -> DriverCode {
                    let value = match self.$field {
                        // SAFETY: the caller obeys the interface's rules; the type is that of the exported function.
                        Some(call) => unsafe { call($($arg),*) },
                        None => MISSING_FUNCTION,
                    };
                    DriverCode { call: $symbol, value }
                }
            )*
        }
    };
}

driver! {
    init = "cuInit"(flags: u32);
    driver_version = "cuDriverGetVersion"(version: *mut i32);
    device_count = "cuDeviceGetCount"(count: *mut i32);
    device_get = "cuDeviceGet"(device: *mut i32, ordinal: i32);
    device_name = "cuDeviceGetName"(name: *mut c_char, len: i32, device: i32);
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: i32);
    device_total = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: i32);
    device_attribute = "cuDeviceGetAttribute"(value: *mut i32, attribute: i32, device: i32);
    device_pci = "cuDeviceGetPCIBusId"(text: *mut c_char, len: i32, device: i32);
    primary_retain = "cuDevicePrimaryCtxRetain"(context: *mut DriverHandle, device: i32);
    primary_release = "cuDevicePrimaryCtxRelease_v2"(device: i32);
    context_create = "cuCtxCreate_v2"(context: *mut DriverHandle, flags: u32, device: i32);
    context_destroy = "cuCtxDestroy_v2"(context: DriverHandle);
    context_set = "cuCtxSetCurrent"(context: DriverHandle);
    context_get = "cuCtxGetCurrent"(context: *mut DriverHandle);
    context_device = "cuCtxGetDevice"(device: *mut i32);
    context_sync = "cuCtxSynchronize"();
    mem_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    mem_alloc = "cuMemAlloc_v2"(pointer: *mut u64, bytes: usize);
    mem_free = "cuMemFree_v2"(pointer: u64);
    mem_alloc_async = "cuMemAllocAsync"(pointer: *mut u64, bytes: usize, stream: DriverHandle);
    mem_free_async = "cuMemFreeAsync"(pointer: u64, stream: DriverHandle);
    mem_granularity = "cuMemGetAllocationGranularity"(bytes: *mut usize, prop: *const AllocationProp, option: i32);
    mem_create = "cuMemCreate"(handle: *mut u64, bytes: usize, prop: *const AllocationProp, flags: u64);
    mem_release = "cuMemRelease"(handle: u64);
    memset8 = "cuMemsetD8_v2"(pointer: u64, value: u8, count: usize);
    memset8_async = "cuMemsetD8Async"(pointer: u64, value: u8, count: usize, stream: DriverHandle);
    copy_to_host = "cuMemcpyDtoH_v2"(host: *mut c_void, device: u64, bytes: usize);
    copy_to_device = "cuMemcpyHtoD_v2"(device: u64, host: *const c_void, bytes: usize);
    pointer_attribute = "cuPointerGetAttribute"(data: *mut c_void, attribute: i32, pointer: u64);
    module_load = "cuModuleLoadData"(module: *mut DriverHandle, image: *const c_void);
    module_unload = "cuModuleUnload"(module: DriverHandle);
    module_function = "cuModuleGetFunction"(function: *mut DriverHandle, module: DriverHandle, name: *const c_char);
    launch = "cuLaunchKernel"(function: DriverHandle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
        stream: DriverHandle, params: *mut *mut c_void, extra: *mut *mut c_void);
    stream_create = "cuStreamCreate"(stream: *mut DriverHandle, flags: u32);
    stream_destroy = "cuStreamDestroy_v2"(stream: DriverHandle);
    stream_query = "cuStreamQuery"(stream: DriverHandle);
    stream_sync = "cuStreamSynchronize"(stream: DriverHandle);
    stream_wait_event = "cuStreamWaitEvent"(stream: DriverHandle, event: DriverHandle, flags: u32);
    capture_begin = "cuStreamBeginCapture_v2"(stream: DriverHandle, mode: i32);
    capture_end = "cuStreamEndCapture"(stream: DriverHandle, graph: *mut DriverHandle);
    capture_status = "cuStreamIsCapturing"(stream: DriverHandle, status: *mut i32);
    capture_exchange = "cuThreadExchangeStreamCaptureMode"(mode: *mut i32);
    graph_destroy = "cuGraphDestroy"(graph: DriverHandle);
    event_create = "cuEventCreate"(event: *mut DriverHandle, flags: u32);
    event_destroy = "cuEventDestroy_v2"(event: DriverHandle);
    event_record = "cuEventRecord"(event: DriverHandle, stream: DriverHandle);
    event_query = "cuEventQuery"(event: DriverHandle);
    event_sync = "cuEventSynchronize"(event: DriverHandle);
    event_elapsed = "cuEventElapsedTime"(ms: *mut f32, start: DriverHandle, end: DriverHandle);
    proc_address = "cuGetProcAddress"(symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64);
    proc_address_v2 = "cuGetProcAddress_v2"(symbol: *const c_char, function: *mut *mut c_void, version: i32, flags: u64,
        status: *mut i32);
}

impl ProbedDriver {
    /// The address of an exported name, if the library has it.
    pub fn export_address(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the symbol is only used as an address, never called or read through.
        let symbol = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) }.ok()?;
        Some((*symbol).addr())
    }

    /// File of the library, and the address at which it is mapped.
    pub fn library_file(&self) -> Result<(String, usize), String> {
        let address = self.export_address(c"cuInit").ok_or("cuInit is not exported")?;
        file_at_address(address).ok_or_else(|| "the loader does not know the library's file".to_owned())
    }
}

/// The file that holds `address`, and its load address.
pub fn file_at_address(address: usize) -> Option<(String, usize)> {
    // SAFETY: Dl_info is plain data; dladdr fills it for any address and reads nothing through it.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address and reads nothing through it; `info` outlives the call.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance(address), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so dli_fname is the loader's own terminated string.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some((name.to_string_lossy().into_owned(), info.dli_fbase.addr()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_call_code_and_meaning() {
        assert_eq!(
            CallFailure(DriverCode { call: "cuMemAlloc_v2", value: 2 }).to_string(),
            "cuMemAlloc_v2 answered 2 (out of memory)"
        );
        assert_eq!(CallFailure(DriverCode { call: "cuFoo", value: 12345 }).to_string(), "cuFoo answered 12345");
        assert!(
            CallFailure(DriverCode { call: "cuFoo", value: MISSING_FUNCTION }).to_string().contains("not exported")
        );
    }

    #[test]
    fn the_allocation_property_has_the_interface_s_layout() {
        assert_eq!(size_of::<AllocationProp>(), 32);
        assert_eq!(std::mem::offset_of!(AllocationProp, location_id), 12);
        assert_eq!(std::mem::offset_of!(AllocationProp, flags), 24);
    }

    #[test]
    fn an_address_of_libc_is_located_in_a_file() {
        let (file, base) = file_at_address((libc::getpid as *const ()).addr()).unwrap();
        assert!(!file.is_empty());
        assert!(base > 0);
    }
}
