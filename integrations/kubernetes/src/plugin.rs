//! A device plugin of one resource: the calls of the kubelet.
//!
//! `Allocate` comes at admission, when the pod is not known, and a failure there fails the pod for good; so it only
//! names what the container gets. `PreStartContainer` comes before each start of the container, and the kubelet repeats
//! it after a failure, so the agent waits for vgpud there.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use crate::allocate::{Injection, allocate, find_slice};
use crate::api::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
    HEALTHY, ListAndWatchResponse, PreStartContainerRequest, PreferredAllocationRequest, PreferredAllocationResponse,
    UNHEALTHY,
};
use crate::api::plugin::device_plugin_server::DevicePlugin;
use crate::labels::SliceLabeller;
use crate::slices::{Placement, Slice, prefer_slices};

/// Longest wait for the tenant's socket before a container starts. The kubelet gives up after 30 s and repeats.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings that all plugins of the node share.
#[derive(Debug)]
pub struct PluginSettings {
    /// Domain of the resources.
    pub domain: String,
    /// How containers get their tenant.
    pub injection: Injection,
    /// Where new containers go.
    pub placement: Placement,
    /// Labels slices with their owners.
    pub labeller: Arc<SliceLabeller>,
}

/// The plugin of one resource.
#[derive(Debug, Clone)]
pub struct SlicePlugin {
    /// Name of the resource, without the domain.
    pub resource: String,
    /// All slices of the node.
    pub slices: watch::Receiver<Vec<Slice>>,
    /// Settings of the node.
    pub settings: Arc<PluginSettings>,
}

/// Calls of this plugin that the kubelet is told to make.
pub const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

impl SlicePlugin {
    /// Name of the resource with the domain.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.settings.domain, self.resource)
    }

    fn own_slices(&self) -> Vec<Slice> {
        own_slices(&self.slices.borrow(), &self.resource)
    }
}

fn own_slices(all: &[Slice], resource: &str) -> Vec<Slice> {
    all.iter().filter(|slice| slice.resource == resource).cloned().collect()
}

fn list(slices: &[Slice]) -> ListAndWatchResponse {
    let health = |slice: &Slice| if slice.fault.is_none() { HEALTHY } else { UNHEALTHY };
    let devices = slices.iter().map(|slice| Device { id: slice.tenant.clone(), health: health(slice).to_owned() });
    ListAndWatchResponse { devices: devices.collect() }
}

#[tonic::async_trait]
impl DevicePlugin for SlicePlugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _request: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let (mut slices, resource) = (self.slices.clone(), self.resource.clone());
        tokio::spawn(async move {
            let mut told = None;
            loop {
                let now = list(&own_slices(&slices.borrow_and_update(), &resource));
                if told.as_ref() != Some(&now) {
                    told = Some(now.clone());
                    // Sending fails once the kubelet has closed the stream, or the agent ends.
                    if sender.send(Ok(now)).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = slices.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let slices = self.own_slices();
        let answers = request.into_inner().container_requests.into_iter().map(|one| {
            let count = usize::try_from(one.allocation_size).unwrap_or(0);
            let (available, needed) = (&one.available_device_ids, &one.must_include_device_ids);
            let device_ids = prefer_slices(&slices, available, needed, count, self.settings.placement);
            ContainerPreferredAllocationResponse { device_ids }
        });
        Ok(Response::new(PreferredAllocationResponse { container_responses: answers.collect() }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let slices = self.own_slices();
        let answers = request.into_inner().container_requests.into_iter().map(|one| {
            let answer = allocate(&slices, &one.device_ids, &self.settings.injection);
            answer.inspect_err(|why| warn!(resource = self.resource, ids = ?one.device_ids, %why, "refused a pod"))
        });
        let container_responses = answers.collect::<Result<_, _>>().map_err(Status::failed_precondition)?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(&self, request: Request<PreStartContainerRequest>) -> Result<Response<Empty>, Status> {
        let slices = self.own_slices();
        for id in request.into_inner().device_ids {
            let slice = find_slice(&slices, &id).map_err(Status::unavailable)?;
            await_tenant(&slice.socket).await.map_err(Status::unavailable)?;
            match self.settings.labeller.label_owner(slice).await.map_err(Status::unavailable)? {
                Some(owner) => info!(
                    tenant = id,
                    namespace = owner.namespace,
                    pod = owner.pod,
                    container = owner.container,
                    "a container starts"
                ),
                None => info!(tenant = id, "a container starts, of a pod that the kubelet does not list"),
            }
        }
        Ok(Response::new(Empty {}))
    }
}

/// Waits until the tenant's socket takes connections.
async fn await_tenant(socket: &Path) -> Result<(), String> {
    match timeout(SOCKET_TIMEOUT, UnixStream::connect(socket)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(why)) => Err(format!("the tenant's socket {} does not answer: {why}", socket.display())),
        Err(_) => Err(format!("the tenant's socket {} does not answer", socket.display())),
    }
}
