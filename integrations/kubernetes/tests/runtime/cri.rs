//! The few calls of the container runtime interface (CRI, `runtime.v1`) that the tests make in the kubelet's place.
//! Names and numbers of fields are those of the published interface; fields that no test needs are absent.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// The network of a sandbox is the host's.
const NODE_NETWORK: i32 = 2;
/// State number of a container that has ended.
const EXITED: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PodConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<PodMetadata>,
    #[prost(map = "string, string", tag = "7")]
    annotations: HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxPodConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct PodMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxPodConfig {
    #[prost(message, optional, tag = "2")]
    security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
struct NamespaceOption {
    #[prost(int32, tag = "1")]
    network: i32,
}

/// Requests and answers that hold one identifier.
#[derive(Clone, PartialEq, Message)]
struct Identifier {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct CreateContainerRequest {
    #[prost(string, tag = "1")]
    pod: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pod_config: Option<PodConfig>,
}

/// A container to be made.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
    #[prost(message, repeated, tag = "6")]
    pub envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub mounts: Vec<CriMount>,
    #[prost(message, repeated, tag = "17")]
    pub cdi_devices: Vec<CdiName>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct CriMount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub readonly: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct CdiName {
    #[prost(string, tag = "1")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
struct StopContainerRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(int64, tag = "2")]
    timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<ContainerState>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerState {
    #[prost(int32, tag = "3")]
    state: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ExecRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, repeated, tag = "2")]
    command: Vec<String>,
    #[prost(int64, tag = "3")]
    timeout: i64,
}

/// Output of a command in a container.
#[derive(Clone, PartialEq, Message)]
pub struct ExecOutput {
    #[prost(bytes = "vec", tag = "1")]
    pub stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub code: i32,
}

impl PodConfig {
    /// A pod of the namespace `lab` with annotations.
    pub fn new(name: &str, annotations: &[(&str, &str)]) -> Self {
        let network = NamespaceOption { network: NODE_NETWORK };
        let security_context = SecurityContext { namespaces: Some(network) };
        Self {
            metadata: Some(PodMetadata { name: name.into(), uid: format!("uid-{name}"), namespace: "lab".into() }),
            annotations: annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            linux: Some(LinuxPodConfig { security_context: Some(security_context) }),
        }
    }
}

impl ContainerConfig {
    /// A container with the name `main` that sleeps until it is stopped.
    pub fn new(attempt: u32) -> Self {
        Self {
            metadata: Some(ContainerMetadata { name: "main".into(), attempt }),
            image: Some(ImageSpec { image: "localhost/vgpu-test:1".into() }),
            ..Self::default()
        }
    }
}

/// A client of the runtime.
#[derive(Clone)]
pub struct Cri(Channel);

impl Cri {
    pub async fn connect(socket: &Path) -> Self {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    async fn call<Q, A>(&self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|why| Status::unavailable(why.to_string()))?;
        let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{method}")).unwrap();
        Ok(grpc.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await?.into_inner())
    }

    /// Starts the sandbox of a pod, and returns its identifier.
    pub async fn run_pod(&self, config: &PodConfig) -> String {
        let request = RunPodSandboxRequest { config: Some(config.clone()) };
        self.call::<_, Identifier>("RunPodSandbox", request).await.unwrap().id
    }

    /// Stops a pod with its containers, and removes it.
    pub async fn remove_pod(&self, id: &str) {
        let pod = || Identifier { id: id.to_owned() };
        self.call::<_, Nothing>("StopPodSandbox", pod()).await.unwrap();
        self.call::<_, Nothing>("RemovePodSandbox", pod()).await.unwrap();
    }

    /// Makes a container and starts it, and returns its identifier.
    pub async fn run_container(
        &self,
        pod: &str,
        pod_config: &PodConfig,
        config: ContainerConfig,
    ) -> Result<String, Status> {
        let request =
            CreateContainerRequest { pod: pod.to_owned(), config: Some(config), pod_config: Some(pod_config.clone()) };
        let id = self.call::<_, Identifier>("CreateContainer", request).await?.id;
        self.call::<_, Nothing>("StartContainer", Identifier { id: id.clone() }).await?;
        Ok(id)
    }

    /// Kills a container and waits for its end.
    pub async fn stop_container(&self, id: &str) {
        self.call::<_, Nothing>("StopContainer", StopContainerRequest { id: id.to_owned(), timeout: 0 }).await.unwrap();
    }

    pub async fn has_ended(&self, id: &str) -> bool {
        let asked = self.call::<_, ContainerStatusResponse>("ContainerStatus", Identifier { id: id.to_owned() }).await;
        asked.is_ok_and(|answer| answer.status.is_some_and(|status| status.state == EXITED))
    }

    /// Runs a command in a container.
    pub async fn exec(&self, id: &str, command: &[&str]) -> ExecOutput {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest { id: id.to_owned(), command, timeout: 60 };
        self.call("ExecSync", request).await.unwrap()
    }
}
