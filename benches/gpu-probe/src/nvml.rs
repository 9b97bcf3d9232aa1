//! NVML, loaded at run time: the few numbers that the probe compares with the driver's.

use std::ffi::{CString, c_char, c_void};

use libloading::Library;
use serde_json::{Value, json};

type NvmlHandle = *mut c_void;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`; `version` contains the size and the number 2.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct NvmlMemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const MEMORY_V2: u32 = 0x0200_0028;

/// `nvmlProcessInfo_t` of the functions with `_v3`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct NvmlProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// NVML's value for a number that it does not have.
const NOT_AVAILABLE: u64 = u64::MAX;

/// NVML with one device, chosen by its PCI address.
pub struct ProbedNvml {
    library: Library,
    device: NvmlHandle,
}

impl ProbedNvml {
    /// Loads and initialises NVML and finds the device.
    pub fn open(pci: &str) -> Result<Self, String> {
        // SAFETY: NVML is made to be loaded this way.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.map_err(|e| format!("libnvidia-ml.so.1: {e}"))?;
        let mut nvml = Self { library, device: std::ptr::null_mut() };
        type Init = unsafe extern "C" fn() -> i32;
        let init: Init = nvml.find_function("nvmlInit_v2")?;
        // SAFETY: the function has no argument.
        check_code("nvmlInit_v2", unsafe { init() })?;
        type ByPci = unsafe extern "C" fn(*const c_char, *mut NvmlHandle) -> i32;
        let by_pci: ByPci = nvml.find_function("nvmlDeviceGetHandleByPciBusId_v2")?;
        let text = CString::new(pci).map_err(|e| e.to_string())?;
        // SAFETY: a terminated string and a pointer to the handle, both alive during the call.
        check_code("nvmlDeviceGetHandleByPciBusId_v2", unsafe { by_pci(text.as_ptr(), &raw mut nvml.device) })?;
        Ok(nvml)
    }

    fn find_function<T: Copy>(&self, name: &str) -> Result<T, String> {
        let terminated = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the callers below pass the type that NVML's interface gives the name.
        let symbol = unsafe { self.library.get::<T>(terminated.as_bytes_with_nul()) };
        symbol.map(|symbol| *symbol).map_err(|e| format!("{name}: {e}"))
    }

    /// Driver version as NVML prints it.
    pub fn driver_version(&self) -> Result<String, String> {
        type Version = unsafe extern "C" fn(*mut c_char, u32) -> i32;
        let call: Version = self.find_function("nvmlSystemGetDriverVersion")?;
        let mut text = [0_u8; 96];
        // SAFETY: the buffer has the stated length and outlives the call.
        check_code("nvmlSystemGetDriverVersion", unsafe { call(text.as_mut_ptr().cast(), 96) })?;
        Ok(until_nul(&text))
    }

    /// Memory by the first and by the second version of the call.
    pub fn read_memory(&self) -> Result<Value, String> {
        type V1 = unsafe extern "C" fn(NvmlHandle, *mut NvmlMemory) -> i32;
        type V2 = unsafe extern "C" fn(NvmlHandle, *mut NvmlMemoryV2) -> i32;
        let v1: V1 = self.find_function("nvmlDeviceGetMemoryInfo")?;
        let mut memory = NvmlMemory::default();
        // SAFETY: a handle of this library and a structure of the interface's layout.
        check_code("nvmlDeviceGetMemoryInfo", unsafe { v1(self.device, &raw mut memory) })?;
        let mut value = json!({ "v1": { "total": memory.total, "free": memory.free, "used": memory.used } });
        let mut second = NvmlMemoryV2 { version: MEMORY_V2, ..NvmlMemoryV2::default() };
        let answer = self.find_function::<V2>("nvmlDeviceGetMemoryInfo_v2").and_then(|v2| {
            // SAFETY: a handle of this library and a structure of the interface's layout; `version` states which one.
            check_code("nvmlDeviceGetMemoryInfo_v2", unsafe { v2(self.device, &raw mut second) })
        });
        value["v2"] = match answer {
            Ok(()) => json!({ "total": second.total, "reserved": second.reserved, "free": second.free,
                "used": second.used }),
            Err(error) => json!({ "error": error }),
        };
        Ok(value)
    }

    /// Bytes in use on the whole device.
    pub fn used_bytes(&self) -> Result<u64, String> {
        self.read_memory()?["v1"]["used"].as_u64().ok_or_else(|| "no number".to_owned())
    }

    /// Compute processes on the device: pid and bytes (`None` where NVML has no number).
    pub fn read_processes(&self) -> Result<Vec<(u32, Option<u64>)>, String> {
        type Processes = unsafe extern "C" fn(NvmlHandle, *mut u32, *mut NvmlProcessInfo) -> i32;
        let call: Processes = self.find_function("nvmlDeviceGetComputeRunningProcesses_v3")?;
        let mut infos = vec![NvmlProcessInfo::default(); 256];
        let mut count = 256_u32;
        // SAFETY: `count` says how many entries `infos` has; NVML writes no more.
        check_code("nvmlDeviceGetComputeRunningProcesses_v3", unsafe {
            call(self.device, &raw mut count, infos.as_mut_ptr())
        })?;
        infos.truncate(usize::try_from(count).unwrap_or(0).min(256));
        Ok(infos.iter().map(|info| (info.pid, (info.used != NOT_AVAILABLE).then_some(info.used))).collect())
    }

    /// Settings that influence the measurements: compute mode, persistence mode, MIG.
    pub fn read_modes(&self) -> Value {
        type One = unsafe extern "C" fn(NvmlHandle, *mut u32) -> i32;
        type Two = unsafe extern "C" fn(NvmlHandle, *mut u32, *mut u32) -> i32;
        let one = |name: &str| {
            let mut value = 0_u32;
            // SAFETY: a handle of this library and a pointer to a local number.
            let answer = self
                .find_function::<One>(name)
                .and_then(|f| check_code(name, unsafe { f(self.device, &raw mut value) }));
            answer.map_or_else(|error| json!({ "error": error }), |()| json!(value))
        };
        let (mut now, mut pending) = (0_u32, 0_u32);
        let mig = self.find_function::<Two>("nvmlDeviceGetMigMode").and_then(|f| {
            // SAFETY: a handle of this library and pointers to local numbers.
            check_code("nvmlDeviceGetMigMode", unsafe { f(self.device, &raw mut now, &raw mut pending) })
        });
        json!({
            "compute_mode": one("nvmlDeviceGetComputeMode"),
            "persistence_mode": one("nvmlDeviceGetPersistenceMode"),
            "mig_mode": mig.map_or_else(|error| json!({ "error": error }), |()| json!(now)),
        })
    }
}

fn check_code(name: &str, code: i32) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{name} answered {code}")) }
}

/// The text up to its terminating zero.
pub fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_nvml_s_layout() {
        assert_eq!(size_of::<NvmlMemory>(), 24);
        assert_eq!(size_of::<NvmlMemoryV2>(), 40);
        assert_eq!(usize::try_from(MEMORY_V2 & 0x00ff_ffff).unwrap(), size_of::<NvmlMemoryV2>());
        assert_eq!(size_of::<NvmlProcessInfo>(), 24);
    }

    #[test]
    fn a_text_without_terminator_is_taken_whole() {
        assert_eq!(until_nul(b"abc\0def"), "abc");
        assert_eq!(until_nul(b"abc"), "abc");
    }
}
