//! Unmodified third-party programs under the preloaded library and a limit: the memory they get and the numbers they
//! see.
//!
//! sim/cuda tests cuda-bindings, cuda.core and numba on the bare simulated driver, and sim/nvml tests NVML clients.
//! These tests check the effect of the limit.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use vgpu_tests::artefacts::checkout;
use vgpu_tests::lab::charged;
use vgpu_tests::{GIB, Lab, MIB, Member, OUT_OF_MEMORY, optional, run};

fn one_gib() -> Lab {
    Lab::new("h200").with("VGPU_MEMORY_LIMIT", "1GiB")
}

/// Client: cuda-bindings
#[test]
fn cuda_bindings_gets_one_gib_less_the_overhead_and_then_out_of_memory() {
    let Some(python) = optional::python() else { return };
    let lab = one_gib();
    let script = checkout().join("tests/clients/promise_cuda_bindings.py");
    let mut client = Member::start_silent(lab.command(python).arg(script));
    let line = client.line();
    let seen: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}: {}", client.errors()));
    let truth = lab.process(0, u32::try_from(seen["pid"].as_u64().unwrap()).unwrap());
    let free = seen["free"].as_u64().unwrap();
    assert_eq!((&seen["total"], &seen["device_total"]), (&GIB.into(), &GIB.into()), "{seen}");
    assert_eq!(free, GIB - truth.overhead_bytes, "1 GiB less what the context takes: {truth:?}");
    assert_eq!(truth.requested_bytes, free, "it got all of it, in one piece: {truth:?}");
    assert_eq!((&seen["one_too_many"], &seen["one_more"]), (&OUT_OF_MEMORY.into(), &OUT_OF_MEMORY.into()), "{seen}");
    assert_eq!(seen["name"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(seen["free_when_full"], 0, "{seen}");
    assert_eq!(seen["content"], true, "{seen}");
    client.tell("");
    let after: Vec<u64> = serde_json::from_str(&client.line()).unwrap();
    assert_eq!(after, [free, GIB]);
    assert!(client.finish().success());
    assert_eq!(client.errors(), "", "nothing was said unasked");
}

/// Client: nvidia-smi
#[test]
fn nvidia_smi_shows_the_limit_as_the_total() {
    let Some(smi) = optional::nvidia_smi() else { return };
    let lab = one_gib();
    let mut stranger = lab.bare_member();
    stranger.begin();
    stranger.alloc(30 * GIB);
    let query = ["--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader"];
    assert_eq!(run(lab.command(&smi).args(query)).trim(), "1024 MiB, 0 MiB, 1024 MiB");
    let table = run(&mut lab.command(&smi));
    assert!(table.contains("0MiB /  1024MiB"), "{table}");
    let mut m = lab.member();
    m.begin();
    m.alloc(100 * MIB);
    let used = charged_by(&lab, &m) / MIB;
    assert_eq!(
        run(lab.command(&smi).args(query)).trim(),
        format!("1024 MiB, {used} MiB, {} MiB", 1024 - used),
        "the tenant's, not the stranger's"
    );
    let bare = run(lab.bare(&smi).args(query));
    assert!(!bare.contains("1024 MiB"), "the null control: {bare}");
}

fn charged_by(lab: &Lab, member: &Member) -> u64 {
    let truth = lab.process(0, member.pid);
    truth.slab_bytes + truth.overhead_bytes
}

/// Client: nvidia-ml-py
#[test]
fn nvml_clients_show_their_own_processes_only_and_one_set_of_numbers() {
    let Some(python) = optional::python() else { return };
    let lab = one_gib();
    let (mut mine, mut stranger) = (lab.member(), lab.bare_member());
    mine.begin();
    mine.alloc(64 * MIB);
    stranger.begin();
    stranger.alloc(30 * GIB);
    let script = "
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
a, b = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(json.dumps([[a.total, a.free, a.used], [b.total, b.free, b.used],
                  [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
                  len(n.nvmlDeviceGetGraphicsRunningProcesses(h))]))";
    let seen: Value = serde_json::from_str(&run(lab.command(&python).args(["-c", script]))).unwrap();
    let used = charged_by(&lab, &mine);
    let memory = serde_json::json!([GIB, GIB - used, used]);
    assert_eq!(seen, serde_json::json!([memory, memory, [[mine.pid, used]], 0]));
    assert!(charged(&lab.device(0)) > 30 * GIB, "the stranger is there");
}

/// Client: gpustat
#[test]
fn gpustat_shows_the_limit_and_the_tenants_processes() {
    let Some(python) = optional::python() else { return };
    let lab = one_gib();
    let (mut mine, mut stranger) = (lab.member(), lab.bare_member());
    mine.begin();
    stranger.begin();
    let shown: Value = serde_json::from_str(&run(lab.command(&python).args(["-m", "gpustat", "--json"]))).unwrap();
    let gpu = &shown["gpus"][0];
    assert_eq!(gpu["memory.total"], 1024, "{shown}");
    let pids: Vec<u64> = gpu["processes"].as_array().unwrap().iter().map(|p| p["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids, [u64::from(mine.pid)], "{shown}");
}

/// A Python program of tests/clients under the library, with the variables that keep its own warnings away.
fn script(lab: &Lab, python: &Path, name: &str) -> Command {
    let mut command = lab.command(python);
    command.arg(checkout().join("tests/clients").join(name));
    command.env("PYTHONWARNINGS", "ignore").env("CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING", "1");
    command
}

/// Client: numba-cuda
#[test]
fn numba_compiles_and_launches_under_a_limit_and_its_memory_comes_back() {
    let Some(python) = optional::python() else { return };
    let lab = one_gib();
    let name = lab.device(0).name.clone();
    let said = run(script(&lab, &python, "numba_vector_add.py").arg(&name));
    assert_eq!(said.trim(), format!("numba-cuda: {name}, 1000003 elements there and back, {GIB} bytes in all"));
    let device = lab.device(0);
    let process = device.finished.last().unwrap();
    assert!(process.kernels == 3 && process.peak_bytes <= GIB && device.used == 0, "{process:?}");
}

/// Client: cuda-core
#[test]
fn cuda_core_checkpoints_itself_under_a_limit_and_finds_its_memory_again() {
    let Some(python) = optional::python() else { return };
    let lab = Lab::new("t4").with("VGPU_SIM_DRIVER", "580").with("VGPU_MEMORY_LIMIT", "2GiB");
    let said: Value = serde_json::from_str(&run(&mut script(&lab, &python, "cuda_core_checkpoint.py"))).unwrap();
    assert_eq!(said["states"], serde_json::json!(["running", "locked", "checkpointed", "locked", "running"]), "{said}");
    assert_eq!((&said["same"], &said["managed"]), (&true.into(), &true.into()), "{said}");
    let device = lab.device(0);
    assert!(device.used == 0 && device.finished.last().unwrap().peak_bytes <= 2 * GIB, "{device:?}");
}
