//! Tenants of containers: made before a container, removed at its end, and settled after a restart of the plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;
use tracing::{info, warn};
use vgpu_config::added::TenantSection;
use vgpu_control::{ControlAnswer, ControlCommand, ask_daemon};
use vgpu_engines::kubernetes::{
    CONTAINER_LABEL, ContainerFacts, PortionRule, container_labels, container_tenant_name, read_container,
};

use crate::allocate::{TENANT_DIR, tenant_edits};
use crate::api::nri::{CONTAINER_STOPPED, ContainerAdjustment, NriContainer, NriMount, NriPod, NriVariable};

/// Longest wait for a tenant. A runtime waits for 2 s, and then goes on without the plugin's changes.
const ADD_TIMEOUT: Duration = Duration::from_millis(1400);
/// Longest wait for other answers: a call of the runtime may wait behind one of them.
const ASK_TIMEOUT: Duration = Duration::from_millis(400);

/// Settings of the plugin.
#[derive(Debug, Clone)]
pub struct NriSettings {
    /// Administrative socket of vgpud.
    pub daemon: PathBuf,
    /// libvgpu.so on the host.
    pub library: PathBuf,
    /// A file on the host that names the library as containers see it.
    pub preload_file: PathBuf,
    /// Use of `GPU_PORTION` without a limit.
    pub portion_rule: PortionRule,
    /// Libraries of others in containers, by their paths there, that the library takes the place of.
    pub replaced: Vec<String>,
}

/// A tenant that was made for a container.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContainerTenant {
    tenant: String,
    /// Identifier of the pod's sandbox; empty: not known.
    pod: String,
}

/// The tenants that the plugin made.
#[derive(Debug)]
pub struct ContainerTenants {
    settings: NriSettings,
    /// By the container's identifier.
    tenants: BTreeMap<String, ContainerTenant>,
    /// Tenants that could not be removed yet.
    leftovers: BTreeSet<String>,
    /// Containers that lived when the plugin registered, with their pods, until tenants of others are found.
    unsettled: Option<BTreeMap<String, String>>,
}

impl ContainerTenants {
    /// A plugin that has made no tenants yet.
    #[must_use]
    pub fn new(settings: NriSettings) -> Self {
        Self { settings, tenants: BTreeMap::new(), leftovers: BTreeSet::new(), unsettled: None }
    }

    /// Use of `GPU_PORTION` without a limit.
    #[must_use]
    pub fn portion_rule(&self) -> PortionRule {
        self.settings.portion_rule
    }

    /// Makes the tenant that a container asks for, and returns the changes that bring the container into it.
    ///
    /// # Errors
    /// A message: what the container asks for is not accepted, or vgpud refuses it or does not answer.
    pub async fn create(
        &mut self,
        pod: &NriPod,
        container: &NriContainer,
    ) -> Result<Option<ContainerAdjustment>, String> {
        let facts = container_facts(pod, container);
        let mut adjustment = ContainerAdjustment { mounts: self.replaced_libraries(container)?, env: Vec::new() };
        if let Some(section) = read_container(facts, self.settings.portion_rule)? {
            let name = container_tenant_name(&pod.name, &container.id);
            let labels = container_labels(&pod.namespace, &pod.name, &container.name, &container.id);
            self.leftovers.remove(&name);
            // Known before it is asked for: an answer that is late leaves a tenant too.
            let made = ContainerTenant { tenant: name.clone(), pod: pod.id.clone() };
            self.tenants.insert(container.id.clone(), made);
            let added = self.add_tenant(TenantSection { name: name.clone(), labels, ..section }).await;
            if added.is_err() {
                self.tenants.remove(&container.id);
                self.leftovers.insert(name.clone());
            }
            let socket = added?;
            info!(tenant = name, namespace = pod.namespace, pod = pod.name, container = container.name, "made");
            let library_dir = self.settings.library.parent().unwrap_or(Path::new("/"));
            let edits = tenant_edits(&socket, library_dir, &self.settings.preload_file)?;
            adjustment.env.extend(edits.variables.into_iter().map(|(key, value)| NriVariable { key, value }));
            let mounts = edits.mounts.into_iter();
            adjustment.mounts.extend(mounts.map(|mount| bind(mount.host_path, mount.container_path, mount.read_only)));
        }
        let is_empty = adjustment.env.is_empty() && adjustment.mounts.is_empty();
        Ok((!is_empty).then_some(adjustment))
    }

    /// Mounts of the library in place of those of others.
    fn replaced_libraries(&self, container: &NriContainer) -> Result<Vec<NriMount>, String> {
        let library = self.settings.library.to_str().ok_or("the library's path is not UTF-8")?;
        let is_replaced = |mount: &&NriMount| self.settings.replaced.contains(&mount.destination);
        let replaced = container.mounts.iter().filter(is_replaced);
        Ok(replaced.map(|mount| bind(library.to_owned(), mount.destination.clone(), true)).collect())
    }

    /// A container has ended. The same end may be told again.
    pub async fn end_container(&mut self, id: &str) {
        if let Some(ended) = self.tenants.remove(id) {
            self.remove_tenant(ended.tenant).await;
        }
    }

    /// A pod has ended, with containers that never started.
    pub async fn end_pod(&mut self, pod: &str) {
        let ended = self.tenants.iter().filter(|(_, tenant)| tenant.pod == pod).map(|(id, _)| id.clone());
        for id in ended.collect::<Vec<_>>() {
            self.end_container(&id).await;
        }
    }

    /// Takes what is there when the plugin registers. Tenants of containers that ended meanwhile are removed soon:
    /// the runtime waits for this, and vgpud may be slow.
    pub fn synchronise(&mut self, containers: &[NriContainer]) {
        let living = containers.iter().filter(|container| container.state != CONTAINER_STOPPED);
        let living: BTreeMap<String, String> =
            living.map(|container| (container.id.clone(), container.pod_sandbox_id.clone())).collect();
        let is_over = |id: &String| !living.contains_key(id);
        for id in self.tenants.keys().filter(|id| is_over(id)).cloned().collect::<Vec<_>>() {
            self.leftovers.extend(self.tenants.remove(&id).map(|ended| ended.tenant));
        }
        self.unsettled = Some(living);
    }

    /// Finds the tenants that an earlier plugin made, and removes those that could not be removed before.
    pub async fn settle(&mut self) {
        if let Some(living) = self.unsettled.clone() {
            match self.ask(ControlCommand::Status).await {
                Ok(answer) => {
                    let status = answer.status.into_iter().flat_map(|status| status.tenants);
                    status.filter(|tenant| tenant.added.is_some() && !tenant.removed).for_each(|tenant| {
                        let Some(id) = tenant.bearer.labels.get(CONTAINER_LABEL) else { return };
                        if let Some(pod) = living.get(id) {
                            let found = ContainerTenant { tenant: tenant.name, pod: pod.clone() };
                            self.tenants.entry(id.clone()).or_insert(found);
                        } else if !self.tenants.contains_key(id) {
                            self.leftovers.insert(tenant.name);
                        }
                    });
                    self.unsettled = None;
                }
                Err(why) => return warn!(%why, "tenants of ended containers cannot be found yet; trying again"),
            }
        }
        while let Some(tenant) = self.leftovers.first().cloned() {
            if !self.remove_tenant(tenant).await {
                return;
            }
        }
    }

    /// Removes a tenant whose container has ended; false: it is tried again later.
    async fn remove_tenant(&mut self, tenant: String) -> bool {
        let removed = self.ask(ControlCommand::Remove { tenant: tenant.clone(), only_look: false }).await;
        match &removed {
            Ok(_) => {
                info!(tenant, "removed");
                self.leftovers.remove(&tenant);
            }
            Err(why) => {
                if self.leftovers.insert(tenant.clone()) {
                    warn!(tenant, %why, "its container has ended, and it cannot be removed yet; trying again");
                }
            }
        }
        removed.is_ok()
    }

    /// Adds a tenant, and returns its socket.
    async fn add_tenant(&self, section: TenantSection) -> Result<PathBuf, String> {
        let section = Box::new(section);
        let add = ControlCommand::Add { section, pid: None, seconds: None, replace: false, waits: false };
        let answer = self.ask(add).await.map_err(|why| why.to_string())?;
        answer.tenant.and_then(|tenant| tenant.socket).ok_or_else(|| "vgpud named no socket".to_owned())
    }

    async fn ask(&self, ask: ControlCommand) -> io::Result<ControlAnswer> {
        let (socket, is_add) = (self.settings.daemon.clone(), matches!(ask, ControlCommand::Add { .. }));
        let patience = if is_add { ADD_TIMEOUT } else { ASK_TIMEOUT };
        let asked = tokio::task::spawn_blocking(move || ask_daemon(&socket, &ask));
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "vgpud does not answer in time");
        timeout(patience, asked).await.map_err(late)?.map_err(io::Error::other)?
    }
}

/// A container as the rule of its limits sees it. A tenant shows by its mount.
#[must_use]
pub fn container_facts<'a>(pod: &'a NriPod, container: &'a NriContainer) -> ContainerFacts<'a> {
    ContainerFacts {
        name: &container.name,
        annotations: &pod.annotations,
        variables: &container.env,
        has_tenant: container.mounts.iter().any(|mount| mount.destination == TENANT_DIR),
    }
}

fn bind(source: String, destination: String, is_read_only: bool) -> NriMount {
    let access = if is_read_only { "ro" } else { "rw" };
    NriMount { destination, r#type: "bind".into(), source, options: vec!["rbind".into(), access.into()] }
}
