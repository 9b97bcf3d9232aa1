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
use vgpu_engines::kubernetes::{PortionRule, PreloadedLibrary, missing_limit};

use super::PortionArg;
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
/// Directory of vgpu-manager in containers that its own library limits.
const MANAGER_DIR: &str = "/etc/vgpu-manager";
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

    /// That option of `vgpu-k8s nri` on this node. With `ignore`, KAI's GPU_PORTION asks for no limit.
    #[arg(long, value_name = "RULE", default_value = "limit")]
    gpu_portion: PortionArg,
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

/// Finds the living containers without the limit that they ask for. `rule`: that of the plugin.
#[must_use]
pub fn find_unserved(pods: &[NriPod], containers: &[NriContainer], rule: PortionRule) -> Vec<UnservedContainer> {
    let pods: HashMap<&str, &NriPod> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
    let unserved = |container: &NriContainer| {
        let pod = pods.get(container.pod_sandbox_id.as_str())?;
        let names_library = |variable: &String| variable.starts_with("LD_PRELOAD=") && variable.contains("libvgpu.so");
        let has_mount = |is_it: fn(&str) -> bool| container.mounts.iter().any(|mount| is_it(&mount.destination));
        let is_preloaded = has_mount(|path| path == PRELOAD_FILE) || container.env.iter().any(names_library);
        let library = if !is_preloaded {
            PreloadedLibrary::Missing
        } else if has_mount(|path| path.starts_with(MANAGER_DIR)) {
            PreloadedLibrary::Managers
        } else {
            PreloadedLibrary::Ours
        };
        Some(UnservedContainer {
            missing: missing_limit(container_facts(pod, container), rule, library)?,
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
pub async fn audit_runtime(socket: &Path, rule: PortionRule) -> Result<Vec<UnservedContainer>, String> {
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
                    return Ok(find_unserved(&pods, &containers, rule));
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
    let audited = audit_runtime(&args.nri_socket, args.gpu_portion.rule());
    let unserved = timeout(LIST_TIMEOUT, audited).await.map_err(late)??;
    unserved.iter().for_each(|container| println!("{container}"));
    match unserved.len() {
        0 => Ok(()),
        1 => Err("1 container runs without its limit; delete its pod, so that it starts again".to_owned()),
        many => Err(format!("{many} containers run without their limits; delete their pods, so that they start again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::nri::NriMount;

    /// The missing limit of a container with these variables and mounts.
    fn missing(variables: &[&str], mounts: &[&str], rule: PortionRule) -> Option<String> {
        let pod = NriPod { id: "pod".into(), ..NriPod::default() };
        let mounts = mounts.iter().map(|at| NriMount { destination: (*at).to_owned(), ..NriMount::default() });
        let container = NriContainer {
            pod_sandbox_id: "pod".into(),
            env: variables.iter().map(|variable| (*variable).to_owned()).collect(),
            mounts: mounts.collect(),
            ..NriContainer::default()
        };
        find_unserved(&[pod], &[container], rule).pop().map(|unserved| unserved.missing)
    }

    #[test]
    fn a_limit_of_vgpu_manager_is_missing_unless_its_own_library_is_preloaded() {
        let managers = ["CUDA_MEM_LIMIT_0=4096m"];
        let of = |mounts: &[&str]| missing(&managers, mounts, PortionRule::Limit);
        assert_eq!(of(&[]).as_deref(), Some(managers[0]));
        assert_eq!(of(&[PRELOAD_FILE, "/vgpu"]).as_deref(), Some(managers[0]), "this library does not read it");
        assert_eq!(of(&[PRELOAD_FILE, "/etc/vgpu-manager/driver"]), None);
        assert_eq!(missing(&["VGPU_SM_LIMIT=30"], &[PRELOAD_FILE], PortionRule::Limit), None);
    }

    #[test]
    fn a_portion_that_the_plugin_ignores_is_not_missing() {
        assert!(missing(&["GPU_PORTION=0.05"], &[], PortionRule::Limit).is_some());
        assert_eq!(missing(&["GPU_PORTION=0.05"], &[], PortionRule::Ignore), None);
    }
}
