//! Tests of real, unmodified clients on the simulated driver: cudarc, cuda-bindings, cuda.core, numba-cuda.
//!
//! The Python clients need the environment of tests/setup/all.

mod common;

use cudarc::driver::{CudaContext, CudaModule, LaunchConfig, PushKernelArg};
use std::process::Command;
use std::sync::Arc;

/// A client process with the simulated driver on the loader's path and a machine of its own.
fn client(program: impl AsRef<std::ffi::OsStr>, dir: &std::path::Path) -> Command {
    let mut c = Command::new(program);
    c.env("LD_LIBRARY_PATH", common::folder())
        .env("VGPU_SIM_DIR", dir)
        .env("PYTHONWARNINGS", "ignore")
        .env("CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING", "1")
        .env_remove("LD_PRELOAD")
        .env_remove("CUDA_VISIBLE_DEVICES");
    c
}

fn python(dir: &std::path::Path, script: &str, args: &[&str]) -> Option<String> {
    let python = common::part("VGPU_PYTHON", "Python clients")?;
    let script = common::checkout().join("tests/clients").join(script);
    let out = client(python, dir).arg(script).args(args).output().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}{wrong}");
    Some(said.into_owned())
}

fn machine(profile: &str) -> (tempfile::TempDir, vgpu_sim::MachineTruth) {
    let dir = tempfile::tempdir().unwrap();
    let truth = vgpu_sim::MachineView::open_at(dir.path(), Some(profile)).unwrap().read_truth();
    (dir, truth)
}

#[test]
fn cuda_bindings_finds_everything_it_uses() {
    for key in ["h200", "t4", "a100"] {
        let (dir, truth) = machine(key);
        let d = &truth.devices[0];
        let context = vgpu_sim::DeviceProfile::built_in(key).unwrap().context_bytes;
        let want = format!(
            r#"{{"name": "{}", "uuid": "{}", "total": {}, "free": {}, "spin_is_exact": 1}}"#,
            d.name,
            d.uuid,
            d.cuda_total,
            d.capacity - context
        );
        let Some(said) = python(dir.path(), "cuda_bindings_device.py", &[&want]) else { return };
        assert!(said.contains(&d.name), "{said}");
        let after = vgpu_sim::truth::read(dir.path()).unwrap();
        let p = after.devices[0].finished.last().unwrap();
        assert_eq!((p.kernels, p.requested_bytes, p.contexts), (4, 0, 0));
        assert!(p.busy_ns >= 40_000_000 && after.devices[0].used == 0);
    }
}

#[test]
fn cuda_bindings_allocates_all_there_is() {
    let (dir, truth) = machine("t4");
    let Some(said) = python(dir.path(), "cuda_bindings_quota.py", &[]) else { return };
    let d = &truth.devices[0];
    let number = |key: &str| -> u64 {
        let rest = said.split(&format!("\"{key}\": ")).nth(1).unwrap();
        rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
    };
    assert_eq!((number("total"), number("device_total"), number("code")), (d.cuda_total, d.cuda_total, 2));
    assert_eq!(number("allocated"), number("free_before"));
    assert_eq!((number("free_full"), number("free_after")), (0, number("free_before")));
}

#[test]
fn cuda_core_checkpoints_itself_on_the_newer_driver() {
    let (dir, _) = machine("t4");
    let Some(python) = common::part("VGPU_PYTHON", "Python clients") else { return };
    let script = common::checkout().join("tests/clients/cuda_core_checkpoint.py");
    let out = client(python, dir.path()).env("VGPU_SIM_DRIVER", "580").arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    let want = r#"{"version": 13000, "states": ["running", "locked", "checkpointed", "locked", "running"], "same": true, "array": 640, "managed": true}"#;
    assert_eq!(said.trim(), want);
    let after = vgpu_sim::truth::read(dir.path()).unwrap();
    assert_eq!(after.devices[0].used, 0);
}

#[test]
fn numba_compiles_launches_and_gets_its_memory_back() {
    let (dir, truth) = machine("h200");
    let Some(said) = python(dir.path(), "numba_vector_add.py", &[&truth.devices[0].name]) else { return };
    assert!(said.contains("1000003 elements there and back"), "{said}");
    let p = vgpu_sim::truth::read(dir.path()).unwrap().devices[0].finished.last().unwrap().clone();
    assert_eq!(p.kernels, 3);
}

/// cudarc asks the loader for `libcuda.so`, so the test starts this program again with the path set.
#[test]
fn cudarc_runs_unmodified() {
    if std::env::var_os("SIM_CUDA_INNER").is_none() {
        let (dir, _) = machine("2xh100");
        let exe = std::env::current_exe().unwrap();
        let out = client(exe, dir.path())
            .env("SIM_CUDA_INNER", "1")
            .args(["--exact", "cudarc_runs_unmodified", "--nocapture"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let t = vgpu_sim::truth::read(dir.path()).unwrap();
        let p = t.devices[1].finished.last().unwrap();
        assert_eq!((p.kernels, p.busy_ns >= 15_000_000), (2, true));
        assert_eq!(t.devices[0].finished.len(), 0);
        return;
    }
    assert_eq!(CudaContext::device_count().unwrap(), 2);
    let ctx = CudaContext::new(1).unwrap();
    assert_eq!(ctx.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(ctx.compute_capability().unwrap(), (9, 0));
    let stream = ctx.new_stream().unwrap();
    let host: Vec<f32> = (0..50_000u16).chain(0..50_000).map(f32::from).collect();
    let a = stream.clone_htod(&host).unwrap();
    let mut b = stream.alloc_zeros::<f32>(host.len()).unwrap();
    stream.memcpy_dtod(&a, &mut b).unwrap();
    assert_eq!(stream.clone_dtoh(&b).unwrap(), host);
    let ptx = ".version 7.0\n.target sm_50\n.address_size 64\n\
        .visible .entry vgpu_spin_ns(.param .u64 ns) { ret; }\n\
        .visible .entry add(.param .u64 a, .param .u64 b, .param .u64 n) { ret; }\n";
    let module: Arc<CudaModule> = ctx.load_module(cudarc::nvrtc::Ptx::from_src(ptx)).unwrap();
    let (spin, add) = (module.load_function("vgpu_spin_ns").unwrap(), module.load_function("add").unwrap());
    assert!(module.load_function("nothing").is_err());
    let start = stream.record_event(Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
    let (ns, n) = (15_000_000u64, host.len() as u64);
    // SAFETY: the simulated kernels touch no memory; the arguments are those of the signatures above.
    unsafe {
        stream.launch_builder(&spin).arg(&ns).launch(LaunchConfig::for_num_elems(1)).unwrap();
        stream.launch_builder(&add).arg(&a).arg(&mut b).arg(&n).launch(LaunchConfig::for_num_elems(100_000)).unwrap();
    }
    let end = stream.record_event(Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() >= 15.0);
    let free = cudarc::driver::result::mem_get_info().unwrap().0;
    assert!(stream.alloc_zeros::<u8>(free + 1).is_err());
    stream.synchronize().unwrap();
}
