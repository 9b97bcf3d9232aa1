//! Messages of NRI, the plugin interface of container runtimes (`nri.pkg.api.v1alpha1`), and of ttrpc around them.

use std::collections::HashMap;

use prost::Message;

/// Name of the service that the runtime calls.
pub const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
/// Name of the service that plugins call.
pub const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// Event number: a pod's sandbox is removed.
pub const REMOVE_POD_SANDBOX: i32 = 3;
/// Event number: a container is about to be created.
pub const CREATE_CONTAINER: i32 = 4;
/// Event number: a container has ended, or is ended.
pub const STOP_CONTAINER: i32 = 10;
/// Event number: a container is removed.
pub const REMOVE_CONTAINER: i32 = 11;

/// State number of a container that has ended.
pub const CONTAINER_STOPPED: i32 = 4;

/// A call of ttrpc.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TtrpcRequest {
    /// Name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Name of the method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// The message.
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    /// Time until the caller gives up, in ns; 0: it does not say.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

/// An answer of ttrpc.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TtrpcResponse {
    /// Absent: it succeeded.
    #[prost(message, optional, tag = "1")]
    pub status: Option<TtrpcStatus>,
    /// The message.
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

/// A failure, as gRPC numbers them.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TtrpcStatus {
    /// Number of the kind.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// Words.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Makes a plugin known to the runtime.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterPluginRequest {
    /// Name of the plugin.
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    /// Two digits: plugins are called in their order.
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
}

/// Events that a plugin wants, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ConfigureResponse {
    /// Bit `event - 1` for each event.
    #[prost(int32, tag = "2")]
    pub events: i32,
}

/// Everything that is there when a plugin registers.
#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeRequest {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<NriPod>,
    /// The containers.
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<NriContainer>,
    /// True if a further message follows.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

/// The answer to [`SynchronizeRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SynchronizeResponse {
    /// True: the plugin takes further messages.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// An event about a pod or a container: its making, its end, and others.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerEvent {
    /// The pod.
    #[prost(message, optional, tag = "1")]
    pub pod: Option<NriPod>,
    /// The container.
    #[prost(message, optional, tag = "2")]
    pub container: Option<NriContainer>,
}

/// An event that has no call of its own.
#[derive(Clone, PartialEq, Message)]
pub struct StateChangeEvent {
    /// Number of the event.
    #[prost(int32, tag = "1")]
    pub event: i32,
    /// The pod.
    #[prost(message, optional, tag = "2")]
    pub pod: Option<NriPod>,
    /// The container; absent if the event is about a pod.
    #[prost(message, optional, tag = "3")]
    pub container: Option<NriContainer>,
}

/// Changes of a container that is made.
#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerResponse {
    /// The changes; absent: none.
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
}

/// Changes of a container.
#[derive(Clone, PartialEq, Message)]
pub struct ContainerAdjustment {
    /// Further mounts.
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<NriMount>,
    /// Further variables.
    #[prost(message, repeated, tag = "4")]
    pub env: Vec<NriVariable>,
}

/// A variable.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NriVariable {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NriPod {
    /// Identifier of its sandbox.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Its annotations.
    #[prost(map = "string, string", tag = "6")]
    pub annotations: HashMap<String, String>,
}

/// A container.
#[derive(Clone, PartialEq, Message)]
pub struct NriContainer {
    /// Its identifier.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Identifier of its pod's sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Number of its state.
    #[prost(int32, tag = "4")]
    pub state: i32,
    /// Its variables, each as `NAME=VALUE`.
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    /// Its mounts.
    #[prost(message, repeated, tag = "9")]
    pub mounts: Vec<NriMount>,
}

/// A mount.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NriMount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub destination: String,
    /// Kind: `bind`, ...
    #[prost(string, tag = "2")]
    pub r#type: String,
    /// Path on the host.
    #[prost(string, tag = "3")]
    pub source: String,
    /// Options.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}
