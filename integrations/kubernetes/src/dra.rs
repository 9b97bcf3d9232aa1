//! `vgpu-k8s dra`: a driver of Dynamic Resource Allocation (`resource.k8s.io/v1`).
//!
//! ```text
//! vgpud ──status──► slice ──► publish ──► ResourceSlice at the API server ──► scheduler
//!   ▲                                                                            │ allocates, consumes capacity
//!   └──add, remove── claims ◄── node ◄──NodePrepareResources── kubelet ◄─────────┘
//!                      │ └► cdi, checkpoint
//!                      └──► claim: consumed capacity as the terms of a tenant
//! ```
//!
//! A companion has no devices of its own. It limits what another driver shares: its device `limits` in the same claim
//! makes the kubelet call it too, and the tenant's terms come from the other driver's consumed capacity.

pub mod api_server;
pub mod cdi;
pub mod checkpoint;
pub mod claim;
pub mod claims;
pub mod node;
pub mod publish;
pub mod quantity;
pub mod slice;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use self::api_server::ApiServer;
use self::checkpoint::Checkpoint;
use self::claim::CoresMeaning;
use self::claims::{ClaimKeeper, DraSettings};
use self::node::{DraNode, DraSockets, serve_node};
use self::publish::publish_devices;
use crate::allocate::prepare_mounts;
use crate::signals::EndSignals;

/// Name of the driver with devices of its own.
const OWN_DRIVER: &str = "vgpu.internal";
/// Name of the driver of a companion.
const COMPANION_DRIVER: &str = "limits.vgpu.internal";
/// Most letters of a node's name, so that the name of its slice has less than 253.
const MAX_NODE_LETTERS: usize = 180;
/// Most letters of a driver's name.
const MAX_DRIVER_LETTERS: usize = 63;
/// Time between two attempts to agree with vgpud.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// Serves claims of Dynamic Resource Allocation: what a claim consumes of a device becomes a tenant of vgpud.
///
/// The driver publishes vgpud's devices with the capacities memory and cores, which claims may share. With
/// --companion-of it publishes the device `limits` instead, and limits what the other driver shares. Not run on a real
/// kubelet.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s dra --node-name \"$NODE_NAME\"
  vgpu-k8s dra --node-name \"$NODE_NAME\" --companion-of gpu.nvidia.com

Signals:
  SIGTERM and SIGINT end it; its sockets are removed. Claims stay prepared.

Exit codes:
  0  ended by a signal
  1  could not start
  2  usage")]
pub struct DraArgs {
    /// Name of the node.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: String,

    /// Limits claims of this driver, for example gpu.nvidia.com, and has no devices of its own.
    #[arg(long, value_name = "DRIVER")]
    companion_of: Option<String>,

    /// Name of the driver, a domain [default: vgpu.internal, with --companion-of limits.vgpu.internal].
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,

    /// Makes the consumed percentage of cores the floor of the tenant, or also its ceiling.
    #[arg(long, value_name = "MEANING", default_value = "floor")]
    cores: CoresMeaning,

    /// The administrative socket of vgpud.
    #[arg(long, value_name = "PATH", default_value = "/run/vgpu/admin.sock")]
    socket: PathBuf,

    /// Directory of the kubelet.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,

    /// Directory where container runtimes look for CDI files.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,

    /// Vendor and class of the CDI devices that show the GPU, for example nvidia.com/gpu, each named by UUID [default:
    /// NVIDIA's runtime shows it, by NVIDIA_VISIBLE_DEVICES].
    #[arg(long, value_name = "VENDOR/CLASS", conflicts_with = "companion_of")]
    gpu_cdi: Option<String>,

    /// libvgpu.so on the host.
    #[arg(long, value_name = "PATH", default_value = "/usr/lib/vgpu/libvgpu.so")]
    library: PathBuf,

    /// Directory on the host for the list of prepared claims, and for the file that preloads the library. It must not
    /// outlast a restart of the host.
    #[arg(long, value_name = "DIR", default_value = "/run/vgpu/k8s")]
    state_dir: PathBuf,

    /// Address of the API server [default: as the kubelet tells pods].
    #[arg(long, value_name = "URL")]
    api_server: Option<String>,

    /// Directory with the token of the service account and the certificate of the API server.
    #[arg(long, value_name = "DIR", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    service_account: PathBuf,
}

/// Serves claims until a signal comes.
///
/// # Errors
/// A message: the driver cannot start.
pub async fn run_driver(args: DraArgs) -> Result<(), String> {
    let mut signals = EndSignals::listen()?;
    let injection = prepare_mounts(&args.library, &args.state_dir)?;
    let default = if args.companion_of.is_some() { COMPANION_DRIVER } else { OWN_DRIVER };
    let driver = args.driver.unwrap_or_else(|| default.to_owned());
    check_domain(&args.node_name, MAX_NODE_LETTERS)?;
    for name in [Some(&driver), args.companion_of.as_ref()].into_iter().flatten() {
        check_domain(name, MAX_DRIVER_LETTERS)?;
    }
    let _lock = lock_state(&args.state_dir, &driver)?;
    let checkpoint = Checkpoint::open(args.state_dir.join(format!("dra-{driver}.json")))?;
    let settings = DraSettings {
        driver: driver.clone(),
        companion_of: args.companion_of,
        node: args.node_name,
        socket: args.socket,
        injection,
        cdi_dir: args.cdi_dir,
        gpu_cdi: args.gpu_cdi,
        cores: args.cores,
        api: ApiServer::new(args.api_server, args.service_account)?,
    };
    let sockets = DraSockets::new(&args.kubelet_dir, &driver);
    let keeper = Arc::new(Mutex::new(ClaimKeeper::new(settings.clone(), checkpoint)));
    let registered = Arc::new(Notify::new());
    let node = DraNode { driver, keeper, registered: registered.clone(), endpoint: sockets.endpoint.clone() };
    let mut tasks = JoinSet::new();
    tasks.spawn(publish_devices(settings, registered));
    let served = sockets.clone();
    tasks.spawn(async move {
        // The kubelet gets no answer before nothing is left of a driver that was killed.
        reconcile_claims(node.keeper.clone()).await;
        serve_node(served, node).await;
    });
    tokio::select! {
        () = signals.wait() => {}
        _ = tasks.join_next() => return Err("a task of the driver has ended".into()),
    }
    tasks.shutdown().await;
    // First the socket that the kubelet watches.
    for socket in [&sockets.registry, &sockets.endpoint] {
        let _ = fs::remove_file(socket);
    }
    Ok(())
}

/// Agrees with vgpud about the prepared claims, however long it takes.
async fn reconcile_claims(keeper: Arc<Mutex<ClaimKeeper>>) {
    let mut told = String::new();
    loop {
        let keeper = keeper.clone();
        let done = tokio::task::spawn_blocking(move || {
            keeper.lock().unwrap_or_else(PoisonError::into_inner).reconcile_claims()
        });
        match done.await.unwrap_or_else(|why| Err(why.to_string())) {
            Ok(()) => return,
            Err(why) if why != told => {
                warn!(%why, "claims cannot be served yet");
                told = why;
            }
            Err(_) => {}
        }
        sleep(RETRY_PERIOD).await;
    }
}

/// Two drivers of one name on a node would remove each other's tenants.
fn lock_state(dir: &Path, driver: &str) -> Result<File, String> {
    let path = dir.join(format!("dra-{driver}.lock"));
    let failed = |why: std::io::Error| format!("{}: {why}", path.display());
    fs::create_dir_all(dir).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| format!("{}: another vgpu-k8s serves the driver {driver}", path.display()))?;
    Ok(file)
}

/// Names become parts of paths, addresses and CDI kinds.
fn check_domain(name: &str, most: usize) -> Result<(), String> {
    let edge = |part: char| part.is_ascii_lowercase() || part.is_ascii_digit();
    let is_domain = (1..=most).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|part| edge(part) || "-.".contains(part));
    if is_domain { Ok(()) } else { Err(format!("{name:?} is no name; accepted: a domain of at most {most} letters")) }
}
