//! `vgpu-k8s audit`: finds running containers that ask for a limit which is not in force.
//!
//! A plugin that is not there is not asked, so a container can start without the tenant of its annotations. The runtime
//! tells each plugin that registers about all pods and containers. The audit registers, reads that, and leaves.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use prost::Message as _;
use tokio::time::timeout;
use vgpu_engines::kubernetes::missing_limit;

use super::connection::{RuntimeConnection, UNIMPLEMENTED};
use super::containers::container_facts;
use crate::allocate::PRELOAD_FILE;
use crate::api::nri::{
    CONTAINER_STOPPED, ConfigureResponse, NriContainer, NriPod, REMOVE_POD_SANDBOX, SynchronizeRequest,
    SynchronizeResponse,
};

/// Name of the audit among the runtime's plugins.
const AUDIT_NAME: &str = "vgpu-audit";
/// Number of the audit among the runtime's plugins: the last one, because it changes nothing.
const AUDIT_INDEX: &str = "99";
/// Longest wait for the runtime's list.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Lists running containers that ask for a limit which is not in force.
///
/// A pod asks by annotations or by variables of schedulers. Its limit is missing if the container started while
/// `vgpu-k8s nri` did not run, or if it has neither a tenant nor the library. Such a pod must start again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  vgpu-k8s audit

Exit codes:
  0  every container has the limit that it asks for
  1  a limit is missing, or the runtime does not answer
  2  usage")]
pub struct AuditArgs {
    /// Socket of the runtime's plugins.
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock")]
    nri_socket: PathBuf,
}

/// A container without the limit that it asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnservedContainer {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container in the pod.
    pub container: String,
    /// The missing limit.
    pub missing: String,
}

impl fmt::Display for UnservedContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, pod, container, missing } = self;
        write!(f, "container {container} of pod {namespace}/{pod} runs without its limit: {missing}")
    }
}

/// Finds the living containers without the limit that they ask for.
#[must_use]
pub fn find_unserved(pods: &[NriPod], containers: &[NriContainer]) -> Vec<UnservedContainer> {
    let pods: HashMap<&str, &NriPod> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
    let unserved = |container: &NriContainer| {
        let pod = pods.get(container.pod_sandbox_id.as_str())?;
        let names_library = |variable: &String| variable.starts_with("LD_PRELOAD=") && variable.contains("libvgpu.so");
        let has_library = container.mounts.iter().any(|mount| mount.destination == PRELOAD_FILE)
            || container.env.iter().any(names_library);
        Some(UnservedContainer {
            missing: missing_limit(container_facts(pod, container), has_library)?,
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
        })
    };
    containers.iter().filter(|container| container.state != CONTAINER_STOPPED).filter_map(unserved).collect()
}

/// Asks the runtime at this socket for its containers, and finds those without their limit.
///
/// # Errors
/// A message: the runtime does not answer.
pub async fn audit_runtime(socket: &Path) -> Result<Vec<UnservedContainer>, String> {
    let mut connection = RuntimeConnection::register(socket, AUDIT_NAME, AUDIT_INDEX).await?;
    let (mut pods, mut containers) = (Vec::new(), Vec::new());
    loop {
        let call = connection.next_call().await?;
        match call.method.as_str() {
            "Configure" => {
                // No event at all would mean every event.
                let configure = ConfigureResponse { events: 1 << (REMOVE_POD_SANDBOX - 1) };
                connection.answer(&call, Ok(configure.encode_to_vec())).await?;
            }
            "Synchronize" => {
                let part = SynchronizeRequest::decode(&*call.payload).map_err(|why| why.to_string())?;
                pods.extend(part.pods);
                containers.extend(part.containers);
                let answer = SynchronizeResponse { more: part.more };
                connection.answer(&call, Ok(answer.encode_to_vec())).await?;
                if !part.more {
                    return Ok(find_unserved(&pods, &containers));
                }
            }
            _ => connection.answer(&call, Err((UNIMPLEMENTED, "this plugin only reads".to_owned()))).await?,
        }
    }
}

/// Prints the containers without their limit.
///
/// # Errors
/// A message: there is one, or the runtime does not answer.
pub async fn run_audit(args: AuditArgs) -> Result<(), String> {
    let late = |_| format!("{}: the runtime does not list its containers", args.nri_socket.display());
    let unserved = timeout(LIST_TIMEOUT, audit_runtime(&args.nri_socket)).await.map_err(late)??;
    unserved.iter().for_each(|container| println!("{container}"));
    match unserved.len() {
        0 => Ok(()),
        1 => Err("1 container runs without its limit; delete its pod, so that it starts again".to_owned()),
        many => Err(format!("{many} containers run without their limits; delete their pods, so that they start again")),
    }
}
