//! Owners of slices, from the kubelet's list of pods and their devices.

use std::path::Path;
use std::time::Duration;

use tokio::time::timeout;

use crate::api::lister::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::pod_resources::{ListRequest, ListResponse};

/// The container that has a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOwner {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// Longest wait for the list.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the kubelet for its pods and their devices.
///
/// # Errors
/// A message: the kubelet does not answer.
pub async fn ask_pods(socket: &Path) -> Result<ListResponse, String> {
    let asked = timeout(LIST_TIMEOUT, list_pods(socket)).await;
    asked.unwrap_or_else(|_| Err(format!("{}: no answer within {} s", socket.display(), LIST_TIMEOUT.as_secs())))
}

async fn list_pods(socket: &Path) -> Result<ListResponse, String> {
    let mut client = PodResourcesListerClient::connect(format!("unix://{}", socket.display()))
        .await
        .map_err(|why| format!("{}: {why}", socket.display()))?;
    let answer = client.list(ListRequest {}).await.map_err(|why| format!("{}: {why}", socket.display()))?;
    Ok(answer.into_inner())
}

/// Returns the container that has the slice; `None`: none.
#[must_use]
pub fn find_owner(answer: &ListResponse, resource: &str, id: &str) -> Option<SliceOwner> {
    let containers = answer.pod_resources.iter().flat_map(|pod| pod.containers.iter().map(move |one| (pod, one)));
    let mut owners = containers.filter(|(_, container)| {
        let mut here = container.devices.iter().filter(|devices| devices.resource_name == resource);
        here.any(|devices| devices.device_ids.iter().any(|here| here == id))
    });
    // An init container's slice goes to the next container of the pod; the last one that has it is the one now.
    let (pod, container) = owners.next_back()?;
    Some(SliceOwner { namespace: pod.namespace.clone(), pod: pod.name.clone(), container: container.name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod_resources::{ContainerDevices, ContainerResources, PodResources};

    #[test]
    fn the_owner_is_the_container_with_this_slice_of_this_resource() {
        let container = |name: &str, resource: &str, id: &str| ContainerResources {
            name: name.into(),
            devices: vec![ContainerDevices { resource_name: resource.into(), device_ids: vec![id.into()] }],
        };
        let pod = |name: &str, containers| PodResources { name: name.into(), namespace: "lab".into(), containers };
        let answer = ListResponse {
            pod_resources: vec![
                pod("other", vec![container("c", "vgpu.internal/half", "q-0")]),
                pod(
                    "mine",
                    vec![
                        container("init", "vgpu.internal/quarter", "q-1"),
                        container("main", "vgpu.internal/quarter", "q-0"),
                    ],
                ),
            ],
        };
        let owner = find_owner(&answer, "vgpu.internal/quarter", "q-0").unwrap();
        assert_eq!((&*owner.namespace, &*owner.pod, &*owner.container), ("lab", "mine", "main"));
        assert_eq!(find_owner(&answer, "vgpu.internal/quarter", "q-9"), None);
    }
}
