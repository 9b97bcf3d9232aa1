//! The NRI plugin: makes a tenant for each container that asks for one by annotations, and removes it at its end.
//!
//! The runtime asks before it makes a container, so a refusal stops the container. A plugin that is not there is not
//! asked, and the container starts without a tenant. So this works next to the device plugin, and never in its place.

pub mod audit;
pub mod connection;
pub mod containers;
pub mod frames;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use prost::Message as _;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};
use vgpu_engines::kubernetes::PortionRule;

use crate::allocate::{Injection, prepare_mounts};
use crate::api::nri::{
    CREATE_CONTAINER, ConfigureResponse, ContainerEvent, CreateContainerResponse, NriContainer, NriPod,
    REMOVE_CONTAINER, REMOVE_POD_SANDBOX, STOP_CONTAINER, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use crate::signals::EndSignals;
use audit::find_unserved;
use connection::{FAILED_PRECONDITION, RuntimeCall, RuntimeConnection, UNIMPLEMENTED};
use containers::{ContainerTenants, NriSettings};

/// Name of the plugin.
const PLUGIN_NAME: &str = "vgpu";
/// Time between two tries to reach the runtime, and to remove tenants that could not be removed.
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// Makes a tenant of vgpud for each container that asks for one by annotations of its pod.
///
/// The container runtime asks before it makes a container, and tells its end, at which the tenant is removed.
/// Annotations are vgpu.internal/container.NAME.memory-limit, .gpu, .sm-limit, .sm-request, .weight, .class, .template,
/// .devices and .gang, and those of NVIDIA's GPU fractioning: nvidia.com/container.NAME.gpu-memory.limit and .request.
/// While this program does not run, containers start without a tenant, so use it next to the device plugin.
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
pub struct NriArgs {
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
pub enum PortionArg {
    Limit,
    Refuse,
    Ignore,
}

impl PortionArg {
    fn rule(self) -> PortionRule {
        match self {
            Self::Limit => PortionRule::Limit,
            Self::Refuse => PortionRule::Refuse,
            Self::Ignore => PortionRule::Ignore,
        }
    }
}

fn parse_index(text: &str) -> Result<String, String> {
    let is_index = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_digit());
    is_index.then(|| text.to_owned()).ok_or_else(|| "accepted: two digits".to_owned())
}

/// Serves the container runtime until a signal comes.
///
/// # Errors
/// A message: it could not start.
pub async fn run_nri(args: NriArgs) -> Result<(), String> {
    let mut signals = EndSignals::listen()?;
    let Injection::Mounts { preload_file, .. } = prepare_mounts(&args.library, &args.state_dir)? else {
        return Err("there are no mounts".to_owned());
    };
    let settings = NriSettings {
        daemon: args.socket,
        library: args.library,
        preload_file,
        portion_rule: args.gpu_portion.rule(),
        replaced: args.replace_library,
    };
    tokio::select! {
        () = serve_runtime(args.nri_socket, args.index, ContainerTenants::new(settings)) => {}
        () = signals.wait() => {}
    }
    Ok(())
}

/// Serves the runtime at this socket without end. `index`: plugins with a lower one are called first.
pub async fn serve_runtime(socket: PathBuf, index: String, mut tenants: ContainerTenants) {
    let mut told = String::new();
    loop {
        let why = match RuntimeConnection::register(&socket, PLUGIN_NAME, &index).await {
            Ok(connection) => {
                info!(socket = %socket.display(), "registered with the runtime");
                told.clear();
                serve_connection(connection, &mut tenants).await
            }
            Err(why) => why,
        };
        if why != told {
            warn!(%why, "the runtime asks nobody: containers start without the tenants of their annotations; trying again");
            told = why;
        }
        sleep(RETRY_PERIOD).await;
    }
}

/// Answers calls until the connection ends, and returns why it ended.
async fn serve_connection(mut connection: RuntimeConnection, tenants: &mut ContainerTenants) -> String {
    let mut synchronised = SynchronizeRequest::default();
    let mut look = interval(RETRY_PERIOD);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let call = tokio::select! {
            biased;
            call = connection.next_call() => call,
            _ = look.tick() => {
                tenants.settle().await;
                continue;
            }
        };
        let answered = match call {
            Ok(call) => {
                let answer = answer_call(&call, tenants, &mut synchronised).await;
                if let Err((_, why)) = &answer {
                    warn!(method = call.method, %why, "refused");
                }
                connection.answer(&call, answer).await
            }
            Err(why) => Err(why),
        };
        if let Err(why) = answered {
            return why;
        }
    }
}

async fn answer_call(
    call: &RuntimeCall,
    tenants: &mut ContainerTenants,
    synchronised: &mut SynchronizeRequest,
) -> Result<Vec<u8>, (i32, String)> {
    let wrong = |why: prost::DecodeError| (FAILED_PRECONDITION, format!("the message is not understood: {why}"));
    match call.method.as_str() {
        "Configure" => {
            let events = [REMOVE_POD_SANDBOX, CREATE_CONTAINER, STOP_CONTAINER, REMOVE_CONTAINER];
            let events = events.iter().fold(0, |bits, event| bits | 1 << (event - 1));
            Ok(ConfigureResponse { events }.encode_to_vec())
        }
        "Synchronize" => {
            let part = SynchronizeRequest::decode(&*call.payload).map_err(wrong)?;
            let more = part.more;
            synchronised.pods.extend(part.pods);
            synchronised.containers.extend(part.containers);
            if !more {
                let SynchronizeRequest { pods, containers, .. } = std::mem::take(synchronised);
                for unserved in find_unserved(&pods, &containers, tenants.portion_rule()) {
                    warn!("{unserved}; it started without this plugin: delete the pod, so that it starts again");
                }
                tenants.synchronise(&containers);
            }
            Ok(SynchronizeResponse { more }.encode_to_vec())
        }
        "CreateContainer" => {
            let ContainerEvent { pod, container } = ContainerEvent::decode(&*call.payload).map_err(wrong)?;
            let (pod, container) = (pod.unwrap_or_default(), container.unwrap_or_default());
            let adjust = tenants.create(&pod, &container).await;
            let adjust = adjust.map_err(|why| (FAILED_PRECONDITION, container_words(&pod, &container, &why)))?;
            Ok(CreateContainerResponse { adjust }.encode_to_vec())
        }
        "StopContainer" | "RemoveContainer" => {
            let event = ContainerEvent::decode(&*call.payload).map_err(wrong)?;
            tenants.end_container(&event.container.unwrap_or_default().id).await;
            Ok(Vec::new())
        }
        "RemovePodSandbox" => {
            let event = ContainerEvent::decode(&*call.payload).map_err(wrong)?;
            tenants.end_pod(&event.pod.unwrap_or_default().id).await;
            Ok(Vec::new())
        }
        "StateChange" => {
            let event = StateChangeEvent::decode(&*call.payload).map_err(wrong)?;
            match event.event {
                REMOVE_CONTAINER => tenants.end_container(&event.container.unwrap_or_default().id).await,
                REMOVE_POD_SANDBOX => tenants.end_pod(&event.pod.unwrap_or_default().id).await,
                _ => {}
            }
            Ok(Vec::new())
        }
        "Shutdown" => Ok(Vec::new()),
        other => Err((UNIMPLEMENTED, format!("{other} is not a call of this plugin"))),
    }
}

fn container_words(pod: &NriPod, container: &NriContainer, why: &str) -> String {
    format!("vgpu: container {} of pod {}/{}: {why}", container.name, pod.namespace, pod.name)
}
