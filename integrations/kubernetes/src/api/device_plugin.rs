//! Messages between the kubelet and a device plugin (`deviceplugin/v1beta1`).

use std::collections::HashMap;

use prost::Message;

/// Version that a plugin registers with.
pub const VERSION: &str = "v1beta1";
/// Health of a device that may be allocated.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that may not.
pub const UNHEALTHY: &str = "Unhealthy";

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Empty {}

/// Optional calls of the kubelet that the plugin wants.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DevicePluginOptions {
    /// True: `PreStartContainer` is called before each container.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// True: `GetPreferredAllocation` is called before `Allocate`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// The plugin's registration with the kubelet.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    /// Version of the API: [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// Name of the plugin's socket in the kubelet's directory.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// Name of the resource: domain, slash, name.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Calls that the plugin wants.
    #[prost(message, optional, tag = "4")]
    pub options: Option<DevicePluginOptions>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Identifier, unique within the resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// All devices of the resource.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListAndWatchResponse {
    /// The devices, the unhealthy ones too.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// Containers whose devices may be chosen.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationRequest {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerPreferredAllocationRequest>,
}

/// Devices that a container may get.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationRequest {
    /// Free devices.
    #[prost(string, repeated, tag = "1")]
    pub available_device_ids: Vec<String>,
    /// Devices that the container gets in any case.
    #[prost(string, repeated, tag = "2")]
    pub must_include_device_ids: Vec<String>,
    /// Number of devices to choose.
    #[prost(int32, tag = "3")]
    pub allocation_size: i32,
}

/// Chosen devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredAllocationResponse {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerPreferredAllocationResponse>,
}

/// Devices chosen for a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredAllocationResponse {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// Containers that get devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// Devices of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAllocateRequest {
    /// The devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}

/// The plugin's answer to [`AllocateRequest`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateResponse {
    /// One entry a container.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// Additions to one container: the kubelet makes them before the container starts.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerAllocateResponse {
    /// Environment variables.
    #[prost(map = "string, string", tag = "1")]
    pub envs: HashMap<String, String>,
    /// Mounts.
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    /// Device nodes.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
    /// Annotations for the container runtime.
    #[prost(map = "string, string", tag = "4")]
    pub annotations: HashMap<String, String>,
    /// Devices of CDI files; kubelets before 1.28 do not read them.
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

/// A mount of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// True: the container cannot write.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A device node of a container.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Path on the host.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Permitted access: letters of `r` (read), `w` (write) and `m` (create the node).
    #[prost(string, tag = "3")]
    pub permissions: String,
}

/// A device of a CDI file.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiDevice {
    /// Qualified name: `vendor/class=name`.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A container that is about to start.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreStartContainerRequest {
    /// Its devices.
    #[prost(string, repeated, tag = "1")]
    pub device_ids: Vec<String>,
}
