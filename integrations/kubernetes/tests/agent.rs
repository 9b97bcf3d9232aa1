//! The agent between a real vgpud and a kubelet that this test plays.

#[path = "stubs/programs.rs"]
mod programs;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use programs::{Running, built};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use vgpu_kubernetes::api::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty, PreStartContainerRequest,
    PreferredAllocationRequest, RegisterRequest,
};
use vgpu_kubernetes::api::lister::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use vgpu_kubernetes::api::plugin::device_plugin_client::DevicePluginClient;
use vgpu_kubernetes::api::pod_resources::{
    ContainerDevices, ContainerResources, ListRequest, ListResponse, PodResources,
};
use vgpu_kubernetes::api::registration::registration_server::{Registration, RegistrationServer};

/// The half of the kubelet that plugins register with.
#[derive(Debug, Clone, Default)]
struct Kubelet {
    registered: Arc<Mutex<Vec<RegisterRequest>>>,
    /// Pods that have ended.
    is_empty: Arc<Mutex<bool>>,
}

#[tonic::async_trait]
impl Registration for Kubelet {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.registered.lock().unwrap().push(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Kubelet {
    async fn list(&self, _request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        if *self.is_empty.lock().unwrap() {
            return Ok(Response::new(ListResponse::default()));
        }
        let devices =
            vec![ContainerDevices { resource_name: "vgpu.internal/quarter".into(), device_ids: vec!["q-1".into()] }];
        let containers = vec![ContainerResources { name: "main".into(), devices }];
        let pod_resources = vec![PodResources { name: "train".into(), namespace: "lab".into(), containers }];
        Ok(Response::new(ListResponse { pod_resources }))
    }
}

struct Node {
    dir: TempDir,
    kubelet: Kubelet,
    served: JoinHandle<()>,
    daemon: Option<Running>,
    agent: Option<Running>,
}

const FILE: &str = "[[device]]\nid = 0\nmemory = \"16GiB\"\n\
    [[tenant]]\nname = \"q\"\nreplicas = 4\ndevices = [0]\nlabels = { kubernetes = \"quarter\" }\n";

impl Node {
    async fn start(file: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::create_dir_all(dir.path().join("plugins")).unwrap();
        fs::write(dir.path().join("libvgpu.so"), "").unwrap();
        fs::write(dir.path().join("vgpud.toml"), file).unwrap();
        let kubelet = Kubelet::default();
        let served = serve_kubelet(dir.path(), &kubelet);
        let mut node = Self { dir, kubelet, served, daemon: None, agent: None };
        node.start_daemon();
        node.start_agent();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start_daemon(&mut self) {
        let mut command = Command::new(built("vgpud"));
        command.arg("--config").arg(self.path("vgpud.toml")).args(["--driver", "none", "--log", "off"]);
        command.arg("--runtime-dir").arg(self.path("run")).args(["--state-dir", "none"]).stderr(Stdio::null());
        self.daemon = Some(Running(command.spawn().unwrap()));
    }

    fn start_agent(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-k8s"));
        command.arg("device-plugin").arg("--socket").arg(self.path("run/admin.sock"));
        command.arg("--kubelet-dir").arg(self.path("plugins")).arg("--pod-resources").arg(self.path("pods.sock"));
        command.arg("--library").arg(self.path("libvgpu.so")).arg("--state-dir").arg(self.path("k8s"));
        command.stderr(fs::OpenOptions::new().create(true).append(true).open(self.path("agent.log")).unwrap());
        self.agent = Some(Running(command.spawn().unwrap()));
    }

    fn registered(&self) -> Vec<String> {
        self.kubelet.registered.lock().unwrap().iter().map(|it| it.resource_name.clone()).collect()
    }

    async fn await_registrations(&self, count: usize) {
        eventually(&format!("{count} registrations"), async || self.registered().len() >= count).await;
    }

    /// Labels of a tenant, as the daemon tells them.
    fn labels(&self, tenant: &str) -> String {
        let status = vgpu_control::ask_status(&self.path("run/admin.sock")).unwrap();
        status.tenants.iter().find(|here| here.name == tenant).unwrap().bearer.labels_column()
    }

    async fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        let socket = self.path(&format!("plugins/vgpu-{resource}.sock"));
        DevicePluginClient::connect(format!("unix://{}", socket.display())).await.unwrap()
    }

    async fn devices(&self, resource: &str) -> Vec<String> {
        let mut stream = self.plugin(resource).await.list_and_watch(Empty {}).await.unwrap().into_inner();
        let first = stream.next().await.unwrap().unwrap();
        first.devices.into_iter().map(|device| format!("{} {}", device.id, device.health)).collect()
    }
}

fn serve_kubelet(dir: &Path, kubelet: &Kubelet) -> JoinHandle<()> {
    let bind = |name: &str| {
        let path = dir.join(name);
        let _ = fs::remove_file(&path);
        UnixListenerStream::new(UnixListener::bind(path).unwrap())
    };
    let (plugins, pods) = (bind("plugins/kubelet.sock"), bind("pods.sock"));
    let registration = Server::builder().add_service(RegistrationServer::new(kubelet.clone()));
    let lister = Server::builder().add_service(PodResourcesListerServer::new(kubelet.clone()));
    tokio::spawn(async move {
        let _ = tokio::join!(registration.serve_with_incoming(plugins), lister.serve_with_incoming(pods));
    })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < until, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn tenants_become_devices_and_a_container_gets_its_tenant_before_it_starts() {
    let node = Node::start(FILE).await;
    node.await_registrations(1).await;
    assert_eq!(node.registered(), ["vgpu.internal/quarter"]);
    assert_eq!(node.devices("quarter").await, ["q-0 Healthy", "q-1 Healthy", "q-2 Healthy", "q-3 Healthy"]);
    let mut plugin = node.plugin("quarter").await;
    let choice = ContainerPreferredAllocationRequest {
        available_device_ids: vec!["q-3".into(), "q-2".into()],
        must_include_device_ids: Vec::new(),
        allocation_size: 1,
    };
    let preferred =
        plugin.get_preferred_allocation(PreferredAllocationRequest { container_requests: vec![choice] }).await.unwrap();
    assert_eq!(preferred.into_inner().container_responses[0].device_ids, ["q-2"]);
    let allocate = |ids: &[&str]| {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        AllocateRequest { container_requests: vec![ContainerAllocateRequest { device_ids }] }
    };
    let answer = plugin.allocate(allocate(&["q-1"])).await.unwrap().into_inner().container_responses.remove(0);
    assert_eq!(answer.envs["VGPU_SOCKET"], "/run/vgpu-tenant/vgpud.sock");
    let hosts: Vec<&Path> = answer.mounts.iter().map(|mount| Path::new(&mount.host_path)).collect();
    for host in &hosts {
        assert!(host.exists(), "{} is mounted and not there", host.display());
    }
    assert_eq!(fs::read_to_string(hosts[1]).unwrap(), "/vgpu/libvgpu.so\n");
    let refused = plugin.allocate(allocate(&["q-1", "q-2"])).await.unwrap_err();
    assert!(refused.message().contains("gets 2 slices; accepted: one"), "{refused:?}");
    plugin.pre_start_container(PreStartContainerRequest { device_ids: vec!["q-1".into()] }).await.unwrap();
    let log = fs::read_to_string(node.path("agent.log")).unwrap();
    assert!(log.contains("namespace=\"lab\" pod=\"train\" container=\"main\""), "{log}");
}

#[tokio::test]
async fn a_slice_has_the_labels_of_its_pod_from_before_its_start_to_its_end() {
    let mut node = Node::start(FILE).await;
    node.await_registrations(1).await;
    let before = node.labels("q-1");
    let mut plugin = node.plugin("quarter").await;
    plugin.pre_start_container(PreStartContainerRequest { device_ids: vec!["q-1".into()] }).await.unwrap();
    let of_pod = r#"{"container":"main","kubernetes":"quarter","namespace":"lab","pod":"train"}"#;
    assert_eq!(node.labels("q-1"), of_pod);
    assert_eq!(node.labels("q-0"), before, "the slice of nobody");
    // This daemon keeps no state, so another one knows no labels until the agent sets them again.
    node.daemon = None;
    node.start_daemon();
    eventually("it has its labels again", async || {
        vgpu_control::ask_status(&node.path("run/admin.sock")).is_ok() && node.labels("q-1") == of_pod
    })
    .await;
    *node.kubelet.is_empty.lock().unwrap() = true;
    eventually("the pod has ended", async || node.labels("q-1") == before).await;
}

#[tokio::test]
async fn a_kubelet_that_starts_anew_and_an_agent_that_was_killed_are_known_again() {
    let mut node = Node::start(FILE).await;
    node.await_registrations(1).await;
    node.served.abort();
    // A kubelet that starts empties its directory.
    for entry in fs::read_dir(node.path("plugins")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    node.served = serve_kubelet(node.dir.path(), &node.kubelet);
    node.await_registrations(2).await;
    assert_eq!(node.devices("quarter").await.len(), 4);
    node.agent = None;
    node.start_agent();
    node.await_registrations(3).await;
    assert_eq!(node.devices("quarter").await.len(), 4);
}

#[tokio::test]
async fn slices_of_a_daemon_that_is_gone_are_not_given_away_and_come_back_with_it() {
    let mut node = Node::start(FILE).await;
    node.await_registrations(1).await;
    let mut plugin = node.plugin("quarter").await;
    let start = || PreStartContainerRequest { device_ids: vec!["q-0".into()] };
    plugin.pre_start_container(start()).await.unwrap();
    node.daemon = None;
    assert!(plugin.pre_start_container(start()).await.is_err(), "a container would start without its tenant");
    let has = async |health: &str| node.devices("quarter").await.iter().all(|device| device.ends_with(health));
    eventually("the slices are unhealthy", async || has("Unhealthy").await).await;
    let has_come_back =
        async |node: &Node| node.devices("quarter").await.iter().all(|device| device.ends_with(" Healthy"));
    node.start_daemon();
    eventually("the slices are healthy", async || has_come_back(&node).await).await;
    plugin.pre_start_container(start()).await.unwrap();
}

#[tokio::test]
async fn another_resource_of_a_file_that_is_read_again_is_known_and_one_that_is_gone_has_no_devices() {
    let node = Node::start(FILE).await;
    node.await_registrations(1).await;
    fs::write(node.path("vgpud.toml"), FILE.replace("quarter", "small").replace("replicas = 4", "replicas = 2"))
        .unwrap();
    let pid = node.daemon.as_ref().unwrap().0.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    node.await_registrations(2).await;
    assert_eq!(node.registered()[1], "vgpu.internal/small");
    assert_eq!(node.devices("small").await, ["q-0 Healthy", "q-1 Healthy"]);
    assert_eq!(node.devices("quarter").await, Vec::<String>::new());
}

/// Header block of a kubelet 1.20 that calls ListAndWatch: its `:authority` is the path of a socket.
const OLD_HEADERS: &[u8] = b"\x83\x86E\x99c\xb8c*F\x15\xef\x97\xb9\x88]t[1\xaac9\x90\x98j\x93\x90\xd2I\xffA\xa2c\xb8\
    \xecb\x83F\xc7[c-\x05K\x12\x17\xb9\x88U\xab\xa2\xd9\x8dR\x18\xef5v\xac\x8aGE\x0b\xa0\xe4\xeb_\x8b\x1du\xd0b\x0d&\
    =LMedz\x8a\x9a\xca\xc8\xb4\xc7`+\x89\xd5\xc3@\x02te\x86M\x835\x05\xb1\x1f";

#[tokio::test]
async fn a_kubelet_that_names_the_sockets_path_as_authority_gets_its_list() {
    let node = Node::start(FILE).await;
    node.await_registrations(1).await;
    let mut kubelet = UnixStream::connect(node.path("plugins/vgpu-quarter.sock")).unwrap();
    kubelet.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (headers, data, end_headers, end_stream) = (1, 0, 0x4, 0x1);
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    kubelet.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    kubelet.write_all(&frame(4, 0, 0, b"")).unwrap();
    kubelet.write_all(&frame(headers, end_headers, 1, OLD_HEADERS)).unwrap();
    kubelet.write_all(&frame(data, end_stream, 1, &[0; 5])).unwrap();
    // The first frame of the stream is the answer's headers, or a reset.
    let answer = loop {
        let mut header = [0; 9];
        kubelet.read_exact(&mut header).unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        kubelet.read_exact(&mut payload).unwrap();
        if header[8] == 1 {
            break header[3];
        }
    };
    assert_eq!(answer, headers, "the stream was reset");
}
