//! Messages between the kubelet and a plugin whose socket it found in its registry (`pluginregistration/v1`).

use prost::Message;

/// Kind of plugin that drives devices of claims.
pub const DRA_PLUGIN: &str = "DRAPlugin";

/// Asks a plugin what it is.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct InfoRequest {}

/// A plugin.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginInfo {
    /// [`DRA_PLUGIN`].
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Path of the socket where the plugin takes calls.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    /// Names of the services at the endpoint.
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

/// Tells a plugin whether the kubelet uses it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegistrationStatus {
    /// True if the kubelet uses it.
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    /// Why it does not.
    #[prost(string, tag = "2")]
    pub error: String,
}

/// An answer without content.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RegistrationStatusResponse {}
