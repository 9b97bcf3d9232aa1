//! The child process of `vgpu doctor`. Like an ordinary program, it loads the driver and looks up every hooked
//! function; if asked, it allocates too. It judges nothing and prints its observations as JSON.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_void};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use shim_sys::cuda::{CUcontext, CUresult, CUuuid};
use shim_sys::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t};
use shim_sys::table::{CUDA_HOOK_NAMES, CUDA_ROWS, CudaHook, NVML_HOOK_NAMES, RowAction, cuda_fn, nvml_fn};
use std::collections::BTreeSet;
use std::process::ExitCode;
use vgpu_cli::doctor::seen::{ChildReport, ControlCodes, LookupResults, SMALL_ALLOCATION_BYTES, SeenDevice};
use vgpu_core::units::uuid;

/// Looks everything up, and with `control` allocates.
pub fn run(control: bool) -> ExitCode {
    let seen = run_child(control);
    match serde_json::to_string(&seen) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn open(name: &str) -> Result<Library, String> {
    // SAFETY: the driver's own library, as every program opens it.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|why| why.to_string())
}

/// Looks up the function `name` with the signature from the table of hooks.
macro_rules! function {
    ($library:expr, $kind:ident :: $name:ident) => {
        // SAFETY: the library's function of this name has the table's signature.
        unsafe { $library.get::<$kind::$name>(stringify!($name).as_bytes()) }.ok().map(|symbol| *symbol)
    };
}

fn run_child(control: bool) -> ChildReport {
    let mut seen = ChildReport::default();
    let cuda = match open("libcuda.so.1") {
        Ok(cuda) => cuda,
        Err(why) => {
            seen.trouble = Some(why);
            return seen;
        }
    };
    let nvml = open("libnvidia-ml.so.1").ok();
    let map = MappedFiles::read();
    seen.library = map.files.iter().map(|(_, _, file)| file).find(|file| file.ends_with("/libvgpu.so")).cloned();
    seen.cuda = probe_lookups(&cuda, CUDA_HOOK_NAMES, &map);
    seen.cuda.open.extend(driver_lookups(&cuda, &map));
    seen.cuda.refused = refused_lookups();
    seen.nvml = nvml.as_ref().map(|nvml| probe_lookups(nvml, NVML_HOOK_NAMES, &map)).unwrap_or_default();
    let Some(init) = function!(cuda, cuda_fn::cuInit) else {
        seen.trouble = Some("libcuda.so.1 has no cuInit".to_owned());
        return seen;
    };
    // SAFETY: as its documentation says.
    seen.init = Some(unsafe { init(0) }.0);
    seen.nvml_init = nvml.as_ref().and_then(|nvml| function!(nvml, nvml_fn::nvmlInit_v2)).map(|init| {
        // SAFETY: as its documentation says.
        unsafe { init() }.0
    });
    if seen.init == Some(0) {
        let nvml = nvml.as_ref().filter(|_| seen.nvml_init == Some(0));
        seen.devices = probe_devices(&cuda, nvml, control).unwrap_or_else(|why| {
            seen.trouble = Some(why);
            Vec::new()
        });
    }
    seen
}

/// Address ranges of the files that are mapped in this process.
struct MappedFiles {
    files: Vec<(usize, usize, String)>,
}

impl MappedFiles {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let line = |line: &str| {
            let (addresses, rest) = line.split_once(' ')?;
            let (from, to) = addresses.split_once('-')?;
            let file = rest.get(rest.find('/')?..)?.trim_end_matches(" (deleted)").to_owned();
            Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, file))
        };
        Self { files: text.lines().filter_map(line).collect() }
    }

    fn is_ours(&self, address: *const c_void) -> bool {
        let at = address as usize;
        self.files.iter().any(|(from, to, file)| (*from..*to).contains(&at) && file.ends_with("/libvgpu.so"))
    }
}

fn find_symbol(library: &Library, name: &CStr) -> *const c_void {
    // SAFETY: the address only.
    unsafe { library.get::<*const c_void>(name.to_bytes_with_nul()) }
        .map_or(core::ptr::null(), |found| found.into_raw().cast_const())
}

fn probe_lookups(library: &Library, names: &[&CStr], map: &MappedFiles) -> LookupResults {
    let mut doors = LookupResults { rows: names.len(), ..LookupResults::default() };
    for name in names {
        let found = find_symbol(library, name);
        let name = name.to_string_lossy().into_owned();
        if found.is_null() {
            doors.lacking.push(name);
        } else if map.is_ours(found) {
            doors.hooked += 1;
        } else {
            doors.open.push(name);
        }
    }
    doors
}

/// Returns the base names of the functions that charge or launch.
fn guarded_bases() -> BTreeSet<&'static str> {
    let guarding = CUDA_ROWS[..CudaHook::COUNT]
        .iter()
        .filter(|row| !matches!(row.action, RowAction::Hook("entry" | "ask" | "view" | "sync" | "free" | "release")));
    guarding.map(|row| row.base_name()).collect()
}

/// Returns the functions that a preloaded interposer of `cuGetProcAddress_v2` refuses with 801. The driver answers 500
/// or a status for a name that it does not know.
fn refused_lookups() -> Vec<String> {
    let program = Library::this();
    let Some(ask) = function!(program, cuda_fn::cuGetProcAddress_v2) else { return Vec::new() };
    let is_refused = |base: &&str| {
        let Ok(name) = std::ffi::CString::new(*base) else { return false };
        let (mut found, mut status) = (core::ptr::null_mut(), 0);
        // SAFETY: a C string and two outputs that live.
        let code = unsafe { ask(name.as_ptr(), &raw mut found, i32::MAX, 0, &raw mut status) };
        code == CUresult::NOT_SUPPORTED
    };
    guarded_bases().into_iter().filter(is_refused).map(str::to_owned).collect()
}

/// Returns the charging and launching functions for which the driver's own lookup returns neither a hook nor a
/// function that the table leaves alone.
fn driver_lookups(cuda: &Library, map: &MappedFiles) -> Vec<String> {
    let Some(ask) = function!(cuda, cuda_fn::cuGetProcAddress_v2) else { return Vec::new() };
    let others = &CUDA_ROWS[CudaHook::COUNT..];
    let mut open = Vec::new();
    for base in guarded_bases() {
        let known: Vec<*const c_void> = others
            .iter()
            .filter(|row| row.base_name() == base)
            .filter_map(|row| std::ffi::CString::new(row.name).ok())
            .map(|name| find_symbol(cuda, &name))
            .collect();
        let Ok(name) = std::ffi::CString::new(base) else { continue };
        for flags in [0, 2] {
            let (mut found, mut status) = (core::ptr::null_mut(), 0);
            // SAFETY: a C string and two outputs that live.
            let code = unsafe { ask(name.as_ptr(), &raw mut found, i32::MAX, flags, &raw mut status) };
            if code == CUresult::SUCCESS
                && !found.is_null()
                && !map.is_ours(found)
                && !known.contains(&found.cast_const())
            {
                open.push(format!("{base} by cuGetProcAddress"));
                break;
            }
        }
    }
    open
}

fn probe_devices(cuda: &Library, nvml: Option<&Library>, control: bool) -> Result<Vec<SeenDevice>, String> {
    let missing = || "the driver lacks functions that every program needs".to_owned();
    let count = function!(cuda, cuda_fn::cuDeviceGetCount).ok_or_else(missing)?;
    let total = function!(cuda, cuda_fn::cuDeviceTotalMem_v2).ok_or_else(missing)?;
    let uuid_of = function!(cuda, cuda_fn::cuDeviceGetUuid_v2)
        .or_else(|| function!(cuda, cuda_fn::cuDeviceGetUuid))
        .ok_or_else(missing)?;
    let known = nvml.map(known_to_nvml).unwrap_or_default();
    let mut devices = Vec::new();
    let mut number = 0;
    // SAFETY: an output that lives.
    let code = unsafe { count(&raw mut number) };
    if code != CUresult::SUCCESS {
        return Err(format!("cuDeviceGetCount answers {}", code.0));
    }
    for ordinal in 0..number {
        let (mut bytes, mut id) = (0, CUuuid::default());
        // SAFETY: outputs that live.
        let codes = unsafe { [uuid_of(&raw mut id, ordinal).0, total(&raw mut bytes, ordinal).0] };
        if codes != [0, 0] {
            return Err(format!("device {ordinal}: the driver answers {codes:?}"));
        }
        let uuid = format!("GPU-{}", text_of(&id));
        let known = known.iter().find(|(other, ..)| uuid::is_same_device(other, &uuid));
        devices.push(SeenDevice {
            ordinal: ordinal.unsigned_abs(),
            uuid,
            index: known.map(|(_, index, _)| *index),
            total: bytes as u64,
            memory: known.map(|(.., memory)| *memory).filter(|memory| *memory > 0),
            control: if control { Some(allocate(cuda, ordinal, bytes as u64).ok_or_else(missing)?) } else { None },
        });
    }
    Ok(devices)
}

fn text_of(id: &CUuuid) -> String {
    let mut text = String::new();
    for (at, byte) in id.bytes.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", byte));
    }
    text
}

/// Returns UUID, number and size of each device that NVML, which is initialised, lists; a MIG instance has its device's
/// number, as limits do.
///
/// The size is the memory that programs can use, on which percentages are based: NVML's total less the reserved part.
fn known_to_nvml(nvml: &Library) -> Vec<(String, u32, u64)> {
    let functions = (
        function!(nvml, nvml_fn::nvmlDeviceGetCount_v2),
        function!(nvml, nvml_fn::nvmlDeviceGetHandleByIndex_v2),
        function!(nvml, nvml_fn::nvmlDeviceGetUUID),
        function!(nvml, nvml_fn::nvmlDeviceGetMemoryInfo),
    );
    let (Some(count), Some(handle), Some(uuid), Some(size)) = functions else { return Vec::new() };
    let without_reserved = function!(nvml, nvml_fn::nvmlDeviceGetMemoryInfo_v2);
    let most_instances = function!(nvml, nvml_fn::nvmlDeviceGetMaxMigDeviceCount);
    let instance = function!(nvml, nvml_fn::nvmlDeviceGetMigDeviceHandleByIndex);
    let describe = |device: nvmlDevice_t, index: u32| {
        let mut text: [c_char; 96] = [0; 96];
        // SAFETY: a handle that NVML gave; a buffer of the length given.
        let described = unsafe { uuid(device, text.as_mut_ptr(), 96) }.0 == 0;
        text[95] = 0;
        // SAFETY: ended by the line above.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let mut whole = nvmlMemory_v2_t { version: nvmlMemory_v2_t::VERSION, ..Default::default() };
        let mut memory = nvmlMemory_t::default();
        // SAFETY: a handle that NVML gave; outputs that live, the first with its version set.
        let bytes = unsafe {
            match &without_reserved {
                Some(size) if size(device, &raw mut whole).0 == 0 => whole.total.saturating_sub(whole.reserved),
                _ if size(device, &raw mut memory).0 == 0 => memory.total,
                _ => 0,
            }
        };
        described.then_some((text, index, bytes))
    };
    let (mut all, mut number) = (Vec::new(), 0);
    // SAFETY: here and below outputs that live, and handles that NVML gave.
    if unsafe { count(&raw mut number) }.0 != 0 {
        return Vec::new();
    }
    for index in 0..number {
        let mut device = nvmlDevice_t(core::ptr::null_mut());
        // SAFETY: as above.
        if unsafe { handle(index, &raw mut device) }.0 != 0 {
            continue;
        }
        all.extend(describe(device, index));
        let (Some(most), Some(instance)) = (&most_instances, &instance) else { continue };
        let mut instances = 0;
        // SAFETY: as above.
        if unsafe { most(device, &raw mut instances) }.0 != 0 {
            continue;
        }
        for at in 0..instances {
            let mut part = nvmlDevice_t(core::ptr::null_mut());
            // SAFETY: as above.
            if unsafe { instance(device, at, &raw mut part) }.0 == 0 {
                all.extend(describe(part, index));
            }
        }
    }
    all
}

/// Makes a small allocation and one larger than the device's memory, and frees both at once.
fn allocate(cuda: &Library, ordinal: i32, total: u64) -> Option<ControlCodes> {
    let retain = function!(cuda, cuda_fn::cuDevicePrimaryCtxRetain)?;
    let release = function!(cuda, cuda_fn::cuDevicePrimaryCtxRelease_v2)?;
    let current = function!(cuda, cuda_fn::cuCtxSetCurrent)?;
    let info = function!(cuda, cuda_fn::cuMemGetInfo_v2)?;
    let alloc = function!(cuda, cuda_fn::cuMemAlloc_v2)?;
    let free = function!(cuda, cuda_fn::cuMemFree_v2)?;
    let mut control = ControlCodes::default();
    // SAFETY: outputs that live, a context that is retained until the end, pointers that were just allocated.
    unsafe {
        let mut context = CUcontext::NULL;
        control.context = retain(&raw mut context, ordinal).0;
        if control.context != 0 {
            return Some(control);
        }
        let (mut left, mut all) = (0, 0);
        if current(context).0 == 0 && info(&raw mut left, &raw mut all).0 == 0 {
            control.free = left as u64;
            let code = |bytes: u64| {
                let mut pointer = 0;
                let result = alloc(&raw mut pointer, usize::try_from(bytes).unwrap_or(usize::MAX));
                if result == CUresult::SUCCESS {
                    let _ = free(pointer);
                }
                result.0
            };
            control.above = code(total.saturating_add(SMALL_ALLOCATION_BYTES));
            control.below =
                if control.free >= SMALL_ALLOCATION_BYTES { Some(code(SMALL_ALLOCATION_BYTES)) } else { None };
        } else {
            control.context = 1;
        }
        let _ = release(ordinal);
    }
    Some(control)
}
