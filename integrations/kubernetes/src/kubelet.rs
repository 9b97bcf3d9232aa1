//! Makes plugins known to the kubelet, and again whenever the kubelet has forgotten them.
//!
//! A kubelet that starts removes all sockets in its directory and knows no plugin. So each plugin looks at its socket
//! and at the kubelet's, and begins anew when its own is gone or the kubelet's is another one.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tracing::{info, warn};

use crate::api::device_plugin::{RegisterRequest, VERSION};
use crate::api::plugin::device_plugin_server::DevicePluginServer;
use crate::api::registration::registration_client::RegistrationClient;
use crate::authority::KubeletStream;
use crate::plugin::{OPTIONS, SlicePlugin};

/// Name of the kubelet's own socket in its directory.
const KUBELET_SOCKET: &str = "kubelet.sock";

/// Time between two looks at the sockets.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Serves the plugin without end.
pub async fn serve_plugin(dir: PathBuf, plugin: SlicePlugin) {
    let own = dir.join(socket_name(&plugin.resource));
    let mut told = String::new();
    loop {
        match serve_once(&dir, &own, &plugin).await {
            Ok(reason) => {
                info!(resource = plugin.full_name(), reason, "not known to the kubelet any more; registering again");
                told.clear();
            }
            Err(why) if why != told => {
                warn!(resource = plugin.full_name(), %why, "not known to the kubelet; trying again");
                told = why;
            }
            Err(_) => {}
        }
        sleep(LOOK_PERIOD).await;
    }
}

/// Name of a plugin's socket.
#[must_use]
pub fn socket_name(resource: &str) -> String {
    format!("vgpu-{resource}.sock")
}

/// Serves until the kubelet has forgotten the plugin. Returns the reason.
async fn serve_once(dir: &Path, own: &Path, plugin: &SlicePlugin) -> Result<&'static str, String> {
    let kubelet = dir.join(KUBELET_SOCKET);
    let before = inode(&kubelet).ok_or_else(|| format!("there is no {}", kubelet.display()))?;
    // An agent that was killed left its socket.
    let _ = fs::remove_file(own);
    let listener = UnixListener::bind(own).map_err(|why| format!("{}: {why}", own.display()))?;
    let bound = inode(own);
    let server = Server::builder()
        .add_service(DevicePluginServer::new(plugin.clone()))
        .serve_with_incoming(UnixListenerStream::new(listener).map(|accepted| accepted.map(KubeletStream::new)));
    let served = tokio::spawn(server);
    let registered = register(&kubelet, own, plugin).await;
    let reason = if registered.is_ok() {
        info!(resource = plugin.full_name(), "known to the kubelet");
        loop {
            if inode(&kubelet) != Some(before) {
                break "another kubelet has started";
            }
            if inode(own) != bound {
                break "the plugin's socket is gone";
            }
            if served.is_finished() {
                break "the plugin's server has ended";
            }
            sleep(LOOK_PERIOD).await;
        }
    } else {
        ""
    };
    served.abort();
    registered.map(|()| reason)
}

async fn register(kubelet: &Path, own: &Path, plugin: &SlicePlugin) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", kubelet.display());
    let mut client =
        RegistrationClient::connect(format!("unix://{}", kubelet.display())).await.map_err(|why| failed(&why))?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: own.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        resource_name: plugin.full_name(),
        options: Some(OPTIONS),
    };
    client.register(request).await.map(|_| ()).map_err(|why| failed(&why.message()))
}

/// Device and number of a file; `None`: there is none.
pub(crate) fn inode(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
