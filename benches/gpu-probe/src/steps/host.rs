//! Facts about the host that a reader needs to judge the numbers. No driver call.

use std::ffi::CStr;

use serde_json::{Map, Value, json};

use super::StepOutput;
use crate::args::Options;

/// Variables that influence the driver or a preloaded library.
const VARIABLE_PREFIXES: &[&str] = &["CUDA_", "NVIDIA_", "VGPU_", "LD_PRELOAD", "LD_LIBRARY_PATH"];

pub fn run(_: &Options, sink: &mut StepOutput) -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
    sink.run_part("kernel", || read("/proc/version").map(Value::from).map_err(|e| e.to_string()));
    sink.run_part("processor", || {
        let text = read("/proc/cpuinfo").map_err(|e| e.to_string())?;
        let model = text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(':').nth(1));
        Ok(json!({
            "model": model.map(str::trim),
            "usable": std::thread::available_parallelism().map(usize::from).ok(),
        }))
    });
    // SAFETY: the function returns a static string of the C library.
    let libc_version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    sink.put_value("libc", json!(libc_version.to_string_lossy()));
    let environment: Map<String, Value> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| (name, Value::from(value)))
        .collect();
    sink.put_value("environment", Value::Object(environment));
    // Absent where the kernel module's files are hidden, as in some sandboxes.
    sink.put_value("kernel_module", json!(read("/proc/driver/nvidia/version").ok()));
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    sink.put_value("libvgpu_mapped", json!(maps.contains("/libvgpu.so")));
    let mps = std::env::var("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|_| "/tmp/nvidia-mps".to_owned());
    sink.put_value("mps_pipe_directory_exists", json!(std::path::Path::new(&mps).exists()));
    Ok(())
}
