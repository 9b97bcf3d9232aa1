//! The GPU of the demo: the real one if the real driver finds a device, otherwise the simulated one.
//!
//! A separate process queries the driver, because a query loads the driver, and a broken driver may crash the
//! process.

use crate::Trouble;
use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Hidden argument with which this program queries the driver.
pub const LOOK: &str = "--look-for-a-device";

/// The device of the demo, and its paths.
pub struct Gpu {
    /// Text that describes the device to the reader.
    pub description: String,
    /// True for the simulated device.
    pub simulated: bool,
    /// Memory of the device in bytes.
    pub total: u64,
    /// Directory of the build: the examples, libvgpu.so, sim/.
    pub build: PathBuf,
    /// State of the simulated device and of the ledgers; removed at the end.
    pub scratch: Scratch,
    nvidia_smi: Option<PathBuf>,
}

/// A directory that is removed when this value is dropped.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Gpu {
    /// Finds the device and checks that the build is complete.
    pub fn find() -> Result<Self, Trouble> {
        let own = env::current_exe().map_err(|e| e.to_string())?;
        let build = own.parent().unwrap_or(Path::new("/")).to_owned();
        for part in ["libvgpu.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1", "example-memory"] {
            if !build.join(part).exists() {
                return Err(format!("{} is missing: start the demo by `make demo`", build.join(part).display()));
            }
        }
        let scratch = Scratch(env::temp_dir().join(format!("vgpu-demo-{}", std::process::id())));
        std::fs::create_dir(&scratch.0).map_err(|e| format!("{}: {e}", scratch.0.display()))?;

        let answer = Command::new(&own)
            .arg(LOOK)
            .env("LD_LIBRARY_PATH", without(&build.join("sim")))
            .env_remove("LD_PRELOAD")
            .output()
            .map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        let nvidia_smi = nvidia_smi();
        if answer.status.success()
            && let Some((total, name)) = text.split_once(' ')
        {
            let description = format!("{name}: the real one, its driver found it");
            let total = total.parse().unwrap_or(0);
            return Ok(Self { description, simulated: false, total, build, scratch, nvidia_smi });
        }
        let why = if text.is_empty() { "the driver died when it was asked".to_owned() } else { text };
        let description = format!("NVIDIA H200, SIMULATED ({why})");
        Ok(Self { description, simulated: true, total: 141 << 30, build, scratch, nvidia_smi })
    }

    /// Path of an example program.
    pub fn example(&self, name: &str) -> PathBuf {
        self.build.join(name)
    }

    /// The monitor that shows a tenant's own view, with its arguments.
    pub fn monitor(&self) -> (PathBuf, Vec<&'static str>) {
        match &self.nvidia_smi {
            Some(path) => (path.clone(), vec!["--query-gpu=name,memory.total,memory.used,memory.free", "--format=csv"]),
            None => (self.example("example-view"), vec![]),
        }
    }

    /// Name of the monitor.
    pub fn monitor_name(&self) -> &'static str {
        if self.nvidia_smi.is_some() { "nvidia-smi" } else { "example-view (no nvidia-smi here: a small NVML program)" }
    }

    /// A command for the reader to try next.
    pub fn try_it(&self) -> String {
        let sim = if self.simulated { "--sim " } else { "" };
        format!("{}/vgpu run {sim}--memory-limit 1GiB -- {}", shown(&self.build), shown(&self.monitor().0))
    }
}

fn shown(path: &Path) -> String {
    let here = env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// LD_LIBRARY_PATH without our simulated driver, to find the real one.
fn without(sim: &Path) -> String {
    let list = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let same = |entry: &str| Path::new(entry).canonicalize().ok() == sim.canonicalize().ok();
    list.split(':').filter(|entry| !entry.is_empty() && !same(entry)).collect::<Vec<_>>().join(":")
}

/// Path of nvidia-smi: from the environment, the search path, or the optional parts of the tests.
fn nvidia_smi() -> Option<PathBuf> {
    let named = env::var_os("VGPU_NVIDIA_SMI").map(PathBuf::from);
    let searched = env::var_os("PATH")
        .map(|path| env::split_paths(&path).map(|dir| dir.join("nvidia-smi")).collect::<Vec<_>>())
        .unwrap_or_default();
    let unpacked = PathBuf::from(".cache/nvidia-debs").join("root").join("usr/lib/nvidia/current/nvidia-smi");
    let here = env::current_dir().unwrap_or_default();
    named.into_iter().chain(searched).chain([here.join(unpacked)]).find(|path| path.is_file())
}

/// Queries the driver: prints `<bytes> <name>` and succeeds, or prints why there is no device.
pub fn look() -> ExitCode {
    match ask() {
        Ok((name, total)) => {
            println!("{total} {name}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn ask() -> Result<(String, u64), String> {
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Total = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    let code = |what: &str, code: c_int| if code == 0 { Ok(()) } else { Err(format!("{what} answered {code}")) };

    // SAFETY: the vendor's library is loaded by its soname, as every CUDA program does; the signatures are the
    // driver's.
    unsafe {
        let driver = libloading::Library::new("libcuda.so.1").map_err(|_| "no libcuda.so.1 on this machine")?;
        let init = driver.get::<Init>(b"cuInit\0").map_err(|e| e.to_string())?;
        code("the real cuInit", init(0))?;
        let count_of = driver.get::<Count>(b"cuDeviceGetCount\0").map_err(|e| e.to_string())?;
        let mut count = 0;
        code("cuDeviceGetCount", count_of(&raw mut count))?;
        if count == 0 {
            return Err("the real driver sees no device".to_owned());
        }
        let (mut name, mut total) = ([0; 128], 0);
        let name_of = driver.get::<Name>(b"cuDeviceGetName\0").map_err(|e| e.to_string())?;
        code("cuDeviceGetName", name_of(name.as_mut_ptr(), 127, 0))?;
        let total_of = driver.get::<Total>(b"cuDeviceTotalMem_v2\0").map_err(|e| e.to_string())?;
        code("cuDeviceTotalMem", total_of(&raw mut total, 0))?;
        std::mem::forget(driver); // a driver is never unloaded
        Ok((CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(), total as u64))
    }
}
