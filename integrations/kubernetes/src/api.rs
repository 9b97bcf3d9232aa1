//! Messages and services of the kubelet and of container runtimes. Names and numbers of fields are those of Kubernetes'
//! published interfaces; fields that this program neither sets nor reads are absent.

pub mod device_plugin;
pub mod dra;
pub mod nri;
pub mod plugin_registration;
pub mod pod_resources;

/// Client and server of the kubelet's registration, version v1beta1.
pub mod registration {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.Registration.rs"));
}

/// Client and server of a device plugin, version v1beta1.
pub mod plugin {
    include!(concat!(env!("OUT_DIR"), "/v1beta1.DevicePlugin.rs"));
}

/// Client and server of the kubelet's list of pods and their devices, version v1.
pub mod lister {
    include!(concat!(env!("OUT_DIR"), "/v1.PodResourcesLister.rs"));
}

/// Client and server of the registration of plugins that a kubelet finds by their sockets.
pub mod watcher {
    include!(concat!(env!("OUT_DIR"), "/pluginregistration.Registration.rs"));
}

/// Client and server of a DRA driver on a node, version v1.
pub mod claims {
    include!(concat!(env!("OUT_DIR"), "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.rs"));

    pub use d_r_a_plugin_client::DRAPluginClient as DraClient;
    pub use d_r_a_plugin_server::{DRAPlugin as DraService, DRAPluginServer as DraServer};
}
