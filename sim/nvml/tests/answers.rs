//! Tests of NVML's rules, called directly and through the Rust crate nvml-wrapper: init counts, buffers that are
//! too small, struct versions, samples that are absent when idle, invalid handles.

mod common;

use common::{GIB, Lab};
use libloading::{Library, Symbol};
use nvml_wrapper::{
    Nvml,
    enum_wrappers::device::{Brand, Clock, TemperatureSensor},
    enums::device::UsedGpuMemory,
    error::NvmlError,
};
use shim_sys::{nvml::*, table::nvml_fn};
use std::{ptr::null_mut, sync::Mutex};

/// Device indices, one per group of tests.
const WRAPPER: u32 = 0;
const LISTS: u32 = 1;
const IDLE: u32 = 2;
const BUSY: u32 = 3;

fn lab() -> &'static Lab {
    common::lab_of_this_process("h200,t4,h100,a100")
}

fn lib() -> Library {
    lab();
    // SAFETY: a library of ours without initialisers of its own.
    unsafe { Library::new(common::library()) }.unwrap()
}

macro_rules! get {
    ($lib:expr, $name:ident) => {{
        // SAFETY: the signature is the table's.
        let f: Symbol<nvml_fn::$name> = unsafe { $lib.get(stringify!($name).as_bytes()) }.unwrap();
        f
    }};
}

macro_rules! call {
    ($lib:expr, $name:ident($($arg:expr),*)) => {{
        let f = get!($lib, $name);
        // SAFETY: the arguments are live variables of the right types, or null to test the check for it.
        unsafe { f($($arg),*) }.0
    }};
}

/// Serialises the tests that count users of the library.
static TURN: Mutex<()> = Mutex::new(());

fn handle(lib: &Library, index: u32) -> nvmlDevice_t {
    let mut dev = nvmlDevice_t(null_mut());
    assert_eq!(call!(lib, nvmlDeviceGetHandleByIndex_v2(index, &raw mut dev)), 0);
    dev
}

#[test]
fn init_counts_its_users() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    let mut n = 0;
    assert_eq!(call!(lib, nvmlDeviceGetCount_v2(&raw mut n)), 1);
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    assert_eq!(call!(lib, nvmlInitWithFlags(0)), 0);
    assert_eq!(call!(lib, nvmlShutdown()), 0);
    assert_eq!(call!(lib, nvmlDeviceGetCount_v2(&raw mut n)), 0);
    assert_eq!(n, 4);
    assert_eq!(call!(lib, nvmlShutdown()), 0);
    assert_eq!(call!(lib, nvmlDeviceGetCount_v2(&raw mut n)), 1);
}

#[test]
fn process_lists_tell_the_room_they_need() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let dev = handle(&lib, LISTS);
    let none = nvmlProcessInfo_t::default();

    // If no process uses the device, a null pointer and capacity 0 are valid.
    let mut count = 0;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, null_mut())), 0);
    assert_eq!(count, 0);

    let first = lab().process(LISTS as usize, GIB);
    let _second = lab().process(LISTS as usize, 2 * GIB);
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, null_mut())), 7);
    assert_eq!(count, 2);
    // Capacity 1 for two processes: only the length is written.
    let mut infos = [none; 4];
    count = 1;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, infos.as_mut_ptr())), 7);
    assert_eq!((count, infos), (2, [none; 4]));
    // A capacity without a pointer is invalid.
    count = 4;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, null_mut())), 2);
    // A capacity beyond the need is valid.
    count = 4;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, infos.as_mut_ptr())), 0);
    assert_eq!(count, 2);
    let truth = lab().truth();
    let physical: Vec<u64> = truth.devices[LISTS as usize].processes.iter().map(|p| p.physical_bytes).collect();
    let listed: Vec<u64> = infos[..2].iter().map(|p| p.usedGpuMemory).collect();
    assert_eq!(listed, physical);
    assert_eq!((infos[0].gpuInstanceId, infos[2]), (u32::MAX, none));
    // The entries of the first version are 16 bytes.
    let mut old = [nvmlProcessInfo_v1_t::default(); 3];
    count = 3;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses(dev, &raw mut count, old.as_mut_ptr())), 0);
    assert_eq!((count, old[1].usedGpuMemory, old[2].pid), (2, physical[1], 0));
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, null_mut(), infos.as_mut_ptr())), 2);

    // A process that ended is no longer listed, and its memory is free.
    drop(first);
    count = 4;
    assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, infos.as_mut_ptr())), 0);
    assert_eq!((count, infos[0].usedGpuMemory), (1, physical[1]));
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

/// Body of the process that the next test starts and kills.
#[test]
#[ignore = "started by a_killed_process_is_gone_at_the_next_question"]
fn a_process_that_holds_memory() {
    if let Some(dir) = std::env::var_os("VGPU_TEST_HOLD") {
        let _held = Lab::process_at(dir.as_ref(), IDLE as usize, GIB);
        println!("holding");
        std::thread::sleep(std::time::Duration::from_secs(60));
    }
}

#[test]
fn a_killed_process_is_gone_at_the_next_question() {
    use std::io::BufRead;
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let dev = handle(&lib, IDLE);
    let ask = || {
        let (mut count, mut info) = (1, [nvmlProcessInfo_t::default()]);
        assert_eq!(call!(lib, nvmlDeviceGetComputeRunningProcesses_v3(dev, &raw mut count, info.as_mut_ptr())), 0);
        let mut memory = nvmlMemory_v2_t { version: nvmlMemory_v2_t::VERSION, ..Default::default() };
        assert_eq!(call!(lib, nvmlDeviceGetMemoryInfo_v2(dev, &raw mut memory)), 0);
        (count, info[0].pid, memory.used)
    };
    assert_eq!(ask(), (0, 0, 0));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_holds_memory", "--ignored", "--nocapture"])
        .env("VGPU_TEST_HOLD", lab().dir())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("holding")), "the process does not start");
    let (count, pid, used) = ask();
    assert_eq!((count, pid), (1, child.id()));
    assert!(used > GIB);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ask(), (0, 0, 0));
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

#[test]
fn the_second_memory_struct_wants_its_version() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let dev = handle(&lib, IDLE);
    let mut memory = nvmlMemory_v2_t::default();
    assert_eq!(call!(lib, nvmlDeviceGetMemoryInfo_v2(dev, &raw mut memory)), 25);
    assert_eq!(memory, nvmlMemory_v2_t::default());
    memory.version = nvmlMemory_v2_t::VERSION;
    assert_eq!(call!(lib, nvmlDeviceGetMemoryInfo_v2(dev, &raw mut memory)), 0);
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
    assert_eq!(call!(lib, nvmlDeviceGetMemoryInfo_v2(dev, null_mut())), 2);
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

#[test]
fn texts_need_room_for_their_zero_byte() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let dev = handle(&lib, IDLE);
    let mut text = [0x55; 64];
    let uuid = "GPU-".len() + 36;
    let room = |n: usize| u32::try_from(n).unwrap();
    assert_eq!(call!(lib, nvmlDeviceGetUUID(dev, text.as_mut_ptr(), room(uuid))), 7);
    assert_eq!(text[0], 0x55);
    assert_eq!(call!(lib, nvmlDeviceGetUUID(dev, text.as_mut_ptr(), room(uuid + 1))), 0);
    assert_eq!((text[uuid], text[uuid + 1]), (0, 0x55));
    assert_eq!(call!(lib, nvmlDeviceGetUUID(dev, null_mut(), 64)), 2);
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

#[test]
fn a_handle_of_nobodys_is_refused_and_not_followed() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let mut n = 0;
    for wild in [0usize, 1, 0xdead_beef, usize::MAX] {
        assert_eq!(call!(lib, nvmlDeviceGetIndex(nvmlDevice_t(wild as *mut _), &raw mut n)), 2);
    }
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

#[test]
fn an_idle_device_has_no_samples_and_a_busy_one_has_late_ones() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let lib = lib();
    assert_eq!(call!(lib, nvmlInit_v2()), 0);
    let _idle = lab().process(IDLE as usize, GIB);
    let busy = lab().process(BUSY as usize, GIB);
    busy.work(60_000_000_000);
    let ask = |index: u32, since: u64| {
        let mut samples = [nvmlProcessUtilizationSample_t::default(); 8];
        let mut count = 8;
        let rc = call!(
            lib,
            nvmlDeviceGetProcessUtilization(handle(&lib, index), samples.as_mut_ptr(), &raw mut count, since)
        );
        (rc, count, samples[0])
    };
    assert_eq!(ask(IDLE, 0).0, 6);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let sample = loop {
        let (rc, count, sample) = ask(BUSY, 0);
        if rc == 0 {
            assert_eq!(count, 1);
            break sample;
        }
        assert!(rc == 6 && std::time::Instant::now() < end);
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!(sample.pid, std::process::id());
    // A sample's window ended at least one window before its publication.
    assert!(sample.smUtil > 0 && sample.timeStamp * 1000 + vgpu_sim::layout::WINDOW_NS <= vgpu_sim::wall_ns());
    // No sample is from the future, and the idle device still has none.
    assert_eq!(ask(BUSY, vgpu_sim::wall_ns() / 1000 + 1_000_000).0, 6);
    assert_eq!(ask(IDLE, 0).0, 6);
    // A null pointer asks for the needed capacity.
    let mut count = 0;
    let dev = handle(&lib, BUSY);
    assert_eq!(call!(lib, nvmlDeviceGetProcessUtilization(dev, null_mut(), &raw mut count, 0)), 7);
    assert_eq!(count, 1);
    assert_eq!(call!(lib, nvmlShutdown()), 0);
}

#[test]
fn nvml_wrapper_sees_the_truth() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let _load = lab().process(WRAPPER as usize, 5 * GIB);
    let nvml = Nvml::builder().lib_path(common::library().as_os_str()).init().unwrap();
    let truth = lab().truth();
    let wanted = &truth.devices[WRAPPER as usize];

    assert_eq!(nvml.device_count().unwrap(), 4);
    assert_eq!(nvml.sys_driver_version().unwrap(), "535.309.01");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12020);
    let dev = nvml.device_by_index(WRAPPER).unwrap();
    assert_eq!(dev.name().unwrap(), wanted.name);
    assert_eq!(dev.uuid().unwrap(), wanted.uuid);
    assert_eq!(nvml.device_by_uuid(wanted.uuid.as_str()).unwrap().index().unwrap(), WRAPPER);
    let pci = dev.pci_info().unwrap();
    assert_eq!(nvml.device_by_pci_bus_id(pci.bus_id.as_str()).unwrap().index().unwrap(), WRAPPER);
    assert_eq!(dev.brand().unwrap(), Brand::Nvidia);

    let memory = dev.memory_info().unwrap();
    assert_eq!(memory.total, wanted.nvml_total);
    assert_eq!(memory.used, wanted.used);
    assert_eq!(memory.total, memory.reserved + memory.used + memory.free);
    let processes = dev.running_compute_processes().unwrap();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].pid, std::process::id());
    assert_eq!(processes[0].used_gpu_memory, UsedGpuMemory::Used(wanted.used));
    assert!(dev.running_graphics_processes().unwrap().is_empty());

    assert_eq!(dev.max_clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(dev.power_management_limit().unwrap(), 700_000);
    assert!((25..90).contains(&dev.temperature(TemperatureSensor::Gpu).unwrap()));
    assert!(dev.is_ecc_enabled().unwrap().currently_enabled);
    assert_eq!(dev.cuda_compute_capability().unwrap().major, 9);
    assert_eq!(dev.num_cores().unwrap(), 16896);
    assert!(matches!(dev.fan_speed(0), Err(NvmlError::NotSupported)));
    assert!(matches!(nvml.device_by_index(4), Err(NvmlError::InvalidArg)));
    assert!(matches!(nvml.device_by_uuid("GPU-x"), Err(NvmlError::NotFound)));
    // A function that is not simulated reports that.
    assert!(matches!(dev.bridge_chip_info(), Err(NvmlError::NotSupported)));
}
