//! Two tenants on one device. The tools of each show true values of its own and nothing of the other. Only the
//! simulated device decides the truth.

use serde_json::{Value, json};
use std::time::Duration;
use vgpu_tests::artefacts::checkout;
use vgpu_tests::{GIB, LONG_TIMEOUT, Lab, MIB, Member, optional, run};

/// A tenant that always uses the device, under a ceiling, and one that holds memory and does nothing.
struct Two {
    lab: Lab,
    busy: Member,
    idle: Member,
}

/// Ceiling of both tenants, in percent.
const CEILING: u64 = 30;

fn two() -> Two {
    let mut lab = Lab::new("h200")
        .with("VGPU_MEMORY_LIMIT", "2GiB")
        .with("VGPU_SM_LIMIT", CEILING.to_string())
        .with("VGPU_SIM_ACCOUNTING", "1")
        .with("VGPU_TENANT", "idle");
    let mut idle = lab.member();
    idle.begin();
    idle.alloc(512 * MIB);
    lab.set("VGPU_TENANT", "busy");
    let mut busy = lab.member();
    busy.begin();
    busy.alloc(64 * MIB);
    busy.tell(&format!("work 1000000 {} 4 0", LONG_TIMEOUT.as_millis()));
    let two = Two { lab, busy, idle };
    // A kernel's cost is unknown before one has run.
    let used = || two.lab.process(0, two.busy.pid).busy_ns;
    let begin = std::time::Instant::now();
    while used() < 200_000_000 {
        assert!(begin.elapsed() < LONG_TIMEOUT, "the device never works");
        std::thread::sleep(Duration::from_millis(20));
    }
    two
}

impl Two {
    fn be(&mut self, tenant: &str) -> &Lab {
        self.lab.set("VGPU_TENANT", tenant);
        &self.lab
    }

    /// Bytes of a member in the device's record.
    fn bytes(&self, member: &Member) -> u64 {
        let truth = self.lab.process(0, member.pid);
        truth.slab_bytes + truth.overhead_bytes
    }
}

/// Requires about the ceiling, with the tolerance of a window of a sixth of a second.
#[track_caller]
fn is_about_the_ceiling(percent: &Value) {
    let percent = percent.as_u64().unwrap();
    assert!((CEILING / 3..=2 * CEILING).contains(&percent), "{percent} of {CEILING} %");
}

/// Client: nvidia-ml-py
#[test]
fn nvidia_ml_py_shows_each_tenant_its_own_processes_memory_and_time() {
    let Some(python) = optional::python() else { return };
    let mut two = two();
    let (busy, idle) = (two.busy.pid, two.idle.pid);
    let script = checkout().join("tests/clients/nvml_tenant.py");
    let mut ask = |tenant| -> Value {
        let mut command = two.be(tenant).command(&python);
        serde_json::from_str(&run(command.arg(&script).args([busy.to_string(), idle.to_string()]))).unwrap()
    };
    let (of_busy, of_idle) = (ask("busy"), ask("idle"));
    for (seen, member, place) in [(&of_busy, &two.busy, 0), (&of_idle, &two.idle, 1)] {
        let bytes = two.bytes(member);
        let own = json!([[member.pid, bytes]]);
        assert_eq!((&seen["total"], &seen["used"]), (&json!(2 * GIB), &json!(bytes)), "{seen}");
        assert_eq!(seen["memory"], (bytes * 100 + GIB) / (2 * GIB), "percent of its limit: {seen}");
        for version in ["", "_v2", "_v3"] {
            assert_eq!(seen[format!("Compute{version}")], own, "{seen}");
            assert_eq!(seen[format!("Graphics{version}")], json!([]), "{seen}");
            assert_eq!(seen[format!("MPSCompute{version}")], json!([]), "{seen}");
        }
        assert_eq!(seen["details"], own, "{seen}");
        assert_eq!(seen["accounting"], json!([member.pid]), "{seen}");
        assert!(seen["names"][place].as_str().unwrap().contains("member"), "{seen}");
        assert_eq!(seen["names"][1 - place], json!([6]), "the other's name is not found: {seen}");
        assert_eq!((&seen["stats"][place]["runs"], &seen["stats"][1 - place]), (&json!(1), &json!([6])), "{seen}");
        assert_eq!(seen["stats"][place]["most"], bytes, "{seen}");
        assert_eq!(seen["video"], json!([[3], [3]]), "not told: {seen}");
        assert_eq!(seen["set"], json!([[4], [4]]), "not permitted: {seen}");
    }
    is_about_the_ceiling(&of_busy["gpu"]);
    is_about_the_ceiling(&of_busy["samples"][0]);
    assert_eq!(of_busy["sampled"][0][0], busy, "{of_busy}");
    is_about_the_ceiling(&of_busy["sampled"][0][1]);
    assert_eq!((&of_idle["gpu"], &of_idle["sampled"], &of_idle["samples"]), (&json!(0), &json!([6]), &json!([0])));
    // The driver alone shows every process both tenants and the device's whole utilisation.
    let mut bare = two.lab.bare(&python);
    let all: Value = serde_json::from_str(&run(bare.arg(&script).args([busy.to_string(), idle.to_string()]))).unwrap();
    assert_eq!(all["Compute"].as_array().unwrap().len(), 2, "{all}");
    assert!(all["gpu"].as_u64().unwrap() > 0 && all["video"] != json!([[3], [3]]), "{all}");
}

/// Client: gpustat
/// Client: nvitop
#[test]
fn gpustat_and_nvitop_show_each_tenant_its_own_processes_and_use() {
    let Some(python) = optional::python() else { return };
    let mut two = two();
    let nvitop = "
import json, nvitop
device = nvitop.Device(0)
processes = device.processes()
print(json.dumps([device.memory_total(), device.memory_used(), device.gpu_utilization(),
                  {pid: [p.gpu_memory(), p.gpu_sm_utilization()] for pid, p in processes.items()}]))";
    for (tenant, member) in [("busy", two.busy.pid), ("idle", two.idle.pid)] {
        let bytes = two.bytes(if tenant == "busy" { &two.busy } else { &two.idle });
        let lab = two.be(tenant);
        let shown: Value = serde_json::from_str(&run(lab.command(&python).args(["-m", "gpustat", "--json"]))).unwrap();
        let gpu = &shown["gpus"][0];
        assert_eq!((&gpu["memory.total"], &gpu["memory.used"]), (&json!(2048), &json!(bytes / MIB)), "{shown}");
        let processes = gpu["processes"].as_array().unwrap();
        assert_eq!(processes.iter().map(|p| &p["pid"]).collect::<Vec<_>>(), [member], "{shown}");
        let seen: Value = serde_json::from_str(&run(lab.command(&python).args(["-c", nvitop]))).unwrap();
        assert_eq!((&seen[0], &seen[1]), (&json!(2 * GIB), &json!(bytes)), "{seen}");
        let processes = seen[3].as_object().unwrap();
        assert_eq!(processes.keys().collect::<Vec<_>>(), [&member.to_string()], "{seen}");
        let (own, percent) = (&processes[&member.to_string()], &gpu["utilization.gpu"]);
        assert_eq!(own[0], bytes, "{seen}");
        if tenant == "busy" {
            [percent, &seen[2], &own[1]].into_iter().for_each(is_about_the_ceiling);
        } else {
            assert_eq!((percent, &seen[2]), (&json!(0), &json!(0)), "{shown} {seen}");
        }
    }
}

/// Client: nvidia-smi
#[test]
fn nvidia_smi_shows_each_tenant_its_quota_and_use() {
    let Some(smi) = optional::nvidia_smi() else { return };
    let mut two = two();
    let query =
        ["--query-gpu=memory.total,memory.used,utilization.gpu,utilization.memory", "--format=csv,noheader,nounits"];
    for tenant in ["busy", "idle"] {
        let bytes = two.bytes(if tenant == "busy" { &two.busy } else { &two.idle });
        let shown = run(two.be(tenant).command(&smi).args(query));
        let words: Vec<u64> = shown.trim().split(", ").map(|word| word.parse().unwrap()).collect();
        assert_eq!((words[0], words[1], words[3]), (2048, bytes / MIB, (bytes * 100 + GIB) / (2 * GIB)), "{shown}");
        if tenant == "busy" {
            is_about_the_ceiling(&json!(words[2]));
        } else {
            assert_eq!(words[2], 0, "{shown}");
        }
        // nvidia-smi reads its list of processes from a private function table, which passes unhooked. The other tenant
        // must not be on it.
        let table = run(&mut two.lab.command(&smi));
        let other = if tenant == "busy" { &two.idle } else { &two.busy };
        assert!(!table.contains(&other.pid.to_string()), "{table}");
        let refused = two.lab.command(&smi).args(["-pm", "0"]).output().unwrap();
        assert!(!refused.status.success(), "{refused:?}");
    }
}
