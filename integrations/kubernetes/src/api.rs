//! Messages and services of the kubelet and of container runtimes. Names and numbers of fields are those of Kubernetes' published interfaces;
//! fields that this program neither sets nor reads are absent.

pub mod device_plugin;
pub mod nri;
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
