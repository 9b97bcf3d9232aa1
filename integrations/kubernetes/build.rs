//! Generates clients and servers of the kubelet's gRPC services. The message shapes are in `src/api`.

use tonic_build::manual::{Builder, Method, Service};

/// A call with one answer, or with a stream of answers.
fn method(name: &str, route: &str, input: &str, output: &str, streams: bool) -> Method {
    let builder = Method::builder()
        .name(name)
        .route_name(route)
        .input_type(input)
        .output_type(output)
        .codec_path("tonic_prost::ProstCodec");
    if streams { builder.server_streaming().build() } else { builder.build() }
}

fn main() {
    let plugin = |call: &str| format!("crate::api::device_plugin::{call}");
    let one = |name: &str, route: &str, input: &str, output: &str| {
        method(name, route, &plugin(input), &plugin(output), false)
    };
    let registration = Service::builder()
        .name("Registration")
        .package("v1beta1")
        .method(one("register", "Register", "RegisterRequest", "Empty"))
        .build();
    let device_plugin = Service::builder()
        .name("DevicePlugin")
        .package("v1beta1")
        .method(one("get_device_plugin_options", "GetDevicePluginOptions", "Empty", "DevicePluginOptions"))
        .method(method("list_and_watch", "ListAndWatch", &plugin("Empty"), &plugin("ListAndWatchResponse"), true))
        .method(one(
            "get_preferred_allocation",
            "GetPreferredAllocation",
            "PreferredAllocationRequest",
            "PreferredAllocationResponse",
        ))
        .method(one("allocate", "Allocate", "AllocateRequest", "AllocateResponse"))
        .method(one("pre_start_container", "PreStartContainer", "PreStartContainerRequest", "Empty"))
        .build();
    let resources = |call: &str| format!("crate::api::pod_resources::{call}");
    let lister = Service::builder()
        .name("PodResourcesLister")
        .package("v1")
        .method(method("list", "List", &resources("ListRequest"), &resources("ListResponse"), false))
        .build();
    let known = |call: &str| format!("crate::api::plugin_registration::{call}");
    let watcher = Service::builder()
        .name("Registration")
        .package("pluginregistration")
        .method(method("get_info", "GetInfo", &known("InfoRequest"), &known("PluginInfo"), false))
        .method(method(
            "notify_registration_status",
            "NotifyRegistrationStatus",
            &known("RegistrationStatus"),
            &known("RegistrationStatusResponse"),
            false,
        ))
        .build();
    let node = |call: &str| format!("crate::api::dra::{call}");
    let claims = Service::builder()
        .name("DRAPlugin")
        .package("k8s.io.kubelet.pkg.apis.dra.v1")
        .method(method(
            "node_prepare_resources",
            "NodePrepareResources",
            &node("NodePrepareResourcesRequest"),
            &node("NodePrepareResourcesResponse"),
            false,
        ))
        .method(method(
            "node_unprepare_resources",
            "NodeUnprepareResources",
            &node("NodeUnprepareResourcesRequest"),
            &node("NodeUnprepareResourcesResponse"),
            false,
        ))
        .build();
    Builder::new().compile(&[registration, device_plugin, lister, watcher, claims]);
}
