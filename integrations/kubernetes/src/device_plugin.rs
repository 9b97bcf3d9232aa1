//! `vgpu-k8s device-plugin`: a plugin for each resource that vgpud's tenants make.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use crate::allocate::{Injection, prepare_mounts};
use crate::kubelet::{serve_plugin, socket_name};
use crate::labels::SliceLabeller;
use crate::offer::follow_daemon;
use crate::plugin::{PluginSettings, SlicePlugin};
use crate::signals::EndSignals;
use crate::slices::Placement;

/// Offers each tenant of vgpud that has the label `kubernetes` as a device of that resource.
///
/// The tenants of a file with `labels = { kubernetes = "quarter" }` become devices of the resource
/// vgpu.internal/quarter. A container that asks for one gets the tenant's limits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s device-plugin
  vgpu-k8s device-plugin --inject cdi --domain gpu.example.com

Signals:
  SIGTERM and SIGINT end it; its sockets are removed. Containers go on.

Exit codes:
  0  ended by a signal
  1  could not start
  2  usage")]
pub struct PluginArgs {
    /// Domain of the resources.
    #[arg(long, value_name = "DOMAIN", default_value = "vgpu.internal")]
    domain: String,

    /// The administrative socket of vgpud.
    #[arg(long, value_name = "PATH", default_value = "/run/vgpu/admin.sock")]
    socket: PathBuf,

    /// Directory of the kubelet's plugins.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    kubelet_dir: PathBuf,

    /// Socket of the kubelet's list of pods.
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pod_resources: PathBuf,

    /// How containers get the library: by mounts, or by the CDI file of `vgpu cdi generate`.
    #[arg(long, value_name = "HOW", default_value = "mounts")]
    inject: InjectionKind,

    /// With --inject cdi: vendor and class of the devices.
    #[arg(long, value_name = "VENDOR/CLASS", default_value = "vgpu.internal/tenant")]
    cdi_kind: String,

    /// With --inject mounts: libvgpu.so on the host.
    #[arg(long, value_name = "PATH", default_value = "/usr/lib/vgpu/libvgpu.so")]
    library: PathBuf,

    /// With --inject mounts: directory on the host for the file that preloads the library.
    #[arg(long, value_name = "DIR", default_value = "/run/vgpu/k8s")]
    state_dir: PathBuf,

    /// Fills one device first, or spreads containers over devices.
    #[arg(long, value_name = "HOW", default_value = "pack")]
    placement: Placement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InjectionKind {
    Mounts,
    Cdi,
}

/// Serves a plugin for each resource until a signal comes.
///
/// # Errors
/// A message: it could not start.
pub async fn run_plugins(args: PluginArgs) -> Result<(), String> {
    let mut signals = EndSignals::listen()?;
    let injection = match args.inject {
        InjectionKind::Cdi => Injection::Cdi { kind: args.cdi_kind.clone() },
        InjectionKind::Mounts => prepare_mounts(&args.library, &args.state_dir)?,
    };
    let labeller = Arc::new(SliceLabeller {
        daemon: args.socket.clone(),
        pod_resources: args.pod_resources,
        domain: args.domain.clone(),
        turn: Mutex::new(()),
    });
    let settings = Arc::new(PluginSettings {
        domain: args.domain,
        injection,
        placement: args.placement,
        labeller: labeller.clone(),
    });
    let (sender, mut slices) = watch::channel(Vec::new());
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_daemon(args.socket, sender));
    let followed = slices.clone();
    tasks.spawn(async move { labeller.follow_pods(followed).await });
    let mut resources = BTreeSet::new();
    loop {
        tokio::select! {
            changed = slices.changed() => changed.map_err(|_| "the daemon is not followed any more".to_owned())?,
            () = signals.wait() => break,
        }
        let now: BTreeSet<String> = slices.borrow_and_update().iter().map(|slice| slice.resource.clone()).collect();
        // A resource that is gone keeps its plugin, without devices.
        for resource in now.difference(&resources.clone()) {
            let plugin = SlicePlugin { resource: resource.clone(), slices: slices.clone(), settings: settings.clone() };
            tasks.spawn(serve_plugin(args.kubelet_dir.clone(), plugin));
            resources.insert(resource.clone());
        }
    }
    tasks.shutdown().await;
    for resource in &resources {
        let _ = fs::remove_file(args.kubelet_dir.join(socket_name(resource)));
    }
    Ok(())
}
