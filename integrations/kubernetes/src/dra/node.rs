//! The calls of the kubelet: the plugin's registration, and the claims of pods.
//!
//! The kubelet finds the registration socket in its registry, asks what is behind it, and calls the endpoint from then
//! on. A kubelet that starts looks at all sockets there again, so the driver only has to keep them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tracing::{info, warn};

use super::claims::ClaimKeeper;
use crate::api::claims::{DraServer, DraService};
use crate::api::dra::{
    Claim, DRA_SERVICE, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::api::plugin_registration::{
    DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::api::watcher::registration_server::{Registration, RegistrationServer};
use crate::kubelet::inode;

/// Time between two looks at the sockets.
const SOCKET_LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Paths of the sockets of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraSockets {
    /// Socket that the kubelet finds.
    pub registry: PathBuf,
    /// Socket of the calls about claims.
    pub endpoint: PathBuf,
}

impl DraSockets {
    /// The sockets below the kubelet's directory.
    #[must_use]
    pub fn new(kubelet_dir: &Path, driver: &str) -> Self {
        Self {
            registry: kubelet_dir.join(format!("plugins_registry/{driver}-reg.sock")),
            endpoint: kubelet_dir.join(format!("plugins/{driver}/dra.sock")),
        }
    }
}

/// A driver on its node.
#[derive(Debug, Clone)]
pub struct DraNode {
    /// Name of the driver.
    pub driver: String,
    /// The claims.
    pub keeper: Arc<Mutex<ClaimKeeper>>,
    /// Told when the kubelet uses the driver, and may have removed its slices before.
    pub registered: Arc<Notify>,
    /// Path of the socket of the calls about claims.
    pub endpoint: PathBuf,
}

impl DraNode {
    /// Does something with the claims, one call at a time, on another thread than the loop that answers.
    async fn with_claims<T: Send + 'static>(
        &self,
        claims: Vec<Claim>,
        act: impl Fn(&mut ClaimKeeper, &Claim) -> T + Send + 'static,
    ) -> Result<Vec<(String, T)>, Status> {
        let keeper = self.keeper.clone();
        let all = move || {
            let mut keeper = keeper.lock().unwrap_or_else(PoisonError::into_inner);
            claims.into_iter().map(|claim| (claim.uid.clone(), act(&mut keeper, &claim))).collect()
        };
        tokio::task::spawn_blocking(all).await.map_err(|why| Status::internal(why.to_string()))
    }
}

#[tonic::async_trait]
impl DraService for DraNode {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let prepare = |keeper: &mut ClaimKeeper, claim: &Claim| match keeper.prepare_claim(claim) {
            Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
            Err(error) => {
                warn!(claim = claim.name, namespace = claim.namespace, why = %error, "not prepared");
                NodePrepareResourceResponse { devices: Vec::new(), error }
            }
        };
        let claims = self.with_claims(request.into_inner().claims, prepare).await?.into_iter().collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let unprepare = |keeper: &mut ClaimKeeper, claim: &Claim| {
            let error = keeper.unprepare_claim(claim).err().unwrap_or_default();
            if !error.is_empty() {
                warn!(claim = claim.name, namespace = claim.namespace, why = %error, "not unprepared");
            }
            NodeUnprepareResourceResponse { error }
        };
        let claims = self.with_claims(request.into_inner().claims, unprepare).await?.into_iter().collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl Registration for DraNode {
    async fn get_info(&self, _request: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            kind: DRA_PLUGIN.to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![DRA_SERVICE.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            info!(driver = self.driver, "known to the kubelet");
            self.registered.notify_one();
        } else {
            warn!(driver = self.driver, why = error, "refused by the kubelet");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves both sockets without end, and makes them again if they are gone.
pub async fn serve_node(sockets: DraSockets, node: DraNode) {
    let mut told = String::new();
    loop {
        match serve_once(&sockets, &node).await {
            Ok(()) => told.clear(),
            Err(why) if why != told => {
                warn!(driver = node.driver, %why, "the kubelet cannot reach the driver; trying again");
                told = why;
            }
            Err(_) => {}
        }
        sleep(SOCKET_LOOK_PERIOD).await;
    }
}

async fn serve_once(sockets: &DraSockets, node: &DraNode) -> Result<(), String> {
    let endpoint = bind_socket(&sockets.endpoint)?;
    let claims = Server::builder().add_service(DraServer::new(node.clone()));
    let claims = tokio::spawn(claims.serve_with_incoming(UnixListenerStream::new(endpoint)));
    // The kubelet calls the endpoint as soon as it sees this socket.
    let registry = bind_socket(&sockets.registry);
    let served = match registry {
        Err(why) => Err(why),
        Ok(registry) => {
            let watcher = Server::builder().add_service(RegistrationServer::new(node.clone()));
            let watcher = tokio::spawn(watcher.serve_with_incoming(UnixListenerStream::new(registry)));
            let bound = (inode(&sockets.endpoint), inode(&sockets.registry));
            while (inode(&sockets.endpoint), inode(&sockets.registry)) == bound
                && !claims.is_finished()
                && !watcher.is_finished()
            {
                sleep(SOCKET_LOOK_PERIOD).await;
            }
            watcher.abort();
            Ok(())
        }
    };
    claims.abort();
    served
}

/// Listens at a path, also where a driver that was killed left its socket.
fn bind_socket(path: &Path) -> Result<UnixListener, String> {
    let failed = |why: std::io::Error| format!("{}: {why}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    let _ = fs::remove_file(path);
    UnixListener::bind(path).map_err(failed)
}
