//! The DRA driver between a real vgpud, a kubelet and an API server that this test plays. No real kubelet is there.

#[path = "stubs/api_server.rs"]
mod api_server;
#[path = "stubs/programs.rs"]
mod programs;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_server::{ApiStub, TOKEN};
use programs::{Running, built};
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::transport::Channel;
use vgpu_control::status::DaemonStatus;
use vgpu_control::{ControlCommand, ask_daemon, ask_status};
use vgpu_kubernetes::api::claims::DraClient;
use vgpu_kubernetes::api::dra::{Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use vgpu_kubernetes::api::plugin_registration::{InfoRequest, RegistrationStatus};
use vgpu_kubernetes::api::watcher::registration_client::RegistrationClient;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

struct Node {
    dir: TempDir,
    api: ApiStub,
    url: String,
    daemon: Option<Running>,
    driver: Option<Running>,
    /// Options of the driver beyond the usual ones.
    options: Vec<String>,
    name: &'static str,
}

/// Two simulated devices, and a tenant of the file on the first one.
const FILE: &str = "[[device]]\nid = 0\n[[device]]\nid = 1\n\
    [[tenant]]\nname = \"file\"\ndevices = [0]\nmemory_limit = \"4GiB\"\nsm_request = \"10\"\n";

impl Node {
    fn new() -> Self {
        let api = ApiStub::default();
        let url = format!("http://127.0.0.1:{}", api.serve(|stream| stream));
        Self::beside(api, url)
    }

    fn beside(api: ApiStub, url: String) -> Self {
        let dir = TempDir::new().unwrap();
        for part in ["gpu", "kubelet/plugins_registry", "cdi", "account"] {
            fs::create_dir_all(dir.path().join(part)).unwrap();
        }
        fs::write(dir.path().join("account/token"), format!("{TOKEN}\n")).unwrap();
        fs::write(dir.path().join("vgpud.toml"), FILE).unwrap();
        api.put("/api/v1/nodes/node-a", json!({ "metadata": { "name": "node-a", "uid": "uid-of-node-a" } }));
        let name = "vgpu.internal";
        let mut node = Self { dir, api, url, daemon: None, driver: None, options: Vec::new(), name };
        node.start_daemon();
        node
    }

    async fn start() -> Self {
        let mut node = Self::new();
        node.start_driver();
        node.registry().await;
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command that sees the simulated devices.
    fn command(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", built("sim")).env("VGPU_SIM_DIR", self.path("gpu"));
        command.env("VGPU_SIM_PROFILE", "2xh200").stdin(Stdio::null());
        command
    }

    fn start_daemon(&mut self) {
        let mut command = self.command(built("vgpud"));
        command.arg("--config").arg(self.path("vgpud.toml")).args(["--log", "off"]);
        command.arg("--runtime-dir").arg(self.path("run")).args(["--state-dir", "none"]).stderr(Stdio::null());
        self.daemon = Some(Running(command.spawn().unwrap()));
        let until = Instant::now() + Duration::from_secs(60);
        while ask_status(&self.admin()).is_err() {
            assert!(Instant::now() < until, "vgpud does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn admin(&self) -> PathBuf {
        self.path("run/admin.sock")
    }

    fn start_driver(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-k8s"));
        command.args(["dra", "--node-name", "node-a", "--api-server", &self.url]).arg("--socket").arg(self.admin());
        command.arg("--kubelet-dir").arg(self.path("kubelet")).arg("--cdi-dir").arg(self.path("cdi"));
        command.arg("--library").arg(built("libvgpu.so")).arg("--state-dir").arg(self.path("k8s"));
        command.arg("--service-account").arg(self.path("account")).args(&self.options);
        command.stderr(fs::OpenOptions::new().create(true).append(true).open(self.path("driver.log")).unwrap());
        self.driver = Some(Running(command.spawn().unwrap()));
    }

    fn kill_driver(&mut self) {
        self.driver = None;
        // The kubelet sees sockets that nobody serves; the test waits for new ones.
        let _ = fs::remove_file(self.path(&format!("kubelet/plugins_registry/{}-reg.sock", self.name)));
    }

    /// Asks a socket in the registry as the kubelet does, and connects to the driver that it names.
    async fn registry(&self) -> DraClient<Channel> {
        let socket = self.path(&format!("kubelet/plugins_registry/{}-reg.sock", self.name));
        let address = format!("unix://{}", socket.display());
        let mut watcher = None;
        eventually("the driver is in the registry", async || {
            watcher = RegistrationClient::connect(address.clone()).await.ok();
            watcher.is_some()
        })
        .await;
        let mut watcher = watcher.unwrap();
        let info = watcher.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((&*info.kind, &*info.name), ("DRAPlugin", self.name));
        assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        watcher.notify_registration_status(status).await.unwrap();
        DraClient::connect(format!("unix://{}", info.endpoint)).await.unwrap()
    }

    async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        let request = NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let mut client = self.registry().await;
        let mut answer = client.node_prepare_resources(request).await.map_err(|why| why.to_string())?.into_inner();
        let answer = answer.claims.remove(&claim.uid).expect("an answer for the claim");
        if answer.error.is_empty() { Ok(answer.devices) } else { Err(answer.error) }
    }

    async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut client = self.registry().await;
        let mut answer = client.node_unprepare_resources(request).await.map_err(|why| why.to_string())?.into_inner();
        let answer = answer.claims.remove(&claim.uid).expect("an answer for the claim");
        if answer.error.is_empty() { Ok(()) } else { Err(answer.error) }
    }

    /// Puts a claim at the API server, as the scheduler leaves it.
    fn allocate(&self, uid: &str, results: Value) -> Claim {
        let name = format!("train-{}", &uid[..2]);
        self.api.put(
            &format!("/apis/resource.k8s.io/v1/namespaces/lab/resourceclaims/{name}"),
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": { "name": name, "namespace": "lab", "uid": uid },
                "status": {
                    "allocation": { "devices": { "results": results } },
                    "reservedFor": [{ "resource": "pods", "name": "train-0", "uid": "uid-of-the-pod" }],
                },
            }),
        );
        Claim { namespace: "lab".into(), uid: uid.into(), name }
    }

    fn status(&self) -> DaemonStatus {
        ask_status(&self.admin()).unwrap()
    }

    /// Names of the tenants of claims.
    fn claimed(&self) -> BTreeSet<String> {
        let tenants = self.status().tenants.into_iter().filter(|tenant| !tenant.removed);
        tenants.map(|tenant| tenant.name).filter(|name| name != "file").collect()
    }

    /// Names of the tenants in the driver's list of prepared claims.
    fn prepared(&self) -> BTreeSet<String> {
        let file = fs::read(self.path("k8s/dra-vgpu.internal.json")).unwrap_or_else(|_| b"{}".to_vec());
        let file: Value = serde_json::from_slice(&file).unwrap();
        let claims = file["claims"].as_object().cloned().unwrap_or_default();
        claims.keys().map(|uid| format!("claim-{uid}")).collect()
    }

    fn cdi_files(&self) -> BTreeSet<String> {
        fs::read_dir(self.path("cdi")).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn slice(&self) -> Option<Value> {
        self.api.object(&format!("{SLICES}/node-a-{}", self.name))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("driver.log")).unwrap()
    }
}

/// A UID that begins with a number.
fn uid(number: u32) -> String {
    format!("{number:02x}7b2a91-4c5d-4e6f-8a9b-0c1d2e3f4a5b")
}

/// A share of a device, as the scheduler writes it.
fn share(driver: &str, device: &str, memory: &str, cores: &str) -> Value {
    json!({
        "request": "gpu", "driver": driver, "pool": "node-a", "device": device,
        "shareID": "a671734a-e8e5-11e4-8fde-42010af09327",
        "consumedCapacity": { "memory": memory, "cores": cores },
    })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < until, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Engine: DRA driver (not run on a real kubelet), ours: view
#[tokio::test]
async fn a_claim_becomes_a_tenant_with_its_consumed_capacity_and_ends_with_it() {
    let node = Node::start().await;
    let claim = node.allocate(&uid(1), json!([share("vgpu.internal", "gpu-1", "5Gi", "25")]));
    let devices = node.prepare(&claim).await.unwrap();
    assert_eq!((&*devices[0].pool_name, &*devices[0].device_name), ("node-a", "gpu-1"));
    assert_eq!(devices[0].cdi_device_ids, [format!("vgpu.internal/claim={}", uid(1))]);
    assert_eq!(devices[0].share_id.as_deref(), Some("a671734a-e8e5-11e4-8fde-42010af09327"));
    let status = node.status();
    let tenant = status.tenants.iter().find(|tenant| tenant.name == format!("claim-{}", uid(1))).unwrap();
    assert_eq!(tenant.memory_limit, Some(5 << 30));
    assert_eq!(tenant.devices.len(), 1);
    assert_eq!((&*tenant.devices[0].device, tenant.devices[0].sm_request), ("1", Some(25.0)));
    assert_eq!(tenant.devices[0].sm_limit, None);
    for (name, value) in [("namespace", "lab"), ("pod", "train-0"), ("claim", "train-01")] {
        assert_eq!(tenant.bearer.labels[name], value);
    }
    // The runtime reads the CDI file, and mounts what is there.
    let spec = fs::read_to_string(node.path(&format!("cdi/vgpu.internal-claim-{}.json", uid(1)))).unwrap();
    let spec: Value = serde_json::from_str(&spec).unwrap();
    let device = &spec["devices"][0];
    assert_eq!(
        format!("{}={}", spec["kind"].as_str().unwrap(), device["name"].as_str().unwrap()),
        devices[0].cdi_device_ids[0]
    );
    for mount in device["containerEdits"]["mounts"].as_array().unwrap() {
        let host = Path::new(mount["hostPath"].as_str().unwrap());
        assert!(host.exists(), "{} is mounted and not there", host.display());
    }
    let env = device["containerEdits"]["env"].to_string();
    assert!(env.contains("NVIDIA_VISIBLE_DEVICES=GPU-") && env.contains("VGPU_SOCKET="), "{env}");
    // A program of the claim sees its limit.
    let mut program = node.command(built("example-view"));
    program.env("LD_PRELOAD", built("libvgpu.so")).env("VGPU_SOCKET", &tenant.socket);
    let output = program.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("5.0 GiB") || shown.contains("5 GiB") || shown.contains("5120"), "{shown} {output:?}");
    node.unprepare(&claim).await.unwrap();
    assert!(node.claimed().is_empty() && node.cdi_files().is_empty());
    // The kubelet may repeat it.
    node.unprepare(&claim).await.unwrap();
}

#[tokio::test]
async fn a_claim_is_prepared_once_however_often_it_is_asked_for_and_a_driver_that_starts_knows_it() {
    let mut node = Node::start().await;
    let claim = node.allocate(&uid(1), json!([share("vgpu.internal", "gpu-0", "5Gi", "25")]));
    let first = node.prepare(&claim).await.unwrap();
    assert_eq!(node.prepare(&claim).await.unwrap(), first);
    assert_eq!(node.claimed().len(), 1);
    node.kill_driver();
    // A pod that runs keeps its file and its tenant, and a restart of the kubelet needs no API server.
    node.api.set_down(true);
    fs::remove_file(node.path(&format!("cdi/vgpu.internal-claim-{}.json", uid(1)))).unwrap();
    node.start_driver();
    node.registry().await;
    assert_eq!((node.claimed().len(), node.cdi_files().len()), (1, 1), "a container that starts again needs its file");
    assert_eq!(node.prepare(&claim).await.unwrap(), first);
    // A second driver of the name would remove the tenants of the first.
    let before = node.driver.take();
    node.start_driver();
    let mut second = node.driver.take().unwrap();
    let mut ended = None;
    eventually("the second driver ends", async || {
        ended = second.0.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert_eq!(ended.unwrap().code(), Some(1), "{}", node.log());
    assert!(node.log().contains("another vgpu-k8s serves the driver vgpu.internal"), "{}", node.log());
    node.driver = before;
    node.unprepare(&claim).await.unwrap();
    assert!(node.claimed().is_empty());
}

#[tokio::test]
async fn what_a_killed_driver_left_half_done_is_removed_before_the_kubelet_sees_the_next_one() {
    let mut node = Node::new();
    // Killed after the tenant and its file, before the checkpoint. Another driver's and a command's tenants stay.
    let labels = |driver: &str, claim: &str| {
        [("dra-driver", driver), ("dra-claim", claim)].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    for (name, labels) in [
        ("claim-half", labels("vgpu.internal", "half")),
        ("claim-other", labels("limits.vgpu.internal", "other")),
        ("job", [].into()),
    ] {
        let section = vgpu_config::added::TenantSection {
            name: name.into(),
            memory_limit: Some("1GiB".into()),
            labels,
            ..Default::default()
        };
        let ask =
            ControlCommand::Add { section: Box::new(section), pid: None, seconds: None, replace: false, waits: false };
        ask_daemon(&node.admin(), &ask).unwrap();
    }
    for file in ["vgpu.internal-claim-half.json", "limits.vgpu.internal-claim-other.json", "nvidia.yaml"] {
        fs::write(node.path("cdi").join(file), "{}").unwrap();
    }
    node.start_driver();
    node.registry().await;
    assert_eq!(node.claimed(), ["claim-other".to_owned(), "job".to_owned()].into());
    let left = ["limits.vgpu.internal-claim-other.json".to_owned(), "nvidia.yaml".to_owned()];
    assert_eq!(node.cdi_files(), left.into());
}

#[tokio::test]
async fn a_driver_that_is_killed_at_any_moment_leaks_nothing() {
    let mut node = Node::start().await;
    let claims: Vec<Claim> = (0..8_u32)
        .map(|number| node.allocate(&uid(number), json!([share("vgpu.internal", "gpu-1", "1Gi", "5")])))
        .collect();
    let mut seed = fastrand_seed();
    for round in 0..12_u64 {
        // The kubelet prepares all of them at once; the driver dies meanwhile.
        let mut client = node.registry().await;
        let request = NodePrepareResourcesRequest { claims: claims.clone() };
        let call = tokio::spawn(async move { client.node_prepare_resources(request).await });
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
        tokio::time::sleep(Duration::from_micros(seed >> 50)).await;
        node.kill_driver();
        let _ = call.await.unwrap();
        node.start_driver();
        // Nobody may ask again: what was not prepared to the end is gone, and the rest is whole.
        node.registry().await;
        let prepared = node.prepared();
        assert_eq!(node.claimed(), prepared, "round {round}");
        assert_eq!(node.cdi_files().len(), prepared.len(), "round {round}: {:?}", node.cdi_files());
        // A kubelet that asks again gets all of them, and then ends all of them while the driver dies again.
        for claim in &claims {
            node.prepare(claim).await.unwrap();
        }
        assert_eq!(node.claimed().len(), claims.len(), "round {round}");
        let mut client = node.registry().await;
        let request = NodeUnprepareResourcesRequest { claims: claims.clone() };
        let call = tokio::spawn(async move { client.node_unprepare_resources(request).await });
        tokio::time::sleep(Duration::from_micros(seed >> 51)).await;
        node.kill_driver();
        let _ = call.await.unwrap();
        node.start_driver();
        for claim in &claims {
            node.unprepare(claim).await.unwrap();
        }
        assert!(node.claimed().is_empty() && node.cdi_files().is_empty(), "round {round}: {:?}", node.claimed());
    }
}

/// Another number for each run.
fn fastrand_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = u64::from(now.subsec_nanos()) | 1;
    eprintln!("seed {seed}");
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Engine: DRA driver (not run on a real kubelet), ours: refused
#[tokio::test]
async fn a_claim_that_cannot_be_held_to_its_share_is_refused_with_words_and_leaves_nothing() {
    let node = Node::start().await;
    let refused = async |number, results| {
        let claim = node.allocate(&uid(number), results);
        node.prepare(&claim).await.unwrap_err()
    };
    let mut unlimited = share("vgpu.internal", "gpu-1", "5Gi", "25");
    unlimited["consumedCapacity"] = json!({});
    let words = refused(1, json!([unlimited])).await;
    assert!(words.contains("no consumedCapacity of memory"), "{words}");
    let words = refused(2, json!([share("vgpu.internal", "gpu-7", "5Gi", "25")])).await;
    assert!(words.contains("no device node-a/gpu-7"), "{words}");
    let words = refused(3, json!([share("vgpu.internal", "gpu-1", "900Gi", "25")])).await;
    assert!(words.contains("vgpud") && words.contains("900"), "{words}");
    let gone = Claim { namespace: "lab".into(), uid: uid(4), name: "never".into() };
    assert!(node.prepare(&gone).await.unwrap_err().contains("the claim is gone"));
    let again = node.allocate(&uid(5), json!([share("vgpu.internal", "gpu-1", "5Gi", "25")]));
    let words = node.prepare(&Claim { uid: uid(6), ..again.clone() }).await.unwrap_err();
    assert!(words.contains("made again"), "{words}");
    let path = Claim { uid: "../../x".into(), ..again };
    assert!(node.prepare(&path).await.unwrap_err().contains("accepted: letters"));
    assert!(node.claimed().is_empty() && node.cdi_files().is_empty(), "{:?}", node.claimed());
}

#[tokio::test]
async fn a_companion_limits_what_another_driver_shares_and_injects_nothing_else() {
    let mut node = Node::new();
    node.options = vec!["--companion-of".into(), "gpu.nvidia.com".into()];
    node.name = "limits.vgpu.internal";
    let uuid = node.status().devices[1].uuid.clone().unwrap();
    let theirs = json!({
        "metadata": { "name": "node-a-gpu.nvidia.com-x" },
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": { "name": "node-a" },
            "devices": [{ "name": "gpu-1", "attributes": { "uuid": { "string": uuid } } }],
        },
    });
    node.api.put(&format!("{SLICES}/node-a-gpu.nvidia.com-x"), theirs);
    node.start_driver();
    node.registry().await;
    eventually("the slice is published", async || node.slice().is_some()).await;
    let devices = node.slice().unwrap()["spec"]["devices"].clone();
    assert_eq!(devices.as_array().unwrap().len(), 1);
    assert_eq!((&devices[0]["name"], &devices[0]["capacity"]), (&json!("limits"), &Value::Null));
    let mut limits = share("limits.vgpu.internal", "limits", "0", "0");
    limits["request"] = json!("limits");
    limits.as_object_mut().unwrap().remove("consumedCapacity");
    let claim = node.allocate(&uid(1), json!([share("gpu.nvidia.com", "gpu-1", "5Gi", "25"), limits]));
    let prepared = node.prepare(&claim).await.unwrap();
    assert_eq!((prepared.len(), &*prepared[0].request_names[0]), (1, "limits"), "only its own device is answered for");
    let status = node.status();
    let tenant = status.tenants.iter().find(|tenant| tenant.name == format!("claim-{}", uid(1))).unwrap();
    assert_eq!((tenant.memory_limit, tenant.devices[0].sm_request), (Some(5 << 30), Some(25.0)));
    let held = status.devices.iter().find(|device| device.name == tenant.devices[0].device).unwrap();
    assert_eq!(held.uuid.as_deref(), Some(&*uuid));
    let file = node.cdi_files().into_iter().next().unwrap();
    let spec = fs::read_to_string(node.path("cdi").join(file)).unwrap();
    assert!(spec.contains("VGPU_SOCKET") && !spec.contains("NVIDIA_VISIBLE_DEVICES"), "{spec}");
    // NVIDIA's driver gave a whole device: nothing to hold it to.
    let mut whole = share("gpu.nvidia.com", "gpu-1", "5Gi", "25");
    whole.as_object_mut().unwrap().remove("consumedCapacity");
    let claim = node.allocate(&uid(2), json!([whole]));
    assert!(node.prepare(&claim).await.unwrap_err().contains("no consumedCapacity"));
}

#[tokio::test]
async fn the_slice_has_what_is_left_for_claims_and_is_published_again_if_it_is_gone() {
    let mut node = Node::start().await;
    eventually("the slice is published", async || node.slice().is_some()).await;
    let slice = node.slice().unwrap();
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "uid-of-node-a");
    let memory = |slice: &Value, device: usize| slice["spec"]["devices"][device]["capacity"]["memory"]["value"].clone();
    let whole = node.status().devices[1].memory.unwrap() >> 20;
    assert_eq!(memory(&slice, 1), json!(format!("{whole}Mi")));
    assert_eq!(memory(&slice, 0), json!(format!("{}Mi", whole - 4096)), "the tenant of the file keeps its memory");
    assert_eq!(slice["spec"]["devices"][0]["capacity"]["cores"]["value"], "90");
    assert_eq!(slice["spec"]["devices"][0]["allowMultipleAllocations"], true);
    // The scheduler subtracts what claims consume: the driver must not do it again.
    let claim = node.allocate(&uid(1), json!([share("vgpu.internal", "gpu-1", "5Gi", "25")]));
    node.prepare(&claim).await.unwrap();
    // Another promise of the file is subtracted.
    fs::write(node.path("vgpud.toml"), FILE.replace("4GiB", "6GiB")).unwrap();
    let pid = node.daemon.as_ref().unwrap().0.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    let smaller = json!(format!("{}Mi", whole - 6144));
    eventually("the slice is smaller", async || memory(&node.slice().unwrap(), 0) == smaller).await;
    assert_eq!(memory(&node.slice().unwrap(), 1), json!(format!("{whole}Mi")));
    assert_eq!(node.slice().unwrap()["spec"]["pool"]["generation"], 2);
    // A kubelet that starts removes the slices of its node, and registers the driver again.
    node.api.remove(&format!("{SLICES}/node-a-vgpu.internal"));
    node.registry().await;
    eventually("the slice is published again", async || node.slice().is_some()).await;
    node.daemon = None;
    let is_empty = |node: &Node| node.slice().unwrap()["spec"]["devices"] == json!([]);
    eventually("no pod comes where vgpud is silent", async || is_empty(&node)).await;
    let other = node.allocate(&uid(2), json!([share("vgpu.internal", "gpu-1", "5Gi", "25")]));
    for claim in [&claim, &other] {
        let words = node.prepare(claim).await.unwrap_err();
        assert!(words.contains("vgpud at"), "{words}");
    }
    // A pod that ends keeps its claim until its tenant is known to be gone.
    assert!(node.unprepare(&claim).await.unwrap_err().contains("vgpud at"));
    node.start_daemon();
    node.unprepare(&claim).await.unwrap();
    eventually("pods come again", async || !is_empty(&node)).await;
}

/// A certificate for this machine, signed by itself.
fn certificate() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap()
}

#[tokio::test]
async fn the_token_goes_only_to_a_server_with_the_clusters_certificate() {
    let (trusted, stranger) = (certificate(), certificate());
    let tls = |key: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let chain = vec![key.cert.der().clone()];
        let secret = rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
        let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into());
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(chain, secret).unwrap());
        move |stream: TcpStream| {
            rustls::StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), stream)
        }
    };
    let api = ApiStub::default();
    let (good, bad) = (api.serve(tls(&trusted)), api.serve(tls(&stranger)));
    let mut node = Node::beside(api, format!("https://127.0.0.1:{bad}"));
    fs::write(node.path("account/ca.crt"), trusted.cert.pem()).unwrap();
    node.start_driver();
    eventually("the stranger is refused", async || node.log().contains("cannot be published")).await;
    assert_eq!(node.api.requests(), Vec::<String>::new(), "the stranger got a request");
    node.kill_driver();
    node.url = format!("https://127.0.0.1:{good}");
    node.start_driver();
    eventually("the slice is published", async || node.slice().is_some()).await;
    // The cluster replaces tokens: a driver with an old one is refused, and takes the new one.
    fs::write(node.path("account/token"), "an old one").unwrap();
    let claim = node.allocate(&uid(1), json!([share("vgpu.internal", "gpu-0", "5Gi", "25")]));
    assert!(node.prepare(&claim).await.unwrap_err().contains("status 401: Unauthorized"));
    fs::write(node.path("account/token"), TOKEN).unwrap();
    node.prepare(&claim).await.unwrap();
}

/// Python with the schemas of Kubernetes (`tests/setup/kubernetes`); `None`: they are not here.
fn schemas() -> Option<PathBuf> {
    let checkout = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let written = fs::read_to_string(checkout.join(".cache/test.env")).unwrap_or_default();
    let from_file = || written.lines().find_map(|line| line.strip_prefix("VGPU_KUBERNETES_PYTHON=")).map(PathBuf::from);
    let found = std::env::var_os("VGPU_KUBERNETES_PYTHON").map(PathBuf::from).or_else(from_file);
    let found = found.filter(|python| python.exists());
    if found.is_none() {
        eprintln!("SKIPPED: schemas of Kubernetes (run tests/setup/kubernetes)");
        let is_required = std::env::var_os("VGPU_REQUIRE_ALL").is_some_and(|value| value == "1");
        assert!(!is_required, "required and missing: schemas of Kubernetes");
    }
    found
}

#[tokio::test]
async fn the_manifests_and_the_published_slices_have_the_form_of_kubernetes_1_37() {
    let Some(python) = schemas() else { return };
    let mut node = Node::start().await;
    eventually("the slice is published", async || node.slice().is_some()).await;
    fs::write(node.path("own.yaml"), node.slice().unwrap().to_string()).unwrap();
    node.kill_driver();
    node.options = vec!["--companion-of".into(), "gpu.nvidia.com".into()];
    node.name = "limits.vgpu.internal";
    node.start_driver();
    eventually("the companion's slice is published", async || node.slice().is_some()).await;
    fs::write(node.path("companion.yaml"), node.slice().unwrap().to_string()).unwrap();
    let check = |files: &[PathBuf]| {
        let mut command = Command::new(&python);
        command.args(["-m", "kubernetes_validate", "--strict", "-k", "1.37"]).args(files).output().unwrap()
    };
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    let mut files: Vec<PathBuf> = fs::read_dir(manifests)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    assert!(files.len() >= 3, "{files:?}");
    files.extend(["own.yaml", "companion.yaml"].map(|name| node.path(name)));
    let output = check(&files);
    assert!(output.status.success(), "{output:?}");
    // A key that no schema has is found.
    let wrong = fs::read_to_string(node.path("own.yaml")).unwrap().replace("requestPolicy", "requestPolicies");
    fs::write(node.path("wrong.yaml"), wrong).unwrap();
    assert!(!check(&[node.path("wrong.yaml")]).status.success());
}
