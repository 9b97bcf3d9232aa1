//! `vgpu-k8s`: the command line of the agent.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use vgpu_engines::kubernetes::PortionRule;
use vgpu_kubernetes::allocate::{Injection, preload_text};
use vgpu_kubernetes::dra::{DraArgs, run_driver};
use vgpu_kubernetes::install::install_library;
use vgpu_kubernetes::kubelet::{serve_plugin, socket_name};
use vgpu_kubernetes::labels::SliceLabeller;
use vgpu_kubernetes::nri::containers::{ContainerTenants, NriSettings};
use vgpu_kubernetes::nri::serve_runtime;
use vgpu_kubernetes::offer::follow_daemon;
use vgpu_kubernetes::plugin::{PluginSettings, SlicePlugin};
use vgpu_kubernetes::slices::Placement;

/// Offers tenants of vgpud to Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "vgpu-k8s", version, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    DevicePlugin(PluginArgs),
    Nri(NriArgs),
    Dra(DraArgs),
    InstallLibrary(InstallArgs),
}

/// Puts libvgpu.so onto the host, while containers with older versions run.
///
/// Each version gets a directory of its own. The link `current` leads to the newest one, for containers that start from
/// now on. Older versions stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s install-library --to /opt/vgpu
  vgpu-k8s device-plugin --library /opt/vgpu/current/libvgpu.so

Exit codes:
  0  installed, or already there
  1  a file cannot be read or written
  2  usage")]
struct InstallArgs {
    /// The library to install.
    #[arg(long, value_name = "PATH", default_value = "/usr/lib/vgpu/libvgpu.so")]
    from: PathBuf,

    /// Directory on the host.
    #[arg(long, value_name = "DIR", default_value = "/opt/vgpu")]
    to: PathBuf,
}

/// Makes a tenant of vgpud for each container that asks for one by annotations of its pod.
///
/// The container runtime asks before it makes a container, and tells its end, at which the tenant is removed. Annotations
/// are vgpu.internal/container.NAME.memory-limit, .gpu, .sm-limit, .sm-request, .weight, .class, .template, .devices and
/// .gang, and those of NVIDIA's GPU fractioning: nvidia.com/container.NAME.gpu-memory.limit and .request. While this
/// program does not run, containers start without a tenant, so use it next to the device plugin.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s nri
  vgpu-k8s nri --gpu-portion refuse
  vgpu-k8s nri --replace-library /usr/local/vgpu/libvgpu.so    # HAMi's, in containers

Signals:
  SIGTERM and SIGINT end it. Containers go on.

Exit codes:
  0  ended by a signal
  1  could not start
  2  usage")]
struct NriArgs {
    /// The administrative socket of vgpud.
    #[arg(long, value_name = "PATH", default_value = "/run/vgpu/admin.sock")]
    socket: PathBuf,

    /// Socket of the runtime's plugins.
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,

    /// Two digits: plugins with lower ones change a container first.
    #[arg(long, value_name = "NN", default_value = "90", value_parser = parse_index)]
    index: String,

    /// Use of KAI's GPU_PORTION where no limit is set: as a memory limit, as an error, or not at all.
    #[arg(long, value_name = "RULE", default_value = "limit")]
    gpu_portion: PortionArg,

    /// Library of another project in containers, that ours takes the place of; may be repeated.
    #[arg(long, value_name = "PATH")]
    replace_library: Vec<String>,

    /// libvgpu.so on the host.
    #[arg(long, value_name = "PATH", default_value = "/usr/lib/vgpu/libvgpu.so")]
    library: PathBuf,

    /// Directory on the host for the file that preloads the library.
    #[arg(long, value_name = "DIR", default_value = "/run/vgpu/k8s")]
    state_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PortionArg {
    Limit,
    Refuse,
    Ignore,
}

fn parse_index(text: &str) -> Result<String, String> {
    let is_index = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
    is_index.then(|| text.to_owned()).ok_or_else(|| "accepted: two digits".to_owned())
}

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
struct PluginArgs {
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
enum InjectionKind {
    Mounts,
    Cdi,
}

fn main() -> ExitCode {
    let verb = Options::parse().verb;
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(|why| why.to_string()).and_then(|runtime| runtime.block_on(run_verb(verb))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("vgpu-k8s: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run_verb(verb: Verb) -> Result<(), String> {
    match verb {
        Verb::DevicePlugin(args) => run_plugins(args).await,
        Verb::Nri(args) => run_nri(args).await,
        Verb::InstallLibrary(args) => {
            install_library(&args.from, &args.to).map(|version| println!("{}", version.display()))
        }
        Verb::Dra(args) => {
            let injection = prepare_mounts(&args.library, &args.state_dir)?;
            run_driver(args, injection).await
        }
    }
}

/// Serves the container runtime until a signal comes.
async fn run_nri(args: NriArgs) -> Result<(), String> {
    let cannot = |why: std::io::Error| format!("signals cannot be waited for: {why}");
    let (mut term, mut int) =
        (signal(SignalKind::terminate()).map_err(cannot)?, signal(SignalKind::interrupt()).map_err(cannot)?);
    let Injection::Mounts { preload_file, .. } = prepare_mounts(&args.library, &args.state_dir)? else {
        return Err("there are no mounts".to_owned());
    };
    let portion_rule = match args.gpu_portion {
        PortionArg::Limit => PortionRule::Limit,
        PortionArg::Refuse => PortionRule::Refuse,
        PortionArg::Ignore => PortionRule::Ignore,
    };
    let settings = NriSettings {
        daemon: args.socket,
        library: args.library,
        preload_file,
        portion_rule,
        replaced: args.replace_library,
    };
    tokio::select! {
        () = serve_runtime(args.nri_socket, args.index, ContainerTenants::new(settings)) => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

/// Serves a plugin for each resource until a signal comes.
async fn run_plugins(args: PluginArgs) -> Result<(), String> {
    let cannot = |why: std::io::Error| format!("signals cannot be waited for: {why}");
    let (mut term, mut int) =
        (signal(SignalKind::terminate()).map_err(cannot)?, signal(SignalKind::interrupt()).map_err(cannot)?);
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
            _ = term.recv() => break,
            _ = int.recv() => break,
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

/// Checks that the library is there, and writes the file that preloads it.
fn prepare_mounts(library: &Path, state_dir: &Path) -> Result<Injection, String> {
    let failed = |path: &Path, why: std::io::Error| format!("{}: {why}", path.display());
    fs::metadata(library).map_err(|why| failed(library, why))?;
    let is_named = library.file_name().is_some_and(|name| name == "libvgpu.so");
    let library_dir = library.parent().filter(|_| is_named && library.is_absolute()).ok_or_else(|| {
        format!("--library is {}; accepted: an absolute path that ends in libvgpu.so", library.display())
    })?;
    fs::create_dir_all(state_dir).map_err(|why| failed(state_dir, why))?;
    let preload_file = state_dir.join("ld.so.preload");
    // Running containers have the file mounted, so it is changed only if its text differs.
    if fs::read_to_string(&preload_file).ok().as_deref() != Some(&preload_text()) {
        fs::write(&preload_file, preload_text()).map_err(|why| failed(&preload_file, why))?;
    }
    Ok(Injection::Mounts { library_dir: library_dir.to_owned(), preload_file })
}
