//! Tests of unmodified GPU monitoring programs on the simulated device. Their output is compared with the ground
//! truth of a process that holds memory and works.

mod common;

use common::{GIB, Lab, MIB, part, run};
use std::path::PathBuf;

const BYTES: u64 = 3 * GIB;
/// Longer than any test here, ns; the machine drops this work when the process ends.
const A_MINUTE: u64 = 60_000_000_000;

/// The ground truth of the one process on device `index`, as JSON for the scripts.
fn expected(lab: &Lab, index: usize, busy: bool) -> serde_json::Value {
    let truth = lab.truth();
    let device = &truth.devices[index];
    let process = truth.living_process(index, std::process::id()).expect("this process is on the machine");
    assert_eq!(process.requested_bytes, BYTES);
    assert!(process.overhead_bytes > 0);
    serde_json::json!({
        "index": index, "count": truth.devices.len(), "name": device.name, "uuid": device.uuid,
        "total": device.nvml_total, "reserved": device.nvml_total - device.cuda_total, "used": device.used,
        "pid": process.pid, "process_bytes": process.physical_bytes, "busy": busy,
    })
}

fn script(name: &str) -> PathBuf {
    common::checkout().join("tests/clients").join(name)
}

fn python(name: &str, lab: &Lab, index: usize, busy: bool) {
    let Some(python) = part("VGPU_PYTHON", "the Python clients") else { return };
    let out = run(lab.command(python).arg(script(name)).arg(expected(lab, index, busy).to_string()));
    assert!(out.contains(": ok"), "{out}");
}

#[test]
fn nvidia_ml_py_sees_a_process_that_works() {
    let lab = Lab::new("h200");
    let load = lab.process(0, BYTES);
    load.work(A_MINUTE);
    python("nvml_py.py", &lab, 0, true);
}

#[test]
fn nvidia_ml_py_sees_one_that_idles_on_the_second_of_three_devices() {
    let lab = Lab::new("t4,a100,rtxpro6000");
    let _load = lab.process(1, BYTES);
    python("nvml_py.py", &lab, 1, false);
}

#[test]
fn gpustat_shows_the_truth() {
    let lab = Lab::new("t4,h100");
    let _load = lab.process(1, BYTES);
    python("nvml_gpustat.py", &lab, 1, false);
}

#[test]
fn nvitop_shows_the_truth() {
    let lab = Lab::new("l4");
    let _load = lab.process(0, BYTES);
    python("nvml_nvitop.py", &lab, 0, false);
}

#[test]
fn nvidia_smi_lists_the_devices() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("t4,2xh100");
    let wanted: String =
        lab.truth().devices.iter().map(|d| format!("GPU {}: {} (UUID: {})\n", d.index, d.name, d.uuid)).collect();
    assert_eq!(run(lab.command(smi).arg("-L")), wanted);
}

#[test]
fn nvidia_smi_queries_the_truth() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("a100,h200");
    let load = lab.process(1, BYTES);
    load.work(A_MINUTE);
    let fields = "index,uuid,name,memory.total,memory.used,memory.free,utilization.gpu";
    let query = || run(lab.command(&smi).arg(format!("--query-gpu={fields}")).arg("--format=csv,noheader,nounits"));
    // Utilisation is published a few windows late.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut out = query();
    while !out.trim_end().ends_with("100") && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(50));
        out = query();
    }
    let row = |d: &vgpu_sim::truth::DeviceTruth, busy: u64| {
        let reserved = d.nvml_total - d.cuda_total;
        let free = (d.nvml_total - reserved - d.used) / MIB;
        format!("{}, {}, {}, {}, {}, {free}, {busy}\n", d.index, d.uuid, d.name, d.nvml_total / MIB, d.used / MIB)
    };
    let truth = lab.truth();
    assert!(truth.devices[1].used >= BYTES);
    assert_eq!(out, row(&truth.devices[0], 0) + &row(&truth.devices[1], 100));
}

#[test]
fn nvidia_smi_has_no_memory_of_a_device_that_uses_the_hosts() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("gb10");
    let _load = lab.process(0, BYTES);
    let fields = "name,memory.total,memory.used,memory.free,power.limit,ecc.mode.current,compute_cap";
    let out = run(lab.command(smi).arg(format!("--query-gpu={fields}")).arg("--format=csv,noheader,nounits"));
    assert_eq!(out, "NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], [N/A], 12.1\n");
}

/// NVML counts a lost device and has no handle of it, so nvidia-smi says that it is lost.
#[test]
fn nvidia_smi_has_no_handle_of_a_lost_device() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("2xt4");
    let machine = vgpu_sim::MachineView::open_at(lab.dir(), None).unwrap();
    machine.inject_loss(0, 79).unwrap();
    let listed = common::text(&lab.command(smi).arg("-L").output().unwrap());
    let lost = "Unable to determine the device handle for gpu 0: GPU is lost.  Reboot the system to recover this GPU";
    assert!(listed.contains(lost) && listed.contains("GPU 1: Tesla T4 (UUID: GPU-"), "{listed}");
}

#[test]
fn nvidia_smi_draws_its_table_with_the_truth() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("t4");
    let _load = lab.process(0, BYTES);
    let out = run(&mut lab.command(smi));
    let d = &lab.truth().devices[0];
    let memory = format!("{}MiB / {}MiB", d.used / MIB, d.nvml_total / MIB);
    for wanted in ["Driver Version: 535.309.01", "CUDA Version: 12.2", "Tesla T4", &memory] {
        assert!(out.contains(wanted), "no {wanted:?} in\n{out}");
    }
}

#[test]
fn nvidia_smi_tells_everything_it_knows() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("h200");
    let _load = lab.process(0, BYTES);
    let out = run(lab.command(smi).arg("-q"));
    let d = &lab.truth().devices[0];
    let value = |section: &str, key: &str| {
        let from = out.find(section).unwrap_or_else(|| panic!("no {section} in\n{out}"));
        let line = out[from..].lines().find(|l| l.trim_start().starts_with(key)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!(value("Attached GPUs", "Product Name"), d.name);
    assert_eq!(value("Attached GPUs", "GPU UUID"), d.uuid);
    assert_eq!(value("Attached GPUs", "Product Brand"), "NVIDIA");
    assert_eq!(value("Attached GPUs", "Product Architecture"), "Hopper");
    assert_eq!(value("MIG Mode", "Current"), "Disabled");
    assert_eq!(value("FB Memory Usage", "Total"), format!("{} MiB", d.nvml_total / MIB));
    assert_eq!(value("FB Memory Usage", "Used"), format!("{} MiB", d.used / MIB));
    assert_eq!(value("ECC Mode", "Current"), "Enabled");
}

#[test]
fn nvidia_smi_says_that_there_is_no_driver_where_there_is_none() {
    let Some(smi) = part("VGPU_NVIDIA_SMI", "Debian's nvidia-smi 535") else { return };
    let lab = Lab::new("none");
    let out = lab.command(&smi).output().unwrap();
    assert_eq!(out.status.code(), Some(9), "{}", common::text(&out));
    let Some(real) = part("VGPU_ORACLE_LIBNVML", "Debian's libnvidia-ml1 535") else { return };
    if std::path::Path::new("/proc/driver/nvidia/version").exists() {
        return; // the real library would find a real device
    }
    let real = lab.command(&smi).env("LD_LIBRARY_PATH", real.parent().unwrap()).output().unwrap();
    assert_eq!((out.status.code(), &out.stdout), (real.status.code(), &real.stdout));
}
