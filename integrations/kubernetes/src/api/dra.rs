//! Messages between the kubelet and a DRA driver on its node (`dra/v1`).

use std::collections::HashMap;

use prost::Message;

/// Name of the service, as the driver registers it.
pub const DRA_SERVICE: &str = "v1.DRAPlugin";

/// Claims whose devices a pod is about to use.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodePrepareResourcesRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// A claim, by name.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Claim {
    /// Namespace of the claim.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// UID of the claim.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// Name of the claim.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// The result for each claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodePrepareResourcesResponse {
    /// Answers by the UID of the claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodePrepareResourceResponse>,
}

/// A claim that is prepared, or why it is not.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodePrepareResourceResponse {
    /// Its devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    /// Why it is not prepared; empty: it is.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// A device of a claim.
#[derive(Clone, PartialEq, Eq, Message, serde::Serialize, serde::Deserialize)]
pub struct Device {
    /// Requests of the claim that the device is for.
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    /// Pool of the device.
    #[prost(string, tag = "2")]
    pub pool_name: String,
    /// Name of the device in its pool.
    #[prost(string, tag = "3")]
    pub device_name: String,
    /// CDI devices that a container of the claim gets.
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    /// The share of the device, if it is shared between claims.
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

/// Claims that no pod of the node uses any more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeUnprepareResourcesRequest {
    /// The claims.
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// The result for each claim.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeUnprepareResourcesResponse {
    /// Answers by the UID of the claim.
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, NodeUnprepareResourceResponse>,
}

/// A claim that is unprepared, or why it is not.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeUnprepareResourceResponse {
    /// Why it is not unprepared; empty: it is.
    #[prost(string, tag = "1")]
    pub error: String,
}
