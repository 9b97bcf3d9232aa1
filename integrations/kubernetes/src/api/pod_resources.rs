//! Messages of the kubelet's list of pods and their devices (`podresources/v1`).

use prost::Message;

/// Asks for all pods of the node.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ListRequest {}

/// All pods of the node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    /// The pods.
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PodResources {
    /// Name of the pod.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace of the pod.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its containers.
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerResources {
    /// Name of the container.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its devices, by resource.
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// Name of the resource.
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// The devices.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}
