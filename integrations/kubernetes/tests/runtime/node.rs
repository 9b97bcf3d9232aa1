//! A node without a kubelet: a real containerd, and for each test a real vgpud on a simulated device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tonic::Status;
use vgpu_control::TenantStatus;

use crate::cri::{ContainerConfig, Cri, CriMount, KeyValue, PodConfig};
use crate::programs::{Running, built};

pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The runtime that all tests share. It ends with the last of them.
pub struct Runtime {
    dir: TempDir,
}

impl Runtime {
    /// The runtime; `None`: it is not set up, which is an error if all parts are required.
    pub fn get() -> Option<Arc<Self>> {
        static RUNNING: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());
        let mut running = RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(runtime) = running.upgrade() {
            return Some(runtime);
        }
        let cache = std::env::var_os("VGPU_CACHE").map_or_else(|| checkout().join(".cache"), PathBuf::from);
        let pinned = cache.join("containerd-1.7.24/usr/bin");
        let programs = std::env::var_os("VGPU_CONTAINERD").map_or(pinned, PathBuf::from);
        if !programs.join("containerd").exists() {
            let required = std::env::var_os("VGPU_REQUIRE_ALL").is_some_and(|all| all == "1");
            assert!(!required, "required and missing: containerd (run tests/setup/containerd)");
            eprintln!("SKIPPED: containerd is not set up (run tests/setup/containerd)");
            return None;
        }
        let runtime = Arc::new(Self { dir: TempDir::new().unwrap() });
        let started = Self::setup("start", runtime.dir.path());
        assert!(started, "tests/setup/containerd start failed");
        *running = Arc::downgrade(&runtime);
        Some(runtime)
    }

    fn setup(verb: &str, dir: &Path) -> bool {
        let mut command = Command::new(checkout().join("tests/setup/containerd"));
        command.arg(verb).arg(dir).env_remove("LD_PRELOAD").stdout(Stdio::null());
        command.status().unwrap().success()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        Self::setup("stop", self.dir.path());
    }
}

/// A pod with one container.
pub struct Pod {
    pub sandbox: String,
    pub config: PodConfig,
}

/// One test at a time has the runtime: a plugin is asked about all containers.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub struct Node {
    pub dir: TempDir,
    pub runtime: Arc<Runtime>,
    pub cri: Cri,
    pub daemon: Option<Running>,
    pub plugin: Option<Running>,
    /// The last field, so that the next test begins after the plugin has ended.
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Node {
    /// Starts vgpud with this file. `None`: as for [`Runtime::get`].
    pub async fn start(file: &str) -> Option<Self> {
        let runtime = Runtime::get()?;
        let turn = TURN.lock().await;
        let cri = Cri::connect(&runtime.path("cri.sock")).await;
        let dir = TempDir::new().unwrap();
        for place in ["gpu", "vgpu", "sim"] {
            fs::create_dir(dir.path().join(place)).unwrap();
        }
        let libraries = [
            ("libvgpu.so", "vgpu/libvgpu.so"),
            ("libcuda.so", "sim/libcuda.so.1"),
            ("libnvidia_ml.so", "sim/libnvidia-ml.so.1"),
        ];
        for (from, to) in libraries {
            fs::copy(built(from), dir.path().join(to)).unwrap();
        }
        // The simulated driver may want it, and the image does not have it. The library does not want it.
        let gcc = Command::new("cc").arg("-print-file-name=libgcc_s.so.1").output().unwrap();
        fs::copy(String::from_utf8(gcc.stdout).unwrap().trim(), dir.path().join("sim/libgcc_s.so.1")).unwrap();
        fs::write(dir.path().join("vgpud.toml"), file).unwrap();
        let mut node = Self { dir, runtime, cri, daemon: None, plugin: None, _turn: turn };
        node.start_daemon();
        eventually("vgpud answers", async || vgpu_control::ask_status(&node.admin()).is_ok()).await;
        Some(node)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn admin(&self) -> PathBuf {
        self.path("run/admin.sock")
    }

    pub fn start_daemon(&mut self) {
        let mut command = Command::new(built("vgpud"));
        command.arg("--config").arg(self.path("vgpud.toml")).arg("--runtime-dir").arg(self.path("run"));
        command.env("LD_LIBRARY_PATH", self.path("sim")).env("VGPU_SIM_DIR", self.path("gpu"));
        command.env("VGPU_SIM_PROFILE", "h200").stderr(self.log("vgpud.log"));
        self.daemon = Some(Running(command.spawn().unwrap()));
    }

    /// Starts the NRI plugin, and waits until the runtime knows it.
    pub async fn start_plugin(&mut self, options: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-k8s"));
        command.arg("nri").arg("--socket").arg(self.admin()).arg("--nri-socket").arg(self.runtime.path("nri.sock"));
        command.arg("--library").arg(self.path("vgpu/libvgpu.so")).arg("--state-dir").arg(self.path("k8s"));
        let _ = fs::remove_file(self.path("nri.log"));
        command.args(options).stderr(self.log("nri.log"));
        self.plugin = Some(Running(command.spawn().unwrap()));
        eventually("the runtime knows the plugin", async || self.text("nri.log").contains("registered")).await;
    }

    fn log(&self, name: &str) -> fs::File {
        fs::OpenOptions::new().create(true).append(true).open(self.path(name)).unwrap()
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The tenants that commands added and that are served.
    pub fn added(&self) -> Vec<TenantStatus> {
        let tenants = vgpu_control::ask_status(&self.admin()).unwrap().tenants;
        tenants.into_iter().filter(|tenant| tenant.added.is_some() && !tenant.removed).collect()
    }

    pub async fn run_pod(&self, name: &str, annotations: &[(&str, &str)]) -> Pod {
        let config = PodConfig::new(name, annotations);
        let sandbox = self.cri.run_pod(&config).await;
        Pod { sandbox, config }
    }

    /// Makes a container with the simulated driver, and these variables and mounts, and starts it.
    pub async fn run_container(
        &self,
        pod: &Pod,
        attempt: u32,
        variables: &[(&str, &str)],
        mounts: &[(&Path, &str)],
    ) -> Result<String, Status> {
        self.run_config(pod, ContainerConfig::new(attempt), variables, mounts).await
    }

    pub async fn run_config(
        &self,
        pod: &Pod,
        mut config: ContainerConfig,
        variables: &[(&str, &str)],
        mounts: &[(&Path, &str)],
    ) -> Result<String, Status> {
        let sim = [("LD_LIBRARY_PATH", "/sim"), ("VGPU_SIM_DIR", "/gpu"), ("VGPU_SIM_PROFILE", "h200")];
        let all = sim.iter().chain(variables);
        config.envs = all.map(|(key, value)| KeyValue { key: (*key).into(), value: (*value).into() }).collect();
        let mount = |host: &Path, to: &str, readonly| CriMount {
            host_path: host.to_str().unwrap().into(),
            container_path: to.into(),
            readonly,
        };
        config.mounts = vec![
            mount(&self.path("sim"), "/sim", true),
            mount(&self.path("gpu"), "/gpu", false),
            mount(&checkout().join("tests/clients"), "/clients", true),
        ];
        config.mounts.extend(mounts.iter().map(|(host, to)| mount(host, to, false)));
        self.cri.run_container(&pod.sandbox, &pod.config, config).await
    }

    /// The view of a program in the container that allocates so many bytes, and a byte more than the limit.
    pub async fn view(&self, container: &str, limit: u64) -> Value {
        // A context takes its own part of the limit.
        let (fits, too_much) = ((limit - GIB).to_string(), limit.to_string());
        let client = ["/usr/bin/python3", "/clients/container_client.py", &fits, &too_much];
        let output = self.cri.exec(container, &client).await;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.code, 0, "{words}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {words}"))
    }

    /// The container is in a tenant with this memory limit: every view says so, and the last byte can be written.
    pub async fn assert_held(&self, container: &str, limit: u64) {
        let seen = self.view(container, limit).await;
        assert_eq!(seen["mapped"], true, "{seen}");
        for total in ["nvml_total", "nvml_total_v2", "device_total", "cuda_total"] {
            assert_eq!(seen[total], limit, "{total}: {seen}");
        }
        // 2: out of memory.
        assert_eq!(
            (&seen["too_much"], &seen["fits"], &seen["content"]),
            (&2.into(), &0.into(), &true.into()),
            "{seen}"
        );
    }

    /// Memory that a program in the container sees, in bytes; or what it says instead.
    pub async fn total(&self, container: &str) -> Result<u64, String> {
        let script = "import pynvml as nv; nv.nvmlInit(); \
                      print(nv.nvmlDeviceGetMemoryInfo(nv.nvmlDeviceGetHandleByIndex(0)).total)";
        let output = self.cri.exec(container, &["/usr/bin/python3", "-c", script]).await;
        let number = String::from_utf8_lossy(&output.stdout).trim().parse();
        number.map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < until, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
